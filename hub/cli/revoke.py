"""`skipfilter revoke`: refuse tokens from now on, and end their streams."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import typer

from hub.cli.app import app, fail
from hub.cli.operator_options import Issuer, Json, Socket, Subject, TokenId, ask, ended, one_of, report
from hub.cli.settings_options import Config, EnvFile  # noqa: TC001 - Typer reads them
from skipfilter.text import escaped, example

main = app()


@main.command(
    epilog=example(
        "skipfilter revoke --subject 42", "skipfilter revoke --subject 42 --lift", "skipfilter revoke --list"
    )
)
def revoke(
    subject: Subject = None,
    token_id: TokenId = None,
    issuer: Issuer = None,
    lift: Annotated[bool, typer.Option("--lift", help="Accept the tokens again.")] = False,
    lists: Annotated[bool, typer.Option("--list", help="Print what is revoked, and change nothing.")] = False,
    socket: Socket = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Refuse tokens from now on, and end their streams, on all processes of the hub.

    These are the tokens of a subject that were issued before now, or the token with an
    id.  Without the setting max_token_life, a revocation stays until it is lifted.
    """
    hub = partial(ask, socket=socket, config=config, env_file=env_file)
    given = {"subject": subject, "token_id": token_id, "issuer": issuer}
    if lists:
        if lift or any(given.values()):
            fail("--list has no other option about tokens")
        for row in hub("/revocations", {})["revocations"]:
            typer.echo(json.dumps(row) if as_json else escaped(_line(row)))
    elif lift:
        report(hub("/lift", one_of(given)), "the tokens are accepted again", as_json=as_json)
    else:
        done = "the token is refused" if token_id else "the tokens issued until now, plus `leeway`, are refused"
        answer = hub("/revoke", one_of(given))
        report(answer, ended(answer), done, as_json=as_json)


def _line(row: dict[str, Any]) -> str:
    """Return a revocation in words."""
    what = f"subject {row['subject']}, issued until {row['before']}" if "subject" in row else f"token {row['token_id']}"
    whose = f", of {row['issuer']}" if row["issuer"] else ""
    ends = f"ends {row['until']}" if row["until"] else "stays until --lift"
    return f"{what}{whose}: {ends}"

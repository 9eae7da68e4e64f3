"""`skipfilter revoke`: refuse tokens from now on, and end their streams."""

from __future__ import annotations

from typing import Annotated

import typer

from hub.cli.app import app
from hub.cli.operator_options import Issuer, Json, Socket, Subject, TokenId, ask, report
from hub.cli.settings_options import Config, EnvFile  # noqa: TC001 - Typer reads them
from skipfilter.text import example

main = app()


@main.command(epilog=example("skipfilter revoke --subject 42", "skipfilter revoke --subject 42 --lift"))
def revoke(
    subject: Subject = None,
    token_id: TokenId = None,
    issuer: Issuer = None,
    lift: Annotated[bool, typer.Option("--lift", help="Accept the tokens again.")] = False,
    socket: Socket = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Refuse tokens from now on, and end their streams, on all processes of the hub.

    These are the tokens of a subject that were issued before now, or the token with an
    id.  Without the setting max_token_life, a revocation stays until it is lifted.
    """
    path = "/lift" if lift else "/revoke"
    given = {"subject": subject, "token_id": token_id, "issuer": issuer}
    answer = ask(path, given, socket=socket, config=config, env_file=env_file)
    report(answer, as_json=as_json, done="the tokens are accepted again" if lift else "")

"""`skipfilter connections`: who is connected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub.cli.app import FAILED, app, warn
from hub.cli.operator_options import Issuer, KeyId, Socket, Subject, Subscriber, TokenId, ask, one_of
from hub.cli.settings_options import Config, EnvFile  # noqa: TC001 - Typer reads them
from skipfilter.text import escaped, example

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

main = app()


@main.command(epilog=example("skipfilter connections --subject 42", "skipfilter connections --json > now.ndjson"))
def connections(
    subject: Subject = None,
    subscriber: Subscriber = None,
    token_id: TokenId = None,
    key_id: KeyId = None,
    issuer: Issuer = None,
    socket: Socket = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object of JSON in each line.")] = False,
) -> None:
    """Print who is connected to the hub, or those whom one option names.

    A stream that is `live` has been sent all that it wants; one that is `behind` takes
    what it can, and the number says how many entries of the history come after its
    position, whether it wants them or not.
    """
    names = {"subject": subject, "subscriber": subscriber, "token_id": token_id, "key_id": key_id, "issuer": issuer}
    given = one_of(names) if any(value is not None for value in names.values()) else names
    silent: set[str] = set()
    for page in _pages(given, socket, config, env_file):
        silent.update(page["silent"])
        for row in page["connections"]:
            typer.echo(json.dumps(row) if as_json else escaped(_line(row)))
    for name in sorted(silent):
        warn(f"{name} has not answered, so its connections are missing")
    if silent:
        raise typer.Exit(FAILED)


def _pages(
    given: dict[str, str | None], socket: str, config: Path | None, env_file: Path | None
) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        page = ask("/connections", {**given, "after": after}, socket=socket, config=config, env_file=env_file)
        yield page
        after = page["next"]


def _line(row: dict[str, Any]) -> str:
    """Return a connection in words."""
    who = row["issuer"] if row["subject"] is None else f"{row['subject']} ({row['issuer']})"
    behind = f", {row['behind']} behind" if row["behind"] else ""
    more = row["matchers"] - len(row["first_matchers"])
    wants = " ".join(row["first_matchers"]) + (f" and {more} more" if more else "")
    return f"{row['since']}  {who}  {row['address']}  {row['state']}{behind}  {wants}  {row['subscriber']}"

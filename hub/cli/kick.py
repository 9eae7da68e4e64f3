"""`skipfilter kick`: end streams now."""

from __future__ import annotations

from hub.cli.app import app
from hub.cli.operator_options import (
    Issuer,
    Json,
    KeyId,
    Socket,
    Subject,
    Subscriber,
    TokenId,
    ask,
    ended,
    one_of,
    report,
)
from hub.cli.settings_options import Config, EnvFile  # noqa: TC001 - Typer reads them
from skipfilter.text import example

main = app()


@main.command(epilog=example("skipfilter kick --subject 42", "skipfilter kick --key-id 2026-05 --socket /run/hub.sock"))
def kick(
    subject: Subject = None,
    subscriber: Subscriber = None,
    token_id: TokenId = None,
    key_id: KeyId = None,
    issuer: Issuer = None,
    socket: Socket = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """End streams now, on all processes of the hub.

    Their clients come back, and are authorized anew: first end the session, or use
    `skipfilter revoke`.  Give one of --subject, --subscriber, --token-id and --key-id.
    """
    given = {"subject": subject, "subscriber": subscriber, "token_id": token_id, "key_id": key_id, "issuer": issuer}
    answer = ask("/kick", one_of(given), socket=socket, config=config, env_file=env_file)
    report(answer, ended(answer), as_json=as_json)

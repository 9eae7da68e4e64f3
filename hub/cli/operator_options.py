"""The options of the commands that an operator gives to a hub, over its Unix socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import httpx2
import typer

from hub.cli.app import FAILED, fail, warn
from hub.cli.settings_options import settings_sources
from hub.settings.settings import SERVER_DEFAULTS
from skipfilter.text import escaped

if TYPE_CHECKING:
    from pathlib import Path

SECONDS: Final = 30.0
"""Seconds that an answer may take."""

Socket = Annotated[
    str,
    typer.Option("--socket", metavar="PATH", help="Socket of the hub, or else its setting operator_socket."),
]
Subject = Annotated[str | None, typer.Option(help="`sub` of the tokens, or subject of the application's sessions.")]
Subscriber = Annotated[str | None, typer.Option(help="Id of a subscriber, as presence updates have it.")]
TokenId = Annotated[str | None, typer.Option(help="`jti` of a token.")]
KeyId = Annotated[str | None, typer.Option(help="`kid` of the key that has signed the tokens.")]
Issuer = Annotated[
    str | None,
    typer.Option(help="Only tokens of this issuer; or `classic` tokens, or sessions of the `application`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print an object of JSON.")]


def ask(path: str, given: dict[str, Any], *, socket: str, config: Path | None, env_file: Path | None) -> dict[str, Any]:
    """Ask the hub on the socket, and return its answer.

    Ends the command with a sentence if the hub refuses, or if there is no hub.
    """
    if not socket:
        with settings_sources(config, env_file) as sources:
            socket = str(sources.values.get("operator_socket", SERVER_DEFAULTS["operator_socket"]))
        if not socket:
            fail("the setting operator_socket is empty, so the hub takes no commands here")
    body = {name: value for name, value in given.items() if value is not None}
    try:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket), timeout=SECONDS) as client:
            reply = client.post(f"http://hub{path}", json=body)
    except httpx2.ConnectError:
        fail(f"{socket}: no hub takes commands there; --socket names another place", FAILED)
    except httpx2.HTTPError as error:
        fail(f"{socket}: {error}", FAILED)
    try:
        answer: dict[str, Any] = reply.json()
    except ValueError:
        fail(f"{socket}: this is not a hub", FAILED)
    if reply.status_code != httpx2.codes.OK:
        fail(answer.get("detail") or answer["title"], FAILED)
    return answer


def report(answer: dict[str, Any], *, as_json: bool, done: str = "") -> None:
    """Print what a command has done: `done`, or how many streams it has ended.

    The exit status is 1 if not every process has done it.
    """
    if as_json:
        typer.echo(json.dumps(answer))
    elif done:
        typer.echo(done)
    else:
        ended, count = answer["ended"], sum(answer["ended"].values())
        whose = ", ".join(f"{number} of {issuer}" for issuer, number in sorted(ended.items()))
        typer.echo(escaped(f"{count} streams ended{f': {whose}' if whose else ''}"))
        if answer["not_revoked"]:
            typer.echo(f"{answer['not_revoked']} of them were sessions of the application, which alone can refuse them")
    if not answer["stored"]:
        warn("the history is away: the process that was asked has done it, and stores it when the history is back")
    for name in answer["silent"]:
        warn(f"{name} has not answered; it does it before it sends anything that is published later")
    if answer["silent"] or not answer["stored"]:
        raise typer.Exit(FAILED)

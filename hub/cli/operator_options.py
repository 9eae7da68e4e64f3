"""The options of the commands that an operator gives to a hub, over its Unix socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import httpx2
import typer

from hub.cli.app import CANNOT_BEGIN, FAILED, fail, warn
from hub.cli.settings_options import settings_sources
from hub.settings.settings import SERVER_DEFAULTS
from skipfilter.text import escaped

if TYPE_CHECKING:
    from pathlib import Path

SECONDS: Final = 15.0
"""Seconds that an answer may take: longer than a hub waits for its history and its
other processes."""

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


class NoAnswer(Exception):
    """There is no hub, or it refuses; `status` is the exit status of a command."""

    def __init__(self, reason: str, status: int = FAILED) -> None:
        super().__init__(reason)
        self.status = status


def ask(path: str, given: dict[str, Any], *, socket: str, config: Path | None, env_file: Path | None) -> dict[str, Any]:
    """Ask the hub on the socket, and return its answer.

    Ends the command with a sentence if the hub refuses, or if there is no hub.
    """
    try:
        return answer_of(path, given, socket_of(socket, config, env_file))
    except NoAnswer as error:
        fail(str(error), error.status)


def socket_of(socket: str, config: Path | None, env_file: Path | None) -> str:
    """Return the path of the socket of the hub; end the command if it has none."""
    if not socket:
        with settings_sources(config, env_file) as sources:
            socket = str(sources.values.get("operator_socket", SERVER_DEFAULTS["operator_socket"]))
        if not socket:
            fail("the setting operator_socket is empty, so the hub takes no commands here")
    return socket


def answer_of(path: str, given: dict[str, Any], socket: str) -> dict[str, Any]:
    """Return the answer of the hub on a socket.  Raises NoAnswer."""
    body = {name: value for name, value in given.items() if value is not None}
    try:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket), timeout=SECONDS) as client:
            reply = client.post(f"http://hub{path}", json=body)
    except httpx2.ConnectError:
        raise NoAnswer(f"{socket}: no hub takes commands there; --socket names another place") from None
    except httpx2.TimeoutException:
        raise NoAnswer(f"{socket}: no answer within {SECONDS:.0f} seconds: the process there hangs") from None
    except httpx2.HTTPError as error:
        raise NoAnswer(f"{socket}: {error}") from None
    try:
        answer: dict[str, Any] = reply.json()
    except ValueError:
        raise NoAnswer(f"{socket}: this is not a hub") from None
    if reply.status_code != httpx2.codes.OK:
        is_wrong = reply.status_code == httpx2.codes.BAD_REQUEST
        raise NoAnswer(answer.get("detail") or answer["title"], CANNOT_BEGIN if is_wrong else FAILED)
    return answer


def one_of(given: dict[str, str | None]) -> dict[str, str | None]:
    """Return what options give; end the command unless it is one thing, or one with
    --issuer.
    """
    names = [f"--{name.replace('_', '-')}" for name in given if name != "issuer"]
    if sum(value is not None for name, value in given.items() if name != "issuer") != 1:
        fail(f"give one of {', '.join(names[:-1])} and {names[-1]}")
    return given


def ended(answer: dict[str, Any]) -> str:
    """Return in words how many streams a command has ended."""
    count = sum(answer["ended"].values())
    whose = ", ".join(f"{number} of {issuer}" for issuer, number in sorted(answer["ended"].items()))
    text = escaped(f"{count} {'stream' if count == 1 else 'streams'} ended{f': {whose}' if whose else ''}")
    if answer["not_revoked"]:
        text += f"\n{answer['not_revoked']} of them were sessions of the application, which alone can refuse them"
    return text


def report(answer: dict[str, Any], *lines: str, as_json: bool) -> None:
    """Print the answer to a command, as JSON or in these lines, and who was silent.

    The exit status is 1 if not every process has done it.
    """
    typer.echo(json.dumps(answer) if as_json else "\n".join(lines))
    if not answer["stored"]:
        warn("the history is away: the process that was asked has done it, and stores it when the history is back")
    for name in answer["silent"]:
        when = "before it sends anything that is published later" if answer["stored"] else "once it is stored"
        warn(f"{name} has not answered; it does it {when}")
    if answer["silent"] or not answer["stored"]:
        raise typer.Exit(FAILED)

"""`skipfilter subscribe`: print the updates that a hub sends."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from hub.cli.app import app, fail
from hub.cli.client_options import Dev, Token, TokenFile, Url, read_token, with_client
from hub.cli.selectors import parameter_of
from hub.development import DEVELOPMENT_URL
from skipfilter.text import escaped, example

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.client import Client, Event
    from hub.protocol.data import Matchers

main = app()


@main.command(
    epilog=example(
        "skipfilter subscribe --dev 'https://example.com/books/{id}'",
        "skipfilter subscribe --format json --since earliest mqtt=sensors/+/heat",
    )
)
def subscribe(
    patterns: Annotated[list[str], typer.Argument(metavar="[TYPE=]PATTERN", help="Patterns of topics.")] = ["*"],  # noqa: B006
    since: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Begin after the update with this id; `earliest` is for all."),
    ] = None,
    format: Annotated[
        Literal["pretty", "raw", "json"], typer.Option(help="raw: only the data; json: an object in each line.")
    ] = "pretty",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    count: Annotated[int | None, typer.Option(help="End after this many updates.", min=1)] = None,
    classic: Annotated[
        bool,
        typer.Option("--classic", help="Use the classic dialect, for hubs of version 0.x."),
    ] = False,
    url: Url = DEVELOPMENT_URL,
    token: Token = "",
    token_file: TokenFile = None,
    dev: Dev = False,
) -> None:
    """Print the updates that match a pattern, until Ctrl-C.

    A pattern may begin with a matcher type, as in mqtt=sensors/+/heat.  Without one, it
    is a URI template if it has braces, and otherwise a topic; `*` is every topic.

    If the connection ends, it reconnects, and misses nothing that the hub still has.
    """
    if "" in patterns:
        fail("a pattern is empty; `*` is every topic")
    matchers: dict[str, list[str]] = {}
    topics = patterns if classic else []
    if not classic:
        for name, pattern in map(parameter_of, patterns):
            matchers.setdefault(name, []).append(pattern)
    write = _FORMATS["json" if as_json else format]
    logging.basicConfig(format="skipfilter: %(message)s", stream=sys.stderr)
    logging.getLogger("hub.client").setLevel(logging.INFO)
    left = count

    async def follow(client: Client) -> None:
        nonlocal left
        async for event in client.subscribe(*topics, last_event_id=since, **cast("Matchers", matchers)):
            typer.echo(write(event), color=True)  # otherwise it would strip some characters of a text
            if left is not None:
                left -= 1
                if not left:
                    return

    with_client(url, read_token(token, token_file, dev=dev), follow)


def _pretty(event: Event) -> str:
    """Return an event for people: time, type and id, and the data below."""
    try:
        data = json.dumps(event.json(), indent=2, ensure_ascii=False)
    except ValueError:
        data = event.data
    type = "" if event.type == "message" else f"  {event.type}"
    return escaped(f"{datetime.now().astimezone():%H:%M:%S}{type}  {event.id}\n{data}\n", keep="\n\t")


def _json(event: Event) -> str:
    return json.dumps({"id": event.id, "type": event.type, "data": event.data})


def _raw(event: Event) -> bytes:
    return event.data.encode()  # as it is, whatever the encoding of the console


_FORMATS: dict[str, Callable[[Event], str | bytes]] = {"pretty": _pretty, "raw": _raw, "json": _json}

"""`skipfilter publish`: publish one update, or a file of them."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from hub.cli.app import FAILED, app, fail, progress, warn
from hub.cli.client_options import Dev, Json, Token, TokenFile, Url, read_token, with_client
from hub.client.errors import Refused, Unreachable
from hub.development import DEVELOPMENT_URL
from skipfilter.text import example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hub.client import Client

MAX_LINES: Final = 1_000
"""The maximum number of lines in a request, as in the settings of a hub."""
MAX_BYTES: Final = 2**19
"""About how many bytes a request has; a hub accepts a MiB by default."""
MAX_LINE: Final = 2**26
"""The maximum number of bytes in a line."""

main = app()


@main.command(
    epilog=example(
        "skipfilter publish --dev https://example.com/books/1 'a new chapter'",
        "skipfilter publish --token-file token --private https://example.com/books/1 --file chapter.json",
        "skipfilter publish --dev --lines updates.ndjson",
    )
)
def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the update.")] = "",
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="The data; by default, what stdin has.")] = None,
    alternate: Annotated[list[str], typer.Option(metavar="TOPIC", help="A further topic; repeatable.")] = [],  # noqa: B006
    file: Annotated[typer.FileBinaryRead | None, typer.Option(metavar="FILE", help="File with the data.")] = None,
    lines: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(metavar="FILE", help="Publish each line of a file, an object of JSON; - for stdin."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Only for subscribers whose token grants it.")] = False,
    id: Annotated[str | None, typer.Option(help="Id of the update; by default, the hub makes one.")] = None,
    type: Annotated[str | None, typer.Option(help="Type of the event, for addEventListener() in a browser.")] = None,
    retry: Annotated[int | None, typer.Option(help="Milliseconds after which subscribers reconnect.", min=0)] = None,
    url: Url = DEVELOPMENT_URL,
    token: Token = "",
    token_file: TokenFile = None,
    dev: Dev = False,
    as_json: Json = False,
) -> None:
    """Publish an update, and print its id.

    With --lines, publishes many: each line has `topic` (a text or a list), `data`, and
    what else the options name.  A request has up to 1,000 lines, and the hub takes all
    of them or none.  If it refuses some, the message says which lines are published.
    """
    bearer = read_token(token, token_file, dev=dev)
    if lines is not None:
        if topic or any(value for value in (data, alternate, file, private, id, type, retry is not None)):
            fail("with --lines, each line has the topic, the data and all else: give no other option for them")
        with_client(url, bearer, lambda client: _publish_lines(client, lines, as_json=as_json))
        return
    if not topic:
        fail("a topic is needed, as in: skipfilter publish --dev https://example.com/books/1 'a new chapter'")
    text = _read(data, file)

    async def publish_one(client: Client) -> None:
        _print(
            await client.publish(topic, *alternate, data=text, private=private, id=id, type=type, retry=retry),
            as_json=as_json,
        )

    with_client(url, bearer, publish_one, on_reach=lambda reach: warn(f"on the process that took it: {reach}"))


def _read(data: str | None, file: BinaryIO | None) -> str:
    """Return the data of the update: the argument, the file, or stdin."""
    if data is not None:
        if file is not None:
            fail("give the data either as an argument or with --file")
        return data
    if file is None and sys.stdin.isatty():
        warn("the data is what you type now; Ctrl-D ends it")
    source = file or sys.stdin.buffer
    name = _name(source)
    try:
        found = source.read(MAX_LINE + 1)
        if len(found) > MAX_LINE:
            fail(f"{name} has more than {MAX_LINE:,} bytes")
        return found.decode("utf-8")
    except OSError as error:
        fail(f"{name}: {error.strerror}")
    except UnicodeError:
        fail(f"{name}: this is not UTF-8, so it cannot be the data of an update")


def _name(source: BinaryIO) -> str:
    """Return the path of a file, or the name of stdin."""
    return str(getattr(source, "name", "<stdin>"))


def _size(name: str) -> int:
    """Return the bytes of a file, or 0 if it has no size."""
    return os.path.getsize(name) if os.path.isfile(name) else 0


def _print(id: str, *, as_json: bool) -> None:
    typer.echo(json.dumps({"id": id}, ensure_ascii=False) if as_json else id)


# -- many lines


async def _publish_lines(client: Client, source: BinaryIO, *, as_json: bool) -> None:
    """Publish the lines of a file, and print the ids."""
    name = _name(source)
    size = _size(name)
    done = updates = 0
    last = 0  # the last line that is published
    try:
        with progress() as note:
            for number, batch in _batches(source, name):
                updates += await _publish_batch(client, name, number, batch, as_json=as_json)
                last = number + len(batch) - 1
                done += sum(map(len, batch))
                note(done / size if size else None, updates, "")
    except (Unreachable, KeyboardInterrupt):
        warn(f"{name}: {_published(last)}; the lines after them may be published too")
        raise
    warn(f"{_count(updates)} published")


def _published(last: int) -> str:
    if last > 1:
        return f"lines 1 to {last} are published"
    return "line 1 is published" if last else "no line is published"


def _count(updates: int) -> str:
    return "1 update is" if updates == 1 else f"{updates:,} updates are"


def _batches(source: BinaryIO, name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lines in portions for a request, each with the number of its first line.

    A line is not held back until there are more: a pipe may be slow.
    """
    number, rest = 1, b""
    while chunk := source.read1(MAX_BYTES):  # type: ignore[attr-defined]  # what there is, up to this
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            fail(f"{name}: line {number + len(lines)} has more than {MAX_LINE:,} bytes", FAILED)
        for first in range(0, len(lines), MAX_LINES):
            batch = lines[first : first + MAX_LINES]
            yield number + first, [line + b"\n" for line in batch]
        number += len(lines)
    if rest:
        yield number, [rest]


async def _publish_batch(client: Client, name: str, first: int, batch: list[bytes], *, as_json: bool) -> int:
    """Publish lines in one request, or in several if that is too large for the hub.

    Returns the number of updates.
    """
    if not any(map(bytes.strip, batch)):
        return 0
    try:
        ids = await client.publish_lines(b"".join(batch))
    except Refused as error:
        if error.status == 413 and len(batch) > 1:
            half = len(batch) // 2
            before = await _publish_batch(client, name, first, batch[:half], as_json=as_json)
            return before + await _publish_batch(client, name, first + half, batch[half:], as_json=as_json)
        fail(f"{name}: {_at_line(str(error), first, batch)}; {_published(first - 1)}", FAILED)
    for id in ids:
        _print(id, as_json=as_json)
    return len(ids)


def _at_line(reason: str, first: int, batch: list[bytes]) -> str:
    """Return the reason of a refusal with the number of the line, if it is about one.

    A hub counts the lines of a request that are not empty, from 1.
    """
    found = re.match(r"(\d+): update (\d+): (.*)", reason, re.DOTALL)
    if found is None:
        return f"line{f's {first} to' if len(batch) > 1 else ''} {first + len(batch) - 1}: {reason}"
    numbers = [number for number, line in enumerate(batch, first) if line.strip()]
    return f"line {numbers[int(found[2]) - 1]}: {found[1]}: {found[3]}"

"""`hub history`: what an operator does with a hub's log, on the command line.

Exits with 0 if it is done, 1 if it went wrong or something is missing, and 2 if it could not begin.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import structlog
import typer
from rich.filesize import decimal

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history import transfer
from hub.logs import log_to_stdlib

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hub.history.base import Entry, History, Stats

T = TypeVar("T")

Url = Annotated[
    str,
    typer.Option(
        "--url",
        "--transport",
        metavar="URL",
        help="Of the history, as the hub has it.",
        envvar=["HUB_HISTORY_URL", "HUB_TRANSPORT_URL"],
    ),
]
URL = "sqlite:///mercure.db"
"""What a hub takes unless told otherwise."""
FormatName = Annotated[
    Literal["ndjson", "parquet"] | None, typer.Option("--format", help="Told by the file's suffix unless given.")
]

history = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@history.callback()
def _history() -> None:
    """Look at a hub's log, shorten it, copy it; the hub may be running."""
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    if not structlog.is_configured():
        log_to_stdlib()
    os.umask(0o077)  # what was private in the log is not for all who can read a file


@history.command()
def stats(url: Url = URL, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Show how large the log is, and how old."""
    with _told("read"):
        found = _with(url, lambda log: log.stats())
    typer.echo(json.dumps(_as_json(found), indent=2, ensure_ascii=False) if as_json else _table(found))


@history.command()
def prune(
    url: Url = URL,
    keep_updates: Annotated[int | None, typer.Option(help="How many to keep.", min=1)] = None,
    keep_bytes: Annotated[str, typer.Option(help="Of what size to keep, as in 500MB or 2GiB.", metavar="SIZE")] = "",
    keep_age: Annotated[str, typer.Option(help="Of what age to keep, as in 90m, 12h or 30d.", metavar="AGE")] = "",
) -> None:
    """Forget the oldest updates.

    Until what is left is within these bounds; the newest one stays.
    """
    with _told("write"), _progress() as note:
        bounds: dict[str, Any] = {}
        if keep_updates is not None:
            bounds["max_updates"] = keep_updates
        if keep_bytes:
            bounds["max_bytes"] = transfer.parse_size(keep_bytes)
        if keep_age:
            bounds["max_age"] = transfer.parse_age(keep_age)
        if not bounds:
            raise ConfigurationError(
                "say what to keep: --keep-updates 100000, --keep-bytes 500MB, --keep-age 30d, or several of them"
            )

        async def prune_log(log: History) -> tuple[int, Stats]:
            return await transfer.prune(log, **bounds, note=note), await log.stats()

        forgotten, left = _with(url, prune_log)
    oldest = f", from {_moment(left.oldest)} on" if left.oldest else ""
    typer.echo(f"forgot {forgotten:,} updates; {left.updates:,} are left{oldest}")


@history.command("export")
def export_log(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Must not be there yet; - is stdout.")],
    url: Url = URL,
    format: FormatName = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Only what came after the update with this id.")
    ] = None,
) -> None:
    """Write the log into a file: NDJSON, or Parquet.

    It has what the log has now, and is there once it is whole.  hub/history/transfer.py says which members or columns.
    If the log forgets some of it meanwhile, the rest is written, it is told what is missing, and the exit status is 1.
    """
    with _told("read"), ExitStack() as stack:
        chosen = format or transfer.format_of(file)
        if file != "-":
            part = stack.enter_context(transfer.when_whole(Path(file)))
            out = stack.enter_context(part.open("wb"))
        elif chosen == "ndjson":
            out = stack.enter_context(open(sys.stdout.fileno(), "wb", closefd=False))
        else:
            raise ConfigurationError("Parquet goes to a file, and not to stdout")
        note, write = stack.enter_context(_progress()), stack.enter_context(transfer.FORMATS[chosen].write(out))
        done = _with(url, lambda log: transfer.export(log, write, after=after, note=note))
    typer.echo(f"exported {done.updates:,} updates", err=True)
    for first, last in done.gaps:
        typer.echo(
            f"hub: positions {first} to {last} are missing: the history forgot them before they were read", err=True
        )
    raise typer.Exit(1 if done.gaps else 0)


@history.command("import")
def import_log(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export has written; - is NDJSON from stdin.")],
    url: Url = URL,
    format: FormatName = None,
    append: Annotated[
        bool, typer.Option("--append", help="After what the history has; else it must be empty.")
    ] = False,
) -> None:
    """Put what was exported into a log.

    It keeps its ids and times.  A file is looked through first, and if anything is wrong with it nothing is imported.
    A hub that runs on the log dispatches it all as if it were new, and forgets what is over its HUB_HISTORY_… bounds:
    set them before it starts.
    """
    with _told("write"), _progress() as note:
        chosen = format or transfer.format_of(file)
        if file == "-" and chosen != "ndjson":
            raise ConfigurationError("Parquet comes from a file, and not from stdin")
        with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source:
            name = "stdin" if file == "-" else file

            async def load(log: History) -> int:
                if not append and await log.newest() is not None:
                    raise ConfigurationError("the history has updates already: --append adds to them")
                if file != "-":
                    for number, (share, _) in enumerate(transfer.read(name, chosen, source)):
                        if number % transfer.BATCH_UPDATES == 0:
                            note(transfer.Step(0, share))
                    source.seek(0)
                return await transfer.load(log, transfer.read(name, chosen, source), note=note)

            count = _with(url, load, create=True)
    typer.echo(f"imported {count:,} updates")


@history.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Must not be there yet.")], url: Url = URL
) -> None:
    """Copy a log in SQLite into a new file.

    To restore it: stop the hub, remove the log with its -wal and -shm, put the copy in its place, start the hub.
    It is in a new epoch: clients that had more than is in the copy get all of it.
    """
    with _told("read"):
        _with(url, lambda log: transfer.backup(log, file))
    typer.echo(f"copied the history to {file}, {decimal(file.stat().st_size)}")


# -- around them


def _with(url: str, work: Callable[[History], Awaitable[T]], *, create: bool = False) -> T:
    """What `work` returns of the log behind `url`."""

    async def run() -> T:
        async with aclosing(transfer.open_log(url, create=create)) as log:
            return await work(log)

    return asyncio.run(run())


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """Have an error end the command, with what is wrong and a status."""
    try:
        yield
    except (OSError, LookupError, ValueError) as error:
        status, message = 2 if isinstance(error, ConfigurationError) else 1, str(error)
    except HistoryUnavailable as error:
        status, message = 1, f"cannot {doing} the history: {error.reason}"
    else:
        return
    typer.echo(f"hub: {message}", err=True)
    raise typer.Exit(status)


@contextmanager
def _progress() -> Iterator[Callable[[transfer.Step], None]]:
    """What shows a step; on a terminal alone."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # it takes a tenth of a second
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def note(step: transfer.Step) -> None:
            rate = step.updates / (bar.tasks[0].elapsed or 1)
            at = "" if step.position is None else f", position {step.position:,}"
            description = f"{step.updates:,} updates, {rate:,.0f} a second{at}"
            bar.update(task, completed=step.share, total=step.share and 1, description=description)

        yield note


def _as_json(stats: Stats) -> dict[str, Any]:
    """The members of Stats; of an update, what is no content: position, time in ms since 1970, and id."""
    ends = {
        name: None if entry is None else {"position": entry.position, "time": entry.time, "id": entry.update.id}
        for name, entry in (("oldest", stats.oldest), ("newest", stats.newest))
    }
    return stats._asdict() | ends


def _table(stats: Stats) -> str:
    rows = {"Updates": f"{stats.updates:,}"}
    if stats.oldest is not None and stats.newest is not None:
        for name, entry in (("Oldest", stats.oldest), ("Newest", stats.newest)):
            age = _age(max(0, time.time() - entry.time / 1_000))
            rows[name] = f"{_moment(entry)}, {age} ago, {entry.update.id}"
        if (span := (stats.newest.time - stats.oldest.time) / 1_000) > 0:
            rate = (stats.updates + stats.presence_updates - 1) / span
            rows["Rate"] = f"{rate * 3_600:,.1f} an hour, {rate * 86_400:,.1f} a day"
    rows |= {
        "Bytes": f"{decimal(stats.bytes)}, which take {decimal(stats.size)}",
        "Presence": f"{stats.presence_updates:,} updates more, of {decimal(stats.presence_bytes)}",
        "Epoch": stats.epoch,
        "Present": f"{stats.present:,} subscribers, of hubs with HUB_SUBSCRIPTIONS",
    }
    return "\n".join(f"{name:<10}{text}" for name, text in rows.items())


def _moment(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.time / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(seconds: float) -> str:
    """In the greatest unit that it has one of, or in seconds: 2.5 h."""
    factor, unit = max(
        ((factor, unit) for unit, factor in transfer.AGES.items() if factor <= seconds), default=(1, "s")
    )
    return f"{seconds / factor:,.1f} {unit}"

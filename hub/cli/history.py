"""`skipfilter history`: look at a history, prune it, or copy it.

A command exits with 0 if it succeeds, with 1 if it fails or the result has gaps, and
with 2 if it cannot begin.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import structlog
import typer
from rich.filesize import decimal

from hub.cli.app import CANNOT_BEGIN, FAILED, app, fail, progress, run, warn
from hub.cli.settings_options import Config, EnvFile, settings_sources
from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history import transfer
from hub.logs import log_to_stdlib
from hub.settings.quantities import DURATIONS, parse_duration, parse_size
from hub.settings.settings import SERVER_DEFAULTS
from skipfilter.text import example

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hub.history.base import Entry, History, Stats

T = TypeVar("T")


def _of_settings(context: typer.Context, url: str) -> str:
    """Return the URL of the option, or that which `skipfilter serve` would have."""
    if url or context.resilient_parsing:
        return url
    group = context.parent
    assert group is not None
    with settings_sources(group.params["config"], group.params["env_file"]) as sources:
        return str(sources.values.get("history_url", SERVER_DEFAULTS["history_url"]))


Url = Annotated[
    str,
    typer.Option(
        "--url",
        "--transport",
        metavar="URL",
        help="URL of the history; by default, that of the settings.",
        callback=_of_settings,
    ),
]
URL = ""
FormatName = Annotated[
    Literal["ndjson", "parquet"] | None,
    typer.Option("--format", help="Format of the file; by default, its suffix decides."),
]

_COPY_NAME: Final = "history-%Y-%m-%dT%H%M%SZ.db"
_COPIES: Final = "history-????-??-??T??????Z.db"
"""The copies in a directory, which sort by their time."""

main = app(no_args_is_help=True, epilog=example("skipfilter history stats --json"))


@main.callback()
def _history(config: Config = None, env_file: EnvFile = None) -> None:  # noqa: ARG001 - read by _of_settings
    """Look at the history of a hub, prune it, or copy it.  The hub may be running."""
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    if not structlog.is_configured():
        log_to_stdlib()
    os.umask(0o077)  # only this user may read new files, because updates may be private


@main.command(epilog=example("skipfilter history stats --url sqlite:///mercure.db"))
def stats(url: Url = URL, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the size and the age of the history."""
    with _errors_reported("read"):
        found = _run_with(url, lambda log: log.stats())
    typer.echo(json.dumps(_as_json(found), indent=2, ensure_ascii=False) if as_json else _table(found))


@main.command(epilog=example("skipfilter history prune --keep-age 30d --keep-bytes 500MB"))
def prune(
    url: Url = URL,
    keep_updates: Annotated[int | None, typer.Option(help="Maximum number of updates to keep.", min=1)] = None,
    keep_bytes: Annotated[
        str, typer.Option(help="Maximum size of the updates to keep, as in 500MB or 2GiB.", metavar="SIZE")
    ] = "",
    keep_age: Annotated[
        str, typer.Option(help="Maximum age of the updates to keep, as in 90m, 12h or 30d.", metavar="AGE")
    ] = "",
) -> None:
    """Forget the oldest updates, until the others are within the bounds.

    At least one bound must be given.  The newest update always stays.
    """
    with _errors_reported("write"), _progress() as note:
        bounds: dict[str, Any] = {}
        if keep_updates is not None:
            bounds["max_updates"] = keep_updates
        if keep_bytes:
            bounds["max_bytes"] = _bound("--keep-bytes", parse_size, keep_bytes)
        if keep_age:
            bounds["max_age"] = _bound("--keep-age", parse_duration, keep_age)
        if not bounds:
            raise ConfigurationError("set one bound or more: --keep-updates 100000, --keep-bytes 500MB, --keep-age 30d")

        async def prune_log(log: History) -> tuple[int, Stats]:
            return await transfer.prune(log, **bounds, note=note), await log.stats()

        forgotten, left = _run_with(url, prune_log)
    oldest = f", from {_moment(left.oldest)} on" if left.oldest else ""
    typer.echo(f"forgot {forgotten:,} updates; {left.updates:,} are left{oldest}")


@main.command("export", epilog=example("skipfilter history export updates.ndjson"))
def export_log(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file, or - for stdout.")],
    url: Url = URL,
    format: FormatName = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Export only the updates after the one with this id.")
    ] = None,
) -> None:
    """Write the history to a file, as NDJSON or Parquet.

    The file has all updates that the history has at the start, and appears when it is
    complete.  hub/history/transfer.py describes its members or columns.

    If the history forgets some of the updates meanwhile, the rest is written, the
    missing positions are printed, and the exit status is 1.
    """
    with _errors_reported("read"), ExitStack() as stack:
        chosen = format or transfer.format_of(file)
        if file != "-":
            part = stack.enter_context(transfer.when_whole(Path(file)))
            out = stack.enter_context(part.open("wb"))
        elif chosen == "ndjson":
            out = stack.enter_context(open(sys.stdout.fileno(), "wb", closefd=False))
        else:
            raise ConfigurationError("Parquet cannot be written to stdout: name a file")
        note, write = stack.enter_context(_progress()), stack.enter_context(transfer.FORMATS[chosen].write(out))
        done = _run_with(url, lambda log: transfer.export(log, write, after=after, note=note))
    typer.echo(f"exported {done.updates:,} updates", err=True)
    for first, last in done.gaps:
        warn(f"positions {first} to {last} are missing: the history forgot them before they were read")
    raise typer.Exit(FAILED if done.gaps else 0)


@main.command("import", epilog=example("skipfilter history import --url sqlite:///new.db updates.ndjson"))
def import_log(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file from `skipfilter history export`, or - for NDJSON from stdin.")
    ],
    url: Url = URL,
    format: FormatName = None,
    append: Annotated[bool, typer.Option("--append", help="Append to a history that has updates already.")] = False,
) -> None:
    """Append exported updates to a history.

    The updates keep their ids and times, and presence updates stay apart from the
    others.  A file is checked first: if it has an error, nothing is imported.  The
    history must be empty unless --append is given.

    A hub that runs on the history sends all imported updates as if they were new, and
    forgets those that exceed its HUB_HISTORY_… bounds.  Set the bounds before it
    starts.
    """
    with _errors_reported("write"), _progress() as note:
        chosen = format or transfer.format_of(file)
        if file == "-" and chosen != "ndjson":
            raise ConfigurationError("Parquet cannot be read from stdin: name a file")
        with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source:
            name = "stdin" if file == "-" else file

            # A file is read twice: first to check it, and then to import it.
            async def load(log: History) -> int:
                if not append and await log.newest() is not None:
                    raise ConfigurationError("the history already has updates: use --append to add to them")
                if file != "-":
                    for number, found in enumerate(transfer.read(name, chosen, source)):
                        if number % transfer.BATCH_UPDATES == 0:
                            note(transfer.Step(0, found.share))
                    source.seek(0)
                return await transfer.load(log, transfer.read(name, chosen, source), note=note)

            count = _run_with(url, load, create=True)
    typer.echo(f"imported {count:,} updates")


@main.command(epilog=example("skipfilter history backup /var/backups/hub --keep 14"))
def backup(
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A new file, or a directory: then its name is the time."),
    ],
    url: Url = URL,
    keep: Annotated[
        int | None, typer.Option(help="In a directory: number of copies to keep; older ones are removed.", min=1)
    ] = None,
) -> None:
    """Copy a history in SQLite to a new file.

    To restore the copy, stop the hub, remove the file of the history and its -wal and
    -shm files, put the copy in its place, and start the hub.

    The copy begins a new epoch: if a client has seen updates that are not in the copy,
    it gets all updates of the copy.
    """
    with _errors_reported("read"):
        if keep is not None and not target.is_dir():
            raise ConfigurationError(f"--keep is for a directory, and {target} is none")
        file = target / time.strftime(_COPY_NAME, time.gmtime()) if target.is_dir() else target
        _run_with(url, lambda log: transfer.backup(log, file))
        typer.echo(f"copied the history to {file}, {decimal(file.stat().st_size)}")
        if keep is not None:
            others = sorted(copy for copy in target.glob(_COPIES) if copy != file)
            for old in others[: max(0, len(others) + 1 - keep)]:
                old.unlink(missing_ok=True)
                typer.echo(f"removed {old}")


# -- used by all commands


def _run_with(url: str, work: Callable[[History], Awaitable[T]], *, create: bool = False) -> T:
    """Open the history of `url`, and return the result of `work` on it."""

    async def opened() -> T:
        async with aclosing(transfer.open_log(url, create=create)) as log:
            return await work(log)

    return run(opened())


@contextmanager
def _errors_reported(doing: str) -> Iterator[None]:
    """End the command with a message and an exit status if an error is raised."""
    try:
        yield
    except (OSError, LookupError, ValueError) as error:
        fail(error, CANNOT_BEGIN if isinstance(error, ConfigurationError) else FAILED)
    except HistoryUnavailable as error:
        fail(f"cannot {doing} the history: {error.reason}", FAILED)


@contextmanager
def _progress() -> Iterator[Callable[[transfer.Step], None]]:
    """Yield a function that shows a step, if stderr is a terminal."""
    with progress() as note:
        yield lambda step: note(
            step.share, step.updates, "" if step.position is None else f", position {step.position:,}"
        )


def _bound(option: str, parse: Callable[[str], float], text: str) -> float:
    """Return a bound of at least 1; a smaller one would forget everything."""
    try:
        bound = parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None
    if bound < 1:
        raise ConfigurationError(f"{option}: {text!r} is less than 1")
    return bound


def _as_json(stats: Stats) -> dict[str, Any]:
    """Return the members of Stats, as JSON.

    Of the oldest and the newest update, it has the position, the time in ms since 1970
    and the id, and no content.
    """
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
        "Presence": f"{stats.presence_updates:,} further updates, of {decimal(stats.presence_bytes)}",
        "Epoch": stats.epoch,
        "Present": f"{stats.present:,} subscribers of hubs that have HUB_SUBSCRIPTIONS set",
    }
    return "\n".join(f"{name:<10}{text}" for name, text in rows.items())


def _moment(entry: Entry) -> str:
    """Return the time of an entry; one that was imported before may have any."""
    try:
        moment = datetime.fromtimestamp(entry.time / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{entry.time:,} ms after 1970"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(seconds: float) -> str:
    """Return an age in the largest unit that fits, as in `2.5 h`."""
    factor, unit = max(
        ((factor, unit) for unit, factor in DURATIONS.items() if 1 <= factor <= seconds), default=(1, "s")
    )
    return f"{seconds / factor:,.1f} {unit}"

"""`skipfilter log`: who received what, from the event log of a hub."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub.auth.authorizer import event_log_key
from hub.cli.app import FAILED, app, fail, progress, warn
from hub.cli.settings_options import Config, EnvFile, settings_sources
from hub.errors import ConfigurationError
from hub.event_log import answers
from hub.event_log.answers import FATES
from hub.event_log.segments import dead_nodes
from skipfilter.text import escaped, example

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hub.event_log.answers import Session
    from hub.event_log.records import Connection, Mark, Update

main = app(
    epilog=example(
        "skipfilter log who --update urn:uuid:9a0e2b5c-…",
        "skipfilter log of --subject 42 --log /var/lib/hub/events",
        "skipfilter log unread --json",
    )
)

Log = Annotated[str, typer.Option("--log", metavar="DIR", help="Directory of the log, or else the setting event_log.")]
Json = Annotated[bool, typer.Option("--json", help="Print an object of JSON in each line; the first has the numbers.")]


@main.callback()
def log() -> None:
    """Read the event log of a hub, without Spark: who received what.

    It has what the hub wrote so far.  `received` is what was handed to the socket of a
    connection that has ended.  One that is `open` has it or gets it next, and `perhaps`
    is one whose process was killed.  If a hub was killed, or could not write, a line on
    stderr says what may be missing.
    """


@main.command(epilog=example("skipfilter log who --update urn:uuid:9a0e2b5c-…"))
def who(
    update: Annotated[str, typer.Option(metavar="ID", help="The id of the update.")],
    directory: Log = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Print who received an update, and who wanted it and might not read it."""
    with _reading(directory, config, env_file) as path, progress() as note:
        found = answers.who(path, update, note)
    if not found:
        fail(f"{path}: the log has no update with the id {update!r}", FAILED)
    for one in found:
        lists = {fate: getattr(one, fate) for fate in FATES}
        if as_json:
            counts = {name: len(some) for name, some in lists.items()} | {"others": one.others}
            _print_json(update=_update(one.update), **counts, unsure=[_mark(mark) for mark in one.marks])
        else:
            parts = [f"{_streams(len(one.received))} received the update"]
            parts += [f"{len(one.open)} that are open have it or get it next"] if one.open else []
            parts += [f"of {len(one.perhaps)} it is not known: the process was killed"] if one.perhaps else []
            parts += [f"{len(one.denied)} wanted it and might not read it", f"{one.others} others were connected"]
            _print(f"{'At least ' if one.marks else ''}{'; '.join(parts)}.")
            _print(f"  update  {_told(one.update)}")
        for fate, some in lists.items():
            for connection in some:
                is_late = connection.time > one.update.time * 1_000
                if as_json:
                    _print_json(fate=fate, replayed=is_late, **_connection(connection))
                else:
                    how = ", after the update: from the history" if is_late else ""
                    _print(f"  {fate:<9}{_whom(connection)}  connected {_micros(connection.time)}{how}")
        _warn_of(one.marks)


@main.command(epilog=example("skipfilter log of --subject 42"))
def of(
    subject: Annotated[str, typer.Option(help="`sub` of the tokens, or a digest as the log has it.")],
    directory: Log = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Print when a user was connected, and what each connection received."""
    with _reading(directory, config, env_file) as path, progress() as note:
        day = answers.of_subject(path, subject, note, key=_key(config, env_file))
    if not day.sessions:
        fail(
            f"{path}: the log has no connection of the subject {subject!r}; it has none if event_log_subject was none, "
            "and digests need the key of the log",
            FAILED,
        )
    if as_json:
        _print_json(
            connections=len(day.sessions), received=len(day.received), unsure=[_mark(mark) for mark in day.marks]
        )
    else:
        updates = len({(one.update.epoch, one.update.position) for one in day.received})
        _print(f"{_streams(len(day.sessions))}: {len(day.received)} deliveries of {updates} updates.")
    for session in day.sessions:
        if as_json:
            _print_json(**_connection(session.connection), **_end(session))
        else:
            window = session.window
            until = "open" if window.time is None else f"until {_micros(window.time)} ({window.reason or 'unknown'})"
            _print(f"  {_whom(session.connection)}  from {_micros(session.connection.time)} {until}")
    for one in day.received:
        if as_json:
            _print_json(subscriber=one.subscriber, fate=one.fate, **_update(one.update))
        else:
            _print(f"  {one.fate:<9}{_told(one.update)}  {one.subscriber}")
    _warn_of(day.marks)


@main.command(epilog=example("skipfilter log unread"))
def unread(
    directory: Log = "",
    limit: Annotated[int, typer.Option(help="Updates that are printed, at most.", min=0)] = 1_000,
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Print the private updates that no connection received."""
    with _reading(directory, config, env_file) as path, progress() as note:
        found = answers.unread(path, note, limit=limit)
    if as_json:
        _print_json(private=found.total, unread=found.unread, wanted=found.wanted, unsure=found.unsure)
    else:
        _print(
            f"{found.unread} of {found.total} private updates were received by no connection; {found.wanted} of these "
            f"were wanted by one that might not read them."
        )
        if found.unsure:
            _print(f"Of {found.unsure} more it is not known: their deliveries may be missing from the log.")
    for update, is_wanted, is_unsure in found.updates:
        if as_json:
            _print_json(fate="unsure" if is_unsure else "unread", wanted=is_wanted, **_update(update))
        else:
            _print(f"  {'unsure' if is_unsure else 'unread'}  {_told(update)}{'  wanted' if is_wanted else ''}")
    if more := found.unread + found.unsure - len(found.updates):
        warn(f"{more} more are not printed: see --limit")


@contextmanager
def _reading(directory: str, config: Path | None, env_file: Path | None) -> Iterator[str]:
    """Yield the directory of the log; end the command with a sentence if it fails."""
    if not directory:
        with settings_sources(config, env_file) as sources:
            directory = os.path.expanduser(str(sources.values.get("event_log", "")))
        if not directory:
            fail("no event log: give --log, or the setting event_log")
    for node in dead_nodes(directory):
        warn(
            f"some may be missing: the process {node} has died, and no other has closed its part of the log yet; "
            "the next start of the hub does that"
        )
    try:
        yield directory
    except ConfigurationError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror or error}", FAILED)
    except (ValueError, LookupError, TypeError) as error:
        fail(f"{directory}: a line is not a record of an event log: {error!r:.200}", FAILED)


def _key(config: Path | None, env_file: Path | None) -> bytes | None:
    """Return the key that the settings give; None if it is in the directory."""
    with settings_sources(config, env_file) as sources:
        return event_log_key(sources.settings()) or None


def _print(text: str) -> None:
    typer.echo(escaped(text))


def _print_json(**members: Any) -> None:
    typer.echo(json.dumps(members))


def _warn_of(marks: Sequence[Mark]) -> None:
    for mark in marks:
        warn(
            f"some may be missing: {mark.node} {mark.cause} at {_micros(mark.time)}, and its deliveries after position "
            f"{mark.after} may not be in the log"
        )


def _streams(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"


def _told(update: Update) -> str:
    privacy = "private" if update.private else "public"
    return f"{_micros(update.time * 1_000)}  {update.id}  {privacy}  {' '.join(update.topics)}"


def _whom(one: Connection) -> str:
    who = one.subject or one.issuer or "unknown"
    return "  ".join(part for part in (who, one.address, one.subscriber) if part)


def _micros(time: int) -> str:
    return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat(timespec="milliseconds")


def _update(update: Update) -> dict[str, Any]:
    return {
        "id": update.id,
        "topics": update.topics,
        "private": update.private,
        "published": _micros(update.time * 1_000),
        "position": update.position,
    }


def _connection(one: Connection) -> dict[str, Any]:
    names = ("subscriber", "issuer", "subject", "token_id", "address", "node", "number", "after")
    return {name: getattr(one, name) for name in names} | {"from": _micros(one.time)}


def _end(session: Session) -> dict[str, Any]:
    until, time, reason = session.window
    is_open = time is None
    return {"to": None if time is None else _micros(time), "until": None if is_open else until, "reason": reason}


def _mark(mark: Mark) -> dict[str, Any]:
    return mark._asdict() | {"time": _micros(mark.time)}

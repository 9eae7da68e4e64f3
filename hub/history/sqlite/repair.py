"""Repair: what can be read of a damaged file goes on in a new one, and the damaged file is put aside.

    a.db           ── copy ────►  a.db.salvaged
    a.db           ── rename ──►  a.db.damaged
    a.db.salvaged  ── rename ──►  a.db

A process that is killed before the last step leaves it to the next process that opens the log.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from pathlib import Path
from typing import Any, Final, NamedTuple

from hub.history import base
from hub.history.sqlite.file import (
    SALVAGED,
    File,
    Unreadable,
    alone,
    begin,
    busy_until,
    connect,
    files_of,
    first_position,
    identity_of,
    is_busy,
    last_position,
    next_position,
    put_aside,
    transaction,
)
from hub.history.sqlite.transaction import entry_of

ASIDE: Final = 5
"""Damaged files that are kept; the last of them is replaced."""
_NOTHING: Final = 4_096
"""Positions without an entry after which no more are looked for, in a file whose end is damaged."""


class Salvaged(NamedTuple):
    """What has become of a damaged file."""

    kept: int
    """How many entries go on in the new file."""
    lost: int
    """How many entries are lost, at least."""
    aside: str
    """Where the damaged file is."""


def salvage(file: File, end: int) -> Salvaged | None:
    """Put a damaged file aside, and what can be read of it in its place.  None if another process has done so.

    `end` is the greatest position in the file that is known.  Raises sqlite3.Error and OSError if it cannot be done,
    and HistoryUnavailable if another process is opening the log.
    """
    path = file.path
    # Nobody else opens it meanwhile, or salvages it; and nobody writes into it, who all look whether it is still the
    # log when they have SQLite's lock.
    with alone(path), contextlib.closing(connect(path)) as connection:
        try:
            begin(connection, busy_until())
        except sqlite3.DatabaseError as failure:
            if is_busy(failure):
                raise
        # Where even that is damaged, nobody can write.
        if identity_of(path) != file.identity:
            return None
        kept, lost = copy(connection, path + SALVAGED, end)
        names = [f"{path}.damaged{n or ''}" for n in range(ASIDE)]
        aside = next((name for name in names if not os.path.exists(name)), names[-1])
        put_aside(path, aside)
        os.rename(path + SALVAGED, path)
    return Salvaged(kept, lost, aside)


def copy(damaged: sqlite3.Connection, target: str, end: int) -> tuple[int, int]:
    """Write what can be read into a new log at `target`: how many entries, and how many are lost at least.

    `end` is the greatest position that is known; it goes on from there until nothing has come for a while.
    """
    for path in files_of(target):
        Path(path).unlink(missing_ok=True)
    new = File(target, "full", None)
    with contextlib.closing(new):
        first, last, has_end = 1, end, False
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):  # where the table's ends are damaged, the index
            first, last = damaged.execute("SELECT min(position), max(position) FROM log INDEXED BY log_hash").fetchone()
            last = max(end, last)
        with contextlib.suppress(sqlite3.DatabaseError):
            first = first_position(damaged)
        with contextlib.suppress(sqlite3.DatabaseError):
            last, has_end = max(end, last_position(damaged)), True
        expected = last - first + 1
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):
            expected = sum(damaged.execute("SELECT published, presence FROM state").fetchone())
        about_presence: set[int] = set()
        with contextlib.suppress(sqlite3.DatabaseError):  # else it all counts as published
            about_presence.update(position for (position,) in damaged.execute("SELECT position FROM presence"))
        kept = since = 0
        reached, start = first - 1, first
        while start <= max(last, reached + (0 if has_end else _NOTHING)):
            with transaction(new.writer, math.inf):
                rows = _readable(damaged, start, start + base.PAGE_ENTRIES)
                for row in rows:
                    try:
                        entry_of((row[0], row[1], *row[4:]), 0)
                    except Unreadable:
                        continue
                    if row[0] != reached + 1:  # nobody knows whether all that is missing was about presence
                        since = kept + 1
                    reached = row[0]
                    kept += 1
                    new.writer.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (kept, *row[1:]))
                    if row[0] in about_presence:
                        new.writer.execute("INSERT INTO presence VALUES (?)", (kept,))
            start += base.PAGE_ENTRIES
            if not rows:  # a gap may be as long as all that was ever announced
                with contextlib.suppress(sqlite3.DatabaseError):
                    start = max(start, next_position(damaged, start - 1) or 0)
        last = max(last, reached)
        if reached < last or not has_end:
            since = kept + 1
        with transaction(new.writer, math.inf):
            new.writer.execute("UPDATE state SET since = ?", (since,))
            for kind, condition in (("published", "NOT IN"), ("presence", "IN")):
                new.writer.execute(
                    f"UPDATE state SET ({kind}, {kind}_bytes) = (SELECT count(*), ifnull(sum(size), 0) FROM log"  # noqa: S608
                    f" WHERE position {condition} (SELECT position FROM presence))"
                )
            for table in ("node", "present"):
                with contextlib.suppress(sqlite3.DatabaseError):  # its nodes say again who is present
                    rows = damaged.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
                    marks = ", ".join("?" * len(rows[0])) if rows else ""
                    new.writer.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
    return kept, max(0, expected - kept)


def _readable(damaged: sqlite3.Connection, start: int, stop: int) -> list[tuple[Any, ...]]:
    """The rows from `start` to before `stop` that can be read."""
    try:
        return damaged.execute(
            "SELECT * FROM log WHERE position >= ? AND position < ? ORDER BY position", (start, stop)
        ).fetchall()
    except sqlite3.DatabaseError:
        if stop - start == 1:
            return []
        middle = (start + stop) // 2
        return _readable(damaged, start, middle) + _readable(damaged, middle, stop)

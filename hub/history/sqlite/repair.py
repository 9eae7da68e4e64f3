"""Repair: a new file continues with the readable part of a damaged one.

    a.db           ── copy ────►  a.db.salvaged
    a.db           ── rename ──►  a.db.damaged
    a.db.salvaged  ── rename ──►  a.db

If a process is killed before the last step, the next process that opens the history
does it.
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
"""Damaged files that are kept; if there are more, the last one is replaced."""
_NOTHING: Final = 4_096
"""Positions without an entry after which the search ends, if the end is unknown."""


class Salvaged(NamedTuple):
    """The outcome of a repair."""

    kept: int
    """The number of entries in the new file."""
    lost: int
    """The number of lost entries, at least."""
    aside: str
    """The path of the damaged file."""


def salvage(file: File, end: int) -> Salvaged | None:
    """Put a damaged file aside, and a copy of its readable part in its place.

    `end` is the greatest known position in the file.  Returns None if another process
    has repaired it.  Raises sqlite3.Error or OSError if it fails, and
    HistoryUnavailable if another process is opening the history.
    """
    path = file.path
    # `alone` keeps other processes from opening or repairing it.  SQLite's lock keeps
    # them from writing: after they get it, they check whether the file is still the
    # history.
    with alone(path), contextlib.closing(connect(path)) as connection:
        try:
            begin(connection, busy_until())
        except sqlite3.DatabaseError as failure:
            if is_busy(failure):
                raise
        # If even the lock is damaged, no process can write.
        if identity_of(path) != file.identity:
            return None
        kept, lost = copy(connection, path + SALVAGED, end)
        names = [f"{path}.damaged{n or ''}" for n in range(ASIDE)]
        aside = next((name for name in names if not os.path.exists(name)), names[-1])
        put_aside(path, aside)
        os.rename(path + SALVAGED, path)
    return Salvaged(kept, lost, aside)


def copy(damaged: sqlite3.Connection, target: str, end: int) -> tuple[int, int]:
    """Copy the readable part into a new history at `target`.

    Returns how many entries were copied, and how many are lost at least.  `end` is the
    greatest known position; the copy goes on from there until no entry has come for a
    while.
    """
    for path in files_of(target):
        Path(path).unlink(missing_ok=True)
    new = File(target, "full", None)
    with contextlib.closing(new):
        # 1. The range of positions: from the index, and from the table if it is
        # readable.
        first, last, has_end = 1, end, False
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):
            first, last = damaged.execute("SELECT min(position), max(position) FROM log INDEXED BY log_hash").fetchone()
            last = max(end, last)
        with contextlib.suppress(sqlite3.DatabaseError):
            first = first_position(damaged)
        with contextlib.suppress(sqlite3.DatabaseError):
            last, has_end = max(end, last_position(damaged)), True
        # 2. How many entries to expect, and which of them are about presence.
        expected = last - first + 1
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):
            expected = sum(damaged.execute("SELECT published, presence FROM state").fetchone())
        about_presence: set[int] = set()
        with contextlib.suppress(sqlite3.DatabaseError):  # else all count as published
            about_presence.update(position for (position,) in damaged.execute("SELECT position FROM presence"))
        # 3. Copy page by page.  Positions in the copy are consecutive; before the new
        #    position `since` something is missing.
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
                    # A missing entry may have been a published one.
                    if row[0] != reached + 1:
                        since = kept + 1
                    reached = row[0]
                    kept += 1
                    new.writer.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (kept, *row[1:]))
                    if row[0] in about_presence:
                        new.writer.execute("INSERT INTO presence VALUES (?)", (kept,))
            start += base.PAGE_ENTRIES
            if not rows:  # skip a gap of forgotten presence updates, however long
                with contextlib.suppress(sqlite3.DatabaseError):
                    start = max(start, next_position(damaged, start - 1) or 0)
        # 4. If the end is unknown or was not reached, something is missing after the
        # copy.
        last = max(last, reached)
        if reached < last or not has_end:
            since = kept + 1
        # 5. The counts, the nodes and their subscribers.
        with transaction(new.writer, math.inf):
            new.writer.execute("UPDATE state SET since = ?", (since,))
            for kind, condition in (("published", "NOT IN"), ("presence", "IN")):
                new.writer.execute(
                    f"UPDATE state SET ({kind}, {kind}_bytes) = (SELECT count(*), ifnull(sum(size), 0) FROM log"  # noqa: S608
                    f" WHERE position {condition} (SELECT position FROM presence))"
                )
            for table in ("node", "present"):
                with contextlib.suppress(sqlite3.DatabaseError):  # else the nodes repeat them
                    rows = damaged.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
                    marks = ", ".join("?" * len(rows[0])) if rows else ""
                    new.writer.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
    return kept, max(0, expected - kept)


def _readable(damaged: sqlite3.Connection, start: int, stop: int) -> list[tuple[Any, ...]]:
    """Return the readable rows from `start` to before `stop`: halve until a
    read works.
    """
    try:
        return damaged.execute(
            "SELECT * FROM log WHERE position >= ? AND position < ? ORDER BY position", (start, stop)
        ).fetchall()
    except sqlite3.DatabaseError:
        if stop - start == 1:
            return []
        middle = (start + stop) // 2
        return _readable(damaged, start, middle) + _readable(damaged, middle, stop)

"""Repair: a new file continues with the readable part of a damaged file.

    1.  a.db           ── copy ────►  a.db.salvaged
    2.  a.db           ── rename ──►  a.db.damaged
    3.  a.db.salvaged  ── rename ──►  a.db

If the process is killed before step 3, the next process that opens the history does
that step.  If it is killed before step 2, the next process to notice the damage repairs
the file again.
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

DAMAGED_FILES: Final = 5
"""Damaged files that are kept; each further one replaces the last of them."""
_EMPTY_POSITIONS: Final = 4_096
"""Positions without an entry after which the copy ends, if the end is unknown."""


class Salvaged(NamedTuple):
    """The outcome of a repair."""

    kept: int
    """The number of entries in the new file."""
    lost: int
    """The number of entries that are known to be lost; there may be more."""
    aside: str
    """The new path of the damaged file."""


def salvage(file: File, end: int) -> Salvaged | None:
    """Put a damaged file aside, and a copy of its readable part in its place.

    `end` is the greatest known position in the file.  Returns None if another process
    has already repaired it.  Raises sqlite3.Error or OSError if the repair fails, and
    HistoryUnavailable if another process holds `alone` for too long.
    """
    path = file.path
    # 1. Lock out other processes.  `alone` keeps them from opening or repairing the
    #    file.  SQLite's lock keeps them from writing: a process that waits for the lock
    #    checks, when it gets it, whether the file is still the history.
    with alone(path), contextlib.closing(connect(path)) as connection:
        try:
            begin(connection, busy_until())
        except sqlite3.DatabaseError as failure:
            # If damage makes the lock impossible, no process can write: go on.
            if is_busy(failure):
                raise
        # 2. Another process may have repaired the file before this one had the locks.
        if identity_of(path) != file.identity:
            return None
        # 3. Copy the readable part, and exchange the files.
        kept, lost = copy(connection, path + SALVAGED, end)
        names = [f"{path}.damaged{n or ''}" for n in range(DAMAGED_FILES)]
        aside = next((name for name in names if not os.path.exists(name)), names[-1])
        put_aside(path, aside)
        os.rename(path + SALVAGED, path)
    return Salvaged(kept, lost, aside)


def copy(damaged: sqlite3.Connection, target: str, end: int) -> tuple[int, int]:
    """Copy the readable part of a damaged file into a new history at `target`.

    `end` is the greatest known position.  If the end of the table cannot be read, the
    copy goes on after `end` until _EMPTY_POSITIONS have no entry.

    Returns how many entries were copied, and how many are known to be lost.
    """
    for path in files_of(target):
        Path(path).unlink(missing_ok=True)
    new = File(target, "full", None)
    with contextlib.closing(new):
        # 1. Find the range of positions.  The ends of the table are best.  If they are
        #    unreadable, use those of the index, and else 1 and `end`.
        first, last, has_end = 1, end, False
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):
            first, last = damaged.execute("SELECT min(position), max(position) FROM log INDEXED BY log_hash").fetchone()
            last = max(end, last)
        with contextlib.suppress(sqlite3.DatabaseError):
            first = first_position(damaged)
        with contextlib.suppress(sqlite3.DatabaseError):
            last, has_end = max(end, last_position(damaged)), True
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):  # so that cursors of before are told apart
            (key,) = damaged.execute("SELECT key FROM cursor_key").fetchone()
            new.writer.execute("UPDATE cursor_key SET key = ?", (key,))
        # 2. Find how many entries to expect, and which of them are presence updates.
        expected = last - first + 1
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):
            expected = sum(damaged.execute("SELECT published, presence FROM state").fetchone())
        about_presence: set[int] = set()
        with contextlib.suppress(sqlite3.DatabaseError):  # if not, all count as published
            about_presence.update(position for (position,) in damaged.execute("SELECT position FROM presence"))
        # 3. Copy page by page.  `start` and `reached` are positions in the damaged
        #    file.  `kept` and `since` are positions in the copy, which have no gaps;
        #    entries may be missing before `since`.
        kept = since = 0
        reached, start = first - 1, first
        while start <= max(last, reached + (0 if has_end else _EMPTY_POSITIONS)):
            with transaction(new.writer, math.inf):
                rows = _readable(damaged, start, start + base.PAGE_ENTRIES)
                for row in rows:
                    try:
                        entry_of((row[0], row[1], *row[4:]), 0)
                    except Unreadable:
                        continue
                    # Positions are missing before this row.  They may have been
                    # published updates, and not only forgotten presence updates.
                    if row[0] != reached + 1:
                        since = kept + 1
                    reached = row[0]
                    kept += 1
                    new.writer.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (kept, *row[1:]))
                    if row[0] in about_presence:
                        new.writer.execute("INSERT INTO presence VALUES (?)", (kept,))
            start += base.PAGE_ENTRIES
            if not rows:
                # Skip a gap of forgotten presence updates in one step, however long.
                with contextlib.suppress(sqlite3.DatabaseError):
                    start = max(start, next_position(damaged, start - 1) or 0)
        # 4. If the end is unknown or was not reached, entries may be missing after the
        #    copied ones.
        last = max(last, reached)
        if reached < last or not has_end:
            since = kept + 1
        # 5. Write the counts, and copy the nodes, their subscribers, and the commands.
        # Remembered ids are not copied: a repeated update is appended again.
        with transaction(new.writer, math.inf):
            new.writer.execute("UPDATE state SET since = ?", (since,))
            for kind, condition in (("published", "NOT IN"), ("presence", "IN")):
                new.writer.execute(
                    f"UPDATE state SET ({kind}, {kind}_bytes) = (SELECT count(*), ifnull(sum(size), 0) FROM log"  # noqa: S608
                    f" WHERE position {condition} (SELECT position FROM presence))"
                )
            for table in ("node", "present", "command", "revoked"):
                # If that fails, the nodes add their rows again; commands are lost.
                with contextlib.suppress(sqlite3.DatabaseError):
                    rows = damaged.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
                    marks = ", ".join("?" * len(rows[0])) if rows else ""
                    new.writer.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
    return kept, max(0, expected - kept)


def _readable(damaged: sqlite3.Connection, start: int, stop: int) -> list[tuple[Any, ...]]:
    """Return the readable rows from `start` to before `stop`.

    If the range cannot be read as a whole, reads each half by itself, and so on down to
    a single row.
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

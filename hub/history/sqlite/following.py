"""Following: new entries of this process come at once, others when the bell rings.

    commit here ─────── entries ───────────────► fresh ─┐
                                                        ├─► pages
    bell, or every POLL_SECONDS ─── the new end ────────┘

Entries that are not fresh are read from the file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from hub.errors import HistoryUnavailable
from hub.history.sqlite.file import connect, last_position
from hub.history.sqlite.wakeup import Bell

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from hub.history.base import Entry, Page
    from hub.history.sqlite.database import Database
    from hub.history.sqlite.file import File


class Following:
    """The followers in this process, and the task that notices entries of other
    processes.
    """

    def __init__(self, database: Database) -> None:
        self.bell = Bell()
        self._database = database
        self._listening: asyncio.Task[None] | None = None
        self._followers = 0
        self._fresh: deque[Entry] = deque()  # appended here, and not followed yet
        self._grown = asyncio.Event()  # set if there are new entries, and then replaced

    def appended(self, entries: Sequence[Entry]) -> None:
        """Record entries that this process has appended."""
        self._has_grown(entries[-1].position)
        if self._followers:
            self._fresh.extend(entries)

    async def pages(
        self, after: int, *, read: Callable[[int], Awaitable[Page]], touch: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[list[Entry]]:
        """Yield the entries after a position, without end.

        `read` returns the page after a position; `touch` writes the port of the bell.
        """
        self._followers += 1
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(touch))
        try:
            while True:
                grown = self._grown
                page = self._take_fresh(after)
                if not page:
                    page = found = await read(after)
                    found.require_presence(after)
                if page:
                    yield page
                    after = page[-1].position
                else:
                    await grown.wait()
        finally:
            self._followers -= 1
            if not self._followers:
                self._fresh.clear()

    async def aclose(self) -> None:
        """Stop looking for entries of other processes."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    def _take_fresh(self, after: int) -> list[Entry]:
        """Return fresh entries after a position; empty if others must be read first."""
        fresh = self._fresh
        while fresh and fresh[0].position <= after:
            fresh.popleft()
        page: list[Entry] = []
        # With several followers, all read from the file: one of them would take the
        # entries.
        while self._followers == 1 and fresh and fresh[0].position == after + 1 + len(page) and len(page) < 1_000:
            page.append(fresh.popleft())
        return page

    def _has_grown(self, end: int) -> None:
        """Set the known end of the history, and wake the followers."""
        self._database.end = end
        self._grown.set()
        self._grown = asyncio.Event()

    async def _listen(self, touch: Callable[[], Awaitable[None]]) -> None:
        """Whenever the bell rings, look for entries of other processes, or another
        file.
        """
        with self.bell.listening():
            with contextlib.suppress(HistoryUnavailable):  # the next beat does it then
                await touch()
            await self._look()

    async def _look(self) -> None:
        """Compare SQLite's data version at each ring; if it changed, look for the new
        end.
        """
        database = self._database
        file: File | None = None
        connection: sqlite3.Connection | None = None
        seen = None
        try:
            while True:
                await self.bell.wait()
                try:
                    # 1. The file is new or was replaced: open it, and wake all
                    # followers.
                    if file is None or not database.is_current(file):
                        if connection is not None:
                            connection.close()
                        file = connection = None
                        file = await database.open()
                        connection, seen = connect(database.path), None
                        self._has_grown(database.end)
                    # 2. Another connection has written: has the history grown?
                    assert connection is not None
                    (version,) = connection.execute("PRAGMA data_version").fetchone()
                    if version != seen:
                        end = file.offset + last_position(connection)
                        seen = version
                        if end > database.end:
                            self._has_grown(end)
                except Exception:  # readers and writers report it
                    file = None
        finally:
            if connection is not None:
                connection.close()

"""Following the log: entries that were appended in this process come at once, those of others when the bell rings.

    commit here ───── entries ──► fresh ─┐
                                         ├─► pages
    bell, or POLL_SECONDS seconds ── the end ────┘

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
    """Those who follow the log in this process, and the task that looks for entries of other processes."""

    def __init__(self, database: Database) -> None:
        self.bell = Bell()
        self._database = database
        self._listening: asyncio.Task[None] | None = None
        self._followers = 0
        self._fresh: deque[Entry] = deque()  # entries that were appended here and not followed yet
        self._grown = asyncio.Event()  # set if there are new entries, and then replaced by another one

    def appended(self, entries: Sequence[Entry]) -> None:
        """Note entries that this process has appended."""
        self._has_grown(entries[-1].position)
        if self._followers:
            self._fresh.extend(entries)

    async def pages(
        self, after: int, *, read: Callable[[int], Awaitable[Page]], touch: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[list[Entry]]:
        """Yield the entries after a position for ever.

        `read` returns a page after a position; `touch` writes the port of the bell.
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
        """What comes after a position and was appended here: it need not be read.  Nothing if others come first."""
        fresh = self._fresh
        while fresh and fresh[0].position <= after:
            fresh.popleft()
        page: list[Entry] = []
        # One follower takes them; more than one reads.
        while self._followers == 1 and fresh and fresh[0].position == after + 1 + len(page) and len(page) < 1_000:
            page.append(fresh.popleft())
        return page

    def _has_grown(self, end: int) -> None:
        self._database.end = end
        self._grown.set()
        self._grown = asyncio.Event()

    async def _listen(self, touch: Callable[[], Awaitable[None]]) -> None:
        """Look whether another process has appended, or put another file in place, whenever the bell rings."""
        with self.bell.listening():
            with contextlib.suppress(HistoryUnavailable):  # then with the next beat
                await touch()
            await self._look()

    async def _look(self) -> None:
        database = self._database
        file: File | None = None
        connection: sqlite3.Connection | None = None
        seen = None
        try:
            while True:
                await self.bell.wait()
                try:
                    if file is None or not database.is_current(file):
                        if connection is not None:
                            connection.close()
                        file = connection = None
                        file = await database.open()
                        connection, seen = connect(database.path), None
                        self._has_grown(database.end)  # in another file those who wait have to look
                    assert connection is not None
                    (version,) = connection.execute("PRAGMA data_version").fetchone()
                    if version != seen:
                        end = file.offset + last_position(connection)
                        seen = version
                        if end > database.end:
                            self._has_grown(end)
                except Exception:  # whoever reads or writes says so
                    file = None
        finally:
            if connection is not None:
                connection.close()

"""Following: new entries of this process come at once, others after a datagram.

    commit here ─── its entries ──────────────► fresh ─┐
                                                       ├─► pages
    wake, or every POLL_SECONDS ─── new end ──► file ──┘

A follower takes fresh entries from memory, and reads all others from the file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from hub.errors import HistoryUnavailable
from hub.history.sqlite.file import connect, last_position
from hub.history.sqlite.wakeup import WakeSocket

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from hub.control.ledger import Ledger
    from hub.history.base import Entry, Page
    from hub.history.sqlite.database import Database
    from hub.history.sqlite.file import File


class Following:
    """The followers in this process, and the task that looks for others' entries.

    All methods must be called on the event loop.
    """

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self.wake_socket = WakeSocket()
        self._database = database
        self._ledger = ledger
        self._listening: asyncio.Task[None] | None = None  # begins with the first follower
        self._followers = 0  # the number of followers
        # Entries that this process has appended, and that its follower has not yielded.
        self._fresh: deque[Entry] = deque()
        # Set if the history has new entries or another file, and then replaced.
        self._grown = asyncio.Event()

    def appended(self, entries: Sequence[Entry]) -> None:
        """Record the entries or commands that this process has written."""
        self._has_grown(entries[-1].position if entries else self._database.end)
        if self._followers:
            self._fresh.extend(entries)

    async def pages(
        self, after: int, *, read: Callable[[int], Awaitable[Page]], touch: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[list[Entry]]:
        """Yield the entries after a position, without end.

        `read` returns the page after a position, and lets the ledger learn the commands
        before it; `touch` writes the port of the wake socket.  Any number of iterators
        may run at once.  Raises what `read` raises, and PositionExpired if presence
        updates after the position are forgotten.
        """
        self._followers += 1
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(touch))
        heard = self._ledger.heard
        try:
            while True:
                # Take the event before looking, so that no new entry goes unnoticed.
                grown = self._grown
                page = self._take_fresh(after)
                if not page:
                    page = found = await read(after)
                    found.require_presence(after)
                if page or self._ledger.heard != heard:
                    heard = self._ledger.heard
                    yield page
                    after = page[-1].position if page else after
                else:
                    await grown.wait()
        finally:
            self._followers -= 1
            if not self._followers:
                self._fresh.clear()

    async def aclose(self) -> None:
        """Stop looking for entries of other processes.  A second call does nothing."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    def _take_fresh(self, after: int) -> list[Entry]:
        """Return fresh entries after a position, or none if the file must be read."""
        fresh = self._fresh
        while fresh and fresh[0].position <= after:
            fresh.popleft()
        page: list[Entry] = []
        # Only entries that directly follow the position, because another process may
        # have appended others in between.  If there are several followers, all of them
        # read from the file, because each fresh entry can be taken only once.
        while self._followers == 1 and fresh and fresh[0].position == after + 1 + len(page) and len(page) < 1_000:
            page.append(fresh.popleft())
        return page

    def _has_grown(self, end: int) -> None:
        """Set the known end of the history, and wake the followers."""
        self._database.end = end
        self._grown.set()
        self._grown = asyncio.Event()

    async def _listen(self, touch: Callable[[], Awaitable[None]]) -> None:
        """Listen on the wake socket, and look for entries of other processes."""
        with self.wake_socket.listening():
            # Write the port.  If that fails, the next beat writes it.
            with contextlib.suppress(HistoryUnavailable):
                await touch()
            await self._look()

    async def _look(self) -> None:
        """Look for new entries, new commands, or another file: at a datagram, and every
        POLL_SECONDS.

        SQLite's data_version changes if another connection has written.
        """
        database = self._database
        file: File | None = None
        connection: sqlite3.Connection | None = None
        seen = None  # the last data_version
        try:
            while True:
                await self.wake_socket.wait()
                try:
                    # 1. No file is open, or it was replaced: open the one at the path,
                    #    and wake all followers.
                    if file is None or not database.is_current(file):
                        if connection is not None:
                            connection.close()
                        file = connection = None
                        file = await database.open()
                        connection, seen = connect(database.path), None
                        self._has_grown(database.end)
                    # 2. If another connection has written, compare the end.
                    assert connection is not None
                    (version,) = connection.execute("PRAGMA data_version").fetchone()
                    if version != seen:
                        end = file.offset + last_position(connection)
                        (newest,) = connection.execute("SELECT max(number) FROM command").fetchone()
                        seen = version
                        if end > database.end or newest > self._ledger.number:
                            self._has_grown(max(end, database.end))
                except Exception:  # readers and writers report it; open the file again
                    file = None
        finally:
            if connection is not None:
                connection.close()

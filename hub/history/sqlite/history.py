"""The history in one file: implements `base.History` with the other modules.

Durability depends on SQLite's `synchronous`.  With `full`, entries survive if the disk
does, also after a power failure.  With `normal`, they survive the end of any process at
any moment, but a power failure may lose the last updates and begin a new epoch.

If the file is damaged, it is renamed to `.damaged`, and a new file continues with the
readable part, in a new epoch.  SQLite's pages have no checksums: damage that it does
not notice stays unnoticed.  If another file is put at the path while the hub runs, it
is another history, in another epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from hub.clocks import Dates
from hub.control.commands import Taken
from hub.control.ledger import Ledger
from hub.errors import ConfigurationError, HistoryUnavailable, ListFull, Outdated
from hub.history import base
from hub.history.base import Beat, Entry, Page, Stats
from hub.history.node import new_node
from hub.history.sqlite.commits import Commits
from hub.history.sqlite.database import Database
from hub.history.sqlite.following import Following
from hub.history.sqlite.transaction import present_of, row_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Sequence
    from typing import Self

    from hub.control.commands import Command, News
    from hub.history.base import Change, Retention
    from hub.history.opaque import Loss
    from hub.history.sqlite.transaction import ReadTransaction, Writing
    from hub.protocol.subscriptions import Present
    from hub.protocol.updates import Update


class SqliteHistory:
    """The newest updates in a file, approximately within a `base.Retention`.

    The file is opened, or made, on first use.  `synchronous` is "full" or "normal".
    `clock` returns seconds since 1970, and `since_boot` seconds of a clock that all
    processes of the machine share.

    The first use raises ConfigurationError if the file can never be opened.
    """

    has_time_limits = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        retention: Retention,
        *,
        synchronous: str = "full",
        clock: Callable[[], float] | None = None,
        since_boot: Callable[[], float] = time.monotonic,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise ConfigurationError(f"history_url: synchronous must be full or normal, not {synchronous!r}")
        self.path = os.path.abspath(path)
        self.node = new_node()
        self._retention = retention
        self._since_boot = since_boot
        self._database = Database(self.path, synchronous)
        self.ledger = Ledger()
        self._following = Following(self._database, self.ledger)
        self._commits = Commits(
            self._database, self.node, retention, Dates(clock), self.ledger, self._following.appended
        )

    @classmethod
    def from_url(cls, url: str, retention: Retention) -> Self:
        """Return the history of a URL.

        Raises ConfigurationError if the URL is invalid.
        """
        parts = urlsplit(url)
        options = parse_qs(parts.query, keep_blank_values=True)
        path = unquote(parts.path)[1:]  # sqlite:///a.db is relative, sqlite:////a.db absolute
        synchronous = options.pop("synchronous", ["full"])
        is_path = url.startswith("sqlite:///") and path and not path.endswith("/") and not parts.fragment
        if not is_path or options or len(synchronous) > 1:
            raise ConfigurationError(
                "history_url must be sqlite:///relative/path.db or sqlite:////absolute/path.db, and may end in "
                "?synchronous=full or ?synchronous=normal"
            )
        return cls(os.path.expanduser(path), retention, synchronous=synchronous[0])

    # -- writing

    async def append(
        self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False, known: int | None = None
    ) -> list[Entry]:
        """Append `updates` in the next transaction, with those of concurrent calls."""
        rows = [row_of(update) for update in updates]
        seen: list[bytes] = []
        if self._retention.idempotency_window and not presence:
            seen = [base.seen_as(publisher, update.id) for update in updates]
        window, most = math.ceil(self._retention.idempotency_window * 1_000), self._retention.max_updates

        def append(writing: Writing) -> list[Entry] | None:
            """Append them in a transaction; return None if there are newer commands."""
            if known is not None and writing.newest > known:
                return None
            return writing.append_new(rows, seen, window, most) if seen else writing.append(rows, presence=presence)

        if (entries := await self._commits.write(append, len(rows))) is None:
            raise Outdated
        return entries

    async def load(self, entries: Sequence[Entry], presence: Container[int] = ()) -> None:
        """Append entries of another history in the next transaction."""
        runs = [
            (is_presence, [row_of(entry.update, entry.time) for entry in some])
            for is_presence, some in groupby(entries, key=lambda entry: entry.position in presence)
        ]

        def load(writing: Writing) -> None:
            """Append them in a transaction."""
            for is_presence, rows in runs:
                writing.append(rows, presence=is_presence)

        await self._commits.write(load, len(entries))

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        """Change the list of present subscribers, and append updates, in one step."""
        rows_of_changes = [(change, [row_of(update) for update in change.updates]) for change in changes]

        def announce(writing: Writing) -> list[Entry]:
            """Make the changes in a transaction."""
            # Without a row in `node`, the new subscribers would count as orphans.
            self._touch(writing)
            entries = []
            for (subscriber, active, _), rows in rows_of_changes:
                if writing.arrives(subscriber, self.node) if active else writing.departs(subscriber.id):
                    entries += writing.append(rows, presence=True)
            return entries

        return await self._commits.write(announce, sum(len(rows) for _, rows in rows_of_changes))

    async def beat(self) -> Beat:
        """Report that this node is alive, and return subscribers of dead nodes."""

        def beat(writing: Writing) -> tuple[int, list[tuple[str, str]], list[str]]:
            """Report it in a transaction; return what `Writing.beat` returns, and the
            other nodes.
            """
            writing.give_time(self._since_boot(), self._retention.node_timeout)
            self._touch(writing)
            return *writing.beat(self.node, self._since_boot(), self._retention.node_timeout), self._others(writing)

        present, orphans, self.ledger.others = await self._commits.write(beat)
        return Beat(present, list(map(present_of, orphans)))

    async def hear(self) -> None:
        """Read what is new, and report that this node is alive if that is possible.

        A file on a full disk can still be read.
        """
        known = self.ledger.number
        self.ledger.learn(await self._database.look_up(lambda reading: reading.news(known)))

        def touch(writing: Writing) -> list[str]:
            """Report it in a transaction; return the other nodes."""
            self._touch(writing)
            return self._others(writing)

        with contextlib.suppress(HistoryUnavailable):
            self.ledger.others = await self._commits.write(touch)

    def _others(self, writing: Writing) -> list[str]:
        """Return the names of the other nodes that are alive."""
        return writing.others(self.node, self._since_boot(), self._retention.node_timeout)

    async def command(self, command: Command) -> Taken:
        """Append a command to the list in the next transaction."""
        most = self._retention.revocations

        def append(writing: Writing) -> Taken | None:
            """Append it in a transaction; return None if the list is full."""
            if (number := writing.command(command, most)) is None:
                return None
            return Taken(number, writing.end, self._others(writing))

        if (taken := await self._commits.write(append)) is None:
            raise ListFull(most)
        self.ledger.others = taken.others
        return taken

    async def answer(self, number: int, text: str) -> None:
        """Write the answer in the next transaction."""
        await self._commits.write(lambda writing: writing.answer(number, self.node, text))

    async def answers(self, number: int) -> dict[str, str]:
        """Return the answers so far."""
        return await self._database.look_up(lambda reading: reading.answers(number))

    async def check(self) -> None:
        """Write that this node is alive, or raise HistoryUnavailable."""
        await self._commits.write(self._touch)

    def _touch(self, writing: Writing) -> None:
        """Write that this node is alive, and the port of its wake socket."""
        writing.touch(self.node, self._since_boot(), self._following.wake_socket.port)

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        """Forget some thousands of the oldest updates in the next transaction."""
        bounds = base.pruned_to(max_updates, max_bytes, max_age)
        return await self._commits.write(lambda writing: writing.prune(bounds))

    # -- reading

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        """Return the position of the earliest entry with this id, by an index."""
        return await self._database.look_up(lambda reading: reading.find(id, presence=presence))

    def cursor(self, position: int, id: str = "") -> str:
        """Return a new opaque cursor for a position."""
        file = self._database.known
        return file.seal.cursor(file.epoch, position - file.offset, id)

    def digest(self, text: str) -> str:
        """Return a digest of a text, with the key of the history."""
        return self._database.known.seal.digest(text)

    async def locate(self, cursor: str, *, presence: bool = False) -> int | Loss:
        """Return the position of an opaque cursor, or why updates are lost."""
        return await self._database.look_up(lambda reading: reading.locate(cursor, presence=presence))

    async def newest(self) -> Entry | None:
        """Return the newest entry, or None."""
        return await self._database.look_up(lambda reading: reading.newest())

    async def end(self) -> int:
        """Return the position of the newest entry."""
        return await self._database.look_up(lambda reading: reading.end())

    async def read(self, after: int) -> Page:
        """Return the next page after a position.

        Raises PositionExpired also if the position is after the newest entry.
        """
        return await self._database.read(lambda reading: reading.read(after))

    def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Yield pages after a position, and wait for new entries of any process."""
        return self._following.pages(after, read=self._read_and_hear, touch=self.check)

    async def _read_and_hear(self, after: int) -> Page:
        """Return the next page, after the ledger has learned the commands before it."""
        known = self.ledger.number

        def read(reading: ReadTransaction) -> tuple[Page, News]:
            """Read both in one transaction."""
            return reading.read(after), reading.news(known)

        page, news = await self._database.read(read)
        self.ledger.learn(news)
        return page

    async def present(self, *, own: bool = False) -> list[Present]:
        """Return the subscribers of all nodes, or of this one."""
        return await self._database.read(lambda reading: reading.present(self.node, own=own))

    async def stats(self) -> Stats:
        """Return the number and size of the updates, and the size of the files."""
        return await self._database.read(lambda reading: reading.stats())

    def would_create(self) -> str | None:
        """Return the path if there is no file yet."""
        return None if os.path.exists(self.path) else self.path

    async def backup(self, target: str) -> None:
        """Write the present content into a new file, while the history is used.

        The copy has no subscribers, and is in a new epoch, because clients may have
        seen later updates.  If the call is cancelled, a thread still writes the file.
        Raises FileExistsError if the file exists.
        """
        if await asyncio.to_thread(os.path.exists, target):
            raise FileExistsError(f"{target} already exists")
        await self._database.read(lambda reading: reading.back_up(target))

    # -- the end

    async def aclose(self) -> None:
        """Leave the history, wait for all jobs and reads, and close the file.

        Other nodes announce the departure of the subscribers that are still present.  A
        second call does nothing.
        """
        if self._database.is_closed:
            return
        await self._following.aclose()
        if self._database.file is not None:
            with contextlib.suppress(HistoryUnavailable):
                await self._commits.write(lambda writing: writing.leave(self.node))
        self._database.is_closed = True
        try:
            await self._commits.finish()
        finally:
            await asyncio.to_thread(self._database.close)

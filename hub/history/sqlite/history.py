"""The history in one file: what `base.History` promises, of the parts beside.

It survives: with `synchronous=full`, whatever the disk survives, a power cut too; with `normal`, the end of any process
at any moment, and after a power cut the last updates may be gone, which begins a new epoch.  A file that is damaged is
put aside with `.damaged` in its name, and what can be read of it goes on in a new one; what cannot be read begins a new
epoch too.  Damage that SQLite does not see, as there are no checksums of its pages, is not seen.  A file that was put
in its place while the hub was running is another log, in another epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history import base
from hub.history.base import Beat, Entry, Page, Stats
from hub.history.node import new_node, steady_clock
from hub.history.sqlite.commits import Commits
from hub.history.sqlite.database import Database
from hub.history.sqlite.following import Following
from hub.history.sqlite.transaction import present_of, row_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Self

    from hub.history.base import Change, Retention
    from hub.history.sqlite.transaction import Writing
    from hub.protocol.subscriptions import Present
    from hub.protocol.updates import Update


class SqliteHistory:
    """The newest updates, about within the bounds of a `base.Retention`."""

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
            raise ConfigurationError(f"history_url: synchronous is full or normal, and not {synchronous!r}")
        self.path = os.path.abspath(path)
        self.node = new_node()
        self._retention = retention
        self._since_boot = since_boot
        self._database = Database(self.path, synchronous)
        self._following = Following(self._database)
        self._commits = Commits(self._database, self.node, retention, clock or steady_clock(), self._following.appended)

    @classmethod
    def from_url(cls, url: str, retention: Retention) -> Self:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        path = unquote(parts.path)[1:]  # sqlite:///a.db is relative, sqlite:////a.db is not
        if parts.netloc or not path or path.endswith("/") or set(options) - {"synchronous"}:
            raise ConfigurationError(
                "history_url is sqlite:///relative/path.db or sqlite:////absolute/path.db, and after it at most "
                "?synchronous=full or ?synchronous=normal"
            )
        return cls(path, retention, synchronous=options.get("synchronous", "full"))

    # -- writing

    async def append(self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False) -> list[Entry]:
        rows = [row_of(update) for update in updates]
        if not self._retention.idempotency_window or presence:
            return await self._commits.write(lambda writing: writing.append(rows, presence=presence), len(rows))
        seen = [base.seen_as(publisher, update.id) for update in updates]
        window, most = math.ceil(self._retention.idempotency_window * 1_000), self._retention.max_updates
        return await self._commits.write(lambda writing: writing.append_new(rows, seen, window, most), len(rows))

    async def load(self, entries: Sequence[Entry]) -> None:
        rows = [row_of(entry.update, entry.time) for entry in entries]
        await self._commits.write(lambda writing: writing.append(rows), len(rows))

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        told = [(change, [row_of(update) for update in change.updates]) for change in changes]

        def announce(writing: Writing) -> list[Entry]:
            self._touch(writing)
            entries = []
            for (subscriber, active, _), rows in told:
                if writing.arrives(subscriber, self.node) if active else writing.departs(subscriber.id):
                    entries += writing.append(rows, presence=True)
            return entries

        return await self._commits.write(announce, sum(len(rows) for _, rows in told))

    async def beat(self) -> Beat:
        def beat(writing: Writing) -> tuple[int, list[tuple[str, str]]]:
            writing.give_time(self._since_boot(), self._retention.node_timeout)
            self._touch(writing)
            return writing.beat(self.node, self._since_boot(), self._retention.node_timeout)

        present, orphans = await self._commits.write(beat)
        return Beat(present, list(map(present_of, orphans)))

    async def check(self) -> None:
        await self._commits.write(self._touch)

    def _touch(self, writing: Writing) -> None:
        writing.touch(self.node, self._since_boot(), self._following.bell.port)

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        bounds = base.pruned_to(max_updates, max_bytes, max_age)
        return await self._commits.write(lambda writing: writing.prune(bounds))

    # -- reading

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        return await self._database.read(lambda reading: reading.find(id, presence=presence))

    async def newest(self) -> Entry | None:
        return await self._database.read(lambda reading: reading.newest())

    async def end(self) -> int:
        return await self._database.read(lambda reading: reading.end())

    async def read(self, after: int) -> Page:
        return await self._database.read(lambda reading: reading.read(after))

    def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        return self._following.pages(after, read=self.read, touch=self.check)

    async def present(self, *, own: bool = False) -> list[Present]:
        return await self._database.read(lambda reading: reading.present(self.node, own=own))

    async def stats(self) -> Stats:
        return await self._database.read(lambda reading: reading.stats())

    def would_create(self) -> str | None:
        return None if os.path.exists(self.path) else self.path

    async def backup(self, target: str) -> None:
        """Write what the log is now into a new file, while it is used.  Raises FileExistsError where there is one.

        Who was present is not in it.  It is in a new epoch: a client that goes on in it may have seen what is not.
        """
        if await asyncio.to_thread(os.path.exists, target):
            raise FileExistsError(f"{target} is there already")
        await self._database.read(lambda reading: reading.back_up(target))

    # -- the end

    async def aclose(self) -> None:
        """Leave the log: whoever is still present on this node is for others to announce."""
        if self._database.is_closed:
            return
        await self._following.aclose()
        if self._database.is_open:
            with contextlib.suppress(HistoryUnavailable):
                await self._commits.write(lambda writing: writing.leave(self.node))
        self._database.is_closed = True
        await self._commits.finish()
        await asyncio.to_thread(self._database.close)

"""A log in this process's memory: for one node, and gone when it ends."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import OrderedDict, defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hub.errors import ConfigurationError, OffTheLog
from hub.subscriber import EARLIEST
from hub.transports import base
from hub.transports.base import Beat, Entry, Stats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from typing import Self

    from hub.subscriptions import Present
    from hub.transports.base import Change
    from hub.updates import Update


class MemoryTransport:
    """The newest `max_updates` updates, of `max_bytes` together, none older than `max_age` seconds; the newest always.

    All its mutable state: `_entries`, position -> entry, without gaps, oldest first; `_positions`, id -> the positions
    in `_entries` that have it; the size of the updates in it; `_seen`, the ids that are remembered, each as
    `base.seen_as` has it, with its time, oldest first; `_present`, who is, by id; and `_grown`, the event that those
    who wait for the next entry wait for.
    """

    def __init__(
        self,
        *,
        max_updates: int,
        max_bytes: int,
        max_age: float = math.inf,
        window: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._window = window
        self._clock = clock or base.steady_clock()
        self._entries: dict[int, Entry] = {}
        self._positions: defaultdict[str, deque[int]] = defaultdict(deque)
        self._bytes = 0
        self._end = 0
        self._seen: OrderedDict[bytes, float] = OrderedDict()
        self._present: dict[str, Present] = {}
        self._epoch = uuid.uuid4().hex
        self._grown = asyncio.Event()

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        max_updates: int,
        max_bytes: int,
        max_age: float,
        window: float,
        node_timeout: float,  # noqa: ARG003
    ) -> Self:
        if urlsplit(url)._replace(scheme="").geturl() not in ("", "//"):
            raise ConfigurationError("transport_url memory:// has nothing after it")
        return cls(max_updates=max_updates, max_bytes=max_bytes, max_age=max_age, window=window)

    async def append(self, updates: Sequence[Update], *, publisher: str = "") -> list[Entry]:
        now = self._clock()
        new: dict[bytes, Update] = {}
        if self._window:
            for update in updates:
                seen = base.seen_as(publisher, update.id)
                if self._seen.get(seen, -math.inf) <= now - self._window:
                    new.setdefault(seen, update)
            updates = list(new.values())
        time = int(now * 1_000)
        entries = self._put([Entry(position, update, time) for position, update in enumerate(updates, self._end + 1)])
        self._remember(new, now)
        return entries

    def _remember(self, new: Iterable[bytes], now: float) -> None:
        for seen in new:
            self._seen[seen] = now
            self._seen.move_to_end(seen)
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= self._max_updates and self._seen[oldest] > now - self._window:
                break
            del self._seen[oldest]

    def _put(self, entries: list[Entry]) -> list[Entry]:
        size = sum(entry.size for entry in entries)  # which refuses what is no Unicode, before anything has changed
        for entry in entries:
            self._entries[entry.position] = entry
            self._positions[entry.update.id].append(entry.position)
        self._end += len(entries)
        self._bytes += size
        self._trim(self._max_updates, self._max_bytes, self._max_age)
        self._grown.set()
        self._grown = asyncio.Event()
        return entries

    def _trim(self, max_updates: int, max_bytes: int, max_age: float) -> int:
        before, oldest_time = len(self._entries), (self._clock() - max_age) * 1_000
        while len(self._entries) > 1 and (
            len(self._entries) > max_updates or self._bytes > max_bytes or self._oldest.time < oldest_time
        ):
            self._forget_oldest()
        return before - len(self._entries)

    @property
    def _oldest(self) -> Entry:
        return self._entries[self._end - len(self._entries) + 1]

    def _forget_oldest(self) -> None:
        entry = self._entries.pop(self._oldest.position)
        positions = self._positions[entry.update.id]
        positions.popleft()
        if not positions:
            del self._positions[entry.update.id]
        self._bytes -= entry.size

    async def find(self, id: str) -> int | None:
        return self._positions[id][0] if id in self._positions else None

    async def newest(self) -> Entry | None:
        return self._entries.get(self._end)

    async def end(self) -> int:
        return self._end

    async def read(self, after: int) -> list[Entry]:
        oldest = self._end - len(self._entries) + 1
        if after == EARLIEST:
            after = oldest - 1
        if after < oldest - 1:
            raise OffTheLog(f"position {after} is before {oldest}, the oldest that the log still holds")
        page: list[Entry] = []
        size = 0
        for position in range(after + 1, min(base.page_end(after), self._end) + 1):
            entry = self._entries[position]
            size += entry.size
            if page and size > base.PAGE_BYTES:
                break
            page.append(entry)
        return page

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        while True:
            grown = self._grown
            if page := await self.read(after):
                yield page
                after = page[-1].position
            else:
                await grown.wait()

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        updates: list[Update] = []
        before: list[tuple[str, Present | None]] = []
        for subscriber, active, about in changes:
            known = self._present.get(subscriber.id)
            if active or known is not None:
                before.append((subscriber.id, known))
                self._put_present(subscriber.id, subscriber if active else None)
                updates += about
        try:
            return await self.append(updates)
        except BaseException:
            for id, known in reversed(before):
                self._put_present(id, known)
            raise

    def _put_present(self, id: str, subscriber: Present | None) -> None:
        if subscriber is not None:
            self._present[id] = subscriber
        else:
            self._present.pop(id, None)

    async def present(self, *, own: bool = False) -> list[Present]:
        return list(self._present.values())

    async def beat(self) -> Beat:
        self._trim(self._max_updates, self._max_bytes, self._max_age)
        return Beat(len(self._present), [])

    async def check(self) -> None:
        pass

    async def stats(self) -> Stats:
        oldest = self._oldest if self._entries else None
        newest = await self.newest()
        return Stats(len(self._entries), oldest, newest, self._bytes, self._bytes, self._epoch, len(self._present))

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        return self._trim(max_updates, max_bytes, max_age)

    async def load(self, entries: Sequence[Entry]) -> None:
        self._put([replace(entry, position=position) for position, entry in enumerate(entries, self._end + 1)])

    async def aclose(self) -> None:
        pass

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        assert list(self._entries) == list(range(self._end - len(self._entries) + 1, self._end + 1))
        assert self._bytes == sum(entry.size for entry in self._entries.values())
        assert len(self._entries) <= self._max_updates
        assert self._bytes <= self._max_bytes or len(self._entries) == 1
        by_id: dict[str, list[int]] = {}
        for position, entry in self._entries.items():
            by_id.setdefault(entry.update.id, []).append(position)
        assert by_id == {id: list(positions) for id, positions in self._positions.items()}

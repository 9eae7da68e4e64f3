"""A log in this process's memory: for one node, and gone when it ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from hub.errors import OffTheLog
from hub.subscriber import EARLIEST
from hub.transports.base import Entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hub.updates import Update

PAGE_ENTRIES: Final = 128
PAGE_BYTES: Final = 2**20


class MemoryTransport:
    """The newest `max_updates` updates, of `max_bytes` together; the newest one always.

    All its mutable state: `_entries`, position -> entry, without gaps, oldest first; `_positions`, id ->
    the positions in `_entries` that have it; the size of the updates in it; and `_grown`, the event that
    those who wait for the next entry wait for.
    """

    def __init__(self, *, max_updates: int, max_bytes: int) -> None:
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self._entries: dict[int, Entry] = {}
        self._positions: defaultdict[str, deque[int]] = defaultdict(deque)
        self._bytes = 0
        self._end = 0
        self._grown = asyncio.Event()

    async def append(self, updates: Sequence[Update]) -> list[Entry]:
        entries = [Entry(position, update) for position, update in enumerate(updates, self._end + 1)]
        size = sum(entry.size for entry in entries)  # which refuses what is no Unicode, before anything has changed
        for entry in entries:
            self._entries[entry.position] = entry
            self._positions[entry.update.id].append(entry.position)
        self._end += len(entries)
        self._bytes += size
        while len(self._entries) > self._max_updates or (self._bytes > self._max_bytes and len(self._entries) > 1):
            self._forget_oldest()
        self._grown.set()
        self._grown = asyncio.Event()
        return entries

    def _forget_oldest(self) -> None:
        entry = self._entries.pop(self._end - len(self._entries) + 1)
        positions = self._positions[entry.update.id]
        positions.popleft()
        if not positions:
            del self._positions[entry.update.id]
        self._bytes -= entry.size

    async def find(self, id: str) -> int | None:
        return self._positions[id][0] if id in self._positions else None

    async def newest(self) -> Entry | None:
        return self._entries.get(self._end)

    async def read(self, after: int) -> list[Entry]:
        oldest = self._end - len(self._entries) + 1
        if after == EARLIEST:
            after = oldest - 1
        if after < oldest - 1:
            raise OffTheLog(f"position {after} is before {oldest}, the oldest that the log still holds")
        page: list[Entry] = []
        size = 0
        for position in range(after + 1, min(after + PAGE_ENTRIES, self._end) + 1):
            entry = self._entries[position]
            size += entry.size
            if page and size > PAGE_BYTES:
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

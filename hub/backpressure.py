"""Backlog: what was taken from publishers and is not dispatched yet.

It is kept below what the log holds, lest the log forget what nobody was sent: publishers wait before they
append, for dispatch and never for a subscriber.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hub.errors import TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hub.broadcaster import Broadcaster
    from hub.history.base import Entry
    from hub.protocol.updates import Update


class Backlog:
    """Room for so many updates and bytes; one update that is larger may go alone.

    All its mutable state: how many updates have taken room, and bytes; `_appended`, (position, bytes) of those of
    them that are in the log, which give theirs back when they are dispatched; and `_turn`, held by who waits for room.
    """

    def __init__(self, broadcaster: Broadcaster, *, max_updates: int, max_bytes: int) -> None:
        self._broadcaster = broadcaster
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self._updates = 0
        self._bytes = 0
        self._appended: deque[tuple[int, int]] = deque()
        self._turn = asyncio.Lock()

    def check(self, count: int, size: int) -> None:
        """Raise TooLarge for so many updates, of `size` bytes together, if there is never room for them."""
        if not self.fits(count, size):
            raise TooLarge(
                f"{count} updates, of about {size} bytes in memory, are more than the hub takes at once: "
                f"{self._max_updates} and {self._max_bytes}"
            )

    def fits(self, count: int, size: int) -> bool:
        """Whether there is ever room for so many updates, of `size` bytes together."""
        return count <= self._max_updates and (count <= 1 or size <= self._max_bytes)

    def parts(self, updates: Iterable[Update]) -> Iterator[list[Update]]:
        """`updates` in parts that there may be room for."""
        part: list[Update] = []
        size = 0
        for update in updates:
            own = update.size
            if part and (len(part) == self._max_updates or size + own > self._max_bytes):
                yield part
                part, size = [], 0
            part.append(update)
            size += own
        if part:
            yield part

    async def take(self, count: int, size: int) -> None:
        """Wait for room for them, and take it.  First come, first served: else small ones would keep a batch out."""
        async with self._turn:
            self._settle()
            while self._updates and (self._updates + count > self._max_updates or self._bytes + size > self._max_bytes):
                await self._broadcaster.moved()
                self._settle()
            self._updates += count
            self._bytes += size

    def give_back(self, count: int, size: int) -> None:
        """For updates that came to nothing."""
        self._updates -= count
        self._bytes -= size
        self._broadcaster.move_to(self._broadcaster.position)  # so whoever waits for room looks again

    def appended(self, entries: Sequence[Entry]) -> None:
        """Their updates give their room back when they are dispatched."""
        self._appended.extend((entry.position, entry.size) for entry in entries)
        if entries and entries[-1].position <= self._broadcaster.position:
            # Dispatched before the log said so here: whoever waits for their room is told now, or by nobody.
            self._broadcaster.move_to(self._broadcaster.position)

    def _settle(self) -> None:
        while self._appended and self._appended[0][0] <= self._broadcaster.position:
            self._updates -= 1
            self._bytes -= self._appended.popleft()[1]

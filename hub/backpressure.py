"""Backpressure: publishers wait while too many updates are accepted but not dispatched yet.

    history    ... 7  8 │ 9  10  11 │            room = max_updates - 3
                dispatched   in flight

What is in flight stays below what the history keeps, so that the history forgets no update before it is dispatched.
Publishers wait before they append; they wait for dispatch and never for a subscriber.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from hub.errors import TooLarge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from hub.broadcaster import Broadcaster
    from hub.history.base import Entry
    from hub.protocol.updates import Update


MAX_UPDATES: Final = 1_024
"""Updates that may be in flight, however many the history keeps."""


class Backpressure:
    """Room for updates in flight, in updates and bytes; one update that is larger than that may go alone."""

    def __init__(self, broadcaster: Broadcaster, *, max_updates: int, max_bytes: int) -> None:
        self._broadcaster = broadcaster
        self._max_updates = min(MAX_UPDATES, max(1, max_updates))
        self._max_bytes = max_bytes
        self._updates = 0
        """Updates that have taken room."""
        self._bytes = 0
        """Their bytes."""
        self._appended: deque[tuple[int, int]] = deque()
        """(position, bytes) of those that are in the history; each gives its room back when it is dispatched."""
        self._turn = asyncio.Lock()
        """Held by the publisher that waits for room."""

    async def append(self, updates: Sequence[Update], append: Callable[[], Awaitable[list[Entry]]]) -> list[Entry]:
        """Call `append()`, which puts `updates` into the history, as soon as there is room for them.

        Returns its result, which may leave out updates that the history has already.  Raises TooLarge if there is
        never room, and what `append` raises.
        """
        count, size = len(updates), sum(update.size for update in updates)
        self.check(count, size)
        await self._take(count, size)
        try:
            entries = await append()
        except BaseException:
            self._give_back(count, size)
            raise
        self._appended_now(entries)
        if len(entries) < count:
            self._give_back(count - len(entries), size - sum(entry.size for entry in entries))
        return entries

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

    async def _take(self, count: int, size: int) -> None:
        """Wait for room for them, and take it.  First come, first served: else small ones would keep a batch out."""
        async with self._turn:
            self._settle()
            while self._updates and (self._updates + count > self._max_updates or self._bytes + size > self._max_bytes):
                await self._broadcaster.moved()
                self._settle()
            self._updates += count
            self._bytes += size

    def _give_back(self, count: int, size: int) -> None:
        """For updates that came to nothing."""
        self._updates -= count
        self._bytes -= size
        self._broadcaster.move_to(self._broadcaster.position)  # so whoever waits for room looks again

    def _appended_now(self, entries: Sequence[Entry]) -> None:
        """Their updates give their room back when they are dispatched."""
        self._appended.extend((entry.position, entry.size) for entry in entries)
        if entries and entries[-1].position <= self._broadcaster.position:
            # Dispatched before the log said so here: whoever waits for their room is told now, or by nobody.
            self._broadcaster.move_to(self._broadcaster.position)

    def _settle(self) -> None:
        while self._appended and self._appended[0][0] <= self._broadcaster.position:
            self._updates -= 1
            self._bytes -= self._appended.popleft()[1]

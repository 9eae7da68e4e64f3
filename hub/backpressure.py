"""Backpressure: publishers wait while too many updates are not dispatched yet.

    history    ... 7  8 │ 9  10  11 │            room = max_updates - 3
                dispatched   in flight

The updates in flight stay below what the history keeps, so the history forgets no
update before it is dispatched.  Publishers wait before they append; they wait for
dispatch, and never for a subscriber.
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
    """Room for updates in flight, in updates and bytes; a larger single update may go
    alone.
    """

    def __init__(self, broadcaster: Broadcaster, *, max_updates: int, max_bytes: int) -> None:
        self._broadcaster = broadcaster
        self._max_updates = min(MAX_UPDATES, max(1, max_updates))
        self._max_bytes = max_bytes
        self._updates = 0
        """The number of updates that have taken room."""
        self._bytes = 0
        """The bytes of these updates."""
        self._appended: deque[tuple[int, int]] = deque()
        """(position, bytes) of those in the history; dispatch gives their room back."""
        self._turn = asyncio.Lock()
        """Held by the publisher that waits for room; the others wait for it in
        order."""

    async def append(self, updates: Sequence[Update], append: Callable[[], Awaitable[list[Entry]]]) -> list[Entry]:
        """Call `append()`, which puts `updates` into the history, when there is room.

        Returns its result, which may leave out updates that the history has already.
        Raises TooLarge if there can never be enough room, and what `append` raises.  If
        it raises or is cancelled, the room is given back.
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
        """Raise TooLarge if there can never be room for `count` updates of `size`
        bytes.
        """
        if not self.fits(count, size):
            raise TooLarge(
                f"{count} updates, of about {size} bytes in memory, are more than the hub takes at once: "
                f"{self._max_updates} and {self._max_bytes}"
            )

    def fits(self, count: int, size: int) -> bool:
        """Return whether there can ever be room for `count` updates of `size` bytes."""
        return count <= self._max_updates and (count <= 1 or size <= self._max_bytes)

    def parts(self, updates: Iterable[Update]) -> Iterator[list[Update]]:
        """Yield `updates` in parts, each of which there can be room for."""
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
        """Wait for room and take it, first come first served: no batch starves."""
        async with self._turn:
            self._settle()
            while self._updates and (self._updates + count > self._max_updates or self._bytes + size > self._max_bytes):
                await self._broadcaster.moved()
                self._settle()
            self._updates += count
            self._bytes += size

    def _give_back(self, count: int, size: int) -> None:
        """Give back the room of updates that were not appended."""
        self._updates -= count
        self._bytes -= size
        self._broadcaster.move_to(self._broadcaster.position)  # wakes those that wait for room

    def _appended_now(self, entries: Sequence[Entry]) -> None:
        """Note the positions of appended updates; dispatch gives their room back."""
        self._appended.extend((entry.position, entry.size) for entry in entries)
        if entries and entries[-1].position <= self._broadcaster.position:
            # They were dispatched before `append` returned: wake those that wait for
            # room.
            self._broadcaster.move_to(self._broadcaster.position)

    def _settle(self) -> None:
        """Give back the room of updates that are dispatched by now."""
        while self._appended and self._appended[0][0] <= self._broadcaster.position:
            self._updates -= 1
            self._bytes -= self._appended.popleft()[1]

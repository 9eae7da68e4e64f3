"""Backlog: what was taken from publishers and is not dispatched yet.

It is kept below what the log holds, lest the log forget what nobody was sent: publishers wait before they
append, for dispatch and never for a subscriber.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub.broadcaster import Broadcaster
    from hub.transports.base import Entry


class Backlog:
    """Room for so many updates and bytes; one update that is larger may go alone.

    All its mutable state: how many updates have taken room, and bytes; and `_appended`, (position, bytes) of
    those of them that are in the log, which give theirs back when they are dispatched.
    """

    def __init__(self, broadcaster: Broadcaster, *, max_updates: int, max_bytes: int) -> None:
        self._broadcaster = broadcaster
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self._updates = 0
        self._bytes = 0
        self._appended: deque[tuple[int, int]] = deque()

    async def take(self, size: int) -> None:
        """Wait for room for an update of `size` bytes, and take it."""
        self._settle()
        while self._updates and (self._updates >= self._max_updates or self._bytes + size > self._max_bytes):
            await self._broadcaster.moved()
            self._settle()
        self._updates += 1
        self._bytes += size

    def give_back(self, size: int) -> None:
        """For an update that came to nothing, or was dispatched."""
        self._updates -= 1
        self._bytes -= size

    def appended(self, entry: Entry) -> None:
        """Its update gives its room back when it is dispatched."""
        self._appended.append((entry.position, entry.size))

    def _settle(self) -> None:
        while self._appended and self._appended[0][0] <= self._broadcaster.position:
            self.give_back(self._appended.popleft()[1])

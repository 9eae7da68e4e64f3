"""PublishWindow: publishers wait if too many updates are not dispatched yet.

    history    ... 7  8 │ 9  10  11 │            room = max_updates - 3
             dispatched │ in flight │

An update takes room from before it is appended until it is dispatched.  The room is
smaller than what the history keeps, so the history forgets no update before it is
dispatched.  Publishers wait for dispatch, and never for a subscriber.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from hub.errors import Closing, TooLarge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from hub.delivery.live import Live
    from hub.history.base import Entry
    from hub.protocol.updates import Update


MAX_UPDATES: Final = 1_024
"""The maximum number of updates in flight, however many the history keeps."""


class PublishWindow:
    """The room for updates in flight: up to `max_updates`, and up to `max_bytes`.

    A single update that is larger than `max_bytes` may be in flight alone.
    `max_updates` is limited to 1 … MAX_UPDATES.
    """

    def __init__(self, live: Live, *, max_updates: int, max_bytes: int) -> None:
        self._live = live
        self._max_updates = min(MAX_UPDATES, max(1, max_updates))
        self._max_bytes = max_bytes
        self._updates = 0  # the number of updates that have taken room
        self._bytes = 0  # their bytes
        # (position, bytes) of those that are in the history.  They give their room back
        # when they are dispatched.
        self._appended: deque[tuple[int, int]] = deque()
        self._newest = 0  # the position of the newest of all that were appended
        self._is_closed = False  # whether nothing will be dispatched any more
        # Held by the publisher that waits for room; the others wait for the lock, in
        # order.
        self._turn = asyncio.Lock()
        self._waiting = 0  # the number of publishers that wait for room or for the lock

    @property
    def in_flight(self) -> int:
        """The number of updates that have taken room and are not dispatched yet."""
        self._settle()
        return self._updates

    @property
    def newest(self) -> int:
        """The position of the newest update that was dispatched, or accepted here."""
        return max(self._live.position, self._newest)

    async def append(self, updates: Sequence[Update], append: Callable[[], Awaitable[list[Entry]]]) -> list[Entry]:
        """Wait for room for `updates`, and call `append()`, which appends them.

        Returns the result of `append`.  It may leave out some of the updates, for
        example those that the history already has.

        Raises `TooLarge` if there can never be enough room, `Closing` if there will not
        be, and the errors of `append`.
        If `append` raises or is cancelled, the room is given back.
        """
        count, size = len(updates), sum([update.size for update in updates])
        self.check(count, size)
        self._settle()
        if self._waiting or not self._has_room(count, size):
            await self._wait_for_room(count, size)
        self._updates += count
        self._bytes += size
        try:
            entries = await append()
        except BaseException:
            self._give_back(count, size)
            raise
        self._note(entries)
        # Updates that were left out give their room back now.
        if len(entries) < count:
            self._give_back(count - len(entries), size - sum(entry.size for entry in entries))
        return entries

    def close(self) -> None:
        """Free the publishers that wait for room: they get `Closing`."""
        self._is_closed = True
        self._live.move_to(self._live.position)

    def check(self, count: int, size: int) -> None:
        """Raise `TooLarge` unless `fits(count, size)`."""
        if not self.fits(count, size):
            raise TooLarge(
                f"{count} updates of about {size} bytes in memory are too many at once: "
                f"the limit is {self._max_updates} updates and {self._max_bytes} bytes"
            )

    def fits(self, count: int, size: int) -> bool:
        """Return whether there can ever be room for `count` updates of `size` bytes.

        `size` is the sum over the updates.  There can always be room for one update.
        """
        return count <= self._max_updates and (count <= 1 or size <= self._max_bytes)

    def parts(self, updates: Iterable[Update]) -> Iterator[list[Update]]:
        """Yield `updates` in order, in parts that each fit."""
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

    def _has_room(self, count: int, size: int) -> bool:
        # If nothing is in flight, even an update that is too large has room.
        return not self._updates or (
            self._updates + count <= self._max_updates and self._bytes + size <= self._max_bytes
        )

    async def _wait_for_room(self, count: int, size: int) -> None:
        """Wait for room: first come, first served, so no batch starves.

        The caller must take the room before it awaits anything else.
        """
        self._waiting += 1
        try:
            async with self._turn:
                self._settle()
                while not self._has_room(count, size):
                    if self._is_closed:
                        raise Closing
                    await self._live.moved()
                    self._settle()
        finally:
            self._waiting -= 1

    def _give_back(self, count: int, size: int) -> None:
        """Give back the room of updates that were not appended."""
        self._updates -= count
        self._bytes -= size
        self._live.move_to(self._live.position)  # wakes the publisher that waits

    def _note(self, entries: Sequence[Entry]) -> None:
        """Note the positions of appended updates, so that dispatch frees their room."""
        self._appended.extend([(entry.position, entry.size) for entry in entries])
        if not entries:
            return
        newest = entries[-1].position
        self._newest = max(self._newest, newest)
        if newest <= self._live.position:
            # They were dispatched before `append` returned: wake the publisher that
            # waits.
            self._live.move_to(self._live.position)

    def _settle(self) -> None:
        """Give back the room of the updates that are dispatched by now."""
        while self._appended and self._appended[0][0] <= self._live.position:
            self._updates -= 1
            self._bytes -= self._appended.popleft()[1]

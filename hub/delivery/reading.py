"""Reading: the entries of the history that one subscriber wants, page by page.

    history      a  b  c  d │ e  f  g  h │ i  j
    wanted          b     d      f         i
    Part.end              4            8      10

Streams that catch up, readers that do not wait (`Prefer: wait=0`) and the event log all
read the history in this way.  A page is matched in slices (see `slices`), and entries
with the same topics are matched once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hub.history.base import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hub.delivery.audience import Key
    from hub.delivery.subscriber import Subscriber
    from hub.history.base import Entry, Page
    from hub.protocol.updates import Update
    from hub.turns import TimeSlices


CHUNK_BYTES: Final = 2**16
"""Bytes of frames after which a reader writes, instead of joining more."""


class Part(NamedTuple):
    """The wanted entries of one page."""

    start: int
    """The position after which the page was read.

    If that is EARLIEST, it is the position before the first entry of the page.
    """
    wanted: list[Entry]
    """The entries that the subscriber wants, in order; perhaps none."""
    size: int
    """Bytes of the frames of the wanted entries."""
    end: int
    """The position of the last entry of the page."""


class Reading:
    """A walk of one subscriber through the history, from the position `after` on.

    `read(after)` returns the page after a position, which is empty at the end.
    `passes(key)` returns whether the subscriber subscribes to the key's topic, or may
    read its private updates.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[Page]],
        passes: Callable[[Key], bool],
        subscriber: Subscriber,
        after: int,
        slices: TimeSlices,
    ) -> None:
        self._read = read
        self._passes = passes
        self._subscriber = subscriber
        self._slices = slices
        self._after = after  # the position up to which it has read

    async def next(self) -> Part | None:
        """Return the wanted entries of the next page, or None if it has no entries.

        After None, the history may have more entries later: call it again.  Raises
        `PositionExpired` if the history forgot entries that the subscriber may want, or
        has begun a new epoch, and the errors of `read`.
        """
        page, subscriber = await self._read(self._after), self._subscriber
        # A subscriber that starts at EARLIEST asked for all that the history still has,
        # so presence updates that are already forgotten are no gap for it.
        if self._after == EARLIEST:
            subscriber.presence_after = max(subscriber.presence_after, page.forgotten)
        page.require_presence(max(self._after, subscriber.presence_after))
        if not page:
            return None
        wanted: list[Entry] = []
        size = 0
        # Many updates have equal topics: one verdict serves them all.
        verdicts: dict[tuple[tuple[str, ...], bool], bool] = {}
        async with self._slices:
            for entry in page:
                audience = entry.update.topics, entry.update.private
                if audience not in verdicts:
                    verdicts[audience] = await self._wants(entry.update)
                if verdicts[audience]:
                    wanted.append(entry)
                    size += len(entry.frame)  # encodes the frame at its first use, inside of the slice
                    if self._slices.is_over():
                        await self._slices.pause()
        start = page[0].position - 1 if self._after == EARLIEST else self._after
        self._after = page[-1].position
        return Part(start, wanted, size, self._after)

    async def _wants(self, update: Update) -> bool:
        """Return whether the subscriber receives an update (N21, N81).

        The subscriber must subscribe to one of the topics.  If the update is private,
        it must also be allowed to read one of them, not necessarily the same.
        """
        if not await self._passes_any([("subscribed", topic) for topic in update.topics]):
            return False
        return not update.private or await self._passes_any([("granted", topic) for topic in update.topics])

    async def _passes_any(self, keys: list[Key]) -> bool:
        """Return whether any of `keys` passes, and pause if the slice is used up."""
        for key in keys:
            passes = self._passes(key)
            if self._slices.is_over():
                await self._slices.pause()
            if passes:
                return True
        return False

"""Reading: what one subscriber wants of the history, from a position on, page by page.

    history   a  b  c  d │ e  f  g  h │ i  j           pages
    Part         b     d     f            i            end = 4, 8, 10

A stream that catches up, a reader that does not wait (`Prefer: wait=0`) and the event
log all read in this way.  So each of them matches each topic once, and lets other tasks
run when its slice is used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hub.history.base import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hub.history.base import Entry, Page
    from hub.interest import Key
    from hub.protocol.updates import Update
    from hub.slices import Slices
    from hub.subscriber import Subscriber


CHUNK_BYTES: Final = 2**16
"""Bytes of frames that a reader joins into one write."""


class Part(NamedTuple):
    """The wanted entries of one page."""

    start: int
    """The position before the first entry of the page."""
    wanted: list[Entry]
    size: int
    """Bytes of the frames of these entries."""
    end: int
    """The position of the last entry of the page."""


class Reading:
    """A walk through the history.

    `read(after)` returns the page after a position, which is empty at the end.
    `passes(key)` returns whether the subscriber subscribes to a topic, or may read its
    private updates.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[Page]],
        passes: Callable[[Key], bool],
        subscriber: Subscriber,
        after: int,
        slices: Slices,
    ) -> None:
        self._read = read
        self._passes = passes
        self._subscriber = subscriber
        self._slices = slices
        self._after = after
        """The position of the last entry that was returned."""

    async def next(self) -> Part | None:
        """Return the wanted entries of the next page, or None at the end for now.

        Raises PositionExpired if entries that the subscriber may want were lost, and
        what `read` raises.
        """
        page, subscriber = await self._read(self._after), self._subscriber
        # A subscriber from `earliest` gets what the history has, and misses nothing.
        if self._after == EARLIEST:
            subscriber.presence_after = max(subscriber.presence_after, page.forgotten)
        page.require_presence(max(self._after, subscriber.presence_after))
        if not page:
            return None
        wanted: list[Entry] = []
        size = 0
        verdicts: dict[tuple[tuple[str, ...], bool], bool] = {}  # many updates have equal topics
        async with self._slices:
            for entry in page:
                asked = entry.update.topics, entry.update.private
                if asked not in verdicts:
                    verdicts[asked] = await self._wants(entry.update)
                if verdicts[asked]:
                    wanted.append(entry)
                    size += len(entry.frame)  # encodes it now, inside of the slice
                    if self._slices.is_over():
                        await self._slices.pause()
        start = page[0].position - 1 if self._after == EARLIEST else self._after
        self._after = page[-1].position
        return Part(start, wanted, size, self._after)

    async def _wants(self, update: Update) -> bool:
        """Return whether the subscriber receives an update (N21, N81).

        It does if it subscribes to one of the topics and, if the update is private, may
        read one of them.
        """
        if not await self._passes_any([("subscribed", topic) for topic in update.topics]):
            return False
        return not update.private or await self._passes_any([("granted", topic) for topic in update.topics])

    async def _passes_any(self, keys: list[Key]) -> bool:
        """Return whether any of `keys` passes; pause if the slice is used up."""
        for key in keys:
            passes = self._passes(key)
            if self._slices.is_over():
                await self._slices.pause()
            if passes:
                return True
        return False

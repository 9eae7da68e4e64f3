"""Reading: what one subscriber wants of the log, from a position on, a page at a time.

    log       a  b  c  d │ e  f  g  h │ i  j           pages
    Part         b     d     f            i            end = 4, 8, 10

A stream that catches up, a reader that does not wait (`Prefer: wait=0`) and the event log all read through here, so
each of them asks the index once a topic, and lets other tasks run when its slice is used up.
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
    """What is wanted of one page."""

    start: int
    """The position before the first entry of the page."""
    wanted: list[Entry]
    size: int
    """Bytes of the frames of what is wanted."""
    end: int
    """The position of the last entry of the page."""


class Reading:
    """A walk through the log.

    `read(after)` returns the page after a position, empty at the end.  `passes(key)` says whether the subscriber
    subscribes to a topic, or may read its private updates.
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
        """Return what is wanted of the next page; None at the end, after which there may be more later.

        Raises PositionExpired if entries after the last position are gone that the subscriber may want, and what `read`
        raises.
        """
        page, subscriber = await self._read(self._after), self._subscriber
        if self._after == EARLIEST:  # it is promised what there is, and not what was forgotten before
            subscriber.presence_after = max(subscriber.presence_after, page.forgotten)
        page.require_presence(max(self._after, subscriber.presence_after))
        if not page:
            return None
        wanted: list[Entry] = []
        size = 0
        answers: dict[tuple[tuple[str, ...], bool], bool] = {}  # many updates of a page have the same topics
        async with self._slices:
            for entry in page:
                asked = entry.update.topics, entry.update.private
                if asked not in answers:
                    answers[asked] = await self._wants(entry.update)
                if answers[asked]:
                    wanted.append(entry)
                    size += len(entry.frame)  # which is encoded now, as that takes time too
                    if self._slices.is_over():
                        await self._slices.pause()
        start = page[0].position - 1 if self._after == EARLIEST else self._after
        self._after = page[-1].position
        return Part(start, wanted, size, self._after)

    async def _wants(self, update: Update) -> bool:
        """N21, N81: some topic is subscribed to and, if the update is private, some topic is granted."""
        if not await self._passes_any([("subscribed", topic) for topic in update.topics]):
            return False
        return not update.private or await self._passes_any([("granted", topic) for topic in update.topics])

    async def _passes_any(self, keys: list[Key]) -> bool:
        for key in keys:
            passes = self._passes(key)
            if self._slices.is_over():
                await self._slices.pause()
            if passes:
                return True
        return False

"""Reading: the entries of the history that one seat wants, page by page.

    history      a  b  c  d │ e  f  g  h │ i  j
    wanted          b     d      f         i
    Part.end              4            8      10

Streams that catch up, readers that do not wait (`Prefer: wait=0`) and the event log all
read the history in this way.  A page is matched in slices of time, and entries with the
same topics are matched once.

Belongs here: the start at EARLIEST, which no stream and no reader sees.  Does not
belong here: any write, and the rule that says who wants an entry (`audience`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import ref

from pyroaring import BitMap64

from hub.errors import PositionExpired
from hub.history.base import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hub.delivery.audience import Audience
    from hub.delivery.seat import Seat
    from hub.history.base import Entry, Page
    from hub.protocol.topics import TopicMatcher
    from hub.turns import FairTurns, TimeSlices


CHUNK_BYTES: Final = 2**16
"""Bytes of frames after which a reader writes, instead of joining more."""
MAX_NOTES: Final = 16
"""The number of different subscriptions for which a page notes what they want."""
MAX_NOTED_MATCHERS: Final = 16
"""The number of matchers of a subscription and its grant, at most, that has a note."""


Alike: TypeAlias = "tuple[tuple[ref[TopicMatcher], ...], tuple[ref[TopicMatcher], ...]]"
"""The matchers of a subscription, and those of its grant."""


Wanted: TypeAlias = "tuple[list[Entry], int]"
"""The entries of a page that a seat wants, and the bytes of their frames."""


async def last_sent(
    read: Callable[[int], Awaitable[Page]],
    audience: Audience,
    seat: Seat,
    position: int,
    more: int,
    slices: TimeSlices,
) -> int | None:
    """Return the position of the last entry that a connection was sent, if it was sent
    all up to `position`, and `more` entries after it.

    Reads the history again; None if it has forgotten the entry.
    """
    reading = Reading(read, audience, seat, position, slices)
    try:
        while (part := await reading.next()) is not None:
            if more <= len(part.wanted):
                return part.wanted[more - 1].position
            more -= len(part.wanted)
    except PositionExpired:
        pass
    return None


class Notes:
    """What readers of one node want of a page, for others with the same subscriptions.

    The notes of a page are kept as long as the page: see `hub.history.pages`.
    """

    def __init__(self) -> None:
        # By the id of the page, because a page is a list, which has no hash.
        self._by_page: dict[int, tuple[ref[Page], dict[Alike, Wanted]]] = {}

    def of(self, page: Page) -> dict[Alike, Wanted]:
        """Return what is noted of a page, to which the caller may add."""
        kept = self._by_page.get(id(page))
        if kept is None:
            forget = partial(self._by_page.pop, id(page))
            kept = self._by_page[id(page)] = ref(page, lambda _: forget()), {}
        return kept[1]

    def __len__(self) -> int:
        return len(self._by_page)


class Part(NamedTuple):
    """The wanted entries of one page."""

    start: int
    """The position after which the page begins; before its first entry if the walk
    begins at EARLIEST."""
    wanted: list[Entry]
    """The entries that the seat wants, in order; perhaps none."""
    size: int
    """Bytes of the frames of the wanted entries."""
    end: int
    """The position of the last entry of the page."""


class Reading:
    """A walk of one seat of `audience` through the history, from `after` on.

    `read(after)` returns the page after a position, which is empty at the end.  With
    `turns`, each client has turns of a page.  `notes` are those of others who read the
    same pages.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[Page]],
        audience: Audience,
        seat: Seat,
        after: int,
        slices: TimeSlices,
        turns: FairTurns | None = None,
        notes: Notes | None = None,
    ) -> None:
        self._read = read
        self._notes = Notes() if notes is None else notes
        self._audience = audience
        self._subscriber = subscriber = seat.subscriber
        # Many clients may have the same subscriptions: then they want the same.  This
        # key of their note keeps no matchers, which count as long as they exist.
        self._alike: Alike | None = None
        if len(subscriber.subscribed) + len(subscriber.grant.subscribe) <= MAX_NOTED_MATCHERS:
            self._alike = tuple(map(ref, subscriber.subscribed)), tuple(map(ref, subscriber.grant.subscribe))
        self._only = BitMap64([seat.id])
        self._slices = slices
        self._turns = turns
        self._after = after  # the position up to which it has read

    async def next(self) -> Part | None:
        """Return the wanted entries of the next page, or None if it has no entries.

        After None, the history may have more entries later: call it again.  Raises
        `PositionExpired` if the history forgot entries that the subscriber may want, or
        has begun a new epoch, and the errors of `read`.
        """
        payer = self._subscriber.payer
        turn = None if self._turns is None or payer is None else self._turns.of(payer.name)
        if turn is None:
            return await self._next()
        async with turn:
            return await self._next()

    async def _next(self) -> Part | None:
        page, subscriber = await self._read(self._after), self._subscriber
        # A subscriber that starts at EARLIEST asked for all that the history still has,
        # so presence updates that are already forgotten are no gap for it.
        if self._after == EARLIEST:
            subscriber.presence_after = max(subscriber.presence_after, page.forgotten)
        page.require_presence(max(self._after, subscriber.presence_after))
        if not page:
            return None
        async with self._slices:
            notes, alike = self._notes.of(page), self._alike
            found = None if alike is None else notes.get(alike)
            if found is None:
                found = await self._wanted(page)
                if alike is not None:
                    if len(notes) >= MAX_NOTES:
                        notes.clear()
                    notes[alike] = found
            elif self._slices.is_over():
                await self._slices.pause()
        start = page[0].position - 1 if self._after == EARLIEST else self._after
        self._after = page[-1].position
        return Part(start, *found, self._after)

    async def _wanted(self, page: Page) -> Wanted:
        """Return the entries of a page that the seat wants, and their bytes.

        Works in a slice of time, which the caller has begun.
        """
        wanted: list[Entry] = []
        size = 0
        # Many updates have equal topics: one verdict serves them all.
        verdicts: dict[tuple[tuple[str, ...], bool], bool] = {}
        for entry in page:
            kind = entry.update.topics, entry.update.private
            if kind not in verdicts:
                verdicts[kind] = bool(await self._audience.of(*kind, self._only, self._slices))
                if self._slices.is_over():
                    await self._slices.pause()
            if verdicts[kind]:
                wanted.append(entry)
                size += len(entry.frame)  # encodes the frame at its first use, inside of the slice
                if self._slices.is_over():
                    await self._slices.pause()
        return wanted, size

"""Live: writes the frames of a page to the live seats that want them.

    page of entries ─► which live seats want which ─► one body for each choice, and
                                                      one write for each seat

A seat is live if it has been sent everything up to `position`, or gets it from the
dispatch that is running.  All others read the history themselves.  The frames of a page
that a seat wants are joined and written once.

Belongs here: writes to live seats, which never wait.  If a connection has no room for
more, it leaves the live seats and catches up on its own (`stream`), so it delays no
other.  Does not belong here: seats that catch up, and why an update is for a seat.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from pyroaring import BitMap64, FrozenBitMap64

from hub import turns
from hub.delivery.observer import Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hub.delivery.audience import Audience
    from hub.delivery.seat import Outlet, Seat
    from hub.history.base import Entry


class Live:
    """The live seats of one node, and how far the history was dispatched to them.

    `clock` returns monotonic seconds.  Must be used from one event loop.
    """

    def __init__(self, audience: Audience, *, clock: Callable[[], float]) -> None:
        self.position = 0
        """The position up to which the history was dispatched, or is being
        dispatched."""
        self.dispatched = 0
        """The position at which the last finished dispatch ended."""
        self.newest = 0, ""
        """The position and the id of the newest entry that is known to be there."""
        self.turn = asyncio.Lock()
        """Held by a dispatch, or by a round of heartbeats.

        They never run at the same time.  Therefore a seat that leaves because a
        heartbeat did not fit has been sent everything up to `dispatched`, and nothing
        older is written after the heartbeat.
        """
        self._audience = audience
        self._clock = clock
        self._ids = BitMap64()  # of the live seats
        self._moved: asyncio.Event | None = None  # set by the next change of `position`, if any task waits for it

    def join(self, seat: Seat, outlet: Outlet, position: int) -> None:
        """Make a seat live: from now on, its outlet is written to.

        It must have been sent everything up to the present position, so that it misses
        no entry.
        """
        assert position == self.position
        self._ids.add(seat.id)
        seat.outlet = outlet

    def leave(self, seat: Seat) -> None:
        """Remove a seat from the live seats, if it is one of them."""
        self._ids.discard(seat.id)
        seat.outlet = None

    def __len__(self) -> int:
        return len(self._ids)

    async def dispatch(self, entries: list[Entry]) -> Sent:
        """Write consecutive entries to the live seats that want them, and count them.

        `entries` must not be empty.  Never waits for a connection, and lets other tasks
        run between portions of work.

        A concurrent call waits until this one has ended.  If the call fails or is
        cancelled halfway, some seats were written to and others were not.
        """
        async with self.turn:
            # Only seats that are live now get these entries here.  A seat that joins
            # from now on must already be at the new position: it starts there, or has
            # read the entries from the history.
            live, position = self._ids.copy(), entries[-1].position
            self.move_to(position)
            now, left = self._clock(), turns.WRITES
            updates = size = 0
            for ids, count, body in await self._choices(entries, live):
                cost = 1 + len(body) // turns.BYTES_PER_WRITE + len(entries) // turns.JOINS_PER_WRITE
                seats = self._audience.seats(ids)
                absent = 0
                for seat in seats:
                    # Other tasks have run since the ids were copied: the seat may have
                    # left the live seats.
                    if (outlet := seat.outlet) is not None:
                        seat.written = now
                        outlet.write(body, position)
                    else:
                        absent += 1
                    left -= cost
                    if left <= 0:
                        left = turns.WRITES
                        await turns.other_tasks()
                updates += count * (len(seats) - absent)
                size += len(body) * (len(seats) - absent)
            self.dispatched = position
            self.newest = position, entries[-1].update.id
            return Sent(updates, size, self._clock() - now)

    async def _choices(self, entries: list[Entry], live: BitMap64) -> Iterable[tuple[BitMap64, int, bytes]]:
        """Return seats that want the same frames, the number of frames, and these.

        No id is in two of the results, so each seat gets one write.
        """
        pace = turns.Portion(turns.FOUND_TOPICS)
        # 1. A single entry has one set of seats, and its frame is the body.
        if len(entries) == 1:
            update = entries[0].update
            ids = await self._audience.of(update.topics, update.private, live, pace)
            return [(ids, 1, entries[0].frame)] if ids else []

        # 2. Several entries.  A choice is a set of entries, as an integer: bit n stands
        #    for entries[n].
        #
        # a. Group the entries by topics and privacy, because equal ones are for the
        #    same seats: a hundred updates of one topic need one look-up.
        alike: dict[tuple[tuple[str, ...], bool], int] = {}
        for n, entry in enumerate(entries):
            kind = entry.update.topics, entry.update.private
            alike[kind] = alike.get(kind, 0) | 1 << n

        # b. Group them further by their set of live seats, so that each set is walked
        #    once.  An entry that no live seat wants drops out.
        choices: dict[FrozenBitMap64, int] = {}
        for kind, choice in alike.items():
            if ids := await self._audience.of(*kind, live, pace):
                same = FrozenBitMap64(ids)
                choices[same] = choices.get(same, 0) | choice

        # c. The sets of seats may overlap.  Turn {seats: choice} into {choice: seats},
        #    with each seat under the one choice that has all of its entries.  A single
        #    set needs no more than a swap.
        if len(choices) == 1:
            choosers = {choice: BitMap64(same) for same, choice in choices.items()}
        else:
            choosers = await _choosers(choices)

        # d. Join the frames of each choice.  There may be as many choices as seats, so
        #    a generator joins each body only when it is written.
        return (
            (
                ids,
                choice.bit_count(),
                b"".join([entry.frame for n, entry in enumerate(entries) if choice >> n & 1]),
            )
            for choice, ids in choosers.items()
        )

    def move_to(self, position: int) -> None:
        """Set the position, and wake all callers of `moved`.

        `dispatch` calls it.  Other callers skip entries that are lost or older than
        this node, or pass the present position only to wake the callers of `moved`.
        """
        self.position = position
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    async def moved(self) -> None:
        """Wait until the position is next set."""
        if self._moved is None:
            self._moved = asyncio.Event()
        await self._moved.wait()


async def _choosers(choices: dict[FrozenBitMap64, int]) -> dict[int, BitMap64]:
    """Return {choice: ids}, where the choice of an id unites the choices of its sets.

    For example, {{1, 2}: 0b01, {2, 3}: 0b10} gives {0b01: {1}, 0b11: {2}, 0b10: {3}}.
    """
    # The choice of each id: the union over the sets that contain it.
    choice_of: dict[int, int] = {}
    async for some in turns.in_turns(
        ((id, choice) for ids, choice in choices.items() for id in ids), turns.GROUPED_IDS
    ):
        for id, choice in some:
            choice_of[id] = choice_of.get(id, 0) | choice
    # The ids of each choice.
    alike: defaultdict[int, list[int]] = defaultdict(list)
    async for some in turns.in_turns(choice_of.items(), turns.GROUPED_IDS):
        for id, choice in some:
            alike[choice].append(id)
    # The same as bitmaps.  There may be as many as ids, so this is in slices too.
    choosers: dict[int, BitMap64] = {}
    async for groups in turns.in_turns(alike.items(), turns.GROUPS):
        choosers.update((choice, BitMap64(ids)) for choice, ids in groups)
    return choosers

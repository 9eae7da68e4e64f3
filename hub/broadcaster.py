"""Broadcaster: all connections in a SkipFilter, and one frame written to many of them.

    entry (topics T)  ─►  ⋃ subscribed[t]   ∩   ⋃ granted[t] if it is private      t ∈ T
                          a cached bitmap for each topic; the ids of the receivers

A receiver's subscription and its grant may match different topics of one update (N21,
N81, V50).  So the two unions are exactly the rule of the protocol, and an update costs
one OR and one AND.

Entries that arrive during a dispatch are dispatched together: the frames of each
receiver are joined and written once.  Writing never waits.  If a receiver cannot take a
frame now, it leaves the live set (see `stream`), and delays no other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from pyroaring import BitMap64, FrozenBitMap64

from hub.interest import Interest
from hub.protocol import events
from hub.timer_wheel import Wheel
from skipfilter import SkipFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from hub.history.base import Entry
    from hub.interest import Key
    from hub.subscriber import Subscriber

SLICE_WRITES: Final = 256
"""Writes before other tasks may run: about 2 ms."""
WRITE: Final = 2**12
"""Bytes that cost about as much as one more write."""
JOINS: Final = 32
"""Updates that cost about as much to join as one more write."""
MATCHES: Final = 16
"""Topics that are matched before other tasks may run: at most about 2 ms."""
IDS: Final = 2**13
"""Ids that are sorted before other tasks may run: about 2 ms."""
SETS: Final = 2**9
"""Sets of ids that are made before other tasks may run: about 1 ms."""
EARLY: Final = 0.25
"""The share of its interval by which a heartbeat may come early.

So connections that were written to at the same moment do not all get a heartbeat at the
same moment.
"""
TICK: Final = 1.0
"""Seconds between two runs of `tick`, by the monotonic clock."""
LOST_CHECK_SECONDS: Final = 40.0
"""Seconds between two checks of a connection, if there are no heartbeats."""
LATE: Final = 2 * TICK
"""Seconds by which a heartbeat may come late.

A connection is closed this much before its token expires (N82).
"""

_GOLDEN: Final = (5**0.5 - 1) / 2

T = TypeVar("T")


class Receiver(Protocol):
    """One connection, as the broadcaster sees it."""

    subscriber: Subscriber
    position: int
    """It was sent, or did not want, every entry up to here; see
    `Broadcaster.reached`."""
    written: float
    """The time of the last write to it, by the broadcaster's clock."""

    number: int
    """Its id in the filter; the broadcaster sets it."""
    live: bool
    """Whether it is in the live set; the broadcaster sets it."""

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting, and move to `position`.

        If there is no room, leave.
        """
        ...

    def delivered(self) -> tuple[int, int]:
        """Return how far everything was handed to the socket.

        That is the last position up to which all frames were, and the number of further
        frames.
        """
        ...

    def is_lost(self) -> bool:
        """Return whether the connection is lost although no error has reported that."""
        ...

    def close(self, reason: str) -> None:
        """End the connection soon."""
        ...


class Broadcaster:
    """All connections of one node; used from one event loop.

    Dispatches and rounds of heartbeats take turns.  So a receiver that leaves the live
    set outside of its own write has been written everything up to `position`, and
    nothing that is still to be written overtakes it.
    """

    def __init__(
        self,
        *,
        heartbeat: float,
        cached_topics: int,
        base_url: str,
        clock: Callable[[], float],
    ) -> None:
        self.position = 0
        """The position up to which the history was dispatched, or is being
        dispatched."""
        self.dispatched = 0
        """The position at which the last finished dispatch ended."""
        self._heartbeat = heartbeat
        self._clock = clock
        self._interest = Interest(base_url)
        # The receivers, with what they want as keys.
        self._filter: SkipFilter[Receiver, Key] = SkipFilter(
            self._interest, capacity=2 * cached_topics, lock=nullcontext()
        )
        self._connected: dict[str, Receiver] = {}  # by the id of the subscriber
        # The ids of the receivers at `position`; all others are catching up.
        self._live = BitMap64()
        self._wheel: Wheel[Receiver] = Wheel(now=clock(), tick=TICK)  # heartbeats, deadlines
        self._turn = asyncio.Lock()  # held by a dispatch, or by a round of heartbeats
        self._moved = asyncio.Event()  # set by the next change of `position`
        self._left = asyncio.Event()  # set by the next disconnection

    # -- connections

    def connect(self, receiver: Receiver) -> None:
        """Add a connection, which is not live yet.

        Raises LimitError if its patterns are too similar to others.
        """
        receiver.number = self._filter.add(receiver)
        self._connected[receiver.subscriber.id] = receiver
        receiver.written = self._clock()
        self._schedule(receiver)

    def passes(self, receiver: Receiver, key: Key) -> bool:
        """Return whether a connection subscribes to, or may read, the topic of
        `key`.
        """
        return receiver.number in self._source(key[1]).bitmap(key)

    def join(self, receiver: Receiver) -> None:
        """Add a receiver to the live set.

        Its position must be that of the broadcaster.
        """
        assert receiver.position == self.position
        self._live.add(receiver.number)
        receiver.live = True

    def reached(self, receiver: Receiver) -> int:
        """Return the position up to which a receiver was sent all that it wants."""
        # A finished dispatch has reached every live receiver, also those that wanted
        # none of it.  During a dispatch, the position of a receiver that was written to
        # is newer.
        return max(receiver.position, self.dispatched) if receiver.live else receiver.position

    def leave(self, receiver: Receiver) -> None:
        """Remove a receiver from the live set."""
        self._live.discard(receiver.number)
        receiver.live = False

    def disconnect(self, receiver: Receiver) -> None:
        """Forget a connection."""
        self._live.discard(receiver.number)
        receiver.live = False
        self._filter.discard(receiver)
        self._wheel.discard(receiver)
        del self._connected[receiver.subscriber.id]
        self._left.set()

    async def emptied(self) -> None:
        """Wait until there are no connections."""
        while self._connected:
            self._left.clear()
            await self._left.wait()

    def close(self, id: str, reason: str) -> None:
        """End the connection of the subscriber with this id, if it is connected."""
        if (receiver := self._connected.get(id)) is not None:
            receiver.close(reason)

    def close_all(self, reason: str) -> None:
        """End all connections."""
        for receiver in list(self._connected.values()):
            receiver.close(reason)

    @property
    def connected(self) -> int:
        """The number of connections."""
        return len(self._connected)

    def subscriber(self, id: str) -> Subscriber | None:
        """Return the connected subscriber with this id, or None."""
        receiver = self._connected.get(id)
        return None if receiver is None else receiver.subscriber

    def subscribers(self) -> list[Subscriber]:
        """Return all connected subscribers, in the order of their connections."""
        return [receiver.subscriber for receiver in self._connected.values()]

    @property
    def live(self) -> int:
        """The number of connections that have caught up."""
        return len(self._live)

    # -- entries

    async def dispatch(self, entries: list[Entry]) -> None:
        """Write consecutive entries of the history to all live receivers that want
        them.

        Never waits for a receiver, and lets other tasks run between slices.
        """
        async with self._turn:
            # Receivers that are live now get these entries from here.  A receiver that
            # joins before the last write has read them from the history.
            live, position = self._live.copy(), entries[-1].position
            self.move_to(position)
            now, left = self._clock(), SLICE_WRITES
            for ids, body in await self._choices(entries, live):
                cost = 1 + len(body) // WRITE + len(entries) // JOINS
                for receiver in self._filter.values(ids):
                    if receiver.live:  # it may have left or been closed meanwhile
                        receiver.written = now
                        receiver.write(body, position)
                    left -= cost
                    if left <= 0:
                        left = SLICE_WRITES
                        await asyncio.sleep(0)
            self.dispatched = position

    async def _choices(self, entries: list[Entry], live: BitMap64) -> Iterable[tuple[BitMap64, bytes]]:
        """Return (ids, body) pairs: each id is in one set at most, its frames
        joined.
        """
        # 1. A single entry: its receivers and its frame.
        if len(entries) == 1:
            update = entries[0].update
            await self._look_up(update.topics, update.private)
            return [(self._receivers(update.topics, update.private) & live, entries[0].frame)]
        # 2. Several entries.  Bit n of a choice stands for entries[n].  First, add up
        #    entries with the same topics: a hundred updates of one topic need one.
        alike: dict[tuple[tuple[str, ...], bool], int] = {}
        for n, entry in enumerate(entries):
            asked = entry.update.topics, entry.update.private
            alike[asked] = alike.get(asked, 0) | 1 << n
        #    Then add up those with the same receivers, so that they need one pass.
        choices: dict[FrozenBitMap64, int] = {}
        async for some in _in_turns(alike.items(), MATCHES):
            for asked, choice in some:
                await self._look_up(*asked)
                if ids := self._receivers(*asked) & live:
                    same = FrozenBitMap64(ids)
                    choices[same] = choices.get(same, 0) | choice
        #    Finally, turn {receivers: choice} around: which ids have which choice?
        if len(choices) == 1:
            choosers = {choice: BitMap64(same) for same, choice in choices.items()}
        else:
            choosers = await _choosers(choices)
        # A generator, because there may be as many bodies as receivers.
        return (
            (ids, b"".join(entry.frame for n, entry in enumerate(entries) if choice >> n & 1))
            for choice, ids in choosers.items()
        )

    async def _look_up(self, topics: tuple[str, ...], private: bool) -> None:
        """Cache the receivers of many topics in slices, so that the lookup is quick."""
        if len(topics) > MATCHES:
            async for some in _in_turns(topics, MATCHES):
                for topic in some:
                    self._filter.bitmap(("subscribed", topic))
                    if private:
                        self._filter.bitmap(("granted", topic))

    def _receivers(self, topics: tuple[str, ...], private: bool) -> BitMap64:
        """Return the ids of the receivers of an update, live or not."""
        filter = self._source(topics[0])
        ids = filter.bitmap(*(("subscribed", topic) for topic in topics))
        if private:
            ids &= filter.bitmap(*(("granted", topic) for topic in topics))
        return ids

    def _source(self, topic: str) -> Interest | SkipFilter[Receiver, Key]:
        # The hub's own topics are always new: caching them would evict useful entries.
        return self._interest if self._interest.announces(topic) else self._filter

    def move_to(self, position: int) -> None:
        """Set the position: the history was dispatched up to it, or earlier entries are
        lost.
        """
        self.position = position
        self._moved.set()
        self._moved = asyncio.Event()

    async def moved(self) -> None:
        """Wait until the position changes."""
        await self._moved.wait()

    # -- time

    async def tick(self) -> None:
        """Send heartbeats, and close connections that are due.

        Call it once every TICK.
        """
        async with self._turn:
            now = self._clock()
            async for some in _in_turns(self._wheel.turn(now), SLICE_WRITES):
                for receiver in some:
                    if receiver.subscriber.id in self._connected:
                        self._see_to(receiver, now)

    def _see_to(self, receiver: Receiver, now: float) -> None:
        """Close a connection at its deadline or if it is lost; else send a heartbeat if
        due.
        """
        if receiver.subscriber.deadline - LATE <= now:
            receiver.close(receiver.subscriber.lapse)
            return
        if receiver.is_lost():
            receiver.close("its connection is lost")
            return
        if self._heartbeat and self._beat(receiver) <= now:
            receiver.written = now
            if receiver.live:
                receiver.write(events.HEARTBEAT, self.reached(receiver))
        self._schedule(receiver)

    def _schedule(self, receiver: Receiver) -> None:
        """Put the connection's next heartbeat or deadline on the wheel."""
        beat = self._beat(receiver) if self._heartbeat else self._clock() + LOST_CHECK_SECONDS
        self._wheel.set(receiver, min(beat, receiver.subscriber.deadline - LATE))

    def _beat(self, receiver: Receiver) -> float:
        """Return when the next heartbeat of a connection is due."""
        # Multiples of the golden ratio are spread evenly between 0 and 1.
        phase = receiver.number * _GOLDEN % 1.0
        return receiver.written + self._heartbeat * (1.0 - EARLY * phase)


async def _choosers(choices: dict[FrozenBitMap64, int]) -> dict[int, BitMap64]:
    """Return which ids have which choice: choices of an id's sets combined, then
    inverted.
    """
    # The combined choice of each id.
    choice_of: dict[int, int] = {}
    async for some in _in_turns(((id, choice) for ids, choice in choices.items() for id in ids), IDS):
        for id, choice in some:
            choice_of[id] = choice_of.get(id, 0) | choice
    # Ids with the same choice, together.
    alike: defaultdict[int, list[int]] = defaultdict(list)
    async for some in _in_turns(choice_of.items(), IDS):
        for id, choice in some:
            alike[choice].append(id)
    # As bitmaps.
    made: dict[int, BitMap64] = {}
    async for sets in _in_turns(alike.items(), SETS):
        made.update((choice, BitMap64(ids)) for choice, ids in sets)
    return made


async def _in_turns(items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
    """Yield `items` in lists of up to `size`; after each full list, other tasks run."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
        if len(some) == size:
            await asyncio.sleep(0)

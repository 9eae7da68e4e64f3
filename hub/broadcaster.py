"""Broadcaster: all receivers in a SkipFilter, and one frame written to many.

    entry (topics T)  ─►  ⋃ subscribed[t]   ∩   ⋃ granted[t] if it is private      t ∈ T
                          a bitmap a topic, asked once; the ids of the receivers

A receiver and its grant may match different topics of one update (N21, N81, V50), so the two unions are the
protocol's rule exactly, and no more than one OR and one AND a message.

Entries that come in while a dispatch runs are dispatched together: each receiver's frames are joined and
written once.  Writing is synchronous; who cannot take a frame now leaves the live set (see `stream`), and
nobody waits for it.
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
"""Writes between two looks at the other tasks: about 2 ms."""
WRITE: Final = 2**12
"""Bytes that cost about as much as another write."""
JOINS: Final = 32
"""Updates that cost about as much as another write, to be joined."""
MATCHES: Final = 16
"""Topics whose receivers are looked for between two looks at the other tasks: about 2 ms if they are dear."""
IDS: Final = 2**13
"""Ids that are sorted between two looks at the other tasks: about 2 ms."""
SETS: Final = 2**9
"""Sets of ids that are made between two looks at the other tasks: about 1 ms."""
EARLY: Final = 0.25
"""The share of its time by which a heartbeat may come early: who was written the same is not beaten at once."""
TICK: Final = 1.0
"""Seconds between two looks at the clock, which is one that nobody sets."""
LOST_CHECK_SECONDS: Final = 40.0
"""Seconds between two looks at a connection that gets no heartbeats."""
LATE: Final = 2 * TICK
"""Seconds by which a heartbeat may come late; a connection is closed so much before its token expires (N82)."""

_GOLDEN: Final = (5**0.5 - 1) / 2

T = TypeVar("T")


class Receiver(Protocol):
    """One connection, as the broadcaster sees it."""

    subscriber: Subscriber
    position: int
    """It has been sent, or did not want, every entry of the history up to there; see `Broadcaster.reached`."""
    written: float
    """When it was last written to, by the broadcaster's clock."""

    number: int
    """Its id in the filter of receivers; the broadcaster's own."""
    live: bool
    """Whether it is in the live set; the broadcaster's own."""

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting; the position is then this one.  If there is no room, leave."""
        ...

    def delivered(self) -> tuple[int, int]:
        """Return the position up to which everything was handed to the socket, and the number of frames after it."""
        ...

    def is_lost(self) -> bool:
        """Return whether the connection is lost, though nothing has reported that."""
        ...

    def close(self, reason: str) -> None:
        """End the connection soon."""
        ...


class Broadcaster:
    """All connections of one hub on this node; used from one event loop.

    All its mutable state: `position`, up to where the log was dispatched, or is being; `dispatched`, where the last
    dispatch ended that is over; `_filter`, the receivers by what they want; `_connected`, the same by the id of their
    subscriber; `_live`, the ids in the filter of those whose position is `position`, as the others are catching up; the
    wheel of heartbeats and deadlines; `_turn`, held by a dispatch or a round of heartbeats; and `_moved`, the event of
    the next dispatch.
    """

    # Dispatches and heartbeats take turns.  So whoever leaves the live set outside its own write has been
    # written everything up to `position`, and nothing that is still to be written overtakes it.

    def __init__(
        self,
        *,
        heartbeat: float,
        cached_topics: int,
        base_url: str,
        clock: Callable[[], float],
    ) -> None:
        self.position = 0
        self.dispatched = 0
        self._heartbeat = heartbeat
        self._clock = clock
        self._interest = Interest(base_url)
        self._filter: SkipFilter[Receiver, Key] = SkipFilter(
            self._interest, capacity=2 * cached_topics, lock=nullcontext()
        )
        self._connected: dict[str, Receiver] = {}
        self._live = BitMap64()
        self._wheel: Wheel[Receiver] = Wheel(now=clock(), tick=TICK)
        self._turn = asyncio.Lock()
        self._moved = asyncio.Event()
        self._left = asyncio.Event()
        """The event of the next disconnection."""

    # -- connections

    def connect(self, receiver: Receiver) -> None:
        """Take a connection in; it is not live yet.  Raises LimitError for patterns that are too much alike."""
        receiver.number = self._filter.add(receiver)
        self._connected[receiver.subscriber.id] = receiver
        receiver.written = self._clock()
        self._schedule(receiver)

    def passes(self, receiver: Receiver, key: Key) -> bool:
        """Return whether a connection, live or not, subscribes to a topic, or may read its private updates."""
        return receiver.number in self._source(key[1]).bitmap(key)

    def join(self, receiver: Receiver) -> None:
        """Take it into the live set.  Its position must be this broadcaster's."""
        assert receiver.position == self.position
        self._live.add(receiver.number)
        receiver.live = True

    def reached(self, receiver: Receiver) -> int:
        """Return the position up to which a connection has been sent everything that it wants."""
        # A finished dispatch has reached every live connection, also those that wanted none of it.  During a dispatch,
        # the position of a connection that was written to is newer.
        return max(receiver.position, self.dispatched) if receiver.live else receiver.position

    def leave(self, receiver: Receiver) -> None:
        """Take it out of the live set."""
        self._live.discard(receiver.number)
        receiver.live = False

    def disconnect(self, receiver: Receiver) -> None:
        """Forget it."""
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
        """End the connection of the subscriber with this id, if it is still there."""
        if (receiver := self._connected.get(id)) is not None:
            receiver.close(reason)

    def close_all(self, reason: str) -> None:
        for receiver in list(self._connected.values()):
            receiver.close(reason)

    @property
    def connected(self) -> int:
        """How many connections there are."""
        return len(self._connected)

    def subscriber(self, id: str) -> Subscriber | None:
        """The connected subscriber of this id."""
        receiver = self._connected.get(id)
        return None if receiver is None else receiver.subscriber

    def subscribers(self) -> list[Subscriber]:
        """All that are connected, in the order of their coming."""
        return [receiver.subscriber for receiver in self._connected.values()]

    @property
    def live(self) -> int:
        """How many of them have caught up."""
        return len(self._live)

    # -- entries

    async def dispatch(self, entries: list[Entry]) -> None:
        """Write consecutive entries of the log to all live receivers that want them, to each at once.

        Never waits for a receiver; lets other tasks run between slices.
        """
        async with self._turn:
            # Who is live now gets them from here; who joins before the last write has read them in the log.
            live, position = self._live.copy(), entries[-1].position
            self.move_to(position)
            now, left = self._clock(), SLICE_WRITES
            for ids, body in await self._choices(entries, live):
                cost = 1 + len(body) // WRITE + len(entries) // JOINS
                for receiver in self._filter.values(ids):
                    if receiver.live:  # it may have gone since, or have been closed
                        receiver.written = now
                        receiver.write(body, position)
                    left -= cost
                    if left <= 0:
                        left = SLICE_WRITES
                        await asyncio.sleep(0)
            self.dispatched = position

    async def _choices(self, entries: list[Entry], live: BitMap64) -> Iterable[tuple[BitMap64, bytes]]:
        """Who of `live` is to receive what: sets of ids, each id in one at most, and the joined frames of each."""
        if len(entries) == 1:
            update = entries[0].update
            await self._look_up(update.topics, update.private)
            return [(self._receivers(update.topics, update.private) & live, entries[0].frame)]
        # Bit n of a choice stands for entries[n].  Entries with the same topics, and then with the same receivers, are
        # added up first, so a hundred updates of one topic cost one question and one pass over its receivers.
        alike: dict[tuple[tuple[str, ...], bool], int] = {}
        for n, entry in enumerate(entries):
            asked = entry.update.topics, entry.update.private
            alike[asked] = alike.get(asked, 0) | 1 << n
        choices: dict[FrozenBitMap64, int] = {}
        async for some in _in_turns(alike.items(), MATCHES):
            for asked, choice in some:
                await self._look_up(*asked)
                if ids := self._receivers(*asked) & live:
                    same = FrozenBitMap64(ids)
                    choices[same] = choices.get(same, 0) | choice
        if len(choices) == 1:
            choosers = {choice: BitMap64(same) for same, choice in choices.items()}
        else:
            choosers = await _choosers(choices)
        # One body at a time: there may be as many as receivers.
        return (
            (ids, b"".join(entry.frame for n, entry in enumerate(entries) if choice >> n & 1))
            for choice, ids in choosers.items()
        )

    async def _look_up(self, topics: tuple[str, ...], private: bool) -> None:
        """Have the receivers of many topics remembered, so that they can be asked for at once."""
        if len(topics) > MATCHES:
            async for some in _in_turns(topics, MATCHES):
                for topic in some:
                    self._filter.bitmap(("subscribed", topic))
                    if private:
                        self._filter.bitmap(("granted", topic))

    def _receivers(self, topics: tuple[str, ...], private: bool) -> BitMap64:
        filter = self._source(topics[0])
        ids = filter.bitmap(*(("subscribed", topic) for topic in topics))
        if private:
            ids &= filter.bitmap(*(("granted", topic) for topic in topics))
        return ids

    def _source(self, topic: str) -> Interest | SkipFilter[Receiver, Key]:
        # The hub's own topics are new ones each time: to remember them would cost others their place.
        return self._interest if self._interest.announces(topic) else self._filter

    def move_to(self, position: int) -> None:
        """Say that the log was dispatched up to `position`, or that what came before is lost."""
        self.position = position
        self._moved.set()
        self._moved = asyncio.Event()

    async def moved(self) -> None:
        """Wait until the position is another one."""
        await self._moved.wait()

    # -- time

    async def tick(self) -> None:
        """Send heartbeats to the idle, and close what is at its end.  To be called once a TICK."""
        async with self._turn:
            now = self._clock()
            async for some in _in_turns(self._wheel.turn(now), SLICE_WRITES):
                for receiver in some:
                    if receiver.subscriber.id in self._connected:
                        self._see_to(receiver, now)

    def _see_to(self, receiver: Receiver, now: float) -> None:
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
        beat = self._beat(receiver) if self._heartbeat else self._clock() + LOST_CHECK_SECONDS
        self._wheel.set(receiver, min(beat, receiver.subscriber.deadline - LATE))

    def _beat(self, receiver: Receiver) -> float:
        """When it is due a heartbeat.  Multiples of the golden ratio lie evenly between 0 and 1, however many."""
        phase = receiver.number * _GOLDEN % 1.0
        return receiver.written + self._heartbeat * (1.0 - EARLY * phase)


async def _choosers(choices: dict[FrozenBitMap64, int]) -> dict[int, BitMap64]:
    """Whose choice is the same: all that is chosen for an id, by the sets that it is in."""
    choice_of: dict[int, int] = {}
    async for some in _in_turns(((id, choice) for ids, choice in choices.items() for id in ids), IDS):
        for id, choice in some:
            choice_of[id] = choice_of.get(id, 0) | choice
    alike: defaultdict[int, list[int]] = defaultdict(list)
    async for some in _in_turns(choice_of.items(), IDS):
        for id, choice in some:
            alike[choice].append(id)
    made: dict[int, BitMap64] = {}
    async for sets in _in_turns(alike.items(), SETS):
        made.update((choice, BitMap64(ids)) for choice, ids in sets)
    return made


async def _in_turns(items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
    """`items`, at most `size` at a time; after so many, others run."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
        if len(some) == size:
            await asyncio.sleep(0)

"""Broadcaster: finds the receivers of each update, and writes one frame to all of them.

    entry (topics T)  ─►  ⋃ subscribed[t]   ∩   ⋃ granted[t] if it is private      t ∈ T
                          a cached bitmap of ids for each topic

All connections of a node are in one SkipFilter.  A subscription and a grant may match
different topics of one update (N21, N81, V50), so the two unions above are exactly the
rule of the protocol.  The result is then intersected with the live set: the connections
that have caught up with the history.

The dispatcher passes entries page by page.  The frames of a page that a receiver wants
are joined and written once.  A write never waits.  If a receiver has no room for more,
it leaves the live set and catches up on its own (see `http/stream.py`), so it delays no
other receiver.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from pyroaring import BitMap64, FrozenBitMap64

from hub import turns
from hub.delivery.audience import Interest
from hub.delivery.timer_wheel import Wheel
from hub.protocol import events
from skipfilter import SkipFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hub.delivery.audience import Key
    from hub.delivery.subscriber import Subscriber
    from hub.history.base import Entry

EARLY_SHARE: Final = 0.25
"""The share of its interval by which a heartbeat may come early.

Each connection has a share of its own, so that connections that were written to at the
same moment do not all get a heartbeat at the same moment.
"""
TICK_SECONDS: Final = 1.0
"""Seconds between two calls of `tick`, by the monotonic clock."""
LOST_CHECK_SECONDS: Final = 15.0
"""Seconds between two checks of a connection, if heartbeats are turned off."""
LATE_SECONDS: Final = 2 * TICK_SECONDS
"""Seconds by which a heartbeat, or the end of a connection, may come late.

A connection is therefore closed this long before its deadline, so that it ends before
its token expires (N82).
"""

# The golden ratio, less 1.
_GOLDEN: Final = (5**0.5 - 1) / 2


class Receiver(Protocol):
    """One connection, as the broadcaster sees it."""

    subscriber: Subscriber
    position: int
    """The position up to which it was sent every entry that it wants.

    For a live receiver, `Broadcaster.reached` may return a newer one.
    """
    written: float
    """The time from which its next heartbeat counts, by the broadcaster's clock.

    The broadcaster sets it, when it connects or writes to the receiver, or when a
    heartbeat was due.
    """

    number: int
    """Its id in the filter; the broadcaster sets it."""
    live: bool
    """Whether it is in the live set; the broadcaster sets it."""

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting, and move to `position`.

        If the connection has no room for more, the receiver leaves the live set.
        """
        ...

    def delivered(self) -> tuple[int, int]:
        """Return the last position fully handed to the socket, and the frames beyond.

        The second value is the number of further frames that were handed over.
        """
        ...

    def is_lost(self) -> bool:
        """Return whether the connection is lost, even if no error has reported it."""
        ...

    def close(self, reason: str) -> None:
        """End the connection soon."""
        ...


class Broadcaster:
    """All connections of one node.

    A live receiver has been sent every entry that it wants up to `position`, or gets it
    from the dispatch that is running.  All other receivers read the history themselves.

    A dispatch and a round of heartbeats never run at the same time.  Therefore a
    receiver that leaves the live set because a heartbeat did not fit has been sent
    everything up to `dispatched`, and nothing older is written after the heartbeat.

    `heartbeat` is the interval in seconds; 0 turns heartbeats off.  `cached_topics` is
    the number of topics whose receivers are cached, and `cached_topics_bytes` is the
    number of bytes for the sets of receivers.  Relative patterns are resolved against
    `base_url`.  `clock` returns monotonic seconds.

    Must be used from one event loop.
    """

    def __init__(
        self,
        *,
        heartbeat: float,
        cached_topics: int,
        cached_topics_bytes: int,
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
        # The patterns of the receivers.  The filter asks it about topics that are not
        # cached.
        self._interest = Interest(base_url)
        # All receivers.  A topic takes up to two keys: one for subscriptions, and one
        # for grants.
        self._filter: SkipFilter[Receiver, Key] = SkipFilter(
            self._interest, capacity=2 * cached_topics, max_bytes=cached_topics_bytes, lock=nullcontext()
        )
        self._connected: dict[str, Receiver] = {}  # subscriber id -> receiver
        self._live = BitMap64()  # the ids of the receivers that have caught up
        self._wheel: Wheel[Receiver] = Wheel(now=clock(), tick=TICK_SECONDS)  # heartbeats, deadlines
        self._turn = asyncio.Lock()  # held by a dispatch, or by a round of heartbeats
        self._moved = asyncio.Event()  # set by the next change of `position`
        self._left = asyncio.Event()  # set by the next disconnection

    # -- connections

    def connect(self, receiver: Receiver) -> None:
        """Add a connection, which is not live yet.

        Raises `LimitError`, and adds nothing, if its patterns are too similar to those
        of other connections.
        """
        receiver.number = self._filter.add(receiver)
        self._connected[receiver.subscriber.id] = receiver
        receiver.written = self._clock()
        self._schedule(receiver)

    def passes(self, receiver: Receiver, key: Key) -> bool:
        """Return whether a connection subscribes to, or may read, the key's topic."""
        return receiver.number in self._source(key[1]).bitmap(key)

    def join(self, receiver: Receiver) -> None:
        """Add a receiver to the live set.

        Its position must be that of the broadcaster, so that it misses no entry.
        """
        assert receiver.position == self.position
        self._live.add(receiver.number)
        receiver.live = True

    def reached(self, receiver: Receiver) -> int:
        """Return the position up to which a receiver was sent all entries it wants."""
        # A finished dispatch has reached all live receivers.  Those that wanted none of
        # its entries were not written to, so their position is older.  During a
        # dispatch, the position of a receiver that was already written to is newer.
        return max(receiver.position, self.dispatched) if receiver.live else receiver.position

    def leave(self, receiver: Receiver) -> None:
        """Remove a receiver from the live set; it stays connected."""
        self._live.discard(receiver.number)
        receiver.live = False

    def disconnect(self, receiver: Receiver) -> None:
        """Remove a connection, which must be connected."""
        self._live.discard(receiver.number)
        receiver.live = False
        self._filter.discard(receiver)
        self._wheel.discard(receiver)
        del self._connected[receiver.subscriber.id]
        self._left.set()

    async def emptied(self) -> None:
        """Wait until there are no connections.  Returns at once if there are none."""
        while self._connected:
            self._left.clear()
            await self._left.wait()

    def close(self, id: str, reason: str) -> None:
        """End the connection of the subscriber with this id.

        Does nothing if it is not connected.
        """
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
        """Return all connected subscribers; the oldest connection comes first."""
        return [receiver.subscriber for receiver in self._connected.values()]

    @property
    def live(self) -> int:
        """The number of connections in the live set."""
        return len(self._live)

    # -- entries

    async def dispatch(self, entries: list[Entry]) -> None:
        """Write consecutive entries to the live receivers that want them.

        `entries` must not be empty.  Never waits for a receiver, and lets other tasks
        run between slices of work.

        A concurrent call waits until this one has ended.  If the call fails or is
        cancelled halfway, some receivers were written to and others were not.
        """
        async with self._turn:
            # Only receivers that are live now get these entries here.  A receiver that
            # joins from now on must already be at the new position: it starts there, or
            # has read the entries from the history.
            live, position = self._live.copy(), entries[-1].position
            self.move_to(position)
            now, left = self._clock(), turns.WRITES
            for ids, body in await self._choices(entries, live):
                cost = 1 + len(body) // turns.BYTES_PER_WRITE + len(entries) // turns.JOINS_PER_WRITE
                for receiver in self._filter.values(ids):
                    # Other tasks have run since the live set was copied: the receiver
                    # may have left it, or may have been closed.
                    if receiver.live:
                        receiver.written = now
                        receiver.write(body, position)
                    left -= cost
                    if left <= 0:
                        left = turns.WRITES
                        await turns.other_tasks()
            self.dispatched = position

    async def _choices(self, entries: list[Entry], live: BitMap64) -> Iterable[tuple[BitMap64, bytes]]:
        """Return (ids, body) pairs: receivers of the same frames, and these frames.

        No id is in two pairs, so each receiver gets one write.
        """
        # 1. A single entry has one set of receivers, and its frame is the body.
        if len(entries) == 1:
            update = entries[0].update
            return [(await self._receivers(update.topics, update.private) & live, entries[0].frame)]

        # 2. Several entries.  A choice is a set of entries, as an integer: bit n stands
        #    for entries[n].
        #
        # a. Group the entries by topics and privacy, because equal ones have equal
        #    receivers: a hundred updates of one topic need one look-up.
        alike: dict[tuple[tuple[str, ...], bool], int] = {}
        for n, entry in enumerate(entries):
            audience = entry.update.topics, entry.update.private
            alike[audience] = alike.get(audience, 0) | 1 << n

        # b. Group them further by their set of live receivers, so that each set is
        #    walked once.  An entry without live receivers drops out.
        choices: dict[FrozenBitMap64, int] = {}
        async for some in turns.in_turns(alike.items(), turns.FOUND_TOPICS):
            for audience, choice in some:
                if ids := await self._receivers(*audience) & live:
                    same = FrozenBitMap64(ids)
                    choices[same] = choices.get(same, 0) | choice

        # c. The sets of receivers may overlap.  Turn {receivers: choice} into
        #    {choice: receivers}, with each receiver under the one choice that has all
        #    of its entries.  A single set needs no more than a swap.
        if len(choices) == 1:
            choosers = {choice: BitMap64(same) for same, choice in choices.items()}
        else:
            choosers = await _choosers(choices)

        # d. Join the frames of each choice.  There may be as many choices as receivers,
        #    so a generator joins each body only when it is written.
        return (
            (ids, b"".join(entry.frame for n, entry in enumerate(entries) if choice >> n & 1))
            for choice, ids in choosers.items()
        )

    async def _receivers(self, topics: tuple[str, ...], private: bool) -> BitMap64:
        """Return the ids of the receivers of an update, live or not (N21, N81).

        Other tasks run between slices of many topics.  They may disconnect receivers
        whose ids are in the result.
        """
        filter = self._source(topics[0])
        subscribed, granted = BitMap64(), BitMap64()
        for begin in range(0, len(topics), turns.FOUND_TOPICS):
            if begin:
                await turns.other_tasks()
            some = topics[begin : begin + turns.FOUND_TOPICS]
            subscribed |= filter.bitmap(*(("subscribed", topic) for topic in some))
            if private:
                granted |= filter.bitmap(*(("granted", topic) for topic in some))
        return subscribed & granted if private else subscribed

    def _source(self, topic: str) -> Interest | SkipFilter[Receiver, Key]:
        # Each presence update has a new topic.  Caching it would only evict topics that
        # are in use.
        return self._interest if self._interest.announces(topic) else self._filter

    def move_to(self, position: int) -> None:
        """Set the position, and wake all callers of `moved`.

        `dispatch` calls it.  Other callers skip entries that are lost or older than
        this node, or pass the present position only to wake the callers of `moved`.
        """
        self.position = position
        self._moved.set()
        self._moved = asyncio.Event()

    async def moved(self) -> None:
        """Wait until the position is next set."""
        await self._moved.wait()

    # -- time

    async def tick(self) -> None:
        """Send the heartbeats that are due, and close connections that must end.

        Call it every TICK_SECONDS.  A call waits until a running dispatch has ended.
        """
        async with self._turn:
            now = self._clock()
            async for some in turns.in_turns(self._wheel.turn(now), turns.WRITES):
                for receiver in some:
                    # Other tasks ran between two slices: it may have disconnected.
                    if receiver.subscriber.id in self._connected:
                        self._attend(receiver, now)

    def _attend(self, receiver: Receiver, now: float) -> None:
        """Close a connection that must end, or send a heartbeat if it is due."""
        # 1. Its token expires, or it has reached its maximum lifetime: close it.
        if receiver.subscriber.deadline - LATE_SECONDS <= now:
            receiver.close(receiver.subscriber.lapse)
            return
        # 2. It is lost, and no error has reported that: close it.
        if receiver.is_lost():
            receiver.close("its connection is lost")
            return
        # 3. A heartbeat is due if nothing was written for an interval.  A receiver that
        #    is not live gets none: it has not sent its head, or it is catching up, or
        #    it has no room.
        if self._heartbeat and self._beat(receiver) <= now:
            receiver.written = now
            if receiver.live:
                receiver.write(events.HEARTBEAT, self.reached(receiver))
        # 4. It stays connected.
        self._schedule(receiver)

    def _schedule(self, receiver: Receiver) -> None:
        """Put the connection's next heartbeat, check or deadline on the wheel."""
        beat = self._beat(receiver) if self._heartbeat else self._clock() + LOST_CHECK_SECONDS
        self._wheel.set(receiver, min(beat, receiver.subscriber.deadline - LATE_SECONDS))

    def _beat(self, receiver: Receiver) -> float:
        """Return when the next heartbeat of a connection is due."""
        # Multiples of the golden ratio, modulo 1, are spread evenly between 0 and 1.
        phase = receiver.number * _GOLDEN % 1.0
        return receiver.written + self._heartbeat * (1.0 - EARLY_SHARE * phase)


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
    made: dict[int, BitMap64] = {}
    async for sets in turns.in_turns(alike.items(), turns.GROUPS):
        made.update((choice, BitMap64(ids)) for choice, ids in sets)
    return made

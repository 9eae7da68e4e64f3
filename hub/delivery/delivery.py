"""Delivery: the arrivals and departures of connections, and the needs of streams.

    a stream     take_seat ─► join ─► leave ─► join … ─► vacate      announced, observed
    a reader     reader_seat                                         neither

Belongs here: all that must happen together when a connection comes or goes.  Does not
belong here: HTTP, limits, and the state of one stream.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hub.delivery.follower import Follower
from hub.delivery.heartbeats import Heartbeats
from hub.delivery.reading import Notes, Reading
from hub.delivery.seat import Ending
from hub.delivery.signals import Signals
from hub.errors import HistoryUnavailable, LimitExceeded
from hub.history.base import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from hub.delivery.audience import Audience
    from hub.delivery.live import Live
    from hub.delivery.observer import Observer
    from hub.delivery.seat import Holder, Outlet, Seat
    from hub.delivery.subscriber import Subscriber
    from hub.history.base import History
    from hub.turns import FairTurns, TimeSlices


class Hint(Protocol):
    """Returns when a client should reconnect."""

    def __call__(self, *, ends: bool = False) -> float | None:
        """Return how many seconds it should wait; see `Admission.hint`."""
        ...


class Announcer(Protocol):
    """The part of the hub that announces connections to subscribers of all nodes."""

    async def arrive(self, subscriber: Subscriber) -> None:
        """Announce a connection, and wait for that, but not for long."""
        ...

    def depart(self, subscriber: Subscriber) -> None:
        """Announce the end of a connection, after all earlier announcements."""
        ...


class Commands(Protocol):
    """The part of the hub that knows which streams must end at once."""

    def ending(self, subscriber: Subscriber) -> Ending | None:
        """Return why a subscriber must end when it gets its seat; None if it need not.

        A command may have met it since its request came.
        """
        ...

    def require_current(self) -> None:
        """Raise `HistoryUnavailable` if the commands are not known."""
        ...

    async def carry_out(self) -> None:
        """End the streams that the commands which are due have met."""
        ...


class Delivery:
    """The delivery of updates to all connections of one node.

    `hint` returns when a client should reconnect.  `heartbeat` is the interval of
    heartbeats in seconds; 0 turns them off.  `write_interval` is the least time between
    two writes of updates, in seconds.  `clock` returns monotonic seconds, and
    `wall_clock` seconds since the epoch.  Must be used from one event loop.
    """

    def __init__(
        self,
        history: History,
        audience: Audience,
        live: Live,
        *,
        observer: Observer,
        announcer: Announcer,
        control: Commands,
        slices: TimeSlices,
        turns: FairTurns,
        hint: Hint,
        heartbeat: float,
        write_interval: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Random,
    ) -> None:
        self.closing: Ending | None = None
        """Why streams end as soon as they begin; None while they do not."""
        self.audience = audience
        self.observer = observer
        self.clock = clock
        self.slices = slices
        self.hint = hint
        self.signals = signals = Signals(history, live, heartbeat=heartbeat)
        self._turns = turns  # of clients whose connections read the history
        self._notes = Notes()  # of what they read
        self._live = live
        self._announcer = announcer
        self._control = control
        self._follower = Follower(
            history,
            audience,
            live,
            observer,
            carry_out=control.carry_out,
            write_interval=write_interval,
            clock=clock,
            random=random,
        )
        self._heartbeats = Heartbeats(live, signals, interval=heartbeat, clock=clock, wall_clock=wall_clock)
        self._left = asyncio.Event()  # set when the next connection has left

    # -- running

    async def start(self) -> None:
        """Find the end of the history, where dispatch begins; see `Follower.start`."""
        await self._follower.start()

    async def run(self) -> None:
        """Dispatch new entries and send heartbeats, indefinitely."""
        await asyncio.gather(self._follower.run(), self._heartbeats.run())

    def require_ready(self) -> None:
        """Raise `HistoryUnavailable` unless the end of the history is known, and its
        commands, so that connections can start.
        """
        if not self._follower.is_ready:
            raise HistoryUnavailable("it has not been available since this node started")
        self._control.require_current()

    @property
    def position(self) -> int:
        """The position up to which the history was dispatched, or is being
        dispatched."""
        return self._live.position

    @property
    def dispatched(self) -> int:
        """The position at which the last finished dispatch ended."""
        return self._live.dispatched

    async def moved(self) -> None:
        """Wait until the position is next set."""
        await self._live.moved()

    # -- coming and going

    async def take_seat(self, subscriber: Subscriber, holder: Holder) -> Seat:
        """Seat a stream, and then announce its subscriptions (N127).

        In this order, a subscriber can receive its own announcement.  If the history is
        unavailable, the stream goes on, and is announced later.  If the history is
        slow, the call waits only for a short time.

        Raises `LimitExceeded` if its patterns are too similar to those of others, and
        any error of the announcement.  The seat is then removed, and the subscriber no
        longer counts.  If the call is cancelled, the seat is removed too.
        """
        seat = self._add(subscriber, holder)
        self.observer.arrived(seat)
        if subscriber.start != EARLIEST:
            self.begin(seat, subscriber.start)
        try:
            await self._announcer.arrive(subscriber)
        except asyncio.CancelledError:
            # Its arrival is still announced, so its end must be too.
            self.vacate(seat, subscriber.start, 0, Ending.CLIENT_LEFT)
            raise
        except BaseException:
            # The announcer announces its end, if that is needed.
            self._remove_observed(seat, subscriber.start, 0, Ending.FAILED)
            raise
        return seat

    def begin(self, seat: Seat, position: int) -> None:
        """Note the position after which a stream receives entries.

        Its owner calls this if the subscriber asked for the earliest entry, as soon as
        the position before that is known.
        """
        self.observer.seated(seat, position)

    def vacate(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Remove the seat of a stream, and announce that its subscriptions have ended.

        The stream was sent everything up to `position`, and `more` entries after it.
        """
        self._remove_observed(seat, position, more, reason)
        self._announcer.depart(seat.subscriber)

    @contextmanager
    def reader_seat(self, subscriber: Subscriber, holder: Holder) -> Iterator[Seat]:
        """Seat a reader inside of the context, without an announcement.

        Raises `LimitExceeded` if its patterns are too similar to those of others.  The
        subscriber then no longer counts.
        """
        seat = self._add(subscriber, holder)
        try:
            yield seat
        finally:
            self._remove(seat)

    def _add(self, subscriber: Subscriber, holder: Holder) -> Seat:
        try:
            seat = self.audience.seat(subscriber, holder)
        except LimitExceeded:
            subscriber.leave()
            raise
        self._heartbeats.add(seat)
        if (ending := self._control.ending(subscriber)) is not None:  # in the step that gives it the seat
            seat.close(ending)
        return seat

    def _remove_observed(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        # If it has read nothing, its beginning is not noted yet.
        if position == EARLIEST:
            position = self._live.position
            self.begin(seat, position)
        self.observer.left(seat, position, more, reason)
        self._remove(seat)

    def _remove(self, seat: Seat) -> None:
        self._live.leave(seat)
        self.audience.remove(seat)
        self._heartbeats.discard(seat)
        seat.holder = None  # which refers to the seat: no reference cycle must stay
        seat.subscriber.leave()
        self._left.set()

    # -- for a stream or a reader with a seat

    def join(self, seat: Seat, outlet: Outlet, position: int) -> None:
        """Make a seat live; see `Live.join`."""
        self._live.join(seat, outlet, position)

    def leave(self, seat: Seat) -> None:
        """Remove a seat from the live seats; it may join again."""
        self._live.leave(seat)

    def reading(self, seat: Seat, after: int) -> Reading:
        """Return a Reading of the dispatched entries after a position."""
        return Reading(self._follower.read, self.audience, seat, after, self.slices, self._turns, self._notes)

    # -- all connections

    @property
    def connection_count(self) -> int:
        """The number of connections."""
        return len(self.audience)

    @property
    def live_count(self) -> int:
        """The number of connections that have caught up with the history."""
        return len(self._live)

    def close_new(self, reason: Ending) -> None:
        """From now on, end streams as soon as they begin, and hold no update back."""
        self.closing = reason
        self._follower.hurry()

    def close_all(self, reason: Ending) -> None:
        """End all connections."""
        for seat in self.audience:
            seat.close(reason)

    async def emptied(self) -> None:
        """Wait until there are no connections.  Returns at once if there are none."""
        while self.audience:
            self._left.clear()
            await self._left.wait()

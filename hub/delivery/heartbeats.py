"""Heartbeats: the heartbeats and the deadlines of connections.

    each second, for each seat that is due on the timer wheel
        its end has come     ─► close it
        it is lost           ─► close it
        it was silent        ─► write a heartbeat, if it is live

Belongs here: everything that depends on time.  Does not belong here: any entry.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from hub import turns
from hub.delivery.seat import Ending
from hub.delivery.timer_wheel import Wheel
from hub.protocol import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.delivery.live import Live
    from hub.delivery.seat import Holder, Seat
    from hub.delivery.signals import Signals
    from hub.delivery.subscriber import Subscriber

log = structlog.stdlib.get_logger("hub")

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


class Heartbeats:
    """The due times of all seats of one node.

    `interval` is the number of seconds after which a silent connection gets a
    heartbeat; 0 turns heartbeats off.  `clock` returns monotonic seconds, and
    `wall_clock` seconds since the epoch, by which tokens expire.
    """

    def __init__(
        self,
        live: Live,
        signals: Signals,
        *,
        interval: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._live = live
        self._signals = signals
        self._interval = interval
        self._clock = clock
        self._wall_clock = wall_clock
        self._between = wall_clock() - clock()  # the two clocks
        self._wheel: Wheel[Seat] = Wheel(now=clock(), tick=TICK_SECONDS)

    def add(self, seat: Seat) -> None:
        """Begin to watch a new seat.  Close it if its end has come already."""
        seat.came = seat.written = seat.beaten = now = self._clock()
        self._schedule(seat, now)
        if seat.subscriber.deadline <= now:
            # Do not wait for the next tick, which may come too late (N82).
            seat.close(_ending(seat.subscriber))

    def discard(self, seat: Seat) -> None:
        """Stop watching a seat."""
        self._wheel.discard(seat)

    async def run(self) -> None:
        """Call `tick` every TICK_SECONDS, indefinitely."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.tick()
            except Exception:
                log.exception("a round of heartbeats failed")

    async def tick(self) -> None:
        """Send the heartbeats that are due, and close connections that must end.

        A call waits until a running dispatch has ended.
        """
        async with self._live.turn:
            now = self._clock()
            await self._follow_wall_clock(now)
            self._signals.begin_round()
            async for seats in turns.in_turns(self._wheel.turn(now), turns.WRITES):
                for seat in seats:
                    # Other tasks ran between two portions: it may have left.
                    if (holder := seat.holder) is not None:
                        self._attend(seat, holder, now)

    async def _follow_wall_clock(self, now: float) -> None:
        """Let tokens expire earlier if the wall clock was set forward.

        If it was set back, the connections end when they should have ended before.
        """
        between = self._wall_clock() - now
        if between <= self._between + TICK_SECONDS:
            self._between = min(between, self._between)  # so that small steps add up
            return
        self._between = between
        async for seats in turns.in_turns(self._wheel.items(), turns.WRITES):
            for seat in seats:
                subscriber, expires = seat.subscriber, seat.subscriber.grant.expires
                if expires is not None and expires - self._between < subscriber.deadline:
                    subscriber.deadline, subscriber.expires = expires - self._between, True
                    if seat.holder is not None:
                        self._schedule(seat, seat.written)

    def _attend(self, seat: Seat, holder: Holder, now: float) -> None:
        """Close a connection that must end, or send a heartbeat if it is due."""
        # 1. Its token expires, or it has reached its maximum lifetime.
        if seat.subscriber.deadline - LATE_SECONDS <= now:
            holder.close(_ending(seat.subscriber))
            return
        # 2. It is lost, and no error has reported that.
        if holder.is_lost():
            holder.close(Ending.CONNECTION_LOST)
            return
        # 3. A heartbeat is due if nothing was written for an interval.  As a signal, it
        #    is due in each interval: a page does not see updates whose type it does not
        #    know.  A seat that is not live gets none here: it has not sent its head, or
        #    it is catching up, or it has no room.
        start = seat.subscriber.signals
        since = seat.written if start is None else seat.beaten
        if self._interval and self._due(seat, since) <= now:
            since = now
            if (outlet := seat.outlet) is not None:
                seat.written = seat.beaten = now
                beat = events.HEARTBEAT if start is None else self._signals.heartbeat(outlet.position)
                outlet.write(beat, self._live.dispatched)
        # 4. It stays.
        self._schedule(seat, since)

    def _schedule(self, seat: Seat, since: float) -> None:
        """Put the next heartbeat, check or deadline of a seat on the wheel.

        Heartbeats count from the time `since`.
        """
        due = self._due(seat, since) if self._interval else self._clock() + LOST_CHECK_SECONDS
        self._wheel.set(seat, min(due, seat.subscriber.deadline - LATE_SECONDS))

    def _due(self, seat: Seat, since: float) -> float:
        """Return when a heartbeat is due if nothing was written since then."""
        # Multiples of the golden ratio, modulo 1, are spread evenly between 0 and 1.
        phase = seat.id * _GOLDEN % 1.0
        return since + self._interval * (1.0 - EARLY_SHARE * phase)


def _ending(subscriber: Subscriber) -> Ending:
    """Return why a connection ends at its deadline."""
    return Ending.EXPIRED if subscriber.expires else Ending.MAX_LIFETIME

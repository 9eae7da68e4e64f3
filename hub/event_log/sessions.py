"""Sessions: the beginnings and ends of a node's connections, as lines of the event log.

They are recorded at once and written later, some at a time.  If there are too many
unwritten records, new connections are left out, and a mark says so.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from hub.delivery.audience import Audience
from hub.delivery.reading import last_sent
from hub.event_log.segments import own_position
from hub.history import base

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from hub.delivery.seat import Ending, Seat
    from hub.delivery.subscriber import Subscriber
    from hub.event_log.marks import Marks
    from hub.event_log.names import Names
    from hub.event_log.segments import Directory, LogBeat
    from hub.history.base import History
    from hub.protocol.topics import TopicMatcher
    from hub.turns import TimeSlices

log = structlog.stdlib.get_logger("hub")

RECORDS: Final = 100_000
"""Unwritten records beyond which new connections are left out."""
BATCH_RECORDS: Final = 1_000
"""Records that are written together."""


class _Come(NamedTuple):
    """A connection that has begun."""

    subscriber: Subscriber
    number: int
    position: int
    time: int


class _Gone(NamedTuple):
    """A connection that was sent all it wanted up to a position, and `more` entries
    after it.
    """

    subscriber: Subscriber
    number: int
    position: int
    more: int
    written: int
    """The time of the last write to it."""
    time: int
    reason: Ending


class Sessions:
    """The connections of one node.

    `names()` returns what lines say of persons; it raises OSError.  `in_thread(work,
    ...)` runs the directory's methods.
    """

    def __init__(
        self,
        directory: Directory,
        marks: Marks,
        history: History,
        slices: TimeSlices,
        *,
        names: Callable[[], Awaitable[Names]],
        in_thread: Callable[..., Awaitable[Any]],
        now: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._names = names
        self._directory = directory
        self._marks = marks
        self._history = history
        self._slices = slices
        self._in_thread = in_thread
        self._now = now
        self._clock = clock
        self._records: deque[_Come | _Gone] = deque()
        """Unwritten beginnings and ends, oldest first."""
        self._left_out: set[int] = set()
        """The numbers of open connections that are not recorded, for lack of room."""
        self.count = 0
        """The number of connections that have begun and not ended."""
        self.missing = 0
        """The number of connections that were left out."""
        self._unmarked: dict[int, tuple[int, int]] = {}
        """By epoch, the first time and least position of left-out connections without
        mark."""
        self._open: list[tuple[int, int]] = []
        """The same for marks that are open, because such connections still are."""

    @property
    def waiting(self) -> int:
        """The number of unwritten records."""
        return len(self._records)

    def seated(self, seat: Seat, position: int) -> bool:
        """Record that a connection begins at a position; return whether there
        was room.
        """
        self.count += 1
        if len(self._records) >= RECORDS:
            self._left_out.add(seat.id)
            self.missing += 1
            # It needs a mark, unless an open mark of its epoch covers it.
            leap = position // base.EPOCH
            if not any(least <= position and least // base.EPOCH == leap for _, least in self._open):
                moment, least = self._unmarked.get(leap, (self._now(), position))
                self._unmarked[leap] = moment, min(least, position)
            return False
        self._records.append(_Come(seat.subscriber, seat.id, position, self._now()))
        return True

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Record that a connection ends."""
        self.count -= 1
        if seat.id in self._left_out:
            self._left_out.discard(seat.id)
            return
        now = self._now()
        written = now - int((self._clock() - seat.written) * 1_000_000)
        self._records.append(_Gone(seat.subscriber, seat.id, position, more, written, now, reason))

    async def write(self, first: LogBeat) -> bool:
        """Write some records; return whether all were written.

        `first` is the beat if this node has not had one.
        """
        waiting = list(islice(self._records, BATCH_RECORDS))
        is_whole = len(waiting) == len(self._records)
        names = await self._names()
        records = [line for one in waiting for line in await self._lines(one, names)]
        left_out = bool(self._left_out)
        # Marks: new ones for connections that were left out, and the ends of open ones
        # if no such connection is left.
        unmarked, self._unmarked = self._unmarked, {}
        ended: list[tuple[int, int]] = []
        if not left_out:  # a connection that is left out meanwhile gets its own mark
            ended, self._open = self._open, []
        try:
            for moment, position in [*unmarked.values(), *ended]:
                gap = await self._marks.gap(moment, position, "had no room for connections", updates=False)
                records.append(gap | {"found": None} if left_out else gap)
            await self._in_thread(self._directory.step, records, first)
        except BaseException:
            for leap, (moment, position) in unmarked.items():
                self._unmarked[leap] = moment, min(position, self._unmarked.get(leap, (moment, position))[1])
            self._open += ended
            raise
        for _ in waiting:
            self._records.popleft()
        if left_out:
            self._open += unmarked.values()
        return is_whole

    async def _lines(self, event: _Come | _Gone, names: Names) -> list[dict[str, Any]]:
        """Return the line of a record, and a mark if it is unknown where a connection
        ended.
        """
        node, number, moment = self._directory.node, event.number, event.time
        if isinstance(event, _Gone):
            until = await self._last_of(event)
            line = {"event": "disconnect", "node": node, "number": number, "time": moment, "clean": until is not None}
            line["reason"] = event.reason.name.lower()
            if until is not None:
                return [line | {"until": own_position(until)}]
            cause = "no longer knew where a connection ended"
            gap = await self._marks.gap(event.written, event.position, cause, updates=False)
            return [gap, line | {"until": own_position(event.position)}]
        return [
            {
                "event": "connect",
                "hub": self._marks.url,
                "epoch": await self._marks.epoch(event.position),
                "node": node,
                "number": number,
                "subscriber": event.subscriber.id,
                **names.of(event.subscriber),
                "selectors": list(_selectors(event.subscriber.subscribed)),
                "authorised": list(_selectors(event.subscriber.grant.subscribe)),
                "time": moment,
                "after": own_position(event.position),
            }
        ]

    async def _last_of(self, gone: _Gone) -> int | None:
        """Return the position of the last entry that was fully handed to the
        connection.

        If a write was cut off, it is found by reading the history again; None if the
        history has forgotten it.
        """
        if not gone.more:
            return gone.position
        audience = Audience(self._marks.url)  # the hub's own has forgotten the connection
        seat = audience.seat(gone.subscriber)
        last = await last_sent(self._history.read, audience, seat, gone.position, gone.more, self._slices)
        if last is None:
            log.warning("the history no longer has the last entry of a connection", id=gone.subscriber.id)
        return last


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterator[dict[str, str]]:
    """Return the selectors of matchers in the library's terms, without repeats."""
    found = dict.fromkeys((type, one.pattern) for matcher in matchers for type, one in matcher.selectors)
    return ({"type": type, "pattern": pattern} for type, pattern in found)

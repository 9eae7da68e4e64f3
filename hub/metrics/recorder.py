"""Recorder: counts what happens on one node.

A count is an addition to a cell.  There are some for a request or a dispatch, and none
for a delivery.  Their cost is in `bench/results/observers.json`.

Belongs here: what an `Observer` is told.  Does not belong here: numbers that the parts
of the hub know themselves, which a reader gets as they are then (`hub.metrics.gauges`).
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from hub.clocks import since_boot
from hub.delivery.observer import Observer
from hub.metrics.board import drain
from hub.metrics.catalogue import CATALOGUE, LIFETIMES, OPEN, OTHER, PLACES, PROCESSES, SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hub.delivery.observer import Sent
    from hub.delivery.seat import Ending, Seat
    from hub.history.base import Entry
    from hub.metrics.board import Slot
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

_COUNTERS: Final = frozenset(metric.name for metric in CATALOGUE if metric.kind == "counter")

_STREAMS: Final = PLACES["mercure_subscribers_total", ""]
_UPDATES: Final = PLACES["mercure_updates_total", ""]
_LIFETIMES: Final = PLACES["hub_stream_seconds", ""]
_FELL_BEHIND: Final = PLACES["hub_streams_fell_behind_total", ""]
_CATCH_UP: Final = PLACES["hub_catch_up_seconds", ""]
_LIVE: Final = PLACES["hub_deliveries_total", "live"]
_LIVE_BYTES: Final = PLACES["hub_delivered_bytes_total", "live"]
_HISTORY: Final = PLACES["hub_deliveries_total", "history"]
_HISTORY_BYTES: Final = PLACES["hub_delivered_bytes_total", "history"]
_DISPATCH: Final = PLACES["hub_dispatch_seconds", ""]
_DELAY: Final = PLACES["hub_dispatch_delay_seconds", ""]
_PUBLISH: Final = PLACES["hub_publish_seconds", ""]
_READ: Final = PLACES["hub_history_read_seconds", ""]
_AUTHORIZE: Final = PLACES["hub_authorize_seconds", ""]


class Recorder(Observer):
    """The counts of one node, in a slot of a board.

    `gauges` returns numbers of the catalogue by metric and label; it is called when a
    reader wants them.  Those of counters begin with 0 in each process.  `clock` returns
    monotonic seconds, and `wall_clock` seconds since the epoch.
    """

    def __init__(
        self,
        slot: Slot,
        gauges: Callable[[], Awaitable[Mapping[tuple[str, str], float]]],
        *,
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._slot = slot
        self._cells = slot.cells
        self._gauges = gauges
        self._clock = clock
        self._wall_clock = wall_clock
        # The counts of earlier processes in this slot, to which `gauges` are added.
        self._before = {place: slot.cells[cell] for place, cell in PLACES.items() if place[0] in _COUNTERS}
        self._answering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer readers."""
        self._cells[PROCESSES] = 1.0
        with suppress(NotImplementedError):  # on Windows; then gauges are those of the end
            asyncio.get_running_loop().add_reader(self._slot.asked, self._asked)

    async def aclose(self) -> None:
        """Write the last numbers, and stop answering."""
        with suppress(NotImplementedError):
            asyncio.get_running_loop().remove_reader(self._slot.asked)
        await self._refresh()
        self._cells[PROCESSES] = 0.0
        self._slot.answer()

    # -- counts

    def published(self, updates: Sequence[Update], stored: int, seconds: float, publisher: str) -> None:
        """Count updates that are new, and the time until they were stored."""
        self._cells[_UPDATES] += stored
        self._time(_PUBLISH, SECONDS, seconds)

    def arrived(self, seat: Seat) -> None:
        """Count a stream that begins."""
        self._cells[_STREAMS] += 1
        self._cells[OPEN] += 1

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Count a stream that ends, by its reason, and its time."""
        self._cells[OPEN] -= 1
        self._cells[PLACES["hub_streams_closed_total", reason.name.lower()]] += 1
        self._time(_LIFETIMES, LIFETIMES, self._clock() - seat.came)

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Count the deliveries of a page, and its times."""
        cells = self._cells
        cells[_LIVE] += sent.updates
        cells[_LIVE_BYTES] += sent.size
        self._time(_DISPATCH, SECONDS, sent.seconds)
        self._time(_DELAY, SECONDS, max(0.0, self._wall_clock() - entries[0].time / 1_000))

    def sent(self, updates: int, size: int) -> None:
        """Count deliveries from the history."""
        self._cells[_HISTORY] += updates
        self._cells[_HISTORY_BYTES] += size

    def fell_behind(self) -> None:
        """Count a stream without room."""
        self._cells[_FELL_BEHIND] += 1

    def caught_up(self, seconds: float) -> None:
        """Count the time that a stream took."""
        self._time(_CATCH_UP, SECONDS, seconds)

    def read(self, seconds: float) -> None:
        """Count the time of a read."""
        self._time(_READ, SECONDS, seconds)

    def decided(self, seconds: float) -> None:
        """Count the time of a decision."""
        self._time(_AUTHORIZE, SECONDS, seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        place = PLACES.get(("hub_refusals_total", reason))
        self._cells[PLACES["hub_refusals_total", OTHER] if place is None else place] += 1

    def _time(self, cell: int, buckets: tuple[float, ...], seconds: float) -> None:
        """Add a time to a histogram: to its bucket, and to the sum behind them."""
        self._cells[cell + bisect_left(buckets, seconds)] += 1
        self._cells[cell + len(buckets)] += seconds

    # -- gauges

    def _asked(self) -> None:
        """Begin to answer, unless an answer is on its way."""
        drain(self._slot.asked)
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        await self._refresh()
        self._slot.answer()

    async def _refresh(self) -> None:
        """Write the gauges of this process."""
        try:
            for place, value in (await self._gauges()).items():
                self._cells[PLACES[place]] = self._before.get(place, 0.0) + value
        except Exception:
            log.exception("some metrics could not be read")

"""The catalogue of all metrics: names, labels, and the places of their numbers.

    mercure_subscribers_total          cell 1
    hub_streams_closed_total{reason}   cells 6 to 14, one for each reason
    hub_stream_seconds                 cells 15 to 25: buckets, and the sum at the end

No client can make a label: all values of labels are listed here.

Belongs here: what is counted.  Does not belong here: how and when (`recorder`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from hub.delivery.seat import Ending
from hub.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS: Final = (
    0.0001,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    math.inf,
)
"""The upper bounds of the buckets for short times."""
LIFETIMES: Final = (1.0, 10.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0, 86_400.0, math.inf)
"""The upper bounds of the buckets for the times of streams."""


class Metric(NamedTuple):
    """A metric, with the values that its label can have."""

    name: str
    kind: Literal["counter", "gauge", "largest", "histogram"]
    """`largest` is a gauge of something that all processes share, so that the largest
    value counts instead of the sum."""
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """The number of cells for one value of the label."""
        return len(self.buckets) + 1


def _refusals() -> tuple[str, ...]:
    """Return the names of all errors that a client can get, and of other refusals."""

    def below(kind: type[RequestError]) -> Iterator[type[RequestError]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    names = {each.kind() for each in below(RequestError)}
    return tuple(sorted(names | {"cors", "not_found", "method_not_allowed", "internal_server_error", OTHER}))


OTHER: Final = "other"
"""The value of a label for all values that are not in the catalogue."""

BOUNDS: Final = "connections", "url_patterns", "matchers", "readers", "requests", "announcements"
"""The bounds of all clients together whose use is known at each moment."""

CATALOGUE: Final = (
    Metric("mercure_subscribers_connected", "gauge", "Open event streams."),
    Metric("mercure_subscribers_total", "counter", "Event streams that have begun."),
    Metric("mercure_updates_total", "counter", "Updates that were published here, without presence updates."),
    Metric("hub_streams_live", "gauge", "Open streams that have received everything that was dispatched."),
    Metric(
        "hub_streams_closed_total",
        "counter",
        "Streams that have ended, by reason.",
        "reason",
        (*(ending.name.lower() for ending in Ending), "process_died"),
    ),
    Metric("hub_stream_seconds", "histogram", "How long streams were open.", buckets=LIFETIMES),
    Metric("hub_streams_fell_behind_total", "counter", "Times that the connection of a live stream was full."),
    Metric("hub_catch_up_seconds", "histogram", "Time until a stream that reads the history is live.", buckets=SECONDS),
    Metric(
        "hub_deliveries_total",
        "counter",
        "Updates written to streams and readers: to live ones, or from the history.",
        "source",
        ("live", "history"),
    ),
    Metric(
        "hub_delivered_bytes_total", "counter", "The bytes of these updates as events.", "source", ("live", "history")
    ),
    Metric(
        "hub_dispatch_seconds", "histogram", "Time to write a page of updates to all live streams.", buckets=SECONDS
    ),
    Metric(
        "hub_dispatch_delay_seconds",
        "histogram",
        "Time from the append of the oldest update of a page until all live streams have it.",
        buckets=SECONDS,
    ),
    Metric("hub_publish_seconds", "histogram", "Time until the updates of a request are stored.", buckets=SECONDS),
    Metric("hub_updates_in_flight", "gauge", "Updates that were accepted here and are not dispatched yet."),
    Metric("hub_history_read_seconds", "histogram", "Time to read a page of the history.", buckets=SECONDS),
    Metric("hub_follower_seconds_behind", "largest", "How long updates in the history wait to be read here."),
    Metric("hub_history_updates", "largest", "Published updates in the history."),
    Metric("hub_history_bytes", "largest", "Bytes of published updates in the history."),
    Metric("hub_cache_lookups_total", "counter", "Questions to a cache.", "cache", ("topics", "tokens")),
    Metric("hub_cache_misses_total", "counter", "Questions that it could not answer.", "cache", ("topics", "tokens")),
    Metric("hub_cache_entries", "gauge", "Entries of a cache.", "cache", ("topics", "tokens")),
    Metric("hub_cache_bytes", "gauge", "About how many bytes a cache takes.", "cache", ("topics", "tokens")),
    Metric("hub_refusals_total", "counter", "Requests that were refused, by reason.", "reason", _refusals()),
    Metric("hub_authorize_seconds", "histogram", "Time that the function of the application takes.", buckets=SECONDS),
    Metric("hub_connections_without_stream", "gauge", "TCP connections that have no event stream."),
    Metric("hub_connections_cut_total", "counter", "Idle connections that were closed for newer ones at the limit."),
    Metric("hub_bound_used", "gauge", "How much of a bound of all clients is in use.", "bound", BOUNDS),
    Metric("hub_bound_limit", "gauge", "The bound.", "bound", BOUNDS),
    Metric("hub_process_deaths_total", "counter", "Processes that died, and were replaced."),
    Metric("hub_processes", "gauge", "Processes that serve the hub."),
    Metric("hub_processes_ready", "gauge", "Processes that accept new clients."),
)


def _places() -> dict[tuple[str, str], int]:
    """Return the first cell of each metric and value of its label."""
    places, next_cell = {}, 0
    for metric in CATALOGUE:
        for value in metric.values:
            places[metric.name, value] = next_cell
            next_cell += metric.width
    return places


PLACES: Final = _places()
"""(metric, value of its label) -> its first cell."""
CELLS: Final = sum(metric.width * len(metric.values) for metric in CATALOGUE)
"""The number of cells of all metrics."""
PROCESSES: Final = PLACES["hub_processes", ""]
"""The cell that is 1 while the process of a slot runs."""
DEATHS: Final = PLACES["hub_process_deaths_total", ""]
ENDED_BY_DEATH: Final = PLACES["hub_streams_closed_total", "process_died"]
OPEN: Final = PLACES["mercure_subscribers_connected", ""]
"""The cell with the open streams of a slot, which is always current."""
READY: Final = PLACES["hub_processes_ready", ""]
"""The cell that is 1 while that process accepts new clients."""
GAUGES: Final = tuple(
    PLACES[metric.name, value] for metric in CATALOGUE if metric.kind in ("gauge", "largest") for value in metric.values
)
"""The cells that belong to a process, and end with it."""

"""The HTTP server of metrics, and their form for prometheus-client."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http.server import HTTPServer, ThreadingHTTPServer
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from hub.metrics.catalogue import CATALOGUE, PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from http.server import BaseHTTPRequestHandler

    from prometheus_client.metrics_core import Metric as Family

    from hub.metrics.board import Board
    from hub.metrics.catalogue import Metric

TIMEOUT_SECONDS: Final = 10
"""Seconds that a request may take."""
MOST_REQUESTS: Final = 8
"""Requests at a time; the connections of others are closed."""
RETRY_SECONDS: Final = 0.1
"""Seconds until the next connection is accepted if no more files may be open."""


class BoardCollector(Collector):
    """All metrics of a board, summed over its slots, for a registry."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that no number is read when it is registered."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield all metrics, with current gauges."""
        slots = self._board.read()
        for metric in CATALOGUE:
            yield _family(metric, slots)


def _family(metric: Metric, slots: Sequence[Sequence[float]]) -> Family:
    """Return a metric with the numbers of all slots."""
    merge = max if metric.kind == "largest" else sum
    labels = [metric.label] if metric.label else []
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    if metric.kind == "histogram":
        family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    elif metric.kind == "counter":
        family = CounterMetricFamily(metric.name, metric.help, labels=labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for value in metric.values:
        first = PLACES[metric.name, value]
        numbers = [merge(slot[cell] for slot in slots) for cell in range(first, first + metric.width)]
        label = [value] if metric.label else []
        if isinstance(family, HistogramMetricFamily):
            bounds = [_bound(bucket) for bucket in metric.buckets]
            family.add_metric(label, list(zip(bounds, accumulate(numbers[:-1]), strict=True)), numbers[-1])
        else:
            family.add_metric(label, numbers[0])
    return family


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else repr(seconds)


class MetricsServer:
    """An HTTP server of the metrics of a board; any path is theirs.

    Listens as soon as it is made, and raises OSError if it cannot.
    """

    def __init__(self, board: Board, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(BoardCollector(board))
        handler = MetricsHandler.factory(registry)
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            kind = type("Server", (_Server,), {"address_family": family})
            self._server: HTTPServer = kind(address[:2], handler)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "this is not a host name"
            raise OSError(f"cannot serve metrics on {host} port {port}: {reason}") from None
        self._address = self._server.server_address[:2]
        host = f"[{host}]" if ":" in host else host
        self.url = f"http://{host}:{self._address[1]}/metrics"
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def serve(self) -> None:
        """Serve until `close`, which another thread calls."""
        # Not serve_forever(), which wakes up all the time to look whether it must end.
        while not self._is_closed:
            self._server.handle_request()

    def start(self) -> None:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self.serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and close the listening socket."""
        self._is_closed = True
        if self._thread is not None:
            with contextlib.suppress(OSError):  # wakes the thread
                socket.create_connection(self._address).close()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A server with few threads, which end with the process."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(MOST_REQUESTS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, without the look-up of the host's name in the base class."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; wait if no more files may be open."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(RETRY_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the connection if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request, which ends after TIMEOUT_SECONDS, however slow it is."""
        end = threading.Timer(TIMEOUT_SECONDS, _cut, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore that a client has gone: the base class would print a traceback."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)

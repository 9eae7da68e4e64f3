"""The open connections of one server, and their limit.

A connection is waiting if no request is in progress on it.  If the limit is reached,
each new connection closes the one that has been waiting longest.

    waiting   c3  c7  c9  ◄── new connections and completed responses
              └── closed for a new connection at the limit

The limit is the number of files that the process may open, less `OTHER_FILES`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

log = structlog.stdlib.get_logger("hub")

OTHER_FILES: Final = 64
"""Files that are not connections: the history, the listening socket and the like."""
REPORT_SECONDS: Final = 60.0
"""Seconds between two log lines about connections that were closed at the limit."""
CONNECTIONS: Final = "hub.connections"
"""The key of the `Connections` in the state of the application's lifespan."""


class Waiting(Protocol):
    """A connection, of which only the transport is used."""

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        ...


class Response(Protocol):
    """The response to a plain request, with the attributes of Starlette's."""

    @property
    def status_code(self) -> int:
        """The status."""
        ...

    @property
    def raw_headers(self) -> Iterable[tuple[bytes, bytes]]:
        """The header fields."""
        ...

    @property
    def body(self) -> bytes | memoryview:
        """The body."""
        ...


class Publisher(Protocol):
    """The part of an application that answers plain requests to publish.

    A request is plain if it needs nothing of ASGI; `plain` decides which are.
    """

    target: bytes
    """The request target of the hub, without a query."""
    fields: bytes
    """The header fields that each response has beside its own, as lines."""
    needs_task: bool
    """Whether an answer needs a current task, as `asyncio.timeout` does.  If not, most
    requests need none."""

    def is_whole(self, app: object) -> bool:
        """Return whether a server's application is the hub's own, so that nothing
        around it has to see a request.
        """
        ...

    def answer(self, scope: Any, body: bytes) -> Coroutine[Any, Any, Response]:
        """Answer a request.  Raises the errors of the application."""
        ...


class Connections:
    """The connections of one server, and the limits that apply to their requests.

    `max_header_fields` and `max_head`, in bytes, limit the head of a request.  `limit`
    is the maximum number of open connections; by default it is computed from the limit
    of open files.  `refused` is called for each request that a connection refuses, with
    a name for the reason.  `publisher` answers plain requests, if there is one.  If
    `are_tuned` is true, the sockets have the time-outs of `socket_options`.  Used from
    one event loop.
    """

    def __init__(
        self,
        *,
        max_header_fields: int = 100,
        max_head: int = 2**16,
        limit: int | None = None,
        refused: Callable[[str], None] | None = None,
        publisher: Publisher | None = None,
        are_tuned: bool = False,
    ) -> None:
        self.max_header_fields = max_header_fields
        self.max_head = max_head
        self.limit = open_file_limit() - OTHER_FILES if limit is None else limit
        self.refused = refused or (lambda _: None)
        self.publisher = publisher
        self.are_tuned = are_tuned
        self.open = 0  # the number of open connections
        self.waiting: dict[Waiting, None] = {}  # those without a request in progress, longest wait first
        self.host: bytes | None = None  # the last valid Host field of any connection
        self.cut = 0  # the number of connections that were closed for newer ones
        self._closed = 0  # connections closed for newer ones since the last log line
        self._report: asyncio.TimerHandle | None = None  # the next log line; None if none is due

    def add(self, connection: Waiting) -> None:
        """Count a new connection, which is waiting for its first request.

        If there are now more than the limit, the connection that has been waiting
        longest is closed.  That is the new one if no other is waiting.
        """
        self.open += 1
        self.waiting[connection] = None
        if self.open > self.limit:
            longest = next(iter(self.waiting))
            del self.waiting[longest]
            longest.transport.abort()
            self._count_closed()

    def discard(self, connection: Waiting) -> None:
        """Forget a connection, which is lost or has another protocol now."""
        self.open -= 1
        self.waiting.pop(connection, None)

    def _count_closed(self) -> None:
        """Count a closed connection, and log it unless a line was logged recently."""
        self._closed += 1
        self.cut += 1
        if self._report is None:
            log.warning(
                f"the limit of {self.limit} open connections is reached: each new one closes the one that has been "
                "idle longest; see `ulimit -Hn`, or LimitNOFILE of systemd"
            )
            self._wait_to_report()

    def _wait_to_report(self) -> None:
        self._closed = 0
        self._report = asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)

    def report(self) -> None:
        """Log the number of connections closed since the last line, unless it is 0."""
        self._report = None
        if self._closed:
            log.warning(f"{self._closed} connections were closed for newer ones: the limit is {self.limit}")
            self._wait_to_report()


def open_file_limit() -> int:
    """Return how many files this process may open; `sys.maxsize` if unlimited."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit

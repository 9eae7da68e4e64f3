"""The open connections of one server: how many there may be, and which one is closed for a newer one.

A connection that has nothing in progress waits for a request.  At the limit of open files, the connection that has
waited longest is closed for each new one.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, Protocol

import structlog

log = structlog.stdlib.get_logger("hub")

OTHER_FILES: Final = 64
"""Open files of a process that are no connections: its log, its listening socket and the like."""
REPORT_SECONDS: Final = 60.0
"""Seconds between two log lines about connections that were closed because there were too many."""
CONNECTIONS: Final = "hub.connections"
"""The key of a Connections object in the state of the application's lifespan."""


class Waiting(Protocol):
    """The protocol of one connection."""

    @property
    def transport(self) -> asyncio.Transport: ...


class Connections:
    """The connections of one server, and the bounds of what they send.

    All its mutable state: `open`, how many connections there are; `waiting`, those that have nothing in progress, the
    one that has waited longest first; `host`, the last valid Host field; and how many connections were closed for newer
    ones since the last log line about that.
    """

    def __init__(self, *, max_header_fields: int = 100, max_head: int = 2**16, limit: int | None = None) -> None:
        self.max_header_fields = max_header_fields
        self.max_head = max_head
        self.limit = open_file_limit() - OTHER_FILES if limit is None else limit
        self.open = 0
        self.waiting: dict[Waiting, None] = {}
        self.host = b""
        self._closed = 0
        self._report: asyncio.TimerHandle | None = None

    def add(self, connection: Waiting) -> None:
        """Count a new connection, which has nothing in progress.

        If there are more than the limit, the one that has waited longest is closed; that is the new one if no other
        waits.
        """
        self.open += 1
        self.waiting[connection] = None
        if self.open > self.limit:
            longest = next(iter(self.waiting))
            del self.waiting[longest]
            longest.transport.abort()
            self._count_closed()

    def discard(self, connection: Waiting) -> None:
        """Forget a connection that is lost."""
        self.open -= 1
        self.waiting.pop(connection, None)

    def _count_closed(self) -> None:
        self._closed += 1
        if self._report is None:
            log.warning(
                f"{self.limit} connections are open, which is the limit: for each new one, the one that has been idle "
                "longest is closed; see `ulimit -Hn`, or LimitNOFILE of systemd"
            )
            self._wait_to_report()

    def _wait_to_report(self) -> None:
        self._closed = 0
        self._report = asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)

    def report(self) -> None:
        """Log how many connections were closed, if any were since the last line."""
        self._report = None
        if self._closed:
            log.warning(f"{self._closed} connections were closed for newer ones: the limit is {self.limit}")
            self._wait_to_report()


def open_file_limit() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit

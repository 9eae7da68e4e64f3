"""Waking up other processes: a datagram to each of those that follow the log, when there are new entries.

A process listens on a UDP port of 127.0.0.1, its bell, and writes the number into the table `node`.  A datagram says
nothing but "look", and it may be lost: without one, a process looks every POLL_SECONDS seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_SECONDS: Final = 0.1
"""Seconds between two looks at whether another process has written, in case its datagram is lost."""


def ring(bells: Sequence[int]) -> None:
    """Tell other processes that there are new entries; who does not hear it looks by itself."""
    if bells:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell:
            for port in bells:
                bell.sendto(b"", ("127.0.0.1", port))


class Bell:
    """A port that other processes send datagrams to."""

    def __init__(self) -> None:
        self.port = 0
        """0 while nothing listens."""
        self._socket: socket.socket | None = None
        self._rung = asyncio.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen on a port.  If there is none, `wait` still returns every POLL_SECONDS seconds."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            with contextlib.suppress(OSError):
                bell.bind(("127.0.0.1", 0))
                self._socket, self.port = bell, bell.getsockname()[1]
                loop.add_reader(bell, self._hear)
            try:
                yield
            finally:
                loop.remove_reader(bell)
                self._socket, self.port = None, 0

    async def wait(self) -> None:
        """Wait until the bell has rung since the last call, and at most POLL_SECONDS seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._rung.wait()
        self._rung.clear()

    def _hear(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            for _ in range(100):  # whoever floods it does not keep the loop
                self._socket.recv(1)
                self._rung.set()

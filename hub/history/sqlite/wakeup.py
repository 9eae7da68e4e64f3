"""Wakeup: each process that follows gets a datagram if the history has new entries.

A process listens on a UDP port of 127.0.0.1, its wake socket, and writes the port into
the table `node`.  A datagram has no content: it only means that the process should look
for new entries.  It may be lost, because every process also looks every POLL_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_SECONDS: Final = 1.0
"""Seconds between two checks for entries of other processes, if no datagram arrives."""
DEAF_POLL_SECONDS: Final = 0.1
"""The same if no port can be bound."""


def wake(ports: Sequence[int]) -> None:
    """Send a datagram to each of these ports.

    Errors are ignored, because the processes also look by themselves.
    """
    if ports:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for port in ports:
                sender.sendto(b"", ("127.0.0.1", port))


class WakeSocket:
    """A UDP port to which other processes send datagrams."""

    def __init__(self) -> None:
        self.port = 0
        """The port, or 0 while it does not listen."""
        self._socket: socket.socket | None = None  # None while it does not listen
        self._woken = asyncio.Event()  # set if a datagram has arrived since the last wait

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen on a free port while the block runs.

        If no port can be bound, `wait` returns after DEAF_POLL_SECONDS.
        """
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
            receiver.setblocking(False)
            with contextlib.suppress(OSError):
                receiver.bind(("127.0.0.1", 0))
                self._socket, self.port = receiver, receiver.getsockname()[1]
                loop.add_reader(receiver, self._hear)
            try:
                yield
            finally:
                loop.remove_reader(receiver)
                self._socket, self.port = None, 0

    async def wait(self) -> None:
        """Wait for a datagram, but at most POLL_SECONDS.

        Returns at once if one has arrived since the last call.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS if self.port else DEAF_POLL_SECONDS):
                await self._woken.wait()
        self._woken.clear()

    def _hear(self) -> None:
        """Receive the datagrams that have arrived, and let `wait` return."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            for _ in range(100):  # a bound, so that a flood does not hold the event loop
                self._socket.recv(1)
                self._woken.set()

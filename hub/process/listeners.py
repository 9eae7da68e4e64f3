"""Listeners: the listening sockets of a hub, one for each worker.

    port ── the kernel, by a hash of the addresses ──┬─► listener 0 ─► worker 0
                                                     └─► listener 1 ─► worker 1

If all workers accepted from one socket, the one that wakes first would get most of the
connections that come one by one.  On Linux, each therefore has its own (SO_REUSEPORT).

The first process opens all listeners before it forks, and keeps them open.  So if a
worker dies, the connections that wait at its listener are not lost: they wait for the
worker that is started in its place.  A worker that shuts down hands its part over to
the others; after the last one has done so, connections are refused.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

_BACKLOG = 2_048
"""The connections that may wait at a listener; the kernel may allow fewer."""


class Address(NamedTuple):
    """A host, and a result of socket.getaddrinfo() for it."""

    host: str
    family: socket.AddressFamily
    kind: socket.SocketKind
    protocol: int
    name: str
    address: Any


def resolve(host: str, port: int) -> Address:
    """Return the first address of a host; raise OSError if there is none."""
    try:
        return Address(host, *socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0])
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is not a host name"
        raise OSError(f"cannot listen on {host} port {port}: {reason}") from None


def listen(address: Address, workers: int) -> list[socket.socket]:
    """Return a listening socket for each worker; all are at the same address.

    They listen before the welcome is printed, so that a reader of the welcome can
    connect.  Port 0 stands for any free port.  Raises OSError, and leaves nothing open,
    if another process listens there.
    """
    try:
        if workers == 1 or sys.platform != "linux":
            alone = _bound(address, address.address)
            alone.listen(_BACKLOG)
            return [alone] * workers
        return _sharing(address, workers)
    except OSError as error:
        port = address.address[1]
        raise OSError(f"cannot listen on {address.host} port {port}: {error.strerror}") from None


async def hand_over(listener: socket.socket) -> None:
    """Let the kernel give new connections to the other listeners of the same port.

    For a worker that takes none any more, although the first process keeps its listener
    open.  The server first accepts those that wait.  The listener can listen again.
    Does nothing if it does not share its port.
    """
    if sys.platform != "linux" or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT):
        return
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    for _ in range(_BACKLOG):
        if not waiting.poll(0):
            break
        await asyncio.sleep(0)
    listener.shutdown(socket.SHUT_RD)


def _sharing(address: Address, workers: int) -> list[socket.socket]:
    """Return listening sockets that share a port; raise OSError if others use it."""
    # 1. A socket that shares its port could listen beside another hub by mistake, and
    #    each would get half of the connections.  So try one that does not, before.
    if address.address[1]:
        with _bound(address, address.address) as one:
            one.listen()
    # 2. If the port is 0, the kernel chooses a free one.  A socket for which it did so
    #    would lose the port when it is handed over, so that one only keeps it for the
    #    others.
    with ExitStack() as on_failure, _bound(address, address.address, shares=True) as chosen:
        name = chosen.getsockname()
        listeners = [on_failure.enter_context(_bound(address, name, shares=True)) for _ in range(workers)]
        for one in listeners:
            one.listen(_BACKLOG)
        on_failure.pop_all()
    return listeners


def _bound(address: Address, name: Any, *, shares: bool = False) -> socket.socket:
    """Return a socket with the address `name`; raise OSError if it cannot have it."""
    listener = socket.socket(address.family, address.kind, address.protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(name)
    except OSError:
        listener.close()
        raise
    return listener

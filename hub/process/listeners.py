"""Listeners: the listening sockets of a hub, one for each worker.

    port ── the kernel, by a hash of the addresses ──┬─► listener 0 ─► worker 0
                                                     └─► listener 1 ─► worker 1

If all workers accepted from one socket, the one that wakes first would get most of the
connections that come one by one.  On Linux, each therefore has its own (SO_REUSEPORT).

The first process opens all listeners before it forks, and keeps them open until the
shutdown.  So if a worker dies, the connections that wait at its listener are not lost:
they wait for the worker that is started in its place.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from typing import Any, NamedTuple

_BACKLOG = 2_048
"""The connections that may wait at a listener; the kernel may allow fewer."""


class Address(NamedTuple):
    """A result of socket.getaddrinfo()."""

    family: socket.AddressFamily
    kind: socket.SocketKind
    protocol: int
    name: str
    address: Any


def resolve(host: str, port: int) -> Address:
    """Return the first address of a host; raise OSError if there is none."""
    try:
        return Address(*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0])
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
            return [_listening(address, address.address)] * workers
        return _sharing(address, workers)
    except OSError as error:
        host, port = address.address[:2]
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def _sharing(address: Address, workers: int) -> list[socket.socket]:
    """Return listening sockets that share a port; raise OSError if others use it."""
    # 1. A socket that shares its port could listen beside another hub by mistake, and
    #    each would get half of the connections.  So try one that does not, before.
    name, port = address.address, address.address[1]
    if port:
        _listening(address, name).close()
    # 2. The first one chooses a free port if it is 0.
    with ExitStack() as on_failure:
        listeners = []
        for _ in range(workers):
            listeners.append(on_failure.enter_context(_listening(address, name, shares=True)))
            name = listeners[0].getsockname()
        on_failure.pop_all()
    return listeners


def _listening(address: Address, name: Any, *, shares: bool = False) -> socket.socket:
    """Return a socket that listens at the address `name`; raise OSError otherwise."""
    listener = socket.socket(address.family, address.kind, address.protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(name)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener

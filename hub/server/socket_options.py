"""Sockets: how much the kernel buffers for a client, and when it drops either.

By default, the kernel buffers about 4 MB for a client that does not read, and keeps a
client that has lost its network for a quarter of an hour.

On Linux, a connection has the time-outs of the socket that has accepted it.  So `serve`
sets them once; under another server, each event stream sets its own.  The size of the
buffer would be inherited too, but the kernel would then let it grow.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from typing import TYPE_CHECKING

if sys.platform == "linux":
    import fcntl
    import termios

if TYPE_CHECKING:
    import asyncio


def tune_listener(listener: socket.socket, *, client_timeout: float) -> bool:
    """Tune a listening socket, and return whether its connections are then tuned too.

    `client_timeout` is that of `tune_connection`.  Raises OSError.
    """
    if sys.platform != "linux" or not _is_tcp(listener):
        return False
    if client_timeout:
        _drop_silent(listener, client_timeout)
    return True


def tune_connection(transport: asyncio.BaseTransport, *, send_buffer: int, client_timeout: float) -> None:
    """Set how many bytes the kernel buffers for a client, and when it drops a silent
    one: after `client_timeout` seconds, or as before if that is 0.

    Does nothing if the connection is closing, or if it is not over TCP.
    """
    if transport.is_closing():  # its socket may be closed already
        return
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and _is_tcp(connection):
        with contextlib.suppress(OSError):  # the client has disconnected meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            if client_timeout:
                _drop_silent(connection, client_timeout)


def reset_at_close(transport: asyncio.BaseTransport) -> None:
    """Let the kernel drop what it has buffered when the connection is closed (R82).

    Otherwise, it would go on sending that.  Does nothing if the connection is closing.
    """
    connection: socket.socket | None = None if transport.is_closing() else transport.get_extra_info("socket")
    if connection is not None and _is_tcp(connection):
        with contextlib.suppress(OSError):  # the client has disconnected meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_flushed(transport: asyncio.Transport) -> bool:
    """Return whether the client's system has taken all that was written.

    False if that is unknown, as on other systems than Linux.
    """
    connection: socket.socket | None = None if transport.is_closing() else transport.get_extra_info("socket")
    if connection is not None and not transport.get_write_buffer_size() and sys.platform == "linux":
        with contextlib.suppress(OSError):  # the client has disconnected meanwhile
            return not any(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return False


def _is_tcp(one: socket.socket) -> bool:
    return one.family in (socket.AF_INET, socket.AF_INET6)


def _drop_silent(one: socket.socket, seconds: float) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (  # Linux has all three, other systems may not
        ("TCP_USER_TIMEOUT", seconds * 1000),  # for unacknowledged data, or a window that stays closed
        ("TCP_KEEPIDLE", seconds / 2),  # the first probe of a silent client, …
        ("TCP_KEEPINTVL", seconds / 6),  # … and further ones until client_timeout has passed
    ):
        if (option := getattr(socket, name, None)) is not None:
            one.setsockopt(socket.IPPROTO_TCP, option, max(1, int(value)))

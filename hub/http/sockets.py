"""Sockets: how much the kernel buffers for a client, and when it drops one.

By default, the kernel buffers about 4 MB for a client that does not read, and keeps a
client that has lost its network for a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from hub.settings import Settings


def tune(transport: asyncio.BaseTransport, settings: Settings) -> None:
    """Limit the kernel's buffer and its patience for the client of this connection.

    Sets `settings.send_buffer` and `settings.client_timeout`; takes about 3 µs.  Does
    nothing if the connection is closing, or if it is not over TCP.
    """
    if transport.is_closing():  # its socket may be closed already
        return
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # the client has disconnected meanwhile
            _tune(connection, settings)


def _tune(connection: socket.socket, settings: Settings) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)
    if not settings.client_timeout:
        return
    seconds = settings.client_timeout
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (  # Linux has all three, other systems may not
        ("TCP_USER_TIMEOUT", seconds * 1000),  # for unacknowledged data, or a window that stays closed
        ("TCP_KEEPIDLE", seconds / 2),  # the first probe of a silent client, …
        ("TCP_KEEPINTVL", seconds / 6),  # … and further ones until client_timeout has passed
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, max(1, int(value)))

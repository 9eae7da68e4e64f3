"""Sockets: what the kernel may hold for a client, and when it gives one up.

Without a bound the kernel takes some 4 MB for a client that reads nothing before it says that there is no room, and a
client that is cut off from the network stays for a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from hub.settings import Settings


def tune(transport: asyncio.BaseTransport, settings: Settings) -> None:
    """Bound what the kernel does for the client of this connection, unless it is closing; some 3 µs."""
    if transport.is_closing():  # and its socket may have no number any more
        return
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # its client has gone meanwhile
            _tune(connection, settings)


def _tune(connection: socket.socket, settings: Settings) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)
    if not settings.client_timeout:
        return
    seconds = settings.client_timeout
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (  # Linux has all of them
        ("TCP_USER_TIMEOUT", seconds * 1000),  # what was sent and not acknowledged, or a window that stays shut
        ("TCP_KEEPIDLE", seconds / 2),  # asked after that long a silence, …
        ("TCP_KEEPINTVL", seconds / 6),  # … and again and again until client_timeout has passed
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, max(1, int(value)))

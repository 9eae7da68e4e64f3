"""Servers that a hub is compared with.

They accept the same requests and do less.  They match nothing: the channel of a topic
is the topic up to its last slash.  `garbage` is an exception: it is the hub itself,
with a record of its pauses.
"""

from __future__ import annotations

import socket


def channel_of(topic: str) -> str:
    """Return the channel of a topic: everything before its last slash."""
    return topic.rpartition("/")[0]


def announce() -> socket.socket:
    """Return a socket that listens on a free port of 127.0.0.1, and print its URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4_096)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    return listener

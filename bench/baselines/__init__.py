"""What a hub is measured beside: servers that take the same requests, and do less.

There is no matching in them: a topic's channel is all of it before the last slash.
"""

from __future__ import annotations

import socket


def channel_of(topic: str) -> str:
    return topic.rpartition("/")[0]


def announce() -> socket.socket:
    """A listening socket on a free port, whose URL is printed."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4_096)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    return listener

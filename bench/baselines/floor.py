"""The floor: a bare loop with one write(2) per socket.

There is no HTTP parser, no queue and no matching.  The loop reads only the parts of a
request that it needs.  A subscriber gets a response head, and then frames.  If the
socket of a subscriber is full, the subscriber misses the frame.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from select import EPOLLIN, epoll
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from bench.baselines import announce, channel_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
_PUBLISHED: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_FRAME: Final = "id: urn:uuid:00000000-0000-0000-0000-000000000000\ndata: {}\n\n"


def serve(listener: socket.socket) -> None:
    """Serve the clients of `listener` indefinitely, in one thread."""
    listener.setblocking(False)
    ready = epoll()
    ready.register(listener, EPOLLIN)
    # All by file descriptor, except for `channels`.
    clients: dict[int, socket.socket] = {}
    requests: dict[int, bytes] = {}  # the part of a request that has arrived so far
    channels: defaultdict[str, dict[int, Callable[[bytes], int]]] = defaultdict(dict)  # send() of each subscriber
    channel: dict[int, str] = {}  # of each subscriber
    while True:
        for fd, _ in ready.poll():
            # 1. New connections.
            if fd == listener.fileno():
                with suppress(BlockingIOError):
                    while True:
                        client, _ = listener.accept()
                        client.setblocking(False)
                        clients[client.fileno()] = client
                        requests[client.fileno()] = b""
                        ready.register(client, EPOLLIN)
                continue
            # 2. A connection that was closed, or a part of a request.
            try:
                read = clients[fd].recv(65_536)
            except ConnectionError:
                read = b""
            if not read:
                del requests[fd]
                if fd in channel:
                    del channels[channel.pop(fd)][fd]
                clients.pop(fd).close()
                continue
            requests[fd] += read
            head, end, body = requests[fd].partition(b"\r\n\r\n")
            if not end:
                continue
            # 3. A subscriber: it gets the head, and joins its channel.
            if head.startswith(b"GET"):
                requests[fd] = b""
                query = head.split(b" ", 2)[1].partition(b"?")[2]
                channel[fd] = channel_of(parse_qs(query.decode())["topic"][0])
                clients[fd].send(_STREAM)
                channels[channel[fd]][fd] = clients[fd].send
            # 4. A publisher whose body is complete: one frame, written to each
            # subscriber of the channel.
            elif len(body) >= int(head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0]):
                requests[fd] = b""
                form = parse_qs(body.decode())
                frame = _FRAME.format(form["data"][0]).encode()
                for send in channels[channel_of(form["topic"][0])].values():
                    with suppress(OSError):
                        send(frame)
                clients[fd].send(_PUBLISHED)


if __name__ == "__main__":
    serve(announce())

"""Response: the answer to a subscribe request, and the choice of its connection."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sse_starlette import EventSourceResponse
from starlette.responses import Response

from hub.delivery.stream import Stream
from hub.server.asgi import NO_LINK, AsgiConnection
from hub.server.connection import link_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.types import Message, Receive, Scope

    from hub.delivery.stream import Connection
    from hub.delivery.subscriber import Subscriber
    from hub.http.request import Answer, Request
    from hub.hub import Hub
    from hub.protocol.requests import Headers
    from hub.publishing import Reach
    from hub.server.connection import UvicornLink
    from hub.settings import Settings

    _Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]

SERVER_SEND: Final = "hub.send"
"""The key of the scope for the server's own `send`, which no middleware wraps."""


STREAM_FIELDS: Final = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
"""Header fields of every event stream, so that no proxy holds it back (N9).

Proxies of Node, such as webpack-dev-server and the rewrites of Next.js, compress a
stream, and do not flush it, unless `no-transform` forbids that.
"""


REACH: Final = "Hub-Process-Reach"
"""What a publisher may learn, with `tell_publishers`: a dictionary of RFC 9651."""


class Published(Response):
    """The response to a request that has published: its ids as text.

    It makes its two header fields itself, because Starlette needs more time for them
    than a short request has.  With `reach`, it also says how many subscribers of this
    process receive the updates, and how many want them and may not read them.
    """

    def __init__(self, ids: str, reach: Reach | None = None) -> None:
        self.status_code, self.background = 200, None
        self.body = ids.encode("utf-8")
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"text/plain; charset=utf-8"),
        ]
        if reach is not None:
            self.raw_headers.append((REACH.lower().encode(), b"receivers=%d, without-grant=%d" % reach))


async def _nothing() -> AsyncIterator[bytes]:
    """Yield nothing: EventSourceResponse requires content, but a `Stream` writes it."""
    return
    yield


@cache
def _stream_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of every event stream."""
    return tuple(EventSourceResponse(_nothing(), headers=STREAM_FIELDS, sep="\n", ping=0).raw_headers)


def stream_headers(further: Headers) -> Headers:
    """Return the headers of an event stream, and `further` ones."""
    return [*_stream_headers(), *further]


def cursor_headers(id: str | None) -> Headers:
    """Return the headers with the id of the event before a stream's first one (N107).

    Returns an empty list if `id` is None.  An id may be any Unicode, and is sent as
    UTF-8 (R77).  The second name is the one of the classic dialect (V52).
    """
    if id is None:
        return []
    return [(name, id.encode("utf-8")) for name in (b"mercure-last-event-id", b"last-event-id")]


async def open_stream(request: Request, hub: Hub, subscriber: Subscriber, further: Headers) -> Answer:
    """Return the stream of a subscriber, which begins when it is called.

    Its response has `further` headers.  Raises the errors of `Stream.open`.
    """
    head = {"type": "http.response.start", "status": 200, "headers": stream_headers(further)}
    connection = connection_of(request.scope, request.receive, request.scope[SERVER_SEND], hub.settings)
    stream = Stream(hub.delivery, connection)
    await stream.open(subscriber)
    return partial(stream.run, partial(cast("Any", request.send), head))


def connection_of(scope: Scope, receive: Receive, send: _Send, settings: Settings) -> Connection:
    """Return the connection of a request, and tune its socket.

    Returns a `UvicornConnection` if the response can be detached from its task,
    otherwise an `AsgiConnection`.
    """
    link = tuned_link(send, settings)
    if link is None:
        return AsgiConnection(send, receive, NO_LINK)
    detachable = link.detachable() if scope["http_version"] == "1.1" else None
    return detachable or AsgiConnection(send, receive, link)


def tuned_link(send: object, settings: Settings) -> UvicornLink | None:
    """Return the link to the server's connection, and tune its socket.

    `send` is the server's own.  Returns None if the server is unknown.
    """
    link = link_of(send)
    if link is not None:
        link.tune(send_buffer=settings.send_buffer, client_timeout=settings.client_timeout)
    return link

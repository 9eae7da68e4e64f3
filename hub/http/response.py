"""Response: the answer to a subscribe request, and the choice of its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sse_starlette import EventSourceResponse

from hub.delivery.stream import Connection, Stream
from hub.http.asgi_connection import NO_LINK, AsgiConnection
from hub.http.sockets import tune
from hub.http.uvicorn_connection import link_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.types import Message, Receive, Scope, Send

    from hub.delivery.subscriber import Subscriber
    from hub.hub import Hub
    from hub.settings import Settings

    _Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]

SERVER_SEND: Final = "hub.send"
"""The key of the scope for the server's own `send`, which no middleware wraps."""


class EventStream:
    """The answer to a subscribe request: a head, then a stream that the caller runs.

    `first` are the first bytes of the stream.  `headers` are added to the fixed headers
    of a stream.
    """

    def __init__(self, subscriber: Subscriber, first: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.subscriber = subscriber
        self.first = first
        self.raw_headers = EventSourceResponse(_nothing(), sep="\n", ping=0).raw_headers + headers

    @property
    def head(self) -> Message:
        """The first ASGI message of the response."""
        return {"type": "http.response.start", "status": 200, "headers": self.raw_headers}

    def open(self, hub: Hub, scope: Scope, receive: Receive, server_send: Send) -> Stream:
        """Return the stream of the response, on the connection of the request.

        `server_send` is the server's own `send`.
        """
        connection = connection_of(scope, receive, cast("_Send", server_send), hub.settings)
        return Stream(hub.delivery, connection)


def connection_of(scope: Scope, receive: Receive, send: _Send, settings: Settings) -> Connection:
    """Return the connection of a request, and tune its socket.

    Returns a `UvicornConnection` if the response can be detached from its task,
    otherwise an `AsgiConnection`.
    """
    link = link_of(send)
    if link is None:
        return AsgiConnection(send, receive, NO_LINK)
    if not link.is_closing():
        tune(link.transport, settings)
    detachable = link.detachable() if scope["http_version"] == "1.1" else None
    return detachable or AsgiConnection(send, receive, link)


async def _nothing() -> AsyncIterator[bytes]:
    """Yield nothing: EventSourceResponse requires content, but a `Stream` writes it."""
    return
    yield

"""The response to a subscribe request: a head, and then a stream."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sse_starlette import EventSourceResponse

from hub.http.asgi_connection import NO_LINK, AsgiConnection
from hub.http.sockets import tune
from hub.http.stream import Connection, Stream
from hub.http.uvicorn_connection import link_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.types import Message, Receive, Scope, Send

    from hub.hub import Hub
    from hub.settings import Settings
    from hub.subscriber import Subscriber

    _Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]

REST: Final = "hub.rest"
"""Where the application takes what is left to do of a response when its routes and middleware have returned."""
SERVER_SEND: Final = "hub.send"
"""Where the application leaves the server's own `send` in the scope, below whatever middleware wraps."""


class StreamResponse(EventSourceResponse):
    """The response to a subscribe request: a head, and then a stream."""

    def __init__(self, hub: Hub, subscriber: Subscriber, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(_nothing(), sep="\n", ping=0)
        self.raw_headers += headers
        self._hub = hub
        self._subscriber = subscriber
        self.stream: Stream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)  # headers, and it ends
            return
        connection = connection_of(scope, receive, cast("_Send", scope.get(SERVER_SEND, send)), self._hub.settings)
        self.stream = stream = Stream(self._hub, self._subscriber, connection)
        await self._hub.connect(stream)  # before the head: whoever knows of the stream is in it (R20)
        message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        head = partial(cast("_Send", send), message)
        if REST in scope:
            scope[REST].append((stream, head))
        else:
            await stream.run(head)


def connection_of(scope: Scope, receive: Receive, send: _Send, settings: Settings) -> Connection:
    """Return the connection of a request: one that can be detached if its server can, else one for any server."""
    link = link_of(send)
    if link is None:
        return AsgiConnection(send, receive, NO_LINK)
    if not link.is_closing():
        tune(link.transport, settings)
    detachable = link.detachable() if scope["http_version"] == "1.1" else None
    return detachable or AsgiConnection(send, receive, link)


async def _nothing() -> AsyncIterator[bytes]:
    """The content that EventSourceResponse asks for; a Stream is written to instead."""
    return
    yield

"""Transport: requests to an ASGI application in this process, whose responses may
never end.

The transport of httpx2 itself returns a response only when it is complete.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httpx2

from hub.client import Client
from skipfilter.errors import not_copied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import ASGIApp, Message


MESSAGES: Final = 16
"""Messages of a response that wait for the client."""
GRACE: Final = 1.0
"""Seconds in which an application should notice that its client has disconnected."""


class StreamingTransport(httpx2.AsyncBaseTransport):
    """A transport of httpx2 that sends each request to an ASGI application.

    The application runs in the event loop of the client, and its lifespan must have
    begun.  `client` is the address that the application sees, and `root_path` the part
    of each path that is not the application's own, as with uvicorn's `--root-path`.
    The request, or the end of its response, raises an exception of the application.
    """

    __reduce__ = not_copied

    def __init__(self, app: ASGIApp, *, client: tuple[str, int] = ("127.0.0.1", 123), root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path
        self._client = client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response as soon as its head is there."""
        exchange = _Exchange(await request.aread())
        url = request.url
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": self._root_path,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": self._client,
            "server": (url.host, url.port),
            "state": {},
        }
        head = await exchange.begin(self._app, scope)
        return httpx2.Response(head["status"], headers=head["headers"], stream=exchange)


def client_of(
    app: ASGIApp,
    path: str,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    root_path: str = "",
) -> Client:
    """Return a client of the hub at a path of any application, in this event loop.

    `headers` may have the cookies of a user.  `root_path` is the part of the path that
    is not the application's own.  The client reconnects quickly.
    """
    transport = StreamingTransport(app, root_path=root_path)
    return Client(f"http://testserver{path}", token=token, headers=headers, transport=transport, retry=0.01)


class _Exchange(httpx2.AsyncByteStream):
    """One request with this body, and its response."""

    def __init__(self, body: bytes) -> None:
        self._request: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue(MESSAGES)
        self._is_gone = asyncio.Event()
        self._task: asyncio.Task[None]

    async def begin(self, app: ASGIApp, scope: dict[str, Any]) -> Message:
        """Call the application, and return the head of its response."""
        self._task = asyncio.create_task(self._run(app, scope))
        try:
            head = await self._sent.get()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if head is None:
            await self._task
            raise AssertionError("the application has not responded")
        return head

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            if not self._is_gone.is_set():
                await self._sent.put(None)

    async def _send(self, message: Message) -> None:
        """Pass a message on; wait if the client does not read.

        Drop it if the client has disconnected, as servers do.
        """
        if self._is_gone.is_set():
            await asyncio.sleep(0)
        else:
            await self._sent.put(message)

    async def _receive(self) -> Message:
        if self._request:
            return self._request.pop()
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                return
        await self._task  # raises the application's exception

    async def aclose(self) -> None:
        """Disconnect from the application, wait until it ends, and raise its exception.

        It is cancelled if it does not notice.
        """
        self._is_gone.set()
        while not self._sent.empty():  # it may wait for room
            self._sent.get_nowait()
        ended, _ = await asyncio.wait([self._task], timeout=GRACE)
        if not ended:
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

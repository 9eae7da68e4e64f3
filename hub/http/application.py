"""create_app: the one place where the parts are wired."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from hub.errors import ConfigurationError, RequestError
from hub.history import open_history
from hub.http import problems
from hub.http.cors import cors
from hub.http.endpoints import Endpoints
from hub.http.open_connections import CONNECTIONS, Connections
from hub.http.request import TOKENS, Request
from hub.http.response import SERVER_SEND, EventStream
from hub.hub import Hub
from hub.logs import configure_log
from hub.protocol.requests import take_tokens
from hub.settings import settings_from_environment
from hub.shutdown import before_signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request as StarletteRequest
    from starlette.types import Message, Receive, Scope, Send

    from hub.history.base import History
    from hub.http.stream import Head, Stream
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")


_SECURITY_HEADERS: Final = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
"""Of every answer (R24)."""


class HubApplication:
    """A hub as an ASGI application, by itself or mounted in another one.

    It goes by the whole path of a request: wherever it is mounted, its routes are those of its settings' path.  Publish
    and subscribe requests are answered here; all others go through a router.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        endpoints = Endpoints(hub)
        self._methods = endpoints.by_method()
        """What the path of the hub answers, by the method."""
        self._cors = cors(hub.settings)
        self._router = Starlette(
            routes=endpoints.routes(),
            exception_handlers={RequestError: self._refuse, HTTPException: self._refuse},
            lifespan=self._lifespan,
        )
        # A path with a slash too many is not the hub's.  A redirect would go to wherever the Host header says.
        self._router.router.redirect_slashes = False
        self.state = self._router.state
        """Of the application, as Starlette's; `state.hub` is the hub."""
        self.state.hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self.hub.settings
        if scope["type"] != "http":
            if scope["type"] == "lifespan" and "state" in scope:  # uvicorn hands it to the protocol of each connection
                scope["state"][CONNECTIONS] = Connections(
                    max_header_fields=settings.max_header_fields, max_head=settings.max_head
                )
            await self._router(scope, receive, partial(_send_reason, send))
            return
        # Before all else, and in the server's own scope, whose query goes into its access log.
        scope["query_string"], tokens = take_tokens(scope["query_string"])
        if not self.hub.is_running:
            raise RuntimeError("the hub is not running: a mounted one has to be entered, see HubApplication.running")
        send_with_headers = partial(_send_with_headers, send, None)
        own = {**scope, "root_path": "", SERVER_SEND: send, TOKENS: tokens}
        if self._cors is not None:
            headers = Headers(scope=scope)
            if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
                await self._cors.preflight_response(headers)(own, receive, send_with_headers)
                return
            send_with_headers = partial(_send_with_headers, send, partial(self._cors.send, request_headers=headers))
        if scope["path"] != settings.path or scope["method"] not in self._methods or scope["method"] == "HEAD":
            await self._router(own, receive, send_with_headers)
            return
        stream_and_head = await self._answer_directly(own, receive, send_with_headers)
        if stream_and_head is not None:
            stream, head = stream_and_head
            del own, scope, receive, send, send_with_headers, tokens, stream_and_head  # a stream may take long
            await stream.run(head)

    async def _answer_directly(self, scope: Scope, receive: Receive, send: Send) -> tuple[Stream, Head] | None:
        """Answer a request to the path of the hub; return the stream that is to run, with its head, if it is one.

        An unexpected error is answered by 500, and goes on to the server, which logs it (R24).
        """
        try:
            request = Request(scope, receive)
            try:
                answer = await self._methods[request.method](request)
                if isinstance(answer, EventStream):
                    stream = answer.open(self.hub, scope, receive, scope[SERVER_SEND])
                    await self.hub.connect(stream)  # before the head: whoever knows of the stream is in it (R20)
                    return stream, partial(cast("Any", send), answer.head)
            except RequestError as error:
                answer = problems.respond(error, request, self.hub.settings)
        except Exception:
            await PlainTextResponse("Internal Server Error", 500)(scope, receive, send)
            raise
        await answer(scope, receive, send)
        return None

    def _refuse(self, request: StarletteRequest, error: Exception) -> Response:
        assert isinstance(error, RequestError | HTTPException)
        return problems.respond(error, Request(request.scope, request.receive), self.hub.settings)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.running():
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the hub for as long as it is entered, as the application's own lifespan does.

        For the lifespan of an application that it is mounted in: those of mounted ones are not called.  In the
        main thread, SIGINT and SIGTERM end its streams first and then go on to whoever handled them: a server
        waits for its responses to end, and an event stream has none.
        """
        async with self.hub.running():
            with before_signals(self.hub.shutdown.begin):
                yield


def create_app(settings: Settings, *, history: History | None = None) -> HubApplication:
    """Return the application of one hub.  Raises ConfigurationError if a key does not fit, or a package is missing.

    Its updates go into `history`, or if that is None into the one that the settings name.  There may be several in a
    process.  Its lifespan must run, or its `running()`.
    """
    configure_log()
    if settings.dev:
        log.warning("DEVELOPMENT MODE: the key is known to all, so anybody may publish")
    if history is None:
        history = open_history(settings.history_url.get_secret_value(), settings.retention)
    return HubApplication(Hub(settings, history))


def app_from_environment() -> HubApplication:
    """The application that `uvicorn hub:app` serves, with the settings of the environment.

    If they make no hub, the process ends with one sentence on stderr and status 2.
    """
    configure_log()
    try:
        return create_app(settings_from_environment())
    except ConfigurationError as error:
        print(f"hub: {error}", file=sys.stderr)
        raise SystemExit(2) from None


async def _send_reason(send: Send, message: Message) -> None:
    """Send on what Starlette says of the lifespan: of settings that make no hub, a sentence and no traceback."""
    if message["type"] == "lifespan.startup.failed" and isinstance(error := sys.exception(), ConfigurationError):
        message = {**message, "message": f"hub: {error}"}
    await send(message)


async def _send_with_headers(send: Send, cors: Callable[..., Awaitable[None]] | None, message: Message) -> None:
    """Send a message; if it is the start of a response, with the headers of every answer."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
        if cors is not None:
            await cors(message, send=send)
            return
    await send(message)

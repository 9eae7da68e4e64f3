"""The ASGI application of a hub.

`create_app` is the only function that wires the parts of a hub together.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from hub.auth.signing import token_command
from hub.delivery.subscriber import client_at
from hub.errors import ConfigurationError, InvalidRequest, LimitExceeded, NotRunning, RequestError
from hub.history import open_history
from hub.http import problems
from hub.http.cors import cors
from hub.http.endpoints import Endpoints
from hub.http.open_connections import CONNECTIONS, Connections
from hub.http.request import TOKENS, Request
from hub.http.response import SERVER_SEND
from hub.hub import Hub
from hub.logs import configure_log
from hub.node.shutdown import before_signals
from hub.protocol.requests import take_tokens
from hub.settings.sources import Sources
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request as StarletteRequest
    from starlette.types import Message, Receive, Scope, Send

    from hub.history.base import History
    from hub.http.request import Answer
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")


_SECURITY_HEADERS: Final = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
"""Headers that are added to every response (R24)."""


class HubApplication:
    """A hub as an ASGI application, on its own or mounted in another application.

    Routes are compared with the full path of a request, so if the hub is mounted, its
    path in the settings must include the path of the mount.  Publish and subscribe
    requests are answered directly; all others go through Starlette's router.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        endpoints = Endpoints(hub)
        self._methods = endpoints.by_method()  # method -> endpoint, for the hub's own path
        self._cors = cors(hub.settings)
        self._router = Starlette(
            routes=endpoints.routes(),
            exception_handlers={RequestError: self._refuse, HTTPException: self._refuse},
            lifespan=self._lifespan,
        )
        # A path with an extra slash gets 404.  A redirect would lead to whatever host
        # the Host header names.
        self._router.router.redirect_slashes = False
        self.state = self._router.state  # Starlette's application state; `state.hub` is the hub
        self.state.hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the lifespan."""
        if scope["type"] == "http":
            # The frames that make objects for the request have ended before the answer
            # begins, because a stream may stay open for a long time.
            await (await self._answer(scope, receive, send))()
            return
        if scope["type"] == "lifespan" and "state" in scope:
            # uvicorn passes this state to the protocol of each connection.
            settings = self.hub.settings
            scope["state"][CONNECTIONS] = Connections(
                max_header_fields=settings.max_header_fields, max_head=settings.max_head
            )
        await self._router(scope, receive, partial(_send_reason, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer:
        """Return the answer to a request.

        An unexpected error of an endpoint is answered with 500 and raised again, so
        that the server logs it (R24).
        """
        # 1. Take the tokens out of the query first, and out of the server's own scope:
        #    the server writes that query to its access log.
        tokens: tuple[str, ...] = ()
        if scope["query_string"]:
            scope["query_string"], tokens = take_tokens(scope["query_string"])
        if not self.hub.is_running:
            raise NotRunning(
                "the hub is not running: a mounted hub must be started in the lifespan of the outer application, "
                "see HubApplication.running"
            )
        settings, add_cors = self.hub.settings, None
        # 2. CORS: answer a preflight request, or add headers to the response.
        preflight = None
        if self._cors is not None:
            headers = Headers(scope=scope)
            add_cors = partial(self._cors.send, request_headers=headers)
            if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
                preflight, add_cors = self._cors.preflight_response(headers), None
        own = {**scope, "root_path": "", SERVER_SEND: send, TOKENS: tokens}
        request = Request(own, receive, partial(_send_with_headers, send, add_cors))
        if preflight is not None:
            return request.answer(preflight)
        # 3. The target * is the server as a whole, of which there is only one thing to
        #    know: it answers (RFC 9110, 7.1 and 9.3.7).
        if scope["path"] == "*":
            return request.answer(_asterisk(request.method))
        # 4. Everything but publishing and subscribing goes through the router.
        if scope["path"] != settings.path or request.method not in self._methods:
            return partial(self._route, request)
        # 5. Publish and subscribe requests.
        try:
            try:
                return await self._methods[request.method](request)
            except RequestError as error:
                return request.answer(problems.respond(error, request, settings))
        except Exception:
            await request.answer(PlainTextResponse("Internal Server Error", 500))()
            raise

    async def _route(self, request: Request) -> None:
        """Let the router answer a request, which counts until it is answered.

        Health checks do not count, so that a hub with many requests is not taken for a
        broken one.
        """
        if request.scope["path"].startswith(self.hub.settings.path + "/health/"):
            await request.answer(self._router)()
            return
        try:
            with self.hub.shares.requests.taken(client_at(request.address)):
                await request.answer(self._router)()
        except LimitExceeded as error:  # never from the router, which answers its own
            await request.answer(problems.respond(error, request, self.hub.settings))()

    def _refuse(self, request: StarletteRequest, error: Exception) -> Response:
        assert isinstance(error, RequestError | HTTPException)
        return problems.respond(error, Request.of(request), self.hub.settings)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.running():
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the hub while the context is entered, as the application's lifespan does.

        Enter it in the lifespan of an outer application if the hub is mounted in one:
        the lifespan of a mounted application is not called.

        In the main thread, SIGINT and SIGTERM first begin to end the hub's streams, and
        then go to the handler that was installed before.  Without this, a server would
        wait indefinitely at shutdown, because an event stream does not end by itself.
        """
        async with self.hub.running():
            with before_signals(self.hub.shutdown.begin):
                yield


def create_app(settings: Settings, *, history: History | None = None) -> HubApplication:
    """Return the ASGI application of one hub.

    Updates are stored in `history`; if it is None, in the history that the settings
    name.  A process may have several applications.  The server must run the
    application's lifespan, or an outer application must enter `running()`.

    Raises `ConfigurationError` if a key does not fit, or if a package is missing.
    """
    configure_log()
    if settings.has_well_known_keys:
        log.warning("DEVELOPMENT MODE: the keys are public, so anyone can publish")
    elif settings.dev:
        # The default address: the server's own is not known yet.
        origin = (settings.public_urls or ("http://localhost:3000",))[0]
        log.warning("DEVELOPMENT MODE, with the keys that were set", to_sign_a_token=token_command(settings, origin))
    return application_of(settings, history)


def application_of(settings: Settings, history: History | None = None) -> HubApplication:
    """Return what `create_app` does, without a warning of development mode."""
    if history is None:
        history = open_history(settings.history_url, settings.retention)
    return HubApplication(Hub(settings, history))


def app_from_environment() -> HubApplication:
    """Return the application that `uvicorn hub:app` serves.

    Its settings come from the environment.  If they are invalid, prints one sentence to
    stderr and exits with status 2.
    """
    configure_log()
    try:
        sources = Sources()
        with sources.named():
            return create_app(sources.settings())
    except ConfigurationError as error:
        print(f"hub: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _asterisk(method: str) -> Response:
    """Return the response to a request for the target *, which is for OPTIONS only."""
    if method == "OPTIONS":
        return Response(status_code=204)
    return problems.problem(400, InvalidRequest.title, f"the target * is for OPTIONS, not for {shown(method)}", {})


async def _send_reason(send: Send, message: Message) -> None:
    """Forward a lifespan message; one sentence for invalid settings, no traceback."""
    if message["type"] == "lifespan.startup.failed" and isinstance(error := sys.exception(), ConfigurationError):
        message = {**message, "message": f"hub: {error}"}
    await send(message)


async def _send_with_headers(send: Send, cors: Callable[..., Awaitable[None]] | None, message: Message) -> None:
    """Send a message; add the common headers if it is the start of a response."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
        if cors is not None:
            await cors(message, send=send)
            return
    await send(message)

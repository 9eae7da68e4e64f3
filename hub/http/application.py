"""The ASGI application of a hub: the way of each request to its endpoint.

Belongs here: what holds for all requests, such as CORS, the headers of every response
and the count of requests.  Does not belong here: what a program calls (`embedding`),
and what an endpoint does.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from hub.delivery.subscriber import payer_at
from hub.errors import ConfigurationError, InvalidRequest, LimitExceeded, NotRunning, RequestError
from hub.http import problems
from hub.http.authorization import Authorization
from hub.http.cors import Cors, cors
from hub.http.endpoints import Endpoints
from hub.http.request import TOKENS, PlainRequest, Request
from hub.http.response import SERVER_SEND
from hub.logs import current_request
from hub.node.shutdown import before_signals
from hub.protocol.requests import take_tokens
from hub.server.cycle import lines_of
from hub.server.open_connections import CONNECTIONS, Connections
from skipfilter.errors import not_copied
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractContextManager

    from starlette.requests import Request as StarletteRequest
    from starlette.types import Message, Receive, Scope, Send

    from hub.http.authorization import Authorize
    from hub.http.request import Answer
    from hub.hub import Hub
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")


_SECURITY_HEADERS: Final = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
"""Headers that are added to every response (R24)."""


class Application:
    """A hub as an ASGI application, on its own or mounted in another application.

    Routes are compared with the full path of a request, so if the hub is mounted, its
    path in the settings must include the path of the mount.  Publish and subscribe
    requests are answered directly; all others go through Starlette's router.
    """

    __reduce__ = not_copied

    def __init__(self, hub: Hub, authorize: Authorize | None = None) -> None:
        self.hub = hub
        self.listener_is_tuned = False
        """Whether the server's connections have their time-outs from its listener."""
        self._observer = hub.observer
        self._admission = hub.admission
        self._connections: Connections | None = None  # those of the hub's own protocol
        self._authorization = Authorization(hub, authorize)
        self._has_reported = False  # that its path lacks that of its mount
        self._endpoints = endpoints = Endpoints(hub, self._authorization)
        self._health_checks = frozenset(endpoints.health_checks())
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
            try:
                await (await self._answer(scope, receive, send))()
            finally:
                current_request.set(None)  # the task may be that of a program, and go on
            return
        if scope["type"] == "lifespan" and "state" in scope:
            # uvicorn passes this state to the protocol of each connection.
            settings = self.hub.settings
            scope["state"][CONNECTIONS] = self._connections = Connections(
                max_header_fields=settings.max_header_fields,
                max_head=settings.max_head,
                refused=self._observer.refused,
                publisher=self._publisher(),
                are_tuned=self.listener_is_tuned,
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
            raise NotRunning
        settings, add_cors = self.hub.settings, None
        # 2. CORS: answer a preflight request, or add headers to the response.
        preflight, refusal = None, ""
        if self._cors is not None:
            headers = Headers(scope=scope)
            add_cors = partial(self._cors.send, request_headers=headers)
            if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
                preflight, add_cors = self._cors.preflight_response(headers), None
                refusal = self._cors.refusal(headers)
        own = {**scope, "root_path": "", SERVER_SEND: send, TOKENS: tokens}
        request = Request(own, receive, partial(_send_with_headers, send, add_cors))
        current_request.set(request.logged)
        if preflight is not None:
            if refusal:
                log.info(f"request refused by CORS: {refusal}", status=preflight.status_code)
                self._observer.refused("cors")
            return request.answer(preflight)
        # 3. The target * is the server as a whole, of which there is only one thing to
        #    know: it answers (RFC 9110, 7.1 and 9.3.7).
        if scope["path"] == "*":
            return request.answer(_asterisk(request.method))
        # 4. Everything but publishing and subscribing goes through the router.
        if scope["path"] != settings.path or request.method not in self._methods:
            if path := _path_to_set(scope, settings):
                return request.answer(self._report_mount(path))
            return partial(self._route, request)
        # 5. Publish and subscribe requests.
        try:
            try:
                return await self._methods[request.method](request)
            except RequestError as error:
                return request.answer(problems.respond(error, request, self.hub))
        except Exception:
            self._observer.refused("internal_server_error")
            await request.answer(PlainTextResponse("Internal Server Error", 500))()
            raise

    def _publisher(self) -> PlainPublisher | None:
        """Return what answers plain requests to publish, if there are any."""
        if "POST" not in self._methods or self._authorization.asks:
            return None
        return PlainPublisher(self, self._endpoints.publish, self._cors)

    def _report_mount(self, path: str) -> Response:
        """Log that the hub's path lacks that of its mount, and return the response."""
        detail = f"the hub is mounted in an application, so its path must be the whole one: Settings(path={path!r})"
        if not self._has_reported:
            self._has_reported = True
            log.error(detail)
        return problems.problem(404, "Not found", detail, {})

    async def _route(self, request: Request) -> None:
        """Let the router answer a request, which counts until it is answered.

        Health checks do not count, so that a hub with many requests is not taken for a
        broken one.
        """
        counted: AbstractContextManager[None] = nullcontext()
        if request.scope["path"] not in self._health_checks:
            counted = self._admission.request(payer_at(request.address, True))
        try:
            with counted:
                await request.answer(self._router)()
        except LimitExceeded as error:  # never from the router, which answers its own
            await request.answer(problems.respond(error, request, self.hub))()
        except Exception:  # the router has answered
            self._observer.refused("internal_server_error")
            raise

    def _refuse(self, request: StarletteRequest, error: Exception) -> Response:
        assert isinstance(error, RequestError | HTTPException)
        return problems.respond(error, Request.of(request), self.hub)

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
        try:
            async with self.hub.running():
                with before_signals(self.hub.shutdown.begin):
                    yield
        finally:
            self._authorization.close()


class PlainPublisher:
    """Answers plain requests to publish; see `hub.server.open_connections.Publisher`.

    There are none if the application has a function `authorize`, because that gets a
    request of ASGI.
    """

    def __init__(self, app: Application, publish: Callable[[Request], Awaitable[Response]], cors: Cors | None) -> None:
        self.target = app.hub.settings.path.encode("utf-8")
        fields = [*_SECURITY_HEADERS, *([] if cors is None else [(b"vary", b"Origin")])]
        self.fields = lines_of(fields)  # those of a response to a request without an Origin
        # A history with time limits needs a task; a program's own may not say it.
        self.needs_task: bool = getattr(app.hub.history, "has_time_limits", True)
        self._app = app
        self._publish = publish
        self._shutdown, self._observer = app.hub.shutdown, app.hub.observer

    def is_whole(self, app: object) -> bool:
        """Return whether an application of a server is the hub's own."""
        return app is self._app

    async def answer(self, scope: Scope, body: bytes) -> Response:
        """Answer a request.  Raises `NotRunning`, and unexpected errors."""
        if not self._shutdown.is_running:
            raise NotRunning
        scope[TOKENS] = ()
        request = PlainRequest(scope, body)
        current_request.set(request.logged)
        try:
            try:
                return await self._publish(request)
            except RequestError as error:
                return problems.respond(error, request, self._app.hub)
        except Exception:
            self._observer.refused("internal_server_error")
            raise


def _path_to_set(scope: Scope, settings: Settings) -> str:
    """Return the path that the settings of a mounted hub lack, or "".

    It is the path of the request, if the path in the settings does not begin with that
    of the mount.
    """
    mount, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if not mount or path != mount + settings.path or path == settings.metadata_path:
        return ""
    return "" if settings.path.startswith(mount + "/") else path


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

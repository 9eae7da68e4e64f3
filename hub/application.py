"""create_app: the one place where the parts are wired."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from hub.endpoints import TOKENS, Endpoints, answer
from hub.errors import RequestError
from hub.hub import Hub
from hub.origins import allows_origin
from hub.parking import SERVER_SEND
from hub.protocol import take_tokens
from hub.stream import REST
from hub.transports import open_transport
from hub.warm import hot_topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from starlette.datastructures import Headers
    from starlette.types import Message, Receive, Scope, Send

    from hub.settings import Settings
    from hub.stream import Stream


log = structlog.stdlib.get_logger("hub")


_SECURITY_HEADERS: Final = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
"""Of every answer (R24)."""


class HubApplication(Starlette):
    """A hub as an ASGI application, by itself or mounted in another one.  `app.state.hub` is the hub.

    It goes by the whole path of a request: wherever it is mounted, its routes are those of its settings' path.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        # Before all else, and in the server's own scope, whose query goes into its access log.
        scope["query_string"], tokens = take_tokens(scope["query_string"])
        if not self.state.hub.is_running:
            raise RuntimeError("the hub is not running: a mounted one has to be entered, see HubApplication.running")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
            await send(message)

        rest: list[tuple[Stream, Callable[[], Coroutine[Any, Any, None]]]] = []
        own = {**scope, "root_path": "", SERVER_SEND: send, TOKENS: tokens, REST: rest}
        try:
            await super().__call__(own, receive, send_with_headers)
        except BaseException:
            for stream, _ in rest:
                stream.abandon()
            raise
        del own, scope, send_with_headers  # for as long as a stream may take
        while rest:
            stream, begin = rest.pop()
            await stream.run(begin)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the hub for as long as it is entered, as the application's own lifespan does.

        For the lifespan of an application that it is mounted in: those of mounted ones are not called.  In the
        main thread, SIGINT and SIGTERM end its streams first and then go on to whoever handled them: a server
        waits for its responses to end, and an event stream has none.
        """
        hub: Hub = self.state.hub
        async with hub.running():
            with _before_signals(hub.close):
                yield


def create_app(settings: Settings) -> HubApplication:
    """The application of one hub.  Raises ConfigurationError where a key does not fit, or a package is missing.

    There may be several in a process.  Its lifespan must run, or its `running()`.
    """
    if not structlog.is_configured():
        log_to_stdlib()
    if settings.dev:
        log.warning("DEVELOPMENT MODE: the key is known to all, so anybody may publish")
    transport = open_transport(
        settings.transport_url.get_secret_value(),
        max_updates=settings.history_updates,
        max_bytes=settings.history_bytes,
        max_age=settings.history_age or math.inf,
        presence_updates=settings.presence_updates,
        presence_bytes=settings.presence_bytes,
        window=settings.idempotency_window,
        node_timeout=settings.node_timeout,
    )
    hub = Hub(settings, transport, hot_topics=hot_topics(settings))
    middleware = []
    if settings.cors_origins:
        middleware.append(
            Middleware(
                _Cors,
                allow_origins=settings.cors_origins,
                allow_credentials="*" not in settings.cors_origins,  # N97
                allow_methods=["GET", "HEAD", "POST", "QUERY"],
                # N99
                allow_headers=["Authorization", "Cache-Control", "Content-Type", "If-None-Match", "Last-Event-ID"],
                expose_headers=["ETag", "Last-Event-ID", "Link", "Mercure-Last-Event-ID", "WWW-Authenticate"],  # N98
            )
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assert isinstance(app, HubApplication)
        async with app.running():
            yield

    app = HubApplication(
        routes=Endpoints(hub).routes(),
        middleware=middleware,
        exception_handlers={RequestError: answer, HTTPException: answer},
        lifespan=lifespan,
    )
    # A path with a slash too many is not the hub's.  A redirect would go to wherever the Host header says.
    app.router.redirect_slashes = False
    app.state.hub = hub
    return app


class _Cors(CORSMiddleware):
    def is_allowed_origin(self, origin: str) -> bool:
        return allows_origin(self.allow_origins, origin)

    async def send(self, message: Message, send: Send, request_headers: Headers) -> None:
        if any(name == b"access-control-allow-origin" for name, _ in message.get("headers", ())):
            await send(message)  # what is open to all, and without credentials, says so itself (N156)
        else:
            await super().send(message, send, request_headers)


@contextmanager
def _before_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Have `callback` called in this event loop at SIGINT and SIGTERM, before whoever handles them now."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    entered = True

    def handle(number: int, frame: Any) -> None:
        if entered:  # another hub, entered since and left later, may still call this
            loop.call_soon_threadsafe(callback)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, handle)
    try:
        yield
    finally:
        entered = False
        for number, handler in handlers.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


def log_to_stdlib() -> None:
    """Have structlog write its lines to the standard library's loggers."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )

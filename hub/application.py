"""create_app: the one place where the parts are wired."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from hub.endpoints import Endpoints, answer
from hub.errors import RequestError
from hub.hub import Hub
from hub.stream import SERVER_SEND
from hub.transports.memory import MemoryTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.types import Receive, Scope, Send

    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")


class HubApplication(Starlette):
    """A hub as an ASGI application.  `app.state.hub` is the hub."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVER_SEND] = send
        await super().__call__(scope, receive, send)


def create_app(settings: Settings) -> HubApplication:
    """The application of one hub.  Raises ConfigurationError where a key does not fit.

    Its lifespan must run.  In the main thread, SIGINT and SIGTERM end its streams first and then go on to
    whoever handled them: a server waits for its responses to end, and an event stream has none.
    """
    if not structlog.is_configured():
        log_to_stdlib()
    if settings.dev:
        log.warning("DEVELOPMENT MODE: the key is known to all, so anybody may publish")
    hub = Hub(
        settings,
        MemoryTransport(max_updates=settings.history_updates, max_bytes=settings.history_bytes),
    )
    middleware = []
    if settings.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_credentials="*" not in settings.cors_origins,  # N97
                allow_methods=["GET", "HEAD", "POST"],
                allow_headers=["Authorization", "Cache-Control", "Content-Type", "Last-Event-ID"],
                expose_headers=["Last-Event-ID", "Mercure-Last-Event-ID", "WWW-Authenticate"],  # N98
            )
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001
        async with hub.running():
            with _before_signals(hub.close):
                yield

    app = HubApplication(
        routes=Endpoints(hub).routes(),
        middleware=middleware,
        exception_handlers={RequestError: answer, HTTPException: answer},
        lifespan=lifespan,
    )
    app.state.hub = hub
    return app


@contextmanager
def _before_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Have `callback` called in this event loop at SIGINT and SIGTERM, before whoever handles them now."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: Any) -> None:
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

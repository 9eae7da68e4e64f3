"""create_app: the one place where the parts are wired."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from hub.errors import ConfigurationError, HistoryUnavailable, RequestError
from hub.history import open_history
from hub.history.base import Retention
from hub.http import problems
from hub.http.endpoints import Endpoints
from hub.http.open_connections import CONNECTIONS, Connections
from hub.http.request import TOKENS, Request
from hub.http.response import SERVER_SEND, EventStream
from hub.hub import Hub
from hub.protocol.origins import allows_origin
from hub.protocol.requests import take_tokens
from hub.settings import settings_from_environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.requests import Request as StarletteRequest
    from starlette.types import Message, Receive, Scope, Send
    from structlog.typing import EventDict, Processor

    from hub.history.base import History
    from hub.http.stream import Head, Stream
    from hub.settings import Settings


_LOGGER: Final = "hub"
log = structlog.stdlib.get_logger(_LOGGER)


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
        self._cors = _cors(hub.settings)
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
            with _before_signals(self.hub.shutdown.begin):
                yield


def create_app(settings: Settings, *, history: History | None = None) -> HubApplication:
    """Return the application of one hub.  Raises ConfigurationError if a key does not fit, or a package is missing.

    Its updates go into `history`, or if that is None into the one that the settings name.  There may be several in a
    process.  Its lifespan must run, or its `running()`.
    """
    _configure_log()
    if settings.dev:
        log.warning("DEVELOPMENT MODE: the key is known to all, so anybody may publish")
    return HubApplication(Hub(settings, _history(settings) if history is None else history))


def _history(settings: Settings) -> History:
    retention = Retention(
        max_updates=settings.history_updates,
        max_bytes=settings.history_bytes,
        max_age=settings.history_age or math.inf,
        presence_updates=settings.presence_updates,
        presence_bytes=settings.presence_bytes,
        idempotency_window=settings.idempotency_window,
        node_timeout=settings.node_timeout,
    )
    return open_history(settings.history_url.get_secret_value(), retention)


def check_files(settings: Settings) -> None:
    """Open what the hub writes to, and close it again.  Raises ConfigurationError if that can never work.

    A log that cannot be reached now is no such error: the hub waits for it.  Call it outside an event loop.
    """
    if settings.event_log:
        try:
            Path(settings.event_log).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = "this is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigurationError(f"event_log: {settings.event_log}: {reason}") from None
        if not os.access(settings.event_log, os.W_OK | os.X_OK):
            raise ConfigurationError(f"event_log: {settings.event_log}: there is no permission to write there")

    async def open_and_leave() -> None:
        history = _history(settings)
        try:
            await history.end()
        except HistoryUnavailable:
            pass
        finally:
            await history.aclose()

    asyncio.run(open_and_leave())


def app_from_environment() -> HubApplication:
    """The application that `uvicorn hub:app` serves, with the settings of the environment.

    If they make no hub, the process ends with one sentence on stderr and status 2.
    """
    _configure_log()
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


def _cors(settings: Settings) -> _Cors | None:
    """Return what answers other origins; None if the settings allow none."""
    if not settings.cors_origins:
        return None
    return _Cors(
        _nowhere,
        allow_origins=settings.cors_origins,
        allow_credentials="*" not in settings.cors_origins,  # N97
        allow_methods=["GET", "HEAD", "POST", "QUERY"],
        # N99
        allow_headers=["Authorization", "Cache-Control", "Content-Type", "If-None-Match", "Last-Event-ID"],
        expose_headers=["ETag", "Last-Event-ID", "Link", "Mercure-Last-Event-ID", "WWW-Authenticate"],  # N98
    )


async def _nowhere(*_: object) -> None:
    """The application below a middleware of which only the parts are called."""
    raise AssertionError


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


def _configure_log() -> None:
    if not structlog.is_configured():
        log_to_stdlib()


def log_to_stdlib() -> None:
    """Have structlog write its lines to the standard library's loggers."""
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


_logfmt = structlog.processors.LogfmtRenderer(key_order=["event"])


def _render(logger: Any, method: str, fields: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """The arguments of a logger's method: one line with all fields, and below it the traceback, if there is one."""
    traceback = fields.pop("exception", None)
    line = str(_logfmt(logger, method, fields))
    # Without exc_info: the handlers of other servers would write the exception as it is.
    return (printable(line if traceback is None else f"{line}\n{traceback}"),), {"exc_info": False}


def printable(text: str) -> str:
    r"""Escape what is not printable, as a string of Python does; a line after the first is indented.

    A log holds texts of clients.  Control characters would steer the terminal of its reader, line separators would
    forge another line, and marks of direction would disguise one.

    >>> print(printable("a\x1b[2J\u202eb\nc"))
    a\x1b[2J\u202eb
        c
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "\n    " if one == "\n" else ascii(one)[1:-1] for one in text)


# One list, however often it is configured: a logger keeps the one that it was first used with.
_PROCESSORS: Final[list[Processor]] = [structlog.stdlib.filter_by_level, structlog.processors.format_exc_info, _render]


class LogFormatter(logging.Formatter):
    """The format of `hub serve`, also for the lines of the server below it, which may hold exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        formatted = super().format(record)
        return formatted if record.name == _LOGGER else printable(formatted)  # those of the hub are so already

"""HubProtocol: the protocol of `skipfilter serve`, which answers plain requests itself.

    a request ─┬─► plain: the hub's application publishes it ─► one write
               ├─► for a stream that can be detached: ASGI, at once
               └─► any other: ASGI, in a task

A plain request publishes, has arrived whole in one piece, and needs nothing of ASGI.
The rules are the same functions that a request through ASGI reaches.  A task is made
only if a request has to wait, as for a history in a file, or if the publisher needs
one.

Belongs here: what makes a request plain, and how the answer is written.  Does not
belong here: any rule of the hub.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from hub.server.begun import Begun
from hub.server.cycle import CLOSE, DEFAULT, lines_of
from hub.server.http1 import HttpProtocol, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from hub.server.cycle import Cycle
    from hub.server.open_connections import Publisher, Response

_IDLE, _ANSWERING = State.IDLE, State.ANSWERING
_FORWARDED: Final = frozenset([b"x-forwarded-for", b"x-forwarded-proto"])
"""Header fields that uvicorn's reader of them takes."""
_FOR_ASGI: Final = frozenset([b"expect", b"origin", b"transfer-encoding", b"upgrade"])
"""Header fields that no plain request has."""


class HubProtocol(HttpProtocol):
    """The protocol of one connection; for `uvicorn --http`, too.

    Nothing may stand between the server and the hub's application but uvicorn's reader
    of `X-Forwarded-…`, and the access log must be off.  Otherwise each request gets a
    task.
    """

    __slots__ = ("_begins", "_body", "_is_first", "_publisher")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._publisher = self._own_publisher()
        self._begins: RequestResponseCycle | None = None  # a request for a stream, which begins soon
        self._is_first = False  # whether the next request is the first of those that have just arrived
        self._body: bytes | None = None  # what has arrived of a request that may be plain

    def _own_publisher(self) -> Publisher | None:
        """Return the publisher of the application, if there may be plain requests."""
        publisher, app = self.shared.publisher, self.app
        if publisher is None or self.access_log or self.root_path or self.limit_concurrency is not None:
            return None
        if type(app) is ProxyHeadersMiddleware:
            app = app.app
        return publisher if publisher.is_whole(app) else None

    # -- which requests are plain

    def data_received(self, data: bytes) -> None:
        """Parse bytes of requests.  Only the first of them may do without a task.

        So a client that sends many at once does not hold the event loop.
        """
        self._is_first = self._publisher is not None
        super().data_received(data)
        self._is_first = False  # not later, when the request in progress ends
        if self._body is not None:
            self._go_through_asgi()
        elif self._begins is not None:
            cycle, self._begins = self._begins, None
            if self.may_detach(cycle) and not self.transport.is_closing():
                self._begin_stream(cycle)
            else:
                super()._start_asgi_task(cycle, self.app)

    def begin_request(self) -> None:
        """Begin a request; one that may be plain waits for its body."""
        if self._is_first and self._is_plain():
            self._body = b""
        else:
            super().begin_request()
        self._is_first = False

    def _is_plain(self) -> bool:
        """Return whether the request whose head has arrived may be a plain one."""
        assert self._publisher is not None
        return (
            self.url == self._publisher.target
            and self.scope["method"] == "POST"
            and self.scope["http_version"] == "1.1"
            and self.parser.should_keep_alive()
            and self.state is _IDLE
            and _FOR_ASGI.isdisjoint(dict(self.headers))
        )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the task of a request; one for a stream may begin without a task.

        It begins when all that has arrived is parsed: its response can be detached if
        there is nothing else.
        """
        if self._is_first and self._is_for_stream():  # so `url` and `scope` are those of this request
            self._begins = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def _is_for_stream(self) -> bool:
        """Return whether the request is for a stream that does not end by itself."""
        assert self._publisher is not None
        return (
            not self._publisher.needs_task
            and self.url.partition(b"?")[0] == self._publisher.target
            and self.scope["method"] == "GET"
            and self.scope["http_version"] == "1.1"
            and b"prefer" not in dict(self.headers)
        )

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._body is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        """End the request; a plain one is answered now."""
        if self._body is None:
            super().on_message_complete()
        else:
            self._limit.end_message()
            body, self._body = self._body, None
            self._publish(body)

    def _go_through_asgi(self) -> None:
        """Begin a request that is not plain, because the rest of it comes later."""
        body, self._body = self._body, None
        if self.state is _IDLE:  # it was not refused
            super().begin_request()
            if body:
                super().on_body(body)

    # -- the answer

    def _begin_stream(self, cycle: RequestResponseCycle) -> None:
        """Begin a request for a stream; make a task only if it has to wait."""
        app, context = self.app, contextvars.copy_context()
        if type(app) is ProxyHeadersMiddleware and not self._is_forwarded(cycle.scope):
            app = app.app
        begun: Begun[None] = context.run(Begun, cycle.run_asgi(app))
        if not begun.has_ended:
            self._go_on(_rest(begun), context)

    def _go_on(self, rest: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        """Run the rest of a request in a task."""
        task = self.loop.create_task(rest, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _is_forwarded(self, scope: Any) -> bool:
        return not _FORWARDED.isdisjoint(dict(scope["headers"]))

    def _publish(self, body: bytes) -> None:
        """Answer a plain request, at once if it has nothing to wait for."""
        assert self._publisher is not None
        # In a context of its own: log lines of later requests must not have its fields.
        context, scope = contextvars.copy_context(), self.scope
        if type(self.app) is ProxyHeadersMiddleware and self._is_forwarded(scope):
            Begun(_Forwarded(self.app)(scope, _never, _never))
        coroutine = self._publisher.answer(scope, body)
        answer: Awaitable[Response] = coroutine
        if not self._publisher.needs_task:
            try:
                answer = begun = context.run(Begun, coroutine)
            except (Exception, asyncio.CancelledError) as error:
                self._respond(context.run(self._failure, error), closes=True)
                return
            if begun.has_ended and not self.flow.write_paused:
                self._respond(begun.result, closes=False)
                return
        self._to(_ANSWERING)
        self.cycle = self._answering = cycle = self.new_cycle()
        cycle.more_body = False
        self._go_on(self._respond_later(answer, cycle), context)

    async def _respond_later(self, answer: Awaitable[Response], cycle: Cycle) -> None:
        """Wait for the answer to a plain request, and send it."""
        failed = False
        try:
            response = await answer
        except (Exception, asyncio.CancelledError) as error:
            response, failed = self._failure(error), True
        if not cycle.disconnected:
            await self.flow.drain()
        cycle.response_complete = True
        if not cycle.disconnected:
            self._respond(response, closes=failed or not cycle.keep_alive)

    def _respond(self, response: Response, *, closes: bool) -> None:
        """Write a response; then expect the next request, or close the connection."""
        assert self._publisher is not None
        head = STATUS_LINE[response.status_code], DEFAULT.lines_of(self.server_state.default_headers)
        fields = lines_of(response.raw_headers), self._publisher.fields, CLOSE if closes else b""
        self.transport.write(b"".join([*head, *fields, b"\r\n", response.body]))
        if closes:
            self.transport.close()
        self.on_response_complete()

    def _failure(self, error: BaseException) -> Response:
        """Log an unexpected error as uvicorn does, and return the response."""
        self.logger.error("Exception in ASGI application\n", exc_info=error)
        return _Failure()


class _Failure(NamedTuple):
    """The response to a request whose answer failed, as uvicorn has it."""

    status_code: int = 500
    raw_headers: tuple[tuple[bytes, bytes], ...] = (
        (b"content-length", b"21"),
        (b"content-type", b"text/plain; charset=utf-8"),
    )
    body: bytes = b"Internal Server Error"


class _Forwarded(ProxyHeadersMiddleware):
    """uvicorn's reader of `X-Forwarded-…`, without an application."""

    def __init__(self, reader: ProxyHeadersMiddleware) -> None:
        self.app, self.trusted_hosts = _nothing, reader.trusted_hosts


async def _rest(begun: Awaitable[None]) -> None:
    await begun


async def _nothing(*_: object) -> None:
    """Do nothing with a request, whose scope was changed."""


async def _never(*_: object) -> NoReturn:
    raise AssertionError("there is no message")

"""HTTP/1.1 for strangers: what a client may send before its request is known, and how long it may be silent.

    request line ─► fields ─► body ─► trailers ─► the next request
    └─ max_head bytes, ─┘             └─ the same bounds, and dropped
       max_header_fields

              the head is complete                  the response is complete
    waiting ─────────────────────► in progress ─────────────────────────────► waiting     at most idle_timeout
       │                                │
       └───────── it is refused, or its body was not read ──────────────────► ending      at most LINGER_SECONDS

uvicorn's protocol parses requests and runs their tasks.  It has no bound for a head, restarts no timer after a response
once a byte has come, and closes a connection at once when a request is refused: the kernel then drops the answer if
the client is still sending.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

import httptools
import structlog
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from hub.errors import HeadTooLarge, InvalidRequest, RequestError, TargetTooLong
from hub.http.open_connections import CONNECTIONS, Connections
from hub.http.problems import problem
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from uvicorn.config import Config
    from uvicorn.server import ServerState

log = structlog.stdlib.get_logger("hub")

HEAD_TIMEOUT: Final = 10.0
"""Seconds that the head of a request may take from its first byte, and the first byte from the connection."""
LINGER_SECONDS: Final = 5.0
"""Seconds between an answer that ends a connection and its end: the client may still send, and then read."""
LINGER_BYTES: Final = 2**22
"""Bytes that are read and dropped meanwhile."""

_MAX_TARGET: Final = 2**16 - 1
"""Bytes of a request target that httptools takes apart."""
_UNBOUNDED: Final = sys.maxsize
_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")  # RFC 3986, 3.2.2
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")
_NOSNIFF: Final = b"x-content-type-options", b"nosniff"


class Cycle(RequestResponseCycle):
    """uvicorn's side of a request and its response, with what uvicorn leaves out.

    A client of HTTP/1.0 gets no chunks.  A response says `keep-alive` or `close`, not both.  A request whose body was
    not read ends its connection.
    """

    _is_raw = False
    """Whether the end of the connection is the end of the body."""

    def send(self, message: Any) -> Coroutine[Any, Any, None]:  # no coroutine of its own, as this is on every path
        if message["type"] == "http.response.start":
            if self.more_body or not self.keep_alive:
                message = self._closing(message)
        elif self._is_raw:
            self.expected_content_length = len(message.get("body", b""))
        elif self.more_body and not message.get("more_body", False):
            self.keep_alive = True  # the protocol ends the connection, so that the client can read the response
        return RequestResponseCycle.send(self, message)

    def _closing(self, message: Any) -> Any:
        """The head of the last response of a connection; uvicorn adds `close`, and HTTP/1.0 has no others."""
        self.keep_alive = False
        headers = [(name.lower(), value) for name, value in message.get("headers", ())]
        if self.scope["http_version"] != "1.1" and b"content-length" not in dict(headers):
            self._is_raw, self.chunked_encoding = True, False
        return {**message, "headers": [header for header in headers if header[0] != b"connection"]}


class Detached(Protocol):
    """The owner of a connection whose response is detached."""

    def lost(self, error: Exception | None) -> None:
        """Take note that the connection is lost: nothing can be written any more.

        Without an error, everything that was written before the connection began to close was handed to the socket.
        """
        ...

    def close(self, reason: str) -> None:
        """End the response soon."""
        ...


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, with bounds; a response may be detached from it.  For `uvicorn --http`."""

    # Beside uvicorn's attributes: with more than 30, a dictionary would not share its keys with other connections.
    __slots__ = (
        "_answered",
        "_detached",
        "_ends",
        "_half_closed",
        "_head_timer",
        "_in_line",
        "_is_stream",
        "_keep_alive",
        "_left",
        "_moved",
        "shared",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        if CONNECTIONS not in app_state:  # the hub is mounted in an application with a lifespan of its own
            app_state[CONNECTIONS] = Connections()
        self.shared: Connections = app_state[CONNECTIONS]
        self._left = self.shared.max_head
        """Bytes that may come before the head, or the trailers, end."""
        self._head_timer: asyncio.TimerHandle | None = None
        """Of the head of the next request."""
        self._moved = False
        """Whether the parser got beyond a head, or beyond trailers, with the bytes that it was given last."""
        self._in_line: bool | None = None
        """Whether it is in a request line; None between two requests."""
        self._ends = False
        """Whether the connection ends with the response in progress."""
        self._half_closed = False
        """Whether the client has closed its half of the connection."""
        self._is_stream = False
        """Whether the response in progress is an event stream."""
        self._answered: RequestResponseCycle | None = None
        """The request in progress; `cycle` is the last one that came."""
        self._detached: Detached | None = None
        """The owner of the response in progress, if it is detached."""
        self._keep_alive = True
        """Whether another request may follow a detached response."""

    # -- of the application

    def begin_stream(self) -> None:
        """Note that the response in progress is an event stream, whose head was sent.

        It ends when the client closes its half of the connection, because a browser that leaves does no more.
        """
        self._is_stream = True
        if self._half_closed:
            self.transport.close()

    def may_detach(self, cycle: Any) -> bool:
        """Return whether `cycle`, uvicorn's side of a response, is all that the connection is busy with."""
        return self.cycle is cycle and not cycle.more_body and self._head_timer is None

    def detach(self, cycle: Any, owner: Detached) -> bool:
        """Hand the response of `cycle`, whose head was sent, to an owner; the application may then return.

        From then on the owner writes the response to the transport, in chunks; `flow` is paused while the socket takes
        no more.  Returns False if the connection is lost or ends now: because its client has sent more than a request,
        which could not be answered while the stream goes on, or has closed its half, as a browser does that leaves.
        """
        if not self.may_detach(cycle):
            cycle.disconnected = True
            self.transport.abort()
        elif self._half_closed:  # the head is still written
            cycle.disconnected = True
            self.transport.close()
        if cycle.disconnected:
            return False
        cycle.response_complete = True  # so the server neither ends it nor complains when the application returns
        self._detached, self._keep_alive = owner, cycle.keep_alive
        self.cycle = self.scope = self.headers = self._answered = None  # type: ignore[assignment]
        self.flow.resume_reading()  # a long body has paused it, and a pause hides that the client has gone
        self.transport.set_write_buffer_limits(1)  # with 0, TLS would not see that it has room again
        return True

    def reattach(self) -> None:
        """Go on after the last chunk of a detached response: to the next request, if there may be one."""
        self._detached = None
        self.transport.set_write_buffer_limits()
        if self._keep_alive:
            self.on_response_complete()
        else:
            self.transport.close()

    # -- of the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self.shared.add(self)

    def data_received(self, data: bytes) -> None:
        if self._detached is not None:
            if data.strip(b"\r\n"):
                self._keep_alive = False  # what comes next may be the middle of a request
                self._detached.close("its client has sent more")
            return
        if self._ends:
            self._drop(data)
            return
        if self._in_line is not False and not data.isascii():
            data = self._escaped(data)
        try:
            while data:
                part, self._moved = data[: self._left], False
                self.parser.feed_data(part)
                data = data[len(part) :]
                if not self._moved:
                    self._count(part)
        except RequestError as error:
            self._refuse(error)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.shared.discard(self)
                self.handle_websocket_upgrade()
            else:
                self._ends = True  # the request is answered as if it asked for no other protocol (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, RequestError):
                self._refuse(cause)
            elif cause is None or isinstance(cause, httptools.HttpParserError):
                self._refuse(InvalidRequest(f"this is not HTTP/1.1: {cause or error}"))
            else:
                raise

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open: for the response to a complete request, but no event stream."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self._head_timer is not None:
            return False
        if self._is_stream or self.scheme == "https":  # TLS has no half
            return False
        self._ends = self._half_closed = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        detached, self._detached = self._detached, None
        self._forget_head()
        super().connection_lost(exc)
        if self._answered is not None:  # uvicorn notifies the last one alone, and uvloop raises if this one writes
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._unset_keepalive_if_required()
        self.pipeline.clear()  # these know of each other, which only the garbage collector would find out
        self.cycle = self._answered = None  # type: ignore[assignment]
        self.shared.discard(self)
        if detached is not None:
            detached.lost(exc)

    # -- of the parser

    def on_message_begin(self) -> None:
        HttpToolsProtocol.on_message_begin(self)
        self._in_line = not self._moved
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._head_timer is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) == self.shared.max_header_fields:
            raise HeadTooLarge(f"the request has more than {self.shared.max_header_fields} header fields and trailers")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin the request, as uvicorn does; here as a whole, since it does not let the class of a cycle be chosen."""
        parser, scope = self.parser, self.scope
        self._forget_head()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.shared.waiting.pop(self, None)
        self._left, self._moved, self._in_line = _UNBOUNDED, True, False
        if len(self.url) > _MAX_TARGET:
            raise TargetTooLong(f"the request target has {len(self.url)} bytes; the limit is {_MAX_TARGET}")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version = parser.get_http_version()
        self._check_host(version)
        if parser.should_upgrade() and self._should_upgrade():
            return
        self.headers = self.headers.copy()  # trailers are counted, and are no headers (RFC 9110, 6.5.1)
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + target.path
        scope["query_string"] = target.query or b""
        app, before = self.app, self.cycle
        if self.limit_concurrency is not None and self.limit_concurrency <= max(len(self.connections), len(self.tasks)):
            app = service_unavailable
        self.cycle = cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._answered = cycle
            self._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def on_chunk_header(self) -> None:
        """Either the body goes on, or trailers follow."""
        self._left, self._moved = self.shared.max_head, True

    def on_body(self, body: bytes) -> None:
        self._left, self._moved = _UNBOUNDED, True
        HttpToolsProtocol.on_body(self, body)  # faster than super()

    def on_message_complete(self) -> None:
        self._left, self._moved, self._in_line = self.shared.max_head, True, None
        HttpToolsProtocol.on_message_complete(self)

    # -- of the server and of its responses

    def shutdown(self) -> None:
        if self._detached is None:
            super().shutdown()
        else:
            self._keep_alive = False  # the owner ends it

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._is_stream, self._answered = False, None
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._wait(self.timeout_keep_alive)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._answered, app = self.pipeline.pop()
            self._start_asgi_task(self._answered, app)
        elif self._ends or (self.cycle is not None and self.cycle.more_body):
            self._end()
        else:
            self._wait(self.timeout_keep_alive)

    # -- private

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.abort)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _wait(self, seconds: float) -> None:
        """Give the client that long to send the next request, or to read what was written."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.transport.abort)
        self.shared.waiting[self] = None

    def _count(self, part: bytes) -> None:
        """Count bytes with which a head, or trailers, have not ended.  Raises HeadTooLarge and TargetTooLong."""
        self._left -= len(part)
        if self._left <= 0:
            limit = self.shared.max_head
            if len(self.url) * 2 > limit:
                raise TargetTooLong(f"the request target has {len(self.url)} bytes; a head may have {limit}")
            raise HeadTooLarge(f"the head of the request, or its trailers, have more than {limit} bytes")
        self._in_line = self._in_line and b"\n" not in part.lstrip(b"\r\n")

    def _escaped(self, data: bytes) -> bytes:
        """`data` with bytes of a request line that are not ASCII as %XX, which browsers send for UTF-8."""
        begin = len(data) - len(data.lstrip(b"\r\n")) if self._in_line is None else 0
        end = data.find(b"\n", begin)
        if end < 0:
            end = len(data)
        return _NOT_ASCII.sub(lambda match: b"%%%02X" % match[0][0], data[:end]) + data[end:]

    def _check_host(self, version: str) -> None:
        """Raise InvalidRequest unless there is one Host field, which HTTP/1.0 may lack (RFC 9112, 3.2)."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and (hosts or version != "1.0"):
            raise InvalidRequest(f"the request has {len(hosts)} Host header fields instead of one")
        if hosts and hosts[0] != self.shared.host:  # most requests name the same one
            if not _HOST.fullmatch(hosts[0]):
                raise InvalidRequest(f"Host header {shown(hosts[0].decode('latin-1'))}: not a host and port")
            self.shared.host = hosts[0]

    def _refuse(self, error: RequestError) -> None:
        """Answer a request that the application does not get to see, unless another answer is in progress."""
        cycle = self.cycle
        in_progress = cycle is not None and not cycle.response_complete
        log.info("request refused", status=error.status, reason=str(error))
        self._forget_head()
        if in_progress and not cycle.more_body:
            self._ends = True  # it is behind requests that are still answered
        elif in_progress and (cycle.response_started or self.pipeline):
            self.transport.abort()
        else:
            if in_progress:
                cycle.disconnected = True
                cycle.message_event.set()
            self._write_problem(error)
            self._end()

    def _write_problem(self, error: RequestError) -> None:
        answer = problem(error.status, error.title, str(error), {})
        headers = [*self.server_state.default_headers, *answer.raw_headers, (b"connection", b"close"), _NOSNIFF]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", answer.body]))

    def _end(self) -> None:
        """End the connection when the client has read what was written, or after a while."""
        self._ends, self._left = True, LINGER_BYTES
        if self._half_closed or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
        self._wait(LINGER_SECONDS)

    def _drop(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self.transport.abort()


class AttachedProtocol(HttpProtocol):
    """The same for responses that keep the task of their request."""

    __slots__ = ()

    def may_detach(self, cycle: Any) -> bool:
        return False

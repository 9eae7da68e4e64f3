"""HTTP/1.1 with limits for untrusted clients, on top of uvicorn's protocol.

    request line ─► fields ─► body ─► trailers ─► the next request
    └─ max_head bytes, ─┘             └─ the same limits; trailers are dropped
       max_header_fields

    state            event                                         next state
    IDLE             a request has begun                           ANSWERING
                     its head breaks a rule, or it was plain and   LINGERING
                     the last one
    ANSWERING        the response has ended, and no other waits    IDLE
                     it was the last one, or the rest of the       LINGERING
                     request breaks a rule
                     what follows breaks a rule, or is no HTTP     ANSWERING_LAST
                     the client closes its half                    HALF_CLOSED
                     the response is detached                      DETACHED
                     and no request may follow it                  DETACHED_LAST
    ANSWERING_LAST   the client closes its half                    HALF_CLOSED
                     the response is detached                      DETACHED_LAST
                     the response has ended                        LINGERING
    HALF_CLOSED      the response has ended                        LINGERING
    DETACHED         the response has ended                        IDLE
                     but its connection is closing                 LINGERING
                     the client sends more; the server shuts down  DETACHED_LAST
    DETACHED_LAST    the response has ended                        LINGERING
    any of these     the connection is lost, or a WebSocket        CLOSED

Several requests may wait in ANSWERING; their responses follow each other.  A connection
may wait for a client so long:

    HEAD_TIMEOUT     from the accept of the connection, or from the first byte of a
                     later request, to the end of its head
    idle_timeout     from the end of a response to the first byte of a request
    LINGER_SECONDS   from the last answer until the client closes the connection

uvicorn's protocol parses requests and runs their tasks, but has three gaps.  It does
not limit the size of a head.  It stops its timer at the first byte of the next request,
and starts no other.  It closes the connection at once if it refuses a request: if the
client is still sending, the kernel then drops the answer.

Most names of uvicorn that are used here are not documented, so a test fails if one
changes (tests/hub/server/test_uvicorn_private.py).  Without them, this module would
have to repeat what uvicorn does well: ASGI's `receive` and `send`, the tasks, the
access log and the change to a WebSocket.
"""

from __future__ import annotations

import asyncio
import re
import sys
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import httptools
import structlog
from uvicorn.protocols.http.flow_control import FlowControl, service_unavailable
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
)
from uvicorn.protocols.utils import is_ssl

from hub.errors import InvalidRequest, RequestError, TargetTooLong
from hub.server.cycle import Cycle, lines_of
from hub.server.head_limit import HeadLimit
from hub.server.open_connections import CONNECTIONS, Connections
from hub.server.problem import PROBLEM, problem_document
from skipfilter.text import shown

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from hub.server.cycle import Owner

log = structlog.stdlib.get_logger("hub")


class State(StrEnum):
    """The states of a connection."""

    IDLE = auto()
    """No request is in progress; the head of one may have arrived in part."""
    ANSWERING = auto()
    """A response is in progress, and further requests may wait for theirs."""
    ANSWERING_LAST = auto()
    """The same, but the connection ends with it, and drops what arrives."""
    HALF_CLOSED = auto()
    """The same, and the client has closed its half of the connection."""
    DETACHED = auto()
    """A detached response is in progress."""
    DETACHED_LAST = auto()
    """The same, but the connection ends with it."""
    LINGERING = auto()
    """The last response has ended, and the client may still read it."""
    CLOSED = auto()
    """The connection is lost, or another protocol has it."""


TRANSITIONS: Final = {
    State.IDLE: {State.ANSWERING, State.LINGERING, State.CLOSED},
    State.ANSWERING: set(State) - {State.ANSWERING},
    State.ANSWERING_LAST: {State.HALF_CLOSED, State.DETACHED_LAST, State.LINGERING, State.CLOSED},
    State.HALF_CLOSED: {State.LINGERING, State.CLOSED},
    State.DETACHED: {State.IDLE, State.DETACHED_LAST, State.LINGERING, State.CLOSED},
    State.DETACHED_LAST: {State.LINGERING, State.CLOSED},
    State.LINGERING: {State.CLOSED},
    State.CLOSED: set(),
}
"""The states that may follow each state."""

# Variables, because an attribute of an enum takes long before Python 3.12.
_IDLE, _ANSWERING, _ANSWERING_LAST, _HALF_CLOSED, _DETACHED, _DETACHED_LAST, _LINGERING, _CLOSED = State
_READS: Final = _IDLE, _ANSWERING
"""The states in which requests are parsed."""
_ENDS: Final = _ANSWERING_LAST, _HALF_CLOSED
"""The states in which the connection ends with the response in progress."""

HEAD_TIMEOUT: Final = 10.0
"""Seconds for the head of a request, until its end.

They count from the accept of the connection for its first request, and from the first
byte for later requests.
"""
LINGER_SECONDS: Final = 5.0
"""Seconds after the last answer of a connection, in which the client can read it.

The connection then ends, even if the client is still sending.
"""
LINGER_BYTES: Final = 2**22
"""Bytes that are read and dropped in that time; more abort the connection."""
MAX_BUFFERED: Final = 1
"""Bytes that a transport buffers for a detached response before its flow pauses.

With 0, TLS never reports room again.
"""

_MAX_TARGET: Final = 2**16 - 1
"""The longest request target, in bytes, that httptools can parse."""
_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(:[0-9]*)?")  # RFC 3986, 3.2.2; not empty


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, with limits, and responses that can detach.

    For `uvicorn --http`.
    """

    # Slots, because uvicorn's attributes are in the instance's dictionary.  With more
    # than 30 entries, it would not share its keys with those of other connections.
    __slots__ = ("_answering", "_head_timer", "_left_to_drop", "_limit", "_owner", "shared", "state")

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # The state has no connections if the hub is mounted in an application with its
        # own lifespan.
        if CONNECTIONS not in app_state:
            app_state[CONNECTIONS] = Connections()
        self.shared: Connections = app_state[CONNECTIONS]
        self.state = _IDLE
        self.url = b""  # uvicorn sets it when the first request begins
        # What is left for the next head or trailers; None while a response is detached,
        # when there may be very many of these objects.
        self._limit = self._new_limit()
        self._head_timer: asyncio.TimerHandle | None = None  # aborts if the next head takes too long
        self._left_to_drop = sys.maxsize  # bytes that may still be dropped
        self._answering: Cycle | None = None  # in progress; `cycle` is the last received
        self._owner: Owner | None = None  # of the response in progress, if it is detached

    # -- for the application

    def begin_stream(self) -> None:
        """Note that the response in progress is an event stream, whose head was sent.

        From now on, the connection ends if the client closes its half, because that is
        all that a browser does if its user leaves the page.
        """
        if self.state is _HALF_CLOSED:
            self.transport.close()
        elif self._answering is not None:  # the connection is not lost
            self._answering.is_stream = True

    def may_detach(self, cycle: object) -> bool:
        """Return whether the connection is busy with nothing but `cycle`.

        False if there is another request, even an incomplete one, or if the body of
        this one is incomplete.  `cycle` is uvicorn's object for a response.
        """
        if self.cycle is not cycle or cycle.more_body:
            return False
        return not self._limit.is_in_head if self.state is _ANSWERING else self.state in _ENDS

    def detach(self, cycle: Cycle, owner: Owner) -> bool:
        """Hand the response of `cycle`, which holds its head, to an owner.

        The application may then return.  From then on, the owner writes the response to
        the transport, the head and then chunks; `flow` is paused while the socket has
        no room.

        Returns False if the connection is lost, or if it ends now for one of two
        reasons.  The client has sent more than its request: that could not be answered
        while the stream goes on.  Or the client has closed its half, as a browser does
        if its user leaves the page.
        """
        if self.state is _HALF_CLOSED:
            cycle.disconnected = True
            self.transport.write(cycle.held)
            self.transport.close()
        elif not self.may_detach(cycle):
            cycle.disconnected = True
            self.transport.abort()
        if cycle.disconnected:
            return False
        self._to(_DETACHED if cycle.keep_alive and self.state is _ANSWERING else _DETACHED_LAST)
        # So that uvicorn does not complain, or end the response, if the application
        # returns.
        cycle.response_complete = True
        self._owner = owner
        self.cycle = self.scope = self.headers = self._answering = self._limit = None  # type: ignore[assignment]
        # A long body may have paused reading, and a pause hides a disconnect.
        self.flow.resume_reading()
        self.transport.set_write_buffer_limits(MAX_BUFFERED)
        return True

    def reattach(self) -> None:
        """Take the connection back after the last chunk of a detached response.

        Waits for the next request if the connection is kept alive, or else closes it.
        """
        self._owner, self._limit = None, self._new_limit()
        self.transport.set_write_buffer_limits()
        if self.state is _DETACHED_LAST:
            self.transport.close()
        self.on_response_complete()

    # -- for the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head, and count the connection."""
        # As uvicorn's own method, which asks the kernel for the addresses once more.
        self.connections.add(self)
        self.transport, self.flow = transport, FlowControl(transport)
        own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.server = own[:2] if isinstance(own, tuple) else own and (own, None)
        self.client = peer[:2] if isinstance(peer, tuple) else None  # that of a Unix socket has no address
        self.scheme = "https" if is_ssl(transport) else "http"
        self._await_head()
        self.shared.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of requests, within the limits; refuse what breaks a rule."""
        if self.state not in _READS:
            self._read_nothing(data)
            return
        limit = self._limit
        data = limit.escaped(data)
        try:
            while data:
                part = limit.part(data)
                try:
                    self.parser.feed_data(part)
                except httptools.HttpParserUpgrade as upgrade:
                    (read,) = upgrade.args
                    if not self._ignores_upgrade():
                        raise
                    data = self._without_upgrade() + data[read:]
                    # As uvicorn makes it; the old one has ended if the connection
                    # should not be kept alive.
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    continue
                limit.count(part, target=len(self.url))
                data = data[len(part) :]
            if limit.is_in_head and self._head_timer is None:
                self._await_head()
        except RequestError as error:
            self._refuse(error)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._to(_CLOSED)
                self.shared.discard(self)
                self.handle_websocket_upgrade()
            elif self.state is _ANSWERING:  # a CONNECT
                self._to(_ANSWERING_LAST)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, RequestError):
                self._refuse(cause)
            elif cause is None or isinstance(cause, httptools.HttpParserError):
                self._refuse(InvalidRequest(f"this is not HTTP/1.1: {cause or error}"))
            else:
                raise

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open when the client closes its half.

        It does if a complete request is in progress, unless its response is an event
        stream or the connection uses TLS.
        """
        answering = self._answering
        if answering is None or self.cycle.more_body or (self.state is _ANSWERING and self._limit.is_in_head):
            return False
        if answering.is_stream or self.scheme == "https":  # TLS has no half-closed state
            return False
        self._to(_HALF_CLOSED)
        return True

    def resume_writing(self) -> None:
        """Go on with what waits for room; a detached response has an empty buffer."""
        if self._owner is not None:
            self._owner.drained()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request in progress, or the owner of a detached response."""
        owner, self._owner = self._owner, None
        self._to(_CLOSED)
        self._stop_head_timer()
        super().connection_lost(exc)
        # uvicorn notifies only the last request.  The one in progress must know too,
        # because uvloop raises if it writes.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self._unset_keepalive_if_required()
        # Break reference cycles, so that the garbage collector is not needed.
        self.pipeline.clear()
        self.cycle = self._answering = None  # type: ignore[assignment]
        self.shared.discard(self)
        if owner is not None:
            owner.lost(exc)

    # -- for the parser

    def on_message_begin(self) -> None:
        """Begin a request; if its head is incomplete, a timer starts soon."""
        HttpToolsProtocol.on_message_begin(self)
        self._limit.begin_message()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header field or trailer.

        Raises `HeadTooLarge` if there are too many.
        """
        self._limit.add_field(len(self.headers))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin the request whose head is complete.

        This repeats uvicorn's own method, which does not let a subclass choose the
        class of a cycle.  Raises `TargetTooLong` or `InvalidRequest`.
        """
        parser, scope = self.parser, self.scope
        self._stop_head_timer()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self.shared.waiting.pop(self, None)
        self._limit.end_head()
        if len(self.url) > _MAX_TARGET:
            raise TargetTooLong(f"the request target has {len(self.url)} bytes; the limit is {_MAX_TARGET}")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version = parser.get_http_version()
        self._check_host(version)
        if parser.should_upgrade() and (self._should_upgrade() or self._ignores_upgrade()):
            return
        # Trailers are added to the copy: they count toward the limit, but are not
        # header fields (RFC 9110, 6.5.1).
        self.headers = self.headers.copy()
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + target.path
        scope["query_string"] = target.query or b""
        self.begin_request()

    def begin_request(self) -> None:
        """Start the request's task, or queue it behind the request in progress."""
        app = self.app
        self.cycle = cycle = self.new_cycle()
        if self.limit_concurrency is not None and self.limit_concurrency <= max(len(self.connections), len(self.tasks)):
            app = service_unavailable
        if self.state is _IDLE:
            self._to(_ANSWERING)
            self._answering = cycle
            self._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def new_cycle(self) -> Cycle:
        """Return a new object for the request and its response."""
        version = self.scope["http_version"]
        return Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            # HTTP/1.0 has no such response (RFC 9110, 10.1.1 and 15.2).
            expect_100_continue=self.expect_100_continue and version == "1.1",
            keep_alive=version == "1.1" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )

    def on_chunk_header(self) -> None:
        """Apply the limits of a head: trailers may follow, unless the body goes on."""
        self._limit.begin_chunk()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, whose length is not limited here."""
        self._limit.add_body()
        HttpToolsProtocol.on_body(self, body)  # faster than super()

    def on_message_complete(self) -> None:
        """End the request; the limits of a head apply to the next one."""
        self._limit.end_message()
        if not (self.parser.should_upgrade() and self._ignores_upgrade()):
            HttpToolsProtocol.on_message_complete(self)

    # -- for the server and for its responses

    def shutdown(self) -> None:
        """End the connection: at once if it is idle, otherwise after the response."""
        if self._owner is None:
            super().shutdown()
        elif self.state is _DETACHED:
            self._to(_DETACHED_LAST)  # the owner ends the response

    def on_response_complete(self) -> None:
        """Go on with the next request, wait for one, or end the connection."""
        self.server_state.total_requests += 1
        self._answering = None
        if self.state is _CLOSED:  # another protocol has the connection
            return
        if self.transport.is_closing():
            self._to(_LINGERING)
            if self.transport.get_write_buffer_size():
                self._wait(self.timeout_keep_alive)
            return
        self.flow.resume_reading()
        if self.state is _IDLE:
            self._wait(self.timeout_keep_alive)
        elif self.pipeline:
            cycle, app = self.pipeline.pop()
            self._answering = cast("Cycle", cycle)
            self._start_asgi_task(cycle, app)
        elif self.state in _ENDS or (self.cycle is not None and self.cycle.more_body):
            self._end()
        else:
            self._to(_IDLE)
            self._wait(self.timeout_keep_alive)

    # -- private

    def _to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _read_nothing(self, data: bytes) -> None:
        """Take bytes that belong to no request."""
        # 1. During a detached response, only empty lines are allowed.
        if self._owner is not None:
            if data.strip(b"\r\n"):
                if self.state is _DETACHED:  # the next bytes may be the middle of a request
                    self._to(_DETACHED_LAST)
                self._owner.sent_more()
            return
        # 2. After the last request, everything is dropped; not too much after the last
        #    answer.
        self._left_to_drop -= len(data)
        if self._left_to_drop < 0:
            self.transport.abort()

    def _new_limit(self) -> HeadLimit:
        return HeadLimit(max_head=self.shared.max_head, max_fields=self.shared.max_header_fields)

    def _await_head(self) -> None:
        """Start the timer of the next head."""
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _wait(self, seconds: float) -> None:
        """Abort the connection after `seconds`, unless another request begins.

        In that time, the client can send the next request, or read the response.
        """
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.transport.abort)
        self.shared.waiting[self] = None

    def _check_host(self, version: str) -> None:
        """Check that there is one valid Host field (RFC 9112, 3.2).

        Raises `InvalidRequest` if the field is empty, malformed or repeated, or if it
        is missing from a request that is not HTTP/1.0.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and (hosts or version != "1.0"):
            raise InvalidRequest(f"the request has {len(hosts)} Host header fields instead of one")
        if hosts and hosts[0] != self.shared.host:  # most requests have the same host
            if not _HOST.fullmatch(hosts[0]):
                raise InvalidRequest(f"Host header {shown(hosts[0].decode('latin-1'))}: not a host and port")
            self.shared.host = hosts[0]

    def _ignores_upgrade(self) -> bool:
        """Return whether the upgrade that a request asks for is ignored.

        RFC 9110, 7.8, allows it.  But the parser skips the body of such a request, so
        it must get the head again, without the field.
        """
        return self.scope["method"] != "CONNECT" and not self._should_upgrade()

    def _without_upgrade(self) -> bytes:
        """Return the head that was just parsed, without `Upgrade`; it is not longer."""
        version = self.scope["http_version"]
        line = f"{self.scope['method']} ".encode() + self.url + f" HTTP/{version}\r\n".encode()
        fields = [name + b":" + value + b"\r\n" for name, value in self.headers if name != b"upgrade"]
        return b"".join([line, *fields, b"\r\n"])

    def _refuse(self, error: RequestError) -> None:
        """Answer a request that does not reach the application, and end the connection.

        1. If it follows requests that are still being answered, it gets no answer, and
           the connection ends after their responses.
        2. If the error is in a body, and the response has begun or is not the next one,
           the connection is aborted.
        3. If it follows the last answer, it gets none.
        4. Otherwise the answer is a problem document.
        """
        cycle, in_progress = self.cycle, self.state is _ANSWERING
        address = self.client[0] if self.client else ""
        log.info("request refused", status=error.status, reason=str(error), address=address)
        self.shared.refused(error.kind())
        self._stop_head_timer()
        if in_progress and not cycle.more_body:
            self._to(_ANSWERING_LAST)
        elif in_progress and (cycle.response_started or self.pipeline):
            self.transport.abort()
        elif self.state in _READS:
            if in_progress:
                cycle.disconnected = True
                cycle.message_event.set()
            self._write_problem(error)
            self._end()

    def _write_problem(self, error: RequestError) -> None:
        """Write a complete response to the transport, as a problem document."""
        body = problem_document(error.status, error.title, str(error))
        headers = [
            *self.server_state.default_headers,
            (b"content-length", b"%d" % len(body)),
            (b"content-type", PROBLEM.encode()),
            (b"connection", b"close"),
            (b"x-content-type-options", b"nosniff"),
        ]
        self.transport.write(b"".join([STATUS_LINE[error.status], lines_of(headers), b"\r\n", body]))

    def _end(self) -> None:
        """End the connection as soon as the client closes it, or after LINGER_SECONDS.

        Until then, the client can read the response.
        """
        if self.state is _HALF_CLOSED or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
        self._to(_LINGERING)
        self._left_to_drop = LINGER_BYTES
        self._wait(LINGER_SECONDS)


class AttachedProtocol(HttpProtocol):
    """The same protocol, but every response keeps the task of its request."""

    __slots__ = ()

    def may_detach(self, cycle: object) -> bool:
        """Return False."""
        return False

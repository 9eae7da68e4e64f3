"""Cycle: a request and its response, and who owns a detached one.

Belongs here: the header fields and the chunks of a response.  Does not belong here: the
connection, and its other requests (`http1`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

CLOSE: Final = b"connection: close\r\n"


class Cycle(RequestResponseCycle):
    """uvicorn's object for a request and its response, with three corrections.

    A client of HTTP/1.0 gets no chunks.  A response has at most one of the `keep-alive`
    and `close` options.  If the body of a request was not read, the connection ends
    after its response.
    """

    holds_head = False
    """Whether the head of the response, in chunks, may be left in `held` instead of
    written.
    """
    held = b""
    is_stream = False
    """Whether the response is an event stream, whose head was sent."""

    _is_raw = False  # whether the end of the connection marks the end of the body

    def send(self, message: Any) -> Coroutine[Any, Any, None]:
        """Send one ASGI message.

        Returns uvicorn's own coroutine, because another one would cost time on every
        response.
        """
        if message["type"] == "http.response.start":
            if self.more_body or not self.keep_alive:
                message = self._closing(message)
            if self.holds_head and not self.access_log:  # uvicorn itself writes the log
                return self._hold(message)
        elif self._is_raw:
            self.expected_content_length = len(message.get("body", b""))
        elif self.more_body and not message.get("more_body", False):
            # Keep uvicorn from closing the connection at once: the protocol ends it
            # when the client has had time to read the response.
            self.keep_alive = True
        return RequestResponseCycle.send(self, message)

    async def _hold(self, message: Any) -> None:
        """Leave the head in `held`."""
        headers = message["headers"]
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("a header field of a stream has a control character")
        if not self.disconnected:
            self.response_started = True
            fields = DEFAULT.lines_of(self.default_headers), lines_of(headers), b"" if self.keep_alive else CLOSE
            self.held = b"".join([STATUS_LINE[message["status"]], *fields, b"transfer-encoding: chunked\r\n\r\n"])

    def _closing(self, message: Any) -> Any:
        """Return the head of a connection's last response; uvicorn adds `close` to it.

        Every response to an HTTP/1.0 client is the last one.
        """
        self.keep_alive = False
        headers = [(name.lower(), value) for name, value in message.get("headers", ())]
        if self.scope["http_version"] != "1.1" and b"content-length" not in dict(headers):
            self._is_raw, self.chunked_encoding = True, False
        return {**message, "headers": [header for header in headers if header[0] != b"connection"]}


class Listener(Protocol):
    """What learns how a detached response ends, if it does not end it."""

    def lost(self, error: Exception | None) -> None:
        """Note that the connection is lost: nothing can be written any more.

        If `error` is None, everything that was written before the connection began to
        close was handed to the socket.
        """
        ...

    def sent_more(self) -> None:
        """End the response soon: the client has sent more than its request."""
        ...


class Owner(Listener, Protocol):
    """The owner of a detached response, which writes it."""

    def drained(self) -> None:
        """Note that everything that was written so far was handed to the socket."""
        ...


def lines_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return header fields as the lines of a response."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in fields])


class _DefaultFields:
    """The header fields of every response, as lines.

    uvicorn makes new ones each second.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[object, bytes] = None, b""

    def lines_of(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the lines of `fields`, which nobody changes."""
        known, lines = self._known
        if fields is not known:
            lines = lines_of(fields)
            self._known = fields, lines
        return lines


DEFAULT: Final = _DefaultFields()

"""A connection of uvicorn whose response is detached: it outlives its request's task.

    application   begins a response, detaches it, returns ──►   no task, no request,
                                                                no coroutine frames
    protocol      connection lost, client sends more ───────►   the stream

An idle event stream needs only a socket, and a call if the connection is lost.  In
everything else, the connection treats a stream like other responses: the head, the
chunks, keep-alive, and the requests that follow the end of the stream.

Only this module, `http1` and `cycle` use uvicorn's private attributes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hub.server.begun import Begun
from hub.server.http1 import MAX_BUFFERED, HttpProtocol
from hub.server.socket_options import is_flushed, reset_at_close, tune_connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import TypeAlias

    from hub.server.cycle import Cycle, Listener

    Head: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_LINE_END: Final = b"\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
KEPT_BYTES: Final = 2**17
"""Bytes of a body that may be kept until the next one is written ..."""
KEPT_SECONDS: Final = 1.0
"""... and seconds that a larger one is kept."""
_ALL: Final = 2**62
"""More bytes than any write has: the last write was dropped."""


class UvicornLink:
    """Access to uvicorn's connection of a response; see `asgi.Link`."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle  # uvicorn's object for a request and its response

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        transport: asyncio.Transport = self._cycle.transport
        return transport

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        # Asked of the transport, because of several requests on one connection uvicorn
        # notifies only the newest.
        return self.transport.is_closing()

    def buffered(self) -> int:
        """Return the number of bytes in the transport's write buffer."""
        return self.transport.get_write_buffer_size()

    def is_flushed(self) -> bool:
        """Return whether the client's system has taken all that was written."""
        return is_flushed(self.transport)

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, and mark the response as disconnected.

        If it is to be `reset`, the kernel drops what it has buffered.
        """
        self._cycle.disconnected = True
        if reset:
            reset_at_close(self.transport)
        self.transport.abort()

    def tune(self, *, send_buffer: int, client_timeout: float) -> None:
        """Tune the socket; see `socket_options`."""
        protocol = self.transport.get_protocol()
        inherits = isinstance(protocol, HttpProtocol) and protocol.shared.are_tuned
        tune_connection(self.transport, send_buffer=send_buffer, client_timeout=0 if inherits else client_timeout)

    def begin_stream(self) -> None:
        """Pass the note on to the protocol, if it is the hub's."""
        protocol = self.transport.get_protocol()
        if isinstance(protocol, HttpProtocol):
            protocol.begin_stream()

    def detachable(self) -> UvicornConnection | None:
        """Return a connection on which the response can be detached.

        Returns None if the connection is busy with more than this response, if it is
        closing, or if its protocol does not allow it.
        """
        if self.transport.is_closing():
            return None
        protocol = self.transport.get_protocol()
        if isinstance(protocol, HttpProtocol) and protocol.may_detach(self._cycle):
            return UvicornConnection(protocol, self._cycle)
        return None


def link_of(server_send: object) -> UvicornLink | None:
    """Return the link for the `send` of an HTTP/1.1 response by uvicorn.

    Returns None if `server_send` is that of another server.

    ASGI passes an application nothing else that leads to its connection.  An entry in
    the scope would be a reference cycle, and only the hub's own protocol could add it.
    """
    cycle = getattr(server_send, "__self__", None)
    return UvicornLink(cycle) if hasattr(cycle, "transport") and hasattr(cycle, "keep_alive") else None


class UvicornConnection:
    """The connection of a detached response; see `hub.delivery.stream.Connection`."""

    __slots__ = ("_cycle", "_flow", "_protocol", "_stream", "_task", "_transport", "_unsent")

    def __init__(self, protocol: HttpProtocol, cycle: Cycle) -> None:
        self._protocol = protocol
        self._transport = protocol.transport
        self._flow = protocol.flow
        self._cycle: Cycle | None = cycle  # uvicorn's object for the response; None from `write_first` on
        self._stream: Listener | None = None  # the owner, while the response is detached
        # The task of the work; while the head waits for room, that of the request.
        self._task: asyncio.Task[None] | None = None
        # Bytes that were still buffered after the last write that found no room, or
        # when the connection was aborted; _ALL if that write was dropped.
        self._unsent = 0

    async def begin(self, head: Head, stream: Listener, *, wait: bool) -> bool:
        """Make or send the head, and detach the response for `stream`.

        Returns False if the connection is lost, or if the client has sent more than its
        request or has closed its half.
        """
        self._task = asyncio.current_task()
        cycle = self._cycle
        assert cycle is not None
        cycle.holds_head = True
        # If there is no head within this turn of the event loop, it waits for room.
        cut = None if wait else asyncio.get_running_loop().call_soon(self._transport.abort)
        try:
            await head()
        finally:
            self._task = None
            if cut is not None:
                cut.cancel()
        if not self._protocol.detach(cycle, self):
            return False
        self._stream = stream
        return True

    def write_first(self, body: bytes) -> bool:
        """Write the head and the first chunk, as `write` does."""
        assert self._cycle is not None
        head, self._cycle = self._cycle.held, None
        return self._write(head + _encoded(body))

    def write(self, body: bytes, shared: bool = True) -> bool:
        """Write one chunk without waiting; `shared` is whether others get it, too.

        Returns False if there is now no room for more, or if the connection is closing.
        """
        if not shared:
            return self._write(_encoded(body))
        known, chunk = _last.written
        return self._write(chunk if body is known else _last.encoded(body))

    def _write(self, chunk: bytes) -> bool:
        transport = self._transport
        transport.write(chunk)
        # The flow pauses at the same size.  Asking the flow would be slower: when many
        # streams are written to in turn, its memory is in no cache of the processor.
        buffered = transport.get_write_buffer_size()
        if buffered > MAX_BUFFERED or transport.is_closing():
            # A closing connection accepts a write only if earlier bytes are still
            # buffered.
            self._unsent = _ALL if not buffered and transport.is_closing() else buffered
            return False
        return True

    async def drain(self) -> bool:
        """Wait until there is room.  Returns False if the connection is closing."""
        await self._flow.drain()
        return not self._transport.is_closing()

    def unsent(self) -> int:
        """Return how many bytes of the last write were not handed to the socket.

        May be more than its length: the size line of the chunk counts, but not the line
        end after the body.
        """
        return max(0, self._unsent - len(_LINE_END))

    def buffered(self) -> int:
        """Return the number of bytes in the transport's write buffer."""
        return self._transport.get_write_buffer_size()

    def is_flushed(self) -> bool:
        """Return whether the client's system has taken all that was written."""
        return is_flushed(self._transport)

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return self._transport.is_closing()

    def start(self, work: Work) -> None:
        """Run `work` in a new task.

        If no task runs now, it begins at once, and gets a task only if it has to wait.
        """
        loop = asyncio.get_running_loop()
        if asyncio.current_task() is not None:
            self._task = loop.create_task(self._run(work))
            return
        begun = Begun(work())
        if not begun.has_ended:
            self._task = loop.create_task(self._run(lambda: begun))

    def finish(self) -> bool:
        """Write the last chunk, and give the connection back for further requests.

        Returns False if there is no room, or if the connection is closing.
        """
        if self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(_LAST_CHUNK)
        if self._flow.write_paused:
            return False
        self._protocol.reattach()
        return True

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once.  Does nothing before `begin`."""
        # An abort drops the buffer, so note its size.
        if self._stream is not None and self._unsent != _ALL:
            self._unsent = self.buffered()
        if self._stream is not None or self._task is not None:
            if reset:
                reset_at_close(self._transport)
            self._transport.abort()

    def stop(self) -> None:
        """Cancel the work, and forget the stream."""
        self._stream = None
        if self._task is not None:
            self._task.cancel()

    async def serve(self) -> bool:
        """Return False at once: the response goes on without the request's task."""
        return False

    # -- for the protocol

    def lost(self, error: Exception | None) -> None:
        """Pass the loss of the connection on to the stream."""
        # Without an error, everything that was accepted was handed to the socket.
        if error is None and self._unsent != _ALL:
            self._unsent = 0
        if self._stream is not None:
            self._stream.lost(error)

    def sent_more(self) -> None:
        """End the stream soon."""
        if self._stream is not None:
            self._stream.sent_more()

    def drained(self) -> None:
        """Note that everything that was written so far was handed to the socket.

        The work that waits for room may run too late to note it: the stream may end in
        the same turn of the event loop.
        """
        self._unsent = 0

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._task = None


def _encoded(body: bytes) -> bytes:
    """Return `body` as one chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class _LastBody:
    """The last shared body that was written to any connection, and its chunk.

    A dispatch writes the same body to many connections in turn: it is encoded once.
    One that is large is soon forgotten.
    """

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = b"", b""

    def encoded(self, body: bytes) -> bytes:
        """Return the chunk of a body, which is the last one from now on."""
        chunk = _encoded(body)
        self.written = body, chunk  # at once: event loops in several threads may write
        if len(body) > KEPT_BYTES:
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, body)
        return chunk

    def _forget(self, body: bytes) -> None:
        if self.written[0] is body:
            self.written = b"", b""


_last: Final = _LastBody()

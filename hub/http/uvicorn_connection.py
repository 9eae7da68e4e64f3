"""A connection of uvicorn whose response is detached: it outlives the task of its request.

    the application   ─ begins a response, detaches it, returns ─►   no task, no request, no frames of coroutines
    the connection    ─ lost, or full, or with room again ───────►   the stream

An idle event stream needs a socket, and a call when the connection is lost, and no more.  Everything else about the
connection is that of other responses: the head, the chunks, keep-alive, and what comes after a stream has ended.

What this project knows of uvicorn's private attributes is here and in `uvicorn_protocol`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hub.http.uvicorn_protocol import HttpProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeAlias

    from hub.http.uvicorn_protocol import Detached

    Head: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_LINE_END: Final = b"\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_ALL: Final = 2**62  # more than any write has
_chunked: tuple[bytes, bytes] = b"", b""


class UvicornLink:
    """What uvicorn knows of the connection of a response, and ASGI has no word for; see `asgi_connection.Link`."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle

    @property
    def transport(self) -> asyncio.Transport:
        transport: asyncio.Transport = self._cycle.transport
        return transport

    def is_closing(self) -> bool:
        # uvicorn notifies only the newest of the requests that a client has sent down one connection.
        return self.transport.is_closing()

    def buffered(self) -> int:
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cut the connection, and note it as uvicorn does when one is lost."""
        self._cycle.disconnected = True
        self.transport.abort()

    def begin_stream(self) -> None:
        protocol = self.transport.get_protocol()
        if isinstance(protocol, HttpProtocol):
            protocol.begin_stream()

    def detachable(self) -> UvicornConnection | None:
        """Return a connection that can be detached; None if it is busy with more than this response, or cannot be."""
        if self.transport.is_closing():
            return None
        protocol = self.transport.get_protocol()
        if isinstance(protocol, HttpProtocol) and protocol.may_detach(self._cycle):
            return UvicornConnection(protocol, self._cycle)
        return None


def link_of(server_send: object) -> UvicornLink | None:
    """Return uvicorn's side of a response in HTTP/1.1, by the server's own `send`; None behind another server."""
    cycle = getattr(server_send, "__self__", None)
    return UvicornLink(cycle) if hasattr(cycle, "transport") and hasattr(cycle, "keep_alive") else None


class UvicornConnection:
    """A connection whose response is detached; see `stream.Connection`."""

    __slots__ = ("_cycle", "_flow", "_protocol", "_stream", "_task", "_transport", "_unsent")

    def __init__(self, protocol: HttpProtocol, cycle: Any) -> None:
        self._protocol = protocol
        self._transport = protocol.transport
        self._flow = protocol.flow
        self._cycle = cycle
        """uvicorn's side of the response, until it is detached."""
        self._stream: Detached | None = None
        """The owner, while the response is detached."""
        self._task: asyncio.Task[None] | None = None
        """Of the work that was started, or of the request while its head is sent."""
        self._unsent = 0
        """Bytes that the socket did not have when the last write ended, or when the connection was cut."""

    async def begin(self, head: Head, stream: Detached, *, wait: bool) -> bool:
        self._task = asyncio.current_task()
        cycle, self._cycle = self._cycle, None
        # If the head cannot be sent within this turn of the event loop, it has to wait for room.
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

    def write(self, body: bytes) -> bool:
        self._transport.write(_chunk(body))
        if self._flow.write_paused or self._transport.is_closing():
            # A connection that is closing takes it only behind bytes that are still buffered.
            buffered = self._transport.get_write_buffer_size()
            self._unsent = _ALL if not buffered and self._transport.is_closing() else buffered
            return False
        return True

    async def drain(self) -> bool:
        await self._flow.drain()
        return not self._transport.is_closing()

    def unsent(self) -> int:
        return max(0, self._unsent - len(_LINE_END))

    def buffered(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def start(self, work: Work) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    def finish(self) -> bool:
        if self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(_LAST_CHUNK)
        if self._flow.write_paused:
            return False
        self._protocol.reattach()
        return True

    def abort(self) -> None:
        if self._stream is not None and self._unsent != _ALL:
            self._unsent = self.buffered()
        if self._stream is not None or self._task is not None:  # before `begin` it does nothing
            self._transport.abort()

    def stop(self) -> None:
        self._stream = None
        if self._task is not None:
            self._task.cancel()

    async def serve(self) -> bool:
        return False

    # -- for the protocol

    def lost(self, error: Exception | None) -> None:
        if error is None and self._unsent != _ALL:
            self._unsent = 0
        if self._stream is not None:
            self._stream.lost(error)

    def close(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.close(reason)

    async def _run(self, work: Work) -> None:
        try:
            await work()
        finally:
            self._task = None


def _chunk(body: bytes) -> bytes:
    """Return `body` in HTTP/1.1's chunked coding.  The last one is remembered: many streams are written the same."""
    global _chunked
    last, chunk = _chunked
    if last is not body:
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        _chunked = body, chunk
    return chunk

"""Parking: an HTTP/1.1 response that outlives the task of its request.

    the application   ─ begins a response, parks it, returns ─►   no task, no request, no frames of coroutines
    the connection    ─ lost, or full, or with room again ─────►  the stream that was parked, and the server's own

An idle event stream needs a socket and somebody to tell when it is lost, and no more.  Everything else about the
connection stays uvicorn's: the head, the chunks, keep-alive, and what comes after a stream has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

HEAD_TIMEOUT: Final = 10.0
"""Seconds that the head of a request may take from its first byte, and the first byte from the connection."""


SERVER_SEND: Final = "hub.send"
"""Where the application leaves the server's own `send` in the scope, below whatever middleware wraps."""


def cycle_of(server_send: object) -> Any:
    """uvicorn's side of a response in HTTP/1.1, for what ASGI has no word for; None behind another server."""
    cycle = getattr(server_send, "__self__", None)
    return cycle if hasattr(cycle, "transport") and hasattr(cycle, "keep_alive") else None


def cut_off(cycle: Any) -> None:
    """Cut the connection of a response, and say so as uvicorn does when one is lost."""
    cycle.disconnected = True
    cycle.transport.abort()


class Parked(Protocol):
    """What is told of the connection of a parked response."""

    def lost(self, error: Exception | None) -> None:
        """The connection is lost; nothing can be written any more.

        Without an error all was handed to the socket that was written before the connection began to close.
        """
        ...

    def close(self, reason: str) -> None:
        """End the response soon."""
        ...


class ParkingProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, of which a response may be parked; for `uvicorn --http`.

    All its mutable state, beside uvicorn's: what is parked, if anything; whether the connection is for more requests
    after that; and the timer of a request's head.
    """

    _parked: Parked | None = None
    _keep_alive = True
    _head_timer: asyncio.TimerHandle | None = None

    # -- of the application

    def may_park(self, cycle: Any) -> bool:
        """Whether `cycle`, uvicorn's side of a response, is all that the connection is busy with."""
        return self.cycle is cycle and not cycle.more_body and self._head_timer is None

    def park(self, cycle: Any, parked: Parked) -> bool:
        """Keep the response of `cycle`, which has begun; the application may return.

        What is written to the transport from then on is the response, in chunks; the protocol is paused, and its
        `flow` says so, whenever the socket takes no more.  False where the connection is lost, or is cut now, as its
        client has sent more than a request: what that asks for could not be answered as long as the stream goes on.
        """
        if not self.may_park(cycle):
            cycle.disconnected = True
            self.transport.abort()
        if cycle.disconnected:
            return False
        cycle.response_complete = True  # so the server neither ends it nor complains when the application returns
        self._parked, self._keep_alive = parked, cycle.keep_alive
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]
        self.flow.resume_reading()  # which a long body has paused, and tells that the client has gone
        self.transport.set_write_buffer_limits(1)  # with 0, TLS would not see that it has room again
        return True

    def unpark(self) -> None:
        """The last chunk was written: on to the next request, if there is to be one."""
        self._parked = None
        self.transport.set_write_buffer_limits()
        if self._keep_alive:
            self.on_response_complete()
        else:
            self.transport.close()

    # -- of the server and of the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._forget_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        if self._parked is None:
            super().data_received(data)
        elif data.strip(b"\r\n"):
            self._keep_alive = False  # what comes next may be the middle of a request
            self._parked.close("its client has sent more")

    def shutdown(self) -> None:
        if self._parked is None:
            super().shutdown()
        else:
            self._keep_alive = False  # the application ends it

    def connection_lost(self, exc: Exception | None) -> None:
        parked, self._parked = self._parked, None
        self._forget_head()
        super().connection_lost(exc)
        self.pipeline.clear()  # these know of each other, which only the garbage collector would find out
        self.cycle = None  # type: ignore[assignment]
        if parked is not None:
            parked.lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.abort)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class TaskProtocol(ParkingProtocol):
    """The same for responses that keep their task."""

    def may_park(self, cycle: Any) -> bool:
        return False

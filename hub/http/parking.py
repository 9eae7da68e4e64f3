"""Parking: an HTTP/1.1 response that outlives the task of its request.

    the application   ─ begins a response, parks it, returns ─►   no task, no request, no frames of coroutines
    the connection    ─ lost, or full, or with room again ─────►  the stream that was parked, and the server's own

An idle event stream needs a socket and somebody to tell when it is lost, and no more.  Everything else about the
connection is that of other responses: the head, the chunks, keep-alive, and what comes after a stream has ended.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hub.http.uvicorn_protocol import HttpProtocol

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


def is_event_stream(cycle: Any) -> None:
    """Have the connection of a response, whose head was sent, end when its client closes its half."""
    protocol = cycle.transport.get_protocol()
    if isinstance(protocol, HttpProtocol):
        protocol.begin_stream()


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


class ParkingProtocol(HttpProtocol):
    """The protocol of one connection, of which a response may be parked; for `uvicorn --http`.

    All its mutable state, beside that of an HttpProtocol: what is parked, if anything; and whether the connection is
    for more requests after that.
    """

    __slots__ = ("_keep_alive", "_parked")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._parked: Parked | None = None
        self._keep_alive = True

    # -- of the application

    def may_park(self, cycle: Any) -> bool:
        """Whether `cycle`, uvicorn's side of a response, is all that the connection is busy with."""
        return self.cycle is cycle and not cycle.more_body and self._head_timer is None

    def park(self, cycle: Any, parked: Parked) -> bool:
        """Keep the response of `cycle`, which has begun; the application may return.

        What is written to the transport from then on is the response, in chunks; the protocol is paused, and its
        `flow` says so, whenever the socket takes no more.  False if the connection is lost or ends now: because its
        client has sent more than a request, which could not be answered as long as the stream goes on; or because its
        client has closed its half, as a browser does that leaves.
        """
        if not self.may_park(cycle):
            cycle.disconnected = True
            self.transport.abort()
        elif self._half_closed:  # the head is still written
            cycle.disconnected = True
            self.transport.close()
        if cycle.disconnected:
            return False
        cycle.response_complete = True  # so the server neither ends it nor complains when the application returns
        self._parked, self._keep_alive = parked, cycle.keep_alive
        self.cycle = self.scope = self.headers = self._answered = None  # type: ignore[assignment]
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
        super().connection_lost(exc)
        if parked is not None:
            parked.lost(exc)


class TaskProtocol(ParkingProtocol):
    """The same for responses that keep their task."""

    __slots__ = ()

    def may_park(self, cycle: Any) -> bool:
        return False

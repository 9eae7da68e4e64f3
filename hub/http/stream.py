"""The event stream of one subscriber, written to from outside.

                 caught up                       there is no more room
    catching up ───────────► live ────────────────────────────────────► behind
        ▲         no task of it runs                                      │
        └─────────────────────────────────────────────────────────────────┘
                  a task waits for room, then reads on in the log

While it is live, the broadcaster writes to it: where the socket has room, nothing is awaited and no task is switched.
Where there is none, the stream has fallen behind, and what comes after it reads from the log.  So replay, the seam
between replay and live, and slow readers are one loop, and a slow reader costs one pending write, however much there
is to say.

There are two kinds.  A TaskStream speaks ASGI, so it works behind any server: the task of its request stays, and the
broadcaster steps the server's `send` coroutine itself.  A ParkedStream needs a server that lets go of the request (see
`parking`), and writes to the transport: no task, half the memory, and about half the time in Python.
"""

from __future__ import annotations

import asyncio
import types
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import structlog
from sse_starlette import EventSourceResponse

from hub.errors import PositionExpired
from hub.history.base import EARLIEST
from hub.http.parking import SERVER_SEND, ParkingProtocol, cut_off, cycle_of, is_event_stream
from hub.http.sockets import tune
from hub.protocol import events
from hub.shutdown import SHUTTING_DOWN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator

    from starlette.types import Message, Receive, Scope, Send

    from hub.hub import Hub
    from hub.subscriber import Subscriber

    _Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]
    _Begin: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

log = structlog.stdlib.get_logger("hub")

REST: Final = "hub.rest"
"""Where the application takes what is left to do of a response when its routes and middleware have returned."""

_CHUNK = 2**16  # bytes of frames that are joined into one write while catching up


class StreamResponse(EventSourceResponse):
    """The response to a subscribe request: a head, and then a stream."""

    def __init__(self, hub: Hub, subscriber: Subscriber, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(_nothing(), sep="\n", ping=0)
        self.raw_headers += headers
        self._hub = hub
        self._subscriber = subscriber
        self.stream: Stream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)  # headers, and it ends
            return
        server_send = cast("_Send", scope.get(SERVER_SEND, send))
        cycle = cycle_of(server_send)
        protocol = None
        if cycle is not None and not cycle.transport.is_closing():
            tune(cycle.transport, self._hub.settings)
            protocol = cycle.transport.get_protocol()
        self.stream = stream = (
            ParkedStream(self._hub, self._subscriber, protocol, cycle)
            if isinstance(protocol, ParkingProtocol) and protocol.may_park(cycle) and scope["http_version"] == "1.1"
            else TaskStream(self._hub, self._subscriber, server_send, receive, cycle)
        )
        await self._hub.connect(stream)  # before the head: whoever knows of the stream is in it (R20)
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        begin = partial(cast("_Send", send), head)
        if REST in scope:
            scope[REST].append((stream, begin))
        else:
            await stream.run(begin)


class Stream(ABC):
    """A connection, as the broadcaster sees it (`broadcaster.Receiver`), and how it catches up.

    All its mutable state: the subscriber's place; `_waits`, the last write, if there was no room for all of it, with
    the place before it; `_task`, its own while it has one; `_failed`, whether a write from outside has failed; and
    `_closed`, why it is to end.
    """

    __slots__ = ("_closed", "_failed", "_hub", "_task", "_waits", "live", "number", "subscriber", "written")

    def __init__(self, hub: Hub, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.written = 0.0
        self.number = -1
        self.live = False
        self._hub = hub
        self._waits: tuple[int, bytes] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._failed = False
        self._closed: str | None = None

    @abstractmethod
    async def run(self, begin: _Begin) -> None:
        """Send the head, by `begin()`, and what follows, for as long as the request's task is needed."""

    def abandon(self) -> None:
        """Instead of `run`: somebody else answers the request."""
        self._hub.disconnect(self)

    @abstractmethod
    def _write(self, body: bytes) -> bool:
        """Write without waiting; whether there was room, and the connection is not being lost, which takes nothing."""

    @abstractmethod
    async def _room(self) -> None:
        """Wait until there is room."""

    @abstractmethod
    def _handed(self, body: bytes) -> int:
        """How many bytes of the write that waits were handed to the socket."""

    @abstractmethod
    def _buffered(self) -> int:
        """How many bytes of all that was written the socket has yet to be handed, as far as that is known."""

    @abstractmethod
    def _wake(self) -> None:
        """Have a task look what is to be done: it is behind, or to be closed."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether its connection is lost and the server does not say so."""

    # -- for the broadcaster

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting; the log up to `position` is then said.  For live streams.

        Where the socket has no more room, the stream leaves the live set and goes on by itself.
        """
        try:
            room = self._write(body)
        except Exception as error:
            self._failed = True
            self.close(f"a write failed: {error!r}")
            return
        if room:
            self.subscriber.position = position
        else:
            self._keep(self._hub.broadcaster.place(self), body)
            self._hub.broadcaster.leave(self, position)
            self._wake()

    def said(self) -> tuple[int, int]:
        """How far what it wants was handed to its socket: wholly up to a place, and so many entries after it."""
        if self._waits is None:
            return self._hub.broadcaster.place(self), 0
        place, body = self._waits
        handed = self._handed(body)
        # A frame has no empty line but the one that ends it.
        return (self.subscriber.position, 0) if 0 < len(body) <= handed else (place, body[:handed].count(b"\n\n"))

    def close(self, reason: str) -> None:
        """End the response soon, and say in the log why."""
        if self._closed is None:
            self._closed = reason
            self._hub.broadcaster.leave(self, self._hub.broadcaster.place(self))
            self._wake()

    # -- for its task

    async def _catch_up(self) -> None:
        """Send what there is up to where the others are, and join them; unless the connection is lost meanwhile."""
        if not await self._drain():
            return
        subscriber, reading = self.subscriber, self._hub.reading(self)
        while (part := await reading.next()) is not None:
            if self.is_gone():  # nothing may be sent for long, so this is how it is noticed
                self.close("its connection is lost")
                return
            if subscriber.position == EARLIEST:
                subscriber.position = part.start
                self._hub.begins(self)
            frames: list[bytes] = []
            size = 0
            for entry in part.wanted:
                frames.append(entry.frame)
                size += len(entry.frame)
                if size >= _CHUNK:
                    if not await self._send(frames, entry.position):
                        return
                    frames, size = [], 0
            if frames and not await self._send(frames, part.end):
                return
            subscriber.position = part.end
        # No other task has run since the last look at where the others are, so no entry falls in between.
        self._hub.broadcaster.join(self)

    async def _send(self, frames: list[bytes], position: int) -> bool:
        """Write frames, and wait until there is room for more; its place is then `position`.

        Whether the connection is still there.
        """
        place, body = self.subscriber.position, b"".join(frames)
        room = self._write(body)
        self.subscriber.position = position
        if room:
            return True
        self._keep(place, body)
        return await self._drain()

    def _keep(self, place: int, body: bytes) -> None:
        """Remember a write that there was no room for, or that came too late."""
        # A connection that is closing takes it only behind what is still to be handed over.
        self._waits = place, body if not self.is_gone() or self._buffered() else b""

    async def _drain(self) -> bool:
        """Wait until what was written is handed over, and there is room; whether the connection is still there."""
        await self._room()
        if self.is_gone():
            if not self._buffered():  # else the server tells, when it has handed over the rest
                self.close("its connection is lost")
            return False
        self._waits = None
        return True

    def _begins(self) -> None:
        matchers = [f"{matcher.type}:{matcher.pattern:.80}" for matcher in self.subscriber.subscribed[:5]]
        log.info("subscriber connected", id=self.subscriber.id, first_matchers=matchers)
        if self._hub.shutdown.is_closing:
            self._closed = SHUTTING_DOWN

    def _is_over(self) -> None:
        self._hub.disconnect(self)
        log.info("subscriber disconnected", id=self.subscriber.id, reason=self._closed or "the client went away")

    def _first_bytes(self) -> bytes:
        return events.HEARTBEAT + self._hub.admission.retry_hint()


class TaskStream(Stream):
    """A stream behind any ASGI server, with the task of its request.

    All its mutable state, beside that of a Stream: `_pending`, a write that has suspended, with the future it waits
    for; and `_woken`, whether its task was woken by its own doing.
    """

    __slots__ = ("_cycle", "_pending", "_receive", "_server_send", "_woken")

    def __init__(self, hub: Hub, subscriber: Subscriber, send: _Send, receive: Receive, cycle: Any) -> None:
        super().__init__(hub, subscriber)
        self._server_send = send
        self._receive = receive
        self._cycle = cycle
        self._pending: tuple[Coroutine[Any, Any, None], Any] | None = None
        self._woken = False

    async def run(self, begin: _Begin) -> None:
        self._begins()
        try:
            self._pending = _step(self._begin(begin))
            await self._go_on()
        except OSError:  # how newer servers say in `send` that the client went away
            pass
        finally:
            self._is_over()
            if self._pending is not None:
                self._pending[0].close()

    async def _begin(self, begin: _Begin) -> None:
        await begin()
        await self._server_send(_message(self._first_bytes()))
        if self._cycle is not None:
            is_event_stream(self._cycle)

    async def _go_on(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None
        while self._closed is None:
            try:
                await self._catch_up()
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                return
            except asyncio.CancelledError:
                # Either our own waking, or somebody's wish that this task end; the count tells.
                if not self._woken or task.uncancel() > 0:
                    raise
                self._woken = False
            except PositionExpired as error:
                self._closed = str(error)
                self._write(events.LOST)
        self._end()

    def _end(self) -> None:
        """End the response, or cut the connection where its client does not even take that."""
        cut = self._pending is not None or self._failed or self.is_gone()
        if not cut:
            self._pending = _step(self._server_send({"type": "http.response.body", "body": b"", "more_body": False}))
            cut = self._pending is not None
        if cut and self._cycle is not None:
            cut_off(self._cycle)

    def _write(self, body: bytes) -> bool:
        self._pending = _step(self._server_send(_message(body)))
        return self._pending is None and not self.is_gone()

    async def _room(self) -> None:
        if self._pending is not None:
            await _finish(*self._pending)
            self._pending = None
            if self._waits is not None:
                self._keep(*self._waits)  # it is only now that it was written, or was not

    def _handed(self, body: bytes) -> int:
        return len(body) if self._pending is None else 0  # a server waits before it writes

    def _buffered(self) -> int:
        return 0 if self._cycle is None else self._cycle.transport.get_write_buffer_size()

    def _wake(self) -> None:
        if not self._woken and self._task is not None:  # before it runs, nothing needs to be woken
            self._woken = True
            self._task.cancel()

    def is_gone(self) -> bool:
        # uvicorn tells only the newest of the requests that a client has sent down one connection.
        return self._cycle is not None and self._cycle.transport.is_closing()


class ParkedStream(Stream):
    """A stream whose response is parked: the request's task is over, and it has one of its own while it catches up.

    All its mutable state, beside that of a Stream: `_is_parked`, whether the connection is its; and `_rest`, how many
    bytes were not handed to the socket, as far as that is known, when there was no more room.
    """

    __slots__ = ("_cycle", "_flow", "_is_parked", "_protocol", "_rest", "_transport")

    def __init__(self, hub: Hub, subscriber: Subscriber, protocol: ParkingProtocol, cycle: Any) -> None:
        super().__init__(hub, subscriber)
        self._protocol = protocol
        self._cycle = cycle
        self._transport = protocol.transport
        self._flow = protocol.flow
        self._is_parked = False
        self._rest = 0

    async def run(self, begin: _Begin) -> None:
        self._begins()
        self._task = asyncio.current_task()
        try:
            if (suspended := _step(begin())) is not None:
                if self._closed is not None:
                    self._transport.abort()
                await _finish(*suspended)
            self._is_parked = self._protocol.park(self._cycle, self)
        finally:
            self._task = self._cycle = None  # and with it goes all that was the request's
            if not self._is_parked:
                self._is_over()
        if not self._is_parked:
            return
        has_room = self._write(self._first_bytes())
        if self._closed is None and has_room and self.subscriber.position == self._hub.broadcaster.position:
            self._hub.broadcaster.join(self)
        else:
            self._wake()

    async def _go_on(self) -> None:
        try:
            await self._catch_up()
        except PositionExpired as error:
            self._write(events.LOST)
            self.close(str(error))
        except Exception as error:
            log.exception("a stream failed", id=self.subscriber.id)
            self.close(f"it failed: {error!r}")
        finally:
            self._task = None

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_parked:  # `run` looks itself when the head is sent, unless that is not to be waited for
            if self._closed is not None and self._task is not None:
                self._transport.abort()
        elif self._closed is not None:
            loop.call_soon(self._end)
        elif self._task is None:
            self._task = loop.create_task(self._go_on())

    def _end(self) -> None:
        """End the response, or cut the connection where its client does not even take that."""
        if not self._is_parked:
            return
        if self.is_gone() and not self._buffered():
            # The event loop says in this moment how it was lost, if it ever does.
            asyncio.get_running_loop().call_soon(self._cut)
            return
        cut = self._failed or self._flow.write_paused or self.is_gone()
        if not cut:
            self._transport.write(_LAST_CHUNK)
            cut = self._flow.write_paused
        if cut:
            self._rest = self._buffered()
            self._cut()
        else:
            self._protocol.unpark()
            self._finish()

    def _cut(self) -> None:
        if self._is_parked:
            self._transport.abort()
            self._finish()

    def lost(self, error: Exception | None) -> None:
        """The connection is lost, or was closed when all was handed to the socket."""
        if self._is_parked:
            if error is None:
                self._rest = 0
            self._finish()

    def _finish(self) -> None:
        self._is_parked = False
        if self._task is not None:
            self._task.cancel()
        self._is_over()

    def _write(self, body: bytes) -> bool:
        self._transport.write(_chunk(body))
        if self._flow.write_paused:
            self._rest = self._buffered()
            return False
        return not self.is_gone()

    async def _room(self) -> None:
        await self._flow.drain()

    def _handed(self, body: bytes) -> int:
        return max(0, len(body) - max(0, self._rest - len(_LINE_END)))

    def _buffered(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_gone(self) -> bool:
        return self._transport.is_closing()


def _message(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


_LINE_END: Final = b"\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_chunked: tuple[bytes, bytes] = b"", b""


def _chunk(body: bytes) -> bytes:
    """`body` in HTTP/1.1's chunked coding.  The last one is remembered, as many streams are written the same."""
    global _chunked
    last, chunk = _chunked
    if last is not body:
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        _chunked = body, chunk
    return chunk


async def _nothing() -> AsyncIterator[bytes]:
    """The content that EventSourceResponse asks for; a Stream is written to instead."""
    return
    yield


def _step(coroutine: Coroutine[Any, Any, None]) -> tuple[Coroutine[Any, Any, None], Any] | None:
    """Run `coroutine` up to where it suspends.  None if it ended, else it and what it waits for."""
    try:
        return coroutine, coroutine.send(None)
    except StopIteration:
        return None


@types.coroutine
def _finish(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Finish inside a task what was begun by `_step`.

    `await coroutine` would start by sending it a None that it does not expect; so its first future is handed
    to the event loop here, and from then on everything is passed through.
    """
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(sent)
    except StopIteration:
        return

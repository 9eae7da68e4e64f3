"""The event stream of one subscriber: a state machine that writes to a connection.

    state              event                                         next state
    OPENING            head sent, the history has newer entries      CATCHING_UP
                       head sent, nothing to catch up with           LIVE
                       head sent, no room in the socket              BEHIND
    CATCHING_UP        end of the dispatched history reached         LIVE
                       no room                                       BEHIND
    LIVE               no room                                       BEHIND
    BEHIND             room again                                    CATCHING_UP
    any of the above   close(reason)                                 CLOSING
    CLOSING            response finished, or connection aborted      CLOSED
    any of the above   connection lost                               CLOSED

While a stream is LIVE, dispatches write to it, and no task runs for it.  If the socket
has no room, the stream falls BEHIND: it leaves the live seats with its position, and
reads on in the history when there is room again.  One loop therefore serves replay, the
change from replay to live, and slow readers (`reading`).  A slow reader costs one
pending write, however far behind it is.

Belongs here: the state of a stream and its position, which nothing else knows.  Does
not belong here: topics, and anything of HTTP but the calls of a `Connection`.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import structlog

from hub.delivery.reading import CHUNK_BYTES
from hub.delivery.seat import Ending
from hub.errors import PositionExpired
from hub.protocol import events

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from hub.delivery.delivery import Delivery
    from hub.delivery.reading import Reading
    from hub.delivery.seat import Seat
    from hub.delivery.subscriber import Subscriber
    from hub.history.cursor import Start

    Head: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

log = structlog.stdlib.get_logger("hub")


class State(StrEnum):
    """The states of a stream."""

    OPENING = auto()
    """The stream has a seat or is about to take one, and its head is not sent yet."""
    CATCHING_UP = auto()
    """A task reads the history and writes to the connection, which has room."""
    LIVE = auto()
    """The stream's seat is live; no task runs for it."""
    BEHIND = auto()
    """The connection had no room after the last write."""
    CLOSING = auto()
    """The stream ends within a turn or two of the event loop."""
    CLOSED = auto()
    """The stream is over; the connection may serve the next request."""


TRANSITIONS: Final = {
    State.OPENING: {State.CATCHING_UP, State.LIVE, State.BEHIND, State.CLOSING, State.CLOSED},
    State.CATCHING_UP: {State.LIVE, State.BEHIND, State.CLOSING, State.CLOSED},
    State.LIVE: {State.BEHIND, State.CLOSING, State.CLOSED},
    State.BEHIND: {State.CATCHING_UP, State.CLOSING, State.CLOSED},
    State.CLOSING: {State.CLOSED},
    State.CLOSED: set(),
}
"""The states that may follow each state."""

# Variables, because an attribute of an enum takes long before Python 3.12.
_OPENING, _CATCHING_UP, _LIVE, _BEHIND, _CLOSING, _CLOSED = State


class Connection(Protocol):
    """The connection that a stream writes to.

    There are two: `AsgiConnection` and `UvicornConnection`.  A connection may call
    `stream.lost(error)` and `stream.sent_more()`.
    """

    async def begin(self, head: Head, stream: Stream, *, wait: bool) -> bool:
        """Call `head`, and take over the connection for `stream`.

        The head is then sent, or will be with the first bytes.  Returns False if the
        connection is lost, or if the client has sent more than its request.  If `wait`
        is false, aborts instead of waiting for room.
        """
        ...

    def write_first(self, body: bytes) -> bool:
        """Write the first bytes of the body, and the head unless it is sent.

        The result is that of `write`.  Must be called once, after `begin`.
        """
        ...

    def write(self, body: bytes, shared: bool = True) -> bool:
        """Write without waiting; `shared` is whether others get the same body.

        Returns False if there is now no room for more, or if the connection is closing,
        in which case `body` may have been dropped.
        """
        ...

    async def drain(self) -> bool:
        """Wait until there is room.  Returns False if the connection is closing."""
        ...

    def unsent(self) -> int:
        """Return how many bytes of the last write were not handed to the socket.

        If the write was dropped, the number is larger than its length.  After the
        connection is lost or aborted, the number stays as it was then.  After a clean
        close it is 0, unless the write was dropped.
        """
        ...

    def buffered(self) -> int:
        """Return how many bytes of all writes wait to be handed to the socket.

        Returns 0 if that is unknown.
        """
        ...

    def is_flushed(self) -> bool:
        """Return whether the client's system has taken all that was written.

        Returns False if that is unknown.
        """
        ...

    def is_closing(self) -> bool:
        """Return whether the connection accepts no more, even if nothing reports it."""
        ...

    def start(self, work: Work) -> None:
        """Run `work` in a new task, or in the request's task, which is woken.

        At most one piece of work runs at a time.
        """
        ...

    def finish(self) -> bool:
        """Write the end of the response, at once or in the request's task.

        Returns False if there is no room for it, or if the connection is closing.
        """
        ...

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once.  Does nothing before `begin`.

        If it is to be `reset`, the kernel drops what it has buffered, so that the
        client receives nothing more.
        """
        ...

    def stop(self) -> None:
        """Cancel the work, make `serve` return, and forget the stream."""
        ...

    async def serve(self) -> bool:
        """Keep the request's task until the response no longer needs it.

        Returns True if the response is over, and False if it goes on without the task.
        """
        ...


class Stream:
    """One subscriber on one connection: the holder of a seat, and its outlet.

    A stream must be used from one event loop.  Its methods are called by delivery and
    by the connection, and none of them waits, except `open` and `run`.
    """

    __slots__ = (
        "_connection",
        "_delivery",
        "_must_cut",
        "_owes_position",
        "_position",
        "_start",
        "_unwritten",
        "reason",
        "seat",
        "state",
    )

    def __init__(self, delivery: Delivery, connection: Connection) -> None:
        self.state = _OPENING
        self.reason: Ending | None = None  # why the hub closed it; None if the connection was lost
        self.seat: Seat
        self._delivery = delivery
        self._connection = connection
        # Everything that the subscriber wants up to here was written, if not yet handed
        # to the socket; see `position`.
        self._position = 0
        # The position before the last write, and its bytes, if it did not fit.
        self._unwritten: tuple[int, bytes] | None = None
        self._start: Start | None = None  # how it began, if its client wants signals
        self._owes_position = False  # whether it has yet to say that it has caught up (R93)
        self._must_cut = False  # whether a write has failed, and so the connection's state is unknown

    @property
    def position(self) -> int:
        """The position up to which it was sent every entry that it wants."""
        # A finished dispatch has reached all live seats.  Those that wanted none of its
        # entries were not written to, so their own position is older.  During a
        # dispatch, the position of one that was already written to is newer.
        return max(self._position, self._delivery.dispatched) if self.state is _LIVE else self._position

    async def open(self, subscriber: Subscriber) -> None:
        """Take a seat for a subscriber, before the head is sent.

        If a client has the head, every later update reaches it (R20).  Raises the
        errors of `Delivery.take_seat`.
        """
        self._position = subscriber.start
        self._start = subscriber.signals
        self._owes_position = self._start is not None
        self.seat = await self._delivery.take_seat(subscriber, self)

    async def run(self, head: Head) -> None:
        """Send the head by calling `head`, and begin the stream.

        Must be called in the request's task, after `open`.  Returns when the task is no
        longer needed; the stream itself may go on.  If the task is cancelled, the
        stream ends.
        """
        delivery, connection = self._delivery, self._connection
        # During a shutdown, the stream is accepted and ends at once, because an
        # EventSource reconnects after the end of a stream, but never after a 503.
        if delivery.closing is not None:
            self.close(delivery.closing)
        is_over = True
        try:
            if await connection.begin(head, self, wait=self.state is _OPENING):
                self._begin()
                is_over = await connection.serve()
        finally:
            if is_over:
                self.lost(None)

    def _begin(self) -> None:
        """Write the first bytes, and choose the next state."""
        delivery, connection = self._delivery, self._connection
        seconds = delivery.hint(ends=delivery.closing is not None)
        first, has_room = events.first_bytes(seconds), False
        if self._start is not None:
            first += self._first_signals(self._start, seconds)
        try:
            has_room = connection.write_first(first)
        except Exception as error:
            self._fail(error)
        if self.state is _CLOSING:  # closed just now, or before its head was sent
            self._end_soon()
        elif not has_room:
            self._to(_BEHIND)
            connection.start(self._catch_up)
        elif self._position == delivery.position:
            self._join()
        else:
            self._to(_CATCHING_UP)
            connection.start(self._catch_up)

    def _first_signals(self, start: Start, seconds: float | None) -> bytes:
        """Return the signals with which the stream begins (R91)."""
        signals = self._delivery.signals
        first = signals.first(start, self.seat.subscriber.grant)
        if self.reason is not None:
            return first + signals.goodbye(start, self._position, self.reason, seconds)
        if self._position != self._delivery.position:
            return first
        self._owes_position = False
        return first + signals.position(self._position)

    # -- for delivery

    def write(self, body: bytes, position: int) -> None:
        """Write the frames up to `position` to a live stream, without waiting.

        If the socket has no room for more, the stream leaves the live seats and catches
        up later.
        """
        try:
            has_room = self._connection.write(body)
        except Exception as error:
            self._fail(error)
            return
        if has_room:
            if position > self._position:
                self._position = position
        else:
            before = self.position
            self._unwritten = before, body
            self._leave(max(before, position))
            self._delivery.observer.fell_behind()
            self._to(_BEHIND)
            self._connection.start(self._catch_up)

    def is_lost(self) -> bool:
        """Return whether the connection is lost, even if nothing has reported it."""
        return self._connection.is_closing()

    # -- for the connection, and for everything that ends a stream

    def close(self, reason: Ending) -> bool:
        """End the response soon.

        A second call does nothing, and returns False: the first reason counts.
        """
        if self.state in (_CLOSING, _CLOSED):
            return False
        self.reason = reason
        # What is buffered was written before the command, and must not follow it.
        if reason is Ending.KICKED and (self._start is None or not self._connection.is_flushed()):
            self._must_cut = True
        if self.state is _LIVE:
            self._leave(self.position)
        # While the head is being sent, the abort ends `begin`.  Before that, it does
        # nothing, and `_begin` ends the stream.
        if self.state is _OPENING:
            self._connection.abort(reset=reason is Ending.KICKED)
        else:
            self._write_last(reason)
            self._end_soon()
        self._to(_CLOSING)
        return True

    def _write_last(self, reason: Ending) -> None:
        """Write why the stream ends, as far as that is wanted and there is room."""
        last = events.LOST if reason is Ending.TOO_FAR_BEHIND else b""
        if self._start is not None and not self._must_cut and self.state is not _BEHIND:
            last += self._delivery.signals.goodbye(self._start, self._position, reason, self._delivery.hint())
        if last:
            try:
                self._connection.write(last, False)
            except Exception as error:
                self._must_cut = True
                log.warning("a write to a subscriber failed", id=self.seat.subscriber.id, error=repr(error))

    def sent_more(self) -> None:
        """End the response soon, because the client has sent more than its request."""
        self.close(Ending.SENT_MORE)

    def lost(self, error: Exception | None) -> None:
        """Note that the connection is lost, or that its client has closed it.

        A second call does nothing.
        """
        if self.state is not _CLOSED:
            self._close()

    def _fail(self, error: Exception) -> None:
        """End the response without its end, because a write has failed."""
        self._must_cut = True
        log.warning("a write to a subscriber failed", id=self.seat.subscriber.id, error=repr(error))
        self.close(Ending.FAILED)

    def _end_soon(self) -> None:
        # Not at once, because the caller may be a dispatch, or the connection itself.
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """Finish the response; abort the connection if it has no room for the end."""
        if self.state is not _CLOSING:
            return
        if self._connection.is_closing() and not self._connection.buffered():
            # If the event loop reports how the connection was lost, it does so in this
            # turn, so abort only in the next one.
            asyncio.get_running_loop().call_soon(self._cut)
        elif self._must_cut or not self._finish():
            self._cut()
        else:
            self._close()

    def _finish(self) -> bool:
        """Finish the response; return False if that is impossible."""
        try:
            return self._connection.finish()
        except Exception as error:
            log.warning("the end of a stream failed", id=self.seat.subscriber.id, error=repr(error))
            return False

    def _cut(self) -> None:
        if self.state is _CLOSING:
            try:
                self._connection.abort(reset=self.reason is Ending.KICKED)
            finally:
                self._close()

    def _close(self) -> None:
        position, more = self._delivered()
        self._to(_CLOSED)
        self._delivery.vacate(self.seat, position, more, self.reason or Ending.CLIENT_LEFT)
        self._connection.stop()

    def _delivered(self) -> tuple[int, int]:
        """Return the last position fully handed to the socket, and the frames beyond.

        The second value is the number of frames of the last write that were handed to
        the socket, if only a part of it was; otherwise 0.
        """
        if self._unwritten is None:
            return self.position, 0
        before, body = self._unwritten
        handed = len(body) - self._connection.unsent()
        if handed >= len(body):
            return self._position, 0
        # A frame ends with an empty line, and contains no other.
        return before, body[: max(0, handed)].count(b"\n\n")

    # -- for the task that catches up

    async def _catch_up(self) -> None:
        """Read the history up to the position of the live streams, and join them."""
        began = self._delivery.clock()
        try:
            await self._read_on()
        except PositionExpired:
            self.close(Ending.TOO_FAR_BEHIND)
        except Exception:
            log.exception("a stream failed", id=self.seat.subscriber.id)
            self.close(Ending.FAILED)
        if self.state is _LIVE:
            self._delivery.observer.caught_up(self._delivery.clock() - began)

    async def _read_on(self) -> None:
        # 1. Wait until the last write is handed over.
        if self.state is _BEHIND and not await self._drain():
            return
        # 2. Read and write a page at a time.
        reading = self._delivery.reading(self.seat, self._position)
        while await self._read_to_end(reading):
            # 3. Join the live streams.  There is no await between the end of the last
            #    read and the join, so no entry is missed.
            if not self._owes_position or self._write_position():
                self._join()
                return
            if not await self._drain():
                return

    async def _read_to_end(self, reading: Reading) -> bool:
        """Read the history, and write what is wanted, up to the live streams.

        Returns False if the caller must stop.
        """
        while (part := await reading.next()) is not None:
            if self.is_lost():  # no write may notice it, if little of the history is wanted
                self.close(Ending.CONNECTION_LOST)
            if self.state is not _CATCHING_UP:
                return False
            if part.start != self._position:  # the earliest position is known only now
                self._position = part.start
                self._delivery.begin(self.seat, part.start)
            frames: list[bytes] = []
            size = 0
            for entry in part.wanted:
                frames.append(entry.frame)
                size += len(entry.frame)
                if size >= CHUNK_BYTES:
                    if not await self._send(frames, entry.position):
                        return False
                    frames, size = [], 0
            if frames and not await self._send(frames, part.end):
                return False
            self._position = part.end
            if not await self._beat():
                return False
        return self.state is _CATCHING_UP

    async def _beat(self) -> bool:
        """Write a heartbeat if its client wants signals, and one is due.

        So a client that waits for little of a long history sees that the stream is
        alive, and its cursor moves on.  Returns False if the caller must stop.
        """
        if self._start is None:
            return True
        now, signals = self._delivery.clock(), self._delivery.signals
        if now < self.seat.beaten + signals.interval:
            return True
        self.seat.beaten = now
        return self._write_signal(signals.heartbeat(self._position)) or await self._drain()

    def _write_position(self) -> bool:
        """Write that the stream has caught up; return False if there is no room."""
        self._owes_position = False
        return self._write_signal(self._delivery.signals.position(self._position))

    def _write_signal(self, body: bytes) -> bool:
        """Write a signal; return False if there is no room for more."""
        if self._connection.write(body, False):
            return True
        self._unwritten = self._position, body
        self._to(_BEHIND)
        return False

    async def _send(self, frames: list[bytes], position: int) -> bool:
        """Write the frames up to `position`, and wait until there is room for more.

        Returns False if the caller must stop.
        """
        before, body = self._position, b"".join(frames)
        has_room = self._connection.write(body, False)
        self._position = position
        self._delivery.observer.sent(len(frames), len(body))
        if has_room:
            return True
        self._unwritten = before, body
        self._to(_BEHIND)
        return await self._drain()

    async def _drain(self) -> bool:
        """Wait until the last write is handed over, and there is room for more.

        Returns False if the caller must stop.
        """
        has_room = await self._connection.drain()
        if self.state is not _BEHIND:
            return False
        if not has_room:
            # If bytes are still buffered, the connection reports its loss after it has
            # handed them over.
            if not self._connection.buffered():
                self.close(Ending.CONNECTION_LOST)
            return False
        self._unwritten = None
        self._to(_CATCHING_UP)
        return True

    # -- transitions

    def _to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _join(self) -> None:
        self._to(_LIVE)
        self._delivery.join(self.seat, self, self._position)

    def _leave(self, position: int) -> None:
        self._delivery.leave(self.seat)
        self._position = position

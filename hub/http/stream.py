"""The event stream of one subscriber: a state machine that writes to a connection.

    OPENING ──head sent──► CATCHING_UP ──caught up──► LIVE ──no room──► BEHIND ──room──► CATCHING_UP ──no room──► BEHIND
       any ──close(reason)──► CLOSING ──finished or aborted──► CLOSED          any ──connection lost──► CLOSED

While a stream is LIVE, the broadcaster writes to it: if the socket has room, nothing is awaited and no task runs.  If
it has none, the stream has fallen BEHIND: it leaves the live set with its position, and later reads on in the history.
So replay, the seam between replay and live, and slow readers are one loop (`hub.reading`), and a slow reader costs one
pending write, however far it is behind.

A stream owns its state and its position.  While it is LIVE, it has been sent everything up to the end of the last
finished dispatch, even if its own position is older.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import structlog

from hub.errors import PositionExpired
from hub.history.base import EARLIEST
from hub.protocol import events
from hub.reading import CHUNK_BYTES
from hub.shutdown import SHUTTING_DOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from hub.hub import Hub
    from hub.subscriber import Subscriber

    Head: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

log = structlog.stdlib.get_logger("hub")


class State(Enum):
    """What a stream does."""

    OPENING = auto()
    """It is known to the broadcaster, and its head is not sent yet."""
    CATCHING_UP = auto()
    """It reads the history, and there is room for what it writes."""
    LIVE = auto()
    """It is in the broadcaster's live set; no task of it runs."""
    BEHIND = auto()
    """There was no room for its last write."""
    CLOSING = auto()
    """It ends within a turn or two of the event loop."""
    CLOSED = auto()
    """It is over, and its connection belongs to another."""


TRANSITIONS: Final = {
    State.OPENING: {State.CATCHING_UP, State.LIVE, State.BEHIND, State.CLOSING, State.CLOSED},
    State.CATCHING_UP: {State.LIVE, State.BEHIND, State.CLOSING, State.CLOSED},
    State.LIVE: {State.BEHIND, State.CLOSING, State.CLOSED},
    State.BEHIND: {State.CATCHING_UP, State.CLOSING, State.CLOSED},
    State.CLOSING: {State.CLOSED},
    State.CLOSED: set(),
}
"""The states that may follow each state."""


class Connection(Protocol):
    """What a stream is written to: `asgi_connection` or `uvicorn_connection`.

    It calls back `stream.lost(error)` and `stream.close(reason)`.
    """

    async def begin(self, head: Head, stream: Stream, *, wait: bool) -> bool:
        """Send the head, and take the connection over.

        Returns False if the connection is lost, or its client has sent more.  Without `wait` it aborts rather than
        wait for room.
        """
        ...

    def write(self, body: bytes) -> bool:
        """Write without waiting.

        Returns False if there is no room for more now, or the connection is closing, which may have dropped it.
        """
        ...

    async def drain(self) -> bool:
        """Wait until there is room.  Returns False if the connection is closing."""
        ...

    def unsent(self) -> int:
        """Return how many bytes of the last write were not handed to the socket, or more if it was dropped.

        The number stays as it is when the connection is lost or aborted.  A clean close leaves only what was dropped.
        """
        ...

    def buffered(self) -> int:
        """Return how many bytes of all writes have still to be handed over, as far as that is known."""
        ...

    def is_closing(self) -> bool:
        """Return whether it takes no more, though nothing may report that."""
        ...

    def start(self, work: Work) -> None:
        """Run `work` in a task, one at a time: a new task, or that of the request, which is woken."""
        ...

    def finish(self) -> bool:
        """Write the end of the response.  Returns False if there is no room for it."""
        ...

    def abort(self) -> None:
        """Cut the connection; before `begin` it does nothing."""
        ...

    def stop(self) -> None:
        """Cancel the work, have `serve` return, and forget the stream."""
        ...

    async def serve(self) -> bool:
        """Hold the task of the request for as long as the response needs it.  Returns whether the response is over."""
        ...


class Stream:
    """One subscriber on one connection, as the broadcaster sees it (`broadcaster.Receiver`)."""

    __slots__ = (
        "_connection",
        "_hub",
        "_must_cut",
        "_unwritten",
        "live",
        "number",
        "position",
        "reason",
        "state",
        "subscriber",
        "written",
    )

    def __init__(self, hub: Hub, subscriber: Subscriber, connection: Connection) -> None:
        self.subscriber = subscriber
        self.state = State.OPENING
        self.position = subscriber.start
        """It has been sent what it wants of the history up to there; see `Broadcaster.reached`."""
        self.reason: str | None = None
        """Why it is closed; None if its client or its connection has ended it."""
        self.live = False
        self.number = -1
        self.written = 0.0
        self._hub = hub
        self._connection = connection
        self._unwritten: tuple[int, bytes] | None = None
        """The write that there was no room for, and the position before it."""
        self._must_cut = False
        """Whether the connection is in an unknown state, because a write has failed."""

    async def run(self, head: Head) -> None:
        """Send the head, by `head()`, and what follows, for as long as the task of the request is needed.

        The stream must be connected to the hub.
        """
        hub, connection = self._hub, self._connection
        matchers = [f"{matcher.type}:{matcher.pattern:.80}" for matcher in self.subscriber.subscribed[:5]]
        log.info("subscriber connected", id=self.subscriber.id, first_matchers=matchers)
        if hub.shutdown.is_closing:
            self.close(SHUTTING_DOWN)
        is_over = True
        try:
            if await connection.begin(head, self, wait=self.state is State.OPENING):
                self._begin()
                is_over = await connection.serve()
        finally:
            if is_over:
                self.lost(None)

    def _begin(self) -> None:
        """Write the first bytes, and go on from there."""
        hub, connection = self._hub, self._connection
        has_room = False
        try:
            has_room = connection.write(events.HEARTBEAT + hub.admission.retry_hint())
        except Exception as error:
            self._must_cut = True
            self.close(f"a write failed: {error!r}")
        if self.state is State.CLOSING:  # or it was closed before its head was sent
            self._end_soon()
        elif not has_room:
            self._to(State.BEHIND)
            connection.start(self._catch_up)
        elif self.position == hub.broadcaster.position:
            self._join()
        else:
            self._to(State.CATCHING_UP)
            connection.start(self._catch_up)

    # -- for the broadcaster

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting; it has then been sent the history up to `position`.  For live streams.

        If the socket has no room for more, the stream leaves the live set, and goes on by itself.
        """
        try:
            has_room = self._connection.write(body)
        except Exception as error:
            self._must_cut = True
            self.close(f"a write failed: {error!r}")
            return
        if has_room:
            self.position = position
        else:
            self._unwritten = self._hub.broadcaster.reached(self), body
            self._leave(position)
            self._to(State.BEHIND)
            self._connection.start(self._catch_up)

    def delivered(self) -> tuple[int, int]:
        """Return the position up to which everything was handed to the socket, and the number of frames after it."""
        if self._unwritten is None:
            return self._hub.broadcaster.reached(self), 0
        before, body = self._unwritten
        handed = len(body) - self._connection.unsent()
        if handed >= len(body):
            return self.position, 0
        # A frame has no empty line but the one that ends it.
        return before, body[: max(0, handed)].count(b"\n\n")

    def is_lost(self) -> bool:
        """Return whether the connection is lost, though nothing has reported that."""
        return self._connection.is_closing()

    # -- for the connection, and for everything that ends a stream

    def close(self, reason: str) -> None:
        """End the response soon, and log why.  The first reason counts."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        self.reason = reason
        if self.live:
            self._leave(self._hub.broadcaster.reached(self))
        if self.state is State.OPENING:
            self._connection.abort()
        else:
            self._end_soon()
        self._to(State.CLOSING)

    def lost(self, error: Exception | None) -> None:
        """Take note that the connection is lost, or was closed by its client."""
        if self.state is not State.CLOSED:
            self._close()

    def _end_soon(self) -> None:
        # Not now: the caller may be a dispatch, or the connection itself.
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """Finish the response, or cut the connection if its client does not even take the end."""
        if self.state is not State.CLOSING:
            return
        if self._connection.is_closing() and not self._connection.buffered():
            # The event loop reports in this turn how it was lost, if it ever does.
            asyncio.get_running_loop().call_soon(self._cut)
        elif self._must_cut or not self._connection.finish():
            self._cut()
        else:
            self._close()

    def _cut(self) -> None:
        if self.state is State.CLOSING:
            self._connection.abort()
            self._close()

    def _close(self) -> None:
        self._to(State.CLOSED)
        self._hub.disconnect(self)
        self._connection.stop()
        log.info("subscriber disconnected", id=self.subscriber.id, reason=self.reason or "the client went away")

    # -- for the task that catches up

    async def _catch_up(self) -> None:
        """Read the history up to where the live streams are, and join them."""
        try:
            await self._read_on()
        except PositionExpired as error:
            self._connection.write(events.LOST)
            self.close(str(error))
        except Exception as error:
            log.exception("a stream failed", id=self.subscriber.id)
            self.close(f"it failed: {error!r}")

    async def _read_on(self) -> None:
        if self.state is State.BEHIND and not await self._drain():
            return
        reading = self._hub.reading(self)
        while (part := await reading.next()) is not None:
            if self.is_lost():  # there may be nothing to write for long, so this is how it is noticed
                self.close("its connection is lost")
            if self.state is not State.CATCHING_UP:
                return
            if self.position == EARLIEST:
                self.position = part.start
                self._hub.begins(self)
            frames: list[bytes] = []
            size = 0
            for entry in part.wanted:
                frames.append(entry.frame)
                size += len(entry.frame)
                if size >= CHUNK_BYTES:
                    if not await self._send(frames, entry.position):
                        return
                    frames, size = [], 0
            if frames and not await self._send(frames, part.end):
                return
            self.position = part.end
        # No await stands between the last look at the broadcaster's position and joining, so no entry falls in between.
        if self.state is State.CATCHING_UP:
            self._join()

    async def _send(self, frames: list[bytes], position: int) -> bool:
        """Write frames up to a position, and wait until there is room for more.  Returns False if it should end."""
        before, body = self.position, b"".join(frames)
        has_room = self._connection.write(body)
        self.position = position
        if has_room:
            return True
        self._unwritten = before, body
        self._to(State.BEHIND)
        return await self._drain()

    async def _drain(self) -> bool:
        """Wait until the last write is handed over, and there is room.  Returns False if it should end."""
        has_room = await self._connection.drain()
        if self.state is not State.BEHIND:
            return False
        if not has_room:
            if not self._connection.buffered():  # else the connection reports when it has handed over the rest
                self.close("its connection is lost")
            return False
        self._unwritten = None
        self._to(State.CATCHING_UP)
        return True

    # -- transitions

    def _to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _join(self) -> None:
        self._to(State.LIVE)
        self._hub.broadcaster.join(self)

    def _leave(self, position: int) -> None:
        self._hub.broadcaster.leave(self)
        self.position = position

"""The event stream of one subscriber: one task, written to from outside.

                 caught up                     a write does not finish at once
    catching up ───────────► live ─────────────────────────────────────────► behind
        ▲        the task waits for the client to go                           │
        └──────────────────────────────────────────────────────────────────────┘
                 the task finishes that write, then reads on in the log

While it is live, the broadcaster steps the server's `send` coroutine itself: where the socket has room, it
ends without suspending, and no task is switched.  Where it suspends, it holds the frames and the stream has
fallen behind: its own task is woken, finishes the coroutine, and reads what came after from the log.  So
replay, the seam between replay and live, and slow readers are one loop, and a slow reader costs one pending
write, however much there is to say.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import structlog
from sse_starlette import EventSourceResponse

from hub import sse
from hub.errors import OffTheLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator

    from starlette.types import Message, Receive, Scope, Send

    from hub.hub import Hub
    from hub.subscriber import Subscriber

    _Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]

log = structlog.stdlib.get_logger("hub")

SERVER_SEND = "hub.send"
"""Where the application leaves the server's own `send` in the scope, below whatever middleware wraps."""

_LOST = b": this subscriber fell behind the history, and updates were lost\n\n"
_SLICE = 0.002  # seconds of matching before others may run
_CHUNK = 2**16  # bytes of frames that are joined into one write while catching up


class Stream(EventSourceResponse):
    """The response to a subscribe request.

    All its mutable state: the subscriber's place; `_task`, its own, once it runs; `_pending`, a write that has
    suspended, with the future it waits for; `_failed`, whether one has failed; `_woken`, whether its task was woken
    by its own doing; and `_closed`, why it is to end.
    """

    def __init__(self, hub: Hub, subscriber: Subscriber, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(_nothing(), sep="\n", ping=0)
        self.raw_headers += headers
        self.subscriber = subscriber
        self.written = 0.0
        self.number = -1
        self._hub = hub
        self._send: _Send
        self._task: asyncio.Task[Any] | None = None
        self._pending: tuple[Coroutine[Any, Any, None], Any] | None = None
        self._failed = False
        self._woken = False
        self._closed: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)  # headers, and it ends
            return
        self._send = cast("_Send", scope.get(SERVER_SEND, send))
        await self._hub.connect(self)  # before the headers: whoever knows of the stream is in it (R20)
        matchers = [f"{matcher.type}:{matcher.pattern:.80}" for matcher in self.subscriber.subscribed[:5]]
        log.info("subscriber connected", id=self.subscriber.id, first_matchers=matchers)
        try:
            self._pending = _step(self._begin(send))
            if self._hub.closing:
                self._closed = "the hub is shutting down"
            await self._run(receive)
        except OSError:  # how newer servers say in `send` that the client went away
            pass
        finally:
            self._hub.disconnect(self)
            if self._pending is not None:
                self._pending[0].close()
            log.info("subscriber disconnected", id=self.subscriber.id, reason=self._closed or "the client went away")

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send(_chunk(sse.HEARTBEAT + self._hub.retry_hint()))

    async def _run(self, receive: Receive) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None
        while self._closed is None:
            try:
                await self._catch_up()
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            except asyncio.CancelledError:
                # Either our own waking, or somebody's wish that this task end; the count tells.
                if not self._woken or task.uncancel() > 0:
                    raise
                self._woken = False
            except OffTheLog as error:
                self._closed = str(error)
                self._pending = _step(self._send(_chunk(_LOST)))
        self._end()

    async def _catch_up(self) -> None:
        """Send what there is up to where the others are, and join them."""
        if self._pending is not None:
            await _finish(*self._pending)
            self._pending = None
        broadcaster, subscriber = self._hub.broadcaster, self.subscriber
        now = asyncio.get_running_loop().time
        yielded = now()
        while subscriber.position != (dispatched := broadcaster.position):
            page = await self._hub.read(subscriber)
            frames: list[bytes] = []
            size = 0
            for entry in page:
                if broadcaster.wants(self, entry.update):
                    frames.append(entry.frame)
                    size += len(entry.frame)
                if size >= _CHUNK:
                    await self._send(_chunk(b"".join(frames)))
                    frames, size = [], 0
                if now() - yielded > _SLICE:  # topics that nobody was asked about, and dear matchers
                    await asyncio.sleep(0)
                    if self.is_gone():  # as nobody is listening, and nothing may be sent for long
                        self.close("its connection is lost")
                    yielded = now()
            if frames:
                await self._send(_chunk(b"".join(frames)))
            if page:
                subscriber.position = page[-1].position
            elif dispatched == broadcaster.position:  # what there is to read was appended and not yet dispatched
                await broadcaster.moved()
        # No await stands between the check and joining, so no entry falls in between.
        broadcaster.join(self)

    def _end(self) -> None:
        """End the response, or cut the connection where its client does not even take that."""
        cut = self._pending is not None or self._failed or self.is_gone()
        if not cut:
            self._pending = _step(self._send({"type": "http.response.body", "body": b"", "more_body": False}))
            cut = self._pending is not None
        if cut:
            cycle = self._cycle
            if cycle is not None:
                cycle.disconnected = True  # as uvicorn does when a connection is lost
                cycle.transport.abort()

    @property
    def _cycle(self) -> Any:
        """uvicorn's side of this response, for what ASGI has no word for; None behind another server."""
        cycle = getattr(self._send, "__self__", None)
        return cycle if hasattr(cycle, "transport") else None

    # -- from outside its task

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting; the log up to `position` is then said.  For live streams.

        Where the socket has no room, the stream leaves the live set and its task goes on.
        """
        try:
            self._pending = _step(self._send(_chunk(body)))
        except Exception as error:
            self._failed = True
            self.close(f"a write failed: {error!r}")
            return
        if self._pending is not None:
            self._hub.broadcaster.leave(self, position)
            self._wake()

    def is_gone(self) -> bool:
        """Whether its connection is lost and the server does not say so.

        uvicorn tells only the newest of the requests that a client has sent down one connection.
        """
        cycle = self._cycle
        return cycle is not None and cycle.transport.is_closing()

    def close(self, reason: str) -> None:
        """End the response soon, and say in the log why."""
        if self._closed is None:
            self._closed = reason
            self._hub.broadcaster.leave(self, self.subscriber.position)
            self._wake()

    def _wake(self) -> None:
        if not self._woken and self._task is not None:  # before it runs, nothing needs to be woken
            self._woken = True
            self._task.cancel()


def _chunk(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


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

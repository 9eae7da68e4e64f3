"""A connection behind any ASGI server: the task of its request stays for as long as the response lasts.

The stream writes from outside the task: it steps the server's `send` coroutine itself, up to where that suspends, which
is how a server says that there is no room.  One suspended coroutine is kept at most; the task finishes it.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from starlette.types import Message, Receive

    Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]
    Head: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Link(Protocol):
    """What a server knows of a connection, and ASGI has no word for."""

    def is_closing(self) -> bool:
        """Return whether nothing more can be written, though the server may not say so."""
        ...

    def buffered(self) -> int:
        """Return how many bytes the server has yet to hand to the socket."""
        ...

    def abort(self) -> None:
        """Cut the connection."""
        ...

    def begin_stream(self) -> None:
        """Have the connection end when its client closes its half; the head was sent."""
        ...


class NoLink:
    """The link of a server that is not known."""

    def is_closing(self) -> bool:
        return False

    def buffered(self) -> int:
        return 0

    def abort(self) -> None:
        pass

    def begin_stream(self) -> None:
        pass


NO_LINK: Final = NoLink()


class AsgiConnection:
    """The connection of one request; see `stream.Connection`."""

    __slots__ = (
        "_is_dropped",
        "_is_lost",
        "_is_over",
        "_is_woken",
        "_link",
        "_pending",
        "_receive",
        "_send",
        "_task",
        "_work",
    )

    def __init__(self, send: Send, receive: Receive, link: Link = NO_LINK) -> None:
        self._send = send
        self._receive = receive
        self._link = link
        self._task: asyncio.Task[Any] | None = None
        """The request's, from `begin` to the end of `serve`."""
        self._pending: tuple[Coroutine[Any, Any, None], Any] | None = None
        """A write that has suspended, and the future that it waits for."""
        self._work: Work | None = None
        """What the task should run next."""
        self._is_woken = False
        """Whether the task was cancelled by this connection, and by nothing else."""
        self._is_dropped = False
        """Whether the last write came too late."""
        self._is_lost = False
        """Whether `send` has raised that the client went away."""
        self._is_over = False
        """Whether `serve` should return."""

    async def begin(self, head: Head, stream: object, *, wait: bool) -> bool:
        task = self._task = asyncio.current_task()
        assert task is not None
        begun = False
        try:
            suspended = _step(head())
            if suspended is not None:
                if not wait:
                    suspended[0].close()
                    self._link.abort()
                    return False
                await _finish(*suspended)
            self._link.begin_stream()
            begun = True
        except OSError:  # how newer servers say that the client went away
            pass
        except asyncio.CancelledError:
            if not self._is_woken or task.uncancel() > 0:
                raise
        finally:
            if not begun:
                self._task = None
        return begun

    def write(self, body: bytes) -> bool:
        try:
            self._pending = _step(self._send({"type": "http.response.body", "body": body, "more_body": True}))
        except OSError:
            self._is_lost = True
        return self._pending is None and not self._was_dropped()

    async def drain(self) -> bool:
        if self._pending is not None:
            try:
                await _finish(*self._pending)
            except OSError:
                self._is_lost = True
            self._pending = None
            self._was_dropped()  # only now it was written, or was not
        return not self.is_closing()

    def unsent(self) -> int:
        return _ALL if self._pending is not None or self._is_dropped else 0  # a server waits before it writes

    def buffered(self) -> int:
        return 0 if self._is_lost else self._link.buffered()

    def is_closing(self) -> bool:
        return self._is_lost or self._link.is_closing()

    def start(self, work: Work) -> None:
        self._work = work
        self._wake()

    def finish(self) -> bool:
        if self._pending is not None or self.is_closing():
            return False
        self._pending = _step(self._send({"type": "http.response.body", "body": b"", "more_body": False}))
        return self._pending is None

    def abort(self) -> None:
        if self._task is not None:  # before `begin` it does nothing
            self._link.abort()
            self._wake()

    def stop(self) -> None:
        self._is_over = True
        self._wake()

    async def serve(self) -> bool:
        task = self._task
        assert task is not None
        try:
            while not self._is_over:
                try:
                    work, self._work = self._work, None
                    if work is not None:
                        await work()
                    elif (await self._receive())["type"] == "http.disconnect":
                        return True
                except asyncio.CancelledError:
                    # Either this connection has woken its task, or the task should end; the count tells them apart.
                    if not self._is_woken or task.uncancel() > 0:
                        raise
                    self._is_woken = False
            return True
        finally:
            self._task = None
            if self._pending is not None:
                self._pending[0].close()

    def _wake(self) -> None:
        if not self._is_woken and self._task is not None and self._task is not asyncio.current_task():
            self._is_woken = True
            self._task.cancel()

    def _was_dropped(self) -> bool:
        """Return whether the connection is closing; then a write is sent only behind bytes that are still buffered."""
        is_closing = self.is_closing()
        self._is_dropped = is_closing and not self.buffered()
        return is_closing


_ALL: Final = 2**62


def _step(coroutine: Coroutine[Any, Any, None]) -> tuple[Coroutine[Any, Any, None], Any] | None:
    """Run `coroutine` up to where it suspends.  Returns None if it ended, else the coroutine and what it waits for."""
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

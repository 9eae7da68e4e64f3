"""A connection for any ASGI server: the request's task lasts as long as its response.

A stream may write while another task runs, such as a dispatch.  This connection then
runs `send` by hand, up to its first suspension.  A suspension means that the socket has
no room.  At most one suspended write is kept, and the request's task finishes it.

    write(body)   send() ends        -> True
                  send() suspends    -> False   drain(), in the task, finishes it
    finish()      the task awaits the last send(), for at most END_SECONDS

Meanwhile the request's task waits for a bell, which rings if there is work, or if the
response is over.  A second task waits for the client to disconnect, because only
`receive` reports that.

`send` is not the server's own if the application around the hub has middleware.  It may
then need a task, as `asyncio.timeout` and the streams of anyio do, may raise, and may
be slow.  So a write by hand runs as the request's task and in its context.
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from hub.timeouts import expire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping

    Message: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Message]]
    Send: TypeAlias = Callable[[Message], Awaitable[None]]
    Head: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
    Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


Given = TypeVar("Given")
Result = TypeVar("Result")


class Link(Protocol):
    """Access to the server's connection, for what ASGI does not offer."""

    def is_closing(self) -> bool:
        """Return whether the connection is closing, even if nothing reports it."""
        ...

    def buffered(self) -> int:
        """Return the number of bytes that are not handed to the socket yet."""
        ...

    def is_flushed(self) -> bool:
        """Return whether the client's system has taken all that was written."""
        ...

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, without sending its buffer.

        If it is to be `reset`, the kernel drops what it has buffered.
        """
        ...

    def begin_stream(self) -> None:
        """Note that the head of an event stream was sent.

        From now on, the connection ends if its client closes its half.
        """
        ...


class NoLink:
    """The link for an unknown server: it knows nothing and does nothing."""

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def buffered(self) -> int:
        """Return 0."""
        return 0

    def is_flushed(self) -> bool:
        """Return True: an unknown server resets no connection, so it may say more."""
        return True

    def abort(self, *, reset: bool = False) -> None:
        """Do nothing."""

    def begin_stream(self) -> None:
        """Do nothing."""


NO_LINK: Final = NoLink()

END_SECONDS: Final = 5.0
"""Seconds for the end of a response; a response that takes longer is cut."""


class AsgiConnection:
    """The connection of one request on any ASGI server; see `stream.Connection`."""

    __slots__ = (
        "_bell",
        "_has_end",
        "_is_dropped",
        "_is_lost",
        "_is_over",
        "_link",
        "_pending",
        "_receive",
        "_run",
        "_send",
        "_task",
        "_timeout",
        "_work",
    )

    def __init__(self, send: Send, receive: Receive, link: Link = NO_LINK) -> None:
        self._send = send
        self._receive = receive
        self._link = link
        self._task: asyncio.Task[Any] | None = None  # the request's, from `begin` to the end of `serve`
        # Runs a part of a write: in the task's context, and later in a copy of it.
        self._run: Callable[..., Any] = _call
        # A suspended write, and the future that it waits for.
        self._pending: tuple[Coroutine[Any, Any, None], Any] | None = None
        self._work: Work | None = None  # what the task runs next
        self._bell: asyncio.Future[None] | None = None  # what the task waits for, if it has nothing to do
        self._timeout: asyncio.Timeout | None = None  # interrupts what the task does when it expires
        self._is_dropped = False  # whether the last write came too late and was not sent
        self._is_lost = False  # whether `send` has raised that the client disconnected
        self._is_over = False  # whether `serve` should return
        self._has_end = False  # whether it should then write the end of the response

    async def begin(self, head: Head, stream: object, *, wait: bool) -> bool:
        """Send the head from the request's task; that task then belongs to `serve`.

        Returns False if the client has disconnected, if `abort` was called meanwhile,
        or if there is no room and `wait` is false.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
        begun = False
        try:
            async with asyncio.timeout(None) as self._timeout:
                suspended = self._step(head())
                if suspended is not None:
                    if not wait:
                        suspended[0].close()
                        self._link.abort()
                        return False
                    await self._rest_of(suspended)
            # Middleware may set variables with the head, and reset them with the end.
            self._run = copy_context().run
            self._link.begin_stream()
            begun = True
        except OSError:  # `abort`, or a newer server whose client has disconnected
            pass
        finally:
            self._timeout = None
            if not begun:
                self._task = None
        return begun

    def write_first(self, body: bytes) -> bool:
        """Write the first bytes; the head is sent."""
        return self.write(body)

    def write(self, body: bytes, shared: bool = True) -> bool:
        """Write without waiting, by running `send` up to its first suspension.

        Returns False if it was suspended, or if the connection is closing.
        """
        try:
            self._pending = self._step(_sent(self._send, body))
        except OSError:
            self._is_lost = True
        return self._pending is None and not self._was_dropped()

    async def drain(self) -> bool:
        """Finish a suspended write.  Returns False if the connection is closing."""
        if self._pending is not None:
            try:
                await self._rest_of(self._pending)
            except OSError:
                self._is_lost = True
            self._pending = None
            self._was_dropped()  # the write has only happened now, if at all
        return not self.is_closing()

    def unsent(self) -> int:
        """Return 0 if the last write was handed over, else more than its length."""
        # A server waits for room first: a suspended write has sent nothing.
        return _ALL if self._pending is not None or self._is_dropped else 0

    def buffered(self) -> int:
        """Return the number of buffered bytes that the server knows of.

        Returns 0 if the connection is lost, or if the server is unknown.
        """
        return 0 if self._is_lost else self._link.buffered()

    def is_flushed(self) -> bool:
        """Return whether the client's system has taken all that was written."""
        return self._pending is None and self._link.is_flushed()

    def is_closing(self) -> bool:
        """Return whether the connection is closing or lost."""
        return self._is_lost or self._link.is_closing()

    def start(self, work: Work) -> None:
        """Let the request's task run `work`."""
        self._work = work
        self._ring()

    def finish(self) -> bool:
        """Let `serve` write the end of the response when the stream stops.

        Returns False if there is no room for it, or if the connection is closing.
        """
        self._has_end = self._pending is None and not self.is_closing()
        return self._has_end

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, and interrupt what the request's task does.

        Does nothing before `begin`.  On an unknown server, a connection to be `reset`
        can only end as others do.
        """
        if self._task is not None:
            self._link.abort(reset=reset)
            if reset and self._link is NO_LINK:
                self.finish()
            self._interrupt()

    def stop(self) -> None:
        """Make `serve` return, and interrupt the work that it runs."""
        self._is_over = True
        self._ring()
        self._interrupt()

    async def serve(self) -> bool:
        """Run work until the response is over, or the client disconnects.

        Returns True: the response never outlives the request's task.  Raises what
        `receive` raises, and what `send` raises at the end.
        """
        watcher = asyncio.create_task(self._watch())
        try:
            while not self._is_over:
                work, self._work = self._work, None
                if work is not None:
                    await self._do(work)
                else:
                    self._bell = asyncio.get_running_loop().create_future()
                    await self._bell
            if watcher.done():
                watcher.result()  # raises what `receive` has raised
            if self._has_end:
                await self._write_end()
            return True
        finally:
            watcher.cancel()
            self._task = None
            if self._pending is not None:
                self._pending[0].close()

    async def _watch(self) -> None:
        """Wait until the client disconnects: the response is then over."""
        try:
            while not self._is_over:
                if (await self._receive())["type"] == "http.disconnect":
                    return
        finally:
            self.stop()

    async def _do(self, work: Work) -> None:
        """Run work, unless it is interrupted."""
        try:
            async with asyncio.timeout(None) as timeout:
                self._timeout = timeout
                await work()
        except TimeoutError:
            if not timeout.expired():
                raise  # it is not ours
        finally:
            self._timeout = None

    async def _write_end(self) -> None:
        """Write the end of the response, or cut it if that takes too long."""
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # of which TimeoutError is one
            self._link.abort()

    def _ring(self) -> None:
        """Wake the request's task, if it waits for something to do."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _interrupt(self) -> None:
        """Interrupt the head or the work that the request's task waits for.

        Does nothing if that task calls this itself.
        """
        if self._task is not asyncio.current_task():
            expire(self._timeout)

    def _was_dropped(self) -> bool:
        """Note whether the last write was dropped; return `is_closing()`.

        A closing connection accepts a write only if earlier bytes are still buffered.
        """
        is_closing = self.is_closing()
        self._is_dropped = is_closing and not self.buffered()
        return is_closing

    def _step(self, coroutine: Coroutine[Any, Any, None]) -> tuple[Coroutine[Any, Any, None], Any] | None:
        """Run `coroutine` up to its first suspension, as the request's task.

        Returns None if it ended, otherwise the coroutine and the future that it waits
        for.
        """
        own, running = self._task, asyncio.current_task()
        assert own is not None
        if own is not running:
            _change_task(running, own)
        try:
            return coroutine, self._run(coroutine.send, None)
        except StopIteration:
            return None
        finally:
            if own is not running:
                _change_task(own, running)

    @types.coroutine
    def _rest_of(self, suspended: tuple[Coroutine[Any, Any, None], Any]) -> Generator[Any, Any, None]:
        """Finish, inside the task, a coroutine that `_step` has started.

        A plain `await coroutine` would first send it a None, which it does not expect.
        This yields its first future to the event loop instead, and then passes
        everything through, including exceptions.
        """
        coroutine, waits_for = suspended
        run = self._run
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    waits_for = run(coroutine.throw, error)
                else:
                    waits_for = run(coroutine.send, sent)
        except StopIteration:
            return


_ALL: Final = 2**62
"""More bytes than any write has: nothing of the last write was handed over."""


def _call(do: Callable[[Given], Result], given: Given) -> Result:
    return do(given)


def _change_task(before: asyncio.Task[Any] | None, after: asyncio.Task[Any] | None) -> None:
    """Let another task, or none, be the current one of the event loop.

    asyncio documents both functions, for tasks of other kinds than its own.
    """
    loop = asyncio.get_running_loop()
    if before is not None:
        _leave_task(loop, before)
    if after is not None:
        _enter_task(loop, after)


async def _sent(send: Send, body: bytes) -> None:
    """Send a part of a response; `send` may return any awaitable, as ASGI says."""
    await send({"type": "http.response.body", "body": body, "more_body": True})

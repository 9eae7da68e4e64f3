"""A connection for any ASGI server, whatever its `send` is and does.

The streams of the second part have a real server and a real application around the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from hub import Settings
from hub.delivery.seat import Ending
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.http.embedding import HubApplication
from hub.hub import Hub
from hub.protocol.updates import Update
from hub.server.asgi import AsgiConnection
from tests.asgi import PATH, bearer, current_token
from tests.hub.serving import served
from tests.waiting import HANG, until
from tests.wire import Reply, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tests.hub.serving import Served

pytestmark = pytest.mark.anyio

CALLER: ContextVar[str] = ContextVar("caller")


async def receive() -> Message:
    await asyncio.Event().wait()  # the client stays
    raise AssertionError


async def send(message: Message) -> None:
    pass  # there is room, always


async def begun(send: Any, receive: Any = receive) -> AsgiConnection:
    """A connection whose request's task is the task of the test."""
    connection = AsgiConnection(send, receive)

    async def head() -> None:
        pass

    assert await connection.begin(head, object(), wait=True)
    return connection


class Suspending:
    """A `send` that waits twice, and logs what comes of it."""

    def __init__(self, *futures: asyncio.Future[Any]) -> None:
        self.log: list[Any] = []
        self._left = list(futures)

    async def __call__(self, message: Message) -> None:
        self.log.append("begun")
        try:
            self.log.append(await self._left.pop(0))
            self.log.append(await self._left.pop(0))
        except ValueError as error:
            self.log.append(str(error))
        finally:
            self.log.append("over")


# -- a write by hand


async def test_a_suspended_write_is_finished_by_the_task() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    send = Suspending(*futures)
    connection = await begun(send)
    assert not connection.write(b"1")
    assert send.log == ["begun"]
    futures[0].set_result(1)
    asyncio.get_running_loop().call_later(0.001, futures[1].set_exception, ValueError("thrown through"))
    assert await connection.drain()
    assert send.log == ["begun", 1, "thrown through", "over"]


async def test_a_suspended_write_is_cancelled_with_its_task() -> None:
    send = Suspending(asyncio.get_running_loop().create_future())

    async def work() -> None:
        connection = await begun(send)
        assert not connection.write(b"1")
        await connection.drain()

    task = asyncio.create_task(work())
    await until(lambda: send.log == ["begun"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert send.log == ["begun", "over"]


class Bare:
    """An awaitable that is no coroutine, as granian's: its iterator has no `send`."""

    def __init__(self, waits_for: asyncio.Future[None] | None = None) -> None:
        self._steps = iter(()) if waits_for is None else waits_for.__await__()

    def __await__(self) -> Generator[Any, Any, None]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> Bare:
        return self

    def __next__(self) -> Any:
        return next(self._steps)


async def test_send_may_return_any_awaitable() -> None:
    loop = asyncio.get_running_loop()
    for made in (Bare, asyncio.ensure_future):
        ready, later = loop.create_future(), loop.create_future()
        ready.set_result(None)
        answers = iter([made(ready), made(later)])
        connection = await begun(lambda _, answers=answers: next(answers))
        assert connection.write(b"1")
        assert not connection.write(b"2")
        loop.call_soon(later.set_result, None)
        assert await connection.drain()
    connection = await begun(lambda _: Bare())
    assert connection.write(b"1")


async def test_a_write_runs_as_the_task_of_the_request_and_in_its_context() -> None:
    seen: list[tuple[Any, str]] = []

    async def send(message: Message) -> None:
        token = CALLER.set(CALLER.get() + "!")
        seen.append((asyncio.current_task(), CALLER.get()))
        await asyncio.sleep(0)
        CALLER.reset(token)  # raises in another context

    CALLER.set("request")
    own = asyncio.current_task()
    connection = await begun(send)

    async def dispatch() -> None:
        CALLER.set("dispatch")
        assert not connection.write(b"1")
        assert (asyncio.current_task(), CALLER.get()) == (dispatching, "dispatch")

    dispatching = asyncio.create_task(dispatch())
    await dispatching
    assert await connection.drain()

    def in_no_task() -> None:
        assert not connection.write(b"2")
        assert asyncio.current_task() is None
        called.set()

    called = asyncio.Event()
    asyncio.get_running_loop().call_soon(in_no_task)
    await called.wait()
    assert await connection.drain()
    assert seen == [(own, "request!")] * 2


async def test_the_head_the_writes_and_the_end_have_the_variables_of_the_head() -> None:
    """Middleware may set a variable with the head, and reset it with the end."""
    seen: list[str] = []
    tokens: list[Token[str]] = []

    async def send(message: Message) -> None:
        seen.append(CALLER.get())
        if not message.get("more_body"):
            CALLER.reset(tokens.pop())  # raises in another context

    async def head() -> None:
        await asyncio.sleep(0)
        tokens.append(CALLER.set("head"))

    async def answer() -> None:
        CALLER.set("request")
        assert await connection.begin(head, object(), wait=True)
        assert CALLER.get() == "head"
        asyncio.get_running_loop().call_soon(write_and_end)
        assert await connection.serve()
        assert CALLER.get() == "request"

    def write_and_end() -> None:
        assert connection.write(b"1")
        assert connection.finish()
        connection.stop()

    connection = AsgiConnection(send, receive)
    await asyncio.wait_for(asyncio.create_task(answer()), HANG)
    assert seen == ["head", "head"]


async def test_a_timeout_of_send_interrupts_the_request_and_not_who_writes() -> None:
    async def send(message: Message) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.get_running_loop().create_future()

    connection = await begun(send)

    async def dispatch() -> None:
        assert not connection.write(b"1")
        await asyncio.sleep(0.01)

    dispatching = asyncio.create_task(dispatch())
    await asyncio.sleep(0)
    assert not await connection.drain()  # a TimeoutError is an OSError
    await dispatching
    assert connection.is_closing()


@pytest.mark.parametrize("swallows", [False, True])
async def test_the_wait_for_a_disconnect_ends_with_the_response(swallows: bool) -> None:
    waiting = 0

    async def receive() -> Message:
        nonlocal waiting
        waiting += 1
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not swallows:
                raise
        finally:
            waiting -= 1
        return {"type": "http.request"}

    async def answer() -> None:
        connection = await begun(send, receive)
        asyncio.get_running_loop().call_later(0.001, connection.stop)
        assert await connection.serve()

    before = len(asyncio.all_tasks())
    await asyncio.wait_for(asyncio.create_task(answer()), HANG)
    await until(lambda: len(asyncio.all_tasks()) == before)
    assert waiting == 0


async def test_an_error_of_receive_ends_the_response_and_is_raised() -> None:
    async def receive() -> Message:
        raise RuntimeError("the server has failed")

    connection = await begun(send, receive)
    with pytest.raises(RuntimeError, match="the server has failed"):
        await connection.serve()


async def test_an_abort_interrupts_a_head_that_waits_on_an_unknown_server() -> None:
    async def head() -> None:
        await asyncio.get_running_loop().create_future()

    async def never(*_: Any) -> Any:
        raise AssertionError

    connection = AsgiConnection(never, never)
    begins = asyncio.create_task(connection.begin(head, object(), wait=True))
    await asyncio.sleep(0)
    connection.abort()
    assert not await asyncio.wait_for(begins, HANG)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_to_be_reset_ends_as_others_do_on_an_unknown_server(reset: bool) -> None:
    sent: list[Message] = []

    async def note(message: Message) -> None:
        sent.append(message)

    connection = await begun(note)
    assert connection.write(b"1")
    connection.abort(reset=reset)
    connection.stop()
    assert await connection.serve()
    bodies = [(message["body"], message["more_body"]) for message in sent]
    assert bodies == [(b"1", True)] + [(b"", False)] * reset


async def test_a_timeout_of_the_work_itself_is_raised() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    connection = await begun(send)
    connection.start(work)
    with pytest.raises(TimeoutError, match="its own"):
        await asyncio.wait_for(connection.serve(), HANG)


async def test_a_disconnect_interrupts_the_work_of_a_stream() -> None:
    async def receive() -> Message:
        await works.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        works.set()
        await asyncio.get_running_loop().create_future()

    works = asyncio.Event()
    connection = await begun(send, receive)
    connection.start(work)
    assert await asyncio.wait_for(connection.serve(), HANG)


# -- the end of a stream, in an application with middleware


async def _plain(send: Send, message: Message) -> None:
    await send(message)


async def _in_a_timeout(send: Send, message: Message) -> None:
    async with asyncio.timeout(HANG):
        await send(message)


async def _in_a_cancel_scope(send: Send, message: Message) -> None:
    with anyio.fail_after(HANG):
        await send(message)


async def _slowly(send: Send, message: Message) -> None:
    await asyncio.sleep(0.001)
    await send(message)


async def _slowly_in_a_timeout(send: Send, message: Message) -> None:
    async with asyncio.timeout(HANG):
        await _slowly(send, message)


async def _in_a_context(send: Send, message: Message) -> None:
    token = CALLER.set("middleware")
    await _slowly(send, message)
    CALLER.reset(token)


async def _through_a_future(send: Send, message: Message) -> None:
    await asyncio.ensure_future(_slowly(send, message))


async def _failing_at_the_end(send: Send, message: Message) -> None:
    if message["type"] == "http.response.body" and not message.get("more_body"):
        raise RuntimeError("the middleware has failed")
    await send(message)


async def _failing_at_an_update(send: Send, message: Message) -> None:
    if b"data: fail" in message.get("body", b""):
        raise RuntimeError("the middleware has failed")
    await send(message)


WRAPPERS = {
    wrapper.__name__.strip("_"): wrapper
    for wrapper in (
        _plain,
        _in_a_timeout,
        _in_a_cancel_scope,
        _slowly,
        _slowly_in_a_timeout,
        _in_a_context,
        _through_a_future,
        _failing_at_the_end,
        _failing_at_an_update,
    )
}


class Wrapped:
    """Middleware that wraps `send`."""

    def __init__(self, app: ASGIApp, wrapper: Callable[[Send, Message], Awaitable[None]]) -> None:
        self._app = app
        self._wrapper = wrapper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, lambda message: self._wrapper(send, message))


async def _pass_on(request: Any, call_next: Any) -> Any:
    return await call_next(request)


def around(hub: HubApplication, kind: str) -> ASGIApp:
    """The application that the server gets."""
    if kind in WRAPPERS:
        return Wrapped(hub, WRAPPERS[kind])
    app = FastAPI(lifespan=lambda _: hub.running())
    if "function middleware" in kind:
        for _ in range(2 if "twice" in kind else 1):
            app.add_middleware(BaseHTTPMiddleware, dispatch=_pass_on)
    app.mount("/", hub)
    return Wrapped(app, WRAPPERS[kind.rpartition(" ")[2]]) if "outside" in kind else app


class Ended(Exception):
    """A stream has ended; `cleanly` if its response has an end."""


class Place:
    """A served hub whose clock the test advances."""

    def __init__(self) -> None:
        self.ahead = 0.0
        settings = Settings(dev=True, retry=0, max_lifetime=300, heartbeat=15, drain=0)
        loop_time = asyncio.get_running_loop().time
        self.hub = Hub(
            settings,
            MemoryHistory(Retention(100, 10**6)),
            clock=lambda: loop_time() + self.ahead,
            wall_clock=lambda: 1_800_000_000 + self.ahead,
        )
        self.app = HubApplication(self.hub)
        self.server: Served

    async def follow(self, *, expires: float | None = None) -> Reply:
        token = current_token(
            (),
            ["*"],
            resource=f"http://localhost:{self.server.port}{PATH}",
            now=1_800_000_000 + self.ahead,
            seconds=expires or 86_400,
        )
        count = self.hub.delivery.live_count
        reply = await request(self.server, "GET", f"{PATH}?match=a", [bearer(token)])
        assert reply.status == 200
        await until(lambda: self.hub.delivery.live_count == count + 1)
        await self.publish("hello", reply)
        return reply

    async def publish(self, data: str, *to: Reply) -> None:
        await self.hub.publish(Update(("a",), data))
        for reply in to:
            assert (await reply.next_event()).data == data

    async def advance(self, seconds: float) -> None:
        self.ahead += seconds
        await self.hub.delivery._heartbeats.tick()


@contextlib.asynccontextmanager
async def place(kind: str) -> AsyncIterator[Place]:
    place = Place()
    async with served(around(place.app, kind), access_log=False) as place.server:
        yield place


KINDS = [*WRAPPERS, "mounted", "function middleware", "function middleware twice", "function middleware outside slowly"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_stream_ends(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """By its lifetime, its grant, a lost history, a write that fails and a shutdown."""
    clean = kind != "failing_at_the_end"
    async with place(kind) as here:
        delivery = here.hub.delivery
        # A heartbeat is written in no task of a request.
        reply = await here.follow()
        await here.advance(20)
        assert b":" in await asyncio.wait_for(anext(reply.chunks()), HANG)
        # 1. its lifetime
        await here.advance(400)
        assert await reply.ends() is clean
        # 2. its grant
        reply = await here.follow(expires=100)
        await here.advance(99)
        assert await reply.ends() is clean
        # 3. a lost history
        reply = await here.follow()
        delivery.close_all(Ending.UPDATES_LOST)
        assert await reply.ends() is clean
        # 4. a write that fails
        if kind == "failing_at_an_update":
            reply = await here.follow()
            await here.publish("fail")
            assert not await reply.ends()
        # 5. a client that leaves
        reply = await here.follow()
        await reply.close()
        await until(lambda: delivery.connection_count == 0)
        # 6. a shutdown
        replies = [await here.follow() for _ in range(3)]
        await here.publish("last")
        here.hub.shutdown.begin()
    assert [await reply.ends() for reply in replies] == [clean] * 3
    assert delivery.connection_count == 0
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert all("failing" in kind and re.search("Exception in ASGI|without completing", error) for error in errors), (
        errors
    )

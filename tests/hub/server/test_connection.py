"""Connections before, during and after a detached stream, with uvicorn and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from hub import Settings, Update, create_app
from hub.delivery.seat import Ending
from hub.history.memory import MemoryHistory
from hub.server import connection as connections_of_uvicorn
from hub.server import http1, socket_options
from hub.server.asgi import AsgiConnection
from hub.server.connection import UvicornConnection
from hub.server.cycle import Cycle
from hub.server.http1 import AttachedProtocol, HttpProtocol
from hub.server.plain import HubProtocol
from hub.server.socket_options import tune_connection, tune_listener
from tests.hub.server.servers import ServerWire
from tests.hub.serving import sent, served
from tests.hub.world import World, world
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, Reply, bearer, publish, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hub.delivery.seat import Seat
    from hub.hub import Hub
    from tests.hub.serving import Served

pytestmark = pytest.mark.anyio

KINDS = pytest.mark.parametrize("http", [AttachedProtocol, HttpProtocol, HubProtocol], ids=["task", "detached", "hub"])
GET = f"GET {PATH}?match=a HTTP/1.1\r\nhost: x\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def hub_served(http: Any = HttpProtocol, **settings: Any) -> AsyncIterator[tuple[Hub, Served]]:
    app = create_app(Settings(**{"dev": True, "retry": 0, "max_lifetime": 0, "subscriptions": False} | settings))
    async with served(app, http=http, access_log=False) as server:
        yield app.state.hub, server


def requests() -> list[Any]:
    """Return the tasks of requests."""
    return [task for task in asyncio.all_tasks() if "run_asgi" in str(task.get_coro())]


def transport_of(stream: Any) -> Any:
    connection = stream._connection
    return connection._transport if isinstance(connection, UvicornConnection) else connection._link.transport


def streams(hub: Hub) -> list[Any]:
    return [seat.holder for seat in hub.delivery.audience]


def connections(hub: Hub) -> list[Any]:
    return [stream._connection for stream in streams(hub)]


# -- the resources of a stream


async def test_a_detached_stream_has_no_task_and_another_has_one() -> None:
    for http, kind, tasks in ((HttpProtocol, UvicornConnection, 0), (AttachedProtocol, AsgiConnection, 5)):
        async with hub_served(http) as (hub, server):
            replies = [await subscribe(server, ("match", "a")) for _ in range(5)]
            await until(lambda: hub.delivery.live_count == 5)
            await until(lambda: len(requests()) == tasks)  # noqa: B023
            assert {type(connection) for connection in connections(hub)} == {kind}
            if kind is UvicornConnection:
                kept = [one._protocol.cycle for one in connections(hub)]
                kept += [one._protocol.scope for one in connections(hub)] + [one._cycle for one in connections(hub)]
                assert kept == [None] * 15  # nothing of the request is kept
            await publish(server, ("topic", "a"), ("data", "x"))
            for reply in replies:
                assert (await reply.next_event()).data == "x"
                await reply.close()


async def test_a_stream_catches_up_without_a_task_unless_it_has_to_wait(tmp_path: Path) -> None:
    for url, waits in (("memory://", False), (f"sqlite:///{tmp_path}/log.db", True)):
        async with hub_served(HubProtocol, history_url=url) as (hub, server):
            last, *missed = [await publish(server, ("topic", "a"), ("data", str(n))) for n in range(4)]
            await until(lambda: hub.delivery.dispatched == 4)
            works: list[str] = []
            loop = asyncio.get_running_loop()

            def made(loop: Any, coroutine: Any, works: list[str] = works, **options: Any) -> asyncio.Task[Any]:
                works.append(repr(coroutine))
                return asyncio.Task(coroutine, loop=loop, **options)

            loop.set_task_factory(made)
            try:
                async with await subscribe(server, ("match", "a"), ("last_event_id", last)) as reply:
                    assert [(await reply.next_event()).id for _ in missed] == missed
                    await until(lambda: hub.delivery.live_count == 1)
                    (connection,) = connections(hub)
                    assert connection._task is None
                    new = await publish(server, ("topic", "a"))
                    assert (await reply.next_event()).id == new
            finally:
                loop.set_task_factory(None)
            assert any("UvicornConnection._run" in work for work in works) is waits


async def test_work_that_has_begun_without_a_task_and_waits_ends_with_its_stream() -> None:
    async with hub_served(HubProtocol) as (hub, server), await subscribe(server, ("match", "a")):
        await until(lambda: hub.delivery.live_count == 1)
        (connection,) = connections(hub)
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        asyncio.get_running_loop().call_soon(connection.start, work)  # no task runs then
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ended.is_set()
        connection.stop()
        await asyncio.wait_for(ended.wait(), HANG)


async def test_the_task_of_a_stream_runs_no_routes_and_no_middleware() -> None:
    async with hub_served(AttachedProtocol) as (hub, server), await subscribe(server, ("match", "a")):
        await until(lambda: hub.delivery.live_count == 1)
        (stream,) = streams(hub)
        files, coroutine = [], stream._connection._task.get_coro()
        while coroutine is not None and hasattr(coroutine, "cr_code"):
            files.append(coroutine.cr_code.co_filename)
            coroutine = coroutine.cr_await
        assert [file.rpartition("/")[2] for file in files if "/hub/" in file] == [
            "application.py",
            "stream.py",
            "asgi.py",
        ]
        assert not [file for file in files if "starlette" in file]


@KINDS
async def test_a_closed_connection_is_freed_without_the_garbage_collector(http: Any) -> None:
    """The collector scans old objects only once an hour."""
    async with hub_served(http) as (hub, server):

        async def come_and_go(count: int) -> None:
            replies = [await subscribe(server, ("match", "a"), last_event_id="x") for _ in range(count)]
            await publish(server, ("topic", "a"), ("data", "x"))
            for reply in replies:
                await reply.next_event()
                await reply.close()
            await until(lambda: hub.delivery.connection_count == 0)
            for _ in range(20):
                await asyncio.sleep(0)

        ours = {
            "Stream",
            "UvicornConnection",
            "AsgiConnection",
            "UvicornLink",
            "Subscriber",
            "HttpProtocol",
            "AttachedProtocol",
            "FlowControl",
            "Cycle",
        }

        def count() -> Counter[str]:
            return Counter(name for each in gc.get_objects() if (name := type(each).__name__) in ours)

        gc.collect()
        before = count()
        gc.disable()
        try:
            await come_and_go(20)
            assert count() <= before
        finally:
            gc.enable()


# -- the end of a stream


@KINDS
async def test_a_connection_can_be_reused_after_its_stream(http: Any) -> None:
    async with hub_served(http) as (hub, server), sent(server, GET) as reply:
        for _ in range(3):
            await until(lambda: hub.delivery.live_count == 1)
            transport = transport_of(streams(hub)[0])
            hub.delivery.close_all(Ending.SHUTDOWN)
            assert [event async for event in reply.events()] == []
            assert reply.ended
            assert transport.get_write_buffer_limits() == (2**14, 2**16)  # asyncio's defaults again
            assert hub.delivery.connection_count == 0
            reply.writer.write(f"GET {PATH}/health/live HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await reply.read_head()
            assert (reply.status, await reply.body()) == (200, b'{"status":"ok"}')
            reply.writer.write(GET)
            await reply.read_head()


@KINDS
async def test_a_connection_for_one_request_is_closed_after_its_stream(http: Any) -> None:
    request_ = f"GET {PATH}?match=a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with hub_served(http) as (hub, server), sent(server, request_.encode()) as reply:
        await until(lambda: hub.delivery.live_count == 1)
        hub.delivery.close_all(Ending.SHUTDOWN)
        assert [event async for event in reply.events()] == []
        assert await asyncio.wait_for(reply.reader.read(), HANG) == b""


async def test_a_connection_that_was_detached_has_the_usual_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings(dev=True, retry=0, subscriptions=False))
    async with (
        served(app, http=HttpProtocol, timeout_keep_alive=0) as server,
        sent(server, GET) as reply,
    ):
        await until(lambda: app.state.hub.delivery.live_count == 1)
        app.state.hub.delivery.close_all(Ending.SHUTDOWN)
        assert [event async for event in reply.events()] == []
        assert await asyncio.wait_for(reply.reader.read(), HANG) == b""


async def test_a_server_that_shuts_down_closes_connections_after_their_streams() -> None:
    app = create_app(Settings(dev=True, retry=0, subscriptions=False))
    async with served(app, http=HttpProtocol, timeout_keep_alive=1_000) as server, sent(server, GET) as reply:
        await until(lambda: app.state.hub.delivery.live_count == 1)
        connections(app.state.hub)[0]._protocol.shutdown()
        await publish(server, ("topic", "a"), ("data", "x"))
        assert (await reply.next_event()).data == "x"
        app.state.hub.delivery.close_all(Ending.SHUTDOWN)
        assert [event async for event in reply.events()] == []
        assert await asyncio.wait_for(reply.reader.read(), HANG) == b""


@pytest.mark.parametrize("more", [GET, b"x", b"\x00" * 1_000_000])
async def test_a_client_that_sends_data_on_a_detached_stream_is_disconnected(more: bytes) -> None:
    async with hub_served() as (hub, server), sent(server, GET) as reply:
        await until(lambda: hub.delivery.live_count == 1)
        (stream,) = streams(hub)
        reply.writer.write(more)
        await until(lambda: hub.delivery.connection_count == 0)
        assert stream.reason == "the client has sent more data"


async def test_empty_lines_after_a_request_are_ignored() -> None:
    async with hub_served() as (hub, server), sent(server, GET) as reply:
        await until(lambda: hub.delivery.live_count == 1)
        reply.writer.write(b"\r\n\r\n")
        await publish(server, ("topic", "a"), ("data", "x"))
        assert (await reply.next_event()).data == "x"


async def test_a_request_whose_body_is_still_to_come_is_not_detached() -> None:
    async with hub_served() as (hub, server), sent(server, GET[:-2] + b"content-length: 3\r\n\r\na") as reply:
        await until(lambda: hub.delivery.live_count == 1)
        assert type(connections(hub)[0]) is AsgiConnection
        await publish(server, ("topic", "a"), ("data", "x"))
        assert (await reply.next_event()).data == "x"


async def test_a_pipelined_request_waits_for_the_stream_before_it() -> None:
    async with hub_served() as (hub, server), sent(server, GET + GET) as reply:
        await until(lambda: hub.delivery.live_count == 1)
        assert type(connections(hub)[0]) is AsgiConnection
        hub.delivery.close_all(Ending.SHUTDOWN)
        assert [event async for event in reply.events()] == []
        await reply.read_head()
        await until(lambda: hub.delivery.live_count == 1)
        await publish(server, ("topic", "a"), ("data", "x"))
        assert (await reply.next_event()).data == "x"


@pytest.mark.parametrize("more", [GET, GET[:10], b"POST"])
async def test_a_client_that_sends_data_before_its_stream_begins_is_disconnected(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "HEAD_TIMEOUT", 1_000)
    async with hub_served() as (hub, server):
        take_seat, reached, go = hub.delivery.take_seat, asyncio.Event(), asyncio.Event()

        async def slowly(*arguments: Any) -> Seat:
            seat = await take_seat(*arguments)
            reached.set()
            await go.wait()
            return seat

        monkeypatch.setattr(hub.delivery, "take_seat", slowly)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        await reached.wait()
        assert type(connections(hub)[0]) is UvicornConnection
        writer.write(more)
        protocol = connections(hub)[0]._protocol
        await until(lambda: protocol.pipeline or protocol._limit.is_in_head)
        go.set()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), HANG)
        await until(lambda: hub.delivery.connection_count == 0)
        writer.close()


async def test_data_sent_on_a_detached_stream_is_not_taken_for_requests() -> None:
    """If only its head were dropped, its body would be read as the next request."""
    async with hub_served() as (hub, server), sent(server, GET) as reply:
        await until(lambda: hub.delivery.live_count == 1)
        body = f"GET {PATH}/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
        reply.writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        await until(lambda: hub.delivery.connection_count == 0)
        with contextlib.suppress(ConnectionError):
            reply.writer.write(body.encode())
            rest = await asyncio.wait_for(reply.reader.read(), HANG)
            assert b"200" not in rest
            assert rest.endswith(b"0\r\n\r\n")


async def test_a_long_body_does_not_hide_a_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn.protocols.http.httptools_impl.HIGH_WATER_LIMIT", 10)  # for an unread body
    async with hub_served(heartbeat=0) as (hub, server):
        async with sent(server, GET[:-2] + b"content-length: 100\r\n\r\n" + b"x" * 100):
            await until(lambda: hub.delivery.live_count == 1)
            assert type(connections(hub)[0]) is UvicornConnection
        await until(lambda: hub.delivery.connection_count == 0)


async def test_a_query_with_its_body_is_detached() -> None:
    async with hub_served() as (hub, server):
        body = b"match=a"
        head = f"QUERY {PATH} HTTP/1.1\r\nhost: x\r\n{FORM[0]}: {FORM[1]}\r\ncontent-length: {len(body)}\r\n\r\n"
        async with sent(server, head.encode() + body) as reply:
            await until(lambda: hub.delivery.live_count == 1)
            await publish(server, ("topic", "a"), ("data", "x"))
            assert (await reply.next_event()).data == "x"


@KINDS
@pytest.mark.parametrize("abort", [False, True])
async def test_r37_a_reader_that_disconnects_is_noticed_at_once(http: Any, abort: bool) -> None:
    async with hub_served(http) as (hub, server):
        replies = [await subscribe(server, ("match", "a"), receive_buffer=4096) for _ in range(4)]
        for _ in range(20):
            await publish(server, ("topic", "a"), ("data", "x" * 100_000))
        await until(lambda: hub.delivery.live_count == 0)
        for reply in replies:
            reply.writer.transport.abort() if abort else reply.writer.close()
        await until(lambda: hub.delivery.connection_count == 0)


# -- failures before a stream begins


class Raising:
    """A middleware that fails after the application has returned."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "GET":
            raise RuntimeError("planted")


class Passing(BaseHTTPMiddleware):
    """A middleware with a task and a `send` of its own."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


@KINDS
@pytest.mark.parametrize("middleware", [Raising, Passing])
async def test_a_stream_below_a_middleware_leaves_nothing_behind(http: Any, middleware: Any) -> None:
    # Below a middleware, only a heartbeat finds that the client has gone.
    app = create_app(Settings(dev=True, retry=0, subscriptions=False, heartbeat=0.1))
    async with served(middleware(app), http=http) as server:
        for _ in range(3):
            async with sent(server, GET) as reply:
                assert reply.status == 200
        await until(lambda: app.hub.delivery.connection_count == 0)


def test_the_socket_of_a_disconnected_client_is_not_used() -> None:
    closed = socket.socket()
    closed.close()
    transport: Any = SimpleNamespace(is_closing=lambda: False, get_extra_info=lambda name: closed)
    tune_connection(transport, send_buffer=2**17, client_timeout=30)


async def test_the_chunk_of_an_update_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[bytes] = []
    write = ServerWire.write

    def noted(wire: ServerWire, chunk: bytes) -> None:
        chunks.append(chunk)
        write(wire, chunk)

    monkeypatch.setattr(ServerWire, "write", noted)
    monkeypatch.setattr(World, "wire", staticmethod(partial(ServerWire, detaches=True)))
    async with world() as here:
        for _ in range(3):
            await here.connect("a")
        await here.caught_up()
        chunks.clear()
        await here.publish("a")
        await here.caught_up()
        await here.tick(10)
        assert len(chunks) == 6
        assert {id(chunk) for chunk in chunks[:3]} == {id(chunks[0])}
        assert {id(chunk) for chunk in chunks[3:]} == {id(chunks[3])}


async def test_a_large_body_is_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_of_uvicorn, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(World, "wire", staticmethod(partial(ServerWire, detaches=True)))
    async with world() as here:
        await here.connect("a")
        await here.caught_up()
        last = connections_of_uvicorn._last
        await here.publish("a")
        await here.caught_up()
        assert last.written[0]
        await here.hub.publish(Update(("a",), "x" * connections_of_uvicorn.KEPT_BYTES))
        await here.caught_up()
        await until(lambda: last.written == (b"", b""))


async def test_what_one_stream_reads_of_the_history_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "wire", staticmethod(partial(ServerWire, detaches=True)))
    async with world() as here:
        for _ in range(2):
            await here.publish("a")
        await here.connect("b")
        await here.publish("b")
        await here.caught_up()
        before = connections_of_uvicorn._last.written
        connection = await here.connect("a", after="earliest")
        await here.caught_up()
        assert len(connection.ids) == 2
        assert connections_of_uvicorn._last.written == before


@pytest.mark.parametrize("detaches", [False, True])
async def test_the_socket_of_a_client_that_left_before_its_response_is_not_used(
    detaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wire: ServerWire, name: str) -> None:
        raise ValueError("negative file descriptor")

    monkeypatch.setattr(ServerWire, "get_extra_info", fail)
    monkeypatch.setattr(World, "wire", staticmethod(partial(ServerWire, detaches=detaches)))
    async with world() as here:
        connection = await here.connect("a")
        connection.wire.cut = True
        await here.settle()
        connection.go()
        await asyncio.wait_for(connection.task, HANG)
        assert here.hub.delivery.connection_count == 0


# -- before a request


async def test_a_missing_or_unfinished_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "HEAD_TIMEOUT", 0.1)
    async with hub_served() as (hub, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(), HANG) == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def drip() -> None:
            for byte in GET * 1_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.005)
                if hub.delivery.connection_count:
                    raise AssertionError("the unfinished request was accepted")

        dripping = asyncio.create_task(drip())
        monkeypatch.setattr(http1, "HEAD_TIMEOUT", 0.01)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), HANG) == b""
        dripping.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await dripping
        writer.close()


async def test_a_stream_and_a_slow_response_outlast_the_head_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "HEAD_TIMEOUT", 777.0)
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def noted(delay: float, callback: Any, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *arguments, **options)
        if delay == http1.HEAD_TIMEOUT:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", noted)
    async with hub_served() as (hub, server), sent(server, GET) as reply:
        await until(lambda: hub.delivery.live_count == 1)
        post = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{': '.join(bearer(server.token))}\r\n{': '.join(FORM)}\r\n"
        async with sent(server, post.encode() + b"content-length: 8\r\nexpect: 100-continue\r\n\r\n") as publisher:
            assert publisher.status == 100
            assert [timer.cancelled() for timer in timers] == [True, True]  # one for each connection
            publisher.writer.write(b"topic=a&")
            await publisher.read_head()
            assert publisher.status == 200
        assert (await reply.next_event()).data == ""


class SlowHistory(MemoryHistory):
    """A history that tells its end only when it may."""

    def __init__(self) -> None:
        super().__init__(Settings(dev=True).retention)
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.asked = 0

    async def end(self) -> int:
        self.asked += 1
        await self.may_go.wait()
        return await super().end()


@KINDS
async def test_a_client_that_closes_its_half_meanwhile_gets_the_head(http: Any) -> None:
    history = SlowHistory()
    app = create_app(Settings(dev=True, subscriptions=False), history=history)
    async with served(app, http=http, access_log=False) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: app.hub.is_running)
        asked = history.asked
        history.may_go.clear()
        writer.write(GET)
        await until(lambda: history.asked > asked)
        writer.write_eof()
        for _ in range(5):
            await asyncio.sleep(0)
        history.may_go.set()
        assert (await asyncio.wait_for(reader.read(), HANG)).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
    assert app.hub.delivery.connection_count == 0


async def test_a_header_field_with_a_control_character_is_never_written() -> None:
    cycle = SimpleNamespace(default_headers=[], disconnected=False, keep_alive=True)
    with pytest.raises(RuntimeError, match="control character"):
        await Cycle._hold(cycle, {"status": 200, "headers": [(b"a", b"b\r\nc: d")]})  # type: ignore[arg-type]


@KINDS
async def test_the_last_response_of_a_connection_says_so(http: Any) -> None:
    last = GET.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\n")
    async with hub_served(http) as (_, server), sent(server, last) as stream:
        assert stream.status == 200
        assert stream.headers["connection"] == "close"


# -- the buffers of the kernel


@KINDS
async def test_kernel_buffers_are_bounded_and_a_silent_client_is_dropped(http: Any) -> None:
    async with (
        hub_served(http, send_buffer=20_000, client_timeout=12) as (hub, server),
        await subscribe(server, ("match", "a")),
    ):
        await until(lambda: hub.delivery.live_count == 1)
        (stream,) = streams(hub)
        assert options(transport_of(stream).get_extra_info("socket")) == OPTIONS


def options(one: socket.socket) -> list[int]:
    """Return the size of the send buffer, and all that drops a silent client."""
    return [
        one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
        one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    ]


OPTIONS = [40_000, 1, 12_000, 6, 2]
"""Those of a send buffer of 20,000 bytes, which Linux doubles, and a time-out of 12 s."""


async def test_a_connection_has_the_options_of_a_listener_that_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(dev=True, send_buffer=20_000, client_timeout=12)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert tune_listener(listener, client_timeout=settings.client_timeout)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert options(accepted)[1:] == OPTIONS[1:]
    monkeypatch.setattr(socket_options, "_drop_silent", lambda *_: pytest.fail("the connection is tuned again"))
    app = create_app(settings)
    app.listener_is_tuned = True
    async with served(app, http=HttpProtocol) as server, await subscribe(server, ("match", "a")) as stream:
        assert stream.status == 200


def test_a_listener_that_is_no_tcp_socket_is_not_tuned() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        assert not tune_listener(listener, client_timeout=30)


@KINDS
async def test_r32_a_reader_whose_buffers_stay_full_is_dropped(http: Any) -> None:
    async with (
        hub_served(http, client_timeout=1) as (hub, server),
        await subscribe(server, ("match", "a"), receive_buffer=4096),
    ):
        assert hub.delivery.connection_count == 1
        for _ in range(30):
            await publish(server, ("topic", "a"), ("data", "x" * 100_000))
        await until(lambda: hub.delivery.connection_count == 0)


async def test_a_unix_socket_has_no_tcp_options(tmp_path: Any) -> None:
    import uvicorn

    app = create_app(Settings(dev=True, retry=0, subscriptions=False))
    config = uvicorn.Config(app, uds=str(tmp_path / "hub"), http=HttpProtocol, log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "hub"))
    writer.write(GET)
    assert b" 200 " in await asyncio.wait_for(reader.readline(), HANG)
    await until(lambda: app.state.hub.delivery.live_count == 1)
    writer.close()
    server.should_exit = True
    await asyncio.wait_for(serving, HANG)


@KINDS
async def test_abandoned_pipelined_requests_are_freed_without_the_garbage_collector(http: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        async with hub_served(http, heartbeat=0.1) as (hub, server):
            async with contextlib.AsyncExitStack() as several:
                for _ in range(5):
                    await several.enter_async_context(sent(server, GET + GET))
                await until(lambda: hub.delivery.live_count == 5)
            # uvicorn only notifies the newest request; a heartbeat finds the others.
            await until(lambda: hub.delivery.connection_count == 0)
            await until(lambda: not requests())
            left = [each for each in gc.get_objects() if type(each).__name__ == "RequestResponseCycle"]
            assert left == []
    finally:
        gc.enable()


# -- each event loop, with and without TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The files of a certificate for localhost and of its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "certificate").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "certificate"), str(folder / "key")


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> set[tuple[bool, bool]]:
    """For each write so far: whether it reported room, and whether the flow agreed."""
    found = set()
    write = UvicornConnection.write

    def observed(connection: UvicornConnection, body: bytes, shared: bool = True) -> bool:
        has_room = write(connection, body, shared)
        found.add((has_room, not connection._flow.write_paused))
        return has_room

    monkeypatch.setattr(UvicornConnection, "write", observed)
    return found


@KINDS
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_with_and_without_tls_updates_arrive_and_a_slow_reader_catches_up(
    http: Any, loop: Any, tls: bool, certificate: Any, rooms: set[tuple[bool, bool]]
) -> None:
    files = dict(zip(("ssl_certfile", "ssl_keyfile"), certificate, strict=True)) if tls else {}

    async def talk() -> None:
        app = create_app(Settings(dev=True, retry=0, max_lifetime=0, subscriptions=False))
        trusted: Any = {}
        if tls:
            trusted = {"ssl": ssl.create_default_context(cafile=certificate[0]), "server_hostname": "localhost"}
        async with served(app, http=http, **files) as server:
            hub = app.state.hub
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_000, **trusted)
            writer.write(GET)
            reply = Reply(reader, writer)
            await asyncio.wait_for(reply.read_head(), HANG)
            await until(lambda: hub.delivery.live_count == 1)
            for n in range(5):
                await hub.publish(Update(("a",), str(n)))
                assert (await reply.next_event()).data == str(n)
            await until(lambda: hub.delivery.live_count == 1)
            for n in range(60):
                await hub.publish(Update(("a",), str(n) + "x" * 100_000))
            await until(lambda: hub.delivery.live_count == 0)
            for n in range(60):
                assert (await reply.next_event()).data == str(n) + "x" * 100_000
            await until(lambda: hub.delivery.live_count == 1)
            hub.delivery.close_all(Ending.SHUTDOWN)
            assert [event async for event in reply.events()] == []
            writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(talk())
    if http is HttpProtocol:
        assert rooms == {(True, True), (False, False)}

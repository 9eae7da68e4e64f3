"""Plain requests, which the protocol answers itself: the same bytes as through ASGI.

Each test of behaviour runs both ways: with `HubProtocol`, and with `HttpProtocol`,
which knows no plain requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount, WebSocketRoute

from hub import Grant, Settings, create_app
from hub.delivery.seat import Ending
from hub.development import DEVELOPMENT_KEY, DEVELOPMENT_TOKEN
from hub.history.memory import MemoryHistory
from hub.http.application import PlainPublisher
from hub.server.cycle import DEFAULT, lines_of
from hub.server.http1 import HttpProtocol
from hub.server.open_connections import Connections
from hub.server.plain import HubProtocol
from tests.asgi import NDJSON, classic_token, current_token
from tests.hub import serving
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, bearer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from starlette.websockets import WebSocket

    from hub.history.base import Entry
    from hub.http.embedding import HubApplication
    from tests.hub.serving import Served

pytestmark = pytest.mark.anyio

WAYS = pytest.mark.parametrize("http", [HttpProtocol, HubProtocol], ids=["ASGI", "plain"])
AUTHORIZED = bearer(DEVELOPMENT_TOKEN)
JSON = ("content-type", "application/json")
UPDATE = b"topic=https%3A%2F%2Fexample.com%2F1&data=x"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies of the requests that were plain."""
    bodies: list[bytes] = []
    answer = PlainPublisher.answer

    def noted(self: PlainPublisher, scope: Any, body: bytes) -> Any:
        bodies.append(body)
        return answer(self, scope, body)

    monkeypatch.setattr(PlainPublisher, "answer", noted)
    return bodies


def app_of(cors_origins: tuple[str, ...] = (), **settings: Any) -> HubApplication:
    return create_app(Settings(dev=True, cors_origins=cors_origins, **settings))


served = partial(serving.served, access_log=False)


def post(
    body: bytes = UPDATE, *headers: tuple[str, str], target: str = PATH, version: str = "1.1", length: bool = True
) -> bytes:
    """The bytes of a request; by default it is authorized, and has a form."""
    given = list(headers) or [AUTHORIZED, FORM]
    if length:
        given.append(("content-length", str(len(body))))
    lines = [f"POST {target} HTTP/{version}", "host: hub.example", *(f"{name}: {value}" for name, value in given)]
    return "\r\n".join([*lines, "", ""]).encode() + body


LAST = post(b"topic=the-last&id=the-last", AUTHORIZED, FORM, ("connection", "close"))


@contextlib.contextmanager
def arrivals() -> Iterator[list[bytes]]:
    """The pieces of requests that servers read meanwhile."""
    pieces: list[bytes] = []
    receive = HttpProtocol.data_received

    def noted(self: HttpProtocol, data: bytes) -> None:
        pieces.append(data)
        receive(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpProtocol, "data_received", noted)
        yield pieces


async def said(server: Served, *parts: bytes) -> bytes:
    """All that the server writes; each part is sent when it has read those before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answer = asyncio.ensure_future(asyncio.wait_for(reader.read(), HANG))
    sent = 0
    with arrivals() as arrived:

        def all_is_read() -> bool:
            return answer.done() or sum(map(len, arrived)) >= sent

        for part in parts:
            await until(all_is_read)
            writer.write(part)
            await writer.drain()
            sent += len(part)
        came = await answer
    writer.close()
    return came


def comparable(came: bytes) -> list[bytes]:
    """The lines, in their order, without what differs each time."""
    return re.sub(rb"urn:uuid:[0-9a-f-]{36}|date: [^\r]*", b"?", came).split(b"\r\n")


JSON_BODY = b'[{"topic": "a", "id": "1"}, {"topic": "b", "id": "2"}]'
REQUESTS = {
    "a form": (post(), True),
    "a form with an id": (post(b"topic=a&id=%C3%A9&type=t&retry=5&private=on"), True),
    "lines of JSON": (post(b'{"topic": "a"}\n{"topic": "b"}\n', AUTHORIZED, NDJSON), True),
    "an array": (post(JSON_BODY, AUTHORIZED, JSON), True),
    "a batch that pauses": (post(b'{"topic": "a"}\n' * 999, AUTHORIZED, NDJSON), True),
    "no topic": (post(b"data=x"), True),
    "a reserved topic": (post(b"topic=https://hub.example/.well-known/mercure/x"), True),
    "no body": (post(b""), True),
    "a compressed body": (post(UPDATE, AUTHORIZED, FORM, ("content-encoding", "gzip")), True),
    "no content type": (post(UPDATE, AUTHORIZED), True),
    "no token": (post(UPDATE, FORM), True),
    "a token that is invalid": (post(UPDATE, FORM, bearer("a.b.c")), True),
    "a token that does not allow it": (post(UPDATE, FORM, bearer(classic_token(publish=["other"]))), True),
    "a token of another hub": (post(UPDATE, FORM, bearer(current_token([("exact", "*")]))), True),
    "two tokens": (post(UPDATE, FORM, AUTHORIZED, AUTHORIZED), True),
    "too long": (post(b"topic=a&data=" + b"x" * 20_000), True),
    "a cookie": (post(UPDATE, FORM, ("cookie", f"mercureAuthorization={DEVELOPMENT_TOKEN}")), True),
    "chunks": (post(b"1\r\nx\r\n0\r\n\r\n", AUTHORIZED, FORM, ("transfer-encoding", "chunked"), length=False), False),
    "a page": (post(UPDATE, AUTHORIZED, FORM, ("origin", "https://page.example")), False),
    "a query": (post(target=f"{PATH}?x=1"), False),
    "an expectation": (post(UPDATE, AUTHORIZED, FORM, ("expect", "100-continue")), False),
    "another protocol": (post(UPDATE, AUTHORIZED, FORM, ("connection", "upgrade"), ("upgrade", "h2c")), True),
    "the last one": (post(UPDATE, AUTHORIZED, FORM, ("connection", "close")), False),
    "another path": (post(target="/elsewhere"), False),
    "no host": (post().replace(b"host: hub.example\r\n", b""), False),
    "HTTP/1.0": (post(version="1.0"), False),
    "another method": (post().replace(b"POST", b"PUT"), False),
}


@pytest.mark.parametrize("cors_origins", [(), ("https://page.example",), ("*",)], ids=["", "CORS", "any origin"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_both_ways_give_the_same_bytes(name: str, cors_origins: tuple[str, ...], plain: list[bytes]) -> None:
    request, is_plain = REQUESTS[name]
    came, ways = [], []
    for http in (HttpProtocol, HubProtocol):
        async with served(app_of(cors_origins=cors_origins, max_body=20_000), http=http) as server:
            is_last = name in ("the last one", "HTTP/1.0", "no host")
            came.append(comparable(await said(server, request, *([] if is_last else [LAST]))))
        ways.append(len(plain))
    assert came[0] == came[1]
    assert came[0][0].startswith(b"HTTP/1.1 ")
    assert ways == [0, is_plain]


@pytest.mark.parametrize("cut", [10, 60, len(post()) - len(UPDATE), len(post()) - 1])
async def test_a_request_in_two_pieces_goes_through_asgi(cut: int, plain: list[bytes]) -> None:
    came = []
    for http in (HttpProtocol, HubProtocol):
        async with served(app_of(), http=http) as server:
            came.append(comparable(await said(server, post()[:cut], post()[cut:], LAST)))
    assert came[0] == came[1]
    assert b"\r\n".join(came[0]).count(b"200 OK") == 2
    assert plain == ([UPDATE] if cut < len(post()) - len(UPDATE) else [])


@WAYS
async def test_requests_of_one_piece_are_answered_in_their_order(http: type, plain: list[bytes]) -> None:
    bodies = [b"topic=a&id=%d" % number for number in range(5)]
    async with served(app_of(), http=http) as server:
        came = await said(server, b"".join(map(post, bodies)) + LAST)
    assert re.findall(rb"\r\n\r\n(\d|the-last)", came) == [b"0", b"1", b"2", b"3", b"4", b"the-last"]
    assert plain == (bodies[:1] if http is HubProtocol else [])  # the others wait for their turn


# -- requests that ask for another protocol

UPGRADES = ("h2c", "websocket", "TLS/1.2", "h2c, x/1")


def asking_for(protocol: str, request: bytes) -> bytes:
    """The request with a field `Upgrade`, as the HTTP client of Java sends it."""
    upgrade = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    return request.replace(b"\r\n", f"\r\n{upgrade}".encode(), 1)


ID = b"topic=a&data=upgraded&id=1"
_CHUNKS = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (ID[:9], ID[9:])) + b"0\r\n\r\n"
ASKING = {
    "POST": post(ID),
    "POST in chunks": post(_CHUNKS, AUTHORIZED, FORM, ("transfer-encoding", "chunked"), length=False),
    "POST of JSON": post(JSON_BODY, AUTHORIZED, JSON),
    "QUERY": post(b"match=a", FORM, ("prefer", "wait=0")).replace(b"POST", b"QUERY"),
    "PUT": post(b"hello").replace(b"POST", b"PUT"),
    "GET": post(b"", target=f"{PATH}/health/ready").replace(b"POST", b"GET"),
}


@WAYS
@pytest.mark.parametrize("name", ASKING)
async def test_an_upgrade_is_ignored_and_its_request_is_answered(name: str, http: type) -> None:
    """RFC 9110, 7.8.  Every request of `java.net.http` has this field."""
    request = ASKING[name]
    async with served(app_of(), http=http, ws="none") as server:

        async def answers(*parts: bytes) -> list[bytes]:
            return comparable(await said(server, *parts, LAST))

        expected = await answers(request)
        assert expected[0].startswith(b"HTTP/1.1 405" if name == "PUT" else b"HTTP/1.1 200")
        for protocol in UPGRADES:
            assert await answers(asking_for(protocol, request)) == expected
        asked = asking_for("h2c", request)
        for cut in range(1, len(asked) if name != "PUT" else 0, 29):  # a body that is not read ends the connection
            assert await answers(asked[:cut], asked[cut:]) == expected
        twice = b"\r\n".join(await answers(asked + asked))
        assert re.findall(rb"HTTP/1\.1 (\d+)", twice) == [expected[0].split()[1]] * 2 + [b"200"]
        old = asked.replace(b"HTTP/1.1", b"HTTP/1.0")
        if name != "POST in chunks":
            assert comparable(await said(server, old))[0].split()[1] == expected[0].split()[1]


@WAYS
async def test_a_head_with_an_upgrade_counts_once(http: type) -> None:
    long = ("x", "x" * 2**12), ("connection", "close")
    request = asking_for("h2c", post(ID, AUTHORIZED, FORM, *long))
    head = request.index(b"\r\n\r\n") + 4
    for size, status in ((head + 1, b"200"), (head - 1, b"431")):
        async with served(app_of(max_head=size), http=http, ws="none") as server:
            assert (await said(server, request))[9:12] == status


@WAYS
async def test_an_application_around_the_hub_has_websockets(http: type) -> None:
    hub = app_of(path="/live/hub")

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()

    routes = [WebSocketRoute("/echo", echo), Mount("/live", hub)]
    app = Starlette(routes=routes, lifespan=lambda _: hub.running())
    opening = b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    opening += b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    async with served(app, http=http, ws="wsproto") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(opening)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG)).startswith(b"HTTP/1.1 101")
        writer.write(b"\x81\x82\0\0\0\0hi")  # a text with a mask of zeros
        assert await asyncio.wait_for(reader.readexactly(4), HANG) == b"\x81\x02hi"
        writer.close()


async def test_a_server_that_drops_the_body_is_named() -> None:
    """uvicorn's own protocol does; the one of h11 does not."""
    for http, status in (("httptools", 400), ("h11", 200)):
        for name in ("POST", "POST of JSON", "QUERY"):
            async with served(app_of(), http=http, ws="none") as server:
                answer = await said(server, asking_for("h2c", ASKING[name]).replace(b"Upgrade, ", b"close, Upgrade, "))
            assert answer.startswith(b"HTTP/1.1 %d" % status)
            assert (b"Upgrade: 'h2c'" in answer) is (status == 400)


class Held(MemoryHistory):
    """A history whose appends wait, as those of a file do, or fail."""

    def __init__(self) -> None:
        super().__init__(Settings(dev=True).retention)
        self.may_go = asyncio.Event()
        self.appending = 0
        self.error: Exception | None = None

    async def append(self, *arguments: Any, **named: Any) -> list[Entry]:
        self.appending += 1
        await self.may_go.wait()
        if self.error is not None:
            raise self.error
        return await super().append(*arguments, **named)


@contextlib.asynccontextmanager
async def held(http: type) -> AsyncIterator[tuple[Held, HubApplication, Served]]:
    history = Held()
    app = create_app(Settings(dev=True, cors_origins=()), history=history)
    async with served(app, http=http) as server:
        yield history, app, server


@WAYS
async def test_requests_wait_behind_one_that_waits_for_the_history(http: type, plain: list[bytes]) -> None:
    async with held(http) as (history, _, server):
        with arrivals() as arrived:
            answers = asyncio.ensure_future(said(server, post(b"topic=a&id=1"), post(b"topic=a&id=2"), LAST))
            await until(lambda: len(arrived) == 2)
        assert history.appending == 1
        history.may_go.set()
        assert re.findall(rb"\r\n\r\n(\d|the-last)", await answers) == [b"1", b"2", b"the-last"]
    assert len(plain) == (http is HubProtocol)


@WAYS
async def test_a_connection_goes_on_after_answers_that_waited(http: type) -> None:
    async with held(http) as (history, _, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number in range(3):
            history.may_go.clear()
            writer.write(post(b"topic=a&id=%d" % number))
            await until(lambda number=number: history.appending == number + 1)  # type: ignore[misc]
            history.may_go.set()
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close" not in head
            assert await reader.readexactly(1) == b"%d" % number
        writer.close()


@WAYS
@pytest.mark.parametrize("waits", [False, True])
async def test_a_request_that_is_cancelled_is_answered_and_ends_the_connection(http: type, waits: bool) -> None:
    async with held(http) as (history, app, server):
        history.error = asyncio.CancelledError()  # type: ignore[assignment]
        if not waits:
            history.may_go.set()
        answer = asyncio.ensure_future(said(server, post()))
        await until(lambda: history.appending == 1)
        history.may_go.set()
        assert (await answer).startswith(b"HTTP/1.1 500 ")
        assert app.hub.shares.requests.used == 0


@WAYS
async def test_the_head_after_an_update_has_its_limit(http: type) -> None:
    async with served(app_of(), http=http) as server:
        came = await said(server, post(), b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 70_000)
    assert re.findall(rb"HTTP/1.1 (\d+)", came) == [b"200", b"431"]


async def test_a_history_of_a_program_may_need_a_task(plain: list[bytes]) -> None:
    class Timed(MemoryHistory):
        has_time_limits = True

        async def append(self, *arguments: Any, **named: Any) -> list[Entry]:
            async with asyncio.timeout(HANG):
                return await super().append(*arguments, **named)

    app = create_app(Settings(dev=True, cors_origins=()), history=Timed(Settings(dev=True).retention))
    async with served(app, http=HubProtocol) as server:
        assert (await said(server, post(), LAST)).count(b"200 OK") == 2
    assert plain == [UPDATE]


@WAYS
async def test_an_update_is_published_though_its_client_leaves(http: type) -> None:
    async with held(http) as (history, app, server):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post())
        await until(lambda: history.appending == 1)
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()
        await until(lambda: app._connections is not None and not app._connections.open)
        history.may_go.set()
        await until(lambda: app.hub.delivery.position == 1)
        assert app.hub.shares.requests.used == 0


@WAYS
async def test_a_server_that_ends_waits_for_the_answer_and_closes_the_connection(http: type) -> None:
    history = Held()
    app = create_app(Settings(dev=True, cors_origins=()), history=history)
    server = uvicorn.Server(uvicorn.Config(app, http=http, log_config=None, access_log=False, port=0))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    writer.write(post(b"topic=a&id=1"))
    await until(lambda: history.appending == 1)
    server.should_exit = True
    await until(lambda: not server.servers[0].sockets)
    await asyncio.sleep(0)
    history.may_go.set()
    came = await asyncio.wait_for(reader.read(), HANG)
    assert came.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in came
    assert came.endswith(b"\r\n\r\n1")
    writer.close()
    await asyncio.wait_for(serving, HANG)


@pytest.mark.parametrize("waits", [False, True])
async def test_r24_an_unexpected_error_is_logged_and_answered(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    came = []
    for http in (HttpProtocol, HubProtocol):
        async with held(http) as (history, _, server):
            history.error = RuntimeError("a fault")
            if not waits:
                history.may_go.set()
            answer = asyncio.ensure_future(said(server, post()))
            await until(lambda history=history: history.appending == 1)  # type: ignore[misc]
            history.may_go.set()
            came.append(comparable(await answer))
    # uvicorn writes no `connection` after an error, and closes the connection too.
    assert [line for line in came[1] if line != b"connection: close"] == came[0]
    assert came[0][0] == b"HTTP/1.1 500 Internal Server Error"
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == 2
    assert records[0].getMessage() == records[1].getMessage()
    assert caplog.text.count("RuntimeError: a fault") == 2


@pytest.mark.parametrize(
    "behind", [b"nonsense\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost: /\r\n\r\n"]
)
async def test_what_follows_an_answer_that_failed_gets_none(behind: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with held(HubProtocol) as (history, _, server):
        history.error = RuntimeError("a fault")
        history.may_go.set()
        came = await said(server, post() + behind)
    assert re.findall(rb"HTTP/1.1 (\d+)", came) == [b"500"]
    assert "data_received() call failed" not in caplog.text


async def test_a_middleware_sees_each_request(plain: list[bytes]) -> None:
    app = app_of()

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)  # its state reaches the protocol
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with served(refuse, http=HubProtocol) as server:
        assert (await said(server, post(), LAST)).count(b"HTTP/1.1 403 ") == 2
    assert not plain


@pytest.mark.parametrize(
    "config",
    [{"root_path": "/x"}, {"limit_concurrency": 100}, {"log_level": "trace"}],
    ids=["root path", "limit", "trace"],
)
async def test_what_a_server_adds_needs_asgi(
    config: dict[str, Any], plain: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("error", "access", "asgi"):  # uvicorn sets their levels, and pytest restores them
        caplog.set_level(logging.INFO, f"uvicorn.{name}")
    async with served(app_of(), http=HubProtocol, **config) as server:
        await said(server, post(), LAST)
    assert not plain


async def test_an_access_log_has_each_request(plain: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("uvicorn.access")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, "uvicorn.access"):
            async with serving.served(app_of(), http=HubProtocol) as server:
                await said(server, post(), LAST)
    finally:
        logger.removeHandler(caplog.handler)
    assert len([record for record in caplog.records if record.name == "uvicorn.access"]) >= 2
    assert not plain


async def test_a_function_of_the_program_gets_each_request(plain: list[bytes]) -> None:
    asked: list[str] = []

    def authorize(request: Any) -> Grant:
        asked.append(request.url.path)
        return Grant(publish=["the-last"])

    app = create_app(Settings(dev=True), authorize=authorize)
    async with served(app, http=HubProtocol) as server:
        came = await said(server, post(), LAST)
    assert (came.count(b"HTTP/1.1 403 "), came.count(b"HTTP/1.1 200 ")) == (1, 1)
    assert len(asked) == 2
    assert not plain


@WAYS
@pytest.mark.parametrize("is_trusted", [True, False])
async def test_r6_the_headers_of_a_proxy_count_if_it_is_trusted(
    http: type, is_trusted: bool, plain: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    token = bearer(current_token([("exact", "*")]))  # it is for https://hub.example
    forwarded = [("x-forwarded-proto", "https"), ("x-forwarded-for", "192.0.2.7")]
    app = app_of(log_publishes=True)
    with caplog.at_level(logging.INFO, "hub"):
        async with served(app, http=http, forwarded_allow_ips="127.0.0.1" if is_trusted else "192.0.2.1") as server:
            came = await said(server, post(UPDATE, FORM, token, *forwarded), LAST)
    first = next(record.getMessage() for record in caplog.records if "address=" in record.getMessage())
    assert ("address=192.0.2.7" if is_trusted else "address=127.0.0.1") in first
    assert came.startswith(b"HTTP/1.1 200 " if is_trusted else b"HTTP/1.1 401 ")
    assert len(plain) == (http is HubProtocol)


def test_the_fields_of_every_response_are_the_present_ones() -> None:
    one, two = [(b"date", b"1")], [(b"date", b"2"), (b"server", b"s")]
    for fields in (one, one, two, two, [*one], one):
        assert DEFAULT.lines_of(fields) == lines_of(fields)


@WAYS
async def test_only_the_log_lines_of_a_request_have_its_fields(http: type, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(log_publishes=True)
    with caplog.at_level(logging.DEBUG, "hub"):
        async with served(app, http=http) as server:
            request = post(b"topic=a&id=1", AUTHORIZED, FORM, ("x-request-id", "one"))
            await said(server, request, request.replace(b"one", b"two"), post(b"topic=a"), b"no HTTP\r\n\r\n")
            await until(lambda: app.hub.delivery.dispatched == 3)
    lines = [record.getMessage() for record in caplog.records]
    published = [line for line in lines if line.startswith('event="updates published"')]
    assert [("request=one" in line, "request=two" in line) for line in published] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    refused = [line for line in lines if line.startswith('event="request refused"')]
    assert [("request=" in line) for line in refused] == [False]
    dispatched = [line for line in lines if "update dispatched" in line]
    assert len(dispatched) == 3
    assert not [line for line in dispatched if "request=" in line]


@WAYS
async def test_a_client_that_reads_nothing_stops_only_itself(http: type) -> None:
    # Each response is about 200 bytes, and its request is longer: the client is stopped
    # by the kernel's buffers long before this many.
    async with served(app_of(publish_rate=10**6), http=http, loop="none") as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(2_000):
            writer.write(post())
        other = await asyncio.wait_for(said(server, LAST), HANG)
        assert other.endswith(b"the-last")
        writer.transport.abort()


@WAYS
async def test_an_answer_waits_until_the_client_has_read_earlier_ones(
    http: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    add = Connections.add

    def noted(self: Connections, connection: Any) -> None:
        made.append(connection)
        add(self, connection)

    monkeypatch.setattr(Connections, "add", noted)
    app = app_of()
    async with served(app, http=http) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: bool(made))
        made[0].pause_writing()  # as the transport does
        writer.write(post(b"topic=a&id=1"))
        await until(lambda: app.hub.delivery.dispatched == 1)
        assert not made[0].cycle.response_complete
        made[0].resume_writing()
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n1"), HANG)
        writer.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_plain_requests_on_each_event_loop(loop: Any, tmp_path: Path, plain: list[bytes]) -> None:
    async def run() -> bytes:
        app = app_of(history_url=f"sqlite:///{tmp_path}/a.db", publisher_key=DEVELOPMENT_KEY)
        async with served(app, http=HubProtocol) as server:
            return await said(server, post(), *[post()] * 3, LAST)

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()).count(b"HTTP/1.1 200 OK") == 5
    assert len(plain) >= 1


# -- requests for a stream, which begin without a task


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request that began without a task, whether it has ended so."""
    ended: list[bool] = []
    begin = HubProtocol._begin_stream

    def noted(self: HubProtocol, cycle: Any) -> None:
        tasks = len(self.tasks)
        begin(self, cycle)
        ended.append(len(self.tasks) == tasks)

    monkeypatch.setattr(HubProtocol, "_begin_stream", noted)
    return ended


def get(query: str = "?match=a", *headers: tuple[str, str]) -> bytes:
    lines = [f"GET {PATH}{query} HTTP/1.1", "host: hub.example", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode()


STREAMS = {
    "a topic": (get(), [True]),
    "a page": (get("?match=a", ("origin", "https://page.example")), [True]),
    "a token": (get("?topic=a%7Bb%7D", AUTHORIZED), [True]),
    "a token in the query": (get(f"?topic=a&authorization={DEVELOPMENT_TOKEN}"), [True]),
    "a cursor": (get("?match=a&last_event_id=x"), [True]),
    "a proxy": (get("?match=a", ("x-forwarded-for", "192.0.2.7"), ("x-forwarded-proto", "https")), [True]),
    "no topic": (get(""), [True]),
    "a pattern that is invalid": (get("?match_uritemplate=%7B"), [True]),
    "a token that is invalid": (get("?match=a", bearer("a.b.c")), [True]),
    "a reader that does not wait": (get("?match=a", ("prefer", "wait=0")), []),
    "a body": (get("?match=a", ("content-length", "1")) + b"x", [True]),
    "the page of the debugger": (get("/ui/"), []),
    "another path": (get("x?match=a"), []),
    "the head alone": (get().replace(b"GET", b"HEAD"), []),
}


@pytest.mark.parametrize("cors_origins", [(), ("https://page.example",), ("*",)], ids=["", "CORS", "any origin"])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_begins_at_once_has_the_same_bytes(
    name: str, cors_origins: tuple[str, ...], begun: list[bool]
) -> None:
    request, ends = STREAMS[name]
    came = []
    for http in (HttpProtocol, HubProtocol):
        async with served(app_of(cors_origins, retry=0, subscriptions=False, anonymous=True), http=http) as server:
            came.append(comparable(await said(server, request, LAST)))
    assert came[0] == came[1]
    assert came[0][0].startswith(b"HTTP/1.1 ")
    assert begun == ends


@WAYS
async def test_a_stream_that_is_asked_for_in_two_pieces_begins_once(http: type, begun: list[bool]) -> None:
    async with served(app_of(subscriptions=False), http=http) as server:
        came = await said(server, get()[:20], get()[20:], LAST)
    assert came.count(b"HTTP/1.1 200 OK") == 1
    assert len(begun) == (http is HubProtocol)


@WAYS
async def test_a_stream_behind_an_update_begins_after_its_answer(http: type) -> None:
    async with held(http) as (history, _, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(b"topic=a&id=1") + get())
        await until(lambda: history.appending == 1)
        history.may_go.set()
        came = await asyncio.wait_for(reader.readuntil(b":\n"), HANG)
        assert re.findall(rb"HTTP/1.1 (\d+)", came) == [b"200", b"200"]
        assert came.index(b"\r\n\r\n1HTTP") < came.index(b"text/event-stream")
        writer.close()


@WAYS
@pytest.mark.parametrize("more", [b"", b"\r\n", b"GET / HTTP/1.1\r\nhost"], ids=["nothing", "a line", "a head"])
async def test_a_stream_behind_another_begins_when_that_ends(http: type, more: bytes) -> None:
    app = app_of(subscriptions=False)
    async with served(app, http=http) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get() + get("?match=b"))
        await asyncio.wait_for(reader.readuntil(b":\n"), HANG)
        writer.write(more)
        for _ in range(5):
            await asyncio.sleep(0)
        app.hub.delivery.close_all(Ending.MAX_LIFETIME)
        assert b"HTTP/1.1 200 OK" in await asyncio.wait_for(reader.readuntil(b":\n"), HANG)
        writer.close()


async def test_a_stream_whose_history_needs_a_task_gets_one(begun: list[bool]) -> None:
    class Timed(MemoryHistory):
        has_time_limits = True

        async def end(self) -> int:
            async with asyncio.timeout(HANG):
                return await super().end()

    app = create_app(Settings(dev=True, subscriptions=False), history=Timed(Settings(dev=True).retention))
    async with served(app, http=HubProtocol) as server:
        assert (await said(server, get(), LAST)).startswith(b"HTTP/1.1 200 OK")
    assert begun == []


@WAYS
async def test_r24_an_unexpected_error_of_a_stream_is_logged_and_answered(
    http: type, caplog: pytest.LogCaptureFixture, begun: list[bool]
) -> None:
    class Broken(MemoryHistory):
        async def find(self, *_: Any, **__: Any) -> int | None:
            raise RuntimeError("a fault")

    app = create_app(Settings(dev=True, cors_origins=()), history=Broken(Settings(dev=True).retention))
    async with served(app, http=http) as server:
        came = await said(server, get("?match=a&last_event_id=x"))
    assert came.startswith(b"HTTP/1.1 500 ")
    assert caplog.text.count("RuntimeError: a fault") == 1
    assert app.hub.shares.connections.used == 0


@WAYS
async def test_a_stream_before_the_beginning_of_another_request_has_a_task(http: type, begun: list[bool]) -> None:
    async with served(app_of(subscriptions=False), http=http) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get() + b"GET /")
        assert (await asyncio.wait_for(reader.readuntil(b":\n"), HANG)).startswith(b"HTTP/1.1 200 OK")
        writer.close()
    assert begun == []


@WAYS
@pytest.mark.parametrize("is_trusted", [True, False])
async def test_the_address_of_a_stream_is_that_of_a_trusted_proxy(http: type, is_trusted: bool) -> None:
    app = app_of(subscriptions=False)
    async with served(app, http=http, forwarded_allow_ips="127.0.0.1" if is_trusted else "192.0.2.1") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get("?match=a", ("x-forwarded-for", "192.0.2.7")))
        await asyncio.wait_for(reader.readuntil(b":\n"), HANG)
        [seat] = app.hub.delivery.audience
        assert seat.subscriber.payer is not None
        assert seat.subscriber.payer.name == f"address {'192.0.2.7' if is_trusted else '127.0.0.1'}"
        writer.close()


@WAYS
async def test_only_the_log_lines_of_a_stream_have_its_fields(http: type, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(MemoryHistory):
        asked = asyncio.Event()
        may_go = asyncio.Event()

        async def find(self, *_: Any, **__: Any) -> int | None:
            self.asked.set()
            await self.may_go.wait()
            return None

    history = Slow(Settings(dev=True).retention)
    app = create_app(Settings(dev=True, subscriptions=False), history=history)
    with caplog.at_level(logging.INFO, "hub"):
        async with served(app, http=http) as server:
            request = get("?match=a&last_event_id=x", ("x-request-id", "one"))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            await asyncio.wait_for(history.asked.wait(), HANG)
            await said(server, b"no HTTP\r\n\r\n")
            history.may_go.set()
            await asyncio.wait_for(reader.readuntil(b":\n"), HANG)
            writer.close()
    lines = [record.getMessage() for record in caplog.records]
    assert ["request=" in line for line in lines if "request refused" in line] == [False]
    assert ["request=one" in line for line in lines if "cursor not found" in line] == [True]

"""HTTP/1.1 over sockets: bounds, idle and half-closed connections, odd requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from hub import Settings, Update, create_app
from hub.delivery.seat import Ending
from hub.development import DEVELOPMENT_TOKEN
from hub.server import http1, open_connections
from hub.server.http1 import AttachedProtocol, HttpProtocol, State
from hub.server.open_connections import CONNECTIONS, OTHER_FILES, Connections
from tests.hub.serving import sent, served
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, bearer, publish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hub.hub import Hub
    from tests.hub.serving import Served

pytestmark = pytest.mark.anyio

KINDS = pytest.mark.parametrize("http", [AttachedProtocol, HttpProtocol], ids=["task", "detached"])
LIVE = f"GET {PATH}/health/live HTTP/1.1\r\nhost: x\r\n\r\n".encode()
GET = f"GET {PATH}?match=a HTTP/1.1\r\nhost: x\r\n\r\n".encode()
QUERY = f"QUERY {PATH} HTTP/1.1\r\nhost: x\r\n{': '.join(FORM)}\r\n".encode()
CHUNKED = QUERY + b"transfer-encoding: chunked\r\n\r\n7\r\nmatch=a\r\n0\r\n"


@contextlib.asynccontextmanager
async def hub_served(
    http: Any = HttpProtocol, *, timeout_keep_alive: int = 1_000, **settings: Any
) -> AsyncIterator[tuple[Hub, Served]]:
    app = create_app(Settings(**{"dev": True, "retry": 0, "max_lifetime": 0, "subscriptions": False} | settings))
    async with served(app, http=http, ws="none", timeout_keep_alive=timeout_keep_alive) as server:
        yield app.state.hub, server


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """The protocols of all connections that were made."""
    protocols: list[HttpProtocol] = []
    add = Connections.add

    def noted(self: Connections, connection: Any) -> None:
        protocols.append(connection)
        add(self, connection)

    monkeypatch.setattr(Connections, "add", noted)
    return protocols


async def said(server: Served, *parts: bytes, ends: bool = False) -> bytes:
    """Send `parts` and return all that the server writes until the end or a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    came = bytearray()
    try:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if ends:
                writer.write_eof()
            while part := await asyncio.wait_for(reader.read(2**16), HANG):
                came += part
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return bytes(came)


def check_problem(answer: bytes, status: int) -> str:
    """Check that a response is a problem document and closes its connection.

    Return the detail of the document.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"\r\ncontent-type: application/problem+json\r\n" in head
    assert b"\r\nconnection: close\r\n" in head + b"\r\n"
    document = json.loads(body)
    assert document["status"] == status
    detail: str = document["detail"]
    return detail


# -- heads


ENDLESS = {
    "fields": (GET[:-2], b"a:b\r\n" * 10_000, 431),
    "long fields": (GET[:-2], b"a:" + b"b" * 8_190 + b"\r\n", 431),
    "a name": (GET[:-2], b"a" * 50_000, 431),
    "a value": (GET[:-2] + b"a: ", b"b" * 50_000, 431),
    "a URL": (f"GET {PATH}?match=".encode(), b"b" * 50_000, 414),
    "trailers": (CHUNKED, b"a:b\r\n" * 10_000, 431),
    "long trailers": (CHUNKED, b"a:" + b"b" * 8_190 + b"\r\n", 431),
    "a trailer": (CHUNKED + b"a: ", b"b" * 50_000, 431),
}


@KINDS
@pytest.mark.parametrize("name", ENDLESS)
async def test_an_endless_head_is_refused_at_the_bound(name: str, http: Any, made: list[HttpProtocol]) -> None:
    begin, part, status = ENDLESS[name]
    fed: list[int] = []

    class Counting:
        """A parser that records how many bytes it was given."""

        def __init__(self, parser: Any) -> None:
            self._parser = parser

        def feed_data(self, data: bytes) -> None:
            fed.append(len(data))
            self._parser.feed_data(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._parser, name)

    async with hub_served(http) as (_, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: made)
        (protocol,) = made
        protocol.parser = Counting(protocol.parser)  # type: ignore[assignment]
        tracemalloc.start()
        try:
            writer.write(begin)
            answer = asyncio.ensure_future(reader.read())
            while not answer.done():
                with contextlib.suppress(ConnectionError):
                    writer.write(part)
                    await writer.drain()
                if protocol.state is State.LINGERING:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    break
                assert sum(fed) < 10 * 2**20
                await asyncio.sleep(0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        detail = check_problem(await asyncio.wait_for(answer, HANG), status)
        assert "100 header fields" in detail or "65536" in detail
        assert sum(fed) <= 2 * 2**16 + 2**18  # asyncio reads up to 256 KiB, maybe from within a head
        assert peak < 4 * 2**20
        writer.close()


@KINDS
@pytest.mark.parametrize("count", [100, 101])
async def test_the_number_of_header_fields_is_bounded(count: int, http: Any) -> None:
    request = LIVE[:-2] + b"connection: close\r\n" + b"".join(b"x-%d: 1\r\n" % n for n in range(count - 2)) + b"\r\n"
    async with hub_served(http) as (_, server):
        answer = await said(server, request)
        if count == 100:
            assert answer.startswith(b"HTTP/1.1 200 ")
        else:
            assert check_problem(answer, 431) == "the request has more than 100 header fields and trailers"


@KINDS
async def test_trailers_count_as_fields(http: Any) -> None:
    headers = b"".join(b"x-%d: 1\r\n" % n for n in range(50))
    for count, status in ((20, 200), (60, 431)):
        trailers = b"".join(b"y-%d: 1\r\n" % n for n in range(count))
        request = CHUNKED.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\nprefer: wait=0\r\n" + headers)
        async with hub_served(http) as (_, server):
            assert int((await said(server, request + trailers + b"\r\n")).split()[1]) == status


@pytest.mark.parametrize(
    "field",
    ["Prefer: wait=0", f"{bearer('x')[0]}: {bearer('x')[1]}", "Last-Event-ID: x", "Cookie: mercure_access_token=x"],
)
async def test_a_trailer_is_not_a_header(field: str) -> None:
    async with hub_served() as (hub, server), sent(server, CHUNKED + field.encode() + b"\r\n\r\n") as reply:
        assert reply.status == 200
        assert not {"preference-applied", "last-event-id"} & reply.headers.keys()
        await until(lambda: hub.delivery.live_count == 1)


@KINDS
@pytest.mark.parametrize("size", [100_000, 999, 7])
async def test_a_large_ordinary_head_is_accepted_in_any_chunks(size: int, http: Any) -> None:
    fields = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 820) for n in range(60))
    head = LIVE[:-2] + b"connection: close\r\n" + fields + b"\r\n"
    assert 49_000 < len(head) < 2**16
    async with hub_served(http) as (_, server):
        parts = [head[n : n + size] for n in range(0, len(head), size)]
        assert (await said(server, *parts)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("size", [10**7, 100_000, 5_000])
async def test_a_body_does_not_count_as_head_in_any_chunks(size: int) -> None:
    """Send a form, one in chunks, one in large chunks, then a head in the same data."""
    form = b"topic=a&data=" + b"x" * 300_000
    post = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{': '.join(FORM)}\r\n".encode()
    async with hub_served() as (_, server):
        post += ": ".join(bearer(server.token)).encode() + b"\r\n"
        chunks = [form[n : n + 50_000] for n in range(0, len(form), 50_000)]
        bodies = [b"content-length: %d\r\n\r\n" % len(form) + form]
        for some in (chunks, [form]):
            coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in some)
            bodies.append(b"transfer-encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n")
        fields = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 900) for n in range(60))
        last = LIVE[:-2] + fields + b"connection: close\r\n\r\n"
        whole = b"".join(post + body for body in bodies) + last
        answer = await said(server, *[whole[n : n + size] for n in range(0, len(whole), size)])
        assert answer.count(b"HTTP/1.1 200 OK") == 4, answer


async def test_the_bounds_are_settings() -> None:
    async with hub_served(max_head=5_000, max_header_fields=12) as (_, server):
        fields = b"".join(b"x-%d: 1\r\n" % n for n in range(12))
        check_problem(await said(server, LIVE[:-2] + fields + b"\r\n"), 431)
        check_problem(await said(server, LIVE[:-2] + b"x: " + b"y" * 5_000), 431)
        check_problem(await said(server, b"GET /" + b"y" * 5_000), 414)
    async with hub_served(max_head=2**20) as (_, server):
        target = b"/?" + b"y" * 2**16  # the parser does not accept a URL of this length
        check_problem(await said(server, LIVE.replace(f"{PATH}/health/live".encode(), target)), 414)


async def test_an_application_with_a_mounted_hub_has_the_default_bounds() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(app, http=HttpProtocol, lifespan="off") as server:
        check_problem(await said(server, GET[:-2] + b"a:b\r\n" * 101), 431)
        assert (await said(server, GET[:-2] + b"connection: close\r\n\r\n")).startswith(b"HTTP/1.1 204 ")


# -- requests that HTTP forbids


@KINDS
@pytest.mark.parametrize(
    "fields",
    [
        b"content-length: 7\r\ntransfer-encoding: chunked\r\n\r\n7\r\nmatch=a\r\n0\r\n\r\n",
        b"content-length: 7\r\ncontent-length: 8\r\n\r\nmatch=a",
        b"content-length: 7, 7\r\n\r\nmatch=a",
        b"content-length: +7\r\n\r\nmatch=a",
        b"content-length: 7\r\n x: y\r\n\r\nmatch=a",  # folded
        b"content-length: 7\n\nmatch=a",
        b"x: a\rb\r\n\r\n",
        b"x: a\x00b\r\n\r\n",
        b"x y: a\r\n\r\n",
        b"content-length : 7\r\n\r\nmatch=a",
        b"transfer-encoding: chunked, identity\r\n\r\n7\r\nmatch=a\r\n0\r\n\r\n",
        b"transfer-encoding: xchunked\r\n\r\n7\r\nmatch=a\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n-7\r\nmatch=a\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n10000000000000007\r\nmatch=a\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n7\r\nmatch=abc\r\n0\r\n\r\n",
    ],
)
async def test_ambiguous_requests_are_refused(fields: bytes, http: Any) -> None:
    async with hub_served(http) as (hub, server):
        answer = await said(server, QUERY + fields + LIVE)
        assert answer.count(b"HTTP/1.1 ") == 1
        check_problem(answer, 400)
        await until(lambda: hub.delivery.connection_count == 0)


@pytest.mark.parametrize(
    "request_",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nhost: x:443\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / \x00\r\n\r\n",
        b"GET\r\n\r\n",
        "é / HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    ],
)
async def test_invalid_requests_get_a_problem_document(request_: bytes) -> None:
    async with hub_served() as (_, server):
        check_problem(await said(server, request_), 400)


@KINDS
@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_bytes_of_another_protocol_are_no_request(protocol: bytes, http: Any) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: " + protocol + b"\r\n\r\n"
    async with hub_served(http) as (_, server):
        answer = await said(server, LIVE[:-2] + upgrade + b"\x81\x05hello" + LIVE)
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", [], 400),
        ("1.1", ["x", "x"], 400),
        ("1.0", ["x", "y"], 400),
        ("1.1", ["x y"], 400),
        ("1.1", ["x/y"], 400),
        ("1.1", ["u@x"], 400),
        ("1.1", ["x:y"], 400),
        ("1.1", ["é"], 400),
        ("1.1", ["[::1]:80"], 200),
        ("1.1", ["X.example:443"], 200),
        ("1.1", ["a_b%41"], 200),
        ("1.1", [""], 400),
        ("1.0", [""], 400),
        ("1.1", [":80"], 400),
        ("1.0", [], 200),
    ],
)
async def test_a_request_must_have_one_host(version: str, hosts: list[str], status: int) -> None:
    lines = [f"GET {PATH}/health/live HTTP/{version}", *[f"host: {host}" for host in hosts], "connection: close"]
    async with hub_served() as (_, server):
        answer = await said(server, "\r\n".join([*lines, "", ""]).encode())
        if status == 400:
            assert "Host" in check_problem(answer, 400)
        else:
            assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("method", "status"), [("OPTIONS", 204), ("GET", 400), ("POST", 400), ("DELETE", 400)])
async def test_only_options_may_have_the_asterisk_as_target(method: str, status: int) -> None:
    for http in (HttpProtocol, "h11", "httptools"):
        async with hub_served(http) as (_, server):
            answer = await said(server, f"{method} * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            assert status == 204 or b"the target * is for OPTIONS, not for '%s'" % method.encode() in answer


# -- a target that is not ASCII


async def test_a_target_may_be_utf_8_in_any_chunks(made: list[HttpProtocol]) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["query_string"], dict(scope["headers"])[b"x"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    request = "GET /?https://exämple.com/é HTTP/1.1\r\nhost: x\r\nx: é\r\n\r\n".encode()
    letter, line, header = request.index(b"\xc3\xa9"), request.index(b"HTTP/1.1") + 8, request.index(b"x: \xc3") + 3
    async with served(app, http=HttpProtocol, lifespan="off") as server:
        for at in (0, letter, letter + 1, line, line + 1, line + 2, header):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\r\n" + request[:at])
            await until(lambda: made)
            protocol = made.pop()
            await until(lambda: not at or protocol._limit._in_request_line is not None)  # noqa: B023
            writer.write(request[at:])
            assert b" 204 " in await reader.readline()
            assert seen.pop() == (b"https://ex%C3%A4mple.com/%C3%A9", "é".encode())
            writer.close()


async def test_a_topic_may_be_sent_as_utf_8() -> None:
    async with hub_served() as (hub, server):
        request = f"GET {PATH}?topic=https://exämple.com/é HTTP/1.1\r\nhost: x\r\n\r\n"
        async with sent(server, request.encode()) as reply:
            await until(lambda: hub.delivery.live_count == 1)
            await publish(server, ("topic", "https://exämple.com/é"), ("data", "x"))
            assert (await reply.next_event()).data == "x"


async def test_other_lines_and_bodies_are_not_changed() -> None:
    seen: list[tuple[bytes, bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        seen.append((scope["query_string"], dict(scope["headers"])[b"x"], body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    rest = "\r\nhost: x\r\nx: é\r\ncontent-length: 2\r\n\r\né".encode()
    async with served(app, http=HttpProtocol, lifespan="off") as server:
        for query, expected in ((b"\xff?\xc3\xa9", b"%FF?%C3%A9"), (b"a", b"a")):
            assert b" 204 " in await said(server, b"POST /?" + query + b" HTTP/1.0" + rest)
            assert seen.pop() == (expected, "é".encode(), "é".encode())
        for request in (b"GET /\xc3\xa9 HTTP/1.1\xa9", b"GET /?\xc3\xa9 x HTTP/1.1", b"G\xc3T / HTTP/1.1"):
            check_problem(await said(server, request + rest), 400)
    assert seen == []


# -- HTTP/1.0


@KINDS
async def test_an_http_1_0_client_gets_no_chunks(http: Any) -> None:
    async with hub_served(http) as (hub, server):
        await publish(server, ("topic", "a"), ("data", "x"), ("id", "1"))
        get = f"GET {PATH}?match=a&last_event_id=earliest HTTP/1.0\r\n"
        answer = await said(server, (get + "prefer: wait=0\r\n\r\n").encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"connection: close" in head
        assert body == b"id: 1\ndata: x\n\n: all\n"
        async with sent(server, (get + "connection: keep-alive\r\n\r\n").encode()) as reply:
            assert reply.headers.get("transfer-encoding") is None
            assert reply.headers["connection"] == "close"
            expected = b":\nid: 1\ndata: x\n\n"
            assert await asyncio.wait_for(reply.reader.readexactly(len(expected)), HANG) == expected
            await until(lambda: hub.delivery.live_count == 1)
            await publish(server, ("topic", "a"), ("data", "y"), ("id", "2"))
            hub.delivery.close_all(Ending.SHUTDOWN)
            assert await asyncio.wait_for(reply.reader.read(), HANG) == b"id: 2\ndata: y\n\n"
        for path, status in ((PATH + "/health/live", 200), (PATH + "/debug/", 200), ("/x", 404)):
            head, _, body = (await said(server, f"GET {path} HTTP/1.0\r\n\r\n".encode())).partition(b"\r\n\r\n")
            assert b" %d " % status in head
            assert b"content-length: %d\r\n" % len(body) in head


@KINDS
async def test_a_response_says_either_that_it_keeps_the_connection_or_that_it_closes_it(http: Any) -> None:
    async with hub_served(http) as (_, server):
        for closing, expected in (
            (b"", [b"connection: keep-alive"]),
            (b"connection: close\r\n", [b"connection: close"]),
        ):
            async with sent(server, GET) as reply:
                pass
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(GET[:-2] + closing + b"\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            assert [line for line in head if line.startswith(b"connection:")] == expected
            writer.close()
            assert reply.status == 200


# -- connections with nothing in progress


@KINDS
async def test_empty_lines_do_not_keep_a_connection_open(http: Any) -> None:
    async with hub_served(http, timeout_keep_alive=0) as (_, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(LIVE)
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"\r\n")
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            assert b"200" in await answer
        writer.close()


async def test_the_timer_for_the_next_request_starts_once_per_response(made: list[HttpProtocol]) -> None:
    async with hub_served() as (_, server), sent(server, LIVE) as reply:
        (protocol,) = made
        await reply.body()
        timer = protocol.timeout_keep_alive_task
        assert timer is not None
        assert list(protocol.shared.waiting) == [protocol]
        received = protocol.data_received
        protocol.data_received(b"\r\n\r\n")
        assert (protocol.timeout_keep_alive_task, timer.cancelled()) == (timer, False)
        received(LIVE[:5])
        assert timer.cancelled()
        assert protocol._head_timer is not None
        received(LIVE[5:])
        assert protocol._head_timer is None
        assert not protocol.shared.waiting
        await reply.read_head()
        assert reply.status == 200


@KINDS
@pytest.mark.parametrize("target", [PATH, "/x"])
async def test_an_unread_body_ends_its_connection(
    target: str, http: Any, made: list[HttpProtocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "LINGER_SECONDS", 0.1)
    request = f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx".encode()
    async with hub_served(http) as (_, server), sent(server, request) as reply:
        assert reply.status in (401, 404)
        assert reply.headers["connection"] == "close"
        reply.writer.write(b"x")
        await reply.body()
        assert await asyncio.wait_for(reply.reader.read(), HANG) == b""
        await until(lambda: made[0].shared.open == 0)


async def test_a_client_that_is_still_sending_gets_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "LINGER_SECONDS", 1_000)
    async with hub_served() as (_, server):
        request = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n".encode()
        assert (await said(server, request, *[b"x" * 100_000] * 20)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("refused", [b"POST / HTTP/1.1\r\nhost: /\r\n\r\n", b"nonsense\r\n\r\n"])
async def test_bytes_after_a_refused_request_do_not_cost_the_answer_to_the_one_before(
    refused: bytes, made: list[HttpProtocol]
) -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(app, http=HttpProtocol, lifespan="off") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + refused)
        await until(lambda: made and made[0].state is State.ANSWERING_LAST)
        protocol, count = made[0], http1.LINGER_BYTES // 2**16 + 10
        before = protocol._left_to_drop
        for _ in range(count):
            writer.write(b"x" * 2**16)
            await writer.drain()
        await until(lambda: protocol.transport.is_closing() or protocol._left_to_drop == before - count * 2**16)
        go.set()
        assert (await asyncio.wait_for(reader.read(2**16), HANG)).startswith(b"HTTP/1.1 204 ")
        writer.close()


async def test_a_client_that_keeps_sending_after_its_response_is_cut_off(
    made: list[HttpProtocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "LINGER_SECONDS", 1_000)
    async with hub_served() as (_, server):
        request = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {10**9}\r\n\r\n".encode()
        async with sent(server, request) as reply:
            count = 0
            with contextlib.suppress(ConnectionError):
                while made[0].shared.open:
                    reply.writer.write(b"x" * 100_000)
                    await reply.writer.drain()
                    await asyncio.sleep(0)
                    count += 1
                    assert count < 1_000
            await until(lambda: not made[0].shared.open)


async def test_a_client_that_waits_for_100_continue_is_refused_at_once() -> None:
    request = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n".encode()
    async with hub_served() as (_, server):
        assert (await said(server, request)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(("version", "count"), [("1.1", 1), ("1.0", 0)])
async def test_only_a_client_of_http_1_1_is_told_to_continue(version: str, count: int) -> None:
    body = b"topic=a"
    lines = [f"POST {PATH} HTTP/{version}", "host: x", f"content-type: {FORM[1]}", f"content-length: {len(body)}"]
    lines += ["connection: close", "expect: 100-continue", ": ".join(bearer(DEVELOPMENT_TOKEN)), "", ""]
    async with hub_served() as (_, server):
        answer = await said(server, "\r\n".join(lines).encode(), body)
    assert answer.count(b"100 Continue") == count
    assert b" 200 OK\r\n" in answer


async def test_an_unread_response_has_the_timeout_of_a_request(made: list[HttpProtocol]) -> None:
    """If the connection closes, the transport alone would wait indefinitely."""
    body = b"x" * 20_000_000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    async with served(app, http=HttpProtocol, lifespan="off", timeout_keep_alive=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=10)
        writer.write(LIVE)
        await until(lambda: made and made[0].shared.open == 0)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < len(body)
        writer.close()


# -- the limit of connections


@KINDS
async def test_the_idlest_connection_makes_room_for_a_new_one(
    http: Any, made: list[HttpProtocol], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_connections, "open_file_limit", lambda: OTHER_FILES + 6)
    async with hub_served(http) as (hub, server), contextlib.AsyncExitStack() as several:
        streams = [await several.enter_async_context(sent(server, GET)) for _ in range(2)]
        await until(lambda: hub.delivery.live_count == 2)
        post = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{': '.join(bearer(server.token))}\r\n{': '.join(FORM)}\r\n"
        publisher = await several.enter_async_context(
            sent(server, post.encode() + b"content-length: 7\r\nexpect: 100-continue\r\n\r\n")
        )
        idle = [await several.enter_async_context(sent(server, LIVE)) for _ in range(3)]
        shared = made[0].shared
        for reply in idle:
            await reply.body()
        await until(lambda: len(shared.waiting) == 3)
        idle[0].writer.write(LIVE)  # so that the second has been idle longest
        await idle[0].read_head()
        await idle[0].body()
        assert shared.open == 6
        with caplog.at_level(logging.WARNING):
            newer = [await several.enter_async_context(sent(server, LIVE)) for _ in range(2)]
            for reply in newer:
                assert reply.status == 200
                await reply.body()
        assert [await asyncio.wait_for(reply.reader.read(), HANG) for reply in idle[1:]] == [b"", b""]
        await until(lambda: shared.open == 6)
        publisher.writer.write(b"topic=a")
        await publisher.read_head()
        assert publisher.status == 200
        for stream in streams:
            assert (await stream.next_event()).data == ""
        for reply in [idle[0], *newer]:
            reply.writer.write(LIVE)
            await reply.read_head()
            assert reply.status == 200
        assert caplog.text.count("the limit of 6 open connections is reached") == 1
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            shared.report()
            assert "1 connections were closed for newer ones: the limit is 6" in caplog.text
            shared.report()
        assert len(caplog.records) == 1  # none was closed in the meantime


async def test_a_new_connection_is_closed_if_all_others_are_busy(
    made: list[HttpProtocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_connections, "open_file_limit", lambda: OTHER_FILES + 2)
    async with hub_served() as (hub, server), sent(server, GET), sent(server, GET) as reply:
        await until(lambda: hub.delivery.live_count == 2)
        assert await said(server, LIVE) == b""
        await until(lambda: made[0].shared.open == 2)
        await hub.publish(Update(("a",), "x"))
        assert (await reply.next_event()).data == "x"


async def test_connections_are_counted_until_they_are_lost(made: list[HttpProtocol]) -> None:
    async with hub_served() as (hub, server):
        async with sent(server, GET), sent(server, LIVE):
            await until(lambda: hub.delivery.live_count == 1)
            shared = made[0].shared
            await until(lambda: (shared.open, len(shared.waiting)) == (2, 1))
        await until(lambda: (shared.open, len(shared.waiting)) == (0, 0))


# -- half-closed connections


async def test_a_publisher_that_half_closes_gets_its_response(tmp_path: Path) -> None:
    body = b"topic=a"
    async with hub_served(history_url=f"sqlite:///{tmp_path}/log.db") as (hub, server):
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{': '.join(bearer(server.token))}\r\n{': '.join(FORM)}\r\n"
        request = head.encode() + b"content-length: 7\r\n\r\n"
        answer = await said(server, request + body, ends=True)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert await hub.history.end() == 1
        assert await said(server, request + body[:-1], ends=True) == b""  # the body is incomplete
        assert await said(server, LIVE + request + body, ends=True) != b""
        assert await said(server, LIVE[:-1], ends=True) == b""
        assert await said(server, ends=True) == b""


@KINDS
async def test_a_subscriber_that_half_closes_gets_the_head_and_then_the_end(
    http: Any, made: list[HttpProtocol], tmp_path: Path
) -> None:
    async with hub_served(http, subscriptions=True, history_url=f"sqlite:///{tmp_path}/log.db") as (hub, server):
        assert (await said(server, GET, ends=True)).startswith(b"HTTP/1.1 200 ")
        await until(lambda: hub.delivery.connection_count == 0)
        replay = await said(server, GET[:-2] + b"prefer: wait=0\r\n\r\n", ends=True)
        assert replay.endswith(b": all\n\r\n0\r\n\r\n")
        # A stream that has begun is half-closed too, for example if a tab is closed.
        async with sent(server, GET) as reply:
            await until(lambda: hub.delivery.live_count == 1)
            reply.writer.write_eof()
            await until(lambda: hub.delivery.connection_count == 0)
            await asyncio.wait_for(reply.reader.read(), HANG)
        await until(lambda: made[0].shared.open == 0)


# -- writes to connections that are closed


@KINDS
@pytest.mark.parametrize("garbage", [b"\x00", b"x\r\n\r\n", LIVE.replace(b"host", b"hast"), b"a" * 2**17])
async def test_garbage_after_requests_does_not_prevent_their_responses(
    garbage: bytes, http: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_served(http) as (_, server):
        answer = await said(server, LIVE * 3 + garbage)
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        assert b"HTTP/1.1 4" not in answer
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_earlier_pipelined_request_does_not_write_to_a_lost_connection(
    loop: Any, made: list[HttpProtocol], caplog: pytest.LogCaptureFixture
) -> None:
    """uvloop raises RuntimeError for a write to a lost connection."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        made[0].transport.abort()
        await until(lambda: not made[0].shared.open, pause=0)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def talk() -> None:
        async with served(app, http=HttpProtocol, lifespan="off") as server:
            assert await said(server, LIVE + LIVE) == b""

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(talk())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@KINDS
async def test_requests_of_a_disconnected_client_get_no_response(
    http: Any, made: list[HttpProtocol], caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_served(http) as (_, server):
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(LIVE * 10)
            await until(lambda: made)
            made.pop()
            writer.transport.abort()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_pipelined_stream_and_garbage_leave_nothing_behind(made: list[HttpProtocol]) -> None:
    async with hub_served() as (hub, server):
        async with sent(server, GET + GET + b"\x00"):
            await until(lambda: hub.delivery.live_count == 1)
        await until(lambda: hub.delivery.connection_count == 0)
        await until(lambda: made[0].shared.open == 0)
        assert CONNECTIONS in made[0].app_state

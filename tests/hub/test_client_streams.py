"""The client reads event streams as the HTML standard says, from any server."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from hub.client import Event, EventTooLarge, NotAHub, Refused, asynchronous, following, synchronous
from tests.hub.clients import CLIENTS
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


@pytest.fixture(params=CLIENTS)
def new(request: pytest.FixtureRequest) -> Any:
    """Make a client of each kind."""
    return request.param


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Server:
    """A server that sends one of its `streams` to each connection, and closes it.

    When there is none left, it answers 204, which ends the subscription.
    """

    def __init__(self, *streams: bytes, head: bytes = HEAD, size: int = 2**16) -> None:
        self.streams = list(streams)
        self.requests: list[dict[str, str]] = []
        """The headers of each request, with names in lower case."""
        self.sent = 0
        """Bytes of streams that clients, or the kernel, have taken."""
        self._head, self._size = head, size

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.requests.append(
            {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        )
        await reader.readexactly(int(self.requests[-1].get("content-length", 0)))
        with contextlib.suppress(OSError):  # a client may have read enough
            if self.streams:
                stream = self.streams.pop(0)
                writer.write(self._head)
                for start in range(0, len(stream), self._size):
                    writer.write(stream[start : start + self._size])
                    await writer.drain()
                    self.sent += self._size
            else:
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await writer.drain()
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve, and yield the URL."""
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def read(new: Callable[..., Any], server: Server, **options: Any) -> list[Event]:
    """Return all events, until the server answers 204."""
    events = []
    async with server.running() as url, new(url, retry=0, token=options.pop("token", None)) as client:
        try:
            async with asyncio.timeout(HANG):
                async for event in client.subscribe("a", **options):
                    events.append(event)  # noqa: PERF401  a comprehension would lose them with the error
        except Refused as error:
            if error.status != 204:
                raise
            return events
    raise AssertionError("the subscription has ended without an error")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client before its reconnections, which do not last."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(following, "JITTER", (1.0, 1.0))
    monkeypatch.setattr(asynchronous, "asyncio", SimpleNamespace(sleep=sleep, timeout=asyncio.timeout))
    monkeypatch.setattr(synchronous, "time", SimpleNamespace(sleep=pauses.append))
    return pauses


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        ("id: 1\ndata: a\n\n", [("1", "message", "a", None)]),
        ("id: 1\r\revent: t\rdata: a\rdata: b\r\r", [("1", "t", "a\nb", None)]),
        ("id: 1\r\nevent: t\r\ndata: a\r\n\r\n", [("1", "t", "a", None)]),
        ("\ufeffid: 1\ndata: a\n\n", [("1", "message", "a", None)]),
        ("data: \u2028é\x85\n\n", [("", "message", "\u2028é\x85", None)]),
        # An event without an id has the last one; an event may be empty.
        ("id: 1\ndata: a\n\ndata: b\n\ndata\n\n", [("1", "message", data, None) for data in ("a", "b", "")]),
        ("id: 1\ndata: a\n\nid\ndata: b\n\n", [("1", "message", "a", None), ("", "message", "b", None)]),
        ("id: 1\0\ndata: a\n\n", [("", "message", "a", None)]),
        # A block without data is no event.  Its id counts, and its type does not.
        ("id: 1\ndata: a\n\nid: 2\n\nretry: 5\n\nevent: x\n\n:\n\n", [("1", "message", "a", None)]),
        ("id: 1\nevent: x\n\ndata: a\n\n", [("1", "message", "a", None)]),
        # A stream that ends within an event: neither half of it counts.
        ("id: 1\ndata: a\n\nid: 2\ndata: half", [("1", "message", "a", None)]),
        ("id: 1\ndata: a\n\nid: 2\ndata: half\n", [("1", "message", "a", None)]),
        ("id: 1\ndata: a\n\nid: 2\ndata: half\r", [("1", "message", "a", None)]),
        # Only ASCII digits are a number of milliseconds.
        *(
            (f"id: 1\nretry: 7\nretry:{bad}\ndata: a\n\n", [("1", "message", "a", 7)])
            for bad in ("-5", " +5", "1_0", " 5 ", "  5", "٥", "", " 1000x")
        ),
        (f"retry: {'9' * 5_000}\ndata: a\n\n", [("", "message", "a", None)]),
        # The hint at the start of this hub's streams.
        (":\nretry: 2170\nid: 1\ndata: a\n\n:\n", [("1", "message", "a", 2170)]),
        (f"data: {'x' * 2_000_000}\n\n", [("", "message", "x" * 2_000_000, None)]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 2**16])
async def test_events_are_those_of_the_standard(
    stream: str, events: list[tuple[Any, ...]], size: int, pauses: list[float], new: Callable[..., Any]
) -> None:
    text = stream.encode()
    server = Server(text, size=2**16 if len(text) > 10_000 else size)
    assert await read(new, server) == [Event(type, data, id, retry) for id, type, data, retry in events]


async def test_the_cursor_is_that_of_the_last_event(pauses: list[float], new: Callable[..., Any]) -> None:
    streams = (b"id: 1\ndata: a\n\nid: 2\ndata: half\r", b"data: b\n\nid: \xc3\xa9\n\n", b"id\n\n", b"", b"id: 3\n\n")
    server = Server(*streams)
    assert [(event.id, event.data) for event in await read(new, server)] == [("1", "a"), ("1", "b")]
    cursors = [request.get("last-event-id") for request in server.requests]
    assert cursors == [None, "1", "é", None, None, "3"]
    server = Server(b"data: a\n\n")
    assert [event.id for event in await read(new, server, last_event_id="earliest")] == ["earliest"]


async def test_the_retry_of_a_line_counts_even_if_the_stream_ends_before_its_first_event(
    pauses: list[float], new: Callable[..., Any]
) -> None:
    streams = (
        b":\nretry: 2170\n", b":\n", b"retry: 50", b"retry: 3000\r", b"retry: 4\ndata: a\n\nretry: x\n",
        b"\xef\xbb\xbfretry: 60\n", b"data: a\n\nretry: 70\n\n",
    )  # fmt: skip
    await read(new, Server(*streams, size=1))
    # A stream without an event counts as a failure, so that its pause is longer.
    assert pauses == [4.34, 8.68, 17.36, 30, 0.1, 0.2, 0.1]
    # Also if the connection is cut.
    pauses.clear()
    length = HEAD.replace(b"Connection: close", b"Content-Length: 1000")
    await read(new, Server(b"retry: 80\n", head=length))
    assert pauses == [0.2]


async def test_requests_ask_for_an_event_stream_in_utf_8(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Server("data: é\n\n".encode(), head=HEAD.replace(b"event-stream", b"event-stream; charset=windows-1252"))
    assert [event.data for event in await read(new, server)] == ["é"]
    assert [request["accept"] for request in server.requests] == ["text/event-stream"] * 2


async def test_a_response_that_is_no_event_stream_is_an_error(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Server(b"data: a\n\n", head=HEAD.replace(b"text/event-stream", b"text/html; charset=utf-8"))
    with pytest.raises(NotAHub, match="the response is not an event stream: its type is 'text/html; charset"):
        await read(new, server)
    assert pauses == []


async def test_a_redirect_is_not_followed_so_that_the_token_stays_where_it_is(
    pauses: list[float], new: Callable[..., Any]
) -> None:
    other = Server(b"data: a\n\n")
    async with other.running() as there:
        server = Server(
            b"", head=f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {there}\r\nConnection: close\r\n\r\n".encode()
        )
        async with server.running() as url, new(url, token="secret") as client:
            with pytest.raises(Refused, match=r"^307"):
                await anext(client.subscribe("a"))
    assert (len(server.requests), other.requests, pauses) == (1, [], [])


def test_an_event_has_its_data_as_json() -> None:
    assert Event("message", '{"n": [1, "é"]}', "1", None).json() == {"n": [1, "é"]}
    with pytest.raises(ValueError, match="Expecting value"):
        Event("message", "", "1", None).json()


# -- reconnections


class Answering(Server):
    """A server that sends whole answers, one to each connection."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__(*answers, head=b"")


def answer(status: int, *more: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: 16\r\n".encode()
    return head + b"".join(line + b"\r\n" for line in more) + b'\r\n{"detail": "no"}'


EVENT = HEAD + b"id: 1\ndata: a\n\n"


async def test_pauses_grow_while_the_hub_refuses(pauses: list[float], new: Callable[..., Any]) -> None:
    refusals = [answer(503)] * 10
    server = Answering(HEAD + b"retry: 1000\n", *refusals, EVENT, answer(503))
    assert len(await read(new, server)) == 1
    assert pauses == [2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 1, 2]


async def test_a_client_does_not_spin_if_its_streams_end_at_once(pauses: list[float], new: Callable[..., Any]) -> None:
    zero = HEAD + b"id: 1\nretry: 0\ndata: a\n\n"
    assert len(await read(new, Answering(zero, *[HEAD] * 12, zero, HEAD))) == 2
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30, 30, 0.1, 0.2]


def test_a_stream_that_lasts_is_no_failure_even_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "JITTER", (1.0, 1.0))
    now = 0.0
    stream = following.Following(
        ["a"], {}, None, wait=True, retry=2, max_event=99, on_open=None, on_gap=None, clock=lambda: now
    )
    response = httpx2.Response(200, headers={"Content-Type": "text/event-stream"})
    for seconds, pause in ((0.5, 4), (0.5, 8), (1.0, 2), (0.5, 4)):
        stream.begin(response)
        assert list(stream.feed(b":\n")) == []
        now += seconds
        assert not stream.end()
        assert stream.pause() == pause


ENDLESS = 2**26
"""Bytes of an answer that a client must not read to its end; no kernel buffers them."""


def endless(status: int, *more: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nConnection: close\r\n".encode() + b"".join(line + b"\r\n" for line in more)
    return head + b"\r\n" + b"x" * ENDLESS


async def test_a_refusal_is_read_up_to_a_bound(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Answering(endless(403))
    with pytest.raises(Refused, match=f"^403: {'x' * 200}$"):
        await read(new, server)
    assert server.sent < ENDLESS


@pytest.mark.parametrize("status", [200, 403])
async def test_an_answer_to_a_publish_is_read_up_to_a_bound(status: int, new: Callable[..., Any]) -> None:
    server = Answering(endless(status), endless(status))
    async with server.running() as url, new(url) as client:
        for publish in (client.publish("a"), client.publish_lines(b'{"topic":"a"}')):
            if status == 200:
                with pytest.raises(NotAHub, match="the answer to a publish has more than"):
                    await publish
            else:
                with pytest.raises(Refused, match=r"^403: x{200}$"):
                    await publish
    assert server.sent < ENDLESS  # of both answers together


async def test_the_ids_of_a_large_batch_fit_into_an_answer(new: Callable[..., Any]) -> None:
    ids = "".join(f"urn:uuid:00000000-0000-0000-0000-{n:012}\n" for n in range(50_000)).encode()
    whole = b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n" + ids
    async with Answering(whole).running() as url, new(url) as client:
        assert len(await client.publish_lines(b'{"topic":"a"}\n' * 50_000)) == 50_000


async def test_a_compressed_answer_is_not_decompressed(pauses: list[float], new: Callable[..., Any]) -> None:
    bomb = gzip.compress(b"x" * 10**6)
    for status in (200, 403):
        body = b"Content-Encoding: gzip\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + bomb
        answer = f"HTTP/1.1 {status} Reason\r\n".encode() + body
        with pytest.raises(NotAHub if status == 200 else Refused, match="is compressed" if status == 200 else "Reason"):
            await read(new, Answering(answer))
        async with Answering(answer).running() as url, new(url) as client:
            with pytest.raises(NotAHub if status == 200 else Refused):
                await client.publish("a")


async def test_an_event_has_a_bound(pauses: list[float], new: Callable[..., Any]) -> None:
    event = b"id: 1\ndata: " + b"x" * 1_000
    async with Answering(HEAD + event + b"\n\n" + event * 3).running() as url, new(url, max_event=1_100) as client:
        events = client.subscribe("a")
        assert len((await anext(events)).data) == 1_000
        with pytest.raises(EventTooLarge, match="more than 1,100 bytes"):
            await anext(events)


async def test_a_request_asks_for_no_cache_and_no_compression(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Server(b"data: a\n\n")
    await read(new, server)
    for headers in server.requests:
        asked = {name: headers.get(name) for name in ("accept", "accept-encoding", "cache-control")}
        assert asked == {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-cache"}


async def test_a_refusal_says_when_to_return(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Answering(EVENT, answer(429, b"Retry-After: 7"), answer(503, b"Retry-After: x"), EVENT)
    assert len(await read(new, server)) == 2
    assert pauses == [0.1, 7, 0.4, 0.1]


async def test_the_retry_of_an_update_cannot_stop_pauses_from_growing_or_last_for_years(
    pauses: list[float], new: Callable[..., Any]
) -> None:
    zero, years = (HEAD + f"retry: {ms}\ndata: a\n\n".encode() for ms in (0, 10**17))
    assert len(await read(new, Answering(zero, answer(503), answer(503), years, answer(503)))) == 2
    assert pauses == [0.1, 0.2, 0.4, 3_600, 3_600]


async def test_updates_that_may_be_missing_without_a_cursor_are_a_gap(
    pauses: list[float], new: Callable[..., Any]
) -> None:
    gaps: list[str] = []
    assert len(await read(new, Answering(HEAD, HEAD, EVENT, EVENT), on_gap=gaps.append)) == 2
    assert gaps == ["", ""]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_that_cannot_pass_is_an_error(
    status: int, pauses: list[float], new: Callable[..., Any]
) -> None:
    with pytest.raises(Refused, match=f"^{status}: no$"):
        await read(new, Answering(EVENT, answer(status)))
    assert pauses == [0.1]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_first_refusal_is_an_error(status: int, pauses: list[float], new: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match=f"^{status}: no$") as caught:
        await read(new, Answering(answer(status, b"Retry-After: 9")))
    assert (caught.value.retry_after, pauses) == (9, [])


async def test_a_pause_is_random_so_that_clients_do_not_return_together(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [
        following.Following([], {}, None, wait=True, retry=2, max_event=9, on_open=None, on_gap=None).pause()
        for _ in range(100)
    ]
    assert 2 <= min(chosen) < 2.2
    assert 2.8 < max(chosen) <= 3


async def test_a_gap_is_reported(pauses: list[float], new: Callable[..., Any]) -> None:
    gaps: list[str] = []
    known, unknown = (HEAD[:-2] + b"Mercure-Last-Event-ID: " + id + b"\r\n\r\n" for id in (b"1", b"earliest"))
    classic = HEAD[:-2] + b"Last-Event-ID: other\r\n\r\n"
    event = b"id: 1\ndata: a\n\n"
    server = Answering(unknown + event, known + event, unknown + event, classic + event, EVENT)
    opened: list[int] = []
    assert len(await read(new, server, on_gap=gaps.append, on_open=lambda: opened.append(len(gaps)))) == 5
    assert opened == [0, 0, 1, 2, 2]
    assert gaps == ["1", "1"]
    await read(new, Answering(unknown, unknown), last_event_id="earliest", on_gap=gaps.append)
    assert gaps == ["1", "1"]


# -- signals


def signal(id: str, data: str) -> bytes:
    return f"id: {id}\nevent: mercure\ndata: {data}\n\n".encode()


async def test_signals_are_asked_for_and_not_passed_on(pauses: list[float], new: Callable[..., Any]) -> None:
    beats: list[int] = []
    events = [b"event: mercure\ndata: " + data + b"\n\n" for data in (b'{"type":"subscription"}', b"no JSON", b"[" * 9)]
    stream = signal("#1", '{"type":"position","heartbeat":15000}') + b"id: 1\ndata: a\n\n"
    stream += signal("#2", '{"type":"heartbeat"}') + b"".join(events) + signal("#3", '{"type":"goodbye"}')
    server = Server(stream, EVENT.removeprefix(HEAD))
    received = await read(new, server, on_heartbeat=lambda: beats.append(len(beats)))
    assert [event.data for event in received][:4] == ["a", '{"type":"subscription"}', "no JSON", "[" * 9]
    assert [event.id for event in received][:4] == ["1", "#2", "#2", "#2"]
    assert beats == [0]
    assert server.requests[1]["last-event-id"] == "#3"  # so a quiet stream's cursor does not grow old
    assert pauses[0] == following.SHORTEST_PAUSE


async def test_without_an_update_signals_do_not_make_a_stream_count_as_good(
    pauses: list[float], new: Callable[..., Any]
) -> None:
    server = Server(*[signal("#1", '{"type":"goodbye","reason":"unavailable"}')] * 3)
    await read(new, server)
    assert pauses == [0.2, 0.4, 0.8]


async def test_a_stream_without_its_heartbeats_is_lost(
    monkeypatch: pytest.MonkeyPatch, new: Callable[..., Any], pauses: list[float]
) -> None:
    monkeypatch.setattr(following, "LATE_BEAT", 0.01)
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HEAD + signal(f"#{len(requests)}", '{"type":"position","heartbeat":1}'))
        if len(requests) == 1 and new is not asynchronous.Client:
            writer.close()  # it does not know the interval yet
        elif len(requests) == 4:
            writer.write(b"id: 1\ndata: a\n\n")
        with contextlib.suppress(OSError):
            await writer.drain()
            await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(HANG):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with new(url, retry=0) as client, contextlib.aclosing(client.subscribe("a")) as events:
            assert (await anext(events)).data == "a"
    assert [b"last-event-id: #%d\r\n" % n in request.lower() for n, request in enumerate(requests)][1:] == [True] * 3


async def test_a_connection_that_has_not_said_its_interval_yet_may_be_silent_for_longer() -> None:
    one = following.Following(["a"], {}, None, wait=True, retry=1, max_event=999)
    response = httpx2.Response(200, headers={"Content-Type": "text/event-stream"})
    one.begin(response)
    list(one.feed(signal("#", '{"type":"position","heartbeat":1000}')))
    assert (one.silence, one.usual_silence) == (7, 7)
    one.end()
    one.begin(response)
    assert (one.silence, one.usual_silence) == (120, 7)


@pytest.mark.parametrize("interval", ["-1", "0", '"15"', "null", "1e99", str(10**12)])
async def test_an_interval_that_cannot_be_meant_is_ignored(interval: str) -> None:
    one = following.Following(["a"], {}, None, wait=True, retry=1, max_event=999)
    list(one.feed(signal("#", f'{{"type":"position","heartbeat":{interval}}}')))
    assert one.silence == 120


async def test_a_hub_without_signals_has_no_position(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Answering(BATCH + b": all\n")
    async with server.running() as url, new(url) as client:
        with pytest.raises(NotAHub, match="it has no signals"):
            await client.position()


async def test_a_stream_that_waits_has_no_end(pauses: list[float], new: Callable[..., Any]) -> None:
    assert len(await read(new, Answering(HEAD + b": all\n", EVENT))) == 1


# -- without waiting

BATCH = HEAD[:-2] + b"Preference-Applied: wait=0\r\n\r\n"


async def batch(new: Callable[..., Any], server: Server) -> list[str]:
    async with server.running() as url, new(url, retry=0) as client, asyncio.timeout(HANG):
        return [event.id async for event in client.subscribe("a", last_event_id="0", wait=False)]


async def test_a_batch_that_is_cut_off_continues(pauses: list[float], new: Callable[..., Any]) -> None:
    server = Answering(
        BATCH + b"id: 1\ndata: a\n\nid: 2\nda", BATCH + b"id: 2\ndata: b\n\n: al", BATCH + b":\n: all\n", EVENT
    )
    assert await batch(new, server) == ["1", "2"]
    assert [request["last-event-id"] for request in server.requests] == ["0", "1", "2"]
    assert {request["prefer"] for request in server.requests} == {"wait=0"}


async def test_a_hub_that_would_not_end_a_batch_is_an_error(pauses: list[float], new: Callable[..., Any]) -> None:
    with pytest.raises(NotAHub, match="the hub does not know `Prefer: wait=0`"):
        await batch(new, Answering(EVENT))

"""`Prefer: wait=0`: send what the history has for a subscriber, then end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.reading import CHUNK_BYTES
from hub.delivery.seat import Seat
from hub.errors import LimitExceeded
from hub.history import base
from hub.http import replay
from hub.http.replay import Replay, ReplayResponse
from hub.protocol.updates import Update
from tests.asgi import PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.seats import Recorder
from tests.waiting import HANG, until
from tests.wire import parse_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Message

    from tests.asgi import Answer

pytestmark = pytest.mark.anyio

WRITER = current_token(["*"], seconds=86_400)
READER = current_token(subscribe=["*"], seconds=86_400)
NOT_TO_WAIT = ("Prefer", "wait=0")
METADATA = ("Prefer", "wait=0, metadata")


@contextlib.asynccontextmanager
async def hub(*ids: str, **chosen: Any) -> AsyncIterator[ASGIApp]:
    """A hub whose history has an update of topic `a` for each id.

    Updates whose ids begin with p are private.
    """
    async with application(**{"subscriptions": False} | chosen) as app:
        for id in ids:
            await publish_id(app, id)
        yield app


async def publish_id(app: ASGIApp, id: str, topic: str = "a") -> None:
    private = [("private", "on")] if id.startswith("p") else []
    assert await publish(app, WRITER, ("topic", topic), ("id", id), ("data", id), *private) == id


async def replayed(
    app: ASGIApp, cursor: str | None = "earliest", token: str = "", query: str = "match=*", **options: Any
) -> Answer:
    headers = [NOT_TO_WAIT, *([bearer(token)] if token else [])]
    if cursor is not None:
        headers.append(("Last-Event-ID", cursor))
    return await ask(app, options.pop("method", "GET"), f"{PATH}?{query}", headers, **options)


def ids_in(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.text
    assert answer.headers["preference-applied"] == "wait=0"
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ": all\n"
    return [event.id for block in blocks if (event := parse_event(block))]


async def test_n106_n108_the_response_ends_with_the_history() -> None:
    async with hub("1", "2", "3") as app:
        answer = await replayed(app, "1")
        assert ids_in(answer) == ["2", "3"]
        assert answer.headers["mercure-last-event-id"] == answer.headers["last-event-id"] == "1"
        assert answer.text == "id: 2\ndata: 2\n\nid: 3\ndata: 3\n\n: all\n"


async def test_an_unknown_cursor_gets_another_cursor_and_the_whole_history() -> None:
    async with hub("1", "2") as app:
        answer = await replayed(app, "0")
        assert ids_in(answer) == ["1", "2"]
        assert answer.headers["mercure-last-event-id"] == "earliest"


async def test_without_a_cursor_a_replay_is_empty_and_ends() -> None:
    async with hub("1") as app:
        answer = await replayed(app, None)
        assert ids_in(answer) == []
        assert "mercure-last-event-id" not in answer.headers


async def test_the_replay_of_an_empty_history_ends() -> None:
    async with hub() as app:
        assert ids_in(await replayed(app)) == []


@pytest.mark.parametrize(
    "query", ["match=a", "match_exact=a", "match_mqtt=%2B", "topic=a", "topic={x}", "topic=b&topic=a"]
)
async def test_n21_v10_a_replay_obeys_the_matchers_of_both_dialects(query: str) -> None:
    async with hub("1") as app:
        await publish_id(app, "2", topic="b/b")
        await publish_id(app, "3")
        assert ids_in(await replayed(app, query=query)) == ["1", "3"]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("", ["1"]),
        (READER, ["p1", "1", "p2"]),
        (current_token(subscribe=["a"]), ["p1", "1", "p2"]),
        (current_token(subscribe=["b"]), ["1"]),
        (classic_token(subscribe=["a"]), ["p1", "1", "p2"]),
        (classic_token(), ["1"]),
    ],
)
async def test_n81_n83_n84_private_updates_need_a_grant(token: str, expected: list[str]) -> None:
    async with hub("p1", "1", "p2") as app:
        assert ids_in(await replayed(app, token=token)) == expected


async def test_a_replay_over_many_pages_agrees_with_a_stream() -> None:
    ids = [f"{'p' if n % 3 else ''}{n}" for n in range(600)]
    async with hub(*ids) as app:
        for start in (0, 126, 127, 128, 599):
            expected = [id for id in ids[start + 1 :] if not id.startswith("p")]
            assert ids_in(await replayed(app, ids[start])) == expected


async def test_partly_written_frames_arrive_once() -> None:
    async with hub() as app:
        for id in "123":
            await publish(app, WRITER, ("topic", "a"), ("id", id), ("data", id * 300_000))
        async with follow(app, ("match", "*"), headers=[NOT_TO_WAIT, ("Last-Event-ID", "earliest")]) as stream:
            while not stream.ended:
                await stream.changed()
        *blocks, rest = stream.body.decode().split("\n\n")
        assert [event.id for block in blocks if (event := parse_event(block))] == ["1", "2", "3"]
        assert rest == ": all\n"


async def test_a_replay_is_not_announced() -> None:
    async with application(subscriptions=True) as app:
        async with follow(app, ("match", "*"), headers=[bearer(READER)]) as stream:
            await replayed(app, token=READER)
            await publish_id(app, "1")
            body = await stream.until("1")
        announced = [event for event in body if event.type == "mercure"]
        assert len(announced) == 1  # by the live stream, not the replay
        listed = await ask(app, "GET", PATH + "/subscriptions", [bearer(READER)])
        assert listed.json()["subscriptions"] == []


async def test_n23_a_replay_counts_as_a_connection_while_it_lasts() -> None:
    async with application(max_connections=1, subscriptions=False) as app:
        async with follow(app, ("match", "a")):
            assert (await replayed(app)).status == 503
        for _ in range(3):
            assert ids_in(await replayed(app)) == []
    async with application(max_connections_per_client=1, subscriptions=False) as app:
        async with follow(app, ("match", "a")):
            assert (await replayed(app)).status == 429
        for _ in range(3):
            assert ids_in(await replayed(app)) == []
    async with application(max_connections=1, subscriptions=False) as app:
        subscriber, _ = await app.state.hub.subscribing.admit((), CompiledGrant())  # it counts from now on
        assert (await replayed(app)).status == 503
        with app.state.hub.delivery.reader_seat(subscriber, Recorder()):
            assert (await replayed(app)).status == 503
        assert ids_in(await replayed(app)) == []
    async with application(connection_rate_per_client=1, subscriptions=False) as app:
        assert ids_in(await replayed(app)) == []
        assert (await replayed(app)).status == 429


async def test_n23_a_reader_whose_patterns_are_too_similar_to_others_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(audience: Audience, *_: object) -> None:
        raise LimitExceeded("too many similar patterns")

    monkeypatch.setattr(Audience, "seat", refuse)
    async with hub("1") as app:
        answer = await replayed(app)
        assert (answer.status, answer.detail) == (429, "too many similar patterns")
        assert (await ask(app, "GET", f"{PATH}?match=a")).status == 429
        assert app.state.hub.shares.connections.clients == {}  # type: ignore[attr-defined]


async def test_the_headers_alone_show_whether_an_event_is_known() -> None:
    async with hub("1") as app:
        for cursor, answered in (("1", "1"), ("2", "earliest")):
            answer = await replayed(app, cursor, method="HEAD")
            assert (answer.status, answer.body) == (200, b"")
            assert answer.headers["mercure-last-event-id"] == answered


async def test_n82_if_the_token_expires_a_replay_ends_without_the_final_comment() -> None:
    async with hub("1", "2") as app:
        assert (await replayed(app, token=current_token(subscribe=["*"], seconds=1))).text == ""


async def test_if_the_hub_shuts_down_a_replay_ends_without_the_final_comment() -> None:
    async with hub("1", "2") as app:
        app.state.hub.delivery.closing = "the test ends all"  # type: ignore[attr-defined]
        assert (await replayed(app)).text == ""


async def test_n82_a_client_that_does_not_read_is_cut_off_at_its_lifetime() -> None:
    class Cycle:
        """The server's side of a response whose client reads nothing."""

        keep_alive = True
        disconnected = aborted = False

        @property
        def transport(self) -> Cycle:
            return self

        def get_protocol(self) -> None:
            return None

        def get_extra_info(self, name: str) -> None:
            return None

        def is_closing(self) -> bool:
            return self.aborted

        def abort(self, *, reset: bool = False) -> None:
            self.aborted = True

        async def send(self, message: Message) -> None:
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async with hub("1") as app:
        its = app.state.hub  # type: ignore[attr-defined]
        subscriber, _ = await its.subscribing.admit((), CompiledGrant())
        subscriber.deadline = its.admission._clock()
        cycle = Cycle()
        response = ReplayResponse(its, subscriber, [])
        await asyncio.wait_for(response({"type": "http", "method": "GET"}, receive, cycle.send), HANG)
        assert (cycle.aborted, cycle.disconnected, its.delivery.connection_count) == (True, True, 0)


@pytest.mark.parametrize("error", [TimeoutError("of the history"), ValueError("wrong")])
async def test_an_error_of_a_replay_is_raised_and_its_end_is_no_departure(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    async def broken(*_: Any) -> None:
        if fails:
            raise error

    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with hub("1") as app:
        its = app.state.hub  # type: ignore[attr-defined]
        for fails in (True, False):
            subscriber, _ = await its.subscribing.admit([("exact", "a")], CompiledGrant(), "earliest")
            response = ReplayResponse(its, subscriber, [])
            monkeypatch.setattr(response, "stream_response", broken)
            with pytest.raises(type(error), match=str(error)) if fails else contextlib.nullcontext():
                await response({"type": "http", "method": "GET"}, receive, send)
            await asyncio.sleep(0)
            assert response.replay._reason is None
        assert its.delivery.connection_count == 0
    assert faults == []


async def test_nothing_of_a_reader_that_leaves_in_the_middle_waits_for_the_garbage_collector() -> None:
    leaving, blocked = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message.get("body"):
            blocked.set()
            await asyncio.Event().wait()

    async with hub("1") as app:
        its = app.state.hub  # type: ignore[attr-defined]
        subscriber, _ = await its.subscribing.admit(
            [("urlpattern", "/:id(\\d+)"), ("exact", "a")], CompiledGrant(), "earliest"
        )
        response = ReplayResponse(its, subscriber, [])
        gone = [weakref.ref(response), *map(weakref.ref, subscriber.subscribed)]
        task = asyncio.create_task(response({"type": "http", "method": "GET"}, receive, send))
        await asyncio.wait_for(blocked.wait(), HANG)
        assert its.shares.url_patterns.used == 1
        gc.disable()
        try:
            leaving.set()
            await asyncio.wait_for(task, HANG)
            del subscriber, response, task
            await until(lambda: not any(ref() for ref in gone))
            assert its.shares.url_patterns.used == 0
        finally:
            gc.enable()


async def test_n8_a_long_replay_with_few_matches_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_HEARTBEAT_SECONDS", -1.0)
    ids = [str(n) for n in range(600)]
    async with hub(*ids) as app:
        await publish_id(app, "last", topic="b")
        async with follow(app, ("match", "b"), headers=[NOT_TO_WAIT, ("Last-Event-ID", "earliest")]) as stream:
            while not stream.ended:
                await stream.changed()
    *beats, rest = stream.body.decode().split(":\n")
    assert beats
    assert not any(beats)
    assert rest == "id: last\ndata: last\n\n: all\n"


@pytest.mark.parametrize(
    ("preference", "applied"),
    [
        ("wait=0", True),
        ("respond-async, wait=0", True),
        ("WAIT=0; x", True),
        ('wait="0"', True),
        ("wait=10", False),
        ('x="a, wait=0"', False),
        ('x="a, wait=0, b"', False),
        ('x="; ", wait=0', True),
        ("wait", False),
        ("return=minimal", False),
    ],
)
async def test_only_wait_0_is_a_known_preference(preference: str, applied: bool) -> None:
    async with hub("1") as app:
        headers = [("Prefer", preference), ("Last-Event-ID", "earliest")]
        answer = await ask(app, "GET", PATH + "?match=*", headers)
        assert ("preference-applied" in answer.headers) is applied
        assert bool(re.search("(^|\n): all\n$", answer.text)) is applied


# -- metadata


def metadata_in(answer: Answer) -> list[tuple[dict[str, Any], str]]:
    """Return the metadata of each event, and the rest of its block."""
    assert answer.headers["preference-applied"] == "wait=0, metadata"
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ": all\n"
    lines = [block.partition("\n") for block in blocks]
    assert all(comment.startswith(": {") for comment, _, _ in lines)
    return [(json.loads(comment[2:]), event) for comment, _, event in lines]


async def with_metadata(app: ASGIApp, token: str = "", query: str = "match=*", method: str = "GET") -> Answer:
    headers = [METADATA, ("Last-Event-ID", "earliest"), *([bearer(token)] if token else [])]
    return await ask(app, method, f"{PATH}?{query}", headers)


async def test_a_reader_that_asks_for_metadata_gets_a_comment_before_each_event() -> None:
    strange = '"é\u2028\\\\'
    async with hub() as app:
        await publish(app, WRITER, ("topic", "a"), ("topic", strange), ("id", "1"), ("data", "x\ny"), ("type", "t"))
        await publish(app, WRITER, ("topic", "b"), ("id", "2"), ("private", "on"))
        transport = app.state.hub.history  # type: ignore[attr-defined]
        epoch, entries = (await transport.stats()).epoch, await transport.read(0)
        first, second = metadata_in(await with_metadata(app, READER))
        assert first[0].pop("time") == entries[0].time
        assert first == (
            {"topics": ["a", strange], "private": False, "position": 1, "epoch": epoch},
            "id: 1\nevent: t\ndata: x\ndata: y",
        )
        assert second[0].pop("time") == entries[1].time
        assert second == ({"topics": ["b"], "private": True, "position": 2, "epoch": epoch}, "id: 2\ndata: ")
        answer = await with_metadata(app, READER, method="HEAD")
        assert (answer.headers["preference-applied"], answer.body) == ("wait=0, metadata", b"")
        assert ids_in(await replayed(app, token=READER)) == ["1", "2"]  # unchanged without the preference


@pytest.mark.parametrize("preference", ["metadata, wait=0", 'wait="0" , Metadata; x=y'])
async def test_metadata_is_a_separate_preference(preference: str) -> None:
    async with hub("1") as app:
        answer = await ask(app, "GET", PATH + "?match=*&last_event_id=earliest", [("Prefer", preference)])
        assert [event for _, event in metadata_in(answer)] == ["id: 1\ndata: 1"]
        async with follow(app, ("match", "*"), headers=[("Prefer", "metadata"), ("Last-Event-ID", "earliest")]) as one:
            await one.until("1")
        assert b"topics" not in one.body  # all live streams share their frames


@pytest.mark.parametrize("token", [current_token(subscribe=["seen"]), classic_token(subscribe=["seen"])])
async def test_n81_the_metadata_of_a_private_update_only_has_topics_that_the_token_may_read(token: str) -> None:
    topics = [("topic", "hidden"), ("topic", "seen"), ("topic", "hidden too")]
    async with hub() as app:
        await publish(app, WRITER, *topics, ("id", "p"), ("private", "on"))
        await publish(app, WRITER, *topics, ("id", "public"))
        for query in ("match=*", "match=hidden"):
            secret, public = metadata_in(await with_metadata(app, token, query))
            assert (secret[0]["topics"], secret[0]["private"]) == (["seen"], True)
            assert (public[0]["topics"], public[0]["private"]) == (["hidden", "seen", "hidden too"], False)
        for stranger in ("", current_token(subscribe=["other"])):
            (public,) = metadata_in(await with_metadata(app, stranger))
            assert public[1] == "id: public\ndata: "


async def test_metadata_counts_as_written_bytes() -> None:
    topics = tuple(f"{n:0>500}" for n in range(10))
    async with application(subscriptions=False) as app:
        its = app.state.hub
        await its.publish(*(Update(topics, id=str(n)) for n in range(3 * base.PAGE_ENTRIES)))
        while its.delivery.dispatched < 3 * base.PAGE_ENTRIES:
            await asyncio.sleep(0)
        subscriber, _ = await its.subscribing.admit([("exact", topics[0])], CompiledGrant(), "earliest")
        reader = Replay(its.delivery, its.history, its.settings, subscriber, metadata=True)
        with its.delivery.reader_seat(subscriber, reader) as reader._seat:
            sizes = [len(chunk) async for chunk in reader.chunks()]
    assert sum(sizes) > 3 * base.PAGE_ENTRIES * sum(map(len, topics))
    assert all(CHUNK_BYTES <= size < 2 * CHUNK_BYTES for size in sizes[:-1])


async def test_a_large_update_is_sent_in_chunks_that_together_are_its_frame() -> None:
    async with application(subscriptions=False) as app:
        its = app.state.hub
        sent = [Update(("a",), "x" * size, id=str(size)) for size in (900_000, 10, 3 * CHUNK_BYTES, CHUNK_BYTES, 10)]
        await its.publish(*sent)
        while its.delivery.dispatched < len(sent):
            await asyncio.sleep(0)
        subscriber, _ = await its.subscribing.admit([("exact", "a")], CompiledGrant(), "earliest")
        reader = Replay(its.delivery, its.history, its.settings, subscriber)
        with its.delivery.reader_seat(subscriber, reader) as reader._seat:
            chunks = [chunk async for chunk in reader.chunks()]
    assert b"".join(chunks) == b"".join(base.Entry(0, update).frame for update in sent) + b": all\n"
    assert max(map(len, chunks)) < 2 * CHUNK_BYTES


async def test_a_position_is_that_of_the_history_in_any_epoch() -> None:
    async with hub() as app:
        its = app.state.hub  # type: ignore[attr-defined]
        subscriber, _ = await its.subscribing.admit((), CompiledGrant())
        entry = base.Entry(2 * base.EPOCH + 7, Update(("a", "\r\n")), time=5)
        reader = Replay(its.delivery, its.history, its.settings, subscriber, metadata=True)
        assert await reader._comments(Seat(subscriber, reader), [entry], 'the "third"') == [
            rb': {"topics":["a","\r\n"],"private":false,"time":5,"position":7,"epoch":"the \"third\""}' + b"\n"
        ]


async def test_no_position_of_another_epoch_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def current_epoch(transport: base.History) -> tuple[int, str]:
        return 1, "the next one"

    async with hub("1") as app:
        monkeypatch.setattr(base, "current_epoch", current_epoch)
        assert (await with_metadata(app)).text == ""

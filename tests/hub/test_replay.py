"""Prefer: wait=0: what the log has for a subscriber, and then the end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from hub import replay
from hub.authorization import Grant
from hub.replay import Replay, ReplayResponse
from tests.asgi import PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.waiting import HANG
from tests.wire import parse_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Message

    from tests.asgi import Answer

pytestmark = pytest.mark.anyio

WRITER = current_token(["*"], seconds=86_400)
READER = current_token(subscribe=["*"], seconds=86_400)
NOT_TO_WAIT = ("Prefer", "wait=0")


@contextlib.asynccontextmanager
async def hub(*ids: str, **chosen: Any) -> AsyncIterator[ASGIApp]:
    """A hub with a history of updates of these ids, of topic `a`; of private ones where it begins with p."""
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
    assert (blocks.pop(), rest) == (": all", "")
    return [event.id for block in blocks if (event := parse_event(block))]


async def test_n106_n108_the_response_ends_with_the_log() -> None:
    async with hub("1", "2", "3") as app:
        answer = await replayed(app, "1")
        assert ids_in(answer) == ["2", "3"]
        assert answer.headers["mercure-last-event-id"] == answer.headers["last-event-id"] == "1"
        assert answer.text == "id: 2\ndata: 2\n\nid: 3\ndata: 3\n\n: all\n\n"


async def test_an_unknown_cursor_is_answered_with_another_one_and_all_that_there_is() -> None:
    async with hub("1", "2") as app:
        answer = await replayed(app, "0")
        assert ids_in(answer) == ["1", "2"]
        assert answer.headers["mercure-last-event-id"] == "earliest"


async def test_without_a_cursor_there_is_nothing_and_an_end() -> None:
    async with hub("1") as app:
        answer = await replayed(app, None)
        assert ids_in(answer) == []
        assert "mercure-last-event-id" not in answer.headers


async def test_an_empty_log_has_an_end_too() -> None:
    async with hub() as app:
        assert ids_in(await replayed(app)) == []


@pytest.mark.parametrize(
    "query", ["match=a", "match_exact=a", "match_mqtt=%2B", "topic=a", "topic={x}", "topic=b&topic=a"]
)
async def test_n21_v10_it_has_what_a_matcher_of_either_dialect_asks_for(query: str) -> None:
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
async def test_n81_n83_n84_private_updates_are_for_who_is_permitted(token: str, expected: list[str]) -> None:
    async with hub("p1", "1", "p2") as app:
        assert ids_in(await replayed(app, token=token)) == expected


async def test_it_is_the_same_as_a_stream_has_over_many_pages() -> None:
    ids = [f"{'p' if n % 3 else ''}{n}" for n in range(600)]
    async with hub(*ids) as app:
        for start in (0, 126, 127, 128, 599):
            expected = [id for id in ids[start + 1 :] if not id.startswith("p")]
            assert ids_in(await replayed(app, ids[start])) == expected


async def test_what_is_written_in_parts_comes_once() -> None:
    async with hub() as app:
        for id in "123":
            await publish(app, WRITER, ("topic", "a"), ("id", id), ("data", id * 300_000))
        async with follow(app, ("match", "*"), headers=[NOT_TO_WAIT, ("Last-Event-ID", "earliest")]) as stream:
            while not stream.ended:
                await stream.changed()
        *blocks, last, rest = stream.body.decode().split("\n\n")
        assert [event.id for block in blocks if (event := parse_event(block))] == ["1", "2", "3"]
        assert (last, rest) == (": all", "")


async def test_nobody_is_told_of_it() -> None:
    async with application(subscriptions=True) as app:
        async with follow(app, ("match", "*"), headers=[bearer(READER)]) as stream:
            await replayed(app, token=READER)
            await publish_id(app, "1")
            body = await stream.until("1")
        announced = [event for event in body if event.type == "mercure"]
        assert len(announced) == 1  # of the stream itself
        listed = await ask(app, "GET", PATH + "/subscriptions", [bearer(READER)])
        assert listed.json()["subscriptions"] == []


async def test_n23_it_counts_as_a_connection_for_as_long_as_it_lasts() -> None:
    async with application(max_connections=1, subscriptions=False) as app:
        async with follow(app, ("match", "a")):
            assert (await replayed(app)).status == 429
        for _ in range(3):
            assert ids_in(await replayed(app)) == []
    async with application(max_connections_per_client=1, subscriptions=False) as app:
        async with follow(app, ("match", "a")):
            assert (await replayed(app)).status == 429
        for _ in range(3):
            assert ids_in(await replayed(app)) == []
    async with application(max_connections=1, subscriptions=False) as app:
        subscriber, _ = await app.state.hub.subscribe((), Grant())  # it counts from then on
        assert (await replayed(app)).status == 429
        with app.state.hub.connected(Replay(app.state.hub, subscriber)):
            assert (await replayed(app)).status == 429
        assert ids_in(await replayed(app)) == []
    async with application(connection_rate_per_client=1, subscriptions=False) as app:
        assert ids_in(await replayed(app)) == []
        assert (await replayed(app)).status == 429


async def test_the_headers_alone_tell_whether_an_event_is_known() -> None:
    async with hub("1") as app:
        for cursor, answered in (("1", "1"), ("2", "earliest")):
            answer = await replayed(app, cursor, method="HEAD")
            assert (answer.status, answer.body) == (200, b"")
            assert answer.headers["mercure-last-event-id"] == answered


async def test_n82_where_the_token_is_about_to_expire_it_ends_and_does_not_say_that_this_is_all() -> None:
    async with hub("1", "2") as app:
        assert (await replayed(app, token=current_token(subscribe=["*"], seconds=1))).text == ""


async def test_a_hub_that_shuts_down_does_not_say_that_this_is_all() -> None:
    async with hub("1", "2") as app:
        app.state.hub.closing = True  # type: ignore[attr-defined]
        assert (await replayed(app)).text == ""


async def test_n82_who_does_not_read_is_cut_off_when_its_time_is_up() -> None:
    class Cycle:
        """A server's side of a response whose client takes nothing."""

        keep_alive = True
        disconnected = aborted = False

        @property
        def transport(self) -> Cycle:
            return self

        def get_extra_info(self, name: str) -> None:
            return None

        def is_closing(self) -> bool:
            return self.aborted

        def abort(self) -> None:
            self.aborted = True

        async def send(self, message: Message) -> None:
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async with hub("1") as app:
        its = app.state.hub  # type: ignore[attr-defined]
        subscriber, _ = await its.subscribe((), Grant())
        subscriber.deadline = its._clock()
        cycle = Cycle()
        response = ReplayResponse(its, subscriber, [])
        await asyncio.wait_for(response({"type": "http", "method": "GET"}, receive, cycle.send), HANG)
        assert (cycle.aborted, cycle.disconnected, its.broadcaster.connected) == (True, True, 0)


async def test_n8_of_a_long_log_of_which_little_is_wanted_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_SILENCE", -1.0)
    ids = [str(n) for n in range(600)]
    async with hub(*ids) as app:
        await publish_id(app, "last", topic="b")
        async with follow(app, ("match", "b"), headers=[NOT_TO_WAIT, ("Last-Event-ID", "earliest")]) as stream:
            while not stream.ended:
                await stream.changed()
    *beats, rest = stream.body.decode().split(":\n")
    assert beats
    assert not any(beats)
    assert rest == "id: last\ndata: last\n\n: all\n\n"


@pytest.mark.parametrize(
    ("preference", "applied"),
    [
        ("wait=0", True),
        ("respond-async, wait=0", True),
        ("WAIT=0; x", True),
        ('wait="0"', True),
        ("wait=10", False),
        ("wait", False),
        ("return=minimal", False),
    ],
)
async def test_only_to_wait_for_nothing_is_a_preference_that_is_known(preference: str, applied: bool) -> None:
    async with hub("1") as app:
        headers = [("Prefer", preference), ("Last-Event-ID", "earliest")]
        answer = await ask(app, "GET", PATH + "?match=*", headers)
        assert ("preference-applied" in answer.headers) is applied
        assert bool(re.search(": all\n\n$", answer.text)) is applied

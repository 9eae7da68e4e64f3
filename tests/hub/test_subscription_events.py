"""Presence updates: contents, grants and order; and each is sent exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings

from hub import Settings, create_app
from hub import hub as hub_module
from hub.auth.grant import CompiledGrant
from hub.delivery.stream import Stream
from hub.development import DEVELOPMENT_KEY
from hub.errors import Closing
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.node.matchers import MatcherCompiler
from hub.protocol.subscriptions import Subscription
from hub.server.asgi import AsgiConnection
from tests.asgi import (
    FORM,
    PATH,
    Following,
    application,
    ask,
    bearer,
    classic_token,
    current_token,
    follow,
    publish,
    scope_of,
)
from tests.hub import signing
from tests.hub.presence import BELOW, EVERYTHING, TEXTS, encoded
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hub.history.base import Entry
    from hub.http.embedding import HubApplication
    from hub.protocol.updates import Update

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def watching(app: HubApplication, token: str = EVERYTHING) -> AsyncIterator[Following]:
    """A subscriber to presence updates that has already read its own arrival."""
    async with follow(app, ("match_urlpattern", BELOW + "/*"), headers=[bearer(token)]) as watcher:
        await watcher.next_event()
        yield watcher


@contextlib.asynccontextmanager
async def application_on(log: MemoryHistory, **settings: Any) -> AsyncIterator[HubApplication]:
    """A hub on this history."""
    app = create_app(Settings(**{"dev": True, "retry": 0, "max_lifetime": 0} | settings), history=log)
    async with app.running():
        yield app


def said(entries: Sequence[Entry]) -> list[tuple[str, bool]]:
    """Return the pattern and activity of each presence update among `entries`."""
    documents = [json.loads(entry.update.data) for entry in entries if entry.update.topics[0].startswith(BELOW)]
    return [(document.get("match", document.get("topic")), document["active"]) for document in documents]


async def settled(app: HubApplication) -> list[tuple[str, bool]]:
    """Wait until everything is announced; return all presence updates."""
    await asyncio.wait_for(app.state.hub.presence._queue.join(), HANG)
    return said(await app.state.hub.history.read(0))


def connecting(app: HubApplication, *patterns: str) -> tuple[Following, asyncio.Task[None]]:
    """Return a new subscriber and the task of its request, which is not awaited."""
    stream = Following()

    async def receive() -> dict[str, str]:
        await stream._gone.wait()
        return {"type": "http.disconnect"}

    query = "&".join(f"match={quote(pattern)}" for pattern in patterns)
    scope = scope_of("GET", f"{PATH}?{query}", [])
    return stream, asyncio.ensure_future(app(scope, receive, stream.send))


# -- contents


async def test_n120_n121_n123_n124_the_exact_presence_updates_of_a_subscription(
    app: HubApplication,
) -> None:
    async with watching(app) as watcher:
        before = len(watcher.body)
        async with follow(app, ("match", "https://example.com/books/1 2")):
            came = await watcher.next_event()
        went = await watcher.next_event()
        await publish(app, EVERYTHING, ("topic", "x"))
    subscriber = json.loads(came.data)["subscriber"]
    path = f"/.well-known/mercure/subscriptions/exact/https%3A%2F%2Fexample.com%2Fbooks%2F1%202/{encoded(subscriber)}"
    frames = [
        f"id: {id}\nevent: mercure\n"
        f'data: {{"id":"{path}","type":"subscription","match_type":"exact","match":"https://example.com/books/1 2",'
        f'"subscriber":"{subscriber}","active":{active}}}\n\n'
        for id, active in ((came.id, "true"), (went.id, "false"))
    ]
    assert watcher.body[before:].decode() == "".join(frames)
    assert came.id != went.id


async def test_n120_n124_each_matcher_is_a_subscription_in_the_order_of_the_request(app: HubApplication) -> None:
    matchers = [
        ("match", "b"),
        ("match_urlpattern", "https://example.com/:id"),
        ("match_uritemplate", "/a{?b}"),
        ("match_amqp", "stock.#"),
        ("match_mqtt", "sport/+"),
        ("match_exact", "a"),
    ]
    expected = [(name.partition("_")[2] or "exact", pattern) for name, pattern in matchers]
    async with watching(app) as watcher:
        async with follow(app, *matchers, ("match_exact", "b")):
            came = [json.loads((await watcher.next_event()).data) for _ in matchers]
        went = [json.loads((await watcher.next_event()).data) for _ in matchers]
    assert [(one["match_type"], one["match"]) for one in came] == expected
    assert [one | {"active": False} for one in came] == went
    assert all(one["active"] for one in came)


@pytest.mark.parametrize("path", ["/hub", "/a/b.c~d"])
async def test_n6_n121_the_topic_is_below_the_path_of_the_hub(path: str) -> None:
    token = current_token(subscribe=[("urlpattern", path + "/subscriptions/*")], resource="https://hub.example" + path)
    async with (
        application(path=path) as app,
        follow(app, target=f"{path}?match=*", headers=[bearer(token)]) as watcher,
    ):
        document = json.loads((await watcher.next_event()).data)
    assert document["id"] == f"{path}/subscriptions/exact/%2A/{encoded(document['subscriber'])}"


COMPILER = MatcherCompiler("https://hub.example/.well-known/mercure")


@settings(deadline=None)
@given(TEXTS, TEXTS.filter(bool))
def test_n121_v60_each_variable_is_fully_encoded_once(pattern: str, subscriber: str) -> None:
    for type, first in (("exact", "/exact"), ("topic", "")):
        path = Subscription(PATH, type, pattern, subscriber, None).path
        assert path == f"{BELOW}{first}/{encoded(pattern)}/{encoded(subscriber)}"
        assert unquote(path.rpartition("/")[2], errors="strict") == subscriber


async def test_n124_json_inside_is_escaped_and_unicode_is_not(app: HubApplication) -> None:
    pattern = 'a "quoted" \\ back\u2028slash é 😀'
    async with watching(app) as watcher, follow(app, ("match", pattern)):
        event = await watcher.next_event()
    assert json.loads(event.data)["match"] == pattern
    assert r'"match":"a \"quoted\" \\ back' in event.data
    assert "é 😀" in event.data


# -- subscriber ids and payloads


async def test_n125_a_subscriber_has_one_random_id_for_its_connection(app: HubApplication) -> None:
    async with watching(app) as watcher:
        for _ in range(3):
            async with follow(app, ("match", "a"), ("match", "b")):
                pass
        documents = [json.loads((await watcher.next_event()).data) for _ in range(12)]
    ids = [document["subscriber"] for document in documents]
    assert [ids[n] for n in range(0, 12, 4)] == [ids[n] for n in range(3, 12, 4)]
    assert len(set(ids)) == 3
    assert all(uuid.UUID(id).version == 4 and id == uuid.UUID(id).urn for id in ids)


async def test_n125_a_client_cannot_choose_its_id(app: HubApplication) -> None:
    names = ["subscriber", "id", "subscriber_id", "client_id", "sub"]
    wish = "urn:uuid:00000000-0000-4000-8000-000000000000"
    token = current_token(subscribe=["*"], subject=wish, client_id=wish, payload={"subscriber": wish, "id": wish})
    headers = [bearer(token), FORM, *((name, wish) for name in (*names, "last-event-id", "mercure-subscriber"))]
    body = "&".join(f"{name}={wish}" for name in names)
    async with (
        watching(app) as watcher,
        follow(app, target=f"{PATH}?match=a&{body}", method="QUERY", headers=headers, body=body.encode()),
    ):
        document = json.loads((await watcher.next_event()).data)
    assert wish not in document["subscriber"]
    assert wish not in document["id"]


DETAILS: list[tuple[str, list[dict[str, Any]], tuple[str, str], Any]] = [
    ("the first that matches", [{"match": ["b"], "payload": {"n": 1}}, {"match": ["a"], "payload": {"n": 2}}, {"match": ["a"], "payload": {"n": 3}}], ("match", "a"), {"n": 2}),
    ("any topic of a detail", [{"match": ["x", "y", "a"], "payload": {"n": 1}}], ("match", "a"), {"n": 1}),
    ("everything", [{"match": ["*"], "payload": {"n": 1}}], ("match_urlpattern", "https://example.com/:id"), {"n": 1}),
    ("none matches", [{"match": ["b"], "payload": {"n": 1}}], ("match", "a"), None),
    ("the first that matches has none", [{"match": ["a"]}, {"match": ["*"], "payload": {"n": 1}}], ("match", "a"), None),
    ("null is none", [{"match": ["a"], "payload": None}, {"match": ["*"], "payload": {"n": 1}}], ("match", "a"), None),
    ("an empty one is one", [{"match": ["a"], "payload": {}}], ("match", "a"), {}),
    ("not of what may be published", [{"match": ["a"], "payload": {"n": 1}, "actions": ["publish"]}, {"match": ["a"], "payload": {"n": 2}, "actions": ["publish", "subscribe"]}], ("match", "a"), {"n": 2}),
    ("the same pattern", [{"match": [("urlpattern", "https://example.com/bar/:id")], "payload": {"n": 1}}], ("match_urlpattern", "https://example.com/bar/:id"), {"n": 1}),
    ("a pattern that is no topic of itself", [{"match": [("urlpattern", "https://example.com/(\\d+)")], "payload": {"n": 1}}], ("match_urlpattern", "https://example.com/(\\d+)"), {"n": 1}),
    ("a pattern that is wider", [{"match": [("urlpattern", "https://example.com/*")], "payload": {"n": 1}}], ("match_urlpattern", "https://example.com/bar/:id"), {"n": 1}),
    ("a pattern that is narrower", [{"match": [("urlpattern", "https://example.com/bar")], "payload": {"n": 1}}], ("match_urlpattern", "https://example.com/*"), None),
    ("nested", [{"match": ["a"], "payload": {"é": [1.5, None, {"x": True}], "long": "x" * 1000}}], ("match", "a"), {"é": [1.5, None, {"x": True}], "long": "x" * 1000}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("details", "matcher", "expected"), [row[1:] for row in DETAILS], ids=[row[0] for row in DETAILS]
)
async def test_n126_t79_the_payload_comes_from_the_first_detail_that_matches_the_matcher(
    details: list[dict[str, Any]], matcher: tuple[str, str], expected: Any, app: HubApplication
) -> None:
    token = signing.current(
        *(
            signing.detail(
                *(
                    {"match": one} if isinstance(one, str) else {"match_type": one[0], "match": one[1]}
                    for one in given["match"]
                ),
                **{"actions": ["subscribe"]} | {name: value for name, value in given.items() if name != "match"},
            )
            for given in details
        ),
        key=DEVELOPMENT_KEY,
        exp=time.time() + 600,
    )
    async with watching(app) as watcher:
        async with follow(app, matcher, headers=[bearer(token)]) as stream:
            assert stream.status == 200
            came = json.loads((await watcher.next_event()).data)
        went = json.loads((await watcher.next_event()).data)
    assert came.get("payload") == went.get("payload") == expected
    assert ("payload" in came) == ("payload" in went) == (expected is not None)


async def test_n126_matchers_of_a_connection_have_payloads_of_their_own(app: HubApplication) -> None:
    token = signing.current(
        signing.detail({"match": "a"}, payload={"of": "a"}, actions=["subscribe"]),
        signing.detail({"match": "b"}, payload={"of": "b"}, actions=["subscribe"]),
        key=DEVELOPMENT_KEY,
        exp=time.time() + 600,
    )
    matchers = [("match", "b"), ("match", "c"), ("match", "a")]
    async with watching(app) as watcher, follow(app, *matchers, headers=[bearer(token)]):
        documents = [json.loads((await watcher.next_event()).data) for _ in matchers]
    assert [document.get("payload") for document in documents] == [{"of": "b"}, None, {"of": "a"}]


# -- the grants of readers


async def test_n122_presence_updates_need_a_grant(app: HubApplication) -> None:
    path_of_a = ("urlpattern", BELOW + "/exact/a/:subscriber")
    granted = current_token(subscribe=[path_of_a])
    async with (
        follow(app, ("match", "*")) as anonymous,
        follow(app, ("match", "*"), headers=[bearer(current_token(subscribe=["a", "b"]))]) as other,
        follow(app, ("match", "*"), headers=[bearer(granted)]) as reader,
    ):
        async with follow(app, ("match", "b")), follow(app, ("match", "a")):
            pass
        await publish(app, EVERYTHING, ("topic", "a"), ("data", "the end"))
        assert await anonymous.until("the end") == []
        assert await other.until("the end") == []
        events = await reader.until("the end")
    assert [json.loads(event.data)["active"] for event in events] == [True, False]
    assert {json.loads(event.data)["match"] for event in events} == {"a"}


async def test_v82_grants_of_both_dialects_show_current_presence_updates() -> None:
    templates = classic_token(subscribe=[BELOW + "/exact/a{/subscriber}"])
    async with (
        application(classic=True) as app,
        follow(app, ("topic", "*"), headers=[bearer(templates)]) as reader,
        follow(app, ("match", "b")),
        follow(app, ("match", "a")),
    ):
        event = await reader.next_event()
    assert json.loads(event.data)["match"] == "a"
    assert event.type == "mercure"


async def test_t90_presence_by_url_pattern_for_one_topic(app: HubApplication) -> None:
    pattern = f"{BELOW}/:match_type/:match/:subscriber"
    token = current_token(subscribe=[("urlpattern", pattern)])
    async with follow(app, ("match_urlpattern", pattern), headers=[bearer(token)]) as watcher:
        assert json.loads((await watcher.next_event()).data)["match"] == pattern  # its own arrival
        async with follow(app, ("match", "https://example.com/a?b=c#d")):
            came = json.loads((await watcher.next_event()).data)
        went = json.loads((await watcher.next_event()).data)
    assert (came["match"], came["active"], went["active"]) == ("https://example.com/a?b=c#d", True, False)


# -- order


async def test_n127_v62_t69_a_subscriber_sees_itself_arrive(app: HubApplication) -> None:
    async with follow(app, ("match", "*"), ("match", "a"), headers=[bearer(EVERYTHING)]) as stream:
        await publish(app, EVERYTHING, ("topic", "x"), ("data", "the end"))
        events = await stream.until("the end")
    assert [json.loads(event.data)["match"] for event in events] == ["*", "a"]
    assert {json.loads(event.data)["active"] for event in events} == {True}


class WatchedLog(MemoryHistory):
    """A history that counts connections at each append, and can wait or fail once."""

    def __init__(self) -> None:
        super().__init__(Retention(max_updates=1000, max_bytes=10**6))
        self.connected: Callable[[], int] = int
        self.noted: list[tuple[bool, int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails: Exception | None = None
        self.fails_after = 0
        self.waiting = asyncio.Event()

    async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
        if not self.open.is_set():
            self.waiting.set()
            await self.open.wait()
        if self.fails is not None and len(self.noted) >= self.fails_after:
            error, self.fails = self.fails, None
            raise error
        active = json.loads(updates[0].data)["active"]
        self.noted.append((active, self.connected()))
        return await super().append(updates, **options)


async def test_n127_a_subscriber_is_listed_before_its_announcement_and_removed_before_its_departure() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        log.connected = lambda: app.state.hub.delivery.connection_count
        async with follow(app, ("match", "a"), ("match", "b")):
            pass
        assert await settled(app) == [("a", True), ("b", True), ("a", False), ("b", False)]
    assert log.noted == [(True, 1), (False, 0)]


async def test_n127_a_stream_begins_with_its_announcement() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        log.open.clear()
        stream, task = connecting(app, "a")
        await asyncio.wait_for(log.waiting.wait(), HANG)
        assert stream.status == 0
        log.open.set()
        await stream.begun()
        assert said(await log.read(0)) == [("a", True)]
        stream.go()
        await task


async def test_n128_presence_updates_are_in_the_history(app: HubApplication) -> None:
    first = await publish(app, EVERYTHING, ("topic", "x"))
    async with watching(app) as watcher:
        async with follow(app, ("match", "a")):
            seen = [await watcher.next_event()]
        seen.append(await watcher.next_event())
    for target in (f"{PATH}?match=*&last_event_id={first}", f"{PATH}?match=*&last_event_id={seen[0].id}"):
        async with follow(app, target=target, headers=[bearer(EVERYTHING)]) as reader:
            assert reader.headers["mercure-last-event-id"] == target.rpartition("=")[2]
            await publish(app, EVERYTHING, ("topic", "x"), ("data", "the end"))
            again = await reader.until("the end")
        assert [event for event in again if event in seen] == (seen if first in target else seen[1:])
    for token in ([bearer(current_token(subscribe=["a"]))], []):  # in the history they stay private
        async with follow(app, ("match", "*"), ("last_event_id", first), headers=token) as reader:
            await publish(app, EVERYTHING, ("topic", "x"), ("data", "really"))
            assert {event.data for event in await reader.until("really")} == {"the end"}


async def test_n128_presence_updates_move_the_cursor(app: HubApplication) -> None:
    async with watching(app) as watcher, follow(app, ("match", "a")):
        event = await watcher.next_event()
        answer = await ask(app, "GET", BELOW, [bearer(EVERYTHING)])
    assert f'last-event-id="{event.id}"' in answer.headers["link"]


async def test_n140_without_subscriptions_there_are_no_presence_updates() -> None:
    async with application(subscriptions=False) as app:
        async with follow(app, ("match", "*"), ("topic", "*"), headers=[bearer(EVERYTHING)]) as stream:
            async with follow(app, ("match", "a")):
                pass
            await publish(app, EVERYTHING, ("topic", "x"), ("data", "the end"))
            assert await stream.until("the end") == []
        assert len(await app.state.hub.history.read(0)) == 1


# -- each exactly once


async def test_n120_a_subscriber_that_leaves_during_its_announcement_is_announced_as_gone() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        log.open.clear()
        gone, task = connecting(app, "a", "b")
        gone.go()
        other, other_task = connecting(app, "c")
        await asyncio.wait_for(log.waiting.wait(), HANG)
        log.open.set()
        await asyncio.wait_for(task, HANG)
        other.go()
        await asyncio.wait_for(other_task, HANG)
        ends = await settled(app)
    assert [one for one in ends if one[0] != "c"] == [("a", True), ("b", True), ("a", False), ("b", False)]
    assert [one for one in ends if one[0] == "c"] == [("c", True), ("c", False)]


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("queued", [False, True], ids=["alone", "behind another"])
async def test_n120_a_request_that_is_cancelled_at_any_point_leaves_no_ghost(turns: int, queued: bool) -> None:
    async with application() as app:
        others = [connecting(app, "other")] if queued else []
        _, task = connecting(app, "a", "b")
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for other, other_task in others:
            other.go()
            await asyncio.wait_for(other_task, HANG)
        of_it = [one for one in await settled(app) if one[0] != "other"]
        assert app.state.hub.delivery.connection_count == 0
        assert not app.state.hub.shares.connections.clients
    assert of_it in ([], [("a", True), ("b", True), ("a", False), ("b", False)])


async def test_n120_a_listed_subscriber_cancelled_before_its_announcement_is_announced_as_gone() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        log.open.clear()
        first, first_task = connecting(app, "first")
        _, task = connecting(app, "a")
        await asyncio.wait_for(log.waiting.wait(), HANG)
        while app.state.hub.delivery.connection_count < 2:
            await asyncio.sleep(0)
        listed = (await ask(app, "GET", BELOW + "/exact/a", [bearer(EVERYTHING)])).json()["subscriptions"]
        assert len(listed) == 1
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        log.open.set()
        first.go()
        await asyncio.wait_for(first_task, HANG)
        assert [one for one in await settled(app) if one[0] == "a"][-1] == ("a", False)


async def test_t68_n127_a_subscriber_that_cannot_be_announced_is_refused_and_leaves_nothing() -> None:
    log = WatchedLog()
    async with application_on(log, max_connections_per_client=1) as app:
        log.fails = OSError("the disk is full")
        stream, task = connecting(app, "a")
        with pytest.raises(OSError, match="the disk is full"):
            await asyncio.wait_for(task, HANG)
        assert stream.status == 500
        assert app.state.hub.delivery.connection_count == 0
        assert await settled(app) == []
        async with follow(app, ("match", "b")) as stream:  # the same client, whose limit is 1
            assert stream.status == 200
        assert await settled(app) == [("b", True), ("b", False)]


async def test_t68_n120_the_announcement_of_a_refused_subscriber_is_revoked() -> None:
    log = WatchedLog()
    async with application_on(log, presence_updates=16) as app:  # so that two are appended at a time
        log.fails, log.fails_after = OSError("the disk is full"), 1
        _, task = connecting(app, "a", "b", "c")
        with pytest.raises(OSError, match="the disk is full"):
            await asyncio.wait_for(task, HANG)
        last = dict(await settled(app))
        assert app.state.hub.delivery.connection_count == 0
    assert last["a"] is last["b"] is False
    assert last.get("c", False) is False


@pytest.mark.parametrize(
    ("chosen", "status", "first", "second"),
    [
        ({"max_connections": 1}, 200, ("match", "a"), ("match", "b")),  # a stream that ends at once
        ({"max_connections_per_client": 1}, 429, ("match", "a"), ("match", "b")),
        ({"max_url_patterns": 1}, 429, ("match_urlpattern", "/a/(b)"), ("match_urlpattern", "/b/(b)")),
    ],
)
async def test_t68_n23_a_refused_subscriber_is_not_announced(
    chosen: dict[str, int], status: int, first: tuple[str, str], second: tuple[str, str]
) -> None:
    async with application(**chosen) as app:
        async with follow(app, first):
            reply = await ask(app, "GET", f"{PATH}?{second[0]}={quote(second[1])}")
            assert reply.status == status
            assert await settled(app) == [(first[1], True)]
            assert app.state.hub.delivery.connection_count == 1
        async with follow(app, second) as stream:
            assert stream.status == 200
        assert await settled(app) == [(first[1], True), (first[1], False), (second[1], True), (second[1], False)]


async def test_n120_a_failed_announcement_of_a_departure_does_not_stop_later_ones() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        async with follow(app, ("match", "lost")):
            log.fails = OSError("the disk is full")
        async with follow(app, ("match", "a")):
            pass
        assert await settled(app) == [("lost", True), ("a", True), ("a", False)]


@pytest.mark.parametrize("count", [1, 5])
async def test_n120_a_closing_hub_announces_all_subscribers_as_gone(count: int) -> None:
    async with contextlib.AsyncExitStack() as clients:
        async with application() as app:
            streams = [await clients.enter_async_context(follow(app, ("match", str(n)))) for n in range(count)]
            log = app.state.hub.history
        assert all(stream.ended for stream in streams)
        told = said(await log.read(0))
    assert sorted(told) == sorted((str(n), active) for n in range(count) for active in (True, False))


async def test_n120_a_subscriber_whose_announcement_overlaps_the_shutdown_is_announced_as_gone() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        log.open.clear()
        stream, task = connecting(app, "a")
        await asyncio.wait_for(log.waiting.wait(), HANG)
        asyncio.get_running_loop().call_soon(log.open.set)
    await asyncio.wait_for(task, HANG)
    assert stream.ended
    assert said(await log.read(0)) == [("a", True), ("a", False)]


async def test_n120_the_last_updates_of_a_hub_announce_all_departures() -> None:
    async with application() as app:
        async with follow(app, ("match", "a")) as stream:
            ending = asyncio.ensure_future(app.state.hub._all_departed())
            await publish(app, EVERYTHING, ("topic", "a"), ("data", "still there"))
            assert await stream.until("still there") == []
            assert not ending.done()
        await asyncio.wait_for(ending, HANG)
        assert said(await app.state.hub.history.read(0)) == [("a", True), ("a", False)]


async def test_n120_a_subscriber_that_comes_during_the_shutdown_is_announced_as_gone() -> None:
    async with application() as app:
        app.state.hub.shutdown.begin()
        async with follow(app, ("match", "a")) as stream:
            await stream.end()
            assert stream.status == 200
        assert await settled(app) == [("a", True), ("a", False)]


async def test_n120_a_subscriber_that_comes_after_the_last_one_has_left_is_announced_as_gone() -> None:
    log = WatchedLog()
    async with application_on(log) as app:
        async with follow(app, ("match", "last")):
            log.open.clear()
        await asyncio.wait_for(log.waiting.wait(), HANG)  # its departure is not published yet
        app.state.hub.shutdown.begin()
        ending = asyncio.ensure_future(app.state.hub._all_departed())
        await asyncio.sleep(0)
        stream, task = connecting(app, "late")
        while not app.state.hub.delivery.connection_count:
            await asyncio.sleep(0)
        log.open.set()
        await asyncio.wait_for(ending, HANG)
        assert said(await log.read(0)) == [("last", True), ("last", False), ("late", True), ("late", False)]
        await asyncio.wait_for(task, HANG)
    assert stream.ended


async def test_n127_a_subscriber_whose_announcement_is_cut_off_by_the_shutdown_gets_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "LAST_ANNOUNCEMENTS_SECONDS", 0.01)
    log = WatchedLog()
    async with application_on(log) as app:
        log.open.clear()
        waiting = [connecting(app, "a"), connecting(app, "b")]
        await asyncio.wait_for(log.waiting.wait(), HANG)
        while app.state.hub.delivery.connection_count < 2:
            await asyncio.sleep(0)
    for stream, task in waiting:
        await asyncio.wait_for(task, HANG)
        assert stream.status == 503
    assert app.state.hub.delivery.connection_count == 0


async def test_n127_a_stopped_hub_accepts_no_subscriber() -> None:
    async with application() as app:
        hub = app.state.hub
    subscriber, _ = await hub.subscribing.admit([("exact", "a")], CompiledGrant())

    async def never(*message: object) -> Any:
        raise AssertionError

    with pytest.raises(Closing):
        await Stream(hub.delivery, AsgiConnection(never, never)).open(subscriber)
    assert hub.delivery.connection_count == 0
    assert not hub.shares.connections.clients


@pytest.mark.parametrize("classic", [True, False])
async def test_n120_many_concurrent_subscribers_are_each_announced_once_in_order(classic: bool) -> None:
    async with application(classic=classic, history_updates=1000) as app:
        names = [str(n) for n in range(40)]
        streams = [connecting(app, name, name + "'") for name in names]
        for n, (stream, _) in enumerate(streams):
            if n % 3 == 0:
                stream.go()
        for stream, _ in streams:
            await stream.begun()
            stream.go()
        for _, task in streams:
            await asyncio.wait_for(task, HANG)
        await settled(app)
        log: list[Entry] = []
        while page := await app.state.hub.history.read(len(log)):
            log += page
        told = said(log)
    assert sorted(told) == sorted(
        (one + mark, active) for one in names for mark in ("", "'") for active in (True, False)
    )
    for name in names:
        of_it = [one for one in told if one[0].rstrip("'") == name]
        assert of_it == [(name, True), (name + "'", True), (name, False), (name + "'", False)]

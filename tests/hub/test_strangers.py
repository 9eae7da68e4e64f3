"""The cost of strangers to other clients, and the robustness of a hub."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tracemalloc
from typing import Self

import pytest

from hub import Settings, Update, create_app
from hub.auth.grant import CompiledGrant
from hub.errors import Closing
from hub.history.base import Entry
from hub.node.matchers import MatcherCompiler
from hub.protocol.topics import TopicMatcher
from tests.asgi import FORM, NDJSON, PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.presence import EVERYTHING
from tests.hub.seats import live_at, subscriber
from tests.hub.signing import at_once
from tests.hub.world import payer_of, plain, world
from tests.waiting import HANG

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("streams")]


# -- replay


async def test_replaying_clients_share_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_by_itself(matcher: TopicMatcher, topic: str) -> bool:
        raise AssertionError("a matcher was called for an update")

    async with world() as here:
        for topic in ("a", "b", "a"):
            await here.publish(topic)
        with monkeypatch.context() as patch:
            patch.setattr(TopicMatcher, "match", ask_by_itself)
            connection = await here.connect("a", after="earliest")
            await here.caught_up()
        assert connection.ids == ["1", "3"]


async def test_r37_a_replay_stops_if_the_client_left_even_if_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.SLICE_SECONDS", -1.0)  # each update takes a slice
    async with world() as here:
        for n in range(300):
            await here.publish(str(n))
        connection = await here.connect("nothing", after="earliest")
        while not connection.writes:
            await asyncio.sleep(0)
        connection.wire.cut = True  # nothing calls `receive`, so it does not report this
        await asyncio.wait_for(connection.task, 10)
        assert connection.reason == "its connection is lost"
        assert connection.stream.position < 300


# -- presence updates


async def test_presence_updates_do_not_displace_published_updates() -> None:
    """A connection causes two presence updates per matcher, and needs no token."""
    bounds = {"history_updates": 50, "history_bytes": 100_000, "presence_updates": 80, "presence_bytes": 200_000}
    query = "&".join(f"match=x{n}" for n in range(20))  # more than may wait for dispatch at once
    async with application(**bounds) as app:
        first = await publish(app, EVERYTHING, ("topic", "a"))
        for _ in range(30):
            async with follow(app, target=f"{PATH}?{query}") as stream:
                assert stream.status == 200
        last = await publish(app, EVERYTHING, ("topic", "a"))
        await asyncio.wait_for(app.state.hub.presence._queue.join(), HANG)
        stats = await app.state.hub.history.stats()
        assert (stats.updates, stats.presence_updates) == (2, 80)
        assert stats.newest.position == 2 + 30 * 20 * 2
        token = current_token(subscribe=["a"])
        for headers in ([], [bearer(token)]):
            cursor = ("last_event_id", first)
            async with follow(app, ("match", "a"), cursor, headers=headers) as stream:
                assert stream.headers["mercure-last-event-id"] == first
                assert (await stream.next_event()).id == last
        reply = await ask(app, "GET", f"{PATH}?match=a&last_event_id={first}", [("prefer", "wait=0")])
        assert reply.text == f"id: {last}\ndata: \n\n: all\n"


@pytest.mark.parametrize("bounds", [{"history_updates": 20}, {"history_bytes": 20_000}])
async def test_n120_presence_updates_of_very_many_matchers_do_not_disconnect_a_reader(
    bounds: dict[str, int],
) -> None:
    async with world(plain(subscriptions=True, **bounds)) as here:
        reader = await here.connect("a")
        await here.settle()
        other = await here.connect(*[f"{n} {'x' * 50}" for n in range(100)])
        await here.publish("a")
        await here.caught_up()
        assert reader.ids == ["1"]
        assert not reader.ended
        assert other.wire.begun  # even if its own presence updates closed it at once


async def test_presence_topics_take_no_room_in_the_cache_of_topics() -> None:
    presence = "/.well-known/mercure/subscriptions{/topic,subscriber}"
    async with world(plain(subscriptions=True)) as here:
        await here.connect(presence, granted=[presence])
        for _ in range(2):  # a topic is cached when it is looked up again
            await here.caught_up()
            await here.publish("a")
        for _ in range(3):
            (await here.connect("b")).go()
            await here.caught_up()
        remembered = here.hub.delivery.audience._filter._entries._cache
        assert len(remembered) == 1
        assert remembered.get(("subscribed", "a")) is not None
        assert len(here.connections[0].ids) == 7  # its own arrival too (N127)


# -- requests


@pytest.mark.parametrize("classic", [True, False])
async def test_n18_n56_very_many_parameters_are_refused_before_they_are_parsed(classic: bool) -> None:
    async with application(classic=classic, max_matchers=5, max_classic_matchers=2, max_topics=5) as app:
        most = 7 if classic else 5
        for count, status in ((1_000 + most, 200), (1_001 + most, 400)):
            reply = await ask(app, "QUERY", f"{PATH}?match=a", [FORM], b"&a" * count)
            assert reply.status == status
            assert status == 200 or reply.detail == f"more parameters than {most} matchers, and 1000 others"
        token = bearer(current_token(["*"]))
        for count, status in ((1_005, 200), (1_006, 413)):
            reply = await ask(app, "POST", PATH, [FORM, token], b"topic=a" + b"&a" * count)
            assert reply.status == status
            assert status == 200 or reply.detail == "more fields than 5 topics, and 1000 others"


async def test_n23_a_subject_differs_from_an_address_and_from_the_subjects_of_other_issuers() -> None:
    subjects = [classic_token(["a"], ["a"]), current_token(subscribe=["a"], subject="203.0.113.7")]
    async with application(max_connections_per_client=1) as app:
        hub = app.state.hub
        grants = [
            await hub.authorizer.verify("subscribe", token, resource=f"https://hub.example{PATH}") for token in subjects
        ]
        assert [grant.subject for grant in grants] == [None, "https://issuer.example 203.0.113.7"]
        named = CompiledGrant(classic=True, subject=" 203.0.113.7")
        clients = set()
        for grant in (CompiledGrant(), named, *grants):
            subscriber, _ = await hub.subscribing.admit([("exact", "a")], grant, address="203.0.113.7")
            clients.add(payer_of(subscriber))
            subscriber.leave()
        assert len(clients) == 3  # those without a token or a subject count as one


async def test_n136_a_repeated_id_is_not_an_etag() -> None:
    async with application() as app:
        hub, headers = app.state.hub, [bearer(classic_token((), ["*"])), ("accept", "application/json")]
        where = f"{PATH}/subscriptions/exact/a"
        await hub.publish(Update(("t",), id="x"))
        tag = (await ask(app, "GET", where, headers)).headers["etag"]
        assert (await ask(app, "GET", where, [*headers, ("if-none-match", tag)])).status == 304
        async with follow(app, ("match", "a")):
            await hub.publish(Update(("t",), id="x"))
            answer = await ask(app, "GET", where, [*headers, ("if-none-match", tag)])
            assert (answer.status, len(answer.json()["subscriptions"])) == (200, 1)


async def test_r71_a_server_without_a_raw_path_is_supported() -> None:
    async with application() as app, follow(app, ("match", "a b/ü")):
        headers = [bearer(classic_token((), ["*"]))]
        answer = await ask(app, "GET", f"{PATH}/subscriptions", headers, raw_path=None)
        assert answer.status == 200


class Turns:
    """Counts the turns of the event loop while it is entered."""

    count = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


@pytest.mark.parametrize(
    ("updates", "topics", "matchers", "least"),
    [
        (16, 1_000, 1, 16_000 / 64),  # while the topics are checked
        (1, 1_000, 1, 1_000 / 64),
        (1_000, 1, 1, 1_000 / 64),
        (1, 100, 1_000, 100),  # while the grant is checked
        (100, 1, 1_000, 100),
        (20, 50, 10, 1_000 / 64 + 10),
    ],
)
async def test_other_tasks_run_while_the_topics_of_a_request_are_checked(
    updates: int, topics: int, matchers: int, least: float
) -> None:
    async with application(subscriptions=False) as app:
        hub = app.state.hub
        patterns = [f"/{n}/{{id}}" for n in range(matchers - 1)]
        grant = CompiledGrant(publish=tuple(hub.compiler.compile("topic", pattern) for pattern in [*patterns, "*"]))
        sent = [Update(tuple(f"https://example.com/{t}" for t in range(topics)), id=str(n)) for n in range(updates)]
        async with Turns() as turns:
            await hub.publish(*sent, grant=grant)
        assert turns.count >= least - 3


async def test_an_update_of_one_topic_does_not_wait_for_a_turn() -> None:
    async with application(subscriptions=False) as app:
        hub = app.state.hub
        grant = CompiledGrant(publish=tuple(hub.compiler.compile("topic", str(n)) for n in range(2_000)))
        updates = [Update(("1999",))]
        at_once(hub.publishing._intake.check(updates, grant))
        at_once(hub.publishing._intake.check([Update(tuple(map(str, range(64))))], None))


async def test_other_tasks_run_while_a_batch_is_parsed() -> None:
    line = b'{"topic":"a","data":"%s"}\n' % (b"x" * 1_000)
    async with application(subscriptions=False) as app:
        for body, least in ((line * 1_000, 1_000 * len(line) / 2**14), (line * 10, 0)):
            async with Turns() as turns:
                assert (await ask(app, "POST", PATH, [NDJSON, bearer(current_token(["*"]))], body)).status == 200
            assert least * 0.9 <= turns.count < least + 40  # plus the turns of checking a thousand topics
        # More often while another publisher is active.
        for subject in ("other", "own"):
            async with Turns() as turns:
                token = current_token(["*"], subject=subject)
                assert (await ask(app, "POST", PATH, [NDJSON, bearer(token)], line * 1_000)).status == 200
        assert turns.count >= 1_000 * len(line) / 2**12 * 0.9


# -- dispatch


async def test_frames_are_joined_for_one_set_of_receivers_at_a_time() -> None:
    compiler = MatcherCompiler("https://hub.example/")
    count = 40
    topics = [[topic for topic in range(count) if topic != n] for n in range(count)]
    wanted = [subscriber(compiler.compile("exact", str(topic)) for topic in some) for some in topics]
    _, live, recorders = live_at("https://hub.example/", *wanted, cached_topics=200)
    sizes: list[int] = []
    for recorder in recorders:  # not the bodies, which would stay in memory
        recorder.write = lambda body, position: sizes.append(len(body))  # type: ignore[method-assign]
    entries = [Entry(n + 1, Update((str(n),), "x" * 10_000)) for n in range(count)]
    expected = {len(b"".join(entry.frame for entry in entries if entry is not other)) for other in entries}
    tracemalloc.start()
    await live.dispatch(entries)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(sizes) == expected
    assert len(sizes) == count
    assert peak < 10 * max(sizes)  # not forty times


# -- the end


async def test_closing_twice_or_while_a_body_times_out_ends_everything() -> None:
    app = create_app(Settings(dev=True))
    hub = app.state.hub
    async with app.running():

        async def wait(seconds: float) -> None:
            async with hub.shutdown.until_closing(seconds):
                await asyncio.Event().wait()

        waiting = asyncio.ensure_future(wait(60))
        await asyncio.sleep(0)
        hub.shutdown.begin()
        late = next(iter(hub.shutdown._timeouts))
        while not late.expired():
            await asyncio.sleep(0)
        hub.shutdown._timeouts.add(late)
        hub.shutdown.begin()
        with pytest.raises(Closing):
            await waiting
    assert not hub.is_running


def test_hubs_that_stop_in_the_order_of_their_start_restore_the_signal_handlers() -> None:
    async def run() -> None:
        first, second = (create_app(Settings(dev=True)) for _ in range(2))
        entered = [app.running() for app in (first, second)]
        for one in entered:
            await one.__aenter__()
        for one in entered:
            await one.__aexit__(None, None, None)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores SIGINT
    try:
        asyncio.run(run())
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- URL Patterns


async def test_n23_patterns_of_each_user_are_not_limited() -> None:
    # Each of 20 clients has 100 patterns of its own: twice as many as all could have
    # once.
    async with application(max_url_patterns=10, client_share=1) as app, contextlib.AsyncExitStack() as stack:
        streams = []
        for client in range(20):
            asked = [("match_urlpattern", f"/users/{client}/{n}/:x") for n in range(100)]
            streams.append(await stack.enter_async_context(follow(app, *asked)))
        assert [stream.status for stream in streams] == [200] * 20
        await publish(app, current_token(["*"]), ("topic", "/users/7/99/a"), ("data", "for 7"))
        assert (await streams[7].next_event()).data == "for 7"
        # One client takes all patterns with groups; the others still have plain ones.
        greedy = [("match_urlpattern", f"/{n}/(a)") for n in range(10)]
        await stack.enter_async_context(follow(app, *greedy))
        assert (await ask(app, "GET", f"{PATH}?match_urlpattern=/new/(a)")).status == 429
        assert (await stack.enter_async_context(follow(app, ("match_urlpattern", "/new/:a")))).status == 200

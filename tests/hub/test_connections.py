"""Connections: heartbeats, lifetimes, limits, retry hints, beginnings and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub import Settings
from hub.auth.grant import CompiledGrant
from hub.delivery.heartbeats import LATE_SECONDS
from hub.delivery.seat import Ending
from hub.errors import Busy, LimitExceeded
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.protocol import topics
from hub.protocol.updates import Update
from tests.asgi import FORM, PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.seats import Recorder
from tests.hub.world import EVERYTHING, World, check_empty, plain, world
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import ASGIApp

    from hub.delivery.reading import Part, Reading
    from tests.asgi import Answer, Following
    from tests.hub.world import Client

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("streams")]

BEAT = 10


# -- heartbeats


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 15), st.sampled_from(["wanted", "unwanted", "batch"])), max_size=12))
def test_n8_r34_t64_a_heartbeat_comes_after_its_interval_of_silence_and_not_before(plan: list[Any]) -> None:
    async def play() -> None:
        async with world(plain(heartbeat=BEAT)) as here:
            connection = await here.connect("wanted")
            await here.settle()
            last, seen = here.now, len(connection.writes)
            for seconds, what in [*plan, (2 * BEAT, "wanted")]:
                for _ in range(seconds):
                    await here.tick()
                    if len(connection.writes) > seen:
                        assert connection.writes[seen:] == [b":\n"]
                        assert here.now - last >= BEAT
                        last, seen = here.now, len(connection.writes)
                    assert here.now - last <= BEAT + LATE_SECONDS
                topics = ["wanted", "wanted"] if what == "batch" else [what]
                await here.hub.publish(*(Update((topic,)) for topic in topics), grant=EVERYTHING)
                await here.caught_up()
                if what != "unwanted":
                    last, seen = here.now, seen + 1
                assert len(connection.writes) == seen

    asyncio.run(play())


async def test_r2_heartbeats_and_lifetimes_can_be_turned_off() -> None:
    async with world(plain(heartbeat=0, max_lifetime=0)) as here:
        connection = await here.connect("a")
        await here.pass_by(50)
        await here.tick(1e6)
        await here.settle()
        assert connection.writes == [b":\n"]
        assert not connection.ended


def test_r2_the_defaults_are_those_of_the_reference() -> None:
    chosen = Settings(dev=True)
    assert (chosen.heartbeat, chosen.max_lifetime) == (15, 600)


async def test_a_stream_that_is_catching_up_gets_no_heartbeat() -> None:
    async with world(plain(heartbeat=BEAT)) as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        await here.publish("a")
        await here.settle()
        for _ in range(3):
            await here.tick(2 * BEAT)
        connection.unblock()
        await here.caught_up()
        assert connection.writes == [b":\n", b"id: 1\ndata: \n\n"]


# -- lifetime


async def test_n82_r33_a_connection_lasts_a_random_four_fifths_to_all_of_its_lifetime() -> None:
    async with world(plain(max_lifetime=100)) as here:
        connections = [await here.connect("a") for _ in range(200)]
        await here.settle()
        ages: dict[Client, float] = {}
        for age in range(1, 101):
            await here.tick()
            await here.settle(5)
            ages |= {one: age for one in connections if one.ended and one not in ages}
        assert len(ages) == 200
        assert all(80 - LATE_SECONDS <= age <= 100 for age in ages.values())
        assert len(set(ages.values())) > 10  # spread over that time
        assert min(ages.values()) < 84
        assert max(ages.values()) > 94
        assert 86 < mean(ages.values()) < 92
        assert all(one.reason == "it has reached the maximum lifetime" for one in connections)


@pytest.mark.parametrize("lifetime", [0, 1_000])
async def test_n82_v54_r35_t65_a_stream_ends_before_its_token_regardless_of_the_lifetime(lifetime: float) -> None:
    async with world(plain(max_lifetime=lifetime)) as here:
        connection = await here.connect("a", granted=["a"], seconds=30)
        await here.settle()
        await here.pass_by(26)
        await here.publish("a", private=True)
        await here.caught_up()
        assert not connection.ended
        await here.pass_by(3)
        assert connection.ended
        assert connection.reason == "its token expires"
        await here.publish("a", private=True)
        await here.settle()
        assert connection.ids == ["1"]


async def test_r33_a_lifetime_that_ends_before_the_token_counts() -> None:
    async with world(plain(max_lifetime=20)) as here:
        connection = await here.connect("a", seconds=1_000)
        await here.settle()
        await here.pass_by(20)
        assert connection.ended
        assert connection.reason == "it has reached the maximum lifetime"


@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.5, 2])
async def test_n82_t66_a_token_that_expires_before_the_next_check_reads_nothing(
    seconds: float,
) -> None:
    async with world(plain()) as here:
        await here.publish("a", private=True)
        await here.caught_up()
        connection = await here.connect("a", granted=["a"], seconds=seconds, after="earliest")
        await here.publish("a", private=True)
        await here.settle()
        assert connection.ended
        assert connection.reason == "its token expires"
        assert connection.ids == []


@pytest.mark.parametrize("lifetime", [1, 0.1])
async def test_t66_a_lifetime_within_the_margin_ends_at_the_next_check(lifetime: float) -> None:
    async with world(plain(max_lifetime=lifetime)) as here:
        await here.publish("a")
        await here.caught_up()
        connection = await here.connect("a", after="earliest")
        await here.caught_up()
        assert connection.ids == ["1"]
        assert not connection.ended
        await here.tick()
        await here.settle()
        assert connection.ended


async def test_n82_the_expiry_of_a_token_is_wall_clock_time() -> None:
    """The application has two clocks; only the wall clock counts from 1970."""
    token = current_token(subscribe=["a"], seconds=10_000)
    async with application() as app, follow(app, ("match", "a"), headers=[bearer(token)]):
        (subscriber,) = (seat.subscriber for seat in app.state.hub.delivery.audience)
        assert 9_000 < subscriber.deadline - time.monotonic() <= 10_000


async def test_r32_a_write_that_does_not_end_is_cut_off_at_the_end_of_the_lifetime() -> None:
    async with world(plain(max_lifetime=20)) as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        await here.publish("a")
        await here.pass_by(20)
        assert connection.task.done()
        assert (connection.ended, connection.wire.cut) == (False, True)


async def test_t66_if_the_clock_leaps_only_due_connections_end() -> None:
    async with world(plain(heartbeat=BEAT)) as here:
        short, long = await here.connect("a", seconds=100), await here.connect("a", seconds=100_000)
        await here.settle()
        await here.tick(5_000)
        await here.settle()
        assert (short.ended, long.ended) == (True, False)
        assert long.writes == [b":\n", b":\n"]


# -- limits


async def refused(app: ASGIApp, *headers: tuple[str, str], method: str = "GET", **scope: Any) -> Answer:
    return await ask(app, method, f"{PATH}?match=a", headers, **scope)


@contextlib.asynccontextmanager
async def following(app: ASGIApp, count: int, **options: Any) -> AsyncIterator[list[Following]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(follow(app, ("match", "a"), **options)) for _ in range(count)]


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("method", ["GET", "QUERY"])
async def test_n23_n94_a_subscriber_above_the_limit_of_a_client_gets_429(classic: bool, method: str) -> None:
    async with application(max_connections_per_client=2, classic=classic) as app:
        async with following(app, 2) as streams:
            answer = await refused(app, method=method)
            assert (answer.status, answer.headers["retry-after"]) == (429, "10")
            assert answer.detail == "the limit of 2 subscribers for one client is reached"
            assert "www-authenticate" not in answer.headers
            assert (await ask(app, "HEAD", f"{PATH}?match=a")).status == 200  # HEAD does not subscribe
            await publish(app, current_token(["a"]), ("topic", "a"), ("data", "x"))
            assert [(await stream.next_event()).data for stream in streams] == ["x", "x"]
        async with following(app, 2) as streams:
            assert [stream.status for stream in streams] == [200, 200]


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("method", ["GET", "QUERY"])
async def test_n23_the_stream_of_a_subscriber_that_a_full_hub_has_no_room_for_ends_at_once(
    classic: bool, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So a page that was opened when the hub was full connects again, once it is not."""
    async with application(max_connections=2, classic=classic) as app, following(app, 1):
        async with following(app, 1):
            assert (await refused(app, method=method)).is_ended_stream
            assert "the limit of 2 subscribers is reached (max_connections)" in caplog.text
            replay = await refused(app, ("prefer", "wait=0"), method=method)
            assert (replay.status, replay.detail) == (503, "the limit of 2 subscribers is reached (max_connections)")
            assert 1 <= int(replay.headers["retry-after"]) <= 10
            assert (await ask(app, "HEAD", f"{PATH}?match=a")).status == 200  # HEAD does not subscribe
        async with following(app, 1) as (stream,):
            await publish(app, current_token(["a"]), ("topic", "a"), ("data", "x"))
            assert (await stream.next_event()).data == "x"
            assert (await refused(app, method=method)).is_ended_stream


async def test_n23_a_subscriber_that_is_catching_up_counts() -> None:
    async with world(plain(max_connections=2)) as here:
        first, _, third = [await here.connect("a") for _ in range(3)]  # none has begun
        await here.settle()
        first.block()
        await here.publish("a")
        await here.settle()
        fourth = await here.connect("a")
        await here.settle()
        assert [type(one.task.exception()) for one in (third, fourth)] == [Busy, Busy]
        assert here.hub.delivery.connection_count == 2
        first.go()


@pytest.mark.parametrize(
    ("one", "alike", "other"),
    [
        ("192.0.2.1", ["192.0.2.1"], "192.0.2.2"),
        ("2001:db8:0:1::1", ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2"], "2001:db8:0:2::1"),
        ("::ffff:192.0.2.1", ["192.0.2.1", "::ffff:192.0.2.1"], "::ffff:192.0.2.2"),
        ("fe80::1%eth0", ["fe80::2", "fe80::2%eth0"], "fe80:0:0:1::1"),
        ("some proxy", ["some proxy"], "some other"),
    ],
)
async def test_n23_anonymous_subscribers_count_by_address_and_by_network_of_ipv6(
    one: str, alike: list[str], other: str
) -> None:
    async with application(max_connections_per_client=1) as app, following(app, 1, client=(one, 1)):
        for host in alike:
            answer = await refused(app, client=(host, 2))
            assert answer.status == 429
            assert "limit of 1 subscribers" in answer.detail
        async with following(app, 1, client=(other, 1)) as (stream,):
            assert stream.status == 200
    assert app.state.hub.shares.connections.clients == {}


async def test_n23_without_addresses_all_subscribers_are_one_client() -> None:
    async with application(max_connections_per_client=1) as app, following(app, 1, client=None):
        assert (await refused(app, client=None)).status == 429


@pytest.mark.parametrize("classic", [False, True])
async def test_n23_n82_subscribers_with_a_token_count_by_its_subject(classic: bool) -> None:
    alice, bob = ([bearer(current_token(subscribe=["a"], subject=name))] for name in ("alice", "bob"))
    nobody = [bearer(current_token(subscribe=["a"]))]
    async with application(max_connections_per_client=2, classic=classic) as app:
        async with following(app, 2, headers=alice), following(app, 1, headers=bob):
            assert (await refused(app, *alice)).status == 429
            assert (await refused(app, *alice, client=("192.0.2.9", 1))).status == 429
            async with following(app, 1, headers=bob), following(app, 1), following(app, 1, headers=nobody):
                assert (await refused(app)).status == 429  # without a subject, the address counts
                assert (await refused(app, *nobody)).status == 429
                assert (await refused(app, *bob)).status == 429
        async with following(app, 2, headers=alice) as streams:
            assert [stream.status for stream in streams] == [200, 200]
    assert app.state.hub.shares.connections.clients == {}


async def test_n23_0_means_no_limit_and_publishing_is_not_limited() -> None:
    async with application(max_connections=100) as app, following(app, 40):
        for _ in range(3):
            await publish(app, current_token(["a"]), ("topic", "a"))
        assert app.state.hub.shares.connections.clients == {"address 127.0.0.1": 40}


async def test_n23_too_many_patterns_get_429_and_leave_nothing_behind() -> None:
    wanted = [("match_urlpattern", f"/a/:id(\\d+)/{n}") for n in range(3)]
    async with application(max_url_patterns=1, subscriptions=True) as app:
        hub = app.state.hub
        async with follow(app, wanted[0]) as stream:
            async with follow(app, ("match", "a"), *wanted) as other:
                assert other.status == 429
            token = current_token(subscribe=[("urlpattern", f"/b/:id(\\d+)/{n}") for n in range(2)])
            async with follow(app, ("match", "b"), headers=[bearer(token)]) as other:
                assert other.status == 429  # patterns of the grant count like those of the request
            async with follow(app, wanted[0]) as other:
                assert other.status == 200  # an existing pattern needs no room
            assert hub.delivery.connection_count == 1
            assert hub.shares.connections.clients == {"address 127.0.0.1": 1}
            await publish(app, current_token(["*"]), ("topic", "/a/1/0"), ("data", "x"))
            assert (await stream.next_event()).data == "x"
        async with follow(app, wanted[1]) as stream:
            assert stream.status == 200  # the first stream made room
    check_empty(hub)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The patterns that were compiled."""
    patterns: list[str] = []
    compile = topics.topic_matcher

    def noted(type: str, pattern: str, **base_url: str) -> Any:
        patterns.append(pattern)
        return compile(type, pattern, **base_url)

    monkeypatch.setattr("hub.node.matchers.topic_matcher", noted)
    return patterns


@pytest.mark.parametrize(
    ("limit", "statuses"),
    [
        ({"max_connections": 1}, [200, 503]),
        ({"max_connections_per_client": 1}, [429, 429]),
        ({"connection_rate_per_client": 0.001}, [429, 429]),
    ],
)
async def test_n23_nothing_is_compiled_for_a_client_that_is_refused(
    limit: dict[str, float], statuses: list[int], compiled: list[str]
) -> None:
    query = "&".join(f"match_urlpattern=https://e.com/{n}/:id" for n in range(100))
    async with application(**limit) as app, follow(app, ("match", "first")):
        assert compiled == ["first"]
        for headers, status in zip(([], [("Prefer", "wait=0")]), statuses, strict=True):
            assert (await ask(app, "GET", f"{PATH}?{query}", headers)).status == status
            assert (await ask(app, "HEAD", f"{PATH}?{query}", headers)).status == 200
            assert compiled == ["first"]


@pytest.mark.parametrize("headers", [[], [("Prefer", "wait=0")]], ids=["stream", "reader"])
async def test_n23_patterns_of_a_request_that_fails_are_given_back(headers: list[tuple[str, str]]) -> None:
    fine = "&".join(f"match_urlpattern=https://e.com/{n}/(a)" for n in range(3))
    too_many = "match_urlpattern=/more/(a)&match_urlpattern=/and/more/(a)"
    async with application(max_url_patterns=4, client_share=1) as app:
        hub = app.state.hub
        for wrong, status in (("match_urlpattern=(", 400), (too_many, 429)):
            assert (await ask(app, "GET", f"{PATH}?{fine}&{wrong}", headers)).status == status
            assert (hub.compiler._url_patterns.used, hub.shares.connections.clients) == (0, {})


async def test_n23_patterns_of_a_replay_count_while_it_lasts() -> None:
    wanted = [("match_urlpattern", f"/a/:id(\\d+)/{n}") for n in range(3)]
    async with application(max_url_patterns=3, client_share=1, subscriptions=False) as app:
        hub = app.state.hub
        await hub.publish(*(Update((f"/a/1/{n}",), data="x") for n in range(3)))
        subscriber, _ = await hub.subscribing.admit(
            [("urlpattern", pattern) for _, pattern in wanted], CompiledGrant(), "earliest"
        )
        with hub.delivery.reader_seat(subscriber, Recorder()) as seat:
            async with follow(app, ("match_urlpattern", "/b/:id(\\d+)")) as stream:
                assert stream.status == 429
            assert [len(part.wanted) async for part in _parts(hub.delivery.reading(seat, subscriber.start))] == [3]
        del subscriber, seat
        async with follow(app, ("match_urlpattern", "/b/:id(\\d+)")) as stream:
            assert stream.status == 200


async def _parts(reading: Reading) -> AsyncIterator[Part]:
    while (part := await reading.next()) is not None:
        yield part


async def test_n23_patterns_of_cached_tokens_do_not_count() -> None:
    async with application(max_url_patterns=2) as app:
        token = current_token(subscribe=[("urlpattern", f"/a/:id(\\d+)/{n}") for n in range(2)])
        async with follow(app, ("match", "a"), headers=[bearer(token)]):
            assert (await ask(app, "GET", f"{PATH}?match_urlpattern=/b/:id(a)")).status == 429
        async with follow(app, ("match_urlpattern", "/b/:id(\\d+)")) as stream:
            assert stream.status == 200


async def test_n23_t68_a_refused_subscriber_is_not_announced() -> None:
    async with world(plain(subscriptions=True, max_connections_per_client=1)) as here:
        first = await here.connect("a", address="one")
        await here.caught_up()
        second = await here.connect("a", address="one")
        await here.caught_up()
        assert isinstance(second.task.exception(), LimitExceeded)
        assert not second.begun
        first.go()
        await first.task
        await here.caught_up()
        assert here.announced == [(first.subscriber.id, True), (first.subscriber.id, False)]


# -- retry hints


async def test_n30_a_stream_begins_with_a_random_retry_hint() -> None:
    async with world(plain(retry=2)) as here:
        connections = [await here.connect("a") for _ in range(100)]
        await here.settle()
        first = [re.fullmatch(rb":\nretry: (\d+)\n", b"".join(one.writes)) for one in connections]
        hints = [int(match[1]) for match in first if match]
        assert len(hints) == 100
        assert all(1_000 <= hint <= 3_000 for hint in hints)
        assert min(hints) < 1_200
        assert max(hints) > 2_800
        assert len(set(hints)) > 50


async def test_n30_0_means_no_retry_hint() -> None:
    async with world(plain(retry=0)) as here:
        connection = await here.connect("a")
        await here.settle()
        assert connection.writes == [b":\n"]


# -- beginnings


@pytest.mark.parametrize("subscriptions", [False, True])
async def test_r20_n127_a_client_that_has_the_headers_misses_nothing(subscriptions: bool) -> None:
    async with world(plain(subscriptions=subscriptions)) as here:
        connection = await here.connect("a")
        connected = []

        async def publish_first() -> None:
            connected.append(here.hub.delivery.connection_count)
            await here.publish("a")

        connection.wire.before_head = publish_first
        await here.caught_up()
        assert connected == [1]
        assert connection.writes == [b":\n", b"id: 1\ndata: \n\n"]


@pytest.mark.parametrize("classic", [False, True])
async def test_t69_n127_a_subscriber_sees_itself_arrive(classic: bool) -> None:
    token = current_token(subscribe=["*"])
    async with (
        application(subscriptions=True, classic=classic) as app,
        follow(app, ("match", "*"), headers=[bearer(token)]) as stream,
    ):
        event = await stream.next_event()
        (subscriber,) = (seat.subscriber for seat in app.state.hub.delivery.audience)
        assert event.type == "mercure"
        assert f'"subscriber":"{subscriber.id}","active":true' in event.data


@pytest.mark.parametrize("rounds", range(8))
async def test_closing_while_a_connection_is_accepted_ends_it_at_once(rounds: int) -> None:
    async with world(plain(subscriptions=True)) as here:
        connection = await here.connect("a")
        await here.settle(rounds)
        here.hub.shutdown.begin()
        await asyncio.wait_for(connection.task, HANG)
        assert connection.ended
        assert connection.reason == "the hub is shutting down"
    assert here.announced == [(connection.subscriber.id, True), (connection.subscriber.id, False)]


@pytest.mark.parametrize("rounds", range(8))
async def test_n120_a_subscriber_cancelled_during_its_announcement_is_announced_as_gone(rounds: int) -> None:
    async with world(plain(subscriptions=True)) as here:
        connection = await here.connect("a", "b")
        await here.settle(rounds)
        connection.task.cancel()
        await here.caught_up()
        assert [active for _, active in here.announced] in ([], [True, True, False, False])
        check_empty(here.hub)


async def test_t68_a_registration_that_fails_leaves_nothing_behind() -> None:
    class Broken(MemoryHistory):
        broken = True

        async def append(self, updates: Sequence[Update], **options: Any) -> list[Any]:
            if self.broken:
                raise OSError("the disk is full")
            return await super().append(updates, **options)

    log = Broken(Retention(max_updates=100, max_bytes=2**20))
    here = World(plain(subscriptions=True), log)
    async with here.hub.running():
        await here.settle()
        connection = await here.connect("a")
        with pytest.raises(OSError, match="full"):
            await asyncio.wait_for(connection.task, HANG)
        assert not connection.begun
        check_empty(here.hub)
        log.broken = False
        again = await here.connect("a")
        await here.caught_up()
        assert here.announced == [(again.subscriber.id, True)]
    await again.task


async def test_a_history_that_hangs_during_an_announcement_does_not_delay_the_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(MemoryHistory):
        async def append(self, updates: Sequence[Update], **options: Any) -> list[Any]:
            raise await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("hub.hub.LAST_ANNOUNCEMENTS_SECONDS", 0.01)
    async with world(plain(subscriptions=True), Stuck(Retention(max_updates=100, max_bytes=2**20))) as here:
        connections = [await here.connect("a") for _ in range(2)]
        await here.settle()
    assert not any(connection.begun for connection in connections)


# -- ends


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda connection: connection.go(), "the client went away"),
        (lambda connection: connection.stream.close(Ending.SENT_MORE), "the client has sent more data"),
    ],
)
async def test_r37_r53_a_subscriber_that_leaves_is_removed_announced_and_logged(
    end: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hub")
    async with world(plain(subscriptions=True)) as here:
        connection = await here.connect("a", ("mqtt", "b/+"))
        await here.caught_up()
        assert here.hub.delivery.connection_count == 1
        end(connection)
        await connection.task
        check_empty(here.hub)
        await here.caught_up()
        assert [active for _, active in here.announced] == [True, True, False, False]
    id = connection.subscriber.id
    came, went = (record for record in caplog.records if f"id={id}" in record.message)
    assert 'event="subscriber connected"' in came.message
    assert "topic:a" in came.message
    assert "mqtt:b/+" in came.message
    assert 'event="subscriber disconnected"' in went.message
    assert reason in went.message
    assert (came.levelno, went.levelno) == (logging.DEBUG, logging.INFO)


async def test_r53_n163_updates_are_logged_at_debug_level_without_their_data(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "hub")
    token = current_token(["*"], ["*"])
    async with application() as app, follow(app, ("match", "a"), headers=[bearer(token)]) as stream:
        fields = [("topic", "a"), ("data", "a secret"), ("private", "on"), ("id", "urn:x"), ("type", "t")]
        await publish(app, token, *fields)
        await stream.next_event()
    published, dispatched = (record for record in caplog.records if "urn:x" in record.message)
    assert (published.levelno, dispatched.levelno) == (logging.DEBUG, logging.DEBUG)
    assert 'event="updates published" updates=1 first_id=urn:x first_topic=a' in published.message
    assert "event=\"update dispatched\" id=urn:x topics=['a'] type=t private=true receivers=1" in dispatched.message
    assert "a secret" not in caplog.text
    assert token not in caplog.text


async def test_r53_a_refusal_is_logged_with_its_reason_and_a_bad_token_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "hub")
    async with application() as app:
        await ask(app, "GET", f"{PATH}?matches=a")
        await ask(app, "POST", PATH, [FORM, bearer(classic_token(["b"]))], b"topic=a")
    wrong, denied = (record for record in caplog.records if "request refused" in record.message)
    assert (wrong.levelno, denied.levelno) == (logging.INFO, logging.WARNING)
    assert "'matches' is none of" in wrong.message
    assert "status=400" in wrong.message
    assert "publishing to 'a'" in denied.message

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.errors import Busy, LimitExceeded
from hub.node import admission
from hub.node.admission import Rates, TokenBucket
from tests.asgi import PATH, application, ask, follow
from tests.hub.world import plain, world

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

TIMES = st.lists(st.floats(0, 3), max_size=60)


@given(st.sampled_from([0.25, 1.0, 3.0, 10.0]), TIMES)
def test_a_bucket_admits_the_rate_with_bursts_of_one_second(rate: float, gaps: list[float]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    taken: list[float] = []
    for gap in gaps:
        now += gap
        wait = bucket.take(now)
        if wait == 0:
            taken.append(now)
        else:
            assert 0 < wait <= 1 / rate
    for first, start in enumerate(taken):
        for count, end in enumerate(taken[first:], 1):
            assert count <= max(1, rate) + rate * (end - start) + 1e-6


@given(st.sampled_from([0.25, 1.0, 3.0, 10.0]), TIMES)
def test_a_client_that_waits_as_asked_is_admitted(rate: float, gaps: list[float]) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    for gap in gaps:
        now += gap
        if wait := bucket.take(now):
            now += wait + 1e-9
            assert bucket.take(now) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=60))
def test_each_client_has_its_own_bucket_even_after_a_long_pause(comings: list[tuple[str, float]]) -> None:
    now = 0.0
    buckets = Rates(2.0, clock=lambda: now)
    alone = {client: TokenBucket(2.0, 0.0) for client in "abc"}
    for client, gap in comings:
        now += gap
        assert buckets.take(client) == pytest.approx(alone[client].take(now))


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_BUCKETS", 10)
    buckets = Rates(1.0, clock=lambda: 0.0)
    for n in range(1_000):
        buckets.take(str(n))
    assert len(buckets._buckets) == 10


async def test_n23_subscribers_above_the_rate_get_retry_after() -> None:
    async with world(plain(connection_rate=2)) as here:
        connections = [await here.connect("a") for _ in range(4)]
        await here.settle()
        assert [one.begun for one in connections] == [True, True, False, False]
        for refused in connections[2:]:
            error = refused.task.exception()
            assert isinstance(error, Busy)
            assert 1 <= int(error.headers["Retry-After"]) <= 10
        here.now += 0.5
        again = await here.connect("a")
        await here.settle()
        assert again.begun


async def test_n23_a_client_that_connects_too_often_does_not_keep_others_out() -> None:
    async with world(plain(connection_rate_per_client=0.1, connection_rate=3)) as here:
        connections = [await here.connect("a", address=address) for address in ("one", "one", "one", "one", "other")]
        await here.settle()
        assert [one.begun for one in connections] == [True, False, False, False, True]
        error = connections[1].task.exception()
        assert isinstance(error, LimitExceeded)
        assert error.headers == {"Retry-After": "10"}
        for refused in connections[2:4]:
            assert isinstance(refused.task.exception(), LimitExceeded)


@pytest.mark.parametrize(
    ("limit", "fits", "refusals"),
    [
        (
            {"connection_rate_per_client": 1},
            (2, 2, 0),
            ["the limit of new subscribers a second for one network is exceeded"] * 3,
        ),
        (
            {"max_connections_per_client": 3},
            (6, 6, 0),
            [f"the limit of {most} subscribers for one network is reached" for most in (6, 6, 12)],
        ),
    ],
)
async def test_n23_many_networks_of_a_household_have_no_more_than_its_wider_networks(
    limit: dict[str, Any], fits: Sequence[int], refusals: Sequence[str]
) -> None:
    """A /56 has 256 networks of /64, and twice what one of them has; a /48 four times."""
    async with world(plain(**limit)) as here:
        for third, fit, refusal in zip((0, 0x100, 0x200), fits, refusals, strict=True):
            connections = [await here.connect("a", address=f"2001:db8:0:{third + n:x}::/64") for n in range(12)]
            await here.settle()
            assert sum(one.begun for one in connections) == fit
            error = connections[-1].task.exception()
            assert isinstance(error, LimitExceeded)
            assert str(error) == refusal
        other = await here.connect("a", address="2001:db8:1::/64")
        await here.settle()
        assert other.begun


async def test_n23_the_response_has_the_time_to_wait() -> None:
    async with application(connection_rate_per_client=0.01) as app, follow(app, ("match", "a")):
        answer = await ask(app, "GET", f"{PATH}?match=a")
        assert answer.status == 429
        assert 11 <= int(answer.headers["retry-after"]) <= 100
        assert app.state.hub.delivery.connection_count == 1


async def test_above_the_rate_of_all_a_stream_ends_at_once() -> None:
    """EventSource and most libraries come back after that, and never after a 503."""
    async with application(connection_rate=0.01) as app, follow(app, ("match", "a")):
        for _ in range(2):
            answer = await ask(app, "GET", f"{PATH}?match=a", [("last-event-id", "x")])
            assert (answer.status, answer.headers["mercure-last-event-id"]) == (200, "x")
            assert 1_500 <= int(answer.text.removeprefix(":\nretry: ")) <= 4_500
        answer = await ask(app, "GET", f"{PATH}?match=a&lastEventID=x%0D%0Aa:%20b")  # it is no id
        assert answer.is_ended_stream
        assert "mercure-last-event-id" not in answer.headers
        replay = await ask(app, "GET", f"{PATH}?match=a", [("prefer", "wait=0")])
        assert replay.status == 503  # a program can come back
        assert 1 <= int(replay.headers["retry-after"]) <= 10
        assert app.state.hub.delivery.connection_count == 1

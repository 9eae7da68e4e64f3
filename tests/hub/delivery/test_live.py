"""The broadcaster with fake receivers: their writes, and what they leave behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.auth.grant import Grant
from hub.delivery.audience import Interest
from hub.delivery.live import Broadcaster
from hub.delivery.subscriber import Subscriber
from hub.history.base import Entry
from hub.protocol.topics import MatcherCompiler
from hub.protocol.updates import Update
from skipfilter import LimitError, SkipFilter
from tests.hub.world import wants

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pyroaring import BitMap64

    from hub.delivery.audience import Key
    from hub.delivery.live import Receiver

pytestmark = pytest.mark.anyio

BASE = "https://hub.example/.well-known/mercure"
COMPILER = MatcherCompiler(BASE)


class Connection:
    """A receiver that records writes, and leaves at a write if the test asks for it."""

    def __init__(self, subscribed: Sequence[str], granted: Sequence[str], type: str = "topic") -> None:
        grant = Grant(subscribe=tuple(COMPILER.compile(type, pattern) for pattern in granted))
        self.subscriber = Subscriber((COMPILER.compile(type, pattern) for pattern in subscribed), grant, 0)
        self.position = 0
        self.number = -1
        self.written = 0.0
        self.writes: list[tuple[bytes, int]] = []

    def write(self, body: bytes, position: int) -> None:
        self.writes.append((body, position))

    def is_lost(self) -> bool:
        return False

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


def receiver(*, subscribed: Sequence[str], granted: Sequence[str] = (), type: str = "topic") -> Receiver:
    return cast("Receiver", Connection(subscribed, granted, type))


def broadcaster(*receivers: Receiver) -> Broadcaster:
    """Return a broadcaster with these receivers connected and live."""
    made = Broadcaster(heartbeat=0, cached_topics=100, cached_topics_bytes=10**6, base_url=BASE, clock=lambda: 0.0)
    for one in receivers:
        made.connect(one)
        made.join(one)
    return made


def entries(*updates: Update, after: int = 0) -> list[Entry]:
    return [Entry(position, update) for position, update in enumerate(updates, after + 1)]


def writes(one: Receiver) -> list[tuple[bytes, int]]:
    return cast("Connection", one).writes


TOPICS = st.lists(st.sampled_from(["a/1", "a/2", "b"]), min_size=1, max_size=2, unique=True)
UPDATES = st.builds(Update, st.builds(tuple, TOPICS), private=st.booleans())
WANTED = st.lists(st.sampled_from(["a/{n}", "a/1", "b", "*", "c"]), min_size=1, max_size=2)
GRANTED = st.lists(st.sampled_from(["a/{n}", "a/2", "b", "*"]), max_size=1)


@settings(max_examples=60)
@given(st.lists(UPDATES, min_size=1, max_size=150), st.lists(st.tuples(WANTED, GRANTED, st.booleans()), max_size=12))
def test_n21_n22_n81_v50_v89_each_subscriber_gets_one_write_that_agrees_with_a_naive_filter(
    updates: list[Update], wanted: list[Any]
) -> None:
    readers = [(receiver(subscribed=subscribed, granted=granted), gone) for subscribed, granted, gone in wanted]
    hub = broadcaster(*(one for one, _ in readers))
    for one, gone in readers:
        if gone:
            hub.disconnect(one)
    asyncio.run(hub.dispatch(entries(*updates)))
    assert hub.position == len(updates)
    for one, gone in readers:
        frames = [entry.frame for entry in entries(*updates) if wants(one.subscriber, entry.update) and not gone]
        assert writes(one) == ([(b"".join(frames), len(updates))] if frames else [])


async def test_n106_a_subscriber_that_is_behind_is_not_written_to_and_keeps_its_position() -> None:
    live, behind, other = (receiver(subscribed=["a"]) for _ in range(3))
    hub = broadcaster(live, behind, other)
    hub.leave(behind)
    await hub.dispatch(entries(Update(("a",))))
    assert (len(writes(live)), writes(behind), behind.position) == (1, [], 0)
    assert (hub.live, hub.connected) == (2, 3)
    behind.position = 1
    hub.join(behind)
    hub.disconnect(other)
    await hub.dispatch(entries(Update(("a",)), after=1))
    assert (len(writes(live)), len(writes(behind)), len(writes(other))) == (2, 1, 1)
    assert (hub.live, hub.connected) == (2, 2)


async def test_a_subscriber_that_is_behind_cannot_join() -> None:
    one = receiver(subscribed=["a"])
    hub = broadcaster(one)
    hub.leave(one)
    await hub.dispatch(entries(Update(("a",))))
    with pytest.raises(AssertionError):
        hub.join(one)


async def test_a_new_subscriber_does_not_get_the_updates_of_one_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 1)
    first, second, third = (receiver(subscribed=["a"]) for _ in range(3))
    hub = broadcaster(first, second)
    dispatch = asyncio.ensure_future(hub.dispatch(entries(Update(("a",)))))
    while not writes(first):
        await asyncio.sleep(0)
    hub.disconnect(second)
    hub.connect(third)
    third.position = hub.position
    hub.join(third)
    await dispatch
    assert (len(writes(first)), writes(second), writes(third)) == (1, [], [])


def test_n22_a_subscription_is_not_a_grant_and_a_grant_is_not_a_subscription() -> None:
    live: SkipFilter[Receiver, Key] = SkipFilter(Interest(BASE))
    one = receiver(subscribed=["/books/{id}", "/{"], granted=["/films/1"])
    other = receiver(subscribed=["*"], granted=["/books/1"])
    live.add(one)
    live.add(other)
    assert live.match_any(("subscribed", "/books/1")) == [one, other]
    assert live.match_any(("granted", "/books/1")) == [other]
    assert live.match_any(("granted", "/films/1")) == [one]
    assert live.match_any(("subscribed", "/{")) == [one, other]
    live.remove(other)
    assert live.match_any(("subscribed", "/films/1"), ("granted", "/books/1")) == []
    live._check()


def test_a_subscriber_that_is_refused_leaves_nothing_behind() -> None:
    live: SkipFilter[Receiver, Key] = SkipFilter(Interest(BASE))
    broken: Any = receiver(subscribed=["/secret"], granted=["/secret"])
    broken.subscriber.grant = Grant(subscribe=cast("Any", (None,)))
    with pytest.raises(AttributeError):
        live.add(broken)
    next_one = receiver(subscribed=["/x"], granted=["/x"])
    live.add(next_one)
    assert live.match_any(("subscribed", "/secret"), ("granted", "/secret")) == []
    assert live.match_any(("subscribed", "/x")) == [next_one]


@pytest.mark.parametrize("too_many", ["subscribed", "granted"])
def test_n23_a_subscriber_with_too_many_similar_patterns_leaves_nothing_behind(too_many: str) -> None:
    alike = ["{+a}" + "{b}" * (n % 16) + "{+c}" * (n // 16) for n in range(257)]
    first = receiver(subscribed=alike[:256], granted=alike[:256], type="uritemplate")
    hub = broadcaster(first)
    patterns = {"subscribed": ["/b/{n}"], "granted": ["/b/{n}"]} | {too_many: ["/b/{n}", alike[256]]}
    with pytest.raises(LimitError):
        hub.connect(receiver(**patterns, type="uritemplate"))
    assert (hub.subscribers(), hub.live, len(hub._wheel)) == ([first.subscriber], 1, 1)
    hub.connect(receiver(subscribed=["/d/{n}"], granted=["/e/{n}"], type="uritemplate"))
    assert hub.connected == 2


def test_connected_subscribers_are_listed_by_id_in_the_order_of_connecting() -> None:
    first, second, third = (receiver(subscribed=["a"]) for _ in range(3))
    hub = broadcaster(first, second, third)
    hub.disconnect(second)
    assert hub.subscribers() == [first.subscriber, third.subscriber]
    assert hub.subscriber(third.subscriber.id) is third.subscriber
    assert hub.subscriber(second.subscriber.id) is None


# -- slices


class Turns:
    """Counts the writes between the turns of other tasks while a coroutine runs."""

    def __init__(self, *receivers: Receiver) -> None:
        self.receivers = receivers
        self.slices: list[int] = []

    async def during(self, dispatch: Coroutine[Any, Any, None]) -> list[int]:
        before = 0
        task = asyncio.ensure_future(dispatch)
        while not task.done():
            await asyncio.sleep(0)
            count = sum(len(writes(one)) for one in self.receivers)
            self.slices.append(count - before)
            before = count
        await task
        return self.slices


@pytest.mark.parametrize(("size", "at_most"), [(10, 16), (4_000, 16), (12_000, 6), (2**20, 1)])
async def test_fewer_large_frames_are_written_at_a_time(
    size: int, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 16)
    several = [receiver(subscribed=["a"]) for _ in range(40)]
    hub = broadcaster(*several)
    slices = await Turns(*several).during(hub.dispatch(entries(Update(("a",), "x" * (size - 60), id="x"))))
    assert max(slices) == at_most
    assert sum(slices) == 40


async def test_other_tasks_run_while_receivers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two receivers want the same updates, so each selection is computed."""
    monkeypatch.setattr("hub.turns.GROUPED_IDS", 10)
    monkeypatch.setattr("hub.turns.FOUND_TOPICS", 4)
    monkeypatch.setattr("hub.turns.GROUPS", 1)
    several = [receiver(subscribed=[str(n), "all"]) for n in range(40)]
    hub = broadcaster(*several)
    updates = entries(*(Update((str(n),)) for n in range(40)), Update(("all",)))
    slices = await Turns(*several).during(hub.dispatch(updates))
    first = next(n for n, count in enumerate(slices) if count)
    # TimeSlices for: topics, ids of all sets, ids of each selection, sets of ids.
    assert first >= 40 // 4 + 80 // 10 + 40 // 10 + 40
    for n, one in enumerate(several):
        assert writes(one) == [(updates[n].frame + updates[-1].frame, 41)]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("more", [[], [Update(("t/0",))]])
async def test_other_tasks_run_while_the_receivers_of_many_topics_are_looked_up(
    private: bool, more: list[Update]
) -> None:
    reader = receiver(subscribed=["t/{n}"], granted=["t/{n}"])
    hub = Broadcaster(heartbeat=0, cached_topics=10_000, cached_topics_bytes=10**6, base_url=BASE, clock=lambda: 0.0)
    hub.connect(reader)
    hub.join(reader)
    topics = tuple(f"t/{n}" for n in range(200))
    asked: list[object] = []
    posting_lists = hub._interest.posting_lists
    hub._interest.posting_lists = lambda *of: asked.append(of) or posting_lists(*of)  # type: ignore[method-assign, func-returns-value]
    most = 0
    task = asyncio.ensure_future(hub.dispatch(entries(Update(topics, private=private), *more)))
    while not task.done():
        before = len(asked)
        await asyncio.sleep(0)
        most = max(most, len(asked) - before)
    # A topic is cached when it is looked up again.
    assert (len(asked), most) == (200 * (1 + private) + len(more), 16 * (1 + private))
    assert len(writes(reader)) == 1


async def test_subscribers_that_leave_or_join_during_the_lookup_are_not_written_to() -> None:
    several = [receiver(subscribed=[str(n), "all"]) for n in range(4)]
    late = receiver(subscribed=["all"])
    hub = broadcaster(*several)
    hub.connect(late)
    task = asyncio.ensure_future(hub.dispatch(entries(*(Update((str(n),)) for n in range(20)), Update(("all",)))))
    await asyncio.sleep(0)
    assert not any(map(writes, several))
    hub.leave(several[0])
    hub.disconnect(several[1])
    late.position = hub.position
    hub.join(late)
    await task
    assert [len(writes(one)) for one in [*several, late]] == [0, 0, 1, 1, 0]


async def test_updates_of_the_same_topics_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [receiver(subscribed=["a"], granted=["a"]) for _ in range(3)]
    hub = broadcaster(*several)
    asked: list[tuple[tuple[str, ...], bool]] = []
    receivers = hub._receivers

    async def ask(topics: tuple[str, ...], private: bool) -> BitMap64:
        asked.append((topics, private))
        return await receivers(topics, private)

    monkeypatch.setattr(hub, "_receivers", ask)
    updates = entries(*(Update(("a",), str(n), private=n % 3 == 0) for n in range(30)))
    await hub.dispatch(updates)
    assert sorted(asked) == [(("a",), False), (("a",), True)]
    for one in several:
        assert writes(one) == [(b"".join(entry.frame for entry in updates), 30)]


# -- heartbeats


@pytest.mark.parametrize("count", [50, 400])
async def test_n8_heartbeats_of_subscribers_with_equal_last_writes_are_spread(count: int) -> None:
    """They spread over the last quarter of the interval; none comes later."""
    now = 0.0
    hub = Broadcaster(heartbeat=40, cached_topics=9, cached_topics_bytes=10**6, base_url=BASE, clock=lambda: now)
    several = [receiver(subscribed=["a"]) for _ in range(count)]
    for one in several:
        hub.connect(one)
        hub.join(one)
    each: list[int] = []
    for second in range(1, 42):
        now = float(second)
        await hub.tick()
        each.append(sum(len(writes(one)) for one in several) - sum(each))
    assert each[:29] == [0] * 29
    assert sum(each) == count
    assert max(each[29:]) <= count / 10 + 5
    assert {len(writes(one)) for one in several} == {1}

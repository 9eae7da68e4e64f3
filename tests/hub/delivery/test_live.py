"""Dispatch to seats that record their writes, and what seats leave behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.heartbeats import Heartbeats
from hub.delivery.live import Live
from hub.delivery.signals import Signals
from hub.delivery.subscriber import Subscriber
from hub.history.base import Entry, Retention
from hub.history.cursor import Start
from hub.history.memory import MemoryHistory
from hub.node.matchers import MatcherCompiler
from hub.protocol.events import parse_block
from hub.protocol.updates import Update
from skipfilter import LimitError
from tests.hub.seats import Recorder
from tests.hub.world import wants

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pyroaring import BitMap64

    from hub.delivery.seat import Ending, Seat
    from hub.turns import Pace

pytestmark = pytest.mark.anyio

BASE = "https://hub.example/.well-known/mercure"
COMPILER = MatcherCompiler(BASE)


class World:
    """An audience whose seats are live, and record their writes."""

    def __init__(self, *, clock: Any = lambda: 0.0, wall_clock: Any = None, heartbeat: float = 0) -> None:
        self.audience = Audience(BASE, cached_topics=10_000, cached_topics_bytes=10**6)
        self.live = Live(self.audience, clock=clock)
        signals = Signals(MemoryHistory(Retention(1, 1)), self.live, heartbeat=heartbeat)
        self.heartbeats = Heartbeats(
            self.live, signals, interval=heartbeat, clock=clock, wall_clock=wall_clock or clock
        )

    def seat(
        self, subscribed: Sequence[str], granted: Sequence[str] = (), type: str = "topic", *, joins: bool = True
    ) -> Seat:
        grant = CompiledGrant(subscribe=tuple(COMPILER.compile(type, pattern) for pattern in granted))
        subscriber = Subscriber((COMPILER.compile(type, pattern) for pattern in subscribed), grant, 0)
        seat = self.audience.seat(subscriber, Recorder())
        self.heartbeats.add(seat)
        if joins:
            self.join(seat)
        return seat

    def join(self, seat: Seat) -> None:
        self.live.join(seat, cast("Recorder", seat.holder), self.live.position)

    def remove(self, seat: Seat) -> Recorder:
        recorder = cast("Recorder", seat.holder)
        self.live.leave(seat)
        self.audience.remove(seat)
        self.heartbeats.discard(seat)
        seat.holder = None
        return recorder

    async def dispatch(self, *updates: Update) -> list[Entry]:
        """Dispatch updates as the next entries, and return these."""
        new = entries(*updates, after=self.live.position)
        await self.live.dispatch(new)
        return new

    def ids(self, role: Any, topic: str) -> list[int]:
        return list(self.audience._filter.bitmap((role, topic)))


def entries(*updates: Update, after: int = 0) -> list[Entry]:
    return [Entry(position, update) for position, update in enumerate(updates, after + 1)]


def writes(seat: Seat) -> list[tuple[bytes, int]]:
    return cast("Recorder", seat.holder).writes


TOPICS = st.lists(st.sampled_from(["a/1", "a/2", "b"]), min_size=1, max_size=2, unique=True)
UPDATES = st.builds(Update, st.builds(tuple, TOPICS), private=st.booleans())
WANTED = st.lists(st.sampled_from(["a/{n}", "a/1", "b", "*", "c"]), min_size=1, max_size=2)
GRANTED = st.lists(st.sampled_from(["a/{n}", "a/2", "b", "*"]), max_size=1)


@settings(max_examples=60)
@given(st.lists(UPDATES, min_size=1, max_size=150), st.lists(st.tuples(WANTED, GRANTED, st.booleans()), max_size=12))
def test_n21_n22_n81_v50_v89_each_subscriber_gets_one_write_that_agrees_with_a_naive_filter(
    updates: list[Update], wanted: list[Any]
) -> None:
    here = World()
    seats = [(here.seat(subscribed, granted), gone) for subscribed, granted, gone in wanted]
    removed = [here.remove(seat) for seat, gone in seats if gone]
    published = asyncio.run(here.dispatch(*updates))
    assert here.live.position == len(updates)
    assert not any(recorder.writes for recorder in removed)
    for seat, gone in seats:
        frames = [entry.frame for entry in published if wants(seat.subscriber, entry.update)]
        assert gone or writes(seat) == ([(b"".join(frames), len(updates))] if frames else [])


async def test_n106_a_seat_that_is_not_live_is_not_written_to() -> None:
    here = World()
    live, behind, other = (here.seat(["a"]) for _ in range(3))
    here.live.leave(behind)
    await here.dispatch(Update(("a",)))
    assert (len(writes(live)), writes(behind)) == (1, [])
    assert (len(here.live), len(here.audience)) == (2, 3)
    here.join(behind)
    gone = here.remove(other)
    await here.dispatch(Update(("a",)))
    assert (len(writes(live)), len(writes(behind)), len(gone.writes)) == (2, 1, 1)
    assert (len(here.live), len(here.audience)) == (2, 2)


async def test_a_seat_that_is_behind_cannot_join() -> None:
    here = World()
    seat = here.seat(["a"], joins=False)
    await here.dispatch(Update(("a",)))
    with pytest.raises(AssertionError):
        here.live.join(seat, Recorder(), 0)


async def test_a_new_seat_does_not_get_the_updates_of_one_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 1)
    here = World()
    first, second = here.seat(["a"]), here.seat(["a"])
    dispatch = asyncio.ensure_future(here.dispatch(Update(("a",))))
    while not writes(first):
        await asyncio.sleep(0)
    gone = here.remove(second)
    third = here.seat(["a"])
    await dispatch
    assert (len(writes(first)), gone.writes, writes(third)) == (1, [], [])


def test_n22_a_subscription_is_not_a_grant_and_a_grant_is_not_a_subscription() -> None:
    here = World()
    one = here.seat(["/books/{id}", "/{"], ["/films/1"])
    other = here.seat(["*"], ["/books/1"])
    assert here.ids("subscribed", "/books/1") == [one.id, other.id]
    assert here.ids("granted", "/books/1") == [other.id]
    assert here.ids("granted", "/films/1") == [one.id]
    assert here.ids("subscribed", "/{") == [one.id, other.id]
    here.remove(other)
    assert here.ids("subscribed", "/films/1") == here.ids("granted", "/books/1") == []
    here.audience._filter._check()


def test_a_subscriber_that_is_refused_leaves_nothing_behind() -> None:
    here = World()
    broken = Subscriber([COMPILER.compile("topic", "/secret")], CompiledGrant(subscribe=cast("Any", (None,))), 0)
    with pytest.raises(AttributeError):
        here.audience.seat(broken)
    seat = here.seat(["/x"], ["/x"])
    assert here.ids("subscribed", "/secret") == here.ids("granted", "/secret") == []
    assert here.ids("subscribed", "/x") == [seat.id]


@pytest.mark.parametrize("too_many", ["subscribed", "granted"])
def test_n23_a_subscriber_with_too_many_similar_patterns_leaves_nothing_behind(too_many: str) -> None:
    alike = ["{+a}" + "{b}" * (n % 16) + "{+c}" * (n // 16) for n in range(257)]
    here = World()
    first = here.seat(alike[:256], alike[:256], type="uritemplate")
    patterns = {"subscribed": ["/b/{n}"], "granted": ["/b/{n}"]} | {too_many: ["/b/{n}", alike[256]]}
    with pytest.raises(LimitError):
        here.seat(patterns["subscribed"], patterns["granted"], "uritemplate")
    assert (list(here.audience), len(here.live), len(here.heartbeats._wheel)) == ([first], 1, 1)
    here.seat(["/d/{n}"], ["/e/{n}"], type="uritemplate")
    assert len(here.audience) == 2


def test_seats_are_listed_in_the_order_of_their_arrival() -> None:
    here = World()
    first, second, third = (here.seat(["a"]) for _ in range(3))
    here.remove(second)
    assert list(here.audience) == [first, third]


# -- turns


class Turns:
    """Counts the writes between the turns of other tasks while a coroutine runs."""

    def __init__(self, *seats: Seat) -> None:
        self.seats = seats
        self.portions: list[int] = []

    async def during(self, dispatch: Coroutine[Any, Any, object]) -> list[int]:
        before = 0
        task = asyncio.ensure_future(dispatch)
        while not task.done():
            await asyncio.sleep(0)
            count = sum(len(writes(seat)) for seat in self.seats)
            self.portions.append(count - before)
            before = count
        await task
        return self.portions


@pytest.mark.parametrize(("size", "at_most"), [(10, 16), (4_000, 16), (12_000, 6), (2**20, 1)])
async def test_fewer_large_frames_are_written_at_a_time(
    size: int, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 16)
    here = World()
    several = [here.seat(["a"]) for _ in range(40)]
    portions = await Turns(*several).during(here.dispatch(Update(("a",), "x" * (size - 60), id="x")))
    assert max(portions) == at_most
    assert sum(portions) == 40


async def test_other_tasks_run_while_the_seats_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two seats want the same updates, so each selection is computed."""
    monkeypatch.setattr("hub.turns.GROUPED_IDS", 10)
    monkeypatch.setattr("hub.turns.FOUND_TOPICS", 4)
    monkeypatch.setattr("hub.turns.GROUPS", 1)
    here = World()
    several = [here.seat([str(n), "all"]) for n in range(40)]
    updates = entries(*(Update((str(n),)) for n in range(40)), Update(("all",)))
    portions = await Turns(*several).during(here.live.dispatch(updates))
    first = next(n for n, count in enumerate(portions) if count)
    # Portions for: topics, ids of all sets, ids of each selection, sets of ids.
    assert first >= 40 // 4 + 80 // 10 + 40 // 10 + 40
    for n, seat in enumerate(several):
        assert writes(seat) == [(updates[n].frame + updates[-1].frame, 41)]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("more", [[], [Update(("t/0",))]])
async def test_other_tasks_run_while_many_topics_are_looked_up(private: bool, more: list[Update]) -> None:
    here = World()
    reader = here.seat(["t/199"], ["t/199"])
    topics = tuple(f"t/{n}" for n in range(200))
    asked: list[object] = []
    index: Any = here.audience._index
    posting_lists = index.posting_lists

    def ask(*of: object) -> Any:
        asked.append(of)
        return posting_lists(*of)

    index.posting_lists = ask
    most = 0
    task = asyncio.ensure_future(here.dispatch(Update(topics, private=private), *more))
    while not task.done():
        before = len(asked)
        await asyncio.sleep(0)
        most = max(most, len(asked) - before)
    # A topic is cached when it is looked up again.
    assert (len(asked), most) == (200 * (1 + private) + len(more), 16)
    assert len(writes(reader)) == 1


async def test_no_further_topic_is_looked_up_if_all_live_seats_are_found() -> None:
    here = World()
    one, other = here.seat(["a", "b"], ["b", "c"]), here.seat(["*"], ["*"])
    index: Any = here.audience._index
    asked: list[object] = []
    posting_lists = index.posting_lists

    def ask(key: object, *of: object) -> Any:
        asked.append(key)
        return posting_lists(key, *of)

    index.posting_lists = ask
    await here.dispatch(Update(("a", "b", "c", "d"), private=True))
    assert asked == [("subscribed", "a"), ("granted", "a"), ("granted", "b")]
    assert len(writes(one)) == len(writes(other)) == 1


async def test_seats_that_leave_or_join_during_the_lookup_are_not_written_to() -> None:
    here = World()
    several = [here.seat([str(n), "all"]) for n in range(4)]
    late = here.seat(["all"], joins=False)
    task = asyncio.ensure_future(here.dispatch(*(Update((str(n),)) for n in range(20)), Update(("all",))))
    await asyncio.sleep(0)
    assert not any(map(writes, several))
    here.live.leave(several[0])
    gone = here.remove(several[1])
    here.join(late)
    await task
    assert [len(writes(seat)) for seat in [several[0], *several[2:], late]] == [0, 1, 1, 0]
    assert gone.writes == []


async def test_updates_of_the_same_topics_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World()
    several = [here.seat(["a"], ["a"]) for _ in range(3)]
    asked: list[tuple[Sequence[str], bool]] = []
    of = here.audience.of

    async def ask(topics: Sequence[str], private: bool, among: BitMap64, pace: Pace) -> BitMap64:
        asked.append((topics, private))
        return await of(topics, private, among, pace)

    monkeypatch.setattr(here.audience, "of", ask)
    updates = await here.dispatch(*(Update(("a",), str(n), private=n % 3 == 0) for n in range(30)))
    assert sorted(asked) == [(("a",), False), (("a",), True)]
    for seat in several:
        assert writes(seat) == [(b"".join(entry.frame for entry in updates), 30)]


# -- heartbeats


@pytest.mark.parametrize("count", [50, 400])
async def test_n8_heartbeats_of_subscribers_with_equal_last_writes_are_spread(count: int) -> None:
    """They spread over the last quarter of the interval; none comes later."""
    now = 0.0
    here = World(clock=lambda: now, heartbeat=40)
    several = [here.seat(["a"]) for _ in range(count)]
    each: list[int] = []
    for second in range(1, 42):
        now = float(second)
        await here.heartbeats.tick()
        each.append(sum(len(writes(seat)) for seat in several) - sum(each))
    assert each[:29] == [0] * 29
    assert sum(each) == count
    assert max(each[29:]) <= count / 10 + 5
    assert {len(writes(seat)) for seat in several} == {1}


async def test_a_heartbeat_that_nobody_gets_is_no_write() -> None:
    """The event log dates the loss of a connection by its last write."""
    now = 0.0
    here = World(clock=lambda: now, heartbeat=10)
    live, behind = here.seat(["a"]), here.seat(["a"], joins=False)
    for now in range(1, 31):  # noqa: B007 - the clock reads it
        await here.heartbeats.tick()
    assert (writes(behind), behind.written) == ([], 0.0)
    assert len(writes(live)) == 3
    assert live.written > 20
    # Its next heartbeat comes an interval after the last that was due, and not at once.
    here.join(behind)
    now = 31
    await here.heartbeats.tick()
    assert writes(behind) == []
    for now in range(32, 41):  # noqa: B007
        await here.heartbeats.tick()
    assert len(writes(behind)) == 1


async def test_n82_a_token_expires_by_the_wall_clock_also_if_that_is_set() -> None:
    now, wall = 0.0, 1_000.0
    here = World(clock=lambda: now, wall_clock=lambda: now + wall)
    recorders = {}
    for name, expires, deadline in (("token", 1_600.0, 600.0), ("late", 9_000.0, 700.0), ("none", None, 700.0)):
        grant = CompiledGrant(expires=expires)
        subscriber = Subscriber((), grant, 0, deadline=deadline, expires=name == "token")
        seat = here.audience.seat(subscriber, recorder := Recorder())
        here.heartbeats.add(seat)
        recorders[name] = recorder

    async def ended() -> dict[str, list[Ending]]:
        await here.heartbeats.tick()
        return {name: recorder.reasons for name, recorder in recorders.items()}

    now = 10.0
    assert await ended() == {"token": [], "late": [], "none": []}
    wall += 580  # set forward: the token has 10 s left
    now = 15.0
    assert await ended() == {"token": [], "late": [], "none": []}
    now = 20.0
    assert await ended() == {"token": ["its token expires"], "late": [], "none": []}
    wall -= 580  # set back: nothing lives longer
    now = 30.0
    assert (await ended())["late"] == []
    wall += 8_500
    now = 100.0
    await ended()
    now = 101.0
    assert await ended() == {"token": ["its token expires"], "late": ["its token expires"], "none": []}
    now = 701.0
    assert (await ended())["none"] == ["it has reached the maximum lifetime"]


async def test_n82_a_token_expires_by_the_wall_clock_also_if_that_is_set_in_small_steps() -> None:
    now, wall = 0.0, 1_000.0
    here = World(clock=lambda: now, wall_clock=lambda: now + wall)
    subscriber = Subscriber((), CompiledGrant(expires=4_600.0), 0, deadline=3_600.0, expires=True)
    here.heartbeats.add(here.audience.seat(subscriber, recorder := Recorder()))
    while not recorder.reasons:
        now += 1
        if now % 300 == 0:
            wall += 0.9
        await here.heartbeats.tick()
    assert 4_597.0 < now + wall <= 4_601.0


async def test_n82_a_seat_whose_end_has_come_is_closed_at_once() -> None:
    here = World()
    subscriber = Subscriber((), CompiledGrant(), 0, deadline=0.0, expires=True)
    recorder = Recorder()
    here.heartbeats.add(here.audience.seat(subscriber, recorder))
    assert recorder.reasons == ["its token expires"]


async def test_r95_the_cursor_of_a_heartbeat_is_not_ahead_of_its_stream() -> None:
    """Entries may have been skipped, or a dispatch may have failed, before it ends."""
    now = 0.0
    world = World(clock=lambda: now, heartbeat=1)
    seat = world.seat(["a"])
    seat.subscriber.signals = Start(0, None)
    cast("Recorder", seat.holder).position = 3
    world.live.move_to(9)
    now = 10.0
    await world.heartbeats.tick()
    [(body, _)] = cast("Recorder", seat.holder).writes
    cursor = parse_block(body.removesuffix(b"\n\n")).id
    place = cast("Any", world.heartbeats)._signals._history._seal.place(cursor)
    assert place.number == 3

"""The contract of `base.History`: every history agrees with a list, even if several
nodes share it.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hub.errors import ConfigurationError, HistoryUnavailable, PositionExpired
from hub.history import HISTORIES, base
from hub.history.base import EARLIEST, Change, Entry
from hub.history.opaque import Loss
from hub.history.redis.history import RedisHistory
from hub.history.sqlite.history import SqliteHistory
from hub.history.sqlite.transaction import row_of
from hub.protocol.subscriptions import Present
from hub.protocol.updates import Update
from tests.hub.history.contract import KINDS, SHARED, everything, ids_of, named, node_of, nodes
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.clocks import Dates
    from hub.history.base import History

pytestmark = pytest.mark.anyio


# -- order


def test_every_transport_is_tested() -> None:
    assert {scheme.partition("+")[0].replace("rediss", "redis") for scheme in HISTORIES} == set(KINDS)


class Model(RuleBasedStateMachine):
    """A history of one or two nodes, with tiny bounds, compared with a list."""

    kind = "memory"
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def run(self, asked: Any) -> Any:
        return self.runner.run(asyncio.wait_for(asked, HANG))

    @initialize(most=st.sampled_from([2, 5, 300]), most_presence=st.sampled_from([1, 2, 5, 300]), two=st.booleans())
    def begin(self, most: int, most_presence: int, two: bool) -> None:
        url = Model.new_url(self.kind)  # type: ignore[attr-defined]
        self.most = {False: most, True: most_presence}
        bounds = {"max_updates": most, "presence_updates": most_presence}
        self.nodes = [node_of(url, **bounds) for _ in range(1 + (two and self.kind in SHARED))]
        for node in self.nodes:
            self.run(node.hear())  # a cursor is valid on all of them from then on
        self.all: list[tuple[int, Update]] = []
        self.presence: set[int] = set()
        self.kept: list[tuple[int, Update]] = []
        self.end = 0
        self.forgotten = {False: 0, True: 0}
        self.present: dict[str, Present] = {}
        self.followers: list[tuple[Any, int]] = []
        self.cursors: list[tuple[str, int]] = []

    def node(self, which: int) -> History:
        return self.nodes[which % len(self.nodes)]

    def expect(self, entries: Sequence[Entry], updates: Sequence[Update], *, presence: bool) -> None:
        assert [(entry.position, entry.update) for entry in entries] == list(enumerate(updates, self.end + 1))
        new = [(entry.position, entry.update) for entry in entries]
        self.all += new
        self.kept += new
        self.end += len(updates)
        if presence:
            self.presence |= {position for position, _ in new}
        self.forget(self.most)

    def forget(self, most: dict[bool, int]) -> None:
        """Remove the forgotten entries from `kept`.

        Asserts that they are the oldest of their kind.  A published update is only
        forgotten if there are more than the limit, and a presence update also if it is
        older than all published ones.
        """
        left = {entry.position for entry in self.run(everything(self.node(0)))}
        of_kind = {kind: [p for p, _ in self.kept if (p in self.presence) == kind] for kind in (False, True)}
        gone = {kind: [p for p in of_kind[kind] if p not in left] for kind in (False, True)}
        for kind in (False, True):
            assert gone[kind] == of_kind[kind][: len(gone[kind])]
            assert len(of_kind[kind]) - len(gone[kind]) < most[kind] + 2_500
            self.forgotten[kind] = max([self.forgotten[kind], *gone[kind]])
        assert len(gone[False]) <= max(0, len(of_kind[False]) - most[False])
        first = min((p for p in of_kind[False] if p in left), default=0)
        older = [p for p in of_kind[True] if p < first] if self.forgotten[False] else []
        assert len(gone[True]) <= max(len(older), len(of_kind[True]) - most[True])
        assert set(older) <= set(gone[True])
        self.kept = [(position, update) for position, update in self.kept if position in left]

    @rule(
        which=st.integers(0, 1),
        updates=st.lists(
            st.builds(
                lambda name, data, private: Update(("t", name), data, private=private, id=name),
                st.sampled_from("abc"),
                st.text("x\n\0é", max_size=20),
                st.booleans(),
            ),
            max_size=7,
        ),
        presence=st.booleans(),
    )
    def append(self, which: int, updates: list[Update], presence: bool) -> None:
        entries = self.run(self.node(which).append(updates, presence=presence))
        self.expect(entries, updates, presence=presence)

    @rule(which=st.integers(0, 1), before=st.integers(0, 3), after=st.integers(0, 3), presence=st.booleans())
    def fail_to_append(self, which: int, before: int, after: int, presence: bool) -> None:
        """An append fails as a whole if one of its updates has a lone surrogate."""
        good = Update(("t",), id="a")
        updates = [*[good] * before, Update(("t",), "\ud800", id="b"), *[good] * after]
        with pytest.raises(UnicodeEncodeError):
            self.run(self.node(which).append(updates, presence=presence))

    @rule(which=st.integers(0, 1), who=st.sampled_from("pqr"), active=st.booleans(), told=st.integers(0, 2))
    def announce(self, which: int, who: str, active: bool, told: int) -> None:
        subscriber = Present(who, (("exact", "é\0", {"a": [1]}), ("topic", str(told), None)))
        updates = named(*["s"] * told, data=f"{who} {active}")
        known = who in self.present
        entries = self.run(self.node(which).announce([Change(subscriber, active, updates)]))
        self.expect(entries, updates if active or known else [], presence=True)
        self.present.pop(who, None)
        if active:
            self.present[who] = subscriber

    @rule(which=st.integers(0, 1), id=st.sampled_from("abcds"), presence=st.booleans())
    def find(self, which: int, id: str, presence: bool) -> None:
        expected = next((position for position, update in self.kept if update.id == id), None)  # N115
        if expected is not None and presence and expected < self.forgotten[True]:
            expected = None
        assert self.run(self.node(which).find(id, presence=presence)) == expected

    @rule(which=st.integers(0, 1), knows_id=st.booleans())
    def make_cursor(self, which: int, knows_id: bool) -> None:
        position = self.run(self.node(which).end())
        id = self.all[position - 1][1].id if knows_id and position else ""
        self.cursors.append((self.node(which).cursor(position, id), position))

    @precondition(lambda self: bool(getattr(self, "cursors", None)))
    @rule(which=st.integers(0, 1), index=st.integers(0, 99), presence=st.booleans())
    def locate(self, which: int, index: int, presence: bool) -> None:
        cursor, position = self.cursors[index % len(self.cursors)]
        is_old = position < max(self.forgotten[False], self.forgotten[True] if presence else 0)
        found = self.run(self.node(which).locate(cursor, presence=presence))
        assert found == (Loss.TOO_OLD if is_old else position)

    @rule(which=st.integers(0, 1), back=st.integers(-2, 12))
    def read(self, which: int, back: int) -> None:
        after = max(0, self.end - back)
        if back < 0:
            after = self.end - back
        if after < self.forgotten[False]:
            with pytest.raises(PositionExpired, match=str(after)):
                self.run(self.node(which).read(after))
        elif after <= self.end:
            page = self.run(self.node(which).read(after))
            wanted = [(p, u) for p, u in self.kept if p > after]
            end = base.page_end(wanted[0][0] - 1) if wanted else 0
            assert [(entry.position, entry.update) for entry in page] == [(p, u) for p, u in wanted if p <= end]
            assert page.forgotten == self.forgotten[True]
            assert page.full == bool(wanted and end <= self.end)

    @rule(which=st.integers(0, 1))
    def follow(self, which: int) -> None:
        self.followers.append((self.node(which).follow(self.end), self.end))

    @precondition(lambda self: bool(getattr(self, "followers", None)))
    @rule(which=st.integers(0, 9))
    def see(self, which: int) -> None:
        """A follower gets the next entries, or PositionExpired if some were
        forgotten.
        """
        pages, place = self.followers.pop(which % len(self.followers))
        if place == self.end:
            self.followers.append((pages, place))
            return
        try:
            page = self.run(anext(pages))
        except PositionExpired:
            assert place < max(self.forgotten.values())
            return
        assert [(entry.position, entry.update) for entry in page] == self.all[place : place + len(page)]
        # SQLite may have entries in memory that the history has forgotten.
        assert self.kind == "sqlite" or place >= max(self.forgotten.values())
        self.followers.append((pages, page[-1].position))

    @rule(which=st.integers(0, 1), most=st.integers(1, 4))
    def prune(self, which: int, most: int) -> None:
        while self.run(self.node(which).prune(max_updates=most, max_bytes=2**30, max_age=math.inf)):
            pass
        self.forget({False: most, True: 10**6})
        assert sum(position not in self.presence for position, _ in self.kept) <= most

    @rule(which=st.integers(0, 1))
    def beat(self, which: int) -> None:
        assert self.run(self.node(which).beat()).orphans == []

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "nodes"):
            return
        published, presence = (
            [update for position, update in self.kept if (position in self.presence) == kind] for kind in (False, True)
        )
        for node in self.nodes:
            newest = self.run(node.newest())
            assert (None if newest is None else (newest.position, newest.update)) == (
                self.kept[-1] if self.kept else None
            )
            assert self.run(node.end()) == self.end
            found = self.run(everything(node))
            assert [(entry.position, entry.update) for entry in found] == self.kept
            assert {one.id: one for one in self.run(node.present())} == self.present
            stats = self.run(node.stats())
            assert (stats.updates, stats.bytes) == (len(published), self.size(published))
            assert (stats.presence_updates, stats.presence_bytes) == (len(presence), self.size(presence))
            assert (stats.oldest, stats.newest) == ((found[0], found[-1]) if found else (None, None))
            assert stats.present == len(self.present)
        own = [one.id for node in self.nodes for one in self.run(node.present(own=True))]
        assert sorted(own) == sorted(self.present)

    def size(self, updates: Sequence[Update]) -> int:
        return sum(row_of(update).size if self.kind == "sqlite" else update.size for update in updates)

    def teardown(self) -> None:
        async def end() -> None:
            for pages, _ in self.followers:
                await pages.aclose()
            for node in self.nodes:
                await node.aclose()

        if hasattr(self, "nodes"):
            self.run(end())
        self.runner.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_history_behaves_like_a_list(kind: str, new_url: Callable[[str], str]) -> None:
    machine = type(f"Model_{kind}", (Model,), {"kind": kind})
    Model.new_url = staticmethod(new_url)
    examples = 40 if kind == "memory" else 15
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_followers_on_all_nodes_see_the_same_entries_in_the_same_order(
    kind: str, new_url: Callable[[str], str]
) -> None:
    count = 2 if kind in SHARED else 1
    async with nodes(new_url(kind), count) as made:

        async def follow(node: History, after: int) -> list[tuple[int, str]]:
            seen: list[tuple[int, str]] = []
            async for page in node.follow(after):
                seen += [(entry.position, entry.update.data) for entry in page]
                if seen[-1][0] >= 400:
                    break
            return seen

        async def append(node: History, name: str) -> None:
            for n in range(400 // count // 4):
                await node.append([Update(("t",), f"{name} {n} {part}") for part in range(4)])
                if n % 7 == 0:
                    await asyncio.sleep(0)

        async with asyncio.timeout(HANG):
            followed = [asyncio.create_task(follow(node, 0)) for node in made for _ in range(2)]
            await asyncio.gather(*(append(node, str(n)) for n, node in enumerate(made)))
            *seen, late = await asyncio.gather(*followed, follow(made[0], 100))
        assert all(one == seen[0] for one in seen)
        assert [position for position, _ in seen[0]] == list(range(1, 401))
        assert late == seen[0][100:]
        # The entries of a node keep their order, and a batch stays together.
        for n in range(count):
            own = [data for _, data in seen[0] if data.startswith(str(n))]
            assert own == [f"{n} {m} {part}" for m in range(400 // count // 4) for part in range(4)]
        assert all(seen[0][n][1][:-1] == seen[0][n + 1][1][:-1] for n in range(0, 400, 4))


@pytest.mark.parametrize("kind", SHARED)
async def test_a_node_is_notified_of_appends_of_another_node(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), 2) as (one, other):
        pages = other.follow(await other.end())
        waiting = asyncio.ensure_future(anext(pages))
        for n in range(10):
            await one.append(named(str(n)))
            assert ids_of(await asyncio.wait_for(waiting, HANG)) == [str(n)]
            waiting = asyncio.ensure_future(anext(pages))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await pages.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", SHARED)
async def test_t86_a_reader_that_starts_later_gets_earlier_entries(kind: str, new_url: Callable[[str], str]) -> None:
    url = new_url(kind)
    updates = [
        Update(("é", "b\0"), "data\r\n\0", True, "urn:é\U0001f600", "type", 0),
        Update(("",), "", False, " ", None, 2**64 - 1),
        Update(tuple(map(str, range(1_000))), "x" * 2**20, id="large"),
    ]
    async with nodes(url) as (one,):
        await one.append(updates)
        epoch = (await one.stats()).epoch
    async with nodes(url) as (other,):
        assert [entry.update for entry in await everything(other)] == updates
        assert [await other.find(update.id) for update in updates] == [1, 2, 3]  # T86
        assert (await other.stats()).epoch == epoch
        await other.append(named("next"))
        assert await other.end() == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_pages_are_bounded_in_bytes_and_end_at_the_same_positions(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind)) as (node,):
        await node.append([Update(("t",), str(n)) for n in range(300)])
        assert [len(await node.read(after)) for after in (EARLIEST, 0, 1, 127, 128, 255, 256, 300)] == [
            128, 128, 127, 1, 128, 1, 44, 0,
        ]  # fmt: skip
        await node.append([Update(("t",), "x" * (base.PAGE_BYTES // 2 - 1_000)) for _ in range(5)])
        assert [len(await node.read(after)) for after in (300, 302, 304)] in ([2, 2, 1], [1, 1, 1])
        await node.append([Update(("t",), "x" * 2 * base.PAGE_BYTES)])
        assert len(await node.read(305)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_large_batch_is_one_append(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind)) as (node,):
        entries = await node.append([Update((f"t{n}",), "x" * 500, id=str(n)) for n in range(5_000)])
        assert [entry.position for entry in entries] == list(range(1, 5_001))
        assert await node.find("4999") == 5_000


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_append_is_complete_or_absent(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind)) as (node,):
        for turns in range(12):
            appending = asyncio.ensure_future(node.append(named(f"a{turns}", f"b{turns}")))
            for _ in range(turns):
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.gather(appending, return_exceptions=True)
        await node.append(named("end"))
        found = ids_of(await everything(node))
        assert found[-1] == "end"
        assert [f"b{id[1:]}" for id in found[:-1:2]] == found[1:-1:2]
        assert len(set(found)) == len(found)


# -- bounds


@pytest.mark.parametrize("kind", KINDS)
async def test_n112_t85_the_history_keeps_about_as_many_updates_and_bytes_as_configured(
    kind: str, new_url: Callable[[str], str]
) -> None:
    for bounds, least in (({"max_updates": 1_000}, 1_000), ({"max_bytes": 1_000_000}, 400)):
        async with nodes(new_url(kind), **bounds) as (node,):
            for n in range(60):
                await node.append([Update(("t",), "x" * 1_000, id=f"{n} {m}") for m in range(100)])
            stats = await node.stats()
            assert least <= stats.updates <= 3_000
            assert stats.newest is not None
            assert stats.newest.position == 6_000
            assert stats.oldest is not None
            assert await node.find("0 0") is None
            assert await node.find(stats.oldest.update.id) == stats.oldest.position
            with pytest.raises(PositionExpired):
                await node.read(stats.oldest.position - 2)
            await node.append([Update(("t",), "x" * 2_000_000, id="large")])  # the newest one always stays
            assert await node.find("large") == 6_001


@pytest.mark.parametrize("kind", KINDS)
async def test_n112_old_entries_are_trimmed(kind: str, new_url: Callable[[str], str]) -> None:
    now = int(time.time() * 1_000)
    async with nodes(new_url(kind), max_age=3_600) as (node,):
        old = [Entry(0, update, now - 7_200_000) for update in named("1", "2", "3")]
        await node.load([*old, *(Entry(0, update, now - 1_800_000) for update in named("4", "5"))])
        for _ in range(3):
            await node.beat()
        assert ids_of(await everything(node)) == ["4", "5"]


@pytest.mark.parametrize("kind", KINDS)
async def test_loaded_entries_keep_their_time_and_pruned_entries_are_gone(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind)) as (node,):
        await node.load([Entry(7 + n, Update(("t",), id=str(n)), 1_000 * n) for n in range(10)])
        assert [(entry.position, entry.time) for entry in await everything(node)] == [
            (n + 1, 1_000 * n) for n in range(10)
        ]
        assert await node.prune(max_updates=4, max_bytes=2**30, max_age=math.inf) == 6
        assert await node.prune(max_updates=4, max_bytes=2**30, max_age=math.inf) == 0
        assert ids_of(await everything(node)) == ["6", "7", "8", "9"]
        assert await node.prune(max_updates=4, max_bytes=2**30, max_age=60) == 3  # the newest one stays
        assert ids_of(await everything(node)) == ["9"]
        stats = await node.stats()
        assert stats.oldest == stats.newest == (await everything(node))[0]


@pytest.mark.parametrize("kind", KINDS)
async def test_presence_updates_have_bounds_of_their_own(kind: str, new_url: Callable[[str], str]) -> None:
    """Clients that connect and disconnect do not push out published updates."""
    count = 2 if kind in SHARED else 1
    for bounds in ({"presence_updates": 500}, {"presence_bytes": 200_000}):
        async with nodes(new_url(kind), count, max_updates=10, max_bytes=100_000, **bounds) as made:
            one, other = made[0], made[-1]
            await one.append(named("first"))
            (came, *_) = await one.announce([arrival("p", "came")])
            for n in range(50):
                changes = [arrival(f"{n} {m}", *(f"{n} {m} {part}" for part in range(10))) for m in range(10)]
                told = await other.announce(changes)
            await other.append(named("last"))
            page = await one.read(EARLIEST)
            stats = await one.stats()
            assert page[0].update.id == "first"
            assert stats.updates == 2
            assert 500 <= stats.presence_updates <= 3_000
            assert stats.presence_bytes < 1_500_000
            for node in made:
                assert await node.find("first") == await node.find("first", presence=False) == 1
                assert await node.find("first", presence=True) is None  # a presence update after it is forgotten
                assert await node.find("came") is None
                assert await node.find(told[-1].update.id, presence=True) == told[-1].position
                assert await node.end() == 5_003
                # `forgotten` shows a reader whether the gap concerns it.
                after = await node.read(1)
                assert after[0].position > came.position + 1
                assert after[0].position == after.forgotten + 1
                with pytest.raises(PositionExpired, match=str(after.forgotten)):
                    after.require_presence(1)
                with pytest.raises(PositionExpired):
                    await anext(node.follow(1))
            assert ids_of(await everything(one))[-1] == "last"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gap_of_any_length_is_one_step(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), presence_updates=1) as (node,):
        for n in range(3):
            await node.append(named(f"{n}"))
            for m in range(7):
                await node.append(named(*(f"{n} {m} {part}" for part in range(1_000))), presence=True)
        page = await node.read(EARLIEST)
        assert ids_of(page) == ["0"]
        assert page.full
        page = await node.read(page[-1].position)
        assert (ids_of(page), page.full) == (["1"], True)
        assert ids_of(await node.read(page[-1].position)) == ["2"]
        assert ids_of(await everything(node)) == ["0", "1", "2", "2 6 999"]


@pytest.mark.parametrize("kind", KINDS)
async def test_presence_updates_are_trimmed_by_age_and_before_the_oldest_published_update(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind)) as (node,):
        await node.append(named("a"))
        await node.append(named("p", "q"), presence=True)
        await node.append(named("b"))
        await node.append(named("r"), presence=True)
        assert await node.prune(max_updates=1, max_bytes=2**30, max_age=math.inf) == 3
        assert ids_of(await everything(node)) == ["b", "r"]
        assert ids_of(await node.read(2)) == ["b", "r"]  # only presence updates are missing
        assert (await node.read(2)).forgotten == 3
        with pytest.raises(PositionExpired):
            await node.read(0)
        assert await node.find("b", presence=True) == 4
        await node.append(named("s"), presence=True)
        await later(node, 7_200)
        if not isinstance(node, RedisHistory):  # Redis uses the server's clock
            assert await node.prune(max_updates=9, max_bytes=2**30, max_age=3_600) == 1
            assert ids_of(await everything(node)) == ["b", "s"]  # the newest of each kind stays


# -- repeated ids


async def later(node: Any, seconds: float) -> None:
    """Make the ids that a history remembers older by `seconds`."""
    if isinstance(node, RedisHistory):
        client: Any = node._client
        key = node._keys[7]
        for seen, time in await client.zrange(key, 0, -1, withscores=True):
            await client.zadd(key, {seen: time - seconds * 1_000})
    else:
        dates = _dates(node)
        system, steady = dates._system, dates._steady
        dates._system, dates._steady = lambda: system() + seconds, lambda: steady() + seconds


def _dates(node: Any) -> Dates:
    dates: Dates = (node._commits if isinstance(node, SqliteHistory) else node)._dates
    return dates


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "redis"])  # which has the clock of its server
async def test_a_system_clock_that_is_set_deletes_nothing(kind: str, new_url: Callable[[str], str]) -> None:
    year = 365 * 86_400.0
    async with nodes(new_url(kind), idempotency_window=3_600.0, max_age=7_200.0) as (node,):
        [before] = await node.append(named("a"))
        dates = _dates(node)
        system = dates._system
        for ahead in (year, 0.0):
            dates._system = lambda ahead=ahead: system() + ahead  # type: ignore[misc]
            assert await node.append(named("a")) == []  # the id is not forgotten either
            [entry] = await node.append(named(f"at {ahead}"))
            assert abs(entry.time - before.time - ahead * 1_000) < 600_000
            assert await node.prune(max_updates=9, max_bytes=2**30, max_age=7_200) == 0
        assert ids_of(await everything(node)) == ["a", f"at {year}", "at 0.0"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "redis"])
async def test_ages_go_on_after_the_system_clock_was_set(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), max_age=7_200.0) as (node,):
        await node.append(named("a"))
        dates = _dates(node)
        system = dates._system
        dates._system = lambda: system() + 1e6
        await node.append(named("b"))
        await later(node, 7_100)
        assert ids_of(await everything(node)) == ["a", "b"]
        await later(node, 200)
        await node.append(named("c"))
        assert ids_of(await everything(node)) == ["c"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_repeated_id_is_left_out_within_the_window(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), idempotency_window=3_600.0) as (node,):
        await node.append(named("old"))
        await later(node, 1_800)
        entries = await node.append(named("old", "a", "b", "a"))
        assert ids_of(entries) == ["a", "b"]
        assert [entry.position for entry in entries] == [2, 3]
        assert await node.append(named("a", "b", "old")) == []
        await later(node, 1_801)
        assert ids_of(await node.append(named("a", "old", "old"))) == ["old"]
        assert await node.end() == 4
        both = await asyncio.gather(*(node.append(named("at once")) for _ in range(5)))
        assert sorted(map(len, both)) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remembered_id_belongs_to_its_publisher(kind: str, new_url: Callable[[str], str]) -> None:
    """Otherwise, a publisher of one topic could suppress updates of others to any
    topic.
    """
    async with nodes(new_url(kind), 2 if kind in SHARED else 1, idempotency_window=3_600.0) as made:
        one, other = made[0], made[-1]
        first, second = Update(("b",), id="order-7"), Update(("a",), id="order-7", private=True)
        assert len(await one.append([first], publisher="B")) == 1
        assert len(await other.append([second], publisher="A")) == 1
        assert len(await other.append([first], publisher="C")) == 1
        assert len(await one.append([first])) == 1
        for node in made:
            for publisher in ("A", "B", "C", ""):
                assert await node.append([second], publisher=publisher) == []
        entries = await other.append([first, second, *named("order-8", "order-8")], publisher="A")
        assert ids_of(entries) == ["order-8"]
        assert ids_of(await one.append(named("order-7", "order-8", "order-8"), publisher="D")) == ["order-7", "order-8"]
        # The key of an id is not just name + id.  Otherwise, a publisher could choose
        # an id that suppresses the update of another publisher.
        assert len(await one.append(named("2b c"), publisher="a")) == 1
        assert len(await one.append(named("b c"), publisher="a2")) == 1
        assert len(await one.append(named("c"), publisher="a2b ")) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_the_number_of_remembered_ids_equals_the_bound_of_updates(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind), max_updates=3, idempotency_window=3_600.0) as (node,):
        for n in range(20):
            await node.append(named(str(n)))
        assert len(await node.append(named(*map(str, range(20))))) == 17
        assert len(await node.append(named(*map(str, range(20))))) == 17


@pytest.mark.parametrize("kind", KINDS)
async def test_the_id_of_a_failed_append_is_not_remembered(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), idempotency_window=3_600.0) as (node,):
        with pytest.raises(UnicodeEncodeError):
            await node.append([*named("a"), Update(("t",), "\ud800", id="b")])
        assert ids_of(await node.append(named("a", "b"))) == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS)
async def test_imported_and_presence_updates_suppress_nothing(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), idempotency_window=3_600.0) as (node,):
        await node.load([Entry(7, update, 1_000) for update in named("a")])
        await node.announce([arrival("p", "b")])
        assert len(await node.append(named("b", "c", "c"), presence=True)) == 3
        assert ids_of(await node.append(named("a", "b", "c"))) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
async def test_loaded_and_new_presence_updates_are_told_apart_on_each_page(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind)) as (node,):
        loaded = [Entry(7 + n, Update(("t",), id=f"l{n}"), 1_000 + n) for n in range(300)]
        await node.load(loaded, {entry.position for entry in loaded if entry.position % 3})
        await node.append(named("a"))
        await node.announce([arrival("p", "p1", "p2")])
        await node.append(named("b", "p3"), presence=True)
        await node.append(named("c"))
        found: list[tuple[str, bool]] = []
        position = EARLIEST
        while page := await node.read(position):
            assert page.presence <= {entry.position for entry in page}
            found += [(entry.update.id, entry.position in page.presence) for entry in page]
            position = page[-1].position
        new = [("a", False), ("p1", True), ("p2", True), ("b", True), ("p3", True), ("c", False)]
        assert found == [(entry.update.id, entry.position % 3 != 0) for entry in loaded] + new
        stats = await node.stats()
        assert (stats.updates, stats.presence_updates) == (102, 204)
        assert [entry.time for entry in (await everything(node))[:300]] == [entry.time for entry in loaded]


@pytest.mark.parametrize("kind", KINDS)
async def test_n115_without_a_window_an_id_can_be_reused(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind)) as (node,):
        assert len(await node.append(named("a", "b", "a"))) == 3
        assert len(await node.append(named("a"))) == 1
        assert await node.find("a") == 1


# -- presence


def arrival(id: str, *updates: str) -> Change:
    return Change(Present(id, (("exact", "a", None),)), True, named(*updates))


def departure(id: str, *updates: str) -> Change:
    return Change(Present(id, ()), False, named(*updates))


@pytest.mark.parametrize("kind", SHARED)
async def test_only_one_node_announces_that_a_subscriber_left(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind), 2) as (one, other):
        await one.announce([arrival("p", "came"), arrival("q")])
        told = await asyncio.gather(
            *(node.announce([departure("p", "p went"), departure("q", "q went")]) for node in (one, other, one, other))
        )
        assert sorted(ids_of(entries) for entries in told) == [[], [], [], ["p went", "q went"]]
        assert ids_of(await everything(other)) == ["came", "p went", "q went"]
        assert await one.present() == []


@pytest.mark.parametrize("kind", SHARED)
async def test_the_subscribers_of_a_silent_node_are_handed_to_another_node(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind), 2, node_timeout=1.0) as (alive, silent):
        await alive.beat()
        await silent.beat()
        await silent.announce([arrival("p"), arrival("q")])
        await alive.announce([arrival("r")])
        assert await alive.beat() == (1, [])
        async with asyncio.timeout(HANG):
            while not (beat := await alive.beat()).orphans:
                await asyncio.sleep(0.05)
        assert {one.id: one.matchers for one in beat.orphans} == {
            "p": (("exact", "a", None),),
            "q": (("exact", "a", None),),
        }
        await alive.announce([departure(one.id, one.id) for one in beat.orphans])
        assert await alive.beat() == (1, [])
        assert [one.id for one in await silent.present()] == ["r"]
        # The silent node was only asleep.  It learns that none of its subscribers are
        # present, and announces them again.
        assert await silent.beat() == (0, [])
        await silent.announce([arrival("p")])
        assert await alive.beat() == (1, [])
        assert await silent.beat() == (1, [])


@pytest.mark.parametrize("kind", SHARED)
async def test_a_node_that_leaves_does_not_count_as_dead(kind: str, new_url: Callable[[str], str]) -> None:
    url = new_url(kind)
    async with nodes(url) as (node,):
        await node.announce([arrival("p")])
        await node.announce([departure("p")])
    async with nodes(url) as (other,):
        assert await other.beat() == (0, [])


# -- errors


@pytest.mark.parametrize("kind", SHARED)
async def test_t87_a_closed_history_reports_it(kind: str, new_url: Callable[[str], str]) -> None:
    node = node_of(new_url(kind))
    await node.append(named("a"))
    await node.aclose()
    for asked in (node.append(named("b")), node.read(EARLIEST), node.find("a"), node.check(), node.beat()):
        with pytest.raises(HistoryUnavailable):
            await asked
    await node.aclose()


def test_a_url_that_cannot_be_parsed_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        node_of("redis://user:hunter2\u2100@host")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["", "x", "sqlite:", "sqlite://host/a", "sqlite:///", "sqlite:///a/", "sqlite:///a?b=c", "postgres://a",
            "sqlite:a.db", "sqlite:/a.db", "sqlite:///a#b", "sqlite:///a?synchronous=", "sqlite:///a?synchronous=off",
            "sqlite:///a?synchronous=full&synchronous=full", "redis://h#1", "memory://a", "memory:///a", "redis://h:x/", "redis://h/x"],
)  # fmt: skip
def test_an_unknown_url_scheme_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="history_url"):
        node_of(url)


def test_a_file_may_be_below_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    for url, path in (("sqlite:///~/log.db", "/home/alice/log.db"), ("sqlite:////var/~/log.db", "/var/~/log.db")):
        history = node_of(url)
        assert isinstance(history, SqliteHistory)
        assert history.path == path


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_presence_survives_json(text: str) -> None:
    one = Present("a", (("exact", text, {text: [text, 1, None]}),))
    assert Present.from_json("a", one.to_json()) == one

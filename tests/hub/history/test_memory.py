"""The history in memory agrees with a list; its bounds are tiny, so that it forgets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hub.errors import ConfigurationError, PositionExpired
from hub.history import base
from hub.history.base import EARLIEST, Retention
from hub.history.memory import MemoryHistory
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from hub.history.base import Entry


Result = TypeVar("Result")


def run(coroutine: Coroutine[None, None, Result]) -> Result:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("it waits")


class AgainstNaive(RuleBasedStateMachine):
    @initialize(updates=st.integers(1, 5), size=st.sampled_from([1, 1_000, 100_000]))
    def begin(self, updates: int, size: int) -> None:
        self.bounds = updates, size
        self.log = MemoryHistory(Retention(max_updates=updates, max_bytes=size))
        self.kept: list[tuple[int, Update]] = []
        self.end = 0

    @rule(
        updates=st.lists(
            st.builds(
                lambda name, data: Update(("t",), data, id=name), st.sampled_from("abc"), st.text("x\n", max_size=200)
            ),
            max_size=7,  # more than the history may hold
        )
    )
    def append(self, updates: list[Update]) -> None:
        entries = run(self.log.append(updates))
        assert [(entry.position, entry.update) for entry in entries] == list(enumerate(updates, self.end + 1))
        self.kept += [(entry.position, entry.update) for entry in entries]
        self.end += len(updates)
        most, size = self.bounds
        while len(self.kept) > most or (len(self.kept) > 1 and sum(u.size for _, u in self.kept) > size):
            del self.kept[0]

    @rule(before=st.integers(0, 3), after=st.integers(0, 3))
    def fail_to_append(self, before: int, after: int) -> None:
        """An append fails as a whole if one update has a lone surrogate, and so no
        frame.
        """
        good = Update(("t",), id="a")
        with pytest.raises(UnicodeEncodeError):
            run(self.log.append([*[good] * before, Update(("t",), "\ud800", id="b"), *[good] * after]))

    @rule(id=st.sampled_from("abcd"))
    def find(self, id: str) -> None:
        expected = next((position for position, update in self.kept if update.id == id), None)  # N115
        assert run(self.log.find(id)) == expected

    @rule(back=st.integers(-2, 12))
    def read(self, back: int) -> None:
        after = max(0, self.end - back)
        if self.kept and after < self.kept[0][0] - 1:
            with pytest.raises(PositionExpired, match=f"position {after} is before {self.kept[0][0] - 1}"):
                run(self.log.read(after))
        else:
            self.compare(run(self.log.read(after)), after)

    @rule()
    def read_from_the_earliest(self) -> None:
        self.compare(run(self.log.read(EARLIEST)), 0)

    def compare(self, page: list[Entry], after: int) -> None:
        assert [(e.position, e.update) for e in page] == [(p, u) for p, u in self.kept if p > after]

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "log"):
            self.log._check()
            newest = run(self.log.newest())
            assert (newest.position if newest else 0) == self.end


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=40, deadline=None)


@pytest.mark.anyio
async def test_n112_t85_the_history_keeps_as_much_as_its_bounds_allow_and_no_more() -> None:
    size = Update(("t",), "x" * 100, id="i").size
    log = MemoryHistory(Retention(max_updates=4, max_bytes=10 * size))
    for batch in (3, 1, 1, 6, 4, 2):
        await log.append([Update(("t",), "x" * 100, id="i")] * batch)
        log._check()
        assert len(await log.read(EARLIEST)) == (3 if log._end == 3 else 4)
    assert [entry.position for entry in await log.read(EARLIEST)] == [14, 15, 16, 17]
    await log.append([Update(("t",), "x" * 9 * size, id="large")])
    assert [entry.position for entry in await log.read(EARLIEST)] == [18]  # the newest entry always stays
    await log.append([Update(("t",), id="small")])
    assert [entry.update.id for entry in await log.read(EARLIEST)] == ["small"]
    exact = MemoryHistory(Retention(max_updates=10, max_bytes=3 * size))
    await exact.append([Update(("t",), "x" * 100, id="i")] * 5)
    assert [entry.position for entry in await exact.read(EARLIEST)] == [3, 4, 5]


@pytest.mark.anyio
async def test_r43_an_update_with_many_topics_is_one_record() -> None:
    log = MemoryHistory(Retention(max_updates=3, max_bytes=10**6))
    await log.append([Update(("a", "b", "c", "a"), id="1"), Update(("a",), id="2"), Update(("b", "c"), id="3")])
    assert [(e.position, e.update.id, e.update.topics) for e in await log.read(EARLIEST)] == [
        (1, "1", ("a", "b", "c", "a")),
        (2, "2", ("a",)),
        (3, "3", ("b", "c")),
    ]


@pytest.mark.anyio
async def test_a_batch_wakes_a_follower_once() -> None:
    log = MemoryHistory(Retention(max_updates=100, max_bytes=10**6))
    pages = log.follow(0)
    first = asyncio.ensure_future(anext(pages))
    await asyncio.sleep(0)
    assert await log.append([]) == []
    await asyncio.sleep(0)
    assert not first.done()
    await log.append([Update(("t",), str(n)) for n in range(5)])
    assert [entry.update.data for entry in await asyncio.wait_for(first, 10)] == list("01234")


@pytest.mark.anyio
async def test_n115_n112_a_repeated_id_means_its_earliest_remaining_entry() -> None:
    log = MemoryHistory(Retention(max_updates=3, max_bytes=10**6))
    for id in "abab":
        await log.append([Update(("t",), id=id)])
    assert (await log.find("b"), await log.find("a")) == (2, 3)  # the first a is forgotten
    await log.append([Update(("t",), id="c")])
    assert (await log.find("b"), await log.find("x")) == (4, None)


@pytest.mark.anyio
async def test_pages_are_bounded_in_entries_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAGE_ENTRIES", 3)
    small = Update(("t",), "x", id="i")
    monkeypatch.setattr(base, "PAGE_BYTES", 4 * small.size)
    log = MemoryHistory(Retention(max_updates=100, max_bytes=100 * small.size))
    for size in (1, 1, 1, 1, 10, 1.5, 1.5):  # an x takes two bytes: one in the data, one in the frame
        await log.append([Update(("t",), "x" * int(size * small.size), id="i") if size != 1 else small])
    pages = []
    after = EARLIEST
    while page := await log.read(after):
        pages.append([entry.position for entry in page])
        after = page[-1].position
    assert pages == [[1, 2, 3], [4], [5], [6], [7]]


@pytest.mark.anyio
async def test_followers_get_every_entry_once_regardless_of_their_start() -> None:
    log = MemoryHistory(Retention(max_updates=1_000, max_bytes=10**6))

    async def follow(after: int) -> list[int]:
        positions: list[int] = []
        async for page in log.follow(after):
            positions += [entry.position for entry in page]
            if positions[-1] == 300:
                break
        return positions

    async def append() -> None:
        for n in range(100):
            await log.append([Update(("t",), str(n))])
            await log.append([Update(("t",), str(n)), Update(("t",), str(n))])
            if n % 7 == 0:
                await asyncio.sleep(0)

    *got, _ = await asyncio.gather(follow(0), follow(5), append())
    assert got == [list(range(1, 301)), list(range(6, 301))]


@pytest.mark.anyio
async def test_a_history_in_memory_creates_no_file_and_has_no_backup(tmp_path: Path) -> None:
    log = MemoryHistory(Retention(max_updates=1, max_bytes=1))
    assert log.would_create() is None
    with pytest.raises(ConfigurationError, match="backup is for a history in SQLite"):
        await log.backup(str(tmp_path / "copy"))
    assert list(tmp_path.iterdir()) == []

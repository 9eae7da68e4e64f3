"""The log in memory, against a list; tiny bounds, so that it forgets in every run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hub.errors import OffTheLog
from hub.subscriber import EARLIEST
from hub.transports import memory
from hub.transports.memory import MemoryTransport
from hub.updates import Update

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hub.transports.base import Entry


Result = TypeVar("Result")


def run(coroutine: Coroutine[None, None, Result]) -> Result:
    """What a coroutine returns that never waits."""
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
        self.log = MemoryTransport(max_updates=updates, max_bytes=size)
        self.kept: list[tuple[int, Update]] = []
        self.end = 0

    @rule(id=st.sampled_from("abc"), data=st.text("x\n", max_size=200))
    def append(self, id: str, data: str) -> None:
        update = Update(("t",), data, id=id)
        self.end += 1
        entry = run(self.log.append(update))
        assert (entry.position, entry.update) == (self.end, update)
        self.kept.append((self.end, update))
        updates, size = self.bounds
        while len(self.kept) > updates or (len(self.kept) > 1 and sum(u.size for _, u in self.kept) > size):
            del self.kept[0]

    @rule(id=st.sampled_from("abcd"))
    def find(self, id: str) -> None:
        expected = next((position for position, update in self.kept if update.id == id), None)  # N115
        assert run(self.log.find(id)) == expected

    @rule(after=st.integers(0, 12))
    def read(self, after: int) -> None:
        if self.kept and after < self.kept[0][0] - 1:
            with pytest.raises(OffTheLog, match=f"position {after} is before {self.kept[0][0]}"):
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
            assert run(self.log.end()) == self.end


TestAgainstNaive = AgainstNaive.TestCase


@pytest.mark.anyio
async def test_n115_an_id_that_was_used_twice_stands_for_its_earliest_entry() -> None:
    log = MemoryTransport(max_updates=3, max_bytes=10**6)
    for id in "abab":
        await log.append(Update(("t",), id=id))
    assert (await log.find("b"), await log.find("a")) == (2, 3)  # the first a is forgotten
    await log.append(Update(("t",), id="c"))
    assert (await log.find("b"), await log.find("x")) == (4, None)


@pytest.mark.anyio
async def test_pages_are_bounded_in_entries_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PAGE_ENTRIES", 3)
    small = Update(("t",), "x", id="i")
    monkeypatch.setattr(memory, "PAGE_BYTES", 4 * small.size)
    log = MemoryTransport(max_updates=100, max_bytes=100 * small.size)
    for size in (1, 1, 1, 1, 10, 1.5, 1.5):  # an x takes two bytes, one of them in the frame
        await log.append(Update(("t",), "x" * int(size * small.size), id="i") if size != 1 else small)
    pages = []
    after = EARLIEST
    while page := await log.read(after):
        pages.append([entry.position for entry in page])
        after = page[-1].position
    assert pages == [[1, 2, 3], [4], [5], [6], [7]]


@pytest.mark.anyio
async def test_followers_get_every_entry_once_whenever_they_begin() -> None:
    log = MemoryTransport(max_updates=1_000, max_bytes=10**6)

    async def follow(after: int) -> list[int]:
        positions: list[int] = []
        async for page in log.follow(after):
            positions += [entry.position for entry in page]
            if positions[-1] == 300:
                break
        return positions

    async def append() -> None:
        for n in range(300):
            await log.append(Update(("t",), str(n)))
            if n % 7 == 0:
                await asyncio.sleep(0)

    *got, _ = await asyncio.gather(follow(0), follow(5), append())
    assert got == [list(range(1, 301)), list(range(6, 301))]

"""Many readers share the pages that were read from a history."""

from __future__ import annotations

import asyncio

import pytest

from hub.errors import HistoryUnavailable
from hub.history import pages
from hub.history.base import EARLIEST, Page, Retention
from hub.history.memory import MemoryHistory
from hub.history.pages import Pages
from hub.protocol.updates import Update

pytestmark = pytest.mark.anyio


class Counting(MemoryHistory):
    def __init__(self) -> None:
        super().__init__(Retention(max_updates=1_000, max_bytes=2**30))
        self.reads: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails = False

    async def read(self, after: int) -> Page:
        self.reads.append(after)
        await self.open.wait()
        if self.fails:
            raise HistoryUnavailable("away")
        return await super().read(after)


async def filled(count: int, data: str = "") -> Counting:
    log = Counting()
    await log.append([Update(("t",), data, id=str(n)) for n in range(count)])
    return log


async def test_a_reader_of_a_page_that_is_being_fetched_waits_for_it() -> None:
    log = await filled(5)
    read = Pages(log)
    log.open.clear()
    asking = [asyncio.ensure_future(read.read(EARLIEST, 5)) for _ in range(10)]
    await asyncio.sleep(0)
    log.open.set()
    found = await asyncio.gather(*asking)
    assert log.reads == [EARLIEST]
    assert all(page == found[0] and len(page) == 5 for page in found)
    assert read._reading == {}


async def test_a_full_page_is_kept_after_trimming_and_still_reports_its_gap() -> None:
    log = await filled(100)
    log._retention = Retention(1_000, 2**30, presence_updates=1)
    for n in range(60):
        await log.append([Update(("t",), id=f"p{n}")], presence=True)
    pages = Pages(log)
    page = await pages.read(0, 160)
    assert (page[-1].position, page.full, page.forgotten) == (100, True, 159)
    assert await pages.read(0, 160) is page
    last = await pages.read(100, 161)
    assert ([entry.position for entry in last], last.full) == ([160], False)
    assert (await pages.read(100, 161)) is not last
    assert log.reads == [0, 100, 100]


async def test_if_the_fetching_reader_leaves_or_fails_the_others_fetch_the_page() -> None:
    log = await filled(5)
    for cancel in (True, False):
        read = Pages(log)
        log.open.clear()
        log.reads.clear()
        log.fails = not cancel
        first, *others = [asyncio.ensure_future(read.read(2, 5)) for _ in range(3)]
        await asyncio.sleep(0)
        if cancel:
            first.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        log.open.set()
        if cancel:
            assert [len(page) for page in await asyncio.gather(*others)] == [3, 3]
            assert first.cancelled()
            assert log.reads == [2, 2]
        else:
            failed = await asyncio.gather(first, *others, return_exceptions=True)
            assert [type(one) for one in failed] == [HistoryUnavailable] * 3
        assert read._reading == {}


async def test_pages_are_cached_except_the_first_one_which_may_change() -> None:
    log = await filled(300)
    read = Pages(log)
    for _ in range(3):
        for after in (EARLIEST, 0, 128, 256):
            assert await read.read(after, 300) == await MemoryHistory.read(log, after)
    assert sorted(log.reads) == [EARLIEST] * 3 + [0, 128, 256]


async def test_a_page_that_is_not_full_serves_readers_that_need_no_later_entry() -> None:
    log = await filled(300)
    read = Pages(log)
    page = await read.read(256, 300)
    await log.append([Update(("t",), id="new")])
    assert await read.read(256, 300) is page
    assert await read.read(256, 299) is page
    longer = await read.read(256, 301)
    assert (len(page), len(longer)) == (44, 45)
    assert await read.read(256, 300) is longer
    assert log.reads == [256, 256]


@pytest.mark.parametrize("after", [3, 5])
async def test_a_reader_that_needs_more_than_the_reader_that_it_waits_for_reads_itself(after: int) -> None:
    log = await filled(5)
    read = Pages(log)
    log.open.clear()
    real, snapshot = log._end, Page(await MemoryHistory.read(log, after))

    async def late(position: int) -> Page:
        log.reads.append(position)
        if len(log.reads) > 1:
            return await MemoryHistory.read(log, position)
        await log.open.wait()
        return snapshot  # as it was before the wait

    log.read = late  # type: ignore[method-assign, assignment]
    first = asyncio.ensure_future(read.read(after, real))
    await asyncio.sleep(0)
    await log.append([Update(("t",), id="new")])
    second = asyncio.ensure_future(read.read(after, 6))
    await asyncio.sleep(0)
    log.open.set()
    assert (await first) is snapshot
    assert (await second)[-1].position == 6
    assert log.reads == [after, after]


async def test_an_empty_page_is_not_kept() -> None:
    log = await filled(3)
    read = Pages(log)
    assert not await read.read(3, 3)
    await log.append([Update(("t",), id="new")])
    assert len(await read.read(3, 3)) == 1


async def test_the_cache_of_pages_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CACHE_BYTES", 400_000)
    log = await filled(512, "x" * 500)
    read = Pages(log)
    for after in (0, 128, 256, 0, 256):
        await read.read(after, 512)
    assert read._kept.currsize <= 400_000
    assert 1 < len(log.reads) <= 5
    large = await filled(128, "x" * 4_000)
    read = Pages(large)
    assert [len(await read.read(0, 128)) for _ in range(2)] == [128, 128]
    assert large.reads == [0, 0]

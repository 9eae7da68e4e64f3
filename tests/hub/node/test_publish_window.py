"""The publish window: which publishers wait, for how long and in which order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.delivery.audience import Audience
from hub.delivery.live import Live
from hub.errors import Closing, TooLarge
from hub.history.base import Entry
from hub.node.publish_window import PublishWindow
from hub.protocol.updates import Update

UPDATE = Update(("t",), id="i")


class Log:
    """A publish window on a list of updates that the test dispatches."""

    def __init__(self, *, updates: int, size: int) -> None:
        self.live = Live(Audience("https://hub.example/"), clock=lambda: 0.0)
        self.window = PublishWindow(self.live, max_updates=updates, max_bytes=size)
        self.entries: list[Entry] = []

    async def append(self, *updates: Update) -> None:
        async def append() -> list[Entry]:
            entries = [Entry(position, update) for position, update in enumerate(updates, len(self.entries) + 1)]
            self.entries += entries
            return entries

        await self.window.append(updates, append)

    @property
    def outstanding(self) -> list[Entry]:
        return self.entries[self.live.position :]

    def dispatch(self, position: int) -> None:
        self.live.move_to(position)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.mark.anyio
async def test_an_update_beyond_the_room_waits_for_dispatch() -> None:
    log = Log(updates=3, size=100 * UPDATE.size)
    await log.append(UPDATE, UPDATE)
    await log.append(UPDATE)
    waiting = asyncio.ensure_future(log.append(UPDATE))
    await log.settle()
    assert not waiting.done()
    log.dispatch(1)
    await asyncio.wait_for(waiting, 10)
    assert len(log.outstanding) == 3


@pytest.mark.anyio
async def test_the_bound_of_bytes_is_exact() -> None:
    log = Log(updates=100, size=3 * UPDATE.size)
    await log.append(UPDATE, UPDATE)
    await asyncio.wait_for(log.append(UPDATE), 10)
    waiting = asyncio.ensure_future(log.append(Update(("t",), id="")))  # smaller, but still too large
    await log.settle()
    assert not waiting.done()
    log.dispatch(1)
    await asyncio.wait_for(waiting, 10)


@pytest.mark.anyio
async def test_an_update_larger_than_the_room_goes_alone() -> None:
    log = Log(updates=100, size=3 * UPDATE.size)
    large = Update(("t",), "x" * 10 * UPDATE.size)
    log.window.check(1, large.size)
    await log.append(UPDATE)
    waiting = asyncio.ensure_future(log.append(large))
    await log.settle()
    assert not waiting.done()
    log.dispatch(1)
    await asyncio.wait_for(waiting, 10)
    after = asyncio.ensure_future(log.append(UPDATE))
    await log.settle()
    assert not after.done()
    log.dispatch(2)
    await asyncio.wait_for(after, 10)


@pytest.mark.parametrize(
    ("count", "size", "fits"),
    [(3, 300, True), (4, 300, False), (3, 301, False), (2, 301, False), (1, 301, True), (1, 10**9, True), (0, 0, True)],
)
def test_n56_a_batch_that_never_has_room_is_refused(count: int, size: int, fits: bool) -> None:
    window = Log(updates=3, size=300).window
    with contextlib.nullcontext() if fits else pytest.raises(TooLarge, match=f"{count} updates of about {size} bytes"):
        window.check(count, size)


@pytest.mark.anyio
async def test_publishers_take_turns_so_that_single_updates_do_not_starve_a_batch() -> None:
    log = Log(updates=4, size=100 * UPDATE.size)
    order: list[str] = []

    async def append(name: str, count: int) -> None:
        await log.append(*[UPDATE] * count)
        order.append(name)

    await append("first", 3)
    tasks = [asyncio.ensure_future(append(*one)) for one in (("batch", 4), ("small", 1), ("small too", 1))]
    await log.settle()
    assert order == ["first"]  # even if a small one would fit
    while len(log.outstanding):
        log.dispatch(log.live.position + 1)
        await log.settle()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert order == ["first", "batch", "small", "small too"]


@pytest.mark.anyio
async def test_returned_room_goes_to_a_waiting_publisher_at_once() -> None:
    log = Log(updates=2, size=100 * UPDATE.size)
    fails: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

    async def append() -> list[Entry]:
        return await fails

    failing = asyncio.ensure_future(log.window.append([UPDATE, UPDATE], append))
    await log.settle()
    waiting = asyncio.ensure_future(log.append(UPDATE, UPDATE))
    await log.settle()
    assert not waiting.done()
    fails.set_exception(OSError("the disk is full"))
    await asyncio.wait_for(waiting, 10)  # even if nothing is dispatched
    with pytest.raises(OSError, match="the disk is full"):
        await failing
    assert log.window._updates == 2
    assert log.window._bytes == 2 * UPDATE.size


@pytest.mark.anyio
async def test_publishers_that_wait_when_dispatch_has_ended_are_freed() -> None:
    log = Log(updates=1, size=100 * UPDATE.size)
    await log.append(UPDATE)
    waiting = [asyncio.ensure_future(log.append(UPDATE)) for _ in range(3)]
    await log.settle()
    log.window.close()
    await asyncio.wait(waiting, timeout=10)
    assert [type(task.exception()) for task in waiting] == [Closing] * 3


@pytest.mark.anyio
async def test_the_newest_position_is_the_highest_whatever_the_order_of_the_answers() -> None:
    log = Log(updates=9, size=100 * UPDATE.size)
    assert log.window.newest == 0
    first_may_end = asyncio.Event()

    async def slow() -> list[Entry]:
        await first_may_end.wait()
        return [Entry(1, UPDATE)]

    async def quick() -> list[Entry]:
        return [Entry(2, UPDATE)]

    first = asyncio.ensure_future(log.window.append([UPDATE], slow))
    await log.window.append([UPDATE], quick)
    first_may_end.set()
    await first
    assert log.window.newest == 2
    log.dispatch(5)
    assert log.window.newest == 5


@pytest.mark.anyio
async def test_a_cancelled_publisher_takes_no_room_and_blocks_no_other() -> None:
    log = Log(updates=2, size=100 * UPDATE.size)
    await log.append(UPDATE)
    waiting = [asyncio.ensure_future(log.append(*[UPDATE] * count)) for count in (2, 2, 1)]
    await log.settle()
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait_for(waiting[2], 10)
    assert len(log.outstanding) == log.window._updates == 2


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.sampled_from([1, 3 * UPDATE.size, 10**6]),
    st.lists(
        st.lists(st.sampled_from(["", "x" * UPDATE.size, "x" * 5 * UPDATE.size]), min_size=1, max_size=4).map(tuple)
        | st.sampled_from(["dispatch", "settle", "settle", "cancel"]),
        max_size=30,
    ),
)
def test_outstanding_updates_fit_or_are_alone_and_publishers_finish_in_order(
    updates: int, size: int, actions: list[tuple[str, ...] | str]
) -> None:
    async def run() -> None:
        log = Log(updates=updates, size=size)
        tasks: list[asyncio.Future[None]] = []
        expected: list[list[str]] = []

        async def append(batch: list[Update]) -> None:
            await log.append(*batch)
            expected.append([update.id for update in batch])

        for action in actions:
            if action == "dispatch":
                log.dispatch(min(len(log.entries), log.live.position + 1))
            elif action == "settle":
                await log.settle()
            elif action == "cancel":
                if tasks:
                    tasks[-1].cancel()
            else:
                batch = [Update(("t",), data, id=f"{len(tasks)}/{n}") for n, data in enumerate(action)]
                try:
                    log.window.check(len(batch), sum(update.size for update in batch))
                except TooLarge:
                    assert len(batch) > updates or len(batch) > 1
                else:
                    tasks.append(asyncio.ensure_future(append(batch)))
            outstanding = log.outstanding
            assert len(outstanding) <= updates
            assert len(outstanding) <= 1 or sum(entry.size for entry in outstanding) <= size
        for _ in range(200):
            if all(task.done() for task in tasks):
                break
            log.dispatch(len(log.entries))
            await log.settle()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in done)
        assert [entry.update.id for entry in log.entries] == [id for batch in expected for id in batch]
        assert expected == sorted(expected, key=lambda batch: int(batch[0].split("/")[0]))
        log.dispatch(len(log.entries))
        await log.append()
        assert (log.window._updates, log.window._bytes) == (0, 0)

    asyncio.run(run())

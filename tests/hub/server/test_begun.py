"""A coroutine that has begun without a task goes on in one as if it had begun there."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from hub.server.begun import Begun
from tests.waiting import HANG

pytestmark = pytest.mark.anyio


async def test_work_without_waiting_ends_at_once() -> None:
    async def work() -> int:
        return 7

    begun = Begun(work())
    assert (begun.has_ended, begun.result) == (True, 7)
    assert await begun == 7


async def test_an_error_of_the_first_part_is_raised_at_once() -> None:
    async def work() -> None:
        raise LookupError("now")

    with pytest.raises(LookupError, match="now"):
        Begun(work())


async def test_the_rest_runs_in_the_task_that_awaits_it() -> None:
    steps: list[Any] = []
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        steps.append(await first)
        await asyncio.sleep(0)
        async with asyncio.timeout(HANG):  # needs a task
            await asyncio.sleep(0.001)
        return "done"

    begun = Begun(work())
    assert not begun.has_ended
    task = asyncio.create_task(_rest(begun))
    await asyncio.sleep(0)
    first.set_result("first")
    assert (await task, steps, begun.has_ended) == ("done", ["first"], True)


async def test_a_future_may_be_ready_before_the_task_awaits_it() -> None:
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return await first

    begun = Begun(work())
    first.set_result("early")
    assert await asyncio.create_task(_rest(begun)) == "early"


@pytest.mark.parametrize("caught", [False, True])
async def test_a_cancellation_reaches_the_work(caught: bool) -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not caught:
                raise
        await asyncio.sleep(0)
        return "went on"

    task = asyncio.create_task(_rest(Begun(work())))
    await asyncio.sleep(0)
    task.cancel()
    if caught:
        assert await task == "went on"
    else:
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_error_of_what_it_waits_for_reaches_the_work() -> None:
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        with pytest.raises(ValueError, match="no"):
            await first
        raise LookupError("later")

    begun = Begun(work())
    first.set_exception(ValueError("no"))
    with pytest.raises(LookupError, match="later"):
        await begun


async def test_cancelled_work_is_freed_without_a_garbage_collection() -> None:
    class Large:
        """What only the work refers to."""

    freed = asyncio.Event()

    async def work() -> None:
        large = Large()
        weakref.finalize(large, freed.set)
        await asyncio.get_running_loop().create_future()

    gc.collect()
    gc.disable()
    try:
        task = asyncio.create_task(_rest(Begun(work())))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        assert freed.is_set()
    finally:
        gc.enable()


async def test_work_whose_task_never_ends_is_closed() -> None:
    closed: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    rest = Begun(work()).__await__()
    next(rest)
    rest.close()
    gc.collect()
    assert closed == [True]


async def _rest(begun: Begun[Any]) -> Any:
    return await begun

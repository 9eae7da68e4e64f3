"""Health: a process that does not follow the history is not ready."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.metrics.gauges import gauges
from hub.node.health import BEHIND_SECONDS, NOT_FOLLOWED
from tests.hub.world import SETTINGS, world
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hub.history.base import Entry
    from tests.hub.world import World

pytestmark = pytest.mark.anyio


class Hanging(MemoryHistory):
    """A history whose entries do not reach who follows it, until they are released."""

    def __init__(self) -> None:
        super().__init__(Retention(1_000, 10**6))
        self.released = asyncio.Event()

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        async for entries in super().follow(after):
            await self.released.wait()
            yield entries


async def checked(here: World, seconds: float) -> tuple[str | None, float]:
    here.now += seconds
    found: Any = await gauges(here.hub, None)
    assert found["hub_processes_ready", ""] == (await here.hub.health.check() is None)
    return await here.hub.health.check(), found["hub_follower_seconds_behind", ""]


async def test_a_process_that_does_not_follow_the_history_is_not_ready() -> None:
    log = Hanging()
    async with world(SETTINGS, log) as here:
        assert await checked(here, 100) == (None, 0)
        await here.publish("a")
        assert await checked(here, 2) == (None, 0)  # the check sees the end for the first time
        assert await checked(here, BEHIND_SECONDS - 1) == (None, BEHIND_SECONDS - 1)
        await here.publish("b")  # a later end does not hide that the earlier one waits
        assert await checked(here, 1) == (NOT_FOLLOWED, BEHIND_SECONDS)
        assert await here.hub.health.check(patient=True) is None
        assert await checked(here, 5) == (NOT_FOLLOWED, BEHIND_SECONDS + 5)
        log.released.set()
        await until(lambda: here.hub.delivery.position == 2)
        assert await checked(here, 5) == (None, 0)
        # Further ends are new goals.
        await here.publish("c")
        await until(lambda: here.hub.delivery.position == 3)
        for _ in range(3):
            assert await checked(here, BEHIND_SECONDS) == (None, 0)

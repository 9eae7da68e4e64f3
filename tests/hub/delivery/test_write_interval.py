"""Updates that are held back for a while, so that several share one write."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hub.delivery import follower
from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.protocol.updates import Update
from tests.hub.world import World, plain, world
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.hub.world import Client

pytestmark = pytest.mark.anyio


class Holding:
    """The times for which the follower waits; each ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[float] = []
        self._ended = asyncio.Event()
        own = SimpleNamespace(sleep=self._sleep, wait_for=self._wait_for, Event=asyncio.Event)
        monkeypatch.setattr(follower, "asyncio", own)

    async def _sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._ended.clear()
        await self._ended.wait()

    async def _wait_for(self, happens: Coroutine[Any, Any, Any], seconds: float) -> None:
        both = [asyncio.ensure_future(happens), asyncio.ensure_future(self._sleep(seconds))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not both[0].done():
                raise TimeoutError
        finally:
            for task in both:
                task.cancel()

    async def begun(self, count: int) -> None:
        """Wait until updates are held back for the `count`th time."""
        await until(lambda: len(self.asked) == count)

    def end(self) -> None:
        self._ended.set()


async def client_of(here: World) -> Client:
    client = await here.connect("a")
    await here.settle()
    client.writes.clear()
    return client


async def test_updates_that_come_soon_after_a_write_share_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    holding = Holding(monkeypatch)
    async with world(plain(write_interval=0.25)) as here:
        client = await client_of(here)
        await here.publish("a")
        await holding.begun(1)
        assert (client.ids, len(client.writes)) == (["1"], 1)  # the first one is not held back
        for _ in range(3):
            await here.publish("a")
        await here.settle()
        assert client.ids == ["1"]
        holding.end()
        await holding.begun(2)
        assert (client.ids, len(client.writes)) == (["1", "2", "3", "4"], 2)
        # After a pause without updates, the next one is not held back either.
        holding.end()
        await here.settle()
        await here.publish("a")
        await holding.begun(3)
        assert (client.ids[-1], len(client.writes)) == ("5", 3)
        assert holding.asked == [0.25] * 3


async def test_all_that_was_held_back_is_released_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    holding = Holding(monkeypatch)
    async with world(plain(write_interval=0.25)) as here:
        client = await client_of(here)
        await here.publish("a")
        await holding.begun(1)
        for _ in range(300):  # more than two pages of the history
            await here.publish("a")
        holding.end()
        await holding.begun(2)
        assert client.ids == [str(n) for n in range(1, 302)]
        assert len(client.writes) == 4


async def test_a_client_that_connects_while_updates_are_held_back_misses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holding = Holding(monkeypatch)
    async with world(plain(write_interval=0.25)) as here:
        await here.publish("a")
        await holding.begun(1)
        await here.publish("a")
        new, returning = await here.connect("a"), await here.connect("a", after="1")
        await here.publish("a")
        await here.settle()
        assert (new.ids, returning.ids) == ([], [])
        holding.end()
        await holding.begun(2)
        await here.caught_up()
        assert (new.ids, returning.ids) == (["3"], ["2", "3"])


async def test_nothing_is_held_back_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    holding = Holding(monkeypatch)
    async with world(plain()) as here:
        client = await client_of(here)
        for n in range(3):
            await here.publish("a")
            await until(lambda: len(client.ids) == n + 1)  # noqa: B023
        assert holding.asked == []


async def test_a_history_that_fails_while_updates_are_held_back_is_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holding = Holding(monkeypatch)
    log = MemoryHistory(Retention(1_000, 2**20))
    async with world(plain(write_interval=0.25), log) as here:
        client = await client_of(here)
        await here.publish("a")
        await holding.begun(1)
        await here.publish("a")

        async def fails() -> int:
            raise HistoryUnavailable("away")

        with monkeypatch.context() as failing:
            failing.setattr(log, "end", fails)
            holding.end()
            await holding.begun(2)  # until it is tried again
        holding.end()
        await holding.begun(3)
        assert client.ids == ["1", "2"]


async def test_at_a_shutdown_all_that_is_held_back_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    holding = Holding(monkeypatch)
    async with world(plain(write_interval=0.25, drain=1_000)) as here:
        client = await client_of(here)
        await here.publish("a")
        await holding.begun(1)
        await here.publish("a")
        here.hub.shutdown.begin()
        await until(lambda: client.ids == ["1", "2"])
        assert not client.ended
        await here.hub.history.append([Update(("a",), id="3")])  # by another node
        await until(lambda: client.ids == ["1", "2", "3"])


def test_a_history_that_is_too_small_for_what_may_be_held_back_is_refused() -> None:
    told = "`write_interval` needs `history_updates` of at least 10000"
    with pytest.raises(ConfigurationError, match=told):
        plain(write_interval=0.25, history_updates=9_999)
    plain(write_interval=0.25, history_updates=10_000)
    plain(history_updates=1)

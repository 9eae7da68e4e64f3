"""Load the state, then follow: a page ends with the state of the application, however
its steps, those of the application and what the history forgets interleave.

python -m tests.hub.test_state 10000
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from hub import Settings, create_app
from hub.protocol.events import Blocks, parse_block, signal_in
from tests.asgi import PATH, ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hub.http.embedding import HubApplication

pytestmark = pytest.mark.anyio

KEYS = "abc"


class World:
    """An application with a state, whose nodes have one history."""

    def __init__(self, nodes: list[HubApplication], chance: random.Random) -> None:
        self.nodes = nodes
        self.chance = chance
        self.state = dict.fromkeys(KEYS, 0)
        """The version of each value."""
        self.unpublished: list[tuple[str, int]] = []
        self.page = Page(self)
        self.gaps = 0

    @property
    def node(self) -> HubApplication:
        return self.chance.choice(self.nodes)

    async def step(self) -> None:
        """Do something at random."""
        match self.chance.randrange(8):
            case 0 | 1:  # a view writes a value, and publishes it later
                key = self.chance.choice(KEYS)
                self.state[key] += 1
                self.unpublished.append((key, self.state[key]))
            case 2 | 3:  # views do not publish in the order of their writes
                await self.publish()
            case 4:
                for _ in range(self.chance.randrange(4)):
                    await self.node.publish("others", private=self.chance.random() < 0.5)
            case _:
                await self.page.step()

    async def publish(self) -> None:
        if self.unpublished:
            key, version = self.unpublished.pop(self.chance.randrange(len(self.unpublished)))
            await self.node.publish("state", data={"key": key, "version": version})

    async def settle(self) -> None:
        """Let the application publish everything, and the page read it."""
        while self.unpublished:
            await self.publish()
            if self.chance.random() < 0.5:
                await self.page.step()
        self.page.is_cut = False
        for _ in range(8):  # a gap makes it load the state again
            await self.page.step()
        assert self.page.seen == self.state


class Page:
    """What a page does, one request at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seen: dict[str, int] = {}
        self.is_cut = True
        """Whether its streams may break at any event."""
        self._cursor: str | None = None
        self._next: Callable[[], Any] = self.ask_for_the_position

    async def step(self) -> None:
        await self._next()

    async def ask_for_the_position(self) -> None:
        self._cursor = await self._world.node.position()
        self._next = self.load

    async def load(self) -> None:
        self.seen = dict(self._world.state)
        self._next = self.follow

    async def follow(self) -> None:
        """Take what a stream brings before it breaks."""
        assert self._cursor is not None
        query = urlencode({"match": "state", "signals": 1, "last_event_id": self._cursor})
        answer = await ask(self._world.node, "GET", f"{PATH}?{query}", [("prefer", "wait=0")])
        blocks = [*map(parse_block, Blocks().feed(answer.body))]
        for block in blocks[: self._world.chance.randrange(len(blocks)) + 1 if self.is_cut else None]:
            assert block.id
            self._cursor = block.id
            signal = signal_in(block)
            if signal is None:
                assert block.data is not None
                update = json.loads(block.data)
                self.seen[update["key"]] = max(self.seen[update["key"]], update["version"])
            elif signal["type"] == "gap" and signal["lost"] != "nothing":
                self._world.gaps += 1
                self._next = self.ask_for_the_position
                return


async def interleave(url: str, count: int, seed: int, *, nodes: int = 1) -> int:
    """Try so many interleavings, and return how many gaps were reported."""
    chance, gaps = random.Random(seed), 0
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(nodes):
            settings = Settings(
                dev=True, retry=0, max_lifetime=0, subscriptions=False, history_url=url, history_updates=6
            )
            made.append(create_app(settings))
            await stack.enter_async_context(made[-1].running())
        for _ in range(count):
            world = World(made, chance)
            for _ in range(chance.randrange(60)):
                await world.step()
            await world.settle()
            gaps += world.gaps
    return gaps


async def test_r92_r95_a_page_ends_with_the_state_of_the_application() -> None:
    assert await interleave("memory://", 150, time.time_ns()) > 0


async def test_r95_the_same_on_two_nodes(tmp_path: Path) -> None:
    assert await interleave(f"sqlite:///{tmp_path}/log.db?synchronous=normal", 15, time.time_ns(), nodes=2) > 0


def main(count: int) -> None:
    began = time.monotonic()
    gaps = asyncio.run(interleave("memory://", count, 1))
    print(f"{count:,} interleavings with {gaps:,} gaps: each page has the state ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main(int(sys.argv[1]))

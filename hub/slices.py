"""Slices: how much of the event loop the work for readers takes at a time.

    readers   ▇▇▇▇▇ 1 ms                         ▇▇▇▇▇ 1 ms
    others               turn  turn  turn  turn              turn  turn …

Matching old updates and compiling patterns take as long as a client asks for.  All tasks that do such work share one
slice.  When the slice is used up, all of them pause until every other task has had its turn a few times, and the task
that used it up goes to the end of their queue.  So another client waits for one slice, however many clients read.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE_SECONDS: Final = 0.001
"""Seconds of work between two pauses."""
TURNS: Final = 4
"""Turns of the event loop that a pause lasts: a publish needs about so many from its request to its answer."""


class Slices:
    """The slice that all readers of one hub share.

    Work is done inside `async with`, where nothing else may be awaited than `pause`:

        async with slices:
            for one in work:
                do(one)
                if slices.is_over():
                    await slices.pause()
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left = SLICE_SECONDS
        """Seconds of the slice that were not used when the running task began."""
        self._began = 0.0
        """When the running task began to use it."""
        self._paused: asyncio.Event | None = None
        """Set when the present pause ends; None if there is none."""

    async def __aenter__(self) -> None:
        await self._begin()

    async def __aexit__(self, *_: object) -> None:
        self._left -= self._clock() - self._began

    def is_over(self) -> bool:
        """Return whether the slice is used up."""
        return self._clock() - self._began >= self._left

    async def pause(self) -> None:
        """Wait until the other tasks have had their turns, and those that wait for the slice have used theirs."""
        self._paused = ended = asyncio.Event()
        try:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        finally:
            self._paused, self._left = None, SLICE_SECONDS
            ended.set()
        await asyncio.sleep(0)  # so the tasks that waited go first
        await self._begin()

    async def _begin(self) -> None:
        while self._paused is not None:
            await self._paused.wait()
        self._began = self._clock()

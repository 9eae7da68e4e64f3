"""Slices: how long work for readers may hold the event loop.

    readers   ▇▇▇▇▇ 1 ms                         ▇▇▇▇▇ 1 ms
    others               turn  turn  turn  turn              turn  turn …

A client decides how long matching old updates and compiling patterns takes.  All tasks
that do such work share one slice.  When it is used up, all of them pause until every
other task has had a few turns, and the task that used it up goes to the end of their
queue.  So other clients wait for one slice, however many clients read.
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
"""Turns of the event loop that a pause lasts; about what a publish needs."""


class Slices:
    """The slice that all readers of one hub share.

    Work is done inside of `async with`, and may await nothing but `pause`:

        async with slices:
            for one in work:
                do(one)
                if slices.is_over():
                    await slices.pause()
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left = SLICE_SECONDS
        """Seconds of the slice that remained when the running task began."""
        self._began = 0.0
        """When the running task began."""
        self._paused: asyncio.Event | None = None
        """Set when the present pause ends; None if there is no pause."""

    async def __aenter__(self) -> None:
        await self._begin()

    async def __aexit__(self, *_: object) -> None:
        self._left -= self._clock() - self._began

    def is_over(self) -> bool:
        """Return whether the slice is used up."""
        return self._clock() - self._began >= self._left

    async def pause(self) -> None:
        """Wait until other tasks have had their turns, and waiting readers their
        slices.
        """
        self._paused = ended = asyncio.Event()
        try:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        finally:
            self._paused, self._left = None, SLICE_SECONDS
            ended.set()
        await asyncio.sleep(0)  # the readers that waited go first
        await self._begin()

    async def _begin(self) -> None:
        while self._paused is not None:
            await self._paused.wait()
        self._began = self._clock()

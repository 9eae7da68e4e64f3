"""Slices: limits how long work for readers holds the event loop.

    readers   ▇▇▇▇▇ 1 ms                         ▇▇▇▇▇ 1 ms
    others               turn  turn  turn  turn              turn  turn …

Some work takes as long as a client wants: matching old updates, and compiling patterns.
All tasks that do such work, the readers, share one slice of time.

1. If the slice is used up, all readers pause, and every other task gets a few turns of
   the event loop.
2. Then a new slice begins.  The readers that waited come first, and the one that used
   up the last slice comes after them.

So any other task waits for about one slice, however many clients read.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE_SECONDS: Final = 0.001
"""Seconds that all readers together may work between two pauses."""
TURNS: Final = 4
"""Turns of the event loop in a pause: about what a publish needs."""


class Slices:
    """The slice that all readers of one hub share.

    A reader works inside of `async with`, which waits for the end of a pause.  There,
    it must await nothing but `pause`, because the clock runs:

        async with slices:
            for one in work:
                do(one)
                if slices.is_over():
                    await slices.pause()

    `clock` returns seconds.  Must be used from one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left = SLICE_SECONDS  # seconds that were left when the present reader began
        self._began = 0.0  # when it began
        self._paused: asyncio.Event | None = None  # set at the end of the pause; None without one

    async def __aenter__(self) -> None:
        await self._begin()

    async def __aexit__(self, *_: object) -> None:
        self._left -= self._clock() - self._began

    def is_over(self) -> bool:
        """Return whether the slice is used up, so that the reader must pause."""
        return self._clock() - self._began >= self._left

    async def pause(self) -> None:
        """Wait until the other tasks have had their turns, and begin a new slice.

        Readers that wait meanwhile go first.  Call it only inside of `async with`.  If
        it is cancelled, the pause ends, and the other readers go on.
        """
        # 1. Other readers now wait in `_begin`, so these turns go to other tasks.
        self._paused = ended = asyncio.Event()
        try:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        finally:
            self._paused, self._left = None, SLICE_SECONDS
            ended.set()
        # 2. Let the readers that waited go first.  They may use up the new slice, and
        #    then this reader waits for the next one.
        await asyncio.sleep(0)
        await self._begin()

    async def _begin(self) -> None:
        """Wait until there is no pause, and start the clock of this reader."""
        while self._paused is not None:
            await self._paused.wait()
        self._began = self._clock()

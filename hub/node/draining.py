"""Draining: ends streams in random order, evenly over a time.

So their clients do not all come back at once.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from hub.delivery.seat import Ending, Seat

DRAIN_STEP: Final = 0.02
"""Seconds between two checks of how many streams should have ended."""


async def drain(
    seats: Iterable[Seat], reason: Ending, seconds: float, *, clock: Callable[[], float], random: Random
) -> int:
    """End the streams of these seats over `seconds`, and return how many there were.

    Those that end meanwhile by themselves do not count.  `clock` returns monotonic
    seconds.
    """
    shuffled = list(seats)
    random.shuffle(shuffled)
    began, closed, ended = clock(), 0, 0
    # Every DRAIN_STEP, end as many streams as should have ended by now.
    while closed < len(shuffled):
        await asyncio.sleep(DRAIN_STEP)
        passed = clock() - began
        due = math.ceil(len(shuffled) * passed / seconds) if passed < seconds else len(shuffled)
        ended += sum(seat.close(reason) for seat in shuffled[closed:due])
        closed = due
    return ended

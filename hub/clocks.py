"""Clocks: one that goes on in a suspended machine, and the dates of entries."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("hub")

STEP_SECONDS: Final = 60.0
"""A system clock that gains or loses more than this, beside `since_boot`, was set."""
MAX_STEPS: Final = 16
"""Steps of the clock that are remembered."""

since_boot: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Returns seconds of a clock that nobody sets.

On Linux it goes on while the machine is suspended; the monotonic clock does not.
"""


class Dates:
    """The dates of entries, by the system clock, and their ages, by another one.

    If the system clock is set, new entries get new dates, but no entry becomes older.

        system clock   10:00 10:01 │ 12:02 12:03     set forward by two hours
        entries          a     b   │   c     d       at 12:03, a is three minutes old

    All times are in ms since 1970.  After a step backward, older entries are kept
    longer, by the length of the step.  A process knows the steps since its own start.
    `clock` returns seconds since 1970, and is never set; without it, the clocks are
    those of the system.  Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._system = clock or time.time
        self._steady = clock or since_boot
        self._compared = self._system()  # when the two clocks were compared
        self._between = self._compared - self._steady()
        # Steps forward: the first date after the step, and its length.
        self._steps: deque[tuple[int, int]] = deque(maxlen=MAX_STEPS)

    def now(self) -> int:
        """Return the date of a new entry."""
        system = self._system()
        now = int(system * 1_000)
        if not 0 <= system - self._compared < 1:  # no step hides in one second
            self._compared = system
            step = system - self._steady() - self._between
            if not -STEP_SECONDS <= step <= STEP_SECONDS:
                self._note(now, step)
        return now

    def past(self, age: float) -> float:
        """Return the date before which entries are older than `age` ms."""
        date = self.now() - age
        for after, length in reversed(self._steps):
            if date > after:
                break
            date -= length
        return date

    def _note(self, now: int, seconds: float) -> None:
        log.warning("the system clock was set", seconds=round(seconds))
        self._between += seconds
        length = int(seconds * 1_000)
        if length > 0:
            self._steps.append((now, length))
        elif self._steps and abs(self._steps[-1][1] + length) <= STEP_SECONDS * 1_000:
            self._steps.pop()  # it was set back

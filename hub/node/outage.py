"""Outage: what subscribers are told while the hub cannot serve them.

A subscriber that gets a 503 seldom comes back: EventSource and most libraries end a
subscription for good.  After the end of a stream, they reconnect, with their cursor.
So for a fault of the hub (its history, its keys, a shutdown, the limit or the rate of
all clients), a subscriber gets a stream that ends at once, with a hint when to come
back:

    the fault lasts    the hint, before it is multiplied by a random factor
    0 s                `retry`, or DEFAULT_RETRY if that is 0
    t s                t / 4
    longer             LONGEST_RETRY

Belongs here: since when there is a fault, and its log lines.  Does not belong here:
which errors are faults of the hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hub.errors import RequestError

log = structlog.stdlib.get_logger("hub")

DEFAULT_RETRY: Final = 3.0
"""Seconds that browsers wait without a hint, more or less."""
LONGEST_RETRY: Final = 60.0
"""The longest hint in seconds, before the random factor."""
QUIET_SECONDS: Final = 2 * LONGEST_RETRY
"""Without a refused subscriber for so long, a fault is over: all have come back."""
LOG_SECONDS: Final = 1.0
"""Seconds between two lines about streams that end at once."""


class Outage:
    """Since when a hub cannot serve subscribers.

    `retry` is the setting of this name, and `clock` returns monotonic seconds.
    """

    def __init__(self, retry: float, *, clock: Callable[[], float], random: Random) -> None:
        self._retry = retry
        self._clock = clock
        self._random = random
        self._began = self._last = self._logged = float("-inf")  # times, by the clock
        self._unlogged = 0  # streams that ended since the last line

    def hint(self) -> float:
        """Return a random hint for a stream that ends at once, in seconds."""
        now = self._clock()
        if now > self._last + QUIET_SECONDS:
            self._began = now
        self._last = now
        least = self._retry or DEFAULT_RETRY
        return max(least, min(LONGEST_RETRY, (now - self._began) / 4)) * self._factor()

    def usual_hint(self) -> float | None:
        """Return the hint of a stream that goes on; None for none.

        A client keeps the last hint that it got.  So after a fault, each stream begins
        with a hint, even if `retry` is 0, until all clients have come back.
        """
        if self._retry:
            return self._retry * self._factor()
        return DEFAULT_RETRY * self._factor() if self._clock() <= self._last + QUIET_SECONDS else None

    def _factor(self) -> float:
        return self._random.uniform(0.5, 1.5)

    def report(self, error: RequestError) -> None:
        """Log that a stream ended at once, with at most one line a second."""
        self._unlogged += 1
        if (now := self._clock()) >= self._logged + LOG_SECONDS:
            count, self._unlogged, self._logged = self._unlogged, 0, now
            reason = error.reason or str(error)
            log.warning("streams ended before they began", title=error.title, reason=reason, streams=count)

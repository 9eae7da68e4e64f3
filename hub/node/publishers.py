"""Publishers: those that publish at the same time take turns.

    alice   a1  a2  a3 … a64  ─┐
    bob     b1                ─┴─►  a1  b1  a2  a3 …

While several publishers are active, one request of each is parsed and checked in a turn
of the event loop.  So a publisher waits for its own requests, and not for those of
another, however many connections the other has.  The turns cost the other a tenth of
its throughput.  A publisher that is alone does not wait.

Belongs here: the order of publishers.  Does not belong here: the number of their
updates, which `shares` limits, and room in the history (`publish_window`).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

ALONE_SECONDS: Final = 1.0
"""A publisher is alone if no other one has published for this time."""


class Publishers:
    """The turns of all publishers.  `clock` returns monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: str | None = None  # the publisher that came last
        self._alone_at = -math.inf  # when it is alone, if no other comes
        # The turn of each publisher that has one or waits for one.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, publisher: str) -> asyncio.Lock | None:
        """Return what a request of `publisher` must acquire before it is parsed.

        It must be passed to `end` after that.  None if the publisher is alone.
        """
        now = self._clock()
        if publisher != self._last:
            if self._last is not None:
                self._alone_at = now + ALONE_SECONDS
            self._last = publisher
        if now >= self._alone_at:
            return None
        turn = self._turns.get(publisher)
        if turn is None:
            turn = self._turns[publisher] = asyncio.Lock()
        return turn

    def end(self, turn: asyncio.Lock) -> None:
        """Release the turn of a request, after a turn of the event loop."""
        asyncio.get_running_loop().call_soon(turn.release)

"""Publishers: those that publish at the same time take turns.

    alice   a1  a2  a3 … a64  ─┐
    bob     b1                ─┴─►  a1  b1  a2  a3 …

While several publishers are active, one request of each is parsed and checked at a
time.  So a publisher waits for its own requests, and not for those of another, however
many connections the other has.  A publisher that is alone does not wait.

Belongs here: the order of publishers.  Does not belong here: the number of their
updates, which `shares` limits, and room in the history (`publish_window`).
"""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

ALONE_SECONDS: Final = 1.0
"""A publisher is alone if no other one has published for this time."""

_AT_ONCE: Final = nullcontext()


class _Turn(asyncio.Lock):
    """A lock that is held until the event loop has had a turn."""

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().call_soon(self.release)


class Publishers:
    """The turns of all publishers.  `clock` returns monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = ""  # the publisher that came last
        self._alone_at = -math.inf  # when it is alone, if no other comes
        # The turn of each publisher that has one or waits for one.
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    def turn(self, publisher: str) -> AbstractAsyncContextManager[None]:
        """Return the context in which `publisher` has a turn."""
        now = self._clock()
        if publisher != self._last:
            self._last = publisher
            self._alone_at = now + ALONE_SECONDS
        if now >= self._alone_at:
            return _AT_ONCE
        turn = self._turns.get(publisher)
        if turn is None:
            turn = self._turns[publisher] = _Turn()
        return turn

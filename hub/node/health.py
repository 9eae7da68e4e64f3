"""Health: whether new clients should use this node, and whether it works (R51).

    ready   check()               fails if the history fails, if it is not followed for
                                  BEHIND_SECONDS, or during a shutdown
    alive   check(patient=True)   fails if the history fails for PATIENCE_SECONDS

A check of the history writes to it, and its result is cached for a moment.  The history
is followed if this process has read it up to the end that an earlier check has seen.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

from hub.delivery.seat import Ending
from hub.errors import HistoryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.history.base import History
    from hub.node.shutdown import Shutdown

log = structlog.stdlib.get_logger("hub")

CHECK_TIMEOUT: Final = 3.0
"""The maximum seconds that a check of the history takes."""
HEALTH_CACHE_SECONDS: Final = 1.0
"""How long a result is cached.

The endpoint is public, and every check of the history writes to it.
"""
PATIENCE_SECONDS: Final = 60.0
"""How long the history may fail before a patient check fails too."""
NOT_FOLLOWED: Final = "the history has updates that this process does not dispatch"
BEHIND_SECONDS: Final = 30.0
"""How long an end of the history may wait to be followed before a check fails."""


class Health:
    """The health of one hub: the result of the last check of its history.

    `position` returns the position up to which it was followed.  `clock` returns
    monotonic seconds.
    """

    def __init__(
        self, history: History, shutdown: Shutdown, *, position: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        self._history = history
        self._shutdown = shutdown
        self._clock = clock
        # The time of the first failed check since the last success; None if the last
        # check succeeded.
        self._failing_since: float | None = None
        self._checked = -math.inf  # the time of the last check
        self._position = position
        # An end of the history that a check has seen, and when.
        self._goal = (0, -math.inf)
        self.behind = 0.0
        """How long an end of the history has waited to be followed, in seconds, as far
        as checks have seen."""

    async def check(self, *, patient: bool = False) -> str | None:
        """Return why the hub is not healthy, or None if it is.

        A patient check ignores a shutdown, a history that is not followed, and failures
        of the history that have lasted for less than PATIENCE_SECONDS.

        If the last check is less than HEALTH_CACHE_SECONDS ago, returns its result
        without a new one.  If it has not finished yet, returns the result before it.
        """
        if self._shutdown.is_closing and not patient:
            return Ending.SHUTDOWN
        now = self._clock()
        if now >= self._checked + HEALTH_CACHE_SECONDS:
            # If the last check is too long ago, the history may have worked since then:
            # count failures from now on.
            if now > self._checked + PATIENCE_SECONDS:
                self._failing_since = None
            self._checked = now
            try:
                async with asyncio.timeout(CHECK_TIMEOUT):
                    await self._history.check()
                    self._look_behind(await self._history.end(), now)
                self._failing_since = None
            except Exception as error:
                reason = error.reason if isinstance(error, HistoryUnavailable) else repr(error)
                log.warning("the check of the history failed", reason=reason)
                self._failing_since = now if self._failing_since is None else self._failing_since
                self._goal, self.behind = (0, now), 0.0  # what is not read meanwhile is no fault of this process
        if self._failing_since is None or (patient and now - self._failing_since < PATIENCE_SECONDS):
            return NOT_FOLLOWED if self.behind >= BEHIND_SECONDS and not patient else None
        return "the history cannot be reached or written"

    def _look_behind(self, end: int, now: float) -> None:
        """Note how long the end that an earlier check has seen waits to be followed."""
        goal, since = self._goal
        if self._position() >= goal:
            self._goal, self.behind = (end, now), 0.0
            return
        self.behind = now - since
        if self.behind >= BEHIND_SECONDS:
            log.error("the history is not followed", seconds=round(self.behind), end=goal, position=self._position())

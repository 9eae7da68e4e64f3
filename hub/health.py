"""Health: whether new clients should use this node, and whether it works at all
(R51).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

from hub.errors import HistoryUnavailable
from hub.shutdown import SHUTTING_DOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.history.base import History
    from hub.shutdown import Shutdown

log = structlog.stdlib.get_logger("hub")

CHECK_TIMEOUT: Final = 3.0
"""Seconds that a check of the history may take."""
CACHED: Final = 1.0
"""Seconds for which a result is cached.

The endpoint is public, and every check writes to the history.
"""
PATIENCE: Final = 60.0
"""Seconds for which the history may fail before a patient check fails too."""


class Health:
    """The state of one hub's history, as it was checked last."""

    def __init__(self, history: History, shutdown: Shutdown, *, clock: Callable[[], float]) -> None:
        self._history = history
        self._shutdown = shutdown
        self._clock = clock
        self._failing_since: float | None = None
        """When the first of the latest failed checks was made; None if the last
        succeeded."""
        self._checked = -math.inf
        """When the last check was made."""

    async def check(self, *, patient: bool = False) -> str | None:
        """Return what keeps the hub from working; None if nothing does.

        A patient check ignores a failure that has not lasted for long, and a shutdown.
        """
        if self._shutdown.is_closing and not patient:
            return SHUTTING_DOWN
        now = self._clock()
        if now >= self._checked + CACHED:
            if now > self._checked + PATIENCE:  # too long ago to know whether it has failed since
                self._failing_since = None
            self._checked = now
            try:
                async with asyncio.timeout(CHECK_TIMEOUT):
                    await self._history.check()
                self._failing_since = None
            except Exception as error:
                reason = error.reason if isinstance(error, HistoryUnavailable) else repr(error)
                log.warning("the history does not work", reason=reason)
                self._failing_since = now if self._failing_since is None else self._failing_since
        if self._failing_since is None or (patient and now - self._failing_since < PATIENCE):
            return None
        return "the history cannot be reached or written"

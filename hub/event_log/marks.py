"""Marks: lines that say what is missing from the event log; and the names of epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hub.event_log.segments import own_position
from hub.history import base

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.history.base import History


class Marks:
    """The marks of one node.  `now()` returns µs since 1970."""

    def __init__(self, url: str, node: str, history: History, now: Callable[[], int]) -> None:
        self.url = url
        self._node = node
        self._history = history
        self._now = now
        self._epochs: dict[int, str] = {}
        """The names of epochs, by the leap of their positions."""

    async def gap(self, moment: int, position: int, cause: str, *, updates: bool) -> dict[str, Any]:
        """Return a mark: deliveries after a position, or also updates, may be
        missing.
        """
        line = {
            "event": "gap",
            "node": self._node,
            "time": moment,
            "after": own_position(position),
            "until": None,
        }
        line |= {"hub": self.url, "epoch": await self.epoch(position)}
        return line | {"updates": updates, "found": self._now(), "cause": cause}

    async def epoch(self, position: int) -> str | None:
        """Return the name of a position's epoch; None if the epoch ended unnoticed."""
        leap = position // base.EPOCH
        if leap not in self._epochs:
            current, name = await base.current_epoch(self._history)
            self._epochs[current] = name
        return self._epochs.get(leap)

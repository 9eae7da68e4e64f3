"""Wheel: what is due when, for thousands of connections and one timer.

    slot       1041        1042    1043   …      one slot a tick; nothing is kept sorted
    items      {a, d}      {}      {b}

Setting and taking out cost O(1); a turn costs what is due.  Source: G. Varghese and T. Lauck, Hashed and
Hierarchical Timing Wheels, 1987 (the simple scheme, with a dictionary for the ring).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")


class Wheel(Generic[Item]):
    """Items with a time each, in seconds of the caller's clock; `tick` seconds is as exact as it gets.

    All its mutable state: the slot of each item, the items of each slot, and the last slot turned to.
    """

    def __init__(self, *, now: float, tick: float) -> None:
        self._tick = tick
        self._turned = math.floor(now / tick)
        self._slots: dict[Item, int] = {}
        self._items: dict[int, set[Item]] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def set(self, item: Item, at: float) -> None:
        """Make `item` due at `at`, and no longer at another time; it is never due early."""
        self.discard(item)
        if at == math.inf:
            return
        slot = max(math.ceil(at / self._tick), self._turned + 1)
        self._slots[item] = slot
        self._items.setdefault(slot, set()).add(item)

    def discard(self, item: Item) -> None:
        slot = self._slots.pop(item, None)
        if slot is not None:
            self._items[slot].discard(item)
            if not self._items[slot]:
                del self._items[slot]

    def turn(self, now: float) -> list[Item]:
        """Take out and return what is due by `now`."""
        due: list[Item] = []
        reached = math.floor(now / self._tick)
        passed: Sequence[int] = range(self._turned + 1, reached + 1)
        if len(passed) > len(self._items):  # after a long sleep there are more slots than anything is in
            passed = sorted(slot for slot in self._items if slot <= reached)
        for slot in passed:
            due.extend(self._items.pop(slot, ()))
        self._turned = max(self._turned, reached)
        for item in due:
            del self._slots[item]
        return due

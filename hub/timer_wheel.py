"""Wheel: due times of thousands of connections with one timer.

    slot       1041        1042    1043   …    one slot for each tick; nothing is sorted
    items      {a, d}      {}      {b}

Setting and discarding cost O(1); a turn costs O(items due).

Source: G. Varghese and T. Lauck, Hashed and Hierarchical Timing Wheels, 1987 (the
simple scheme, with a dictionary for the ring).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")


class Wheel(Generic[Item]):
    """Items with one due time each, in seconds of the caller's clock, rounded up to
    `tick`.
    """

    def __init__(self, *, now: float, tick: float) -> None:
        self._tick = tick
        self._turned = math.floor(now / tick)  # the last slot that was turned to
        self._slots: dict[Item, int] = {}  # item -> slot
        self._items: dict[int, set[Item]] = {}  # slot -> items; never empty

    def __len__(self) -> int:
        return len(self._slots)

    def set(self, item: Item, at: float) -> None:
        """Make `item` due at `at` only.

        It is never due early; infinity means never.
        """
        self.discard(item)
        if at == math.inf:
            return
        slot = max(math.ceil(at / self._tick), self._turned + 1)
        self._slots[item] = slot
        self._items.setdefault(slot, set()).add(item)

    def discard(self, item: Item) -> None:
        """Make `item` due at no time."""
        slot = self._slots.pop(item, None)
        if slot is not None:
            self._items[slot].discard(item)
            if not self._items[slot]:
                del self._items[slot]

    def turn(self, now: float) -> list[Item]:
        """Remove and return the items that are due by `now`."""
        due: list[Item] = []
        reached = math.floor(now / self._tick)
        passed: Sequence[int] = range(self._turned + 1, reached + 1)
        # After a long sleep, there are more slots than used ones.
        if len(passed) > len(self._items):
            passed = sorted(slot for slot in self._items if slot <= reached)
        for slot in passed:
            due.extend(self._items.pop(slot, ()))
        self._turned = max(self._turned, reached)
        for item in due:
            del self._slots[item]
        return due

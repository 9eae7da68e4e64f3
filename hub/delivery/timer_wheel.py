"""Wheel: the due times of thousands of connections, with a single timer.

    slot       1041        1042    1043   …    a slot for each tick, with unsorted items
    items      {a, d}      {}      {b}

Setting or discarding an item takes O(1).  A turn takes O(1) for each slot that has
passed and for each item that is due.

Belongs here: times and items of any kind.  Does not belong here: what is done with an
item that is due (`heartbeats`).

Source: G. Varghese and T. Lauck, Hashed and Hierarchical Timing Wheels, 1987: the
simple scheme, with a dictionary instead of the ring.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = TypeVar("Item")


class Wheel(Generic[Item]):
    """A set of items, each with a due time in seconds.

    Due times are rounded up to a multiple of `tick`.  `now` is the present time of the
    caller's clock.
    """

    def __init__(self, *, now: float, tick: float) -> None:
        self._tick = tick
        self._turned = math.floor(now / tick)  # the last slot that was turned to
        self._slots: dict[Item, int] = {}  # item -> slot
        self._items: dict[int, set[Item]] = {}  # slot -> items; never empty

    def __len__(self) -> int:
        return len(self._slots)

    def set(self, item: Item, at: float) -> None:
        """Make `item` due at `at`, instead of any earlier setting.

        It is due at the first turn at or after `at`, rounded up.  If `at` is infinite,
        it is never due.  If `at` has passed, it is due after the next tick.
        """
        self.discard(item)
        if at == math.inf:
            return
        # No slot that has already been turned to, because it would never be due.
        slot = max(math.ceil(at / self._tick), self._turned + 1)
        self._slots[item] = slot
        self._items.setdefault(slot, set()).add(item)

    def discard(self, item: Item) -> None:
        """Remove `item`, so that it is never due.  Does nothing if it is not set."""
        slot = self._slots.pop(item, None)
        if slot is not None:
            self._items[slot].discard(item)
            if not self._items[slot]:
                del self._items[slot]

    def turn(self, now: float) -> list[Item]:
        """Remove and return the items that are due by `now`, the earliest slot first.

        The order of items within a slot is arbitrary.
        """
        due: list[Item] = []
        reached = math.floor(now / self._tick)
        passed: Sequence[int] = range(self._turned + 1, reached + 1)
        # After a long sleep, more slots have passed than are in use: walk only these.
        if len(passed) > len(self._items):
            passed = sorted(slot for slot in self._items if slot <= reached)
        for slot in passed:
            due.extend(self._items.pop(slot, ()))
        self._turned = max(self._turned, reached)
        for item in due:
            del self._slots[item]
        return due

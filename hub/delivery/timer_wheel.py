"""Wheel: the due times of thousands of connections, with a single timer.

    tick      1041        1042    1043   …
    slot      {a, d}      none    {b}         the items that are due, in no order

Setting or discarding an item takes O(1).  A turn takes O(1) for each tick that has
passed and for each item that is due.

Belongs here: times and items of any kind.  Does not belong here: the work for an
item that is due (`heartbeats`).

Source: G. Varghese and T. Lauck, Hashed and Hierarchical Timing Wheels, 1987: the
simple scheme, with a dictionary instead of the ring.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Timed(Protocol):
    """An item of a wheel."""

    slot: Slot | None
    """Its slot, or None if it is never due.  Only the wheel changes it."""


class Slot(set[Any]):
    """The items that are due at the same tick."""

    __slots__ = ("tick",)

    def __init__(self, tick: int) -> None:
        self.tick = tick


Item = TypeVar("Item", bound=Timed)


class Wheel(Generic[Item]):
    """A set of items, each with a due time in seconds.

    Due times are rounded up to a multiple of `tick`.  `now` is the present time of the
    caller's clock.  An item must be in one wheel only.
    """

    def __init__(self, *, now: float, tick: float) -> None:
        self._tick = tick
        self._turned = math.floor(now / tick)  # the last tick that was turned to
        self._slots: dict[int, Slot] = {}  # tick -> its slot, which is not empty

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def set(self, item: Item, at: float) -> None:
        """Make `item` due at `at`, instead of any earlier setting.

        It is due at the first turn at or after `at`, rounded up.  If `at` is infinite,
        it is never due.  If `at` has passed, it is due after the next tick.
        """
        self.discard(item)
        if at == math.inf:
            return
        # No tick that has already been turned to, because it would never be due.
        tick = max(math.ceil(at / self._tick), self._turned + 1)
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = Slot(tick)
        slot.add(item)
        item.slot = slot

    def discard(self, item: Item) -> None:
        """Remove `item`, so that it is never due.  Does nothing if it is not set."""
        slot, item.slot = item.slot, None
        if slot is not None:
            slot.discard(item)
            if not slot:
                del self._slots[slot.tick]

    def items(self) -> list[Item]:
        """Return all items that are set."""
        return [item for slot in self._slots.values() for item in slot]

    def turn(self, now: float) -> list[Item]:
        """Remove and return the items that are due by `now`, the earliest slot first.

        The order of items within a slot is arbitrary.
        """
        due: list[Item] = []
        reached = math.floor(now / self._tick)
        passed: Sequence[int] = range(self._turned + 1, reached + 1)
        # After a long sleep, more ticks have passed than have slots: walk only these.
        if len(passed) > len(self._slots):
            passed = sorted(tick for tick in self._slots if tick <= reached)
        for tick in passed:
            due.extend(self._slots.pop(tick, ()))
        self._turned = max(self._turned, reached)
        for item in due:
            item.slot = None
        return due

"""Values: a set of values with ids, in order of arrival.

Each value gets the next integer id; ids are never reused.

    ids       0   1   2   3        the value at id 2 was removed:
    by_id     a   b   -   c        alive = {0, 1, 3}   removals = 1   next_id = 4
"""

from __future__ import annotations

import sys
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyroaring import BitMap64
from sortedcontainers import SortedDict

from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyroaring import BitMap

SPARE: Final = 1024
"""Unused slots that the list of recent values may have, beyond two for each value."""
FEW: Final = 8
"""Below this number of ids, their values are looked up in the dict."""

Value = TypeVar("Value")


class Values(Generic[Value]):
    """Values by id, and ids by value.  Not thread-safe.

    The attributes are for reading only.
    """

    def __init__(self) -> None:
        self.by_id: SortedDict = SortedDict()
        """The values, in the order of their ids."""
        self.alive = BitMap64()
        """The ids that are in use."""
        # With 32 bits, a hub with 200 new connections a second would run out in 248
        # days.
        self.next_id = 0
        """The id that the next value gets."""
        self.removals = 0
        """How many values were removed so far."""
        self._ids: dict[Value, int] = {}
        # The values from the id `_base` on, with None for those removed.  For many ids
        # a list is twice as fast as a dict, and it costs 8 bytes an id.
        self._recent: list[Value | None] = []
        self._base = 0

    def add(self, value: Value) -> int:
        """Add a value that is absent, and return its id.  O(log n)."""
        id = self.next_id
        self._ids[value] = id  # first, because it raises TypeError if the value has no hash
        self.next_id = id + 1
        self.by_id[id] = value
        self.alive.add(id)
        self._recent.append(value)
        if len(self._recent) > 2 * len(self._ids) + SPARE:
            self._forget_old()
        return id

    def add_many(self, values: Sequence[Value]) -> None:
        """Add values that are absent and different.  O(n), without a step for each in
        Python.
        """
        start, end = self.next_id, self.next_id + len(values)
        ids = list(range(start, end))  # a list, so that both tables have the same integers
        self._ids.update(zip(values, ids, strict=True))
        self.next_id = end
        self.by_id.update(zip(ids, values, strict=True))
        self.alive.add_range(start, end)
        self._recent += values
        self._forget_old()

    def renew(self, id: int) -> int:
        """Give the value with this id the next one, and return that.  O(log n)."""
        value = self.by_id[id]
        self.remove(id)
        return self.add(value)

    def clear(self) -> object:
        """Remove all values, and return the tables that held them.  O(1)."""
        held = self.by_id, self._ids, self._recent
        self.by_id, self._ids, self._recent = SortedDict(), {}, []
        self.alive = BitMap64()
        self._base = self.next_id
        self.removals += 1
        return held

    def remove(self, id: int) -> None:
        """Remove the value with this id.  O(log n)."""
        del self._ids[self.by_id.pop(id)]
        self.alive.discard(id)
        if id >= self._base:
            self._recent[id - self._base] = None
        self.removals += 1

    def _forget_old(self) -> None:
        """Drop the oldest half of the list, once for as many additions: O(1) each."""
        spare = len(self._recent) - 2 * len(self._ids) - SPARE
        if spare > 0:
            dropped = len(self._recent) - len(self._ids) - 1
            self._base += dropped
            del self._recent[:dropped]

    def id_of(self, value: Value) -> int | None:
        """Return the id of a value, or None if it is absent.

        Raises TypeError if it cannot be hashed.
        """
        try:
            return self._ids.get(value)
        except TypeError as error:
            raise TypeError(f"value {brief(value)}: {error}") from error

    def __contains__(self, value: object) -> bool:
        return self.id_of(value) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._ids)

    def oldest(self, most: int) -> list[tuple[int, Value]]:
        """Return the ids and values of up to `most` values, the oldest."""
        return [(id, value) for value, id in islice(self._ids.items(), most)]

    @property
    def size(self) -> int:
        """About how many bytes the tables take.  O(1).

        An id is an int of 32 bytes, and takes 10 in the lists of a SortedDict.
        """
        tables = sum(map(sys.getsizeof, (self.by_id, self._ids, self._recent)))
        return tables + 42 * len(self._ids) + len(self._ids) // 8

    def first(self, start: int) -> tuple[int, Value] | None:
        """Return the oldest value from the id `start` on, with its id, or None."""
        id = next(self.by_id.irange(start), None)
        return None if id is None else (id, self.by_id[id])

    def since(self, start: int) -> tuple[list[int], list[Value]]:
        """Return the ids from `start` on, and their values, as copies."""
        if start == 0:  # the dict itself is in the same order, because ids only grow
            return list(dict.keys(self.by_id)), list(dict.values(self.by_id))
        ids = list(self.by_id.irange(start))
        return ids, [self.by_id[id] for id in ids]

    def resolve(self, ids: int | BitMap64 | BitMap) -> list[Value]:
        """Return the values of `ids`, all of which are in use, oldest first.

        1. One id: a plain lookup.
        2. A few ids: one after the other from the dict.
        3. Many: itemgetter on the list of recent values, which is twice as fast; older
           values come from the dict.
        """
        if isinstance(ids, int):
            return [self.by_id[ids]]
        count = len(ids)
        if not count:
            return []
        if count == 1:
            return [self.by_id[ids.min()]]
        if count < FEW:
            return [self.by_id[id] for id in ids]
        recent = ids.shift(-self._base) if self._base else ids
        older = count - len(recent)
        found = [self.by_id[id] for id in ids.to_array()[:older]] if older else []
        if len(recent) > 1:
            return [*found, *itemgetter(*recent.to_array())(self._recent)]
        return [*found, *(self._recent[at] for at in recent)]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._ids)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        assert {id: value for value, id in self._ids.items()} == dict(self.by_id)
        assert BitMap64(self.by_id) == self.alive
        assert list(self.by_id) == sorted(self.by_id) == list(dict.keys(self.by_id))
        assert all(id < self.next_id for id in self.by_id)
        assert self._recent == [self.by_id.get(id) for id in range(self._base, self.next_id)]

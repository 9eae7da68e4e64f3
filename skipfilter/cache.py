"""A bounded cache: keys that are used once do not evict keys that are used again.

    a new key ──► new ──used again──► kept         new:  a fifth of the capacity
                   │                   │           kept: the rest
                   ▼ oldest            ▼ least recently used
                evicted             evicted

A stream of keys that are each used once only passes through `new`, whatever its length.

Source: the segments of Karedla, Love and Wherry, Caching Strategies to Improve Disk
System Performance, 1994.  Unlike there, an entry evicted from `kept` does not move
back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class SegmentedCache(Generic[Key, Entry]):
    """Up to `capacity` entries; `capacity` is at least 2.  Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        if capacity < 2:
            raise ValueError(f"capacity must be at least 2, not {capacity}")
        self._new: OrderedDict[Key, Entry] = OrderedDict()  # used once, oldest first
        self._most_new = max(1, capacity // 5)
        self._kept: OrderedDict[Key, Entry] = OrderedDict()  # least recently used first
        self._most_kept = capacity - self._most_new

    def get(self, key: Key) -> Entry | None:
        """Return the entry of `key`, or None, and count it as used.

        Raises TypeError if the key cannot be hashed.
        """
        try:
            entry = self._kept.get(key)
        except TypeError as error:
            raise TypeError(f"key {key!r:.80}: {error}") from error
        if entry is not None:
            self._kept.move_to_end(key)
            return entry
        entry = self._new.pop(key, None)
        if entry is not None:
            if len(self._kept) == self._most_kept:
                self._kept.popitem(last=False)
            self._kept[key] = entry
        return entry

    def add(self, key: Key, entry: Entry) -> None:
        """Add an entry for a key that has none.

        Evicts the oldest new one if it is full.
        """
        if len(self._new) == self._most_new:
            self._new.popitem(last=False)
        self._new[key] = entry

    def __len__(self) -> int:
        return len(self._kept) + len(self._new)

    def entries(self) -> Iterator[Entry]:
        """Iterate over all entries, without counting them as used."""
        yield from self._kept.values()
        yield from self._new.values()

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        assert not self._kept.keys() & self._new.keys()
        assert len(self._new) <= self._most_new
        assert len(self._kept) <= self._most_kept

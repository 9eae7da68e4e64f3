"""A bounded cache: keys that are used once do not evict keys that are used again.

    a new key ──► new ──used again──► kept         new:  a fifth of the capacity
                   │                   │           kept: the rest
                   ▼ oldest            ▼ least recently used
                evicted             evicted

A stream of keys that are each used once only passes through `new`, whatever its length.
The bytes of the entries have a bound, too, of which `new` gets a fifth.

If an entry is cheap to make, it need not be cached before its key comes again: `seen`
remembers one byte of the hash of each key, until another key takes its place.  Such
entries start as kept ones, and need no `new`.

The caches of cachetools have one bound each, of entries or of bytes, and a stream of
keys that are used once would empty them.

Source: the segments of Karedla, Love and Wherry, Caching Strategies to Improve Disk
System Performance, 1994.  Unlike there, an entry evicted from `kept` does not move
back.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sized(Protocol):
    """An entry that knows how much memory it takes."""

    size: int
    """Bytes.  Only the cache changes it while it holds the entry."""


MOST_SEEN: Final = 2**20
"""The maximum number of places for keys that were seen; each is a byte."""

Key = TypeVar("Key")
Entry = TypeVar("Entry", bound=Sized)


class SegmentedCache(Generic[Key, Entry]):
    """Up to `capacity` entries of up to `max_bytes` bytes together.  Not thread-safe.

    `capacity` is at least 2.  An entry that has more bytes than its whole segment may
    have is not cached, and no other is evicted for it.  If all entries come by `keep`,
    `kept_only` lets them use the whole cache.
    """

    def __init__(self, capacity: int, max_bytes: int = sys.maxsize, *, kept_only: bool = False) -> None:
        if capacity < 2:
            raise ValueError(f"capacity must be at least 2, not {capacity}")
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, not {max_bytes}")
        self._new: OrderedDict[Key, Entry] = OrderedDict()  # used once, oldest first
        self._most_new = 0 if kept_only else max(1, capacity // 5)
        self._new_bytes = 0
        self._most_new_bytes = 0 if kept_only else max_bytes // 5
        self._kept: OrderedDict[Key, Entry] = OrderedDict()  # least recently used first
        self._most_kept = capacity - self._most_new
        self._kept_bytes = 0
        self._most_kept_bytes = max_bytes - self._most_new_bytes
        # The last bits of the hash of a key give its place, and those before are there.
        self._seen = bytearray(min(1 << (capacity // 4).bit_length(), MOST_SEEN))
        self._places = len(self._seen) - 1
        self._place_bits = self._places.bit_length()
        self._random = 0  # 16 bits of a linear congruential generator

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
            self._new_bytes -= entry.size
            self.keep(key, entry)
        return entry

    def seen(self, key: Key) -> bool:
        """Return whether a key was seen lately, and remember it.

        Of the keys that were not seen, about one in 255 counts as seen.
        """
        bits = hash(key)
        place, mark = bits & self._places, bits >> self._place_bits & 0xFF or 1
        other = self._seen[place]
        if other == mark:
            return True
        # A key takes the place of another at random, because two keys that come in turn
        # would never be seen if each always took it.
        if other:
            self._random = self._random * 5 + 1 & 0xFFFF
        if not other or self._random >> 15:
            self._seen[place] = mark
        return False

    def add(self, key: Key, entry: Entry) -> None:
        """Set the entry of a key.

        Evicts the oldest new ones if there are too many.
        """
        if key in self._kept or key in self._new:
            self.pop(key)
        if entry.size > self._most_new_bytes:
            return
        if len(self._new) == self._most_new:
            self._new_bytes -= self._new.popitem(last=False)[1].size
        self._new[key] = entry
        if entry.size:
            self._new_bytes += entry.size
            while self._new_bytes > self._most_new_bytes:
                self._new_bytes -= self._new.popitem(last=False)[1].size

    def keep(self, key: Key, entry: Entry) -> None:
        """Add an entry for a key that has none, as one that was used again.

        Evicts the least recently used ones if there are too many.
        """
        if entry.size > self._most_kept_bytes:
            return
        if len(self._kept) == self._most_kept:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size
        self._kept[key] = entry
        self._kept_bytes += entry.size
        while self._kept_bytes > self._most_kept_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size

    def resize(self, key: Key, entry: Entry, size: int) -> None:
        """Set the size of an entry; `key` may have another one by now, or none."""
        if self._kept.get(key) is entry:
            del self._kept[key]
            self._kept_bytes -= entry.size
            entry.size = size
            self.keep(key, entry)
        elif self._new.get(key) is entry:
            del self._new[key]
            self._new_bytes -= entry.size
            entry.size = size
            self.add(key, entry)
        else:
            entry.size = size

    def pop(self, key: Key) -> Entry | None:
        """Remove the entry of `key`, and return it, or None."""
        if (entry := self._kept.pop(key, None)) is not None:
            self._kept_bytes -= entry.size
        elif (entry := self._new.pop(key, None)) is not None:
            self._new_bytes -= entry.size
        return entry

    def clear(self) -> object:
        """Remove all entries, and return what held them.  O(1)."""
        freed = self._kept, self._new
        self._kept, self._new = OrderedDict(), OrderedDict()
        self._kept_bytes = self._new_bytes = 0
        return freed

    @property
    def size(self) -> int:
        """The bytes of all entries."""
        return self._new_bytes + self._kept_bytes

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
        assert self._new_bytes == sum(entry.size for entry in self._new.values()) <= self._most_new_bytes
        assert self._kept_bytes == sum(entry.size for entry in self._kept.values()) <= self._most_kept_bytes

"""Entries: for each cached key the ids of the values that match it.

    entry["even"]       matched = {0, 2, 3}   cursor = 4   ids from 4 on are untested

An index has posting lists, which it keeps up to date.  The entry of a key refers to
those of the key, and takes its ids from them, from the cursor on.  If there is only
one, `matched` is that list itself: a key that costs no bitmap.

    entry["/books/1"]   lists = [{0, 4}, {3, 4, 5}]   matched = {0, 3, 4}   cursor = 5
    entry["/books/2"]   lists = [{3, 4, 5}]           matched is lists[0]

Source: K. Burns, skipfilter (Go), 2022, for the cursor and the lazy eviction; the
inverted bitmaps of Svalgaard and Tveden, 1980, for the rest.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyroaring import BitMap64

from skipfilter.core.cache import SegmentedCache
from skipfilter.core.container import bytes_of
from skipfilter.core.sources import Index, Source
from skipfilter.posting_list import NONE, PostingList, compact, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from skipfilter.core.values import Values
    from skipfilter.posting_list import Ids

FEW_IDS: Final = 32
"""Up to this number of new ids, adding each is faster than an OR of bitmaps."""
ENTRY_BYTES: Final = 400
"""About how many bytes an entry takes without its key, its lists and its bitmap."""
BITMAP_BYTES: Final = 330
"""About how many bytes a bitmap takes without its containers."""

Value = TypeVar("Value")
Key = TypeVar("Key")


class _Entry:
    """The state of a key: each id below `cursor` is decided, and in `matched` if it
    matched.

    `removals` is the number of the filter's removals that `matched` has taken account
    of.  `lists` are the posting lists of an index.  If there is only one, `matched` is
    that list, and must not be changed.  `size` is about how many bytes all this takes,
    and `own_size` is the part of the key and of what does not grow.
    """

    __slots__ = ("cursor", "lists", "matched", "own_size", "removals", "size")

    def __init__(
        self, key: object, matched: PostingList, cursor: int, removals: int, lists: tuple[PostingList, ...] = ()
    ) -> None:
        self.matched = matched
        self.cursor = cursor
        self.removals = removals
        self.lists = lists
        self.own_size = ENTRY_BYTES + bytes_of(key)
        self.size = _size(self, cursor)

    @property
    def borrows(self) -> bool:
        """Whether `matched` is a posting list."""
        return len(self.lists) == 1

    def refer(self, fresh: Sequence[PostingList], cursor: int, removals: int) -> None:
        """Refer to `fresh` posting lists too, and take all ids below `cursor`.

        `removals` is the present number of removals.
        """
        # 1. Other lists.  Those that are empty now are dropped: if one gets ids again,
        #    the index returns it again.
        if fresh:
            self.lists = _distinct((*self.lists, *fresh))
            self.matched = self.lists[0] if self.borrows else _joined(self.lists)
            self.removals = removals
        # 2. The same lists: the ids from the cursor on.  One list needs no bitmap.
        elif not self.borrows:
            for postings in self.lists:
                ids = postings.ids
                if isinstance(ids, int):
                    if ids >= self.cursor:
                        self.matched.add(ids)
                elif ids and ids.max() >= self.cursor:
                    if cursor - self.cursor > FEW_IDS:
                        self.matched.update(ids)
                    else:
                        for id in ids.iter_equal_or_larger(self.cursor):
                            self.matched.add(id)
        self.cursor = cursor

    def take(self, fresh: Ids, cursor: int, removals: int) -> None:
        """Add the ids that matched, of those below `cursor`, at the time of `removals`
        removals.
        """
        self.matched.update(fresh)
        self.cursor = max(self.cursor, cursor)
        self.removals = min(self.removals, removals)  # an id in `fresh` may have been removed since


class Entries(Generic[Value, Key]):
    """The ids that match a key, of up to `capacity` keys and `max_bytes` bytes.  Not
    thread-safe.
    """

    def __init__(
        self,
        values: Values[Value],
        source: Source[Value, Key] | Index[Value, Key],
        capacity: int,
        max_bytes: int,
    ) -> None:
        self._values = values
        # Decided once, because isinstance with a protocol takes microseconds.
        self._index = source if isinstance(source, Index) else None
        self._source = None if isinstance(source, Index) else source
        self.misses = 0
        """How often a key had no entry."""
        self._cache: SegmentedCache[Key, _Entry] = SegmentedCache(
            capacity, max_bytes, kept_only=self._index is not None
        )

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def size(self) -> int:
        """About how many bytes the keys and their bitmaps take."""
        return self._cache.size

    def clear(self) -> object:
        """Forget all keys, and return what held them.  O(1)."""
        return self._cache.clear()

    def forget(self, key: Key) -> bool:
        """Forget a key, and return whether it was cached."""
        return self._cache.pop(key) is not None

    def matched(self, key: Key) -> Ids:
        """Return the ids of the values that match `key`, which must not be changed."""
        entry = self._cache.get(key)
        values = self._values
        if entry is None or entry.cursor != values.next_id:
            if self._index is not None:
                return self._look_up(key, entry)
            entry = self._test(key, entry)
        if entry.removals != values.removals:
            self._evict(entry)
        return entry.matched.ids

    def matches(self, key: Key) -> bool:
        """Return whether any value matches `key`; stops at the first match."""
        entry = self._cache.get(key)
        # 1. A known match is enough, however many values are undecided.
        if entry is not None and _any(self._evict(entry)):
            return True
        # 2. Otherwise look for the first match among the undecided values.
        if entry is None or entry.cursor != self._values.next_id:
            if self._index is not None:
                return _any(self._look_up(key, entry))
            entry = self._test(key, entry, first=True)
        return _any(self._evict(entry))

    def _look_up(self, key: Key, entry: _Entry | None) -> Ids:
        """Return the ids of the values that match `key`, after asking the index for new
        posting lists.

        If the index raises, nothing has changed.
        """
        assert self._index is not None
        values = self._values
        end = values.next_id
        if entry is None:
            self.misses += 1
            lists = self._index.posting_lists(key, 0)
            if not values.alive and any(lists):
                raise ValueError("the index has the values of another filter: an index serves one SkipFilter")
            matched = lists[0] if len(lists) == 1 else _joined(lists)
            # A lookup is cheap, so only a key that comes again is cached.
            if self._cache.seen(key):
                entry = _Entry(key, matched, end, values.removals, tuple(lists))
                self._cache.pop(key)  # a matcher of the caller's own may have asked, too
                self._cache.keep(key, entry)
            return matched.ids
        fresh = self._index.posting_lists(key, entry.cursor)
        if fresh or len(entry.lists) > 1:
            entry.refer(fresh, end, values.removals)
            self._cache.resize(key, entry, _size(entry, end))
        else:
            entry.cursor = end
        return self._evict(entry)

    def _test(self, key: Key, entry: _Entry | None, *, first: bool = False) -> _Entry:
        """Return the key's entry, or a new one, after asking the source about undecided
        values.

        With `first`, stop at the first value that matches.  If the source raises,
        nothing has changed.
        """
        assert self._source is not None
        if entry is None:
            self.misses += 1
        end, removals = self._values.next_id, self._values.removals
        fresh = self._source.matching(key, 0 if entry is None else entry.cursor)
        if isinstance(fresh, BitMap64):
            fresh = fresh.copy()
        else:
            if first:
                fresh = list(islice((id for id in fresh if id in self._values.alive), 1))
                if fresh:
                    end = fresh[0] + 1  # the ids before it were tested and did not pass
            fresh = BitMap64(list(fresh))
        if fresh and fresh.max() >= self._values.next_id:
            raise ValueError(f"id {fresh.max()} is not of this filter")
        # Only now: a predicate may have raised, or have asked about the same key.
        if entry is None and (entry := self._cache.get(key)) is None:
            entry = _Entry(key, PostingList(compact(fresh)), end, removals)
            self._cache.add(key, entry)
        else:
            entry.take(compact(fresh), end, removals)
            if fresh:
                self._cache.resize(key, entry, _size(entry, end))
        return entry

    def _evict(self, entry: _Entry) -> Ids:
        """Return the ids of an entry, without those that are no longer in use."""
        if entry.removals != self._values.removals:
            if not entry.borrows:
                entry.matched.keep(self._values.alive)
            entry.removals = self._values.removals
        return entry.matched.ids

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        self._cache._check()
        for entry in self._cache.entries():
            assert 0 <= entry.cursor <= self._values.next_id
            assert entry.removals <= self._values.removals
            if self._index is None:
                assert not entry.lists
                assert not entry.matched or entry.matched.max() < entry.cursor
            elif not entry.lists:
                assert not entry.matched
            elif entry.borrows:
                assert entry.matched is entry.lists[0]
                assert set(entry.matched) <= set(self._values.alive)
            if entry.removals == self._values.removals:
                assert set(entry.matched) <= set(self._values.alive)
            assert not NONE


def _any(ids: Ids) -> bool:
    """Return whether there is an id."""
    return isinstance(ids, int) or bool(ids)


def _joined(lists: Sequence[PostingList]) -> PostingList:
    """Return the ids of all lists, as a new one."""
    return PostingList(compact(union([postings.ids for postings in lists])) if lists else NONE)


def _distinct(lists: Iterable[PostingList]) -> tuple[PostingList, ...]:
    """Return the lists that are not empty, each once."""
    return tuple({id(postings): postings for postings in lists if postings}.values())


def _size(entry: _Entry, end: int) -> int:
    """Return about how many bytes an entry takes, with its key, lists and bitmap.

    A bitmap has a container for each 65,536 ids below `end` of which it has any; a
    container takes about 110 bytes, and 2 bytes for each id, up to 8 KB.
    """
    if entry.borrows or len(entry.matched) < 2:
        return entry.own_size + 8 * len(entry.lists)
    containers = min(len(entry.matched), (end >> 16) + 1)
    ids = min(2 * len(entry.matched), containers << 13)
    return entry.own_size + 8 * len(entry.lists) + BITMAP_BYTES + 110 * containers + ids

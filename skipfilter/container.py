"""SkipFilter: a set of values, and for each key the subset that matches it.

Each value gets the next integer id; ids are never reused.  The values that a key has
not been tested against are therefore always the newest ones, and a single integer,
the cursor, marks where they start.

    ids            0   1   2   3   4   5     the value at id 2 was removed:
    values         a   b   -   c   d   e     alive = {0, 1, 3, 4, 5}
    entry["even"]  passed = {0, 2, 3}   cursor = 4
                   match_any("even") tests only d and e

A removal changes no bitmap: it takes the id out of `alive` and increments a counter.
If an entry has not seen all removals when it is next used, it is intersected with
`alive` first; above, `passed` then loses the 2.

An index has posting lists: bitmaps of ids that it keeps up to date.  The entry of a key
refers to those of the key, and takes its ids from them, from the cursor on.  If there
is only one, `passed` is that list itself: a key that costs no bitmap.

    entry["/books/1"]   lists = [{0, 4}, {3, 4, 5}]   passed = {0, 3, 4}   cursor = 5
    entry["/books/2"]   lists = [{3, 4, 5}]           passed is lists[0]

Source: K. Burns, skipfilter (Go), 2022, for the cursor and the lazy eviction; the
inverted bitmaps of Svalgaard and Tveden, 1980, for the rest.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyroaring import BitMap64

from skipfilter.cache import SegmentedCache
from skipfilter.errors import not_copied
from skipfilter.sources import Declarations, GroupedPredicate, Index, Predicate, Source, union
from skipfilter.values import Values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from skipfilter.explanation import Explanation
    from skipfilter.matchers import CompiledSelector, Selector

FEW_IDS: Final = 32
"""Up to this number of new ids, adding each is faster than an OR of bitmaps."""

Value = TypeVar("Value")
Key = TypeVar("Key")


class _Entry:
    """The state of a key: each id below `cursor` is decided, and in `passed` if it
    matched.

    `removals` is the number of the filter's removals that `passed` has taken account
    of.  `lists` are the posting lists of an index.  If there is only one, `passed` is
    that list, and must not be changed.  `size` is about how many bytes all this takes
    beyond the entry itself.
    """

    __slots__ = ("cursor", "lists", "passed", "removals", "size")

    def __init__(self, passed: BitMap64, cursor: int, removals: int, lists: tuple[BitMap64, ...] = ()) -> None:
        self.passed = passed
        self.cursor = cursor
        self.removals = removals
        self.lists = lists
        self.size = 0

    @property
    def borrows(self) -> bool:
        """Whether `passed` is a posting list."""
        return len(self.lists) == 1

    def refer(self, fresh: Sequence[BitMap64], cursor: int, removals: int) -> None:
        """Refer to `fresh` posting lists too, and take all ids below `cursor`.

        `removals` is the present number of removals.
        """
        # 1. Other lists.  Those that are empty now stay so: a selector that is declared
        #    again gets a new one.
        if fresh:
            self.lists = _distinct((*self.lists, *fresh))
            self.passed = self.lists[0] if self.borrows else union(self.lists)
            self.removals = removals
        # 2. The same lists: the ids from the cursor on.  One list needs no bitmap.
        elif not self.borrows:
            for ids in self.lists:
                if ids and ids.max() >= self.cursor:
                    if cursor - self.cursor > FEW_IDS:
                        self.passed |= ids
                    else:
                        for id in ids.iter_equal_or_larger(self.cursor):
                            self.passed.add(id)
        self.cursor = cursor

    def take(self, fresh: BitMap64, cursor: int, removals: int) -> None:
        """Add the ids that matched, of those below `cursor`, at the time of `removals`
        removals.
        """
        self.passed |= fresh
        self.cursor = max(self.cursor, cursor)
        self.removals = min(self.removals, removals)  # an id in `fresh` may have been removed since


class SkipFilter(Generic[Value, Key]):
    """A set of values, and for each key the subset that matches it.

    `source` is a predicate `test(value, key)`, a `Source`, or an `Index` such as
    `SelectorIndex`, for which each value declares selectors.  A predicate must be pure:
    it is called once for each value and key, as long as the key stays cached.  It may
    add and remove values while it runs; the next call sees those that it added.  If it
    raises, the caller gets the error, with a note that names the value, and no bitmap
    has changed.  A new key is then not cached; a cached key counts as used.

    `group` returns what values have in common if they give the same answer for every
    key: one test serves all values with an equal group.  The group of a value must not
    change while the value is in the filter.

    `capacity` is the maximum number of cached keys, and their bitmaps take up to about
    `max_bytes` bytes; keys that were used only once are evicted first, and if there is
    an index they are not cached at all.  A key takes about 400 bytes and its bitmap,
    which takes up to N/8 bytes for N ids, and far less if few match.  A key with one
    posting list in an index needs no bitmap.

    Every method may be called from any thread.  If only one thread uses the filter,
    `lock=contextlib.nullcontext()` saves the locking.  Raises TypeError if a filter is
    copied or pickled.

    >>> multiples = SkipFilter(lambda value, key: value % key == 0)
    >>> for number in range(10):
    ...     _ = multiples.add(number)
    >>> multiples.match_any(2, 3)
    [0, 2, 3, 4, 6, 8, 9]
    >>> multiples.match_all(2, 3)
    [0, 6]
    """

    def __init__(
        self,
        source: Source[Value, Key] | Index[Value, Key] | Callable[[Value, Key], object],
        *,
        group: Callable[[Value], Hashable] | None = None,
        capacity: int = 100_000,
        max_bytes: int = 2**28,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if isinstance(source, type):
            raise TypeError(f"{source.__name__} is a class; pass an instance of it")
        self._values: Values[Value] = Values()
        self._resolve = self._values.resolve
        self._source: Source[Value, Key] | Index[Value, Key]
        if isinstance(source, (Source, Index)):
            if group is not None:
                raise ValueError("group= is for a predicate; this source needs none")
            self._source = source
        elif group is None:
            self._source = Predicate(source, self._values)
        else:
            self._source = GroupedPredicate(source, self._values, group)
        self._index = source if isinstance(source, Index) else None
        self._needs_selectors = bool(getattr(source, "needs_selectors", False))
        self._entries: SegmentedCache[Key, _Entry] = SegmentedCache(capacity, max_bytes)
        self._lock = threading.RLock() if lock is None else lock

    __reduce__ = not_copied

    # -- the values

    def add(self, value: Value, selectors: Iterable[Selector | CompiledSelector] | None = None) -> int:
        """Add `value`, and return its id.  A value that is in the filter keeps its id.

        `selectors` are those that the value declares, if the source takes selectors;
        None means that they are omitted.  Takes O(log n), and the time of the source.
        If the source raises, nothing has changed; a SelectorIndex raises ValueError if
        the value is in the filter with other selectors.  Raises TypeError if selectors
        are omitted and the source needs them.
        """
        if selectors is None:
            if self._needs_selectors:
                raise TypeError(f"the selectors of {value!r:.80} are missing; if it declares none, pass []")
            selectors = ()
        with self._lock:
            values = self._values
            if (known := values.id_of(value)) is not None:
                self._source.add(known, values.by_id[known], selectors)
                return known
            id = values.next_id
            self._source.add(id, value, selectors)
            if values.next_id != id:
                self._source.discard(id, value)
                raise RuntimeError("another value was added while the source took this one in")
            return values.add(value)

    def remove(self, value: Value) -> None:
        """Remove `value`.

        Takes O(log n), whatever is cached.  Raises KeyError if it is absent.
        """
        if not self.discard(value):
            raise KeyError(value)

    def discard(self, value: Value) -> bool:
        """Remove `value` if it is present, and return whether it was.

        Takes O(log n).
        """
        with self._lock:
            id = self._values.id_of(value)
            if id is None:
                return False
            # The stored value, and not an equal one that the source may treat
            # differently.
            self._source.discard(id, self._values.by_id[id])
            self._values.remove(id)
            return True

    def clear(self) -> None:
        """Remove all values, and forget all keys."""
        with self._lock:
            for value in list(self._values):
                self.discard(value)
            self._entries.clear()

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<SkipFilter: {len(self):,} values, {len(self._entries):,} cached keys>"

    def __iter__(self) -> Iterator[Value]:
        """Iterate over a snapshot of the values, oldest first."""
        with self._lock:
            return iter(list(self._values))

    def walk(self, start: int = 0) -> Iterator[tuple[int, Value]]:
        """Iterate over (id, value) pairs from the id `start` on, oldest first.

        Takes O(log n) a step and holds no lock between steps: a value that is removed
        meanwhile is left out, and one that is added meanwhile is included.
        """
        while True:
            with self._lock:
                found = self._values.first(start)
            if found is None:
                return
            yield found
            start = found[0] + 1

    # -- matching

    def match_any(self, *keys: Key) -> list[Value]:
        """Return the values that match any of `keys`, oldest first, without repeats.

        Takes O(m) for m matches if every key is cached.  Otherwise each key also pays
        for the values added since it was last used: a call of the predicate for each of
        them; an index only looks up selectors that are new.
        """
        with self._lock:
            return self._resolve(self._passed(keys[0]) if len(keys) == 1 else self._any(keys))

    def match_all(self, *keys: Key) -> list[Value]:
        """Return the values that match all of `keys`, oldest first; all values without
        keys.

        Costs as much as `match_any`, and stops at the first key that leaves no value.
        """
        with self._lock:
            if len(keys) == 1:
                return self._resolve(self._passed(keys[0]))
            left = self._values.alive
            for key in keys:
                left = left & self._passed(key)
                if not left:
                    return []
            # The predicate of a later key may have removed values.
            return self._resolve(left & self._values.alive)

    def matches(self, *keys: Key) -> bool:
        """Return whether any value matches any of `keys`.  Stops at the first match."""
        with self._lock:
            return any(self._passes(key) for key in keys)

    def bitmap(self, *keys: Key) -> BitMap64:
        """Return the ids of the values that match any of `keys`, as a bitmap of the
        caller's own.
        """
        with self._lock:
            return self._passed(keys[0]).copy() if len(keys) == 1 else self._any(keys)

    def values(self, ids: BitMap64) -> list[Value]:
        """Return the values with these ids, oldest first, without ids that are not in
        use.
        """
        with self._lock:
            return self._resolve(ids & self._values.alive)

    def forget(self, key: Key) -> bool:
        """Forget what is cached of `key`, and return whether anything was.

        The next question tests all values again, for example because the data behind a
        predicate has changed.
        """
        with self._lock:
            return self._entries.pop(key) is not None

    # -- for people

    def selectors(self, value: Value) -> tuple[Selector, ...]:
        """Return the selectors that `value` declares, each once, as text.

        Raises KeyError if the value is absent, and TypeError if the source takes no
        selectors.
        """
        return self._declarations().selectors(value)

    def explain(self, key: Key, value: Value) -> list[Explanation]:
        """Return, for each selector of `value`, whether it matches `key`, and why.

        Compiles and tests each selector, and takes no lock.  Raises as `selectors`.

        >>> from skipfilter import SelectorIndex
        >>> readers = SkipFilter(SelectorIndex())
        >>> declared = [("uritemplate", "/books/{id}"), ("amqp", "stock.*")]
        >>> _ = readers.add("bob", declared)
        >>> matching, other = readers.explain("/books/1", "bob")
        >>> matching.selector, matching.variables, matching.reason
        (('uritemplate', '/books/{id}'), {'id': '1'}, None)
        >>> print(other)
        amqp 'stock.*' does not match: word 1 is '/books/1'
        """
        return self._declarations().explain(key, value)

    def _declarations(self) -> Declarations[Value, Key]:
        if not isinstance(self._source, Declarations):
            raise TypeError("the source of this filter does not know the selectors of its values")
        return self._source

    # -- internals; the lock is held

    def _any(self, keys: tuple[Key, ...]) -> BitMap64:
        """Return the union over `keys`, as a new bitmap."""
        removals = self._values.removals
        found = union([self._passed(key) for key in keys])
        # The predicate of a later key may have removed values.
        return found if removals == self._values.removals else found & self._values.alive

    def _passed(self, key: Key) -> BitMap64:
        """Return the ids of the values that match `key`, which must not be changed."""
        entry = self._entries.get(key)
        values = self._values
        if entry is None or entry.cursor != values.next_id:
            if self._index is not None:
                return self._look_up(key, entry)
            entry = self._test(key, entry)
        if entry.removals != values.removals:
            self._evict(entry)
        return entry.passed

    def _passes(self, key: Key) -> bool:
        entry = self._entries.get(key)
        # 1. A known match is enough, however many values are undecided.
        if entry is not None and self._evict(entry):
            return True
        # 2. Otherwise look for the first match among the undecided values.
        if entry is None or entry.cursor != self._values.next_id:
            if self._index is not None:
                return bool(self._look_up(key, entry))
            entry = self._test(key, entry, first=True)
        return bool(self._evict(entry))

    def _look_up(self, key: Key, entry: _Entry | None) -> BitMap64:
        """Return the ids of the values that match `key`, after asking the index for new
        posting lists.

        If the index raises, nothing has changed.
        """
        assert self._index is not None
        values = self._values
        end = values.next_id
        if entry is None:
            lists = self._index.posting_lists(key, 0)
            if not values.alive and any(lists):
                raise ValueError("the index has the values of another filter: an index serves one SkipFilter")
            passed = lists[0] if len(lists) == 1 else union(lists)
            # A lookup is cheap, so only a key that comes again is cached.
            if self._entries.seen(key):
                entry = _Entry(passed, end, values.removals, tuple(lists))
                entry.size = _size(entry, end)
                self._entries.pop(key)  # a matcher of the caller's own may have asked, too
                self._entries.keep(key, entry)
            return passed
        fresh = self._index.posting_lists(key, entry.cursor)
        if fresh or len(entry.lists) > 1:
            entry.refer(fresh, end, values.removals)
            self._entries.resize(key, entry, _size(entry, end))
        else:
            entry.cursor = end
        return self._evict(entry)

    def _test(self, key: Key, entry: _Entry | None, *, first: bool = False) -> _Entry:
        """Return the key's entry, or a new one, after asking the source about undecided
        values.

        With `first`, stop at the first value that matches.  If the source raises,
        nothing has changed.
        """
        assert isinstance(self._source, Source)
        end, removals = self._values.next_id, self._values.removals
        fresh = self._source.matching(key, 0 if entry is None else entry.cursor)
        if not isinstance(fresh, BitMap64):
            if first:
                fresh = list(islice((id for id in fresh if id in self._values.alive), 1))
                if fresh:
                    end = fresh[0] + 1  # the ids before it were tested and did not pass
            fresh = BitMap64(list(fresh))
        if fresh and fresh.max() >= self._values.next_id:
            raise ValueError(f"id {fresh.max()} is not of this filter")
        # Only now: a predicate may have raised, or have asked about the same key.
        if entry is None and (entry := self._entries.get(key)) is None:
            entry = _Entry(fresh.copy(), end, removals)
            entry.size = _size(entry, end)
            self._entries.add(key, entry)
        else:
            entry.take(fresh, end, removals)
            self._entries.resize(key, entry, _size(entry, end))
        return entry

    def _evict(self, entry: _Entry) -> BitMap64:
        """Return the bitmap of an entry, without ids that are no longer in use."""
        if entry.removals != self._values.removals:
            if not entry.borrows:
                entry.passed &= self._values.alive
            entry.removals = self._values.removals
        return entry.passed

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            self._values._check()
            self._entries._check()
            for entry in self._entries.entries():
                assert 0 <= entry.cursor <= self._values.next_id
                assert entry.removals <= self._values.removals
                if self._index is None:
                    assert not entry.lists
                    assert not entry.passed or entry.passed.max() < entry.cursor
                elif not entry.lists:
                    assert not entry.passed
                elif entry.borrows:
                    assert entry.passed is entry.lists[0]
                    assert entry.passed <= self._values.alive
                if entry.passed and entry.removals == self._values.removals:
                    assert entry.passed <= self._values.alive


def _distinct(lists: Iterable[BitMap64]) -> tuple[BitMap64, ...]:
    """Return the lists that are not empty, each once."""
    return tuple({id(ids): ids for ids in lists if ids}.values())


def _size(entry: _Entry, end: int) -> int:
    """Return about how many bytes the lists and the bitmap of an entry take.

    Of each 65,536 ids below `end`, a bitmap takes 2 bytes for each, up to 8 KB.
    """
    if entry.borrows:
        return 0
    return 8 * len(entry.lists) + min(2 * len(entry.passed), (end >> 16) + 1 << 13)

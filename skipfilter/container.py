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

Source: K. Burns, skipfilter (Go), 2022, for the cursor and the lazy eviction; the
inverted bitmaps of Svalgaard and Tveden, 1980, for the rest.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from pyroaring import BitMap64
from sortedcontainers import SortedDict

from skipfilter.cache import SegmentedCache
from skipfilter.errors import not_copied

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from skipfilter.matchers import CompiledSelector, Selector

SPARE: Final = 1024
"""Unused slots that the list of recent values may have, beyond two for each value."""
FEW: Final = 8
"""Below this number of matches, their values are looked up in the dict."""

Value = TypeVar("Value")
Key = TypeVar("Key")
ValueIn = TypeVar("ValueIn", contravariant=True)
KeyIn = TypeVar("KeyIn", contravariant=True)


@runtime_checkable
class Source(Protocol[ValueIn, KeyIn]):
    """The rule by which a SkipFilter extends a bitmap.

    A filter reports each value that is added or removed, so that a source may keep an
    index of them, and calls all three methods while it holds its lock.

    If a value without selectors can match nothing, the source has an attribute
    `needs_selectors`, which is true.  Then an addition that omits them is refused.
    """

    def add(self, id: int, value: ValueIn, selectors: Iterable[Selector | CompiledSelector]) -> None:
        """Take in a new value.

        Called again, with the same id, if a value is added that is already in the
        filter.  If it raises, the filter does not add the value.
        """
        ...

    def discard(self, id: int, value: ValueIn) -> None:
        """Forget a value.  If it raises, the filter does not remove the value."""
        ...

    def ids_matching(self, key: KeyIn, values: SortedDict, start: int) -> Iterable[int]:
        """Return the ids, from `start` on, of the values that match `key`.

        The result is a bitmap, or ascending ids, lazily if that is cheaper.  The filter
        does not change a bitmap, which may also hold matching ids before `start`.
        `values` maps each id to its value.  A source that calls code of others must
        first copy what it iterates over, because that code may add and remove values.
        """
        ...


class _Predicate(Generic[Value, Key]):
    """The source that calls a predicate for each value."""

    def __init__(self, test: Callable[[Value, Key], object]) -> None:
        self._test = test

    def add(self, id: int, value: Value, selectors: Iterable[Selector | CompiledSelector]) -> None:
        _refuse(selectors)

    def discard(self, id: int, value: Value) -> None:
        pass

    def ids_matching(self, key: Key, values: SortedDict, start: int) -> Iterator[int]:
        ids = list(values.irange(start))
        test = self._test
        return (id for id, value in zip(ids, [values[id] for id in ids], strict=True) if test(value, key))


class _GroupedPredicate(Generic[Value, Key]):
    """The source that calls a predicate for one value of each group."""

    def __init__(self, test: Callable[[Value, Key], object], group: Callable[[Value], Hashable]) -> None:
        self._test = test
        self._group = group
        self._members: dict[Hashable, BitMap64] = {}  # group -> ids of its values; never empty

    def add(self, id: int, value: Value, selectors: Iterable[Selector | CompiledSelector]) -> None:
        _refuse(selectors)
        self._members.setdefault(self._group(value), BitMap64()).add(id)

    def discard(self, id: int, value: Value) -> None:
        group = self._group(value)
        members = self._members[group]
        members.discard(id)
        if not members:
            del self._members[group]

    def ids_matching(self, key: Key, values: SortedDict, start: int) -> Iterable[int]:
        passed = BitMap64()
        for value, members in self._batches(values, start):
            if self._test(value, key):
                passed |= members
        return passed

    def _batches(self, values: SortedDict, start: int) -> list[tuple[Value, BitMap64]]:
        """Return (one value, the ids from `start` on) for each group.

        A new key costs one step for each group, not for each value.
        """
        if start == 0:
            return [(values[members.min()], members.copy()) for members in self._members.values()]
        fresh: dict[Hashable, tuple[Value, BitMap64]] = {}
        for id in values.irange(start):
            value = values[id]
            fresh.setdefault(self._group(value), (value, BitMap64()))[1].add(id)
        return list(fresh.values())


def _refuse(selectors: Iterable[Selector | CompiledSelector]) -> None:
    if tuple(selectors):
        raise ValueError("a predicate takes no selectors; use a SelectorIndex as the source")


@dataclass(slots=True)
class _Entry:
    """The state of a key: each id below `cursor` is decided, and in `passed` if it
    matched.

    `removals` is the number of the filter's removals that `passed` has taken account
    of.
    """

    passed: BitMap64
    cursor: int
    removals: int

    def take(self, fresh: BitMap64, cursor: int, removals: int) -> None:
        """Add the ids that matched, of those below `cursor`, at the time of `removals`
        removals.
        """
        self.passed |= fresh
        self.cursor = max(self.cursor, cursor)
        self.removals = min(self.removals, removals)  # an id in `fresh` may have been removed since


class SkipFilter(Generic[Value, Key]):
    """A set of values, and for each key the subset that matches it.

    `source` is a predicate `test(value, key)`, or a `Source` such as `SelectorIndex`,
    for which each value declares selectors.  A predicate must be pure: it is called
    once for each value and key, as long as the key stays cached.  It may add and remove
    values while it runs; the next call sees those that it added.  If it raises, the
    caller gets the error, and no bitmap has changed.  A new key is then not cached; a
    cached key counts as used.

    `group` returns what values have in common if they give the same answer for every
    key: one test serves all values with an equal group.  The group of a value must not
    change while the value is in the filter.

    `capacity` is the maximum number of cached keys; keys that were used only once are
    evicted first.  A key takes about 200 bytes and its bitmap, which takes up to N/8
    bytes for N ids, and far less if few match.

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
        source: Source[Value, Key] | Callable[[Value, Key], object],
        *,
        group: Callable[[Value], Hashable] | None = None,
        capacity: int = 100_000,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if isinstance(source, type):
            raise TypeError(f"{source.__name__} is a class; pass an instance of it")
        if isinstance(source, Source):
            if group is not None:
                raise ValueError("group= is for a predicate; this source needs none")
            self._source: Source[Value, Key] = source
        else:
            self._source = _Predicate(source) if group is None else _GroupedPredicate(source, group)
        self._needs_selectors = bool(getattr(source, "needs_selectors", False))
        self._values: SortedDict = SortedDict()  # id -> value
        self._ids: dict[Value, int] = {}  # value -> id
        self._alive = BitMap64()  # the ids that are in use
        # The values from the id `_base` on, with None for those removed.  For many ids
        # a list is twice as fast as a dict, and it costs 8 bytes an id.
        self._recent: list[Value | None] = []
        self._base = 0
        # With 32 bits, a hub with 200 new connections a second would run out in 248
        # days.
        self._next_id = 0
        self._removals = 0  # how many values were removed so far
        self._entries: SegmentedCache[Key, _Entry] = SegmentedCache(capacity)
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
            if (known := self._ids.get(value)) is not None:
                self._source.add(known, self._values[known], selectors)
                return known
            id = self._next_id
            self._source.add(id, value, selectors)
            if self._next_id != id:
                self._source.discard(id, value)
                raise RuntimeError("another value was added while the source took this one in")
            self._next_id = id + 1
            self._values[id] = value
            self._ids[value] = id
            self._alive.add(id)
            self._recent.append(value)
            # Drop the oldest half of the list, once for as many additions: O(1) each.
            if len(self._recent) > 2 * len(self._ids) + SPARE:
                self._base = id - len(self._ids)
                del self._recent[: -len(self._ids) - 1]
            return id

    def remove(self, value: Value) -> None:
        """Remove `value`.

        Takes O(log n), whatever is cached.  Raises KeyError if it is absent.
        """
        with self._lock:
            id = self._ids[value]
            # The stored value, and not an equal one that the source may treat
            # differently.
            self._source.discard(id, self._values[id])
            del self._ids[value]
            del self._values[id]
            self._alive.discard(id)
            if id >= self._base:
                self._recent[id - self._base] = None
            self._removals += 1

    def discard(self, value: Value) -> bool:
        """Remove `value` if it is present, and return whether it was.

        Takes O(log n).
        """
        with self._lock:
            if value not in self._ids:
                return False
            self.remove(value)
            return True

    def __contains__(self, value: object) -> bool:
        return value in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Value]:
        """Iterate over a snapshot of the values, oldest first."""
        with self._lock:
            return iter(self._resolve(self._alive))

    def walk(self, start: int = 0) -> Iterator[tuple[int, Value]]:
        """Iterate over (id, value) pairs from the id `start` on, oldest first.

        Takes O(log n) a step and holds no lock between steps: a value that is removed
        meanwhile is left out, and one that is added meanwhile is included.
        """
        while True:
            with self._lock:
                id = next(self._values.irange(start), None)
                if id is None:
                    return
                value = self._values[id]
            yield id, value
            start = id + 1

    # -- matching

    def match_any(self, *keys: Key) -> list[Value]:
        """Return the values that match any of `keys`, oldest first, without repeats.

        Takes O(m) for m matches if every key is cached.  Otherwise each key also pays
        for the values added since it was last used: a call of the predicate for each of
        them, or one walk of a SelectorIndex.
        """
        with self._lock:
            return self._resolve(self._any(keys))

    def match_all(self, *keys: Key) -> list[Value]:
        """Return the values that match all of `keys`, oldest first; all values without
        keys.

        Costs as much as `match_any`, and stops at the first key that leaves no value.
        """
        with self._lock:
            left = self._alive.copy()
            for key in keys:
                left &= self._current(self._extend(key))
                if not left:
                    return []
            return self._resolve(left)

    def matches(self, *keys: Key) -> bool:
        """Return whether any value matches any of `keys`.  Stops at the first match."""
        with self._lock:
            return any(self._passes(key) for key in keys)

    def bitmap(self, *keys: Key) -> BitMap64:
        """Return the ids of the values that match any of `keys`, as a bitmap of the
        caller's own.
        """
        with self._lock:
            passed = self._any(keys)
            return passed.copy() if len(keys) == 1 else passed

    def values(self, ids: BitMap64) -> list[Value]:
        """Return the values with these ids, oldest first, without ids that are not in
        use.
        """
        with self._lock:
            return self._resolve(ids & self._alive)

    # -- internals; the lock is held

    def _any(self, keys: tuple[Key, ...]) -> BitMap64:
        """Return the union over `keys`; for one key its own bitmap, which must not be
        changed.
        """
        if len(keys) == 1:
            return self._current(self._extend(keys[0]))
        # Extend every key before reading any bitmap: a predicate may remove values.
        entries = [self._extend(key) for key in keys]
        union = BitMap64()
        for entry in entries:
            union |= self._current(entry)
        return union

    def _extend(self, key: Key) -> _Entry:
        """Return the key's entry, with every present value decided."""
        entry = self._entries.get(key)
        if entry is not None and entry.cursor == self._next_id:
            return entry
        return self._ask(key, entry)

    def _passes(self, key: Key) -> bool:
        entry = self._entries.get(key)
        # 1. A known match is enough, however many values are undecided.
        if entry is not None and self._current(entry):
            return True
        # 2. Otherwise look for the first match among the undecided values.
        if entry is None or entry.cursor < self._next_id:
            entry = self._ask(key, entry, first=True)
        return bool(self._current(entry))

    def _ask(self, key: Key, entry: _Entry | None, *, first: bool = False) -> _Entry:
        """Return the key's entry, or a new one, after asking the source about undecided
        values.

        With `first`, stop at the first value that matches.  If the source raises,
        nothing has changed.
        """
        end, removals = self._next_id, self._removals
        fresh = self._source.ids_matching(key, self._values, 0 if entry is None else entry.cursor)
        if not isinstance(fresh, BitMap64):
            if first:
                fresh = list(islice((id for id in fresh if id in self._alive), 1))
                if fresh:
                    end = fresh[0] + 1  # the ids before it were tested and did not pass
            fresh = BitMap64(list(fresh))
        if fresh and fresh.max() >= self._next_id:
            raise ValueError(f"id {fresh.max()} is not of this filter: an index serves one SkipFilter")
        # Only now: a predicate may have raised, or have asked about the same key.
        if entry is None and (entry := self._entries.get(key)) is None:
            entry = _Entry(fresh.copy(), end, removals)
            self._entries.add(key, entry)
        else:
            entry.take(fresh, end, removals)
        return entry

    def _current(self, entry: _Entry) -> BitMap64:
        """Return the ids that matched and are still in use."""
        if entry.removals != self._removals:
            entry.passed &= self._alive
            entry.removals = self._removals
        return entry.passed

    def _resolve(self, ids: BitMap64) -> list[Value]:
        """Return the values of `ids`, all of which are in use.

        1. One id: a plain lookup, because itemgetter would not return a tuple.
        2. A few ids: itemgetter on the dict.
        3. Many: itemgetter on the list of recent values, which is twice as fast; older
           values come from the dict, one by one.
        """
        count = len(ids)
        if not count:
            return []
        if count == 1:
            id = ids.min()
            return [self._values[id] if id < self._base else self._recent[id - self._base]]  # type: ignore[list-item]
        if count < FEW:
            return list(itemgetter(*ids.to_array())(self._values))
        recent = ids.shift(-self._base) if self._base else ids
        older = count - len(recent)
        found = [self._values[id] for id in ids.to_array()[:older]] if older else []
        if len(recent) > 1:
            return [*found, *itemgetter(*recent.to_array())(self._recent)]
        return [*found, *(self._recent[at] for at in recent)]

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            assert {id: value for value, id in self._ids.items()} == dict(self._values)
            assert BitMap64(self._values) == self._alive
            assert list(self._values) == sorted(self._values)
            assert all(id < self._next_id for id in self._values)
            assert self._recent == [self._values.get(id) for id in range(self._base, self._next_id)]
            self._entries._check()
            for entry in self._entries.entries():
                assert 0 <= entry.cursor <= self._next_id
                assert entry.removals <= self._removals
                assert not entry.passed or entry.passed.max() < entry.cursor
                if entry.removals == self._removals:
                    assert entry.passed <= self._alive

"""SkipFilter: which of these values pass this key, without asking twice.

A value gets the next id when it is added; ids are never reused.  So what a key has not tested yet is a
suffix of the ids, and one integer says where it starts.

    ids            0   1   2   3   4   5        "-" was removed: alive = {0, 1, 3, 4, 5}
    values         a   b   -   c   d   e
    entry["even"]  passed = {0, 2, 3}   cursor = 4    match_any("even") tests d and e, nobody else

A removal touches no bitmap: it takes the id out of `alive` and is counted.  An entry that has not followed as
many is intersected with `alive` when it is next asked, so `passed` above loses the 2 then.

Source: K. Burns, skipfilter (Go), 2022, for the cursor and the lazy eviction; the inverted bitmaps of
Svalgaard and Tveden, 1980, for the rest.
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
"""Places in the list of recent values beyond two a value."""
FEW: Final = 8
"""Ids that are looked up one by one."""

Value = TypeVar("Value")
Key = TypeVar("Key")
ValueIn = TypeVar("ValueIn", contravariant=True)
KeyIn = TypeVar("KeyIn", contravariant=True)


@runtime_checkable
class Source(Protocol[ValueIn, KeyIn]):
    """What a SkipFilter extends a bitmap with.

    `add` and `discard` follow the filter's values, for a source that keeps an index of them; one that
    raises refuses the change.  `add` is called again, with the same id, for a value that is there.  A filter
    calls all three under its lock.
    """

    def add(self, id: int, value: ValueIn, selectors: Iterable[Selector | CompiledSelector]) -> None: ...
    def discard(self, id: int, value: ValueIn) -> None: ...

    def ids_matching(self, key: KeyIn, values: SortedDict, start: int) -> Iterable[int]:
        """The ids from `start` on whose values pass `key`: ascending, lazily if that is cheaper, or a bitmap.

        A bitmap is not changed by the filter, and may hold ids before `start` that pass.  `values` maps the ids
        to the values.  Where it calls out, it must do so from a snapshot: what it calls may add and remove.
        """
        ...


class _Predicate(Generic[Value, Key]):
    """The source that asks `test` about each value."""

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
    """The source that asks `test` about one value of each group.

    Its mutable state is `_members`: group -> ids of the live values in it, never empty.
    """

    def __init__(self, test: Callable[[Value, Key], object], group: Callable[[Value], Hashable]) -> None:
        self._test = test
        self._group = group
        self._members: dict[Hashable, BitMap64] = {}

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
        """(one value, the ids from `start` on) of each group: a cold key pays for the groups alone."""
        if start == 0:
            return [(values[members.min()], members.copy()) for members in self._members.values()]
        fresh: dict[Hashable, tuple[Value, BitMap64]] = {}
        for id in values.irange(start):
            value = values[id]
            fresh.setdefault(self._group(value), (value, BitMap64()))[1].add(id)
        return list(fresh.values())


def _refuse(selectors: Iterable[Selector | CompiledSelector]) -> None:
    if tuple(selectors):
        raise ValueError("a predicate decides by itself; selectors go with a SelectorIndex")


@dataclass(slots=True)
class _Entry:
    """What a key knows: every id below `cursor` is decided, and is in `passed` if it passed.

    `removals` is how many of the filter's `passed` has followed.
    """

    passed: BitMap64
    cursor: int
    removals: int

    def take(self, fresh: BitMap64, cursor: int, removals: int) -> None:
        """Add what passed of the ids below `cursor`, at a time when there had been so many `removals`."""
        self.passed |= fresh
        self.cursor = max(self.cursor, cursor)
        self.removals = min(self.removals, removals)  # what passed may have been removed since


class SkipFilter(Generic[Value, Key]):
    """Values, and for each key the values that pass it.

    `source` is a predicate `test(value, key)`, or a `Source` such as `SelectorIndex`, to which values declare
    what they want.  A predicate must be pure: a value is asked about a key once, as long as the key stays cached.
    It may add and remove values while it runs; values that it adds are seen by the next question.  If it raises, the
    caller gets the error, and the filter knows of that key what it knew before: a new key takes no posting list.

    `group` names values that answer every key alike: those with an equal group share one test.  It must
    be stable while the value is in the filter.

    `capacity` bounds the cached keys; those that were asked for once make room first.  A key costs about 200
    bytes beside its bitmap, which takes N/8 bytes at most for N ids, and far less where few pass.

    Every method may be called from any thread.  `lock=contextlib.nullcontext()` takes the lock away
    where one thread does everything.  A filter cannot be copied or pickled: TypeError.

    >>> multiples = SkipFilter(lambda value, key: value % key == 0)
    >>> for number in range(10):
    ...     _ = multiples.add(number)
    >>> multiples.match_any(2, 3)
    [0, 2, 3, 4, 6, 8, 9]
    >>> multiples.match_all(2, 3)
    [0, 6]
    """

    # All its mutable state: the values by id and the ids by value, `_alive` (the same ids as a bitmap), the
    # next id, the number of removals so far, the entries, and `_recent`, the values by id again:
    # those from the id `_base` on, None where one was removed.  A list is twice as fast as a dict for many
    # ids, and costs 8 bytes an id; `add` lets go of what is more than two ids a value.
    # Ids are 64 bits wide: a hub with 200 arrivals a second would use up 32 bits in 248 days.

    def __init__(
        self,
        source: Source[Value, Key] | Callable[[Value, Key], object],
        *,
        group: Callable[[Value], Hashable] | None = None,
        capacity: int = 100_000,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if isinstance(source, type):
            raise TypeError(f"{source.__name__} is a class; a source is made of it first")
        if isinstance(source, Source):
            if group is not None:
                raise ValueError("group= goes with a predicate; this source decides by itself")
            self._source: Source[Value, Key] = source
        else:
            self._source = _Predicate(source) if group is None else _GroupedPredicate(source, group)
        self._values: SortedDict = SortedDict()
        self._ids: dict[Value, int] = {}
        self._alive = BitMap64()
        self._recent: list[Value | None] = []
        self._base = 0
        self._next_id = 0
        self._removals = 0
        self._entries: SegmentedCache[Key, _Entry] = SegmentedCache(capacity)
        self._lock = threading.RLock() if lock is None else lock

    __reduce__ = not_copied

    # -- the values

    def add(self, value: Value, selectors: Iterable[Selector | CompiledSelector] = ()) -> int:
        """The id of `value`, which is in the filter from now on.  One that was there keeps its id.

        `selectors` are what it declares to a source that takes selectors.  Raises what the source refuses, and
        then nothing was changed: a SelectorIndex refuses other selectors for a value that is there.
        """
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
            if len(self._recent) > 2 * len(self._ids) + SPARE:
                self._base = id - len(self._ids)
                del self._recent[: -len(self._ids) - 1]
            return id

    def remove(self, value: Value) -> None:
        """Take `value` out.  O(log n), whatever is cached.  Raises KeyError where it is not in."""
        with self._lock:
            id = self._ids[value]
            self._source.discard(id, self._values[id])  # not an equal one, of which the source may think otherwise
            del self._ids[value]
            del self._values[id]
            self._alive.discard(id)
            if id >= self._base:
                self._recent[id - self._base] = None
            self._removals += 1

    def discard(self, value: Value) -> bool:
        """Take `value` out if it is in, and tell whether it was."""
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
        """The values, oldest first, as they are now: later changes do not show."""
        with self._lock:
            return iter(self._resolve(self._alive))

    def walk(self, start: int = 0) -> Iterator[tuple[int, Value]]:
        """(id, value) from the id `start` on, oldest first.  O(log n) a step.

        It holds no lock between steps: a value removed meanwhile is left out, one added meanwhile is met.
        """
        while True:
            with self._lock:
                id = next(self._values.irange(start), None)
                if id is None:
                    return
                value = self._values[id]
            yield id, value
            start = id + 1

    # -- the questions

    def match_any(self, *keys: Key) -> list[Value]:
        """The values that pass any of `keys`, oldest first, each once.

        O(m) for m matches once every key is warm.  A key pays for the values added since it was last asked: a
        predicate's call for each of them, or one walk of a SelectorIndex.
        """
        with self._lock:
            return self._resolve(self._any(keys))

    def match_all(self, *keys: Key) -> list[Value]:
        """The values that pass all of `keys`, oldest first; every value where there is no key.

        Stops asking as soon as nobody is left.
        """
        with self._lock:
            left = self._alive.copy()
            for key in keys:
                left &= self._current(self._extend(key))
                if not left:
                    return []
            return self._resolve(left)

    def matches(self, *keys: Key) -> bool:
        """Whether any value passes any of `keys`.  Tests no more values than it takes to say so."""
        with self._lock:
            return any(self._passes(key) for key in keys)

    def bitmap(self, *keys: Key) -> BitMap64:
        """The ids of the values that pass any of `keys`, for algebra of the caller's own; it is the caller's."""
        with self._lock:
            passed = self._any(keys)
            return passed.copy() if len(keys) == 1 else passed

    def values(self, ids: BitMap64) -> list[Value]:
        """The values with these ids, oldest first.  An id that is no longer in use is left out."""
        with self._lock:
            return self._resolve(ids & self._alive)

    # -- underneath, with the lock held

    def _any(self, keys: tuple[Key, ...]) -> BitMap64:
        """The union over `keys`; for a single key its own bitmap, which is only to be read."""
        if len(keys) == 1:
            return self._current(self._extend(keys[0]))
        # Every key is extended before any bitmap is read: a predicate may remove values while it runs.
        entries = [self._extend(key) for key in keys]
        union = BitMap64()
        for entry in entries:
            union |= self._current(entry)
        return union

    def _extend(self, key: Key) -> _Entry:
        """Return the key's entry, with every value decided that is in the filter now."""
        entry = self._entries.get(key)
        if entry is not None and entry.cursor == self._next_id:
            return entry
        return self._ask(key, entry)

    def _passes(self, key: Key) -> bool:
        entry = self._entries.get(key)
        if entry is not None and self._current(entry):
            return True
        if entry is None or entry.cursor < self._next_id:
            entry = self._ask(key, entry, first=True)
        return bool(self._current(entry))

    def _ask(self, key: Key, entry: _Entry | None, *, first: bool = False) -> _Entry:
        """Return the key's entry, its own or a new one, with what the source says of the values it has not decided.

        With `first`, the first that passes is enough.  If the source raises, nothing is remembered.
        """
        end, removals = self._next_id, self._removals
        fresh = self._source.ids_matching(key, self._values, 0 if entry is None else entry.cursor)
        if not isinstance(fresh, BitMap64):
            if first:
                fresh = list(islice((id for id in fresh if id in self._alive), 1))
                if fresh:
                    end = fresh[0] + 1  # the ids before it were tested and did not pass
            fresh = BitMap64(list(fresh))
        # Only now, as a predicate may have raised, or have asked about the same key.
        if entry is None and (entry := self._entries.get(key)) is None:
            entry = _Entry(fresh.copy(), end, removals)
            self._entries.add(key, entry)
        else:
            entry.take(fresh, end, removals)
        return entry

    def _current(self, entry: _Entry) -> BitMap64:
        """What passed and is still here."""
        if entry.removals != self._removals:
            entry.passed &= self._alive
            entry.removals = self._removals
        return entry.passed

    def _resolve(self, ids: BitMap64) -> list[Value]:
        count = len(ids)
        if not count:
            return []
        if count == 1:
            id = ids.min()
            return [self._values[id] if id < self._base else self._recent[id - self._base]]  # type: ignore[list-item]
        # itemgetter is the fastest way from ids to values, but for one id it returns no tuple.
        if count < FEW:
            return list(itemgetter(*ids.to_array())(self._values))
        recent = ids.shift(-self._base) if self._base else ids
        older = count - len(recent)
        found = [self._values[id] for id in ids.to_array()[:older]] if older else []
        if len(recent) > 1:
            return [*found, *itemgetter(*recent.to_array())(self._recent)]
        return [*found, *(self._recent[at] for at in recent)]

    def _check(self) -> None:
        """Assert every invariant; for tests."""
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

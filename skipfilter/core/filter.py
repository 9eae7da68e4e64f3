"""SkipFilter: a set of values, and for each key the subset that matches it.

Each value gets the next integer id; ids are never reused.  The values that a key has
not been tested against are therefore always the newest ones, and a single integer,
the cursor, marks where they start.

    ids            0   1   2   3   4   5     the value at id 2 was removed:
    values         a   b   -   c   d   e     alive = {0, 1, 3, 4, 5}
    entry["even"]  matched = {0, 2, 3}   cursor = 4
                   match_any("even") tests only d and e

A removal does not look for cached bitmaps: it takes the id out of `alive` and
increments a counter.  If an entry has not seen all removals when it is next used, it is
intersected with `alive` first; above, `matched` then loses the 2.

Source: K. Burns, skipfilter (Go), 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from skipfilter.core.container import Container, Stats, garbage_later, listed, lock_of, names, pairs_of
from skipfilter.core.entries import Entries
from skipfilter.core.sources import (
    Declarations,
    GroupedPredicate,
    Index,
    Predicate,
    Source,
    checked,
    no_selectors,
    omitted,
)
from skipfilter.core.values import Values
from skipfilter.errors import absent, note, require_ints
from skipfilter.posting_list import as_bitmap, union
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from pyroaring import BitMap64

    from skipfilter.topics.explanation import Explanation
    from skipfilter.topics.matchers import CompiledSelector, Matcher, Selector

Value = TypeVar("Value")
Key = TypeVar("Key")
Selectors: TypeAlias = "Iterable[Selector | CompiledSelector | Matcher]"


class SkipFilter(Container[Value, "tuple[Selector, ...]"], Generic[Value, Key]):
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

    `capacity` is the maximum number of cached keys, which take up to about `max_bytes`
    bytes with their bitmaps; keys that were used only once are evicted first, and if
    there is an index they are not cached at all.  A key takes about 400 bytes, its own
    size, and its bitmap, which takes up to N/8 bytes for N ids, and far less if few
    match.  A key with one posting list in an index needs no bitmap.  The size of a key
    is what `sys.getsizeof` says of it and of the items of a tuple or frozenset; a class
    of your own says it in `__sizeof__`.

    Every method may be called from any thread.  If only one thread uses the filter,
    `lock=contextlib.nullcontext()` saves the locking.  Raises TypeError if a filter is
    copied or pickled.

    >>> multiples = SkipFilter(lambda value, key: value % key == 0)
    >>> multiples.add_many(range(10))
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
        self._lock = lock_of(lock)
        require_ints(capacity=capacity, max_bytes=max_bytes)
        self._values: Values[Value] = Values()
        self._resolve = self._values.resolve
        self._source: Source[Value, Key] | Index[Value, Key]
        if isinstance(source, (Source, Index)) and not isinstance(source, type):
            if group is not None:
                raise ValueError("group= is for a predicate; this source needs none")
            self._source = source
        elif group is None:
            self._source = Predicate(checked(source), self._values)
        else:
            self._source = GroupedPredicate(checked(source), self._values, checked(group, 1))
        self._needs_selectors = bool(getattr(source, "needs_selectors", False))
        self._entries = Entries(self._values, self._source, capacity, max_bytes)
        self._matched = self._entries.matched

    def __repr__(self) -> str:
        return f"<SkipFilter: {len(self):,} values, {len(self._entries):,} cached keys>"

    # -- the values

    def add(self, value: Value, selectors: Selectors | None = None) -> None:
        """Add `value`.  A value that is in the filter keeps its place.

        `selectors` are those that the value declares, if the source takes selectors;
        None means that they are omitted.  Takes O(log n), and the time of the source.
        If the source raises, nothing has changed; a SelectorIndex raises ValueError if
        the value is in the filter with other selectors.  Raises TypeError if selectors
        are omitted and the source needs them.
        """
        if selectors is None:
            if self._needs_selectors:
                raise omitted(value)
            selectors = ()
        with self._lock:
            values = self._values
            if (known := values.id_of(value)) is not None:
                self._source.add(known, values.by_id[known], selectors)
                return
            id = values.next_id
            self._source.add(id, value, selectors)
            if values.next_id != id:
                if values.id_of(value) is not None:  # `selectors` has added it
                    return
                self._source.discard(id, value)
                raise RuntimeError("another value was added while the source took this one in")
            try:
                values.add(value)
            except BaseException:  # the hash of the value, which may be the caller's own code
                self._source.discard(id, value)
                raise

    def add_many(
        self, items: Iterable[tuple[Value, Selectors]] | Mapping[Value, Selectors] | Iterable[Value], /
    ) -> None:
        """Add values in one step: no lookup sees only some of them.

        `items` are pairs of a value and its selectors, or a mapping; for a predicate,
        they are the values alone.  If the source raises, nothing has changed, and the
        error has a note that names the value.  Takes about a quarter less time than
        `add` of each, and holds the lock for all of it; Python collects no garbage
        meanwhile.
        """
        with garbage_later():
            pairs = self._pairs(items)
            with self._lock:
                fresh = self._fresh(pairs)
                del pairs  # of a million values, they are 100 MB
                id = self._values.next_id
                add_many = getattr(self._source, "add_many", None)
                if add_many is None:
                    self._add_each(id, fresh)
                else:
                    add_many(id, fresh.items())
                    if self._values.next_id != id:
                        for at, value in enumerate(fresh, id):
                            self._source.discard(at, value)
                        raise RuntimeError("another value was added while the source took these in")
                self._values.add_many(list(fresh))

    def replace(self, value: Value, selectors: Selectors) -> None:
        """Give a value other selectors, in one step: no lookup sees both, or none.

        The value is the newest then, with a new id.  Costs as much as `add` and
        `remove`.  If the source raises, nothing has changed.  Raises KeyError if the
        value is absent, and TypeError if the source takes no selectors.
        """
        source = self._declarations()
        with self._lock:
            id = self._values.id_of(value)
            if id is None:
                raise absent(value)
            source.replace(id, self._values.next_id, self._values.by_id[id], selectors)
            self._values.renew(id)

    def id_of(self, value: Value) -> int:
        """Return the id of `value`.  Raises KeyError if it is absent.  Takes O(1)."""
        with self._lock:
            id = self._values.id_of(value)
        if id is None:
            raise absent(value)
        return id

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
            return self._resolve(self._matched(keys[0]) if len(keys) == 1 else self._any(keys))

    def match_all(self, *keys: Key) -> list[Value]:
        """Return the values that match all of `keys`, oldest first; all values without
        keys.

        Costs as much as `match_any`, and stops at the first key that leaves no value.
        """
        with self._lock:
            if len(keys) == 1:
                return self._resolve(self._matched(keys[0]))
            left = self._values.alive
            for key in keys:
                ids = self._matched(key)
                left = left & (as_bitmap(ids) if isinstance(ids, int) else ids)
                if not left:
                    return []
            # The predicate of a later key may have removed values.
            return self._resolve(left & self._values.alive)

    def matches(self, *keys: Key) -> bool:
        """Return whether any value matches any of `keys`.  Stops at the first match.

        Costs as much as `match_any` at worst, without the values: O(1) if a match is
        cached, and an AND of bitmaps after a removal.
        """
        with self._lock:
            return any(self._entries.matches(key) for key in keys)

    def bitmap(self, *keys: Key) -> BitMap64:
        """Return the ids of the values that match any of `keys`, as a bitmap of the
        caller's own.

        Costs as much as `match_any`, and a copy of the bitmap instead of the values.
        """
        with self._lock:
            return as_bitmap(self._matched(keys[0])) if len(keys) == 1 else self._any(keys)

    def values(self, ids: BitMap64) -> list[Value]:
        """Return the values with these ids, oldest first, without ids that are not in
        use.

        Takes O(ids).
        """
        with self._lock:
            return self._resolve(ids & self._values.alive)

    def forget(self, key: Key) -> bool:
        """Forget what is cached of `key`, and return whether anything was.

        Takes O(1).  The next question tests all values again, for example because the
        data behind a predicate has changed.
        """
        with self._lock:
            return self._entries.forget(key)

    # -- for people

    def stats(self) -> Stats:
        """Return how much is held and cached, and about how many bytes it takes.

        Takes O(1).  Of a source of your own, only the cache and the values are known.

        >>> even = SkipFilter(lambda value, key: value % key == 0)
        >>> even.match_any(2), even.match_any(2), even.stats().keys, even.stats().misses
        ([], [], 1, 1)
        """
        with self._lock:
            patterns = pattern_bytes = index_bytes = 0
            if isinstance(self._source, Declarations):
                patterns, pattern_bytes, index_bytes = self._source.sizes()
            return Stats(
                values=len(self._values),
                patterns=patterns,
                keys=len(self._entries),
                misses=self._entries.misses,
                value_bytes=self._values.size,
                pattern_bytes=pattern_bytes,
                index_bytes=index_bytes,
                cache_bytes=self._entries.size,
            )

    def explain(self, key: Key, value: Value) -> list[Explanation]:
        """Return, for each selector of `value`, whether it matches `key`, and why.

        Compiles and tests each selector, which costs as much as its matcher says, and
        some small changes of one that does not match; all without the lock.  Raises
        KeyError if the value is absent, and TypeError if the source takes no selectors,
        or no such key.

        >>> from skipfilter import SelectorIndex
        >>> readers = SkipFilter(SelectorIndex())
        >>> readers.add("bob", [("uritemplate", "/books/{id}"), ("amqp", "stock.*")])
        >>> matching, other = readers.explain("/books/1", "bob")
        >>> matching.selector, matching.variables, matching.reason
        (('uritemplate', '/books/{id}'), {'id': '1'}, None)
        >>> print(other)
        amqp 'stock.*' does not match: word 1 is '/books/1'
        """
        return self._declarations().explain(key, value)

    # -- internals; the lock is held

    def _declarations(self) -> Declarations[Value, Key]:
        if not isinstance(self._source, Declarations):
            raise TypeError("the values of this filter declare nothing: its source decides what matches")
        return self._source

    def _declared(self, value: Value) -> tuple[Selector, ...]:
        return self._declarations().declared(value)

    def _remove(self, id: int, value: Value) -> None:
        self._source.discard(id, value)
        self._values.remove(id)

    def _emptied(self) -> object:
        clear = getattr(self._source, "clear", None)
        if clear is None and self._values:
            return None
        held = clear() if clear is not None else None
        return held, self._entries.clear(), self._values.clear()

    def _pairs(
        self, items: Iterable[tuple[Value, Selectors]] | Mapping[Value, Selectors] | Iterable[Value]
    ) -> list[tuple[Value, Selectors]]:
        """Return the items of `add_many` as pairs."""
        if not isinstance(self._source, (Predicate, GroupedPredicate)):
            return pairs_of(items)  # type: ignore[arg-type]
        if isinstance(items, Mapping):
            raise no_selectors()
        return [(value, ()) for value in listed(items)]  # type: ignore[misc]

    def _fresh(self, pairs: list[tuple[Value, Selectors]]) -> dict[Value, Selectors]:
        """Return the values that are not in the filter, with their selectors.

        A value that is there, or comes twice, must have the same selectors again.
        """
        fresh: dict[Value, Selectors] = {}
        try:
            for value, selectors in pairs:
                if selectors is None:
                    raise omitted(value)
                if (known := self._values.id_of(value)) is not None:
                    self._source.add(known, self._values.by_id[known], selectors)
                elif value not in fresh:
                    fresh[value] = selectors
                else:
                    fresh[value] = tuple(fresh[value])  # also if it was an iterator, which has ended then
                    if _in_any_order(fresh[value]) != _in_any_order(selectors):
                        raise ValueError(f"{brief(value)} comes twice, with different selectors")
        except Exception as error:
            note(error, value)
            raise
        return fresh

    def _add_each(self, first: int, fresh: Mapping[Value, Selectors]) -> None:
        """Add values to a source that cannot add many, or none of them."""
        added: list[Value] = []
        try:
            for value, selectors in fresh.items():
                with names(value):
                    self._source.add(first + len(added), value, selectors)
                    added.append(value)
                    if self._values.next_id != first:
                        raise RuntimeError("another value was added while the source took this one in")
        except BaseException:
            for at, value in enumerate(added, first):
                self._source.discard(at, value)
            raise

    def _any(self, keys: tuple[Key, ...]) -> BitMap64:
        """Return the union over `keys`, as a new bitmap."""
        removals = self._values.removals
        found = union([self._matched(key) for key in keys])
        # The predicate of a later key may have removed values.
        return found if removals == self._values.removals else found & self._values.alive

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            self._values._check()
            self._entries._check()


def _in_any_order(selectors: Selectors) -> set[object]:
    """Return selectors without their order; a pair may be a list, as JSON has it."""
    return {tuple(one) if isinstance(one, list) else one for one in selectors}

"""FieldFilter: finds the values whose criteria a message meets, any of them or all.

A criterion names a field and its required content, or only a field, which must be
present.  Each criterion has a row: the ids of the values that declare it.  The number
of a message's rows that hold an id is the id's hit count.  OR needs at least one hit,
AND as many hits as the value has requirements.  A requirement is one criterion, or all
criteria that name a content of the same field; these are alternatives, and a message
meets at most one of them.

    id  value criteria                   rows  currency=USD {0, 1}   currency=EUR {1, 2}
    0   alice currency=USD, urgent             market=forex {2}      urgent       {0, 3}
    1   bob   currency=EUR, currency=USD
    2   carol market=forex, currency=EUR needed: numbers of requirements, as bit planes
    3   dave  urgent                           2's {0, 2}            1's {1, 3}

    {market: forex, currency: EUR}  ->  hits as bit planes 2's {2}, 1's {1}
                                        any: bob, carol   all: bob, carol

AND has two algorithms, and uses the one that is cheaper for the message:

*Access predicates.*  Values with equal criteria share a list of ids.  The list is in
the buckets of one requirement, the rarest at the time when the first of the values
came. Only the buckets of the message's rows are read, and a set of criteria in them is
met if it is a subset of these rows.  A set with alternatives is met if the number of
its criteria in these rows is the number of its requirements.  O(sets in these buckets).

    buckets  currency=USD  {currency=USD, urgent}: [0],
                           {currency=EUR, currency=USD}: [1]

*Bit slices.*  The rows are added up into bit planes, and each carry ripples into the
next plane.  No id has more hits than requirements, so an id has all of them if no bit
that it needs is missing; above, 1 and 2 remain.  O(rows x planes) bitmap operations,
however many values match.

Ids are in order of arrival.  If more than half of them are out of use, all ids are
renumbered in the same order, because bitmaps of sparse ids are slow and large.

Source: L. Svalgaard and B. Tveden, 1980, for inverted bitmaps; P. Hintjens, High-speed
message matching, iMatix, for the hit counts and the example; F. Fabret et al.,
Filtering algorithms and implementation for very fast publish/subscribe systems, SIGMOD
2001, for access predicates; P. O'Neil and D. Quass, Improved query performance with
variant indexes, SIGMOD 1997, for bit slices.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from pyroaring import BitMap

from skipfilter.errors import LimitError, not_copied
from skipfilter.values import Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

Value = TypeVar("Value")
_Key = TypeVar("_Key")
Criterion: TypeAlias = str | tuple[str, Hashable]
"""A field that must be present, or a field and its required value."""
Row: TypeAlias = tuple[Hashable, ...]
"""(field,) or (field, value); () is the bucket of values without criteria."""

MAX_CRITERIA = 100
"""The maximum number of criteria of one value."""

CANDIDATES = 500
"""Above this number of candidates, bit slices are faster (bench/results/fields.json).
"""

SLACK = 1_024
"""Ids that may be out of use, beyond the number of those in use, before a renumbering.
"""


def parse_criteria(criteria: Iterable[Criterion]) -> tuple[Row, ...]:
    """Return the rows of `criteria`, in their order, without repeats.

    Raises ValueError if an item is not a criterion, or its value is not equal to
    itself, such as NaN; and LimitError if there are more than MAX_CRITERIA.
    """
    if isinstance(criteria, (str, Mapping)):
        raise ValueError(f"criteria {criteria!r:.80}: neither a list nor a set of criteria")
    rows: dict[Row, None] = {}
    for criterion in criteria:
        match criterion:
            case str():
                rows[criterion,] = None
            case (str() as name, value):
                try:
                    rows[name, value] = None
                except TypeError as error:
                    raise ValueError(f"criterion {criterion!r:.80}: {error}") from None
                if value != value or (isinstance(value, (tuple, frozenset)) and not _is_itself(value)):
                    raise ValueError(f"criterion {criterion!r:.80}: the value is not equal to itself")
            case _:
                raise ValueError(f"criterion {criterion!r:.80}: neither a field nor a (field, value)")
        if len(rows) > MAX_CRITERIA:
            raise LimitError(f"there are more than {MAX_CRITERIA} criteria")
    return tuple(rows)


def requirements_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Group `rows` into requirements: lists of alternatives, of which one must
    be met.
    """
    together: dict[tuple[Hashable, int], list[Row]] = {}
    for row in rows:
        together.setdefault((row[0], len(row)), []).append(row)
    return list(together.values())


def rows_of(message: Mapping[str, Hashable]) -> list[Row]:
    """Return the rows that `message` meets: its fields, and its fields with their
    values.

    A value that cannot be hashed, such as a list, has no row.  Raises TypeError if
    `message` is not a Mapping.
    """
    if not isinstance(message, (dict, Mapping)):  # dict first: the check is faster
        raise TypeError(f"message {message!r:.80} is of type {type(message).__name__}, not a Mapping")
    items: list[Row] = list(message.items())
    try:
        hash(tuple(items))
    except TypeError:  # no criterion can name a value that cannot be hashed
        items = [item for item in items if _has_hash(item)]
    return [(name,) for name in message] + items


@dataclass(slots=True)
class _Group:
    """The values with one set of criteria: their ids, ascending, and their buckets."""

    criteria: frozenset[Row]
    needed: int
    access: list[Row]
    ids: list[int] = field(default_factory=list)


class FieldFilter(Generic[Value]):
    """Values with criteria on the fields of a message.

    A message is a mapping of field names to values, which are compared by == and hash,
    as the keys of a dict are: 1, 1.0 and True are equal.  Criteria that name several
    values of one field are alternatives: `match_all` needs one of them.

    Every method may be called from any thread.  If only one thread uses the filter,
    `lock=contextlib.nullcontext()` saves the locking.  Raises TypeError if a filter is
    copied or pickled.

    >>> readers = FieldFilter()
    >>> readers.add("alice", [("currency", "USD"), "urgent"])
    >>> readers.add("bob", [("currency", "EUR"), ("currency", "USD")])
    >>> readers.add("carol", [("market", "forex"), ("currency", "EUR")])
    >>> readers.match_any({"currency": "EUR", "urgent": True})
    ['alice', 'bob', 'carol']
    >>> readers.match_all({"currency": "EUR", "urgent": True})
    ['bob']
    >>> readers.hits({"market": "forex", "currency": "EUR"})
    {'bob': 1, 'carol': 2}
    """

    def __init__(self, *, lock: AbstractContextManager[Any] | None = None) -> None:
        # No bitmap, list or dict inside of these tables is ever empty.
        self._values: Values[Value] = Values()
        self._rows: dict[Row, BitMap] = {}  # row -> ids of the values that declare it
        self._needed: dict[int, BitMap] = {}  # bit -> ids whose number of requirements has it
        self._group_of: dict[Value, _Group] = {}
        self._groups: dict[frozenset[Row], _Group] = {}  # criteria -> group
        # row -> criteria -> ids of their group; see access predicates above.
        self._buckets: dict[Row, dict[frozenset[Row], list[int]]] = {}
        # The number of requirements of each set of criteria that has alternatives.
        self._choices: dict[frozenset[Row], int] = {}
        self._lock = threading.RLock() if lock is None else lock

    __reduce__ = not_copied

    # -- the values

    def add(self, value: Value, criteria: Iterable[Criterion]) -> None:
        """Add `value`.  A value that is present with the same criteria keeps its
        position.

        Repeated criteria count once.  Raises ValueError if an item is not a criterion,
        if its value is not equal to itself, such as NaN, or if `value` is present with
        other criteria; LimitError if there are more than MAX_CRITERIA.
        """
        rows = parse_criteria(criteria)
        wanted = frozenset(rows)
        with self._lock:
            if (known := self._group_of.get(value)) is not None:
                if known.criteria != wanted:
                    raise ValueError(f"{value!r:.80} is in the filter with other criteria; remove it first")
                return
            id = self._values.next_id
            group = self._groups.get(wanted) or self._open(rows, wanted)
            group.ids.append(id)
            for row in rows:
                self._rows.setdefault(row, BitMap()).add(id)
            for bit in _bits(group.needed):
                self._needed.setdefault(bit, BitMap()).add(id)
            self._values.add(value)
            self._group_of[value] = group

    def remove(self, value: Value) -> None:
        """Remove `value`.  Raises KeyError if it is absent.

        Takes O(criteria + log n), and a step for each value with the same set of
        criteria.  A renumbering, which is rare, takes O(n).
        """
        with self._lock:
            group = self._group_of.pop(value)
            id = self._values.id_of(value)
            assert id is not None
            self._values.remove(id)
            del group.ids[bisect_left(group.ids, id)]
            if not group.ids:
                self._close(group)
            for row in group.criteria:
                _leave(self._rows, row, id)
            for bit in _bits(group.needed):
                _leave(self._needed, bit, id)
            if self._values.next_id > 2 * len(self._values) + SLACK:
                self._renumber()

    def discard(self, value: Value) -> bool:
        """Remove `value` if it is present, and return whether it was."""
        with self._lock:
            if value not in self._values:
                return False
            self.remove(value)
            return True

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Value]:
        """Iterate over a snapshot of the values, oldest first."""
        with self._lock:
            return iter(list(self._values))

    # -- matching

    def match_any(self, message: Mapping[str, Hashable]) -> list[Value]:
        """Return the values with at least one criterion that `message` meets, oldest
        first.
        """
        with self._lock:
            return self._values.resolve(BitMap().union(*self._met(rows_of(message))))

    def match_all(self, message: Mapping[str, Hashable]) -> list[Value]:
        """Return the values whose criteria `message` meets, all of them, oldest first.

        Includes the values without criteria.  Of criteria that name several values of
        one field, one is enough.
        """
        rows = rows_of(message)
        with self._lock:
            buckets = self._candidates(rows)
            few = sum(map(len, buckets)) <= CANDIDATES
            return self._values.resolve(self._all_by_access(rows, buckets) if few else self._all_by_planes(rows))

    def hits(self, message: Mapping[str, Hashable]) -> dict[Value, int]:
        """Return the number of criteria that `message` meets, by value, oldest first.

        Values without a hit are left out.
        """
        with self._lock:
            planes = self._planes(rows_of(message))
            touched = BitMap().union(*planes)
            # Split the ids by each plane in turn: hit count -> ids, from the planes so
            # far.
            exactly = {0: touched}
            for bit, plane in enumerate(planes):
                exactly = {
                    count | more: ids
                    for count, known in exactly.items()
                    for more, ids in ((0, known - plane), (1 << bit, known & plane))
                    if ids
                }
            counts = dict.fromkeys(touched.to_array(), 1)
            for count, ids in exactly.items():
                if count > 1:
                    counts.update(dict.fromkeys(ids.to_array(), count))
            return dict(zip(self._values.resolve(touched), counts.values(), strict=True))

    def matches_any(self, message: Mapping[str, Hashable]) -> bool:
        """Return whether `message` meets a criterion of any value.  O(fields)."""
        with self._lock:
            return any(row in self._rows for row in rows_of(message))

    def matches_all(self, message: Mapping[str, Hashable]) -> bool:
        """Return whether `message` meets all criteria of any value.

        Stops at the first.
        """
        rows = rows_of(message)
        with self._lock:
            sets = chain.from_iterable(self._candidates(rows))
            if any(map(self._test(rows), islice(sets, CANDIDATES))):
                return True
            return next(sets, None) is not None and bool(self._all_by_planes(rows))

    # -- internals; the lock is held

    def _met(self, rows: list[Row]) -> list[BitMap]:
        return [ids for row in rows if (ids := self._rows.get(row)) is not None]

    def _candidates(self, rows: list[Row]) -> list[dict[frozenset[Row], list[int]]]:
        """Return the buckets that hold every set of criteria which `rows` could
        meet.
        """
        return [bucket for row in [(), *rows] if (bucket := self._buckets.get(row)) is not None]

    def _test(self, rows: list[Row]) -> Callable[[frozenset[Row]], bool]:
        """Return a test of whether `rows` meet all requirements of a set of
        criteria.
        """
        met = set(rows)
        choices = self._choices
        if not choices:
            return met.issuperset

        def is_met(criteria: frozenset[Row]) -> bool:
            if (needed := choices.get(criteria)) is None:
                return met.issuperset(criteria)
            return len(met & criteria) == needed

        return is_met

    def _all_by_access(self, rows: list[Row], buckets: list[dict[frozenset[Row], list[int]]]) -> BitMap:
        """Return the ids whose criteria are met, by access predicates."""
        is_met = self._test(rows)
        ids: list[int] = []
        for bucket in buckets:
            for criteria in filter(is_met, bucket):
                ids += bucket[criteria]
        return BitMap(ids)

    def _all_by_planes(self, rows: list[Row]) -> BitMap:
        """Return the ids whose criteria are met, by bit slices."""
        planes = self._planes(rows)
        left = BitMap().union(*planes)
        for bit, needed in self._needed.items():
            left -= needed - planes[bit] if bit < len(planes) else needed
        if () in self._buckets:
            left.update(self._buckets[()][frozenset()])
        return left

    def _planes(self, rows: list[Row]) -> list[BitMap]:
        """Return the hit counts of all ids: plane n holds the ids whose count has bit
        n.
        """
        planes: list[BitMap] = []
        for carry in self._met(rows):
            for bit, plane in enumerate(planes):
                planes[bit], carry = plane ^ carry, plane & carry
                if not carry:
                    break
            else:
                planes.append(carry)
        return planes

    def _open(self, rows: tuple[Row, ...], criteria: frozenset[Row]) -> _Group:
        """Make a group for a set of criteria, in the buckets of its rarest
        requirement.
        """
        requirements = requirements_of(rows)
        if len(requirements) == len(rows):
            access = [min(rows, key=lambda row: len(self._rows.get(row, ())), default=())]
        else:
            access = min(requirements, key=lambda some: sum(len(self._rows.get(row, ())) for row in some))
            self._choices[criteria] = len(requirements)
        group = self._groups[criteria] = _Group(criteria, len(requirements), access)
        for row in access:
            self._buckets.setdefault(row, {})[criteria] = group.ids
        return group

    def _close(self, group: _Group) -> None:
        """Drop a group without values."""
        del self._groups[group.criteria]
        for row in group.access:
            del self._buckets[row][group.criteria]
            if not self._buckets[row]:
                del self._buckets[row]
        self._choices.pop(group.criteria, None)

    def _renumber(self) -> None:
        """Renumber the ids from 0, in the same order."""
        new = {old: id for id, old in enumerate(self._values.by_id)}
        values, self._values = self._values, Values()
        for value in values:
            self._values.add(value)
        self._rows = {row: BitMap(map(new.__getitem__, ids)) for row, ids in self._rows.items()}
        self._needed = {bit: BitMap(map(new.__getitem__, ids)) for bit, ids in self._needed.items()}
        for group in self._groups.values():
            group.ids[:] = map(new.__getitem__, group.ids)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            self._values._check()
            assert self._values.next_id <= 2 * len(self._values) + SLACK
            assert self._group_of.keys() == set(self._values)
            sets = {id: self._group_of[value].criteria for id, value in self._values.by_id.items()}
            needed = {criteria: len(requirements_of(criteria)) for criteria in sets.values()}
            assert all(len(criteria) <= MAX_CRITERIA for criteria in sets.values())
            assert self._rows == {
                row: BitMap(id for id in sets if row in sets[id]) for row in chain.from_iterable(sets.values())
            }
            assert self._needed == {
                bit: BitMap(id for id in sets if bit in _bits(needed[sets[id]]))
                for bit in chain.from_iterable(map(_bits, needed.values()))
            }
            assert self._groups.keys() == needed.keys()
            assert self._choices == {criteria: few for criteria, few in needed.items() if few < len(criteria)}
            assert all(group is self._groups[group.criteria] for group in self._group_of.values())
            buckets: dict[Row, dict[frozenset[Row], list[int]]] = {}
            for criteria, group in self._groups.items():
                assert group.criteria == criteria
                assert group.needed == needed[criteria]
                assert group.ids == [id for id in sets if sets[id] == criteria]
                assert set(group.access) in [set(rows) for rows in requirements_of(criteria) or [[()]]]
                for row in group.access:
                    assert self._buckets[row][criteria] is group.ids
                    buckets.setdefault(row, {})[criteria] = group.ids
            assert self._buckets == buckets


def _has_hash(item: object) -> bool:
    try:
        hash(item)
    except TypeError:
        return False
    return True


def _is_itself(value: Hashable) -> bool:
    """Return whether `value`, and each item of a tuple or frozenset, equals itself."""
    # A container with a NaN equals itself, because it compares items by identity first.
    return all(map(_is_itself, value)) if isinstance(value, (tuple, frozenset)) else bool(value == value)


def _bits(number: int) -> list[int]:
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


def _leave(table: dict[_Key, BitMap], key: _Key, id: int) -> None:
    ids = table[key]
    ids.discard(id)
    if not ids:
        del table[key]

"""FieldFilter: of which of these values does a message meet the criteria, any of them or all.

A criterion names a field and the content it must have, or only a field, which must be there.  Each has a row:
the ids of the values that ask for it.  How often an id occurs in a message's rows is its hit count; OR is at
least one hit, AND as many hits as the value has requirements.  A requirement is one criterion, or all criteria
that name a content of the same field: these are alternatives, and a message meets at most one of them.

    id  value  criteria                    rows  currency=USD {0, 1}   currency=EUR {1, 2}
    0   alice  currency=USD, urgent              market=forex {2}      urgent       {0, 3}
    1   bob    currency=EUR, currency=USD
    2   carol  market=forex, currency=EUR  needed, how many requirements, as bit planes
    3   dave   urgent                            2's {0, 2}            1's {1, 3}

    {market: forex, currency: EUR}  ->  hits as bit planes 2's {2}, 1's {1}  ->  any, and all: bob, carol

AND has two ways, and takes the one that is cheaper for the message:

*Access predicates.*  Values with equal criteria share a list of ids, in the buckets of the one requirement that was
rarest when the first of them came.  Only the buckets of the message's rows are looked at, and a set of criteria
in them is met if it is a subset of these rows.  A set with alternatives is met if the number of its criteria in
these rows is the number of its requirements.  O(sets in these buckets).

    buckets  currency=USD [{currency=USD, urgent}: 0, {currency=EUR, currency=USD}: 1]   ...

*Bit slices.*  The rows are added up into bit planes, each carry rippling into the next plane.  No id has more
hits than requirements, so it has all of them where no bit that it needs is missing: above, 1 and 2 are left.
O(rows x planes) operations on bitmaps, however many match.

A value gets the next id, so ids are in order of arrival.  They are dealt out anew, in the same order, when
more than half of them are out of use: bitmaps of ids that are far apart are slow and large.

Source: L. Svalgaard and B. Tveden, 1980, for inverted bitmaps; P. Hintjens, High-speed message matching, iMatix,
for the hit counts and the example; F. Fabret et al., Filtering algorithms and implementation for very fast
publish/subscribe systems, SIGMOD 2001, for access predicates; P. O'Neil and D. Quass, Improved query performance
with variant indexes, SIGMOD 1997, for bit slices.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from pyroaring import BitMap

from skipfilter.errors import LimitError, not_copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

Value = TypeVar("Value")
_Key = TypeVar("_Key")
Criterion: TypeAlias = str | tuple[str, Hashable]
"""A field that must be there, or a field and the value that it must have."""
Row: TypeAlias = tuple[Hashable, ...]
"""(field,) or (field, value); () is the bucket of the values that have no criteria."""

MAX_CRITERIA = 100
"""The most that one value may have."""

CANDIDATES = 500
"""The most sets of criteria that are tried one by one; above it bit slices are faster (bench/results/fields.json)."""

SLACK = 1_024
"""How many more ids may be out of use than are in use."""


def parse_criteria(criteria: Iterable[Criterion]) -> tuple[Row, ...]:
    """The rows of `criteria`, in their order, each once.

    Raises ValueError for what is no criterion, and for a value that nothing is equal to, such as NaN.
    """
    if isinstance(criteria, (str, Mapping)):
        raise ValueError(f"criteria {criteria!r:.80}: neither a list nor a set of them")
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
    """`rows` in lists of which one row must be met: the values of one field are alternatives."""
    together: dict[tuple[Hashable, int], list[Row]] = {}
    for row in rows:
        together.setdefault((row[0], len(row)), []).append(row)
    return list(together.values())


def rows_of(message: Mapping[str, Hashable]) -> list[Row]:
    """The rows that `message` meets: its fields, and its fields with their values.

    Raises TypeError for what is no Mapping.
    """
    if not isinstance(message, (dict, Mapping)):  # most are a dict, which is found out sooner
        raise TypeError(f"message {message!r:.80} is of type {type(message).__name__}, not a Mapping")
    items: list[Row] = list(message.items())
    try:
        hash(tuple(items))
    except TypeError:  # nobody can ask for what has no hash, such as a list
        items = [item for item in items if _has_hash(item)]
    return [(name,) for name in message] + items


@dataclass(slots=True)
class _Group:
    """The values with one set of criteria: their ids ascending, and the rows in whose buckets they are."""

    criteria: frozenset[Row]
    needed: int
    access: list[Row]
    ids: list[int] = field(default_factory=list)


class FieldFilter(Generic[Value]):
    """Values with criteria on the fields of a message; for each message, the values whose criteria it meets.

    What a field has is compared as the keys of a dict are, by == and hash: 1, 1.0 and True are one.  Criteria that name
    several values of one field are alternatives: `match_all` needs any one of them.

    Every method may be called from any thread.  `lock=contextlib.nullcontext()` takes the lock away where one
    thread does everything.  A filter cannot be copied or pickled: TypeError.

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

    # All its mutable state: the values by id and the ids by value, both in order of arrival, the next id, the
    # bitmaps (the rows, and the planes of `needed` by bit number), the group of each value, the groups by their
    # criteria, the buckets: row -> criteria -> the ids of their group, and of the criteria with alternatives how many
    # requirements they are.  Nothing in a table is empty.

    def __init__(self, *, lock: AbstractContextManager[Any] | None = None) -> None:
        self._values: dict[int, Value] = {}
        self._ids: dict[Value, int] = {}
        self._next_id = 0
        self._rows: dict[Row, BitMap] = {}
        self._needed: dict[int, BitMap] = {}
        self._group_of: dict[Value, _Group] = {}
        self._groups: dict[frozenset[Row], _Group] = {}
        self._buckets: dict[Row, dict[frozenset[Row], list[int]]] = {}
        self._choices: dict[frozenset[Row], int] = {}
        self._lock = threading.RLock() if lock is None else lock

    __reduce__ = not_copied

    # -- the values

    def add(self, value: Value, criteria: Iterable[Criterion]) -> None:
        """Subscribe `value`; one that is there with the same criteria keeps its place.

        Criteria that repeat count once.  Raises ValueError for what is no criterion, for a value that is not equal to
        itself, such as NaN, and if `value` is there with other criteria: remove it first; LimitError for more than
        MAX_CRITERIA.
        """
        rows = parse_criteria(criteria)
        wanted = frozenset(rows)
        with self._lock:
            if (known := self._group_of.get(value)) is not None:
                if known.criteria != wanted:
                    raise ValueError(f"{value!r:.80} is there with other criteria; remove it first")
                return
            id = self._next_id
            self._next_id += 1
            group = self._groups.get(wanted) or self._open(rows, wanted)
            group.ids.append(id)
            for row in rows:
                self._rows.setdefault(row, BitMap()).add(id)
            for bit in _bits(group.needed):
                self._needed.setdefault(bit, BitMap()).add(id)
            self._values[id] = value
            self._ids[value] = id
            self._group_of[value] = group

    def remove(self, value: Value) -> None:
        """Take `value` out.  Raises KeyError where it is not in.

        O(criteria), and a step for each value with the same set of criteria; now and then one that deals the ids
        out anew takes O(n).
        """
        with self._lock:
            id = self._ids.pop(value)
            del self._values[id]
            group = self._group_of.pop(value)
            del group.ids[bisect_left(group.ids, id)]
            if not group.ids:
                self._close(group)
            for row in group.criteria:
                _leave(self._rows, row, id)
            for bit in _bits(group.needed):
                _leave(self._needed, bit, id)
            if self._next_id > 2 * len(self._ids) + SLACK:
                self._renumber()

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
            return iter(list(self._ids))

    # -- the questions

    def match_any(self, message: Mapping[str, Hashable]) -> list[Value]:
        """The values of which `message` meets at least one criterion, oldest first."""
        with self._lock:
            return self._resolve(BitMap().union(*self._met(rows_of(message))))

    def match_all(self, message: Mapping[str, Hashable]) -> list[Value]:
        """The values of which `message` meets every criterion, oldest first; so those that have none.

        Of criteria that name several values of one field, one is enough.
        """
        rows = rows_of(message)
        with self._lock:
            buckets = self._candidates(rows)
            few = sum(map(len, buckets)) <= CANDIDATES
            return self._resolve(self._all_by_access(rows, buckets) if few else self._all_by_planes(rows))

    def hits(self, message: Mapping[str, Hashable]) -> dict[Value, int]:
        """How many of its criteria `message` meets, for each value that has at least one hit, oldest first."""
        with self._lock:
            planes = self._planes(rows_of(message))
            touched = BitMap().union(*planes)
            exactly = {0: touched}  # hit count -> ids, as far as the planes so far tell
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
            return dict(zip(self._resolve(touched), counts.values(), strict=True))

    def matches_any(self, message: Mapping[str, Hashable]) -> bool:
        """Whether `message` meets a criterion of any value.  O(fields)."""
        with self._lock:
            return any(row in self._rows for row in rows_of(message))

    def matches_all(self, message: Mapping[str, Hashable]) -> bool:
        """Whether `message` meets all the criteria of any value.  Tries no more of them than it takes to say so."""
        rows = rows_of(message)
        with self._lock:
            sets = chain.from_iterable(self._candidates(rows))
            if any(map(self._test(rows), islice(sets, CANDIDATES))):
                return True
            return next(sets, None) is not None and bool(self._all_by_planes(rows))

    # -- underneath, with the lock held

    def _met(self, rows: list[Row]) -> list[BitMap]:
        return [ids for row in rows if (ids := self._rows.get(row)) is not None]

    def _candidates(self, rows: list[Row]) -> list[dict[frozenset[Row], list[int]]]:
        """The buckets in which every set of criteria is that `rows` can meet."""
        return [bucket for row in [(), *rows] if (bucket := self._buckets.get(row)) is not None]

    def _test(self, rows: list[Row]) -> Callable[[frozenset[Row]], bool]:
        """Whether `rows` meet all requirements of a set of criteria that is in the filter."""
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
        is_met = self._test(rows)
        ids: list[int] = []
        for bucket in buckets:
            for criteria in filter(is_met, bucket):
                ids += bucket[criteria]
        return BitMap(ids)

    def _all_by_planes(self, rows: list[Row]) -> BitMap:
        planes = self._planes(rows)
        left = BitMap().union(*planes)
        for bit, needed in self._needed.items():
            left -= needed - planes[bit] if bit < len(planes) else needed
        if () in self._buckets:
            left.update(self._buckets[()][frozenset()])
        return left

    def _planes(self, rows: list[Row]) -> list[BitMap]:
        """The hit counts of all ids: bit n of an id's count is whether the id is in the nth plane."""
        planes: list[BitMap] = []
        for carry in self._met(rows):
            for bit, plane in enumerate(planes):
                planes[bit], carry = plane ^ carry, plane & carry
                if not carry:
                    break
            else:
                planes.append(carry)
        return planes

    def _resolve(self, ids: BitMap) -> list[Value]:
        # itemgetter is the fastest way from ids to values, but for one id it returns no tuple.
        if len(ids) > 1:
            return list(itemgetter(*ids.to_array())(self._values))
        return [self._values[id] for id in ids]

    def _open(self, rows: tuple[Row, ...], criteria: frozenset[Row]) -> _Group:
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
        del self._groups[group.criteria]
        for row in group.access:
            del self._buckets[row][group.criteria]
            if not self._buckets[row]:
                del self._buckets[row]
        self._choices.pop(group.criteria, None)

    def _renumber(self) -> None:
        """Deal the ids out anew, from 0, in the same order."""
        new = {old: id for id, old in enumerate(self._values)}
        self._values = dict(enumerate(self._values.values()))
        self._ids = {value: id for id, value in self._values.items()}
        self._next_id = len(new)
        self._rows = {row: BitMap(map(new.__getitem__, ids)) for row, ids in self._rows.items()}
        self._needed = {bit: BitMap(map(new.__getitem__, ids)) for bit, ids in self._needed.items()}
        for group in self._groups.values():
            group.ids[:] = map(new.__getitem__, group.ids)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        with self._lock:
            assert list(self._values) == sorted(self._values)
            assert all(0 <= id < self._next_id for id in self._values)
            assert self._next_id <= 2 * len(self._values) + SLACK
            assert list(self._ids.items()) == [(value, id) for id, value in self._values.items()]
            assert self._group_of.keys() == self._ids.keys()
            sets = {id: self._group_of[value].criteria for id, value in self._values.items()}
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
    """Whether `value` is equal to itself, and so is what it holds if it is a tuple or a frozenset."""
    # With a NaN these are equal to themselves, and to no other: they look at identity first.
    return all(map(_is_itself, value)) if isinstance(value, (tuple, frozenset)) else bool(value == value)


def _bits(number: int) -> list[int]:
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


def _leave(table: dict[_Key, BitMap], key: _Key, id: int) -> None:
    ids = table[key]
    ids.discard(id)
    if not ids:
        del table[key]

"""FieldFilter: finds the values whose criteria a message meets.

A value declares a list of criteria, of which the question chooses any or all, or an
expression (see `skipfilter.expressions`), which itself says what must hold.

    id  value declares                   as a clause
    0   alice currency=USD, urgent       {currency=USD, urgent}
    1   bob   currency=EUR or USD        {currency=EUR or USD}
    2   carol all_of(market=forex,       {market=forex, not total < 100}
              not_(below(total, 100)))
    3   dave  urgent                     {urgent}

    {market: forex, currency: EUR, total: 700}  ->  bob, carol

A clause is a set of parts that must hold, and of parts that must not.  Criteria of one
field are alternatives, and become one part.  An expression has several clauses if it
is any of several; the further ones have ids from FURTHER on.  All clauses are answered
by one of two algorithms, the one that is cheaper for the message:

*Access predicates.*  Values with equal clauses share a list of ids.  The list is in the
buckets of one part, the rarest at the time when the first of the values came.  Only the
buckets of the message's fields and contents are read, and the clauses in them tested.
O(clauses in these buckets).

    buckets  currency=USD  {currency=USD, urgent}: [0]   {currency=EUR or USD}: [1]
             currency=EUR                                {currency=EUR or USD}: [1]

*Bit slices* (see `skipfilter.requirements`).  O(parts that hold * planes) operations on
bitmaps, however many values match.  Clauses of ranges, prefixes and negations alone
have no bucket, so bit slices answer them always.

Ids are in order of arrival.  If more than half of them are out of use, all ids are
renumbered in the same order, because bitmaps of sparse ids are slow and large.

Source: L. Svalgaard and B. Tveden, 1980, for inverted bitmaps; P. Hintjens, High-speed
message matching, iMatix, for the hit counts and the example; F. Fabret et al.,
Filtering algorithms and implementation for very fast publish/subscribe systems, SIGMOD
2001, for access predicates.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from pyroaring import BitMap

from skipfilter.errors import LimitError, not_copied
from skipfilter.expressions import (
    Expression,
    OneOf,
    PartExplanation,
    Present,
    clauses_of,
    explain,
    how_to_write,
    is_expression,
    literals_of,
    why_no_content,
)
from skipfilter.messages import fields_of
from skipfilter.requirements import Clauses, place, planes_of, rows_of
from skipfilter.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from skipfilter.expressions import Literal
    from skipfilter.messages import Fields
    from skipfilter.requirements import Placed, Row

Value = TypeVar("Value")
Criterion: TypeAlias = str | tuple[str, Hashable]
"""A field that must be present, or a field and its required content."""

MAX_CRITERIA: Final = 100
"""The maximum number of criteria of one value."""

CANDIDATES = 500
"""Above this number of candidates, bit slices are faster (bench/results/fields.json).
"""

SLACK = 1_024
"""Ids that may be out of use, beyond the number of those in use, before a renumbering.
"""

FURTHER: Final = 1 << 31
"""The ids from here on are those of the second and further clauses of expressions."""


def parse_criteria(criteria: Iterable[Criterion]) -> tuple[Criterion, ...]:
    """Return the criteria, in their order, without repeats.

    Raises ValueError if an item is not a criterion, or its value is not equal to
    itself, such as NaN; and LimitError if there are more than MAX_CRITERIA.
    """
    if isinstance(criteria, Mapping):
        raise ValueError(f"criteria {criteria!r:.80}: not a list; write list(criteria.items()), or an expression")
    if isinstance(criteria, str) or not isinstance(criteria, Iterable):
        raise ValueError(f"criteria {criteria!r:.80}: not a list; {how_to_write(criteria)}")
    parsed: dict[Criterion, None] = {}
    for criterion in criteria:
        match criterion:
            case str() if "=" not in criterion:
                parsed[criterion] = None
            case (str() as name, value):
                if (reason := why_no_content(value)) is not None:
                    raise ValueError(f"criterion {criterion!r:.80}: {reason}")
                parsed[name, value] = None
            case _ if is_expression(criterion):
                raise ValueError(f"criterion {criterion!r:.80}: an expression; write all_of() instead of a list")
            case _:
                raise ValueError(
                    f"criterion {criterion!r:.80}: neither a field nor a (field, value); {how_to_write(criterion)}"
                )
        if len(parsed) > MAX_CRITERIA:
            raise LimitError(f"there are more than {MAX_CRITERIA} criteria")
    return tuple(parsed)


def clause_of(criteria: Iterable[Criterion]) -> frozenset[Literal]:
    """Return the clause of a list of criteria, all of which must be met.

    Criteria of one field are alternatives.
    """
    fields: set[str] = set()
    contents: dict[str, set[Hashable]] = {}
    for criterion in criteria:
        if isinstance(criterion, str):
            fields.add(criterion)
        else:
            contents.setdefault(criterion[0], set()).add(criterion[1])
    present = [(Present(name), True) for name in fields]
    return frozenset([*present, *((OneOf(name, frozenset(values)), True) for name, values in contents.items())])


@dataclass(slots=True, eq=False)
class _Group:
    """The ids with one clause, ascending, and their buckets."""

    clause: frozenset[Literal]
    placed: tuple[Placed, ...]
    rows: frozenset[Row]
    """The rows that a message must meet, all of them."""
    others: tuple[Literal, ...]
    """The parts that no single row decides."""
    access: list[Row]
    """The rows of its buckets; if there is none, only bit slices find the clause."""
    ids: list[int] = field(default_factory=list)

    def is_met(self, met: set[Row], fields: Fields) -> bool:
        """Return whether a message meets the clause."""
        return met.issuperset(self.rows) and all(part.holds(fields) is wanted for part, wanted in self.others)


@dataclass(slots=True)
class _Bucket:
    """The groups of a row.  Those without other parts are compared at once."""

    plain: dict[frozenset[Row], list[int]] = field(default_factory=dict)
    """Rows of a group -> its ids."""
    others: dict[_Group, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.plain) + len(self.others)


@dataclass(slots=True)
class _Held:
    """What a value has declared, and the ids and groups of its clauses."""

    declared: Expression | tuple[Criterion, ...]
    key: Hashable
    """Equal for equal declarations."""
    clauses: list[tuple[int, _Group]]


class FieldFilter(Generic[Value]):
    """Values with criteria on the fields of a message.

    A message is a mapping of field names to values; a field of a mapping in it has a
    path, such as `order.total`, and a list or set is several values of one field (see
    `skipfilter.messages`).  Values are compared by == and hash, as the keys of a dict
    are: 1, 1.0 and True are equal.  Criteria that name several contents of one field
    are alternatives: `match_all` needs one of them.

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

    An expression is one criterion, and chooses itself what must hold:

    >>> from skipfilter.expressions import any_of, at_least, present
    >>> readers.add("dave", any_of(present("vip"), at_least("order.total", 100)))
    >>> readers.match_all({"currency": "EUR", "order": {"total": 250}})
    ['bob', 'dave']
    """

    def __init__(self, *, lock: AbstractContextManager[Any] | None = None) -> None:
        self._lock = threading.RLock() if lock is None else lock
        self._reset()

    __reduce__ = not_copied

    # -- the values

    def add(self, value: Value, criteria: Expression | Iterable[Criterion]) -> None:
        """Add `value`.  A value that is present with the same criteria keeps its
        position.

        Repeated criteria count once.  Raises ValueError if an item is not a criterion,
        if its value is not equal to itself, such as NaN, if an expression can never
        hold, or if `value` is present with other criteria; LimitError if there are more
        than MAX_CRITERIA, or an expression is too large.
        """
        if is_expression(criteria):
            clauses = clauses_of(criteria)  # type: ignore[arg-type]
            declared: Expression | tuple[Criterion, ...] = criteria  # type: ignore[assignment]
            key: Hashable = declared
        else:
            declared = parse_criteria(criteria)  # type: ignore[arg-type]
            key = frozenset(declared)
            clauses = [clause_of(declared)]
        with self._lock:
            if (known := self._held.get(value)) is not None:
                if known.key != key:
                    raise ValueError(f"{value!r:.80} is in the filter with other criteria; remove it first")
                return
            held = _Held(declared, key, [])
            id = self._values.add(value)
            for number, clause in enumerate(clauses):
                if number:
                    further = self._free.pop() if self._free else FURTHER + len(self._first)
                    self._further.add(further)
                    self._first[further] = id
                    held.clauses.append((further, self._groups.get(clause) or self._open(clause)))
                else:
                    held.clauses.append((id, self._groups.get(clause) or self._open(clause)))
                self._enter(*held.clauses[-1], rule=key is declared)
            self._held[value] = held

    def remove(self, value: Value) -> None:
        """Remove `value`.  Raises KeyError if it is absent.

        Takes O(criteria + log n), and a step for each value with an equal clause.  A
        renumbering, which is rare, takes O(n).
        """
        with self._lock:
            held = self._held.pop(value)
            self._values.remove(held.clauses[0][0])
            for id, group in held.clauses:
                self._leave(id, group)
                if id >= FURTHER:
                    self._further.discard(id)
                    del self._first[id]
                    self._free.append(id)
            if self._values.next_id > 2 * len(self._values) + SLACK:
                self._renumber()

    def discard(self, value: Value) -> bool:
        """Remove `value` if it is present, and return whether it was."""
        with self._lock:
            if value not in self._values:
                return False
            self.remove(value)
            return True

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._reset()

    def criteria(self, value: Value) -> Expression | tuple[Criterion, ...]:
        """Return what `value` has declared: its expression, or its criteria, each once.

        Raises KeyError if the value is absent.
        """
        with self._lock:
            return self._held[value].declared

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Value]:
        """Iterate over a snapshot of the values, oldest first."""
        with self._lock:
            return iter(list(self._values))

    def __repr__(self) -> str:
        return f"<FieldFilter of {len(self)} values>"

    # -- matching

    def match_any(self, message: Mapping[str, object]) -> list[Value]:
        """Return the values with at least one criterion that `message` meets, oldest
        first.

        Raises TypeError if `message` is not a Mapping.
        """
        fields = fields_of(message)
        with self._lock:
            found = BitMap().union(*self._bucketed.met(fields))
            if self._rules:
                found -= self._rules
                found |= self._matching(fields) & self._rules
            return self._resolve(found)

    def match_all(self, message: Mapping[str, object]) -> list[Value]:
        """Return the values whose criteria `message` meets, all of them, oldest first.

        Includes the values without criteria.  Of criteria that name several contents of
        one field, one is enough.  Raises TypeError if `message` is not a Mapping.
        """
        fields = fields_of(message)
        with self._lock:
            return self._resolve(self._matching(fields))

    def hits(self, message: Mapping[str, object]) -> dict[Value, int]:
        """Return the number of criteria that `message` meets, by value, oldest first.

        Criteria of one field are alternatives, so they are one hit; an expression is
        one, too.  Values without a hit are left out.  Raises TypeError if `message` is
        not a Mapping.
        """
        fields = fields_of(message)
        with self._lock:
            planes = planes_of(self._bucketed.met(fields))
            if self._rules:
                planes = [plane - self._rules for plane in planes]
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
            if self._rules:
                touched = touched | self._folded(self._matching(fields) & self._rules)
            counts = dict.fromkeys(touched.to_array(), 1)
            for count, ids in exactly.items():
                if count > 1:
                    counts.update(dict.fromkeys(ids.to_array(), count))
            return dict(zip(self._values.resolve(touched), counts.values(), strict=True))

    def matches_any(self, message: Mapping[str, object]) -> bool:
        """Return whether `message` meets a criterion of any value.

        O(fields) if no value has an expression; otherwise as long as `match_any`.
        """
        fields = fields_of(message)
        with self._lock:
            found = self._bucketed.met(fields)
            if not self._rules:
                return bool(found)
            return any(ids - self._rules for ids in found) or bool(self._matching(fields) & self._rules)

    def matches_all(self, message: Mapping[str, object]) -> bool:
        """Return whether `message` meets all criteria of any value.

        Stops at the first.
        """
        fields = fields_of(message)
        with self._lock:
            met, buckets = self._candidates(fields)
            if any(islice(_tests(buckets, met, fields), CANDIDATES)):
                return True
            if sum(map(len, buckets)) > CANDIDATES and self._bucketed.matching(fields):
                return True
            return bool(self._unbucketed.matching(fields))

    def explain(self, message: Mapping[str, object], value: Value) -> list[PartExplanation]:
        """Return, for each criterion of `value` or part of its expression, whether it
        is as `match_all` needs it, and why not.

        Criteria of one field are one part.  Raises KeyError if the value is absent.

        >>> from skipfilter.expressions import all_of, not_, one_of, present
        >>> readers = FieldFilter()
        >>> readers.add("ann", all_of(one_of("currency", "USD"), not_(present("test"))))
        >>> for part in readers.explain({"currency": "EUR"}, "ann"):
        ...     print(part)
        one_of('currency', 'USD') does not hold: currency is 'EUR'
        not_(present('test')) holds
        """
        declared = self.criteria(value)
        literals = clause_of(declared) if isinstance(declared, tuple) else literals_of(declared)
        return explain(literals, fields_of(message))

    # -- internals; the lock is held

    def _reset(self) -> None:
        # No bitmap, list or dict inside of these tables is ever empty.
        self._values: Values[Value] = Values()
        self._held: dict[Value, _Held] = {}
        self._groups: dict[frozenset[Literal], _Group] = {}  # by clause
        self._buckets: dict[Row, _Bucket] = {}  # see access predicates above
        self._bucketed = Clauses()  # the ids of the groups with a bucket
        self._unbucketed = Clauses()  # those of all others
        self._rules = BitMap()  # the ids of expressions
        self._further = BitMap()  # the ids from FURTHER on that are in use
        self._first: dict[int, int] = {}  # further id -> first id of the same value
        self._free: list[int] = []  # further ids to use again

    def _matching(self, fields: Fields) -> BitMap:
        """Return the ids whose clauses are met."""
        met, buckets = self._candidates(fields)
        few = sum(map(len, buckets)) <= CANDIDATES
        found = self._by_access(fields, met, buckets) if few else self._bucketed.matching(fields)
        return found | self._unbucketed.matching(fields) if self._unbucketed else found

    def _candidates(self, fields: Fields) -> tuple[set[Row], list[_Bucket]]:
        """Return the rows that a message meets, and their buckets.

        They hold every group with a bucket that the message could meet.
        """
        met = met_rows(fields)
        return met, [bucket for row in ((), *met) if (bucket := self._buckets.get(row)) is not None]

    def _by_access(self, fields: Fields, met: set[Row], buckets: list[_Bucket]) -> BitMap:
        """Return the ids in some buckets whose clauses are met."""
        return BitMap(chain.from_iterable(_meeting(buckets, met, fields)))

    def _resolve(self, ids: BitMap) -> list[Value]:
        """Return the values of the clauses with these ids."""
        return self._values.resolve(self._folded(ids))

    def _folded(self, ids: BitMap) -> BitMap:
        """Return the first ids of the values of the clauses with these ids."""
        if not self._first:
            return ids
        further = ids & self._further
        return (ids - further) | BitMap([self._first[id] for id in further]) if further else ids

    def _enter(self, id: int, group: _Group, rule: bool) -> None:
        """Add the id of a clause."""
        insort(group.ids, id)
        (self._bucketed if group.access else self._unbucketed).add(id, group.placed)
        if rule:
            self._rules.add(id)

    def _leave(self, id: int, group: _Group) -> None:
        """Remove the id of a clause, and its group if it was the last one."""
        del group.ids[bisect_left(group.ids, id)]
        (self._bucketed if group.access else self._unbucketed).remove(id, group.placed)
        self._rules.discard(id)
        if not group.ids:
            self._close(group)

    def _open(self, clause: frozenset[Literal]) -> _Group:
        """Make a group for a clause, in the buckets of its rarest part."""
        # 1. The parts that need one certain row, and the others.
        rows: set[Row] = set()
        others: list[Literal] = []
        for part, wanted in clause:
            if wanted and isinstance(part, (Present, OneOf)) and len(its := rows_of(part)) == 1:
                rows.update(its)
            else:
                others.append((part, wanted))
        # 2. The rows of the rarest part; of none for the empty clause.
        count = self._bucketed.count
        choices: list[list[Row]] = [
            rows_of(part) for part, wanted in clause if wanted and isinstance(part, (Present, OneOf))
        ]
        if not clause:
            choices.append([()])
        access = min(choices, key=lambda some: sum(map(count, some)), default=[])
        group = self._groups[clause] = _Group(clause, place(clause), frozenset(rows), tuple(others), access)
        for row in access:
            bucket = self._buckets.setdefault(row, _Bucket())
            if others:
                bucket.others[group] = None
            else:
                bucket.plain[group.rows] = group.ids
        return group

    def _close(self, group: _Group) -> None:
        """Drop a group without ids."""
        del self._groups[group.clause]
        for row in group.access:
            bucket = self._buckets[row]
            if group.others:
                del bucket.others[group]
            else:
                del bucket.plain[group.rows]
            if not bucket:
                del self._buckets[row]

    def _renumber(self) -> None:
        """Renumber the first ids from 0, in the same order."""
        held, rules = self._held, self._rules
        self._values, self._bucketed, self._unbucketed, self._rules = Values(), Clauses(), Clauses(), BitMap()
        for group in self._groups.values():
            group.ids.clear()
        for value, its in held.items():
            id = self._values.add(value)
            is_rule = its.clauses[0][0] in rules
            its.clauses = [(old if old >= FURTHER else id, group) for old, group in its.clauses]
            for some, group in its.clauses:
                self._enter(some, group, is_rule)
                if some >= FURTHER:
                    self._first[some] = id

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            self._values._check()
            assert self._values.next_id <= 2 * len(self._values) + SLACK
            assert list(self._held) == list(self._values)
            ids: dict[int, _Group] = {}
            first: dict[int, int] = {}
            rules: set[int] = set()
            again: dict[frozenset[Literal], list[int]] = {}
            for value, held in self._held.items():
                its = [id for id, _ in held.clauses]
                assert its[0] == self._values.id_of(value)
                assert all(id >= FURTHER for id in its[1:])
                first |= dict.fromkeys(its[1:], its[0])
                is_list = isinstance(held.declared, tuple)
                clauses = [clause_of(held.declared)] if isinstance(held.declared, tuple) else clauses_of(held.declared)
                assert [group.clause for _, group in held.clauses] == clauses
                rules.update(() if is_list else its)
                for id, group in held.clauses:
                    assert group is self._groups[group.clause]
                    assert id not in ids
                    ids[id] = group
                    again.setdefault(group.clause, []).append(id)
            assert set(self._rules) == rules
            assert self._first == first
            assert set(self._further) == first.keys()
            assert sorted([*self._first, *self._free]) == [
                FURTHER + n for n in range(len(self._first) + len(self._free))
            ]
            assert {clause: sorted(some) for clause, some in again.items()} == {
                clause: group.ids for clause, group in self._groups.items()
            }
            buckets: dict[Row, _Bucket] = {}
            for group in self._groups.values():
                assert bool(group.access) is (
                    not group.clause
                    or any(wanted and isinstance(part, (Present, OneOf)) for part, wanted in group.clause)
                )
                for row in group.access:
                    bucket = buckets.setdefault(row, _Bucket())
                    if group.others:
                        bucket.others[group] = None
                    else:
                        bucket.plain[group.rows] = group.ids
            assert self._buckets == buckets
            for there, bucketed in ((self._bucketed, True), (self._unbucketed, False)):
                there._check({id: group.placed for id, group in ids.items() if bool(group.access) is bucketed})


def met_rows(fields: Fields) -> set[Row]:
    """Return the rows that a message meets: its fields, and their contents.

    A value that cannot be hashed has no row.
    """
    rows: set[Row] = {(name,) for name in fields}
    for name, values in fields.items():
        for value in values:
            try:
                rows.add((name, value))
            except TypeError:  # no part can ask for it
                continue
    return rows


def _tests(buckets: list[_Bucket], met: set[Row], fields: Fields) -> Iterator[bool]:
    """Iterate over whether a message meets each group in some buckets."""
    for bucket in buckets:
        yield from map(met.issuperset, bucket.plain)
        for group in bucket.others:
            yield group.is_met(met, fields)


def _meeting(buckets: list[_Bucket], met: set[Row], fields: Fields) -> Iterator[list[int]]:
    """Iterate over the ids of each group in some buckets that a message meets.

    A group may come twice, because a field may have several of its contents.
    """
    for bucket in buckets:
        for rows in filter(met.issuperset, bucket.plain):
            yield bucket.plain[rows]
        for group in bucket.others:
            if group.is_met(met, fields):
                yield group.ids

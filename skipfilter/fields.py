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
from itertools import islice
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
    parts_of,
    why_no_content,
)
from skipfilter.messages import fields_of, read
from skipfilter.requirements import Clauses, place, planes_of, rows_of
from skipfilter.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from skipfilter.expressions import Clause, Literal, Not, Part
    from skipfilter.messages import Message, Row
    from skipfilter.requirements import Placed

Value = TypeVar("Value")
Criterion: TypeAlias = str | tuple[str, Hashable]
"""A field that must be present, or a field and its required content."""

MAX_CRITERIA: Final = 100
"""The maximum number of criteria of one value."""

CANDIDATES = 500
"""Above this number of candidates, bit slices are faster (bench/results/fields.json).
"""

OTHERS = 10
"""How many tests of rows alone take as long as one of a clause with other parts."""

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


def clause_of(criteria: Iterable[Criterion]) -> Clause:
    """Return the clause of a list of criteria, all of which must be met.

    Criteria of one field are alternatives.
    """
    fields: list[Literal] = []
    contents: dict[str, Row | OneOf] = {}
    for criterion in criteria:
        if isinstance(criterion, str):
            fields.append((criterion,))
        elif (known := contents.setdefault(criterion[0], criterion)) is not criterion:
            before = known.values if isinstance(known, OneOf) else known[1:]
            contents[criterion[0]] = OneOf(criterion[0], (*before, criterion[1]))
    return frozenset([*fields, *contents.values()])


@dataclass(slots=True, eq=False)
class _Group:
    """The ids with one clause, ascending, and their buckets."""

    clause: Clause
    placed: Placed
    rows: frozenset[Row]
    """The rows that a message must meet, all of them."""
    others: tuple[Part | Not, ...]
    """The literals that no single row decides."""
    access: Sequence[Row]
    """The rows of its buckets; if there is none, only bit slices find the clause."""
    ids: list[int] = field(default_factory=list)

    def is_met(self, message: Message) -> bool:
        """Return whether a message meets the clause."""
        return message.rows.issuperset(self.rows) and all(literal.holds(message.fields) for literal in self.others)


@dataclass(slots=True)
class _Candidates:
    """The buckets of a message, which hold every group with a bucket that it meets."""

    message: Message
    plain: list[dict[frozenset[Row], list[int]]]
    """The ids of groups that are rows alone, by these."""
    others: list[dict[_Group, None]]
    """All other groups."""

    def __len__(self) -> int:
        """Return the number of groups in the buckets, in tests of rows alone."""
        return sum(map(len, self.plain)) + OTHERS * sum(map(len, self.others))

    def tests(self) -> Iterator[bool]:
        """Iterate over whether the message meets each group."""
        for bucket in self.plain:
            yield from map(self.message.rows.issuperset, bucket)
        for groups in self.others:
            for group in groups:
                yield group.is_met(self.message)

    def ids(self) -> BitMap:
        """Return the ids of the groups that the message meets."""
        ids: list[int] = []
        for bucket in self.plain:
            for rows in filter(self.message.rows.issuperset, bucket):
                ids += bucket[rows]
        for groups in self.others:
            for group in groups:
                if group.is_met(self.message):
                    ids += group.ids
        return BitMap(ids)


@dataclass(slots=True)
class _Rule:
    """An expression that a value has declared, and the id and group of each clause."""

    expression: Expression
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
        else:
            criteria = parse_criteria(criteria)  # type: ignore[arg-type]
            clauses = [clause_of(criteria)]
        with self._lock:
            if value in self._held:
                if self.criteria(value) != (criteria if is_expression(criteria) else frozenset(criteria)):  # type: ignore[arg-type]
                    raise ValueError(f"{value!r:.80} is in the filter with other criteria; remove it first")
                return
            id = self._values.add(value)
            first = self._entered(id, clauses[0])
            if not is_expression(criteria):
                self._held[value] = first
                return
            rule = self._held[value] = _Rule(criteria, [(id, first)])  # type: ignore[arg-type]
            for clause in clauses[1:]:
                further = self._free.pop() if self._free else FURTHER + len(self._first)
                self._further.add(further)
                self._first[further] = id
                rule.clauses.append((further, self._entered(further, clause)))
            self._rules.update([id for id, _ in rule.clauses])

    def remove(self, value: Value) -> None:
        """Remove `value`.  Raises KeyError if it is absent.

        Takes O(criteria + log n), and a step for each value with an equal clause.  A
        renumbering, which is rare, takes O(n).
        """
        with self._lock:
            clauses = self._clauses(value)
            del self._held[value]
            self._values.remove(clauses[0][0])
            for id, group in clauses:
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

    def criteria(self, value: Value) -> Expression | frozenset[Criterion]:
        """Return what `value` has declared: its expression, or the set of its criteria.

        Raises KeyError if the value is absent.
        """
        with self._lock:
            held = self._held[value]
        if isinstance(held, _Rule):
            return held.expression
        rows = [row for literal in held.clause for row in rows_of(literal)]
        return frozenset(row[0] if len(row) == 1 else row for row in rows)  # type: ignore[misc]

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
        its = read(message)
        with self._lock:
            found = BitMap().union(*self._bucketed.met(its))
            if self._rules:
                found -= self._rules
                found |= self._matching(its) & self._rules
            return self._resolve(found)

    def match_all(self, message: Mapping[str, object]) -> list[Value]:
        """Return the values whose criteria `message` meets, all of them, oldest first.

        Includes the values without criteria.  Of criteria that name several contents of
        one field, one is enough.  Raises TypeError if `message` is not a Mapping.
        """
        its = read(message)
        with self._lock:
            return self._resolve(self._matching(its))

    def hits(self, message: Mapping[str, object]) -> dict[Value, int]:
        """Return the number of criteria that `message` meets, by value, oldest first.

        Criteria of one field are alternatives, so they are one hit; an expression is
        one, too.  Values without a hit are left out.  Raises TypeError if `message` is
        not a Mapping.
        """
        its = read(message)
        with self._lock:
            planes = planes_of(self._bucketed.met(its))
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
                touched = touched | self._folded(self._matching(its) & self._rules)
            counts = dict.fromkeys(touched.to_array(), 1)
            for count, ids in exactly.items():
                if count > 1:
                    counts.update(dict.fromkeys(ids.to_array(), count))
            return dict(zip(self._values.resolve(touched), counts.values(), strict=True))

    def matches_any(self, message: Mapping[str, object]) -> bool:
        """Return whether `message` meets a criterion of any value.

        O(fields) if no value has an expression; otherwise as long as `match_any`.
        """
        its = read(message)
        with self._lock:
            found = self._bucketed.met(its)
            if not self._rules:
                return bool(found)
            return any(ids - self._rules for ids in found) or bool(self._matching(its) & self._rules)

    def matches_all(self, message: Mapping[str, object]) -> bool:
        """Return whether `message` meets all criteria of any value.

        Stops at the first.
        """
        its = read(message)
        with self._lock:
            candidates = self._candidates(its)
            if any(islice(candidates.tests(), CANDIDATES)):
                return True
            if len(candidates) > CANDIDATES and self._bucketed.matching(its):
                return True
            return bool(self._unbucketed.matching(its))

    def explain(self, message: Mapping[str, object], value: Value) -> list[PartExplanation]:
        """Return, for each criterion of `value` or part of its expression, whether it
        is as `match_all` needs it, and why not.

        Criteria of one field are one part.  The parts of an expression are in its
        order.  Raises KeyError if the value is absent.

        >>> from skipfilter.expressions import all_of, not_, one_of, present
        >>> readers = FieldFilter()
        >>> readers.add("ann", all_of(one_of("currency", "USD"), not_(present("test"))))
        >>> for part in readers.explain({"currency": "EUR"}, "ann"):
        ...     print(part)
        one_of('currency', 'USD') does not hold: currency is 'EUR'
        not_(present('test')) holds
        """
        with self._lock:
            held = self._held[value]
        if isinstance(held, _Rule):
            return explain(parts_of(held.expression), fields_of(message))
        return explain(sorted(map(as_part, held.clause), key=repr), fields_of(message))

    # -- internals; the lock is held

    def _reset(self) -> None:
        # No bitmap, list or dict inside of these tables is ever empty.
        self._values: Values[Value] = Values()
        self._held: dict[Value, _Group | _Rule] = {}  # a group for a list of criteria
        self._groups: dict[Clause, _Group] = {}  # by clause
        # See access predicates above.  For groups that are rows alone, row -> rows of
        # the group -> its ids; for all others, row -> groups.
        self._plain: dict[Row, dict[frozenset[Row], list[int]]] = {}
        self._others: dict[Row, dict[_Group, None]] = {}
        self._bucketed = Clauses()  # the ids of the groups with a bucket
        self._unbucketed = Clauses()  # those of all others
        self._rules = BitMap()  # the ids of expressions
        self._further = BitMap()  # the ids from FURTHER on that are in use
        self._first: dict[int, int] = {}  # further id -> first id of the same value
        self._free: list[int] = []  # further ids to use again

    def _matching(self, message: Message) -> BitMap:
        """Return the ids whose clauses are met."""
        candidates = self._candidates(message)
        found = candidates.ids() if len(candidates) <= CANDIDATES else self._bucketed.matching(message)
        return found | self._unbucketed.matching(message) if self._unbucketed else found

    def _candidates(self, message: Message) -> _Candidates:
        """Return the groups with a bucket that a message could meet."""
        rows, plain, others = message.rows, self._plain, self._others
        buckets = [plain[row] for row in rows if row in plain]
        if () in plain:
            buckets.append(plain[()])
        return _Candidates(message, buckets, [others[row] for row in rows if row in others] if others else [])

    def _resolve(self, ids: BitMap) -> list[Value]:
        """Return the values of the clauses with these ids."""
        return self._values.resolve(self._folded(ids))

    def _folded(self, ids: BitMap) -> BitMap:
        """Return the first ids of the values of the clauses with these ids."""
        if not self._first:
            return ids
        further = ids & self._further
        return (ids - further) | BitMap([self._first[id] for id in further]) if further else ids

    def _clauses(self, value: Value) -> list[tuple[int, _Group]]:
        """Return the ids of the clauses of a value, and their groups."""
        held = self._held[value]
        if isinstance(held, _Rule):
            return held.clauses
        id = self._values.id_of(value)
        assert id is not None
        return [(id, held)]

    def _entered(self, id: int, clause: Clause) -> _Group:
        """Add the id of a clause, and return its group."""
        group = self._groups.get(clause) or self._open(clause)
        insort(group.ids, id)
        (self._bucketed if group.access else self._unbucketed).add(id, group.placed)
        return group

    def _leave(self, id: int, group: _Group) -> None:
        """Remove the id of a clause, and its group if it was the last one."""
        del group.ids[bisect_left(group.ids, id)]
        (self._bucketed if group.access else self._unbucketed).remove(id, group.placed)
        self._rules.discard(id)
        if not group.ids:
            self._close(group)

    def _open(self, clause: Clause) -> _Group:
        """Make a group for a clause, in the buckets of its rarest literal."""
        rows: list[Row] = []
        others: list[Part | Not] = []
        access: Sequence[Row] = () if clause else ((),)
        fewest = -1
        for literal in clause:
            its = rows_of(literal)
            if its:
                count = sum(map(self._bucketed.count, its))
                if fewest < 0 or count < fewest:
                    access, fewest = its, count
            if isinstance(literal, tuple):
                rows.append(literal)
            else:
                others.append(literal)
        # Most clauses are rows alone, and share their set.
        certain: frozenset[Row] = frozenset(rows) if others else clause  # type: ignore[assignment]
        group = self._groups[clause] = _Group(clause, place(clause), certain, tuple(others), access)
        for row in access:
            if others:
                self._others.setdefault(row, {})[group] = None
            else:
                self._plain.setdefault(row, {})[certain] = group.ids
        return group

    def _close(self, group: _Group) -> None:
        """Drop a group without ids."""
        del self._groups[group.clause]
        for row in group.access:
            if group.others:
                del self._others[row][group]
                if not self._others[row]:
                    del self._others[row]
            else:
                del self._plain[row][group.rows]
                if not self._plain[row]:
                    del self._plain[row]

    def _renumber(self) -> None:
        """Renumber the first ids from 0, in the same order."""
        self._values, self._bucketed, self._unbucketed, self._rules = Values(), Clauses(), Clauses(), BitMap()
        for group in self._groups.values():
            group.ids.clear()
        for value, held in self._held.items():
            id = self._values.add(value)
            if isinstance(held, _Rule):
                held.clauses[0] = (id, held.clauses[0][1])
                self._first.update(dict.fromkeys([further for further, _ in held.clauses[1:]], id))
                self._rules.update([some for some, _ in held.clauses])
            for some, group in self._clauses(value):
                self._entered(some, group.clause)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            self._values._check()
            assert self._values.next_id <= 2 * len(self._values) + SLACK
            assert list(self._held) == list(self._values)
            ids: dict[int, _Group] = {}
            first: dict[int, int] = {}
            rules: set[int] = set()
            again: dict[Clause, list[int]] = {}
            for value, held in self._held.items():
                clauses = self._clauses(value)
                its = [id for id, _ in clauses]
                assert its[0] == self._values.id_of(value)
                assert all(id >= FURTHER for id in its[1:])
                first |= dict.fromkeys(its[1:], its[0])
                if isinstance(held, _Rule):
                    assert [group.clause for _, group in clauses] == clauses_of(held.expression)
                    rules.update(its)
                for id, group in clauses:
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
            plain: dict[Row, dict[frozenset[Row], list[int]]] = {}
            others: dict[Row, dict[_Group, None]] = {}
            for group in self._groups.values():
                assert bool(group.access) is (not group.clause or any(map(rows_of, group.clause)))
                for row in group.access:
                    if group.others:
                        others.setdefault(row, {})[group] = None
                    else:
                        plain.setdefault(row, {})[group.rows] = group.ids
            assert self._plain == plain
            assert self._others == others
            for there, bucketed in ((self._bucketed, True), (self._unbucketed, False)):
                there._check({id: group.placed for id, group in ids.items() if bool(group.access) is bucketed})


def as_part(literal: Literal) -> Part | Not:
    """Return a literal, or the part that a row is short for."""
    match literal:
        case (str() as name,):
            return Present(name)
        case (str() as name, value):
            return OneOf(name, (value,))
        case _:
            return literal  # type: ignore[return-value]

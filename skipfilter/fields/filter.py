"""FieldFilter: finds the values whose criteria a message meets.

A value declares a list of criteria, of which the question chooses any or all, or an
expression (see `skipfilter.fields.expressions`), which itself says what must hold.

    id  value declares                   as a clause
    0   alice currency=USD, urgent       {currency=USD, urgent}
    1   bob   currency=EUR or USD        {currency=EUR or USD}
    2   carol all_of(market=forex,       {market=forex, not total < 100}
              not_(below(total, 100)))
    3   dave  urgent                     {urgent}

    {market: forex, currency: EUR, total: 700}  ->  bob, carol

A clause is a set of parts that must hold, and of parts that must not; all clauses of a
message are found at once (see `skipfilter.fields.clauses`).  An expression has several
clauses if it is any of several; the further ones have ids from FURTHER on.

The number of a clause's parts that hold is the hit count of its id.  OR needs at least
one hit, and AND all of them.

Ids are in order of arrival.  If more than half of them are out of use, all ids are
renumbered in the same order, because bitmaps of sparse ids are slow and large.

Source: L. Svalgaard and B. Tveden, 1980, for inverted bitmaps; P. Hintjens, High-speed
message matching, iMatix, for the hit counts and the example.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pyroaring import BitMap

from skipfilter.core.container import Container, Stats, bytes_of, garbage_later, lock_of, names, pairs_of
from skipfilter.core.values import Values
from skipfilter.errors import absent
from skipfilter.fields.bit_slices import planes_of, rows_of
from skipfilter.fields.clauses import ClauseIndex, Group
from skipfilter.fields.criteria import clause_of, parse_criteria, parts_of_list
from skipfilter.fields.expressions import clauses_of, explain, is_expression, parts_of, vars_of
from skipfilter.fields.messages import not_a_mapping
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from skipfilter.fields.criteria import Criterion
    from skipfilter.fields.expressions import Clause, Expression, PartExplanation
    from skipfilter.fields.messages import Message

Value = TypeVar("Value")
SLACK = 1_024
"""Ids that may be out of use, beyond the number of those in use, before a renumbering.
"""

SAMPLE: Final = 64
"""The number of rules that are measured, to estimate the bytes of all."""

FURTHER: Final = 1 << 31
"""The ids from here on are those of the second and further clauses of expressions."""


class _Compiled(NamedTuple):
    """What a value declares, and its clauses."""

    criteria: Expression | frozenset[Criterion]
    clauses: list[Clause]


@dataclass(slots=True)
class _Rule:
    """An expression that a value has declared, and the id and group of each clause."""

    expression: Expression
    clauses: list[tuple[int, Group]]


class FieldFilter(Container[Value, "Expression | frozenset[Criterion]"], Generic[Value]):
    """Values with criteria on the fields of a message.

    A message is a mapping of field names to values; a field of a mapping in it has a
    path, such as `order.total`, and a list or set is several values of one field (see
    `skipfilter.fields.messages`).  Values are compared by == and hash, as the keys of a
    dict are: 1, 1.0 and True are equal.  Criteria that name several contents of one
    field are alternatives: `match_all` needs one of them.

    Every method may be called from any thread.  If only one thread uses the filter,
    `lock=contextlib.nullcontext()` saves the locking.  Raises TypeError if a filter is
    copied or pickled.  Of a message, only the fields that somebody asks for are read; a
    question raises LimitError if their lists have more than a million items.

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

    >>> from skipfilter.fields import any_of, at_least, present
    >>> readers.add("dave", any_of(present("vip"), at_least("order.total", 100)))
    >>> readers.match_all({"currency": "EUR", "order": {"total": 250}})
    ['bob', 'dave']
    """

    def __init__(self, *, lock: AbstractContextManager[Any] | None = None) -> None:
        self._lock = lock_of(lock)
        self._reset()

    def __repr__(self) -> str:
        return f"<FieldFilter: {len(self):,} values>"

    # -- the values

    def add(self, value: Value, criteria: Expression | Iterable[Criterion]) -> None:
        """Add `value`.  A value that is present with the same criteria keeps its place.

        Takes O(log n) for each criterion, or for each part of each clause of an
        expression; some dozens of parts may make MAX_CLAUSES clauses.

        Repeated criteria count once.  Raises ValueError if an item is not a criterion,
        if its value is not equal to itself, such as NaN, if an expression can never
        hold, or if `value` is present with other criteria; LimitError if there are more
        than MAX_CRITERIA, or an expression is too large.
        """
        declared = _compiled(criteria, value)
        with self._lock:
            if not self._has(value, declared):
                self._add(value, declared)

    def add_many(
        self,
        items: Iterable[tuple[Value, Expression | Iterable[Criterion]]]
        | Mapping[Value, Expression | Iterable[Criterion]],
        /,
    ) -> None:
        """Add values in one step: no question sees only some of them.

        `items` are pairs of a value and its criteria or expression, or a mapping.  If
        one is refused, nothing has changed, and the error has a note that names the
        value.  Takes as long as `add` of each.
        """
        pairs: list[tuple[Value, _Compiled]] = []
        for value, criteria in pairs_of(items):
            with names(value):
                pairs.append((value, _compiled(criteria, value)))
        with self._lock, garbage_later():
            added: dict[Value, _Compiled] = {}
            try:
                for value, declared in pairs:
                    with names(value):
                        if value in added and added[value].criteria != declared.criteria:
                            raise ValueError(f"{brief(value)} comes twice, with different criteria")
                        if not self._has(value, declared):
                            self._add(value, declared)
                            added[value] = declared
            except BaseException:
                for value in reversed(added):
                    self._take_away(value)
                self._renumber_if_sparse()
                raise

    def replace(self, value: Value, criteria: Expression | Iterable[Criterion]) -> None:
        """Give a value other criteria, in one step: no question sees both, or none.

        The value is the newest then.  Costs as much as `add` and `remove`, and raises
        the same errors; then nothing has changed.  Raises KeyError if it is absent.
        """
        declared = _compiled(criteria, value)
        with self._lock:
            id = self._values.id_of(value)
            if id is None:
                raise absent(value)
            before = self._clauses(value)
            held = self._hold(self._values.next_id, declared)
            self._take_out(before)
            value = self._values.by_id[id]
            self._values.renew(id)
            del self._held[value]  # so that it is the last one
            self._held[value] = held
            self._renumber_if_sparse()

    # -- matching

    def match_any(self, message: Mapping[str, object]) -> list[Value]:
        """Return the values with at least one criterion that `message` meets, oldest
        first.

        Takes O(fields) to read the message, a bitmap operation for each distinct
        criterion that it meets, and O(matches); and as long as `match_all` if a value
        has an expression.  Raises TypeError if `message` is not a Mapping.
        """
        with self._lock:
            its = self._index.read(message)
            found = BitMap().union(*self._index.hits(its))
            if self._rules:
                found -= self._rules
                found |= self._rules_met(its)
            return self._resolve(found)

    def match_all(self, message: Mapping[str, object]) -> list[Value]:
        """Return the values whose criteria `message` meets, all of them, oldest first.

        Takes O(fields), a test for each group in the buckets of the message, or bitmap
        operations if these are more (see `skipfilter.fields.clauses`), and O(matches).

        Includes the values without criteria.  Of criteria that name several contents of
        one field, one is enough.  Raises TypeError if `message` is not a Mapping.
        """
        with self._lock:
            its = self._index.read(message)
            return self._resolve(self._index.matching(its))

    def hits(self, message: Mapping[str, object]) -> dict[Value, int]:
        """Return the number of criteria that `message` meets, by value, oldest first.

        Costs as much as `match_any`, and some operations on the bit planes of the
        counts.

        Criteria that name contents of one field are alternatives, so they are one hit;
        an expression is one, too.  Values without a hit are left out.  Raises TypeError
        if `message` is not a Mapping.
        """
        with self._lock:
            its = self._index.read(message)
            planes = planes_of(self._index.hits(its))
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
                touched = touched | self._folded(self._rules_met(its))
            counts = dict.fromkeys(touched.to_array(), 1)
            for count, ids in exactly.items():
                if count > 1:
                    counts.update(dict.fromkeys(ids.to_array(), count))
            return dict(zip(self._values.resolve(touched), counts.values(), strict=True))

    def matches_any(self, message: Mapping[str, object]) -> bool:
        """Return whether `message` meets a criterion of any value.

        O(fields) if no value has an expression; otherwise as long as `match_any`.
        """
        with self._lock:
            its = self._index.read(message)
            if not self._rules:
                return self._index.has_hit(its)
            hits = self._index.hits(its)
            return any(ids - self._rules for ids in hits) or bool(self._rules_met(its))

    def matches_all(self, message: Mapping[str, object]) -> bool:
        """Return whether `message` meets all criteria of any value.

        Costs as much as `match_all` at worst, without the values.

        Stops at the first.
        """
        with self._lock:
            its = self._index.read(message)
            return self._index.matches(its)

    def stats(self) -> Stats:
        """Return how many values and different rules there are, and about how many
        bytes they take.

        Takes O(fields): the bytes of the rules are those of SAMPLE rules, evenly spread
        over all.  An expression that several values share is counted for each.
        """
        with self._lock:
            count = len(self._held)
            by_id = self._values.by_id
            some = [self._held[by_id.peekitem(at)[1]] for at in range(0, count, max(1, count // SAMPLE))]
            # Values with the same list of criteria share it; an expression is its own.
            sizes = [bytes_of(_written(held)) // (len(held.ids) if isinstance(held, Group) else 1) for held in some]
            declared = sum(sizes) * count // max(1, len(some))
            return Stats(
                values=count,
                patterns=self._index.group_count,
                keys=0,
                misses=0,
                value_bytes=self._values.size,
                pattern_bytes=declared,
                index_bytes=self._index.size
                + sys.getsizeof(self._held)
                + 200 * len(self._first)
                + 100 * len(self._rules),
                cache_bytes=0,
            )

    def explain(self, message: Mapping[str, object], value: Value) -> list[PartExplanation]:
        """Return, for each criterion of `value` or part of its expression, whether it
        is as `match_all` needs it, and why not.

        Takes O(fields + parts).

        Criteria of one field are one part.  The parts of an expression are in its
        order.  Raises KeyError if the value is absent.

        >>> from skipfilter.fields import all_of, not_, one_of, present
        >>> readers = FieldFilter()
        >>> readers.add("ann", all_of(one_of("currency", "USD"), not_(present("test"))))
        >>> for part in readers.explain({"currency": "EUR"}, "ann"):
        ...     print(part)
        one_of('currency', 'USD') does not hold: currency is 'EUR'
        not_(present('test')) holds
        """
        if not isinstance(message, Mapping):
            raise not_a_mapping(message)
        with self._lock:
            if value not in self._values:
                raise absent(value)
            held = self._held[value]
        if isinstance(held, _Rule):
            return explain(parts_of(held.expression), message)
        return explain(parts_of_list(held.clause), message)

    # -- internals; the lock is held

    def _reset(self) -> None:
        # No bitmap, list or dict inside of these tables is ever empty.
        self._values: Values[Value] = Values()
        self._held: dict[Value, Group | _Rule] = {}  # a group for a list of criteria
        self._index = ClauseIndex()
        self._rules = BitMap()  # the ids of expressions
        self._further = BitMap()  # the ids from FURTHER on that are in use
        self._first: dict[int, int] = {}  # further id -> first id of the same value
        self._free: list[int] = []  # further ids to use again

    def _emptied(self) -> object:
        freed = self._values, self._held, self._index, self._rules, self._further, self._first, self._free
        self._reset()
        return freed

    def _declared(self, value: Value) -> Expression | frozenset[Criterion]:
        """Return what `value` has declared."""
        held = self._held[value]
        if isinstance(held, _Rule):
            return held.expression
        rows = [row for literal in held.clause for row in rows_of(literal)]
        return frozenset(row[0] if len(row) == 1 else row for row in rows)  # type: ignore[misc]

    def _has(self, value: Value, declared: _Compiled) -> bool:
        """Return whether a value is present.  Raises ValueError if it has declared
        something else.
        """
        if value not in self._values:
            return False
        if self._declared(value) != declared.criteria:
            raise ValueError(f"{brief(value)} is in the filter with other criteria; replace() changes them")
        return True

    def _add(self, value: Value, declared: _Compiled) -> None:
        """Add a value that is absent."""
        id = self._values.add(value)
        try:
            self._held[value] = self._hold(id, declared)
        except BaseException:
            self._values.remove(id)
            raise

    def _hold(self, id: int, declared: _Compiled) -> Group | _Rule:
        """Add the clauses of a value, the first with this id; or with an error none."""
        added: list[tuple[int, Group]] = []
        try:
            for clause in declared.clauses:
                some = self._further_id() if added else id
                group = self._index.add(some, clause)
                added.append((some, group))
                if some != id:
                    self._use(some, id)
        except BaseException:
            self._take_out(added)
            raise
        if isinstance(declared.criteria, frozenset):
            return added[0][1]
        self._rules.update([some for some, _ in added])
        return _Rule(declared.criteria, added)

    def _further_id(self) -> int:
        """Return an id that `_use` may take."""
        return self._free[-1] if self._free else FURTHER + len(self._first)

    def _use(self, further: int, first: int) -> None:
        """Take an id for a further clause of the value with the id `first`."""
        if self._free:
            self._free.pop()
        self._further.add(further)
        self._first[further] = first

    def _remove(self, id: int, value: Value) -> None:
        self._take_away(value)
        self._renumber_if_sparse()

    def _take_away(self, value: Value) -> None:
        """Remove a value that is present."""
        clauses = self._clauses(value)
        del self._held[value]
        self._values.remove(clauses[0][0])
        self._take_out(clauses)

    def _renumber_if_sparse(self) -> None:
        """Renumber the ids if more than half of them are out of use."""
        if self._values.next_id > 2 * len(self._values) + SLACK:
            self._renumber()

    def _take_out(self, clauses: list[tuple[int, Group]]) -> None:
        """Remove the ids of clauses."""
        for id, group in clauses:
            self._index.remove(id, group)
            self._rules.discard(id)
            if id >= FURTHER:
                self._further.discard(id)
                del self._first[id]
                self._free.append(id)

    def _rules_met(self, message: Message) -> BitMap:
        """Return the ids of expressions whose clauses a message meets."""
        return self._index.matching(message) & self._rules

    def _resolve(self, ids: BitMap) -> list[Value]:
        """Return the values of the clauses with these ids."""
        return self._values.resolve(self._folded(ids))

    def _folded(self, ids: BitMap) -> BitMap:
        """Return the first ids of the values of the clauses with these ids."""
        if not self._first:
            return ids
        further = ids & self._further
        return (ids - further) | BitMap([self._first[id] for id in further]) if further else ids

    def _clauses(self, value: Value) -> list[tuple[int, Group]]:
        """Return the ids of the clauses of a value, and their groups."""
        held = self._held[value]
        if isinstance(held, _Rule):
            return held.clauses
        id = self._values.id_of(value)
        assert id is not None
        return [(id, held)]

    def _renumber(self) -> None:
        """Renumber the first ids from 0, in the same order."""
        values: Values[Value] = Values()
        self._index, self._rules = ClauseIndex(), BitMap()
        for value, held in self._held.items():
            id = values.add(value)
            if not isinstance(held, _Rule):
                self._held[value] = self._index.add(id, held.clause)
                continue
            ids = [id, *(further for further, _ in held.clauses[1:])]
            held.clauses = [
                (some, self._index.add(some, group.clause)) for some, (_, group) in zip(ids, held.clauses, strict=True)
            ]
            self._first.update(dict.fromkeys(ids[1:], id))
            self._rules.update(ids)
        self._values = values

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        with self._lock:
            self._values._check()
            assert self._values.next_id <= 2 * len(self._values) + SLACK
            assert list(self._held) == list(self._values)
            ids: dict[int, Clause] = {}
            first: dict[int, int] = {}
            rules: set[int] = set()
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
                    assert id not in ids
                    assert id in group.ids
                    ids[id] = group.clause
            self._index._check(ids)
            assert set(self._rules) == rules
            assert self._first == first
            assert set(self._further) == first.keys()
            assert sorted([*self._first, *self._free]) == [
                FURTHER + n for n in range(len(self._first) + len(self._free))
            ]


def _written(held: Group | _Rule) -> tuple[object, ...]:
    """Return what a value has declared, as tuples."""
    parts = parts_of(held.expression) if isinstance(held, _Rule) else parts_of_list(held.clause)
    return tuple((part, *vars_of(part)) for part in parts)


def _compiled(criteria: Expression | Iterable[Criterion], value: object) -> _Compiled:
    """Return criteria, or an expression, of a value, with the clauses."""
    if is_expression(value):
        raise ValueError(f"{brief(value)} is an expression; the value comes first, and then what it declares")
    if is_expression(criteria):
        return _Compiled(criteria, clauses_of(criteria))
    parsed = parse_criteria(criteria)  # type: ignore[arg-type]
    return _Compiled(frozenset(parsed), [clause_of(parsed)])

"""ClauseIndex: which ids have a clause that a message meets?

A clause is a set of literals, all of which must hold (see
`skipfilter.fields.expressions`).  Two algorithms find the ids, and the one that is
cheaper for the message is used:

*Access predicates.*  Ids with equal clauses share a list, their group.  The group is in
the buckets of one literal, the rarest at the time when the first of the ids came.  Only
the buckets of the message's rows are read, and the groups in them tested.  O(groups in
these buckets).

    id  clause                     buckets  currency=USD  {currency=USD, urgent}: [0]
    0   {currency=USD, urgent}                            {currency=EUR or USD}: [1]
    1   {currency=EUR or USD}               currency=EUR  {currency=EUR or USD}: [1]
    2   {total >= 100}              none

*Bit slices* (see `skipfilter.fields.bit_slices`).  O(literals that hold * planes)
operations on bitmaps, however many ids match.  A group of ranges, prefixes and
negations alone has no bucket, so bit slices answer it, unless there are few such.

Source: F. Fabret et al., Filtering algorithms and implementation for very fast
publish/subscribe systems, SIGMOD 2001, for access predicates.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from pyroaring import BitMap

from skipfilter.fields.bit_slices import BitSlices, place, rows_of
from skipfilter.fields.expressions import field_of
from skipfilter.fields.messages import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipfilter.fields.bit_slices import Placed
    from skipfilter.fields.expressions import Clause, Not, Part
    from skipfilter.fields.messages import Message, Row

CANDIDATES = 500
"""Above this number of candidates, bit slices are faster (bench/results/fields.json).
"""

FEW = 8
"""Up to this number of groups without a bucket, testing each is faster than bit slices.
"""

OTHERS = 10
"""How many tests of rows alone cost as much as a test of other literals."""


@dataclass(slots=True, eq=False)
class Group:
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
        if not message.rows.issuperset(self.rows):
            return False
        for literal in self.others:  # noqa: SIM110 - `all` with a generator takes twice as long
            if not literal.holds(message):
                return False
        return True


@dataclass(slots=True)
class Candidates:
    """The buckets of a message, which hold every group with a bucket that it meets."""

    message: Message
    plain: list[dict[frozenset[Row], list[int]]]
    """The ids of groups that are rows alone, by these."""
    others: list[dict[Group, None]]
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


class ClauseIndex:
    """Ids with a clause each.  Not thread-safe."""

    def __init__(self) -> None:
        # No bitmap, list or dict inside of these is ever empty.
        self._groups: dict[Clause, Group] = {}
        # For groups that are rows alone, row -> rows of the group -> its ids; for all
        # others, row -> groups.
        self._plain: dict[Row, dict[frozenset[Row], list[int]]] = {}
        self._others: dict[Row, dict[Group, None]] = {}
        self._plan = Plan()  # the fields of all groups
        self.read = self._plan.read
        """Read a message, as far as the clauses ask for it."""
        self._bucketed = BitSlices()  # the ids of the groups with a bucket
        self._unbucketed = BitSlices()  # those of all others
        self._alone: dict[Group, None] = {}  # these others

    def add(self, id: int, clause: Clause) -> Group:
        """Add an id with its clause, and return its group; or with an error nothing.

        Raises LimitError as `place` does.
        """
        group = self._groups.get(clause) or self._open(clause)
        try:
            (self._bucketed if group.access else self._unbucketed).add(id, group.placed)
        except BaseException:
            if not group.ids:
                self._close(group)
            raise
        insort(group.ids, id)
        return group

    def remove(self, id: int, group: Group) -> None:
        """Remove an id; its group is that of `add`.

        Takes O(literals), and a step for each id of the group.
        """
        del group.ids[bisect_left(group.ids, id)]
        (self._bucketed if group.access else self._unbucketed).remove(id, group.placed)
        if not group.ids:
            self._close(group)

    def matching(self, message: Message) -> BitMap:
        """Return the ids whose clauses are met."""
        candidates = self.candidates(message)
        found = candidates.ids() if len(candidates) <= CANDIDATES else self._bucketed.matching(message)
        if len(self._alone) > FEW:
            return found | self._unbucketed.matching(message)
        for group in self._alone:
            if group.is_met(message):
                found.update(group.ids)
        return found

    def matches(self, message: Message) -> bool:
        """Return whether the clause of any id is met; stops at the first."""
        candidates = self.candidates(message)
        if any(islice(candidates.tests(), CANDIDATES)):
            return True
        if len(candidates) > CANDIDATES and self._bucketed.matching(message):
            return True
        if len(self._alone) > FEW:
            return bool(self._unbucketed.matching(message))
        return any(group.is_met(message) for group in self._alone)

    @property
    def group_count(self) -> int:
        """The number of different clauses."""
        return len(self._groups)

    @property
    def size(self) -> int:
        """About how many bytes the groups, buckets and bitmaps take.  O(fields).

        A group takes some 700 bytes with its sets and tuples, and a bitmap 200.
        """
        tables = sum(map(sys.getsizeof, (self._groups, self._plain, self._others)))
        buckets = 232 * (len(self._plain) + len(self._others))
        return tables + buckets + 700 * len(self._groups) + self._bucketed.size + self._unbucketed.size

    def hits(self, message: Message) -> list[BitMap]:
        """Return the ids of each literal that holds, in the clauses with a bucket.

        The number of bitmaps that hold an id is the number of its literals that hold.
        They must not be changed.
        """
        return self._bucketed.met(message)

    def has_hit(self, message: Message) -> bool:
        """Return whether any literal holds, if all clauses are lists of criteria.

        Of other clauses, prefixes and ranges are not looked at.
        """
        return self._bucketed.has_row(message)

    def candidates(self, message: Message) -> Candidates:
        """Return the groups with a bucket that a message could meet."""
        # No bucket is empty, so `filter` drops only those that are missing.
        plain = list(filter(None, map(self._plain.get, message.rows)))
        if () in self._plain:
            plain.append(self._plain[()])
        others = list(filter(None, map(self._others.get, message.rows))) if self._others else []
        return Candidates(message, plain, others)

    def _open(self, clause: Clause) -> Group:
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
        group = self._groups[clause] = Group(clause, place(clause), certain, tuple(others), access)
        for literal in clause:
            self._plan.add(field_of(literal))
        if not access:
            self._alone[group] = None
        for row in access:
            if others:
                self._others.setdefault(row, {})[group] = None
            else:
                self._plain.setdefault(row, {})[certain] = group.ids
        return group

    def _close(self, group: Group) -> None:
        """Drop a group without ids."""
        del self._groups[group.clause]
        for literal in group.clause:
            self._plan.remove(field_of(literal))
        self._alone.pop(group, None)
        for row in group.access:
            if group.others:
                del self._others[row][group]
                if not self._others[row]:
                    del self._others[row]
            else:
                del self._plain[row][group.rows]
                if not self._plain[row]:
                    del self._plain[row]

    def _check(self, clauses: dict[int, Clause]) -> None:
        """Assert all invariants, and that these are the clauses by id; for tests."""
        ids: dict[Clause, list[int]] = {}
        for id in sorted(clauses):
            ids.setdefault(clauses[id], []).append(id)
        assert ids == {clause: group.ids for clause, group in self._groups.items()}
        plain: dict[Row, dict[frozenset[Row], list[int]]] = {}
        others: dict[Row, dict[Group, None]] = {}
        for clause, group in self._groups.items():
            assert group.clause == clause
            assert bool(group.access) is (not clause or any(map(rows_of, clause)))
            for row in group.access:
                if group.others:
                    others.setdefault(row, {})[group] = None
                else:
                    plain.setdefault(row, {})[group.rows] = group.ids
        self._plan._check(field_of(literal) for clause in self._groups for literal in clause)
        assert self._plain == plain
        assert self._others == others
        assert list(self._alone) == [group for group in self._groups.values() if not group.access]
        for slices, bucketed in ((self._bucketed, True), (self._unbucketed, False)):
            groups = [group for group in self._groups.values() if bool(group.access) is bucketed]
            slices._check({id: group.placed for group in groups for id in group.ids})

"""Optimized inverted bitmap: a table of bitmaps for each position of a word, and an AND over the positions.

    0 forex.*   1 *.nyse   2 stock.#         exact {"index": eve}      inner trie {a.#.z: fay}

    position 0              position 1              length              tail
      forex   {0}             nyse    {1}             2   {0, 1}          1   {2}
      stock   {2}             other   {0, 2}
      other   {1}

    lookup("stock.nyse")   {0, 1} | {2}     length 2, and what may end with a tail after at most 2 words
                         & {2} | {1}        stock or other
                         & {1} | {0, 2}     nyse or other      = {1, 2}

A column is a pattern, and its id is used again once the pattern has no subscription.  `other` has the columns
that take any word there: `*`, and every position from a `#` at the end on.

The article has a row `null` at each position, for the patterns that have ended.  A pattern without a word p has
no word p + 1 either: null_p is a subset of null_(p+1), so after the first null row the others change nothing, as
the article says.  That first row, for a topic of n words, ANDed with the tables before it, leaves the patterns of
n words exactly.  So one row for each length does for all of them, and it comes first, for it leaves out most.

Exact patterns are in a dict beside the tables (WSO2), and those with a `#` before the end, which no position can
say, are in a trie.

    subscribe, unsubscribe   O(words); O(positions) with a `#` at the end
    lookup                   O(words) operations on bitmaps of up to a bit a pattern, until nothing is left
    matches                  the same, but the last AND stops at the first bit
    memory                   a bit or so for each word of each pattern, a bitmap for each word at each position

Source: P. Hintjens, High-speed message matching (iMatix); P. Theivendiram and M. Uthayakumar, Fast Topic Matching
Algorithm Implementation for WSO2 Message Broker, 2015; T. Treat, Fast Topic Matching, 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from pyroaring import BitMap

from skipfilter.engines.base import Value, count_in, count_out
from skipfilter.errors import not_copied
from skipfilter.trie import Trie
from skipfilter.words import MANY, ONE, Wildcard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.words import Grammar, Words

_Table: TypeAlias = dict[str | Wildcard, BitMap]
"""The rows of one position: word -> columns; `other` is the row of ONE."""


class OptimizedInvertedBitmap(Generic[Value]):
    """One thread at a time, or the caller's lock.

    All its mutable state is the counts of values of the exact patterns, of those in the trie and of the columns;
    the id of each column's pattern and the ids to use again; the tables, as many as the longest of the columns
    has words; the rows by length, by the words before a tail, and by the wildcard that a column begins with; the
    pattern and the value of each handle; and the next handle.  No row is empty.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._exact: dict[Words, dict[Value, int]] = {}
        self._inner: Trie[str, dict[Value, int]] = Trie()
        self._columns: dict[int, dict[Value, int]] = {}
        self._ids: dict[Words, int] = {}
        self._free: list[int] = []
        self._tables: list[_Table] = []
        self._lengths: dict[int, BitMap] = {}
        self._tails: dict[int, BitMap] = {}
        self._leading: dict[Wildcard, BitMap] = {}
        self._subscriptions: dict[int, tuple[Words, Value]] = {}
        self._next = 0

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """O(|pattern|), and O(positions) with a `#` at the end."""
        words = self._grammar.parse_pattern(pattern)
        hash(value)
        count_in(self._counts(words), value)
        handle = self._next
        self._next += 1
        self._subscriptions[handle] = words, value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """O(|pattern|), and O(positions) for the last subscription of a pattern."""
        words, value = self._subscriptions.pop(handle)
        counts = self._counts(words)
        count_out(counts, value)
        if not counts:
            self._remove(words)

    def lookup(self, topic: str) -> set[Value]:
        """O(words) operations on bitmaps, O(words * nodes reached) in the trie, and the values found."""
        words = self._grammar.parse_topic(topic)
        hidden = self._grammar.hides(topic)
        found = [self._columns[column] for column in self._matching(words, hidden)]
        if (exact := self._exact.get(tuple(words))) is not None:
            found.append(exact)
        if self._inner.root.leads_on():
            found += self._inner.find(words, hidden=hidden)
        return set().union(*found)

    def matches(self, topic: str) -> bool:
        """As lookup; what is asked first is what costs least, and `#` alone, which everything matches."""
        words = self._grammar.parse_topic(topic)
        hidden = self._grammar.hides(topic)
        return (
            tuple(words) in self._exact
            or (0 in self._tails and not hidden)
            or self._any_matching(words, hidden)
            or self._inner.finds(words, hidden=hidden)
        )

    def __len__(self) -> int:
        return len(self._subscriptions)

    # -- where a pattern's values are counted

    def _counts(self, words: Words) -> dict[Value, int]:
        """The counts of a pattern, made if need be."""
        if _is_exact(words):
            return self._exact.setdefault(words, {})
        if MANY in words[:-1]:
            node = self._inner.node(words)
            if node.value is None:
                node.value = {}
            return node.value
        column = self._ids.get(words)
        return self._columns[self._add_column(words) if column is None else column]

    def _remove(self, words: Words) -> None:
        """Leave nothing of a pattern behind."""
        if _is_exact(words):
            del self._exact[words]
        elif MANY in words[:-1]:
            self._inner.node(words).value = None
            self._inner.prune(words)
        else:
            self._remove_column(words)

    # -- the columns

    def _add_column(self, words: Words) -> int:
        column = self._free.pop() if self._free else len(self._columns)
        self._columns[column] = {}
        self._ids[words] = column
        for position in range(len(self._tables), len(words) - (words[-1] is MANY)):
            # Who has a tail by then takes any word here.
            tails = [row for length, row in self._tails.items() if length <= position]
            self._tables.append({ONE: _union(tails).copy()} if tails else {})
        for rows, key in self._rows_of(words):
            rows.setdefault(key, BitMap()).add(column)
        return column

    def _remove_column(self, words: Words) -> None:
        # Out of every row: a bit left behind would belong to whoever gets the id next.
        column = self._ids.pop(words)
        del self._columns[column]
        for rows, key in self._rows_of(words):
            rows[key].discard(column)
            if not rows[key]:
                del rows[key]
        del self._tables[max((*self._lengths, *self._tails), default=0) :]
        self._free.append(column)

    def _rows_of(self, words: Words) -> Iterator[tuple[dict[Any, BitMap], object]]:
        """Each row that the column of `words` is in: the rows it is one of, and its key there."""
        fixed = words[:-1] if words[-1] is MANY else words
        yield from zip(self._tables, fixed, strict=False)
        if len(fixed) == len(words):
            yield self._lengths, len(words)
        else:
            yield self._tails, len(fixed)
            yield from ((table, ONE) for table in self._tables[len(fixed) :])
        if isinstance(words[0], Wildcard):
            yield self._leading, words[0]

    def _start(self, length: int, hidden: bool) -> BitMap:
        """The columns that a topic of `length` words may match, which is only to be read."""
        rows = [row for words, row in self._tails.items() if words <= length]
        if (row := self._lengths.get(length)) is not None:
            rows.append(row)
        start = _union(rows)
        for row in self._leading.values() if hidden else ():
            start = start - row
        return start

    def _matching(self, words: list[str], hidden: bool) -> BitMap:
        """The columns that match."""
        left = self._start(len(words), hidden)
        for table, word in zip(self._tables, words, strict=False):
            if not left:
                break
            left = left & _taking(table, word)
        return left

    def _any_matching(self, words: list[str], hidden: bool) -> bool:
        """Whether `_matching` is not empty."""
        left = self._start(len(words), hidden)
        steps = list(zip(self._tables, words, strict=False))
        if not steps:
            return bool(left)
        for table, word in steps[:-1]:
            if not left:
                return False
            left = left & _taking(table, word)
        return left.intersect(_taking(*steps[-1]))

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        self._inner._check()
        assert sorted([*self._columns, *self._free]) == list(range(len(self._columns) + len(self._free)))
        assert all(handle < self._next for handle in self._subscriptions)
        again: OptimizedInvertedBitmap[Value] = OptimizedInvertedBitmap(self._grammar)
        for words, value in self._subscriptions.values():
            count_in(again._counts(words), value)
        assert self._exact == again._exact
        assert _lists(self._inner) == _lists(again._inner)
        assert self._ids.keys() == again._ids.keys()
        renamed = {again._ids[words]: column for words, column in self._ids.items()}
        assert self._columns == {renamed[column]: counts for column, counts in again._columns.items()}
        assert self._all_rows() == [
            {key: BitMap([renamed[column] for column in row]) for key, row in rows.items()}
            for rows in again._all_rows()
        ]

    def _all_rows(self) -> list[dict[Any, BitMap]]:
        return [*self._tables, self._lengths, self._tails, self._leading]


def _is_exact(words: Words) -> bool:
    return not any(isinstance(word, Wildcard) for word in words)


def _lists(trie: Trie[str, dict[Value, int]]) -> dict[Words, dict[Value, int]]:
    return {words: node.value for words, node in trie.nodes() if node.value is not None}


def _taking(table: _Table, word: str) -> BitMap:
    """The columns that take `word` at the position of `table`, which are only to be read."""
    row, other = table.get(word), table.get(ONE)
    if row is None:
        return BitMap() if other is None else other
    return row if other is None else row | other


def _union(rows: list[BitMap]) -> BitMap:
    """All the columns of `rows`; of one row the row itself."""
    # Not BitMap.union, which is the slower way for few and small ones.
    if not rows:
        return BitMap()
    union, *others = rows
    for row in others:
        union = union | row
    return union

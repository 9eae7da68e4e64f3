"""Optimized inverted bitmap: a lookup ANDs bitmaps, one for each word at its position.

    0 forex.*   1 *.nyse   2 stock.#      exact {"index": eve}   inner trie {a.#.z: fay}

    position 0              position 1              length              tail
      forex   {0}             nyse    {1}             2   {0, 1}          1   {2}
      stock   {2}             other   {0, 2}
      other   {1}

    lookup("stock.nyse")   {0, 1} | {2}     length 2, or a tail after at most 2 words
                         & {2} | {1}        stock or other
                         & {1} | {0, 2}     nyse or other      = {1, 2}

A column is a pattern.  Its id is used again after the pattern's last subscription has
ended.  A row is a bitmap of columns.  The row `other` has the columns that match any
word at its position: those with a `*` there, or with a `#` at or before it.

Hintjens has a row `null` at each position, for the patterns that end before it.  Each
of them is a subset of the next, so only the first one after the topic's words matters.
ANDed with the tables before it, it leaves exactly the patterns as long as the topic.
So one row for each length replaces all null rows.  It comes first, because it excludes
most patterns.

Exact patterns are in a dict (as in WSO2).  Patterns with a `#` before the end are in a
trie, because positions cannot express them.

`matches` may stop at the first column that is left.  If there are many columns, it goes
from left to right in portions, so that each AND stops, and not only the last one.  Then
the likely patterns must be on the left: those with the fewest fixed words.

    columns    0 to 63   64 to 1,087   1,088 to 17,471   all
               *.*.nyse  stock.*.nyse  stock.ibm.nyse

    subscribe, unsubscribe   O(words), or O(positions) if the pattern ends with a `#`
    lookup                   O(words) operations on bitmaps, of up to a bit a pattern
    matches                  the same, but stops at the first column that is left
    memory                   about a bit for each word of each pattern, and a bitmap for
                             each word at each position

Source: P. Hintjens, High-speed message matching (iMatix); P. Theivendiram and M.
Uthayakumar, Fast Topic Matching Algorithm Implementation for WSO2 Message Broker, 2015;
T. Treat, Fast Topic Matching, 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from pyroaring import BitMap, FrozenBitMap

from skipfilter.engines.base import Value, count_in, count_out
from skipfilter.errors import not_copied
from skipfilter.topics.trie import Trie
from skipfilter.topics.words import MANY, ONE, Wildcard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.topics.words import Grammar, Words

PORTIONS: Final = (FrozenBitMap(range(64)), FrozenBitMap(range(64, 1_088)), FrozenBitMap(range(1_088, 17_472)))
"""The columns that `matches` tests first, and before all others."""

PORTIONED: Final = 32_768
"""If fewer columns than this have the length of a topic, they are one portion, because
more portions cost more (bench/results/filtering.json).
"""

_Table: TypeAlias = dict[str | Wildcard, BitMap]
"""The rows of one position: word -> columns; the row of ONE is `other`."""


class OptimizedInvertedBitmap(Generic[Value]):
    """Subscriptions in tables of bitmaps.

    One thread at a time.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._exact: dict[Words, dict[Value, int]] = {}  # exact pattern -> counts by value
        self._inner: Trie[str, dict[Value, int]] = Trie()  # the patterns with # before the end
        self._columns: dict[int, dict[Value, int]] = {}  # column -> counts by value
        self._ids: dict[Words, int] = {}  # pattern -> column
        self._free: list[int] = []  # columns to use again
        self._unordered = 0  # how many patterns came since the likely ones were moved left
        # The rows; none is empty.  There is a table for each word of the longest
        # column, without the # at its end.
        self._tables: list[_Table] = []  # by position
        self._lengths: dict[int, BitMap] = {}  # columns without #, by number of words
        self._tails: dict[int, BitMap] = {}  # columns with #, by number of words before it
        self._leading: dict[Wildcard, BitMap] = {}  # columns that begin with this wildcard
        self._subscriptions: dict[int, tuple[Words, Value]] = {}  # by handle
        self._next = 0  # the next handle

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription.

        Takes O(|pattern|), or O(positions) if the pattern is new and ends with a `#`.
        """
        words = self._grammar.parse_pattern(pattern)
        hash(value)
        count_in(self._counts(words), value)
        handle = self._next
        self._next += 1
        self._subscriptions[handle] = words, value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.

        Takes O(|pattern|).  The last subscription of a pattern in the tables also takes
        O(positions).
        """
        words, value = self._subscriptions.pop(handle)
        counts = self._counts(words)
        count_out(counts, value)
        if not counts:
            self._remove(words)

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(words) operations on bitmaps, and O(words * nodes reached) in the trie
        if there are patterns with a `#` before the end.
        """
        words = self._grammar.parse_topic(topic)
        hidden = self._grammar.hides(topic)
        found = [self._columns[column] for column in self._matching(words, hidden)]
        if (exact := self._exact.get(tuple(words))) is not None:
            found.append(exact)
        if self._inner.root.leads_on():
            found += self._inner.find(words, hidden=hidden)
        return set().union(*found)

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        The cheapest tests come first, and the first match ends the call.  If a third of
        many patterns are new, they are first moved to the left if they are likely: that
        takes O(patterns * words), once for that many new ones.
        """
        words = self._grammar.parse_topic(topic)
        hidden = self._grammar.hides(topic)
        if 3 * self._unordered > len(self._columns) > PORTIONED:
            self._order()
        return (
            tuple(words) in self._exact
            or (0 in self._tails and not hidden)  # the pattern # alone
            or self._any_matching(words, hidden)
            or self._inner.finds(words, hidden=hidden)
        )

    def __len__(self) -> int:
        return len(self._subscriptions)

    # -- the counts of a pattern: they are in one of three places

    def _counts(self, words: Words) -> dict[Value, int]:
        """Return the counts of a pattern, and add the pattern if it is new."""
        # 1. No wildcard: the dict.
        if _is_exact(words):
            return self._exact.setdefault(words, {})
        # 2. A `#` before the end: the trie.
        if MANY in words[:-1]:
            node = self._inner.node(words)
            if node.value is None:
                node.value = {}
            return node.value
        # 3. All other patterns: a column of the tables.
        column = self._ids.get(words)
        return self._columns[self._add_column(words) if column is None else column]

    def _remove(self, words: Words) -> None:
        """Remove a pattern whose last subscription has ended."""
        if _is_exact(words):
            del self._exact[words]
        elif MANY in words[:-1]:
            self._inner.node(words).value = None
            self._inner.prune(words)
        else:
            self._remove_column(words)

    # -- the columns

    def _add_column(self, words: Words) -> int:
        """Give a new pattern a column, and set its bit in every row."""
        column = self._free.pop() if self._free else len(self._columns)
        self._unordered += 1
        self._columns[column] = {}
        self._ids[words] = column
        # If this column is the longest so far, it needs new tables.  They begin with
        # the earlier columns that end with a `#` before the position: those match any
        # word.
        for position in range(len(self._tables), len(words) - (words[-1] is MANY)):
            tails = [row for length, row in self._tails.items() if length <= position]
            self._tables.append({ONE: _union(tails).copy()} if tails else {})
        for rows, key in self._rows_of(words):
            rows.setdefault(key, BitMap()).add(column)
        return column

    def _remove_column(self, words: Words) -> None:
        """Remove a pattern's column, and clear its bit in every row.

        A bit that stayed would belong to the next pattern with this id.
        """
        column = self._ids.pop(words)
        del self._columns[column]
        for rows, key in self._rows_of(words):
            rows[key].discard(column)
            if not rows[key]:
                del rows[key]
        # The tables after the last word of the longest column are empty, or have only
        # columns with a `#` before them.
        del self._tables[max((*self._lengths, *self._tails), default=0) :]
        self._free.append(column)

    def _rows_of(self, words: Words) -> Iterator[tuple[dict[Any, BitMap], object]]:
        """Iterate over (rows, key) of each row that the column of `words` is in."""
        fixed = words[:-1] if words[-1] is MANY else words
        # The key of a `*` is ONE, which is also the key of the row `other`.
        yield from zip(self._tables, fixed, strict=False)
        if len(fixed) == len(words):
            yield self._lengths, len(words)
        else:
            yield self._tails, len(fixed)
            yield from ((table, ONE) for table in self._tables[len(fixed) :])
        if isinstance(words[0], Wildcard):
            yield self._leading, words[0]

    def _start(self, length: int, hidden: bool) -> BitMap:
        """Return the columns that may match a topic of `length` words.

        The result must not be changed: it may be a row.
        """
        rows = [row for words, row in self._tails.items() if words <= length]
        if (row := self._lengths.get(length)) is not None:
            rows.append(row)
        start = _union(rows)
        # A hidden topic: no pattern that begins with a wildcard matches it.
        for row in self._leading.values() if hidden else ():
            start = start - row
        return start

    def _matching(self, words: list[str], hidden: bool) -> BitMap:
        """Return the columns that match `words`; the result must not be changed."""
        left = self._start(len(words), hidden)
        for table, word in zip(self._tables, words, strict=False):
            if not left:
                break
            left = left & _taking(table, word)
        return left

    def _any_matching(self, words: list[str], hidden: bool) -> bool:
        """Return whether any column matches `words`."""
        start = self._start(len(words), hidden)
        steps = list(zip(self._tables, words, strict=False))
        if not steps:
            return bool(start)
        # 1. The portions on the left.
        for portion in self._portions(start):
            left = start & portion
            for table, word in steps:
                if not left:
                    break
                left = _those_taking(left, table, word)
            if left:
                return True
        # 2. All columns; the last AND stops at the first common one.
        left = start
        for table, word in steps[:-1]:
            if not left:
                return False
            left = left & _taking(table, word)
        return left.intersect(_taking(*steps[-1]))

    def _portions(self, start: BitMap) -> tuple[FrozenBitMap, ...]:
        """Return the portions to test first if the columns `start` may match."""
        return PORTIONS if len(start) > PORTIONED else ()

    def _order(self) -> None:
        """Give the patterns with the fewest fixed words the first columns."""
        before, self._ids = self._ids, {}
        new: dict[int, int] = {}
        for column, words in enumerate(sorted(before, key=_number_of_fixed_words)):
            self._ids[words] = column
            new[before[words]] = column
        self._columns = {new[column]: counts for column, counts in self._columns.items()}
        for rows in self._all_rows():
            for key, row in rows.items():
                rows[key] = BitMap([new[column] for column in row])
        self._free.clear()
        self._unordered = 0

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        self._inner._check()
        assert sorted([*self._columns, *self._free]) == list(range(len(self._columns) + len(self._free)))
        assert all(handle < self._next for handle in self._subscriptions)
        # A second engine with the same subscriptions has the same rows, apart from the
        # ids of the columns.
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


def _number_of_fixed_words(words: Words) -> int:
    return sum(isinstance(word, str) for word in words)


def _lists(trie: Trie[str, dict[Value, int]]) -> dict[Words, dict[Value, int]]:
    return {words: node.value for words, node in trie.nodes() if node.value is not None}


def _taking(table: _Table, word: str) -> BitMap:
    """Return the columns that match `word` at the position of `table`.

    The result must not be changed: it may be a row.
    """
    row, other = table.get(word), table.get(ONE)
    if row is None:
        return BitMap() if other is None else other
    return row if other is None else row | other


def _those_taking(columns: BitMap, table: _Table, word: str) -> BitMap:
    """Return the ones among `columns` that match `word` at the position of `table`.

    If `columns` are few, this is faster than an AND with `_taking`, which makes a union
    of two rows.
    """
    row, other = table.get(word), table.get(ONE)
    if row is None:
        return BitMap() if other is None else columns & other
    return columns & row if other is None else (columns & row) | (columns & other)


def _union(rows: list[BitMap]) -> BitMap:
    """Return the union of `rows`.

    The result must not be changed: a single row is returned itself.
    """
    # BitMap.union is slower for few and small bitmaps.
    if not rows:
        return BitMap()
    union, *others = rows
    for row in others:
        union = union | row
    return union

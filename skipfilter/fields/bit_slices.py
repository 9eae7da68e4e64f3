"""Bit slices: which clauses does a message meet?  Answered for all ids at once.

Each id has a clause: parts that must hold, and parts that must not.  A part has an
index that turns a value of its field into the ids that it holds for:

    present, one_of    a bitmap of ids for a field, and for each content of it
    prefix             a bitmap for each text; the beginnings of a value are looked up
    range              the ids in the order of their bounds, in blocks (`Bounds`)

    id  clause                          present, one_of        ranges
    0   currency=USD, urgent            currency=USD {0, 1}    total >= 100 {1}
    1   currency=USD, total >= 100      urgent       {0, 2}
    2   urgent, not total >= 500                               not: total >= 500 {2}

    {currency: USD, total: 700, urgent: 1}   hits {0: 2, 1: 2, 2: 1}   all: 0, 1, 2
                                             without those of `not`: 0, 1

Each index of a field holds an id at most once, so the number of the bitmaps that hold
an id is the number of its parts that hold.  If a clause has two such parts about one
field, the second one is in a second layer, and so on.

*Bit slices.*  The bitmaps are added up into bit planes, and each carry ripples into the
next plane.  No id has more hits than its clause has parts, so of the ids with five
parts, those in planes 2 and 0 have all of them.  O(bitmaps * planes) operations,
however many ids match.

Source: P. Hintjens, High-speed message matching, iMatix, for the hit counts; P. O'Neil
and D. Quass, Improved query performance with variant indexes, SIGMOD 1997, for bit
slices.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pyroaring import BitMap

from skipfilter.errors import LimitError
from skipfilter.fields.expressions import Not, OneOf, Prefix, Present, Range, ordered

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from skipfilter.fields.expressions import Clause, Expression, Literal
    from skipfilter.fields.messages import Message, Row

_Key = TypeVar("_Key")
Bound: TypeAlias = tuple[Any, int]
"""A bound of a range; see `Range`."""
Placed: TypeAlias = tuple["Iterable[Literal]", ...]
"""The literals of a clause by the number of their layer."""

BLOCK: Final = 128
"""The least number of bounds in a new block."""
MAX_REPEATS: Final = 20
"""The maximum number of parts of a clause of one kind and about one field; each needs a
layer of its own, which every message is looked up in."""
MAX_ID: Final = 1 << 32
"""More than any id, which have 32 bits."""


def place(clause: Clause) -> Placed:
    """Return the literals of a clause by the number of their layer.

    No two in one layer are about the same field and of the same kind.  Raises
    LimitError if there are more than MAX_REPEATS such.
    """
    kinds = [_kind(literal) for literal in clause]
    if len(set(kinds)) == len(kinds):
        return (clause,)
    used: Counter[Hashable] = Counter(kinds)
    if max(used.values()) > MAX_REPEATS:
        raise LimitError(f"a clause has more than {MAX_REPEATS} parts of one kind about one field")
    used.clear()
    layers: list[list[Literal]] = []
    for literal, kind in zip(clause, kinds, strict=True):
        if used[kind] == len(layers):
            layers.append([])
        layers[used[kind]].append(literal)
        used[kind] += 1
    return tuple(map(tuple, layers))


class BitSlices:
    """The ids whose clause a message meets."""

    def __init__(self) -> None:
        # No bitmap or dict inside of these is ever empty.
        self._wanted: list[Layer] = []  # the parts that must hold
        self._unwanted: list[Layer] = []  # the parts that must not
        self._needed: dict[int, BitMap] = {}  # number of parts that must hold -> ids with so many

    def add(self, id: int, clause: Placed) -> None:
        """Add an id with its clause, or with an error nothing.

        Comparing a bound with another one may raise an error of its type.
        """
        added: list[tuple[int, Literal]] = []
        try:
            for number, literals in enumerate(clause):
                for literal in literals:
                    layers = self._layers(literal)
                    if number == len(layers):
                        layers.append(Layer())
                    layers[number].add(id, literal)
                    added.append((number, literal))
        except BaseException:
            self._take_out(id, added)
            raise
        self._needed.setdefault(needed(clause), BitMap()).add(id)

    def remove(self, id: int, clause: Placed) -> None:
        """Remove an id; its clause is that of `add`."""
        added = [(number, literal) for number, literals in enumerate(clause) for literal in literals]
        self._take_out(id, added)
        leave(self._needed, needed(clause), id)

    def _layers(self, literal: Literal) -> list[Layer]:
        return self._unwanted if isinstance(literal, Not) else self._wanted

    def _take_out(self, id: int, added: list[tuple[int, Literal]]) -> None:
        """Remove an id from the layers of some literals."""
        for number, literal in added:
            self._layers(literal)[number].remove(id, literal)
        for layers in (self._wanted, self._unwanted):
            while layers and layers[-1].is_empty():
                layers.pop()

    def count(self, row: Row) -> int:
        """Return the number of ids with a part that this row meets."""
        return len(self._wanted[0].rows.get(row, ())) if self._wanted else 0

    def met(self, message: Message) -> list[BitMap]:
        """Return the ids of each part that must hold and does.

        The bitmaps must not be changed.
        """
        return [ids for layer in self._wanted for ids in layer.met(message)]

    def has_row(self, message: Message) -> bool:
        """Return whether a message has a row that any part asks for."""
        return any(row in layer.rows for layer in self._wanted for row in message.rows)

    def matching(self, message: Message) -> BitMap:
        """Return the ids whose clauses hold."""
        # Small bitmaps first: as long as all are small, each step is fast.
        planes = planes_of(sorted(self.met(message), key=len))
        found = BitMap()
        for count, ids in self._needed.items():
            if count >> len(planes) == 0:
                for bit in bits(count):
                    ids = ids & planes[bit]
                found |= ids
        for layer in self._unwanted:
            for ids in layer.met(message):
                found -= ids
        return found

    @property
    def size(self) -> int:
        """About how many bytes the bitmaps and tables take.  O(fields)."""
        return sum(layer.size for layers in (self._wanted, self._unwanted) for layer in layers)

    def __bool__(self) -> bool:
        """Return whether there is an id."""
        return bool(self._needed)

    def _check(self, clauses: dict[int, Placed]) -> None:
        """Assert all invariants, and that these are the clauses by id; for tests."""
        again = BitSlices()
        for id, clause in sorted(clauses.items()):
            again.add(id, clause)
        assert self._needed == again._needed
        for layers, fresh in ((self._wanted, again._wanted), (self._unwanted, again._unwanted)):
            assert [layer._all() for layer in layers] == [layer._all() for layer in fresh]


class Layer:
    """The ids with a part, for each part; at most one of a field and a kind for each
    id.
    """

    def __init__(self) -> None:
        self.rows: dict[Row, BitMap] = {}
        """The ids that ask for a field, or for a content of it."""
        self._prefixes: dict[str, Prefixes] = {}  # by field
        self._ranges: dict[str, dict[str, Ranges]] = {}  # field -> kind of order -> its ranges

    def add(self, id: int, literal: Literal) -> None:
        """Add an id with a literal, whether it is negated or not; or with an error
        nothing.
        """
        part = literal.part if isinstance(literal, Not) else literal
        added: list[Row] = []
        try:
            for row in rows_of(part):
                self.rows.setdefault(row, BitMap()).add(id)
                added.append(row)
        except BaseException:  # a content of the caller's own type may not compare with another one
            for row in added:
                leave(self.rows, row, id)
            raise
        if isinstance(part, Prefix):
            self._prefixes.setdefault(part.field, Prefixes()).add(id, part.text)
        elif isinstance(part, Range):
            ranges = self._ranges.get(part.field, {}).get(part.order) or Ranges()
            ranges.add(id, part)
            self._ranges.setdefault(part.field, {})[part.order] = ranges

    def remove(self, id: int, literal: Literal) -> None:
        """Remove an id and its literal."""
        part = literal.part if isinstance(literal, Not) else literal
        for row in rows_of(part):
            leave(self.rows, row, id)
        if isinstance(part, Prefix):
            self._prefixes[part.field].remove(id, part.text)
            if not self._prefixes[part.field].texts:
                del self._prefixes[part.field]
        elif isinstance(part, Range):
            kinds = self._ranges[part.field]
            kinds[part.order].remove(id, part)
            if not kinds[part.order].ids:
                del kinds[part.order]
            if not kinds:
                del self._ranges[part.field]

    @property
    def size(self) -> int:
        """About how many bytes the bitmaps and tables take.  O(fields).

        A bitmap takes some 200 bytes, and a range 150.
        """
        texts = sum(len(prefixes.texts) for prefixes in self._prefixes.values())
        bounds = sum(len(some.ids) for kinds in self._ranges.values() for some in kinds.values())
        return sys.getsizeof(self.rows) + 200 * (len(self.rows) + texts) + 150 * bounds

    def is_empty(self) -> bool:
        """Return whether there is no id."""
        return not (self.rows or self._prefixes or self._ranges)

    def met(self, message: Message) -> list[BitMap]:
        """Return the ids of each part that holds; they must not be changed."""
        rows = self.rows
        # 1. The fields, and their contents.  Several contents of a field are one part.
        if message.is_plain:
            found = [ids for ids in map(rows.get, message.rows) if ids is not None]
        else:
            contents: dict[Hashable, list[BitMap]] = {}
            for row in message.rows:
                if row in rows:
                    contents.setdefault(row if len(row) == 1 else row[0], []).append(rows[row])
            found = [ids for some in contents.values() for ids in _union(some)]
        if not self._prefixes and not self._ranges:
            return found
        # 2. A content begins with a text.
        fields = message.fields
        for field in self._prefixes.keys() & fields.keys():
            texts = self._prefixes[field]
            found += _union([ids for value in fields[field] if isinstance(value, str) for ids in texts.of(value)])
        # 3. A content is in a range.
        for field in self._ranges.keys() & fields.keys():
            kinds = self._ranges[field]
            found += _union(
                [
                    some.around(order[1])
                    for value in fields[field]
                    if (order := ordered(value)) is not None and (some := kinds.get(order[0])) is not None
                ]
            )
        return found

    def _all(self) -> object:
        """Return all parts and ids, after a check; for tests."""
        return (
            self.rows,
            {field: prefixes._all() for field, prefixes in self._prefixes.items()},
            {field: {order: some._all() for order, some in kinds.items()} for field, kinds in self._ranges.items()},
        )


class Prefixes:
    """The ids with a text that a value may begin with; each has one text."""

    def __init__(self) -> None:
        self.texts: dict[str, BitMap] = {}
        """The ids of each text."""
        self._lengths: Counter[int] = Counter()  # the number of texts of each length

    def add(self, id: int, text: str) -> None:
        """Add an id with its text."""
        if text not in self.texts:
            self.texts[text] = BitMap()
            self._lengths[len(text)] += 1
        self.texts[text].add(id)

    def remove(self, id: int, text: str) -> None:
        """Remove an id; its text is that of `add`."""
        leave(self.texts, text, id)
        if text not in self.texts:
            self._lengths[len(text)] -= 1
            self._lengths += Counter()  # drops the length if it was the last text

    def of(self, value: str) -> list[BitMap]:
        """Return the ids of each text that `value` begins with.

        They must not be changed.  O(different lengths of texts).
        """
        # A length beyond the value would find the value itself again.
        lengths = [length for length in self._lengths if length <= len(value)]
        return [ids for length in lengths if (ids := self.texts.get(value[:length])) is not None]

    def _all(self) -> object:
        assert self._lengths == Counter(map(len, self.texts))
        return self.texts


class Ranges:
    """The ids with a range of one order; each has one range."""

    def __init__(self) -> None:
        self.ids = BitMap()
        """All ids."""
        self._lows = Bounds()
        self._highs = Bounds()
        self._lowest = BitMap()  # the ids without a lower bound

    def add(self, id: int, part: Range) -> None:
        """Add an id with its range, or with an error nothing."""
        if part.low is not None:
            self._lows.add(part.low, id)
        try:
            if part.high is not None:
                self._highs.add(part.high, id)
        except BaseException:
            if part.low is not None:
                self._lows.remove(part.low, id)
            raise
        if part.low is None:
            self._lowest.add(id)
        self.ids.add(id)

    def remove(self, id: int, part: Range) -> None:
        """Remove an id; its range is that of `add`."""
        self.ids.discard(id)
        self._lowest.discard(id)
        if part.low is not None:
            self._lows.remove(part.low, id)
        if part.high is not None:
            self._highs.remove(part.high, id)

    def around(self, value: object) -> BitMap:
        """Return the ids whose range has the value; a new bitmap."""
        found = self._lows.up_to((value, 0))
        found |= self._lowest
        found -= self._highs.below((value, 0))
        return found

    def _all(self) -> object:
        return self.ids, self._lowest, self._lows._all(), self._highs._all()


class Bounds:
    """Ids in the order of a bound; each id has one.

    They are in blocks, each with a bitmap of its ids, so the ids up to a bound are the
    union of some blocks, and of a part of one.  A block is as long as there are blocks,
    so both take O(square root of the bounds).  A SortedList of sortedcontainers has
    blocks too, but no bitmaps that change with them.
    """

    def __init__(self) -> None:
        # Sorted pairs of a bound and an id.  Only a single block may be empty.
        self._blocks: list[list[tuple[Bound, int]]] = [[]]
        self._ids: list[list[int]] = [[]]  # the ids of each block, in the same order
        self._bitmaps = [BitMap()]  # the same ids

    def add(self, bound: Bound, id: int) -> None:
        """Add an id."""
        pair = (bound, id)
        at = self._block_of(pair)
        block, ids = self._blocks[at], self._ids[at]
        position = bisect_left(block, pair)
        block.insert(position, pair)
        ids.insert(position, id)
        self._bitmaps[at].add(id)
        if len(block) > 2 * max(BLOCK, len(self._blocks)):
            here, half = slice(at, at + 1), len(block) // 2
            self._blocks[here] = [block[:half], block[half:]]
            self._ids[here] = [ids[:half], ids[half:]]
            self._bitmaps[here] = [BitMap(ids[:half]), BitMap(ids[half:])]

    def remove(self, bound: Bound, id: int) -> None:
        """Remove an id; its bound is that of `add`."""
        pair = (bound, id)
        at = self._block_of(pair)
        block = self._blocks[at]
        position = bisect_left(block, pair)
        assert block[position] == pair
        del block[position], self._ids[at][position]
        self._bitmaps[at].discard(id)
        if not block and len(self._blocks) > 1:
            del self._blocks[at], self._ids[at], self._bitmaps[at]

    def up_to(self, bound: Bound) -> BitMap:
        """Return the ids whose bound is `bound` or less; a new bitmap."""
        return self._before((bound, MAX_ID))

    def below(self, bound: Bound) -> BitMap:
        """Return the ids whose bound is less than `bound`; a new bitmap."""
        return self._before((bound, -1))

    def _before(self, pair: tuple[Bound, int]) -> BitMap:
        """Return the ids whose pair is less; a new bitmap."""
        at = self._block_of(pair)
        some = BitMap(self._ids[at][: bisect_left(self._blocks[at], pair)])
        return some.union(*self._bitmaps[:at]) if at else some

    def _block_of(self, pair: tuple[Bound, int]) -> int:
        """Return the number of the block where a pair is, or belongs."""
        return max(bisect_right(self._blocks, pair, key=itemgetter(0)) - 1, 0) if len(self._blocks) > 1 else 0

    def _all(self) -> object:
        assert len(self._blocks) == len(self._ids) == len(self._bitmaps)
        assert all(self._blocks) or len(self._blocks) == 1
        assert self._ids == [[id for _, id in block] for block in self._blocks]
        assert self._bitmaps == [BitMap(ids) for ids in self._ids]
        pairs = [pair for block in self._blocks for pair in block]
        assert pairs == sorted(pairs)
        return pairs


def rows_of(literal: Literal | Expression) -> Sequence[Row]:
    """Return the rows that meet a literal, any of them; none if others may meet it."""
    if isinstance(literal, tuple):
        return (literal,)
    if isinstance(literal, Present):
        return ((literal.field,),)
    return [(literal.field, value) for value in literal.values] if isinstance(literal, OneOf) else ()


def _kind(literal: Literal) -> Hashable:
    """Return what only one literal of a clause in a layer may be."""
    wanted = not isinstance(literal, Not)
    part: Any = literal.part if isinstance(literal, Not) else literal
    if isinstance(part, tuple):
        return wanted, len(part), part[0]
    kind: type = type(part)
    return wanted, 1 if kind is Present else 2 if kind is OneOf else kind, part.field


def planes_of(bitmaps: Iterable[BitMap]) -> list[BitMap]:
    """Return how many of `bitmaps` hold each id: plane n holds the ids whose count has
    bit n.
    """
    planes: list[BitMap] = []
    for carry in bitmaps:
        for bit, plane in enumerate(planes):
            planes[bit], carry = plane ^ carry, plane & carry
            if not carry:
                break
        else:
            planes.append(carry)
    return planes


def bits(number: int) -> list[int]:
    """Return the numbers of the bits that are set, the highest first."""
    return [bit for bit in reversed(range(number.bit_length())) if number >> bit & 1]


def needed(clause: Placed) -> int:
    """Return how many literals of a clause must hold; the others must not."""
    return sum(not isinstance(literal, Not) for literals in clause for literal in literals)


def leave(bitmaps: dict[_Key, BitMap], key: _Key, id: int) -> None:
    """Remove an id from a bitmap, and the bitmap if it is then empty."""
    ids = bitmaps[key]
    ids.discard(id)
    if not ids:
        del bitmaps[key]


def _union(bitmaps: list[BitMap]) -> list[BitMap]:
    """Return the union of some bitmaps, or nothing if it is empty."""
    if not bitmaps:
        return []
    union = bitmaps[0] if len(bitmaps) == 1 else BitMap.union(*bitmaps)
    return [union] if union else []

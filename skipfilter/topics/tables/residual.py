"""A residual: patterns that no trie distinguishes, each filed under a piece of fixed
text.

    pattern            required text      filed under
    {x}-17             ... -17            its end      -17
    kind{x}.json       kind ... .json     its start    kind
    {+a}/new/{+b}      ... /new/ ...      inside       /new   (a power of two long)
    {+a}{b}            none               always

A lookup returns candidates, and the caller verifies them.  When a pattern is added, it
is filed under the piece that has the fewest others: if many patterns share a start, it
goes under its end or a piece inside.  A residual of up to FEW patterns is not cut into
pieces: the starts and ends are compared.

A lookup costs one hash for each distinct length of a start or an end, at most `LONGEST`
each, and one for each byte of the text and each of the `WINDOWS` in use.

Source: a rare fixed text as a filter before the match proper is R. Cox, Regular
Expression Matching with a Trigram Index, 2012.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from skipfilter.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

    from skipfilter.posting_list import PostingList
    from skipfilter.topics.tables.base import SelectorPostings

Pattern = TypeVar("Pattern", bound="Hashable")

FEW: Final = 4
"""Up to this number of patterns, they are compared one by one."""
LONGEST: Final = 64
"""Bytes of a start or an end that are used for filing."""
WINDOWS: Final = (16, 8, 4, 2, 1)
"""Possible lengths in bytes of a piece inside; the longest that fits is used."""

TRIED: Final = 64
"""Pieces inside of a pattern that are considered, to find one with few others."""

_START, _END, _INSIDE, _ALWAYS = range(4)
_Piece: TypeAlias = tuple[int, bytes]


class Texts(NamedTuple):
    """The fixed text of a pattern: what every match starts with, ends with, and
    contains.
    """

    start: bytes
    end: bytes
    inside: tuple[bytes, ...]

    def pieces(self) -> Iterator[_Piece]:
        """Iterate over the pieces to file the pattern under, cheapest lookup first."""
        if self.start:
            yield _START, self.start[:LONGEST]
        if self.end:
            yield _END, self.end[-LONGEST:]
        for text in self.inside:
            length = next(window for window in WINDOWS if window <= len(text))
            for at in range(min(len(text) - length + 1, TRIED // len(self.inside) + 1)):
                yield _INSIDE, text[at : at + length]


class AlikeLimit:
    """The limit of the patterns that may be filed under the same piece.

    If `most` others are there, `above` is called with the value of the new pattern, and
    with the ids of each of the others: it raises an error to refuse the pattern.
    Without `above`, it is refused with LimitError.
    """

    __slots__ = ("_above", "_most", "value")

    def __init__(
        self, most: int = sys.maxsize, above: Callable[[object, list[PostingList]], None] | None = None
    ) -> None:
        if most <= FEW:
            raise ValueError(f"max_alike must be more than {FEW}, not {most}")
        self.value: object = None
        """The value that is being added."""
        self._most = most
        self._above = above

    def check(self, others: Collection[SelectorPostings]) -> None:
        """Raise an error if a pattern must not be filed beside these."""
        if len(others) >= self._most:
            if self._above is None:
                raise LimitError(f"the limit of {self._most} patterns with the same fixed texts is reached")
            self._above(self.value, list(others))


class Residual(Generic[Pattern]):
    """Patterns with their posting lists."""

    __slots__ = ("_patterns", "_piece_of", "_under")

    def __init__(self) -> None:
        self._patterns: dict[Pattern, tuple[SelectorPostings, Texts]] = {}
        # The piece that each pattern is filed under; None while there are few patterns.
        self._piece_of: dict[Pattern, _Piece] | None = None
        # By kind of piece: length -> piece -> patterns.  No inner dict is empty.
        self._under: tuple[dict[int, dict[bytes, dict[Pattern, SelectorPostings]]], ...] = ()

    def __len__(self) -> int:
        return len(self._patterns)

    def get(self, pattern: Pattern) -> SelectorPostings | None:
        """Return the posting list of a pattern, or None."""
        found = self._patterns.get(pattern)
        return None if found is None else found[0]

    def add(self, pattern: Pattern, postings: SelectorPostings, texts: Texts, limit: AlikeLimit | None = None) -> None:
        """Add a pattern.  Raises the errors of `limit`, if there is one."""
        if self._piece_of is not None:
            self._file(pattern, postings, texts, limit)
        self._patterns[pattern] = postings, texts
        if self._piece_of is None and len(self._patterns) > FEW:
            self._piece_of = {}
            self._under = {}, {}, {}, {}
            for each, (its_place, its_texts) in self._patterns.items():
                self._file(each, its_place, its_texts, None)

    def remove(self, pattern: Pattern) -> None:
        """Remove a pattern.  Raises KeyError if it is absent."""
        del self._patterns[pattern]
        if self._piece_of is None:
            return
        kind, piece = self._piece_of.pop(pattern)
        lengths = self._under[kind]
        pieces = lengths[len(piece)]
        del pieces[piece][pattern]
        if not pieces[piece]:
            del pieces[piece]
            if not pieces:
                del lengths[len(piece)]

    def find(self, text: bytes, start: int = 0, beside: bytes = b"") -> Iterable[tuple[Pattern, SelectorPostings]]:
        """Return candidates for the text from `start` on, without repeats.

        They include every pattern that matches.  A piece inside may also come from
        `beside`.
        """
        if self._piece_of is None:
            return [
                (pattern, postings)
                for pattern, (postings, (starts_with, ends_with, _)) in self._patterns.items()
                if text.startswith(starts_with, start) and text.endswith(ends_with)
            ]
        found: dict[Pattern, SelectorPostings] = {}
        # Look up each distinct length of piece; then add the patterns without a piece.
        starts, ends, insides, always = self._under
        for length, pieces in starts.items():
            if under := pieces.get(text[start : start + length]):
                found.update(under)
        for length, pieces in ends.items():
            if under := pieces.get(text[-length:]):
                found.update(under)
        if beside and insides:
            text = b"%b\n%b" % (text, beside)
        for length, pieces in insides.items():
            for at in range(start, len(text) - length + 1):
                if under := pieces.get(text[at : at + length]):
                    found.update(under)
        for pieces in always.values():
            found.update(pieces[b""])
        return found.items()

    def posting_lists(self) -> Iterator[SelectorPostings]:
        """Iterate over all posting lists."""
        return (postings for postings, _ in self._patterns.values())

    def _file(self, pattern: Pattern, postings: SelectorPostings, texts: Texts, limit: AlikeLimit | None) -> None:
        """File a pattern under the piece that has the fewest others."""
        assert self._piece_of is not None
        best, fewest = (_ALWAYS, b""), -1
        # Take the first piece without others, else the one with the fewest.
        for kind, piece in texts.pieces():
            crowd = len(self._under[kind].get(len(piece), {}).get(piece, ()))
            if fewest < 0 or crowd < fewest:
                best, fewest = (kind, piece), crowd
            if not crowd:
                break
        kind, piece = best  # _ALWAYS if it has no piece
        if limit is not None:
            limit.check(self._under[kind].get(len(piece), {}).get(piece, {}).values())
        self._piece_of[pattern] = best
        self._under[kind].setdefault(len(piece), {}).setdefault(piece, {})[pattern] = postings

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        if self._piece_of is None:
            assert len(self._patterns) <= FEW
            return
        filed = {
            pattern: (kind, piece)
            for kind, lengths in enumerate(self._under)
            for length, pieces in lengths.items()
            for piece, patterns in pieces.items()
            for pattern in patterns
            if len(piece) == length
        }
        assert filed == self._piece_of
        assert filed.keys() == self._patterns.keys()
        assert all(pieces and all(pieces.values()) for lengths in self._under for pieces in lengths.values())

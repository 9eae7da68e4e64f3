"""A trie of path segments, with residuals for all that is not a whole segment.

    /books/{id}            root ─""──► · ─books──► · ─one───► posting list
    /books/{id}/covers     root ─""──► · ─books──► · ─one───► · ─covers──► posting list
    /books{?page,q}        root ─""──► · ─many──► residual with   books{?page,q}
    {+base}/new            root ─many──► residual with            {+base}/new

The candidates of a residual are verified from the byte where their segment begins.  A
walk follows all branches at once.  It costs O(segments * nodes that the beginning of
the topic reaches); two or three nodes are usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from skipfilter.topics.tables.base import SelectorPostings
from skipfilter.topics.tables.residual import Residual, Texts
from skipfilter.topics.trie import Node, Trie
from skipfilter.topics.words import MANY, ONE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from skipfilter.topics.matchers import Matcher
    from skipfilter.topics.tables.base import Table
    from skipfilter.topics.tables.residual import AlikeLimit
    from skipfilter.topics.words import Wildcard

MAX_DEPTH: Final = 32
"""The number of segments of a pattern that become nodes; a residual holds the rest."""

REST_BYTES: Final = 720
"""About how many bytes a pattern takes in a residual."""

Path: TypeAlias = tuple["bytes | Wildcard", ...]
AnyParts: TypeAlias = "tuple[Any, ...]"
"""Literals, which are bytes, and whatever else a matcher has between them."""
Rest = TypeVar("Rest", bound="Hashable")
Read = TypeVar("Read", contravariant=True)


class RestMatcher(Protocol[Read]):
    """A topic, for all candidates that are tried on it."""

    def matches(self, rest: Read, start: int, /) -> bool:
        """Return whether `rest` matches the text from the byte `start` on."""
        ...


class SegmentTrie(Generic[Rest]):
    """The posting lists of a table, by the path of a pattern and what is left of it.

    `verified` counts the candidates of residuals.
    """

    def __init__(self, table: Table, alike: AlikeLimit | None) -> None:
        self.verified = 0
        self._rests = 0  # patterns in residuals
        self._table = table
        self._alike = alike
        self._trie: Trie[bytes, SelectorPostings | Residual[Rest]] = Trie()

    @property
    def root(self) -> Node[bytes, SelectorPostings | Residual[Rest]]:
        """The node where paths begin."""
        return self._trie.root

    def declare(
        self, declared: str | Matcher, path: Path, rest: Rest | None, texts: Texts | None, *, is_limited: bool = True
    ) -> SelectorPostings:
        """Return the posting list of a pattern, and make it if it is new.

        If its path ends with MANY, `rest` is what follows, and `texts` the fixed text
        in it.  Raises the errors of the limit of patterns that are alike, unless
        `is_limited` is False.
        """
        node = self._trie.node(path)
        # 1. Only whole segments: the node holds the posting list.
        if rest is None:
            if node.value is None:
                node.value = SelectorPostings(self._table, declared)
            assert isinstance(node.value, SelectorPostings)
            return node.value
        assert texts is not None
        # 2. Other parts: the node holds a residual.
        if node.value is None:
            node.value = Residual()
        assert isinstance(node.value, Residual)
        postings = node.value.get(rest)
        if postings is None:
            postings = SelectorPostings(self._table, declared)
            node.value.add(rest, postings, texts, self._alike if is_limited else None)
            self._rests += 1
        return postings

    def get(self, path: Path, rest: Rest) -> SelectorPostings | None:
        """Return the posting list of a pattern in a residual, or None."""
        node: Node[bytes, SelectorPostings | Residual[Rest]] | None = self._trie.root
        for word in path:
            if (node := node and node.child(word)) is None:
                return None
        assert node is not None
        return node.value.get(rest) if isinstance(node.value, Residual) else None

    def remove(self, path: Path, rest: Rest | None) -> None:
        """Forget a posting list, and the nodes that only it needed."""
        node = self._trie.node(path)
        if rest is not None:
            assert isinstance(node.value, Residual)
            node.value.remove(rest)
            self._rests -= 1
            if node.value:
                return
        node.value = None
        self._trie.prune(path)

    def find(
        self,
        text: bytes,
        roots: Sequence[Node[bytes, SelectorPostings | Residual[Rest]]],
        fits_one: Callable[[bytes], bool],
        read: Callable[[bytes], RestMatcher[Rest]],
        beside: bytes = b"",
    ) -> list[SelectorPostings]:
        """Walk along all branches below `roots`, and return the posting lists that
        match `text`.

        `fits_one` returns whether a segment matches ONE, and `read` reads the text for
        candidates.  `beside` is other text that may distinguish candidates.
        """
        found: list[SelectorPostings] = []
        segments = text.split(b"/")
        frontier = roots
        begun = start = 0  # segments and bytes so far
        # 1. One node after the other, as long as only fixed text follows.
        if len(roots) == 1:
            node = roots[0]
            for segment in segments:
                if node.one is not None or node.many is not None:
                    break
                child = node.words.get(segment)
                if child is None:
                    return found
                node = child
                begun += 1
                start += len(segment) + 1
            frontier = [node]
        # 2. All branches.
        reading = None
        for segment in segments[begun:]:
            fits = None  # whether the segment matches ONE; tested once if needed
            reached = []
            for node in frontier:
                # A residual decides about the rest of the text, from this segment on.
                if node.many is not None:
                    assert isinstance(node.many.value, Residual)
                    for rest, postings in node.many.value.find(text, start, beside):
                        if reading is None:
                            reading = read(text)
                        self.verified += 1
                        if reading.matches(rest, start):
                            found.append(postings)
                child = node.words.get(segment)
                if child is not None:
                    reached.append(child)
                if node.one is not None:
                    if fits is None:
                        fits = fits_one(segment)
                    if fits:
                        reached.append(node.one)
            if not reached:
                return found
            frontier = reached
            start += len(segment) + 1
        # 3. The text has ended: the patterns that end here match.
        for node in frontier:
            if node.value is not None:
                assert isinstance(node.value, SelectorPostings)
                found.append(node.value)
        return found

    @property
    def size(self) -> int:
        """About how many bytes the trie takes, with its residuals.  O(1)."""
        return self._trie.size + REST_BYTES * self._rests

    def posting_lists(self) -> Iterator[SelectorPostings]:
        """Iterate over all posting lists."""
        for _, node in self._trie.nodes():
            if isinstance(node.value, Residual):
                yield from node.value.posting_lists()
            elif node.value is not None:
                yield node.value

    def _check(self) -> None:
        self._trie._check()
        residuals = [node.value for _, node in self._trie.nodes() if isinstance(node.value, Residual)]
        assert self._rests == sum(map(len, residuals))
        for path, node in self._trie.nodes():
            assert len(path) <= MAX_DEPTH + 2  # with an origin, and MANY
            assert isinstance(node.value, Residual) == (path[-1] is MANY)
            if isinstance(node.value, Residual):
                assert node.value
                node.value._check()


def split(parts: AnyParts, one: object, *, wholly: bool = True) -> tuple[Path, AnyParts | None]:
    """Return the leading whole segments as words, and the parts after them or None.

    `one` is the part that matches any one segment.  If `wholly` is False, the last
    segment is never among the words.
    """
    path: list[bytes | Wildcard] = []
    segment: list[Any] = []  # the parts of the present segment so far
    begun = 0, 0  # where it begins: the number of a part, and a place in that
    for n, part in enumerate(parts):
        at = 0
        if isinstance(part, bytes):
            while (slash := part.find(b"/", at)) >= 0 and len(path) < MAX_DEPTH:
                if at < slash:
                    segment.append(part[at:slash])
                word = _word(segment, one)
                if word is None:
                    return (*path, MANY), _from(parts, *begun)
                path.append(word)
                segment.clear()
                at = slash + 1
                begun = n, at
            part = part[at:]
        if part or not isinstance(part, bytes):
            segment.append(part)
    word = _word(segment, one)
    if word is None or not wholly or len(path) == MAX_DEPTH:
        return (*path, MANY), _from(parts, *begun)
    return (*path, word), None


def texts(parts: AnyParts, *others: AnyParts) -> Texts:
    """Return the fixed text of `parts`; that of `others` may be anywhere beside it."""
    start = parts[0] if parts and isinstance(parts[0], bytes) else b""
    end = parts[-1] if parts and isinstance(parts[-1], bytes) else b""
    return Texts(start, end, tuple(part for some in (parts, *others) for part in some if isinstance(part, bytes)))


def _from(parts: AnyParts, n: int, at: int) -> AnyParts:
    """Return the parts from a place in the part with the number `n` on."""
    if not at:
        return parts[n:]
    return (parts[n][at:], *parts[n + 1 :]) if at < len(parts[n]) else parts[n + 1 :]


def _word(segment: Sequence[Any], one: object) -> bytes | Wildcard | None:
    """Return the segment as a word of the trie; None if it is anything more complex."""
    if not segment:
        return b""
    if len(segment) > 1:
        return None
    [part] = segment
    if isinstance(part, bytes):
        return part
    return ONE if part == one else None

"""URI templates, in a trie of path segments, with residuals for all other expressions.

A variable such as {id} cannot contain a `/`.  So a whole segment that is fixed text, or
one such variable, can be matched alone, and most templates have no other segments.

    /books/{id}            root ─""──► · ─books──► · ─one───► posting list
    /books/{id}/covers     root ─""──► · ─books──► · ─one───► · ─covers──► posting list
    /books{?page,q}        root ─""──► · ─many──► residual with   books{?page,q}
    {+base}/new            root ─many──► residual with            {+base}/new

The linear matcher verifies the candidates of a residual, from the byte where the
segment begins; all templates that are tried on a topic share its sets of positions.  A
walk follows all branches at once.  It costs O(segments * nodes that the beginning of
the topic reaches); two or three nodes are usual.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from cachetools import LRUCache

from skipfilter.matchers.uri_template import VALUE, Subject, UriTemplate, encoded, is_value
from skipfilter.tables.base import PostingList
from skipfilter.tables.residual import FEW, Residual, Texts
from skipfilter.trie import Trie
from skipfilter.words import MANY, ONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.matchers import Matcher
    from skipfilter.matchers.uri_template import Part
    from skipfilter.words import Wildcard

COMPILED: Final = 1_000
"""The number of compiled templates that are cached."""
MAX_DEPTH: Final = 32
"""The number of segments of a template that become nodes; a residual holds the rest."""

Rest: TypeAlias = tuple["Part", ...]
Path: TypeAlias = tuple["bytes | Wildcard", ...]


class UriTemplateTable:
    """The templates, by meaning: the names of variables make no difference.

    Raises LimitError for more than `max_alike` templates that only the matcher can
    distinguish, because each new topic is tested against all of them.
    """

    def __init__(self, max_alike: int = sys.maxsize) -> None:
        if max_alike <= FEW:
            raise ValueError(f"max_alike must be more than {FEW}, not {max_alike}")
        self.verified = 0
        self._max_alike = max_alike
        # The newest templates, for a value that declares what another has declared.
        self._compiled: LRUCache[str, UriTemplate] = LRUCache(COMPILED)
        self._trie: Trie[bytes, PostingList | Residual[Rest]] = Trie()

    def compile(self, pattern: str) -> UriTemplate:
        """Return the matcher of `pattern`, from the cache if it is there."""
        template: UriTemplate | None = self._compiled.get(pattern)
        if template is None:
            template = self._compiled[pattern] = UriTemplate(pattern)
        return template

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is a `UriTemplate`."""
        return type(matcher) is UriTemplate

    def declare(self, matcher: Matcher) -> PostingList:
        """Return the posting list of the template, and make it if it is new."""
        assert isinstance(matcher, UriTemplate)
        path, rest = _split(matcher.parts)
        node = self._trie.node(path)
        # 1. Only whole segments: the node holds the posting list.
        if rest is None:
            if node.value is None:
                node.value = PostingList(self, (path, None))
            assert isinstance(node.value, PostingList)
            return node.value
        # 2. Other expressions: the node holds a residual.
        if node.value is None:
            node.value = Residual(self._max_alike)
        assert isinstance(node.value, Residual)
        postings = node.value.get(rest)
        if postings is None:
            postings = PostingList(self, (path, rest))
            node.value.add(rest, postings, _texts(rest))
        return postings

    def remove(self, postings: PostingList) -> None:
        """Forget the posting list, and the nodes that only it needed."""
        path, rest = postings.path
        node = self._trie.node(path)
        if isinstance(node.value, Residual):
            node.value.remove(rest)
            if node.value:
                return
        node.value = None
        self._trie.prune(path)

    def find(self, topic: str) -> list[PostingList]:
        """Walk the trie along all branches, and return the posting lists that match."""
        text = encoded(topic)
        found: list[PostingList] = []
        frontier = [self._trie.root]
        start = 0
        subject = None
        for segment in text.split(b"/"):
            fits_one = None  # whether {id} can be this segment; tested once if needed
            reached = []
            for node in frontier:
                # A residual decides about the rest of the topic, from this segment on.
                if node.many is not None:
                    assert isinstance(node.many.value, Residual)
                    for rest, postings in node.many.value.find(text, start):
                        if subject is None:
                            subject = Subject(text)
                        self.verified += 1
                        if subject.matches(rest, start):
                            found.append(postings)
                child = node.words.get(segment)
                if child is not None:
                    reached.append(child)
                if node.one is not None:
                    if fits_one is None:
                        fits_one = is_value(segment)
                    if fits_one:
                        reached.append(node.one)
            if not reached:
                return found
            frontier = reached
            start += len(segment) + 1
        # The topic has ended: the templates that end here match.
        for node in frontier:
            if node.value is not None:
                assert isinstance(node.value, PostingList)
                found.append(node.value)
        return found

    def posting_lists(self) -> Iterator[PostingList]:
        """Iterate over all posting lists."""
        for _, node in self._trie.nodes():
            if isinstance(node.value, Residual):
                yield from node.value.posting_lists()
            elif node.value is not None:
                yield node.value

    def _check(self) -> None:
        self._trie._check()
        for path, node in self._trie.nodes():
            assert len(path) <= MAX_DEPTH + 1
            assert isinstance(node.value, Residual) == (path[-1] is MANY)
            if isinstance(node.value, Residual):
                assert node.value
                node.value._check()
            elif node.value is not None:
                assert node.value.path == (path, None)


def _split(parts: Rest) -> tuple[Path, Rest | None]:
    """Return the leading whole segments as words, and the parts after them or None."""
    path: list[bytes | Wildcard] = []
    while len(path) < MAX_DEPTH:
        segment, left = _first_segment(parts)
        word = _word(segment)
        if word is None:
            break
        path.append(word)
        if left is None:
            return tuple(path), None
        parts = left
    return (*path, MANY), parts


def _first_segment(parts: Rest) -> tuple[Rest, Rest | None]:
    """Return the parts before the first `/` of a literal, and those after it or
    None.
    """
    for n, part in enumerate(parts):
        if isinstance(part, bytes) and b"/" in part:
            before, _, after = part.partition(b"/")
            return (*parts[:n], before) if before else parts[:n], (after, *parts[n + 1 :]) if after else parts[n + 1 :]
    return parts, None


def _word(segment: Rest) -> bytes | Wildcard | None:
    """Return the segment as a word of the trie; None if it is anything more complex."""
    match segment:
        case ():
            return b""
        case (bytes() as text,):
            return text
        case (expression,) if expression == VALUE:
            return ONE
        case _:
            return None


def _texts(rest: Rest) -> Texts:
    """Return the fixed text of `rest`."""
    literals = tuple(part for part in rest if isinstance(part, bytes))
    start = rest[0] if rest and isinstance(rest[0], bytes) else b""
    end = rest[-1] if rest and isinstance(rest[-1], bytes) else b""
    return Texts(start, end, literals)

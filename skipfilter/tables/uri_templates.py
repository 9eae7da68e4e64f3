"""URI templates, in a trie of the segments that a `/` ends, and residuals for what is left of those with other parts.

A variable such as {id} cannot hold a `/`.  So whole segments that are fixed text or one such variable decide
themselves, and most templates are nothing else.

    /books/{id}            root ─""──► · ─books──► · ─one───► here
    /books/{id}/covers     root ─""──► · ─books──► · ─one───► · ─covers──► here
    /books{?page,q}        root ─""──► · ─many──► a residual with   books{?page,q}
    {+base}/new            root ─many──► a residual with            {+base}/new

What a residual proposes is verified by the linear matcher, from the byte on where the segment begins; all templates
that are tried on a topic share its sets of positions.  A walk goes down all branches at once: it costs
O(segments * nodes that the beginning of the topic reaches), and two or three nodes are usual.
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
"""Templates that are kept compiled."""
MAX_DEPTH: Final = 32
"""Segments of a template that get a node of the trie each; what comes after them is left to a residual."""

Rest: TypeAlias = tuple["Part", ...]
Way: TypeAlias = tuple["bytes | Wildcard", ...]


class UriTemplateTable:
    """The templates, by language: those that differ in the names of their variables share a posting list.

    LimitError for more than `max_alike` that only the matcher can tell apart: a topic asks all of them.

    All its mutable state: `_trie`, how many candidates of residuals were `verified` so far, and the templates that
    were `_compiled` last, for the one who declares what another has declared.
    """

    def __init__(self, max_alike: int = sys.maxsize) -> None:
        if max_alike <= FEW:
            raise ValueError(f"max_alike must be more than {FEW}, not {max_alike}")
        self.verified = 0
        self._max_alike = max_alike
        self._compiled: LRUCache[str, UriTemplate] = LRUCache(COMPILED)
        self._trie: Trie[bytes, PostingList | Residual[Rest]] = Trie()

    def compile(self, pattern: str) -> UriTemplate:
        template: UriTemplate | None = self._compiled.get(pattern)
        if template is None:
            template = self._compiled[pattern] = UriTemplate(pattern)
        return template

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is UriTemplate

    def declare(self, matcher: Matcher) -> PostingList:
        assert isinstance(matcher, UriTemplate)
        path, rest = _split(matcher.parts)
        node = self._trie.node(path)
        if rest is None:
            if node.value is None:
                node.value = PostingList(self, (path, None))
            assert isinstance(node.value, PostingList)
            return node.value
        if node.value is None:
            node.value = Residual(self._max_alike)
        assert isinstance(node.value, Residual)
        postings = node.value.get(rest)
        if postings is None:
            postings = PostingList(self, (path, rest))
            node.value.add(rest, postings, _texts(rest))
        return postings

    def remove(self, postings: PostingList) -> None:
        path, rest = postings.path
        node = self._trie.node(path)
        if isinstance(node.value, Residual):
            node.value.remove(rest)
            if node.value:
                return
        node.value = None
        self._trie.prune(path)

    def find(self, topic: str) -> list[PostingList]:
        text = encoded(topic)
        found: list[PostingList] = []
        frontier = [self._trie.root]
        start = 0
        subject = None
        for segment in text.split(b"/"):
            fits_one = None
            reached = []
            for node in frontier:
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
        for node in frontier:
            if node.value is not None:
                assert isinstance(node.value, PostingList)
                found.append(node.value)
        return found

    def posting_lists(self) -> Iterator[PostingList]:
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


def _split(parts: Rest) -> tuple[Way, Rest | None]:
    """The whole segments that decide themselves, and what is left from the first on that does not."""
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
    """The parts before the first `/` of a literal, and those after it; None where there is no `/`."""
    for n, part in enumerate(parts):
        if isinstance(part, bytes) and b"/" in part:
            before, _, after = part.partition(b"/")
            return (*parts[:n], before) if before else parts[:n], (after, *parts[n + 1 :]) if after else parts[n + 1 :]
    return parts, None


def _word(segment: Rest) -> bytes | Wildcard | None:
    """The segment as a word of the trie; None where it is more than fixed text or one simple variable."""
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
    literals = tuple(part for part in rest if isinstance(part, bytes))
    start = rest[0] if rest and isinstance(rest[0], bytes) else b""
    end = rest[-1] if rest and isinstance(rest[-1], bytes) else b""
    return Texts(start, end, literals)

"""URL Patterns, in a trie of host and path segments that says which of them are worth a test.

    pattern                               filed under
    https://example.com/books/:id         example.com  ""  books  one
    https://example.com/books/*           example.com  ""  books  many
    https://*.example.com/:kind/new       one          ""  one    new
    /x{/:optional}?                       (base host)  ""  many

Fixed text and whole `:name` segments are words; the first segment with anything else in it ends the way with
`many`.  Patterns on one way are told apart by the fixed text at the end of the path, in a bag.  What is found is a
candidate: protocol, port, query and the rest are for the pattern's own test.

A topic costs one reading as a URL, and a test for each candidate: see `UrlPattern` for what that may cost.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Final, TypeAlias

from skipfilter.errors import LimitError
from skipfilter.matchers import UrlPattern
from skipfilter.tables.bag import Bag, Texts
from skipfilter.tables.base import Place
from skipfilter.trie import Trie
from skipfilter.words import MANY, ONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from urlpattern import URLPattern

    from skipfilter.matchers import Matcher
    from skipfilter.words import Wildcard

MAX_DEPTH: Final = 32
"""Segments of a path that get a node of the trie each."""

_SPECIAL: Final = frozenset("{}()*+?\\:")
_HIERARCHICAL: Final = frozenset({"http", "https", "http{s}?", "ws", "wss", "ws{s}?", "ftp", "file"})
"""The protocols whose paths have segments, for sure."""
_NAME: Final = string.ascii_letters + string.digits + "_$"

Way: TypeAlias = tuple["str | Wildcard", ...]


class UrlPatternTable:
    """The patterns, all against one base URL; LimitError for more than `max_patterns`, and PatternError for those
    that are not small, without `regexp_groups` (see `UrlPattern`).

    All its mutable state: `_trie`, `_places` by pattern, how many candidates were `verified` so far, and
    `_reader`, a pattern that every URL matches, which is there with the first pattern.
    """

    def __init__(self, base_url: str | None, max_patterns: int, *, regexp_groups: bool = False) -> None:
        self.verified = 0
        self._regexp_groups = regexp_groups
        self._base_url = base_url
        self._max_patterns = max_patterns
        self._places: dict[str, Place] = {}
        self._reader: URLPattern | None = None
        self._trie: Trie[str, Bag[UrlPattern]] = Trie()

    def compile(self, pattern: str) -> Matcher:
        """The matcher of `pattern`; one that is in the table is not compiled again."""
        if (known := self._places.get(pattern)) is not None:
            matcher: Matcher = known.way[1]
            return matcher
        return UrlPattern(pattern, self._base_url, regexp_groups=self._regexp_groups)

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is UrlPattern and matcher.base_url == self._base_url

    def place(self, matcher: Matcher) -> Place:
        assert isinstance(matcher, UrlPattern)
        place = self._places.get(matcher.pattern)
        if place is None:
            if len(self._places) >= self._max_patterns:
                raise LimitError(f"there are {self._max_patterns} different URL Patterns already, as many as may be")
            if self._reader is None:
                self._reader = type(matcher.compiled)({})
            way, texts = _file(matcher.compiled)
            node = self._trie.node(way)
            if node.here is None:
                node.here = Bag()
            place = self._places[matcher.pattern] = Place(self, (way, matcher))
            node.here.add(matcher, place, texts)
        return place

    def remove(self, place: Place) -> None:
        way, matcher = place.way
        node = self._trie.node(way)
        assert node.here is not None
        node.here.remove(matcher)
        del self._places[matcher.pattern]
        if not node.here:
            node.here = None
            self._trie.prune(way)

    def find(self, topic: str) -> list[Place]:
        url = self._read(topic)
        if url is None:
            return []
        host, path = url
        text = path.encode()
        found = []
        for bag in self._trie.find([host, *path.split("/")]):
            for matcher, place in bag.find(text):
                self.verified += 1
                if matcher.match(topic):
                    found.append(place)
        return found

    def places(self) -> Iterable[Place]:
        return self._places.values()

    def _read(self, topic: str) -> tuple[str, str] | None:
        """Host and path of `topic`, as the standard spells them; None where it is no URL."""
        if not self._places:
            return None
        assert self._reader is not None
        try:
            url = self._reader.exec(topic, self._base_url)
        except TypeError:  # a lone surrogate
            return None
        return None if url is None else (url["hostname"]["input"], url["pathname"]["input"])

    def _check(self) -> None:
        self._trie._check()
        filed = {place for _, node in self._trie.nodes() if node.here is not None for place in node.here.places()}
        assert filed == set(self._places.values())
        assert len(filed) == len(self._places) <= self._max_patterns
        assert all(place.way[1].pattern == pattern for pattern, place in self._places.items())
        for way, node in self._trie.nodes():
            assert len(way) <= MAX_DEPTH + 2
            if node.here is not None:
                assert node.here
                node.here._check()


def _file(pattern: URLPattern) -> tuple[Way, Texts]:
    """The way that leads to all URLs of `pattern`, and the texts that their paths have."""
    way: list[str | Wildcard] = [ONE if _SPECIAL.intersection(pattern.hostname) else pattern.hostname]
    if pattern.protocol not in _HIERARCHICAL:
        # Where a path has no segments, :name reaches over slashes.
        return (*way, MANY), Texts(b"", _fixed_end(pattern.pathname), ())
    segments = pattern.pathname.split("/")
    for n, segment in enumerate(segments[:MAX_DEPTH]):
        if not _SPECIAL.intersection(segment):
            way.append(segment)
        elif segment[0] == ":" and len(segment) > 1 and not segment[1:].strip(_NAME):
            way.append(ONE)
        else:
            # Of "/:name?", "/(a/b)?" and the like the modifier takes the slash along: what follows may go on in
            # the word before.
            if segment[0] in ":(*" and {"?", "*"}.intersection("/".join(segments[n:])[1:]) and len(way) > 1:
                way.pop()
            break
    if len(way) > len(segments):
        return tuple(way), Texts(b"", b"", ())
    return (*way, MANY), Texts(b"", _fixed_end(pattern.pathname), ())


def _fixed_end(pathname: str) -> bytes:
    """The fixed text that `pathname`, a pattern, ends with."""
    special = max(map(pathname.rfind, _SPECIAL))
    end = pathname[special + 1 :]
    if special >= 0 and pathname[special] == ":":
        end = end.lstrip(_NAME)
    return end.encode() if end.isascii() else b""  # what is not ASCII is part of a name

"""URL Patterns, in a trie of host and path segments that says which of them are worth a test.

    pattern                               filed under
    https://example.com/books/:id         example.com  ""  books  one
    https://example.com/books/*           example.com  ""  books  many
    https://*.example.com/:kind/new       one          ""  one    new
    /x{/:optional}?                       (base host)  ""  many

Fixed text and whole `:name` segments are words; the first segment with anything else in it ends the path with
`many`.  Patterns on one path are told apart by the fixed text at the end of the URL's path, in a residual.  What is
found is a candidate: protocol, port, query and the rest are for the pattern's own test.

A topic costs one reading as a URL, and a test for each candidate: see `UrlPattern` for what that may cost.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Final, TypeAlias

from skipfilter.errors import LimitError
from skipfilter.matchers import UrlPattern
from skipfilter.tables.base import PostingList
from skipfilter.tables.residual import Residual, Texts
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
        self._lists: dict[str, PostingList] = {}
        self._reader: URLPattern | None = None
        self._trie: Trie[str, Residual[UrlPattern]] = Trie()

    def compile(self, pattern: str) -> Matcher:
        """The matcher of `pattern`; one that is in the table is not compiled again."""
        if (known := self._lists.get(pattern)) is not None:
            matcher: Matcher = known.path[1]
            return matcher
        return UrlPattern(pattern, self._base_url, regexp_groups=self._regexp_groups)

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is UrlPattern and matcher.base_url == self._base_url

    def declare(self, matcher: Matcher) -> PostingList:
        assert isinstance(matcher, UrlPattern)
        postings = self._lists.get(matcher.pattern)
        if postings is None:
            if len(self._lists) >= self._max_patterns:
                raise LimitError(f"there are {self._max_patterns} different URL Patterns already, as many as may be")
            if self._reader is None:
                self._reader = type(matcher.compiled)({})
            path, texts = _file(matcher.compiled)
            node = self._trie.node(path)
            if node.value is None:
                node.value = Residual()
            postings = self._lists[matcher.pattern] = PostingList(self, (path, matcher))
            node.value.add(matcher, postings, texts)
        return postings

    def remove(self, postings: PostingList) -> None:
        path, matcher = postings.path
        node = self._trie.node(path)
        assert node.value is not None
        node.value.remove(matcher)
        del self._lists[matcher.pattern]
        if not node.value:
            node.value = None
            self._trie.prune(path)

    def find(self, topic: str) -> list[PostingList]:
        url = self._read(topic)
        if url is None:
            return []
        host, path = url
        text = path.encode()
        found = []
        for residual in self._trie.find([host, *path.split("/")]):
            for matcher, postings in residual.find(text):
                self.verified += 1
                if matcher.match(topic):
                    found.append(postings)
        return found

    def posting_lists(self) -> Iterable[PostingList]:
        return self._lists.values()

    def _read(self, topic: str) -> tuple[str, str] | None:
        """Host and path of `topic`, as the standard spells them; None where it is no URL."""
        if not self._lists:
            return None
        assert self._reader is not None
        try:
            url = self._reader.exec(topic, self._base_url)
        except TypeError:  # a lone surrogate
            return None
        return None if url is None else (url["hostname"]["input"], url["pathname"]["input"])

    def _check(self) -> None:
        self._trie._check()
        filed = {
            postings
            for _, node in self._trie.nodes()
            if node.value is not None
            for postings in node.value.posting_lists()
        }
        assert filed == set(self._lists.values())
        assert len(filed) == len(self._lists) <= self._max_patterns
        assert all(postings.path[1].pattern == pattern for pattern, postings in self._lists.items())
        for path, node in self._trie.nodes():
            assert len(path) <= MAX_DEPTH + 2
            if node.value is not None:
                assert node.value
                node.value._check()


def _file(pattern: URLPattern) -> tuple[Way, Texts]:
    """The path that leads to all URLs of `pattern`, and the texts that their paths have."""
    path: list[str | Wildcard] = [ONE if _SPECIAL.intersection(pattern.hostname) else pattern.hostname]
    if pattern.protocol not in _HIERARCHICAL:
        # Where a path has no segments, :name reaches over slashes.
        return (*path, MANY), Texts(b"", _fixed_end(pattern.pathname), ())
    segments = pattern.pathname.split("/")
    for n, segment in enumerate(segments[:MAX_DEPTH]):
        if not _SPECIAL.intersection(segment):
            path.append(segment)
        elif segment[0] == ":" and len(segment) > 1 and not segment[1:].strip(_NAME):
            path.append(ONE)
        else:
            # Of "/:name?", "/(a/b)?" and the like the modifier takes the slash along: what follows may go on in
            # the word before.
            if segment[0] in ":(*" and {"?", "*"}.intersection("/".join(segments[n:])[1:]) and len(path) > 1:
                path.pop()
            break
    if len(path) > len(segments):
        return tuple(path), Texts(b"", b"", ())
    return (*path, MANY), Texts(b"", _fixed_end(pattern.pathname), ())


def _fixed_end(pathname: str) -> bytes:
    """The fixed text that `pathname`, a pattern, ends with."""
    special = max(map(pathname.rfind, _SPECIAL))
    end = pathname[special + 1 :]
    if special >= 0 and pathname[special] == ":":
        end = end.lstrip(_NAME)
    return end.encode() if end.isascii() else b""  # what is not ASCII is part of a name

"""URL Patterns, in a trie of host and path segments, which finds the candidates to
test.

    pattern                               filed under
    https://example.com/books/:id         example.com  ""  books  one
    https://example.com/books/*           example.com  ""  books  many
    https://*.example.com/:kind/new       one          ""  one    new
    /x{/:optional}?                       (base host)  ""  many

Fixed text and whole `:name` segments are words; the first segment that is anything else
ends the path with `many`.  Patterns on one path are distinguished by the fixed text at
the end of the URL's path, in a residual.  The result is candidates: the pattern's own
test decides about protocol, port, query and the rest.

A topic is parsed as a URL once, and costs a test for each candidate; `UrlPattern` says
how much that may be.
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
"""The number of path segments that become nodes of the trie."""

_SPECIAL: Final = frozenset("{}()*+?\\:")
_HIERARCHICAL: Final = frozenset({"http", "https", "http{s}?", "ws", "wss", "ws{s}?", "ftp", "file"})
"""The protocols whose paths certainly have segments."""
_NAME: Final = string.ascii_letters + string.digits + "_$"

Path: TypeAlias = tuple["str | Wildcard", ...]


class UrlPatternTable:
    """The patterns, all resolved against one base URL.

    Raises LimitError for more than `max_patterns`.  Raises PatternError for a pattern
    that is not small, unless `regexp_groups` is True (see `UrlPattern`).
    """

    def __init__(self, base_url: str | None, max_patterns: int, *, regexp_groups: bool = False) -> None:
        self.verified = 0
        self._regexp_groups = regexp_groups
        self._base_url = base_url
        self._max_patterns = max_patterns
        self._lists: dict[str, PostingList] = {}  # by pattern
        # A pattern that matches every URL, to parse topics; made with the first
        # pattern.
        self._reader: URLPattern | None = None
        self._trie: Trie[str, Residual[UrlPattern]] = Trie()

    def compile(self, pattern: str) -> Matcher:
        """Return the matcher of `pattern`, without compiling one that is in the
        table.
        """
        if (known := self._lists.get(pattern)) is not None:
            matcher: Matcher = known.path[1]
            return matcher
        return UrlPattern(pattern, self._base_url, regexp_groups=self._regexp_groups)

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is a `UrlPattern` with the same base URL."""
        return type(matcher) is UrlPattern and matcher.base_url == self._base_url

    def declare(self, matcher: Matcher) -> PostingList:
        """Return the posting list of the pattern, and make it if it is new."""
        assert isinstance(matcher, UrlPattern)
        postings = self._lists.get(matcher.pattern)
        if postings is None:
            if len(self._lists) >= self._max_patterns:
                raise LimitError(f"the limit of {self._max_patterns} different URL Patterns is reached")
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
        """Forget the pattern, and the nodes that only it needed."""
        path, matcher = postings.path
        node = self._trie.node(path)
        assert node.value is not None
        node.value.remove(matcher)
        del self._lists[matcher.pattern]
        if not node.value:
            node.value = None
            self._trie.prune(path)

    def find(self, topic: str) -> list[PostingList]:
        """Return the posting lists of the candidates whose own test matches."""
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
        """Return all posting lists."""
        return self._lists.values()

    def _read(self, topic: str) -> tuple[str, str] | None:
        """Return the normalised host and path of `topic`, or None if it is not
        a URL.
        """
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


def _file(pattern: URLPattern) -> tuple[Path, Texts]:
    """Return the trie path of all URLs of `pattern`, and the fixed text of
    their paths.
    """
    path: list[str | Wildcard] = [ONE if _SPECIAL.intersection(pattern.hostname) else pattern.hostname]
    if pattern.protocol not in _HIERARCHICAL:
        # If a path has no segments, :name can contain slashes.
        return (*path, MANY), Texts(b"", _fixed_end(pattern.pathname), ())
    segments = pattern.pathname.split("/")
    for n, segment in enumerate(segments[:MAX_DEPTH]):
        if not _SPECIAL.intersection(segment):
            path.append(segment)
        elif segment[0] == ":" and len(segment) > 1 and not segment[1:].strip(_NAME):
            path.append(ONE)
        else:
            # In "/:name?", "/(a/b)?" and the like the modifier also covers the slash,
            # so the text that follows may continue the word before.
            if segment[0] in ":(*" and {"?", "*"}.intersection("/".join(segments[n:])[1:]) and len(path) > 1:
                path.pop()
            break
    if len(path) > len(segments):
        return tuple(path), Texts(b"", b"", ())
    return (*path, MANY), Texts(b"", _fixed_end(pattern.pathname), ())


def _fixed_end(pathname: str) -> bytes:
    """Return the fixed text at the end of `pathname`, which is a pattern."""
    special = max(map(pathname.rfind, _SPECIAL))
    end = pathname[special + 1 :]
    if special >= 0 and pathname[special] == ":":
        end = end.lstrip(_NAME)
    return end.encode() if end.isascii() else b""  # other characters may be part of a name

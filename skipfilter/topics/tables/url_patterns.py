"""URL Patterns, in a trie of the origin and the path segments of a URL (see
`skipfilter.topics.tables.segments`).

    pattern                               origin          path
    https://example.com/books/:id         https://example.com:   books  one
    https://example.com/books/*           https://example.com:   books  many  *
    https://*.example.com/:kind/new       one                    one    many  new
    /x{/:optional}?                       (that of the base)     many   x{/:optional}?

A pattern that has whole segments, and nothing to say about the URL but its origin,
needs no test of its own.  For all others the result of the trie is candidates,
also distinguished by fixed text in the hostname, the query and the fragment.

A topic is parsed as a URL once, and costs a test for each candidate; `UrlPattern` says
how much that may be.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from cachetools import LRUCache

from skipfilter.errors import LimitError
from skipfilter.topics.matchers import UrlPattern
from skipfilter.topics.matchers.url_pattern import Conditions, meets, origin_of
from skipfilter.topics.matchers.url_pattern.canonical import HASH, HOSTNAME, SEARCH, Url, parse
from skipfilter.topics.matchers.url_pattern.language import NAME, LinearParts, Reading
from skipfilter.topics.matchers.url_pattern.regexp import Regexp
from skipfilter.topics.tables.segments import SegmentTrie, split, texts
from skipfilter.topics.tables.uri_templates import COMPILED
from skipfilter.topics.words import ONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.topics.matchers import Matcher
    from skipfilter.topics.tables.base import SelectorPostings
    from skipfilter.topics.tables.residual import AlikeLimit
    from skipfilter.topics.tables.segments import Path

_BESIDE: Final = (HOSTNAME, SEARCH, HASH)
"""The components other than the path whose fixed text distinguishes candidates."""

Rest: TypeAlias = tuple[LinearParts, Conditions]


class UrlPatternTable:
    """The patterns, all resolved against one base URL, by meaning: names make no
    difference.

    `alike` limits the patterns without groups that only a test of each can distinguish.
    Raises LimitError if those with groups cost more than `max_cost` together.  Raises
    PatternError for a pattern with a large automaton, unless `regexp_groups` is True
    (see `UrlPattern`).
    """

    def __init__(
        self,
        base_url: str | None,
        max_cost: int = sys.maxsize,
        alike: AlikeLimit | None = None,
        *,
        regexp_groups: bool = False,
    ) -> None:
        self.matcher_type = "urlpattern"
        self._regexp_groups = regexp_groups
        self._base_url = base_url
        self._max_cost = max_cost
        self._costs: dict[SelectorPostings, int] = {}  # those of patterns with groups
        self._spent = 0  # their sum
        # The newest patterns, for a value that declares what another has declared.
        # Those with groups are not among them, because their automata take memory.
        self._compiled: LRUCache[str, UrlPattern] = LRUCache(COMPILED)
        self._trie: SegmentTrie[Rest] = SegmentTrie(self, alike)

    def compile(self, pattern: str) -> UrlPattern:
        """Return the matcher of `pattern`, from the cache if it is there."""
        matcher: UrlPattern | None = self._compiled.get(pattern)
        if matcher is None:
            matcher = UrlPattern(pattern, self._base_url, regexp_groups=self._regexp_groups)
            if not matcher.cost:
                self._compiled[pattern] = matcher
        return matcher

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is a `UrlPattern` with the same base URL."""
        return type(matcher) is UrlPattern and matcher.base_url == self._base_url

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list of the pattern, and make it if it is new."""
        matcher = self._matcher(declared)
        path, rest = _split(matcher)
        if rest is None:
            return self._trie.declare(declared, path, None, None)
        parts, conditions = rest
        others = [wanted for place, wanted in conditions if place in _BESIDE and not isinstance(wanted, Regexp)]
        cost = matcher.cost
        is_new = cost > 0 and self._trie.get(path, rest) is None
        if is_new and self._spent + cost > self._max_cost:
            raise LimitError(f"the limit of {self._max_cost} different URL Patterns with groups is reached")
        postings = self._trie.declare(declared, path, rest, texts(parts, *others), is_limited=not cost)
        if is_new:
            self._costs[postings] = cost
            self._spent += cost
        return postings

    def remove(self, postings: SelectorPostings) -> None:
        """Forget the pattern, and the nodes that only it needed."""
        self._trie.remove(*_split(self._matcher(postings.declared)))
        self._spent -= self._costs.pop(postings, 0)

    def find(self, topic: str) -> list[SelectorPostings]:
        """Return the posting lists of the patterns that match `topic`."""
        root = self._trie.root
        url = parse(topic, self._base_url) if root.leads_on() else None
        if url is None:
            return []
        roots = [node for node in (root.words.get(origin_of(url)), root.one) if node is not None]
        if not roots:
            return []
        beside = b"\n".join((url.hostname, url.search, url.hash))
        return self._trie.find(url.pathname, roots, bool, partial(_Candidates, url), beside)

    @property
    def verified(self) -> int:
        """The number of patterns that were tested one by one so far."""
        return self._trie.verified

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        return self._trie.size

    def posting_lists(self) -> Iterator[SelectorPostings]:
        """Iterate over all posting lists."""
        return self._trie.posting_lists()

    def _matcher(self, declared: str | Matcher) -> UrlPattern:
        matcher = self.compile(declared) if isinstance(declared, str) else declared
        assert isinstance(matcher, UrlPattern)
        return matcher

    def _check(self) -> None:
        self._trie._check()
        assert self._spent == sum(self._costs.values()) <= self._max_cost
        assert self._costs.keys() <= set(self.posting_lists())


def _split(matcher: UrlPattern) -> tuple[Path, Rest | None]:
    """Return the path of a pattern in the trie, and what is left of it."""
    path, parts = split(matcher.path, NAME, wholly=not matcher.conditions)
    origin = ONE if matcher.origin is None else matcher.origin
    return (origin, *path), None if parts is None else (parts, matcher.conditions)


class _Candidates:
    """A URL, for all candidates that are tried on it; `text` is its path."""

    __slots__ = ("_reading", "_url")

    def __init__(self, url: Url, text: bytes) -> None:
        self._url = url
        self._reading = Reading(text)

    def matches(self, rest: Rest, start: int) -> bool:
        """Return whether the path matches from the byte `start` on, and the
        conditions are met.
        """
        parts, conditions = rest
        return self._reading.matches(parts, start) and meets(self._url, conditions)

"""Simple tables: a dict for exact topics, one list for everything, a loop for
the rest.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from skipfilter.text import brief
from skipfilter.topics.matchers import Everything, Exact
from skipfilter.topics.tables.base import SelectorPostings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from skipfilter.topics.matchers import Matcher


class ExactTable:
    """Exact topics in a dict: a topic costs one lookup."""

    def __init__(self) -> None:
        self.matcher_type = "exact"
        self.verified = 0
        self.compile: Callable[[str], Matcher] = Exact
        self._lists: dict[str, SelectorPostings] = {}  # by topic

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is an `Exact`."""
        return type(matcher) is Exact

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list of the topic, and make it if it is new."""
        topic = declared if isinstance(declared, str) else declared.pattern
        postings = self._lists.get(topic)
        if postings is None:
            postings = self._lists[topic] = SelectorPostings(self, declared)
        return postings

    def remove(self, postings: SelectorPostings) -> None:
        """Forget the topic."""
        del self._lists[postings.pattern]

    def find(self, topic: str) -> Iterable[SelectorPostings]:
        """Return the posting list of `topic`, if there is one."""
        postings = self._lists.get(topic)
        return () if postings is None else (postings,)

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        return sys.getsizeof(self._lists)

    def posting_lists(self) -> Iterable[SelectorPostings]:
        """Return all posting lists."""
        return self._lists.values()

    def _check(self) -> None:
        assert all(postings.pattern == topic for topic, postings in self._lists.items())


class EverythingTable:
    """The pattern `*`, which has one posting list if any value declares it."""

    def __init__(self) -> None:
        self.matcher_type = "everything"
        self.verified = 0
        self.compile: Callable[[str], Matcher] = Everything
        self._lists: list[SelectorPostings] = []  # one or none

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is an `Everything`."""
        return type(matcher) is Everything

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list, and make it if it is new."""
        if isinstance(declared, str):
            self.compile(declared)  # which refuses all but *
        if not self._lists:
            self._lists.append(SelectorPostings(self, declared))
        return self._lists[0]

    def remove(self, postings: SelectorPostings) -> None:
        """Forget the posting list."""
        self._lists.remove(postings)

    def find(self, topic: str) -> Iterable[SelectorPostings]:
        """Return the posting list, if there is one."""
        return self._lists

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        return sys.getsizeof(self._lists)

    def posting_lists(self) -> Iterable[SelectorPostings]:
        """Return the posting list, if there is one."""
        return self._lists

    def _check(self) -> None:
        assert len(self._lists) <= 1


class LinearTable:
    """Matchers of any type, each of which is tested against each topic.

    A topic costs O(distinct patterns).
    """

    def __init__(self, matcher_type: str, compile: Callable[[str], Matcher]) -> None:
        self.matcher_type = matcher_type
        self.verified = 0
        self.compile = compile
        self._lists: dict[Matcher, SelectorPostings] = {}  # by matcher

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it equals the matcher that `compile` makes of its pattern."""
        # `compile` may be a function, which does not reveal the type of its matchers.
        return type(matcher) is self.compile or matcher == self.compile(matcher.pattern)

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list of the matcher, and make it if it is new."""
        # The matcher is kept, because compiling is the caller's own code.
        matcher = self.compile(declared) if isinstance(declared, str) else declared
        for name in ("pattern", "match", "why_not"):
            if not hasattr(matcher, name):
                raise TypeError(f"matcher type {self.matcher_type} made {brief(matcher)}, which has no {name}")
        postings = self._lists.get(matcher)
        if postings is None:
            postings = self._lists[matcher] = SelectorPostings(self, matcher)
        return postings

    def remove(self, postings: SelectorPostings) -> None:
        """Forget the matcher."""
        del self._lists[postings.matcher]

    def find(self, topic: str) -> Iterable[SelectorPostings]:
        """Test each matcher, and return the posting lists of those that match."""
        self.verified += len(self._lists)
        # From a copy: a matcher of the caller's own may add and remove values.
        return [postings for matcher, postings in list(self._lists.items()) if matcher.match(topic)]

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        return sys.getsizeof(self._lists)

    def posting_lists(self) -> Iterable[SelectorPostings]:
        """Return all posting lists."""
        return self._lists.values()

    def _check(self) -> None:
        assert all(postings.declared == matcher for matcher, postings in self._lists.items())

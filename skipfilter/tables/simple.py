"""Tables without structure: a hash for exact topics, one posting list for everything, a list for what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.matchers import Everything, Exact
from skipfilter.tables.base import PostingList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from skipfilter.matchers import Matcher


class ExactTable:
    """Exact topics in a hash; a question costs one look.  All its mutable state is `_places`, by topic."""

    def __init__(self) -> None:
        self.verified = 0
        self.compile: Callable[[str], Matcher] = Exact
        self._lists: dict[str, PostingList] = {}

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is Exact

    def declare(self, matcher: Matcher) -> PostingList:
        postings = self._lists.get(matcher.pattern)
        if postings is None:
            postings = self._lists[matcher.pattern] = PostingList(self, matcher.pattern)
        return postings

    def remove(self, postings: PostingList) -> None:
        del self._lists[postings.path]

    def find(self, topic: str) -> Iterable[PostingList]:
        postings = self._lists.get(topic)
        return () if postings is None else (postings,)

    def posting_lists(self) -> Iterable[PostingList]:
        return self._lists.values()

    def _check(self) -> None:
        assert all(postings.path == topic for topic, postings in self._lists.items())


class EverythingTable:
    """One posting list.  All its mutable state is whether it is there."""

    def __init__(self) -> None:
        self.verified = 0
        self.compile: Callable[[str], Matcher] = Everything
        self._lists: list[PostingList] = []

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is Everything

    def declare(self, matcher: Matcher) -> PostingList:
        if not self._lists:
            self._lists.append(PostingList(self, None))
        return self._lists[0]

    def remove(self, postings: PostingList) -> None:
        self._lists.remove(postings)

    def find(self, topic: str) -> Iterable[PostingList]:
        return self._lists

    def posting_lists(self) -> Iterable[PostingList]:
        return self._lists

    def _check(self) -> None:
        assert len(self._lists) <= 1


class LinearTable:
    """Any matchers, each asked about each topic: a question costs O(distinct patterns).

    All its mutable state is `_places`, by matcher, and `verified`.
    """

    def __init__(self, compile: Callable[[str], Matcher]) -> None:
        self.verified = 0
        self.compile = compile
        self._lists: dict[Matcher, PostingList] = {}

    def accepts(self, matcher: Matcher) -> bool:
        # What makes them may be a function, which does not say of what type they are.
        return type(matcher) is self.compile or matcher == self.compile(matcher.pattern)

    def declare(self, matcher: Matcher) -> PostingList:
        postings = self._lists.get(matcher)
        if postings is None:
            postings = self._lists[matcher] = PostingList(self, matcher)
        return postings

    def remove(self, postings: PostingList) -> None:
        del self._lists[postings.path]

    def find(self, topic: str) -> Iterable[PostingList]:
        self.verified += len(self._lists)
        # From a snapshot: a matcher of somebody's own may add and remove values.
        return [postings for matcher, postings in list(self._lists.items()) if matcher.match(topic)]

    def posting_lists(self) -> Iterable[PostingList]:
        return self._lists.values()

    def _check(self) -> None:
        assert all(postings.path == matcher for matcher, postings in self._lists.items())

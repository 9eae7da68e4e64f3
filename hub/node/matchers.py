"""Matchers: the patterns of requests and tokens, compiled, shared and limited.

    (type, pattern) ─► the matcher that is in use, or else a new one, if there is room

Belongs here: everything about patterns that lasts, takes long or is limited.  What a
pattern means is in `protocol.topics`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

from hub.errors import LimitExceeded
from hub.protocol.topics import topic_matcher
from hub.turns import COMPILED_PATTERNS, TimeSlices
from skipfilter import PatternError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.protocol.topics import TopicMatcher
    from skipfilter import Selector


class MatcherCompiler:
    """A compiler of patterns into matchers, which are shared.

    While anything refers to the matcher of a type and pattern, `compile` returns that
    same matcher.  `base_url` is the URL of the hub, for relative URL Patterns.

    The `cost` of all URL Patterns with groups that exist at a time is at most
    `max_url_patterns`.  Streams, readers, tokens and requests hold them.
    """

    def __init__(
        self,
        base_url: str,
        *,
        max_url_patterns: int = sys.maxsize,
        slices: TimeSlices | None = None,
    ) -> None:
        self.reclaim: Callable[[], None] = lambda: None
        """Called once if the limit is reached; it frees matchers that are not needed.
        """
        self._base_url = base_url
        self._max_url_patterns = max_url_patterns
        self._slices = slices or TimeSlices()
        # The matchers that are referred to from outside.
        self._held: WeakValueDictionary[Selector, TopicMatcher] = WeakValueDictionary()
        self._spent = 0  # the cost of all among them

    def compile(self, type: str, pattern: str) -> TopicMatcher:
        """Return the matcher of `pattern`.

        Raises the errors of `topic_matcher`, and LimitExceeded if there are too many
        URL Patterns with groups.
        """
        matcher = self._held.get((type, pattern))
        if matcher is None:
            matcher = topic_matcher(type, pattern, base_url=self._base_url)
            if cost := matcher.cost:
                self._require_room(cost)
                self._spent += cost
                finalize(matcher, self._give_back, cost).atexit = False
            self._held[type, pattern] = matcher
        return matcher

    async def compile_all(
        self, selectors: Sequence[Selector], refused: list[str] | None = None
    ) -> dict[Selector, TopicMatcher]:
        """Return the matchers of types and patterns.

        If there are many, or if any is a URL Pattern, it pauses now and then, so that
        other tasks can run.  Raises the errors of `compile`.  With a list `refused`,
        the messages of URL Patterns are added to it, and the patterns are left out.
        """
        if len(selectors) <= COMPILED_PATTERNS and not any(type == "urlpattern" for type, _ in selectors):
            return {selector: self.compile(*selector) for selector in selectors}
        matchers: dict[Selector, TopicMatcher] = {}
        async with self._slices:
            for selector in selectors:
                try:
                    matchers[selector] = self.compile(*selector)
                except PatternError as error:
                    if refused is None or error.matcher_type != "urlpattern":
                        raise
                    refused.append(str(error))  # the error itself would keep the matchers
                if self._slices.is_over():
                    await self._slices.pause()
        return matchers

    def _require_room(self, cost: int) -> None:
        """Raise LimitExceeded if there is no room for one more URL Pattern with
        groups.
        """
        limit = self._max_url_patterns
        if self._spent + cost > limit:
            self.reclaim()
            if self._spent + cost > limit:
                raise LimitExceeded(f"the limit of {limit} different URL Patterns with groups is reached")

    def _give_back(self, cost: int) -> None:
        """Note that a URL Pattern with groups is no longer referred to."""
        self._spent -= cost

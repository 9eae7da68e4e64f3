"""Matchers: the patterns of requests and tokens, compiled, shared and limited.

    (type, pattern) ─► the matcher that is in use, or else a new one, if there is room

Belongs here: everything about patterns that lasts, takes long or is limited.  What a
pattern means is in `protocol.topics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from hub.errors import InvalidRequest
from hub.node.shares import ISSUER, RESOURCES, Held
from hub.protocol.topics import TopicMatcher, topic_matcher
from hub.turns import COMPILED_PATTERNS, TimeSlices
from skipfilter import PatternError
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hub.node.admission import Ticket
    from skipfilter import Selector


class MatcherCompiler:
    """A compiler of patterns into matchers, which are shared.

    While anything refers to the matcher of a type and pattern, `compile` returns that
    same matcher.  `base_url` is the URL of the hub, for relative URL Patterns.

    Streams, readers, tokens and requests refer to matchers.  All matchers that exist
    count toward the limits of `url_patterns` and `matchers`, each once.
    """

    def __init__(
        self,
        base_url: str,
        *,
        url_patterns: Held | None = None,
        matchers: Held | None = None,
        slices: TimeSlices | None = None,
    ) -> None:
        self.reclaim: Callable[[], None] = lambda: None
        """Called once if a limit is reached; it frees matchers that are not needed."""
        self._base_url = base_url
        self._url_patterns = url_patterns or Held(RESOURCES["url_patterns"])
        self._matchers = matchers or Held(RESOURCES["matchers"])
        self._slices = slices or TimeSlices()
        # The matchers that are referred to from outside.
        self._existing: dict[Selector, _Existing] = {}

    def compile(self, type: str, pattern: str, ticket: Ticket | None = None) -> TopicMatcher:
        """Return the matcher of `pattern`, which a token has or the client of `ticket`.

        Raises the errors of `topic_matcher`, and LimitExceeded if there is no room for
        a new matcher.
        """
        selector = type, pattern
        found = self._existing.get(selector)
        matcher = None if found is None else found()
        if matcher is None:
            matcher = topic_matcher(type, pattern, base_url=self._base_url)
            if matcher.cost:
                self._require_room(self._url_patterns, matcher.cost, ticket)
            self._require_room(self._matchers, matcher.size, ticket)
            self._url_patterns.used += matcher.cost
            self._matchers.used += matcher.size
            existing = _Existing(matcher, self._forget)
            existing.selector, existing.cost, existing.size = selector, matcher.cost, matcher.size
            self._existing[selector] = existing
        return matcher

    async def compile_all(
        self, selectors: Sequence[Selector], refused: list[str] | None = None, *, ticket: Ticket | None = None
    ) -> dict[Selector, TopicMatcher]:
        """Return the matchers of types and patterns, and count them for `ticket`.

        If there are many, or if any is a URL Pattern, it pauses now and then, so that
        other tasks can run.  Raises the errors of `compile`.  With a list `refused`,
        the messages of URL Patterns are added to it, and the patterns are left out.
        """
        matchers: dict[Selector, TopicMatcher] = {}
        if len(selectors) <= COMPILED_PATTERNS and not any(type == "urlpattern" for type, _ in selectors):
            for selector in selectors:
                self._add(matchers, selector, ticket)
            return matchers
        async with self._slices:
            for selector in selectors:
                try:
                    self._add(matchers, selector, ticket)
                except PatternError as error:
                    if refused is None or error.matcher_type != "urlpattern":
                        raise
                    refused.append(str(error))  # the error itself would keep the matchers
                if self._slices.is_over():
                    await self._slices.pause()
        return matchers

    async def of_request(self, selectors: Sequence[Selector], ticket: Ticket) -> Iterable[TopicMatcher]:
        """Return the matchers of a request, each once (N19), counted for `ticket`.

        Raises `InvalidRequest` if a pattern is invalid for its type, and
        `LimitExceeded` if there is no room for a new matcher.
        """
        try:
            return (await self.compile_all(selectors, ticket=ticket)).values()
        except PatternError as error:
            raise _invalid(error) from None

    def of_program(self, selectors: Sequence[Selector]) -> list[TopicMatcher]:
        """Return the matchers of the program.  Raises `InvalidRequest`."""
        try:
            return [self.compile(*selector) for selector in selectors]
        except PatternError as error:
            raise _invalid(error) from None

    def _add(self, matchers: dict[Selector, TopicMatcher], selector: Selector, ticket: Ticket | None) -> None:
        """Add the matcher of a selector, unless it is there already."""
        if selector not in matchers:
            matchers[selector] = matcher = self.compile(*selector, ticket)
            if ticket is not None:
                ticket.hold(matcher)

    def _require_room(self, held: Held, more: int, ticket: Ticket | None) -> None:
        """Raise LimitExceeded if there is no room for one more matcher."""
        if held.used + more > held.bound:
            self.reclaim()
        if ticket is None:
            held.require(ISSUER, used=held.used, held=[0], more=more)
        else:
            held.require_more(ticket.payer, more)

    def _forget(self, existing: ref[TopicMatcher]) -> None:
        """Note that a matcher is no longer referred to."""
        assert isinstance(existing, _Existing)
        self._url_patterns.used -= existing.cost
        self._matchers.used -= existing.size
        # Not if the same pattern was compiled again in the meantime.
        if self._existing.get(existing.selector) is existing:
            del self._existing[existing.selector]


def _invalid(error: PatternError) -> InvalidRequest:
    """Return the error for a client whose pattern is invalid for its type."""
    if error.matcher_type == "urlpattern":
        return InvalidRequest(f"{shown(error.pattern)} is not a URL Pattern that this hub accepts: {error.reason}")
    return InvalidRequest(str(error))


class _Existing(ref[TopicMatcher]):
    """A weak reference to a matcher, and what it counts for."""

    __slots__ = ("cost", "selector", "size")

    selector: Selector
    cost: int
    size: int

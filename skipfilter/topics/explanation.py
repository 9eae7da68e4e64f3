"""Explains, for people, why a selector matches a key, or why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skipfilter.text import shown
from skipfilter.topics.matchers import UriTemplate
from skipfilter.topics.near_misses import near_miss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipfilter.topics.matchers import Matcher, Selector


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether one selector of a value matches a key, and why.

    >>> selector = ("uritemplate", "/books/{id}")
    >>> print(Explanation(selector, None, {"id": "1"}))
    uritemplate '/books/{id}' matches: id = '1'
    """

    selector: Selector
    """The matcher type and the pattern."""
    reason: str | None
    """Why the selector does not match.  None means that it matches."""
    variables: Mapping[str, str] = field(hash=False, default_factory=dict)
    """The values of the variables of a URI template that matches; see
    `UriTemplate.variables`.
    """
    near_miss: str | None = None
    """The small change with which a selector that does not match would match, as in
    "with 'https' for 'http'"; None if none was found.
    """

    def __str__(self) -> str:
        matcher_type, pattern = self.selector
        if self.reason is not None:
            near = f"; it would match {self.near_miss}" if self.near_miss else ""
            return f"{matcher_type} {shown(pattern)} does not match: {self.reason}{near}"
        values = ", ".join(f"{name} = {shown(value)}" for name, value in self.variables.items())
        return f"{matcher_type} {shown(pattern)} matches" + (f": {values}" if values else "")


def explain(
    selector: Selector, matcher: Matcher, topic: str, compile: Callable[[str, str], Matcher | None]
) -> Explanation:
    """Return whether `selector`, compiled to `matcher`, matches `topic`, and why.

    `compile` returns the matcher of another type and pattern, or None if there is no
    such type; see `near_miss`.
    """
    if not matcher.match(topic):
        return Explanation(selector, matcher.why_not(topic), near_miss=near_miss(*selector, topic, compile))
    return Explanation(selector, None, matcher.variables(topic) if isinstance(matcher, UriTemplate) else {})

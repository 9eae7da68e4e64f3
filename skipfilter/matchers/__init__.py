"""Pattern text -> matcher of one topic.

A plug point: a matcher type is a file here and a line in `MATCHERS`.

>>> compile_matcher("uritemplate", "https://example.com/books/{id}").match("https://example.com/books/1")
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from skipfilter.matchers.amqp import Amqp
from skipfilter.matchers.everything import Everything
from skipfilter.matchers.exact import Exact
from skipfilter.matchers.mqtt import Mqtt
from skipfilter.matchers.uri_template import UriTemplate
from skipfilter.matchers.url_pattern import UrlPattern
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "MATCHERS",
    "Amqp",
    "CompiledSelector",
    "Everything",
    "Exact",
    "Matcher",
    "Mqtt",
    "Selector",
    "UriTemplate",
    "UrlPattern",
    "compile_matcher",
]


Selector: TypeAlias = tuple[str, str]
"""A matcher type and a pattern, as a value declares them."""


CompiledSelector: TypeAlias = tuple[str, "Matcher"]
"""The same selector with its pattern compiled, for values that share it."""


class Matcher(Protocol):
    """A compiled pattern.  Equal and equally hashed for an equal type and pattern."""

    @property
    def pattern(self) -> str: ...

    def match(self, topic: str) -> bool:
        """Whether the whole of `topic` matches; never an error."""
        ...

    def why_not(self, topic: str) -> str:
        """Why `topic`, which does not match, does not: a clause for a person to read."""
        ...


MATCHERS: Mapping[str, Callable[[str], Matcher]] = {
    "exact": Exact,
    "everything": Everything,
    "uritemplate": UriTemplate,
    "urlpattern": UrlPattern,
    "amqp": Amqp,
    "mqtt": Mqtt,
}


def compile_matcher(matcher_type: str, pattern: str, *, base_url: str | None = None) -> Matcher:
    """The matcher of `pattern`.  `base_url` is for URL Patterns alone.

    Raises LookupError for a type that does not exist, and PatternError for a pattern that the type refuses.
    """
    try:
        factory = MATCHERS[matcher_type]
    except KeyError:
        raise LookupError(f"matcher type {shown(matcher_type)} is none of {', '.join(MATCHERS)}") from None
    return UrlPattern(pattern, base_url) if factory is UrlPattern else factory(pattern)

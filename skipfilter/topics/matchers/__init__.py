"""Compiles the text of a pattern into a matcher of topics.

To add a matcher type, add a file here and a line to `MATCHERS`.

Belongs here: what one pattern means, compiled, with the reason why it does not match.
Does not belong here: how many patterns are found together (`tables`).

>>> compile_matcher("uritemplate", "https://example.com/books/{id}").match("https://example.com/books/1")
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from skipfilter.text import shown
from skipfilter.topics.matchers.amqp import Amqp
from skipfilter.topics.matchers.everything import Everything
from skipfilter.topics.matchers.exact import Exact
from skipfilter.topics.matchers.mqtt import Mqtt
from skipfilter.topics.matchers.uri_template import UriTemplate
from skipfilter.topics.matchers.url_pattern import UrlPattern
from skipfilter.topics.matchers.word_pattern import WordPattern

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
    "WordPattern",
    "compile_matcher",
]


Selector: TypeAlias = tuple[str, str]
"""A matcher type and a pattern, as a value declares it."""


CompiledSelector: TypeAlias = tuple[str, "Matcher"]
"""A selector with its pattern compiled, so that values can share the matcher."""


class Matcher(Protocol):
    """A compiled pattern.

    Two matchers are equal, and have equal hashes, if their type and pattern are equal.
    """

    @property
    def pattern(self) -> str:
        """The text of the pattern.  Takes O(1)."""
        ...

    def match(self, topic: str) -> bool:
        """Return whether the pattern matches the whole of `topic`; never raises.

        Takes time linear in the topic, for the matchers of the library.
        """
        ...

    def why_not(self, topic: str) -> str:
        """Return why `topic` does not match, as a clause for a person to read.

        Costs as much as `match`.
        """
        ...


MATCHERS: Mapping[str, Callable[[str], Matcher]] = {
    "exact": Exact,
    "everything": Everything,
    "uritemplate": UriTemplate,
    "urlpattern": UrlPattern,
    "amqp": Amqp,
    "mqtt": Mqtt,
}


def compile_matcher(
    matcher_type: str, pattern: str, *, base_url: str | None = None, regexp_groups: bool = False
) -> Matcher:
    """Compile a pattern.  Only URL Patterns use `base_url` and `regexp_groups`.

    Takes O(|pattern|).  Raises LookupError if the matcher type does not exist, and
    PatternError if the type refuses the pattern.
    """
    try:
        factory = MATCHERS[matcher_type]
    except KeyError:
        raise LookupError(f"matcher type {shown(matcher_type)} is none of {', '.join(MATCHERS)}") from None
    if factory is UrlPattern:
        return UrlPattern(pattern, base_url, regexp_groups=regexp_groups)
    return factory(pattern)

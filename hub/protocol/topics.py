"""What a topic may be, what is reserved, and what matches it in either dialect.

A topic is a string without control and format characters (N1), compared as it is (N5).  A matcher has a type and a
pattern, and matches a topic or not, the whole of it (N39):

    exact         the topic itself                                                                       N33
    urlpattern    topics that are URLs of a URL Pattern, both resolved against the hub's URL             N34, N35
    uritemplate   topics that a URI Template (RFC 6570) can expand to; what is no template is refused    V83
    amqp          topics of an AMQP 0-9-1 binding pattern: words between dots, `*` for one word, and
                  `#` for any number, none too; `stock.#` matches `stock` and `stock.ibm.nyse`
    mqtt          topics of an MQTT 5.0 topic filter: levels between slashes, `+` for one level, and
                  `#` at the end for any number, none too; `sport/#` matches `sport` and `sport/tennis/1`
    topic         of the classic dialect alone: the topic itself, or a URI Template that it is of        V10

and the pattern `*` matches every topic, whatever the type, before it is looked at (N32).  So `match_amqp=*` is
everything, where AMQP says "one word".  For the rest:

- AMQP and MQTT cut topics as they are: `https://example.com/a` has the levels `https:`, an empty one, `example.com`
  and `a`, for MQTT, and the words `https://example` and `com/a` for AMQP.  Nothing is decoded, and case counts.
- A wildcard stands for whole words: `a#` and, in MQTT, `a/#/b` are refused, and so is an empty word in an AMQP
  pattern; an empty level of an MQTT filter is a level.
- An MQTT filter that begins with a wildcard does not match a topic that begins with `$`.  `$share` is nothing
  special here.
- A URL Pattern may have few wildcards and names, and small regular expressions: `skipfilter.UrlPattern` says how few
  and how small.  The matcher of none of these types backtracks; a question costs at most the length of the topic
  times that of the pattern, and 100 words are the most that an AMQP or MQTT pattern may have (N36, N38).

A type that a hub does not have is refused, in a request and in a token, and never skipped (N37).
"""

from __future__ import annotations

import contextlib
import re
import string
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, WeakValueDictionary

from ada_url import URL

from hub.errors import InvalidRequest, LimitExceeded
from hub.slices import Slices
from skipfilter import Everything, Exact, PatternError, UriTemplate, compile_matcher
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skipfilter import CompiledSelector, Selector

WILDCARD: Final = "*"
"""The pattern that matches every topic, whatever its type; so no topic is called that (N32, N48)."""

CLASSIC: Final = "topic"
"""The matcher type of the classic dialect, which has no name on the wire (V71)."""

MATCHER_TYPES: Final = ("exact", "urlpattern", "uritemplate", "amqp", "mqtt")
"""The matcher types of the current dialect (N38, V83)."""

FEW: Final = 8
"""Patterns that are compiled at once, if none is a URL Pattern: most take 20 µs, and the worst 0.1 ms."""

# Unicode 17.0, general category Cf.  Frozen here: an older Python knows fewer (N1).
_FORMAT_CHARACTERS: Final = (
    (0x00AD, 0x00AD), (0x0600, 0x0605), (0x061C, 0x061C), (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891),
    (0x08E2, 0x08E2), (0x180E, 0x180E), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F),
    (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F),
)  # fmt: skip
_CONTROL_CHARACTERS: Final = ((0x00, 0x1F), (0x7F, 0x9F))
_SURROGATES: Final = ((0xD800, 0xDFFF),)  # which no UTF-8 has, but a string of the program that the hub is part of may
FORBIDDEN: Final = frozenset(
    chr(code)
    for first, last in _CONTROL_CHARACTERS + _FORMAT_CHARACTERS + _SURROGATES
    for code in range(first, last + 1)
)


def check_text(name: str, value: str) -> None:
    """Raise InvalidRequest if `value` has a character that no topic, pattern, id or type may have (N1, N2)."""
    if not FORBIDDEN.isdisjoint(value):
        code = next(ord(char) for char in value if char in FORBIDDEN)
        raise InvalidRequest(f"{name} {shown(value)} contains the control, format or surrogate character U+{code:04X}")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TopicMatcher:
    """One matcher of a subscription or of a grant."""

    type: str
    pattern: str
    selectors: tuple[CompiledSelector, ...] = field(compare=False, repr=False)
    """The same in the words of the library, any of which matches."""

    def match(self, topic: str) -> bool:
        return any(matcher.match(topic) for _, matcher in self.selectors)


class MatcherCompiler:
    """Patterns -> matchers, of which there is one for each type and pattern, however many hold it.

    `base_url` is the hub's.  At most `max_url_patterns` URL Patterns exist at a time, be they held by streams, by
    readers, by tokens or by requests; at the limit `reclaim` is called once, to let go of those that are held in vain.
    """

    def __init__(
        self,
        base_url: str,
        *,
        max_url_patterns: int = sys.maxsize,
        reclaim: Callable[[], None] = lambda: None,
        slices: Slices | None = None,
    ) -> None:
        self._base_url = base_url
        self._max_url_patterns = max_url_patterns
        self._reclaim = reclaim
        self._slices = slices or Slices()
        self._held: WeakValueDictionary[Selector, TopicMatcher] = WeakValueDictionary()
        """The matchers that something holds."""
        self._url_patterns: WeakSet[TopicMatcher] = WeakSet()
        """Those of them that are URL Patterns."""

    def compile(self, type: str, pattern: str) -> TopicMatcher:
        """Return the matcher of `pattern`.

        Raises PatternError if the type refuses the pattern, LookupError if there is no such type, and LimitExceeded if
        there are too many URL Patterns.  The classic type refuses none: what is no template is a plain string (V10).
        """
        matcher = self._held.get((type, pattern))
        if matcher is None:
            if is_url_pattern := type == "urlpattern" and pattern != WILDCARD:
                self._require_room()
            matcher = self._held[type, pattern] = self._compile(type, pattern)
            if is_url_pattern:
                self._url_patterns.add(matcher)
        return matcher

    async def compile_all(self, selectors: Sequence[Selector]) -> dict[Selector, TopicMatcher]:
        """Return the matchers of types and patterns, each once; other tasks run meanwhile.  Raises as `compile`."""
        if len(selectors) <= FEW and not any(type == "urlpattern" for type, _ in selectors):
            return {selector: self.compile(*selector) for selector in selectors}
        matchers: dict[Selector, TopicMatcher] = {}
        async with self._slices:
            for selector in selectors:
                matchers[selector] = self.compile(*selector)
                if self._slices.is_over():
                    await self._slices.pause()
        return matchers

    def _require_room(self) -> None:
        if len(self._url_patterns) >= self._max_url_patterns:
            self._reclaim()
            if len(self._url_patterns) >= self._max_url_patterns:
                raise LimitExceeded(f"the limit of {self._max_url_patterns} different URL Patterns is reached")

    def _compile(self, type: str, pattern: str) -> TopicMatcher:
        if type != CLASSIC and type not in MATCHER_TYPES:
            raise LookupError(f"matcher type {shown(type)} is none of {', '.join(MATCHER_TYPES)}")
        if pattern == WILDCARD:
            selectors: list[CompiledSelector] = [("everything", Everything(WILDCARD))]
        elif type == CLASSIC:
            selectors = [("exact", Exact(pattern))]
            if "{" in pattern:
                with contextlib.suppress(PatternError):
                    selectors.append(("uritemplate", UriTemplate(pattern)))
        else:
            selectors = [(type, compile_matcher(type, pattern, base_url=self._base_url))]
        return TopicMatcher(type, pattern, tuple(selectors))


def may_match_below(type: str, pattern: str, path: str) -> bool:
    """Whether a pattern may match a topic that begins with `path` and a slash; True also if that is not clear.

    Topics below a hub's path have no characters that any type of pattern writes otherwise, so the text before the
    first wildcard decides.
    """
    if type == "urlpattern" or pattern == WILDCARD:
        return True
    if type == "exact":
        return pattern.startswith(path)
    fixed = re.split(r"[{%*#+]", pattern, maxsplit=1)[0].rstrip("./")
    return fixed.startswith(path) or path.startswith(fixed)


def subscriptions_path(path: str) -> str:
    """Return the path of the subscription API of the hub at `path`: the topics of presence updates begin with it."""
    return f"{path}/subscriptions"


def is_reserved(topic: str, path: str) -> bool:
    """Whether `topic`, resolved against a hub URL with this path, is that path or below it (N44).

    What is no URL reference is not reserved (N45).

    >>> is_reserved("https://example.com/.well-known/%6Dercure/x", "/.well-known/mercure")
    True
    """
    # Its path has no text then that it has not itself, and few topics have that of the hub's last segment.
    literal = topic.startswith(("https://", "http://")) and "%" not in topic and topic.isprintable()
    if literal and path.rpartition("/")[2] not in topic:
        return False
    # "http:x" is relative to a base of its own scheme, and has a host under the other: a hub may be known by both.
    schemes = ("https",) if topic.partition(":")[2].startswith("//") else ("https", "http")
    return any(_resolves_below(topic, f"{scheme}://hub.invalid{path}", path) for scheme in schemes)


def _resolves_below(topic: str, base: str, path: str) -> bool:
    try:
        resolved = URL(topic, base=base).pathname
    except ValueError:
        return False
    resolved = _decode_unreserved(resolved)
    return resolved == path or resolved.startswith(path + "/")


_UNRESERVED: Final = frozenset(string.ascii_letters + string.digits + "-._~")
_UNRESERVED_TRIPLETS: Final = {
    digits: char for char in _UNRESERVED for digits in (f"{ord(char):02X}", f"{ord(char):02x}")
}


def _decode_unreserved(path: str) -> str:
    first, *rest = path.split("%")
    return first + "".join(
        _UNRESERVED_TRIPLETS[part[:2]] + part[2:] if part[:2] in _UNRESERVED_TRIPLETS else "%" + part for part in rest
    )

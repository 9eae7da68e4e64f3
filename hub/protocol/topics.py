"""What a topic may be, which topics are reserved, and which matchers match a topic.

A topic is a string without control and format characters (N1), and is compared as it is
(N5).  A matcher has a type and a pattern, and matches whole topics only (N39):

    exact        the topic itself                                                   N33
    urlpattern   topics that are URLs and match a URL Pattern, both resolved
                 against the hub's URL                                         N34, N35
    uritemplate  topics that a URI Template (RFC 6570) can expand to; an invalid
                 template is refused                                                V83
    amqp         topics that match an AMQP 0-9-1 binding pattern: words between dots,
                 `*` for one word, and `#` for any number of words, also none;
                 `stock.#` matches `stock` and `stock.ibm.nyse`
    mqtt         topics that match an MQTT 5.0 topic filter: levels between slashes,
                 `+` for one level, and `#` at the end for any number, also none;
                 `sport/#` matches `sport` and `sport/tennis/1`
    topic        classic dialect only: the topic itself, or a URI Template          V10

The pattern `*` matches every topic, whatever the type (N32), so `match_amqp=*` matches
everything, although AMQP reads it as "one word".  Further:

- AMQP and MQTT split topics as they are; nothing is decoded, and case counts.  In
  `https://example.com/a`, MQTT sees the levels `https:`, an empty one, `example.com`
  and `a`, and AMQP sees the words `https://example` and `com/a`.
- A wildcard stands for whole words.  `a#`, an empty word in an AMQP pattern, and
  `a/#/b` in MQTT are refused.  An empty level of an MQTT filter is a level.
- An MQTT filter that begins with a wildcard does not match a topic that begins with
  `$`.  `$share` has no special meaning.
- A URL Pattern has at most 100 names, groups, asterisks and modifiers in a component,
  and its groups have an automaton of at most 32 KB (`skipfilter.UrlPattern`).  An AMQP
  or MQTT pattern has at most 100 words.  No type backtracks: a match costs at most the
  length of the topic times the size of what the pattern becomes (N36, N38).

An unknown type is refused, in a request and in a token, and never ignored (N37).
"""

from __future__ import annotations

import contextlib
import re
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ada_url import URL

from hub.errors import InvalidRequest
from skipfilter import Everything, Exact, PatternError, UriTemplate, UrlPattern, compile_matcher
from skipfilter.text import shown

if TYPE_CHECKING:
    from skipfilter import CompiledSelector

WILDCARD: Final = "*"
"""The pattern that matches every topic, with any type (N32).  It is not a topic (N48).
"""

CLASSIC: Final = "topic"
"""The matcher type of classic selectors; requests and tokens cannot name it (V71)."""

MATCHER_TYPES: Final = ("exact", "urlpattern", "uritemplate", "amqp", "mqtt")
"""The matcher types of the current dialect (N38, V83)."""

# The general category Cf of Unicode 17.0 (N1).  It is listed here because an older
# Python has fewer of these characters.
_FORMAT_CHARACTERS: Final = (
    (0x00AD, 0x00AD), (0x0600, 0x0605), (0x061C, 0x061C), (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891),
    (0x08E2, 0x08E2), (0x180E, 0x180E), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F),
    (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F),
)  # fmt: skip
_CONTROL_CHARACTERS: Final = ((0x00, 0x1F), (0x7F, 0x9F))
# UTF-8 has no surrogates, but a string of the program that contains the hub may have
# some.
_SURROGATES: Final = ((0xD800, 0xDFFF),)
FORBIDDEN: Final = frozenset(
    chr(code)
    for first, last in _CONTROL_CHARACTERS + _FORMAT_CHARACTERS + _SURROGATES
    for code in range(first, last + 1)
)
"""The characters that no topic, pattern, id or type may have."""


def check_text(name: str, value: str) -> None:
    """Raise InvalidRequest if `value` has a forbidden character (N1, N2).

    `name` says in the message what the value is.
    """
    if value.isascii() and value.isprintable():  # a shortcut for most texts
        return
    if not FORBIDDEN.isdisjoint(value):
        code = next(ord(char) for char in value if char in FORBIDDEN)
        raise InvalidRequest(f"{name} {shown(value)} contains the control, format or surrogate character U+{code:04X}")


# The memory of a matcher as it was measured; the first number includes some words.
_MATCHER_BYTES: Final = 1_500
_BYTES_OF_A_CHARACTER: Final = 4
_BYTES_OF_A_WORD: Final = 256
_WORDS: Final = 8


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TopicMatcher:
    """One matcher of a subscription or a grant."""

    type: str
    pattern: str
    selectors: tuple[CompiledSelector, ...] = field(compare=False, repr=False)
    """The compiled selectors of the library; any of them may match."""
    cost: int = field(compare=False, repr=False)
    """How many URL Patterns with groups it counts for; 0 for all other matchers."""
    size: int = field(compare=False, repr=False)
    """About how many bytes it takes in memory, with its part of an index, and without
    the automata of groups."""

    def match(self, topic: str) -> bool:
        """Whether the matcher matches `topic`."""
        for _, matcher in self.selectors:  # noqa: SIM110 - a generator costs more than a match
            if matcher.match(topic):
                return True
        return False


def topic_matcher(type: str, pattern: str, *, base_url: str) -> TopicMatcher:
    """Return a new matcher; relative URL Patterns are resolved against `base_url`.

    The classic type accepts every pattern: if it is not a valid template, it is a plain
    string (V10).  Raises PatternError if the type refuses the pattern, and LookupError
    if there is no such type.
    """
    if type != CLASSIC and type not in MATCHER_TYPES:
        raise LookupError(f"matcher type {shown(type)} is none of {', '.join(MATCHER_TYPES)}")
    if pattern == WILDCARD:
        selectors: list[CompiledSelector] = [("everything", Everything(WILDCARD))]
    elif type == CLASSIC:
        # The pattern is a string that matches itself, and may also be a template
        # (V10).
        selectors = [("exact", Exact(pattern))]
        if "{" in pattern:
            with contextlib.suppress(PatternError):
                selectors.append(("uritemplate", UriTemplate(pattern)))
    else:
        try:
            selectors = [(type, compile_matcher(type, pattern, base_url=base_url))]
        except ImportError as error:
            raise PatternError(type, pattern, "this hub cannot match groups") from error
    cost = sum(matcher.cost for _, matcher in selectors if isinstance(matcher, UrlPattern))
    words = pattern.count("/") + pattern.count(".")  # a word may be a node of a trie
    size = _MATCHER_BYTES + _BYTES_OF_A_CHARACTER * len(pattern) + _BYTES_OF_A_WORD * max(0, words - _WORDS)
    return TopicMatcher(type, pattern, tuple(selectors), cost, size)


def may_match_below(type: str, pattern: str, path: str) -> bool:
    """Whether a pattern may match a topic that begins with `path` and a slash.

    If it is not clear, the result is True.  The text before the first wildcard decides,
    because no type of pattern escapes a character that the path of a hub can have.
    """
    if type == "urlpattern" or pattern == WILDCARD:
        return True
    if type == "exact":
        return pattern.startswith(path)
    fixed = re.split(r"[{%*#+]", pattern, maxsplit=1)[0].rstrip("./")
    return fixed.startswith(path) or path.startswith(fixed)


def subscriptions_path(path: str) -> str:
    """Return the path of the subscription API of the hub at `path`.

    The topics of presence updates begin with it.
    """
    return f"{path}/subscriptions"


def is_reserved(topic: str, path: str) -> bool:
    """Whether `topic` resolves to `path`, or to a path below it (N44).

    It is resolved against a hub URL with this path.  A topic that is not a URL
    reference is not reserved (N45).

    >>> hub = "/.well-known/mercure"
    >>> is_reserved("https://example.com/.well-known/%6Dercure/x", hub)
    True
    """
    # A shortcut for most topics.  Without escapes, the path of an absolute URL is part
    # of its text.  Of a relative reference, at least the last segment is, unless it is
    # only a query or a fragment.
    absolute = topic.startswith(("https://", "http://"))
    relative = ":" not in topic and topic[:1].isalnum()
    literal = (absolute or relative) and "%" not in topic and topic.isprintable()
    if literal and path.rpartition("/")[2] not in topic:
        return False
    # A hub may have URLs of both schemes.  "http:x" is relative if the base has the
    # same scheme, and has a host of its own if not.
    schemes = ("https",) if topic.partition(":")[2].startswith("//") else ("https", "http")
    return any(_resolves_below(topic, f"{scheme}://hub.invalid{path}", path) for scheme in schemes)


def _resolves_below(topic: str, base: str, path: str) -> bool:
    """Whether `topic`, resolved against `base`, has this path or one below it."""
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
    """Return `path` with the escapes of unreserved characters decoded."""
    first, *rest = path.split("%")
    return first + "".join(
        _UNRESERVED_TRIPLETS[part[:2]] + part[2:] if part[:2] in _UNRESERVED_TRIPLETS else "%" + part for part in rest
    )

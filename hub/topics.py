"""What a topic may be, what is reserved, and what matches it in either dialect.

A topic is a string without control and format characters (N1), compared as it is (N5).
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ada_url import URL

from hub.errors import InvalidRequest
from skipfilter import Exact, PatternError, compile_matcher
from skipfilter.errors import shown

if TYPE_CHECKING:
    from skipfilter import Matcher, Selector

WILDCARD: Final = "*"
"""The pattern that matches every topic, whatever its type; so no topic is called that (N32, N48)."""

CLASSIC: Final = "topic"
"""The matcher type of the classic dialect: an exact topic or a URI template (V10)."""

MATCHER_TYPES: Final = ("exact", "uritemplate")
"""The matcher types of the current dialect (N34, V83)."""

# Unicode 17.0, general category Cf.  Frozen here: an older Python knows fewer (N1).
_FORMAT_CHARACTERS: Final = (
    (0x00AD, 0x00AD), (0x0600, 0x0605), (0x061C, 0x061C), (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891),
    (0x08E2, 0x08E2), (0x180E, 0x180E), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F),
    (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F),
)  # fmt: skip
_CONTROL_CHARACTERS: Final = ((0x00, 0x1F), (0x7F, 0x9F))
FORBIDDEN: Final = frozenset(
    chr(code) for first, last in _CONTROL_CHARACTERS + _FORMAT_CHARACTERS for code in range(first, last + 1)
)


def check_text(name: str, value: str) -> None:
    """Raise InvalidRequest if `value` has a character that no topic, pattern, id or type may have (N1, N2)."""
    if not FORBIDDEN.isdisjoint(value):
        char = next(char for char in value if char in FORBIDDEN)
        raise InvalidRequest(f"{name} {shown(value)} contains the control or format character U+{ord(char):04X}")


@dataclass(frozen=True, slots=True)
class TopicMatcher:
    """One matcher of a subscription or of a grant."""

    type: str
    pattern: str
    selectors: tuple[Selector, ...] = field(compare=False, repr=False)
    """The same in the words of the library, any of which matches."""
    _matchers: tuple[Matcher, ...] = field(compare=False, repr=False)

    def match(self, topic: str) -> bool:
        return any(matcher.match(topic) for matcher in self._matchers)


def compile_topic_matcher(type: str, pattern: str) -> TopicMatcher:
    """The matcher of `pattern`.

    Raises PatternError where the type refuses the pattern, and LookupError where there is no such type.
    The classic type refuses none: what is no template is a plain string (V10).
    """
    if type != CLASSIC and type not in MATCHER_TYPES:
        raise LookupError(f"matcher type {shown(type)} is none of {', '.join(MATCHER_TYPES)}")
    selectors: list[Selector]
    if pattern == WILDCARD:
        selectors = [("everything", WILDCARD)]
    elif type == CLASSIC:
        selectors = [("exact", pattern)]
        if "{" in pattern:
            selectors.append(("uritemplate", pattern))
    else:
        selectors = [(type, pattern)]
    try:
        matchers = [compile_matcher(*selector) for selector in selectors]
    except PatternError:
        if type != CLASSIC:
            raise
        del selectors[1:]
        matchers = [Exact(pattern)]
    return TopicMatcher(type, pattern, tuple(selectors), tuple(matchers))


def is_reserved(topic: str, path: str) -> bool:
    """Whether `topic`, resolved against a hub URL with this path, is that path or below it (N44).

    What is no URL reference is not reserved (N45).

    >>> is_reserved("https://example.com/.well-known/%6Dercure/x", "/.well-known/mercure")
    True
    """
    try:
        resolved = URL(topic, base="https://hub.invalid" + path).pathname
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

"""A URL Pattern matches URLs.

    https://example.com/books/:id          one segment
    https://*.example.com/books/*          any text
    https://example.com/books{/:id}?       with or without a segment
    https://example.com/books/:id(\\d+)     a regular expression

Both the pattern and the topic are made canonical as URLs, so
`https://EXAMPLE.com:443/a/../b` is `https://example.com/b`.  Relative ones are resolved
against `base_url`.  Each of the eight components of a URL has a pattern of its own:

    https://example.com/books/:id
    protocol https   hostname example.com   port ""   pathname /books/:id   others *

Two packages of the extra `urlpattern` do a part of the work:

    parse a URL, make it canonical         canonical.py   ada-url
    the syntax of patterns                 syntax.py
    literals, names, *, braces, ? + *      language.py    linear time
    groups in parentheses                  regexp.py      google-re2, bounded bytes

A pattern without groups takes about as much memory as a URI template.  The package
`urlpattern`, with which the tests compare, takes some 100 KB, and does not show by
which fixed text a table could file a pattern.

Belongs here: what the standard says of a pattern and of a URL.
Does not belong here: how many patterns are found together (`topics.tables`).

Source: the WHATWG URL Pattern Standard.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from functools import lru_cache, partial
from typing import Final, TypeAlias

from skipfilter.errors import PatternError
from skipfilter.text import shown
from skipfilter.topics.matchers.url_pattern import canonical, syntax
from skipfilter.topics.matchers.url_pattern.canonical import (
    COMPONENTS,
    DEFAULT_PORTS,
    HOSTNAME,
    PATHNAME,
    PORT,
    PROTOCOL,
    Url,
)
from skipfilter.topics.matchers.url_pattern.language import ANY, Language, LinearParts, Reading, language_of
from skipfilter.topics.matchers.url_pattern.regexp import Regexp
from skipfilter.topics.matchers.url_pattern.syntax import ComponentSyntax, Refused

INSTRUCTIONS: Final = 50
"""Instructions of an automaton that count as one pattern in limits.

Most patterns have fewer.  If a topic leads to states that the automaton did not know,
50 instructions take 5 to 10 µs for 50 characters.
"""

Conditions: TypeAlias = tuple[tuple[int, LinearParts | Regexp], ...]
"""What components must match, with the place of the component in a Url."""

_OPTIONS: Final = {
    "protocol": ComponentSyntax(canonical.protocol),
    "username": ComponentSyntax(canonical.username),
    "password": ComponentSyntax(canonical.password),
    "hostname": ComponentSyntax(canonical.hostname, delimiter="."),
    "port": ComponentSyntax(canonical.port),
    "pathname": ComponentSyntax(canonical.pathname, delimiter="/", prefix="/"),
    "search": ComponentSyntax(canonical.search),
    "hash": ComponentSyntax(canonical.hash),
}
_SITE: Final = (PROTOCOL, HOSTNAME, PORT)
_ORIGIN: Final = b"%b://%b:%b"
_IPV6: Final = ComponentSyntax(canonical.ipv6_hostname, delimiter=".")
# The standard also takes the path of foo://host/:id as opaque, so that a name there
# would match slashes.  No server does.
_OPAQUE_PATH: Final = ComponentSyntax(canonical.opaque_pathname)


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """Matches the topics that are URLs of `pattern`.

    A component with a group in parentheses has an automaton of up to 32 KB, or of up to
    8 MB if `regexp_groups` is True, and a topic costs at most its length times the
    number of the automaton's instructions (some 2,700 or 700,000).

    Raises PatternError if the standard refuses the pattern, if it is relative and there
    is no `base_url`, or if a group needs a larger automaton, or what RE2 lacks:
    look-around, back-references, sets of classes, counts above 1,000, and the long
    names of Unicode properties.  Raises ImportError if a package of the extra
    `urlpattern` is missing.
    >>> UrlPattern("https://example.com/books/:id").match("https://example.com/books/1")
    True
    """

    pattern: str
    base_url: str | None = None
    regexp_groups: InitVar[bool] = field(default=False, kw_only=True)
    origin: bytes | None = field(init=False, repr=False, compare=False)
    """The protocol, hostname and port as `origin_of` gives them; None if not fixed."""
    path: LinearParts = field(init=False, repr=False, compare=False)
    """What the pathname must match; with a group, a condition says the rest."""
    conditions: Conditions = field(init=False, repr=False, compare=False)
    """What else must hold; usually nothing."""

    def __post_init__(self, regexp_groups: bool) -> None:
        try:
            languages = _languages(self.pattern, self.base_url, regexp_groups)
        except Refused as error:
            raise PatternError("urlpattern", self.pattern, str(error)) from None
        conditions: list[tuple[int, LinearParts | Regexp]] = []
        origin = _fixed_origin(languages)
        for place, (parts, regexp) in enumerate(languages):
            if regexp is not None:
                conditions.append((place, regexp))
            elif parts != ANY and place != PATHNAME and (origin is None or place not in _SITE):
                conditions.append((place, parts))
        object.__setattr__(self, "origin", origin)
        object.__setattr__(self, "path", languages[PATHNAME].parts)
        object.__setattr__(self, "conditions", tuple(conditions))

    @property
    def cost(self) -> int:
        """How many patterns it counts for in limits: 0 if it has no groups, else 1 for
        each 50 instructions of its automaton.

        Takes O(1).
        """
        instructions = sum(wanted.instructions for _, wanted in self.conditions if isinstance(wanted, Regexp))
        return -(-instructions // INSTRUCTIONS)

    def match(self, topic: str) -> bool:
        """Return whether `topic` is a URL that the pattern matches.

        Takes O(|topic|) to parse the URL, which patterns that test the same topic
        share, and O(parts) operations on integers of as many bits, or RE2, which is
        linear.
        """
        url = canonical.parse(topic, self.base_url)
        return (
            url is not None
            and (self.origin is None or self.origin == origin_of(url))
            and Reading(url.pathname).matches(self.path)
            and meets(url, self.conditions)
        )

    def why_not(self, topic: str) -> str:
        """Return the first component of `topic` that does not match.

        Costs as much as `match`.
        """
        url = canonical.parse(topic, self.base_url)
        if url is None:
            return "it is not a URL" if self.base_url else "it is not a URL, and there is no base URL"
        if self.origin is not None and self.origin != origin_of(url):
            return f"its origin is {shown(origin_of(url).decode())}, not {shown(self.origin.decode())}"
        for place, wanted in ((PATHNAME, self.path), *self.conditions):
            if not _is_met(url[place], wanted):
                return f"its {COMPONENTS[place]} is {shown(url[place].decode())}"
        return "it matches"


def origin_of(url: Url) -> bytes:
    """Return the protocol, hostname and port of `url` as one text."""
    return _ORIGIN % (url.protocol, url.hostname, url.port)


def meets(url: Url, conditions: Conditions) -> bool:
    """Return whether the components of `url` match."""
    return all(_is_met(url[place], wanted) for place, wanted in conditions)


def _is_met(text: bytes, wanted: LinearParts | Regexp) -> bool:
    return wanted.matches(text) if isinstance(wanted, Regexp) else Reading(text).matches(wanted)


def _languages(pattern: str, base_url: str | None, trusted: bool) -> list[Language]:
    """Return the languages of the eight components."""
    named = syntax.components(pattern, base_url, partial(_may_be_special, trusted=trusted))
    has_segments = named["pathname"].startswith("/") or _may_be_special(named["protocol"], trusted=trusted)
    found = []
    for name, text in named.items():
        options = _OPTIONS[name]
        if name == "hostname" and len(text) > 1 and text.startswith(("[", "{[", "\\[")):
            options = _IPV6
        elif name == "pathname" and not has_segments:
            options = _OPAQUE_PATH
        found.append(_component(name, text, options, trusted))
    return found


def _component(name: str, text: str, options: ComponentSyntax, trusted: bool) -> Language:
    """Return the language of one component.  Raises Refused with its name."""
    if text in ("", "*"):
        return Language(ANY if text else ())
    try:
        return language_of(syntax.parts(text, options), options.delimiter, trusted=trusted)
    except Refused as error:
        raise Refused(f"{name} {shown(text)}: {error}") from None


@lru_cache(256)
def _may_be_special(protocol: str, *, trusted: bool) -> bool:
    """Return whether a protocol pattern matches a special scheme, which has hosts and
    segments.
    """
    parts, regexp = _component("protocol", protocol, _OPTIONS["protocol"], trusted)
    return any(_is_met(scheme.encode(), regexp or parts) for scheme in DEFAULT_PORTS)


def _fixed_origin(languages: list[Language]) -> bytes | None:
    """Return the protocol, hostname and port if they are fixed text, else None."""
    fixed = []
    for place in _SITE:
        match languages[place]:
            case Language((), None):
                fixed.append(b"")
            case Language((bytes() as text,), None):
                fixed.append(text)
            case _:
                return None
    return _ORIGIN % tuple(fixed)

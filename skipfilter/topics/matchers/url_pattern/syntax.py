"""The syntax of URL Patterns: the text of a pattern as eight component patterns, and
each of them as parts.

    https://*.example.com/books/:id(\\d+)?

    protocol   https             literal
    hostname   *.example.com     *    literal .example.com
    pathname   /books/:id(\\d+)?  literal /books    prefix / group \\d+ modifier ?

    tokens     char   escaped   name   regexp   *   open   close   + or ?   end
    text       a      \\a        :a     (a)      *   {      }       + ?

Source: the WHATWG URL Pattern Standard: "tokenizing", "parsing constructor strings",
"parsing pattern strings", and "process a URLPatternInit".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from skipfilter.text import shown
from skipfilter.topics.matchers.url_pattern import canonical
from skipfilter.topics.matchers.url_pattern.canonical import COMPONENTS, DEFAULT_PORTS

if TYPE_CHECKING:
    from collections.abc import Callable

SYNTAX: Final = "+*?:{}()\\"
"""The characters that are not themselves in a pattern."""
_SYNTAX_OF_REGEXPS: Final = ".+*?^${}()[]|/\\"


MAX_PARTS: Final = 100
"""The maximum number of names, groups, asterisks and braces with a modifier in a
component; each takes memory, and time for each topic."""


class Refused(ValueError):
    """The standard refuses the pattern; the argument says why."""


# -- tokens


class Kind(Enum):
    """The kinds of tokens."""

    CHAR, ESCAPED, INVALID, NAME, REGEXP, ASTERISK, OPEN, CLOSE, MODIFIER, END = range(10)


class Token(NamedTuple):
    """A token, the place in the text where it starts, and its value."""

    kind: Kind
    start: int
    value: str


# Text without meaning is one token.  In a whole URL it ends where a component may end;
# in a component, before a slash that may belong to a name or group.
_PLAIN_IN_URL: Final = re.compile(r"[^\\+*?:{}()/#@[\]]++")
_PLAIN: Final = re.compile(r"(?:[^\\+*?:{}()/]|/(?![:(*]))++")
_ASCII_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*+")
_LITERAL: Final = (Kind.CHAR, Kind.ESCAPED, Kind.INVALID)
_SIMPLE: Final = {"*": Kind.ASTERISK, "+": Kind.MODIFIER, "?": Kind.MODIFIER, "{": Kind.OPEN, "}": Kind.CLOSE}


def tokens(text: str, *, is_url: bool = False) -> list[Token]:
    """Split `text` into tokens; the last one is END.

    In a whole URL, a colon without a name is a token of kind INVALID.  Raises Refused
    for any other character that cannot stand where it is.
    """
    # The standard has INVALID tokens for all of them, but refuses the component later.
    found: list[Token] = []
    match_plain = (_PLAIN_IN_URL if is_url else _PLAIN).match
    at = 0
    while at < len(text):
        if plain := match_plain(text, at):
            found.append(Token(Kind.CHAR, at, plain[0]))
            at = plain.end()
            continue
        start, char = at, text[at]
        kind, at = _SIMPLE.get(char, Kind.CHAR), at + 1
        value = char
        if char == "\\":
            if at == len(text):
                raise Refused(f"nothing follows the \\ at {start}")
            kind, value, at = Kind.ESCAPED, text[at], at + 1
        elif char == ":":
            end = _end_of_name(text, at)
            if end > at:
                kind, value, at = Kind.NAME, text[at:end], end
            elif is_url:
                kind = Kind.INVALID
            else:
                raise Refused(f"no name follows the : at {start}")
        elif char == "(":
            end = _end_of_regexp(text, at)
            kind, value, at = Kind.REGEXP, text[at : end - 1], end
        found.append(Token(kind, start, value))
    found.append(Token(Kind.END, len(text), ""))
    return found


_JOINERS: Final = "\u200c\u200d"
"""They too may continue an identifier of JavaScript."""


def _end_of_name(text: str, start: int) -> int:
    """Return the end of the longest JavaScript identifier from `start` on."""
    found = _ASCII_NAME.match(text, start)
    end = found.end() if found else start
    # After an x, every character that continues an identifier makes one.
    while end < len(text) and (
        text[end] == "$" or ("x" * (end > start) + text[end]).isidentifier() or (text[end] in _JOINERS and end > start)
    ):
        end += 1
    return end


def _end_of_regexp(text: str, start: int) -> int:
    """Return the end of the regular expression from `start` on, after its `)`."""
    depth = 1
    at = start
    while depth:
        if at >= len(text):
            raise Refused(f"the ( at {start - 1} is never closed")
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
        elif char == "(":
            if text[at + 1 : at + 2] != "?":
                raise Refused(f"the ( at {at} is in another group, and no ? follows it")
            depth += 1
        elif char == ")":
            depth -= 1
        if not text[at].isascii():
            raise Refused(f"the regular expression at {start} has {text[at]!r}, which is not ASCII")
        at += 1
    if at == start + 1:
        raise Refused(f"the group at {start - 1} is empty")
    if text[start] == "?":
        raise Refused(f"the group at {start - 1} begins with ?")
    return at


# -- a component pattern as parts


class PatternPart(NamedTuple):
    """A part of a component pattern: its text and what may stand around it.

    `regexp` is the text of a group, SEGMENT, WILDCARD, or None for fixed text, which
    is the prefix.  `modifier` is "", "?", "+" or "*".
    """

    prefix: str
    regexp: str | None
    suffix: str
    modifier: str


SEGMENT: Final = ""
"""A name without a group of its own.  No group has this text."""
WILDCARD: Final = ".*"
"""An asterisk, or a group that says the same."""


@dataclass(frozen=True, slots=True)
class ComponentSyntax:
    """How a kind of component is read.

    A name stops at `delimiter`; `prefix` belongs to the name or group after it; and
    `encode` makes fixed text canonical, or raises ValueError.
    """

    encode: Callable[[str], str]
    delimiter: str = ""
    prefix: str = ""


def parts(text: str, options: ComponentSyntax) -> list[PatternPart]:
    """Split a component pattern into parts, with canonical text.

    Raises Refused if the standard refuses it.
    """
    return _Parser(text, options).run()


class _Parser:
    """The "pattern parser"."""

    def __init__(self, text: str, options: ComponentSyntax) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._at = 0
        self._options = options
        self._fixed = ""  # text that is not a part yet
        self._names: set[str] = set()
        self._parts: list[PatternPart] = []
        self._found = 0  # the parts that are not fixed text
        # The group that says the same as a name.
        self._segment = f"[^{escaped(options.delimiter, _SYNTAX_OF_REGEXPS)}]+?"

    def run(self) -> list[PatternPart]:
        while (kind := self._tokens[self._at].kind) is not Kind.END:
            char = self._take(Kind.CHAR)
            regexp = self._name_or_group()
            if regexp is not None:
                # Of the text before a name or group, only the prefix goes with it.
                prefix = char if char == self._options.prefix else ""
                self._fixed += char[len(prefix) :]
                self._add(prefix, regexp, "", self._modifier())
            elif char or kind is Kind.ESCAPED:
                self._fixed += char or self._take(Kind.ESCAPED)
            elif kind is Kind.OPEN:
                self._at += 1
                prefix = self._literal()
                regexp = self._name_or_group()
                suffix = self._literal()
                if self._tokens[self._at].kind is not Kind.CLOSE:
                    raise self._unexpected("in braces")
                self._at += 1
                self._add(prefix, regexp, suffix, self._modifier())
            else:
                raise self._unexpected("there")
        self._end_fixed()
        return self._parts

    def _take(self, *kinds: Kind) -> str:
        """Return the value of the token and go on, or "" if it is of another kind."""
        token = self._tokens[self._at]
        if token.kind not in kinds:
            return ""
        self._at += 1
        return token.value

    def _literal(self) -> str:
        """Return the text of the tokens that are literal."""
        text = ""
        while found := self._take(Kind.CHAR, Kind.ESCAPED):
            text += found
        return text

    def _name_or_group(self) -> str | None:
        """Return what the next name or group matches, or None if neither is next."""
        name = self._take(Kind.NAME)
        if name in self._names:
            raise Refused(f"it has the name {shown(name)} twice")
        self._names |= {name} - {""}
        if regexp := self._take(Kind.REGEXP):
            return SEGMENT if regexp == self._segment else regexp
        if name:
            return SEGMENT
        return WILDCARD if self._take(Kind.ASTERISK) else None

    def _modifier(self) -> str:
        return self._take(Kind.MODIFIER, Kind.ASTERISK)

    def _add(self, prefix: str, regexp: str | None, suffix: str, modifier: str) -> None:
        """Add a part; "add a part" of the standard."""
        if regexp is None and not modifier:
            self._fixed += prefix
            return
        self._end_fixed()
        part = PatternPart(self._encoded(prefix), regexp, self._encoded(suffix), modifier)
        if part.regexp is not None or part.prefix:  # text may be nothing in a URL, as a tab is
            self._found += 1
            if self._found > MAX_PARTS:
                raise Refused(f"it has more than {MAX_PARTS} names, groups, asterisks and modifiers")
            self._parts.append(part)

    def _end_fixed(self) -> None:
        if self._fixed:
            self._parts.append(PatternPart(self._encoded(self._fixed), None, "", ""))
            self._fixed = ""

    def _encoded(self, text: str) -> str:
        try:
            return text and self._options.encode(text)
        except ValueError:
            raise Refused(f"{shown(text)} cannot stand in a URL there") from None

    def _unexpected(self, where: str) -> Refused:
        token = self._tokens[self._at]
        what = f"{self._text[token.start]!r} at {token.start}" if token.kind is not Kind.END else "the end"
        return Refused(f"{what} is not expected {where}")


# -- the text of a pattern as component patterns


def components(text: str, base_url: str | None, may_be_special: Callable[[str], bool]) -> dict[str, str]:
    """Return the component patterns of `text`, by the name of the component.

    `may_be_special` returns whether a protocol pattern matches a special scheme.
    Raises Refused for a relative pattern without `base_url`, and for a `base_url` that
    is not a URL.
    """
    named = _Splitter(text, may_be_special).run()
    if base_url is not None:
        _inherit(named, base_url)
    elif "protocol" not in named:
        raise Refused("it is relative, and there is no base URL")
    named["protocol"] = named["protocol"].removesuffix(":")
    named["search"] = named.get("search", "*").removeprefix("?")
    named["hash"] = named.get("hash", "*").removeprefix("#")
    if "port" in named and named["port"] == DEFAULT_PORTS.get(named["protocol"]):
        named["port"] = ""
    return {name: named.get(name, "*") for name in COMPONENTS}


def _inherit(named: dict[str, str], base_url: str) -> None:
    """Add the components that a relative pattern takes from `base_url`."""
    base = canonical.parse(base_url, None)
    if base is None:
        raise Refused(f"the base URL {base_url!r} is not a URL")
    inherited = {name: escaped(value.decode()) for name, value in base._asdict().items()}
    # Of a relative path, the base has the beginning.
    path = named.get("pathname", "/")
    if not path.startswith(("/", "\\/", "{/")) and base.pathname.startswith(b"/"):
        named["pathname"] = inherited["pathname"].rpartition("/")[0] + "/" + path
    # The components before the first one that the pattern has are those of the base.
    for name in ("protocol", "hostname", "port", "pathname", "search", "hash"):
        if name in named:
            break
        named[name] = inherited[name]


def escaped(text: str, special: str = SYNTAX) -> str:
    """Return the pattern that matches `text` alone."""
    return "".join(f"\\{char}" if char in special else char for char in text)


class _State(Enum):
    """The component that is being read.  AUTHORITY may be a username or a hostname."""

    INIT, PROTOCOL, AUTHORITY, USERNAME, PASSWORD, HOSTNAME, PORT, PATHNAME, SEARCH, HASH = range(10)


_NEXT: Final[dict[_State, dict[str, _State]]] = {
    _State.INIT: {":": _State.PROTOCOL},
    _State.PROTOCOL: {":": _State.AUTHORITY},  # or PATHNAME
    _State.AUTHORITY: {"@": _State.USERNAME, "/": _State.HOSTNAME, "?": _State.HOSTNAME, "#": _State.HOSTNAME},
    _State.USERNAME: {":": _State.PASSWORD, "@": _State.HOSTNAME},
    _State.PASSWORD: {"@": _State.HOSTNAME},
    _State.HOSTNAME: {":": _State.PORT, "/": _State.PATHNAME, "?": _State.SEARCH, "#": _State.HASH},
    _State.PORT: {"/": _State.PATHNAME, "?": _State.SEARCH, "#": _State.HASH},
    _State.PATHNAME: {"?": _State.SEARCH, "#": _State.HASH},
    _State.SEARCH: {"#": _State.HASH},
    _State.HASH: {},
}
"""The component that follows a delimiter.  After INIT and AUTHORITY, it begins where
they began; a path begins with its slash; all others begin after the delimiter.
"""


class _Splitter:
    """The "constructor string parser"."""

    def __init__(self, text: str, may_be_special: Callable[[str], bool]) -> None:
        self._text = text
        self._tokens = tokens(text, is_url=True)
        self._may_be_special = may_be_special
        self._state = _State.INIT
        self._start = self._at = 0  # the first token of the component, and the present one
        self._is_special = False
        self._named: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        braces = brackets = 0
        # 1. Find where components end.  Nothing in braces ends one.
        while True:
            kind, _, value = self._tokens[self._at]
            if kind is Kind.OPEN:
                braces += 1
            elif kind is Kind.CLOSE:
                braces = max(braces - 1, 0)
            elif kind is Kind.END:
                if self._state not in (_State.INIT, _State.AUTHORITY):
                    break
                braces = 0
                self._decide()
                continue
            elif not braces:
                # No port begins in the brackets of an IPv6 address.
                if self._state is _State.HOSTNAME and value in ("[", "]") and kind in _LITERAL:
                    brackets += 1 if value == "[" else -1
                following = _NEXT[self._state].get(value)
                if following is not None and self._is_delimiter(value) and not (brackets and value == ":"):
                    self._follow(following)
                    continue
            self._at += 1
        self._finish()
        # 2. Components before the last one are empty if they are absent.
        named = self._named
        if "hash" in named and ("protocol" in named or "pathname" in named):
            named.setdefault("search", "")
        if "protocol" in named and "search" in named:
            named.setdefault("pathname", "/" if self._is_special else "")
        if "protocol" in named and ("pathname" in named or "port" in named):
            named.setdefault("hostname", "")
        if "hostname" in named:
            named.setdefault("port", "")
        return named

    def _decide(self) -> None:
        """At the end: decide about a pattern without a protocol, or what the authority
        is; then read it again.
        """
        self._at = self._start
        if self._state is _State.AUTHORITY:
            self._state = _State.HOSTNAME
        elif self._is_delimiter("#"):
            self._begin(_State.HASH, 1)
        elif self._is_delimiter("?"):
            self._begin(_State.SEARCH, 1)
        else:
            self._begin(_State.PATHNAME, 0)

    def _is_delimiter(self, char: str, ahead: int = 0) -> bool:
        """Return whether the token is the literal `char`, or a ? that is no
        modifier.
        """
        at = min(self._at + ahead, len(self._tokens) - 1)
        kind, _, value = self._tokens[at]
        if value != char:
            return False
        if kind is Kind.MODIFIER and char == "?":
            before = self._tokens[at - 1].kind if at else None
            return before not in (Kind.NAME, Kind.REGEXP, Kind.CLOSE, Kind.ASTERISK)
        return kind in _LITERAL

    def _follow(self, following: _State) -> None:
        """Go to the next component, at a delimiter."""
        if self._state in (_State.INIT, _State.AUTHORITY):
            self._state, self._at = following, self._start
        elif self._state is _State.PROTOCOL:
            self._is_special = self._may_be_special(self._component())
            slashes = self._is_delimiter("/", 1) and self._is_delimiter("/", 2)
            is_authority = slashes or self._is_special
            self._begin(following if is_authority else _State.PATHNAME, 3 if slashes else 1)
        else:
            self._begin(following, 0 if following is _State.PATHNAME else 1)

    def _begin(self, state: _State, skip: int) -> None:
        """End the component, and begin one after `skip` tokens."""
        self._finish()
        self._state = state
        self._at = self._start = self._at + skip

    def _finish(self) -> None:
        """Keep the component that ends here."""
        if self._state not in (_State.INIT, _State.AUTHORITY):
            self._named[self._state.name.lower()] = self._component()

    def _component(self) -> str:
        return self._text[self._tokens[self._start].start : self._tokens[self._at].start]

"""A topic matches the URI template that it may be an expansion of (RFC 6570, level 4).

An expression becomes a small language over characters, whatever its variables are called:

    {id}      C*                    C = unreserved , %HH
    {+path}   C*                    C = unreserved reserved %HH
    {/a,b}    ( / C* ( / C* )? )?   every expression may be absent
    {?q*}     ( ? (C|&)* )?         an exploded list of any length folds into its character class

The whole template is matched with sets of positions held in Python integers, all at once and without
backtracking.  Bit p of `cursors` says that what has been read of the template can end before byte p:

    topic      / b / 4 2          template  /b/{id}
    cursors    1 . . . . .        start
               . . . 1 . .        after the literal  /b/
               . . . 1 1 1        after  C*: one addition carries through the run of C, and one more bit
                         ^        accepted: the set holds the end of the topic

A percent-encoded byte counts as one character: neither a literal nor a class can stop inside it.

Cost: a few operations on |topic|-bit integers for each variable, and for each CHUNK of a literal; so time is
linear in the topic and in the template, and no template can make it explode.  `re` with the usual translation is
exponential in the commas of a topic for `{a*}`.

Source: the semantics are those of yosida95/uritemplate's Regexp(), which deployed Mercure hubs match with;
the addition is MatchStar of R. Cameron et al., Bitwise Data Parallelism in Regular Expression Matching, 2014.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from skipfilter.errors import PatternError
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_VARIABLES: Final = 100
"""Variables of a template, over all its expressions."""

CHUNK: Final = 64
"""Bytes of a literal that are looked for at once: one that overlaps itself would cost their number, too."""

_HEX = frozenset(string.hexdigits)
_NAME = frozenset(string.ascii_letters + string.digits + "_")
_UNRESERVED = string.ascii_letters + string.digits + "-._~"
_VALUE = (_UNRESERVED + ",").encode()
_RESERVED = "!#$&'()*+,/:;=?@[]"
# RFC 6570, section 2.1, and the apostrophe, which its erratum 6937 allows.
_LITERALS = frozenset(string.ascii_letters + string.digits + "!#$&'()*+,-./:;=?@[]_~")

# operator -> (first, separator, base class, whether the names are written out): RFC 6570, appendix A
_OPERATORS: dict[str, tuple[str, str, str, bool]] = {
    "": ("", ",", _UNRESERVED + ",", False),
    "+": ("", ",", _UNRESERVED + _RESERVED, False),
    "#": ("#", ",", _UNRESERVED + _RESERVED, False),
    ".": (".", ".", _UNRESERVED + ",", False),
    "/": ("/", "/", _UNRESERVED + ",", False),
    ";": (";", ";", _UNRESERVED + ",", True),
    "?": ("?", "&", _UNRESERVED + ",", True),
    "&": ("&", "&", _UNRESERVED + ",", True),
}


@dataclass(frozen=True, slots=True)
class Expression:
    """( first head* ( separator tail* ){0,repeats} )?  The classes are `bytes.translate` tables to 0 and 1."""

    first: bytes
    separator: bytes
    head: bytes
    tail: bytes
    repeats: int


Part: TypeAlias = bytes | Expression


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """Matches the topics that `pattern` can expand to, and those that only a looser reading allows.

    An expression may be absent, names of variables are not compared, prefixes (`:3`) are ignored, and a
    variable that stands twice need not have one value.  Characters are compared as they are: no case folding,
    no percent-decoding.

    Raises PatternError where `pattern` is not a valid template.  Compiling costs microseconds.

    >>> UriTemplate("/books/{id}").match("/books/42")
    True
    >>> UriTemplate("/books/{id}").match("/books/42/reviews")
    False
    """

    pattern: str
    parts: tuple[Part, ...] = field(init=False, repr=False, compare=False)
    _prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = _parse(self.pattern)
        prefix = parts[0].decode("utf-8") if parts and isinstance(parts[0], bytes) else ""
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "_prefix", prefix)

    def match(self, topic: str) -> bool:
        if not topic.startswith(self._prefix):
            return False
        parts = self.parts[1:] if self._prefix else self.parts
        if not parts:
            return len(topic) == len(self._prefix)
        return Subject(encoded(topic[len(self._prefix) :])).matches(parts)

    def why_not(self, topic: str) -> str:
        """Why `topic` does not match: how much of it the template can read before it is stuck."""
        subject = Subject(encoded(topic))
        cursors = 1
        for part in self.parts:
            reached = cursors
            cursors = subject.after(part, cursors)
            if not cursors:
                read = subject.text[: reached.bit_length() - 1].decode("utf-8", "replace")
                wanted = part.decode("utf-8") if isinstance(part, bytes) else "an expression"
                return f"after {shown(read)} it asks for {shown(wanted)}"
        read = subject.text[: cursors.bit_length() - 1].decode("utf-8", "replace")
        return f"it ends after {shown(read)}"


def encoded(topic: str) -> bytes:
    """The bytes of `topic`; of a lone surrogate too, which no template matches."""
    return topic.encode("utf-8", "surrogatepass")


def is_value(text: bytes) -> bool:
    """Whether {id} can be `text`."""
    return text.isalnum() or not text.translate(None, _VALUE) or (b"%" in text and Subject(text).matches((VALUE,)))


class Subject:
    """A text, as sets of byte positions; made once for all templates that are tried on it."""

    __slots__ = ("_backwards", "_classes", "_end", "_found", "_inside", "_triplets", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        # As the digits of an integer are written, of which there is one; no class has a space.
        self._backwards = text[::-1] or b" "
        self._end = len(text)
        self._triplets, self._inside = _triplets(text) if b"%" in text else (0, 0)
        self._classes: dict[bytes, int] = {}
        self._found: dict[bytes, int] = {}

    def matches(self, parts: Sequence[Part], start: int = 0) -> bool:
        """Whether `parts` match all of the text from the byte `start` on."""
        cursors = 1 << start
        for part in parts:
            cursors = self.after(part, cursors)
            if not cursors:
                return False
        return bool(cursors >> self._end)

    def after(self, part: Part, cursors: int) -> int:
        """Where `part` can end if it starts at one of `cursors`."""
        if isinstance(part, bytes):
            return self._past(part, cursors)
        begun = self._past(part.first, cursors) if part.first else cursors
        reached = ended = self._star(part.head, begun)
        for _ in range(part.repeats):
            reached = self._star(part.tail, self._past(part.separator, reached)) & ~ended
            if not reached:
                break
            ended |= reached
        return cursors | ended

    def _star(self, table: bytes, cursors: int) -> int:
        """Where any number of characters of a class can end."""
        if not cursors:
            return 0
        members = self._classes.get(table)
        if members is None:
            members = int(self._backwards.translate(table), 2) | self._triplets
            self._classes[table] = members
        ended = (((cursors & members) + members) ^ members) | cursors
        return ended & ~self._inside if self._inside else ended

    def _past(self, literal: bytes, cursors: int) -> int:
        """Where `literal` ends."""
        if not cursors & (cursors - 1):  # there is one cursor or none
            there = cursors and self.text.startswith(literal, cursors.bit_length() - 1)
            return cursors << len(literal) if there else 0
        if len(literal) > CHUNK:
            return self._past(literal[CHUNK:], self._past(literal[:CHUNK], cursors))
        found = self._found.get(literal)
        if found is None:
            found = self._found[literal] = _set_of(_find_all(self.text, literal), self._end)
        return (cursors & found) << len(literal)


def _triplets(text: bytes) -> tuple[int, int]:
    """The positions of the %HH triplets in `text`, and those strictly inside one."""
    starts = [at for at in _find_all(text, b"%") if _is_triplet(text[at : at + 3].decode("latin-1"))]
    first = _set_of(starts, len(text))
    return first | first << 1 | first << 2, first << 1 | first << 2


def _find_all(text: bytes, literal: bytes) -> list[int]:
    found = []
    at = text.find(literal)
    while at >= 0:
        found.append(at)
        at = text.find(literal, at + 1)
    return found


def _set_of(positions: list[int], length: int) -> int:
    """The integer with these bits, in time linear in `length`."""
    if len(positions) < 8:
        return sum(1 << position for position in positions)
    # Many, set one by one, would cost |positions| * length.
    bits = bytearray(b"0") * (length + 1)
    for position in positions:
        bits[length - position] = ord("1")
    return int(bits, 2)


def _is_triplet(text: str) -> bool:
    return len(text) == 3 and text[0] == "%" and text[1] in _HEX and text[2] in _HEX


# -- parsing


def _parse(pattern: str) -> list[Part]:
    parts: list[Part] = []
    variables = 0
    at = 0
    while at < len(pattern):
        if pattern[at] == "{":
            end = pattern.find("}", at)
            if end < 0:
                raise PatternError("uritemplate", pattern, f"the expression at {at} is never closed")
            variables += 1 + pattern.count(",", at, end)
            if variables > MAX_VARIABLES:
                raise PatternError("uritemplate", pattern, f"it has more than {MAX_VARIABLES} variables")
            parts.append(_parse_expression(pattern, at + 1, end))
            at = end + 1
        else:
            end = pattern.find("{", at)
            end = len(pattern) if end < 0 else end
            _check_literal(pattern, at, end)
            parts.append(pattern[at:end].encode("utf-8"))
            at = end
    return parts


def _check_literal(pattern: str, start: int, end: int) -> None:
    at = start
    while at < end:
        char = pattern[at]
        if char in _LITERALS or (char > "\x7f" and _is_international(ord(char))):
            at += 1
        elif _is_triplet(pattern[at : min(at + 3, end)]):
            at += 3
        elif char == "%":
            raise PatternError("uritemplate", pattern, f"the % at {at} is not followed by two hexadecimal digits")
        else:
            raise PatternError("uritemplate", pattern, f"{char!r} at {at} may not stand outside an expression")


def _is_international(code: int) -> bool:
    """`ucschar` and `iprivate` of RFC 3987."""
    if code < 0x10000:
        return 0xA0 <= code <= 0xD7FF or 0xE000 <= code <= 0xFDCF or 0xFDF0 <= code <= 0xFFEF
    return code & 0xFFFE != 0xFFFE and not 0xE0000 <= code < 0xE1000


def _parse_expression(pattern: str, start: int, end: int) -> Expression:
    body = pattern[start:end]
    operator = body[0] if body and body[0] in "+#./;?&" else ""
    exploded = []
    for variable in body[len(operator) :].split(","):
        name, explode = (variable[:-1], True) if variable.endswith("*") else (variable, False)
        name, colon, length = name.partition(":")
        if colon and (explode or not _is_prefix_length(length)):
            raise PatternError("uritemplate", pattern, f"{variable!r} has a modifier that is neither * nor :1 to :9999")
        if not _is_name(name):
            raise PatternError("uritemplate", pattern, f"{name!r} is not the name of a variable")
        exploded.append(explode)
    return _expression(operator, len(exploded), exploded[0], any(exploded))


def _is_prefix_length(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and text[0] != "0"


def _is_name(text: str) -> bool:
    """(ALPHA / DIGIT / _ / %HH), with single dots in between."""
    for label in text.split("."):
        at = 0
        while at < len(label):
            if label[at] in _NAME:
                at += 1
            elif _is_triplet(label[at : at + 3]):
                at += 3
            else:
                return False
        if not label:
            return False
    return True


@cache  # of a few thousand possible arguments, as variables are bounded
def _expression(operator: str, variables: int, first_explodes: bool, any_explodes: bool) -> Expression:
    """The language of an expression, with as few repeats as say the same.

    As the specification of the match has it, the language is

        ( first head* ( separator tail* ){0,repeats} )?

    with `=` in the head if names are written out or the first variable explodes, `=` in the tail if names are
    written out or any variable explodes, and no bound on the repeats if any variable explodes.
    """
    first, separator, base, named = _OPERATORS[operator]
    head = base + "=" if named or first_explodes else base
    tail = base + "=" if named or any_explodes else base
    repeats = variables - 1
    if any_explodes or separator in tail:
        # ( s tail* )*  ==  ( s (tail|s)* )?  , and a tail that holds the separator reads any number of them
        tail += separator
        repeats = 1
        if set(head + separator) == set(tail):
            # head* ( s (head|s)* )?  ==  (head|s)*
            head, repeats = tail, 0
    return Expression(first.encode(), separator.encode(), _table(head), _table(tail), repeats)


@cache
def _table(members: str) -> bytes:
    """A `bytes.translate` table that turns the members of a class into 1, all else into 0.  A dozen exist."""
    return bytes(ord("1" if chr(byte) in members else "0") for byte in range(256))


VALUE: Final = _expression("", 1, False, False)
"""A simple variable, such as {id}."""

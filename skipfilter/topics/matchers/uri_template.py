"""A URI template (RFC 6570, level 4) matches the topics that it can expand to.

Whatever its variables are called, an expression is a small language over characters:

    {id}      C*                    C = unreserved , %HH
    {+path}   C*                    C = unreserved reserved %HH
    {/a,b}    ( / C* ( / C* )? )?   every expression may be absent
    {?q*}     ( ? (C|&)* )?         an exploded list becomes part of the character class

The whole template is matched at once, without backtracking: a set of positions in the
topic is one Python integer.  Bit p of `cursors` is set if what has been read of the
template can end before byte p:

    topic      / b / 4 2          template  /b/{id}
    cursors    1 . . . . .        start
               . . . 1 . .        after the literal  /b/
               . . . 1 1 1        after  C*: one addition carries through the run of C
                         ^        match: the set holds the end of the topic

A percent-encoded byte counts as one character: no literal and no class stops inside it.
A literal is compared as it is written, on purpose: the template `/é` expands to
`/%C3%A9` (RFC 6570, 3.1), but matches the topic `/é` alone, as in deployed hubs.

Each variable, and each piece of a literal, costs a few operations on integers of
|topic| bits (`skipfilter.topics.positions`).  So time is linear in the topic and in the
template, for every template.  The usual translation for `re` is exponential in the
commas of a topic for `{a*}`.

The package uritemplate expands templates, and does not match them.

Source: the semantics are those of yosida95/uritemplate's Regexp(), which deployed
Mercure hubs use.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from skipfilter.errors import PatternError, not_text
from skipfilter.text import shown
from skipfilter.topics.positions import Positions, find_all, set_of
from skipfilter.topics.words import ONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipfilter.topics.words import Wildcard

MAX_VARIABLES: Final = 100
"""The maximum number of variables of a template, over all its expressions."""

_HEX = frozenset(string.hexdigits)
_NAME = frozenset(string.ascii_letters + string.digits + "_")
_UNRESERVED = string.ascii_letters + string.digits + "-._~"
_VALUE = (_UNRESERVED + ",").encode()
_RESERVED = "!#$&'()*+,/:;=?@[]"
# RFC 6570, section 2.1, and the apostrophe, which its erratum 6937 allows.
_LITERALS = frozenset(string.ascii_letters + string.digits + "!#$&'()*+,-./:;=?@[]_~")
# The same as bytes, for whole segments; braces are looked at one by one.
_PLAIN = ("".join(_LITERALS) + "{}").encode()
_OPEN, _CLOSE = b"{}"

# operator -> (first, separator, class, whether names are written): RFC 6570, appendix A
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
class TemplateExpression:
    """The language ( first head* ( separator tail* ){0,repeats} )?

    `head` and `tail` are character classes, as `bytes.translate` tables to 0 and 1.
    """

    first: bytes
    separator: bytes
    head: bytes
    tail: bytes
    repeats: int


TemplatePart: TypeAlias = bytes | TemplateExpression


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """Matches the topics that `pattern` can expand to, and some that it cannot.

    The looser reading: any expression may be absent, names of variables are not
    compared, prefixes (`:3`) are ignored, and a variable that occurs twice may have two
    values.  Characters are compared exactly: no case folding, no percent-decoding.

    Compiling takes microseconds.  Raises PatternError if `pattern` is not a valid
    template.

    >>> UriTemplate("/books/{id}").match("/books/42")
    True
    >>> UriTemplate("/books/{id}").match("/books/42/reviews")
    False
    """

    pattern: str
    parts: tuple[TemplatePart, ...] = field(init=False, repr=False, compare=False)
    _prefix: str = field(init=False, repr=False, compare=False)
    _within: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise not_text(self.pattern, "pattern")
        parts = _parse(self.pattern)
        prefix = parts[0].decode("utf-8") if parts and isinstance(parts[0], bytes) else ""
        within = max((part for part in parts[1:] if isinstance(part, bytes)), key=len, default=b"")
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "_prefix", prefix)
        object.__setattr__(self, "_within", within.decode("utf-8"))

    def match(self, topic: str) -> bool:
        """Return whether the template matches all of `topic`, in time linear in it.

        Takes O(parts of the template) operations on integers of |topic| bits.
        """
        # The literal before the first expression, and the longest other one, decide
        # most topics.
        if not topic.startswith(self._prefix) or self._within not in topic:
            return False
        parts = self.parts[1:] if self._prefix else self.parts
        if not parts:
            return len(topic) == len(self._prefix)
        return Subject(encoded(topic[len(self._prefix) :])).matches(parts)

    def why_not(self, topic: str) -> str:
        """Return how much of `topic` the template reads before it is stuck.

        Costs as much as `match`.
        """
        subject = Subject(encoded(topic))
        cursors = 1
        for part in self.parts:
            reached = cursors
            cursors = subject.after(part, cursors)
            if not cursors:
                read = subject.text[: reached.bit_length() - 1].decode("utf-8", "replace")
                assert isinstance(part, bytes)  # an expression may be absent
                wanted = shown(part.decode("utf-8"))
                return f"after {shown(read)} it asks for {wanted}" if read else f"the template begins with {wanted}"
        end = cursors.bit_length() - 1
        read, rest = (text.decode("utf-8", "replace") for text in (subject.text[:end], subject.text[end:]))
        if self.pattern.endswith("}"):
            expression = self.pattern[self.pattern.rindex("{") :]
            return f"after {shown(read)} comes {rest[0]!r}, which {expression} does not take"
        return f"it ends after {shown(read)}"

    def variables(self, topic: str) -> dict[str, str]:
        """Return the values of the template's variables in `topic`, percent-decoded.

        If there is a choice, the later parts of the template read as little as they
        can, and in an expression the last variable takes what is left.  A list is its
        text, with the separators.  If a variable occurs twice, the longer value counts.
        An absent variable is left out, and all are if the topic does not match.  Names
        are not compared in a match, so `{?a}` reads `?b=1`; that value is left out too.

        Takes O(the template's parts * the topic's length), and the square of the length
        at worst.

        >>> UriTemplate("/books/{id}{?page}").variables("/books/42?page=2")
        {'id': '42', 'page': '2'}
        """
        if not self.match(topic):
            return {}
        values: dict[str, str] = {}
        texts = zip(self.parts, Subject(encoded(topic)).texts(self.parts), strict=True)
        expressions = [text for part, text in texts if isinstance(part, TemplateExpression)]
        for expression, text in zip(self.pattern.split("{")[1:], expressions, strict=True):
            for name, value in _values(expression.partition("}")[0], text.decode("utf-8")):
                values[name] = max(values.get(name, ""), unquote(value), key=len)
        return values


def segments_of(pattern: str) -> list[bytes | Wildcard] | None:
    """Return the segments of a template between slashes, with ONE for a variable such
    as {id}; or None if any segment is something else, or may be an error.

    A parse gives the same, and takes ten times as long.
    """
    text = encoded(pattern)
    if text.translate(None, _PLAIN):
        return None
    segments: list[bytes | Wildcard] = []
    braces = 0
    for segment in text.split(b"/"):
        if b"{" not in segment:
            segments.append(segment)
        elif segment[0] == _OPEN and segment[-1] == _CLOSE and segment[1:-1].replace(b"_", b"a").isalnum():
            segments.append(ONE)
            braces += 1
        else:
            return None
    return segments if braces == text.count(b"}") else None


def encoded(topic: str) -> bytes:
    """Return the bytes of `topic`, also of a lone surrogate, which no template
    matches.
    """
    return topic.encode("utf-8", "surrogatepass")


def is_value(text: bytes) -> bool:
    """Return whether the expression {id} can expand to `text`."""
    return text.isalnum() or not text.translate(None, _VALUE) or (b"%" in text and Subject(text).matches((VALUE,)))


class Subject(Positions):
    """A topic, for all templates that are tried on it.

    No position is inside of a percent-encoded byte.
    """

    __slots__ = ("_inside", "_triplets")

    def __init__(self, text: bytes) -> None:
        Positions.__init__(self, text)
        # The positions of %HH triplets, and those strictly inside of one.
        self._triplets, self._inside = _triplets(text) if b"%" in text else (0, 0)

    def matches(self, parts: Sequence[TemplatePart], start: int = 0) -> bool:
        """Return whether `parts` match all of the text from the byte `start` on."""
        cursors = 1 << start
        for part in parts:
            cursors = self.after(part, cursors)
            if not cursors:
                return False
        return bool(cursors >> self.end)

    def after(self, part: TemplatePart, cursors: int) -> int:
        """Return the positions where `part` can end if it starts at one of
        `cursors`.
        """
        if isinstance(part, bytes):
            return self.after_literal(part, cursors)
        # The optional first character, then the head: ( first head* ...
        begun = self.after_literal(part.first, cursors) if part.first else cursors
        reached = ended = self._star(part.head, begun)
        # ... ( separator tail* ){0,repeats}, until a repeat reaches nothing new.
        for _ in range(part.repeats):
            reached = self._star(part.tail, self.after_literal(part.separator, reached)) & ~ended
            if not reached:
                break
            ended |= reached
        # The whole expression may be absent, so it can also end where it starts.
        return cursors | ended

    def texts(self, parts: Sequence[TemplatePart]) -> list[bytes]:
        """Return what each of `parts` reads, if together they match all of the text.

        If there is a choice, the later parts read as little as they can.
        """
        reached = [1]  # where each part can start
        for part in parts:
            reached.append(self.after(part, reached[-1]))
        texts = []
        end = self.end
        for part, starts in zip(reversed(parts), reversed(reached[:-1]), strict=True):
            # The last start from which the part can end here.
            while not self.after(part, 1 << (start := starts.bit_length() - 1)) >> end & 1:
                starts ^= 1 << start
            texts.append(self.text[start:end])
            end = start
        return texts[::-1]

    def _star(self, table: bytes, cursors: int) -> int:
        """Return the positions where any number of characters of a class can end."""
        if not cursors:
            return 0
        members = self._classes.get(table)
        if members is None:
            members = self._classes[table] = self.members(table) | self._triplets
        ended = (((cursors & members) + members) ^ members) | cursors  # `after_run`, without a call
        return ended & ~self._inside if self._inside else ended


def _triplets(text: bytes) -> tuple[int, int]:
    """Return the positions of the %HH triplets in `text`, and those strictly inside
    one.
    """
    starts = [at for at in find_all(text, b"%") if _is_triplet(text[at : at + 3].decode("latin-1"))]
    first = set_of(starts, len(text))
    return first | first << 1 | first << 2, first << 1 | first << 2


def _is_triplet(text: str) -> bool:
    return len(text) == 3 and text[0] == "%" and text[1] in _HEX and text[2] in _HEX


# -- parsing


def _parse(pattern: str) -> list[TemplatePart]:
    """Split a template into literals and expressions."""
    parts: list[TemplatePart] = []
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
    """Return whether a code point is a `ucschar` or `iprivate` of RFC 3987."""
    if code < 0x10000:
        return 0xA0 <= code <= 0xD7FF or 0xE000 <= code <= 0xFDCF or 0xFDF0 <= code <= 0xFFEF
    return code & 0xFFFE != 0xFFFE and not 0xE0000 <= code < 0xE1000


def _parse_expression(pattern: str, start: int, end: int) -> TemplateExpression:
    operator, variables = _split(pattern[start:end])
    exploded = []
    for variable in variables:
        name, explode = (variable[:-1], True) if variable.endswith("*") else (variable, False)
        name, colon, length = name.partition(":")
        if colon and (explode or not _is_prefix_length(length)):
            raise PatternError("uritemplate", pattern, f"{variable!r} has a modifier that is neither * nor :1 to :9999")
        if not _is_name(name):
            raise PatternError("uritemplate", pattern, f"{name!r} is not the name of a variable")
        exploded.append(explode)
    return _expression(operator, len(exploded), exploded[0], any(exploded))


def _split(expression: str) -> tuple[str, list[str]]:
    """Return the operator of an expression, and its variables with their modifiers."""
    operator = expression[0] if expression and expression[0] in "+#./;?&" else ""
    return operator, expression[len(operator) :].split(",")


def _values(expression: str, text: str) -> Iterator[tuple[str, str]]:
    """Iterate over (variable, value) for what an expression has read of a topic."""
    if not text:  # the expression is absent
        return
    operator, variables = _split(expression)
    first, separator, _, named = _OPERATORS[operator]
    names = [variable.rstrip("*").partition(":")[0] for variable in variables]
    body = text[len(first) :]
    if not named:
        yield from zip(names, body.split(separator, len(names) - 1), strict=False)
        return
    lists = [name for name, variable in zip(names, variables, strict=True) if variable.endswith("*")]
    listed = []
    for piece in body.split(separator):
        name, _, value = piece.partition("=")
        if name in names and name not in lists:
            yield name, value
        else:
            listed.append(piece)
    if lists and listed:
        yield lists[0], separator.join(listed)


def _is_prefix_length(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and text[0] != "0"


def _is_name(text: str) -> bool:
    """Return whether `text` is (ALPHA / DIGIT / _ / %HH), with single dots in
    between.
    """
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


@cache  # a few thousand possible arguments, because the number of variables is limited
def _expression(operator: str, variables: int, first_explodes: bool, any_explodes: bool) -> TemplateExpression:
    """Return the language of an expression, with the smallest number of repeats.

    The specification of the match defines the language as

        ( first head* ( separator tail* ){0,repeats} )?

    with `=` in the head if names are written or the first variable explodes, `=` in the
    tail if names are written or any variable explodes, and unlimited repeats if any
    variable explodes.
    """
    first, separator, base, named = _OPERATORS[operator]
    head = base + "=" if named or first_explodes else base
    tail = base + "=" if named or any_explodes else base
    repeats = variables - 1
    if any_explodes or separator in tail:
        # ( s tail* )*  ==  ( s (tail|s)* )?  : a tail that holds the separator repeats
        # itself.
        tail += separator
        repeats = 1
        if set(head + separator) == set(tail):
            # head* ( s (head|s)* )?  ==  (head|s)*
            head, repeats = tail, 0
    return TemplateExpression(first.encode(), separator.encode(), _table(head), _table(tail), repeats)


@cache
def _table(members: str) -> bytes:
    """Return a `bytes.translate` table: 1 for members of a class, else 0.

    A dozen exist.
    """
    return bytes(ord("1" if chr(byte) in members else "0") for byte in range(256))


VALUE: Final = _expression("", 1, False, False)
"""A simple variable, such as {id}."""

r"""Regular expressions of URL Patterns, matched by RE2 in linear time and in bounded
memory.

    :id(\d+)       \d+      JavaScript, the `v` flag: what a pattern may say
    /(\u0041+)     \x{41}+  RE2: what it becomes

A component with a group becomes one expression for RE2, with the text between groups
escaped.  Its size is bounded, not its syntax: an automaton, with all states that it
makes while it matches, has `MAX_BYTES`.  RE2 lacks look-around, back-references, sets
of classes, counts above 1,000, and the long names of Unicode properties.

`\w`, `\d`, `\s` and `\b` are those of ASCII, as in JavaScript.  Everything that is
matched is ASCII.

Source: R. Cox, Regular Expression Matching in the Wild, 2010.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from skipfilter.text import missing, shown
from skipfilter.topics.matchers.url_pattern.syntax import SEGMENT, WILDCARD, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.matchers.url_pattern.syntax import PatternPart

MAX_BYTES: Final = 2**15
"""The maximum bytes of an automaton.

A UUID takes 75 instructions of some 2,700; sixteen names of \\w{1,20} take half.
"""
TRUSTED_BYTES: Final = 2**23
"""The maximum bytes of an automaton that the caller trusts: RE2's default."""
MAX_COUNTS: Final = 3_000
"""The maximum sum of all counts in braces: more instructions than there can be."""

_REASONS: Final = {
    "pattern too large - compile failed": "its regular expressions are too large",
    "invalid repetition size": (
        "it has a count above 1,000, or of which the first is larger, or nested counts that multiply to more"
    ),
}
_COUNT: Final = re.compile(r"\{([0-9]++)(?:,([0-9]*+))?+\}")
_CODE: Final = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]++)\}")
_PROPERTY: Final = re.compile(r"[pP](?:[A-Za-z]|\{[^{}]*+\})")
_OPEN: Final = re.compile(r"\((?:\?P?<[A-Za-z_$][A-Za-z0-9_$]*+>|(\?[imsU]*+(?:-[imsU]++)?+[:)]))")
_POSIX: Final = re.compile(r"\[:\^?+[a-z]++:\]")
_SETS: Final = ("&&", "--", "~~")

_shared: Final[WeakValueDictionary[tuple[str, int], Regexp]] = WeakValueDictionary()


class Regexp:
    """A regular expression for whole texts, compiled.

    It has no `__eq__`: equal ones are the same object.
    """

    __slots__ = ("__weakref__", "_automaton", "_key")

    def __init__(self, source: str, max_bytes: int) -> None:
        try:
            # Not `re2.compile`: its cache would keep 128 automata that are not in use.
            from re2 import _re2
        except ImportError as error:
            raise ImportError(missing("a group in a URL Pattern", "google-re2", "urlpattern")) from error
        self._key = source, max_bytes
        options = _re2.RE2.Options()
        options.max_mem = max_bytes
        options.log_errors = False  # it would write the text to stderr
        options.never_capture = True
        options.encoding = _re2.RE2.Options.Encoding.LATIN1  # smaller than UTF-8
        self._automaton: Any = _re2.RE2(source.encode(), options)
        if not self._automaton.ok():
            reason, _, value = self._automaton.error().decode("latin-1").partition(": ")
            raise Refused(_REASONS.get(reason, f"its regular expression has the error {reason!r}: {shown(value)}"))

    def __reduce__(self) -> tuple[object, ...]:
        return _shared_one, self._key

    @property
    def instructions(self) -> int:
        """The size of the automaton."""
        size: int = self._automaton.ProgramSize()
        return size

    def matches(self, text: bytes) -> bool:
        """Return whether the whole of `text` matches."""
        automaton = self._automaton
        matched: bool = automaton.Match(automaton.Anchor.ANCHOR_BOTH, text, 0, len(text))[0] != (-1, -1)
        return matched


def compile(parts: Iterable[PatternPart], delimiter: str, *, trusted: bool = False) -> Regexp:
    """Return the regular expression of a component.

    Raises Refused if RE2 cannot match it, or if it is too large and not `trusted`;
    ImportError if the package `google-re2` is missing.
    """
    budget = _Budget(sys.maxsize if trusted else MAX_COUNTS)
    source = "".join(_source(part, delimiter, budget) for part in parts)
    return _shared_one(source, TRUSTED_BYTES if trusted else MAX_BYTES)


def _shared_one(source: str, max_bytes: int) -> Regexp:
    """Return the regular expression that all equal ones share."""
    regexp = _shared.get((source, max_bytes))
    if regexp is None:
        regexp = _shared[source, max_bytes] = Regexp(source, max_bytes)
    return regexp


class _Budget:
    """What is left of the sum of all counts."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self, count: int) -> None:
        """Raise Refused if the sum is exceeded."""
        self._left -= count
        if self._left < 0:
            raise Refused(_REASONS["pattern too large - compile failed"])


def _source(part: PatternPart, delimiter: str, budget: _Budget) -> str:
    """Return a part for RE2, without names."""
    prefix, suffix = re.escape(part.prefix), re.escape(part.suffix)
    if part.regexp is None:
        return f"(?:{prefix}){part.modifier}" if part.modifier else prefix
    if part.regexp == SEGMENT:
        text = f"[^{re.escape(delimiter)}]+" if delimiter else ".+"
    elif part.regexp == WILDCARD:
        text = part.regexp
    else:
        text = f"(?:{_translated(part.regexp, budget)})"
    if part.modifier in ("", "?"):
        return f"(?:{prefix}{text}{suffix}){part.modifier}"
    # Between two repetitions stand the suffix of one and the prefix of the next.
    repeated = f"(?:{prefix}{text}(?:{suffix}{prefix}{text})*{suffix})"
    return repeated + "?" * (part.modifier == "*")


def _translated(text: str, budget: _Budget) -> str:
    """Return a regular expression of JavaScript for RE2.

    Raises Refused for whatever RE2 lacks, or would read differently.
    """
    done: list[str] = []
    opened: list[int] = []  # where the open groups begin in `done`
    atom = 0  # where the last atom begins
    is_counted = False  # whether a quantifier follows it
    at = 0
    while at < len(text):
        char = text[at]
        if (quantifier := _quantifier(text, at, budget)) is not None:
            if is_counted:  # RE2 refuses a**
                done.insert(atom, "(?:")
                done.append(")")
            is_counted = True
            piece, at = quantifier
            done.append(piece)
            continue
        piece = char
        begins = len(done)
        if char == "\\":
            piece, at = _escape(text, at)
        elif char == "[":
            piece, at = _class(text, at)
        elif char == "(":
            opened.append(begins)
            piece, at = _group(text, at)
            if piece.endswith(")"):  # flags for the rest of the group that it is in
                opened.pop()
        elif char == ")" and opened:
            begins = opened.pop()
            at += 1
        elif char in "{)":
            raise Refused(f"it has a {char} that closes or counts nothing")
        else:
            at += 1
        atom, is_counted = begins, False
        done.append(piece)
    if opened:
        raise Refused("it has a ( that is never closed")
    return "".join(done)


def _quantifier(text: str, at: int, budget: _Budget) -> tuple[str, int] | None:
    """Return the quantifier at `at` for RE2, and where it ends, or None."""
    if text[at] in "*+?":
        piece, end = text[at], at + 1
    elif found := _COUNT.match(text, at):
        # Without leading zeros, and cut where they are too large anyway.
        counts = [count and (count.lstrip("0")[:10] or "0") for count in found.groups()]
        budget.spend(max(int(count or 0) for count in counts))
        piece, end = f"{{{','.join(count for count in counts if count is not None)}}}", found.end()
    else:
        return None
    return (f"{piece}?", end + 1) if text.startswith("?", end) else (piece, end)  # a lazy one


def _escape(text: str, at: int, *, in_class: bool = False) -> tuple[str, int]:
    """Return the escape at `at` for RE2, and where it ends."""
    char = text[at + 1 : at + 2]
    end = at + 2
    if code := _CODE.match(text, at + 1):
        # The text is ASCII, so U+00FF can stand for all that is not.
        return f"\\x{{{min(int(next(filter(None, code.groups())), 16), 255):x}}}", code.end()
    if found := _PROPERTY.match(text, at + 1):
        ranges = _ascii_of(found[0])
        return ranges if in_class else f"[{ranges}]", found.end()
    if char == "0" and not text[end : end + 1].isdigit():
        return "\\x00", end
    if char == "_":
        return char, end
    if char.isdigit() or char == "k":
        raise Refused("it has a back-reference, which is not supported")
    if char and (not char.isalnum() or char in "dDwWsSbBnrtfvaAz"):
        if char in "<>":
            raise Refused(f"it has \\{char}, which is not supported")
        return text[at:end], end
    raise Refused(f"it has {text[at:end]!r}, which is not supported")


@lru_cache(64)
def _ascii_of(escape: str) -> str:
    """Return the ASCII characters of a Unicode property, as the inside of a class.

    RE2 takes 10 ms for each property that ignores case, and all text is ASCII.
    """
    automaton = Regexp(f"\\{escape}", MAX_BYTES)
    codes = [f"\\x{code:02x}" for code in range(128) if automaton.matches(bytes([code]))]
    return "".join(codes) or "\\x{ff}"  # which no text has


def _group(text: str, at: int) -> tuple[str, int]:
    """Return the beginning of a group at `at` for RE2, and where it ends."""
    found = _OPEN.match(text, at)
    if found is None:
        what = "look-around" if re.match(r"\(\?<?[=!]", text[at:]) else f"{text[at : at + 3]!r}"
        raise Refused(f"it has {what}, which is not supported")
    return f"({found[1] or '?:'}", found.end()


def _class(text: str, at: int) -> tuple[str, int]:
    """Return the class of characters at `at` for RE2, and where it ends."""
    start = at
    at += 2 if text.startswith("[^", at) else 1
    done = [text[start:at]]
    while at < len(text):
        char = text[at]
        if char == "]" and len(done) > 1:
            return "".join(done) + "]", at + 1
        if char == "\\":
            piece, at = ("\\x08", at + 2) if text.startswith("\\b", at) else _escape(text, at, in_class=True)
        elif posix := _POSIX.match(text, at):
            piece, at = posix[0], posix.end()
        elif char == "[" or text[at : at + 2] in _SETS:
            raise Refused("it has a set of classes, which is not supported")
        else:
            piece, at = char, at + 1
        done.append(piece)
    raise Refused("it has a [ that is never closed")

r"""The language of a component pattern: linear parts, and a regular expression if they
are not enough.

    /books/:id       literal /books/   NAME
    /a/*             literal /a/       ANYTHING
    /a{/:b}?         literal /a        optional (literal /  NAME)
    /a/:b+           literal /a/       NAME several times, with / in between
    {ab}*            optional (literal ab, several times)
    /a/:id(\d+)/b    literal /a/       ANYTHING  literal /b  , and a regular expression

The parts are matched from all positions at once (`skipfilter.topics.positions`), in
time linear in the text and in the parts.  With a group they are only necessary, so that
a table can file the pattern by its fixed text, and the regular expression decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from skipfilter.topics.matchers.url_pattern import regexp, syntax
from skipfilter.topics.positions import Positions, after_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.matchers.url_pattern.regexp import Regexp


@dataclass(frozen=True, slots=True)
class Run:
    """One or more bytes other than `delimiter`, which is one byte or none.

    If it is `joined`, any number of runs, with one delimiter between two of them.
    """

    delimiter: bytes
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Anything:
    """Any text, also none."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A text, which is not empty, one or more times."""

    text: bytes

    def __post_init__(self) -> None:
        assert self.text


@dataclass(frozen=True, slots=True)
class Optional:
    """The parts, or nothing."""

    parts: LinearParts


LinearPart: TypeAlias = bytes | Run | Anything | Repeated | Optional
LinearParts: TypeAlias = tuple[LinearPart, ...]

NAME: Final = Run(b"/")
"""A name in a path: one whole segment, if slashes are around it."""
ANYTHING: Final = Anything()
ANY: Final[LinearParts] = (ANYTHING,)
"""The parts of the component pattern `*`."""


class Language(NamedTuple):
    """The texts that match `parts` or, if it is not None, `regexp`.

    What `regexp` matches, `parts` match too.
    """

    parts: LinearParts
    regexp: Regexp | None = None


class Reading(Positions):
    """A component of a topic, for all patterns that are tried on it."""

    __slots__ = ()

    def matches(self, parts: LinearParts, start: int = 0) -> bool:
        """Return whether `parts` match all of the text from the byte `start` on."""
        return bool(self._after_all(parts, 1 << start) >> self.end)

    def _after_all(self, parts: LinearParts, cursors: int) -> int:
        """Return the positions where `parts` can end if they start at one of
        `cursors`.
        """
        for part in parts:
            cursors = self._after(part, cursors)
            if not cursors:
                break
        return cursors

    def _after(self, part: LinearPart, cursors: int) -> int:
        match part:
            case bytes():
                return self.after_literal(part, cursors)
            case Run():
                return self._after_runs(part, cursors)
            case Anything():
                # All positions from the lowest cursor to the end.
                return (2 << self.end) - (cursors & -cursors)
            case Optional():
                return cursors | self._after_all(part.parts, cursors)
            case Repeated():
                return self._after_repeated(part.text, cursors)

    def _after_runs(self, run: Run, cursors: int) -> int:
        members = within = self.members(_all_but(run.delimiter))
        if run.joined:
            # A delimiter continues a run if a member stands before it.
            within |= self.found(run.delimiter) & (members << 1)
        # The first byte must be there, and the last one must be no delimiter.
        return after_run(within, (cursors & members) << 1) & (members << 1)

    def _after_repeated(self, text: bytes, cursors: int) -> int:
        # `doubled` has the positions where 1, 2, 4 … repetitions start.
        length, doubled, ended = len(text), self.found(text), cursors
        while doubled:
            ended |= (ended & doubled) << length
            doubled &= doubled >> length
            length *= 2
        # At least one: what can end here also ends where one more repetition did.
        return self.after_literal(text, ended)


@cache  # the delimiters are none, a dot and a slash
def _all_but(delimiter: bytes) -> bytes:
    return bytes(ord("0" if byte in delimiter else "1") for byte in range(256))


# -- from the syntax to the language


def language_of(parts: Iterable[syntax.PatternPart], delimiter: str, *, trusted: bool = False) -> Language:
    """Return the language of a component pattern.

    Raises Refused and ImportError as `regexp.compile` does.
    """
    parts = list(parts)
    linear = [_linear(part, delimiter) for part in parts]
    automaton = regexp.compile(parts, delimiter, trusted=trusted) if None in linear else None
    return Language(_merged(part for found in linear for part in found or (ANYTHING,)), automaton)


def _linear(part: syntax.PatternPart, delimiter: str) -> LinearParts | None:
    """Return a part of the syntax as parts of a language, or None if they are not
    linear.
    """
    prefix, suffix, modifier = part.prefix.encode(), part.suffix.encode(), part.modifier
    stop = delimiter.encode()
    between = suffix + prefix  # what stands between two repetitions
    found: LinearParts
    if part.regexp is None:
        found = (Repeated(prefix) if modifier in ("+", "*") else prefix,)
    elif part.regexp == syntax.WILDCARD:
        found = prefix, ANYTHING, suffix  # with all its repetitions
    elif part.regexp == syntax.SEGMENT and (modifier in ("", "?") or not stop or stop not in between):
        found = prefix, Run(stop), suffix  # with all its repetitions
    elif part.regexp == syntax.SEGMENT and between == stop:
        found = prefix, Run(stop, joined=True), suffix
    else:
        return None
    return (Optional(_merged(found)),) if modifier in ("?", "*") else found


def _merged(parts: Iterable[LinearPart]) -> LinearParts:
    """Return the parts without empty literals, and with one literal instead of
    several in a row.
    """
    merged: list[LinearPart] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        elif part != b"":
            merged.append(part)
    return tuple(merged)

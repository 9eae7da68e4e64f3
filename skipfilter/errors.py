"""What the library raises on purpose.

    SkipFilterError
    ├── PatternError (ValueError)    a pattern that its grammar refuses
    └── LimitError (ValueError)      more than there may be

Where a built-in says it as well, the built-in is raised: `KeyError` for a value that is not there.
"""

from __future__ import annotations

from typing import NoReturn

from skipfilter.text import shown


class SkipFilterError(Exception):
    """The root of everything that the library raises on purpose."""


class PatternError(SkipFilterError, ValueError):
    """A pattern that its grammar refuses; the message names it, cut where it is long, and what is wrong with it."""

    def __init__(self, matcher_type: str, pattern: str, reason: str) -> None:
        super().__init__(f"{matcher_type} pattern {shown(pattern)}: {reason}")
        self.matcher_type = matcher_type
        self.pattern = pattern
        self.reason = reason


class LimitError(SkipFilterError, ValueError):
    """More of something than there may be; nothing of it was taken."""


def not_copied(self: object) -> NoReturn:
    """Raise TypeError; the `__reduce__` of a class whose copy would share half of its state with the original.

    Python copies, copies deeply and pickles by `__reduce__`.
    """
    raise TypeError(f"{type(self).__name__} cannot be copied or pickled: make another one and fill it")


def not_text(topic: object) -> TypeError:
    """Return the error for a topic that is not a str."""
    return TypeError(f"topic {topic!r:.80} is of type {type(topic).__name__}, not str")

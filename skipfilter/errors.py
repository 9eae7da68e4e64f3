"""The errors that the library raises on purpose.

    SkipFilterError
    ├── PatternError (ValueError)    the grammar of a matcher type refuses a pattern
    └── LimitError (ValueError)      a limit is exceeded

If a built-in error says it as well, that is raised: `KeyError` for an absent value.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from skipfilter.text import brief, missing, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


def _made_again(kind: type[Exception], arguments: tuple[object, ...]) -> Exception:
    """Return an error without a call of its constructor, which has other arguments."""
    return kind.__new__(kind, *arguments)


def copied_error(self: Exception) -> tuple[object, ...]:
    """Serve as `__reduce__` of an error, which thus returns from a process as it was.

    Otherwise Python would call the constructor with the message, and a pool of
    processes would hang if that fails.
    """
    return _made_again, (type(self), self.args), vars(self)


class SkipFilterError(Exception):
    """The base of all errors that the library raises on purpose."""

    __reduce__ = copied_error


class PatternError(SkipFilterError, ValueError):
    """A pattern that its grammar refuses.

    The message names the pattern, shortened if it is long, and the reason.
    """

    def __init__(self, matcher_type: str, pattern: str, reason: str) -> None:
        super().__init__(f"{matcher_type} pattern {shown(pattern)}: {reason}")
        self.matcher_type = matcher_type
        self.pattern = pattern
        self.reason = reason


class LimitError(SkipFilterError, ValueError):
    """A limit that would be exceeded.  Nothing has changed."""


def not_copied(self: object) -> NoReturn:
    """Raise TypeError: serves as `__reduce__` of a class that must not be copied.

    A copy would share half of its state with the original.  Python calls `__reduce__`
    for copies, deep copies and pickles.
    """
    raise TypeError(f"{type(self).__name__} cannot be copied or pickled: make a new one")


def not_text(value: object, what: str = "topic") -> TypeError:
    """Return the error for a topic, or something else, that is not a str."""
    return TypeError(f"{what} {brief(value)} is of type {type(value).__name__}, not str")


def absent(value: object) -> KeyError:
    """Return the error for a value that should be there."""
    return KeyError(f"{brief(value)} is not in the filter")


def note(error: BaseException, value: object) -> None:
    """Say in an error which of many values it is about."""
    error.add_note(f"nothing was added; the value was {brief(value)}")


def require_ints(**limits: object) -> None:
    """Raise TypeError if a limit is not an int, and name it."""
    for name, limit in limits.items():
        if not isinstance(limit, int):
            raise TypeError(f"{name}={brief(limit)} is of type {type(limit).__name__}, not int")


@contextmanager
def names_extra(what: str, extra: str) -> Iterator[None]:
    """Have an ImportError of the block name the extra that has the package."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hub", "skipfilter"):  # a mistake of this project
            raise
        raise ImportError(missing(what, package, extra), name=package) from None

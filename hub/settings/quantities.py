"""Durations and sizes as people write them, 40s or 64MiB, and the units of numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

DAY: Final = 86_400.0
"""Seconds in a day."""

DURATIONS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""Unit of a duration -> seconds."""
SIZES: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
"""Unit of a size -> bytes."""


class Unit(NamedTuple):
    """The unit of a number, for messages and for the table of all settings."""

    name: str
    example: str = ""
    shown: Callable[[float], str] = "{:,.15g}".format
    """Returns a value as messages show it."""


_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)")


def parse_duration(text: str, *, unit: float = 1) -> float:
    """Return the seconds of a duration such as "12h".

    A number without a unit counts units of `unit` seconds.  Case does not matter, and
    the longest duration is 2**63 seconds.  Raises ValueError for other texts.

    >>> parse_duration("12h")
    43200.0
    """
    return _parse(text, DURATIONS, unit, "a duration, as in 90s, 15m, 12h or 30d")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as "500MB"; a number without a unit is bytes.

    Case does not matter, and the largest size is 2**63 bytes.  Raises ValueError for
    other texts.

    >>> parse_size("64MiB")
    67108864
    """
    number = _parse(text, SIZES, 1, "a size, as in 500000, 500MB or 2GiB")
    if number != int(number):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(number)


def duration(seconds: float) -> str:
    """Return a number of seconds in the largest unit in which it is a whole number.

    >>> duration(5_400), duration(0.25), duration(0)
    ('90m', '0.25s', '0s')
    """
    units = [unit for unit, factor in DURATIONS.items() if factor >= 1 and seconds and seconds % factor == 0]
    unit = units[-1] if units else "s"
    return f"{seconds / DURATIONS[unit]:g}{unit}"


def size(number: float) -> str:
    """Return a number of bytes in the largest unit in which it is a whole number.

    >>> size(2**17), size(1_000)
    ('128KiB', '1000B')
    """
    units = [unit for unit, factor in SIZES.items() if (unit == "B" or "i" in unit) and number and number % factor == 0]
    unit = units[-1] if units else "B"
    return f"{number / SIZES[unit]:.0f}{unit}"


def _parse(text: str, units: dict[str, float] | dict[str, int], default: float, what: str) -> float:
    """Return a number times its unit; `what` describes the expected text in errors."""
    parts = _QUANTITY.fullmatch(text.strip())
    folded = {"": default} | {unit.lower(): factor for unit, factor in units.items()}
    factor = folded.get(parts[2].lower()) if parts else None
    if parts is None or factor is None or (value := float(parts[1]) * factor) >= 2**63:
        raise ValueError(f"{text!r} is not {what}")
    return value

"""The types of settings: what a text may look like, and the unit of a number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import BeforeValidator

from hub.settings.quantities import DAY, Unit, duration, parse_duration, parse_size, size
from hub.settings.texts import text_like

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_text(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that also accepts the texts that `parse` reads."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def as_list(value: object) -> object:
    """Return the items of a list, or of a text with commas or spaces between them."""
    items = re.findall(r"[^\s,]+", value) if isinstance(value, str) else value
    return tuple(items) if isinstance(items, list) else items


Origin: TypeAlias = Annotated[
    str,
    text_like(
        r"\*|null|[a-z][a-z0-9+.-]*://((\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])?(:[0-9]+)?",
        "an origin, as in https://app.example.com or https://*.example.com:8443; or * or null",
    ),
]

Seconds: TypeAlias = Annotated[float, Unit("seconds", "15, 40s or 10m", duration), _of_text(parse_duration)]
WholeSeconds: TypeAlias = Annotated[int, Unit("seconds", "15, 40s or 10m", duration), _of_text(parse_duration)]
Bytes: TypeAlias = Annotated[int, Unit("bytes", "65536, 64KiB or 1MiB", size), _of_text(parse_size)]
Days: TypeAlias = Annotated[
    float,
    Unit("days", "7, 12h or 30d", lambda days: duration(days * DAY)),
    _of_text(lambda text: parse_duration(text, unit=DAY) / DAY),
]

ConnectionRate: TypeAlias = Annotated[float, Unit("subscribers per second")]

YEAR: Final = 366 * DAY
"""Seconds in a leap year."""

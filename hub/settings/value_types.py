"""The types of settings: what a text may look like, and the unit of a number."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator

from hub.protocol.origins import parse_origin
from hub.settings.quantities import DAY, Unit, duration, parse_duration, parse_size, size

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_text(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that also accepts the texts that `parse` reads."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def as_list(value: object) -> object:
    """Return the items of a list, or of a text with commas or spaces between them."""
    items = re.findall(r"[^\s,]+", value) if isinstance(value, str) else value
    return tuple(items) if isinstance(items, list) else items


def _origin(text: str) -> str:
    if text in ("*", "null") or re.fullmatch(r"[a-z][a-z0-9+.-]*://", text):
        return text
    origin = parse_origin(text)
    if origin is None:
        as_in = "https://app.example.com or https://*.example.com:8443"
        raise ValueError(f"should be an origin, as in {as_in}; or * or null")
    return origin


def _public_url(text: str) -> str:
    origin = parse_origin(text)
    if origin is None or "*" in origin or not origin.startswith(("http://", "https://")):
        raise ValueError("should be a scheme and a host, as in https://hub.example.com, without a path")
    return origin


def _directory(path: str) -> str:
    if "://" in path:
        raise ValueError("should be the path of a directory, not a URL")
    return os.path.expanduser(path)


Directory: TypeAlias = Annotated[str, AfterValidator(_directory)]
"""A path; ~ at its beginning is a home directory, which not every shell puts there."""
Origin: TypeAlias = Annotated[str, AfterValidator(_origin)]
PublicURL: TypeAlias = Annotated[str, AfterValidator(_public_url)]

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

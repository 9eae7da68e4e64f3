"""Text: a value as a message shows it."""

from __future__ import annotations


def shown(value: str | bytes, longest: int = 80) -> str:
    """`value` as a message shows it: escaped, and cut where it is long."""
    return repr(value) if len(value) <= longest else f"{value[:longest]!r}…"

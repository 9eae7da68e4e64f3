"""How an error message shows a value."""

from __future__ import annotations


def shown(value: str | bytes, longest: int = 80) -> str:
    """Return `value` as a message shows it: escaped, and shortened if it is long."""
    return repr(value) if len(value) <= longest else f"{value[:longest]!r}…"

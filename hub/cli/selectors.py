"""Patterns of topics on the command line: [TYPE=]PATTERN."""

from __future__ import annotations

from hub.protocol.topics import MATCHER_TYPES


def selector_of(text: str) -> tuple[str | None, str]:
    """Return the matcher type that a text begins with, or None, and the pattern.

    >>> selector_of("mqtt=sensors/+"), selector_of("https://example.com/?a=b")
    (('mqtt', 'sensors/+'), (None, 'https://example.com/?a=b'))
    """
    type, separator, pattern = text.partition("=")
    return (type, pattern) if separator and type in MATCHER_TYPES else (None, text)

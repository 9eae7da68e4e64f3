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


def parameter_of(text: str) -> tuple[str, str]:
    """Return the parameter that subscribes to a text of the command line, and its
    pattern: without a type, a URI template if it has braces, and otherwise a topic.

    >>> parameter_of("mqtt=sensors/+"), parameter_of("/books/{id}")
    (('match_mqtt', 'sensors/+'), ('match_uritemplate', '/books/{id}'))
    """
    type, pattern = selector_of(text)
    return f"match_{type or ('uritemplate' if '{' in pattern else 'exact')}", pattern

"""Hints for developers: what a request means that is valid, but hardly what was meant.

    ?topics=a          parameter 'topics' is unknown, and ignored: did you mean 'topic'?
    private=false      the update is private: any value of the field makes it so

A hub in development mode logs them.  The functions are pure.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from hub.protocol.requests import FIELDS, NDJSON, parameters, parse_form
from hub.protocol.topics import CLASSIC
from skipfilter import PatternError, compile_matcher
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hub.protocol.requests import Limits

MAX_HINTS: Final = 10
"""The maximum number of hints about one request."""
_NO: Final = ("false", "0", "no", "off")


def subscribe_hints(query: bytes, body: bytes, limits: Limits) -> list[str]:
    """Return hints about the query and body of a subscribe request, one for a name."""
    pairs = parse_form(query, ()) + parse_form(body, ())
    return _first(_subscribe_hints(pairs, limits))


def _subscribe_hints(pairs: Iterable[tuple[str, str]], limits: Limits) -> Iterator[tuple[str, str]]:
    known = parameters(limits)
    for name, value in pairs:
        if name not in known:
            yield name, f"parameter {_unknown(name, known)}"
        elif name == CLASSIC and not value:
            yield name, "the empty topic matches no update: leave it out, or use * for all topics"
        elif name == CLASSIC and (reason := _no_template(value)):
            yield name, f"topic {shown(value)} is not a URI template, so it matches only this text: {reason}"


def publish_hints(body: bytes, type: str) -> list[str]:
    """Return hints about the body of a valid publish request, one for a name."""
    if type == NDJSON:
        lines = (json.loads(line) for line in body.split(b"\n") if line.strip())
        return _first(
            (name, f"member {_unknown(name, FIELDS)}") for line in lines for name in line if name not in FIELDS
        )
    return _first(_form_hints(parse_form(body, ())))


def _form_hints(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        if name not in FIELDS:
            yield name, f"field {_unknown(name, FIELDS)}"
        elif name == "private" and value.strip().lower() in _NO:
            yield (
                name,
                f"private={value}: the update is private, because any value of this field makes it so; "
                "leave the field out to publish to all",
            )


def _first(hints: Iterable[tuple[str, str]]) -> list[str]:
    """Return the first hint of each name, up to MAX_HINTS."""
    found: dict[str, str] = {}
    for name, hint in hints:
        found.setdefault(name, hint)
        if len(found) == MAX_HINTS:
            break
    return list(found.values())


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return the hint about an unknown name, with a known name that is similar."""
    similar = get_close_matches(name[:80], sorted(known), 1, cutoff=0.7)
    return f"{shown(name)} is unknown, and ignored" + (f": did you mean {similar[0]!r}?" if similar else "")


def _no_template(topic: str) -> str | None:
    """Return why a topic with a brace is not a URI template, or None if it is one."""
    if "{" not in topic and "}" not in topic:
        return None
    try:
        compile_matcher("uritemplate", topic)
    except PatternError as error:
        return error.reason
    return None

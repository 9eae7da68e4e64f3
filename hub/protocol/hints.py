"""Hints for developers about requests that are valid, but hardly do what was meant.

    ?topics=a          parameter 'topics' is unknown, and ignored: did you mean 'topic'?
    private=false      the update is private: any value of this field makes it so

A hub in development mode logs them.  The functions are pure.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hub.protocol.requests import FIELDS, FORM, JSON, parameters, parse_form
from hub.protocol.topics import CLASSIC
from skipfilter import PatternError, compile_matcher
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hub.protocol.requests import Limits

MAX_HINTS: Final = 10
"""The maximum number of hints about one request."""
_NO: Final = ("false", "0", "no", "off")


def subscribe_hints(query: bytes, body: bytes, limits: Limits) -> list[str]:
    """Return hints about the query and body of a subscribe request.

    There is one for each name, about its first value that needs one.
    """
    known = parameters(limits)
    pairs = parse_form(query, ()) + parse_form(body, ())
    return _first(pairs, lambda name, value: _parameter_hint(name, value, known))


def _parameter_hint(name: str, value: str, known: frozenset[str]) -> str | None:
    if name not in known:
        return f"parameter {_unknown(name, known)}"
    if name == CLASSIC and not value:
        return "the empty topic matches no update: leave it out, or use * for all topics"
    if name in ("match", "match_exact") and has_braces(value):
        return f"{name} {shown(value)} is compared as it is, with its braces: match_uritemplate takes templates"
    if name == CLASSIC and (reason := _no_template(value)):
        return f"topic {shown(value)} is not a URI template, so it matches only this text: {reason}"
    return None


def has_braces(pattern: str) -> bool:
    """Return whether a pattern looks like a URI template."""
    return "{" in pattern and "}" in pattern[pattern.index("{") :]


def publish_hints(body: bytes, type: str) -> list[str]:
    """Return hints about the body of a valid publish request, one for each name."""
    if type == FORM:
        return _first(parse_form(body, ()), _field_hint)
    return _first(((name, "") for members in _objects(body, type) for name in members), _member_hint)


def _objects(body: bytes, type: str) -> Iterable[dict[str, object]]:
    """Yield the objects of a valid body in JSON or lines of JSON."""
    if type == JSON:
        value = json.loads(body)
        yield from value if isinstance(value, list) else [value]
    else:
        yield from (json.loads(text) for line in body.split(b"\n") if (text := line.strip()))


def _member_hint(name: str, value: str) -> str | None:  # noqa: ARG001
    return None if name in FIELDS else f"member {_unknown(name, FIELDS)}"


def _field_hint(name: str, value: str) -> str | None:
    if name not in FIELDS:
        return f"field {_unknown(name, FIELDS)}"
    if name == "private" and value.strip().lower() in _NO:
        return (
            f"private is {shown(value)}, and the update is private, because any value of this field makes it so; "
            "leave the field out to publish to all"
        )
    return None


def _first(pairs: Iterable[tuple[str, str]], hint_of: Callable[[str, str], str | None]) -> list[str]:
    """Return the first hint of each name, up to MAX_HINTS."""
    found: dict[str, str] = {}
    for name, value in pairs:
        # A name is looked up once: to find similar ones is costly.
        if name not in found and (hint := hint_of(name, value)) is not None:
            found[name] = hint
            if len(found) == MAX_HINTS:
                break
    return list(found.values())


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return the hint about an unknown name, with a known name that is similar."""
    similar = nearest(name[:80], tuple(sorted(known)), 0.7)
    return f"{shown(name)} is unknown, and ignored" + (f": did you mean {similar!r}?" if similar else "")


@lru_cache(1_024)
def nearest(name: str, known: tuple[str, ...], cutoff: float) -> str | None:
    """Return the known name that is most similar to a name, or None if none is.

    Takes some 10 µs the first time; `cutoff` is how similar it must be, up to 1.
    """
    return next(iter(get_close_matches(name, known, 1, cutoff)), None)


def _no_template(topic: str) -> str | None:
    """Return why a topic with a brace is not a URI template, or None if it is one."""
    if "{" not in topic and "}" not in topic:
        return None
    try:
        compile_matcher("uritemplate", topic)
    except PatternError as error:
        return error.reason
    return None

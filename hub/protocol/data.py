"""Values as text: the data of an update, and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Data: TypeAlias = str | dict[str, Any] | list[Any]
"""The data of an update, as a program gives it."""


class Matchers(TypedDict, total=False):
    """Patterns that a program subscribes to, by the names of their parameters."""

    match: str | Sequence[str]
    match_exact: str | Sequence[str]
    match_urlpattern: str | Sequence[str]
    match_uritemplate: str | Sequence[str]
    match_amqp: str | Sequence[str]
    match_mqtt: str | Sequence[str]


def patterns_of(matchers: Matchers) -> list[tuple[str, str]]:
    """Return the name of a parameter and a pattern for each pattern, in order.

    >>> patterns_of({"match_mqtt": ["b/#", "c"]})
    [('match_mqtt', 'b/#'), ('match_mqtt', 'c')]
    """
    given = cast("Mapping[str, str | Sequence[str]]", matchers)
    return [
        (name, pattern)
        for name, patterns in given.items()
        for pattern in ((patterns,) if isinstance(patterns, str) else patterns)
    ]


def require_topics(topics: Iterable[object]) -> None:
    """Raise TypeError unless each topic is a text, for a program that gives the data,
    or a list of topics, by mistake.
    """
    for topic in topics:
        if not isinstance(topic, str):
            raise TypeError(
                f"topic {topic!r:.80} is no text; topics are separate arguments of publish and subscribe, and the data "
                'has a name: publish("/a", "/b", data="1")'
            )


def discovery_link(hub: str, cursor: str) -> str:
    """Return a link to a hub with the cursor that belongs to a document (N135)."""
    quoted = cursor.replace("\\", "\\\\").replace('"', '\\"')
    return f'<{hub}>; rel="mercure"; last-event-id="{quoted}"'


to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return a value as compact JSON.  json.dumps() would make a new encoder each time."""

_strict: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def data_text(data: Data) -> str:
    """Return the data of an update as text.

    A str is returned unchanged, and a dict or list as compact JSON.  Raises TypeError
    for anything else, or if a value inside has no form in JSON, and ValueError for NaN
    and infinity.
    """
    if isinstance(data, str):
        return data
    if isinstance(data, dict | list):
        return _strict(data)
    raise TypeError(f"data is of type {type(data).__name__}: it must be a str, a dict or a list")

"""The fields of a message, by path.

{"order": {"total": 5, "items": [{"sku": "a"}, {"sku": "b"}]}, "urgent": None}

order               is there, without a value of its own
order.total         5
order.items         is there
order.items.sku     "a", "b"
urgent              None
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

MAX_NAMES: Final = 20
"""The maximum number of names of a path.  What is deeper in a message is not seen."""

Fields: TypeAlias = Mapping[str, list[object]]
"""The values of each field of a message, by its path."""

_SIMPLE: Final = frozenset({str, int, float, bool, type(None), bytes, tuple})


def fields_of(message: Mapping[str, object]) -> dict[str, list[object]]:
    """Return the values of each field of `message`, by its path.

    A mapping in a field has fields of its own.  A list or a set has several values;
    other containers are values themselves.  Raises TypeError if `message` is not a
    Mapping.

    >>> fields_of({"order": {"total": 5}, "tags": ["a", "b"]})
    {'order': [], 'order.total': [5], 'tags': ['a', 'b']}
    """
    if not isinstance(message, (dict, Mapping)):  # dict first: the check is faster
        raise TypeError(f"message {message!r:.80} is of type {type(message).__name__}, not a Mapping")
    fields: dict[str, list[object]] = {}
    for name, value in message.items():
        if type(value) in _SIMPLE and name not in fields:
            fields[name] = [value]
        else:
            _read(name, value, fields, 1)
    return fields


def _read(path: str, value: object, fields: dict[str, list[object]], depth: int) -> None:
    """Add what is in the field `path` to `fields`."""
    values = fields.setdefault(path, [])
    if isinstance(value, Mapping):
        if depth < MAX_NAMES:
            for name, inner in value.items():
                _read(f"{path}.{name}", inner, fields, depth + 1)
    elif isinstance(value, (list, set)):
        if depth < MAX_NAMES:
            for one in value:
                _read(path, one, fields, depth + 1)
    else:
        values.append(value)

"""Reads messages: the values of each field, by its path, which has dots between names.

    {"order": {"total": 5, "items": [{"sku": "a"}, {"sku": "b"}]}, "urgent": None}

    order               is there, without a value of its own
    order.total         5
    order.items         is there
    order.items.sku     "a", "b"
    urgent              None

A field that is there has a row, (field,), and each of its values has one, too: (field,
value).  Most questions about a message are whether it has certain rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from skipfilter.errors import LimitError
from skipfilter.text import brief

MAX_NAMES: Final = 20
"""The maximum number of names of a path; a message is read to this depth, in which
lists count, too."""
MAX_PATH: Final = 1_000
"""The maximum number of characters of a path; longer ones in a message are not seen."""
MAX_VALUES: Final = 1_000_000
"""The maximum number of mappings, lists and values in a message that is not flat."""

Fields: TypeAlias = Mapping[str, list[object]]
"""The values of each field of a message, by its path."""

Row: TypeAlias = tuple[Hashable, ...]
"""(field,), for a field that is there, or (field, value)."""

_SIMPLE: Final = frozenset({str, int, float, bool, type(None), bytes, tuple})


@dataclass(slots=True)
class Message:
    """A message, as it is matched."""

    fields: dict[str, list[object]]
    """The values of each field."""
    rows: set[Row]
    """A row for each field, and for each value of it that can be hashed."""
    is_plain: bool
    """Whether no field has several values."""


def read(message: Mapping[str, object]) -> Message:
    """Return a message as it is matched.

    Raises TypeError if it is not a Mapping, and LimitError if it is too large.
    """
    fields = fields_of(message)
    rows: set[Row]
    try:
        # 1. A message without mappings and lists: its items are its rows.
        if _SIMPLE.issuperset(map(type, message.values())):
            rows = set(message.items())
            rows.update(zip(fields, strict=True))
            return Message(fields, rows, is_plain=True)
        # 2. Any other.
        rows = set(zip(fields, strict=True))
        rows.update([(name, value) for name, values in fields.items() for value in values])
    except TypeError:
        rows = set(zip(fields, strict=True))
        rows.update([(name, value) for name, values in fields.items() for value in values if has_hash(value)])
    return Message(fields, rows, is_plain=max(map(len, fields.values()), default=0) <= 1)


def has_hash(value: object) -> bool:
    """Return whether `value` can be hashed."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def fields_of(message: Mapping[str, object]) -> dict[str, list[object]]:
    """Return the values of each field of `message`, by its path.

    A mapping in a field has fields of its own.  A list or a set has several values;
    other containers are values themselves.  Raises TypeError if `message` is not a
    Mapping, and LimitError if it has more than MAX_VALUES values.

    >>> fields_of({"order": {"total": 5}, "tags": ["a", "b"]})
    {'order': [], 'order.total': [5], 'tags': ['a', 'b']}
    """
    if not isinstance(message, (dict, Mapping)):  # dict first: the check is faster
        raise TypeError(f"message {brief(message)} is of type {type(message).__name__}, not a Mapping")
    if _SIMPLE.issuperset(map(type, message.values())):
        return {name: [value] for name, value in message.items()}
    reader = _Reader()
    for name, value in message.items():
        if type(value) in _SIMPLE and name not in reader.fields:
            reader.fields[name] = [value]
        else:
            reader.read(name, value, 1)
    return reader.fields


class _Reader:
    """Reads a message with mappings or lists in it."""

    def __init__(self) -> None:
        self.fields: dict[str, list[object]] = {}
        self._left = MAX_VALUES  # how much may still be read

    def read(self, path: str, value: object, depth: int) -> None:
        """Read what is in the field `path`."""
        fields = self.fields
        values = fields.setdefault(path, [])
        if isinstance(value, Mapping):
            self._take(len(value))
            for name, inner in value.items() if depth < MAX_NAMES else ():
                below = f"{path}.{name}"
                if len(below) > MAX_PATH:
                    continue
                if type(inner) in _SIMPLE and below not in fields:  # the usual case, without a call
                    fields[below] = [inner]
                else:
                    self.read(below, inner, depth + 1)
        elif isinstance(value, (list, set)):
            self._take(len(value))
            for one in value if depth < MAX_NAMES else ():
                self.read(path, one, depth + 1)
        else:
            values.append(value)

    def _take(self, count: int) -> None:
        """Count what is read next."""
        self._left -= count
        if self._left < 0:
            raise LimitError(f"the message has more than {MAX_VALUES:,} values")

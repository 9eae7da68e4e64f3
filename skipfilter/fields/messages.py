"""Reads messages: the values of each field, by its path, which has dots between names.

    {"order": {"total": 5, "items": [{"sku": "a"}, {"sku": "b"}]}, "urgent": None}

    order               is there, without a value of its own
    order.total         5
    order.items         is there
    order.items.sku     "a", "b"
    urgent              None

A field that is there has a row, (field,), and each of its values has one, too: (field,
value).  Most questions about a message are whether it has certain rows.

A scalar of numpy is read as the equal one of Python, because numpy cannot compare it
with all others: Decimal(5) == np.int8(5) raises TypeError.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

from skipfilter.errors import LimitError
from skipfilter.text import brief

MAX_NAMES: Final = 20
"""The maximum number of names of a path, and the depth to which a message is read.  A
list is a level of depth, too.
"""
MAX_PATH: Final = 1_000
"""The maximum number of characters of a path; longer ones in a message are not seen."""
MAX_VALUES: Final = 1_000_000
"""The maximum number of mappings, lists and values in a message that is not flat."""

Row: TypeAlias = tuple[Hashable, ...]
"""(field,), for a field that is there, or (field, value)."""

_SIMPLE: Final = frozenset({str, int, float, bool, type(None), bytes, tuple})


@dataclass(slots=True)
class Message:
    """A message, as it is matched."""

    rows: set[Row]
    """A row for each field, and for each value of it that can be hashed."""
    is_plain: bool
    """Whether no field has several values."""
    _message: Mapping[str, object]
    _fields: dict[str, list[object]] | None
    """None if the message is flat, until somebody asks: few questions need them."""

    @property
    def fields(self) -> dict[str, list[object]]:
        """The values of each field."""
        if self._fields is None:
            self._fields = {name: [value] for name, value in self._message.items()}
        return self._fields


def read(message: Mapping[str, object]) -> Message:
    """Return a message as it is matched.

    A mapping in a field has fields of its own.  A list or a set has several values;
    other containers are values themselves.  Raises TypeError if `message` is not a
    Mapping, and LimitError if it has more than MAX_VALUES values.

    >>> read({"order": {"total": 5}, "tags": ["a", "b"]}).fields
    {'order': [], 'order.total': [5], 'tags': ['a', 'b']}
    """
    if not isinstance(message, (dict, Mapping)):  # dict first: the check is faster
        raise TypeError(f"message {brief(message)} is of type {type(message).__name__}, not a Mapping")
    if _SIMPLE.issuperset(map(type, message.values())):
        # The items of a flat message are rows as they are.
        return Message(_rows(message, message.items()), True, message, None)
    fields = _Reader().fields_of(message)
    rows = _rows(fields, [(name, value) for name, values in fields.items() for value in values])
    return Message(rows, max(map(len, fields.values())) <= 1, message, fields)


def _rows(names: Collection[str], items: Collection[tuple[str, object]]) -> set[Row]:
    """Return the rows of fields with these names and items."""
    try:
        return {*zip(names), *items}
    except TypeError:
        return {*zip(names), *((name, value) for name, value in items if has_hash(value))}


def has_hash(value: object) -> bool:
    """Return whether `value` can be hashed."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def python_scalar(value: Any) -> Any:
    """Return a scalar of numpy as the equal one of Python, and others as they are.

    A moment or a time span in nanoseconds stays as it is, and so does NaT: Python has
    no equal.
    """
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return value
    scalar = value.item()
    kind = value.dtype.kind
    if kind in "mM" and (scalar is None or isinstance(scalar, int)):
        return value
    if kind != "f" or isinstance(scalar, float):
        return scalar
    # A long double: a float, if that is not less precise.
    return Fraction(*scalar.as_integer_ratio()) if float(scalar) != scalar == scalar else float(scalar)


class _Reader:
    """Reads a message with mappings or lists in it."""

    def __init__(self) -> None:
        self._fields: dict[str, list[object]] = {}
        self._left = MAX_VALUES  # how much may still be read

    def fields_of(self, message: Mapping[str, object]) -> dict[str, list[object]]:
        """Return the values of each field."""
        self._read_mapping("", message, 1)
        return self._fields

    def _read_mapping(self, prefix: str, mapping: Mapping[str, object], depth: int) -> None:
        """Read the fields of a mapping; their paths begin with `prefix`."""
        self._take(len(mapping))
        fields = self._fields
        for name, value in mapping.items() if depth <= MAX_NAMES else ():
            path = f"{prefix}{name}"
            if len(path) > MAX_PATH:
                continue
            if type(value) in _SIMPLE and path not in fields:  # the usual case, without a call
                fields[path] = [value]
            else:
                self._read(path, value, depth)

    def _read(self, path: str, value: object, depth: int) -> None:
        """Read what is in the field `path`."""
        values = self._fields.setdefault(path, [])
        if type(value) in _SIMPLE:
            values.append(value)
        elif isinstance(value, Mapping):
            self._read_mapping(f"{path}.", value, depth + 1)
        elif isinstance(value, (list, set)):
            self._take(len(value))
            for one in value if depth < MAX_NAMES else ():
                self._read(path, one, depth + 1)
        else:
            values.append(python_scalar(value))

    def _take(self, count: int) -> None:
        """Count what is read next."""
        self._left -= count
        if self._left < 0:
            raise LimitError(f"the message has more than {MAX_VALUES:,} values")

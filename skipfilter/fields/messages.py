"""Reads messages: the values of the fields that somebody asks for.

The path of a field has dots between names:

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

from collections.abc import Collection, Hashable, Iterable, Mapping
from fractions import Fraction
from typing import Any, Final, TypeAlias

from skipfilter.errors import LimitError
from skipfilter.text import brief

MAX_NAMES: Final = 20
"""The maximum number of names of a path, and the depth to which a message is read.  A
list is a level of depth, too.
"""
MAX_PATH: Final = 1_000
"""The maximum number of characters of a path."""
MAX_VALUES: Final = 1_000_000
"""The maximum number of items of lists that are read of a message."""

Row: TypeAlias = tuple[Hashable, ...]
"""(field,), for a field that is there, or (field, value)."""

_PLAIN: Final = frozenset({str, int, float, bool, type(None), bytes})
_SIMPLE: Final = _PLAIN | {tuple}


class Message:
    """The fields of a message that were asked for, as they are matched."""

    __slots__ = ("_fields", "_found", "_left", "is_plain", "rows")

    def __init__(self) -> None:
        self.rows: set[Row] = set()
        """A row for each field, and for each value of it that can be hashed."""
        self.is_plain = True
        """Whether no field has several values."""
        self._found: list[tuple[str, object]] = []  # (field, value), also if it cannot be hashed
        self._fields: dict[str, list[object]] | None = None
        self._left = MAX_VALUES  # items of lists that may still be read

    @property
    def fields(self) -> dict[str, list[object]]:
        """The values of each field that has some; made when somebody asks, because few
        parts do.
        """
        if self._fields is None:
            if self.is_plain:
                self._fields = {field: [value] for field, value in self._found}
            else:
                self._fields = {}
                for field, value in self._found:
                    self._fields.setdefault(field, []).append(value)
        return self._fields

    def _read_mapping(self, node: _Node, mapping: Mapping[Any, object], depth: int) -> None:
        """Read the fields below a node.  O(the smaller of names and children)."""
        children = node.children
        odd = _odd_names(mapping)
        if odd:
            self.is_plain = False
        if len(children) < len(mapping):
            get, rows, found = mapping.get, self.rows, self._found
            for name, child in children.items():
                value = get(name, _ABSENT)
                if type(value) in _PLAIN and (row := child.row) is not None:  # as `_read`, without a call
                    pair = row[0], value
                    found.append(pair)
                    rows.add(row)
                    rows.add(pair)
                elif value is not _ABSENT:
                    self._read(child, value, depth)
        else:
            for name, value in mapping.items():
                if name not in odd and (known := children.get(name)) is not None:
                    self._read(known, value, depth)
        # A name with dots in it is as many names; one that is no str is read as one.
        for name in odd:
            below: _Node | None = node
            for part in str(name).split("."):
                below = below and below.children.get(part)
            if below is not None:
                self._read(below, mapping[name], depth)

    def _read(self, node: _Node, value: object, depth: int) -> None:
        """Read a value of the field of a node, and what is below."""
        row = node.row
        if row is not None:
            self.rows.add(row)
        if type(value) in _SIMPLE:
            if row is not None:
                self._add(row[0], value)
        elif isinstance(value, Mapping):
            if node.children and depth < MAX_NAMES:
                self._read_mapping(node, value, depth + 1)
        elif isinstance(value, (list, set)):
            self._left -= len(value)
            if self._left < 0:
                raise LimitError(f"the message has more than {MAX_VALUES:,} values")
            self.is_plain = False
            for one in value if depth < MAX_NAMES else ():
                self._read(node, one, depth + 1)
        elif row is not None:
            self._add(row[0], python_scalar(value))

    def _add(self, field: str, value: object) -> None:
        """Add a value of a field."""
        found = field, value
        self._found.append(found)
        if has_hash(value):  # otherwise no row asks for it
            self.rows.add(found)


class Plan:
    """The fields that are asked for, by their names: a trie of names.

    Only these are read of a message, whatever else it has.  Not thread-safe.

    >>> message = Plan(["order.total", "tags", "order"]).read(
    ...     {"order": {"total": 5, "id": 7}, "tags": ["a", "b"], "at": 8}
    ... )
    >>> sorted(message.fields.items())
    [('order.total', [5]), ('tags', ['a', 'b'])]
    """

    def __init__(self, fields: Iterable[str] = ()) -> None:
        self._root = _Node()
        for field in fields:
            self.add(field)

    def add(self, field: str) -> None:
        """Ask for a field once more.  O(names)."""
        node = self._root
        for name in field.split("."):
            node = node.children.setdefault(name, _Node())
            node.uses += 1
        node.asked += 1
        node.row = (field,)

    def remove(self, field: str) -> None:
        """Ask for a field once less.  O(names)."""
        node = self._root
        path = []
        for name in field.split("."):
            path.append((node, name))
            node = node.children[name]
            node.uses -= 1
        node.asked -= 1
        if not node.asked:
            node.row = None
        for parent, name in path:
            if not parent.children[name].uses:
                del parent.children[name]
                break

    def read(self, message: Mapping[str, object]) -> Message:
        """Return the fields of a message that are asked for.

        A mapping in a field has fields of its own.  A list or a set has several values;
        other containers are values themselves.  Raises TypeError if `message` is not a
        Mapping, and LimitError if it has lists of more than MAX_VALUES items together.
        """
        if not isinstance(message, (dict, Mapping)):  # dict first: the check is faster
            raise not_a_mapping(message)
        read = Message()
        read._read_mapping(self._root, message, 1)
        return read

    def _check(self, fields: Iterable[str]) -> None:
        """Assert that these fields are asked for, as often as here; for tests."""
        again = Plan(fields)
        pairs = [(self._root, again._root)]
        for mine, other in pairs:
            assert (mine.asked, mine.uses, mine.row) == (other.asked, other.uses, other.row)
            assert mine.children.keys() == other.children.keys()
            pairs += [(child, other.children[name]) for name, child in mine.children.items()]


class _Node:
    """A name of a path, and the names that may follow."""

    __slots__ = ("asked", "children", "row", "uses")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.row: tuple[str] | None = None  # (field,) if the field that ends here is asked for
        self.asked = 0  # how often it is
        self.uses = 0  # how often this one and those below are


_ABSENT: Final = object()


def _odd_names(mapping: Mapping[Any, object]) -> Collection[Any]:
    """Return the names that are not one plain name: those with dots, or no str."""
    try:
        if "." not in "".join(mapping):  # nearly always, and faster than a loop
            return ()
    except TypeError:
        pass
    return {name for name in mapping if not isinstance(name, str) or "." in name}


def not_a_mapping(message: object) -> TypeError:
    """Return the error for a message that is none."""
    return TypeError(f"message {brief(message)} is of type {type(message).__name__}, not a Mapping")


def has_hash(value: object) -> bool:
    """Return whether `value` can be hashed."""
    try:
        hash(value)
    except Exception:  # a memoryview that can be written raises ValueError
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

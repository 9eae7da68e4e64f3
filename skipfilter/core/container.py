"""What SkipFilter and FieldFilter have in common: values, each with what it declares.

A container reads like a mapping from values to their declarations, oldest first.  What
a declaration is, selectors or criteria, only its subclass knows.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from skipfilter.errors import absent, not_copied, note
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from skipfilter.core.values import Values

Value = TypeVar("Value")
Declared = TypeVar("Declared")
Given = TypeVar("Given")

PORTION = 100
"""Values that are removed in one go while `clear` holds the lock."""


class Stats(NamedTuple):
    """How much a filter holds, and about how many bytes that takes.

    The bytes are estimates, some percent off; the values themselves, and matchers that
    the caller has compiled, are not among them.
    """

    values: int
    """The number of values."""
    patterns: int
    """The number of different patterns, or of different rules."""
    keys: int
    """The number of cached keys."""
    misses: int
    """How often a key was asked for that was not cached."""
    value_bytes: int
    """The table of values and their ids."""
    pattern_bytes: int
    """The texts of the patterns, or the parts of the rules."""
    index_bytes: int
    """What finds them: tries, tables and bitmaps."""
    cache_bytes: int
    """The cached keys, with their bitmaps."""


class Container(Generic[Value, Declared]):
    """Values, each with what it declares.  `_lock` guards everything else."""

    _lock: AbstractContextManager[Any]
    _values: Values[Value]

    __reduce__ = not_copied

    # -- what a subclass does; the lock is held

    def _declared(self, value: Value) -> Declared:
        """Return what a value that is present has declared."""
        raise NotImplementedError

    def _remove(self, id: int, value: Value) -> None:
        """Remove a value that is present."""
        raise NotImplementedError

    def _emptied(self) -> object:
        """Become empty in O(1), and return what is to be freed without the lock; or
        None if values can only be removed one by one.
        """
        raise NotImplementedError

    # -- for everybody

    def remove(self, value: Value) -> None:
        """Remove `value`.  Raises KeyError if it is absent.

        Takes O(log n), and O(length) for what only it declares.
        """
        if not self.discard(value):
            raise absent(value)

    def discard(self, value: Value) -> bool:
        """Remove `value` if it is present, and return whether it was.

        Costs as much as `remove`.
        """
        with self._lock:
            id = self._values.id_of(value)
            if id is None:
                return False
            # The stored value, and not an equal one that may be treated differently.
            self._remove(id, self._values.by_id[id])
            return True

    def clear(self) -> None:
        """Remove all values.

        Takes O(n) to free what they have declared, and holds the lock for O(1).  With a
        source of your own that has no `clear`, the values are removed some at a time.
        """
        with self._lock:
            freed = self._emptied()
        while freed is None:
            with self._lock:
                for id, value in self._values.oldest(PORTION):
                    self._remove(id, value)
                if not self._values:
                    freed = self._emptied() or True
        del freed

    def __getitem__(self, value: Value) -> Declared:
        """Return what `value` has declared.  Takes O(its length).

        Raises KeyError if it is absent, and TypeError if values declare nothing.
        """
        with self._lock:
            if value not in self._values:
                raise absent(value)
            return self._declared(value)

    def items(self) -> Iterator[tuple[Value, Declared]]:
        """Iterate over a snapshot of the values with what each has declared, oldest
        first.

        Takes O(n).  `add_many` takes the same pairs.
        """
        with self._lock:
            return iter([(value, self._declared(value)) for value in self._values])

    def __contains__(self, value: object) -> bool:
        with self._lock:  # because `replace` changes several tables
            return value in self._values

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)

    def __iter__(self) -> Iterator[Value]:
        """Iterate over a snapshot of the values, oldest first."""
        with self._lock:
            return iter(list(self._values))


def lock_of(lock: AbstractContextManager[Any] | None) -> AbstractContextManager[Any]:
    """Return the lock of a container: the caller's, or a new one.

    Raises TypeError if it is none.
    """
    if lock is not None and not hasattr(lock, "__enter__"):
        raise TypeError(f"lock={brief(lock)} is not a lock, such as threading.RLock()")
    return threading.RLock() if lock is None else lock


def bytes_of(one: object) -> int:
    """Return about how many bytes an object takes, with the items of tuples and
    frozensets.
    """
    size, left = 0, [one]
    for some in left:
        size += sys.getsizeof(some)
        if isinstance(some, (tuple, frozenset)):
            left += some
    return size


def pairs_of(items: Iterable[tuple[Value, Given]] | Mapping[Value, Given]) -> list[tuple[Value, Given]]:
    """Return the items of `add_many`.  Raises ValueError if one is not a pair."""
    if isinstance(items, Mapping):
        return list(items.items())
    pairs = listed(items)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"item {brief(pair)}: not a pair of a value and what it declares")
    return pairs


def listed(items: Iterable[Given]) -> list[Given]:
    """Return the items of `add_many` as a list.  Raises TypeError if they are none."""
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise TypeError(f"{brief(items)} is of type {type(items).__name__}, and not a list of values")
    return list(items)


@contextmanager
def garbage_later() -> Iterator[None]:
    """Do not look for garbage while many objects are made, none of which is any.

    Otherwise Python would go through all of them again and again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def names(value: object) -> Iterator[None]:
    """Have an error of the block say which of many values it is about."""
    try:
        yield
    except Exception as error:
        note(error, value)
        raise

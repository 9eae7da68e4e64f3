"""Sources: how a SkipFilter learns which values match a key.

    Source    tests values: it returns the ids that match     a predicate
    Index     keeps posting lists: it returns these            SelectorIndex

A posting list is a set of ids that the index itself keeps up to date.  So a filter
that knows the posting lists of a key asks only for those that are new.
"""

from __future__ import annotations

import inspect
import reprlib
from itertools import compress, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from skipfilter.core.container import Container
from skipfilter.posting_list import PostingList, union
from skipfilter.text import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from pyroaring import BitMap64

    from skipfilter.core.values import Values
    from skipfilter.posting_list import Ids
    from skipfilter.topics.explanation import Explanation
    from skipfilter.topics.matchers import CompiledSelector, Matcher, Selector

Value = TypeVar("Value")
Key = TypeVar("Key")
ValueIn = TypeVar("ValueIn", contravariant=True)
KeyIn = TypeVar("KeyIn", contravariant=True)


class Observer(Protocol[ValueIn]):
    """What a source and an index have in common: a filter tells them of each value.

    A filter calls all methods while it holds its lock.

    If a value without selectors can match nothing, the source has an attribute
    `needs_selectors`, which is true.  Then an addition that omits them is refused.

    A source may have two more methods.  `add_many(id, pairs)` takes in several new
    values, with ids from `id` on, or with an error none; each pair has a value and its
    selectors.  `clear()` forgets all values at once, and returns what is to be freed.
    """

    def add(self, id: int, value: ValueIn, selectors: Iterable[Selector | CompiledSelector | Matcher]) -> None:
        """Take in a new value.

        Called again, with the same id, if a value is added that is already in the
        filter.  If it raises, the filter does not add the value.
        """
        ...

    def discard(self, id: int, value: ValueIn) -> None:
        """Forget a value.  If it raises, the filter does not remove the value."""
        ...


@runtime_checkable
class Source(Observer[ValueIn], Protocol[ValueIn, KeyIn]):
    """A rule that tests values."""

    def matching(self, key: KeyIn, start: int) -> Iterable[int]:
        """Return the ids, from `start` on, of the values that match `key`.

        They are ascending, and may come lazily.  The filter asks about each value and
        key once, as long as the key is cached, and takes O(ids) to add them to its
        bitmap.  A source that calls code of others must first copy what it iterates
        over, because that code may add and remove values.
        """
        ...


@runtime_checkable
class Index(Observer[ValueIn], Protocol[ValueIn, KeyIn]):
    """A rule that keeps posting lists, so that it need not test values.

    The filter keeps references to the posting lists of a key, and never changes one.
    An id must be in a posting list from its `add` to its `discard`, and not otherwise.
    """

    def posting_lists(self, key: KeyIn, start: int) -> Sequence[PostingList]:
        """Return the posting lists of `key` that had no ids before the value with the
        id `start` was added.

        Costs the filter O(1) for a single list, and otherwise O(new ids), or an OR of
        bitmaps if they are many.

        The filter keeps the lists that it got before, unless they are empty, so with
        these their union holds each value that matches.  Others of the key may be
        returned too, and empty ones.
        """
        ...


@runtime_checkable
class Declarations(Protocol[ValueIn, KeyIn]):
    """The part of a source, or of an index, that knows what its values declare.

    Optional: a filter needs it for what it says of its values, and to replace what one
    declares.  `explain` is called without its lock, the others under it.
    """

    def declared(self, value: ValueIn) -> tuple[Selector, ...]:
        """Return the selectors that `value` declares.

        Raises KeyError if it is absent.
        """
        ...

    def replace(
        self, old: int, id: int, value: ValueIn, selectors: Iterable[Selector | CompiledSelector | Matcher]
    ) -> None:
        """Give `value` a new id and other selectors.  If it raises, nothing changes."""
        ...

    def sizes(self) -> tuple[int, int, int]:
        """Return the number of different selectors, about the bytes of their texts, and
        of what finds them.
        """
        ...

    def explain(self, key: KeyIn, value: ValueIn) -> list[Explanation]:
        """Return, for each selector of `value`, whether it matches `key`, and why.

        Raises KeyError if the value is absent.
        """
        ...


class Predicate(Generic[Value, Key]):
    """The source that calls a predicate for each value."""

    def __init__(self, test: Callable[[Value, Key], object], values: Values[Value]) -> None:
        self._test = test
        self._values = values

    def add(self, id: int, value: Value, selectors: Iterable[Selector | CompiledSelector | Matcher]) -> None:
        """Refuse selectors."""
        _refuse(selectors)

    def discard(self, id: int, value: Value) -> None:
        """Do nothing: the values are those of the filter."""

    def clear(self) -> None:
        """Do nothing, as for each value."""

    def matching(self, key: Key, start: int) -> Iterator[int]:
        """Test each value from the id `start` on, and yield the ids that match."""
        # Copies, because the predicate may add and remove values.
        ids, values = self._values.since(start)
        untested = iter(values)
        try:
            yield from compress(ids, map(self._test, untested, repeat(key)))
        except Exception as error:
            _name(error, values[len(values) - length_hint(untested) - 1], key)
            raise


class GroupedPredicate(Generic[Value, Key]):
    """The source that calls a predicate for one value of each group."""

    def __init__(
        self, test: Callable[[Value, Key], object], values: Values[Value], group: Callable[[Value], Hashable]
    ) -> None:
        self._test = test
        self._values = values
        self._group = group
        self._members: dict[Hashable, PostingList] = {}  # group -> ids of its values; never empty

    def add(self, id: int, value: Value, selectors: Iterable[Selector | CompiledSelector | Matcher]) -> None:
        """Add the id to its group.  Refuses selectors."""
        _refuse(selectors)
        group = self._group(value)
        # The function may have added a value to the filter, which has this id now.
        if self._values.by_id.get(id, value) is not value:
            raise RuntimeError("another value was added while the group of this one was computed")
        self._members.setdefault(group, PostingList()).add(id)

    def clear(self) -> object:
        """Forget all groups, and return them."""
        members, self._members = self._members, {}
        return members

    def discard(self, id: int, value: Value) -> None:
        """Remove the id from its group."""
        group = self._group(value)
        # As in `add`; the other value may be of the same group.
        owner = self._values.by_id.get(id, value)
        if owner is not value and self._group(owner) == group:
            return
        members = self._members[group]
        members.discard(id)
        if not members:
            del self._members[group]

    def matching(self, key: Key, start: int) -> BitMap64:
        """Test one value of each group, and return the ids of the groups that match."""
        matched: list[Ids] = []
        for value, members in self._batches(start):
            try:
                matches = self._test(value, key)
            except Exception as error:
                _name(error, value, key)
                raise
            if matches:
                matched.append(members)
        return union(matched)

    def _batches(self, start: int) -> list[tuple[Value, Ids]]:
        """Return (one value, the ids from `start` on) for each group.

        A new key costs one step for each group, not for each value.
        """
        if start == 0:
            by_id = self._values.by_id
            # Copies, because the predicate may add and remove values.
            return [(by_id[members.min()], members.copy()) for members in self._members.values()]
        fresh: dict[Hashable, tuple[Value, PostingList]] = {}
        for id, value in zip(*self._values.since(start), strict=True):
            fresh.setdefault(self._group(value), (value, PostingList()))[1].add(id)
        return [(value, members.ids) for value, members in fresh.values()]


_SHORT: Final = reprlib.Repr()  # it also survives a __repr__ that raises
_SHORT.maxstring = _SHORT.maxother = 80


def _refuse(selectors: Iterable[Selector | CompiledSelector | Matcher]) -> None:
    if tuple(selectors):
        raise no_selectors()


def no_selectors() -> ValueError:
    """Return the error for selectors that nobody reads."""
    return ValueError("a predicate takes no selectors; use a SelectorIndex as the source")


def omitted(value: object) -> TypeError:
    """Return the error for a value without the selectors that its index needs."""
    return TypeError(f"the selectors of {brief(value)} are missing; if it declares none, pass []")


_DEFERRED: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def checked(function: object, arguments: int = 2) -> Callable[..., Any]:
    """Return a predicate, or the function of a group, which has one argument.

    Raises TypeError if it is none.
    """
    if isinstance(function, type) and (issubclass(function, Container) or hasattr(function, "discard")):
        raise TypeError(f"{function.__name__} is a class; pass an instance of it")
    if isinstance(function, Container):
        raise TypeError(f"{brief(function)} is a filter itself: add the values to it, without a SkipFilter")
    what = "predicate, such as lambda value, key: ..." if arguments == 2 else "function of a value"
    if not callable(function):
        raise TypeError(f"{brief(function)} is no {what}" + (", and no index" if arguments == 2 else ""))
    if any(ask(function) or ask(type(function).__call__) for ask in _DEFERRED):
        raise TypeError(f"{brief(function)} is no {what}: what it returns is true whatever it computes")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return function
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise TypeError(f"{brief(function)} is no {what}: {error}") from None
    return function


def _name(error: Exception, value: object, key: object) -> None:
    """Add to the error of a predicate what it was called with."""
    error.add_note(f"the predicate was called with value {_SHORT.repr(value)} and key {_SHORT.repr(key)}")

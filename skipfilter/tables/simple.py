"""Tables that need no structure: a hash for exact topics, one place for everything, a list for what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.matchers import Everything, Exact
from skipfilter.tables.base import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from skipfilter.matchers import Matcher


class ExactTable:
    """Exact topics in a hash; a question costs one look.  All its mutable state is `_places`, by topic."""

    def __init__(self) -> None:
        self.verified = 0
        self.compile: Callable[[str], Matcher] = Exact
        self._places: dict[str, Place] = {}

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is Exact

    def place(self, matcher: Matcher) -> Place:
        place = self._places.get(matcher.pattern)
        if place is None:
            place = self._places[matcher.pattern] = Place(self, matcher.pattern)
        return place

    def remove(self, place: Place) -> None:
        del self._places[place.way]

    def find(self, topic: str) -> Iterable[Place]:
        place = self._places.get(topic)
        return () if place is None else (place,)

    def places(self) -> Iterable[Place]:
        return self._places.values()

    def _check(self) -> None:
        assert all(place.way == topic for topic, place in self._places.items())


class EverythingTable:
    """One place.  All its mutable state is whether it is there."""

    def __init__(self) -> None:
        self.verified = 0
        self.compile: Callable[[str], Matcher] = Everything
        self._places: list[Place] = []

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is Everything

    def place(self, matcher: Matcher) -> Place:
        if not self._places:
            self._places.append(Place(self, None))
        return self._places[0]

    def remove(self, place: Place) -> None:
        self._places.remove(place)

    def find(self, topic: str) -> Iterable[Place]:
        return self._places

    def places(self) -> Iterable[Place]:
        return self._places

    def _check(self) -> None:
        assert len(self._places) <= 1


class LinearTable:
    """Any matchers, each asked about each topic: a question costs O(distinct patterns).

    All its mutable state is `_places`, by matcher, and `verified`.
    """

    def __init__(self, compile: Callable[[str], Matcher]) -> None:
        self.verified = 0
        self.compile = compile
        self._places: dict[Matcher, Place] = {}

    def accepts(self, matcher: Matcher) -> bool:
        # What makes them may be a function, which does not say of what type they are.
        return type(matcher) is self.compile or matcher == self.compile(matcher.pattern)

    def place(self, matcher: Matcher) -> Place:
        place = self._places.get(matcher)
        if place is None:
            place = self._places[matcher] = Place(self, matcher)
        return place

    def remove(self, place: Place) -> None:
        del self._places[place.way]

    def find(self, topic: str) -> Iterable[Place]:
        self.verified += len(self._places)
        # From a snapshot: a matcher of somebody's own may add and remove values.
        return [place for matcher, place in list(self._places.items()) if matcher.match(topic)]

    def places(self) -> Iterable[Place]:
        return self._places.values()

    def _check(self) -> None:
        assert all(place.way == matcher for matcher, place in self._places.items())

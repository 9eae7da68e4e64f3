"""Skip filter: a SkipFilter whose values are subscriptions and whose keys are topics.

    subscribe("forex.*", "ann")  = 0  ─►  SelectorIndex  forex.* ─► {0}   #.usd ─► {1}
    subscribe("#.usd", "bob")    = 1                               │
    lookup("forex.usd")               ─►  SkipFilter     forex.usd ─► {0, 1}, cursor = 2

The index has a bitmap for each pattern, and finds the patterns that match a topic with
a trie.  The filter caches the union of their bitmaps, for topics that repeat.

    subscribe            O(|pattern|)
    unsubscribe          O(|pattern| + log n), whatever is cached
    lookup               O(matches) for a cached topic; a walk of the trie for a new
                         one, and after new subscriptions
    matches              O(1) for a cached topic that matches
    memory               an id in the pattern's bitmap, and in that of each cached topic
                         that it matches

Source: K. Burns, skipfilter (Go), 2022, over the index of skipfilter/topics/index.py.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Generic

from skipfilter.core.filter import SkipFilter
from skipfilter.engines.base import Value
from skipfilter.errors import not_copied
from skipfilter.topics.index import SelectorIndex

if TYPE_CHECKING:
    from skipfilter.topics.words import Grammar


class SkipFilterEngine(Generic[Value]):
    """Subscriptions in a SkipFilter that caches up to `capacity` topics.

    Any thread may call any method.  A call holds the filter's lock, so only one runs at
    a time.
    """

    def __init__(self, grammar: Grammar, *, capacity: int = 100_000) -> None:
        self._matcher_type = grammar.name
        self._index = SelectorIndex(grammars=[grammar], max_length=sys.maxsize)  # the grammar has limits of its own
        # Its values are (handle, value).
        self._filter: SkipFilter[tuple[int, Value], str] = SkipFilter(self._index, capacity=capacity)
        self._lock = threading.Lock()  # held by writers; guards the next two attributes
        self._values: dict[int, Value] = {}  # by handle
        self._next = 0  # the next handle

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription.

        Takes O(|pattern|).
        """
        with self._lock:
            handle = self._next
            self._filter.add((handle, value), [(self._matcher_type, pattern)])
            self._next += 1
            self._values[handle] = value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.

        Takes O(|pattern| + log n) for n subscriptions, however many topics are cached.
        """
        with self._lock:
            self._filter.remove((handle, self._values.pop(handle)))

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(matches) if the topic is cached, which it is when it comes again, and a
        test for each pattern that is new since its last lookup.  Otherwise, or if there
        are many new patterns, the trie is walked, too.
        """
        return {value for _, value in self._filter.match_any(topic)}

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes O(1) if a match is cached, and otherwise as long as `lookup`, without the
        matches.
        """
        return self._filter.matches(topic)

    def __len__(self) -> int:
        return len(self._filter)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        self._filter._check()
        self._index._check()
        assert set(self._filter) == set(self._values.items())
        assert all(handle < self._next for handle in self._values)

"""Skip filter: the library's own SkipFilter, whose values are the subscriptions and whose keys are the topics.

    subscribe("forex.*", "ann")  = 0  ─►  SelectorIndex   forex.* ─► {0}   #.usd ─► {1}
    subscribe("#.usd", "bob")    = 1                                │
    lookup("forex.usd")               ─►  SkipFilter      forex.usd ─► {0, 1}, ids below 2 decided

The index finds the bitmaps of a topic's patterns by a trie; the filter keeps their union for the topics that
come back.

    subscribe              O(|pattern|)
    unsubscribe            O(|pattern| + log n), whatever is cached
    lookup                 O(matches) for a topic asked before; a walk of the trie for a new one
    matches                O(1) for a topic asked before that somebody wants
    memory                 an id in the pattern's bitmap, and one in that of each cached topic

Source: K. Burns, skipfilter (Go), 2022, over the index of skipfilter/index.py.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Generic

from skipfilter.container import SkipFilter
from skipfilter.engines.base import Value
from skipfilter.errors import not_copied
from skipfilter.index import SelectorIndex

if TYPE_CHECKING:
    from skipfilter.words import Grammar


class SkipFilterEngine(Generic[Value]):
    """Any thread may call any method; the filter's lock is held for each call.

    All its mutable state is the filter, whose values are (handle, value), and its index; the value of each handle;
    and the next handle.  The last two are the writers', and change with `_lock` held.
    """

    def __init__(self, grammar: Grammar, *, capacity: int = 100_000) -> None:
        self._matcher_type = grammar.name
        self._index = SelectorIndex(max_length=sys.maxsize)  # the grammar's bounds are those of all engines
        self._filter: SkipFilter[tuple[int, Value], str] = SkipFilter(self._index, capacity=capacity)
        self._values: dict[int, Value] = {}
        self._next = 0
        self._lock = threading.Lock()

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """O(|pattern|)."""
        with self._lock:
            handle = self._next
            self._filter.add((handle, value), [(self._matcher_type, pattern)])
            self._next += 1
            self._values[handle] = value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """O(|pattern| + log n)."""
        with self._lock:
            self._filter.remove((handle, self._values.pop(handle)))

    def lookup(self, topic: str) -> set[Value]:
        """O(matches) for a topic asked before; a walk of the trie for a new one."""
        return {value for _, value in self._filter.match_any(topic)}

    def matches(self, topic: str) -> bool:
        """O(1) for a topic asked before that somebody wants; a walk of the trie for a new one."""
        return self._filter.matches(topic)

    def __len__(self) -> int:
        return len(self._filter)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        self._filter._check()
        self._index._check()
        assert set(self._filter) == set(self._values.items())
        assert all(handle < self._next for handle in self._values)

"""Trie: patterns that begin alike share the nodes of their beginning, and a topic walks all its branches at once.

    0 forex.*   1 stock.nyse   2 index   3 stock.*

    root ─forex─► · ─one──► {0}            lookup("stock.nyse")   root
     │                                         after stock        {stock}
     ├─stock─► · ─nyse─► {1}                   after nyse         {stock.nyse, stock.one}  = 1, 3
     │         └─one──► {3}
     └─index─► {2}

    subscribe, unsubscribe   O(|pattern|)
    lookup                   O(words * nodes reached) + the values found, and never exponential
    matches                  as lookup, but it ends at the first `#` that has everything it needs
    memory                   O(words) nodes a pattern at most, as much less as beginnings are shared

Source: RabbitMQ, Very fast and scalable topic routing, 2010; T. Treat, Fast Topic Matching, 2016.  Both
backtrack; `skipfilter.trie` walks a set of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from skipfilter.engines.base import Value, count_in, count_out
from skipfilter.errors import not_copied
from skipfilter.trie import Trie, find_all, find_simple

if TYPE_CHECKING:
    from skipfilter.words import Grammar, Words


class TrieEngine(Generic[Value]):
    """One thread at a time, or the caller's lock.

    All its mutable state is `trie`, whose patterns stand for counts of values; the pattern and the value of
    each handle; and the next handle.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.trie: Trie[str, dict[Value, int]] = Trie()
        self._grammar = grammar
        self._subscriptions: dict[int, tuple[Words, Value]] = {}
        self._next = 0

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """O(|pattern|)."""
        words = self._grammar.parse_pattern(pattern)
        hash(value)
        node = self.trie.node(words)
        if node.value is None:
            node.value = {}
        count_in(node.value, value)
        handle = self._next
        self._next += 1
        self._subscriptions[handle] = words, value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """O(|pattern|)."""
        words, value = self._subscriptions.pop(handle)
        node = self.trie.node(words)
        assert node.value is not None
        count_out(node.value, value)
        if not node.value:
            node.value = None
            self.trie.prune(words)

    def lookup(self, topic: str) -> set[Value]:
        """O(words * nodes reached), and the values found."""
        grammar, trie = self._grammar, self.trie
        find = find_all if trie.inner_manys else find_simple  # as Trie.find, which would be one call more
        found = find(trie.root, grammar.parse_topic(topic), grammar.hides(topic))
        return set(found[0]) if len(found) == 1 else set().union(*found)

    def matches(self, topic: str) -> bool:
        """O(words * nodes reached)."""
        return self.trie.finds(self._grammar.parse_topic(topic), hidden=self._grammar.hides(topic))

    def __len__(self) -> int:
        return len(self._subscriptions)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        self.trie._check()
        counted: dict[Words, dict[Value, int]] = {}
        for words, value in self._subscriptions.values():
            count_in(counted.setdefault(words, {}), value)
        posting_lists = [((), self.trie.root), *self.trie.nodes()]
        assert counted == {words: node.value for words, node in posting_lists if node.value is not None}
        assert all(handle < self._next for handle in self._subscriptions)

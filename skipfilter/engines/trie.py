"""Trie: patterns that begin alike share nodes; a lookup walks all branches at once.

    0 forex.*   1 stock.nyse   2 index   3 stock.*

    root ─forex─► · ─one──► {0}         lookup("stock.nyse")   root
     │                                      after stock        {stock}
     ├─stock─► · ─nyse─► {1}                after nyse         {stock.nyse, stock.one}
     │         └─one──► {3}                 found              1, 3
     └─index─► {2}

    subscribe, unsubscribe O(|pattern|)
    lookup                 O(words * nodes reached) + the values found
    matches                as lookup, but stops at the first `#` that ends its pattern
    memory                 up to a node for each word of each pattern, fewer if patterns
                           begin alike

Source: RabbitMQ, Very fast and scalable topic routing, 2010; T. Treat, Fast Topic
Matching, 2016.  Both backtrack.  `skipfilter.topics.trie` walks a set of nodes instead,
so a lookup is never exponential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from skipfilter.engines.base import Value, count_in, count_out
from skipfilter.errors import not_copied
from skipfilter.topics.trie import Trie, find_all, find_simple

if TYPE_CHECKING:
    from skipfilter.topics.words import Grammar, Words


class TrieEngine(Generic[Value]):
    """Subscriptions in a trie.

    One thread at a time.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.trie: Trie[str, dict[Value, int]] = Trie()  # pattern -> counts by value
        self._grammar = grammar
        self._subscriptions: dict[int, tuple[Words, Value]] = {}  # by handle
        self._next = 0  # the next handle

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription, and the nodes of its pattern if they are new.

        Takes O(|pattern|).
        """
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
        """End a subscription, and remove the nodes that only it needed.

        Takes O(|pattern|).
        """
        words, value = self._subscriptions.pop(handle)
        node = self.trie.node(words)
        assert node.value is not None
        count_out(node.value, value)
        if not node.value:
            node.value = None
            self.trie.prune(words)

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(words * nodes reached), and the values found.
        """
        grammar, trie = self._grammar, self.trie
        find = find_all if trie.inner_manys else find_simple  # as Trie.find, which is one call more
        found = find(trie.root, grammar.parse_topic(topic), grammar.hides(topic))
        return set(found[0]) if len(found) == 1 else set().union(*found)

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes O(words * nodes reached); stops at the first `#` that ends its pattern.
        """
        return self.trie.finds(self._grammar.parse_topic(topic), hidden=self._grammar.hides(topic))

    def __len__(self) -> int:
        return len(self._subscriptions)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        self.trie._check()
        counted: dict[Words, dict[Value, int]] = {}
        for words, value in self._subscriptions.values():
            count_in(counted.setdefault(words, {}), value)
        posting_lists = [((), self.trie.root), *self.trie.nodes()]
        assert counted == {words: node.value for words, node in posting_lists if node.value is not None}
        assert all(handle < self._next for handle in self._subscriptions)

"""Lazy DFA: caches the set of trie nodes that each word leads to.

Patterns  a.b   a.*   #.b

    state                    nodes                    next             result
    s0                       {root, #}                a ► s1  other ► s3
    s1   after a             {a, #}                   b ► s2  other ► s4
    s2   after a.b           {a.b, a.*, #.b, #}                        (a.b) (a.*) (#.b)
    s3   after any other     {#}                      b ► s5  other ► s3

A state is made when a topic first reaches it.  All words that no child of its nodes has
lead to `other`, so words that occur in no pattern cost no memory.

    subscribe, unsubscribe O(|pattern|), and all states if the trie's nodes change
    lookup                 O(words) + the values found, if the states are there; else as
                           a trie (a word that leads to `other` is looked up in each
                           node)
    memory                 up to `budget` states, with their nodes and followed words

If subscribers come and go but patterns stay, no state is lost: a result carries the
number of changes so far, and is collected again from the state's nodes if that has
grown.

Source: the automaton of RabbitMQ's Very fast and scalable topic routing, 2010, built on
the fly and dropped if it is too large, as in K. Thompson's Regular Expression Search
Algorithm, 1968.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias

from skipfilter.engines.base import Value
from skipfilter.engines.trie import TrieEngine
from skipfilter.errors import not_copied
from skipfilter.trie import begin, step

if TYPE_CHECKING:
    from skipfilter.trie import Node
    from skipfilter.words import Grammar

_Frontier: TypeAlias = "dict[Node[str, dict[Value, int]], bool]"


class _State(Generic[Value]):
    """A set of trie nodes that some topics lead to, and the states after the
    next word.
    """

    __slots__ = ("changes", "frontier", "hidden", "next", "other", "result")

    def __init__(self, frontier: _Frontier[Value], hidden: bool) -> None:
        self.frontier = frontier
        self.hidden = hidden  # no leading wildcard matches the topics that begin here
        self.next: dict[str, _State[Value]] = {}  # after words of the nodes' children
        self.other: _State[Value] | None = None  # after any other word
        self.result: frozenset[Value] = frozenset()
        self.changes = -1  # the number of changes at which `result` was right

    def has_settled(self) -> bool:
        """Return whether some pattern matches already, whatever words follow."""
        return any(stays and node.value is not None for node, stays in self.frontier.items())


class LazyDfa(Generic[Value]):
    """Subscriptions with a cache of states, up to `budget`.

    One thread at a time: lookups change the cache too.
    """

    def __init__(self, grammar: Grammar, *, budget: int = 10_000) -> None:
        if budget < 1:
            raise ValueError(f"budget must be at least 1, not {budget}")
        self._grammar = grammar
        self._budget = budget
        self._engine: TrieEngine[Value] = TrieEngine(grammar)
        self._states: dict[frozenset[Node[str, dict[Value, int]]], _State[Value]] = {}
        self._beginnings: dict[bool, _State[Value]] = {}  # by whether the topic is hidden
        self._made_at = 0  # `trie.changes` when the states were made
        # One number for all nodes.  A number for each node would start again if a
        # pattern is removed and comes back.
        self._changes = 0

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription.  Takes O(|pattern|)."""
        handle = self._engine.subscribe(pattern, value)
        self._changes += 1
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.  Takes O(|pattern|)."""
        self._engine.unsubscribe(handle)
        self._changes += 1

    def lookup(self, topic: str) -> set[Value]:
        """Return the values that match.

        Takes O(words) and the values found, if the states are there.
        """
        words = self._grammar.parse_topic(topic)
        state = self._begin(topic)
        for word in words:
            state = state.next.get(word) or self._follow(state, word)
        if state.changes != self._changes:
            state.result = frozenset().union(*[node.value for node in state.frontier if node.value is not None])
            state.changes = self._changes
        return set(state.result)

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches; stops at the first `#` that ends
        one.
        """
        words = self._grammar.parse_topic(topic)
        state = self._begin(topic)
        for word in words:
            if state.has_settled():
                return True
            state = state.next.get(word) or self._follow(state, word)
        return any(node.value is not None for node in state.frontier)

    def __len__(self) -> int:
        return len(self._engine)

    def _begin(self, topic: str) -> _State[Value]:
        """Return the state before the first word; drop all states if nodes have
        changed.
        """
        trie = self._engine.trie
        if self._made_at != trie.changes:
            self._drop()
            self._made_at = trie.changes
        hidden = self._grammar.hides(topic)
        state = self._beginnings.get(hidden)
        if state is None:
            state = self._beginnings[hidden] = _State(begin(trie.root, hidden), hidden)
        return state

    def _follow(self, state: _State[Value], word: str) -> _State[Value]:
        """Return the state that `word` leads to, and store it in `state`."""
        known = any(word in node.words for node in state.frontier)
        if not known and state.other is not None:
            return state.other
        frontier = step(state.frontier, word, state.hidden)
        key = frozenset(frontier)
        reached = self._states.get(key)
        if reached is None:
            if len(self._states) >= self._budget:
                # This lookup continues from `reached`; no state leads to `state` any
                # more.
                self._drop()
            reached = self._states[key] = _State(frontier, hidden=False)
        if known:
            state.next[word] = reached
        else:
            state.other = reached
        return reached

    def _drop(self) -> None:
        self._states.clear()
        self._beginnings.clear()

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        self._engine._check()
        assert len(self._states) <= self._budget
        if self._made_at != self._engine.trie.changes:
            return  # the states are dropped before the next use
        for hidden, state in self._beginnings.items():
            assert state.hidden == hidden
            assert state.frontier == begin(self._engine.trie.root, hidden)
        for nodes, state in self._states.items():
            assert not state.hidden
            assert state.frontier.keys() == nodes
        for state in (*self._beginnings.values(), *self._states.values()):
            assert state.next.keys() <= {word for node in state.frontier for word in node.words}
            for word, reached in state.next.items():
                assert reached.frontier == step(state.frontier, word, state.hidden)
            if state.changes == self._changes:
                assert state.result == {value for node in state.frontier for value in node.value or ()}

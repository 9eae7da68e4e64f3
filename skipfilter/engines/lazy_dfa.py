"""Lazy DFA: a trie, with a cache of the sets of nodes that words lead to.

Patterns  a.b   a.*   #.b

    state                    nodes                    next             result
    s0                       {root, #}                a ► s1  other ► s3
    s1   after a             {a, #}                   b ► s2  other ► s4
    s2   after a.b           {a.b, a.*, #.b, #}                        (a.b) (a.*) (#.b)
    s3   after any other     {#}                      b ► s5  other ► s3

A state is a set of trie nodes.  It is made when a topic first reaches it.  If no child
of its nodes has the next word, that word leads to the state `other`.  So words that
occur in no pattern cost no memory.

    subscribe, unsubscribe O(|pattern|); all states are dropped if the trie's nodes
                           change
    lookup                 O(words) + the values found, if the states exist; otherwise
                           as in a trie.  A word that leads to `other` is looked up in
                           each node of its state.
    memory                 up to `budget` states, with their nodes and the words that
                           topics have followed

If subscribers come and go but the patterns stay, all states stay, too.  A state keeps
its result with the number of changes so far, and collects the result again if there
were more changes since.

Source: the automaton of RabbitMQ, Very fast and scalable topic routing, 2010.  It is
built on the fly, and dropped if it is too large, as in K. Thompson, Regular Expression
Search Algorithm, 1968.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias

from skipfilter.engines.base import Value
from skipfilter.engines.trie import TrieEngine
from skipfilter.errors import not_copied
from skipfilter.topics.trie import begin, step

if TYPE_CHECKING:
    from skipfilter.topics.trie import Node
    from skipfilter.topics.words import Grammar

_Frontier: TypeAlias = "dict[Node[str, dict[Value, int]], bool]"


class _State(Generic[Value]):
    """A set of trie nodes that topics lead to, and the states after the next word."""

    __slots__ = ("changes", "frontier", "hidden", "next", "other", "result")

    def __init__(self, frontier: _Frontier[Value], hidden: bool) -> None:
        self.frontier = frontier  # the nodes, as in `skipfilter.topics.trie`
        self.hidden = hidden  # the first state of topics that no leading wildcard matches
        self.next: dict[str, _State[Value]] = {}  # the states after words of children
        self.other: _State[Value] | None = None  # the state after any other word
        self.result: frozenset[Value] = frozenset()  # the values of topics that end here
        self.changes = -1  # the engine's number of changes when `result` was collected

    def has_settled(self) -> bool:
        """Return whether a pattern matches already, whatever words follow."""
        return any(stays and node.value is not None for node, stays in self.frontier.items())


class LazyDfa(Generic[Value]):
    """Subscriptions in a trie, with a cache of up to `budget` states.

    One thread at a time, because lookups change the cache, too.  Raises ValueError if
    `budget` is below 1.
    """

    def __init__(self, grammar: Grammar, *, budget: int = 10_000) -> None:
        if budget < 1:
            raise ValueError(f"budget must be at least 1, not {budget}")
        self._grammar = grammar
        self._budget = budget
        self._engine: TrieEngine[Value] = TrieEngine(grammar)
        # By their nodes; without the states before the first word.
        self._states: dict[frozenset[Node[str, dict[Value, int]]], _State[Value]] = {}
        # The states before the first word, by whether the topic is hidden.
        self._beginnings: dict[bool, _State[Value]] = {}
        self._made_at = 0  # `trie.changes` when the states were made
        # How often subscriptions have changed.  It is one number for all nodes: the
        # number of a single node would start again if its pattern is removed and comes
        # back.
        self._changes = 0

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription.

        Takes O(|pattern|).  The states are dropped before the next lookup if the
        pattern added nodes to the trie.
        """
        handle = self._engine.subscribe(pattern, value)
        self._changes += 1
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.

        Takes O(|pattern|).  The states are dropped before the next lookup if nodes left
        the trie.
        """
        self._engine.unsubscribe(handle)
        self._changes += 1

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(words), and the values found, if the topic leads to known states only.
        Otherwise it costs what it costs in a trie, or a little more.
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
        """Return whether any subscription matches `topic`.

        Takes O(words) if the topic leads to known states only; stops at the first `#`
        that ends its pattern.
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
        """Return the state before the first word of `topic`.

        Drops all states first if nodes came or went since they were made.
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
        # 1. Any other word: after the first of them, the state is known.
        known = any(word in node.words for node in state.frontier)
        if not known and state.other is not None:
            return state.other
        # 2. The set of nodes after the word.  If other words or topics have led to the
        # same set before, it has a state.
        frontier = step(state.frontier, word, state.hidden)
        key = frozenset(frontier)
        reached = self._states.get(key)
        if reached is None:
            if len(self._states) >= self._budget:
                # No state leads to `state` any more, but this lookup can continue from
                # `reached`.
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
            return  # the states will be dropped before they are used
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

"""Lazy DFA: remember which set of trie nodes each word led to, so that a topic costs a dict lookup a word.

Patterns  a.b   a.*   #.b

    state                    is                        next                 result
    s0                       {root, #}                 a ► s1   other ► s3
    s1   after a             {a, #}                    b ► s2   other ► s4
    s2   after a.b           {a.b, a.*, #.b, #}                             (a.b)  (a.*)  (#.b)
    s3   after any other     {#}                       b ► s5   other ► s3

A state is made when a topic first reaches it.  `other` is where all the words lead that no child of its nodes
has: what never stood in a pattern costs no memory.

    subscribe, unsubscribe   O(|pattern|), and every state where the trie's nodes change
    lookup                   O(words) + the values found, once the way is known; as a trie and more before
                             (a word that goes to `other` costs a look at each node of its state)
    memory                   up to `budget` states, with the nodes of each, and the words that were followed from it

Subscribers that come and go to patterns that stay cost no state: a result carries the number of changes so far,
and is gathered anew from the state's nodes if there has been one since.

Source: the automaton of RabbitMQ's Very fast and scalable topic routing, 2010, built as K. Thompson's Regular
Expression Search Algorithm, 1968, would: on the fly, and dropped when it is too large.
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
    """A set of trie nodes that some topics lead to, and where the next word leads.

    `next` has the words of its nodes' children that were followed; `other`, once followed, goes for all words of
    no child.  `hidden` is the beginning of the topics that no leading wildcard matches.  `result` was right after
    `changes` changes.
    """

    __slots__ = ("changes", "frontier", "hidden", "next", "other", "result")

    def __init__(self, frontier: _Frontier[Value], hidden: bool) -> None:
        self.frontier = frontier
        self.hidden = hidden
        self.next: dict[str, _State[Value]] = {}
        self.other: _State[Value] | None = None
        self.result: frozenset[Value] = frozenset()
        self.changes = -1

    def has_settled(self) -> bool:
        """Whether something is found already, whatever words follow."""
        return any(stays and node.value is not None for node, stays in self.frontier.items())


class LazyDfa(Generic[Value]):
    """One thread at a time, or the caller's lock: lookups change it too.

    All its mutable state is that of the trie's engine beneath; the states by their nodes, those before the first
    word by whether the topic is hidden, and what `trie.changes` was when they were made; and the number of
    changes so far.
    """

    def __init__(self, grammar: Grammar, *, budget: int = 10_000) -> None:
        if budget < 1:
            raise ValueError(f"budget must be at least 1, not {budget}")
        self._grammar = grammar
        self._budget = budget
        self._engine: TrieEngine[Value] = TrieEngine(grammar)
        self._states: dict[frozenset[Node[str, dict[Value, int]]], _State[Value]] = {}
        self._beginnings: dict[bool, _State[Value]] = {}
        self._made_at = 0
        # One number for all nodes: one for each would begin anew where a pattern is dropped and comes back.
        self._changes = 0

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """O(|pattern|)."""
        handle = self._engine.subscribe(pattern, value)
        self._changes += 1
        return handle

    def unsubscribe(self, handle: int) -> None:
        """O(|pattern|)."""
        self._engine.unsubscribe(handle)
        self._changes += 1

    def lookup(self, topic: str) -> set[Value]:
        """O(words) and the values found, where topics have gone the same way since the trie's nodes changed."""
        words = self._grammar.parse_topic(topic)
        state = self._begin(topic)
        for word in words:
            state = state.next.get(word) or self._follow(state, word)
        if state.changes != self._changes:
            state.result = frozenset().union(*[node.value for node in state.frontier if node.value is not None])
            state.changes = self._changes
        return set(state.result)

    def matches(self, topic: str) -> bool:
        """As lookup, up to the first state in which a `#` at the end of its pattern has all that it needs."""
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
        """The state that `word` leads to from `state`, from now on remembered there."""
        known = any(word in node.words for node in state.frontier)
        if not known and state.other is not None:
            return state.other
        frontier = step(state.frontier, word, state.hidden)
        key = frozenset(frontier)
        reached = self._states.get(key)
        if reached is None:
            if len(self._states) >= self._budget:
                # The lookup that came here goes on from `reached`; nothing leads to `state` any more.
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
        """Assert every invariant; for tests."""
        self._engine._check()
        assert len(self._states) <= self._budget
        if self._made_at != self._engine.trie.changes:
            return  # they are dropped before they are used
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

"""Snapshot trie: a trie never changes; a writer makes a new one and swaps the root.

    now ─► root ─a──► · ─b──► {0}    subscribe("a.c"):  now ─► root' ─a──► ·' ─c──► {1}
            └────c──► {2}                                       │          └──b──► {0} *
                                                                └────c──► {2} *
                                     * shared by both tries

A writer copies the nodes from the root to the changed posting list, and shares all
others.  Then it sets one reference.  This is the linearization point: the change
happens for all readers at once.  A reader reads the reference once, and walks a trie
that never changes.  So it needs no lock, and a snapshot costs nothing.

    subscribe, unsubscribe  O(words * log children), while holding the writers' lock
    lookup, matches         as in a trie, without a lock; the children of a node are a
                            hash trie, which is slower to read than a dict
    snapshot                O(1)

Source: A. Prokopec et al., Concurrent Tries with Efficient Non-Blocking Snapshots,
2012, as applied to subscriptions by T. Treat's matchbox (Breaking and Entering, 2016).
Their writers loop on compare-and-swap and need no lock.  Python has no
compare-and-swap, so writers here take a lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from skipfilter.engines.base import Value
from skipfilter.errors import names_extra, not_copied
from skipfilter.topics.trie import find_all, find_simple, finds
from skipfilter.topics.words import MANY, ONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from immutables import Map

    from skipfilter.topics.words import Grammar, Wildcard, Words


@dataclass(frozen=True, slots=True, eq=False)
class _Node(Generic[Value]):
    """An immutable node, with the attributes that a walk reads (`topics.trie`)."""

    words: Map[str, _Node[Value]]
    one: _Node[Value] | None = None
    many: _Node[Value] | None = None
    value: Map[Value, int] | None = None
    """The counts by value; None if no pattern ends here."""

    def child(self, word: str | Wildcard) -> _Node[Value] | None:
        """Return the child for a word or wildcard, or None."""
        if word is ONE:
            return self.one
        if word is MANY:
            return self.many
        assert isinstance(word, str)
        return self.words.get(word)

    def with_child(self, word: str | Wildcard, child: _Node[Value] | None) -> _Node[Value]:
        """Return a copy with another child for a word or wildcard; None removes it."""
        if word is ONE:
            return _Node(self.words, child, self.many, self.value)
        if word is MANY:
            return _Node(self.words, self.one, child, self.value)
        assert isinstance(word, str)
        words = self.words.delete(word) if child is None else self.words.set(word, child)
        return _Node(words, self.one, self.many, self.value)

    def with_value(self, value: Map[Value, int] | None) -> _Node[Value]:
        """Return a copy with another value."""
        return _Node(self.words, self.one, self.many, value)

    def leads_on(self) -> bool:
        """Return whether the node has a child."""
        return bool(self.words) or self.one is not None or self.many is not None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot(Generic[Value]):
    """The subscriptions of a SnapshotTrie at one moment.

    Any thread may call any method.
    """

    _grammar: Grammar
    _root: _Node[Value]
    _inner_manys: int  # the number of `many` nodes with a child
    _subscriptions: Map[int, tuple[str, Value]]  # (pattern, value) by handle

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`."""
        find = find_all if self._inner_manys else find_simple
        return set().union(*find(self._root, self._grammar.parse_topic(topic), self._grammar.hides(topic)))

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`."""
        return finds(self._root, self._grammar.parse_topic(topic), self._grammar.hides(topic))

    def subscriptions(self) -> list[tuple[str, Value]]:
        """Return (pattern, value) of each subscription, oldest first.

        Takes O(n log n) for n subscriptions.
        """
        return [subscription for _, subscription in sorted(self._subscriptions.items(), key=lambda item: item[0])]

    def topics(self, value: Value) -> list[str]:
        """Return the patterns of `value`, oldest first, without repeats.

        Takes O(n log n) for n subscriptions of all values.
        """
        return list(dict.fromkeys(pattern for pattern, other in self.subscriptions() if other == value))

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._subscriptions)


class SnapshotTrie(Generic[Value]):
    """Subscriptions in an immutable trie.

    Any thread may call any method.  Readers take no lock.  Writers take one, and wait
    only for each other.  This is safe if a thread can read an attribute while another
    thread sets it, and if several threads can read one `immutables.Map`.  CPython's
    global lock guarantees both.  A build without it is not tested.

    Raises ImportError if the package immutables is missing; version 0.21 has no wheel
    for CPython 3.14.

    >>> from skipfilter.topics import AMQP
    >>> readers = SnapshotTrie(AMQP)
    >>> handle = readers.subscribe("forex.*", "ann")
    >>> before = readers.snapshot()
    >>> readers.unsubscribe(handle)
    >>> readers.lookup("forex.usd"), before.lookup("forex.usd"), before.subscriptions()
    (set(), {'ann'}, [('forex.*', 'ann')])
    """

    def __init__(self, grammar: Grammar) -> None:
        with names_extra("SnapshotTrie", "snapshot"):
            from immutables import Map
        self._grammar = grammar
        self._empty: _Node[Value] = _Node(Map())  # stands for a node that does not exist
        self._none: Map[Value, int] = Map()  # the counts of a pattern without subscriptions
        self._lock = threading.Lock()  # held by writers; guards the next two attributes
        self._now: Snapshot[Value] = Snapshot(grammar, self._empty, 0, Map())
        self._next = 0  # the next handle

    __reduce__ = not_copied

    def snapshot(self) -> Snapshot[Value]:
        """Return the present subscriptions; later changes do not affect the result.

        Takes O(1).
        """
        return self._now

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription.

        Takes O(words * log children).
        """
        words = self._grammar.parse_pattern(pattern)
        hash(value)
        with self._lock:
            handle = self._next
            self._next += 1
            self._now = self._counted(words, value, 1, self._now._subscriptions.set(handle, (pattern, value)))
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.

        Takes O(words * log children).
        """
        with self._lock:
            pattern, value = self._now._subscriptions[handle]
            words = self._grammar.parse_pattern(pattern)
            self._now = self._counted(words, value, -1, self._now._subscriptions.delete(handle))

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(words * nodes reached), and the values found.
        """
        return self._now.lookup(topic)

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes O(words * nodes reached); stops at the first `#` that ends its pattern.
        """
        return self._now.matches(topic)

    def __len__(self) -> int:
        return len(self._now)

    def _counted(
        self, words: Words, value: Value, more: int, subscriptions: Map[int, tuple[str, Value]]
    ) -> Snapshot[Value]:
        """Return the present state after adding `more` to the count of `value`.

        The count is that of the pattern `words`; `subscriptions` are the subscriptions
        after the change.
        """
        # 1. The nodes from the root to that of the pattern; nodes that do not exist yet
        # are empty.
        path = [self._now._root]
        for word in words:
            path.append(path[-1].child(word) or self._empty)
        # 2. The new counts of the pattern.
        counts = path[-1].value or self._none
        count = counts.get(value, 0) + more
        counts = counts.set(value, count) if count else counts.delete(value)
        # 3. Copies of the nodes, from the bottom to the top, without nodes that are no
        # longer needed.
        node = path[-1].with_value(counts or None)
        inner_manys = self._now._inner_manys
        for depth in range(len(words), 0, -1):
            parent = path[depth - 1]
            stays = node.value is not None or node.leads_on()
            node = parent.with_child(words[depth - 1], node if stays else None)
            # The parent is a `many` node: it may have got its first child, or lost its
            # last.
            if depth > 1 and words[depth - 2] is MANY:
                inner_manys += node.leads_on() - parent.leads_on()
        return Snapshot(self._grammar, node, inner_manys, subscriptions)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        now = self._now
        counted: dict[Words, dict[Value, int]] = {}
        for handle, (pattern, value) in now._subscriptions.items():
            assert handle < self._next
            counts = counted.setdefault(self._grammar.parse_pattern(pattern), {})
            counts[value] = counts.get(value, 0) + 1
        found: dict[Words, dict[Value, int]] = {}
        inner_manys = 0
        below: list[tuple[Words, _Node[Value]]] = [((), now._root)]
        for words, node in below:
            assert node.value is not None or node.leads_on() or not words
            if node.value is not None:
                found[words] = dict(node.value)
            inner_manys += words[-1:] == (MANY,) and node.leads_on()
            steps: Iterable[str | Wildcard] = (*node.words, ONE, MANY)
            below += [((*words, word), child) for word in steps if (child := node.child(word)) is not None]
        assert found == counted
        assert inner_manys == now._inner_manys

"""Filter: does anyone want this topic?  Subscriptions that others cover cost nothing.

    subscribed    forex.*   stock.ibm   forex.eur   #.ibm
    in the engine forex.*                           #.ibm
    covered       forex.eur, by forex.*   stock.ibm, by #.ibm

A sender that only asks whether to send a topic at all needs no list of subscribers, so
a pattern is needless if another one matches all its topics.  A Filter hands its
patterns to an engine, but for these.  If a pattern comes that covers others, those
leave the engine.  If it goes, they come back, unless another pattern covers them.

    subscribe      a lookup in the engine, which finds the patterns that may cover the
                   new one, and a test for each pattern that has all its fixed words
    unsubscribe    as much for each pattern that it covered
    matches        as in the engine, with fewer patterns
    memory         beside the engine, a bit for each word of each pattern in it

Source: P. Hintjens, High-speed message matching (iMatix), for filtering and
subsumption.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from skipfilter.engines.trie import TrieEngine
from skipfilter.errors import not_copied
from skipfilter.topics.coverage import covers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from skipfilter.engines.base import Engine
    from skipfilter.topics.words import Grammar, Words


@dataclass(slots=True, eq=False)
class _Pattern:
    """A pattern with at least one subscription."""

    text: str
    words: Words
    id: int
    subscriptions: int = 0
    cover: _Pattern | None = None
    """The pattern that covers this one; None if this one is in the engine."""
    covered: dict[_Pattern, None] = field(default_factory=dict)
    """The patterns that this one is the cover of, as an ordered set."""
    handle: int = -1
    """The engine's handle, while the pattern is in the engine."""


class Filter:
    """Subscriptions without values, of which a topic needs only one.

    `make` makes the engine, which must accept any topic; a trie is fastest
    (bench/results/filtering.json).  One thread at a time.

    >>> from skipfilter.topics import AMQP
    >>> wanted = Filter(AMQP)
    >>> for pattern in ("forex.eur", "forex.*", "stock.ibm"):
    ...     handle = wanted.subscribe(pattern)
    >>> wanted.matches("forex.usd"), wanted.matches("stock.sun")
    (True, False)
    >>> len(wanted), wanted.covered
    (3, 1)
    """

    def __init__(self, grammar: Grammar, make: Callable[[Grammar], Engine[Any]] = TrieEngine) -> None:
        self._grammar = grammar
        # The patterns that no other covers; each is its own value.
        self._engine: Engine[_Pattern] = make(grammar)
        self._patterns: dict[Words, _Pattern] = {}
        self._by_id: dict[int, _Pattern] = {}
        # For each fixed word, the ids of the patterns in the engine that have it.
        self._having: dict[str, BitMap64] = {}
        self._subscriptions: dict[int, _Pattern] = {}  # by handle
        self._next = 0  # the next handle, and the next id

    __reduce__ = not_copied

    def subscribe(self, pattern: str) -> int:
        """Add a subscription, and return its handle, which is never used twice.

        Takes a lookup in the engine, and a test of coverage for each pattern there that
        has all fixed words of this one.  Raises PatternError if the grammar refuses the
        pattern.
        """
        words = self._grammar.parse_pattern(pattern)
        handle = self._next
        self._next += 1
        known = self._patterns.get(words)
        if known is None:
            known = _Pattern(pattern, words, handle)
            self._place(known)
            self._patterns[words] = self._by_id[handle] = known
        known.subscriptions += 1
        self._subscriptions[handle] = known
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.

        Takes O(|pattern|), and as long as `subscribe` for each pattern that it alone
        covered.  Raises KeyError, and changes nothing, if no subscription has this
        handle.
        """
        pattern = self._subscriptions.pop(handle)
        pattern.subscriptions -= 1
        if pattern.subscriptions:
            return
        del self._patterns[pattern.words], self._by_id[pattern.id]
        if pattern.cover is None:
            self._take_out(pattern)
        else:
            del pattern.cover.covered[pattern]
        for covered in pattern.covered:
            if pattern.cover is None:
                self._place(covered)
            else:  # coverage is transitive
                _cover(pattern.cover, covered)

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Costs as much as `matches` of the engine.  Raises TypeError if the topic is not
        a str.
        """
        return self._engine.matches(topic)

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._subscriptions)

    @property
    def covered(self) -> int:
        """The number of distinct patterns that cost nothing, because another one
        covers each.

        Takes O(1).
        """
        return len(self._patterns) - len(self._engine)

    # -- internals

    def _place(self, pattern: _Pattern) -> None:
        """Put a pattern under one that covers it, or into the engine."""
        pattern.cover = None
        words = pattern.words
        # 1. A pattern that covers this one matches all its topics: the engine finds it
        # by any of them.
        for known in self._engine.lookup(self._topic_of(words)):
            if covers(self._grammar, known.words, words):
                _cover(known, pattern)
                return
        # 2. This one counts, and replaces those that it covers.
        for known in self._candidates(words):
            if covers(self._grammar, words, known.words):
                self._take_out(known)
                _cover(pattern, known)
        pattern.handle = self._engine.subscribe(pattern.text, pattern)
        for word in _fixed_words(words):
            self._having.setdefault(word, BitMap64()).add(pattern.id)

    def _take_out(self, pattern: _Pattern) -> None:
        """Remove a pattern from the engine."""
        self._engine.unsubscribe(pattern.handle)
        for word in _fixed_words(pattern.words):
            self._having[word].discard(pattern.id)
            if not self._having[word]:
                del self._having[word]

    def _candidates(self, words: Words) -> list[_Pattern]:
        """Return the patterns in the engine that have all fixed words of `words`.

        A pattern without one of them has topics without it, too.
        """
        fixed = _fixed_words(words)
        if not fixed:
            return [known for known in self._patterns.values() if known.cover is None and known.words != words]
        rows = [self._having.get(word, BitMap64()) for word in fixed]
        return [self._by_id[id] for id in BitMap64.intersection(*rows)]

    def _topic_of(self, words: Words) -> str:
        """Return a topic of a pattern, with a word that no pattern has for each
        wildcard.
        """
        return self._grammar.separator.join(word if isinstance(word, str) else "\x00" for word in words)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        self._engine._check()
        counts = dict.fromkeys(self._patterns.values(), 0)
        for pattern in self._subscriptions.values():
            counts[pattern] += 1
        having: dict[str, set[int]] = {}
        for pattern, count in counts.items():
            assert pattern.subscriptions == count > 0
            assert self._patterns[pattern.words] is self._by_id[pattern.id] is pattern
            assert all(covered.cover is pattern for covered in pattern.covered)
            if pattern.cover is None:
                for word in _fixed_words(pattern.words):
                    having.setdefault(word, set()).add(pattern.id)
            else:
                assert pattern in pattern.cover.covered
                assert covers(self._grammar, pattern.cover.words, pattern.words)
        assert {word: set(ids) for word, ids in self._having.items()} == having
        assert len(self._by_id) == len(self._patterns)
        uncovered = [pattern for pattern in counts if pattern.cover is None]
        assert len(self._engine) == len(uncovered)
        for one in uncovered:
            assert not any(covers(self._grammar, one.words, known.words) for known in uncovered if known is not one)


def _cover(cover: _Pattern, covered: _Pattern) -> None:
    covered.cover = cover
    cover.covered[covered] = None


def _fixed_words(words: Iterable[object]) -> set[str]:
    return {word for word in words if isinstance(word, str)}

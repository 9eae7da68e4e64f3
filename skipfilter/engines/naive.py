"""Naive: a lookup tests each distinct pattern.

    a.*   {0: ann, 3: bob}         lookup("a.b")    a.*  yes    ann, bob
    a.b   {1: ann}                                  a.b  yes    ann
    c     {2: cid}                                  c    no

The tests compare the other engines with this one.  It is the fastest of all if there
are only a handful of patterns.

    subscribe, unsubscribe   O(|pattern|)
    lookup, matches          O(distinct patterns * |topic|)

Source: the hash map that message brokers begin with (WSO2, before 2015; T. Treat, Fast
Topic Matching, 2016).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Generic

from skipfilter.engines.base import Value
from skipfilter.errors import not_copied
from skipfilter.topics.words import match_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.topics.words import Grammar, Words


class Naive(Generic[Value]):
    """Subscriptions in a dict of patterns.

    One thread at a time.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        # Parsed pattern -> handle -> value; no inner dict is empty.
        self._patterns: dict[Words, dict[int, Value]] = {}
        self._pattern_of: dict[int, Words] = {}  # by handle
        self._handles = count()  # the handles that are not used yet

    __reduce__ = not_copied

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription.

        Takes O(|pattern|).
        """
        words = self._grammar.parse_pattern(pattern)
        hash(value)
        handle = next(self._handles)
        self._patterns.setdefault(words, {})[handle] = value
        self._pattern_of[handle] = words
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription, and remove its pattern if it was the last one.

        Takes O(|pattern|).
        """
        words = self._pattern_of.pop(handle)
        del self._patterns[words][handle]
        if not self._patterns[words]:
            del self._patterns[words]

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(distinct patterns * |topic|).
        """
        return {value for subscriptions in self._matching(topic) for value in subscriptions.values()}

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes O(distinct patterns * |topic|), and stops at the first that matches.
        """
        return any(True for _ in self._matching(topic))

    def __len__(self) -> int:
        return len(self._pattern_of)

    def _matching(self, topic: str) -> Iterator[dict[int, Value]]:
        """Iterate over the values by handle of each pattern that matches `topic`."""
        words = self._grammar.parse_topic(topic)
        hidden = self._grammar.hides(topic)
        for pattern, subscriptions in self._patterns.items():
            if match_words(pattern, words, hidden):
                yield subscriptions

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        assert all(self._patterns.values())
        assert {h: words for words, found in self._patterns.items() for h in found} == self._pattern_of

"""Inverted bitmap: the topics are known, and each has a bitmap of matches.

                   0 forex.*   1 stock.nyse  2 *.*  3 stock.*
    forex.usd          1            .          1       .    lookup("forex.usd") = {0, 2}
    stock.nasdaq       .            .          1       1
    stock.nyse         .            1          1       1

A bit is the handle of a subscription, so it is never used twice.

    subscribe            O(topics * |pattern|): every topic is tested
    unsubscribe          O(topics)
    add_topic            O(subscriptions * |topic|): every pattern is tested
    remove_topic         O(1)
    lookup               O(matches): one row
    memory               a row for each topic, of up to a bit for each subscription

Source: L. Svalgaard and B. Tveden, Directory Assistance System, 1980; P. Hintjens,
High-speed message matching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from pyroaring import BitMap64

from skipfilter.engines.base import Value
from skipfilter.errors import not_copied, not_text
from skipfilter.topics.words import match_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.words import Grammar, Words


class InvertedBitmap(Generic[Value]):
    """Subscriptions that are matched with a set of known topics.

    `topics` are the topics that a lookup may have at first; any other raises
    LookupError.  One thread at a time.
    """

    def __init__(self, grammar: Grammar, topics: Iterable[str]) -> None:
        self._grammar = grammar
        self._rows: dict[str, BitMap64] = {}  # topic -> matching handles
        # topic -> its words, and whether it is hidden from leading wildcards
        self._words: dict[str, tuple[list[str], bool]] = {}
        self._subscriptions: dict[int, tuple[Words, Value]] = {}  # by handle
        self._next = 0  # the next handle
        for topic in topics:
            self.add_topic(topic)

    __reduce__ = not_copied

    def add_topic(self, topic: str) -> None:
        """Add a topic that lookups may have; nothing happens if it is there.

        Takes O(subscriptions * |topic|), because every pattern is tested.  Raises
        TypeError if the topic is not a str.
        """
        if topic in self._rows:
            return
        words, hidden = self._words[topic] = self._grammar.parse_topic(topic), self._grammar.hides(topic)
        self._rows[topic] = BitMap64(
            [handle for handle, (pattern, _) in self._subscriptions.items() if match_words(pattern, words, hidden)]
        )

    def remove_topic(self, topic: str) -> None:
        """Remove a topic, so that a lookup of it is an error again.

        Takes O(1).  Raises LookupError if the topic is not there.
        """
        self._row(topic)
        del self._rows[topic], self._words[topic]

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription, and test its pattern against every topic.

        Takes O(topics * |pattern|).
        """
        words = self._grammar.parse_pattern(pattern)
        hash(value)
        handle = self._next
        self._next += 1
        for topic, row in self._rows.items():
            if match_words(words, *self._words[topic]):
                row.add(handle)
        self._subscriptions[handle] = words, value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription, and clear its bit in every row.

        Takes O(topics).
        """
        del self._subscriptions[handle]
        for row in self._rows.values():
            row.discard(handle)

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(matches).  Raises LookupError if the topic is not known.
        """
        subscriptions = self._subscriptions
        return {subscriptions[handle][1] for handle in self._row(topic)}

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes O(1).  Raises LookupError if the topic is not known.
        """
        return bool(self._row(topic))

    def __len__(self) -> int:
        return len(self._subscriptions)

    def _row(self, topic: str) -> BitMap64:
        if not isinstance(topic, str):
            raise not_text(topic)
        try:
            return self._rows[topic]
        except KeyError:
            raise LookupError(f"topic {topic!r} is not one of the {len(self._rows)} topics of this engine") from None

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        assert self._rows.keys() == self._words.keys()
        assert all(handle < self._next for handle in self._subscriptions)
        for topic, row in self._rows.items():
            matching = [h for h, (words, _) in self._subscriptions.items() if match_words(words, *self._words[topic])]
            assert row == BitMap64(matching)

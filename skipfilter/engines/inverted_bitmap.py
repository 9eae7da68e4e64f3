"""Inverted bitmap: topics are known in advance, and each has a bitmap of matches.

                   0 forex.*   1 stock.nyse  2 *.*  3 stock.*
    forex.usd          1            .          1       .    lookup("forex.usd") = {0, 2}
    stock.nasdaq       .            .          1       1
    stock.nyse         .            1          1       1

A bit is the handle of a subscription, so it is never used twice.

    subscribe            O(topics * |pattern|): every topic is tested
    unsubscribe          O(topics)
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
from skipfilter.words import match_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.words import Grammar


class InvertedBitmap(Generic[Value]):
    """Subscriptions that are matched with a fixed set of topics.

    `topics` are all topics that a lookup may have; any other raises LookupError.  One
    thread at a time.
    """

    def __init__(self, grammar: Grammar, topics: Iterable[str]) -> None:
        self._grammar = grammar
        self._rows = {topic: BitMap64() for topic in topics}  # topic -> matching handles
        # topic -> its words, and whether it is hidden from leading wildcards
        self._words = {topic: (grammar.parse_topic(topic), grammar.hides(topic)) for topic in self._rows}
        self._values: dict[int, Value] = {}  # by handle
        self._next = 0  # the next handle

    __reduce__ = not_copied

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
        self._values[handle] = value
        return handle

    def unsubscribe(self, handle: int) -> None:
        """End a subscription, and clear its bit in every row.

        Takes O(topics).
        """
        del self._values[handle]
        for row in self._rows.values():
            row.discard(handle)

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of the subscriptions that match `topic`.

        Takes O(matches).  Raises LookupError if the engine was made without this topic.
        """
        values = self._values
        return {values[handle] for handle in self._row(topic)}

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes O(1).  Raises LookupError if the engine was made without this topic.
        """
        return bool(self._row(topic))

    def __len__(self) -> int:
        return len(self._values)

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
        assert all(handle < self._next for handle in self._values)
        for row in self._rows.values():
            assert set(row) <= self._values.keys()

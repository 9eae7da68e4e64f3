"""AMQP binding patterns and MQTT topic filters, in a trie of their words (see `skipfilter.trie`).

A topic costs O(words * nodes that its beginning reaches).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.matchers import Amqp, Mqtt
from skipfilter.tables.base import Place
from skipfilter.trie import Trie
from skipfilter.words import AMQP, MQTT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from skipfilter.matchers import Matcher
    from skipfilter.words import Grammar


class WordTable:
    """The patterns of one grammar.  All its mutable state is `_trie`; a place's way is the words of its pattern."""

    def __init__(self, grammar: Grammar, compile: Callable[[str], Amqp | Mqtt]) -> None:
        self.verified = 0
        self.compile: Callable[[str], Matcher] = compile
        self._grammar = grammar
        self._trie: Trie[str, Place] = Trie()

    def accepts(self, matcher: Matcher) -> bool:
        return type(matcher) is self.compile

    def place(self, matcher: Matcher) -> Place:
        assert isinstance(matcher, Amqp | Mqtt)
        node = self._trie.node(matcher.words)
        if node.here is None:
            node.here = Place(self, matcher.words)
        return node.here

    def remove(self, place: Place) -> None:
        self._trie.node(place.way).here = None
        self._trie.prune(place.way)

    def find(self, topic: str) -> Iterable[Place]:
        return self._trie.find(self._grammar.parse_topic(topic), hidden=self._grammar.hides(topic))

    def places(self) -> Iterator[Place]:
        if self._trie.root.here is not None:
            yield self._trie.root.here
        for _, node in self._trie.nodes():
            if node.here is not None:
                yield node.here

    def _check(self) -> None:
        self._trie._check()
        assert all(self._trie.node(place.way).here is place for place in self.places())


def amqp_table() -> WordTable:
    return WordTable(AMQP, Amqp)


def mqtt_table() -> WordTable:
    return WordTable(MQTT, Mqtt)

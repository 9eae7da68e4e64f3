"""The trie and its engine: the number of nodes, of visited ones, and of those left
after removals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import skipfilter.engines.lazy_dfa
import skipfilter.topics.trie
from skipfilter.engines import LazyDfa, OptimizedInvertedBitmap, SkipFilterEngine, SnapshotTrie, TrieEngine
from skipfilter.topics.trie import Trie
from skipfilter.topics.words import AMQP, MQTT, match_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipfilter.engines import Engine
    from skipfilter.topics.words import Grammar


def test_patterns_share_the_nodes_of_their_common_start() -> None:
    engine: TrieEngine[str] = TrieEngine(AMQP)
    for pattern in ("a.b.c", "a.b.d", "a.b", "a.*", "a.#"):
        engine.subscribe(pattern, pattern)
    assert len(list(engine.trie.nodes())) == len(["a", "a.b", "a.b.c", "a.b.d", "a.*", "a.#"])


@pytest.mark.parametrize("patterns", [["a.b.c", "a.b"], ["a.b", "a.b.c"], ["#", "#.a"], ["#.a", "#"], ["", "*"]])
def test_nothing_is_left_of_an_unused_pattern(patterns: list[str]) -> None:
    engine: TrieEngine[str] = TrieEngine(AMQP)
    for handle in [engine.subscribe(pattern, "x") for pattern in patterns]:
        engine.unsubscribe(handle)
        engine._check()
    assert list(engine.trie.nodes()) == []
    assert engine.trie.root.value is None
    assert engine.trie.inner_manys == 0


def test_the_change_count_depends_on_nodes_and_not_on_subscriptions() -> None:
    trie: Trie[str, str] = Trie()
    node = trie.node(["a", "b"])
    made = trie.changes
    node.value = "x"
    assert trie.node(["a", "b"]) is node
    assert trie.changes == made
    trie.node(["a", "c"]).value = "y"
    assert trie.changes > made
    made = trie.changes
    node.value = None
    trie.prune(["a", "b"])
    assert trie.changes > made


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("grammar", [AMQP, MQTT], ids=lambda grammar: grammar.name)
def test_the_fast_walk_and_the_full_walk_agree_on_hidden_topics(grammar: Grammar, inner: bool) -> None:
    trie: Trie[str, str] = Trie()
    separator, one = grammar.separator, grammar.one
    patterns = ["#", one, f"{one}{separator}#", f"$a{separator}#", "$a", f"$a{separator}{one}"]
    for pattern in patterns:
        trie.node(grammar.parse_pattern(pattern)).value = pattern
    if inner:
        trie.node(AMQP.parse_pattern("#.z")).value = "#.z"
    for topic, seen in ((["$a"], {f"$a{separator}#", "$a"}), (["$a", "b"], {f"$a{separator}#", f"$a{separator}{one}"})):
        assert set(trie.find(topic, hidden=True)) == seen
        assert trie.finds(topic, hidden=True)
        assert set(trie.find(topic)) > seen
    assert not trie.finds(["b"], hidden=True)
    assert trie.find(["b"], hidden=True) == []


# -- nothing is exponential

MANY_TIMES = 30
HARD = "#.a." * MANY_TIMES + "#.c"
TOPIC = "a." * (2 * MANY_TIMES) + "b"


@pytest.mark.parametrize("make", [TrieEngine, LazyDfa, SnapshotTrie, OptimizedInvertedBitmap, SkipFilterEngine])
def test_a_topic_visits_a_node_at_most_once_a_word(
    make: Callable[[Grammar], Engine[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    visited = 0
    step = skipfilter.topics.trie.step

    def counting(frontier: dict[Any, bool], word: str, hidden: bool = False) -> dict[Any, bool]:
        nonlocal visited
        visited += len(frontier)
        return step(frontier, word, hidden)

    monkeypatch.setattr(skipfilter.topics.trie, "step", counting)
    monkeypatch.setattr(skipfilter.engines.lazy_dfa, "step", counting)
    engine = make(AMQP)
    engine.subscribe(HARD, "x")
    for ask in (engine.lookup, engine.matches):
        assert not ask(TOPIC)
    nodes = len(AMQP.parse_pattern(HARD)) + 1
    words = len(AMQP.parse_topic(TOPIC))
    assert words < visited <= 2 * words * nodes


def test_a_pattern_is_compared_at_most_words_times_words() -> None:
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str(self) == str(other)

        __hash__ = str.__hash__

    pattern = AMQP.parse_pattern(HARD)
    words: list[str] = [Counted(word) for word in AMQP.parse_topic(TOPIC)]
    assert not match_words(pattern, words)
    assert 0 < compared <= len(pattern) * len(words)


def test_matches_stops_at_a_tail_that_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    step = skipfilter.topics.trie.step

    def counting(frontier: dict[Any, bool], word: str, hidden: bool = False) -> dict[Any, bool]:
        nonlocal steps
        steps += 1
        return step(frontier, word, hidden)

    monkeypatch.setattr(skipfilter.topics.trie, "step", counting)
    for pattern, needed in (("#", 0), ("a.#", 1), ("a.*.#", 2)):
        engine: TrieEngine[str] = TrieEngine(AMQP)
        engine.subscribe(pattern, "x")
        steps = 0
        assert engine.matches("a.b.c.d.e")
        assert steps == needed

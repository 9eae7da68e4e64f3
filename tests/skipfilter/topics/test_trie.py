"""Tries of words: agreement with matching pattern by pattern after every change,
bounded work, no leftovers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skipfilter.topics.trie import Node, Trie, begin, find_all, find_simple, step
from skipfilter.topics.words import MANY, ONE, Wildcard, match_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from skipfilter.topics.words import Words


def filled(*patterns: Words) -> Trie[str, Words]:
    trie: Trie[str, Words] = Trie()
    for pattern in patterns:
        trie.node(pattern).value = pattern
    trie._check()
    return trie


def drop(trie: Trie[str, Words], pattern: Words) -> None:
    trie.node(pattern).value = None
    trie.prune(pattern)


def found(patterns: list[Words]) -> list[Words]:
    """The patterns, of which each was found once."""
    assert len(set(patterns)) == len(patterns)
    return sorted(patterns, key=repr)


def matching(patterns: Iterable[Words], words: list[str], hidden: bool = False) -> list[Words]:
    kept = [p for p in patterns if not (hidden and p and isinstance(p[0], Wildcard)) and match_words(p, words)]
    return sorted(kept, key=repr)


PICTURE: list[Words] = [("a", "b"), ("a", ONE), (MANY, "c"), ("a", MANY)]


def test_the_patterns_of_the_picture() -> None:
    trie = filled(*PICTURE)
    assert found(trie.find(["a", "c"])) == [("a", MANY), ("a", ONE), (MANY, "c")]
    assert found(trie.find(["a", "b"])) == [("a", "b"), ("a", MANY), ("a", ONE)]
    assert found(trie.find(["a"])) == [("a", MANY)]
    assert found(trie.find([])) == []


def test_the_pattern_without_words_is_at_the_root() -> None:
    trie = filled((), (MANY,))
    assert found(trie.find([])) == [(), (MANY,)]
    assert found(trie.find(["a"])) == [(MANY,)]
    drop(trie, ())
    assert found(trie.find([])) == [(MANY,)]


def test_hidden_only_leaves_out_a_wildcard_at_the_start() -> None:
    simple: list[Words] = [("$", ONE), (ONE, "a"), (MANY,)]
    inner: list[Words] = [("$", MANY), ("$", MANY, "a"), ("$", ONE), (ONE, MANY, "a"), (MANY, "a")]
    for patterns in (simple, inner):
        trie = filled(*patterns)
        assert found(trie.find(["$", "a"], hidden=True)) == [p for p in sorted(patterns, key=repr) if p[0] == "$"]
        assert trie.finds(["$", "a"], hidden=True)
        assert not trie.finds(["a", "a"], hidden=True)
        assert found(trie.find([], hidden=True)) == []
        assert not trie.finds([], hidden=True)


def test_a_many_in_the_middle_may_match_no_words() -> None:
    trie = filled(("a", MANY, "b"), ("a", MANY, "b", MANY), (MANY, "a", MANY))
    assert found(trie.find(["a", "b"])) == [("a", MANY, "b"), ("a", MANY, "b", MANY), (MANY, "a", MANY)]


def test_finds_returns_before_it_has_read_everything() -> None:
    def words() -> Iterator[str]:
        yield "a"
        yield "b"
        raise AssertionError("it read on")

    assert filled(("a", MANY)).finds(words())
    assert filled((MANY,), (MANY, "x")).finds(words())
    with pytest.raises(AssertionError, match="it read on"):
        filled(("a", MANY, "x")).finds(words())


def test_changes_counts_exactly_the_added_and_removed_nodes() -> None:
    trie = filled(("a", "b"))
    assert trie.changes == 2
    trie.node(("a", "b")).value = ("c",)
    trie.node(("a",)).value = ("a",)
    assert trie.changes == 2
    drop(trie, ("a", "b"))
    assert trie.changes == 3
    drop(trie, ("a",))
    assert trie.changes == 4


def test_a_node_with_children_is_kept() -> None:
    trie = filled(("a",), ("a", MANY), ("a", MANY, "b"))
    drop(trie, ("a", MANY))
    trie._check()
    assert found(trie.find(["a", "b"])) == [("a", MANY, "b")]
    drop(trie, ("a",))
    trie._check()
    assert found(trie.find(["a", "x", "b"])) == [("a", MANY, "b")]
    drop(trie, ("a", MANY, "b"))
    assert not trie.root.leads_on()
    assert trie.inner_manys == 0


# -- the model

WORDS = st.sampled_from(["a", "b", "$"])
# Parsed patterns never have two MANY in a row.
PATTERNS = (
    st.lists(st.sampled_from(["a", "b", "$", ONE, MANY, MANY]), max_size=4)
    .filter(lambda words: all(pair != (MANY, MANY) for pair in pairwise(words)))
    .map(tuple)
)
TOPICS = st.lists(WORDS, max_size=5)


class AgainstPatternByPattern(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trie: Trie[str, Words] = Trie()
        self.patterns: dict[Words, None] = {}

    @rule(pattern=PATTERNS)
    def add(self, pattern: Words) -> None:
        self.trie.node(pattern).value = pattern
        self.patterns[pattern] = None

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.patterns:
            pattern = data.draw(st.sampled_from(list(self.patterns)))
            changes, nodes = self.trie.changes, len(list(self.trie.nodes()))
            drop(self.trie, pattern)
            del self.patterns[pattern]
            assert self.trie.changes - changes == nodes - len(list(self.trie.nodes()))

    @rule(words=TOPICS, hidden=st.booleans())
    def find(self, words: list[str], hidden: bool) -> None:
        hidden = hidden and bool(words)  # only the first word can hide a topic
        expected = matching(self.patterns, words, hidden)
        assert found(self.trie.find(iter(words), hidden=hidden)) == expected
        assert found(find_all(self.trie.root, words, hidden)) == expected
        if not self.trie.inner_manys:
            assert found(find_simple(self.trie.root, words, hidden)) == expected
        assert self.trie.finds(words, hidden=hidden) is bool(expected)

    @invariant()
    def nothing_is_left_over(self) -> None:
        self.trie._check()
        paths = {pattern[:n] for pattern in self.patterns for n in range(1, len(pattern) + 1)}
        assert sorted((path for path, _ in self.trie.nodes()), key=repr) == sorted(paths, key=repr)
        assert self.trie.root.leads_on() is bool(paths)

    def teardown(self) -> None:
        for pattern in self.patterns:
            drop(self.trie, pattern)
        assert not self.trie.root.leads_on()
        assert self.trie.root.value is None
        assert self.trie.root.words is Node().words  # the dict that all nodes without words share
        assert not self.trie.root.words
        assert self.trie.inner_manys == 0


TestAgainstPatternByPattern = AgainstPatternByPattern.TestCase
TestAgainstPatternByPattern.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


@settings(deadline=None)
@given(st.lists(PATTERNS, max_size=6), TOPICS)
def test_a_set_of_nodes_holds_the_many_of_every_node_in_it(patterns: list[Words], words: list[str]) -> None:
    trie = filled(*patterns)
    frontier = begin(trie.root, hidden=False)
    for word in words:
        for node, stays in frontier.items():
            assert node.many is None or frontier[node.many]
            assert not stays or node in step(frontier, word)
        frontier = step(frontier, word)


# -- the work


class Looks(dict[str, Any]):
    """The words of a node, counting how often one is looked up."""

    count = 0

    def get(self, key: str, default: Any = None) -> Any:
        Looks.count += 1
        return super().get(key, default)


@pytest.mark.parametrize(
    "patterns",
    [
        [(MANY, "a") * 50],
        [(MANY, "a") * 25 + ("b",) * n for n in range(50)],
        [(MANY, "a", MANY, "b", ONE) * 10, (MANY, "a", ONE) * 20, (ONE, MANY, "a") * 20],
        [(ONE,) * n + (MANY, "a", MANY) for n in range(50)],
    ],
)
def test_a_topic_visits_each_node_at_most_once_per_word(patterns: list[Words], monkeypatch: pytest.MonkeyPatch) -> None:
    trie = filled(*patterns)
    nodes = [trie.root, *(node for _, node in trie.nodes())]
    for node in nodes:
        node.words = Looks(node.words)
    for words in (["a"] * 300, ["a", "b"] * 150, ["a"] * 299 + ["c"]):
        monkeypatch.setattr(Looks, "count", 0)
        assert found(trie.find(words)) == matching(patterns, words)
        assert 0 < Looks.count <= len(nodes) * len(words)
        monkeypatch.setattr(Looks, "count", 0)
        trie.finds(words)
        assert 0 < Looks.count <= len(nodes) * len(words)


def test_patterns_with_another_start_cost_nothing() -> None:
    trie = filled(*((f"a{n}", ONE, MANY) for n in range(1000)))
    for _, node in trie.nodes():
        node.words = Looks(node.words)
    before = Looks.count
    assert found(trie.find(["a7", "b", "c"])) == [("a7", ONE, MANY)]
    assert Looks.count - before <= 3

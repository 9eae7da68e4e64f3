"""The tables of AMQP and MQTT: agreement with the matchers, and the examples again, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import Amqp, Mqtt, PatternError
from skipfilter.topics import AMQP, MQTT
from skipfilter.topics.tables import WordTable

if TYPE_CHECKING:
    from skipfilter.topics import Grammar
    from skipfilter.topics.tables import SelectorPostings

VECTORS: dict[str, dict[str, Any]] = {
    name: json.loads((Path(__file__).parents[3] / "vectors" / f"{name}.json").read_text("utf-8"))
    for name in ("amqp", "mqtt")
}
TABLES: dict[str, tuple[Grammar, type[Amqp | Mqtt]]] = {"amqp": (AMQP, Amqp), "mqtt": (MQTT, Mqtt)}


def find_once(table: WordTable, topic: str) -> set[SelectorPostings]:
    found = list(table.find(topic))
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("name", TABLES)
def test_the_examples_all_at_once(name: str) -> None:
    grammar, compile = TABLES[name]
    table = WordTable(grammar, compile)
    posting_lists = {pattern: table.declare(compile(pattern)) for pattern, _, _ in VECTORS[name]["matches"]}
    table._check()
    for _, topic, _ in VECTORS[name]["matches"]:
        assert find_once(table, topic) == {posting_lists[p] for p in posting_lists if compile(p).match(topic)}
    for pattern, topic, expected in VECTORS[name]["matches"]:
        assert (posting_lists[pattern] in find_once(table, topic)) is expected


def test_equivalent_patterns_share_an_entry() -> None:
    table = WordTable(AMQP, Amqp)
    assert len({table.declare(Amqp(pattern)) for pattern in ("#", "#.#", "#.#.#")}) == 1
    assert len({table.declare(Amqp(pattern)) for pattern in ("*.#", "#.*", "#.*.#", "*.#.#")}) == 1
    assert len(list(table.posting_lists())) == 2


@pytest.mark.parametrize("name", TABLES)
@settings(deadline=None)
@given(data=st.data())
def test_the_table_agrees_with_its_matchers_while_patterns_come_and_go(name: str, data: st.DataObject) -> None:
    grammar, compile = TABLES[name]
    dot, word, words = grammar.separator, grammar.one, grammar.many
    texts = st.lists(st.sampled_from(["a", "b", "$a", "", word, words, words]), max_size=4).map(dot.join)
    topics = st.lists(st.sampled_from(["a", "b", "$a", "c", ""]), max_size=5).map(dot.join)
    table, there = WordTable(grammar, compile), dict[str, Any]()
    for text in data.draw(st.lists(texts, max_size=12)):
        try:
            matcher = compile(text)
        except PatternError:
            continue
        same = next((postings for m, postings in there.values() if m.words == matcher.words), None)
        if same is not None and data.draw(st.booleans()):
            table.remove(same)
            there = {t: (m, postings) for t, (m, postings) in there.items() if postings is not same}
        else:
            postings = table.declare(matcher)
            assert same in (None, postings)
            there[text] = matcher, postings
        table._check()
        assert set(table.posting_lists()) == {postings for _, postings in there.values()}
        topic = data.draw(topics)
        assert find_once(table, topic) == {postings for m, postings in there.values() if m.match(topic)}
    for postings in list(table.posting_lists()):
        table.remove(postings)
    assert not table._trie.root.leads_on()
    assert table._trie.root.value is None

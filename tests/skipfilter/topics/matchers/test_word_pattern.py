"""Patterns of NATS, and of a grammar of the caller."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from skipfilter import Amqp, PatternError, SelectorIndex, SkipFilter, WordPattern
from skipfilter.engines import ENGINES, Filter
from skipfilter.topics.words import AMQP, MANY, NATS, ONE, Grammar

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "nats.json").read_text("utf-8"))

PATHS = Grammar("paths", "::", "any", "all", many_ends=False, empty_words=True, hidden=".")
"""A grammar whose signs are words."""


@pytest.mark.parametrize(("pattern", "topic", "expected"), VECTORS["matches"])
def test_the_examples_of_nats(pattern: str, topic: str, expected: bool) -> None:
    matcher = WordPattern(pattern, NATS)
    assert matcher.match(topic) is expected
    assert expected or matcher.why_not(topic)


@pytest.mark.parametrize("name", ENGINES)
def test_the_examples_of_nats_in_an_engine(name: str) -> None:
    engine = ENGINES[name](NATS)
    patterns = dict.fromkeys(pattern for pattern, _, _ in VECTORS["matches"])
    for pattern in patterns:
        engine.subscribe(pattern, pattern)
    for _, topic, _ in VECTORS["matches"]:
        expected = {pattern for pattern in patterns if WordPattern(pattern, NATS).match(topic)}
        assert engine.lookup(topic) == expected
        assert engine.matches(topic) is bool(expected)
    engine._check()


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["refused"])
def test_an_invalid_subject_is_named(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(f"nats pattern {pattern!r}: {reason}")):
        WordPattern(pattern, NATS)


def test_patterns_with_the_same_meaning_have_the_same_words() -> None:
    assert NATS.parse_pattern("a.*.>") == ("a", ONE, ONE, MANY)
    assert NATS.parse_pattern(">") == (ONE, MANY)


def test_why_not_names_an_empty_word() -> None:
    assert WordPattern("a.>", NATS).why_not("a..b") == "one of its words is empty"
    assert WordPattern("a.>", NATS).why_not("") == "the number of its words is 0"
    assert WordPattern("a.>", NATS).why_not("a") == "the number of its words is 1"


def test_an_index_accepts_grammars() -> None:
    readers = SkipFilter(SelectorIndex(grammars=[NATS, PATHS]))
    readers.add("a", [("nats", "alerts.>")])
    readers.add("b", [("paths", "alerts.fire::all::7")])
    readers.add("c", [("nats", WordPattern("alerts.*", NATS)), ("amqp", "alerts.#")])
    assert readers.match_any("alerts.fire") == ["a", "c"]
    assert readers.match_any("alerts") == ["c"]
    assert readers.match_any("alerts.fire::7") == ["a", "b", "c"]
    assert readers.match_any("alerts.fire::x::y::7") == ["a", "b", "c"]
    assert readers.match_any("alerts.fire::x") == ["a", "c"]
    assert [str(one) for one in readers.explain("alerts..fire", "a")] == [
        "nats 'alerts.>' does not match: one of its words is empty"
    ]
    for matcher in (WordPattern("a", AMQP), Amqp("a")):
        with pytest.raises(ValueError, match="another type of matcher"):
            readers.add("d", [("nats", matcher)])
    with pytest.raises(PatternError, match=r"nats pattern 'a\.\.b': a word is empty"):
        readers.add("d", [("nats", "a..b")])
    with pytest.raises(LookupError, match="'nats' is none of"):
        SkipFilter(SelectorIndex()).add("a", [("nats", "a")])


def test_a_hidden_topic_of_a_grammar_of_the_caller() -> None:
    assert not WordPattern("all", PATHS).match(".x")
    assert WordPattern(".x::any", PATHS).match(".x::y")


@pytest.mark.parametrize(("separator", "one", "many"), [("", "*", "#"), (".", "#", "#"), ("*", "*", "#")])
def test_a_grammar_without_three_signs_is_refused(separator: str, one: str, many: str) -> None:
    with pytest.raises(ValueError, match=r"^grammar 'x': .* must be three signs, and different$"):
        Grammar("x", separator, one, many, many_ends=False, empty_words=False, hidden=None)


@pytest.mark.parametrize("hidden", ["", "$SYS.", "."])
def test_a_grammar_that_hides_more_or_less_than_the_beginning_of_a_word_is_refused(hidden: str) -> None:
    with pytest.raises(ValueError, match=rf"^grammar 'x': {re.escape(repr(hidden))} must be the beginning of a word$"):
        Grammar("x", ".", "*", "#", many_ends=False, empty_words=False, hidden=hidden)


def test_a_filter_knows_hidden_topics_of_any_grammar() -> None:
    grammar = Grammar("x", ".", "*", "#", many_ends=False, empty_words=False, hidden="$")
    wanted = Filter(grammar)
    for pattern in ("#", "#.$a", "*.$a", "$a.#", "$a.b", ""):
        wanted.subscribe(pattern)
        wanted._check()
    assert wanted.covered == 4
    assert WordPattern("", grammar).why_not("$x") == "the number of its words is 1"


def test_a_pattern_must_be_a_str() -> None:
    with pytest.raises(TypeError, match=r"^pattern 5 is of type int, not str$"):
        Filter(AMQP).subscribe(5)  # type: ignore[arg-type]


def test_a_pattern_of_any_words_matches_no_topic_with_an_empty_word() -> None:
    grammar = Grammar("x", ".", "*", "#", many_ends=False, empty_words=False, hidden=None, empty_words_match=False)
    for topic, expected in (("a", True), ("a.b", True), ("", False), ("a..b", False)):
        assert WordPattern("#", grammar).match(topic) is expected

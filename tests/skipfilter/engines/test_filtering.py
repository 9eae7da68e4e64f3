"""The filter: which patterns are in its engine, and that covered ones come back.

That it answers as the engines do is in test_engines_agree.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from skipfilter.engines import ENGINES, Filter, InvertedBitmap, filtering
from skipfilter.errors import PatternError
from skipfilter.topics.coverage import covers
from skipfilter.topics.words import AMQP, MQTT, ONE, Grammar


def filled(grammar: Grammar, *patterns: str) -> tuple[Filter, dict[str, int]]:
    wanted = Filter(grammar)
    handles = {pattern: wanted.subscribe(pattern) for pattern in patterns}
    wanted._check()
    return wanted, handles


def in_engine(wanted: Filter) -> set[str]:
    return {pattern.text for pattern in wanted._patterns.values() if pattern.cover is None}


def test_the_patterns_of_the_picture() -> None:
    wanted, _ = filled(AMQP, "stock.ibm", "forex.*", "forex.eur", "#.ibm")
    assert in_engine(wanted) == {"forex.*", "#.ibm"}
    assert wanted.covered == 2
    assert len(wanted) == 4


@pytest.mark.parametrize("name", ENGINES)
def test_covered_patterns_come_back_if_the_covering_one_leaves(name: str) -> None:
    wanted = Filter(AMQP, ENGINES[name])
    handles = {pattern: wanted.subscribe(pattern) for pattern in ("a.b.c", "a.*.c", "a.b.*", "a.#", "b", "#")}
    assert in_engine(wanted) == {"#"}
    wanted.unsubscribe(handles["#"])
    wanted._check()
    assert in_engine(wanted) == {"a.#", "b"}
    assert not wanted.matches("c")
    wanted.unsubscribe(handles["a.#"])
    wanted._check()
    assert in_engine(wanted) == {"a.*.c", "a.b.*", "b"}
    assert wanted.matches("a.b.c")
    assert not wanted.matches("a.c")
    wanted.unsubscribe(handles["a.*.c"])
    wanted.unsubscribe(handles["a.b.*"])
    wanted._check()
    assert in_engine(wanted) == {"a.b.c", "b"}
    assert wanted.matches("a.b.c")
    assert not wanted.matches("a.b.d")


def test_a_covered_pattern_that_leaves_hands_over_those_that_it_covers() -> None:
    wanted, handles = filled(AMQP, "a.b", "a.*", "#")
    wanted.unsubscribe(handles["a.*"])
    wanted._check()
    wanted.unsubscribe(handles["#"])
    wanted._check()
    assert wanted.matches("a.b")
    assert not wanted.matches("a.c")


def test_a_pattern_counts_until_its_last_subscription_ends() -> None:
    wanted, handles = filled(AMQP, "#", "a")
    again = wanted.subscribe("#.#")
    wanted.unsubscribe(handles["#"])
    assert wanted.matches("b")
    assert wanted.covered == 1
    wanted.unsubscribe(again)
    assert not wanted.matches("b")
    assert wanted.matches("a")
    wanted._check()


def test_patterns_that_cover_each_other_are_one_in_the_engine() -> None:
    wanted, handles = filled(MQTT, "#", "+/#")
    assert in_engine(wanted) == {"#"}
    wanted.unsubscribe(handles["#"])
    assert in_engine(wanted) == {"+/#"}
    wanted._check()


def test_nothing_is_left_of_ended_subscriptions() -> None:
    wanted, handles = filled(AMQP, "a.b", "a.*", "#.b", "#")
    for handle in handles.values():
        wanted.unsubscribe(handle)
        wanted._check()
    assert not wanted._having
    assert not wanted._patterns
    assert wanted.covered == len(wanted) == len(wanted._engine) == 0
    with pytest.raises(KeyError, match="0"):
        wanted.unsubscribe(0)


def test_a_refused_pattern_changes_nothing() -> None:
    wanted, _ = filled(AMQP, "a")
    with pytest.raises(PatternError, match=r"a word is empty"):
        wanted.subscribe("a..b")
    wanted._check()
    assert len(wanted) == 1
    topic: Any = None
    with pytest.raises(TypeError, match="None"):
        wanted.matches(topic)


def test_an_engine_that_refuses_a_topic_leaves_no_pattern_behind() -> None:
    wanted = Filter(AMQP, lambda grammar: InvertedBitmap(grammar, ["a.b"]))
    for _ in range(2):
        with pytest.raises(LookupError, match="is not one of the 1 topics"):
            wanted.subscribe("a.*")
    assert len(wanted) == 0
    wanted._check()


def test_only_patterns_with_all_fixed_words_are_tested_for_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _ = filled(AMQP, *(f"a.{n}.c" for n in range(50)), "b.7.b", "c.7.a.*", "#.7.d")
    tested: list[object] = []

    def recording(grammar: Grammar, general: Any, special: Any) -> bool:
        tested.append(special)
        return covers(grammar, general, special)

    monkeypatch.setattr(filtering, "covers", recording)
    wanted.subscribe("a.*.7.*")
    assert tested == [("a", "7", "c"), ("c", "7", "a", ONE)]

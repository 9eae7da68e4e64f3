"""AMQP binding patterns: examples of the specification and of RabbitMQ's tutorial, and
invalid patterns.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import Amqp, PatternError
from skipfilter.topics.words import MAX_WORDS

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "amqp.json").read_text("utf-8"))


@pytest.mark.parametrize(("pattern", "topic", "expected"), VECTORS["matches"])
def test_the_examples(pattern: str, topic: str, expected: bool) -> None:
    assert Amqp(pattern).match(topic) is expected


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["refused"])
def test_an_invalid_binding_pattern_is_named(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(f"amqp pattern {pattern!r}: ") + ".*" + re.escape(reason)):
        Amqp(pattern)


def test_n38_n36_the_number_of_words_is_bounded() -> None:
    assert Amqp(".".join(["*"] * MAX_WORDS)).match("." * (MAX_WORDS - 1))
    for word in ("a", "*", "#"):
        with pytest.raises(PatternError, match="it has more than 100 words"):
            Amqp(".".join([word] * (MAX_WORDS + 1)))


def test_an_error_shows_no_more_than_the_beginning_of_a_long_pattern() -> None:
    with pytest.raises(PatternError) as caught:
        Amqp("a." * 5000)
    assert len(str(caught.value)) < 200
    assert caught.value.pattern == "a." * 5000


def test_equal_patterns_are_equal() -> None:
    assert Amqp("#.*") == Amqp("#.*")
    assert len({Amqp("#.*"), Amqp("#.*"), Amqp("*.#")}) == 2
    assert repr(Amqp("a.*")) == "Amqp(pattern='a.*')"


@pytest.mark.parametrize(
    ("pattern", "topic", "reason"),
    [
        ("a.*.c", "a.b.d", "word 3 is 'd'"),
        ("a.b", "a.b.c", "the number of its words is 3"),
        ("a.b", "a", "the number of its words is 1"),
        ("a.#.c", "a.b", "its words do not fit from number 2 on"),
        ("#.a", "b", "its words do not fit from number 1 on"),
        ("*", "", "the number of its words is 0"),
        ("", "a", "the number of its words is 1"),
    ],
)
def test_why_not_names_the_first_word_that_differs(pattern: str, topic: str, reason: str) -> None:
    assert not Amqp(pattern).match(topic)
    assert Amqp(pattern).why_not(topic) == reason


def test_why_not_cuts_a_long_word() -> None:
    assert len(Amqp("a").why_not("b" * 10_000)) < 200


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_refused_or_matched_without_an_error(pattern: str, topic: str) -> None:
    try:
        matcher = Amqp(pattern)
    except PatternError:
        return
    assert matcher.match(topic) or matcher.why_not(topic)
    assert Amqp("#").match(topic)

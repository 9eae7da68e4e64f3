"""MQTT topic filters: examples of the specification, and invalid filters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import Mqtt, PatternError
from skipfilter.topics.words import MAX_WORDS

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "mqtt.json").read_text("utf-8"))


@pytest.mark.parametrize(("pattern", "topic", "expected"), VECTORS["matches"])
def test_the_examples(pattern: str, topic: str, expected: bool) -> None:
    assert Mqtt(pattern).match(topic) is expected


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["refused"])
def test_an_invalid_topic_filter_is_named(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(f"mqtt pattern {pattern!r}: ") + ".*" + re.escape(reason)):
        Mqtt(pattern)


def test_n38_n36_the_number_of_levels_is_bounded() -> None:
    assert Mqtt("/".join(["+"] * MAX_WORDS)).match("/" * (MAX_WORDS - 1))
    for word in ("", "a", "+"):
        with pytest.raises(PatternError, match="it has more than 100 words"):
            Mqtt("/".join([word] * (MAX_WORDS + 1)))


def test_equal_patterns_are_equal() -> None:
    assert Mqtt("a/#") == Mqtt("a/#")
    assert len({Mqtt("a/#"), Mqtt("a/#"), Mqtt("a/+")}) == 2
    assert repr(Mqtt("a/+")) == "Mqtt(pattern='a/+')"


@pytest.mark.parametrize(
    ("pattern", "topic", "reason"),
    [
        ("a/+/c", "a/b/d", "word 3 is 'd'"),
        ("a/b", "a/b/", "the number of its words is 3"),
        ("a/b/#", "a", "the number of its words is 1"),
        ("+", "$SYS", "a topic that begins with $ is hidden from a wildcard at the beginning"),
        ("#", "$SYS/a", "a topic that begins with $ is hidden from a wildcard at the beginning"),
        ("$SYS/a", "$SYS/b", "word 2 is 'b'"),
        ("a", "", "word 1 is ''"),
    ],
)
def test_why_not_names_the_first_level_that_differs(pattern: str, topic: str, reason: str) -> None:
    assert not Mqtt(pattern).match(topic)
    assert Mqtt(pattern).why_not(topic) == reason


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_refused_or_matched_without_an_error(pattern: str, topic: str) -> None:
    try:
        matcher = Mqtt(pattern)
    except PatternError:
        return
    assert matcher.match(topic) or matcher.why_not(topic)
    assert Mqtt("#").match(topic) is not topic.startswith("$")

"""Exact matching is equality of strings."""

from __future__ import annotations

import pytest

from skipfilter import Exact, compile_matcher


@pytest.mark.parametrize("topic", ["", "a", "https://example.com/{id}", "é", "\ud800"])
def test_n33_a_topic_matches_itself(topic: str) -> None:
    assert Exact(topic).match(topic)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("a", "A"),
        ("a", "a "),
        ("é", "e\u0301"),
        ("%41", "A"),
        ("https://e.com", "https://e.com/"),
        ("{id}", "1"),
    ],
)
def test_n33_n5_nothing_is_normalised(pattern: str, topic: str) -> None:
    assert not Exact(pattern).match(topic)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(LookupError, match="'glob' is none of exact, everything, uritemplate"):
        compile_matcher("glob", "*")

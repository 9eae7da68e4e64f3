"""URL Patterns: examples of each part of the standard that a topic can meet, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import PatternError, UrlPattern

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "url_pattern.json").read_text("utf-8"))
BASE = "https://example.com/hub"


@pytest.mark.parametrize(("pattern", "topic", "expected"), VECTORS["matches"])
def test_the_examples(pattern: str, topic: str, expected: bool) -> None:
    assert UrlPattern(pattern).match(topic) is expected


@pytest.mark.parametrize(("pattern", "topic"), VECTORS["canonical"])
def test_pattern_and_topic_are_compared_as_urls(pattern: str, topic: str) -> None:
    assert UrlPattern(pattern).match(topic)


@pytest.mark.parametrize(("pattern", "topic", "base_url", "expected"), VECTORS["relative"])
def test_pattern_and_topic_are_relative_to_the_base_url(
    pattern: str, topic: str, base_url: str, expected: bool
) -> None:
    assert UrlPattern(pattern, base_url).match(topic) is expected


def test_a_relative_topic_is_no_url_without_a_base_url() -> None:
    assert not UrlPattern("https://example.com/:a").match("/a")


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["refused"])
def test_what_the_standard_refuses_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(f"urlpattern pattern {pattern!r}: ") + ".*" + re.escape(reason)):
        UrlPattern(pattern)


def test_equal_patterns_under_equal_base_urls_are_equal() -> None:
    assert UrlPattern("/:a", BASE) == UrlPattern("/:a", BASE)
    assert UrlPattern("/:a", BASE) != UrlPattern("/:a", "https://example.org/hub")
    assert len({UrlPattern("/:a", BASE), UrlPattern("/:a", BASE), UrlPattern("/:b", BASE)}) == 2


def test_a_lone_surrogate_in_a_topic_is_an_ordinary_mismatch() -> None:
    assert not UrlPattern("https://example.com/*").match("https://example.com/\ud800")
    assert not UrlPattern("/*", BASE).match("/\ud800")


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urlpattern", None)
    with pytest.raises(ImportError, match=r"pip install skipfilter\[urlpattern\]"):
        UrlPattern("https://example.com/")


PATTERN = UrlPattern("https://example.com/*", BASE)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_matched_without_an_error(topic: str) -> None:
    assert PATTERN.match(topic) in (True, False)
    assert PATTERN.why_not(topic)


@settings(deadline=None)
@given(st.text(st.sampled_from("/:*{}()+?\\#ab.[]\ud800é")))
def test_any_pattern_is_compiled_or_refused_without_another_error(text: str) -> None:
    try:
        matcher = UrlPattern("https://example.com/" + text)
    except PatternError:
        return
    assert matcher.match("https://example.com/a") in (True, False)


def test_a_regular_expression_that_backtracks_elsewhere_does_not_match_and_does_end() -> None:
    # In Python's `re` it takes 2^5000 steps.
    assert not UrlPattern("https://example.com/((?:a+)+)").match("https://example.com/" + "a" * 5000 + "!")

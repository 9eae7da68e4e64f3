"""URL Patterns: examples of each part of the standard that applies to topics, and
invalid patterns.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import PatternError, UrlPattern, compile_matcher
from skipfilter.matchers import url_pattern

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "url_pattern.json").read_text("utf-8"))
BASE = "https://example.com/hub"


@pytest.mark.parametrize(("pattern", "topic", "expected"), VECTORS["matches"])
def test_n34_t92_t36_the_examples(pattern: str, topic: str, expected: bool) -> None:
    assert UrlPattern(pattern).match(topic) is expected


@pytest.mark.parametrize(("pattern", "topic"), VECTORS["canonical"])
def test_n34_t92_pattern_and_topic_are_compared_as_urls(pattern: str, topic: str) -> None:
    assert UrlPattern(pattern).match(topic)


@pytest.mark.parametrize(("pattern", "topic", "base_url", "expected"), VECTORS["relative"])
def test_n34_t36_t92_pattern_and_topic_are_relative_to_the_base_url(
    pattern: str, topic: str, base_url: str, expected: bool
) -> None:
    assert UrlPattern(pattern, base_url).match(topic) is expected


def test_n35_a_relative_topic_is_not_a_url_without_a_base_url() -> None:
    assert not UrlPattern("https://example.com/:a").match("/a")


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["refused"])
def test_patterns_that_the_standard_refuses_are_named(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(f"urlpattern pattern {pattern!r}: ") + ".*" + re.escape(reason)):
        UrlPattern(pattern)


def test_equal_patterns_under_equal_base_urls_are_equal() -> None:
    assert UrlPattern("/:a", BASE) == UrlPattern("/:a", BASE)
    assert UrlPattern("/:a", BASE) != UrlPattern("/:a", "https://example.org/hub")
    assert len({UrlPattern("/:a", BASE), UrlPattern("/:a", BASE), UrlPattern("/:b", BASE)}) == 2


def test_a_pattern_is_compiled_by_its_type_against_a_base_url_which_other_types_ignore() -> None:
    assert compile_matcher("urlpattern", "/:a", base_url=BASE) == UrlPattern("/:a", BASE)
    assert compile_matcher("urlpattern", "https://example.com/:a") == UrlPattern("https://example.com/:a")
    assert compile_matcher("exact", "/a", base_url=BASE) == compile_matcher("exact", "/a")
    with pytest.raises(PatternError, match="a relative input without a base URL"):
        compile_matcher("urlpattern", "/:a")
    with pytest.raises(PatternError, match=REPEATS):
        compile_matcher("urlpattern", "/(a{2})", base_url=BASE)


def test_a_lone_surrogate_in_a_topic_is_an_ordinary_mismatch() -> None:
    assert not UrlPattern("https://example.com/*").match("https://example.com/\ud800")
    assert not UrlPattern("/*", BASE).match("/\ud800")


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urlpattern", None)
    with pytest.raises(ImportError, match=r"^a URL Pattern needs urlpattern: pip install '\.\[urlpattern\]' in"):
        UrlPattern("https://example.com/")


PATTERN = UrlPattern("https://example.com/*", BASE)


@settings(deadline=None)
@given(st.text())
def test_n35_any_text_is_matched_without_an_error(topic: str) -> None:
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


def test_n36_a_regular_expression_that_backtracks_elsewhere_ends_without_a_match() -> None:
    # In Python's `re` it takes 2^5000 steps.
    assert not UrlPattern("https://example.com/((?:a+)+)").match("https://example.com/" + "a" * 5000 + "!")


# -- small ones

SMALL = [
    r"/(\d+)",
    r"/([a-z0-9-]+)",
    r"/*.(jpg|png)",
    r"/(\d+)-(\w+)",
    r"/:year(\d+)/:month(\d+)/:day(\d+)",
    r"/((?:a|b)+)/{(a)}?{-(\d)}*",
    # as much as may be
    "/" + "*-" * 12,
    "/:a-:b?-" + "{-}+" * 9,
    "/" + "(a*)" * 12,
    "/([ab]..[ab]..[ab]..[ab]..)",
    "/(" + r"\d" * 10 + r"\w\.)",
    "/(" + "a" * 64 + ")",
    "/" + "(ab)" * 32,
    r"/(\.(?:" + "a" * 58 + "))",
    # text that is escaped or after the parentheses
    "https://e.com/" + r"\*\+\?\:" * 12,
    r"/\(" + r"{a}{b}.\w" * 9 + r"\)" + "a" * 65,
    r"/\\\(" + "a." * 65,
    r"/(\))" + r"\-." * 20,
    r"/((?:a))" + "{a}." * 20,
    r"/(\{)",
    "/)" + "{a}." * 20,
]
SIGNS = r"it has more than 12 of * + ? : outside of parentheses and * + ? . [ \ inside"
REGEXPS = "its regular expressions have more than 64 characters"
CLASSES = r"its regular expressions have more than 2 backslashes, \d aside"
REPEATS = "its regular expressions have a {"
LARGE = {
    "/" + "*-" * 13: SIGNS,
    "/" + "{a}?{b}*{-}+" * 4 + "*": SIGNS,
    "/" + "-".join(f":{name}" for name in "abcdefghijklm"): SIGNS,
    "https://e.com" + "/*" * 12: SIGNS,
    "/" + "(a*)" * 13: SIGNS,
    **{f"/({sign * 13})": SIGNS for sign in ("a+", "a*", "a?", ".", "[ab]", r"\d")},
    "/((?:a)" + "." * 12 + ")": SIGNS,
    r"/\\" + "*-" * 13: SIGNS,
    "/(" + "a" * 65 + ")": REGEXPS,
    "/" + "(a)" * 65: REGEXPS,
    "/((?:a)" + "a" * 60 + ")": REGEXPS,
    "/(" + "a" * 63 + r"\d)": REGEXPS,
    r"/(\)" + "a" * 63 + ")": REGEXPS,
    r"/\\(" + "a" * 65 + ")": REGEXPS,
    r"/(\w\w\w)": CLASSES,
    r"/(\w)(\D)/(\.)": CLASSES,
    r"/(\)\w\w)": CLASSES,
    "/(a{60000})": REPEATS,
    "/:n(a{2})": REPEATS,
    r"/(\p{L})": REPEATS,
    r"/\\(a{2})": REPEATS,
    r"/(\)a{2})": REPEATS,
    "/((?:a)b{2})": REPEATS,
    "/)(a{2})": REPEATS,
    "/{(a{2})}": REPEATS,
    "https://(a{2}).e.com/": REPEATS,
}


@pytest.mark.parametrize("pattern", SMALL)
def test_small_regular_expressions_and_a_few_wildcards_are_accepted(pattern: str) -> None:
    assert not UrlPattern(pattern, BASE).match("https://example.org/")


@pytest.mark.parametrize(("pattern", "reason"), LARGE.items())
def test_n36_larger_patterns_are_refused_before_they_are_compiled_unless_they_are_trusted(
    pattern: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "60000" not in pattern:
        assert not UrlPattern(pattern, BASE, regexp_groups=True).match("https://example.org/")
    monkeypatch.setattr("urlpattern.URLPattern", None)
    with pytest.raises(PatternError, match=re.escape(f": {reason}") + "$"):
        UrlPattern(pattern, BASE)


def test_a_trusted_pattern_is_the_same_matcher() -> None:
    assert UrlPattern("/(a)", BASE, regexp_groups=True) == UrlPattern("/(a)", BASE)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(["(", ")", "(?:", "\\", "[", "]", "{", "}", "a", "*", ":a", "é", "/", "?"]), max_size=12
    ).map("".join)
)
def test_n36_every_regular_expression_that_the_engine_finds_is_counted(text: str) -> None:
    try:
        compiled = UrlPattern("https://example.com/" + text, regexp_groups=True).compiled
    except PatternError:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(url_pattern, "MAX_REGEXPS", 0)
        if compiled.hasRegExpGroups:
            with pytest.raises(PatternError, match="more than"):
                UrlPattern("https://example.com/" + text)

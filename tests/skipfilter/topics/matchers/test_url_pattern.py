"""URL Patterns: examples of each part of the standard that applies to topics, invalid
patterns, regular expressions, and agreement with another implementation.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import urlpattern
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from skipfilter import PatternError, UrlPattern, compile_matcher
from skipfilter.text import INSTALL
from skipfilter.topics import positions
from skipfilter.topics.matchers.url_pattern import canonical, language, regexp, syntax
from skipfilter.topics.matchers.url_pattern.language import Reading

FOLDER = Path(__file__).parents[3] / "vectors"
VECTORS: dict[str, Any] = json.loads((FOLDER / "url_pattern.json").read_text("utf-8"))
RECORDED: dict[str, Any] = json.loads((FOLDER / "url_pattern_recorded.json").read_text("utf-8"))
BASE = "https://example.com/hub"
RECORDED_BASE = "https://e.com/hub/x?bq#bh"


@pytest.mark.parametrize(("pattern", "topic", "expected"), VECTORS["matches"])
def test_n34_t92_t36_the_examples(pattern: str, topic: str, expected: bool) -> None:
    assert UrlPattern(pattern).match(topic) is expected


@pytest.mark.parametrize(("pattern", "base_url", "topic", "expected"), RECORDED["platform"])
def test_n34_the_examples_of_the_web_platform(pattern: str, base_url: str | None, topic: str, expected: bool) -> None:
    assert UrlPattern(pattern, base_url).match(topic) is expected


@pytest.mark.parametrize(("pattern", "base_url"), RECORDED["refused"])
def test_the_web_platform_refuses_them_too(pattern: str, base_url: str | None) -> None:
    with pytest.raises(PatternError):
        UrlPattern(pattern, base_url)


@pytest.mark.parametrize(("pattern", "matching", "other"), RECORDED["accepted"])
def test_a_pattern_that_was_accepted_once_still_is(pattern: str, matching: str | None, other: str | None) -> None:
    matcher = UrlPattern(pattern, RECORDED_BASE)
    assert matching is None or matcher.match(matching)
    assert other is None or not matcher.match(other)


@pytest.mark.parametrize(("pattern", "topic"), VECTORS["canonical"])
def test_n34_t92_pattern_and_topic_are_compared_as_urls(pattern: str, topic: str) -> None:
    assert UrlPattern(pattern).match(topic)


@pytest.mark.parametrize(("pattern", "topic", "base_url", "expected"), VECTORS["relative"])
def test_n34_t36_t92_pattern_and_topic_are_relative_to_the_base_url(
    pattern: str, topic: str, base_url: str, expected: bool
) -> None:
    assert UrlPattern(pattern, base_url).match(topic) is expected


def test_n35_a_relative_topic_is_not_a_url_without_a_base_url() -> None:
    matcher = UrlPattern("https://example.com/:a")
    assert not matcher.match("/a")
    assert matcher.why_not("/a") == "it is not a URL, and there is no base URL"


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["refused"])
def test_patterns_that_the_standard_refuses_are_named(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(f"urlpattern pattern {pattern!r}: ") + ".*" + re.escape(reason)):
        UrlPattern(pattern)


def test_a_base_url_that_is_no_url_is_named() -> None:
    with pytest.raises(PatternError, match=r"'/:a': the base URL 'example' is not a URL"):
        UrlPattern("/:a", "example")


def test_equal_patterns_under_equal_base_urls_are_equal() -> None:
    assert UrlPattern("/:a", BASE) == UrlPattern("/:a", BASE)
    assert UrlPattern("/:a", BASE) != UrlPattern("/:a", "https://example.org/hub")
    assert len({UrlPattern("/:a", BASE), UrlPattern("/:a", BASE), UrlPattern("/:b", BASE)}) == 2
    assert UrlPattern("/(a)", BASE, regexp_groups=True) == UrlPattern("/(a)", BASE)


def test_a_pattern_is_compiled_by_its_type_against_a_base_url_which_other_types_ignore() -> None:
    assert compile_matcher("urlpattern", "/:a", base_url=BASE) == UrlPattern("/:a", BASE)
    assert compile_matcher("urlpattern", "https://example.com/:a") == UrlPattern("https://example.com/:a")
    assert compile_matcher("exact", "/a", base_url=BASE) == compile_matcher("exact", "/a")
    with pytest.raises(PatternError, match="it is relative, and there is no base URL"):
        compile_matcher("urlpattern", "/:a")
    with pytest.raises(PatternError, match="too large"):
        compile_matcher("urlpattern", "/(a{990}b{990}c{990})", base_url=BASE)


def test_a_lone_surrogate_in_a_topic_is_an_ordinary_mismatch() -> None:
    assert not UrlPattern("https://example.com/*").match("https://example.com/\ud800")
    assert not UrlPattern("/*", BASE).match("/\ud800")


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("https://e.com/a?q#h", "it matches"),
        ("https://example.org/a?q#h", "its origin is 'https://example.org:', not 'https://e.com:'"),
        ("http://e.com/a?q#h", "its origin is 'http://e.com:', not 'https://e.com:'"),
        ("https://e.com/a/b?q#h", "its pathname is '/a/b'"),
        ("https://e.com/a?r#h", "its search is 'r'"),
        ("https://e.com/a?q", "its hash is ''"),
        ("https://e.com:x/", "it is not a URL"),
    ],
)
def test_the_reason_is_the_first_component_that_differs(topic: str, reason: str) -> None:
    matcher = UrlPattern("https://e.com/:a\\?q#h", BASE)
    assert matcher.why_not(topic) == reason
    assert matcher.match(topic) is (reason == "it matches")
    if "origin" in reason:  # one that is not fixed
        assert UrlPattern("http{s}?://{e}.com/:a\\?q#h", BASE).why_not("wss://e.com/a") == "its protocol is 'wss'"


@pytest.mark.parametrize(
    ("package", "pattern", "message"),
    [("ada_url", "/a", "a URL Pattern needs ada-url"), ("re2", "/(a)", "a group in a URL Pattern needs google-re2")],
)
def test_without_a_package_the_error_says_how_to_install_it(
    package: str, pattern: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for cached in (canonical._ada, canonical.parse, canonical.protocol, canonical.hostname):
        cached.cache_clear()
    with pytest.raises(ImportError, match=re.escape(f"{message}: {INSTALL.format(extra='urlpattern')}")):
        UrlPattern(pattern, "https://without.example/")


PATTERN = UrlPattern("https://example.com/*", BASE)


@settings(deadline=None)
@given(st.text())
def test_n35_any_text_is_matched_without_an_error(topic: str) -> None:
    assert PATTERN.match(topic) in (True, False)
    assert PATTERN.why_not(topic)


@settings(deadline=None)
@given(st.text(st.sampled_from("/:*{}()+?\\#ab.[]|^$d\ud800é")))
def test_any_pattern_is_compiled_or_refused_without_another_error(text: str) -> None:
    try:
        matcher = UrlPattern("https://example.com/" + text)
    except PatternError:
        return
    assert matcher.match("https://example.com/a") in (True, False)


# -- agreement with another implementation

ORIGINS = [
    "https://e.com", "https://*.e.com", "", "https://E.com:443", "http://:h", "https://{*.}?e.com", "(wss?)://e.com", "http{s}?://e.com",
    "foo://e.com", "https://é.com", "https://*", "https://e.com:8080", "https://e.com:*", "https://u:p@e.com", "*://e.com", "https://(a|b).e.com",
    "https://:x.e.com", "data\\:foo", "mailto\\:", "https://{:s.}*e.com", "https://{:s.}+e.com",
]  # fmt: skip
PIECES = [
    "/", "/", "/", "a", "b", ":id", "/:id?", "/:x*", "/:y+", ":z-b", "*", "{/a}?", "{/b}*", "{b/}?", "{:w}?", "(\\d+)", "/(\\d+)?", "x1",
    "é", "?q=*", "?q=:v", "#h", "#:f", ".json", "\\:", "\\.", "-", "/..", "/.", "%41", "{c}", ":né", "{a}+", "{ab}*", "{/:s/t}*", "{/:r-}+",
    "{:q,}*", "([a-z]+)", "(a|b)*", "{/(a)}+", "(.*)", "([^\\/]+?)", "*?", "**", "((?:a)b)", "(a.c)", "\\{", "\\\\", "{-:o}?", "{}?", "//",
]  # fmt: skip
TOPIC_ORIGINS = [
    "https://e.com", "https://e.com", "https://e.com", "https://a.e.com", "https://a.b.e.com", "", "https://E.com:443", "http://e.com", "wss://e.com",
    "foo://e.com", "https://é.com", "https://e.com:8080", "https://u:p@e.com", "data:foo", "mailto:",
]  # fmt: skip
TOPIC_PIECES = [
    "/", "/", "/", "a", "b", "1", "/a", "/b", "/1", "x1", "é", "%C3%A9", "?q=1", "?q=", "#h", "#", "?", ".json", ":", "-b", "/..", "/.",
    "%41", "A", "c", "aa", "ab", "/a/t", "/b-", "a,", "b,", "abc", "\\", "{",
]  # fmt: skip


def texts(origins: list[str], pieces: list[str]) -> st.SearchStrategy[str]:
    rest = st.lists(st.sampled_from(pieces), max_size=5).map("".join)
    return st.builds(lambda origin, rest: f"{origin}/{rest}", st.sampled_from(origins), rest)


EVERY_URL = urlpattern.URLPattern({})


@settings(deadline=None, max_examples=200)
@given(texts(ORIGINS, PIECES), st.lists(texts(TOPIC_ORIGINS, TOPIC_PIECES), min_size=10, max_size=20))
def test_n34_it_agrees_with_another_implementation(pattern: str, topics: list[str]) -> None:
    # The other one follows an older URL Standard for what these become.
    assume(not pattern.startswith(("foo:", "data", "mailto")))
    try:
        other = urlpattern.URLPattern(pattern, RECORDED_BASE)
    except ValueError:
        with pytest.raises(PatternError):
            UrlPattern(pattern, RECORDED_BASE)
        return
    matcher = UrlPattern(pattern, RECORDED_BASE)
    # Most topics match nothing, so add some that the pattern nearly spells out.
    near = re.sub(r"[(){}+*\\|]|\?(?!q)|:[a-zé]+", "", pattern)
    for topic in [*topics, near, near + "/1", near + "a"]:
        url, read = canonical.parse(topic, RECORDED_BASE), EVERY_URL.exec(topic, RECORDED_BASE)
        if url is not None and read is not None and url.pathname.decode() == read["pathname"]["input"]:
            assert matcher.match(topic) is other.test(topic, RECORDED_BASE), topic


# -- the linear matcher


def naive(part: language.LinearPart, text: bytes) -> set[int]:
    """The lengths of the beginnings of `text` that `part` matches."""
    match part:
        case bytes():
            return {len(part)} if text.startswith(part) else set()
        case language.Anything():
            return set(range(len(text) + 1))
        case language.Run(delimiter, joined):
            one = b"[^" + re.escape(delimiter) + b"]" if delimiter else b"."
            inner = b"%b+(?:%b%b+)*" % (one, re.escape(delimiter), one) if joined else one + b"+"
            return {n for n in range(len(text) + 1) if re.fullmatch(inner, text[:n], re.DOTALL)}
        case language.Repeated(repeated):
            return {n for n in range(len(text) + 1) if re.fullmatch(b"(?:%b)+" % re.escape(repeated), text[:n])}
        case language.Optional(parts):
            return {0} | naive_all(parts, text)


def naive_all(parts: language.LinearParts, text: bytes) -> set[int]:
    ends = {0}
    for part in parts:
        ends = {end + more for end in ends for more in naive(part, text[end:])}
    return ends


LITERALS = st.binary(min_size=1, max_size=3).map(lambda text: bytes(b"ab/."[byte % 4] for byte in text))
SIMPLE: st.SearchStrategy[language.LinearPart] = st.one_of(
    LITERALS,
    st.sampled_from([language.ANYTHING, language.NAME, language.Run(b""), language.Run(b".", True), language.Run(b"/", True)]),
    LITERALS.map(language.Repeated),
)  # fmt: skip
PARTS = st.lists(SIMPLE | st.lists(SIMPLE, max_size=3).map(tuple).map(language.Optional), max_size=5).map(tuple)


@settings(deadline=None, max_examples=200)
@given(PARTS, st.lists(st.text("ab/.", max_size=12), min_size=5, max_size=10), st.integers(0, 3))
def test_the_linear_matcher_agrees_with_one_that_tries_everything(
    parts: language.LinearParts, topics: list[str], start: int
) -> None:
    for topic in topics:
        text = topic.encode()
        expected = len(text[start:]) in naive_all(parts, text[start:])
        assert Reading(text).matches(parts, min(start, len(text))) is expected, topic


@pytest.mark.parametrize("repeated", [b"a", b"ab", b"aa", b"aba"])
def test_repetitions_of_a_text_agree_with_re_for_all_short_texts(repeated: bytes) -> None:
    expected = re.compile(b"b*(?:%b)+" % repeated)
    parts = (language.Optional((language.Repeated(b"b"),)), language.Repeated(repeated))
    for length in range(11):
        for letters in itertools.product(b"ab", repeat=length):
            text = bytes(letters)
            assert Reading(text).matches(parts) is bool(expected.fullmatch(text)), text


def test_a_long_topic_costs_a_few_operations_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def counting(reading: Reading, part: language.LinearPart, cursors: int) -> int:
        nonlocal steps
        steps += 1
        return after(reading, part, cursors)

    after = Reading._after
    monkeypatch.setattr(Reading, "_after", counting)
    for pattern in ("/:a+/:b+/:c+", "{/ab}*{/a}*{b/a}*", "/*a*a*a*a*", "/:a*{/x}?/:b*"):
        steps = 0
        UrlPattern(pattern, BASE).match("/" + "ab/" * 3_000)
        assert steps <= 12


def test_n36_long_repeated_texts_are_searched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each length of its own took 9 ms for each of hundreds of patterns.
    found: list[bytes] = []

    def noted(text: bytes, literal: bytes) -> list[int]:
        found.append(literal)
        return find_all(text, literal)

    find_all = positions.find_all
    monkeypatch.setattr(positions, "find_all", noted)
    reading = Reading(b"a" * 500 + b"b" + b"a" * 140)
    for length in range(60, 200):
        many = (language.ANYTHING, b"b", language.Optional((language.Repeated(b"a" * length),)))
        assert reading.matches(many) is (140 % length == 0)
    assert len(found) == len(set(found)) <= 65
    assert max(map(len, found)) <= positions.CHUNK


def test_a_pattern_without_groups_has_no_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    for pattern in (
        "/:a",
        "/*",
        "/:a?",
        "/:a+",
        "/:a*",
        "{/a}*",
        "/**",
        "/(.*)",
        "/([^\\/]+?)",
        "{x:a-b}+",
        "http{s}?://*.e.com/{:a}?",
    ):
        assert UrlPattern(pattern, BASE).cost == 0


def test_a_component_has_a_hundred_parts_at_most() -> None:
    fine = "/" + "-".join(f":a{n}" for n in range(100))
    assert UrlPattern(fine, BASE).match("/" + "-".join("x" * 100))
    for more in ("*", "{b}?", "(c)", ":d"):
        with pytest.raises(PatternError, match="it has more than 100 names, groups, asterisks and modifiers"):
            UrlPattern(f"{fine}-{more}", BASE)


# -- regular expressions


@pytest.mark.parametrize(("pattern", "matching", "others"), VECTORS["regexps"])
def test_n36_ordinary_regular_expressions(pattern: str, matching: list[str], others: list[str]) -> None:
    matcher = UrlPattern(pattern, BASE)
    assert matcher.cost >= 1
    assert [topic for topic in matching if not matcher.match(topic)] == []
    assert [topic for topic in others if matcher.match(topic)] == []


@pytest.mark.parametrize(("pattern", "reason"), VECTORS["lacking"])
def test_n36_what_re2_lacks_is_refused_with_the_reason(
    pattern: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PatternError, match=re.escape(reason)):
        UrlPattern(pattern, BASE)
    assert capfd.readouterr() == ("", "")  # RE2 would log the pattern


def test_n36_sixteen_names_with_counts_and_a_choice_of_thirty_words() -> None:
    sixteen = UrlPattern("/" + "/".join(rf":n{n}(\w{{1,20}})" for n in range(16)), BASE)
    topic = "/" + "/".join(f"abc{n}" for n in range(16))
    assert sixteen.match(topic)
    assert not sixteen.match(topic + "abcdefghijklmnopqrst")
    words = [f"word{n}" for n in range(30)]
    choice = UrlPattern(f"/:word({'|'.join(words)})", BASE)
    assert all(choice.match(f"/{word}") for word in words)
    assert not choice.match("/word30")
    assert not choice.match("/word")


def test_a_pattern_with_groups_costs_what_its_automaton_takes() -> None:
    assert [UrlPattern(f"/:a(b{{{count}}})", BASE).cost for count in (1, 30, 60, 900)] == [1, 1, 2, 19]
    assert UrlPattern("https://(a{30}).e.com/(b{30})", BASE).cost == 2


def test_n36_a_regular_expression_that_backtracks_elsewhere_ends_without_a_match() -> None:
    # In Python's `re` it takes 2^5000 steps.
    assert not UrlPattern("https://example.com/((?:a+)+)").match("https://example.com/" + "a" * 5000 + "!")


def test_n36_an_automaton_that_outgrows_its_memory_still_answers() -> None:
    # 2^300 states, of which 32 KB hold few.
    matcher = UrlPattern("/((?:a|b)*a(?:a|b){300})", BASE)
    text = "ab" * 1_000
    assert matcher.match("/a" + "b" * 300)
    assert matcher.match(f"/{text}a" + text[:300])
    assert not matcher.match(f"/{text}b" + "b" * 300)


def test_a_trusted_pattern_may_be_larger() -> None:
    pattern = "/(a{990}b{990}c{990})"
    with pytest.raises(PatternError, match="its regular expressions are too large"):
        UrlPattern(pattern, BASE)
    assert UrlPattern(pattern, BASE, regexp_groups=True).match("/" + "a" * 990 + "b" * 990 + "c" * 990)


@pytest.mark.parametrize("count", ["500", "3000", "9" * 5_000])
def test_what_is_too_large_is_refused_before_it_takes_memory(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(PatternError, match="its regular expressions are too large"):
        UrlPattern("/(" + f"[a-z]{{{count}}}" * 7 + ")", BASE)


@pytest.fixture
def automata(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The source and the maximum bytes of each automaton that is made."""
    made: list[tuple[str, int]] = []
    init = regexp.Regexp.__init__

    def noted(self: regexp.Regexp, source: str, max_bytes: int) -> None:
        made.append((source, max_bytes))
        init(self, source, max_bytes)

    monkeypatch.setattr(regexp.Regexp, "__init__", noted)
    return made


def test_the_bytes_of_an_automaton_are_bounded(automata: list[tuple[str, int]]) -> None:
    UrlPattern("/(bounded)", BASE)
    UrlPattern("/(bounded)", BASE, regexp_groups=True)
    assert [max_bytes for _, max_bytes in automata] == [2**15, 2**23]


def test_n36_a_unicode_property_is_looked_up_once(automata: list[tuple[str, int]]) -> None:
    # RE2 takes 10 ms for each that ignores case: 4,000 characters of them took 17 s.
    regexp._ascii_of.cache_clear()
    UrlPattern("/((?i)" + r"[\p{Lu}\PN]" * 50 + ")", BASE)
    sources = [source for source, _ in automata]
    assert [source for source in sources if source.lower().startswith("\\p")] == [r"\p{Lu}", r"\PN"]
    assert not any("\\p" in source.lower() for source in sources if len(source) > 10)


def test_equal_regular_expressions_are_one_object_as_long_as_one_is_in_use() -> None:
    first, second = UrlPattern("/:a(\\d{7})", BASE), UrlPattern("/:b(\\d{7})", BASE)
    assert first.conditions == second.conditions
    assert first.conditions[0][1] is second.conditions[0][1]
    assert UrlPattern("/:c(\\d{8})", BASE).conditions != first.conditions
    assert any("{7}" in source for source, _ in regexp._shared)
    del first, second
    assert not any("{7}" in source for source, _ in regexp._shared)


# Most lists are no regular expression.  One run in 180 began with 50 such among 59.
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["(?:", ")", "|", "a", "b", "[ab]", "[^a]", "\\d", "\\.", "*", "+", "?", "{2}", "{1,2}", "{2,}", "1", "."])).map("".join), st.lists(st.text("ab1.", max_size=6), min_size=10, max_size=10))  # fmt: skip
def test_a_regular_expression_means_what_it_means_in_python(text: str, topics: list[str]) -> None:
    try:
        expected = re.compile(text)
    except re.error:
        assume(False)
    assume(text)
    assume(not re.search(r"[*+?}][+]", text))  # a possessive quantifier in Python only
    matcher = UrlPattern(f"/x({text})", BASE)
    for topic in topics:
        assert matcher.match(f"/x{topic}") is bool(expected.fullmatch(topic)), topic


def test_the_text_between_groups_is_no_regular_expression() -> None:
    special = ".+*?^$|[]-&~_ '\"<>`;,!@=%25"
    pattern = "/" + "".join(f"\\{char}" if char in syntax.SYNTAX else char for char in special) + "(a)"
    matcher = UrlPattern(pattern.replace("\\?", "{\\?}"), BASE)
    assert matcher.match("/" + special.replace("?", "%3F") + "a")
    assert not matcher.match("/x" + special[1:].replace("?", "%3F") + "a")


# -- parsing URLs


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("https://u:p@E.com:8080/a?q=?#h#", ("https", "u", "p", "e.com", "8080", "/a", "q=?", "h#")),
        ("https://:p@e.com", ("https", "", "p", "e.com", "", "/", "", "")),
        ("https://u@e.com:443?#", ("https", "u", "", "e.com", "", "/", "", "")),
        ("http://[::1]:99/", ("http", "", "", "[::1]", "99", "/", "", "")),
        ("file:///c:/x", ("file", "", "", "", "", "/c:/x", "", "")),
        ("urn:uuid:0190#a", ("urn", "", "", "", "", "uuid:0190", "", "a")),
        ("mailto:a@b?c", ("mailto", "", "", "", "", "a@b", "c", "")),
        ("foo:/.//p/q", ("foo", "", "", "", "", "//p/q", "", "")),
        ("foo:///a", ("foo", "", "", "", "", "/a", "", "")),
        ("foo://h", ("foo", "", "", "h", "", "", "", "")),
        ("foo://u@h:9/", ("foo", "u", "", "h", "9", "/", "", "")),
        ("javascript:a://b", ("javascript", "", "", "", "", "a://b", "", "")),
        ("https://e.com/:@//[x]", ("https", "", "", "e.com", "", "/:@//[x]", "", "")),
    ],
)
def test_a_url_is_cut_into_its_components(topic: str, expected: tuple[str, ...]) -> None:
    assert canonical.parse(topic, None) == tuple(text.encode() for text in expected)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from([*TOPIC_ORIGINS, *TOPIC_PIECES, "@", "[", "]", "foo:", "/.//", "\\", "\t", "^", "|", "'", "é.com", ":80"])).map("".join))  # fmt: skip
def test_the_components_are_those_of_the_parser(topic: str) -> None:
    import ada_url

    url = canonical.parse(topic, BASE)
    try:
        parsed = ada_url.URL(topic, base=BASE)
    except ValueError:
        assert url is None
        return
    assert url is not None
    assert b"".join(url).isascii()
    assert [text.decode() for text in url] == [
        parsed.protocol[:-1],
        parsed.username,
        parsed.password,
        parsed.hostname,
        parsed.port,
        parsed.pathname,
        parsed.search[1:],
        parsed.hash[1:],
    ]

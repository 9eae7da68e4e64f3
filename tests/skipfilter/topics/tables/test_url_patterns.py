"""The table of URL Patterns: omitted patterns do not match, and there are few
candidates.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import LimitError, PatternError, UrlPattern
from skipfilter.topics.matchers.url_pattern import regexp
from skipfilter.topics.tables import AlikeLimit, UrlPatternTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.tables import SelectorPostings

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "url_pattern.json").read_text("utf-8"))
BASE = "https://e.com/hub"


def filled(patterns: Iterable[str], base_url: str | None = BASE) -> tuple[UrlPatternTable, dict[str, SelectorPostings]]:
    table = UrlPatternTable(base_url)
    posting_lists = {pattern: table.declare(table.compile(pattern)) for pattern in patterns}
    table._check()
    return table, posting_lists


def find_once(table: UrlPatternTable, topic: str) -> set[SelectorPostings]:
    found = list(table.find(topic))
    assert len(set(found)) == len(found)
    return set(found)


def agree(table: UrlPatternTable, posting_lists: dict[str, SelectorPostings], topic: str) -> None:
    found = find_once(table, topic)
    differing = {p for p, postings in posting_lists.items() if (postings in found) is not table.compile(p).match(topic)}
    assert not differing, topic


def test_the_examples_all_at_once() -> None:
    table, posting_lists = filled((pattern for pattern, _, _ in VECTORS["matches"]), None)
    for _, topic, _ in VECTORS["matches"]:
        agree(table, posting_lists, topic)


@pytest.mark.parametrize(("pattern", "topic"), VECTORS["canonical"])
def test_the_path_in_the_trie_is_that_of_the_normalized_url(pattern: str, topic: str) -> None:
    table, posting_lists = filled([pattern], None)
    assert find_once(table, topic) == {posting_lists[pattern]}


@pytest.mark.parametrize(("pattern", "topic", "base_url", "expected"), VECTORS["relative"])
def test_pattern_and_topic_are_relative_to_the_base_url(
    pattern: str, topic: str, base_url: str, expected: bool
) -> None:
    table, posting_lists = filled([pattern], base_url)
    assert (posting_lists[pattern] in find_once(table, topic)) is expected


# Of a path that does not begin with a slash, a name may hold one: the table took it for
# one segment.
@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("data\\:foo/:id", ["data:foo/a", "data:foo/a/b"]),
        ("mailto\\::x", ["mailto:a@b", "mailto:a/b"]),
        ("(data|foo)\\:a/:x", ["foo:a/b", "foo:a/b/c"]),
    ],
)
def test_a_name_in_an_opaque_path_matches_slashes(pattern: str, topics: list[str]) -> None:
    table, posting_lists = filled([pattern], None)
    for topic in topics:
        assert UrlPattern(pattern).match(topic)
        agree(table, posting_lists, topic)


ORIGINS = [
    "https://e.com",
    "https://*.e.com",
    "",
    "https://E.com:443",
    "http://:h",
    "https://{*.}?e.com",
    "(wss?)://e.com",
    "foo://e.com",
    "https://é.com",
    "https://*",
]
PIECES = [
    "/",
    "/",
    "a",
    "b",
    ":id",
    "/:id?",
    "/:x*",
    "/:y+",
    ":z-b",
    "*",
    "{/a}?",
    "{/b}*",
    "{b/}?",
    "{:w}?",
    "(\\d+)",
    "/(\\d+)?",
    "x1",
    "é",
    "?q=*",
    ".json",
    "\\:",
    "\\.",
    "-",
    "/..",
    "/.",
    "%41",
    "{c}",
    ":né",
]
PATTERNS = st.builds(
    lambda origin, pieces: origin + "/" + "".join(pieces),
    st.sampled_from(ORIGINS),
    st.lists(st.sampled_from(PIECES), max_size=5),
)
TOPIC_ORIGINS = [
    "https://e.com",
    "https://a.e.com",
    "https://a.b.e.com",
    "",
    "https://E.com:443",
    "http://e.com",
    "wss://e.com",
    "foo://e.com",
    "https://é.com",
    "https://e.com:8080",
]
TOPIC_PIECES = [
    "/",
    "/",
    "a",
    "b",
    "1",
    "/a",
    "/b",
    "/1",
    "x1",
    "é",
    "%C3%A9",
    "?q=1",
    ".json",
    ":",
    "-b",
    "/..",
    "/.",
    "%41",
    "A",
    "c",
    "\ud800",
    "#f",
    "\\",
]
TOPICS = st.builds(
    lambda origin, pieces: origin + "/" + "".join(pieces),
    st.sampled_from(TOPIC_ORIGINS),
    st.lists(st.sampled_from(TOPIC_PIECES), max_size=5),
) | st.text(max_size=5)


@settings(deadline=None)
@given(st.lists(PATTERNS, min_size=1, max_size=6), st.lists(TOPICS, min_size=10, max_size=20))
def test_the_table_agrees_with_the_patterns_while_they_come_and_go(patterns: list[str], topics: list[str]) -> None:
    table, posting_lists = filled([])
    for pattern in patterns:
        try:
            posting_lists[pattern] = table.declare(table.compile(pattern))
        except PatternError:
            continue
    table._check()
    for topic in topics:
        agree(table, posting_lists, topic)
    while posting_lists:
        _, postings = posting_lists.popitem()
        table.remove(postings)
        # Equal patterns, such as https://e.com/ and /, share a posting list.
        posting_lists = {pattern: one for pattern, one in posting_lists.items() if one is not postings}
        table._check()
        agree(table, posting_lists, topics.pop() if topics else "")
    assert not table._trie.root.leads_on()


@pytest.mark.parametrize("origin", ["https://e.com", "https://*.e.com", "*://e.com"])
@pytest.mark.parametrize(
    "end",
    [
        "",
        "/",
        "/a",
        "/:id",
        "/:id?",
        "/:id*",
        "/:id+",
        "{/a}?",
        "{/a}*",
        "/(\\d+)?",
        "/*?",
        "/*",
        "*",
        "/:id.json",
        "/:id?.json",
        "{/:id}?/a",
        "/:id?/a",
        ":id?",
        "\\:a",
        "/a:id",
        "/:né",
        "/:én",
        "/:n/é",
    ],
)
def test_the_part_after_a_fixed_segment_may_be_absent(origin: str, end: str) -> None:
    table, posting_lists = filled([f"{origin}/x{end}", f"{origin}/:kind{end}"])
    host = "https://b.e.com" if "*." in origin else "https://e.com"
    for topic in ("", "/", "/a", "/1", "/a/b", "/1/a", "a", "/a.json", ".json", "/a/a", ":a", "/ab", "/é", "/%C3%A9/a"):
        for first in ("x", "y", "é", ""):
            agree(table, posting_lists, f"{host}/{first}{topic}")


@pytest.mark.parametrize("absent", ["/:id?", "/:id*", "/(\\d+)?", "/(\\d+)*", "/*?", "/**", "{/:id}?", "{/c}*"])
def test_if_a_slash_is_absent_too_the_text_continues_in_the_word_before(absent: str) -> None:
    for end in ("b", ":id2", "b/:id2", "*"):
        table, posting_lists = filled([f"https://e.com/a{absent}{end}", f"https://e.com/:kind{absent}{end}"])
        topics = ["a", "ab", "a1b", "a/b", "a/1b", "a/1/2b", "a/cb", "ab/c", "a/1/c", "b", ""]
        found = [topic for topic in topics if find_once(table, f"https://e.com/{topic}")]
        assert found, "no topic matches"
        for topic in topics:
            agree(table, posting_lists, f"https://e.com/{topic}")


def test_a_path_deeper_than_the_trie_is_cut() -> None:
    for end in ("", "/:x", "/*", "/a"):
        table, posting_lists = filled(["https://e.com" + "/a" * depth + end for depth in (31, 32, 33, 40)])
        for depth in (30, 31, 32, 33, 34, 40, 41):
            agree(table, posting_lists, "https://e.com" + "/a" * depth)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("https://e{0}.com/*", "https://e{0}.com/a"),
        ("https://*.e.com/:kind/x{0}", "https://a.e.com/b/x{0}"),
        ("https://e.com/*/x{0}", "https://e.com/a/b/x{0}"),
        ("https://e.com/:a(\\d+)/:b-{0}.json", "https://e.com/1/b-{0}.json"),
    ],
)
def test_a_topic_is_compared_with_few_of_many_patterns(pattern: str, topic: str) -> None:
    table, posting_lists = filled(pattern.format(f"{n:03}") for n in range(200))
    for n in range(0, 200, 67):
        before = table.verified
        assert find_once(table, topic.format(f"{n:03}")) == {posting_lists[pattern.format(f"{n:03}")]}
        assert table.verified - before == 1
    before = table.verified
    table.find("https://example.com/another")
    assert table.verified == before


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("https://e.com/books/x{0}/:id", "https://e.com/books/x{0}/7"),
        ("https://e.com/users/{0}", "https://e.com/users/{0}?page=2"),
        ("/:kind/x{0}/", "/a/x{0}/"),
    ],
)
def test_a_pattern_of_whole_segments_needs_no_test_of_its_own(pattern: str, topic: str) -> None:
    table, posting_lists = filled(pattern.format(n) for n in range(20))
    assert find_once(table, topic.format(7)) == {posting_lists[pattern.format(7)]}
    assert find_once(table, topic.format(77)) == set()
    assert table.verified == 0


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("https://e.com/feed?user={0}&*", "https://e.com/feed?user={0}&page=1"),
        ("https://e.com/feed?user={0}", "https://e.com/feed?user={0}"),
        ("https://*.t{0}.e.com/feed", "https://a.t{0}.e.com/feed"),
        ("https://e.com/feed#part-{0}", "https://e.com/feed#part-{0}"),
    ],
)
def test_fixed_text_outside_of_the_path_distinguishes_patterns_too(pattern: str, topic: str) -> None:
    table, posting_lists = filled(pattern.format(f"{n:03}") for n in range(200))
    assert find_once(table, topic.format("077")) == {posting_lists[pattern.format("077")]}
    assert table.verified <= 4  # a few are filed under text that all have


def test_patterns_that_differ_in_names_share_a_posting_list() -> None:
    table, posting_lists = filled(
        ["/:a", "/:b", "/:a(\\d+)", "/:b(\\d+)", "/{:c}", "/:a?", "/:d?", "/:a+", "https://e.com/:x"]
    )
    assert posting_lists["/:a"] is posting_lists["/:b"] is posting_lists["/{:c}"] is posting_lists["https://e.com/:x"]
    assert posting_lists["/:a(\\d+)"] is posting_lists["/:b(\\d+)"]
    assert posting_lists["/:a?"] is posting_lists["/:d?"]
    assert len(list(table.posting_lists())) == 4


def test_the_number_of_patterns_with_groups_is_bounded_and_others_are_not_counted() -> None:
    table = UrlPatternTable(BASE, 2)
    posting_lists = [table.declare(table.compile(pattern)) for pattern in ("/(a)", "/(b)", "/(a)", "/:n(a)")]
    assert posting_lists[0] is posting_lists[2] is posting_lists[3]
    for plain in ("/a", "/:b", "/*", "/c{/d}*"):
        table.declare(table.compile(plain))
    for refused in ("/(c)", "/x/(a)", "/a?(b)"):
        with pytest.raises(LimitError, match="the limit of 2 different URL Patterns with groups is reached"):
            table.declare(table.compile(refused))
        table._check()
    assert table.declare(table.compile("/(b)")) is posting_lists[1]
    table.remove(posting_lists[0])
    table.declare(table.compile("/(c)"))
    table._check()
    assert len(list(table.posting_lists())) == 6


def test_a_large_automaton_counts_as_several() -> None:
    table = UrlPatternTable(BASE, 10)
    large = table.declare(table.compile("/(a{400})"))
    table.declare(table.compile("/(b)"))
    with pytest.raises(LimitError, match="the limit of 10 different URL Patterns with groups is reached"):
        table.declare(table.compile("/(c)"))
    assert table.declare(table.compile("/(a{400})")) is large
    table._check()
    table.remove(large)
    table.declare(table.compile("/(c{400})"))
    table._check()


def alike(n: int) -> str:
    return "/*" + "".join(f"/:a{m}" for m in range(n))


def test_the_number_of_plain_patterns_that_only_a_test_distinguishes_is_bounded() -> None:
    table = UrlPatternTable(BASE, alike=AlikeLimit(10))
    for n in range(1, 11):
        table.declare(table.compile(alike(n)))
    with pytest.raises(LimitError, match="the limit of 10 patterns with the same fixed texts is reached"):
        table.declare(table.compile(alike(11)))
    table._check()
    for n in range(30):  # those have a bound of their own
        table.declare(table.compile(f"/*(x{n})"))
    table._check()


def test_a_pattern_with_a_large_automaton_is_refused_unless_it_is_trusted() -> None:
    large = "/(a{990}b{990}c{990})"
    with pytest.raises(PatternError, match="its regular expressions are too large"):
        UrlPatternTable(BASE).compile(large)
    assert UrlPatternTable(BASE, regexp_groups=True).compile(large).match("/" + "".join(c * 990 for c in "abc"))


def test_a_plain_pattern_that_was_compiled_lately_is_not_compiled_again() -> None:
    table = UrlPatternTable(BASE)
    assert table.compile("/:a") is table.compile("/:a")
    assert table.compile("/(a)") is not table.compile("/(a)")
    assert table.compile("/:a") == UrlPattern("/:a", BASE)


def test_the_automaton_of_a_pattern_goes_with_the_pattern() -> None:
    table = UrlPatternTable(BASE)
    postings = table.declare(table.compile("/:id(\\d{11})"))
    assert any("{11}" in source for source, _ in regexp._shared)
    table.remove(postings)
    del postings
    gc.collect()
    assert not any("{11}" in source for source, _ in regexp._shared)


def test_without_patterns_a_topic_is_not_parsed() -> None:
    table, posting_lists = filled([])
    assert find_once(table, "https://e.com/a") == set()
    postings = table.declare(table.compile("/a"))
    assert find_once(table, "/a") == {postings}
    table.remove(postings)
    assert find_once(table, "/a") == set()
    assert posting_lists == {}


@settings(deadline=None)
@given(st.text())
def test_no_topic_causes_an_error(topic: str) -> None:
    table, posting_lists = filled(["/:a", "https://e.com/*", "*://*/*"])
    agree(table, posting_lists, topic)


@pytest.mark.parametrize("pattern", ["/a/(b/c)?d", "/a/:n(b/c)?d", "/a/(b/c)*d", "/a/:n([^/]+/)?d", "/a/(b/c)?*"])
def test_a_modifier_after_a_group_with_a_slash_includes_the_slash_before_it(pattern: str) -> None:
    matcher = UrlPattern(pattern, "https://e.com/")
    table = UrlPatternTable("https://e.com/", 10)
    postings = table.declare(matcher)
    for topic in ("https://e.com/ad", "https://e.com/a/b/cd", "https://e.com/a/d", "https://e.com/a", "/ax/d"):
        assert (postings in table.find(topic)) is matcher.match(topic)

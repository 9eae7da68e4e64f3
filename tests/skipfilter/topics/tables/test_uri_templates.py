"""The table of URI templates: agreement with the linear matcher, few candidates, and
nothing left over.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import UriTemplate
from skipfilter.topics.matchers.uri_template import VALUE, segments_of
from skipfilter.topics.tables import UriTemplateTable
from skipfilter.topics.tables.segments import MAX_DEPTH, split
from skipfilter.topics.tables.uri_templates import COMPILED
from skipfilter.topics.words import ONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.tables import SelectorPostings


def filled(templates: Iterable[str]) -> tuple[UriTemplateTable, dict[str, SelectorPostings]]:
    table = UriTemplateTable()
    posting_lists = {template: table.declare(UriTemplate(template)) for template in templates}
    table._check()
    return table, posting_lists


def find_once(table: UriTemplateTable, topic: str) -> set[SelectorPostings]:
    found = list(table.find(topic))
    assert len(set(found)) == len(found)
    return set(found)


def agree(table: UriTemplateTable, posting_lists: dict[str, SelectorPostings], topic: str) -> None:
    expected = {postings for template, postings in posting_lists.items() if UriTemplate(template).match(topic)}
    missed = {
        template for template, postings in posting_lists.items() if postings in expected ^ find_once(table, topic)
    }
    assert not missed, topic


# Built to collide: a common start, a common end, only text inside, no fixed text; whole
# segments and parts of one.
LITERALS = ["/", "/", "a", "b", "a/", "/b", "/a/b", "%41", "-", ".", "é", "same", "https://e.com/"]
EXPRESSIONS = [
    "{x}",
    "{y}",
    "{x,y}",
    "{+x}",
    "{#x}",
    "{.x}",
    "{/x}",
    "{/x*}",
    "{;x}",
    "{?x}",
    "{?x,y}",
    "{&x*}",
    "{x*}",
]
TEMPLATES = st.lists(st.sampled_from(LITERALS + EXPRESSIONS), max_size=6).map("".join)
COLLIDING = st.builds(
    lambda start, inside, end, n: f"{start}{{+x}}{inside}{n}{{+y}}{end}",
    st.sampled_from(["", "/same"]),
    st.sampled_from(["", "mid", "-a-long-text-inside-"]),
    st.sampled_from(["", "/end", "end"]),
    st.integers(0, 9),
)
VALUES = st.sampled_from(
    ["", "", "a", "b", "/a", "/", "a,b", "%41", "%4", ".a", ";x", "?x=a", "?x=a&y=b", "#a/b", "=", "1"]
)
TOPICS = st.lists(VALUES | st.sampled_from([*LITERALS, "\ud800", "%", "mid1"]), max_size=7).map("".join)


@st.composite
def topics_of(draw: st.DrawFn, templates: list[str]) -> str:
    """A topic that is likely to match one of them."""
    if not templates or draw(st.integers(0, 3)) == 0:
        return draw(TOPICS)
    return re.sub(r"\{[^}]*\}", lambda _: draw(VALUES), draw(st.sampled_from(templates)))


@settings(deadline=None)
@given(st.lists(TEMPLATES | COLLIDING, max_size=14), st.data())
def test_the_table_agrees_with_the_linear_matcher_while_templates_come_and_go(
    templates: list[str], data: st.DataObject
) -> None:
    table, posting_lists = filled(templates)
    for template in [*data.draw(st.permutations(sorted(posting_lists))), ""]:
        for _ in range(2):
            agree(table, posting_lists, data.draw(topics_of(templates)))
        assert set(table.posting_lists()) == set(posting_lists.values())
        if template in posting_lists:
            gone = posting_lists[template]
            table.remove(gone)
            table._check()
            posting_lists = {t: postings for t, postings in posting_lists.items() if postings is not gone}
    assert not table._trie.root.leads_on()


@pytest.mark.parametrize("seed", range(3))
def test_a_bag_that_overflows_and_empties_always_agrees(seed: int) -> None:
    rng = random.Random(seed)
    shapes = [
        "{+a}/x%d",
        "{+a}/x",
        "{+a}",
        "{+a}{+b}%d",
        "%d{+a}",
        "{+a}mid%d{+b}",
        "mid%d{+a}mid",
        "{+a}%%41{#b}",
        "{?a}%d",
    ]
    shapes += ["{x}-%d", "same{x}%d", "{x}%d{y}same", "same{x}/{+y}"]
    templates = [shape % n if "%d" in shape else shape % () for shape in shapes for n in range(3)]
    topics = [
        f"{start}{middle}{end}"
        for start in ("", "same", "1", "?a=1", "/x1", "same/")
        for middle in ("", "mid2", "-1")
        for end in ("", "1", "/x1", "same", "A#b", "%41", "2mid")
    ]
    table, posting_lists = filled([])
    for _ in range(3):
        for template in rng.sample(templates, len(templates)):
            posting_lists[template] = table.declare(UriTemplate(template))
            table._check()
            agree(table, posting_lists, rng.choice(topics))
        for topic in topics:
            agree(table, posting_lists, topic)
        for template in rng.sample(sorted(posting_lists), len(posting_lists)):
            if template in posting_lists:
                gone = posting_lists[template]
                table.remove(gone)
                table._check()
                posting_lists = {t: postings for t, postings in posting_lists.items() if postings is not gone}
                agree(table, posting_lists, rng.choice(topics))
        assert not table._trie.root.leads_on()


@given(st.lists(st.sampled_from([*LITERALS, *EXPRESSIONS, "%", "{}", "{x", "x}", "{x y}", " ", "\ud800"]), max_size=8))
def test_the_segments_of_a_text_are_those_of_a_parse(pieces: list[str]) -> None:
    pattern = "".join(pieces)
    segments = segments_of(pattern)
    if segments is not None:
        path, rest = split(UriTemplate(pattern).parts, VALUE)
        assert (path, rest) == (tuple(segments), None)


def test_the_segments_of_usual_templates_are_found_without_a_parse() -> None:
    assert segments_of("https://e.com/users/{id}") == [b"https:", b"", b"e.com", b"users", ONE]
    assert segments_of("") == [b""]
    for other in ("/{+x}", "/{x,y}", "/{x}.json", "/%41", "/é", "/{x*}", "/{/x}", "/{x.y}"):
        assert segments_of(other) is None


def test_equivalent_templates_share_an_entry() -> None:
    _, posting_lists = filled(["/{a}", "/{b}", "/{c:3}", "/{a,b}", "/x{?q}", "/x{?page}", "/{a*}", "/{+a}", "/x{?q*}"])
    assert len(set(posting_lists.values())) == 5
    assert posting_lists["/{a}"] is posting_lists["/{b}"] is posting_lists["/{c:3}"] is posting_lists["/{a,b}"]
    assert posting_lists["/x{?q}"] is posting_lists["/x{?page}"]


@pytest.mark.parametrize("segments", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 3 * MAX_DEPTH])
@pytest.mark.parametrize("end", ["", "/", "/{x}", "{?q}", "{/x*}", "/b"])
def test_a_template_deeper_than_the_trie_ends_in_a_bag(segments: int, end: str) -> None:
    for start in ("a" + "/a" * (segments - 1), "{x}" + "/{x}" * (segments - 1)):
        table, posting_lists = filled([start + end, start])
        for topic in ("", "/", "/b", "?q=1", "/b/c", "b", "//"):
            agree(table, posting_lists, "a" + "/a" * (segments - 1) + topic)
        agree(table, posting_lists, "a" + "/a" * (segments - 2))
        assert all(len(path) <= MAX_DEPTH + 1 for path, _ in table._trie._trie.nodes())
        for postings in set(posting_lists.values()):
            table.remove(postings)
        assert not table._trie.root.leads_on()


def test_a_variable_of_a_whole_segment_matches_every_value_and_no_other_text() -> None:
    table, posting_lists = filled(["/{x}/end"])
    for value in (
        "",
        "a",
        "a,b",
        "%41",
        "%e9",
        "-._~",
        "%",
        "%4",
        "é",
        ":",
        "a b",
        "\ud800",
        "%zz",
        "a%41b",
        "%%41",
        "@",
    ):
        agree(table, posting_lists, f"/{value}/end")
    assert table.verified == 0


# -- candidates


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        ("{{+base}}/x{0}", "https://e.com/x{0}"),
        ("{{+a}}/common{{+b}}y{0}", "https://e.com/commonby{0}"),
        ("/{{x}}-{0}", "/abc-{0}"),
        ("{{+a}}mid{0}{{+b}}", "https://e.com/mid{0}/b"),
        ("/same{{x}}{0}/{{+y}}", "/sameabc{0}/d"),
        ("{{+a}}/same{0:05}same/{{+b}}", "a/same{0:05}same/b"),
        ("/t{0}/{{+rest}}", "/t{0}/a/b"),
        ("/t{{?q{0}}}/x{0}", "/t?q=1/x{0}"),
        ("/{{tenant}}/kind{0}/{{id}}.json", "/acme/kind{0}/7.json"),
    ],
)
def test_a_topic_is_compared_with_few_of_a_thousand_templates(template: str, topic: str) -> None:
    table, posting_lists = filled(template.format(n) for n in range(1000))
    for n in range(0, 1000, 91):
        before = table.verified
        assert posting_lists[template.format(n)] in find_once(table, topic.format(n))
        assert table.verified - before <= 8
        agree(table, posting_lists, topic.format(n))
    before = table.verified
    table.find("/another/topic/that/none/of/them/matches")
    assert table.verified - before <= 8


def test_whole_segments_need_no_matcher() -> None:
    table, posting_lists = filled(
        [f"/users/{n}/{{resource}}/{{id}}" for n in range(1000)] + ["/users", "/{a}/{b}", "{x}"]
    )
    assert find_once(table, "/users/7/books/1") == {posting_lists["/users/7/{resource}/{id}"]}
    assert find_once(table, "/users/7") == {posting_lists["/{a}/{b}"]}
    assert table.verified == 0


def test_a_recently_declared_template_is_not_compiled_again() -> None:
    table = UriTemplateTable()
    first = table.compile("/{first}")
    assert first == UriTemplate("/{first}")
    for n in range(COMPILED - 1):
        assert table.compile(f"/{n}").pattern == f"/{n}"
    assert table.compile("/{first}") is first
    table.compile("/one/more")
    assert table.compile("/{first}") is first
    for n in range(COMPILED):
        table.compile(f"/more/{n}")
    assert table.compile("/{first}") is not first
    assert len(table._compiled) == COMPILED

"""SelectorIndex: agreement with its matchers, errors, bounds, and released memory.

The last part tests how SkipFilter finds the values of many ids.
"""

from __future__ import annotations

import gc
import random
import re
import threading
import tracemalloc
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from skipfilter import (
    Amqp,
    Exact,
    Explanation,
    LimitError,
    Mqtt,
    PatternError,
    SelectorIndex,
    SkipFilter,
    UriTemplate,
    UrlPattern,
    compile_matcher,
)
from skipfilter.core import values as values_module
from skipfilter.topics.tables.segments import SegmentTrie
from skipfilter.topics.trie import Trie
from skipfilter.topics.words import MAX_WORDS, Grammar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter import CompiledSelector, Matcher, PostingList, Selector
    from skipfilter.topics.tables import SelectorPostings

BASE = "https://e.com/hub"


def reasons(index: SelectorIndex, topic: str, value: object) -> dict[Selector, str | None]:
    return {explanation.selector: explanation.reason for explanation in index.explain(topic, value)}


@dataclass(frozen=True)
class Prefix:
    """A matcher type of a user's own."""

    pattern: str

    def match(self, topic: str) -> bool:
        return topic.startswith(self.pattern)

    def why_not(self, topic: str) -> str:
        return f"it does not begin with {self.pattern}"


class Anycase(Exact):
    """A matcher that is nearly of a type of the library."""

    def match(self, topic: str) -> bool:
        return topic.lower() == self.pattern.lower()


class Counting(SelectorIndex):
    """An index that records the topics that it looks up."""

    def __init__(self, **options: Any) -> None:
        super().__init__(base_url=BASE, matchers={"prefix": Prefix}, **options)
        self.asked: list[str] = []

    def posting_lists(self, key: str, start: int = 0) -> list[SelectorPostings]:
        self.asked.append(key)
        return super().posting_lists(key, start)


def matcher_of(selector: Selector) -> Matcher:
    """The reference of an index."""
    matcher_type, pattern = selector
    if matcher_type == "prefix":
        return Prefix(pattern)
    return compile_matcher(matcher_type, pattern, base_url=BASE)


def compiled(selector: Selector) -> CompiledSelector:
    return selector[0], matcher_of(selector)


def assert_empty(index: SelectorIndex) -> None:
    """Check that nothing is left except bounded caches."""
    index._check()
    assert index.distinct == 0
    assert not index._held
    for name, table in index._tables.items():
        assert not list(table.posting_lists()), name
        for attribute, state in vars(table).items():
            if isinstance(state, dict | list | set):
                assert not state, (name, attribute)
            trie = state._trie if isinstance(state, SegmentTrie) else state
            if isinstance(trie, Trie):
                assert not trie.root.leads_on(), name
                assert trie.root.value is None
                assert trie.inner_manys == 0


# -- the examples


def test_values_are_found_by_their_selectors() -> None:
    readers = SkipFilter(SelectorIndex())
    readers.add("alice", [("uritemplate", "/books/{id}")])
    readers.add("bob", [("uritemplate", "/books/{isbn}"), ("exact", "/books/1")])
    readers.add("carol", [("mqtt", "/books/#")])
    readers.add("dave", [])
    assert readers.match_any("/books/1") == ["alice", "bob", "carol"]
    assert readers.match_any("/books/1/covers") == ["carol"]
    assert readers.match_all("/books/1", "/books") == ["carol"]
    assert readers.match_any("/films/1") == []
    readers.remove("bob")
    assert readers.match_any("/books/1") == ["alice", "carol"]


def test_a_selector_that_is_declared_again_has_only_its_new_values() -> None:
    for selector in SELECTORS:
        index = Counting()
        readers = SkipFilter(index, capacity=2)
        topics = [topic for topic in TOPICS if matcher_of(selector).match(topic)]
        assert topics
        for topic in topics:
            for cached in (True, False):
                readers.add("old", [selector])
                if cached:
                    for _ in range(2):
                        assert readers.match_any(topic) == ["old"]
                readers.remove("old")
                readers.add("new", [selector])
                assert readers.match_any(topic) == ["new"]
                readers.remove("new")
                assert readers.match_any(topic) == []
                assert not readers.matches(topic)
        assert_empty(index)


def test_a_value_added_again_with_other_selectors_is_only_found_by_those() -> None:
    readers = SkipFilter(SelectorIndex(), capacity=2)
    readers.add("alice", [("exact", "a")])
    assert readers.match_any("a") == ["alice"]
    readers.remove("alice")
    readers.add("alice", [("exact", "b")])
    assert readers.match_any("a") == []
    assert readers.match_any("b") == ["alice"]


def test_equivalent_selectors_count_once_and_go_with_their_last_value() -> None:
    index = SelectorIndex()
    readers = SkipFilter(index)
    readers.add("alice", [("uritemplate", "/{a}"), ("uritemplate", "/{b}"), ("amqp", "#"), ("amqp", "#.#")])
    readers.add("bob", [("uritemplate", "/{c}")])
    assert index.distinct == 2
    readers.remove("alice")
    index._check()
    assert index.distinct == 1
    assert readers.match_any("/1") == ["bob"]
    readers.remove("bob")
    assert_empty(index)


def test_declaring_the_same_selectors_in_any_order_changes_nothing() -> None:
    readers = SkipFilter(SelectorIndex())
    wanted = [("exact", "a"), ("amqp", "b.*")]
    for selectors in (wanted, wanted[::-1] + wanted):
        readers.add("alice", selectors)
        readers.add("bob", [])
        assert (readers.id_of("alice"), readers.id_of("bob")) == (0, 1)
    for other in ([], wanted[:1], [*wanted, ("exact", "c")], [("exact", "a"), ("amqp", "b.#")]):
        with pytest.raises(
            ValueError, match="'alice' is in the filter with other selectors; replace\\(\\) changes them"
        ):
            readers.add("alice", other)
    assert readers.match_any("a") == readers.match_any("b.c") == ["alice"]
    assert readers.match_any("c") == []


def test_a_compiled_selector_equals_that_of_its_pattern() -> None:
    for selector in SELECTORS:
        both: list[tuple[Selector | CompiledSelector, ...]]
        both = [(selector, compiled(selector)), (compiled(selector), selector), (compiled(selector),) * 2]
        for forms in both:
            index = Counting(max_selectors=1, max_url_patterns=1)
            readers = SkipFilter(index)
            for order in (forms, forms[::-1]):
                for value, form in enumerate(order):
                    readers.add(value, [form])
                    assert readers.id_of(value) == value
                assert index.distinct == 1
            readers.add(2, [*forms, *map(list, forms)])  # type: ignore[list-item]
            assert readers.id_of(2) == 2
            for topic in TOPICS:
                expected = [0, 1, 2] if MATCHING[selector, topic] else []
                assert readers.match_any(topic) == expected
                for value in range(2):
                    (explanation,) = index.explain(topic, value)
                    assert explanation.selector == selector
                    assert (explanation.reason is None) is bool(expected)
            with pytest.raises(ValueError, match="0 is in the filter with other selectors"):
                readers.add(0, [("exact", Exact("other"))])
            index._check()
            for value in range(3):
                readers.remove(value)
            assert_empty(index)


def test_a_compiled_selector_is_used_unchanged() -> None:
    index = SelectorIndex(base_url=BASE, max_length=5)
    readers = SkipFilter(index)
    trusted = UrlPattern("/a/(b{2})", BASE)
    template = UriTemplate("/a/{long}")
    for value in ("alice", "bob"):
        readers.add(value, [("urlpattern", trusted), ("uritemplate", template), ("exact", Exact("a" * 6))])
    assert index.distinct == 3
    assert readers.match_any("/a/bb") == readers.match_any("a" * 6) == ["alice", "bob"]
    assert reasons(index, "/a/b", "bob") == {
        ("urlpattern", "/a/(b{2})"): "its pathname is '/a/b'",
        ("uritemplate", "/a/{long}"): None,
        ("exact", "a" * 6): "character 1 is '/', not 'a'",
    }
    matchers: list[Matcher] = [trusted, template, Exact("a" * 6)]
    for text, matcher in zip(index.declared("bob"), matchers, strict=True):
        both: list[Selector | CompiledSelector] = [text, (text[0], matcher)]
        for forms in ([text], both, both[::-1]):
            with pytest.raises(PatternError, match="the limit is 5"):
                readers.add("carol", forms)
    assert list(readers) == ["alice", "bob"]


def test_a_list_that_is_changed_later_changes_no_selector() -> None:
    index = SelectorIndex()
    lists: list[Any] = [["exact", "a"], ["amqp", Amqp("a")]]
    index.add(0, "alice", lists)
    for changed in lists:
        changed[1] = Exact("b")
    assert reasons(index, "a", "alice") == {("exact", "a"): None, ("amqp", "a"): None}


def test_a_compiled_selector_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {selector: compiled(selector) for selector in SELECTORS}
    for matcher_type in {matcher_type for matcher_type, _ in SELECTORS} - {"prefix"}:
        index = SelectorIndex(base_url=BASE)
        monkeypatch.setitem(index._compile, matcher_type, None)
        monkeypatch.setattr(Grammar, "parse_pattern", None)
        if matcher_type not in ("amqp", "mqtt"):  # matchers of these two have no type of their own
            monkeypatch.setattr(index._tables[matcher_type], "compile", None)
        readers = SkipFilter(index)
        readers.add("alice", [form for (type, _), form in made.items() if type == matcher_type])
        readers.add("alice", [form for (type, _), form in made.items() if type == matcher_type])
        monkeypatch.setattr(index, "_matcher_of", lambda *_: None)  # near misses are other patterns
        for topic in TOPICS:
            assert readers.matches(topic) is (None in reasons(index, topic, "alice").values())


def test_a_compiled_selector_of_a_custom_type_is_not_compiled_again() -> None:
    made: list[str] = []

    class Noted(Prefix):
        def __init__(self, pattern: str) -> None:
            made.append(pattern)
            super().__init__(pattern)

    index = SelectorIndex(matchers={"noted": Noted})
    readers = SkipFilter(index)
    shared = Noted("/")
    for value in ("alice", "bob", "alice"):
        readers.add(value, [("noted", shared)])
    assert readers.match_any("/a") == ["alice", "bob"]
    assert reasons(index, "/a", "bob") == {("noted", "/"): None}
    assert made == ["/"]


class Nothing(Amqp):
    def match(self, topic: str) -> bool:
        return False


WRONG: list[tuple[CompiledSelector, type[Exception]]] = [
    (("amqp", Nothing("/a")), ValueError),
    *((("glob", matcher), LookupError) for matcher in (Exact("a"), Amqp("a"))),
    *(
        ((type, Exact("/a")), ValueError)
        for type in ("everything", "uritemplate", "urlpattern", "amqp", "mqtt", "prefix")
    ),
    *((("exact", matcher), ValueError) for matcher in (UriTemplate("/a"), Amqp("/a"), Prefix("/a"), Anycase("/a"))),
    (("amqp", Mqtt("/a")), ValueError),
    (("mqtt", Amqp("/a")), ValueError),
    *((("urlpattern", UrlPattern("https://e.com/a", base)), ValueError) for base in (None, "https://e.com/other")),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_a_matcher_of_another_type_or_base_url_is_refused_and_leaves_nothing_behind(
    wrong: CompiledSelector, error: type[Exception]
) -> None:
    index = Counting()
    readers = SkipFilter(index)
    text = wrong[0], wrong[1].pattern
    reason = (
        "is none of exact, " if error is LookupError else r"^selector .*: another type of matcher, or another base URL"
    )
    for others in ([], [("exact", "/b"), ("urlpattern", "/b")]):
        for at in {0, len(others)}:
            with pytest.raises(error, match=reason):
                readers.add("alice", [*others[:at], wrong, *others[at:]])
            assert_empty(index)
    if wrong[0] not in ("glob", "everything"):
        readers.add("alice", [text])
        with pytest.raises(error, match=reason):  # even if it looks like the same selectors
            readers.add("alice", [wrong])
        assert index.distinct == 1


def test_a_matcher_from_a_function_is_identified_by_equality() -> None:
    index = SelectorIndex(matchers={"glued": lambda pattern: Prefix(pattern), "exact": Prefix})
    readers = SkipFilter(index)
    readers.add("alice", [("glued", "a")])
    readers.add("bob", [("glued", Prefix("a")), ("exact", Prefix("a"))])
    assert index.distinct == 2
    assert readers.match_any("ab") == ["alice", "bob"]
    for wrong in (("glued", Exact("a")), ("exact", Exact("a"))):
        with pytest.raises(ValueError, match="another type of matcher"):
            readers.add("carol", [wrong])


def test_the_bounds_hold_for_compiled_selectors_too() -> None:
    index = SelectorIndex(base_url=BASE, max_selectors=20, max_url_patterns=2, max_alike=5)
    readers: SkipFilter[str, str] = SkipFilter(index)
    urls = [("urlpattern", UrlPattern(f"/({n})", BASE)) for n in range(3)]
    alike = [("uritemplate", UriTemplate("{+a}" + "{b}" * n)) for n in range(1, 7)]
    readers.add("alice", [*urls[:2], *alike[:5]])
    for beyond, error in (
        (urls[2:], "the limit of 2 different URL Patterns with groups is reached"),
        (alike[5:], "the limit of 5 patterns with the same fixed texts is reached"),
        ([("exact", Exact(str(n))) for n in range(21)], "'bob' declares more than 20 selectors"),
    ):
        with pytest.raises(LimitError, match=error):
            readers.add("bob", [("mqtt", "a"), *beyond])
        index._check()
        assert index.distinct == 7
    readers.add("bob", [*urls[:2], *alike[:5]])


def test_selectors_may_be_an_iterator() -> None:
    readers = SkipFilter(SelectorIndex())
    readers.add("alice", (("exact", topic) for topic in "ab"))
    assert readers.match_any("a") == readers.match_any("b") == ["alice"]


def test_a_returned_bitmap_belongs_to_the_caller() -> None:
    readers = SkipFilter(SelectorIndex())
    readers.add("alice", [("exact", "a"), ("exact", "b")])
    for topics in (("a",), ("a", "b"), ("a",)):
        readers.bitmap(*topics).clear()
        assert readers.match_any(*topics) == ["alice"]
    readers.add("bob", [("exact", "b")])
    assert readers.match_any("a") == ["alice"]
    assert readers.match_any("b") == ["alice", "bob"]


def test_a_topic_seen_once_does_not_displace_one_seen_again() -> None:
    index = Counting()
    readers = SkipFilter(index, capacity=10)
    readers.add("alice", [("uritemplate", "/{id}")])
    for topic in ("/hot", "/hot", *(f"/{n}" for n in range(500))):
        assert readers.match_any(topic) == ["alice"]
    index.asked.clear()
    assert readers.match_any("/hot") == ["alice"]
    assert index.asked == []
    assert readers.match_any("/0") == ["alice"]
    assert index.asked == ["/0"]


def test_a_topic_that_comes_again_is_looked_up_twice_until_a_value_is_added() -> None:
    index = Counting()
    readers = SkipFilter(index)
    readers.add("alice", [("exact", "a")])
    readers.add("bob", [("exact", "a")])
    for _ in range(3):
        readers.match_any("a")
        readers.matches("a")
    readers.remove("bob")
    assert readers.match_any("a") == ["alice"]
    assert index.asked == ["a", "a"]
    readers.add("carol", [])
    for _ in range(2):
        assert readers.match_any("a") == ["alice"]
    assert index.asked == ["a", "a", "a"]
    readers.match_any("b")
    assert len(readers._entries) == 1


def test_a_topic_is_tested_against_the_newest_selectors_only_if_the_journal_has_them_all() -> None:
    selectors = [("exact", topic) for topic in "abcd"]
    for size in range(1, 6):
        for topic in "abcd":
            index = Counting()
            index._journal = deque(maxlen=size)
            readers = SkipFilter(index)
            readers.add("first", [])
            for _ in range(2):
                assert readers.match_any(topic) == []
            readers.add("second", selectors)
            assert readers.match_any(topic) == ["second"]


@pytest.mark.parametrize("arrivals", [1, 31, 32, 33, 100])
def test_a_topic_of_several_selectors_is_extended_by_any_number_of_arrivals(arrivals: int) -> None:
    selectors: list[Selector] = [("exact", "/a"), ("mqtt", "/+"), ("uritemplate", "/{name}")]
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex())
    for value, selector in enumerate(selectors):
        readers.add(value, [selector])
    for _ in range(3):
        assert readers.match_any("/a") == [0, 1, 2]
    for value in range(3, 3 + arrivals):
        readers.add(value, [selectors[value % 2]])
    assert readers.match_any("/a") == list(range(3 + arrivals))
    readers._check()


# -- explain


@pytest.mark.parametrize(
    ("selector", "matched", "other", "reason"),
    [
        (("exact", "abc"), "abc", "abd", "character 3 is 'd', not 'c'"),
        (("exact", "abc"), "abc", "ab", "the topic ends before 'c'"),
        (("exact", "abc"), "abc", "abcde", "the topic goes on with 'de'"),
        (("exact", "abc"), "abc", "", "the topic ends before 'abc'"),
        (("uritemplate", "/a/{id}/c"), "/a/1/c", "/a/1/d", "after '/a/1' it asks for '/c'"),
        (("uritemplate", "https://a.com/{id}"), "https://a.com/1", "/a/1", "the template begins with 'https://a.com/'"),
        (("uritemplate", "/a/{id}"), "/a/1", "/a/1/c", "after '/a/1' comes '/', which {id} does not take"),
        (
            ("uritemplate", "/t/{a}/{+rest}"),
            "/t/a/b",
            "/t/a/b c",
            "after '/t/a/b' comes ' ', which {+rest} does not take",
        ),
        (("uritemplate", "/a{?q}"), "/a?q=1", "/a/b", "after '/a' comes '/', which {?q} does not take"),
        (("uritemplate", "/{a}/b"), "/1/b", "/1/b/c", "it ends after '/1/b'"),
        (("urlpattern", "/a/:id"), "https://e.com/a/1", "/b/1", "its pathname is '/b/1'"),
        (("amqp", "a.*"), "a.b", "b.a", "word 1 is 'b'"),
        (("mqtt", "a/#"), "a", "b/a", "word 1 is 'b'"),
        (("mqtt", "+"), "a", "$SYS", "a topic that begins with $ is hidden from a wildcard at the beginning"),
        (("prefix", "a"), "ab", "b", "it does not begin with a"),
    ],
)
def test_an_explanation_says_what_matched_and_why_the_rest_did_not(
    selector: Selector, matched: str, other: str, reason: str
) -> None:
    readers = SkipFilter(index := Counting())
    readers.add("alice", [selector, ("everything", "*")])
    assert reasons(index, matched, "alice") == {selector: None, ("everything", "*"): None}
    assert reasons(index, other, "alice") == {selector: reason, ("everything", "*"): None}


def test_a_missing_value_has_no_selectors() -> None:
    index = SelectorIndex()
    for ask in (index.explain, SkipFilter(index).explain):
        with pytest.raises(KeyError, match="alice"):
            ask("a", "alice")
    for selectors in (index.declared, SkipFilter(index).__getitem__):
        with pytest.raises(KeyError, match="alice"):
            selectors("alice")


def test_an_explanation_has_the_variables_of_a_template() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    readers.add("alice", [("uritemplate", "/books/{id}{?page}"), ("exact", "/books/1"), ("uritemplate", "/{a}")])
    assert readers.explain("/books/1?page=2", "alice") == [
        Explanation(("uritemplate", "/books/{id}{?page}"), None, {"id": "1", "page": "2"}),
        Explanation(("exact", "/books/1"), "the topic goes on with '?page=2'"),
        Explanation(
            ("uritemplate", "/{a}"),
            "after '/books' comes '/', which {a} does not take",
            near_miss="with {+…} for {…}, which takes slashes",
        ),
    ]
    assert [str(explanation) for explanation in readers.explain("/books/1", "alice")] == [
        "uritemplate '/books/{id}{?page}' matches: id = '1'",
        "exact '/books/1' matches",
        "uritemplate '/{a}' does not match: after '/books' comes '/', which {a} does not take; "
        "it would match with {+…} for {…}, which takes slashes",
    ]
    readers.remove("alice")
    with pytest.raises(KeyError, match="alice"):
        readers.explain("/books/1", "alice")


def test_selectors_are_those_that_were_declared() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    declared = [("uritemplate", "/{a}"), ("uritemplate", "/{b}"), ("amqp", "a.#")]
    readers.add("alice", [*declared, ("amqp", Amqp("a.#"))])
    readers.add("bob", [])
    assert readers["alice"] == tuple(declared)
    assert readers["bob"] == ()
    assert readers.explain("/x", "bob") == []


# -- errors and bounds


REFUSED: list[tuple[Selector, type[Exception], str]] = [
    (("glob", "*"), LookupError, "matcher type 'glob' is none of exact, everything, uritemplate, .*, prefix"),
    (("exact", "a" * 251), PatternError, "exact pattern 'aa.*: it has 251 characters; the limit is 250"),
    (("everything", "#"), PatternError, "it can only be"),
    (("uritemplate", "{"), PatternError, "uritemplate pattern '{'"),
    (("uritemplate", "{" + "a," * 99 + "a}{b}"), PatternError, "it has more than 100 variables"),
    (("urlpattern", "/(a"), PatternError, r"urlpattern pattern '/\(a'"),
    (("urlpattern", "/(third)"), LimitError, "the limit of 2 different URL Patterns with groups is reached"),
    (("amqp", "a..b"), PatternError, "amqp pattern 'a..b': a word is empty"),
    (("amqp", ".".join("a" * 100) + ".#"), PatternError, "it has more than 100 words"),
    (("mqtt", "#/a"), PatternError, "mqtt pattern '#/a': # may only stand at the end"),
    (("mqtt", "\x00"), PatternError, "it contains a NUL"),
]


@pytest.mark.parametrize(("refused", "error", "message"), REFUSED)
@pytest.mark.parametrize("at", range(4))
def test_a_refused_selector_leaves_nothing_of_the_value_behind(
    refused: Selector, error: type[Exception], message: str, at: int
) -> None:
    index = Counting(max_length=250, max_url_patterns=2)
    readers = SkipFilter(index)
    shared = [("urlpattern", "/(first)"), ("uritemplate", "{+a}x"), ("amqp", "#.a")]
    readers.add("alice", [*shared, ("urlpattern", "/(second)")])
    before = index.distinct
    for others in (shared, [("uritemplate", "{+a}y"), ("mqtt", "a/+/#"), ("prefix", "a")]):
        with pytest.raises(error, match=message):
            readers.add("bob", [*others[:at], refused, *others[at:]])
        index._check()
        readers._check()
        assert index.distinct == before
        assert "bob" not in readers
    assert readers.match_any("/first") == ["alice"]
    readers.add("bob", shared)
    assert readers.match_any("https://e.com/first") == ["alice", "bob"]
    readers.remove("bob")
    readers.remove("alice")
    assert_empty(index)


def test_an_invalid_selector_leaves_nothing_behind() -> None:
    index = SelectorIndex()
    readers: SkipFilter[object, str] = SkipFilter(index)
    wrong: list[Any] = [("exact",), ("exact", "a", "b"), "exact", 7, ("exact", None), (["exact"], "a")]
    for selector in wrong:
        with pytest.raises((TypeError, ValueError)):
            readers.add("alice", [("amqp", "a.#"), selector, ("exact", "b")])
        assert_empty(index)
    with pytest.raises(TypeError):
        readers.add([], [("exact", "a")])
    assert_empty(index)
    assert len(readers) == 0


@pytest.mark.parametrize(
    ("selectors", "message"),
    [
        ("/x", "selectors '/x': not a list; write [(matcher type, '/x')], with a type of exact, "),
        (("exact", "/x"), "selectors ('exact', '/x'): not a list; write [('exact', '/x')]"),
        (("/x", "/y"), "selectors ('/x', '/y'): not a list; a matcher type is one of exact, "),
        ({"exact": "/x"}, "selectors {'exact': '/x'}: not a list; write [('exact', '/x')]"),
        (Exact("/x"), "selectors Exact(pattern='/x'): not a list; write [Exact(pattern='/x')]"),
        (7, "selectors 7: not a list; a matcher type is one of exact, "),
        (["/x"], "selector '/x': not a (matcher type, pattern); write [(matcher type, '/x')], with a type of exact, "),
        *(
            ([wrong], f"selector {wrong!r}: not a (matcher type, pattern); a matcher type is one of exact, ")
            for wrong in [("exact", "/x", "/y"), ("wrong", 1), 7]
        ),
        *(
            (
                [("exact", wrong)],
                f"selector ('exact', {wrong!r}): the pattern is of type {type(wrong).__name__}, not str",
            )
            for wrong in [1, b"/x", None, ["/x", "/y"]]
        ),
        ('[["exact", "/x"]]', """selectors '[["exact", "/x"]]': not a list; write json.loads(text)"""),
        (re.compile("x"), "selectors re.compile('x'): not a list; a regular expression needs a predicate"),
        ([re.compile("x")], "selector re.compile('x'): not a (matcher type, pattern); a regular expression needs"),
        (
            [("exact", Exact(1))],  # type: ignore[arg-type]
            "selector ('exact', Exact(pattern=1)): the pattern is of type Exact, not str",
        ),
    ],
)
def test_the_error_shows_selectors_that_are_not_a_list_of_pairs(selectors: Any, message: str) -> None:
    index = SelectorIndex()
    readers: SkipFilter[str, str] = SkipFilter(index)
    for declare in (readers.add, lambda value, selectors: readers.add_many({value: selectors})):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            declare("alice", selectors)
    assert_empty(index)
    readers.add("alice", [["exact", "/x"]])  # type: ignore[list-item]  # as JSON writes it
    assert readers.match_any("/x") == ["alice"]


def test_an_iterator_is_read_no_further_than_the_limit_of_selectors() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Selector]:
        for n in count():
            taken.append(n)
            yield "exact", str(n)

    with pytest.raises(LimitError, match="'alice' declares more than 3 selectors"):
        SkipFilter(SelectorIndex(max_selectors=3)).add("alice", endless())
    assert taken == [0, 1, 2, 3]


def test_an_error_shows_no_more_than_the_beginning_of_a_long_value_or_type() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex(max_selectors=0))
    for value, selectors in (("v" * 1_000, [("exact", "/x")]), ("v", [("t" * 1_000, "/x")])):
        with pytest.raises((LimitError, LookupError)) as caught:
            readers.add(value, selectors)
        assert len(str(caught.value)) < 250
        readers = SkipFilter(SelectorIndex())


def test_an_index_serves_one_filter() -> None:
    index = SelectorIndex()
    one: SkipFilter[str, str] = SkipFilter(index)
    other: SkipFilter[str, str] = SkipFilter(index)
    one.add("a", [("exact", "/x")])
    with pytest.raises(ValueError, match="id 0 comes after 0: an index serves one SkipFilter"):
        other.add("b", [("exact", "/y")])
    other._check()
    index._check()
    assert one.match_any("/y") == []
    # The index has ids that the other filter does not have.
    for call in (other.match_any, other.match_all, other.matches, other.bitmap):
        with pytest.raises(
            ValueError, match="the index has the values of another filter: an index serves one SkipFilter"
        ):
            call("/x")
    assert one.match_any("/x") == ["a"]


def test_selectors_must_be_given_even_if_there_are_none() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    for _ in "ab":  # also if the value is there already
        with pytest.raises(TypeError, match=r"^the selectors of 'x' are missing; if it declares none, pass \[\]$"):
            readers.add("x")
        readers.add("x", [])
    assert (len(readers), readers.match_any("/x")) == (1, [])


def test_a_source_that_says_nothing_needs_no_selectors() -> None:
    class Even:
        def add(self, id: int, value: int, selectors: Any) -> None:
            assert list(selectors) == []

        def discard(self, id: int, value: int) -> None: ...

        def matching(self, key: str, start: int) -> list[int]:
            return [id for id in range(start, 3) if id > 0]

    numbers: SkipFilter[int, str] = SkipFilter(Even())
    numbers.add_many([(1, []), (2, []), (4, [])])
    assert [numbers.id_of(number) for number in (1, 2, 4)] == [0, 1, 2]
    assert numbers.match_any("even") == [2, 4]


def test_a_source_is_not_a_class() -> None:
    with pytest.raises(TypeError, match="SelectorIndex is a class"):
        SkipFilter(SelectorIndex)  # type: ignore[arg-type]


def test_a_value_added_during_another_add_gets_its_own_id() -> None:
    index = SelectorIndex()
    readers: SkipFilter[str, str] = SkipFilter(index)

    def meddling() -> Iterator[Selector]:
        readers.add("inner", [("exact", "/y")])
        yield "exact", "/x"

    with pytest.raises((RuntimeError, ValueError)):
        readers.add("outer", meddling())
    readers._check()
    index._check()
    assert readers.match_any("/x", "/y") == ["inner"]


def test_a_custom_matcher_may_add_a_value_during_a_match() -> None:
    class Meddling(Prefix):
        def match(self, topic: str) -> bool:
            readers.add(f"for {topic}", [("meddling", f"another {topic}")])
            return True

    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex(matchers={"meddling": Meddling}))
    readers.add("a", [("meddling", "/")])
    assert readers.match_any("/x") == ["a"]
    assert list(readers) == ["a", "for /x"]


def test_values_that_come_and_go_while_a_pattern_is_compiled_leave_the_journal_sorted() -> None:
    def compile(pattern: str) -> Prefix:
        for value in ("x", "y"):
            readers.add(value, [("exact", value)])
        for value in ("y", "x"):
            readers.remove(value)
        return Prefix(pattern)

    index = SelectorIndex(matchers={"prefix": compile})
    readers: SkipFilter[str, str] = SkipFilter(index)
    with pytest.raises(ValueError, match="the filter was changed while the selectors of a value were compiled"):
        readers.add("z", [("prefix", "a")])
    index._check()
    readers.add("z", [("exact", "ab")])
    assert readers.match_any("ab") == ["z"]
    index._check()


def test_explaining_does_not_change_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    index = SelectorIndex()
    index.add(0, "a", [("uritemplate", "/x/{a}")])
    index.add(1, "b", [("urlpattern", "https://e.com/:x")])
    monkeypatch.setattr(index._tables["uritemplate"], "compile", None)
    monkeypatch.setattr(index._tables["urlpattern"], "_compiled", None)  # not for several threads
    assert reasons(index, "/x/1", "a") == {("uritemplate", "/x/{a}"): None}
    assert reasons(index, "https://e.com/1", "b") == {("urlpattern", "https://e.com/:x"): None}


def test_explaining_works_while_other_threads_declare() -> None:
    index = SelectorIndex()
    readers: SkipFilter[int, str] = SkipFilter(index)
    readers.add(-1, [("uritemplate", "/x/{a}")])
    failed: list[BaseException] = []

    def declare() -> None:
        try:
            for n in range(3_000):
                readers.add(n, [("uritemplate", f"/x{n}/{{a}}")])
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=declare)
    thread.start()
    while thread.is_alive():
        assert reasons(index, "/x/1", -1) == {("uritemplate", "/x/{a}"): None}
        assert index.verified == 0
    thread.join()
    assert failed == []


def test_url_patterns_with_large_automata_are_refused_unless_they_are_trusted() -> None:
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex(base_url=BASE))
    large = "/a{/:b}?/(c{990}d{990}e{990})"
    with pytest.raises(PatternError, match="its regular expressions are too large"):
        readers.add(1, [("urlpattern", large)])
    readers.add(1, [("urlpattern", "/a{/:b}?/(c\\d{2,3})")])
    assert readers.match_any("/a/x/c12") == readers.match_any("/a/c123") == [1]
    readers = SkipFilter(SelectorIndex(base_url=BASE, regexp_groups=True))
    readers.add(1, [("urlpattern", large)])
    assert readers.match_any("/a/" + "".join(char * 990 for char in "cde")) == [1]


def test_the_number_of_templates_that_only_a_matcher_can_distinguish_is_bounded() -> None:
    with pytest.raises(ValueError, match="max_alike must be more than 4, not 4"):
        SelectorIndex(max_alike=4)
    index = SelectorIndex(max_alike=10)
    readers: SkipFilter[int, str] = SkipFilter(index)
    for n in range(10):
        readers.add(n, [("uritemplate", "{+a}" + "{b}" * (n + 1))])
    with pytest.raises(LimitError, match="the limit of 10 patterns with the same fixed texts is reached"):
        readers.add(10, [("exact", "/x"), ("uritemplate", "{+a}" + "{b}" * 11)])
    index._check()
    readers._check()
    assert index.distinct == 10
    readers.add(11, [("uritemplate", "{+a}/x")])  # which has a text
    assert readers.match_any("/x") == [*range(10), 11]


def test_a_function_may_decide_about_templates_above_the_limit() -> None:
    asked: list[tuple[object, list[list[int]]]] = []

    def ask(value: object, others: list[PostingList]) -> None:
        asked.append((value, sorted(map(list, others))))
        if len(others) == 8:
            raise PermissionError(value)

    index = SelectorIndex(max_alike=5, above_max_alike=ask)
    readers: SkipFilter[str, str] = SkipFilter(index)
    alike = [("uritemplate", "{+a}" + "{b}" * (n + 1)) for n in range(9)]
    readers.add("alice", alike[:5])
    readers.add("bob", [alike[0], ("exact", "/x")])
    assert asked == []  # bob shares the template
    readers.add("carol", alike[4:7])
    first = [[0], [0], [0], [0], [0, 1]]
    assert asked == [("carol", first), ("carol", [[], *first])]  # one is carol's own
    with pytest.raises(PermissionError, match="dave"):
        readers.add("dave", [("exact", "/y"), *alike[7:]])
    index._check()
    readers._check()
    assert (index.distinct, readers.match_any("/y")) == (8, ["alice", "bob", "carol"])
    readers.remove("carol")
    readers.add("dave", alike[7:])
    assert [value for value, _ in asked[2:]] == ["dave"] * 4


def test_the_number_of_selectors_of_a_value_is_bounded() -> None:
    index = SelectorIndex(max_selectors=3)
    readers = SkipFilter(index)
    readers.add("alice", [("exact", topic) for topic in "abc" * 5])
    with pytest.raises(LimitError, match="'bob' declares more than 3 selectors"):
        readers.add("bob", [("exact", topic) for topic in "abcd"])
    index._check()
    assert len(readers) == 1
    readers.add("bob", [("exact", topic) for topic in "bcd"])


def test_the_length_of_a_pattern_is_bounded() -> None:
    readers = SkipFilter(SelectorIndex(max_length=5))
    readers.add("alice", [("exact", "a" * 5)])
    for matcher_type in ("exact", "uritemplate", "urlpattern", "amqp", "mqtt"):
        with pytest.raises(PatternError, match=f"{matcher_type} pattern 'aaaaaa': it has 6 characters; the limit is 5"):
            readers.add("bob", [(matcher_type, "a" * 6)])
    with pytest.raises(PatternError, match="it has 4,097 characters; the limit is 4,096"):
        SkipFilter(SelectorIndex()).add("alice", [("exact", "a" * 4097)])


def test_the_variables_of_a_template_and_the_words_of_a_pattern_are_bounded() -> None:
    readers = SkipFilter(SelectorIndex())
    readers.add("alice", [("uritemplate", "{a}" * 100), ("amqp", ".".join("#*" * (MAX_WORDS // 2)))])
    for selector in (
        ("uritemplate", "{a}" * 101),
        ("amqp", ".".join("a" * (MAX_WORDS + 1))),
        ("mqtt", "/" * MAX_WORDS),
    ):
        with pytest.raises(PatternError, match="it has more than 100"):
            readers.add("bob", [selector])


def test_the_number_of_different_url_patterns_with_groups_is_bounded() -> None:
    index = SelectorIndex(base_url=BASE, max_url_patterns=2)
    readers = SkipFilter(index)
    readers.add("alice", [("urlpattern", "/(a)"), ("urlpattern", "/(b)"), ("urlpattern", "/:a/:b")])
    readers.add("bob", [("urlpattern", "/(b)"), ("urlpattern", "/b/:c")])
    with pytest.raises(LimitError, match="the limit of 2 different URL Patterns with groups is reached"):
        readers.add("carol", [("urlpattern", "/(c)")])
    readers.remove("alice")
    readers.add("carol", [("urlpattern", "/(c)")])
    assert readers.match_any("/c") == ["carol"]
    assert readers.match_any("/b") == ["bob"]
    assert readers.match_any("/a") == []


def test_an_error_of_a_matcher_reaches_the_caller_and_nothing_is_cached() -> None:
    class Broken(Prefix):
        def match(self, topic: str) -> bool:
            if broken:
                raise RuntimeError("broken")
            return True

    broken = True
    readers = SkipFilter(SelectorIndex(matchers={"broken": Broken}))
    readers.add("alice", [("broken", "a")])
    with pytest.raises(RuntimeError, match="broken"):
        readers.match_any("a")
    readers._check()
    broken = False
    assert readers.match_any("a") == ["alice"]


def test_a_custom_matcher_type_may_replace_one_of_the_library() -> None:
    readers = SkipFilter(SelectorIndex(matchers={"exact": Prefix}))
    readers.add("alice", [("exact", "a")])
    assert readers.match_any("ab") == ["alice"]


# -- the model

SELECTORS: list[Selector] = [
    ("exact", "/a"),
    ("exact", "a.b"),
    ("everything", "*"),
    # two of one language, whole segments, and more than a few in one residual
    *(("uritemplate", template) for template in ("/{a}", "/{b}", "/a", "/a{?q}", "{+a}b", "{+x}b", "{+a}", "/a/{x}")),
    *(("uritemplate", template) for template in ("{+a}/b", "/a{+b}", "a{+b}", "{+a}a{+b}", "{+a}?{+b}", "{x}.{y}")),
    *(("urlpattern", pattern) for pattern in ("/:a", "/:b", "/a/:b?", "https://*.e.com/*", "/*b")),
    *(("amqp", pattern) for pattern in ("a.*", "#", "#.#", "#.b", "*.#.b", "")),
    *(("mqtt", pattern) for pattern in ("+/a", "#", "/#", "$SYS/#", "+/+/b")),
    ("prefix", "/"),
    ("prefix", "a"),
]
TOPICS = ["/a", "/b", "a.b", "", "/a/b", "$SYS/a", "/a?q=1", "https://x.e.com/b", "\ud800", "c.b.b", "a", "/"]
MATCHING = {(selector, topic): matcher_of(selector).match(topic) for selector in SELECTORS for topic in TOPICS}
MALFORMED: list[Selector] = [("uritemplate", "{"), ("amqp", "a..b"), ("glob", "*"), ("mqtt", ""), ("urlpattern", "(")]

values = st.integers(0, 6)
topics = st.lists(st.integers(0, 3), max_size=3)  # each is one of the few topics of a machine


class AgainstMatchers(RuleBasedStateMachine):
    """Every question against the matchers, with few selectors, few topics, a cache of
    two to six topics or of few bytes, and a journal of one to four selectors.
    """

    @initialize(
        capacity=st.integers(2, 7),
        max_bytes=st.sampled_from([0, 500, 1_500, 10**6]),
        journal=st.integers(1, 4),
        seen=st.booleans(),
        some=st.lists(st.sampled_from(SELECTORS), min_size=3, max_size=12),
        few=st.permutations(TOPICS),
    )
    def begin(
        self, capacity: int, max_bytes: int, journal: int, seen: bool, some: list[Selector], few: list[str]
    ) -> None:
        self.index = Counting()
        self.index._journal = deque(maxlen=journal)
        self.filter: SkipFilter[int, str] = SkipFilter(self.index, capacity=capacity, max_bytes=max_bytes)
        if seen:  # each topic is cached when it is asked first
            self.filter._entries._cache.seen = lambda _: True  # type: ignore[assignment, method-assign]
        self.some = some
        self.few = few[:4]
        self.model: dict[int, tuple[int, set[Selector]]] = {}
        self.ids = 0

    def draw(self, data: st.DataObject, most: int = 4) -> list[Selector]:
        return data.draw(st.lists(st.sampled_from(self.some), max_size=most))

    def forms(self, data: st.DataObject, selectors: list[Selector]) -> list[Selector | CompiledSelector]:
        """The same selectors, some of them compiled."""
        return [compiled(selector) if data.draw(st.booleans()) else selector for selector in selectors]

    @rule(value=values, data=st.data())
    def add(self, value: int, data: st.DataObject) -> None:
        selectors = self.draw(data)
        forms = self.forms(data, selectors)
        if value not in self.model:
            self.filter.add(value, forms)
            id = self.filter.id_of(value)
            assert id >= self.ids
            self.ids = id + 1
            self.model[value] = id, set(selectors)
        elif self.model[value][1] == set(selectors):
            self.filter.add(value, forms)
            assert self.filter.id_of(value) == self.model[value][0]
        else:
            with pytest.raises(ValueError, match="is in the filter with other selectors"):
                self.filter.add(value, forms)

    @rule(value=values, data=st.data())
    def declare_again(self, value: int, data: st.DataObject) -> None:
        if value in self.model:
            id, selectors = self.model[value]
            again = data.draw(st.permutations(sorted(selectors)))
            self.filter.add(value, self.forms(data, again))
            assert self.filter.id_of(value) == id

    @rule(value=values, data=st.data(), malformed=st.sampled_from([*MALFORMED, *(wrong for wrong, _ in WRONG)]))
    def refuse(self, value: int, data: st.DataObject, malformed: Selector | CompiledSelector) -> None:
        selectors = self.forms(data, self.draw(data))
        selectors.insert(data.draw(st.integers(0, len(selectors))), malformed)
        with pytest.raises((ValueError, LookupError)):
            self.filter.add(value, selectors)
        with pytest.raises((ValueError, LookupError)):
            self.filter.replace(value, selectors)

    @rule(some=st.lists(values, unique=True, max_size=4), data=st.data())
    def add_many(self, some: list[int], data: st.DataObject) -> None:
        pairs = [(value, self.draw(data)) for value in some]
        if any(value in self.model and self.model[value][1] != set(selectors) for value, selectors in pairs):
            with pytest.raises(ValueError, match="is in the filter with other selectors"):
                self.filter.add_many(pairs)
            return
        self.filter.add_many((value, self.forms(data, selectors)) for value, selectors in pairs)
        for value, selectors in pairs:
            if value not in self.model:
                self.model[value] = self.ids, set(selectors)
                assert self.filter.id_of(value) == self.ids
                self.ids += 1

    @rule(some=st.lists(values, unique=True, min_size=1, max_size=4), at=st.integers(0, 3), data=st.data())
    def refuse_many(self, some: list[int], at: int, data: st.DataObject) -> None:
        malformed = data.draw(st.sampled_from([*MALFORMED, *(wrong for wrong, _ in WRONG)]))
        pairs: list[tuple[int, list[Any]]] = [(value, [*self.forms(data, self.draw(data))]) for value in some]
        pairs[at % len(pairs)][1].append(malformed)
        with pytest.raises((ValueError, LookupError)):
            self.filter.add_many(pairs)

    @rule(value=values)
    def discard(self, value: int) -> None:
        assert self.filter.discard(value) is (value in self.model)
        self.model.pop(value, None)

    @rule()
    def clear(self) -> None:
        self.filter.clear()
        self.model.clear()

    @rule(topic=st.sampled_from(TOPICS))
    def forget(self, topic: str) -> None:
        cached = len(self.filter._entries)
        assert self.filter.forget(topic) is (len(self.filter._entries) < cached)
        assert self.filter.forget(topic) is False

    @rule(value=values, data=st.data(), topic=st.integers(0, 3), at_once=st.booleans())
    def replace(self, value: int, data: st.DataObject, topic: int, at_once: bool) -> None:
        """Look up, give a value other selectors, look up: no result is stale."""
        self.match_any([topic])
        if at_once and value in self.model:
            selectors = self.draw(data)
            self.filter.replace(value, self.forms(data, selectors))
            del self.model[value]
            self.model[value] = self.ids, set(selectors)
            assert self.filter.id_of(value) == self.ids
            self.ids += 1
        else:
            self.discard(value)
            self.add(value, data)
        self.match_any([topic])

    def wants(self, value: int, topic: str) -> bool:
        return any(MATCHING[selector, topic] for selector in self.model[value][1])

    @rule(asked=topics)
    def match_any(self, asked: list[int]) -> None:
        topics = [self.few[n] for n in asked]
        expected = [value for value in self.model if any(self.wants(value, topic) for topic in topics)]
        assert self.filter.match_any(*topics) == expected

    @rule(asked=topics)
    def match_all(self, asked: list[int]) -> None:
        topics = [self.few[n] for n in asked]
        expected = [value for value in self.model if all(self.wants(value, topic) for topic in topics)]
        assert self.filter.match_all(*topics) == expected

    @rule(asked=topics)
    def matches(self, asked: list[int]) -> None:
        topics = [self.few[n] for n in asked]
        assert self.filter.matches(*topics) is any(self.wants(v, topic) for v in self.model for topic in topics)

    @rule(asked=topics)
    def bitmap(self, asked: list[int]) -> None:
        topics = [self.few[n] for n in asked]
        bitmap = self.filter.bitmap(*topics)
        assert list(bitmap) == [id for v, (id, _) in self.model.items() if any(self.wants(v, t) for t in topics)]
        bitmap.clear()  # it is ours

    @rule(value=values, topic=st.sampled_from(TOPICS))
    def explain(self, value: int, topic: str) -> None:
        if value in self.model:
            assert set(self.filter[value]) == self.model[value][1]
            explained = reasons(self.index, topic, value)
            assert set(explained) == self.model[value][1]
            assert all((why is None) is MATCHING[selector, topic] for selector, why in explained.items())

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "filter"):
            self.filter._check()
            self.index._check()
            assert list(self.filter) == list(self.model)
            assert {value: set(declared) for value, declared in self.filter.items()} == {
                value: selectors for value, (_, selectors) in self.model.items()
            }
            assert self.index.distinct <= len(
                {selector for _, selectors in self.model.values() for selector in selectors}
            )

    def teardown(self) -> None:
        if hasattr(self, "filter"):
            for value in self.model:
                self.filter.remove(value)
            assert_empty(self.index)


TestAgainstMatchers = AgainstMatchers.TestCase
TestAgainstMatchers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@settings(deadline=None)
@given(st.text(), st.lists(st.sampled_from(SELECTORS), max_size=5))
def test_no_text_of_a_topic_causes_an_error(topic: str, some: list[Selector]) -> None:
    index = Counting()
    readers = SkipFilter(index)
    for value, selector in enumerate(some):
        readers.add(value, [compiled(selector) if value % 2 else selector])
    expected = [value for value, selector in enumerate(some) if matcher_of(selector).match(topic)]
    assert readers.match_any(topic) == expected
    assert readers.matches(topic) is bool(expected)
    for value in range(len(some)):
        index.explain(topic, value)


# -- memory


def churn(readers: SkipFilter[Any, str], rng: random.Random, changes: int, most: int = 200) -> None:
    """Run random adds and removes of all kinds, with lookups in between."""
    there: list[int] = []
    for n in range(changes):
        if there and (len(there) >= most or rng.random() < 0.45):
            at = rng.randrange(len(there))
            there[at], there[-1] = there[-1], there[at]
            readers.remove(there.pop())
        else:
            there.append(n)
            wanted = rng.sample(CHURNED, rng.randrange(4))
            readers.add(n, [compiled(selector) if rng.random() < 0.3 else selector for selector in wanted])
        if n % 7 == 0:
            readers.match_any(f"/{rng.randrange(30):02}/a.{rng.randrange(30):02}")
    for value in there:
        readers.remove(value)


# Topics of a kind have the same length, so that all full caches have the same size.
CHURNED: list[Selector] = [
    selector
    for n in range(10, 30)
    for selector in (
        ("exact", f"/{n}/a"),
        ("uritemplate", f"/{n}/{{a}}/{{b}}"),
        ("uritemplate", f"/{{a}}/{n}/{{b}}/{n}"),
        ("uritemplate", f"{{+a}}/x{n}"),
        ("uritemplate", f"/s{{+a}}mid{n}{{+b}}"),
        ("urlpattern", f"/{n}/:a?"),
        ("amqp", f"#.a.{n}"),
        ("amqp", f"{n}.#.b.*"),
        ("mqtt", f"+/{n}/#"),
        ("mqtt", f"/{n}/+"),
        ("prefix", f"/{n}"),
    )
] + [("everything", "*")]


@pytest.mark.parametrize("seed", range(3))
def test_removing_everything_leaves_nothing_behind(seed: int) -> None:
    index = Counting()
    readers = SkipFilter(index, capacity=20)
    rng = random.Random(seed)
    for most in (5, 300, 20):
        churn(readers, rng, 700, most)
        readers._check()
        assert len(readers) == 0
        assert_empty(index)
        assert readers.match_any("/10/a.10") == []
        assert len(readers._entries) <= 20


def test_memory_is_released() -> None:
    tracemalloc.start()
    try:
        index = SelectorIndex(base_url=BASE, matchers={"prefix": Prefix})
        readers = SkipFilter(index, capacity=50)
        rng = random.Random(7)
        before = traced_after(readers, rng, 12_000)
        after = traced_after(readers, rng, 12_000)
    finally:
        tracemalloc.stop()
    assert_empty(index)
    assert after - before < 32 * 1024


def traced_after(readers: SkipFilter[Any, str], rng: random.Random, changes: int) -> int:
    """Return the bytes of Python's objects after `changes` changes, with full
    caches.
    """
    churn(readers, rng, changes)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


# -- SkipFilter: from ids to values


class ManyIds(RuleBasedStateMachine):
    """Old and new values together, while the list of recent ones is often cut."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()

    @initialize(spare=st.integers(0, 6), few=st.integers(2, 5))
    def begin(self, spare: int, few: int) -> None:
        self.patched.setattr(values_module, "SPARE", spare)
        self.patched.setattr(values_module, "FEW", few)
        self.filter: SkipFilter[int, int] = SkipFilter(lambda value, key: value % key == 0, capacity=3)
        self.ids: dict[int, int] = {}
        self.next = 0

    @rule(count=st.integers(1, 9))
    def add(self, count: int) -> None:
        for _ in range(count):
            self.filter.add(self.next)
            self.ids[self.next] = self.filter.id_of(self.next)
            self.next += 1

    @rule(count=st.integers(1, 20))
    def come_and_go(self, count: int) -> None:
        """Remove many values, so that the remaining ones are older than those of the
        list.
        """
        for _ in range(count):
            self.filter.remove(self.next) if self.next in self.filter else self.filter.add(self.next)
        if self.next in self.filter:
            self.filter.remove(self.next)
        self.next += 1

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.ids:
            value = data.draw(st.sampled_from(list(self.ids)))
            self.filter.remove(value)
            del self.ids[value]

    @rule(value=st.integers(0, 10))
    def add_again(self, value: int) -> None:
        if value < self.next and value not in self.ids:
            self.filter.add(value)
            self.ids[value] = self.filter.id_of(value)

    @rule(key=st.integers(1, 4))
    def match_any(self, key: int) -> None:
        assert self.filter.match_any(key) == [value for value in self.ids if value % key == 0]

    @rule(data=st.data())
    def some_of_them(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.integers(0, max(self.ids.values(), default=0) + 2)))
        assert self.filter.values(BitMap64(some)) == [value for value, id in self.ids.items() if id in some]

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "filter"):
            self.filter._check()
            assert list(self.filter) == list(self.ids)
            assert list(self.filter.walk()) == [(id, value) for value, id in self.ids.items()]

    def teardown(self) -> None:
        self.patched.undo()


TestManyIds = ManyIds.TestCase
TestManyIds.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("recent", range(5))
def test_many_old_values_and_a_few_recent_ones(recent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "SPARE", 0)
    numbers: SkipFilter[int, int] = SkipFilter(lambda value, key: value >= 0)
    for number in range(20):
        numbers.add(number)
    for _ in range(50):
        numbers.add(-1)
        numbers.remove(-1)
    for number in range(20, 20 + recent):
        numbers.add(number)
    assert numbers._values._base > 20
    assert numbers.match_any(0) == list(range(20 + recent))


def test_the_list_of_recent_values_is_bounded_by_the_number_of_values() -> None:
    numbers: SkipFilter[int, int] = SkipFilter(lambda value, key: True)
    for number in range(values_module.SPARE + 20):
        numbers.add(number)
    for number in range(10, values_module.SPARE + 20):
        numbers.remove(number)
    for _ in range(5_000):
        numbers.add(-1)
        numbers.remove(-1)
        assert len(numbers._values._recent) <= 2 * 11 + values_module.SPARE
    assert numbers.match_any(0) == list(range(10))
    for number in range(2_000):
        numbers.add(-number - 2)
    assert numbers.match_any(0) == [*range(10), *range(-2, -2_002, -1)]
    numbers._check()


@pytest.mark.parametrize("tables", [[], ["exact"], ["everything"], ["uritemplate"], ["urlpattern"], ["amqp", "mqtt"]])
@pytest.mark.parametrize("topic", [None, 7, b"/x", ("/x",)])
def test_a_topic_that_is_not_a_string_is_named_with_any_selectors(topic: Any, tables: list[str]) -> None:
    readers: SkipFilter[str, Any] = SkipFilter(SelectorIndex(base_url=BASE))
    readers.add("a", [(table, "+" if table == "mqtt" else "*") for table in tables])
    for ask in (readers.match_any, readers.match_all, readers.matches, readers.bitmap):
        with pytest.raises(TypeError) as caught:
            ask(topic)
        assert str(caught.value) == f"topic {topic!r} is of type {type(topic).__name__}, not str"
    readers._check()


def test_a_topic_that_is_not_a_string_is_not_explained() -> None:
    index = SelectorIndex()
    index.add(0, "a", [("exact", "/x")])
    with pytest.raises(TypeError, match=r"^topic None is of type NoneType, not str$"):
        index.explain(None, "a")  # type: ignore[arg-type]


def test_a_posting_list_that_has_another_only_id_is_read_again() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    readers.add_many({"alice": [("exact", "/a")], "bob": [("mqtt", "/+")]})
    for _ in range(3):  # so that the topic is cached
        assert readers.match_any("/a") == ["alice", "bob"]
    readers.add("carol", [("exact", "/a")])
    readers.remove("alice")
    assert readers.match_any("/a") == ["bob", "carol"]
    readers.replace("carol", [("exact", "/a")])
    assert readers.match_any("/a") == ["bob", "carol"]
    assert readers.id_of("carol") == 3


def test_a_value_may_come_twice_in_add_many_if_it_declares_the_same() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    once = [("exact", "/a"), ("mqtt", "b/+")]
    readers.add_many([("alice", once), ("bob", once), ("alice", tuple(once))])
    readers.add_many([("carol", iter(once)), ("carol", iter(once))])
    assert list(readers.items()) == [(name, tuple(once)) for name in ("alice", "bob", "carol")]
    from_json: Any = [list(one) for one in reversed(once)]
    readers.add_many([("dan", once), ("dan", from_json)])
    readers.remove("dan")
    with pytest.raises(ValueError, match=r"^'dave' comes twice, with different selectors") as caught:
        readers.add_many([("erin", once), ("dave", once), ("dave", once[:1])])
    assert caught.value.__notes__ == ["nothing was added; the value was 'dave'"]
    assert list(readers) == ["alice", "bob", "carol"]
    readers._check()

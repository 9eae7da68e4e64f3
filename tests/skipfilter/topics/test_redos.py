"""Patterns that make a backtracking matcher explode: results are correct, in few steps.

Steps are operations on whole sets of positions, or comparisons of a word; they are
counted, not timed.  Each case runs on a matcher and on an index, which must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skipfilter import SelectorIndex, SkipFilter, UriTemplate, compile_matcher
from skipfilter.topics import positions
from skipfilter.topics.matchers import uri_template
from skipfilter.topics.trie import step
from skipfilter.topics.words import AMQP

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipfilter import Selector


def both(selector: Selector, topic: str) -> bool:
    """Return whether `topic` matches, and check that the matcher and the index
    agree.
    """
    readers = SkipFilter(SelectorIndex(max_length=100_000))
    readers.add("alice", [selector])
    found = readers.match_any(topic) == ["alice"]
    assert compile_matcher(*selector).match(topic) is found
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return the number of operations on whole sets of positions since the last
    call.
    """
    count = 0

    def counting(method: Callable[..., int]) -> Callable[..., int]:
        def counted(*arguments: Any) -> int:
            nonlocal count
            count += 1
            return method(*arguments)

        return counted

    def since() -> int:
        nonlocal count
        count, counted_so_far = 0, count
        return counted_so_far

    for name in ("after", "_star"):
        monkeypatch.setattr(uri_template.Subject, name, counting(getattr(uri_template.Subject, name)))
    return since


def names(count: int, form: str = "{{v{0}}}", separator: str = "") -> str:
    return separator.join(form.format(n) for n in range(count))


# (template, piece, end): the topic is many pieces, which match, and an end, which does
# not.
CASES = [
    *((names(k), "a", "!") for k in (4, 5, 6, 8, 20, 100)),
    *(("https://e.com/" + names(k), "a", "!") for k in (8, 100)),
    *((names(k, "{{v{0}}}x"), "x", "!") for k in (4, 6, 8, 20, 100)),
    *(("{" + names(k, "v{0}", ",") + "}", ",a", "!") for k in (7, 9, 100)),
    ("{a*}", ",", "!"),
    ("https://e.com/{a*}", ",", "!"),
    ("{a*,b*,c*}", ",a=", "!"),
    ("{a,b*}", ",a", "!"),
    *((f"{{{operator}a*}}" * 20, operator, "!") for operator in "./;"),
    ("{/" + names(50, "v{0}", ",") + "}", "/a", "!"),
    ("{;a*}{;b*}", ";a=a", "!"),
    ("{?a*}{&b*}", "&", "!"),
    ("{+a}" * 100, "/a", " "),
    ("{+a}/" * 50, "/", " "),
    ("{+a}{b}{#c}", "#", " "),
    ("{a}{/b*}{c}" * 10, "/", "!"),
    (names(50, "{{v{0}}}%41"), "%41", "%4"),
    (names(50, "{{v{0}}}"), "%41", "%"),
]


def whole(template: str, piece: str, length: int) -> str:
    prefix = template[: template.find("{")]
    return prefix + piece * (length // len(piece))


@pytest.mark.parametrize(("template", "piece", "end"), CASES)
def test_v13_n36_the_steps_of_a_template_do_not_depend_on_the_length_of_the_topic(
    template: str, piece: str, end: str, steps: Callable[[], int]
) -> None:
    variables = template.count("{") + template.count(",")
    counts = []
    for length in (20, 300, 4000):
        assert not both(("uritemplate", template), whole(template, piece, length) + end)
        counts.append(steps())
    # The matcher and the index: a part, its head and a tail for each of its variables,
    # and the literals between.
    assert 0 < max(counts) <= 2 * (4 * variables + 1)


@pytest.mark.parametrize(("template", "piece", "end"), CASES)
def test_v13_n36_the_steps_grow_with_the_variables_and_no_faster(
    template: str, piece: str, end: str, steps: Callable[[], int]
) -> None:
    topic = whole(template, piece, 500)
    prefix = template[: template.find("{")]
    UriTemplate(template).match(topic + end)
    once = steps()
    body = template[len(prefix) :]
    times = 100 // (body.count("{") + body.count(","))
    if times < 2:
        return
    UriTemplate(prefix + body * times).match(topic + end)
    assert steps() <= (once + 1) * times


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        (names(100), "a" * 4000),
        (names(20, "{{v{0}}}x"), "x" * 4000),
        ("{a*}", "," * 4000),
        ("{" + names(9, "v{0}", ",") + "}", ",a" * 2000),
        ("{" + names(9, "v{0}", ",") + "}!", ",a" * 2000 + "!"),
        ("{/a*}" * 20 + "!", "/" * 4000 + "!"),
        ("{+a}/" * 50, "/" * 50),
        ("{+a}/" * 50, "/" * 4000),
        ("{a}b" * 100, "b" * 100),
        (names(50, "{{v{0}}}%41"), "%41" * 1300),
    ],
)
def test_matching_topics_are_found(template: str, topic: str, steps: Callable[[], int]) -> None:
    assert both(("uritemplate", template), topic)
    assert steps() <= 2 * (4 * (template.count("{") + template.count(",")) + 1)


def test_a_topic_that_is_one_piece_short_does_not_match() -> None:
    assert both(("uritemplate", "{+a}/" * 50), "/" * 50)
    assert not both(("uritemplate", "{+a}/" * 50), "/" * 49)
    assert not both(("uritemplate", "{a}b" * 100), "b" * 99)
    assert not both(("uritemplate", "{/" + names(9, "v{0}", ",") + "}"), "/a" * 10)
    assert both(("uritemplate", "{/" + names(9, "v{0}", ",") + "}"), "/a" * 9)


def test_many_bad_templates_share_the_position_sets_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    init = uri_template.Subject.__init__

    def counted(self: uri_template.Subject, text: bytes) -> None:
        nonlocal made
        made += 1
        init(self, text)

    monkeypatch.setattr(uri_template.Subject, "__init__", counted)
    readers = SkipFilter(SelectorIndex())
    for n in range(50):
        readers.add(n, [("uritemplate", "{a}" * (n + 2) + "x")])
    assert readers.match_any("a!/" * 1000 + "!x") == []
    assert made == 1
    assert readers.match_any("a" * 1000 + "x") == list(range(50))
    assert made == 2


# -- AMQP and MQTT


class Counted(str):
    """A word that counts how often it is hashed or compared."""

    __slots__ = ()
    seen = 0

    def __eq__(self, other: object) -> bool:
        Counted.seen += 1
        return super().__eq__(other)

    def __hash__(self) -> int:
        Counted.seen += 1
        return super().__hash__()


@pytest.mark.parametrize(
    "pattern", ["#" + ".a.#" * 49, "#" + ".a.#.*.#" * 24, "*.#." * 40 + "b", "#.a.a.a.a.b." * 9 + "b"]
)
@pytest.mark.parametrize("length", [50, 500, 2000])
def test_n36_n38_many_wildcards_cost_the_words_of_the_topic_times_those_of_the_pattern(
    pattern: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = AMQP.parse_pattern(pattern)
    readers = SkipFilter(index := SelectorIndex())
    readers.add("alice", [("amqp", pattern + ".c")])
    counted = [Counted("a") for _ in range(length)]
    monkeypatch.setattr(AMQP.__class__, "read", lambda self, topic: (counted, False))
    monkeypatch.setattr(Counted, "seen", 0)
    topic = ".".join("a" * length)
    assert readers.match_any(topic) == []
    assert 0 < Counted.seen <= 3 * (len(words) + 2) * length
    monkeypatch.undo()
    (explanation,) = index.explain(topic, "alice")
    assert explanation.reason is not None


def test_matching_topics_with_many_wildcards_are_found() -> None:
    for pattern in ("#" + ".a.#" * 49, "#." * 98 + "#", "#.a" + ".#.a" * 40, "*.#." * 40 + "a"):
        assert both(("amqp", pattern), ".".join("a" * 2000))
    assert not both(("amqp", "#" + ".a.#" * 49), ".".join("a" * 48))
    assert both(("amqp", "#" + ".a.#" * 49), ".".join("a" * 49))
    assert both(("mqtt", "+/" * 99 + "#"), "/" * 2000)
    assert not both(("mqtt", "+/" * 99 + "#"), "/" * 97)


def test_n36_n38_the_set_of_nodes_is_no_larger_than_the_pattern() -> None:
    readers = SkipFilter(index := SelectorIndex())
    pattern = "#" + ".a.#" * 49
    readers.add("alice", [("amqp", pattern)])
    table: Any = index._tables["amqp"]
    frontier = {table._trie.root: False}
    for _ in range(500):
        frontier = step(frontier, "a")
        assert len(frontier) <= len(AMQP.parse_pattern(pattern)) + 1


def test_v13_a_long_literal_is_searched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def noted(text: bytes, literal: bytes) -> list[int]:
        lengths.append(len(literal))
        return find_all(text, literal)

    find_all = positions.find_all
    monkeypatch.setattr(positions, "find_all", noted)
    template = UriTemplate("{+a}" + "a" * 2_001 + "{+b}")
    assert template.match("a" * 4_000)
    assert template.match("b" + "a" * 2_001 + "c")
    assert not template.match("a" * 2_000 + "b" + "a" * 2_000)
    assert 0 < max(lengths) <= positions.CHUNK
    # Two pieces for each topic that contains the literal, one of which repeats.
    assert len(lengths) == 4

"""Words: agreement with a definition that is obviously right, one spelling for one language, bounded work."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import PatternError
from skipfilter.topics.words import AMQP, MANY, MAX_WORDS, MQTT, ONE, Grammar, match_words, why_not_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipfilter.topics.words import Words


def by_definition(pattern: Words, words: Sequence[str]) -> bool:
    """Exponential, and so for a few words only."""
    if not pattern:
        return not words
    if pattern[0] is MANY:
        return any(by_definition(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return bool(words) and pattern[0] in (ONE, words[0]) and by_definition(pattern[1:], words[1:])


def up_to(length: int, alphabet: str) -> Iterator[tuple[str, ...]]:
    for n in range(length + 1):
        yield from product(alphabet, repeat=n)


TOPICS = list(up_to(5, "ab"))


@pytest.mark.parametrize("length", range(6))
def test_every_short_pattern_agrees_with_the_definition_on_every_short_topic(length: int) -> None:
    letters: Words = ("a", "b", ONE, MANY)
    for pattern in product(letters, repeat=length):
        for words in TOPICS:
            assert match_words(pattern, list(words)) is by_definition(pattern, words), (pattern, words)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a", ONE, MANY]), max_size=8).map(tuple),
    st.lists(st.sampled_from(["a", "b", ""]), max_size=9),
)
def test_longer_patterns_agree_with_the_definition(pattern: Words, words: list[str]) -> None:
    assert match_words(pattern, words) is by_definition(pattern, words)


def test_two_patterns_are_parsed_into_the_same_words_exactly_if_they_are_equivalent() -> None:
    topics = [*up_to(6, "ab")]
    spellings: dict[tuple[bool, ...], set[Words]] = {}
    for words in up_to(4, "a*#"):
        parsed = AMQP.parse_pattern(".".join(words))
        wildcards: Words = tuple({"*": ONE, "#": MANY}.get(word, word) for word in words)
        language = tuple(by_definition(wildcards, topic) for topic in topics)
        assert language == tuple(match_words(parsed, list(topic)) for topic in topics)
        spellings.setdefault(language, set()).add(parsed)
    assert {len(parsed) for parsed in spellings.values()} == {1}
    assert len(spellings) == len(set().union(*spellings.values()))


@pytest.mark.parametrize(
    ("grammar", "pattern", "words"),
    [
        (AMQP, "", ()),
        (AMQP, "a.*.#", ("a", ONE, MANY)),
        (AMQP, "#.*.#.*", (ONE, ONE, MANY)),
        (AMQP, "#.a.#", (MANY, "a", MANY)),
        (AMQP, "/+$", ("/+$",)),
        (MQTT, "/", ("", "")),
        (MQTT, "+/#", (ONE, MANY)),
        (MQTT, "a//.*", ("a", "", ".*")),
    ],
)
def test_patterns_are_parsed_into_these_words(grammar: Grammar, pattern: str, words: Words) -> None:
    assert grammar.parse_pattern(pattern) == words


def test_the_empty_topic_has_no_words_if_words_must_not_be_empty() -> None:
    assert AMQP.parse_topic("") == []
    assert MQTT.parse_topic("") == [""]
    assert AMQP.parse_topic(".") == MQTT.parse_topic("/") == ["", ""]


@settings(deadline=None)
@given(st.text(st.sampled_from("ab.*#/+$\x00é\ud800"), max_size=12), st.sampled_from([AMQP, MQTT]))
def test_any_text_is_parsed_or_refused_with_the_name_of_its_grammar(text: str, grammar: Grammar) -> None:
    try:
        words = grammar.parse_pattern(text)
    except PatternError as error:
        assert (error.matcher_type, error.pattern) == (grammar.name, text)
        assert error.reason in str(error)
        return
    assert len(words) <= MAX_WORDS
    assert match_words(words, [word if isinstance(word, str) else "x" for word in words])
    assert not any(grammar.one in word or grammar.many in word for word in words if isinstance(word, str))


def test_only_a_topic_of_mqtt_that_begins_with_a_dollar_is_hidden() -> None:
    assert MQTT.hides("$SYS/a")
    assert not MQTT.hides("a/$SYS")
    assert not AMQP.hides("$SYS.a")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "*", "#"]), max_size=4), st.lists(st.sampled_from(["a", "b"]), max_size=4))
def test_why_not_has_an_answer_for_every_mismatch(pattern: list[str], topic: list[str]) -> None:
    words = AMQP.parse_pattern(".".join(pattern))
    if not match_words(words, topic):
        assert why_not_words(AMQP, words, ".".join(topic))


class Counted(str):
    """A word that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    ("pattern", "length"), [("#.a" * 49, 2000), ("#.a.a.a.b" * 12, 2000), ("#.*.a" * 30, 2000), ("#.b", 5000)]
)
def test_patterns_that_explode_under_backtracking_take_bounded_comparisons(
    pattern: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "compared", 0)
    words = AMQP.parse_pattern(pattern.replace("#", ".#")[1:] + ".b.c")
    assert not match_words(words, [Counted("a")] * length)
    assert 0 < Counted.compared <= len(words) * length

"""Coverage: agreement with the topics of all short patterns, hidden topics, bounded
work.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter.topics import coverage
from skipfilter.topics.coverage import covers
from skipfilter.topics.words import AMQP, MANY, MAX_WORDS, MQTT, NATS, ONE, Grammar, match_words

WORLDS: list[tuple[Grammar, str, int, list[str]]] = [
    (AMQP, "ab*#", 4, ["a", "b", "z"]),
    (AMQP, "a*#", 5, ["a", "z"]),
    (MQTT, "a$+#", 3, ["a", "$", "z"]),
    (NATS, "ab*>", 3, ["a", "b", "z", ""]),
]
"""A grammar, the words of its patterns, the length of the longest, and the words of
topics: one of them is in no pattern.
"""


@pytest.mark.parametrize(("grammar", "words", "length", "of_topics"), WORLDS)
def test_a_pattern_covers_another_exactly_if_it_matches_all_its_topics(
    grammar: Grammar, words: str, length: int, of_topics: list[str]
) -> None:
    dot = grammar.separator
    texts = [dot.join(some) for n in range(1, length + 1) for some in product(words, repeat=n)]
    if grammar.many_ends:
        texts = [text for text in texts if grammar.many not in text[:-1]]
    patterns = {grammar.parse_pattern(text) for text in texts} | ({()} if grammar is AMQP else set())
    # A `#` needs more words than the other pattern has.
    topics = [dot.join(some) for n in range(1, length + 4) for some in product(of_topics, repeat=n)]
    topics += [] if grammar.empty_words else [""]
    split = [(grammar.parse_topic(topic), grammar.hides(topic)) for topic in topics]
    matching = {
        pattern: sum(match_words(pattern, words, hidden) << n for n, (words, hidden) in enumerate(split))
        for pattern in patterns
    }
    found = 0
    for general, special in product(patterns, repeat=2):
        expected = matching[special] & ~matching[general] == 0
        assert covers(grammar, general, special) is expected, (general, special)
        found += expected
    assert len(patterns) < found < len(patterns) ** 2


texts = st.lists(st.sampled_from(["a", "b", "*", "#", "*"]), max_size=9).map(".".join)
some = st.lists(st.sampled_from(["a", "z"]), min_size=1, max_size=3)


@settings(deadline=None, max_examples=300)
@given(texts, texts, st.lists(some, min_size=9, max_size=9))
def test_a_topic_of_a_covered_pattern_matches_the_covering_one(first: str, second: str, some: list[list[str]]) -> None:
    general, special = AMQP.parse_pattern(first), AMQP.parse_pattern(second)
    topic: list[str] = []
    for word, words in zip(special, some, strict=False):
        if isinstance(word, str):
            topic.append(word)
        else:
            topic += words[:1] if word is ONE else words[1:]
    assert match_words(special, topic)
    assert match_words(general, topic) or not covers(AMQP, general, special)


@pytest.mark.parametrize(
    ("general", "special", "expected"),
    [
        ("#", "$SYS/#", False),
        ("+/#", "$SYS/a", False),
        ("$SYS/#", "$SYS/a", True),
        ("#", "+/#", True),
        ("+/#", "#", True),
        ("a/#", "a", True),
        ("+/#", "", True),
    ],
)
def test_mqtt_hides_topics_and_each_has_a_level(general: str, special: str, expected: bool) -> None:
    parsed = MQTT.parse_pattern(special) if special else ("",)
    assert covers(MQTT, MQTT.parse_pattern(general), parsed) is expected


@pytest.mark.parametrize("pattern", ["#.a." * 49, "*.#.a." * 33, "#.a.a.*.b." * 19, "*." * 99, "#.*.*.*.b." * 19])
def test_long_patterns_take_bounded_work(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    after = coverage._Positions.after

    def counted(self: coverage._Positions, state: int, word: object) -> int:
        nonlocal steps
        steps += 1
        return after(self, state, word)

    monkeypatch.setattr(coverage._Positions, "after", counted)
    words = AMQP.parse_pattern(pattern + "c")
    assert len(words) <= MAX_WORDS
    assert covers(AMQP, words, words)
    many = words.count(MANY)
    assert steps <= len(words) * (many + 1) + many * (many + 1) * len(words)

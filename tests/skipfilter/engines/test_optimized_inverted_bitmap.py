"""The rows of the optimized inverted bitmap: the tables of a pattern, and its complete
removal.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from pyroaring import BitMap, FrozenBitMap

from skipfilter.engines import OptimizedInvertedBitmap, optimized_inverted_bitmap
from skipfilter.topics.words import AMQP, MANY, MQTT, ONE, Wildcard


def filled(engine: OptimizedInvertedBitmap[str], *patterns: str) -> OptimizedInvertedBitmap[str]:
    for pattern in patterns:
        engine.subscribe(pattern, pattern)
    return engine


def test_the_tables_of_the_picture() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "forex.*", "*.nyse", "stock.#", "index", "a.#.z")
    assert engine._tables == [
        {"forex": BitMap([0]), "stock": BitMap([2]), ONE: BitMap([1])},
        {"nyse": BitMap([1]), ONE: BitMap([0, 2])},
    ]
    assert engine._lengths == {2: BitMap([0, 1])}
    assert engine._tails == {1: BitMap([2])}
    assert engine._leading == {ONE: BitMap([1])}
    assert engine._exact == {("index",): {"index": 1}}
    assert [words for words, node in engine._inner.nodes() if node.value] == [("a", MANY, "z")]
    assert engine.lookup("stock.nyse") == {"*.nyse", "stock.#"}


def test_a_pattern_has_one_column_for_all_its_subscriptions() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "a.*", "a.*", "a.#.*", "a.*.#")
    engine.subscribe("a.*", "x")
    assert engine._columns == {0: {"a.*": 2, "x": 1}, 1: {"a.#.*": 1, "a.*.#": 1}}


@pytest.mark.parametrize(
    "pattern", ["a.*", "*", "#", "a.#", "*.#", "*.*.#", "a.b.#", "a.*.c.#", "a", "", "a.#.b", "#.b"]
)
def test_nothing_is_left_of_an_unused_pattern(pattern: str) -> None:
    engine: OptimizedInvertedBitmap[str] = OptimizedInvertedBitmap(AMQP)
    handle = engine.subscribe(pattern, "x")
    engine.unsubscribe(handle)
    assert engine._all_rows() == [{}, {}, {}]
    assert engine._tables == []
    assert not engine._exact
    assert not engine._columns
    assert not engine._ids
    assert list(engine._inner.nodes()) == []
    engine._check()


def test_a_tail_is_in_later_tables_and_is_removed_from_them() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "a.#")
    long = engine.subscribe("b.*.*.d", "x")
    assert [ONE in table for table in engine._tables] == [False, True, True, True]
    for topic in ("a", "a.z", "a.z.z", "a.z.z.d", "a.z.z.z.z"):
        assert engine.lookup(topic) == {"a.#"}
    engine.subscribe("b.#", "b.#")
    assert engine.lookup("b.c.c.d") == {"x", "b.#"}
    engine.unsubscribe(long)
    assert len(engine._tables) == 1
    assert engine.lookup("b.c.c.d") == {"b.#"}
    assert engine.lookup("a.z.z.d") == {"a.#"}
    engine._check()


def test_an_id_is_reused_after_its_pattern_is_gone() -> None:
    engine: OptimizedInvertedBitmap[str] = OptimizedInvertedBitmap(AMQP)
    first, second = engine.subscribe("a.*", "x"), engine.subscribe("a.*", "y")
    engine.unsubscribe(first)
    engine.subscribe("b.*", "z")
    assert set(engine._columns) == {0, 1}
    engine.unsubscribe(second)
    engine.subscribe("c.*", "z")
    assert set(engine._columns) == {0, 1}
    assert engine.lookup("a.b") == set()


def test_a_topic_longer_than_every_pattern_is_only_matched_by_tails() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "*", "*.*", "a.*.#")
    assert engine.lookup("a.b.c.d") == {"a.*.#"}
    assert engine.matches("a.b.c.d")
    assert engine.lookup("b.b.c.d") == set()
    assert not engine.matches("b.b.c.d")


def test_a_tail_alone_matches_the_topic_without_words() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "#", "*.#")
    assert engine.lookup("") == {"#"}
    assert filled(OptimizedInvertedBitmap(AMQP), "*.#").matches("") is False
    assert filled(OptimizedInvertedBitmap(AMQP), "#").matches("") is True


def test_patterns_that_begin_with_a_wildcard_do_not_match_hidden_topics() -> None:
    engine = filled(OptimizedInvertedBitmap(MQTT), "#", "+", "+/#", "+/b", "$a/+", "$a/#", "$a")
    assert engine.lookup("$a") == {"$a/#", "$a"}
    assert engine.lookup("$a/b") == {"$a/+", "$a/#"}
    assert engine.lookup("a/b") == {"#", "+/#", "+/b"}
    assert engine.matches("$a/b")
    assert not engine.matches("$b/b")
    assert not engine.matches("$b")


def test_an_and_stops_if_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    taking = optimized_inverted_bitmap._taking

    def recording(table: dict[str | Wildcard, BitMap], word: str) -> BitMap:
        asked.append(word)
        return taking(table, word)

    monkeypatch.setattr(optimized_inverted_bitmap, "_taking", recording)
    engine = filled(OptimizedInvertedBitmap(AMQP), "a.b.c.*", "*.z.c.d")
    for ask in (engine.lookup, engine.matches):
        asked.clear()
        assert not ask("x.y.c.d")
        assert asked == ["x", "y"]
        asked.clear()
        assert not ask("x.y")
        assert asked[1:] == []


# -- portions, for `matches`


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimized_inverted_bitmap, "PORTIONED", 1)


def test_the_portions_are_consecutive() -> None:
    columns = [column for portion in optimized_inverted_bitmap.PORTIONS for column in portion]
    assert columns == list(range(17_472))


@pytest.mark.usefixtures("few_are_many")
def test_a_match_in_a_portion_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), *(f"a.*.{n}" for n in range(1_100)), "x.b.*")
    engine._unordered = 0
    asked: list[BitMap] = []
    those_taking = optimized_inverted_bitmap._those_taking

    def recording(columns: BitMap, table: dict[str | Wildcard, BitMap], word: str) -> BitMap:
        asked.append(columns)
        return those_taking(columns, table, word)

    monkeypatch.setattr(optimized_inverted_bitmap, "_those_taking", recording)
    whole = patch.object(optimized_inverted_bitmap, "_taking", side_effect=AssertionError("all columns were tested"))
    for column, portions in ((0, 1), (63, 1), (64, 2), (1_087, 2), (1_088, 3)):
        asked.clear()
        with whole:
            assert engine.matches(f"a.b.{column}")
        assert len(asked) == 3 * portions
        assert column in asked[-1]
    asked.clear()
    assert not engine.matches("b.b.5")
    assert [len(columns) for columns in asked] == [64, 1_024, 13]


@pytest.mark.usefixtures("few_are_many")
def test_likely_patterns_move_to_the_left_once_a_third_is_new() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "a.b.*", "a.*.c", "*.*.a", "b.*.*", "#", "a.b.#")
    assert engine.matches("a.b.c")
    ordered = [words for words, _ in sorted(engine._ids.items(), key=lambda one: one[1])]
    assert ordered == [(MANY,), (ONE, ONE, "a"), ("b", ONE, ONE), ("a", "b", ONE), ("a", ONE, "c"), ("a", "b", MANY)]
    assert engine._unordered == 0
    engine._check()
    filled(engine, "*.a.*", "*.b.*", "*.c.*")
    engine.matches("b.b")  # 3 of 9 are no more than a third
    assert engine._unordered == 3
    filled(engine, "*.d.*")
    assert engine.matches("b.d.b")
    assert engine._unordered == 0
    assert engine.lookup("b.d.b") == {"#", "b.*.*", "*.d.*"}
    engine._check()


@pytest.mark.usefixtures("few_are_many")
def test_a_free_column_is_forgotten_when_the_columns_are_ordered() -> None:
    engine: OptimizedInvertedBitmap[str] = OptimizedInvertedBitmap(AMQP)
    gone = engine.subscribe("a.*", "x")
    filled(engine, "b.*", "*.c", "*.d")
    engine.unsubscribe(gone)
    assert engine.matches("b.b")
    filled(engine, "e.*", "f.*")
    assert sorted(engine._columns) == [0, 1, 2, 3, 4]
    assert engine.lookup("f.c") == {"*.c", "f.*"}
    engine._check()


def test_columns_are_one_portion_and_stay_as_they_are_if_they_are_few() -> None:
    engine = filled(OptimizedInvertedBitmap(AMQP), "a.b.*", "*.*.a")
    assert engine.matches("b.b.a")
    assert engine._ids == {("a", "b", ONE): 0, (ONE, ONE, "a"): 1}
    assert engine._portions(BitMap(range(optimized_inverted_bitmap.PORTIONED))) == ()
    portions = engine._portions(BitMap(range(optimized_inverted_bitmap.PORTIONED + 1)))
    assert portions == optimized_inverted_bitmap.PORTIONS
    assert all(isinstance(portion, FrozenBitMap) for portion in portions)

"""FieldFilter: the article's example, both designs for AND, a stateful comparison with
a naive model, threads.
"""

from __future__ import annotations

import math
import random
import re
import sys
import threading
from contextlib import nullcontext
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skipfilter.fields import clauses
from skipfilter.fields import filter as fields
from skipfilter.fields.bit_slices import BitSlices, planes_of
from skipfilter.fields.clauses import CANDIDATES, Candidates
from skipfilter.fields.criteria import MAX_CRITERIA
from skipfilter.fields.expressions import present
from skipfilter.fields.filter import SLACK, FieldFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from skipfilter.fields.criteria import Criterion

    Message = Mapping[str, object]

ARTICLE: dict[int, list[Criterion]] = {
    0: [("currency", "USD"), "urgent"],
    1: [("currency", "EUR")],
    2: [("market", "forex"), ("currency", "EUR")],
    3: ["urgent"],
}


def filled(criteria: Mapping[Any, Iterable[Criterion]], **options: Any) -> FieldFilter[Any]:
    readers: FieldFilter[Any] = FieldFilter(**options)
    for value, own in criteria.items():
        readers.add(value, own)
    return readers


def both_ways(readers: FieldFilter[Any], message: Message) -> list[list[Any]]:
    """Return the values whose criteria are all met, by rarest criterion and by bit
    slices.
    """
    index = readers._index
    its = index.read(message)
    rest = index._unbucketed.matching(its)
    found = (index.candidates(its).ids(), index._bucketed.matching(its))
    return [readers._resolve(ids | rest) for ids in found]


def buckets(readers: FieldFilter[Any], message: Message) -> list[int]:
    """Return the number of candidates in each bucket of a message."""
    candidates = readers._index.candidates(readers._index.read(message))
    return [*map(len, candidates.plain), *map(len, candidates.others)]


def tables(readers: FieldFilter[Any]) -> list[int]:
    """How large everything is that a filter keeps."""
    index = readers._index
    kept: list[Any] = [readers._held, readers._first, readers._rules, readers._further]
    kept += [index._groups, index._plain, index._others]
    slices = [table for some in (index._bucketed, index._unbucketed) for table in (*some._wanted, *some._unwanted)]
    return [readers._values.next_id, len(readers), *map(len, kept), sum(len(table.rows) for table in slices)]


def has_all(criteria: Iterable[Criterion], message: Message) -> bool:
    """Whether each field of `criteria` is there and, if they name values of it, has one
    of these.
    """
    allowed: dict[str, list[Hashable]] = {}
    for criterion in criteria:
        if isinstance(criterion, tuple):
            allowed.setdefault(criterion[0], []).append(criterion[1])
        elif criterion not in message:
            return False
    return all(name in message and message[name] in some for name, some in allowed.items())


# -- the article


@pytest.mark.parametrize(
    ("message", "hits"),
    [
        ({"currency": "JPY", "market": "forex", "slow": None}, [0, 0, 1, 0]),
        ({"currency": "JPY", "urgent": None}, [1, 0, 0, 1]),
        ({"market": "forex", "currency": "EUR"}, [0, 1, 2, 0]),
    ],
    ids="ABC",
)
def test_the_messages_of_the_article(message: Message, hits: list[int]) -> None:
    readers = filled(ARTICLE)
    assert readers.hits(message) == {value: count for value, count in enumerate(hits) if count}
    assert readers.match_any(message) == [value for value, count in enumerate(hits) if count]
    expected = [value for value, count in enumerate(hits) if count == len(ARTICLE[value])]
    assert readers.match_all(message) == expected
    assert readers.matches_any(message)
    assert readers.matches_all(message) is bool(expected)


def test_the_bitmaps_of_the_article() -> None:
    readers = filled(ARTICLE)
    assert {row: list(ids) for row, ids in readers._index._bucketed._wanted[0].rows.items()} == {
        ("currency", "USD"): [0],
        ("currency", "EUR"): [1, 2],
        ("market", "forex"): [2],
        ("urgent",): [0, 3],
    }


# -- criteria


def test_presence_is_met_by_any_value_and_a_value_only_by_itself() -> None:
    readers = filled({"there": ["urgent"], "none": [("urgent", None)], "both": ["urgent", ("urgent", 1)]})
    assert readers.hits({"urgent": None}) == {"there": 1, "none": 1, "both": 1}
    assert readers.hits({"urgent": 1}) == {"there": 1, "both": 2}
    assert readers.match_all({"urgent": 1}) == ["there", "both"]
    assert readers.hits({"other": 1}) == {}


def test_values_compare_like_keys_of_a_dict() -> None:
    readers = filled({"one": [("f", 1)]})
    for value in (1, 1.0, True):
        assert readers.match_all({"f": value}) == ["one"]
    assert readers.match_all({"f": "1"}) == []


def test_criteria_that_repeat_count_once() -> None:
    readers = filled({"a": ["f", "f", ("g", 1), ("g", True)]})
    readers.add("a", [("g", 1.0), "f"])
    assert readers.hits({"f": 0, "g": 1}) == {"a": 2}
    assert readers.match_all({"f": 0, "g": 1}) == ["a"]


def test_a_value_without_criteria_meets_match_all_and_not_match_any() -> None:
    readers = filled({"a": ["f"], "nothing": [], "b": ["f"]})
    message = {"f": 1}
    assert both_ways(readers, message) == [["a", "nothing", "b"]] * 2
    assert readers.match_all({}) == ["nothing"]
    assert readers.match_any(message) == ["a", "b"]
    assert readers.hits(message) == {"a": 1, "b": 1}
    assert readers.matches_all({})
    assert not readers.matches_any({})
    readers.remove("nothing")
    assert not readers.matches_all({})


def test_values_of_one_field_are_alternatives() -> None:
    readers = filled(
        {
            "one": [("c", "DE"), ("c", "FR")],
            "both": [("c", "DE"), ("c", "FR"), "u", ("s", 1), ("s", 2), ("s", 3)],
            "there too": ["c", ("c", "DE"), ("c", "FR")],
            "plain": [("c", "DE")],
        }
    )
    cases: list[tuple[Message, list[str]]] = [
        ({"c": "DE"}, ["one", "there too", "plain"]),
        ({"c": "FR"}, ["one", "there too"]),
        ({"c": "US"}, []),
        ({"c": "FR", "s": 2}, ["one", "there too"]),
        ({"c": "FR", "s": 2, "u": None}, ["one", "both", "there too"]),
        ({"c": "US", "s": 2, "u": None}, []),
    ]
    for message, every in cases:
        assert both_ways(readers, message) == [every, every]
        assert readers.match_all(message) == every
        assert readers.matches_all(message) is bool(every)
    assert readers.hits({"c": "FR", "s": 2, "u": None}) == {"one": 1, "both": 3, "there too": 2}
    assert readers.match_any({"c": "FR"}) == ["one", "both", "there too"]
    readers._check()


def test_alternatives_are_in_the_bucket_of_each_only_if_all_are_rare() -> None:
    readers = filled({n: [("c", "DE")] for n in range(3)} | {n: ["busy"] for n in range(10, 12)})
    readers.add("a", ["busy", ("c", "DE"), ("c", "FR")])
    readers.add("b", ["busy", ("c", "NL"), ("c", "FR")])

    def waiting(message: Message) -> int:
        return sum(buckets(readers, message))

    assert [waiting(message) for message in ({"c": "DE"}, {"c": "FR"}, {"c": "NL"}, {"busy": 1})] == [1, 1, 1, 2]
    assert readers.match_all({"busy": 1, "c": "FR"}) == [10, 11, "a", "b"]


def test_a_pair_from_json_is_a_criterion_too() -> None:
    assert filled({"a": [["f", 1]]}).match_all({"f": 1}) == ["a"]  # type: ignore[list-item]


# -- errors


@pytest.mark.parametrize("criterion", [(), ("f",), ("f", 1, 2), (1, "f"), 1, None, b"f"])
def test_an_invalid_criterion_is_refused(criterion: Any) -> None:
    readers: FieldFilter[str] = FieldFilter()
    with pytest.raises(ValueError, match=r"^criterion .*: neither a field nor a \(field, value\); write .*"):
        readers.add("a", ["f", criterion])
    assert tables(readers) == [0] * 10


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        ("severity=critical", "neither a field nor a (field, value); write one_of('severity', 'critical')"),
        (("f", ["DE", "FR"]), "['DE', 'FR'] is a list; write one_of(field, *values)"),
        (("f", len), f"{len!r} is a function or a class, and only values are compared"),
        (("f", bytearray()), "bytearray(b'') cannot be hashed"),
        (len, "neither a field nor a (field, value); a predicate needs a SkipFilter"),
        (present("f"), "an expression; write all_of() instead of a list"),
    ],
)
def test_the_error_says_how_to_write_a_criterion(criterion: Any, message: str) -> None:
    readers: FieldFilter[str] = FieldFilter()
    with pytest.raises(ValueError, match=rf"^criterion {re.escape(repr(criterion))}: {re.escape(message)}$"):
        readers.add("a", ["f", criterion])
    assert tables(readers) == [0] * 10


@pytest.mark.parametrize(
    "value", [math.nan, Decimal("nan"), (1, math.nan), ((), ("x", (math.nan,))), frozenset({math.nan})]
)
def test_a_value_that_no_field_can_be_equal_to_is_refused(value: Any) -> None:
    readers: FieldFilter[str] = FieldFilter()
    with pytest.raises(ValueError, match=rf"^criterion {re.escape(repr(('f', value)))}: .* is not equal to itself$"):
        readers.add("a", ["f", ("f", value)])
    assert tables(readers) == [0] * 10


@pytest.mark.parametrize("message", [None, "urgent", ["urgent"], [("urgent", 1)], 7])
def test_a_message_that_is_not_a_mapping_is_named(message: Any) -> None:
    readers = filled({"a": ["urgent"]})
    for ask in (readers.match_any, readers.match_all, readers.hits, readers.matches_any, readers.matches_all):
        with pytest.raises(TypeError) as caught:
            ask(message)
        assert str(caught.value) == f"message {message!r} is of type {type(message).__name__}, not a Mapping"
    assert readers.match_any(MappingProxyType({"urgent": 1})) == ["a"]


@pytest.mark.parametrize(
    ("criteria", "how"),
    [
        ("urgent", "write present('urgent')"),
        ("severity = critical", "write one_of('severity', 'critical')"),
        ({"currency": "USD"}, "write list(criteria.items()), or an expression"),
        (("currency", "USD"), "write [('currency', 'USD')], or ['currency', 'USD'] for two fields"),
        (len, "a predicate needs a SkipFilter"),
        (7, "write one_of(field, value), or another function of skipfilter.fields"),
    ],
)
def test_criteria_that_are_not_a_list_are_refused_with_how_to_write_them(criteria: Any, how: str) -> None:
    with pytest.raises(ValueError, match=rf"^criteria {re.escape(repr(criteria))}: not a list; {re.escape(how)}$"):
        FieldFilter[str]().add("a", criteria)


def test_the_error_shows_the_start_of_a_long_value() -> None:
    long = "1" * 1_000
    readers: FieldFilter[int] = filled({int(long): ["f"]})
    with pytest.raises(ValueError, match=rf"^criterion {'1' * 80}: neither"):
        readers.add(1, [int(long)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=rf"^criteria '{'1' * 79}: not a list"):
        readers.add(1, long)
    with pytest.raises(ValueError, match=rf"^{'1' * 80} is in the filter"):
        readers.add(int(long), ["g"])


def test_the_number_of_criteria_is_bounded() -> None:
    readers: FieldFilter[str] = FieldFilter()
    most: list[Criterion] = [("f", n) for n in range(MAX_CRITERIA)]
    with pytest.raises(ValueError, match=r"^there are more than 100 criteria$"):
        readers.add("a", [*most, "g"])
    assert tables(readers) == [0] * 10
    readers.add("a", most + most)
    readers._check()


def test_a_value_with_other_criteria_is_refused() -> None:
    readers = filled({"a": ["f"], "b": ["f"]})
    readers.add("a", ["f"])
    with pytest.raises(ValueError, match=r"^'a' is in the filter with other criteria; replace\(\) changes them$"):
        readers.add("a", ["f", "g"])
    readers._check()
    assert readers.match_any({"f": 1, "g": 1}) == ["a", "b"]
    readers.remove("a")
    readers.add("a", ["f", "g"])
    assert readers.match_any({"f": 1, "g": 1}) == ["b", "a"]


def test_removing_a_missing_value_is_an_error() -> None:
    readers = filled({"a": ["f"]})
    with pytest.raises(KeyError, match="b"):
        readers.remove("b")
    assert readers.discard("b") is False
    assert readers.discard("a") is True
    assert "a" not in readers
    assert len(readers) == 0


def test_an_unhashable_value_or_criterion_changes_nothing() -> None:
    readers: FieldFilter[Any] = FieldFilter()
    cases: list[tuple[Any, Any]] = [([], "f"), ("a", ("f", []))]
    for value, criterion in cases:
        with pytest.raises((TypeError, ValueError), match=r"unhashable type: 'list'|is a list"):
            readers.add(value, [criterion])
        assert tables(readers) == [0] * 10


def test_an_unhashable_value_in_a_message_meets_presence() -> None:
    readers = filled({"a": ["f"], "b": [("f", 1)], "c": [("g", 1)]})
    message: Any = {"f": bytearray(), "g": 1, "h": ([],)}
    assert readers.match_any(message) == readers.match_all(message) == ["a", "c"]
    assert readers.hits(message) == {"a": 1, "c": 1}
    assert readers.matches_any({"f": {}})
    assert readers.matches_all({"f": {}})


def test_a_list_in_a_message_is_several_values_and_a_mapping_has_paths() -> None:
    readers = filled({"a": [("f", 1), ("f", 2)], "b": [("f", 3), ("g.h", 1)], "c": ["g"]})
    for several in ([1, 2], {1, 2}, [[1], [[2]]]):
        assert readers.hits({"f": several}) == {"a": 1}
        assert both_ways(readers, {"f": several}) == [["a"], ["a"]]
    message = {"f": [3, 2], "g": {"h": [0, 1], "i": 5}}
    assert both_ways(readers, message) == [["a", "b", "c"]] * 2
    assert readers.hits(message) == {"a": 1, "b": 2, "c": 1}
    assert readers.match_any({"f": []}) == []
    assert readers.match_all({"g": []}) == ["c"]
    assert readers.match_all({"f": 3, "g.h": 1}) == ["b"]
    assert readers.match_all({"f": 3, "g": {"h": 1}, "g.h": 0}) == ["b", "c"]


# -- how it is done


def test_iteration_is_a_snapshot() -> None:
    readers = filled({3: ["f"], 1: ["f"], 2: ["f"]})
    iterator = iter(readers)
    readers.remove(1)
    assert list(iterator) == [3, 1, 2]
    assert list(readers) == [3, 2]


def test_equal_criteria_are_tested_once() -> None:
    readers = filled({n: [("f", 1), ("g", 2)] if n % 2 else [("g", 2), ("f", 1)] for n in range(100)})
    assert buckets(readers, {"f": 1, "g": 2}) == [1]
    assert readers.match_all({"f": 1, "g": 2}) == list(range(100))


def test_a_set_of_criteria_is_in_the_bucket_of_its_rarest() -> None:
    readers = filled({n: ["busy"] for n in range(10)})
    for name in "abc":
        readers.add(name, ["busy", ("rare", name)])
    assert buckets(readers, {"busy": 1}) == [1]
    assert readers.match_all({"busy": 1, "rare": "b"}) == [*range(10), "b"]


def test_few_candidates_are_tested_one_by_one_and_many_are_counted_at_once() -> None:
    for count, way in ((CANDIDATES, "ids"), (CANDIDATES + 1, "matching")):
        readers = filled({n: [f"field {n}"] for n in range(count)})
        part: Any = Candidates if way == "ids" else BitSlices
        with patch.object(part, way, autospec=True, side_effect=getattr(part, way)) as taken:
            assert readers.match_all({f"field {n}": 1 for n in range(count)}) == list(range(count))
        taken.assert_called_once()


def test_matches_all_tests_no_more_candidates_than_it_needs() -> None:
    readers = filled({9: ["f", "g"]})
    for n in range(5):
        readers.add(n, [("f", n), "absent"])
    with (
        patch.object(clauses, "CANDIDATES", 0),
        patch.object(readers._index._bucketed, "matching", return_value={1}) as planes,
    ):
        assert readers.matches_all({"g": 1, "f": 9})
        planes.assert_called_once()
    with patch.object(readers._index._bucketed, "matching") as planes:
        assert readers.matches_all({"g": 1, "f": 9})
        assert not readers.matches_all({"f": 1})
        planes.assert_not_called()


def test_both_implementations_agree() -> None:
    chance = random.Random(7)

    def criterion() -> Criterion:
        name = chance.choice("abcdefgh")
        return name if chance.random() < 0.2 else (name, chance.randrange(4))

    criteria = {n: [criterion() for _ in range(chance.choice([0, 1, 2, 3, 4, 20]))] for n in range(2_000)}
    readers = filled(criteria)
    for _ in range(50):
        message = {name: chance.randrange(4) for name in chance.sample("abcdefgh", chance.randrange(9))}
        expected = [n for n, own in criteria.items() if has_all(own, message)]
        assert both_ways(readers, message) == [expected, expected]


def test_planes_are_as_many_as_the_highest_hit_count_has_bits() -> None:
    criteria: list[Criterion] = [("f", 1), ("g", 1), "f", "g"]
    readers = filled({n: criteria[:n] for n in range(5)})

    def planes(message: Message) -> list[list[int]]:
        index = readers._index
        return [list(plane) for plane in planes_of(index._bucketed.met(index.read(message)))]

    assert planes({"f": 1, "g": 1}) == [[1, 3], [2, 3], [4]]
    assert planes({"f": 1}) == [[1, 2], [3, 4]]
    assert planes({"h": 1}) == []


def test_removed_values_leave_nothing_behind() -> None:
    readers = filled({0: ["f"], 1: [("g", 1), "f", "h"], 2: []})
    before = tables(readers)
    chance = random.Random(3)
    for n in range(3, 3 + 4 * SLACK):
        readers.add(n, {chance.choice("fghi") if chance.random() < 0.5 else ("v", n) for _ in range(n % 5)})
        if chance.random() < 0.5:
            readers.remove(n)
    for n in range(3, 3 + 4 * SLACK):
        readers.discard(n)
    assert tables(readers)[1:] == before[1:]
    assert readers._values.next_id <= 2 * len(readers) + SLACK
    readers._check()
    for n in range(3):
        readers.remove(n)
    assert tables(readers)[1:] == [0] * 9


def test_ids_are_renumbered_only_if_half_of_them_are_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "SLACK", 4)
    readers = filled({n: ["f"] for n in range(10)})
    for n in range(7):
        readers.remove(n)
        assert list(readers._values.by_id) == list(range(n + 1, 10))
    readers.remove(7)
    assert list(readers._values.by_id) == [0, 1]
    assert readers.match_any({"f": 1}) == [8, 9]


def test_ids_stay_dense_while_values_come_and_go() -> None:
    readers = filled({"first": ["f"], "second": ["f"]})
    for n in range(5 * SLACK):
        readers.add(n, ["f"])
        assert readers.match_any({"f": 0}) == ["first", "second", n]
        readers.remove(n)
    assert readers._values.next_id <= SLACK + 4
    readers._check()


# -- the model

NAMES = "fgh"
names = st.sampled_from(NAMES)
criteria_sets = st.lists(st.one_of(names, st.tuples(names, st.integers(0, 1))), max_size=5)
messages = st.dictionaries(names, st.integers(0, 2))
values = st.integers(0, 9)


class AgainstNaive(RuleBasedStateMachine):
    """Every lookup agrees with a dict, while ids are often renumbered and both
    implementations are used.
    """

    @initialize(candidates=st.integers(0, 3), slack=st.integers(0, 3))
    def begin(self, candidates: int, slack: int) -> None:
        self.patches = [
            patch.object(clauses, "CANDIDATES", candidates),
            patch.object(clauses, "FEW", candidates),
            patch.object(fields, "SLACK", slack),
        ]
        for one in self.patches:
            one.start()
        self.filter: FieldFilter[int] = FieldFilter()
        self.model: dict[int, set[Criterion]] = {}

    def teardown(self) -> None:
        for one in getattr(self, "patches", ()):
            one.stop()

    @rule(value=values, criteria=criteria_sets)
    def add(self, value: int, criteria: list[Criterion]) -> None:
        if self.model.setdefault(value, set(criteria)) == set(criteria):
            self.filter.add(value, criteria)
        else:
            with pytest.raises(ValueError, match="other criteria"):
                self.filter.add(value, criteria)

    @rule(value=values, criteria=criteria_sets)
    def replace(self, value: int, criteria: list[Criterion]) -> None:
        if value in self.model:
            self.filter.replace(value, criteria)
            del self.model[value]
            self.model[value] = set(criteria)
        else:
            with pytest.raises(KeyError, match="is not in the filter"):
                self.filter.replace(value, criteria)

    @rule(pairs=st.lists(st.tuples(values, criteria_sets), max_size=4))
    def add_many(self, pairs: list[tuple[int, list[Criterion]]]) -> None:
        model = dict(self.model)
        if all(model.setdefault(value, set(criteria)) == set(criteria) for value, criteria in pairs):
            self.filter.add_many(pairs)
            self.model = model
        else:
            with pytest.raises(ValueError, match=r"(other|different) criteria"):
                self.filter.add_many(pairs)

    @rule()
    def clear(self) -> None:
        self.filter.clear()
        self.model.clear()

    @rule(value=values)
    def discard(self, value: int) -> None:
        assert self.filter.discard(value) is (self.model.pop(value, None) is not None)

    @rule(message=messages)
    def ask(self, message: Message) -> None:
        met = {*message, *message.items()}
        hits = {value: len(own & met) for value, own in self.model.items() if own & met}
        every = [value for value, own in self.model.items() if has_all(own, message)]
        assert list(self.filter.hits(message).items()) == list(hits.items())
        assert self.filter.match_any(message) == list(hits)
        assert self.filter.match_all(message) == every
        assert self.filter.matches_any(message) is bool(hits)
        assert self.filter.matches_all(message) is bool(every)
        assert both_ways(self.filter, message) == [every, every]

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "filter"):
            self.filter._check()
            assert list(self.filter) == list(self.model)
            assert dict(self.filter.items()) == {value: frozenset(own) for value, own in self.model.items()}
            assert len(self.filter) == len(self.model)
            assert all((value in self.filter) is (value in self.model) for value in range(10))


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


# -- threads


def test_many_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "SLACK", 5)
    readers = filled({n: ["f", ("g", n % 2)] for n in range(20)})
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            start.wait()
            for step in range(300):
                number = 100 * seed + step % 10
                if step % 20 < 10:
                    readers.add(number, ["f", ("g", step % 2), ("h", seed)])
                else:
                    readers.remove(number)
                message = {"f": 1, "g": 1, "h": seed}
                assert readers.match_any(message)[:20] == list(range(20))
                assert readers.match_all(message)[:10] == list(range(1, 20, 2))
                assert list(readers.hits(message))[:20] == list(range(20))
                assert list(readers)[:20] == list(range(20))
                assert readers.matches_all(message)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    readers._check()
    assert list(readers) == list(range(20))


def test_everything_but_in_and_len_takes_the_lock() -> None:
    lock = MagicMock()
    readers: FieldFilter[str] = FieldFilter(lock=lock)
    message = {"f": 1}
    steps: list[Callable[[], object]] = [
        lambda: readers.add("a", ["f"]),
        lambda: readers.match_any(message),
        lambda: readers.match_all(message),
        lambda: readers.hits(message),
        lambda: readers.matches_any(message),
        lambda: readers.matches_all(message),
        lambda: iter(readers),
        lambda: readers.remove("a"),
        lambda: readers.discard("a"),
    ]
    for step in steps:
        lock.reset_mock()
        step()
        lock.__enter__.assert_called_once()
        lock.__exit__.assert_called_once()


def test_the_lock_can_be_disabled() -> None:
    assert filled(ARTICLE, lock=nullcontext()).match_any({"urgent": 1}) == [0, 3]

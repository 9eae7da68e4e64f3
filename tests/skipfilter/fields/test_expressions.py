"""Expressions: brute force, what they refuse, their bounds, and how they are explained."""

from __future__ import annotations

import math
import re
import sys
import threading
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, FloatOperation, InvalidOperation, localcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skipfilter import FieldFilter, LimitError
from skipfilter.fields import bit_slices, clauses
from skipfilter.fields import filter as fields
from skipfilter.fields.expressions import (
    MAX_CLAUSES,
    MAX_DEPTH,
    MAX_PARTS,
    Expression,
    above,
    all_of,
    any_of,
    at_least,
    at_most,
    below,
    between,
    clauses_of,
    not_,
    one_of,
    prefix,
    present,
)
from skipfilter.fields.messages import MAX_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable


# -- brute force: a test of its own, on the message itself


def contents(message: Any, path: str) -> list[Any] | None:
    """Return the values of a field; None if it is not there."""
    if path in ("", None):
        return [message]
    found: list[Any] | None = None
    name, _, rest = path.partition(".")
    if isinstance(message, dict) and name in message:
        some = message[name]
        if not rest:
            return leaves(some)
        for one in some if isinstance(some, list) else [some]:
            inner = contents(one, rest)
            found = found if inner is None else [*(found or []), *inner]
    return found


def leaves(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [leaf for one in value for leaf in leaves(one)]
    return [] if isinstance(value, dict) else [value]


Test = tuple[Expression, "Callable[[Any], bool]"]


def some(path: str, test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def tested(message: Any) -> bool:
        return any(test(value) for value in contents(message, path) or ())

    return tested


def ordered(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Compare numbers with numbers and texts with texts; NaN with nothing."""

    def tested(value: Any) -> bool:
        try:
            return test(value)
        except (TypeError, InvalidOperation):
            return False

    return tested


PATHS = ["f", "g", "h.i"]
paths = st.sampled_from(PATHS)
bounds = st.sampled_from([0, 1, 1.5, Decimal(2), "a", "ab", True])
scalars = st.sampled_from([0, 1, 1.5, 2, "a", "ab", "abc", "b", None, math.nan, True, b"a"])
single = scalars | st.lists(scalars, max_size=3)
messages = st.fixed_dictionaries(
    {},
    optional={"f": single, "g": single, "h": st.fixed_dictionaries({}, optional={"i": single}) | single},
)


@st.composite
def leaf(draw: st.DrawFn) -> Test:
    path = draw(paths)
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return present(path), lambda message: contents(message, path) is not None
    if kind == 1:
        values = draw(st.lists(st.sampled_from([0, 1, 2, "a", None]), min_size=1, max_size=3))
        return one_of(path, *values), some(path, lambda value: any(value == one for one in values))
    if kind == 2:
        text = draw(st.sampled_from(["a", "ab", "b", "abcd"]))
        return prefix(path, text), some(path, lambda value: isinstance(value, str) and value[: len(text)] == text)
    bound = draw(bounds)
    if kind == 3:
        high = draw(bounds.filter(lambda high: isinstance(high, str) is isinstance(bound, str)))
        ends: list[Any] = [bound, high]
        low, high = sorted(ends)
        return between(path, low, high), some(path, ordered(lambda value: low <= value <= high))
    function, test = {
        4: (at_least, lambda value: value >= bound),
        5: (above, lambda value: value > bound),
        6: (at_most, lambda value: value <= bound),
        7: (below, lambda value: value < bound),
    }[kind]
    return function(path, bound), some(path, ordered(test))


def combined(inner: st.SearchStrategy[Test]) -> st.SearchStrategy[Test]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(
            lambda parts: (all_of(*(e for e, _ in parts)), lambda message: all(test(message) for _, test in parts))
        ),
        several.map(
            lambda parts: (any_of(*(e for e, _ in parts)), lambda message: any(test(message) for _, test in parts))
        ),
        inner.map(lambda part: (not_(part[0]), lambda message: not part[1](message))),
    )


expressions = st.recursive(leaf(), combined, max_leaves=6)


class AgainstBruteForce(RuleBasedStateMachine):
    """Every lookup agrees with tests one by one, while values come and go, ids are
    renumbered, and both algorithms are used.
    """

    @initialize(candidates=st.integers(0, 3), slack=st.integers(0, 3), block=st.integers(1, 3))
    def begin(self, candidates: int, slack: int, block: int) -> None:
        self.patches = [
            patch.object(clauses, "CANDIDATES", candidates),
            patch.object(clauses, "FEW", candidates),
            patch.object(fields, "SLACK", slack),
            patch.object(bit_slices, "BLOCK", block),
        ]
        for one in self.patches:
            one.start()
        self.filter: FieldFilter[int] = FieldFilter()
        self.model: dict[int, Test | list[Any]] = {}

    def teardown(self) -> None:
        for one in getattr(self, "patches", ()):
            one.stop()

    @rule(value=st.integers(0, 9), test=expressions)
    def add(self, value: int, test: Test) -> None:
        replaces = value in self.model
        try:
            (self.filter.replace if replaces else self.filter.add)(value, test[0])
        except ValueError as error:
            assert "can never hold" in str(error) or "clauses" in str(error)
        else:
            self.model.pop(value, None)
            self.model[value] = test

    @rule(tests=st.lists(expressions, max_size=3))
    def add_many(self, tests: list[Test]) -> None:
        free = [value for value in range(10) if value not in self.model]
        new = dict(zip(free, tests, strict=False))
        try:
            self.filter.add_many({value: test[0] for value, test in new.items()})
        except ValueError as error:
            assert "can never hold" in str(error) or "clauses" in str(error)
        else:
            self.model |= new

    @rule(
        value=st.integers(0, 9), criteria=st.lists(paths | st.tuples(paths, st.sampled_from([0, 1, "a"])), max_size=4)
    )
    def add_a_list(self, value: int, criteria: list[Any]) -> None:
        if value in self.model:
            self.discard(value)
        self.filter.add(value, criteria)
        self.model[value] = criteria

    @rule(value=st.integers(0, 9))
    def discard(self, value: int) -> None:
        assert self.filter.discard(value) is (self.model.pop(value, None) is not None)

    @rule(messages=st.lists(messages, min_size=1, max_size=4))
    def ask(self, messages: list[Any]) -> None:
        for message in messages:
            hits: dict[int, int] = {}
            every: list[int] = []
            for value, declared in self.model.items():
                met, all_met = self.met(declared, message)
                if met:
                    hits[value] = met
                if all_met:
                    every.append(value)
            assert self.filter.match_all(message) == every
            assert self.filter.match_any(message) == list(hits)
            assert list(self.filter.hits(message).items()) == list(hits.items())
            assert self.filter.matches_all(message) is bool(every)
            assert self.filter.matches_any(message) is bool(hits)
            for value, declared in self.model.items():
                if isinstance(declared, list):
                    reasons = [part.reason for part in self.filter.explain(message, value)]
                    assert (reasons == [None] * len(reasons)) is (value in every)

    def met(self, declared: Test | list[Any], message: Any) -> tuple[int, bool]:
        """Return the number of criteria that are met, and whether all are."""
        if not isinstance(declared, list):
            holds = declared[1](message)
            return int(holds), holds
        parts: dict[tuple[str, bool], bool] = {}
        for criterion in declared:
            if isinstance(criterion, str):
                parts[criterion, False] = contents(message, criterion) is not None
            else:
                path, wanted = criterion
                is_met = any(value == wanted for value in contents(message, path) or ())
                parts[path, True] = parts.get((path, True), False) or is_met
        return sum(parts.values()), all(parts.values())

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "filter"):
            self.filter._check()
            assert list(self.filter) == list(self.model)


TestAgainstBruteForce = AgainstBruteForce.TestCase
TestAgainstBruteForce.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@settings(deadline=None)
@given(expressions, messages)
def test_the_clauses_of_an_expression_and_its_negation_are_opposite(test: Test, message: Any) -> None:
    readers: FieldFilter[str] = FieldFilter()
    possible = set()
    for name, expression in (("it", test[0]), ("not", not_(test[0]))):
        try:
            readers.add(name, expression)
            possible.add(name)
        except ValueError:
            continue
    assert readers.match_all(message) == [name for name in readers if (name == "it") is test[1](message)]


# -- examples


def holding(expression: Expression, message: Any) -> bool:
    readers: FieldFilter[int] = FieldFilter()
    readers.add(0, expression)
    assert readers.match_any(message) == readers.match_all(message)
    return readers.match_all(message) == [0]


NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
NAIVE = datetime(2025, 1, 1)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("expression", "holds_for", "not_for"),
    [
        (at_least("f", 5), [5, 5.0, Decimal(6), math.inf, [1, 7]], [4.9, -math.inf, math.nan, "5", None, [], b"5", {}]),
        (above("f", 5), [5.0001, 6], [5, 4, Decimal("nan"), Decimal("snan")]),
        (at_most("f", 5), [5, -1, True], [6, "4"]),
        (below("f", 5), [4.9, False], [5]),
        (between("f", 5, 7), [5, 6, 7, [1, 6]], [4, 8, [4, 8]]),
        (between("f", "b", "d"), ["b", "cat", "d"], ["a", "dog", 3, b"c"]),
        (between("f", b"b", b"d"), [b"c"], ["c"]),
        (below("f", date(2026, 1, 1)), [date(2025, 1, 1)], [date(2026, 1, 1), NAIVE, NOW]),
        (at_least("f", NOW), [NOW, NOW + timedelta(1)], [NAIVE, NOW - timedelta(1), NOW.date()]),
        (at_least("f", NAIVE), [NAIVE], [NOW]),
        (at_least("f", time(9)), [time(9), time(10)], [time(8), time(10, tzinfo=UTC), "10:00"]),
        (at_least("f", timedelta(1)), [timedelta(2)], [timedelta(0), 2]),
        (prefix("f", "ab"), ["ab", "abc", ["x", "ab"]], ["a", "xab", b"ab", 1, ("ab",)]),
        (one_of("f", 1, "a", (1, 2)), [1, True, 1.0, "a", (1, 2), ["b", "a"]], [2, "b", [1.5], None]),
        (present("f"), [None, [], {}, 0], []),
    ],
    ids=repr,
)
def test_a_part_holds_for_these_and_its_negation_for_the_others(
    expression: Expression, holds_for: list[Any], not_for: list[Any]
) -> None:
    for value in holds_for:
        assert holding(expression, {"f": value}), value
        assert not holding(not_(expression), {"f": value}), value
    for value in not_for:
        assert not holding(expression, {"f": value}), value
        assert holding(not_(expression), {"f": value}), value
    assert not holding(expression, {"g": 1})
    assert holding(not_(expression), {})


def test_each_of_several_parts_about_one_field_needs_a_value_of_its_own() -> None:
    both = all_of(one_of("tags", "a", "b"), one_of("tags", "b", "c"), between("n", 1, 3), between("n", 5, 9))
    assert holding(both, {"tags": ["a", "c"], "n": [2, 6]})
    assert holding(both, {"tags": "b", "n": [3, 5]})
    assert not holding(both, {"tags": ["a"], "n": [2, 6]})
    assert not holding(both, {"tags": "b", "n": [4]})
    assert not holding(both, {"tags": "b", "n": [0, 10]})
    no = not_(any_of(one_of("tags", "a"), one_of("tags", "b"), below("n", 0), above("n", 9)))
    assert holding(no, {"tags": "c", "n": 5})
    for message in ({"tags": "a"}, {"tags": ["c", "b"]}, {"n": -1}, {"n": [5, 10]}):
        assert not holding(no, message)


def test_paths_reach_into_mappings_and_lists() -> None:
    message = {"order": {"total": 5, "items": [{"sku": "a"}, {"sku": "b", "n": 2}]}, "x.y": 1}
    for expression in (
        present("order"),
        present("order.items.n"),
        at_least("order.total", 5),
        all_of(one_of("order.items.sku", "a"), one_of("order.items.sku", "b")),
        one_of("x.y", 1),
    ):
        assert holding(expression, message)
    assert not holding(present("items"), message)


def test_what_is_deeper_than_a_path_may_be_is_not_seen() -> None:
    message: Any = 1
    for _ in range(100):
        message = {"f": message}
    path = ".".join(["f"] * MAX_NAMES)
    assert holding(present(path), message)
    with pytest.raises(LimitError, match=r"^the path 'f\.f\..* has more than 20 names$"):
        present(path + ".f")
    with pytest.raises(LimitError, match=r"^the path 'f\.f\..* has more than 20 names$"):
        FieldFilter[int]().add(0, [path + ".f"])


def test_many_bounds_are_in_blocks() -> None:
    readers: FieldFilter[int] = FieldFilter()
    count = 4 * bit_slices.BLOCK
    for n in range(count):
        readers.add(n, at_least("f", n * 7 % count))
    readers._check()
    (ranges,) = readers._index._unbucketed._wanted[0]._ranges["f"].values()
    assert len(ranges._lows._blocks) > 2
    for value in (-1, 0, 1, 511, 512, 513, 1_024.5, count - 1, count):
        assert readers.match_all({"f": value}) == [n for n in range(count) if n * 7 % count <= value]
    for n in range(0, count, 2):
        readers.remove(n)
    readers._check()
    assert readers.match_all({"f": 600}) == [n for n in range(1, count, 2) if n * 7 % count <= 600]


def test_a_block_of_bounds_is_about_as_long_as_there_are_blocks() -> None:
    count = 10_000
    with patch.object(bit_slices, "BLOCK", 1):
        bounds = bit_slices.Bounds()
        for n in range(count):
            bounds.add((n * 7 % count, 0), n)
    bounds._all()
    blocks = bounds._blocks
    assert len(blocks) <= 2 * count**0.5
    assert all(len(block) <= 2 * len(blocks) for block in blocks)
    for most in range(0, count, 500):
        assert set(bounds.up_to((most, 0))) == {n for n in range(count) if n * 7 % count <= most}


def test_only_clauses_without_a_row_are_answered_by_bit_slices_alone() -> None:
    readers: FieldFilter[str] = FieldFilter()
    readers.add("a", all_of(one_of("f", 1), at_least("n", 5)))
    with patch.object(readers._index._bucketed, "matching") as slices:
        assert readers.match_all({"f": 1, "n": 5}) == ["a"]
        slices.assert_not_called()
    assert not readers._index._unbucketed
    readers.add("b", at_least("n", 5))
    assert readers._index._unbucketed
    assert readers.match_all({"f": 1, "n": 5}) == ["a", "b"]


def test_values_with_equal_clauses_share_a_group() -> None:
    readers: FieldFilter[int] = FieldFilter()
    readers.add(0, [("f", 1), ("f", 2), "g"])
    readers.add(1, all_of(present("g"), one_of("f", 1, 2)))
    readers.add(2, any_of(all_of(one_of("f", 1, 2), present("g")), present("h")))
    assert len(readers._index._groups) == 2
    assert readers.match_all({"f": 2, "g": 0}) == [0, 1, 2]
    assert readers.match_any({"f": 2}) == [0]
    assert readers.hits({"f": 2, "g": 0, "h": 0}) == {0: 2, 1: 1, 2: 1}


def test_a_value_of_several_clauses_is_found_once_and_leaves_nothing_behind() -> None:
    readers: FieldFilter[str] = FieldFilter()
    for name in ("a", "b"):
        readers.add(name, any_of(present("f"), present("g"), at_least("n", 5)))
    assert readers.match_all({"f": 1, "g": 1, "n": 7}) == ["a", "b"]
    assert readers.hits({"f": 1, "g": 1, "n": 7}) == {"a": 1, "b": 1}
    readers.remove("a")
    assert readers.match_all({"n": 7}) == ["b"]
    readers.add("c", any_of(present("f"), present("g")))
    assert sorted(readers._first) == [fields.FURTHER + n for n in (1, 2, 3)]
    readers._check()
    for name in ("b", "c"):
        readers.remove(name)
    readers._check()
    assert not readers._index._groups
    assert not readers._index._bucketed
    assert not readers._index._unbucketed


def test_an_expression_that_is_the_same_keeps_its_place() -> None:
    readers: FieldFilter[str] = FieldFilter()
    readers.add("a", any_of(one_of("f", 1, 2), present("g")))
    readers.add("b", present("g"))
    readers.add("a", any_of(one_of("f", 1, 2), present("g")))
    assert readers.match_all({"g": 1}) == ["a", "b"]
    assert readers["a"] == any_of(one_of("f", 1, 2), present("g"))
    for other in (present("g"), ["g"]):
        with pytest.raises(ValueError, match="'a' is in the filter with other criteria"):
            readers.add("a", other)
    readers.clear()
    assert repr(readers) == "<FieldFilter: 0 values>"
    assert readers.match_all({"g": 1}) == []
    readers._check()


# -- values that Python does not order, or not simply

BERLIN = ZoneInfo("Europe/Berlin")


def test_datetimes_in_a_zone_are_compared_in_utc() -> None:
    """Of two in one zone, Python compares the wall clocks, which go back in autumn."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    second = first.replace(fold=1)  # an hour later
    between_them = datetime(2026, 10, 25, 0, 50, tzinfo=UTC)
    readers: FieldFilter[str] = FieldFilter()
    readers.add("first", at_least("t", first))
    readers.add("second", at_least("t", second))
    readers.add("other", at_least("t", datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=BERLIN)))
    readers.add("above", above("t", first))
    readers.add("tested", all_of(present("t"), at_least("t", first), below("t", second)))
    assert readers.match_all({"t": first.astimezone(UTC)}) == ["first", "tested"]
    assert readers.match_all({"t": between_them}) == ["first", "above", "tested"]
    assert readers.match_all({"t": second}) == ["first", "second", "other", "above"]
    readers.remove("first")
    readers._check()
    assert not holding(at_most("t", NOW), {"t": datetime.max.replace(tzinfo=BERLIN) - timedelta(hours=1)})
    assert not holding(at_least("t", NOW), {"t": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))})


def test_an_error_while_bounds_are_compared_changes_nothing() -> None:
    readers: FieldFilter[str] = FieldFilter()
    exact = between("x", Decimal(1), Decimal(3))
    readers.add("a", exact)
    readers.add("c", all_of(one_of("f", 2), exact, not_(between("x", Decimal(5), Decimal(6)))))
    low, high = between("x", 0.5, Decimal(7)), between("x", Decimal(0), 1.5)
    declared = [
        low,
        high,
        all_of(one_of("f", 1), present("g"), high),
        all_of(one_of("f", 1), not_(low)),
        any_of(present("f"), present("g"), low),
    ]
    with localcontext() as context:
        context.traps[FloatOperation] = True
        for expression in declared:
            with pytest.raises(FloatOperation):
                readers.add("b", expression)
            readers._check()
            assert "b" not in readers
            assert not readers.discard("b")
    readers.add("b", any_of(present("f"), low, high))
    readers._check()
    assert readers.match_all({"x": 2}) == ["a", "b"]


def test_too_many_parts_about_one_field_change_nothing() -> None:
    readers: FieldFilter[int] = FieldFilter()
    many = [prefix("f", f"{n}") for n in range(bit_slices.MAX_REPEATS + 1)]
    for expression in (all_of(*many), any_of(present("g"), all_of(*many)), all_of(*map(not_, many))):
        with pytest.raises(LimitError, match=r"^a clause has more than 20 parts of one kind about one field$"):
            readers.add(0, expression)
        readers._check()
    readers.add(0, all_of(*many[1:]))
    assert readers.match_all({"f": [f"{n}x" for n in range(21)]}) == [0]


def test_a_large_integer_is_no_trouble() -> None:
    huge = 10**5_000
    readers: FieldFilter[int] = FieldFilter()
    readers.add(0, at_least("f", 10))
    readers.add(1, [("f", 7), "g"])
    assert readers.match_all({"f": huge}) == [0]
    assert [part.reason for part in readers.explain({"f": -huge}, 0)] == ["f is a large int"]
    with pytest.raises(ValueError, match="there is nothing between a large int and 1"):
        between("f", huge, 1)


def test_parts_of_one_clause_are_merged_before_the_clauses_are_multiplied() -> None:
    """Otherwise this would copy 100 growing clauses 890 times."""
    few = all_of(*(present(f"a{n}") for n in range(100)))
    wide = not_(any_of(few, *(at_least(f"p{n}", n) for n in range(890))))
    with pytest.raises(LimitError, match=r"^the clauses of the expression have more than 10,000 parts$"):
        clauses_of(wide)
    assert len(clauses_of(not_(any_of(few, *(at_least(f"p{n}", n) for n in range(90)))))) == 100


def test_the_length_of_a_path_is_bounded() -> None:
    with pytest.raises(LimitError, match="more than 1,000 characters"):
        present("f" * 1_001)


def test_and_between_expressions_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^an expression is not true or false by itself; write a & b, a \| b"):
        _ = present("a") and present("b")


def test_signs_combine_expressions() -> None:
    a, b, c = map(present, "abc")
    assert a & b == all_of(a, b)
    assert a & b & c == a & (b & c) == all_of(a, b, c)
    assert a | b | c == any_of(a, b, c)
    assert (a | b) & ~c == all_of(any_of(a, b), not_(c))
    assert a & b | c == any_of(all_of(a, b), c)
    assert ~~a == a
    assert ~(a & b) == not_(all_of(a, b))
    with pytest.raises(ValueError, match=r"^'b' is not an expression; write present\('b'\)$"):
        a & "b"  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"^\('b', 1\) is not an expression; write one_of\('b', 1\)$"):
        a | ("b", 1)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        (at_least("f", 10), "20", "f is '20', of type str, which has no order with 10"),
        (at_least("f", "b"), 20, "f is 20, of type int, which has no order with 'b'"),
        (below("f", date(2026, 1, 1)), "2025-01-01", "f is '2025-01-01', of type str, which has no order with datetime.date(2026, 1, 1)"),
        (at_least("f", 10), 5, "f is 5"),
        (one_of("f", "10"), 10, "f is 10, of type int, and not the str '10'"),
        (one_of("f", 10, 11), "11", "f is '11', of type str, and not the int 11"),
        (one_of("f", 10), 11, "f is 11"),
        (prefix("f", "1"), 10, "f is 10, of type int, and only a str has a beginning"),
        (prefix("f", "1"), "2", "f is '2'"),
    ],
)  # fmt: skip
def test_explain_says_that_a_value_is_of_another_type(part: Any, value: object, reason: str) -> None:
    readers: FieldFilter[str] = FieldFilter()
    readers.add("a", part)
    assert [part.reason for part in readers.explain({"f": value}, "a")] == [reason]


def test_a_lock_need_not_be_reentrant() -> None:
    readers: FieldFilter[str] = FieldFilter(lock=threading.Lock())
    readers.add("a", ["x"])
    readers.add("a", ["x"])
    assert readers.discard("a")
    readers.add("a", present("x"))
    assert readers.explain({}, "a")[0].reason == "there is no field x"


def test_in_and_len_are_right_while_ids_are_renumbered() -> None:
    readers: FieldFilter[int] = FieldFilter()
    for n in range(6_000):
        readers.add(n, ["a"])
    wrong: list[object] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if 5_999 not in readers or len(readers) < 1_000:
                wrong.append((5_999 in readers, len(readers)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for n in range(5_000):
            readers.remove(n)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert readers._values.next_id < 6_000
    assert not wrong


# -- what is refused

nan = float("nan")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (one_of, ("f",), "one_of('f') has no value; to ask for the field alone, write present('f')"),
        (one_of, ("f", ["a"]), "one_of('f'): ['a'] is a list; write one_of(field, *values)"),
        (one_of, ("f", {"a"}), "one_of('f'): {'a'} is a set; write one_of(field, *values)"),
        (one_of, ("f", nan), "one_of('f'): nan is not equal to itself"),
        (one_of, ("f", ("a", nan)), "one_of('f'): ('a', nan) is not equal to itself"),
        (one_of, ("f", {}), "one_of('f'): {} cannot be hashed"),
        (one_of, ("f", len), f"one_of('f'): {len!r} is a function or a class, and only values are compared"),
        (
            at_least,
            ("f", nan),
            "at_least('f'): nan has no order; bounds are numbers, str, bytes, dates, datetimes, timedeltas, and times without a time zone",
        ),
        (
            below,
            ("f", Decimal("snan")),
            "below('f'): Decimal('sNaN') has no order; bounds are numbers, str, bytes, dates, datetimes, timedeltas, and times without a time zone",
        ),
        (
            above,
            ("f", None),
            "above('f'): None has no order; bounds are numbers, str, bytes, dates, datetimes, timedeltas, and times without a time zone",
        ),
        (between, ("f", 5, 3), "between('f'): there is nothing between 5 and 3"),
        (between, ("f", 5, "x"), "between('f'): 5 and 'x' have no common order"),
        *(
            (
                function,
                ("f", text),
                f"{function.__name__}('f'): {text!r} is a text, and no number has an order with it; write a number",
            )
            for function, text in zip((at_least, above, at_most, below), ("10", " -2.5", ".5", "1e3"), strict=True)
        ),
        *(
            (function, (path, *rest), f"the path {path!r} has an empty name; a path is written as 'order.total'")
            for function, rest in ((present, ()), (one_of, (1,)), (prefix, ("x",)), (below, (1,)))
            for path in ("", " ", ".a", "a.", "order..total", "a. .b")
        ),
        (prefix, ("f", ""), "prefix('f'): '' is not a str with at least one character"),
        (prefix, ("f", 1), "prefix('f'): 1 is not a str with at least one character"),
        (present, (7,), "7 is not the name of a field, or a path such as 'order.total'"),
        (any_of, (), "any_of() has no part, so it could never hold"),
        (
            all_of,
            ("severity = critical",),
            "'severity = critical' is not an expression; write one_of('severity', 'critical')",
        ),
        (between, ("f", NAIVE, NOW), f"between('f'): {NAIVE!r} and {NOW!r} have no common order"),
        (
            all_of,
            ([present("f")],),
            "[present('f')] is not an expression; write *parts: the parts are arguments of their own",
        ),
        (all_of, ("urgent",), "'urgent' is not an expression; write present('urgent')"),
        (not_, (("f", 1),), "('f', 1) is not an expression; write one_of('f', 1)"),
        (any_of, (len,), f"{len!r} is not an expression; a predicate needs a SkipFilter"),
        (
            not_,
            (1,),
            "1 is not an expression; write one_of(field, value), or another function of skipfilter.fields",
        ),
    ],
)
def test_an_expression_that_cannot_be_is_refused_with_how_to_write_it(
    function: Any, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        function(*arguments)


@pytest.mark.parametrize(
    "expression",
    [
        all_of(present("f"), not_(present("f"))),
        not_(all_of()),
        any_of(all_of(one_of("f", 1), not_(one_of("f", 1))), not_(any_of(all_of()))),
    ],
)
def test_an_expression_that_can_never_hold_is_refused(expression: Expression) -> None:
    readers: FieldFilter[int] = FieldFilter()
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(expression))} can never hold$"):
        readers.add(0, expression)
    assert 0 not in readers
    readers._check()


def test_the_size_and_the_depth_of_an_expression_are_bounded() -> None:
    readers: FieldFilter[int] = FieldFilter()
    deep = present("f")
    for _ in range(MAX_DEPTH - 1):
        deep = not_(deep)
    readers.add(0, deep)
    for _ in range(5_000):
        deep = not_(deep)
    pairs = [any_of(present(f"a{n}"), present(f"b{n}")) for n in range(7)]
    cases: list[tuple[Expression, str]] = [
        (deep, f"the expression is deeper than {MAX_DEPTH}"),
        (one_of("f", *range(MAX_PARTS + 1)), r"the expression has more than 1,000 parts and values"),
        (all_of(*(present(f"f{n}") for n in range(MAX_PARTS))), r"the expression has more than 1,000 parts and values"),
        (all_of(*pairs), f"the expression has more than {MAX_CLAUSES} clauses: it is any of too many all_of"),
        (not_(any_of(*map(not_, pairs))), f"more than {MAX_CLAUSES} clauses"),
    ]
    for expression, message in cases:
        with pytest.raises(LimitError, match=message):
            readers.add(1, expression)
    readers.add(1, all_of(*pairs[:6]))
    readers.add(2, one_of("f", *range(MAX_PARTS)))
    assert len(clauses_of(all_of(*pairs[:6]))) == 64
    readers._check()


# -- for people


@pytest.mark.parametrize(
    "text",
    [
        "present('f')",
        "one_of('f', 'a', 1)",
        "prefix('f.g', 'a')",
        "at_least('f', 1)",
        "above('f', 1)",
        "at_most('f', Decimal('1'))",
        "below('f', 'x')",
        "between('f', 1, 2)",
        "not_(any_of(present('f'), all_of(present('g'), present('h'))))",
    ],
)
def test_an_expression_is_shown_as_it_is_written(text: str) -> None:
    assert repr(eval(text)) == text


def test_explain_says_which_part_does_not_hold() -> None:
    readers: FieldFilter[str] = FieldFilter()
    readers.add("rule", all_of(at_least("order.total", 100), not_(any_of(present("test"), prefix("id", "x-")))))
    readers.add("list", [("c", "DE"), ("c", "FR"), "urgent"])
    message = {"order": {"total": [5, 6, 7, 8]}, "test": None, "c": "US"}
    assert list(map(str, readers.explain(message, "rule"))) == [
        "at_least('order.total', 100) does not hold: order.total is 5 and 6 and 7 and 1 more",
        "not_(present('test')) does not hold: test is None",
        "not_(prefix('id', 'x-')) holds",
    ]
    assert list(map(str, readers.explain(message, "list"))) == [
        "one_of('c', 'DE', 'FR') does not hold: c is 'US'",
        "present('urgent') does not hold: there is no field urgent",
    ]
    readers.add("order", one_of("order", 1))
    assert [part.reason for part in readers.explain(message, "order")] == ["order has no value of its own"]
    with pytest.raises(KeyError, match="nobody"):
        readers.explain(message, "nobody")

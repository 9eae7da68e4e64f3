"""Expressions and criteria as JSON: the same after a round trip, and nothing else is taken."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipfilter import FieldFilter, LimitError
from skipfilter.fields import (
    Expression,
    above,
    all_of,
    any_of,
    at_least,
    at_most,
    below,
    between,
    from_json,
    not_,
    one_of,
    prefix,
    present,
    to_json,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.binary(max_size=3)
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30))))
    | st.times()
    | st.timedeltas()
)
CONTENTS = SCALARS | st.tuples(SCALARS, SCALARS) | st.frozensets(SCALARS, max_size=2)
FIELDS = st.sampled_from(["a", "a.b", "é"])
BOUNDS = st.sampled_from([1, 2.5, -math.inf, "a", b"a", Decimal("1.50"), Fraction(1, 3), date(2026, 11, 29)])
PARTS: st.SearchStrategy[Expression] = (
    st.builds(present, FIELDS)
    | st.builds(one_of, FIELDS, CONTENTS, CONTENTS)
    | st.builds(prefix, FIELDS, st.text(min_size=1, max_size=3))
    | st.builds(
        lambda function, field, bound: function(field, bound),
        st.sampled_from([at_least, above, at_most, below]),
        FIELDS,
        BOUNDS,
    )
    | st.builds(lambda field, ends: between(field, *sorted(ends)), FIELDS, st.tuples(st.integers(), st.integers()))
)
EXPRESSIONS = st.recursive(
    PARTS,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda some: st.sampled_from([all_of(*some), any_of(*some), not_(some[0])])
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_an_expression_is_the_same_after_a_round_trip(expression: Expression) -> None:
    text = to_json(expression)
    again = from_json(text)
    assert again == expression
    assert from_json(text.encode()) == from_json(json.loads(text)) == expression  # as a database may return it


@given(st.lists(FIELDS | st.tuples(FIELDS, CONTENTS), max_size=4))
def test_a_list_of_criteria_is_the_same_after_a_round_trip(criteria: list[Any]) -> None:
    again = from_json(to_json(criteria))
    assert isinstance(again, list)
    assert again == list(dict.fromkeys(criteria))


@pytest.mark.parametrize(
    "value", [5, 2.5, math.inf, True, None, "x", b"\x00", Decimal("1.50"), Fraction(1, 3), date(2026, 11, 29),
              time(12, 30), timedelta(days=-1, microseconds=5), datetime(2026, 11, 29, 12, tzinfo=UTC), (1, ("a", None)), frozenset({1})],
)  # fmt: skip
def test_a_value_keeps_its_class(value: Any) -> None:
    again = from_json(to_json([("f", value)]))
    assert again == [("f", value)]
    assert isinstance(again, list)
    assert type(again[0][1]) is type(value)


def test_a_filter_is_saved_and_loaded_as_rows() -> None:
    rules: FieldFilter[str] = FieldFilter()
    rules.add("ann", all_of(one_of("currency", "USD"), not_(present("test"))))
    rules.add("bob", ["urgent", ("currency", "EUR")])
    rows = [(name, to_json(declared)) for name, declared in rules.items()]
    assert rows[1] == ("bob", '["urgent", ["currency", "EUR"]]')  # in the same order each time
    again: FieldFilter[str] = FieldFilter()
    again.add_many((name, from_json(text)) for name, text in rows)
    assert list(again.items()) == list(rules.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"like": ["f", "U%"]}', "'like' is none of present, one_of, prefix, at_least, above, at_most, below, between, all_of"),
        ("{", "'{' is not JSON: Expecting property name"),
        ("5", '5 is not an expression, such as {"present": ["field"]}'),
        ("{}", "{} is not an expression"),
        ('{"present": ["f"], "prefix": ["f", "x"]}', "is not an expression"),
        ('{"present": ["f"], "present": ["g"]}', "['present', 'present']: a name comes twice in an object"),
        ('{"present": "f"}', "present: 'f' is not a list of arguments"),
        ('{"present": []}', "present: present() missing 1 required positional argument: 'field'"),
        ('{"present": ["f", "g"]}', "present: present() takes 1 positional argument but 2 were given"),
        ('{"present": ["a..b"]}', "the path 'a..b' has an empty name"),
        ('{"between": ["f", 2, 1]}', "there is nothing between 2 and 1"),
        ('{"all_of": ["f"]}', "'f' is not an expression"),
        ('{"one_of": ["f", [1]]}', "[1] is not a value, such as 5"),
        ('{"one_of": ["f", {"Moment": 1}]}', "'Moment' is none of datetime, date, time"),
        ('{"one_of": ["f", {"Decimal": "x"}]}', "'x' is no Decimal"),
        ('{"one_of": ["f", {"date": 5}]}', "5 is no date: fromisoformat: argument must be str"),
        ('{"one_of": ["f", {"bytes": "%"}]}', "'%' is no bytes"),
        ('{"one_of": ["f", {"timedelta": [1]}, {"timedelta": ["x"]}]}', "['x'] is no timedelta"),
        ('[["a", 1, 2]]', "criterion ['a', 1, 2]: neither a field nor a [field, value]"),
        ('["a=b"]', "criterion 'a=b': neither a field nor a (field, value)"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        from_json(text)
    assert message in str(caught.value)


def test_depth_is_bounded() -> None:
    deep = '{"not_": [' * 30 + '{"present": ["f"]}' + "]}" * 30
    value: dict[str, Any] = {"tuple": []}
    for _ in range(10_000):
        value = {"tuple": [value]}
    for text in (deep, "[" * 100_000, {"one_of": ["f", value]}):
        with pytest.raises(LimitError, match="deeper than 20"):
            from_json(text)


def test_a_value_that_json_would_change_is_named() -> None:
    moment = pd.Timestamp("2026-11-29T12:00:00.000000123")
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    for value in (moment, twice):
        with pytest.raises(ValueError, match="would be another value when it is read from JSON again"):
            to_json(one_of("f", value))


def test_a_value_without_a_form_is_named() -> None:
    with pytest.raises(ValueError, match="1j is of type complex, which has no form as JSON"):
        to_json(one_of("f", 1j))
    with pytest.raises(ValueError, match="criteria 5: not a list"):
        to_json(5)  # type: ignore[arg-type]

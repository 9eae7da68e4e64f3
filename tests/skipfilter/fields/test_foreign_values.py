"""Messages from pandas, numpy, Arrow and the numeric tower: nothing raises, and what is equal is in a range."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipfilter import FieldFilter
from skipfilter.fields.expressions import above, at_least, at_most, below, between, not_, one_of, prefix, present
from skipfilter.text import brief


class Missing(datetime):
    """A moment that is not known."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = datetime.__hash__


NEW_YEAR = datetime(2026, 1, 1)  # noqa: DTZ001
NUMBERS = [
    *(kind(5) for kind in (int, float, Decimal, Fraction, np.int8, np.uint64, np.float16, np.float32, np.float64)),
    *(np.longdouble(text) for text in ("5", "0.1", "-inf")),
    *(1, True, np.True_, np.uint64(2**64 - 1), 2**64 - 1, 2.0**64, 10**400, -(10**400)),
    *(0.1, Decimal("0.1"), Fraction(1, 10), np.float16(0.1), np.float32(0.1), Fraction(1, 3)),
    *(float("inf"), Decimal("Infinity"), np.float32("inf"), Decimal("-0"), -0.0),
]
MOMENTS = [
    *(NEW_YEAR, pd.Timestamp(NEW_YEAR), np.datetime64(NEW_YEAR), datetime.min, datetime.max),  # noqa: DTZ901
    *(pd.Timestamp.min, pd.Timestamp.max, pd.Timestamp(NEW_YEAR) + pd.Timedelta(1, "ns")),
]
ZONED = [
    *(NEW_YEAR.replace(tzinfo=UTC), pd.Timestamp(NEW_YEAR, tz="UTC"), pd.Timestamp(NEW_YEAR, tz="Europe/Berlin")),
    NEW_YEAR.replace(tzinfo=timezone(timedelta(hours=1))),
]
DAYS = [NEW_YEAR.date(), np.datetime64("2026-01-01"), date.min, date.max]
SPANS = [
    *(timedelta(1), pd.Timedelta(1, "D"), np.timedelta64(1, "D"), np.timedelta64(86_400, "s"), timedelta.max),
    *(timedelta.min, pd.Timedelta.min, pd.Timedelta.max, pd.Timedelta(1, "ns")),
]
KINDS = [NUMBERS, MOMENTS, ZONED, DAYS, SPANS, [time(1), time(2)], ["", "a", np.str_("a")], [b"a", np.bytes_(b"a")]]
WITHOUT_ORDER = [
    *(None, pd.NA, pd.NaT, np.ma.masked, pa.scalar(None), pa.scalar(5), pa.scalar("a"), pa.scalar(NEW_YEAR)),
    *(float("nan"), Decimal("nan"), Decimal("snan"), np.float32("nan"), np.longdouble("nan"), 1j, np.complex64(1)),
    *(
        np.datetime64("NaT"),
        np.timedelta64("NaT"),
        np.datetime64(1, "ns"),
        np.timedelta64(1, "ns"),
        pd.Timedelta("NaT"),
    ),
    *(datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), time(1, tzinfo=UTC)),
    *(
        Missing(2026, 1, 1),
        pd.Period("2026-01"),
        pd.Interval(0, 1),
        pd.Series([5]),
        np.array([1, 5]),
        pd.Categorical(["a"]),
    ),
]
BOUNDS = [bound for kind in KINDS for bound in kind]


def holding(expression: Any, message: dict[str, Any]) -> bool:
    readers: FieldFilter[str] = FieldFilter()
    readers.add("reader", expression)
    holds = readers.match_all(message) == ["reader"]
    if not isinstance(expression, list):
        readers.add("other", not_(expression))
        assert readers.match_all(message) == (["reader"] if holds else ["other"])
    return holds


def exact(value: Any) -> Any:
    """Return a value to compare: numpy compares some numbers with a warning, or raises."""
    if not any(value is number for number in NUMBERS):
        return value
    ratio = getattr(value, "as_integer_ratio", lambda: (int(value), 1))
    try:
        return Fraction(*map(int, ratio()))
    except OverflowError:
        return float(value)


@pytest.mark.parametrize("bound", BOUNDS, ids=brief)
def test_a_value_is_in_a_range_if_it_is_equal_and_ordered(bound: Any) -> None:
    """Of one kind, a value is below, equal or above; of another kind, it is none of them, and nothing raises."""
    for value in WITHOUT_ORDER + BOUNDS:
        message = {"f": value}
        same = any(any(value is one for one in kind) and any(bound is one for one in kind) for kind in KINDS)
        equal = same and bool(exact(value) == exact(bound))
        less, more = holding(below("f", bound), message), holding(above("f", bound), message)
        assert (less, equal, more).count(True) == same
        assert holding(between("f", bound, bound), message) == equal
        assert holding(at_least("f", bound), message) == (equal or more)
        assert holding(at_most("f", bound), message) == (equal or less)
        if equal:
            assert holding(one_of("f", bound), message)
            assert holding([("f", bound)], message)


@pytest.mark.parametrize("value", WITHOUT_ORDER, ids=brief)
def test_what_has_no_order_is_no_bound_and_is_present(value: Any) -> None:
    with pytest.raises(ValueError, match="has no order; bounds are numbers"):
        at_least("f", value)
    assert holding(present("f"), {"f": value})
    assert not holding(prefix("f", "a"), {"f": value})
    assert holding(one_of("f", None), {"f": value}) == (value is None)


@given(st.dictionaries(st.sampled_from("fgh"), st.sampled_from(WITHOUT_ORDER + BOUNDS)))
def test_a_message_of_any_library_is_matched(message: dict[str, Any]) -> None:
    readers: FieldFilter[int] = FieldFilter()
    for n, bound in enumerate(BOUNDS):
        readers.add(n, at_least("fgh"[n % 3], bound))
    matched = readers.match_all(message)
    assert matched == [n for n, bound in enumerate(BOUNDS) if holding(at_least("fgh"[n % 3], bound), message)]


@pytest.mark.parametrize(
    "value", [pd.NA, pd.NaT, np.datetime64("NaT"), float("nan"), Decimal("nan"), Missing(2026, 1, 1)]
)
def test_a_value_that_is_not_known_is_no_content(value: Any) -> None:
    for refused in (lambda: one_of("f", value), lambda: FieldFilter[int]().add(1, [("f", value)])):
        with pytest.raises(ValueError, match="is not equal to itself"):
            refused()

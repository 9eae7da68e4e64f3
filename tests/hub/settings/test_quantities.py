"""Durations and sizes: every form that people write, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.settings.quantities import duration, parse_duration, parse_size, size


def test_durations_and_sizes() -> None:
    durations = {
        "90s": 90, "15m": 900, "12h": 43_200, "30d": 2_592_000, "1.5 H": 5_400, "60": 60, "0": 0, "0d": 0, "250ms": 0.25
    }  # fmt: skip
    sizes = {"500MB": 500_000_000, "2GiB": 2**31, "1.5 kb": 1_500, "7": 7, "10b": 10, "1tib": 2**40, "0": 0}
    assert {text: parse_duration(text) for text in durations} == durations
    assert {text: parse_size(text) for text in sizes} == sizes
    assert (parse_duration("30", unit=86_400), parse_duration("12h", unit=86_400)) == (2_592_000, 43_200)
    for text in ("", "d", "-1d", "1y", "1e9", "١d", "1d2h", "99999999999999999999d", "nan", "1,5s", "s1"):
        with pytest.raises(ValueError, match=re.escape(f"{text!r} is not a duration, as in 90s, 15m, 12h or 30d")):
            parse_duration(text)
        with pytest.raises(ValueError, match="is not a size, as in 500000, 500MB or 2GiB"):
            parse_size(text)


@given(st.integers(0, 2**40))
def test_a_quantity_is_written_as_it_is_read(number: int) -> None:
    assert parse_size(size(number)) == number
    if number < 10**5:
        assert parse_duration(duration(number)) == number


def test_a_size_whose_unit_could_be_two_is_refused() -> None:
    with pytest.raises(ValueError, match="'64M' is not a size, as in 500000, 500MB or 2GiB"):
        parse_size("64M")

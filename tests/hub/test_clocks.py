"""Clocks that are set, and machines that are suspended."""

from __future__ import annotations

import time
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from hub.clocks import STEP_SECONDS, Dates, since_boot

STEPS = st.lists(st.tuples(st.sampled_from(["later", "append", "set"]), st.integers(-5_000, 5_000)), max_size=12)


class Machine:
    """Two clocks: one that is set, and one that is not."""

    def __init__(self) -> None:
        self.system = 1_800_000_000.0
        self.steady = 5.0
        self.dates = Dates()
        self.dates._system = lambda: self.system
        self.dates._steady = lambda: self.steady
        self.dates._compared = self.system
        self.dates._between = self.system - self.steady

    def later(self, seconds: float) -> None:
        self.system += seconds
        self.steady += seconds


@settings(max_examples=300)
@given(STEPS, st.integers(1, 5_000))
@example([("append", 0), ("set", 61), ("later", 1)], 1)
def test_no_entry_becomes_older_when_the_clock_is_set(steps: list[tuple[str, int]], age: int) -> None:
    machine = Machine()
    appended: list[tuple[int, float]] = []
    only_forward = True
    for what, seconds in steps:
        if what == "later":
            machine.later(abs(seconds))
        elif what == "set":
            machine.system += seconds
            only_forward = only_forward and seconds > STEP_SECONDS
        if what in ("append", "set"):  # each step is noticed by itself
            appended.append((machine.dates.now(), machine.steady))
        forgotten = [machine.steady - then for date, then in appended if date < machine.dates.past(age * 1_000)]
        slack = STEP_SECONDS * len(steps) + 0.01  # small steps are not noticed
        assert all(true_age > age - slack for true_age in _prefix(appended, machine, age))
        if only_forward:
            true = [machine.steady - then for _, then in appended if machine.steady - then > age]
            assert forgotten == true


def _prefix(appended: list[tuple[int, float]], machine: Machine, age: float) -> list[float]:
    """The true ages of what a history forgets: its oldest entries, until one is kept."""
    before, ages = machine.dates.past(age * 1_000), []
    for date, then in appended:
        if date >= before:
            break
        ages.append(machine.steady - then)
    return ages


def test_a_step_is_logged_and_new_entries_get_new_dates(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    before = machine.dates.now()
    machine.system += 59
    assert machine.dates.now() == before + 59_000  # small corrections are not worth a line
    assert not caplog.records
    machine.system += 86_400
    assert machine.dates.now() == before + 59_000 + 86_400_000
    [record] = caplog.records
    assert "the system clock was set" in record.getMessage()
    assert "86459" in record.getMessage()
    machine.dates.now()
    assert len(caplog.records) == 1


def test_a_clock_that_is_set_forward_and_back_leaves_no_step() -> None:
    machine = Machine()
    for _ in range(100):
        for seconds in (1e7, -1e7):
            machine.system += seconds
            machine.dates.now()
    assert not machine.dates._steps


def test_a_suspended_machine_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_BOOTTIME goes on in a suspended machine, as the system clock does."""
    dates, real = Dates(), time.time()
    monkeypatch.setattr(dates, "_steady", lambda: since_boot() + 1e6)
    monkeypatch.setattr(dates, "_system", lambda: time.time() + 1e6)
    assert dates.now() >= int((real + 1e6) * 1_000)
    assert not dates._steps


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="not on Linux")
def test_on_linux_the_clock_since_boot_counts_suspension() -> None:
    seconds: Any = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 <= since_boot() - seconds < 1_000

"""When subscribers of a hub that cannot serve them come back."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from hub.errors import Busy, HistoryUnavailable
from hub.node.outage import DEFAULT_RETRY, LONGEST_RETRY, QUIET_SECONDS, Outage

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def new(clock: Clock) -> Callable[[float], Outage]:
    return lambda retry: Outage(retry, clock=clock, random=Random(1))


def mean(outage: Outage) -> float:
    hints = [outage.hint() for _ in range(500)]
    middle = sum(hints) / len(hints)
    assert 0.4 * middle < min(hints) < 0.6 * middle  # random
    assert 1.4 * middle < max(hints) < 1.6 * middle
    return middle


def test_the_hint_is_longer_the_longer_a_fault_lasts(clock: Clock, new: Callable[[float], Outage]) -> None:
    for retry, shortest in ((0, DEFAULT_RETRY), (5, 5), (500, 500)):
        outage = new(retry)
        began, means = clock.now, []
        for seconds in (0, 8, 40, 80, 120, 200, 240, 300, 400, 500):
            clock.now = began + seconds
            means.append(mean(outage))
        expected = [
            max(shortest, min(LONGEST_RETRY, seconds / 4)) for seconds in (0, 8, 40, 80, 120, 200, 240, 300, 400, 500)
        ]
        assert means == pytest.approx(expected, rel=0.1)
        clock.now += QUIET_SECONDS + 1  # the fault is over
        assert mean(outage) == pytest.approx(shortest, rel=0.1)


def test_without_the_setting_streams_have_a_hint_until_all_have_come_back(
    clock: Clock, new: Callable[[float], Outage]
) -> None:
    outage = new(0)
    assert outage.usual_hint() is None
    outage.hint()
    clock.now += QUIET_SECONDS
    assert 1.5 <= (outage.usual_hint() or 0) <= 4.5
    clock.now += 1
    assert outage.usual_hint() is None
    assert 1 <= (new(2).usual_hint() or 0) <= 3


def test_streams_that_end_at_once_are_logged_once_a_second(
    clock: Clock, new: Callable[[float], Outage], caplog: pytest.LogCaptureFixture
) -> None:
    outage = new(3)
    for number in range(1_000):
        clock.now += 0.001
        outage.report(HistoryUnavailable("it is down") if number < 500 else Busy("too many"))
    clock.now += 1
    outage.report(Busy("too many"))
    lines = [record.getMessage() for record in caplog.records]
    assert 2 <= len(lines) <= 3
    assert "streams=1" in lines[0]
    assert sum(int(line.split("streams=")[1].split()[0]) for line in lines) == 1_001

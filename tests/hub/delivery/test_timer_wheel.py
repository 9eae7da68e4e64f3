"""`Wheel` against a model: a dictionary of times."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hub.delivery.timer_wheel import Slot, Wheel

TICK = 0.5


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.slot: Slot | None = None

    def __repr__(self) -> str:
        return self.name


NAMES = st.sampled_from("abcd")


class AgainstNaive(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.wheel: Wheel[Item] = Wheel(now=self.now, tick=TICK)
        self.items = {name: Item(name) for name in "abcd"}
        self.model: dict[str, float] = {}

    @rule(item=NAMES, wait=st.floats(-3, 10) | st.just(math.inf))
    def set(self, item: str, wait: float) -> None:
        self.wheel.set(self.items[item], self.now + wait)
        self.model.pop(item, None)
        if wait != math.inf:
            self.model[item] = self.now + max(wait, 0)

    @rule(item=NAMES)
    def discard(self, item: str) -> None:
        self.wheel.discard(self.items[item])
        self.model.pop(item, None)

    @rule(wait=st.floats(0, 4))
    def turn(self, wait: float) -> None:
        self.now += wait
        due = self.wheel.turn(self.now)
        assert len(set(due)) == len(due)
        for item in due:
            assert self.model.pop(item.name) <= self.now  # never early
        for at in self.model.values():
            assert at > self.now - 2 * TICK  # late by at most two ticks

    @invariant()
    def agree(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert all(self.wheel._slots.values())
        assert {name for name, item in self.items.items() if item.slot} == self.model.keys()


AgainstNaive.TestCase.settings = settings(max_examples=60, deadline=None)
TestAgainstNaive = AgainstNaive.TestCase


def test_timers_are_never_early_and_a_clock_that_goes_back_is_ignored() -> None:
    wheel: Wheel[Item] = Wheel(now=100.0, tick=TICK)
    a, b = Item("a"), Item("b")
    wheel.set(a, 100.7)
    assert wheel.turn(100.5) == []
    assert wheel.turn(101.0) == [a]
    assert wheel.turn(50.0) == []
    wheel.set(b, 60.0)
    assert wheel.turn(101.0) == []
    assert wheel.turn(101.5) == [b]


def test_a_leap_of_the_clock_only_costs_the_due_timers() -> None:
    wheel: Wheel[Item] = Wheel(now=0.0, tick=TICK)
    a, b = Item("a"), Item("b")
    wheel.set(a, 7.0)
    wheel.set(b, 1e12)
    assert wheel.turn(1e11) == [a]
    assert wheel.turn(1e11 + 1) == []
    assert wheel.turn(2e12) == [b]

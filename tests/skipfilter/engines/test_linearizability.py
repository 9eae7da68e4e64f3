"""Concurrent histories of the thread-safe engines and of SkipFilter, and of broken ones
for the checker.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from skipfilter import SelectorIndex, SkipFilter
from skipfilter.engines import SkipFilterEngine, SnapshotTrie
from skipfilter.topics.words import AMQP, match_words
from tests.linearizability import History, Operation, busy_switching, is_linearizable, run_threads
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from immutables import Map

    from skipfilter.engines import Engine
    from skipfilter.topics.words import Grammar, Words

# -- the models

Subscriptions = frozenset[tuple[int, str, str]]
"""(handle, pattern, value) of each subscription; a removed one keeps its handle and has
no pattern."""
GONE = "gone"
NOBODY: Subscriptions = frozenset()


def subscriptions(state: Subscriptions, operation: Operation) -> Subscriptions | None:
    """The model of an engine."""
    live = {entry for entry in state if entry[1] != GONE}
    if operation.name == "subscribe":
        pattern, value = operation.arguments
        known = operation.result in {handle for handle, _, _ in state}
        return None if known else state | {(operation.result, pattern, value)}
    if operation.name == "unsubscribe":
        (handle,) = operation.arguments
        leaving = {entry for entry in live if entry[0] == handle}
        if operation.result is not (None if leaving else KeyError):
            return None
        return (state - leaving) | {(handle, GONE, "") for _ in leaving}
    if operation.name == "subscriptions":
        listed = tuple((pattern, value) for _, pattern, value in sorted(live))
        return state if operation.result == listed else None
    (topic,) = operation.arguments
    found = {value for _, pattern, value in live if match_words(AMQP.parse_pattern(pattern), AMQP.parse_topic(topic))}
    if operation.name == "matches":
        return state if operation.result is bool(found) else None
    assert operation.name == "lookup"
    return state if operation.result == found else None


Values = tuple[tuple[int, int], ...]
"""(value, number), oldest first: a value matches a key that divides its number."""
NOTHING: Values = ()


def values(state: Values, operation: Operation) -> Values | None:
    """The model of a SkipFilter."""
    present = dict(state)
    if operation.name == "match_any":
        (key,) = operation.arguments
        found = tuple(value for value, number in state if number % key == 0)
        return state if operation.result == found else None
    if operation.name == "discard":
        (value,) = operation.arguments
        left = tuple(pair for pair in state if pair[0] != value)
        return left if operation.result is (value in present) else None
    if operation.name == "replace":
        value, number = operation.arguments
        if operation.result is not (None if value in present else KeyError):
            return None
        return (*(pair for pair in state if pair[0] != value), (value, number)) if value in present else state
    pairs = operation.arguments[0] if operation.name == "add_many" else [(operation.arguments[0],) * 2]
    is_refused = any(present.get(value, number) != number for value, number in pairs)
    if operation.result is not (ValueError if is_refused else None):
        return None
    return state if is_refused else (*state, *(pair for pair in pairs if pair[0] not in present))


# -- the checker itself


def test_the_history_of_the_picture() -> None:
    subscribe = Operation("subscribe", ("a", "x"), 0, 0, 2)
    unsubscribe = Operation("unsubscribe", (0,), None, 1, 3)
    nobody = Operation("lookup", ("a",), set(), 4, 5)
    assert is_linearizable([subscribe, unsubscribe, nobody], NOBODY, subscriptions)
    still = Operation("lookup", ("a",), {"x"}, 4, 5)
    assert not is_linearizable([subscribe, unsubscribe, still], NOBODY, subscriptions)
    meanwhile = Operation("lookup", ("a",), {"x"}, 1, 5)
    assert is_linearizable([subscribe, unsubscribe, meanwhile], NOBODY, subscriptions)


def test_a_history_that_is_only_correct_in_another_order_is_refused() -> None:
    late = Operation("add", (4,), None, 2, 3)
    assert not is_linearizable([Operation("match_any", (2,), [4], 0, 1), late], NOTHING, values)
    assert is_linearizable([Operation("match_any", (2,), [4], 0, 4), late], NOTHING, values)


def test_readers_that_disagree_about_the_order_are_refused() -> None:
    writes = [Operation("add", (2,), None, 0, 9), Operation("add", (4,), None, 1, 8)]
    first = [Operation("match_any", (2,), [2], 2, 3), Operation("match_any", (2,), [2, 4], 4, 5)]
    other = Operation("match_any", (2,), [4], 6, 7)
    assert is_linearizable([*writes, *first], NOTHING, values)
    assert not is_linearizable([*writes, *first, other], NOTHING, values)


def test_a_handle_used_twice_is_refused() -> None:
    same = [Operation("subscribe", ("a", "x"), 0, 0, 1), Operation("unsubscribe", (0,), None, 2, 3)]
    assert not is_linearizable([*same, Operation("subscribe", ("b", "y"), 0, 4, 5)], NOBODY, subscriptions)


def test_a_replacement_of_which_both_or_none_is_seen_is_refused() -> None:
    history = [Operation("add", (2,), None, 0, 1), Operation("replace", (2, 3), None, 2, 9)]
    old, new = (Operation("match_any", (key,), [2], at, at + 1) for key, at in ((2, 3), (3, 5)))
    assert is_linearizable([*history, old, new], NOTHING, values)
    both = Operation("match_any", (2,), [2], 7, 8)
    assert not is_linearizable([*history, new, both], NOTHING, values)
    none = Operation("match_any", (1,), [], 3, 4)
    assert not is_linearizable([*history, none], NOTHING, values)


# -- many short histories


def drive_engine(engine: Engine[str], history: History, handles: list[int], seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        what = chance.choice(["subscribe", "unsubscribe", "lookup", "matches", "subscriptions"])
        if what == "subscribe":
            pattern, value = chance.choice(["a.b", "a.*", "#", "*.b"]), chance.choice("xy")
            handles.append(history.call(what, engine.subscribe, pattern, value))
        elif what == "unsubscribe" and handles:
            history.call(what, engine.unsubscribe, chance.choice(handles))
        elif what == "subscriptions" and isinstance(engine, SnapshotTrie):
            history.call(what, lambda: engine.snapshot().subscriptions())
        else:
            ask = engine.lookup if what == "lookup" else engine.matches
            history.call(ask.__name__, ask, chance.choice(["a.b", "b.b"]))


def drive_filter(numbers: SkipFilter[int, int], history: History, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        name = chance.choice(["add", "discard", "match_any"])
        argument = chance.choice([2, 3, 4]) if name == "match_any" else chance.choice([2, 4, 6])
        history.call(name, getattr(numbers, name), argument)


def drive_declarations(readers: SkipFilter[int, str], history: History, seed: int) -> None:
    """Values that declare the divisors of a number."""
    chance = random.Random(seed)

    def declared(number: int) -> list[tuple[str, str]]:
        return [("exact", str(key)) for key in (1, 2, 3) if number % key == 0]

    for _ in range(4):
        name = chance.choice(["add_many", "replace", "discard", "match_any"])
        value, number, key = chance.choice([2, 4]), chance.choice([1, 2, 3, 6]), chance.choice([1, 2, 3])
        if name == "add_many":
            pairs = ((2, 2), (4, 3)) if chance.random() < 0.5 else ((value, number),)
            history.call(name, lambda pairs: readers.add_many([(v, declared(n)) for v, n in pairs]), pairs)
        elif name == "replace":
            history.call(name, lambda value, number: readers.replace(value, declared(number)), value, number)
        elif name == "discard":
            history.call(name, readers.discard, value)
        else:
            history.call(name, lambda key: readers.match_any(str(key)), key)


@pytest.mark.parametrize("make", [SnapshotTrie, SkipFilterEngine])
def test_an_engine_for_many_threads_is_linearizable(make: Callable[[Grammar], Engine[str]]) -> None:
    with busy_switching():
        for seed in range(300):
            engine = make(AMQP)
            history = History()
            handles: list[int] = []
            run_threads(*[partial(drive_engine, engine, history, handles, 3 * seed + n) for n in range(3)])
            assert is_linearizable(history.operations, NOBODY, subscriptions)
            engine._check()


def test_the_skip_filter_is_linearizable() -> None:
    with busy_switching():
        for seed in range(300):
            numbers: SkipFilter[int, int] = SkipFilter(lambda value, key: value % key == 0, capacity=2)
            history = History()
            run_threads(*[partial(drive_filter, numbers, history, 3 * seed + n) for n in range(3)])
            assert is_linearizable(history.operations, NOTHING, values)
            numbers._check()


def test_adding_many_and_replacing_are_one_step_each() -> None:
    with busy_switching():
        for seed in range(300):
            index = SelectorIndex()
            readers: SkipFilter[int, str] = SkipFilter(index, capacity=2)
            history = History()
            run_threads(*[partial(drive_declarations, readers, history, 3 * seed + n) for n in range(3)])
            assert is_linearizable(history.operations, NOTHING, values)
            readers._check()
            index._check()


# -- the same, broken on purpose


class WithoutItsLock(SnapshotTrie[str]):
    """Two writers may begin from the same root; `between` is called when one has read
    it and not yet set it.
    """

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__(AMQP)
        self._lock = nullcontext()  # type: ignore[assignment]
        self.between = between

    def _counted(self, words: Words, value: str, more: int, subscriptions: Map[int, tuple[str, str]]) -> Any:
        after = super()._counted(words, value, more, subscriptions)
        self.between()
        return after


def test_the_checker_finds_the_update_that_a_snapshot_trie_loses() -> None:
    engine = WithoutItsLock(between=threading.Barrier(2).wait)
    history = History()
    run_threads(
        lambda: history.call("subscribe", engine.subscribe, "a", "x"),
        lambda: history.call("subscribe", engine.subscribe, "b", "y"),
    )
    for topic in "ab":
        history.call("lookup", engine.lookup, topic)
    assert not is_linearizable(history.operations, NOBODY, subscriptions)


def test_the_checker_finds_an_impossible_state_of_a_skip_filter_without_its_lock() -> None:
    """4 is added before 2 is removed, so there is always an even number; but a lookup
    at the same time finds none.
    """
    asked, changed = threading.Event(), threading.Event()

    def test(value: int, key: int) -> bool:
        asked.set()
        assert changed.wait(HANG)
        return value % key == 0

    numbers: SkipFilter[int, int] = SkipFilter(test, lock=nullcontext())
    history = History()
    history.call("add", numbers.add, 2)

    def change() -> None:
        assert asked.wait(HANG)
        history.call("add", numbers.add, 4)
        history.call("discard", numbers.discard, 2)
        changed.set()

    run_threads(lambda: history.call("match_any", numbers.match_any, 2), change)
    assert history.operations[-1].result == []
    assert not is_linearizable(history.operations, NOTHING, values)


def test_the_checker_finds_errors_in_random_histories_of_a_snapshot_trie_without_its_lock() -> None:
    found_out = False
    with busy_switching():
        for seed in range(3_000):
            engine = WithoutItsLock(between=partial(time.sleep, 0.0005))  # so that another thread gets in between
            history = History()
            handles: list[int] = []
            run_threads(*[partial(drive_engine, engine, history, handles, 3 * seed + n) for n in range(3)])
            found_out = not is_linearizable(history.operations, NOBODY, subscriptions)
            if found_out:
                break
    assert found_out

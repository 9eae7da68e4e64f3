"""The snapshot trie: the content of snapshots, their shared parts, and the error if
immutables is missing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from skipfilter.engines import SnapshotTrie
from skipfilter.text import INSTALL
from skipfilter.topics.words import AMQP


def test_a_snapshot_is_of_one_moment() -> None:
    engine: SnapshotTrie[str] = SnapshotTrie(AMQP)
    handle = engine.subscribe("a.*", "x")
    engine.subscribe("#.b", "x")
    engine.subscribe("a.*", "y")
    before = engine.snapshot()
    engine.unsubscribe(handle)
    engine.subscribe("c", "z")
    assert before.subscriptions() == [("a.*", "x"), ("#.b", "x"), ("a.*", "y")]
    assert before.topics("x") == ["a.*", "#.b"]
    assert before.topics("z") == []
    assert before.lookup("a.b") == {"x", "y"}
    assert not before.matches("c")
    assert len(before) == 3
    assert engine.snapshot().subscriptions() == [("#.b", "x"), ("a.*", "y"), ("c", "z")]
    assert engine.snapshot() is engine.snapshot()


def test_subscriptions_are_listed_oldest_first_however_many_there_are() -> None:
    engine: SnapshotTrie[int] = SnapshotTrie(AMQP)
    for number in range(100):
        engine.subscribe("a", number)
    assert engine.snapshot().subscriptions() == [("a", number) for number in range(100)]


def test_the_patterns_of_a_value_are_listed_once_as_they_were_written() -> None:
    engine: SnapshotTrie[str] = SnapshotTrie(AMQP)
    for pattern in ("a.#.*", "a.*.#", "a.#.*"):
        engine.subscribe(pattern, "x")
    assert engine.snapshot().topics("x") == ["a.#.*", "a.*.#"]


def test_unchanged_parts_are_shared() -> None:
    engine: SnapshotTrie[str] = SnapshotTrie(AMQP)
    engine.subscribe("a.b", "x")
    engine.subscribe("c", "x")
    before = engine.snapshot()._root
    engine.subscribe("a.d", "x")
    after = engine.snapshot()._root
    assert before is not after
    assert before.words["c"] is after.words["c"]
    assert before.words["a"] is not after.words["a"]
    assert before.words["a"].words["b"] is after.words["a"].words["b"]


@pytest.mark.parametrize("pattern", ["a.b", "*.*", "#", "#.a", "a.#.b", "#.a.#", ""])
def test_nothing_is_left_of_an_unused_pattern(pattern: str) -> None:
    engine: SnapshotTrie[str] = SnapshotTrie(AMQP)
    engine.unsubscribe(engine.subscribe(pattern, "x"))
    root = engine.snapshot()._root
    assert not root.leads_on()
    assert root.value is None
    assert engine.snapshot()._inner_manys == 0
    assert engine.snapshot().subscriptions() == []


def test_a_refused_change_makes_no_new_root() -> None:
    engine: SnapshotTrie[str] = SnapshotTrie(AMQP)
    before = engine.snapshot()
    for refused in (lambda: engine.subscribe("a..b", "x"), lambda: engine.unsubscribe(0)):
        with pytest.raises((ValueError, KeyError)):
            refused()
    assert engine.snapshot() is before


@pytest.mark.processes
def test_without_immutables_only_snapshot_trie_is_missing() -> None:
    program = """
import sys
sys.modules["immutables"] = None
from skipfilter.engines import ENGINES
from skipfilter.topics.words import AMQP
for name, make in ENGINES.items():
    try:
        make(AMQP).subscribe("a", "x")
    except ImportError as error:
        print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    needed = f"SnapshotTrie needs immutables: {INSTALL.format(extra='snapshot')}"
    assert done.stdout == f"snapshot_trie {needed}\n"

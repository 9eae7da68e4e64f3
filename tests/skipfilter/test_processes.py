"""What the README says of asyncio, fork and spawn."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from typing import Any

import pytest

from skipfilter import SelectorIndex, SkipFilter
from tests.waiting import HANG

ROWS = [(f"user {number}", json.dumps([["mqtt", f"users/{number}/+"]])) for number in range(100)]


def loaded(rows: list[tuple[str, str]]) -> SkipFilter[str, str]:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    readers.add_many((name, json.loads(text)) for name, text in rows)
    return readers


def ask_a_copy(readers: SkipFilter[str, str], answers: Any) -> None:
    readers.add("child", [("mqtt", "users/7/+")])
    answers.put(readers.match_any("users/7/x"))


def ask_rows(rows: list[tuple[str, str]], answers: Any) -> None:
    answers.put(loaded(rows).match_any("users/7/x"))


@pytest.mark.processes
@pytest.mark.parametrize(("method", "expected"), [("fork", ["user 7", "child"]), ("spawn", ["user 7"])])
def test_a_process_has_a_filter_of_its_own(method: str, expected: list[str]) -> None:
    readers = loaded(ROWS)
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    # A forked child has a copy; a spawned one is given the rows, because a filter is not sent.
    work, given = (ask_a_copy, readers) if method == "fork" else (ask_rows, ROWS)
    child = context.Process(target=work, args=(given, answers))
    child.start()
    assert answers.get() == expected
    child.join(HANG)
    assert child.exitcode == 0
    assert readers.match_any("users/7/x") == ["user 7"]


def test_many_values_are_added_beside_an_event_loop() -> None:
    readers = loaded([])

    async def add() -> list[str]:
        await asyncio.to_thread(readers.add_many, [(name, json.loads(text)) for name, text in ROWS])
        return readers.match_any("users/7/x")

    assert asyncio.run(add()) == ["user 7"]

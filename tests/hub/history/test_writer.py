"""The thread that writes to a file: order, errors, the end, and shared transactions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from hub import Update
from hub.history.base import Retention
from hub.history.sqlite import commits
from hub.history.sqlite.history import SqliteHistory
from hub.history.sqlite.writer import Writer
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hub.history.base import Entry

pytestmark = pytest.mark.anyio


def test_work_is_done_in_order_by_one_thread_until_it_is_closed() -> None:
    writer, done = Writer("test"), list[tuple[int, str]]()
    for number in range(100):
        writer.put(lambda number=number: done.append((number, threading.current_thread().name)))  # type: ignore[misc]
    writer.close()
    assert done == [(number, "test") for number in range(100)]
    assert "test" not in [thread.name for thread in threading.enumerate()]


def test_a_writer_without_work_has_no_thread() -> None:
    writer = Writer("test")
    assert "test" not in [thread.name for thread in threading.enumerate()]
    writer.close()


def test_an_error_reaches_the_caller_that_waits_and_stops_no_other_work(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LookupError("a fault")

    writer, done = Writer("test"), list[int]()
    with pytest.raises(LookupError, match="a fault"):
        writer.call(fail)
    assert not caplog.records
    writer.put(fail)
    writer.call(lambda: done.append(1))
    assert done == [1]
    assert "the writer of the history failed" in caplog.text
    writer.close()


async def test_a_transaction_waits_for_as_many_jobs_as_the_last_one_and_a_lone_job_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "GROUP_SECONDS", 1_000 * HANG)
    log = SqliteHistory(tmp_path / "a.db", Retention(max_updates=100, max_bytes=10**6))
    sizes: list[int] = []
    appended = log._commits._appended

    def noted(entries: Sequence[Entry]) -> None:
        sizes.append(len(entries))
        appended(entries)

    log._commits._appended = noted

    async def append(topic: str) -> None:
        await asyncio.wait_for(log.append([Update((topic,))]), HANG)

    # 1. A lone job does not wait.
    await append("lone")
    for _ in range(2):
        # 2. Two jobs that come while a transaction runs share the next one.
        gates = threading.Event(), threading.Event()
        first = log._commits.write(partial(_wait, gates[0]))
        await until(lambda: not log._commits._jobs)
        two = asyncio.gather(append("a"), append("b"), log._commits.write(partial(_wait, gates[1])))
        await until(lambda: len(log._commits._jobs) == 3)
        gates[0].set()
        await first
        await until(lambda: not log._commits._jobs)
        # 3. The one after it waits until it has as many, three.
        three = asyncio.gather(append("c"), append("d"))
        await until(lambda: len(log._commits._jobs) == 2)
        gates[1].set()
        await two
        await asyncio.gather(three, append("e"))
        # 4. When the writer is idle again, a lone job does not wait.
        await log._commits.finish()
        await append("lone")
    assert sizes == [1, 2, 3, 1, 2, 3, 1]
    await log.aclose()


def _wait(gate: threading.Event, _: object) -> None:
    assert gate.wait(HANG)


async def test_a_job_that_comes_while_the_writer_stops_is_not_left(tmp_path: Path) -> None:
    log = SqliteHistory(tmp_path / "a.db", Retention(max_updates=100, max_bytes=10**6))
    loop, late = asyncio.get_running_loop(), list[asyncio.Future[Any]]()

    class Jobs(deque[Any]):
        """A queue that gets one more job when the writer has found it empty at its end."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            asked_by = sys._getframe(1).f_code.co_name
            if not found and asked_by == "_commit_jobs" and len(late) < 2:
                came = threading.Event()
                loop.call_soon_threadsafe(self.come, came)
                assert came.wait(HANG)
            return found

        def come(self, came: threading.Event) -> None:
            late.append(log._commits.write(lambda _: "late"))
            came.set()

    log._commits._jobs = Jobs()
    await log.append([Update(("a",))])
    await until(lambda: len(late) == 2)
    assert await asyncio.wait_for(asyncio.gather(*late), HANG) == ["late", "late"]
    await log.aclose()


@pytest.mark.processes
def test_a_process_ends_though_its_history_is_open(tmp_path: Path) -> None:
    program = f"""
import asyncio
from hub import Update
from hub.history import open_history
from hub.history.base import Retention

async def main():
    history = open_history("sqlite:///{tmp_path}/a.db", Retention(max_updates=9, max_bytes=9_999))
    await history.append([Update(("a",))])
    raise SystemExit(3)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=HANG, check=False)
    assert ended.returncode == 3


async def test_a_transaction_waits_only_for_a_moment(tmp_path: Path) -> None:
    log = SqliteHistory(tmp_path / "a.db", Retention(max_updates=100, max_bytes=10**6))
    log._commits._awaited = 5
    await asyncio.wait_for(log.append([Update(("a",))]), HANG)
    await log.aclose()


async def test_the_end_of_a_history_waits_for_its_jobs(tmp_path: Path) -> None:
    log = SqliteHistory(tmp_path / "a.db", Retention(max_updates=100, max_bytes=10**6))
    gate = threading.Event()
    job = log._commits.write(lambda _: gate.wait(HANG))
    closing = asyncio.create_task(log.aclose())
    await asyncio.sleep(0)
    gate.set()
    assert await job
    await closing
    assert "log-writer" not in [thread.name for thread in threading.enumerate()]

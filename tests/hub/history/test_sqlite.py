"""The history in SQLite, with killed or stopped processes, a full disk, damage, and
replaced files.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hub.errors import ConfigurationError, HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import EARLIEST, Change, Retention
from hub.history.sqlite import file as sqlite_file
from hub.history.sqlite import repair, transaction, wakeup
from hub.history.sqlite.history import SqliteHistory
from hub.history.sqlite.wakeup import WakeSocket
from hub.protocol.subscriptions import Present
from hub.protocol.updates import Update
from tests.hub.history.contract import everything, ids_of, named
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

RETENTION = Retention(max_updates=10**6, max_bytes=2**40)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


@asynccontextmanager
async def log_at(
    path: str, *, synchronous: str = "normal", since_boot: Callable[[], float] = time.monotonic, **chosen: Any
) -> AsyncIterator[SqliteHistory]:
    log = SqliteHistory(path, replace(RETENTION, **chosen), synchronous=synchronous, since_boot=since_boot)
    try:
        yield log
    finally:
        await log.aclose()


class Process:
    """A process that appends as fast as it can, and reports acknowledged appends."""

    def __init__(self, path: str, code: str = "await log.append([Update(('t',), id=f'{name} {n}')]); print(n)") -> None:
        program = f"""
import asyncio, itertools, sys
from hub.history.base import Retention
from hub.history.sqlite.history import SqliteHistory
from hub.protocol.updates import Update
async def main():
    name = sys.argv[2]
    log = SqliteHistory(sys.argv[1], Retention(max_updates=10**6, max_bytes=2**40))
    for n in itertools.count():
        {code}
        sys.stdout.flush()
asyncio.run(main())
"""
        self.name = f"process{id(self)}"
        command = [sys.executable, "-c", program, path, self.name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.acknowledged: list[int] = []

    def await_some(self, count: int) -> None:
        assert self.process.stdout is not None
        for _ in range(count):
            self.acknowledged.append(int(self.process.stdout.readline()))

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the process with a signal, and read its remaining reports."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.acknowledged += [int(line) for line in self.process.stdout.read().split("\n") if line]
        self.process.stdout.close()
        self.process.wait(HANG)


# -- processes


@pytest.mark.processes
async def test_r41_killed_processes_lose_no_acknowledged_update(path: str) -> None:
    async with log_at(path) as log:
        for _ in range(3):
            processes = [Process(path), Process(path)]
            seen: list[str] = []
            pages = log.follow(await log.end())
            for process in processes:
                process.await_some(20)
            for process in processes:
                process.end()
            # Of each process: an entry that one has not acknowledged must not count for
            # the other.
            while any(
                sum(id.startswith(f"{process.name} ") for id in seen) < len(process.acknowledged)
                for process in processes
            ):
                seen += ids_of(await asyncio.wait_for(anext(pages), HANG))
            await pages.aclose()  # type: ignore[attr-defined]
            for process in processes:
                of_it = [id for id in seen if id.startswith(process.name + " ")]
                # Its entries are in order, and each occurs once.  There may be one more
                # if the process was killed before it reported the append.
                assert of_it == [f"{process.name} {n}" for n in range(len(of_it))]
                assert len(of_it) in (len(process.acknowledged), len(process.acknowledged) + 1)
        await log.append(named("last"))
        found = await everything(log)
    assert [entry.position for entry in found] == list(range(1, len(found) + 1))


@pytest.mark.processes
async def test_a_process_that_is_stopped_while_it_writes_makes_others_unavailable_until_it_continues(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.2)
    async with log_at(path) as log:
        await log.append(named("before"))
        holding = (
            "log._database.opened().writer.execute('BEGIN IMMEDIATE'); print(n); sys.stdout.flush(); sys.stdin.read()"
        )
        process = Process(path, holding)
        process.await_some(1)
        process.process.send_signal(signal.SIGSTOP)
        with pytest.raises(HistoryUnavailable) as refused:
            await log.append(named("refused"))
        assert "locked" in refused.value.reason
        assert ids_of(await everything(log)) == ["before"]  # readers do not wait
        process.end()
        await log.append(named("after"))
        assert ids_of(await everything(log)) == ["before", "after"]


async def test_many_appends_share_a_commit(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("first"))
        commits = 0
        real = log._commits._commit

        def commit(jobs: Any) -> Any:
            nonlocal commits
            commits += 1
            return real(jobs)

        log._commits._commit = commit  # type: ignore[method-assign]
        entries = await asyncio.gather(*(log.append(named(f"a{n}", f"b{n}")) for n in range(200)))
        assert commits <= 3
        assert [entry.position for one in entries for entry in one] == list(range(2, 402))
        # If one append fails, the others do not.
        results = await asyncio.gather(
            log.append(named("good")), log.append(named("\ud800")), log.append(named("too")), return_exceptions=True
        )
        assert [isinstance(result, UnicodeEncodeError) for result in results] == [False, True, False]


async def test_look_ups_that_wait_share_a_transaction(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_at(path) as log:
        await log.append(named(*(str(n) for n in range(100))))
        database, shared = log._database, []
        real = database._ask_all

        def ask_all(questions: Any) -> Any:
            shared.append(len(questions))
            return real(questions)

        monkeypatch.setattr(database, "_ask_all", ask_all)
        found = await asyncio.gather(*(log.find(str(n)) for n in range(100)), log.end(), log.find("none"))
        assert found == [*range(1, 101), 100, None]
        assert shared == [64, 38]
        assert not database._look_ups
        # One that is cancelled harms no other.
        asking = [asyncio.ensure_future(log.find(str(n))) for n in range(3)]
        await asyncio.sleep(0)
        asking[1].cancel()
        assert await asyncio.gather(*asking[::2]) == [1, 3]
        # One that fails harms no other.
        answers = await asyncio.gather(
            log.find("0"), database.look_up(lambda reading: 1 // 0), log.find("1"), return_exceptions=True
        )
        assert [type(answers[1]), answers[::2]] == [ZeroDivisionError, [1, 2]]


async def test_if_the_history_fails_look_ups_that_share_a_transaction_fail_together(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log_at(path) as log:
        await log.append(named("0"))
        tries: list[int] = []

        def unavailable() -> Any:
            tries.append(1)
            raise HistoryUnavailable("it is away")

        with monkeypatch.context() as failing:
            failing.setattr(log._database, "opened", unavailable)
            answers = await asyncio.gather(*(log.find("0") for _ in range(10)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [HistoryUnavailable] * 10
        assert len(tries) == 1
        assert await log.find("0") == 1
    async with log_at(str(tmp_path / "none" / "log.db")) as log:
        for error in await asyncio.gather(log.find("0"), log.end(), return_exceptions=True):
            assert isinstance(error, ConfigurationError)


async def test_look_ups_of_tasks_that_are_all_cancelled_hold_up_no_later_ones(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("0"))
        for turns in range(4):  # before the look-ups begin, and while they run
            asking = [asyncio.ensure_future(log.find("0")) for _ in range(100)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in (*(asking if turns < 2 else ()), *filter(None, [log._database._looking])):
                task.cancel()
            found = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), HANG)
            assert all(answer == 1 or isinstance(answer, asyncio.CancelledError) for answer in found)
            assert await asyncio.wait_for(log.find("0"), HANG) == 1


async def test_look_ups_that_wait_at_the_end_are_refused_or_answered(path: str) -> None:
    log = SqliteHistory(path, RETENTION)
    await log.append(named("a"))
    asking = [asyncio.ensure_future(log.find("a")) for _ in range(200)]
    await asyncio.sleep(0)
    await log.aclose()
    for answer in await asyncio.gather(*asking, return_exceptions=True):
        assert answer == 1 or isinstance(answer, HistoryUnavailable)
    with pytest.raises(HistoryUnavailable):
        await log.find("a")


# -- a full disk


async def test_a_full_disk_makes_the_history_unavailable_until_there_is_room(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("before", data="x" * 10_000))
        (pages,) = log._database.opened().writer.execute("PRAGMA page_count").fetchone()
        log._database.opened().writer.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(HistoryUnavailable) as full:
            await log.append(named("a", "b", data="x" * 100_000))
        assert "full" in full.value.reason
        assert "full" not in str(full.value)
        assert ids_of(await everything(log)) == ["before"]
        # The connection that failed was closed; a new one has no `max_page_count`.
        await log.append(named("after", data="x" * 100_000))
        assert ids_of(await everything(log)) == ["before", "after"]


async def test_a_file_that_cannot_grow_is_unavailable_and_loses_nothing(path: str) -> None:
    """A write fails in the middle, as on a full disk."""
    async with log_at(path) as log:
        await log.append(named("before"))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        acknowledged = ["before"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        try:
            for n in range(30):
                try:
                    await log.append(named(str(n), data="x" * 30_000))
                    acknowledged.append(str(n))
                except HistoryUnavailable:
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert 2 < len(acknowledged) < 30
        await log.append(named("after"))
        assert ids_of(await everything(log)) == [*acknowledged, "after"]


# -- bounds


async def test_t85_disk_space_is_released_and_freed_pages_are_reused(path: str) -> None:
    async with log_at(path, max_updates=500, max_bytes=2**40) as log:

        async def fill(count: int, size: int) -> int:
            for _ in range(count):
                await log.append([Update(("t",), os.urandom(size // 2).hex()) for _ in range(50)])
            return (await log.stats()).size

        steady = await fill(40, 2_000)
        assert steady < 4 * 500 * 2_500 + 2 * 4_096 * 1_000
        assert await fill(40, 2_000) <= steady * 1.1
        await fill(20, 20_000)
        before = os.path.getsize(path)
        for _ in range(60):
            await fill(1, 100)
        log._database.opened().writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert os.path.getsize(path) < before / 2
        await fill(20, 2_000)
        full = os.path.getsize(path)
        while await log.prune(max_updates=10, max_bytes=2**40, max_age=math.inf):
            pass
        for _ in range(10):
            await log.beat()
        log._database.opened().writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert os.path.getsize(path) < full / 2


async def test_excess_entries_are_trimmed_in_portions(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "TRIM_ENTRIES", 10)
    async with log_at(path) as log:
        await log.append(named(*map(str, range(1_000))))
    async with log_at(path, max_updates=5) as log:
        most = 0
        real = transaction.Writing.trim

        def trim(self: Any, bounds: Any, limit: int) -> int:
            nonlocal most
            trimmed = real(self, bounds, limit)
            most = max(most, trimmed)
            return trimmed

        monkeypatch.setattr(transaction.Writing, "trim", trim)
        await log.append(named("new"))
        async with asyncio.timeout(HANG):
            while (await log.stats()).updates > 5:
                await asyncio.sleep(0.01)
        assert most == 12
        stats = await log.stats()
        assert stats.bytes == sum(transaction.row_of(entry.update).size for entry in await everything(log))


async def test_setting_the_clock_changes_nothing_while_the_hub_runs(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_at(path, max_age=3_600, idempotency_window=600) as log:
        await log.append(named("a", "b"))
        now = time.time()
        for jump in (86_400, -86_400):
            monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
            assert ids_of(await log.append(named("a", f"at {jump}"))) == [f"at {jump}"]
            await log.beat()
        assert ids_of(await everything(log)) == ["a", "b", "at 86400", "at -86400"]
        times = [entry.time for entry in await everything(log)]
        assert times == sorted(times)


async def test_a_reboot_leaves_no_subscriber_present(path: str) -> None:
    """Subscribers from before a reboot are absent, even if the uptime is longer than
    before.
    """
    async with log_at(path, since_boot=lambda: 5_000.0) as log:
        await log.announce([Change(Present("p", ()), True, [])])
        log._database.is_closed = True  # as if the power failed
        log._database.close()
    for uptime in (3.0, 4_999.0, 5_011.0):
        now = uptime
        async with log_at(path, since_boot=lambda: now) as log:  # noqa: B023
            found = await log.beat()
            for _ in range(4):
                now += 4
                found = await log.beat()
            assert [one.id for one in found.orphans] == ["p"]


# -- damage


def damage(path: str, pages: int, *, last: bool = True) -> None:
    """Overwrite pages of 4,096 bytes at the end or in the middle of a file, in another
    process.
    """
    program = (
        "import sys; path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
        "with open(path, 'r+b') as file: file.seek(first * 4096); file.write(b'\\xff' * 4096 * count)"
    )
    count = os.path.getsize(path) // 4_096
    first = count - pages if last else count // 2
    subprocess.run([sys.executable, "-c", program, path, str(first), str(pages)], check=True)


async def filled(path: str, count: int = 2_000) -> None:
    async with log_at(path) as log:
        for start in range(0, count, 100):
            await log.append([Update(("t",), "x" * 300, id=str(n)) for n in range(start, start + 100)])
        await log.announce([Change(Present("p", ()), True, [])])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.processes
async def test_a_file_with_a_damaged_page_is_put_aside_and_its_readable_entries_are_kept(path: str, last: bool) -> None:
    await filled(path)
    async with log_at(path) as log, log_at(path) as other:
        assert (await log.end(), await other.end()) == (2_000, 2_000)
        epoch = (await log.stats()).epoch
        follower = other.follow(2_000)
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        damage(path, 3, last=last)
        for node in (log, other):  # otherwise, both would read from their page cache
            node._database.opened().close_readers()
        with suppress(PositionExpired):  # the first reader notices the damage
            await everything(log)
        found = await everything(log)
        ids = [int(id) for id in ids_of(found)]
        assert 1_900 < len(ids) < 2_000
        assert ids == sorted(set(ids))
        assert [entry.position for entry in found] == list(range(found[0].position, found[0].position + len(found)))
        assert found[0].position > base.EPOCH
        # An id is known only if nothing after it was lost.
        holes = [n for n in range(2_000) if n not in set(ids)]
        for id in ids:
            assert (await log.find(str(id)) is not None) == (id > holes[-1])
        # Both nodes are in a new epoch, and positions of the old one have expired.
        for node in (log, other):
            with pytest.raises(PositionExpired):
                await node.read(1_999)
            assert (await node.stats()).epoch != epoch
        with pytest.raises(PositionExpired):
            await asyncio.wait_for(waiting, HANG)
        assert [one.id for one in await other.present()] == ["p"]
        await other.append(named("new"))
        assert await log.find("new") == await log.end() == base.EPOCH + len(ids) + 1
    assert os.path.exists(path + ".damaged")
    async with log_at(path) as log:  # the repaired history can be opened again
        assert len(await everything(log)) == len(ids) + 1


@pytest.mark.processes
async def test_damage_that_a_writer_meets_is_repaired_before_the_append_returns(path: str) -> None:
    await filled(path)
    async with log_at(path) as log:
        await log.end()
        damage(path, 1)
        log._database.opened().writer.execute("PRAGMA shrink_memory")
        epoch = (await log.stats()).epoch
        async with asyncio.timeout(HANG):
            while (await log.stats()).epoch == epoch:
                assert len(await log.append(named("new", data="x" * 3_000))) == 1
        assert ids_of(await everything(log))[-1] == "new"


async def test_a_file_that_is_not_a_history_is_not_changed(path: str) -> None:
    with closing(sqlite3.connect(":memory:")) as other:
        other.execute("CREATE TABLE a (b)")
        contents = [other.serialize(), b"x" * 5_000]
    for content in contents:
        Path(path).write_bytes(content)
        async with log_at(path) as log:
            with pytest.raises((ConfigurationError, HistoryUnavailable)):
                await log.end()
            with pytest.raises((ConfigurationError, HistoryUnavailable)):
                await log.append(named("a"))
        assert Path(path).read_bytes() == content
        os.unlink(path)


async def test_a_rescue_keeps_only_valid_rows_and_skips_gaps(path: str) -> None:
    async with log_at(path, presence_updates=5) as log:
        await log.append(named("a"))
        for n in range(5):
            await log.append(named(*(f"{n} {m}" for m in range(2_000))), presence=True)
        await log.append(named("b", "c"))
    with closing(sqlite3.connect(path)) as connection, connection:
        # The gap is too long to be read position by position.
        connection.execute("UPDATE log SET position = position + 1000000000000 WHERE id IN ('b', 'c')")
        connection.execute("UPDATE log SET topics = '{' WHERE id = 'b'")
    async with log_at(path, presence_updates=2) as log:
        with suppress(PositionExpired):
            await everything(log)
        assert ids_of(await everything(log)) == ["a", *(f"4 {m}" for m in range(1_995, 2_000)), "c"]
        stats = await log.stats()
        assert (stats.updates, stats.presence_updates) == (2, 5)
        await log.append(named("d"), presence=True)
        assert ids_of(await everything(log)) == ["a", "4 1999", "c", "d"]
        assert [await log.find(id) is None for id in "acd"] == [True, False, False]


async def test_a_history_of_version_1_is_upgraded_and_a_process_of_version_1_cannot_write_to_it(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(sqlite_file._SCHEMA)
        connection.execute("INSERT INTO state VALUES ('epoch', 0, 999, '')")
        for n in (7, 8, 9):
            row = transaction.row_of(named(str(n))[0], 1_000 * n)
            connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (n, *row[1:]))
        connection.execute(f"PRAGMA application_id = {sqlite_file._MARK}")
        connection.execute("PRAGMA user_version = 1")
    async with log_at(path) as log:
        stats = await log.stats()
        assert (stats.updates, stats.bytes, stats.presence_updates, stats.epoch) == (3, 999, 0, "epoch")
        assert [entry.position for entry in await log.append(named("new"))] == [10]
        assert ids_of(await log.read(6)) == ["7", "8", "9", "new"]
        with pytest.raises(PositionExpired):
            await log.read(5)
        with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError, match="no such col"):
            connection.execute("SELECT bytes FROM state")
    async with log_at(path, max_updates=2) as log:
        await log.append(named("newer"))
        assert ids_of(await everything(log)) == ["new", "newer"]


async def test_trimming_finds_entries_by_the_primary_key(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("a"))
        for query in (transaction._PUBLISHED, transaction._PRESENCE):
            plan = log._database.opened().writer.execute(f"EXPLAIN QUERY PLAN {query}", (1, 1)).fetchall()
            steps = [row[3] for row in plan]
            assert all("SCAN" not in step and "B-TREE" not in step for step in steps), steps


async def test_a_history_of_an_unknown_version_is_refused(path: str) -> None:
    await filled(path, 100)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    async with log_at(path) as log:
        with pytest.raises(ConfigurationError, match="version 7"):
            await log.end()


@pytest.mark.processes
async def test_an_interrupted_rescue_is_completed(path: str) -> None:
    """The rescue does not use a -wal file that belongs to the damaged history."""
    await filled(path, 100)
    os.rename(path, path + ".salvaged")
    async with log_at(path) as log:
        await log.append([Update(("t",), "x" * 3_000, id=f"damaged {n}") for n in range(200)])
        subprocess.run(["cp", path + "-wal", path + ".left"], check=True)
    os.unlink(path)
    os.rename(path + ".left", path + "-wal")
    await filled(path + ".other", 100)
    os.rename(path + ".other", path + ".salvaged")
    async with log_at(path) as log:
        assert await log.find("99") == 100
        assert ids_of(await everything(log)) == [str(n) for n in range(100)]
    assert not os.path.exists(path + ".salvaged")


async def test_if_two_processes_meet_damage_one_of_them_repairs_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(path)
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.2)
    real, copying, go_on = repair.copy, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> tuple[int, int]:
        copying.set()
        assert go_on.wait(HANG)
        return real(*arguments)

    monkeypatch.setattr(repair, "copy", slowly)
    async with log_at(path) as one, log_at(path) as other:
        files = one._database.opened(), other._database.opened()
        salvaging = asyncio.create_task(
            asyncio.to_thread(one._database.repair, files[0], sqlite3.DatabaseError("damaged"))
        )
        await asyncio.to_thread(copying.wait, HANG)
        with pytest.raises(HistoryUnavailable):
            await asyncio.to_thread(other._database.repair, files[1], sqlite3.DatabaseError("damaged"))
        with pytest.raises(HistoryUnavailable):  # no node writes into the file that is being replaced
            await other.append(named("lost"))
        go_on.set()
        await salvaging
        await other.append(named("new"))
        await asyncio.to_thread(
            other._database.repair, files[1], sqlite3.DatabaseError("damaged")
        )  # the file is repaired already
        for log in (one, other):
            assert await log.end() == base.EPOCH + 2_001
    assert not os.path.exists(path + ".damaged1")


@pytest.mark.parametrize(
    "spoil", ["data = CAST(x'736563726574ff' AS TEXT)", "topics = 'secret'", "retry = 'secret'"]
)  # fmt: skip
async def test_an_unreadable_row_is_damage_and_its_content_is_not_logged(
    path: str, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path, 300)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE log SET {spoil} WHERE position = 200")
    async with log_at(path) as log:
        with suppress(PositionExpired):
            await everything(log)
        found = ids_of(await everything(log))
        assert found == [str(n) for n in range(300) if n != 199]
        assert await log.find("198") is None
        assert await log.find("200") == base.EPOCH + 200
    assert "secret" not in caplog.text
    assert "damaged" in caplog.text


async def test_an_unreadable_presence_row_does_not_block_the_others(path: str) -> None:
    async with log_at(path) as log:
        await log.announce([Change(Present("p", ()), True, [])])
        log._database.opened().writer.execute("UPDATE present SET matchers = '{', node = 'dead'")
        both = await asyncio.gather(log.append(named("a")), log.beat())
        assert ids_of(both[0]) == ["a"]
        assert both[1].orphans == [Present("p", ())]


async def test_the_id_of_a_lost_update_is_not_remembered(path: str) -> None:
    async with log_at(path, idempotency_window=3_600) as log:
        await log.append(named(*map(str, range(300))))
        assert await log.append(named("199", "299")) == []
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE log SET topics = '{' WHERE position = 200")
    async with log_at(path, idempotency_window=3_600) as log:
        with suppress(PositionExpired):
            await everything(log)
        assert ids_of(await log.append(named("199", "199"))) == ["199"]


async def test_nodes_do_not_count_as_dead_if_no_node_could_write(path: str) -> None:
    now = 1_000.0
    async with (
        log_at(path, since_boot=lambda: now) as one,
        log_at(path, since_boot=lambda: now) as other,
    ):
        for log, name in ((one, "p"), (other, "q")):
            await log.beat()
            await log.announce([Change(Present(name, ()), True, [])])
        now += 100  # no node could write, perhaps because the disk was full
        assert await one.beat() == (1, [])
        now += 4
        assert await one.beat() == (1, [])
        assert await other.beat() == (1, [])
        for _ in range(3):
            now += 4
            found = await one.beat()
        assert [one.id for one in found.orphans] == ["q"]


# -- replaced files


async def test_a_removed_file_is_replaced_by_a_new_history_in_a_new_epoch(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("a", "b"))
        pages = log.follow(2)
        waiting = asyncio.ensure_future(anext(pages))
        await asyncio.sleep(0)
        # The file itself comes last: the follower may notice its loss at once, and make
        # all of them again.
        for file in reversed(sqlite_file.files_of(path)):
            os.rename(file, file + ".gone")
        with pytest.raises(PositionExpired):
            await asyncio.wait_for(waiting, HANG)
        assert await log.find("a") is None
        assert await log.end() == base.EPOCH
        (entry,) = await log.append(named("c"))
        assert entry.position == base.EPOCH + 1
        with pytest.raises(PositionExpired):
            await log.read(2)
        assert ids_of(await log.read(EARLIEST)) == ["c"]


async def test_an_append_that_waits_is_not_written_to_a_replaced_file(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, it would be acknowledged, although its file is no longer the
    history.
    """
    async with log_at(path) as log:
        await log.append(named("before"))
        real = sqlite_file.begin

        def begin(connection: sqlite3.Connection, deadline: float) -> None:
            real(connection, deadline)
            monkeypatch.setattr(sqlite_file, "begin", real)
            for file in sqlite_file.files_of(path):
                os.rename(file, file + ".aside")

        monkeypatch.setattr(sqlite_file, "begin", begin)
        await log.append(named("after"))
        assert ids_of(await everything(log)) == ["after"]


async def test_own_entries_are_followed_in_order_and_not_kept(path: str) -> None:
    async with log_at(path) as log, log_at(path) as other:
        pages = log.follow(0)
        await log.append(named("first"))
        assert ids_of(await asyncio.wait_for(anext(pages), HANG)) == ["first"]
        for n in range(20):
            await (other if n % 3 else log).append(named(str(n)))
        seen: list[str] = []
        while len(seen) < 20:
            seen += ids_of(await asyncio.wait_for(anext(pages), HANG))
        assert seen == [str(n) for n in range(20)]  # in the order of the appends, even if two nodes appended them
        await log.append(named("last"))
        assert ids_of(await asyncio.wait_for(anext(pages), HANG)) == ["last"]
        assert not log._following._fresh
        await pages.aclose()  # type: ignore[attr-defined]


@pytest.mark.processes
async def test_an_older_copy_under_the_same_name_is_another_history(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("a", "b"))
    subprocess.run(["cp", path, path + ".old"], check=True)
    async with log_at(path) as log:
        await log.append(named("c"))
        for file in sqlite_file.files_of(path):
            os.rename(file, file + ".gone")
        os.rename(path + ".old", path)
        with pytest.raises(PositionExpired):
            await log.read(2)
        assert await log.end() == base.EPOCH + 2
        assert await log.find("b") is None  # because the entries after it are lost


async def test_replacing_a_file_while_it_is_written_does_no_harm(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader opens the new file while the writer continues with its own
    connection.
    """
    async with log_at(path) as log:
        await log.append(named("before"))
        real = transaction.Writing.finish

        def finish(writing: Any) -> None:
            monkeypatch.setattr(transaction.Writing, "finish", real)
            for file in sqlite_file.files_of(path):
                os.rename(file, file + ".aside")
            reading = threading.Thread(target=log._database.opened)
            reading.start()
            reading.join(HANG)
            real(writing)

        monkeypatch.setattr(transaction.Writing, "finish", finish)
        await log.append(named("into the old one"))
        await log.append(named("after"))
        assert ids_of(await everything(log)) == ["after"]


async def test_following_continues_after_the_directory_was_missing(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    path = str(directory / "log.db")
    async with log_at(path) as one, log_at(path) as other:
        await one.append(named("a"))
        pages = other.follow(0)
        assert ids_of(await asyncio.wait_for(anext(pages), HANG)) == ["a"]
        waiting = asyncio.ensure_future(anext(pages))
        directory.rename(tmp_path / "away")
        directory.write_text("a file")
        for _ in range(3):
            with pytest.raises(HistoryUnavailable):
                await one.append(named("no"))
            await asyncio.sleep(wakeup.POLL_SECONDS)
        directory.unlink()
        (tmp_path / "away").rename(directory)
        with suppress(HistoryUnavailable, asyncio.CancelledError):
            waiting.cancel()
            await asyncio.gather(waiting)
        pages = other.follow(1)
        waiting = asyncio.ensure_future(anext(pages))
        await one.append(named("b"))
        assert ids_of(await asyncio.wait_for(waiting, HANG)) == ["b"]
        await pages.aclose()  # type: ignore[attr-defined]


async def test_a_node_that_is_notified_of_new_entries_does_not_poll(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "POLL_SECONDS", 10 * HANG)
    async with log_at(path) as one, log_at(path) as other:
        await one.append(named("first"))
        pages = other.follow(0)
        assert ids_of(await asyncio.wait_for(anext(pages), HANG)) == ["first"]
        for n in range(5):
            waiting = asyncio.ensure_future(anext(pages))
            await other.check()  # so the file has the port of its wake socket
            await one.append(named(str(n)))
            assert ids_of(await asyncio.wait_for(waiting, HANG)) == [str(n)]
        await pages.aclose()  # type: ignore[attr-defined]


async def test_a_node_without_a_port_polls(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "POLL_SECONDS", 10 * HANG)

    class Portless(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError("no port is free")

    monkeypatch.setattr(socket, "socket", Portless)
    async with log_at(path) as one, log_at(path) as other:
        await one.append(named("first"))
        pages = other.follow(0)
        assert ids_of(await asyncio.wait_for(anext(pages), HANG)) == ["first"]
        waiting = asyncio.ensure_future(anext(pages))
        await one.append(named("second"))
        assert ids_of(await asyncio.wait_for(waiting, HANG)) == ["second"]
        await pages.aclose()  # type: ignore[attr-defined]


async def test_a_flood_of_datagrams_takes_a_bounded_time_per_turn() -> None:
    class Flooded:
        heard = 0

        def recv(self, size: int) -> bytes:
            self.heard += 1
            return b"x" * size

    waking = WakeSocket()
    waking._socket = flooded = Flooded()  # type: ignore[assignment]
    waking._hear()
    assert flooded.heard == 100
    assert waking._woken.is_set()


@pytest.mark.processes
async def test_a_backup_of_a_live_history_has_a_new_epoch(path: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    process = Process(path)
    process.await_some(10)
    async with log_at(path) as log:
        await log.announce([Change(Present("p", ()), True, [])])
        await log.backup(copy)
        with pytest.raises(FileExistsError, match=r"copy\.db"):
            await log.backup(copy)
    process.end()
    async with log_at(copy) as log:
        assert log._database.opened().writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        found = ids_of(await everything(log))
        assert found[:10] == [f"{process.name} {n}" for n in range(10)]
        assert await log.find(found[-1]) is None  # the entries after it were lost
        assert await log.present() == []
        await log.append(named("new"))
        assert await log.find("new") == len(found) + 1
    # If a backup replaces the file of a running hub, a new epoch begins.
    async with log_at(path) as log:
        await log.append(named("lost"))
        for file in sqlite_file.files_of(path):
            if os.path.exists(file):
                os.rename(file, file + ".gone")
        shutil.copy(copy, path)
        assert await log.find("lost") is None
        assert await log.find("new") == base.EPOCH + len(found) + 1


@pytest.mark.parametrize(("synchronous", "renewed"), [("normal", True), ("full", False)])
@pytest.mark.processes
async def test_after_a_power_cut_a_history_that_may_have_lost_its_end_starts_a_new_epoch(
    path: str, synchronous: str, renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_boot", lambda: "one")
    async with log_at(path, synchronous=synchronous) as log:
        await log.append(named("a", "b"))
        await log.aclose()
    async with log_at(path, synchronous=synchronous) as log:
        await log.append(named("c"))
        monkeypatch.setattr(sqlite_file, "_boot", lambda: "two")
        for file in sqlite_file.files_of(path):  # the files at the moment of a power failure
            # In another process, because opening the file here would release SQLite's
            # locks.
            subprocess.run(["cp", file, file.replace("log.db", "cut.db")], check=True)
    async with log_at(
        path.replace("log.db", "cut.db"), synchronous="full"
    ) as log:  # the mode at the next start does not matter
        assert ids_of(await everything(log)) == ["a", "b", "c"]
        assert (await log.find("c") is None) == renewed
    async with log_at(path, synchronous=synchronous) as log:  # this one was shut down normally
        assert await log.find("c") == 3


async def test_only_the_owner_can_read_the_file(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("a"))
        for file in sqlite_file.files_of(path):
            assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    async with log_at(str(tmp_path / "none" / "log.db")) as log:
        with pytest.raises(ConfigurationError, match="/none"):
            await log.end()
        (tmp_path / "none").mkdir()
        assert await log.end() == 0


async def test_an_id_is_found_by_the_index(path: str) -> None:
    async with log_at(path) as log:
        await log.append(named("a"))
        plan = log._database.opened().writer.execute(
            "EXPLAIN QUERY PLAN SELECT position FROM log WHERE hash = 1 AND id = 'a' AND position >= 0"
            " ORDER BY position LIMIT 1"
        )
        assert [row[3] for row in plan] == ["SEARCH log USING INDEX log_hash (hash=? AND rowid>?)"]


async def test_n115_ids_with_equal_hashes_are_distinguished(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "hash_of", lambda _: 7)
    async with log_at(path) as log:
        await log.append(named("a", "b", "c"))
        assert [await log.find(id) for id in "abcd"] == [1, 2, 3, None]

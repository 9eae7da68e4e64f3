"""Is a history of millions of updates as fast as a short one?

The benchmark measures how long it takes to find an id and to append, and how many bytes
an update takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import sqlite3
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bench.benchmark import Bars, Case
from bench.servers import in_turn, log_versions, new_log
from bench.workloads import SEED
from hub.history import open_history
from hub.history.base import Entry, Retention
from hub.history.sqlite.history import SqliteHistory
from hub.history.sqlite.transaction import hash_of, row_of
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from bench.measure import Figures
    from hub.history.base import History

T = TypeVar("T")

QUESTION = "Does a long history find an id as fast as a short one?"
WORKLOAD = (
    "Updates of 250 bytes with one topic, and ids as the hub makes them. `find` gets random ids of the history, one "
    "after the other, through the transport and so through its threads or its connection. The file is in the cache of "
    "the operating system, and SQLite's own cache holds 2 MB of it. Every history is at its bound, so each append "
    "also removes as many updates. The bytes are those of the file when the write-ahead log is empty, or of Redis's "
    "memory; the texts are topic, id and data. Baseline: the shortest history of the same kind."
)
PLOT = Bars()
UNIT = "µs a find"
ROUNDS = 3, 1
versions = log_versions

SHOWN = ("p99 µs", "ms to append 1", "appended/s, 1,000 at a time", "bytes an update", "× its texts")
"""The figures in the result, besides the one that is compared."""

TOPIC: Final = "https://example.com/books/1"
DATA: Final = "x" * 250
BATCH: Final = 1_000
"""The number of updates that are appended at a time."""
BATCHES: Final = 10
"""How often BATCH updates are appended."""
SINGLE: Final = 100
"""The number of updates that are appended one by one."""
ROWS_PER_TRANSACTION: Final = 100_000
"""The number of rows that `write` commits at a time."""
_ODD: Final = int.from_bytes(b"an odd number...", "big") | 1
"""A factor for ids: an odd number has an inverse modulo 2**128, so products differ."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: each kind of history."""
    logs = {"sqlite": (10_000, 1_000_000, 10_000_000), "redis": (10_000, 100_000)}
    for kind, sizes in logs.items():
        yield Case(kind, partial(measure, kind, (1_000, 10_000) if quick else sizes, 200 if quick else 2_000))


def measure(kind: str, sizes: Sequence[int], finds: int, rounds: int) -> dict[str, Figures]:
    """Measure histories of one kind with `sizes` updates; a round has `finds` finds."""
    with asyncio.Runner() as runner, ExitStack() as stack:

        def run(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
            """Run a coroutine function in the event loop of all histories."""
            return runner.run(ask())

        variants: dict[str, Callable[[], Figures]] = {}
        for size in sizes:
            url, _ = stack.enter_context(new_log(kind))
            taken = runner.run(fill(url, size))
            log = opened(url, size)
            stack.callback(run, log.aclose)
            full = Full(log, size, taken, finds)
            variants[f"{size:,} updates"] = partial(run, full.ask)
        return in_turn(variants, rounds=rounds, of=UNIT, shown=SHOWN)


class Full:
    """A history at its bound: `size` updates that take `bytes` bytes.

    Each update is at the position of its number.  `finds` is the number of finds of a
    measurement.
    """

    def __init__(self, log: History, size: int, bytes: int, finds: int) -> None:
        self._log, self._size, self._finds = log, size, finds
        self._each = bytes / size  # bytes of an update
        self._last = size  # the number of the last update; the first is `size` - 1 before it
        self._chance = random.Random(SEED)

    async def ask(self) -> Figures:
        """Measure finds of random ids, then single appends, then appends in batches."""
        # 1. Finds.
        taken = []
        for _ in range(self._finds):
            number = self._chance.randrange(self._last - self._size, self._last) + 1
            id = id_of(number)
            began = time.perf_counter()
            found = await self._log.find(id)
            taken.append(time.perf_counter() - began)
            assert found == number
        taken.sort()
        # 2. Appends.  The bound holds: they remove the oldest updates.
        single = await self._append(1, SINGLE)
        batches = await self._append(BATCH, BATCHES)
        assert await self._log.find(id_of(1)) is None, "the appends should have removed the first update"
        return {
            UNIT: taken[len(taken) // 2] * 1e6,
            "p99 µs": taken[len(taken) * 99 // 100] * 1e6,
            "ms to append 1": single / SINGLE * 1e3,
            "appended/s, 1,000 at a time": BATCH * BATCHES / batches,
            "bytes an update": self._each,
            "× its texts": self._each / sum(len(text) for text in (TOPIC, DATA, id_of(1))),
        }

    async def _append(self, count: int, times: int) -> float:
        """Return the seconds that `times` appends of `count` updates each take."""
        batches = [[update(self._last + n * count + i + 1) for i in range(count)] for n in range(times)]
        began = time.perf_counter()
        for batch in batches:
            entries = await self._log.append(batch)
            self._last += count
            assert entries[-1].position == self._last
        return time.perf_counter() - began


def id_of(number: int) -> str:
    """Return the id of update `number`: it looks random, and no two are equal."""
    digits = f"{number * _ODD % 2**128:032x}"
    return f"urn:uuid:{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def update(number: int) -> Update:
    """Return update number `number`; updates differ only in their ids."""
    return Update((TOPIC,), DATA, id=id_of(number))


def opened(url: str, size: int) -> History:
    """Return a history that keeps `size` updates."""
    return open_history(url, Retention(max_updates=size, max_bytes=2**62, max_age=math.inf))


async def fill(url: str, size: int) -> int:
    """Put the updates 1 to `size` into an empty history.

    Returns the bytes that it takes then: of the file, or of Redis's memory.
    """
    log = opened(url, size)
    async with contextlib.aclosing(log):
        if not isinstance(log, SqliteHistory):
            for first in range(1, size + 1, BATCH):
                await log.load([Entry(n, update(n)) for n in range(first, first + BATCH)])
            return (await log.stats()).size
        await log.check()  # creates the file
    write(log.path, size)
    return os.path.getsize(log.path)  # noqa: ASYNC240


def write(path: str, size: int) -> None:
    """Write the updates 1 to `size` into the file of an empty SQLite history.

    The rows are those that appends would write, in the same order.  They are written in
    larger transactions and without a journal, which is faster.
    """
    _, _, bytes, _, _, *rest = row_of(update(1))  # the same for all updates
    now = int(time.time() * 1_000)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -500000")  # in KiB; enough for the index of 10 million rows
        for first in range(1, size + 1, ROWS_PER_TRANSACTION):
            connection.execute("BEGIN")
            ids = ((n, id_of(n)) for n in range(first, min(first + ROWS_PER_TRANSACTION, size + 1)))
            rows = ((n, now, bytes, hash_of(id), id, *rest) for n, id in ids)
            connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            connection.execute("COMMIT")
        connection.execute("UPDATE state SET bytes = ?", (size * bytes,))
        connection.execute("PRAGMA journal_mode = WAL")
    with open(path, "rb") as file:
        os.fsync(file)  # otherwise the kernel writes it while other variants are measured

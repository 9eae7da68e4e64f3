"""Group commit: all jobs that have come while a transaction was written go into the next one, and share its commit.

    append ─┐                   ┌─ commit ─┐
    append ─┼─► what waits ───► │ rows,    │ ───► their entries, to this process's follower
    append ─┘   for the writer  │ bounds   │      and a datagram to the others, who look
                                └──────────┘

A transaction also forgets some of the entries that are over the bounds of the log.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from hub.errors import HistoryUnavailable
from hub.history.sqlite.file import Replaced, busy_until, give_back, identity_of, transaction
from hub.history.sqlite.transaction import Writing
from hub.history.sqlite.wakeup import ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.history.base import Entry, Retention
    from hub.history.sqlite.database import Database

_COMMIT: Final = 5_000
"""Updates that share a commit, about."""

T = TypeVar("T")


class _Job(NamedTuple):
    do: Callable[[Writing], Any]
    updates: int
    done: asyncio.Future[Any]


class _Committed(NamedTuple):
    results: list[Any]
    entries: list[Entry]
    has_more: bool
    """Whether there may be more to forget."""


class Commits:
    """Has jobs done in transactions of the writer's thread, one after the other, each with all jobs that wait."""

    def __init__(
        self,
        database: Database,
        node: str,
        retention: Retention,
        clock: Callable[[], float],
        appended: Callable[[Sequence[Entry]], None],
    ) -> None:
        """`appended` is called on the event loop with the entries of a commit, before its jobs get their results."""
        self._database = database
        self._node = node
        self._retention = retention
        self._clock = clock
        self._appended = appended
        self._jobs: deque[_Job] = deque()  # what waits for the next commit
        self._committing: asyncio.Task[None] | None = None  # has them done

    async def write(self, job: Callable[[Writing], T], updates: int = 1) -> T:
        """Return what `job` returns in the next transaction, when that is committed.

        A job must not fail on its own: an error undoes the whole transaction, and all its jobs get it.
        """
        self._database.require_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(job, updates, done))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_jobs())
        return await done

    async def finish(self) -> None:
        """Wait until all jobs are done."""
        if self._committing is not None:
            await self._committing

    async def _commit_jobs(self) -> None:
        has_more = False
        while self._jobs or has_more:
            taken = self._take()
            try:
                results, entries, has_more = await self._database.write(
                    partial(self._commit, [job.do for job in taken])
                )
            except Exception as error:
                has_more = False
                for job in taken:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            if entries:
                self._appended(entries)
            for job, result in zip(taken, results, strict=True):
                if not job.done.done():  # nobody waits for it any more
                    job.done.set_result(result)
        self._committing = None

    def _take(self) -> list[_Job]:
        """The jobs of the next transaction."""
        taken: list[_Job] = []
        size = 0
        while self._jobs and (not taken or size + self._jobs[0].updates <= _COMMIT):
            taken.append(self._jobs.popleft())
            size += taken[-1].updates
        return taken

    def _commit(self, jobs: list[Callable[[Writing], Any]]) -> _Committed:
        """Do `jobs` in one transaction, and forget some of what is over the bounds."""
        database, deadline = self._database, busy_until()
        for attempt in range(3):
            file = database.opened()
            try:
                with transaction(file.writer, deadline):
                    # Looked at when nobody else may write: whoever puts a damaged file aside holds that lock.
                    if identity_of(file.path) != file.identity:
                        raise Replaced
                    writing = Writing(file, self._clock())
                    results = [job(writing) for job in jobs]
                    has_more = writing.trim_some(self._retention)
                    bells = writing.bells(self._node) if writing.entries else []
                    writing.finish()
                ring(bells)
                give_back(file.writer)
                return _Committed(results, writing.entries, has_more)
            except Replaced:
                pass
            except sqlite3.Error as error:
                database.mend(file, error, last=attempt == 2)
        raise HistoryUnavailable(f"{database.path} is replaced again and again")

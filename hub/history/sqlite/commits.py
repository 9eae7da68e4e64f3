"""Group commit: jobs that arrive during a transaction share the next one.

    append ─┐                   ┌─ commit ─┐
    append ─┼─► waiting jobs ─► │ rows,    │ ───► entries, to the followers here, and a
    append ─┘   for the writer  │ trimming │      datagram to the other processes
                                └──────────┘

A transaction also forgets some of the entries that are beyond the bounds.
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
"""Approximate number of updates that share a commit."""

T = TypeVar("T")


class _Job(NamedTuple):
    """Work for the next transaction, and the future of its result."""

    do: Callable[[Writing], Any]
    updates: int
    done: asyncio.Future[Any]


class _Committed(NamedTuple):
    """The outcome of one transaction."""

    results: list[Any]
    entries: list[Entry]
    has_more: bool
    """Whether there may be more entries to forget."""


class Commits:
    """Runs jobs in transactions of the writer's thread, each with all jobs that
    wait.
    """

    def __init__(
        self,
        database: Database,
        node: str,
        retention: Retention,
        clock: Callable[[], float],
        appended: Callable[[Sequence[Entry]], None],
    ) -> None:
        """`appended` is called with the entries of a commit, before its jobs have
        results.

        It is called on the event loop.
        """
        self._database = database
        self._node = node
        self._retention = retention
        self._clock = clock
        self._appended = appended
        self._jobs: deque[_Job] = deque()  # jobs for the next commit
        self._committing: asyncio.Task[None] | None = None  # the task that runs them

    async def write(self, job: Callable[[Writing], T], updates: int = 1) -> T:
        """Run `job` in the next transaction, and return its result after the commit.

        A job must not fail by itself: an error undoes the whole transaction, and all
        its jobs raise it.
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
        """Run transactions until no job waits and nothing is left to forget."""
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
                if not job.done.done():  # else its caller was cancelled
                    job.done.set_result(result)
        self._committing = None

    def _take(self) -> list[_Job]:
        """Remove and return the jobs of the next transaction."""
        taken: list[_Job] = []
        size = 0
        while self._jobs and (not taken or size + self._jobs[0].updates <= _COMMIT):
            taken.append(self._jobs.popleft())
            size += taken[-1].updates
        return taken

    def _commit(self, jobs: list[Callable[[Writing], Any]]) -> _Committed:
        """Run `jobs` in one transaction, and forget some entries beyond the bounds."""
        database, deadline = self._database, busy_until()
        for attempt in range(3):
            file = database.opened()
            try:
                with transaction(file.writer, deadline):
                    # Check while holding the lock: to put a damaged file aside, a
                    # process must hold it too.
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
        raise HistoryUnavailable(f"{database.path} is being replaced again and again")

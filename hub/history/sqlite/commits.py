"""Group commit: jobs that arrive during a transaction share the next one.

    append ─┐                   ┌─ commit ─┐
    append ─┼─► waiting jobs ─► │ rows,    │ ─┬─► entries to the followers here
    append ─┘   for the writer  │ trimming │  └─► datagrams to the other processes
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
from hub.history.sqlite.wakeup import wake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.history.base import Entry, Retention
    from hub.history.sqlite.database import Database

_UPDATES_PER_COMMIT: Final = 5_000
"""Updates that share a commit, at most, unless the first job alone has more."""

T = TypeVar("T")


class _Job(NamedTuple):
    """Work for the next transaction."""

    do: Callable[[Writing], Any]
    updates: int
    """The number of updates that it appends, to bound the size of a commit."""
    done: asyncio.Future[Any]
    """The future of its result."""


class _Committed(NamedTuple):
    """The outcome of one transaction."""

    results: list[Any]
    """The results of the jobs, in their order."""
    entries: list[Entry]
    """All entries that were appended."""
    has_more: bool
    """Whether more entries may have to be forgotten."""


class Commits:
    """A queue of jobs, and the task that runs all waiting jobs in one transaction.

    `node` is the name of this node, and `clock` returns seconds since 1970.  After each
    commit, `appended` is called with its entries, on the event loop, before any job of
    the commit has its result.
    """

    def __init__(
        self,
        database: Database,
        node: str,
        retention: Retention,
        clock: Callable[[], float],
        appended: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._database = database
        self._node = node
        self._retention = retention
        self._clock = clock
        self._appended = appended
        self._jobs: deque[_Job] = deque()  # the jobs that wait
        self._committing: asyncio.Task[None] | None = None  # None if no job waits or runs

    async def write(self, job: Callable[[Writing], T], updates: int = 1) -> T:
        """Run `job` in the next transaction, and return its result after the commit.

        Jobs run in the order of the calls, in the writer's thread.  A job must not
        raise errors of its own: an error undoes the whole transaction, and the calls of
        all its jobs raise it.  If a call is cancelled, its job still runs.  A job may
        run again after a repair or a replacement of the file.

        Raises HistoryUnavailable if the history is closed or cannot be written.
        """
        self._database.require_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(job, updates, done))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_jobs())
        return await done

    async def finish(self) -> None:
        """Wait until no job waits or runs."""
        if self._committing is not None:
            await self._committing

    async def _commit_jobs(self) -> None:
        """Run transactions until no job waits and nothing is left to forget."""
        has_more = False
        while self._jobs or has_more:
            taken = self._take()  # none, if only entries are left to forget
            try:
                results, entries, has_more = await self._database.write(
                    partial(self._commit, [job.do for job in taken])
                )
            except Exception as error:
                # All jobs of the transaction fail.  The next transaction forgets.
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
        while self._jobs and (not taken or size + self._jobs[0].updates <= _UPDATES_PER_COMMIT):
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
                    # Check while holding the lock.  A process that puts a damaged file
                    # aside holds the same lock, so it cannot do that now.
                    if identity_of(file.path) != file.identity:
                        raise Replaced
                    writing = Writing(file, self._clock())
                    results = [job(writing) for job in jobs]
                    has_more = writing.trim_some(self._retention)
                    ports = writing.wake_ports(self._node) if writing.entries else []
                    writing.finish()
                # After the commit, so that the other processes find the new entries.
                wake(ports)
                give_back(file.writer)
                return _Committed(results, writing.entries, has_more)
            except Replaced:  # try again with the new file
                pass
            except sqlite3.Error as error:
                database.mend(file, error, last=attempt == 2)
        raise HistoryUnavailable(f"{database.path} is being replaced again and again")

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
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from hub.errors import HistoryUnavailable
from hub.history.sqlite.file import Replaced, busy_until, give_back, identity_of, transaction
from hub.history.sqlite.transaction import Writing
from hub.history.sqlite.wakeup import wake
from hub.threads import call_soon

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.clocks import Dates
    from hub.control.commands import News
    from hub.control.ledger import Ledger
    from hub.history.base import Entry, Retention
    from hub.history.sqlite.database import Database

GROUP_SECONDS: Final = 0.001
"""How long a transaction waits for as many jobs as the one before it had.

It waits if that one had several, and if the queue has not been empty since then.  So
many publishers share a commit, which costs more than a job, and a lone job never waits.
"""
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
    news: News | None
    """What the ledger does not know."""


class Commits:
    """A queue of jobs, of which the writer's thread runs all that wait in one
    transaction.

    `node` is the name of this node, and `dates` gives entries their dates.  After each
    commit, on the event loop, the `ledger` learns the commands that are new, and then
    `appended` is called with the new entries, if there are any of both, before any job
    of the commit has its result.
    """

    def __init__(
        self,
        database: Database,
        node: str,
        retention: Retention,
        dates: Dates,
        ledger: Ledger,
        appended: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._database = database
        self._node = node
        self._retention = retention
        self._dates = dates
        self._ledger = ledger
        self._appended = appended
        self._jobs: deque[_Job] = deque()  # the jobs that wait
        self._is_due = False  # whether the writer will take the jobs that wait
        self._awaited = 0  # how many jobs the next transaction waits for; 0 for none
        self._enough = threading.Event()  # set when there are so many
        self._has_more = False  # whether more entries may have to be forgotten
        self._gives_back = True  # whether the file may have many free pages

    def write(self, job: Callable[[Writing], T], updates: int = 1) -> asyncio.Future[T]:
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
        if len(self._jobs) == self._awaited:
            self._enough.set()
        # First the job, then the question; `_commit_jobs` first clears `_is_due`, and
        # then looks for jobs.  So no job is left without the writer.
        if not self._is_due:
            self._is_due = True
            self._database.writer.put(self._commit_jobs)
        return done

    async def finish(self) -> None:
        """Wait until no job waits or runs."""
        loop = asyncio.get_running_loop()
        while self._is_due:
            idle = asyncio.Event()
            self._database.writer.put(partial(call_soon, loop, idle.set))
            await idle.wait()

    # -- in the writer's thread

    def _commit_jobs(self) -> None:
        """Run one transaction, and another one later if there is more to do."""
        if len(self._jobs) < self._awaited:
            self._enough.wait(GROUP_SECONDS)
        taken = self._take()
        self._awaited = len(taken) if len(taken) > 1 else 0
        self._enough.clear()
        if taken or self._has_more:
            outcome: _Committed | Exception
            try:
                outcome = committed = self._commit([job.do for job in taken])
                self._has_more = committed.has_more
            except Exception as error:
                # All jobs of the transaction fail.  The next transaction forgets.
                outcome, self._has_more = error, False
            if taken:
                call_soon(taken[0].done.get_loop(), partial(self._report, taken, outcome))
        if not (self._jobs or self._has_more):
            self._is_due, self._awaited = False, 0
            if not self._jobs:
                return
            self._is_due = True
        self._database.writer.put(self._commit_jobs)

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
            # The transaction notices if the file was replaced.
            file = (attempt == 0 and database.file) or database.opened()
            try:
                with transaction(file.writer, deadline):
                    # Check while holding the lock.  A process that puts a damaged file
                    # aside holds the same lock, so it cannot do that now.
                    if identity_of(file.path) != file.identity:
                        raise Replaced
                    writing = Writing(file, self._dates, self._node, self._ledger.number)
                    results = [job(writing) for job in jobs]
                    has_more = writing.trim_some(self._retention)
                    writing.finish()
                # After the commit, so that the other processes find the new entries.
                if writing.entries or writing.has_told:
                    wake(writing.wake_ports)
                if self._gives_back or writing.forgotten:
                    self._gives_back = give_back(file.writer)
                return _Committed(results, writing.entries, has_more, writing.news)
            except Replaced:  # try again with the new file
                pass
            except sqlite3.Error as error:
                database.mend(file, error, last=attempt == 2)
        raise HistoryUnavailable(f"{database.path} is being replaced again and again")

    # -- on the event loop

    def _report(self, jobs: list[_Job], outcome: _Committed | Exception) -> None:
        """Give each job of a transaction its result, or the error of the transaction.

        If the call of a job was cancelled, its result is dropped.
        """
        if isinstance(outcome, Exception):
            for job in jobs:
                if not job.done.done():
                    job.done.set_exception(outcome)
            return
        if outcome.news is not None:
            self._ledger.learn(outcome.news)
        if outcome.entries or outcome.news is not None:
            self._appended(outcome.entries)
        for job, result in zip(jobs, outcome.results, strict=True):
            if not job.done.done():
                job.done.set_result(result)

"""The database: the file that is at a path now, and the threads that read and write it.

    event loop ── read ──► a reader thread ─── a transaction on an idle connection
               ── look_up ─►    "        ───── the same for all look-ups that wait
               ── write ─► the writer thread ─ a transaction on the writing connection

Only the writer thread puts a damaged file aside.  If a reader finds damage, it waits
for the writer thread to do that, and tries again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import structlog

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history.sqlite.file import File, alone, identity_of, is_busy, is_damage, lasting_reason, reason_of
from hub.history.sqlite.repair import salvage
from hub.history.sqlite.transaction import ReadTransaction
from hub.history.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("hub")

READERS: Final = 2
"""The number of reader threads."""
LOOK_UPS: Final = 64
"""The number of look-ups that share a transaction, at most."""

T = TypeVar("T")
Question: TypeAlias = "Callable[[ReadTransaction], T]"


class Database:
    """The file at a path: opened on first use, reopened if replaced, and repaired.

    `synchronous` is that of SQLite: "full" or "normal".
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        self.end = 0
        """The greatest position that this process knows.  Set by the event loop."""
        self.is_closed = False
        """Whether the history was closed.  Set by the event loop."""
        self._synchronous = synchronous
        self.writer = Writer("log-writer")
        """The thread that owns `File.writer`."""
        self._readers = ThreadPoolExecutor(READERS, "log-reader")
        self._look_ups: list[tuple[Question[Any], asyncio.Future[Any]]] = []  # that wait for a transaction
        self._looking: asyncio.Task[None] | None = None  # asks them
        self._lock = threading.RLock()  # held to change the next two attributes
        self.file: File | None = None
        """The open file, which may have been replaced; see `opened`."""
        self._failed: File | None = None  # the file that was open before a failure

    @property
    def known(self) -> File:
        """The file that is open, or that was before a failure; it was opened once."""
        file = self.file or self._failed
        assert file is not None
        return file

    def require_open(self) -> None:
        """Raise HistoryUnavailable if the history was closed."""
        if self.is_closed:
            raise HistoryUnavailable(f"{self.path} was closed")

    # -- from the event loop

    async def read(self, question: Question[T]) -> T:
        """Run `question` in a transaction of a reader thread, and return its result.

        At most READERS questions run at once, and the others wait.  If the call is
        cancelled, a question that already runs goes on to its end.

        Raises HistoryUnavailable if the history is closed or cannot be read.
        """
        self.require_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._ask, question)

    async def look_up(self, question: Question[T]) -> T:
        """Run a short `question` as `read` does, in one transaction with others.

        The way to a thread and back costs more than the look-up itself; when many
        clients reconnect, they share it.  `question` may run more than once.  If the
        history fails, all look-ups of the transaction fail.
        """
        self.require_open()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._look_ups.append((question, answer))
        # It begins after this turn of the event loop, with all look-ups of this turn.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_up_all())
        return await answer

    async def _look_up_all(self) -> None:
        """Ask all look-ups, also those that come meanwhile."""
        loop = asyncio.get_running_loop()
        while self._look_ups:
            some, self._look_ups = self._look_ups[:LOOK_UPS], self._look_ups[LOOK_UPS:]
            questions = [question for question, _ in some]
            try:
                self.require_open()
                answers = await loop.run_in_executor(self._readers, self._ask_all, questions)
            except Exception as error:
                answers = [error] * len(some)
            except asyncio.CancelledError:  # the event loop ends
                for _, answer in (*some, *self._look_ups):
                    answer.cancel()
                self._look_ups.clear()
                raise
            for (_, answer), outcome in zip(some, answers, strict=True):
                if answer.done():  # its caller was cancelled
                    continue
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

    async def open(self) -> File:
        """Return the file as `opened` does, but in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.opened)

    # -- from any thread

    def opened(self) -> File:
        """Return the file that is at the path now; open it, or make it, if necessary.

        Raises HistoryUnavailable if it cannot be opened now, and ConfigurationError if
        it can never be opened.  After a file was open once, it only raises
        HistoryUnavailable, because the problem may go away.
        """
        with self._lock:
            # 1. The file that was opened before.
            if self.file is not None and self.is_current(self.file):
                return self.file
            # 2. Open another one.  Its offset depends on the previous file.
            previous = self.file or self._failed
            try:
                with alone(self.path):
                    file = File(self.path, self._synchronous, previous)
            except (sqlite3.Error, OSError, ConfigurationError) as error:
                if previous is None and isinstance(error, ConfigurationError):
                    raise
                if previous is None and (reason := lasting_reason(self.path, error)):
                    raise ConfigurationError(f"history_url: {self.path}: {reason}") from None
                raise HistoryUnavailable(f"{self.path}: {reason_of(error)}") from error
            # 3. Close the file that it replaces.  The writer thread may still use its
            #    writing connection, so that thread closes it.
            if self.file is not None:
                self.file.close_readers()
                self.writer.put(self.file.writer.close)
            if previous is not None and file.offset != previous.offset:
                log.error("the history is another file now, and in another epoch", path=self.path)
            self.file, self._failed = file, None
            return file

    def is_current(self, file: File) -> bool:
        """Return whether `file` is the open file, and still the one at the path."""
        return self.file is file and identity_of(self.path) == file.identity

    def _ask_all(self, questions: list[Question[Any]]) -> list[Any]:
        """Return the answer to each question, or its error, from one transaction.

        Raises HistoryUnavailable.
        """
        return self._ask(lambda reading: [_outcome(question, reading) for question in questions])

    def _ask(self, question: Question[T]) -> T:
        """Run `question` on a connection; try again after a repair or a replacement."""
        for attempt in range(3):
            file = self.opened()
            try:
                with file.reading() as connection:
                    return question(ReadTransaction(file, connection))
            except sqlite3.Error as error:
                if is_damage(error) and attempt < 2:
                    # Only the writer thread puts files aside.
                    self.writer.call(partial(self.repair, file, error))
                # An operational error can mean that the file was replaced: try again.
                elif not (isinstance(error, sqlite3.OperationalError) and attempt < 2):
                    raise HistoryUnavailable(f"{self.path}: {reason_of(error)}") from error
        raise AssertionError

    # -- from the writer's thread

    def mend(self, file: File, error: sqlite3.Error, *, last: bool) -> None:
        """Repair a damaged file, so that the caller can retry, or raise.

        Raises HistoryUnavailable if the error is not damage, if this was the last
        attempt, or if the repair fails.
        """
        if is_damage(error) and not last:
            self.repair(file, error)
            return
        # After an error other than a lock, close the file: the next transaction opens a
        # new connection, and starts as a new process would.
        if not is_busy(error):
            with self._lock:
                if self.file is file:
                    file.close()
                    self.file, self._failed = None, file
        raise HistoryUnavailable(f"{self.path}: {reason_of(error)}") from error

    def repair(self, file: File, error: sqlite3.Error) -> None:
        """Put a damaged file aside, and continue with a copy of its readable part.

        Does nothing if that has already been done.  Raises HistoryUnavailable if the
        copy fails.
        """
        with self._lock:
            if not self.is_current(file):
                return
            log.error(
                "the history is damaged; a new file continues with the readable part",
                path=self.path,
                reason=reason_of(error),
            )
            try:
                salvaged = salvage(file, self.end - file.offset)
            except (sqlite3.Error, OSError) as failure:
                raise HistoryUnavailable(
                    f"{self.path} is damaged and cannot be copied: {reason_of(failure)}"
                ) from failure
            if salvaged is not None:
                kept, lost, aside = salvaged
                log.error("the history continues", path=self.path, updates=kept, lost=lost, damaged=aside)

    # -- from a thread of its own

    def close(self) -> None:
        """Wait for the threads to end, and close the file; it cannot be used again."""
        self._readers.shutdown()
        self.writer.close()
        if self.file is not None:
            self.file.close()  # the last connection to close merges the write-ahead log
            self.file = None


def _outcome(question: Question[Any], reading: ReadTransaction) -> Any:
    """Return the answer to a question, or its error unless that is of SQLite."""
    try:
        return question(reading)
    except sqlite3.Error:
        raise
    except Exception as error:
        return error

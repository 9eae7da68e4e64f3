"""The database: the file that is at a path now, and the threads that read and write it.

    event loop ── read ──► a reader thread ── a transaction on an idle connection
               ── write ─► the writer thread ─ a transaction on the connection that writes

The writer thread alone puts a damaged file aside; a reader that meets damage waits for it, and asks again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history.sqlite.file import File, alone, identity_of, is_busy, is_damage, lasting_reason, reason_of
from hub.history.sqlite.repair import salvage
from hub.history.sqlite.transaction import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("hub")

READERS: Final = 2
"""Threads that read."""

T = TypeVar("T")


class Database:
    """The file at a path: opened if need be, again if it is replaced, and repaired if it is damaged."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        self.end = 0
        """The greatest position that this process knows; the event loop sets it."""
        self.is_closed = False
        """Whether nothing may be asked any more; the event loop sets it."""
        self._synchronous = synchronous
        self._writer = ThreadPoolExecutor(1, "log-writer")
        self._readers = ThreadPoolExecutor(READERS, "log-reader")
        self._lock = threading.RLock()  # held to change what follows
        self._file: File | None = None  # what is open
        self._failed: File | None = None  # what was open when that failed

    @property
    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._file is not None

    def require_open(self) -> None:
        """Raise HistoryUnavailable if the log was closed."""
        if self.is_closed:
            raise HistoryUnavailable(f"{self.path} was closed")

    # -- from the event loop

    async def read(self, question: Callable[[Reading], T]) -> T:
        """Return what `question` returns, of one transaction in a reader's thread."""
        self.require_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._ask, question)

    async def write(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, in the writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def open(self) -> File:
        """As `opened`, in a reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.opened)

    # -- from any thread

    def opened(self) -> File:
        """Return the file that is there now, opened if need be, and made if there is none.

        Raises HistoryUnavailable if it cannot be opened now, and ConfigurationError if it never will be.
        """
        with self._lock:
            if self._file is not None and self.is_current(self._file):
                return self._file
            previous = self._file or self._failed
            try:
                with alone(self.path):
                    file = File(self.path, self._synchronous, previous)
            except (sqlite3.Error, OSError, ConfigurationError) as error:
                if previous is None and isinstance(error, ConfigurationError):
                    raise
                if previous is None and (reason := lasting_reason(self.path, error)):
                    raise ConfigurationError(f"history_url: {self.path}: {reason}") from None
                raise HistoryUnavailable(f"{self.path}: {reason_of(error)}") from error
            if self._file is not None:
                self._file.close_readers()
                self._writer.submit(self._file.writer.close)  # by its own thread, which may be using it
            if previous is not None and file.offset != previous.offset:
                log.error("the history is another file now, in another epoch", path=self.path)
            self._file, self._failed = file, None
            return file

    def is_current(self, file: File) -> bool:
        """Return whether a file is the one that is open, and the one that is at the path."""
        return self._file is file and identity_of(self.path) == file.identity

    def _ask(self, question: Callable[[Reading], T]) -> T:
        for attempt in range(3):
            file = self.opened()
            try:
                with file.reading() as connection:
                    return question(Reading(file, connection))
            except sqlite3.Error as error:
                if is_damage(error) and attempt < 2:
                    # Where the writer is, which alone puts files aside.
                    self._writer.submit(self.repair, file, error).result()
                elif not (isinstance(error, sqlite3.OperationalError) and attempt < 2):
                    raise HistoryUnavailable(f"{self.path}: {reason_of(error)}") from error
        raise AssertionError

    # -- from the writer's thread

    def mend(self, file: File, error: sqlite3.Error, *, last: bool) -> None:
        """Mend what can be mended, after which to try again; else raise HistoryUnavailable."""
        if is_damage(error) and not last:
            self.repair(file, error)
            return
        if not is_busy(error):  # whatever it was, a new connection begins where a new process would
            with self._lock:
                if self._file is file:
                    file.close()
                    self._file, self._failed = None, file
        raise HistoryUnavailable(f"{self.path}: {reason_of(error)}") from error

    def repair(self, file: File, error: sqlite3.Error) -> None:
        """Put a damaged file aside, and go on with what can be read of it.  Nothing if that was done already."""
        with self._lock:
            if not self.is_current(file):
                return
            log.error(
                "the history is damaged; what can be read goes on in a new file",
                path=self.path,
                reason=reason_of(error),
            )
            try:
                salvaged = salvage(file, self.end - file.offset)
            except (sqlite3.Error, OSError) as failure:
                raise HistoryUnavailable(
                    f"{self.path} is damaged, and cannot be copied: {reason_of(failure)}"
                ) from failure
            if salvaged is not None:
                kept, lost, aside = salvaged
                log.error("the history goes on", path=self.path, updates=kept, lost=lost, damaged=aside)

    # -- from a thread of its own

    def close(self) -> None:
        """Wait for the threads to end, and close the file.  Nothing works any more."""
        self._readers.shutdown()
        self._writer.shutdown()
        if self._file is not None:
            self._file.close()  # the last connection to close puts all into one file
            self._file = None

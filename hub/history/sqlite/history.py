"""A log in one file, for all processes of one machine: SQLite with a write-ahead log.

    append ─┐                   ┌─ commit ─┐
    append ─┼─► what waits ───► │ rows,    │ ───► their entries, to this process's follower
    append ─┘   for the writer  │ bounds   │      and a datagram to the others, who look
                                └──────────┘

One thread writes.  All that has come while it was writing goes into its next transaction, so many appends share one
commit, and so does what retention forgets: the oldest entries, some at a time.  A few threads read, each with a
connection of its own, and nobody waits for another.

It survives: with `synchronous=full`, whatever the disk survives, a power cut too; with `normal`, the end of any process
at any moment, and after a power cut the last updates may be gone, which begins a new epoch.  A file that is damaged is
put aside with `.damaged` in its name, and what can be read of it goes on in a new one; what cannot be read begins a new
epoch too.  Damage that SQLite does not see, as there are no checksums of its pages, is not seen.  A file that was put
in its place while the hub was running is another log, in another epoch.

The tables are open to SQL: `SELECT * FROM log`.  Not for a file system of another machine: its locks need one kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import socket
import sqlite3
import threading
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import structlog

try:
    import fcntl
except ImportError:  # not on Windows: there, one process at a time is to open a log
    fcntl = None  # type: ignore[assignment]

from hub.errors import ConfigurationError, HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import EARLIEST, Beat, Entry, Page, Retention, Stats
from hub.protocol.subscriptions import Present, to_json
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from typing import Self

    from hub.history.base import Change

log = structlog.stdlib.get_logger("hub")

LOOK: Final = 0.1
"""Seconds between two looks at whether another process has written, in case its datagram is lost."""
BUSY: Final = 5.0
"""Seconds that another process may keep writing before this one gives up."""
TRIM: Final = 1_000
"""Entries that are forgotten at once, and as many as come in."""
READERS: Final = 2
ORPHANS: Final = 1_000
ASIDE: Final = 5
"""Damaged files that are kept; the last of them is replaced."""
_COMMIT: Final = 5_000
"""Updates that share a commit, about."""
_ROW: Final = 80
"""Bytes that a row takes beside its texts, with its place in the index."""
_SALVAGED: Final = ".salvaged"
_NO_TEXT: Final = "Could not decode to UTF-8"
"""What sqlite3 says of a text that is none, followed by the text."""
_MARK: Final = 0x6D657263
"""SQLite's application_id of a log, and its user_version below."""
_VERSION: Final = 2
_NOTHING: Final = 4_096
"""Positions without an entry after which no more are looked for, in a file whose end is damaged."""
_VACUUM: Final = 256
"""Free pages that are given back at once, where there are more than a quarter of all."""

_SCHEMA: Final = """
CREATE TABLE log (
    position INTEGER PRIMARY KEY,  -- from 1, by 1; only entries about presence leave gaps
    time INTEGER NOT NULL,         -- ms since 1970
    size INTEGER NOT NULL,         -- bytes, as the bound counts them
    hash INTEGER NOT NULL,         -- of the id: the index is half as large as one of ids
    id TEXT NOT NULL,
    topics TEXT NOT NULL,          -- an array in JSON
    private INTEGER NOT NULL,
    type TEXT,
    retry TEXT,                    -- ms, in digits: there may be more than an INTEGER holds (N53)
    data TEXT NOT NULL
);
CREATE INDEX log_hash ON log (hash);
CREATE TABLE state (
    epoch TEXT NOT NULL,
    since INTEGER NOT NULL,        -- before this position something is missing
    bytes INTEGER NOT NULL,        -- sum(size)
    boot TEXT NOT NULL             -- of the system, when a process that may lose its end has opened it
);
CREATE TABLE node (
    name TEXT PRIMARY KEY,
    seen REAL NOT NULL,            -- seconds, of the clock since boot
    bell INTEGER NOT NULL          -- UDP port on 127.0.0.1 to be told of new entries; 0 for none
) WITHOUT ROWID;
CREATE TABLE present (id TEXT PRIMARY KEY, node TEXT NOT NULL, matchers TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX present_node ON present (node);
"""
_SINCE_2: Final = """
CREATE TABLE seen (
    number INTEGER PRIMARY KEY,    -- the oldest first
    time INTEGER NOT NULL,         -- ms since 1970
    hash BLOB NOT NULL UNIQUE      -- of an id and its publisher
);
CREATE TABLE presence (position INTEGER PRIMARY KEY);
ALTER TABLE state RENAME COLUMN bytes TO published_bytes;
ALTER TABLE state ADD COLUMN published INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN published_forgotten INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN presence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN presence_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN presence_forgotten INTEGER NOT NULL DEFAULT 0;
UPDATE state SET
    published = (SELECT ifnull(max(position), 0) FROM log) - (SELECT ifnull(min(position) - 1, 0) FROM log),
    published_forgotten = (SELECT ifnull(min(position) - 1, 0) FROM log);
"""
"""What version 2 has beside what version 1 had, so that a file of that is brought up to date: all of it is published.

`seen` are the ids that are remembered.  `presence` has the positions of the entries in `log` that are about presence.
Of each kind of entries, `state` has how many there are, their bytes, and the position of the newest that is forgotten.
A process of version 1 that still has the file open cannot write any more, as it does not find its column `bytes`.
"""
_SELECT: Final = "SELECT position, time, id, topics, private, type, retry, data FROM log "
_PUBLISHED: Final = (
    "SELECT position, time, size FROM log WHERE position > ?"
    " AND NOT EXISTS (SELECT 1 FROM presence WHERE presence.position = log.position) ORDER BY position LIMIT ?"
)
_PRESENCE: Final = (
    "SELECT presence.position, time, size FROM presence CROSS JOIN log USING (position)"
    " WHERE presence.position > ? ORDER BY presence.position LIMIT ?"
)

T = TypeVar("T")


class SqliteHistory:
    """The newest updates, about within the bounds of a `base.Retention`.

    All its mutable state on the event loop's side: `_jobs`, what waits for the next commit; `_committing`, the task
    that has them done; `_fresh`, entries that were appended here and not followed yet; `_end`, the greatest position
    known; `_grown`, the event of a new entry; `_listening`, the task that looks for those of others when its `_bell`
    has `_rung`; and whether it `_is_closed`.  And for all threads, under `_lock`: `_file`, what is open, and `_last`,
    what was when that failed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        window: float = 0.0,
        node_timeout: float = 10.0,
        synchronous: str = "full",
        clock: Callable[[], float] | None = None,
        since_boot: Callable[[], float] = time.monotonic,
        **bounds: Any,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise ConfigurationError(f"history_url: synchronous is full or normal, and not {synchronous!r}")
        self.path = os.path.abspath(path)
        self.node = base.new_node()
        self._retention = Retention(**bounds)
        self._window = window
        self._node_timeout = node_timeout
        self._synchronous = synchronous
        self._clock = clock or base.steady_clock()
        self._since_boot = since_boot
        self._writer = ThreadPoolExecutor(1, "log-writer")
        self._readers = ThreadPoolExecutor(READERS, "log-reader")
        self._jobs: deque[tuple[_Job, asyncio.Future[Any]]] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._bell: socket.socket | None = None
        self._port = 0
        self._rung = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._followers = 0
        self._fresh: deque[Entry] = deque()
        self._end = 0
        self._grown = asyncio.Event()
        self._is_closed = False
        self._lock = threading.RLock()
        self._file: _File | None = None
        self._last: _File | None = None

    @classmethod
    def from_url(cls, url: str, *, window: float, node_timeout: float, **bounds: Any) -> Self:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        path = unquote(parts.path)[1:]  # sqlite:///a.db is relative, sqlite:////a.db is not
        if parts.netloc or not path or path.endswith("/") or set(options) - {"synchronous"}:
            raise ConfigurationError(
                "history_url is sqlite:///relative/path.db or sqlite:////absolute/path.db, and after it at most "
                "?synchronous=full or ?synchronous=normal"
            )
        return cls(path, window=window, node_timeout=node_timeout, **bounds, **options)  # type: ignore[arg-type]

    # -- writing

    async def append(self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False) -> list[Entry]:
        rows = [_row(update) for update in updates]
        if not self._window or presence:
            return await self._write(lambda writing: writing.append(rows, presence=presence), len(rows))
        seen = [base.seen_as(publisher, update.id) for update in updates]
        window, most = math.ceil(self._window * 1_000), self._retention.max_updates

        def append(writing: _Writing) -> list[Entry]:
            new = [row for row, known in zip(rows, writing.knows(seen, window), strict=True) if not known]
            writing.forget_seen(window, most, 2 * len(rows) + TRIM)
            return writing.append(new)

        return await self._write(append, len(rows))

    async def load(self, entries: Sequence[Entry]) -> None:
        rows = [_row(entry.update, entry.time) for entry in entries]
        await self._write(lambda writing: writing.append(rows), len(rows))

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        told = [(change, [_row(update) for update in change.updates]) for change in changes]

        def announce(writing: _Writing) -> list[Entry]:
            self._touch(writing)
            entries = []
            for (subscriber, active, _), rows in told:
                if writing.arrives(subscriber, self.node) if active else writing.departs(subscriber.id):
                    entries += writing.append(rows, presence=True)
            return entries

        return await self._write(announce, sum(len(rows) for _, rows in told))

    async def beat(self) -> Beat:
        def beat(writing: _Writing) -> tuple[int, list[tuple[str, str]]]:
            writing.give_time(self._since_boot(), self._node_timeout)
            self._touch(writing)
            return writing.beat(self.node, self._since_boot(), self._node_timeout)

        present, orphans = await self._write(beat)
        return Beat(present, list(map(_present, orphans)))

    async def check(self) -> None:
        await self._write(self._touch)

    def _touch(self, writing: _Writing) -> None:
        writing.touch(self.node, self._since_boot(), self._port)

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        bounds = base.pruned_to(max_updates, max_bytes, max_age)
        return await self._write(lambda writing: writing.trim(bounds, 4 * TRIM))

    async def _write(self, job: Callable[[_Writing], T], updates: int = 1) -> T:
        """What `job` returns in the next transaction, when that is committed."""
        self._require_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((_Job(job, updates), done))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_jobs())
        return await done

    async def _commit_jobs(self) -> None:
        loop = asyncio.get_running_loop()
        more = False
        while self._jobs or more:
            taken: list[tuple[_Job, asyncio.Future[Any]]] = []
            size = 0
            while self._jobs and (not taken or size + self._jobs[0][0].updates <= _COMMIT):
                taken.append(self._jobs.popleft())
                size += taken[-1][0].updates
            try:
                results, entries, more = await loop.run_in_executor(
                    self._writer, self._commit, [job.do for job, _ in taken]
                )
            except Exception as error:
                more = False
                for _, done in taken:
                    if not done.done():
                        done.set_exception(error)
                continue
            if entries:
                self._has_grown(entries[-1].position)
                if self._followers:
                    self._fresh.extend(entries)
            for (_, done), result in zip(taken, results, strict=True):
                if not done.done():  # nobody waits for it any more
                    done.set_result(result)
        self._committing = None

    def _commit(self, jobs: list[Callable[[_Writing], Any]]) -> tuple[list[Any], list[Entry], bool]:
        """Do `jobs` in one transaction: their results, the entries, and whether there is more to forget."""
        deadline = time.monotonic() + BUSY
        for attempt in range(3):
            file = self._opened()
            try:
                with _transaction(file.writer, deadline):
                    # Looked at when nobody else may write: whoever puts a damaged file aside holds that lock.
                    if _identity(self.path) != file.identity:
                        raise _Replaced
                    writing = _Writing(file, self._clock())
                    results = [job(writing) for job in jobs]
                    limit = TRIM + 2 * len(writing.entries)
                    trimmed = writing.trim(self._retention, limit)
                    bells = writing.bells(self.node) if writing.entries else []
                    writing.finish()
                _ring(bells)
                _give_back(file.writer)
                return results, writing.entries, trimmed >= limit
            except _Replaced:
                pass
            except sqlite3.Error as error:
                self._failed(file, error, last=attempt == 2)
        raise HistoryUnavailable(f"{self.path} is replaced again and again")

    def _failed(self, file: _File, error: sqlite3.Error, *, last: bool) -> None:
        """Mend what can be mended, after which to try again; else raise HistoryUnavailable."""
        if _is_damage(error) and not last:
            self._salvage(file, error)
            return
        if not _is_busy(error):  # whatever it was, a new connection begins where a new process would
            with self._lock:
                if self._file is file:
                    file.close()
                    self._file, self._last = None, file
        raise HistoryUnavailable(f"{self.path}: {_reason(error)}") from error

    # -- reading

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        def find(file: _File, connection: sqlite3.Connection) -> int | None:
            found = connection.execute(
                "SELECT position FROM log WHERE hash = ? AND id = ? AND position >= ? ORDER BY position LIMIT 1",
                (_hash(id), id, file.since),
            ).fetchone()
            if found is None or (presence and found[0] < _forgotten(connection)[1]):
                return None
            return file.offset + int(found[0])

        return await self._read(find)

    async def newest(self) -> Entry | None:
        def newest(file: _File, connection: sqlite3.Connection) -> Entry | None:
            row = connection.execute(_SELECT + "ORDER BY position DESC LIMIT 1").fetchone()
            return None if row is None else _entry(row, file.offset)

        return await self._read(newest)

    async def end(self) -> int:
        return await self._read(lambda file, connection: file.offset + _last(connection))

    async def read(self, after: int) -> Page:
        def read(file: _File, connection: sqlite3.Connection) -> Page:
            published, presence = _forgotten(connection)
            last, place = _last(connection), 0 if after == EARLIEST else after - file.offset
            if place < 0:
                raise PositionExpired(f"position {after} is of an earlier epoch of the log")
            if after != EARLIEST and place < published:
                raise base.position_expired(after, file.offset + published)
            if place > last:
                raise PositionExpired(f"position {after} is after {file.offset + last}, the last one of the log")
            page = Page(forgotten=file.offset + presence)
            first = _next(connection, place)
            if first is None:
                return page
            end = base.page_end(first - 1)
            rows = connection.execute(_SELECT + "WHERE position BETWEEN ? AND ? ORDER BY position", (first, end))
            size = 0
            for row in rows:
                entry = _entry(row, file.offset)
                size += entry.size
                if page and size > base.PAGE_BYTES:
                    return page
                page.append(entry)
            page.full = end <= last
            return page

        return await self._read(read)

    async def present(self, *, own: bool = False) -> list[Present]:
        def present(_: _File, connection: sqlite3.Connection) -> list[Present]:
            rows = connection.execute("SELECT id, matchers FROM present WHERE node = ? OR NOT ?", (self.node, own))
            return list(map(_present, rows))

        return await self._read(present)

    async def stats(self) -> Stats:
        def stats(file: _File, connection: sqlite3.Connection) -> Stats:
            first, last = _first(connection), _last(connection)
            rows = connection.execute(_SELECT + "WHERE position IN (?, ?) ORDER BY position", (first, last))
            ends = [_entry(row, file.offset) for row in rows]
            epoch, updates, size, presence_updates, presence_bytes = connection.execute(
                "SELECT epoch, published, published_bytes, presence, presence_bytes FROM state"
            ).fetchone()
            (present,) = connection.execute("SELECT count(*) FROM present").fetchone()
            oldest, newest = (ends[0], ends[-1]) if ends else (None, None)
            return Stats(
                updates=updates,
                oldest=oldest,
                newest=newest,
                bytes=size,
                presence_updates=presence_updates,
                presence_bytes=presence_bytes,
                size=sum(os.path.getsize(path) for path in _files(self.path) if os.path.exists(path)),
                epoch=epoch,
                present=present,
            )

        return await self._read(stats)

    async def backup(self, target: str) -> None:
        """Write what the log is now into a new file, while it is used.  Raises FileExistsError where there is one.

        Who was present is not in it.  It is in a new epoch: a client that goes on in it may have seen what is not.
        """

        def backup(file: _File, _: sqlite3.Connection) -> None:
            try:
                with contextlib.closing(_connect(file.path)) as connection:
                    connection.execute("VACUUM INTO ?", (target,))
                with contextlib.closing(_connect(target)) as copy:
                    copy.execute("DELETE FROM present")
                    _renew(copy)
            except sqlite3.Error:
                Path(target).unlink(missing_ok=True)
                raise

        if await asyncio.to_thread(os.path.exists, target):
            raise FileExistsError(f"{target} is there already")
        await self._read(backup)

    async def _read(self, question: Callable[[_File, sqlite3.Connection], T]) -> T:
        self._require_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._ask, question)

    def _require_open(self) -> None:
        if self._is_closed:
            raise HistoryUnavailable(f"{self.path} was closed")

    def _ask(self, question: Callable[[_File, sqlite3.Connection], T]) -> T:
        for attempt in range(3):
            file = self._opened()
            try:
                with file.reading() as connection:
                    return question(file, connection)
            except sqlite3.Error as error:
                if _is_damage(error) and attempt < 2:
                    # Where the writer is, which alone puts files aside.
                    self._writer.submit(self._salvage, file, error).result()
                elif not (isinstance(error, sqlite3.OperationalError) and attempt < 2):
                    raise HistoryUnavailable(f"{self.path}: {_reason(error)}") from error
        raise AssertionError

    # -- following

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        self._followers += 1
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        try:
            while True:
                grown = self._grown
                page = self._take_fresh(after)
                if not page:
                    page = read = await self.read(after)
                    read.require_presence(after)
                if page:
                    yield page
                    after = page[-1].position
                else:
                    await grown.wait()
        finally:
            self._followers -= 1
            if not self._followers:
                self._fresh.clear()

    def _take_fresh(self, after: int) -> list[Entry]:
        """What comes after a position and was appended here: it need not be read.  Nothing if others come first."""
        fresh = self._fresh
        while fresh and fresh[0].position <= after:
            fresh.popleft()
        page: list[Entry] = []
        # One follower takes them; more than one reads.
        while self._followers == 1 and fresh and fresh[0].position == after + 1 + len(page) and len(page) < 1_000:
            page.append(fresh.popleft())
        return page

    def _has_grown(self, end: int) -> None:
        self._end = end
        self._grown.set()
        self._grown = asyncio.Event()

    def _hear(self) -> None:
        assert self._bell is not None
        with contextlib.suppress(OSError):
            for _ in range(100):  # whoever floods it does not keep the loop
                self._bell.recv(1)
                self._rung.set()

    async def _listen(self) -> None:
        """Look whether another process has appended, or put another file in place, whenever the bell rings."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell:
            bell.setblocking(False)
            with contextlib.suppress(OSError):  # who has no bell looks by itself
                bell.bind(("127.0.0.1", 0))
                self._bell, self._port = bell, bell.getsockname()[1]
                loop.add_reader(bell, self._hear)
            try:
                with contextlib.suppress(HistoryUnavailable):  # then with the next beat
                    await self.check()
                await self._look()
            finally:
                loop.remove_reader(bell)
                self._bell, self._port = None, 0

    async def _look(self) -> None:
        file: _File | None = None
        connection: sqlite3.Connection | None = None
        seen = None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK):
                        await self._rung.wait()
                self._rung.clear()
                try:
                    if file is None or file is not self._file or _identity(self.path) != file.identity:
                        if connection is not None:
                            connection.close()
                        file = connection = None
                        file = await asyncio.get_running_loop().run_in_executor(self._readers, self._opened)
                        connection, seen = _connect(self.path), None
                        self._has_grown(self._end)  # in another file those who wait have to look
                    assert connection is not None
                    (version,) = connection.execute("PRAGMA data_version").fetchone()
                    if version != seen:
                        end = file.offset + _last(connection)
                        seen = version
                        if end > self._end:
                            self._has_grown(end)
                except Exception:  # whoever reads or writes says so
                    file = None
        finally:
            if connection is not None:
                connection.close()

    # -- the file

    def _opened(self) -> _File:
        """The file that is there now, opened if need be, and made if there is none."""
        with self._lock:
            if self._file is not None and _identity(self.path) == self._file.identity:
                return self._file
            previous = self._file or self._last
            try:
                with _alone(self.path):
                    file = _File(self.path, self._synchronous, previous)
            except (sqlite3.Error, OSError, ConfigurationError) as error:
                if previous is None and isinstance(error, ConfigurationError):
                    raise
                if previous is None and (reason := _lasting(self.path, error)):
                    raise ConfigurationError(f"history_url: {self.path}: {reason}") from None
                raise HistoryUnavailable(f"{self.path}: {_reason(error)}") from error
            if self._file is not None:
                self._file.close_readers()
                self._writer.submit(self._file.writer.close)  # by its own thread, which may be using it
            if previous is not None and file.offset != previous.offset:
                log.error("the log is another file now, in another epoch", path=self.path)
            self._file, self._last = file, None
            return file

    def _salvage(self, file: _File, error: sqlite3.Error) -> None:
        """Put a damaged file aside, and go on with what can be read of it."""
        with self._lock:
            if self._file is not file or _identity(self.path) != file.identity:
                return  # it was done already
            log.error(
                "the log is damaged; what can be read goes on in a new file", path=self.path, reason=_reason(error)
            )
            try:
                # Nobody else opens it meanwhile, or salvages it; and nobody writes into it, who all look whether it is
                # still the log when they have SQLite's lock.
                with _alone(self.path), contextlib.closing(_connect(self.path)) as connection:
                    try:
                        _begin(connection, time.monotonic() + BUSY)
                    except sqlite3.DatabaseError as failure:
                        if _is_busy(failure):
                            raise
                    # Where even that is damaged, nobody can write.
                    if _identity(self.path) != file.identity:
                        return
                    rescued, lost = _copy(connection, self.path + _SALVAGED, self._end - file.offset)
                    names = [f"{self.path}.damaged{n or ''}" for n in range(ASIDE)]
                    aside = next((name for name in names if not os.path.exists(name)), names[-1])
                    _put_aside(self.path, aside)
                    os.rename(self.path + _SALVAGED, self.path)
            except (sqlite3.Error, OSError) as failure:
                raise HistoryUnavailable(
                    f"{self.path} is damaged, and cannot be copied: {_reason(failure)}"
                ) from failure
            log.error("the log goes on", path=self.path, updates=rescued, lost=lost, damaged=aside)

    async def aclose(self) -> None:
        """Leave the log: whoever is still present on this node is for others to announce."""
        if self._is_closed:
            return
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._file is not None:
            with contextlib.suppress(HistoryUnavailable):
                await self._write(lambda writing: writing.leave(self.node))
        self._is_closed = True
        if self._committing is not None:
            await self._committing
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()
        if self._file is not None:
            self._file.close()  # the last connection to close puts all into one file
            self._file = None


class _Job(NamedTuple):
    do: Callable[[_Writing], Any]
    updates: int


class _Unreadable(sqlite3.DatabaseError):
    """A row that is none."""


class _Replaced(Exception):
    """The file that is open is not the one that is there."""


class _File:
    """A file as it was opened: its connection that writes, those that read, and where its positions begin.

    All its mutable state: `_idle`, the connections of readers that nobody uses now, and whether it `_is_closed`.
    """

    def __init__(self, path: str, synchronous: str, previous: _File | None) -> None:
        self.path = path
        self.epoch: str
        self.since: int
        if not os.path.exists(path):
            if os.path.exists(path + _SALVAGED):  # whoever was to put it in place was killed in between
                _put_aside(path, path + ".damaged")  # what there is left of the damaged one belongs to no other
                os.rename(path + _SALVAGED, path)
            else:  # for nobody else to read; and never opened by hand once SQLite has, whose locks would go with it
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self.identity = _identity(path)
        self.writer = _connect(path)
        try:
            self._prepare(synchronous, previous)
            self.epoch, self.since = self.writer.execute("SELECT epoch, since FROM state").fetchone()
        except BaseException:
            self.writer.close()
            raise
        if previous is None:
            self.offset = 0
        elif (previous.identity, previous.epoch) == (self.identity, self.epoch):
            self.offset = previous.offset
        else:
            self.offset = previous.offset + base.EPOCH
        self._idle: deque[sqlite3.Connection] = deque()
        self._is_closed = False

    def _prepare(self, synchronous: str, previous: _File | None) -> None:
        connection = self.writer
        connection.execute("PRAGMA busy_timeout = 5000")  # where others open it too
        if self._require_log():
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")  # a backup is not, which is one file
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {2**26}")
        connection.execute("PRAGMA cache_size = -16000")  # KiB
        with _transaction(connection, time.monotonic() + BUSY):
            if self._require_log():
                self._execute(_SCHEMA)
                connection.execute("INSERT INTO state VALUES (?, 0, 0, '')", (uuid.uuid4().hex,))
                connection.execute(f"PRAGMA application_id = {_MARK}")
            if _pragma(connection, "user_version") < _VERSION:
                self._execute(_SINCE_2)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            self._renew_after_a_crash(synchronous)
            (epoch,) = connection.execute("SELECT epoch FROM state").fetchone()
            if previous is not None and previous.identity != self.identity and previous.epoch == epoch:
                _renew(connection)  # an older copy: what came after that is not in it
        connection.execute("PRAGMA busy_timeout = 0")

    def _execute(self, statements: str) -> None:
        for statement in statements.split(";\n"):
            self.writer.execute(statement)

    def _require_log(self) -> bool:
        """Raise ConfigurationError for what is no log, and leave it as it is; whether the log is yet to be made."""
        mark, version = (_pragma(self.writer, name) for name in ("application_id", "user_version"))
        if mark == _MARK and 1 <= version <= _VERSION:
            return False
        if mark == _MARK:
            raise ConfigurationError(
                f"history_url: {self.path} is a log of another version, {version}, and not {_VERSION}"
            )
        if mark or version or self.writer.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise ConfigurationError(f"history_url: {self.path} is a database, and not the log of a hub")
        return True

    def _renew_after_a_crash(self, synchronous: str) -> None:
        """Begin a new epoch where the system may have ended before commits had reached the disk.

        The last process to leave says so, and else which boot it was that one with `synchronous=normal` ran in.
        """
        boot = _boot()
        (known,) = self.writer.execute("SELECT boot FROM state").fetchone()
        if known and known != boot:
            _renew(self.writer)
        here = boot if synchronous == "normal" or known == boot else ""
        if known != here:
            self.writer.execute("UPDATE state SET boot = ?", (here,))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the log as it is now; it is kept for the next reader unless it fails."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = _connect(self.path)
            if _identity(self.path) != self.identity:
                connection.close()
                raise sqlite3.OperationalError("it was replaced meanwhile") from None
        try:
            connection.execute("BEGIN")
            yield connection
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if self._is_closed:
            self.close_readers()

    def close(self) -> None:
        """To be called in the writer's thread, whose connection nobody else may touch."""
        self.close_readers()
        self.writer.close()

    def close_readers(self) -> None:
        self._is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Kept(NamedTuple):
    """The entries of one kind: how many, their bytes, and the position of the newest that is forgotten."""

    updates: int
    bytes: int
    forgotten: int

    def grown(self, sizes: Sequence[int]) -> _Kept:
        return _Kept(self.updates + len(sizes), self.bytes + sum(sizes), self.forgotten)


class _Writing:
    """One transaction: what may be done in it, and `entries`, those that it has appended."""

    def __init__(self, file: _File, now: float) -> None:
        self.entries: list[Entry] = []
        self._connection = file.writer
        self._offset = file.offset
        self._now = int(now * 1_000)
        self._end = _last(file.writer)
        row = file.writer.execute(
            "SELECT published, published_bytes, published_forgotten, presence, presence_bytes, presence_forgotten"
            " FROM state"
        ).fetchone()
        self._published, self._presence = _Kept(*row[:3]), _Kept(*row[3:])
        self._were = self._published, self._presence

    def append(self, rows: Iterable[_Row], *, presence: bool = False) -> list[Entry]:
        entries = []
        parameters = []
        sizes = []
        for update, moment, size, *texts in rows:
            self._end += 1
            entries.append(Entry(self._offset + self._end, update, self._now if moment is None else moment))
            parameters.append((self._end, entries[-1].time, size, *texts))
            sizes.append(size)
        self._connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", parameters)
        if presence:
            self._connection.executemany("INSERT INTO presence VALUES (?)", [row[:1] for row in parameters])
            self._presence = self._presence.grown(sizes)
        else:
            self._published = self._published.grown(sizes)
        self.entries += entries
        return entries

    def knows(self, seen: Iterable[bytes], window: int) -> Iterator[bool]:
        """Of each of them, whether it was seen in the last `window` ms; now it is."""
        for one in seen:
            found = self._connection.execute(
                "SELECT 1 FROM seen WHERE hash = ? AND time > ?", (one, self._now - window)
            ).fetchone()
            if found is None:
                self._connection.execute("INSERT OR REPLACE INTO seen (time, hash) VALUES (?, ?)", (self._now, one))
            yield found is not None

    def forget_seen(self, window: int, most: int, limit: int) -> None:
        """Forget the oldest that were seen, no more than `limit`, until `most` are left, of the last `window` ms."""
        oldest = self._connection.execute(
            "SELECT number, time, (SELECT max(number) FROM seen) FROM seen ORDER BY number LIMIT ?", (limit,)
        )
        # There may be fewer than their numbers say, as one that is seen again has a new number.
        gone = takewhile(lambda row: row[1] <= self._now - window or row[0] <= row[2] - most, oldest.fetchall())
        self._connection.executemany("DELETE FROM seen WHERE number = ?", [row[:1] for row in gone])

    def trim(self, bounds: Retention, limit: int) -> int:
        """Forget the oldest entries of each kind, up to `limit`, until they are within bounds; how many.

        With published updates go the entries about presence that are older than the oldest of them that is left.
        """
        before, oldest = self._published.updates + self._presence.updates, self._now - bounds.max_age * 1_000
        published = self._within(_PUBLISHED, self._published, bounds.max_updates, bounds.max_bytes, oldest, limit)
        if published != self._published:
            self._published = published
            first, *_ = self._connection.execute(_PUBLISHED, (published.forgotten, 1)).fetchone()
            self._forget_presence(first)
            self._connection.execute("DELETE FROM log WHERE position < ?", (first,))
        kept = self._presence
        presence = self._within(_PRESENCE, kept, bounds.presence_updates, bounds.presence_bytes, oldest, limit)
        if presence != kept:
            self._forget_presence(presence.forgotten + 1)
        return before - self._published.updates - self._presence.updates

    def _within(self, rows_of_kind: str, kept: _Kept, most: int, most_bytes: int, oldest: float, limit: int) -> _Kept:
        """What is left of a kind when its oldest are forgotten, up to `limit`, until it is within these bounds."""
        updates, size, forgotten = kept
        rows = self._connection.execute(rows_of_kind, (forgotten, limit))
        for position, moment, own in rows:
            if updates <= 1 or (updates <= most and size <= most_bytes and moment >= oldest):
                break
            updates, size, forgotten = updates - 1, size - own, position
        rows.close()
        return _Kept(updates, size, forgotten)

    def _forget_presence(self, before: int) -> None:
        """Forget the entries about presence that come before a position."""
        count, size, last = self._connection.execute(
            "SELECT count(*), ifnull(sum(size), 0), max(presence.position)"
            " FROM presence CROSS JOIN log USING (position) WHERE presence.position < ?",
            (before,),
        ).fetchone()
        if count:
            kept = self._presence
            self._presence = _Kept(kept.updates - count, kept.bytes - size, last)
            self._connection.execute(
                "DELETE FROM log WHERE position IN (SELECT position FROM presence WHERE position < ?)", (before,)
            )
            self._connection.execute("DELETE FROM presence WHERE position < ?", (before,))

    def finish(self) -> None:
        if (self._published, self._presence) != self._were:
            self._connection.execute(
                "UPDATE state SET published = ?, published_bytes = ?, published_forgotten = ?,"
                " presence = ?, presence_bytes = ?, presence_forgotten = ?",
                (*self._published, *self._presence),
            )

    def arrives(self, subscriber: Present, node: str) -> bool:
        self._connection.execute(
            "INSERT OR REPLACE INTO present VALUES (?, ?, ?)", (subscriber.id, node, subscriber.to_json())
        )
        return True

    def departs(self, id: str) -> bool:
        return self._connection.execute("DELETE FROM present WHERE id = ?", (id,)).rowcount > 0

    def touch(self, node: str, now: float, bell: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO node VALUES (?, ?, ?)", (node, now, bell))

    def bells(self, node: str) -> list[int]:
        """Those of the other nodes."""
        return [bell for (bell,) in self._connection.execute("SELECT bell FROM node WHERE bell AND name <> ?", (node,))]

    def give_time(self, now: float, timeout: float) -> None:
        """If nobody was heard for long, it was the log that nobody could write: all nodes get their time again."""
        (heard,) = self._connection.execute("SELECT max(seen) FROM node WHERE seen <= ?", (now,)).fetchone()
        if heard is None or now - heard > timeout / 2:
            self._connection.execute("UPDATE node SET seen = ?", (now,))

    def beat(self, node: str, now: float, timeout: float) -> tuple[int, list[tuple[str, str]]]:
        # A clock since boot that is ahead of ours is one of before.
        self._connection.execute("DELETE FROM node WHERE seen NOT BETWEEN ? AND ?", (now - timeout, now))
        (present,) = self._connection.execute("SELECT count(*) FROM present WHERE node = ?", (node,)).fetchone()
        orphans = self._connection.execute(
            "SELECT id, matchers FROM present WHERE node NOT IN (SELECT name FROM node) LIMIT ?", (ORPHANS,)
        )
        return present, orphans.fetchall()

    def leave(self, node: str) -> None:
        self._connection.execute("DELETE FROM node WHERE name = ?", (node,))
        # Who leaves last has all of it on the disk when it closes the file.
        self._connection.execute("UPDATE state SET boot = '' WHERE boot <> '' AND NOT EXISTS (SELECT 1 FROM node)")


class _Row(NamedTuple):
    update: Update
    time: int | None
    """None for now."""
    size: int
    hash: int
    id: str
    topics: str
    private: bool
    type: str | None
    retry: str | None
    data: str


def _row(update: Update, time: int | None = None) -> _Row:
    """What is written of an update.  Raises UnicodeEncodeError for what is no Unicode, before anything is written."""
    topics = to_json(update.topics)
    texts = (update.id, topics, update.type or "", update.data)
    size = _ROW + sum(len(text.encode("utf-8")) for text in texts)
    retry = None if update.retry is None else str(update.retry)
    return _Row(
        update, time, size, _hash(update.id), update.id, topics, update.private, update.type, retry, update.data
    )


def _entry(row: tuple[Any, ...], offset: int) -> Entry:
    position, time, id, topics, private, type, retry, data = row
    try:
        digits = None if retry is None else int(retry)
        update = Update(tuple(json.loads(topics)), data, private=bool(private), id=id, type=type, retry=digits)
        return Entry(offset + position, update, time)
    except (ValueError, TypeError):
        raise _Unreadable("a row is damaged") from None


def _present(row: tuple[str, str]) -> Present:
    try:
        return Present.from_json(*row)
    except (ValueError, TypeError):  # a damaged row; so it can go
        return Present(row[0], ())


def _hash(id: str) -> int:
    return int.from_bytes(blake2b(id.encode("utf-8"), digest_size=8).digest(), "big", signed=True)


def _forgotten(connection: sqlite3.Connection) -> tuple[int, int]:
    """The positions of the newest published entry and of the newest one about presence that are forgotten."""
    published, presence = connection.execute("SELECT published_forgotten, presence_forgotten FROM state").fetchone()
    return published, presence


def _first(connection: sqlite3.Connection) -> int:
    """The position of the oldest entry; 1 in an empty log."""
    return connection.execute("SELECT min(position) FROM log").fetchone()[0] or 1


def _next(connection: sqlite3.Connection, place: int) -> int | None:
    """The position of the next entry after a place; None at the end."""
    found = connection.execute("SELECT min(position) FROM log WHERE position > ?", (place,)).fetchone()
    position: int | None = found[0]
    return position


def _last(connection: sqlite3.Connection) -> int:
    """The position of the newest entry; 0 in an empty log."""
    return connection.execute("SELECT max(position) FROM log").fetchone()[0] or 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _connect(path: str) -> sqlite3.Connection:
    # Read-write, and never made: what is not there any more is not to come back empty.
    uri = Path(path).as_uri() + "?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1.0)


def _ring(bells: Sequence[int]) -> None:
    """Tell other processes that there are new entries; who does not hear it looks by itself."""
    if bells:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell:
            for port in bells:
                bell.sendto(b"", ("127.0.0.1", port))


def _identity(path: str) -> tuple[int, int] | None:
    """Which file this is; None for none."""
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HistoryUnavailable(str(error)) from error
    return stat.st_dev, stat.st_ino


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keep other processes from opening the log, and from putting it aside.  Raises HistoryUnavailable if they do."""
    if fcntl is None:
        yield
        return
    deadline = time.monotonic() + BUSY
    directory = os.open(os.path.dirname(path), os.O_RDONLY)  # which is there already, and stays
    try:
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HistoryUnavailable(
                        f"{path}: another process has been opening it for {BUSY:g} seconds"
                    ) from None
            time.sleep(0.01)
        yield
    finally:
        os.close(directory)


def _put_aside(path: str, aside: str) -> None:
    """Give the files of a log another name, in place of what had that."""
    for old, new in zip(_files(path), _files(aside), strict=True):
        if os.path.exists(old):
            os.replace(old, new)
        elif new != aside:
            Path(new).unlink(missing_ok=True)


def _files(path: str) -> list[str]:
    return [path, path + "-wal", path + "-shm"]


def _boot() -> str:
    """Names the time since the system was started; "" where that has no name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _begin(connection: sqlite3.Connection, deadline: float) -> None:
    """Begin to write as soon as nobody else does.  SQLite's own waiting is in steps of up to 0.1 s."""
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, deadline: float) -> Iterator[None]:
    _begin(connection, deadline)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _renew(connection: sqlite3.Connection) -> None:
    """Begin a new epoch: after what there is, something may be missing."""
    connection.execute("UPDATE state SET epoch = ?, since = ?", (uuid.uuid4().hex, _last(connection) + 1))


def _give_back(connection: sqlite3.Connection) -> None:
    """Give some free pages back to the file system, where there are many."""
    with contextlib.suppress(sqlite3.Error):  # as it is in the log already: what is wrong will show the next time
        if _pragma(connection, "freelist_count") > max(_VACUUM, _pragma(connection, "page_count") // 4):
            connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM})")  # which goes on until it is done


def _is_damage(error: sqlite3.Error) -> bool:
    return (
        _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or isinstance(error, _Unreadable)
        or _NO_TEXT in str(error)
    )


def _reason(error: Exception) -> str:
    """What is wrong, without what was to be read, which may be private."""
    return "a text is not UTF-8" if _NO_TEXT in str(error) else str(error)


def _lasting(path: str, error: Exception) -> str | None:
    """Why a log that cannot be opened never will be, whatever one waits for; None if it may be."""
    if os.path.isdir(path):
        return "this is a directory"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "there is no such directory"
    if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_NOTADB:
        return "this file is not a database"
    if isinstance(error, PermissionError) or (os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)):
        return "there is no permission to read and write it"
    return None


def _is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _copy(damaged: sqlite3.Connection, target: str, end: int) -> tuple[int, int]:
    """Write what can be read into a new log at `target`: how many entries, and how many are lost at least.

    `end` is the greatest position that is known; it goes on from there until nothing has come for a while.
    """
    for path in _files(target):
        Path(path).unlink(missing_ok=True)
    new = _File(target, "full", None)
    with contextlib.closing(new):
        first, last, has_end = 1, end, False
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):  # where the table's ends are damaged, the index
            first, last = damaged.execute("SELECT min(position), max(position) FROM log INDEXED BY log_hash").fetchone()
            last = max(end, last)
        with contextlib.suppress(sqlite3.DatabaseError):
            first = _first(damaged)
        with contextlib.suppress(sqlite3.DatabaseError):
            last, has_end = max(end, _last(damaged)), True
        expected = last - first + 1
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):
            expected = sum(damaged.execute("SELECT published, presence FROM state").fetchone())
        about_presence: set[int] = set()
        with contextlib.suppress(sqlite3.DatabaseError):  # else it all counts as published
            about_presence.update(position for (position,) in damaged.execute("SELECT position FROM presence"))
        kept = since = 0
        reached, start = first - 1, first
        while start <= max(last, reached + (0 if has_end else _NOTHING)):
            with _transaction(new.writer, math.inf):
                rows = _readable(damaged, start, start + base.PAGE_ENTRIES)
                for row in rows:
                    try:
                        _entry((row[0], row[1], *row[4:]), 0)
                    except _Unreadable:
                        continue
                    if row[0] != reached + 1:  # nobody knows whether all that is missing was about presence
                        since = kept + 1
                    reached = row[0]
                    kept += 1
                    new.writer.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (kept, *row[1:]))
                    if row[0] in about_presence:
                        new.writer.execute("INSERT INTO presence VALUES (?)", (kept,))
            start += base.PAGE_ENTRIES
            if not rows:  # a gap may be as long as all that was ever announced
                with contextlib.suppress(sqlite3.DatabaseError):
                    start = max(start, _next(damaged, start - 1) or 0)
        last = max(last, reached)
        if reached < last or not has_end:
            since = kept + 1
        with _transaction(new.writer, math.inf):
            new.writer.execute("UPDATE state SET since = ?", (since,))
            for kind, condition in (("published", "NOT IN"), ("presence", "IN")):
                new.writer.execute(
                    f"UPDATE state SET ({kind}, {kind}_bytes) = (SELECT count(*), ifnull(sum(size), 0) FROM log"  # noqa: S608
                    f" WHERE position {condition} (SELECT position FROM presence))"
                )
            for table in ("node", "present"):
                with contextlib.suppress(sqlite3.DatabaseError):  # its nodes say again who is present
                    rows = damaged.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
                    marks = ", ".join("?" * len(rows[0])) if rows else ""
                    new.writer.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
    return kept, max(0, expected - kept)


def _readable(damaged: sqlite3.Connection, start: int, stop: int) -> list[tuple[Any, ...]]:
    """The rows from `start` to before `stop` that can be read."""
    try:
        return damaged.execute(
            "SELECT * FROM log WHERE position >= ? AND position < ? ORDER BY position", (start, stop)
        ).fetchall()
    except sqlite3.DatabaseError:
        if stop - start == 1:
            return []
        middle = (start + stop) // 2
        return _readable(damaged, start, middle) + _readable(damaged, middle, stop)

"""The file of a history: how it is opened, locked and upgraded, and what damage is.

    a.db       the tables below; SQLite's application_id marks the file as a history,
               and user_version is the version of the tables
    a.db-wal   the latest writes
    a.db-shm   the index of a.db-wal, in memory that all processes share

A process holds a lock on the directory (`alone`) while it opens the file, so that two
processes never make the file, or put it aside, at the same time.  A process holds
SQLite's own lock while it writes (`transaction`).
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
import uuid
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history import base
from hub.history.opaque import Seal, new_key

try:
    import fcntl
except ImportError:  # Windows: there, only one process at a time should open a history
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_SECONDS: Final = 5.0
"""How long this process waits for another process that writes or opens the file."""
SALVAGED: Final = ".salvaged"
"""The suffix of the file that replaces a damaged one."""
_NO_TEXT: Final = "Could not decode to UTF-8"
"""The message of sqlite3 for text that is not UTF-8; the text follows."""
_MARK: Final = 0x6D657263
"""SQLite's application_id of a history: "merc" in ASCII."""
_VERSION: Final = 2
"""SQLite's user_version of a history: the version of its tables."""
_VACUUM_PAGES: Final = 256
"""Free pages that a commit returns to the file system, if more than this number and
more than a quarter of all pages are free."""

_SCHEMA: Final = """
CREATE TABLE log (
    position INTEGER PRIMARY KEY,  -- 1, 2, …; only forgotten presence updates leave gaps
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
    since INTEGER NOT NULL,        -- entries before this position may be missing
    bytes INTEGER NOT NULL,        -- sum(size)
    boot TEXT NOT NULL             -- of the system, if a power failure may lose the newest entries; or ''
);
CREATE TABLE node (
    name TEXT PRIMARY KEY,
    seen REAL NOT NULL,            -- seconds, of the clock since boot
    bell INTEGER NOT NULL          -- UDP port on 127.0.0.1 for notices of new entries; 0 for none
) WITHOUT ROWID;
CREATE TABLE present (id TEXT PRIMARY KEY, node TEXT NOT NULL, matchers TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX present_node ON present (node);
"""
_COMMANDS: Final = """
CREATE TABLE IF NOT EXISTS command (
    number INTEGER PRIMARY KEY,    -- ms since 1970, or more
    text TEXT NOT NULL             -- as Command.to_json writes it; '' for the first row, which is no command
);
CREATE TABLE IF NOT EXISTS revoked (target TEXT PRIMARY KEY, until REAL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answer (
    number INTEGER NOT NULL,       -- of its command
    node TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (number, node)
) WITHOUT ROWID;
"""
"""The tables of the control channel, which a process of an earlier time does not see.

The list of commands is never empty, so that a process always knows one of its numbers.
"""
_CURSORS: Final = "CREATE TABLE IF NOT EXISTS cursor_key (key BLOB NOT NULL)"
"""The table of the key of opaque cursors, which a process of an earlier time does not
see."""
_SINCE_2: Final = """
CREATE TABLE seen (
    number INTEGER PRIMARY KEY,    -- ascending: the oldest first
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
"""The changes from version 1 to version 2; all entries of version 1 are published.

`seen` has the hashes of remembered ids.  `presence` has the positions of those entries
of `log` that are presence updates.  For each kind of entry, `state` has their number,
their bytes, and the position of the newest forgotten one.  If a process of version 1
still has the file open, it cannot write any more, because it does not find its column
`bytes`.
"""


class Unreadable(sqlite3.DatabaseError):
    """An error for a row of `log` that is not a valid entry: the file is damaged."""


class Replaced(Exception):
    """An error if the open file is not the file at the path any more."""


class File:
    """An open file: its writing connection, its readers, and its offset.

    Opens the file at `path`, or makes it.  `synchronous` is that of SQLite.  `previous`
    is the file that this process had open before, or None: it decides whether the
    positions of this process go on or leap.

    Raises ConfigurationError if the file is not a history or is of a newer version, and
    sqlite3.Error or OSError if it cannot be opened.  Call it while holding `alone`.
    """

    def __init__(self, path: str, synchronous: str, previous: File | None) -> None:
        self.path = path
        self.epoch: str
        """The name of this epoch."""
        self.since: int
        """The position in the file before which entries may be missing."""
        self.seal: Seal
        """Makes and opens opaque cursors."""
        self.offset: int
        """The number that this process adds to a position in the file."""
        self._idle: deque[sqlite3.Connection] = deque()  # connections for the next readers
        self._is_closed = False  # if True, readers close their connections after use
        # 1. If no file exists: finish an interrupted repair, or make an empty file.
        if not os.path.exists(path):
            if os.path.exists(path + SALVAGED):  # a repair was killed before its last step
                put_aside(path, path + ".damaged")  # the -wal and -shm of the damaged file
                os.rename(path + SALVAGED, path)
            else:
                # Only this user can read it.  Never open it like this later: closing it
                # would drop the locks that SQLite holds on the file in this process.
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # 2. Open it, and upgrade it if necessary.
        self.identity = identity_of(path)
        self.writer = connect(path)
        try:
            self._prepare(synchronous, previous)
            self.epoch, self.since = self.writer.execute("SELECT epoch, since FROM state").fetchone()
            self.seal = Seal(self.writer.execute("SELECT key FROM cursor_key").fetchone()[0])
        except BaseException:
            self.writer.close()
            raise
        # 3. If it is the same file in the same epoch, positions go on.  If not, they
        #    leap by EPOCH, and all earlier positions expire.
        if previous is None:
            self.offset = 0
        elif (previous.identity, previous.epoch) == (self.identity, self.epoch):
            self.offset = previous.offset
        else:
            self.offset = previous.offset + base.EPOCH

    def _prepare(self, synchronous: str, previous: File | None) -> None:
        """Configure the connection, upgrade the tables, and begin an epoch if due."""
        connection = self.writer
        # 1. The settings of SQLite.  auto_vacuum is set only in an empty file.
        connection.execute("PRAGMA busy_timeout = 5000")  # others may have it open
        if self._require_log():
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")  # a backup has another mode
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {2**26}")
        connection.execute("PRAGMA cache_size = -16000")  # KiB
        # 2. The tables.  Look again for a file without tables, now in the transaction.
        with transaction(connection, busy_until()):
            if self._require_log():
                self._execute(_SCHEMA)
                connection.execute("INSERT INTO state VALUES (?, 0, 0, '')", (uuid.uuid4().hex,))
                connection.execute(f"PRAGMA application_id = {_MARK}")
            if _pragma(connection, "user_version") < _VERSION:
                self._execute(_SINCE_2)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            self._execute(_COMMANDS)
            self._execute(_CURSORS)
            connection.execute(
                "INSERT INTO cursor_key SELECT ? WHERE NOT EXISTS (SELECT 1 FROM cursor_key)", (new_key(),)
            )
            connection.execute(
                "INSERT INTO command SELECT ?, '' WHERE NOT EXISTS (SELECT 1 FROM command)", (int(1_000 * time.time()),)
            )
            # 3. The epoch, if entries may have been lost.
            self._renew_after_a_crash(synchronous)
            (epoch,) = connection.execute("SELECT epoch FROM state").fetchone()
            if previous is not None and previous.identity != self.identity and previous.epoch == epoch:
                renew(connection)  # it is an older copy, which lacks later entries
        connection.execute("PRAGMA busy_timeout = 0")  # from now on, `begin` waits

    def _execute(self, statements: str) -> None:
        """Execute statements that are separated by a semicolon and a newline."""
        for statement in statements.split(";\n"):
            self.writer.execute(statement)

    def _require_log(self) -> bool:
        """Return whether the file is empty, so that the tables must be made.

        Raises ConfigurationError, and changes nothing, if it is another database or a
        history of another version.
        """
        mark, version = (_pragma(self.writer, name) for name in ("application_id", "user_version"))
        if mark == _MARK and 1 <= version <= _VERSION:
            return False
        if mark == _MARK:
            raise ConfigurationError(
                f"history_url: {self.path} is a history of version {version}; this hub needs {_VERSION}"
            )
        if mark or version or self.writer.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise ConfigurationError(f"history_url: {self.path} is a database, but not the history of a hub")
        return True

    def _renew_after_a_crash(self, synchronous: str) -> None:
        """Begin a new epoch if a crash of the system may have lost commits.

        With `synchronous=normal`, commits may not be on disk yet.  Therefore
        `state.boot` names the boot of the system in which such a process has opened the
        file, and the last process to leave clears it.  If it names another boot, the
        system ended before all processes had left.
        """
        boot = _boot()
        (known,) = self.writer.execute("SELECT boot FROM state").fetchone()
        if known and known != boot:
            renew(self.writer)
        here = boot if synchronous == "normal" or known == boot else ""
        if known != here:
            self.writer.execute("UPDATE state SET boot = ?", (here,))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which sees the history as it is now.

        The connection is kept for the next reader, unless the block raises.  Several
        threads may call this at once, and each gets its own connection.  Raises
        sqlite3.OperationalError if it opens a connection, and the file was replaced.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = connect(self.path)
            if identity_of(self.path) != self.identity:
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
        """Close all connections.

        Call it in the writer's thread, which owns the writing connection.
        """
        self.close_readers()
        self.writer.close()

    def close_readers(self) -> None:
        """Close the idle connections of readers now, and the others after their use."""
        self._is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


def forgotten_positions(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the newest forgotten position of published, and of presence updates."""
    published, presence = connection.execute("SELECT published_forgotten, presence_forgotten FROM state").fetchone()
    return published, presence


def first_position(connection: sqlite3.Connection) -> int:
    """Return the position of the oldest entry; 1 if the history is empty."""
    return connection.execute("SELECT min(position) FROM log").fetchone()[0] or 1


def next_position(connection: sqlite3.Connection, after: int) -> int | None:
    """Return the position of the next entry after a position, or None at the end."""
    found = connection.execute("SELECT min(position) FROM log WHERE position > ?", (after,)).fetchone()
    position: int | None = found[0]
    return position


def last_position(connection: sqlite3.Connection) -> int:
    """Return the position of the newest entry; 0 if the history is empty."""
    return connection.execute("SELECT max(position) FROM log").fetchone()[0] or 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def connect(path: str) -> sqlite3.Connection:
    """Open a connection to an existing file.  Raises sqlite3.Error if none exists."""
    # mode=rw does not create a file: a deleted history must not come back empty.
    uri = Path(path).as_uri() + "?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1.0)


def identity_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if it does not exist.

    Raises HistoryUnavailable if the file cannot be examined.
    """
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HistoryUnavailable(str(error)) from error
    return stat.st_dev, stat.st_ino


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold the lock for opening a history, and for putting it aside.

    Raises HistoryUnavailable if another process holds it for BUSY_SECONDS.  Without
    `fcntl` there is no lock.
    """
    if fcntl is None:
        yield
        return
    deadline = busy_until()
    # The lock is on the directory, because the file itself may be replaced.
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HistoryUnavailable(
                        f"{path}: another process has been opening it for {BUSY_SECONDS:g} seconds"
                    ) from None
            time.sleep(0.01)
        yield
    finally:
        os.close(directory)


def put_aside(path: str, aside: str) -> None:
    """Rename the files of a history.

    Files with the new names are replaced.  Their -wal and -shm are replaced
    or removed, because they belong to another database.
    """
    for old, new in zip(files_of(path), files_of(aside), strict=True):
        if os.path.exists(old):
            os.replace(old, new)
        elif new != aside:
            Path(new).unlink(missing_ok=True)


def files_of(path: str) -> list[str]:
    """Return the names of the three files in which SQLite keeps a history."""
    return [path, path + "-wal", path + "-shm"]


def _boot() -> str:
    """Return a name of the present boot of the system, or "" if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def busy_until() -> float:
    """Return the time, on the monotonic clock, until which to wait for a lock."""
    return time.monotonic() + BUSY_SECONDS


def begin(connection: sqlite3.Connection, deadline: float) -> None:
    """Begin a write transaction as soon as no other connection writes.

    Raises sqlite3.OperationalError if another connection still writes at `deadline`.
    SQLite's own waiting is too coarse for this, because its steps are up to 0.1 s.
    """
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, deadline: float) -> Iterator[None]:
    """Commit the changes of the block, or undo them if it raises.

    Begins as `begin` does, and waits for other writers until `deadline`.
    """
    begin(connection, deadline)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def renew(connection: sqlite3.Connection) -> None:
    """Begin a new epoch, because entries after the present ones may have been lost."""
    connection.execute("UPDATE state SET epoch = ?, since = ?", (uuid.uuid4().hex, last_position(connection) + 1))


def give_back(connection: sqlite3.Connection) -> bool:
    """Return some free pages of the file to the file system, if it has many.

    Returns whether it returned some: then the file may still have many.  Ignores
    errors: the entries are already stored, and damage will show later.
    """
    with contextlib.suppress(sqlite3.Error):
        if _pragma(connection, "freelist_count") > max(_VACUUM_PAGES, _pragma(connection, "page_count") // 4):
            # executescript runs the statement to its end, which execute would not.
            connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            return True
    return False


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means that the file is damaged."""
    return (
        _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or isinstance(error, Unreadable)
        or _NO_TEXT in str(error)
    )


def reason_of(error: Exception) -> str:
    """Return the reason of an error, without text of the file, which may be private."""
    return "a text is not UTF-8" if _NO_TEXT in str(error) else str(error)


def lasting_reason(path: str, error: Exception) -> str | None:
    """Return why a history can never be opened, or None if waiting may help."""
    if os.path.isdir(path):
        return "this is a directory"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        # Some directories, such as /proc, exist and have no room for new files.
        there = os.path.isdir(os.path.dirname(path) or ".")
        return "no file can be created there" if there else "there is no such directory"
    if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_NOTADB:
        return "this file is not a database"
    if isinstance(error, PermissionError) or (os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)):
        return "there is no permission to read and write it"
    return None


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether an error means that another connection writes."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code of an error of SQLite; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

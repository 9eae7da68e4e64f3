"""Segments: the files of an event log, their locks and their repair.

Used in a thread.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from hub.event_log import names
from hub.history import codec
from hub.history.node import new_node
from hub.protocol.topics import subscriptions_path

try:
    import fcntl
except ImportError:  # Windows: there, only one process at a time should write a directory
    fcntl = None  # type: ignore[assignment]

from hub.history import base
from hub.protocol.data import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.history.base import Entry
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")
LOOK_SECONDS: Final = 1.0
"""Seconds between two checks for segments to close, dead nodes, and the lead."""
PRUNING: Final = 3_600.0
"""Seconds between two checks for segments that are too old."""

_NAME: Final = "%Y%m%dT%H%M%S.%fZ"
_CLOSED: Final = ".jsonl"
_PART: Final = ".jsonl.part"


class LogBeat(NamedTuple):
    """How far the log of a node is exact.

    It has the connections before `time`, and deliveries and updates up to `until`.  A
    node keeps it in its file, for the next node in case it is killed.
    """

    hub: str | None
    epoch: str | None
    """None if the history has not named its epoch yet.

    `hub` and `epoch` are None if an earlier version has written it.
    """
    until: int
    time: int


def own_position(position: int) -> int:
    """Return a position as the history counts it, without the leaps that a node
    adds.
    """
    return position % base.EPOCH


# -- files


class Directory:
    """The files of one node; used in one thread, except `leads`, `node` and `path`."""

    def __init__(self, settings: Settings, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self.path = os.path.abspath(settings.event_log)
        self.node = new_node()
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._sessions = _Segments(Path(self.path, "sessions"), self.node, settings, clock, wall_clock)
        self._updates = _Segments(Path(self.path, "updates"), self.node, settings, clock, wall_clock)
        self._said: LogBeat | None = None  # the last beat
        self._self: int | None = None  # the open and locked file of this node
        self._lock: int | None = None  # the open and locked file of the leading node
        self._looked = self._pruned = float("-inf")  # the times of the last checks

    @property
    def leads(self) -> bool:
        """Whether this node writes the updates."""
        return self._lock is not None

    @property
    def _nodes(self) -> Path:
        return Path(self.path, "nodes")

    def key(self) -> bytes:
        """Return the key of the names in the log; make one if there is none.

        Raises OSError.
        """
        self._make()
        return names.read_or_make_key(self.path)

    def _make(self) -> None:
        """Make the directory and those in it, for this user only."""
        for path in (self._nodes, self._sessions.path, self._updates.path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def step(self, records: Sequence[dict[str, Any]], beat: LogBeat) -> None:
        """Write records, after all work that is due.

        `beat` is for a node that has not had one.  Raises OSError, and then has written
        none.
        """
        self._said = self._said or beat
        self._open(self._said)
        if self._clock() >= self._looked + LOOK_SECONDS:
            self._looked = self._clock()
            self._look(beat.epoch)
        for segments in (self._sessions, self._updates):
            segments.close_if_due()
        self._sessions.write(records)

    def beat(self, beat: LogBeat) -> None:
        """Record how far the log is exact."""
        assert self._self is not None
        # Shorter than an earlier line: the rest of that stays, but is not read.
        os.pwrite(self._self, _line(beat._asdict()), 0)
        self._said = beat

    def mark(self, gaps: Sequence[dict[str, Any]]) -> None:
        """Write marks, before the updates that come after them.

        Raises OSError, and then has written none.
        """
        self._sessions.write(gaps)

    def write_updates(self, entries: Sequence[Entry], epoch: str | None) -> None:
        """Write a page of updates.  Raises OSError, and then has written none."""
        self._updates.close_if_due()
        self._updates.write([self._update(entry, epoch) for entry in entries])

    def _update(self, entry: Entry, epoch: str | None) -> dict[str, Any]:
        """Return the line of an update."""
        record = codec.record(entry)
        data = record.pop("data")
        size = len(data.encode("utf-8"))
        is_presence = entry.update.topics[0].startswith(subscriptions_path(self._settings.path) + "/")
        update = {"hub": self._settings.url, "epoch": epoch} | record
        update |= {"position": own_position(entry.position), "data_bytes": size, "presence": is_presence}
        # Presence updates contain claims of their subscribers' tokens, so never their
        # data.
        if self._settings.event_log_data and not is_presence:
            update["data"] = data
        return update

    def last_update(self, epoch: str) -> tuple[int, int] | None:
        """Return position and time of an epoch's last update in closed segments, or
        None.
        """
        self._updates.close()
        for segment in sorted(self._updates.path.glob(f"*{_CLOSED}"), reverse=True):
            try:
                line = json.loads(_last_line(segment))
                if line["epoch"] == epoch:
                    return int(line["position"]), int(line["time"])
            except (ValueError, LookupError, TypeError):
                raise OSError(f"{segment} does not end with an update") from None
        return None

    def close(self, beat: LogBeat, is_clean: bool) -> None:
        """Close the open segments, and record the end of this node."""
        try:
            if self._sessions.is_used or not is_clean:
                end = _clean_end(self.node, beat) if is_clean else self._unclean_end(self.node, beat, updates=False)
                self._sessions.write([end])
            for segments in (self._sessions, self._updates):
                segments.close()
            (self._nodes / self.node).unlink(missing_ok=True)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Leave everything as a killed process does."""
        for segments in (self._sessions, self._updates):
            segments.let_go()
        for descriptor in (self._lock, self._self):
            if descriptor is not None:
                os.close(descriptor)
        self._self = self._lock = None

    def _open(self, beat: LogBeat) -> None:
        """Register this node with a file that is locked while this process lives."""
        if self._self is not None:
            return
        self._make()
        # It gets its name after the lock: else another node would take this one for
        # dead.
        unnamed = self._nodes / f".{self.node}"
        descriptor = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            _try_lock(descriptor)
            os.pwrite(descriptor, _line(beat._asdict()), 0)
            unnamed.rename(self._nodes / self.node)
        except BaseException:
            os.close(descriptor)
            raise
        self._self = descriptor

    def _look(self, epoch: str | None) -> None:
        """Lead if no other node does.

        The leading node also buries the dead, and prunes.
        """
        if not (self._nodes / self.node).exists():
            self.let_go()
            raise FileNotFoundError(f"{self.path} was removed")
        if self._lock is None:
            descriptor = os.open(Path(self.path, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
            if not _try_lock(descriptor):
                os.close(descriptor)
                return
            try:
                for part in self._updates.path.glob(f"*{_PART}"):
                    _salvage(part)
            except BaseException:
                os.close(descriptor)
                raise
            self._lock = descriptor
        # Before the epoch is known, it is unknown whether dead nodes' updates survived.
        if epoch is not None:
            for node in self._nodes.glob("[!.]*"):
                if node.name != self.node:
                    self._bury(node, epoch)
        if self._settings.event_log_keep and self._clock() >= self._pruned + PRUNING:
            self._pruned = self._clock()
            self._prune()

    def _bury(self, node: Path, epoch: str) -> None:
        """If a node is dead, close its segments, and mark what may be missing."""
        try:
            descriptor = os.open(node, os.O_RDWR)
        except FileNotFoundError:  # the node has ended normally
            return
        try:
            if not _try_lock(descriptor) or not os.fstat(descriptor).st_nlink:
                return
            beat = _read_beat(descriptor)
            # If no update of the epoch is written, the dead node may have led, and the
            # first updates may be forgotten.
            updates = beat.epoch != epoch or (not beat.until and self.last_update(epoch) is None)
            end = _line(self._unclean_end(node.name, beat, updates=updates))
            left = sorted(self._sessions.path.glob(f"*-{node.name}{_PART}"))
            for part in left or [self._sessions.new_part(node.name)]:
                _salvage(part, end)
            node.unlink()
            log.warning("a node was killed; its part of the event log was closed", node=node.name)
        finally:
            os.close(descriptor)

    def _unclean_end(self, node: str, beat: LogBeat, *, updates: bool) -> dict[str, Any]:
        """Return the line that ends a killed node: later lines may be missing."""
        line = {"event": "end", "node": node, "time": beat.time, "until": beat.until, "clean": False}
        line |= {"hub": beat.hub, "epoch": beat.epoch}
        return line | {"updates": updates, "found": max(beat.time, int(self._wall_clock() * 1_000_000))}

    def _prune(self) -> None:
        """Remove closed segments that are too old, except the last of each kind."""
        oldest = datetime.fromtimestamp(self._wall_clock(), UTC) - timedelta(days=self._settings.event_log_keep)
        for segments in (self._sessions, self._updates):
            closed = sorted(segments.path.glob(f"*{_CLOSED}"))
            for segment in closed[:-1]:  # the last one says where the updates continue
                if segment.name < oldest.strftime(_NAME):
                    segment.unlink()


class _Segments:
    """The segments of one kind, of which one may be open."""

    def __init__(
        self, path: Path, node: str, settings: Settings, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self.path = path
        self.is_used = False  # whether any segment was opened
        self._node = node
        self._seconds = settings.event_log_segment_seconds
        self._bytes = settings.event_log_segment_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._file: int | None = None  # the open segment
        self._part = path  # its path
        self._size = 0  # bytes that were written to it
        self._since = 0.0  # when it was opened

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        """Write a line for each record; they survive the end of this process.

        Raises OSError, and then has written none.
        """
        if not records:
            return
        lines = b"".join(map(_line, records))
        if self._file is None:
            self._part, self._size, self._since = self.new_part(self._node), 0, self._clock()
            self._file = os.open(self._part, os.O_WRONLY | os.O_APPEND)
            self.is_used = True
        os.ftruncate(self._file, self._size)  # drops the remains of a failed write
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._size += len(lines)

    def close_if_due(self) -> None:
        """Close the open segment if it is large or old enough."""
        if self._file is not None and (self._size >= self._bytes or self._clock() >= self._since + self._seconds):
            self.close()

    def close(self) -> None:
        """Sync the open segment, and give it its final name; remove it if it is
        empty.
        """
        if self._file is not None:
            os.ftruncate(self._file, self._size)
            _finish(self._file, self._part)
            self.let_go()

    def let_go(self) -> None:
        """Leave the open segment as it is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def new_part(self, node: str) -> Path:
        """Return a new, empty segment; its name sorts after all others."""
        moment = datetime.fromtimestamp(self._wall_clock(), UTC)
        names = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
        last = max(names, default="").partition("-")[0]
        if last >= moment.strftime(_NAME):  # the clock was set back
            moment = datetime.strptime(last, _NAME).replace(tzinfo=UTC) + timedelta(microseconds=1)
        part = self.path / f"{moment.strftime(_NAME)}-{node}{_PART}"
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return part


def _salvage(part: Path, end: bytes = b"") -> None:
    """Close a segment that a dead process has left: its complete lines, and
    then `end`.
    """
    descriptor = os.open(part, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        if size:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                zeros = content.find(b"\0")  # a power failure may leave zeros instead of text
                size = content.rfind(b"\n", 0, size if zeros < 0 else zeros) + 1
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, end, size)
        _finish(descriptor, part)
    finally:
        os.close(descriptor)


def _finish(descriptor: int, part: Path) -> None:
    """Sync a segment and give it its final name; remove it if it is empty."""
    if not os.fstat(descriptor).st_size:
        part.unlink()
        return
    directory = os.open(part.parent, os.O_RDONLY)  # first: after the rename nothing may fail
    try:
        os.fsync(descriptor)
        part.rename(part.with_name(part.name.removesuffix(_PART) + _CLOSED))
        # After a power failure it may have its old name; then the next node closes it.
        with contextlib.suppress(OSError):
            os.fsync(directory)
    finally:
        os.close(directory)


def _last_line(segment: Path) -> bytes:
    """Return the last line of a closed segment, which has at least one."""
    with segment.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and tail.count(b"\n") < 2:
            start = max(0, end - 2**16)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
    return tail.splitlines()[-1]


def dead_nodes(directory: str) -> list[str]:
    """Return the processes that have died, and whose end no other has marked yet.

    Empty on a system without locks.
    """
    found = []
    for path in sorted(Path(directory, "nodes").glob("[!.]*")) if fcntl is not None else []:
        with contextlib.suppress(OSError), path.open("rb") as file:  # a process may end just now
            if _try_lock(file.fileno()):
                found.append(path.name)
    return found


def _try_lock(descriptor: int) -> bool:
    """Lock a file while it is open in this process; return whether that worked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _line(record: dict[str, Any]) -> bytes:
    return to_json(record).encode("utf-8") + b"\n"


def _clean_end(node: str, beat: LogBeat) -> dict[str, Any]:
    return {"event": "end", "node": node, "time": beat.time, "until": beat.until, "clean": True}


def _read_beat(descriptor: int) -> LogBeat:
    """Return the beat in a node's file; if it is unreadable, nothing is exact."""
    line = os.pread(descriptor, 2**16, 0).partition(b"\n")[0]
    try:
        if line.startswith(b"{"):
            beat = LogBeat(**json.loads(line))
            if type(beat.until) is type(beat.time) is int:
                return beat
            raise ValueError
        until, moment = map(int, line.split())  # the format of 0.1.0
    except (ValueError, TypeError):
        until, moment = 0, int(os.fstat(descriptor).st_ctime * 1_000_000)
    return LogBeat(None, None, until, moment)

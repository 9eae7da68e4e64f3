"""Segments: the files of an event log, their locks, and what is mended in them.  Used from a thread."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from hub.history import codec
from hub.history.node import new_node
from hub.protocol.topics import subscriptions_path

try:
    import fcntl
except ImportError:  # not on Windows: there, one process at a time is to write a directory
    fcntl = None  # type: ignore[assignment]

from hub.history import base
from hub.protocol.subscriptions import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.history.base import Entry
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at what is to be closed, who has died, and whether it was who writes the updates."""
PRUNING: Final = 3_600.0
"""Seconds between two looks at what is too old to be kept."""

_NAME: Final = "%Y%m%dT%H%M%S.%fZ"
_CLOSED: Final = ".jsonl"
_PART: Final = ".jsonl.part"


class Beat(NamedTuple):
    """How far the log of a node is exact: it has the connections before `time`, and deliveries and updates to `until`.

    A node keeps it in its file, where the next one finds it if the node is killed.
    """

    hub: str | None
    epoch: str | None
    """None if the log of updates has not said its epoch yet; both, if an earlier version has written it."""
    until: int
    time: int


def own_position(position: int) -> int:
    """The log's own number of a position: a node adds leaps to it."""
    return position % base.EPOCH


# -- files


class Directory:
    """The files; used in one thread, but for `leads`, `node` and `path`.

    All its mutable state: the last beat, and the file descriptors of this node's own file, which has it, and of the
    lock, which are locked while they are open; the segments that are written; and when it has looked around, and for
    what is too old.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self.path = os.path.abspath(settings.event_log)
        self.node = new_node()
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._sessions = _Segments(Path(self.path, "sessions"), self.node, settings, clock, wall_clock)
        self._updates = _Segments(Path(self.path, "updates"), self.node, settings, clock, wall_clock)
        self._said: Beat | None = None
        self._self: int | None = None
        self._lock: int | None = None
        self._looked = self._pruned = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether it is this node that writes the updates."""
        return self._lock is not None

    @property
    def _nodes(self) -> Path:
        return Path(self.path, "nodes")

    def step(self, records: Sequence[dict[str, Any]], beat: Beat) -> None:
        """Write records, after all that is due.  Raises OSError, and has then written none.

        The beat is for a node that has said none before.
        """
        self._said = self._said or beat
        self._open(self._said)
        if self._clock() >= self._looked + LOOK_SECONDS:
            self._looked = self._clock()
            self._look(beat.epoch)
        for segments in (self._sessions, self._updates):
            segments.close_if_due()
        self._sessions.write(records)

    def beat(self, beat: Beat) -> None:
        """Say how far the log is exact."""
        assert self._self is not None
        os.pwrite(self._self, _line(beat._asdict()), 0)  # of a longer line before it the rest stays, and is not read
        self._said = beat

    def mark(self, gaps: Sequence[dict[str, Any]]) -> None:
        """Write marks of what is missing, before the page of updates after it.  Raises OSError with none written."""
        self._sessions.write(gaps)

    def write_updates(self, entries: Sequence[Entry], epoch: str | None) -> None:
        """Write a page of updates.  Raises OSError, and has then written none."""
        self._updates.close_if_due()
        self._updates.write([self._update(entry, epoch) for entry in entries])

    def _update(self, entry: Entry, epoch: str | None) -> dict[str, Any]:
        record = codec.record(entry)
        data = record.pop("data")
        size = len(data.encode("utf-8"))
        update = {"hub": self._settings.url, "epoch": epoch} | record
        update |= {"position": own_position(entry.position), "data_bytes": size}
        # Those about subscribers have what their tokens say of them.
        is_presence = entry.update.topics[0].startswith(subscriptions_path(self._settings.path) + "/")
        if self._settings.event_log_data and not is_presence:
            update["data"] = data
        return update

    def last_update(self, epoch: str) -> tuple[int, int] | None:
        """The position and the time of the last update of an epoch in closed segments."""
        self._updates.close()
        for segment in sorted(self._updates.path.glob(f"*{_CLOSED}"), reverse=True):
            try:
                line = json.loads(_last_line(segment))
                if line["epoch"] == epoch:
                    return int(line["position"]), int(line["time"])
            except (ValueError, LookupError, TypeError):
                raise OSError(f"{segment} does not end with an update") from None
        return None

    def close(self, beat: Beat, is_clean: bool) -> None:
        """Close what is open, and say that this node has ended."""
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
        """Leave all as a process does that is killed."""
        for segments in (self._sessions, self._updates):
            segments.let_go()
        for descriptor in (self._lock, self._self):
            if descriptor is not None:
                os.close(descriptor)
        self._self = self._lock = None

    def _open(self, beat: Beat) -> None:
        """Be there, with a file that is locked for as long as this process lives."""
        if self._self is not None:
            return
        for path in (self._nodes, self._sessions.path, self._updates.path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # who reads what is nobody else's business
        # It has its name when it is locked: else who looks for the dead would take it for one of them.
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
        """Lead if nobody else does; who leads also sees to the dead, and to what is too old."""
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
        # Before the epoch is known nobody knows whether the updates of the dead are still in the log.
        if epoch is not None:
            for node in self._nodes.glob("[!.]*"):
                if node.name != self.node:
                    self._bury(node, epoch)
        if self._settings.event_log_keep and self._clock() >= self._pruned + PRUNING:
            self._pruned = self._clock()
            self._prune()

    def _bury(self, node: Path, epoch: str) -> None:
        """If a node is dead, close what it has left, and mark what may be missing."""
        try:
            descriptor = os.open(node, os.O_RDWR)
        except FileNotFoundError:  # it has ended by itself
            return
        try:
            if not _try_lock(descriptor) or not os.fstat(descriptor).st_nlink:
                return
            beat = _read_beat(descriptor)
            # If no update of the epoch is written, the dead one may have led, and the first may be forgotten.
            updates = beat.epoch != epoch or (not beat.until and self.last_update(epoch) is None)
            end = _line(self._unclean_end(node.name, beat, updates=updates))
            left = sorted(self._sessions.path.glob(f"*-{node.name}{_PART}"))
            for part in left or [self._sessions.new_part(node.name)]:
                _salvage(part, end)
            node.unlink()
            log.warning("a node was killed; its part of the event log ends where it had come to", node=node.name)
        finally:
            os.close(descriptor)

    def _unclean_end(self, node: str, beat: Beat, *, updates: bool) -> dict[str, Any]:
        line = {"event": "end", "node": node, "time": beat.time, "until": beat.until, "clean": False}
        line |= {"hub": beat.hub, "epoch": beat.epoch}
        return line | {"updates": updates, "found": max(beat.time, int(self._wall_clock() * 1_000_000))}

    def _prune(self) -> None:
        oldest = datetime.fromtimestamp(self._wall_clock(), UTC) - timedelta(days=self._settings.event_log_keep)
        for segments in (self._sessions, self._updates):
            closed = sorted(segments.path.glob(f"*{_CLOSED}"))
            for segment in closed[:-1]:  # the last one says where the updates go on
                if segment.name < oldest.strftime(_NAME):
                    segment.unlink()


class _Segments:
    """The segments of one kind, of which one may be open.

    All its mutable state: the `_file` that is open, its path and size, and since when it is; the name of the last one;
    and whether any was used.
    """

    def __init__(
        self, path: Path, node: str, settings: Settings, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self.path = path
        self.is_used = False
        self._node = node
        self._seconds = settings.event_log_segment_seconds
        self._bytes = settings.event_log_segment_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._file: int | None = None
        self._part = path
        self._size = 0
        self._since = 0.0

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        """Have a line for each with the system, which survives the end of this process.

        Raises OSError, and has then written none.
        """
        if not records:
            return
        lines = b"".join(map(_line, records))
        if self._file is None:
            self._part, self._size, self._since = self.new_part(self._node), 0, self._clock()
            self._file = os.open(self._part, os.O_WRONLY | os.O_APPEND)
            self.is_used = True
        os.ftruncate(self._file, self._size)  # what a write that failed has left
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._size += len(lines)

    def close_if_due(self) -> None:
        if self._file is not None and (self._size >= self._bytes or self._clock() >= self._since + self._seconds):
            self.close()

    def close(self) -> None:
        """Have the open one on the disk, and give it its name; without lines it is removed."""
        if self._file is not None:
            os.ftruncate(self._file, self._size)
            _finish(self._file, self._part)
            self.let_go()

    def let_go(self) -> None:
        """Leave the open one as it is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def new_part(self, node: str) -> Path:
        """An empty segment, whose name comes after those of all that there are."""
        moment = datetime.fromtimestamp(self._wall_clock(), UTC)
        names = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
        last = max(names, default="").partition("-")[0]
        if last >= moment.strftime(_NAME):  # the clock was set back
            moment = datetime.strptime(last, _NAME).replace(tzinfo=UTC) + timedelta(microseconds=1)
        part = self.path / f"{moment.strftime(_NAME)}-{node}{_PART}"
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return part


def _salvage(part: Path, end: bytes = b"") -> None:
    """Close a segment that a dead process has left: its whole lines, and then `end`."""
    descriptor = os.open(part, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        if size:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                zeros = content.find(b"\0")  # where a power cut has left room and no text
                size = content.rfind(b"\n", 0, size if zeros < 0 else zeros) + 1
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, end, size)
        _finish(descriptor, part)
    finally:
        os.close(descriptor)


def _finish(descriptor: int, part: Path) -> None:
    if not os.fstat(descriptor).st_size:
        part.unlink()
        return
    directory = os.open(part.parent, os.O_RDONLY)  # before: when it has its name, nothing may fail any more
    try:
        os.fsync(descriptor)
        part.rename(part.with_name(part.name.removesuffix(_PART) + _CLOSED))
        with contextlib.suppress(OSError):  # after a power cut it may have its old name, and be closed then
            os.fsync(directory)
    finally:
        os.close(directory)


def _last_line(segment: Path) -> bytes:
    """The last line of a closed segment, which has one."""
    with segment.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and tail.count(b"\n") < 2:
            start = max(0, end - 2**16)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
    return tail.splitlines()[-1]


def _try_lock(descriptor: int) -> bool:
    """Lock a file until it is closed, or this process ends; whether nobody else has."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _line(record: dict[str, Any]) -> bytes:
    return to_json(record).encode("utf-8") + b"\n"


def _clean_end(node: str, beat: Beat) -> dict[str, Any]:
    return {"event": "end", "node": node, "time": beat.time, "until": beat.until, "clean": True}


def _read_beat(descriptor: int) -> Beat:
    """The beat in the file of a node; if it cannot be read, as after a power cut, nothing is exact."""
    line = os.pread(descriptor, 2**16, 0).partition(b"\n")[0]
    try:
        if line.startswith(b"{"):
            beat = Beat(**json.loads(line))
            if type(beat.until) is type(beat.time) is int:
                return beat
            raise ValueError
        until, moment = map(int, line.split())  # as 0.1.0 wrote it
    except (ValueError, TypeError):
        until, moment = 0, int(os.fstat(descriptor).st_ctime * 1_000_000)
    return Beat(None, None, until, moment)

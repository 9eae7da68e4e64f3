"""The event log: what was published, and who was connected, in files for whoever asks later.

    DIR/updates/20261103T120000.000000Z-NODE.jsonl         a line an update, of all nodes and each once
    DIR/sessions/20261103T120000.000000Z-NODE.jsonl        a line when a connection begins or ends, of this node
    DIR/sessions/20261103T120100.000000Z-NODE.jsonl.part   which is being written
    DIR/nodes/NODE                                         who runs, locked; how far it has dispatched, and when
    DIR/lock                                               of the node that writes the updates

    {"hub":…,"epoch":…,"position":7,"time":ms,"id":…,"topics":[…],"private":false,"type":null,"retry":null,
     "data_bytes":12}                                                            and "data", if that is asked for
    {"event":"connect","hub":…,"epoch":…,"node":…,"number":3,"subscriber":…,"selectors":[{"type":…,"pattern":…}],
     "authorised":[…],"time":µs,"after":5}
    {"event":"disconnect","node":…,"number":3,"time":µs,"until":9}
    {"event":"end","node":…,"time":µs,"until":9}                                 all that is open of the node ends here

A connection was written, of what it wanted, what has after < position <= until, and nothing else: what was handed to
its socket, be that read or not.  Positions are those of the log itself, whichever node counts, in one epoch.  Selectors
are in the words of the library; of tokens, and of what they say about their bearers, there is nothing here.  What reads
the log to its end without being a subscriber is no connection.

It is behind what happens by some milliseconds, and nobody waits for it.  A segment is closed when it is old or large
enough: then it is on the disk, and has its name, and does not change.  A process that is killed leaves what it had
written; the one that writes the updates closes that, and says where the other's connections ended, as far as is known.
That one also looks into the log of updates for what is missing since the last line.  So it is when the disk is full,
or the directory away: the hub goes on, and connections wait for a while in memory.

What is not exact.  Where the process is killed, the connections that it had end where its last dispatch did, also slow
ones.  A connection that is reset while a write waits for room ends with what was handed over at once.  Behind a server
that does not park (`uvicorn hub:app`) what the server took counts as handed over, of which it keeps up to 64 KiB.

The directory is for the processes of one machine, whose locks need one kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog

try:
    import fcntl
except ImportError:  # not on Windows: there, one process at a time is to write a directory
    fcntl = None  # type: ignore[assignment]

from hub.broadcaster import Interest
from hub.errors import LogUnavailable, OffTheLog
from hub.reading import Reading
from hub.subscriber import EARLIEST
from hub.subscriptions import to_json
from hub.transports import base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hub.broadcaster import Broadcaster, Receiver
    from hub.settings import Settings
    from hub.slices import Slices
    from hub.subscriber import Subscriber
    from hub.topics import TopicMatcher
    from hub.transports.base import Entry, Transport

log = structlog.stdlib.get_logger("hub")

GATHER: Final = 0.02
"""Seconds for which what happens is gathered before it is written."""
LOOK: Final = 1.0
"""Seconds between two looks at what is to be closed, who has died, and whether it was who writes the updates."""
RECORDS: Final = 100_000
"""Connections that wait to be written before those that come are left out."""
BATCH: Final = 1_000
"""Records of connections that are written at once."""
PAGES: Final = 16
"""Pages of updates that are kept for this; older ones are read from the log again."""
LAST_LINES: Final = 5.0
"""Seconds that the rest may take when the hub has ended."""
PRUNING: Final = 3_600.0
"""Seconds between two looks at what is too old to be kept."""

_NAME: Final = "%Y%m%dT%H%M%S.%fZ"
_CLOSED: Final = ".jsonl"
_PART: Final = ".jsonl.part"

T = TypeVar("T")


class _Come(NamedTuple):
    """A connection that has begun."""

    subscriber: Subscriber
    number: int
    place: int
    time: int


class _Gone(NamedTuple):
    """A connection that was written what it wanted up to a place, and so many entries after it."""

    subscriber: Subscriber
    number: int
    place: int
    more: int
    time: int


class EventLog:
    """The event log of one node.

    All its mutable state: `_records`, of connections, that are not written yet, oldest first; `_left_out`, the numbers
    of those that are connected and not in it, as there was no room, and how many there have been; `_fresh`, pages that
    were dispatched lately; `_place`, up to where the updates are written, if this node does that and knows; `_epochs`,
    their names, by the leap of their positions; whether it `_is_failing`, or `_is_closing`; the event that there is
    something to do; and its task.  The files are the directory's.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        broadcaster: Broadcaster,
        slices: Slices,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._broadcaster = broadcaster
        self._slices = slices
        self._wall_clock = wall_clock
        self._directory = _Directory(settings, clock, wall_clock)
        self._thread = ThreadPoolExecutor(1, "event-log")
        self._records: deque[_Come | _Gone] = deque()
        self._left_out: set[int] = set()
        self._missing = 0
        self._fresh: deque[list[Entry]] = deque(maxlen=PAGES)
        self._place: int | None = None
        self._epochs: dict[int, str] = {}
        self._is_failing = False
        self._is_closing = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- what happens

    def came(self, receiver: Receiver) -> None:
        """A connection has begun, at its subscriber's place."""
        if len(self._records) >= RECORDS:
            self._left_out.add(receiver.number)
            self._missing += 1
            return
        subscriber = receiver.subscriber
        self._records.append(_Come(subscriber, receiver.number, subscriber.position, self._now()))
        self._woken.set()

    def went(self, receiver: Receiver) -> None:
        """A connection is over, and is still known to the broadcaster."""
        if receiver.number in self._left_out:
            self._left_out.discard(receiver.number)
            return
        place, more = receiver.said()
        self._records.append(_Gone(receiver.subscriber, receiver.number, place, more, self._now()))
        self._woken.set()

    def dispatched(self, entries: list[Entry]) -> None:
        if self._directory.leads:
            self._fresh.append(entries)
        self._woken.set()

    def _now(self) -> int:
        return int(self._wall_clock() * 1_000_000)

    # -- writing

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Write the rest, if that takes no longer than LAST_LINES, and leave the directory."""
        self._is_closing = True
        self._woken.set()
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, LAST_LINES)
            except TimeoutError:
                log.error("the event log is not complete: its directory does not answer", path=self._directory.path)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while not self._is_closing:
            if await self._try_round():
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._woken.wait()
            if not self._is_closing:
                await asyncio.sleep(GATHER)
        while await self._try_round():
            pass
        try:
            await self._in_thread(self._directory.close, self._until())
        except OSError as error:
            self._fails(error)

    async def _try_round(self) -> bool:
        """Write some of what there is; whether there is more that can be written."""
        self._woken.clear()
        try:
            more = await self._write_sessions()
            more = await self._write_updates() or more
        except LogUnavailable:
            return False  # of which the hub tells
        except OSError as error:
            self._place = None  # it may not be in this directory any more
            self._fails(error)
            return False
        except Exception:
            log.exception("a part of the event log was not written")
            return False
        if self._is_failing:
            log.warning("the event log is written again", path=self._directory.path, connections_missing=self._missing)
            self._is_failing = False
        return more

    def _fails(self, error: OSError) -> None:
        if not self._is_failing:
            log.error("the event log cannot be written, which is tried again", reason=str(error))
        self._is_failing = True

    async def _write_sessions(self) -> bool:
        records = [await self._record(one) for one in list(islice(self._records, BATCH))]
        await self._in_thread(self._directory.step, records, self._until())
        for _ in records:
            self._records.popleft()
        return bool(self._records)

    async def _record(self, event: _Come | _Gone) -> dict[str, Any]:
        node, number, moment = self._directory.node, event.number, event.time
        if isinstance(event, _Gone):
            until = _own(await self._last_of(event))
            return {"event": "disconnect", "node": node, "number": number, "time": moment, "until": until}
        return {
            "event": "connect",
            "hub": self._settings.url,
            "epoch": await self._epoch(event.place),
            "node": node,
            "number": number,
            "subscriber": event.subscriber.id,
            "selectors": list(_selectors(event.subscriber.subscribed)),
            "authorised": list(_selectors(event.subscriber.grant.subscribe)),
            "time": moment,
            "after": _own(event.place),
        }

    async def _last_of(self, gone: _Gone) -> int:
        """Return the position of the last entry that it was handed wholly; the log has it if a write was cut off."""
        if not gone.more:
            return gone.place
        interest = Interest(self._settings.url)  # that of the hub has lost it
        interest.add(0, gone)
        reading = Reading(
            self._transport.read, lambda key: 0 in interest.bitmap(key), gone.subscriber, gone.place, self._slices
        )
        more = gone.more
        with contextlib.suppress(OffTheLog):
            while (part := await reading.next()) is not None:
                if more <= len(part.wanted):
                    return part.wanted[more - 1].position
                more -= len(part.wanted)
        log.warning("where a connection ended is not in the log any more", id=gone.subscriber.id)
        return gone.place

    async def _write_updates(self) -> bool:
        if not self._directory.leads:
            self._place = None
            return False
        if self._place is None:
            self._place = await self._last_place()
        if self._place >= self._broadcaster.position and not self._is_closing:
            return False
        page = self._take_fresh(self._place) or await self._read(self._place)
        if page:
            epoch = await self._epoch(page[0].position)
            await self._in_thread(self._directory.write_updates, page, epoch)
            self._report_missing(self._place, page)
            self._place = page[-1].position
        return bool(page)

    def _take_fresh(self, after: int) -> list[Entry]:
        """The page after a position, if it was dispatched lately."""
        while self._fresh and self._fresh[0][0].position <= after:
            self._fresh.popleft()
        return self._fresh.popleft() if self._fresh and self._fresh[0][0].position == after + 1 else []

    async def _read(self, after: int) -> list[Entry]:
        """The next page from the log, also where something is missing in between."""
        try:
            page = await self._transport.read(after)
        except OffTheLog:
            page = await self._transport.read(EARLIEST)
            if page and page[0].position // base.EPOCH != after // base.EPOCH:
                place = await self._last_place()  # of another epoch, of which something may be written already
                return [entry for entry in page if entry.position > place]
        return page

    def _report_missing(self, after: int, page: Sequence[Entry]) -> None:
        """Say in the log which positions are missing from a page that was written, and from before it."""
        place = after
        for entry in page:
            # Before the first page of a log, and between two epochs, nothing is missing.
            if (
                entry.position != place + 1
                and place != EARLIEST
                and entry.position // base.EPOCH == place // base.EPOCH
            ):
                log.error(
                    "updates are missing from the event log: they were forgotten before they were written",
                    first=_own(place) + 1,
                    last=_own(entry.position) - 1,
                )
            place = entry.position

    async def _last_place(self) -> int:
        """Up to where the updates of this epoch are written."""
        leap, epoch = await base.current_epoch(self._transport)
        last = await self._in_thread(self._directory.last_position, epoch)
        return EARLIEST if last is None else leap * base.EPOCH + last

    async def _epoch(self, position: int) -> str | None:
        """The name of the epoch of a position; None where that was over before anybody asked."""
        leap = position // base.EPOCH
        if leap not in self._epochs:
            current, name = await base.current_epoch(self._transport)
            self._epochs[current] = name
        return self._epochs.get(leap)

    def _until(self) -> int:
        """Up to where this node has dispatched."""
        position, dispatched = self._broadcaster.position, self._broadcaster.dispatched
        # In a new epoch, or when it has just begun, nothing is: whoever is connected came at that place or after it.
        return _own(dispatched if dispatched // base.EPOCH == position // base.EPOCH else position)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _own(position: int) -> int:
    """The log's own number of a position: a node adds leaps to it."""
    return position % base.EPOCH


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterator[dict[str, str]]:
    """What they are in the library's words, each once."""
    found = dict.fromkeys((type, one.pattern) for matcher in matchers for type, one in matcher.selectors)
    return ({"type": type, "pattern": pattern} for type, pattern in found)


# -- files


class _Directory:
    """The files; used in one thread, but for `leads`, `node` and `path`.

    All its mutable state: the file descriptors of this node's own file and of the lock, which are locked while they
    are open; the segments that are written; and when it has looked around, and for what is too old.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self.path = os.path.abspath(settings.event_log)
        self.node = base.new_node()
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._own = settings.path + "/subscriptions/"
        self._sessions = _Segments(Path(self.path, "sessions"), self.node, settings, clock, wall_clock)
        self._updates = _Segments(Path(self.path, "updates"), self.node, settings, clock, wall_clock)
        self._nodes = Path(self.path, "nodes")
        self._self: int | None = None
        self._lock: int | None = None
        self._looked = self._pruned = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether it is this node that writes the updates."""
        return self._lock is not None

    def step(self, records: Sequence[dict[str, Any]], until: int) -> None:
        """Write records, after all that is due.  Raises OSError, and has then written none."""
        self._open(until)
        self._beat(until)
        if self._clock() >= self._looked + LOOK:
            self._looked = self._clock()
            self._look()
        for segments in (self._sessions, self._updates):
            segments.close_if_due()
        self._sessions.write(records)

    def write_updates(self, entries: Sequence[Entry], epoch: str | None) -> None:
        """Raises OSError, and has then written none."""
        self._updates.close_if_due()
        self._updates.write([self._update(entry, epoch) for entry in entries])

    def _update(self, entry: Entry, epoch: str | None) -> dict[str, Any]:
        record = base.record(entry)
        data = record.pop("data")
        size = len(data.encode("utf-8"))
        update = {"hub": self._settings.url, "epoch": epoch} | record
        update |= {"position": _own(entry.position), "data_bytes": size}
        # Those about subscribers have what their tokens say of them.
        if self._settings.event_log_data and not entry.update.topics[0].startswith(self._own):
            update["data"] = data
        return update

    def last_position(self, epoch: str) -> int | None:
        """Up to where the updates of an epoch are in closed segments."""
        self._updates.close()
        for segment in sorted(self._updates.path.glob(f"*{_CLOSED}"), reverse=True):
            try:
                line = json.loads(_last_line(segment))
                if line["epoch"] == epoch:
                    return int(line["position"])
            except (ValueError, LookupError, TypeError):
                raise OSError(f"{segment} does not end with an update") from None
        return None

    def close(self, until: int) -> None:
        """Close what is open, and say that this node has ended."""
        try:
            if self._sessions.is_used:
                self._sessions.write([_end(self.node, self._wall_clock(), until)])
            for segments in (self._sessions, self._updates):
                segments.close()
            (self._nodes / self.node).unlink(missing_ok=True)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Leave all as a process does that is killed."""
        for segments in (self._sessions, self._updates):
            segments.let_go()
        for descriptor in (self._lock, self._self):
            if descriptor is not None:
                os.close(descriptor)
        self._self = self._lock = None

    def _open(self, until: int) -> None:
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
            os.pwrite(descriptor, _beat(until, self._wall_clock()), 0)
            unnamed.rename(self._nodes / self.node)
        except BaseException:
            os.close(descriptor)
            raise
        self._self = descriptor

    def _beat(self, until: int) -> None:
        assert self._self is not None
        os.pwrite(self._self, _beat(until, self._wall_clock()), 0)

    def _look(self) -> None:
        """Lead if nobody else does; who leads also sees to the dead, and to what is too old."""
        if not (self._nodes / self.node).exists():
            self._let_go()
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
        for node in self._nodes.glob("[!.]*"):
            if node.name != self.node:
                self._bury(node)
        if self._settings.event_log_keep and self._clock() >= self._pruned + PRUNING:
            self._pruned = self._clock()
            self._prune()

    def _bury(self, node: Path) -> None:
        """If a node is dead, close what it has left, and say where its connections ended."""
        try:
            descriptor = os.open(node, os.O_RDWR)
        except FileNotFoundError:  # it has ended by itself
            return
        try:
            if not _try_lock(descriptor) or not os.fstat(descriptor).st_nlink:
                return
            until, moment = map(int, os.read(descriptor, 100).split())
            end = _line(_end(node.name, moment / 1_000_000, until))
            left = sorted(self._sessions.path.glob(f"*-{node.name}{_PART}"))
            for part in left or [self._sessions.new_part(node.name)]:
                _salvage(part, end)
            node.unlink()
            log.warning("a node was killed; its part of the event log ends where it had come to", node=node.name)
        finally:
            os.close(descriptor)

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


def _end(node: str, moment: float, until: int) -> dict[str, Any]:
    return {"event": "end", "node": node, "time": int(moment * 1_000_000), "until": until}


def _beat(until: int, moment: float) -> bytes:
    return b"%020d %020d\n" % (until, int(moment * 1_000_000))

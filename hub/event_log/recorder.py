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
    {"event":"disconnect","node":…,"number":3,"time":µs,"until":9,"clean":true}
    {"event":"end","node":…,"time":µs,"until":9,"clean":true}                    all that is open of the node ends here
    {"event":"end","node":…,"time":µs,"until":9,"clean":false,"hub":…,"epoch":…,"updates":false,"found":µs}
    {"event":"gap","node":…,"time":µs,"after":9,"until":12,"hub":…,"epoch":…,"updates":true,"found":µs,"cause":…}

A connection was written, of what it wanted, what has after < position <= until, and nothing else: what was handed to
its socket, be that read or not.  Positions are those of the log itself, whichever node counts, in one epoch.  Selectors
are in the words of the library; of tokens, and of what they say about their bearers, there is nothing here.  What reads
the log to its end without being a subscriber is no connection.

The log is behind the hub by some milliseconds, on a busy machine by a second or more, and nobody waits for it.  A
segment is closed when it is old or large enough: then it is on the disk, and has its name, and does not change.  If the
disk is full, or the directory is away, the hub goes on, and connections wait for a while in memory.

What is exact, and when.  If a hub ends by itself and has written everything, the lines are what was written to each
socket.  If a process is killed, the next node that writes the updates closes its segments, at the latest when the hub
is started again, and marks what may be missing: an end that is not clean.  The connections of the dead node before
`time`, and its deliveries up to `until`, are in the log; later ones may not be.  The updates are all there if the log
of updates survived, which the node that finds the dead one sees by the epoch: it reads on where the dead node stopped.
If the epoch is another one, as that of a log in memory always is, `updates` is true: those after `until` may be
missing, too.  A node that could not write everything in time leaves as if it was killed.  A gap says the same of
connections that had no room, of updates that the log had forgotten before they were written, and of a connection of
which it is not known any more where it ended: its `clean` is false.  What is missing lies between `time` and `found`,
which is null as long as some of the connections without room are there; a second line says when the last one has gone.
A mark may be written twice, with another `found`; the later one counts.  A hub that is killed and never started again
leaves no mark: its last segments keep the name .part, and its connections stay open.

Not marked: what a node did that was killed before it could write to the directory for the first time.  A connection
that is open when its node is killed counts as having got all that it wanted up to `until`, also if it is slow.  A
connection that is reset while a write waits for room ends with what was handed over at once.  Behind a server that does
not park (`uvicorn hub:app`) what the server took counts as handed over, of which it keeps up to 64 KiB.

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
from hub.errors import HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import EARLIEST
from hub.protocol.subscriptions import to_json
from hub.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hub.broadcaster import Broadcaster, Receiver
    from hub.history.base import Entry, History
    from hub.protocol.topics import TopicMatcher
    from hub.settings import Settings
    from hub.slices import Slices
    from hub.subscriber import Subscriber

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
    written: int
    """When the last of them was written."""
    time: int


class _Beat(NamedTuple):
    """How far the log of a node is exact: it has the connections before `time`, and deliveries and updates to `until`.

    A node keeps it in its file, where the next one finds it if the node is killed.
    """

    hub: str | None
    epoch: str | None
    """None if the log of updates has not said its epoch yet; both, if an earlier version has written it."""
    until: int
    time: int


class EventLog:
    """The event log of one node.

    All its mutable state: `_records`, of connections, that are not written yet, oldest first; `_left_out`, the numbers
    of those that are connected and not in it, as there was no room, how many there have been, and by the leap of their
    epoch, of those that are not marked yet, and of the marks that are open, the first time and the least place;
    `_oldest`, the place before the first update that could be written, and when that was so; `_fresh`, pages that were
    dispatched lately; `_place`, up to where the updates are written, and the time of the last one, if this node does
    that and knows; `_marked`, the place of the last mark of updates; `_epochs`, their names, by the leap of their
    positions; whether it `_has_begun`, `_is_failing`, or `_is_closing`; the event that there is something to do; and
    its task.  The files are the directory's.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        broadcaster: Broadcaster,
        slices: Slices,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._history = history
        self._broadcaster = broadcaster
        self._slices = slices
        self._clock = clock
        self._wall_clock = wall_clock
        self._directory = _Directory(settings, clock, wall_clock)
        self._thread = ThreadPoolExecutor(1, "event-log")
        self._records: deque[_Come | _Gone] = deque()
        self._left_out: set[int] = set()
        self._missing = 0
        self._unmarked: dict[int, tuple[int, int]] = {}
        self._open: list[tuple[int, int]] = []
        self._oldest: tuple[int, int] | None = None
        self._fresh: deque[list[Entry]] = deque(maxlen=PAGES)
        self._place: int | None = None
        self._written = 0
        self._marked: int | None = None
        self._epochs: dict[int, str] = {}
        self._has_begun = asyncio.Event()
        self._is_failing = False
        self._is_closing = False
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- what happens

    def came(self, receiver: Receiver, place: int) -> None:
        """Record that a connection has begun, at a position."""
        subscriber = receiver.subscriber
        if len(self._records) >= RECORDS:
            self._left_out.add(receiver.number)
            self._missing += 1
            leap = place // base.EPOCH
            if not any(least <= place and least // base.EPOCH == leap for _, least in self._open):
                moment, least = self._unmarked.get(leap, (self._now(), place))
                self._unmarked[leap] = moment, min(least, place)
            return
        self._records.append(_Come(subscriber, receiver.number, place, self._now()))
        self._woken.set()

    def went(self, receiver: Receiver, place: int, more: int) -> None:
        """A connection is over, and is still known to the broadcaster."""
        if receiver.number in self._left_out:
            self._left_out.discard(receiver.number)
            self._woken.set()
            return
        now = self._now()
        written = now - int((self._clock() - receiver.written) * 1_000_000)
        self._records.append(_Gone(receiver.subscriber, receiver.number, place, more, written, now))
        self._woken.set()

    def dispatched(self, entries: list[Entry]) -> None:
        if self._directory.leads:
            self._fresh.append(entries)
        self._woken.set()

    def _now(self) -> int:
        return int(self._wall_clock() * 1_000_000)

    # -- writing

    async def start(self) -> None:
        """Have this node in the directory before anybody is served, so that nothing is missing without a mark.

        Goes on after LAST_LINES if the directory does not answer.
        """
        self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait_for(self._has_begun.wait(), LAST_LINES)
        except TimeoutError:
            log.error("the event log has not begun: its directory does not answer", path=self._directory.path)

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
            more = await self._try_round()
            self._has_begun.set()
            if more:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._woken.wait()
            if not self._is_closing:
                await asyncio.sleep(GATHER)
        while more := await self._try_round():
            pass
        if more is None:
            await self._in_thread(self._directory.let_go)  # the next node marks what is missing
            return
        place = self._until()
        try:
            # Whoever is connected still may have got a part of the last dispatch.
            is_clean = not self._broadcaster.connected
            await self._in_thread(self._directory.close, await self._beat(place, self._now()), is_clean)
        except OSError as error:
            self._fails(error)

    async def _try_round(self) -> bool | None:
        """Write some of what there is; whether there is more that can be written, or None if it failed."""
        self._woken.clear()
        place, moment = self._until(), self._now()
        try:
            with contextlib.suppress(HistoryUnavailable):
                await self._find_oldest()
            is_whole = await self._write_sessions(await self._beat(place, moment))
            more = await self._write_updates() or bool(self._records)
            if is_whole:
                await self._in_thread(self._directory.beat, await self._beat(self._exact(place), moment))
        except HistoryUnavailable:
            return None  # of which the hub tells
        except OSError as error:
            self._place = None  # it may not be in this directory any more
            self._fails(error)
            return None
        except Exception:
            log.exception("a part of the event log was not written")
            return None
        if self._is_failing:
            log.warning("the event log is written again", path=self._directory.path, connections_missing=self._missing)
            self._is_failing = False
        return more

    def _fails(self, error: OSError) -> None:
        if not self._is_failing:
            log.error("the event log cannot be written, which is tried again", reason=str(error))
        self._is_failing = True

    async def _write_sessions(self, first: _Beat) -> bool:
        """Write some records; whether all that waited are written.  `first` is for a node that has not begun."""
        waiting = list(islice(self._records, BATCH))
        is_whole = len(waiting) == len(self._records)
        records = [line for one in waiting for line in await self._lines(one)]
        left_out = bool(self._left_out)
        unmarked, self._unmarked = self._unmarked, {}
        ended: list[tuple[int, int]] = []
        if not left_out:  # a connection that is left out meanwhile gets a mark of its own
            ended, self._open = self._open, []
        try:
            for moment, place in [*unmarked.values(), *ended]:
                gap = await self._gap(moment, place, "had no room for connections", updates=False)
                records.append(gap | {"found": None} if left_out else gap)
            await self._in_thread(self._directory.step, records, first)
        except BaseException:
            for leap, (moment, place) in unmarked.items():
                self._unmarked[leap] = moment, min(place, self._unmarked.get(leap, (moment, place))[1])
            self._open += ended
            raise
        for _ in waiting:
            self._records.popleft()
        if left_out:
            self._open += unmarked.values()
        return is_whole

    async def _gap(self, moment: int, place: int, cause: str, *, updates: bool) -> dict[str, Any]:
        """Return the mark that deliveries after a place, and perhaps updates, are missing since a moment."""
        line = {"event": "gap", "node": self._directory.node, "time": moment, "after": _own(place), "until": None}
        line |= {"hub": self._settings.url, "epoch": await self._epoch(place)}
        return line | {"updates": updates, "found": self._now(), "cause": cause}

    async def _lines(self, event: _Come | _Gone) -> list[dict[str, Any]]:
        """Return the line of an event, and a mark if it is not known any more where a connection ended."""
        node, number, moment = self._directory.node, event.number, event.time
        if isinstance(event, _Gone):
            until = await self._last_of(event)
            line = {"event": "disconnect", "node": node, "number": number, "time": moment, "clean": until is not None}
            if until is not None:
                return [line | {"until": _own(until)}]
            cause = "no longer knew where a connection ended"
            gap = await self._gap(event.written, event.place, cause, updates=False)
            return [gap, line | {"until": _own(event.place)}]
        return [
            {
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
        ]

    async def _last_of(self, gone: _Gone) -> int | None:
        """Return the position of the last entry that it was handed wholly; the log has it if a write was cut off.

        None if the log has forgotten it.
        """
        if not gone.more:
            return gone.place
        interest = Interest(self._settings.url)  # that of the hub has lost it
        interest.add(0, gone)
        reading = Reading(
            self._history.read, lambda key: 0 in interest.bitmap(key), gone.subscriber, gone.place, self._slices
        )
        more = gone.more
        with contextlib.suppress(PositionExpired):
            while (part := await reading.next()) is not None:
                if more <= len(part.wanted):
                    return part.wanted[more - 1].position
                more -= len(part.wanted)
        log.warning("where a connection ended is not in the log any more", id=gone.subscriber.id)
        return None

    async def _write_updates(self) -> bool:
        if not self._directory.leads:
            self._place = None
            return False
        if self._place is None:
            self._place, self._written = await self._last_place()
        if self._place >= self._broadcaster.position and not self._is_closing:
            return False
        page = self._take_fresh(self._place) or await self._read(self._place)
        if page:
            epoch = await self._epoch(page[0].position)
            gaps = await self._gaps_before(page)
            if gaps and self._marked != self._place:  # each mark once, also if the page is tried again
                await self._in_thread(self._directory.mark, gaps)
                self._marked = self._place
            await self._in_thread(self._directory.write_updates, page, epoch)
            self._place, self._written = page[-1].position, page[-1].time
            for gap in gaps:
                log.error(
                    "updates are missing from the event log: they were forgotten before they were written",
                    first=gap["after"] + 1,
                    last=gap["until"],
                )
        return bool(page)

    def _take_fresh(self, after: int) -> list[Entry]:
        """The page after a position, if it was dispatched lately."""
        while self._fresh and self._fresh[0][0].position <= after:
            self._fresh.popleft()
        return self._fresh.popleft() if self._fresh and self._fresh[0][0].position == after + 1 else []

    async def _read(self, after: int) -> list[Entry]:
        """The next page from the log, also where something is missing in between."""
        try:
            page = await self._history.read(after)
        except PositionExpired:
            page = await self._history.read(EARLIEST)
            if page and page[0].position // base.EPOCH != after // base.EPOCH:
                place, _ = await self._last_place()  # of another epoch, of which something may be written already
                return [entry for entry in page if entry.position > place]
        return page

    async def _gaps_before(self, page: Sequence[Entry]) -> list[dict[str, Any]]:
        """Mark what is missing from a page, and from before it."""
        assert self._place is not None
        place, moment, gaps = self._place, self._written, []
        for entry in page:
            if entry.position != place + 1:
                gap = await self._gap(moment * 1_000, place, "lost updates before they were written", updates=True)
                is_of_one_epoch = place >= entry.position - _own(entry.position)
                gaps.append(gap | {"until": _own(entry.position) - 1 if is_of_one_epoch else None})
            place, moment = entry.position, entry.time
        return gaps

    async def _last_place(self) -> tuple[int, int]:
        """Up to where the updates of this epoch are written, and the time of the last one."""
        leap, epoch = await base.current_epoch(self._history)
        last = await self._in_thread(self._directory.last_update, epoch)
        if last is not None:
            return leap * base.EPOCH + last[0], last[1]
        oldest, moment = await self._find_oldest()
        return (oldest if oldest // base.EPOCH == leap else leap * base.EPOCH), moment

    async def _find_oldest(self) -> tuple[int, int]:
        """The place before the first update that can be written, and when it was asked for first, in ms since 1970."""
        if self._oldest is None:
            moment = self._now() // 1_000
            end = await self._history.end()  # asked for first: there may be an entry by the second question
            page = await self._history.read(EARLIEST)
            self._oldest = min([end, *(entry.position - 1 for entry in page[:1])]), moment
        return self._oldest

    async def _epoch(self, position: int) -> str | None:
        """The name of the epoch of a position; None where that was over before anybody asked."""
        leap = position // base.EPOCH
        if leap not in self._epochs:
            current, name = await base.current_epoch(self._history)
            self._epochs[current] = name
        return self._epochs.get(leap)

    def _until(self) -> int:
        """Up to where this node has dispatched."""
        position, dispatched = self._broadcaster.position, self._broadcaster.dispatched
        # In a new epoch, or when it has just begun, nothing is: whoever is connected came at that place or after it.
        return dispatched if dispatched // base.EPOCH == position // base.EPOCH else position

    def _exact(self, place: int) -> int:
        """Up to where the log is exact, of a place up to which its node has dispatched."""
        if self._place is None:  # another node writes the updates
            return place
        return max(min(place, self._place), place - _own(place))

    async def _beat(self, place: int, moment: int) -> _Beat:
        epoch = None
        with contextlib.suppress(HistoryUnavailable):
            epoch = await self._epoch(place)
        return _Beat(self._settings.url, epoch, _own(place), moment)

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

    All its mutable state: the last beat, and the file descriptors of this node's own file, which has it, and of the
    lock, which are locked while they are open; the segments that are written; and when it has looked around, and for
    what is too old.
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
        self._said: _Beat | None = None
        self._self: int | None = None
        self._lock: int | None = None
        self._looked = self._pruned = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether it is this node that writes the updates."""
        return self._lock is not None

    def step(self, records: Sequence[dict[str, Any]], beat: _Beat) -> None:
        """Write records, after all that is due.  Raises OSError, and has then written none.

        The beat is for a node that has said none before.
        """
        self._said = self._said or beat
        self._open(self._said)
        if self._clock() >= self._looked + LOOK:
            self._looked = self._clock()
            self._look(beat.epoch)
        for segments in (self._sessions, self._updates):
            segments.close_if_due()
        self._sessions.write(records)

    def beat(self, beat: _Beat) -> None:
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
        record = base.record(entry)
        data = record.pop("data")
        size = len(data.encode("utf-8"))
        update = {"hub": self._settings.url, "epoch": epoch} | record
        update |= {"position": _own(entry.position), "data_bytes": size}
        # Those about subscribers have what their tokens say of them.
        if self._settings.event_log_data and not entry.update.topics[0].startswith(self._own):
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

    def close(self, beat: _Beat, is_clean: bool) -> None:
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

    def _open(self, beat: _Beat) -> None:
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

    def _unclean_end(self, node: str, beat: _Beat, *, updates: bool) -> dict[str, Any]:
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


def _clean_end(node: str, beat: _Beat) -> dict[str, Any]:
    return {"event": "end", "node": node, "time": beat.time, "until": beat.until, "clean": True}


def _read_beat(descriptor: int) -> _Beat:
    """The beat in the file of a node; if it cannot be read, as after a power cut, nothing is exact."""
    line = os.pread(descriptor, 2**16, 0).partition(b"\n")[0]
    try:
        if line.startswith(b"{"):
            beat = _Beat(**json.loads(line))
            if type(beat.until) is type(beat.time) is int:
                return beat
            raise ValueError
        until, moment = map(int, line.split())  # as 0.1.0 wrote it
    except (ValueError, TypeError):
        until, moment = 0, int(os.fstat(descriptor).st_ctime * 1_000_000)
    return _Beat(None, None, until, moment)

"""Recorder: what is recorded of a node, and when.

It notes what happens, in the event loop, and writes some of it at a time, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog

try:
    import fcntl
except ImportError:  # not on Windows: there, one process at a time is to write a directory
    fcntl = None  # type: ignore[assignment]

from hub.broadcaster import Interest
from hub.errors import HistoryUnavailable, PositionExpired
from hub.event_log.segments import LOOK_SECONDS, Beat, Directory, own_position
from hub.history import base
from hub.history.base import EARLIEST
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
RECORDS: Final = 100_000
"""Connections that wait to be written before those that come are left out."""
BATCH_RECORDS: Final = 1_000
"""Records of connections that are written at once."""
PAGES: Final = 16
"""Pages of updates that are kept for this; older ones are read from the log again."""
LAST_LINES: Final = 5.0
"""Seconds that the rest may take when the hub has ended."""

T = TypeVar("T")


class _Come(NamedTuple):
    """A connection that has begun."""

    subscriber: Subscriber
    number: int
    position: int
    time: int


class _Gone(NamedTuple):
    """A connection that was written what it wanted up to a position, and so many entries after it."""

    subscriber: Subscriber
    number: int
    position: int
    more: int
    written: int
    """When the last of them was written."""
    time: int


class EventLog:
    """The event log of one node.  The files are the directory's."""

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
        self._directory = Directory(settings, clock, wall_clock)
        self._thread = ThreadPoolExecutor(1, "event-log")
        self._records: deque[_Come | _Gone] = deque()
        """Connections that began or ended and are not written yet, oldest first."""
        self._left_out: set[int] = set()
        """The numbers of connections that are open and not recorded, because there was no room."""
        self._missing = 0
        """How many connections there was no room for."""
        self._unmarked: dict[int, tuple[int, int]] = {}
        """The first time and the least position of those that are not marked yet, by the leap of their epoch."""
        self._open: list[tuple[int, int]] = []
        """The same of the marks that are open."""
        self._oldest: tuple[int, int] | None = None
        """The position before the first update that could be written, and when that was so."""
        self._fresh: deque[list[Entry]] = deque(maxlen=PAGES)
        """Pages that were dispatched lately."""
        self._position: int | None = None
        """Up to where the updates are written; None if another node writes them, or this one has to look."""
        self._written = 0
        """The time of the last update that is written."""
        self._marked: int | None = None
        """The position of the last mark of updates."""
        self._epochs: dict[int, str] = {}
        """The names of epochs, by the leap of their positions."""
        self._has_begun = asyncio.Event()
        self._is_failing = False
        self._is_closing = False
        self._woken = asyncio.Event()
        """Set when there is something to do."""
        self._task: asyncio.Task[None] | None = None

    # -- what happens

    def connected(self, receiver: Receiver, position: int) -> None:
        """Record that a connection has begun, at a position."""
        subscriber = receiver.subscriber
        if len(self._records) >= RECORDS:
            self._left_out.add(receiver.number)
            self._missing += 1
            leap = position // base.EPOCH
            if not any(least <= position and least // base.EPOCH == leap for _, least in self._open):
                moment, least = self._unmarked.get(leap, (self._now(), position))
                self._unmarked[leap] = moment, min(least, position)
            return
        self._records.append(_Come(subscriber, receiver.number, position, self._now()))
        self._woken.set()

    def disconnected(self, receiver: Receiver, position: int, more: int) -> None:
        """A connection is over, and is still known to the broadcaster."""
        if receiver.number in self._left_out:
            self._left_out.discard(receiver.number)
            self._woken.set()
            return
        now = self._now()
        written = now - int((self._clock() - receiver.written) * 1_000_000)
        self._records.append(_Gone(receiver.subscriber, receiver.number, position, more, written, now))
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
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            if not self._is_closing:
                await asyncio.sleep(GATHER)
        while more := await self._try_round():
            pass
        if more is None:
            await self._in_thread(self._directory.let_go)  # the next node marks what is missing
            return
        position = self._until()
        try:
            # Whoever is connected still may have got a part of the last dispatch.
            is_clean = not self._broadcaster.connected
            await self._in_thread(self._directory.close, await self._beat(position, self._now()), is_clean)
        except OSError as error:
            self._fails(error)

    async def _try_round(self) -> bool | None:
        """Write some of what there is; whether there is more that can be written, or None if it failed."""
        self._woken.clear()
        position, moment = self._until(), self._now()
        try:
            with contextlib.suppress(HistoryUnavailable):
                await self._find_oldest()
            is_whole = await self._write_sessions(await self._beat(position, moment))
            more = await self._write_updates() or bool(self._records)
            if is_whole:
                await self._in_thread(self._directory.beat, await self._beat(self._exact(position), moment))
        except HistoryUnavailable:
            return None  # of which the hub tells
        except OSError as error:
            self._position = None  # it may not be in this directory any more
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

    async def _write_sessions(self, first: Beat) -> bool:
        """Write some records; whether all that waited are written.  `first` is for a node that has not begun."""
        waiting = list(islice(self._records, BATCH_RECORDS))
        is_whole = len(waiting) == len(self._records)
        records = [line for one in waiting for line in await self._lines(one)]
        left_out = bool(self._left_out)
        unmarked, self._unmarked = self._unmarked, {}
        ended: list[tuple[int, int]] = []
        if not left_out:  # a connection that is left out meanwhile gets a mark of its own
            ended, self._open = self._open, []
        try:
            for moment, position in [*unmarked.values(), *ended]:
                gap = await self._gap(moment, position, "had no room for connections", updates=False)
                records.append(gap | {"found": None} if left_out else gap)
            await self._in_thread(self._directory.step, records, first)
        except BaseException:
            for leap, (moment, position) in unmarked.items():
                self._unmarked[leap] = moment, min(position, self._unmarked.get(leap, (moment, position))[1])
            self._open += ended
            raise
        for _ in waiting:
            self._records.popleft()
        if left_out:
            self._open += unmarked.values()
        return is_whole

    async def _gap(self, moment: int, position: int, cause: str, *, updates: bool) -> dict[str, Any]:
        """Return the mark that deliveries after a position, and perhaps updates, are missing since a moment."""
        line = {
            "event": "gap",
            "node": self._directory.node,
            "time": moment,
            "after": own_position(position),
            "until": None,
        }
        line |= {"hub": self._settings.url, "epoch": await self._epoch(position)}
        return line | {"updates": updates, "found": self._now(), "cause": cause}

    async def _lines(self, event: _Come | _Gone) -> list[dict[str, Any]]:
        """Return the line of an event, and a mark if it is not known any more where a connection ended."""
        node, number, moment = self._directory.node, event.number, event.time
        if isinstance(event, _Gone):
            until = await self._last_of(event)
            line = {"event": "disconnect", "node": node, "number": number, "time": moment, "clean": until is not None}
            if until is not None:
                return [line | {"until": own_position(until)}]
            cause = "no longer knew where a connection ended"
            gap = await self._gap(event.written, event.position, cause, updates=False)
            return [gap, line | {"until": own_position(event.position)}]
        return [
            {
                "event": "connect",
                "hub": self._settings.url,
                "epoch": await self._epoch(event.position),
                "node": node,
                "number": number,
                "subscriber": event.subscriber.id,
                "selectors": list(_selectors(event.subscriber.subscribed)),
                "authorised": list(_selectors(event.subscriber.grant.subscribe)),
                "time": moment,
                "after": own_position(event.position),
            }
        ]

    async def _last_of(self, gone: _Gone) -> int | None:
        """Return the position of the last entry that it was handed wholly; the log has it if a write was cut off.

        None if the log has forgotten it.
        """
        if not gone.more:
            return gone.position
        interest = Interest(self._settings.url)  # that of the hub has lost it
        interest.add(0, gone)
        reading = Reading(
            self._history.read, lambda key: 0 in interest.bitmap(key), gone.subscriber, gone.position, self._slices
        )
        more = gone.more
        with contextlib.suppress(PositionExpired):
            while (part := await reading.next()) is not None:
                if more <= len(part.wanted):
                    return part.wanted[more - 1].position
                more -= len(part.wanted)
        log.warning("where a connection ended is not in the history any more", id=gone.subscriber.id)
        return None

    async def _write_updates(self) -> bool:
        if not self._directory.leads:
            self._position = None
            return False
        if self._position is None:
            self._position, self._written = await self._last_position()
        if self._position >= self._broadcaster.position and not self._is_closing:
            return False
        page = self._take_fresh(self._position) or await self._read(self._position)
        if page:
            epoch = await self._epoch(page[0].position)
            gaps = await self._gaps_before(page)
            if gaps and self._marked != self._position:  # each mark once, also if the page is tried again
                await self._in_thread(self._directory.mark, gaps)
                self._marked = self._position
            await self._in_thread(self._directory.write_updates, page, epoch)
            self._position, self._written = page[-1].position, page[-1].time
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
                position, _ = await self._last_position()  # of another epoch, of which something may be written already
                return [entry for entry in page if entry.position > position]
        return page

    async def _gaps_before(self, page: Sequence[Entry]) -> list[dict[str, Any]]:
        """Mark what is missing from a page, and from before it."""
        assert self._position is not None
        position, moment, gaps = self._position, self._written, []
        for entry in page:
            if entry.position != position + 1:
                gap = await self._gap(moment * 1_000, position, "lost updates before they were written", updates=True)
                is_of_one_epoch = position >= entry.position - own_position(entry.position)
                gaps.append(gap | {"until": own_position(entry.position) - 1 if is_of_one_epoch else None})
            position, moment = entry.position, entry.time
        return gaps

    async def _last_position(self) -> tuple[int, int]:
        """Up to where the updates of this epoch are written, and the time of the last one."""
        leap, epoch = await base.current_epoch(self._history)
        last = await self._in_thread(self._directory.last_update, epoch)
        if last is not None:
            return leap * base.EPOCH + last[0], last[1]
        oldest, moment = await self._find_oldest()
        return (oldest if oldest // base.EPOCH == leap else leap * base.EPOCH), moment

    async def _find_oldest(self) -> tuple[int, int]:
        """Return the position before the first update that can be written, and when it was read (ms since 1970)."""
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
        # In a new epoch, or when it has just begun, nothing is: whoever is connected came at that position or after it.
        return dispatched if dispatched // base.EPOCH == position // base.EPOCH else position

    def _exact(self, position: int) -> int:
        """Up to where the log is exact, of a position up to which its node has dispatched."""
        if self._position is None:  # another node writes the updates
            return position
        return max(min(position, self._position), position - own_position(position))

    async def _beat(self, position: int, moment: int) -> Beat:
        epoch = None
        with contextlib.suppress(HistoryUnavailable):
            epoch = await self._epoch(position)
        return Beat(self._settings.url, epoch, own_position(position), moment)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterator[dict[str, str]]:
    """What they are in the library's words, each once."""
    found = dict.fromkeys((type, one.pattern) for matcher in matchers for type, one in matcher.selectors)
    return ({"type": type, "pattern": pattern} for type, pattern in found)

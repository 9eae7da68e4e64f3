"""Recorder: when the event log is written, and how far it is exact.

Events are recorded on the event loop, and written by a thread, some at a time.

    seated, left ──► Sessions ─┐
                               ├─► a round: write, then the beat ─► Directory
    dispatched ────► Updates ──┘
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from hub.auth.authorizer import event_log_key
from hub.clocks import since_boot
from hub.delivery.observer import Observer
from hub.errors import HistoryUnavailable
from hub.event_log.marks import Marks
from hub.event_log.names import Names
from hub.event_log.segments import LOOK_SECONDS, Directory, LogBeat, own_position
from hub.event_log.sessions import Sessions
from hub.event_log.updates import Updates
from hub.history import base

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.delivery.live import Live
    from hub.delivery.observer import Sent
    from hub.delivery.seat import Ending, Seat
    from hub.history.base import Entry, History
    from hub.settings import Settings
    from hub.turns import TimeSlices

log = structlog.stdlib.get_logger("hub")

GATHER: Final = 0.02
"""Seconds for which events are collected before they are written."""
LAST_LINES: Final = 5.0
"""Seconds that the last writes may take when the hub ends."""

T = TypeVar("T")


class EventLog(Observer):
    """The event log of one node: an `Observer` of its deliveries.

    Raises ConfigurationError if its key is weak.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        live: Live,
        slices: TimeSlices,
        *,
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._wall_clock = wall_clock
        self._directory = Directory(settings, clock, wall_clock)
        self._thread = ThreadPoolExecutor(1, "event-log")
        self._marks = Marks(settings.url, self._directory.node, history, self._now)
        self._sessions = Sessions(
            self._directory,
            self._marks,
            history,
            slices,
            names=self._named,
            in_thread=self._in_thread,
            now=self._now,
            clock=clock,
        )
        self._updates = Updates(self._directory, self._marks, history, live, in_thread=self._in_thread, now=self._now)
        self._settings = settings
        self._key = event_log_key(settings)
        self._names: Names | None = None  # None until its key is known
        self._has_begun = asyncio.Event()
        self._is_failing = False
        self._is_closing = False
        self._woken = asyncio.Event()
        """Set if there is work."""
        self._task: asyncio.Task[None] | None = None

    def seated(self, seat: Seat, position: int) -> None:
        """Record that a connection begins at a position."""
        if self._sessions.seated(seat, position):
            self._woken.set()

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Record that a connection ends."""
        self._sessions.left(seat, position, more, reason)
        self._woken.set()

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Record that a page was dispatched."""
        self._updates.dispatched(entries)
        self._woken.set()

    async def _named(self) -> Names:
        """Return what lines say of persons.

        Raises OSError if the key cannot be read.
        """
        if self._names is None:
            settings, key = self._settings, self._key
            if settings.event_log_subject == "hash" and not key:
                key = await self._in_thread(self._directory.key)
            self._names = Names(settings.event_log_subject, key, with_addresses=settings.log_clients)
        return self._names

    def _now(self) -> int:
        """Return the time in µs since 1970."""
        return int(self._wall_clock() * 1_000_000)

    # -- writing

    async def start(self) -> None:
        """Register this node in the directory before any client is served.

        So anything that is missing later has a mark.  If the directory does not answer
        within LAST_LINES, the hub starts without it.
        """
        self._task = asyncio.create_task(self._run())
        try:
            await asyncio.wait_for(self._has_begun.wait(), LAST_LINES)
        except TimeoutError:
            log.error("the event log has not started: its directory does not respond", path=self._directory.path)

    async def aclose(self) -> None:
        """Write the rest, if that takes no longer than LAST_LINES, and leave the
        directory.
        """
        self._is_closing = True
        self._woken.set()
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, LAST_LINES)
            except TimeoutError:
                log.error("the event log is incomplete: its directory does not respond", path=self._directory.path)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        """Write rounds until the hub ends and all is written."""
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
            # A connection that is still open may have received a part of the last
            # dispatch.
            is_clean = not self._sessions.count
            await self._in_thread(self._directory.close, await self._beat(position, self._now()), is_clean)
        except OSError as error:
            self._fails(error)

    async def _try_round(self) -> bool | None:
        """Write a round; return whether more can be written, or None if it failed."""
        self._woken.clear()
        position, moment = self._until(), self._now()
        try:
            with contextlib.suppress(HistoryUnavailable):
                await self._updates.find_oldest()
            is_whole = await self._sessions.write(await self._beat(position, moment))
            more = await self._updates.write(closing=self._is_closing) or bool(self._sessions.waiting)
            if is_whole:
                await self._in_thread(self._directory.beat, await self._beat(self._updates.exact(position), moment))
        except HistoryUnavailable:
            return None  # the hub reports it
        except OSError as error:
            self._updates.look_again()
            self._fails(error)
            return None
        except Exception:
            log.exception("a part of the event log was not written")
            return None
        if self._is_failing:
            missing = self._sessions.missing
            log.warning("the event log can be written again", path=self._directory.path, connections_missing=missing)
            self._is_failing = False
        return more

    def _fails(self, error: OSError) -> None:
        """Log the first of several failures."""
        if not self._is_failing:
            log.error("the event log cannot be written; it is tried again", reason=str(error))
        self._is_failing = True

    def _until(self) -> int:
        """Return the position up to which this node has dispatched."""
        position, dispatched = self._live.position, self._live.dispatched
        # At the start or in a new epoch, nothing is dispatched: all connections began
        # there or later.
        return dispatched if dispatched // base.EPOCH == position // base.EPOCH else position

    async def _beat(self, position: int, moment: int) -> LogBeat:
        """Return the beat for a position and a time."""
        epoch = None
        with contextlib.suppress(HistoryUnavailable):
            epoch = await self._marks.epoch(position)
        return LogBeat(self._marks.url, epoch, own_position(position), moment)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` in the log's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

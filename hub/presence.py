"""Presence: announces subscribers, detects dead nodes, lists the present (N120–N137).

    connection begins ─┐                     ┌─► update "active": true
    connection ends   ─┴─► queue, in order ──┤
    node died         ───────► beat ─────────┴─► update "active": false

    history.announce changes the list of subscribers together with each update

One task publishes the announcements in their order, several at a time.  While the
history is unavailable, they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from hub.backpressure import Backpressure
from hub.errors import Closing, HistoryUnavailable
from hub.history import base
from hub.history.base import Change
from hub.protocol.subscriptions import Present
from hub.protocol.updates import EARLIEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hub.broadcaster import Broadcaster
    from hub.history.base import History
    from hub.protocol.updates import Update
    from hub.settings import Settings
    from hub.subscriber import Subscriber

log = structlog.stdlib.get_logger("hub")

SHARE: Final = 8
"""The share of the history's presence updates that each node may have in flight is
1/SHARE."""
BATCH_CHANGES: Final = 256
"""Announcements that are appended together."""
ANNOUNCE_TIMEOUT: Final = 1.0
"""Seconds that a connection waits for its announcement."""


class PresentNow(NamedTuple):
    """The subscribers of all nodes, and a cursor: later changes have later
    announcements.
    """

    cursor: str
    """The id of the newest update, or `earliest`."""
    repeated: bool
    """Whether an older update has the same id, so that the cursor is ambiguous."""
    subscribers: list[Present]


class _Announcement(NamedTuple):
    subscriber: Subscriber
    active: bool
    done: asyncio.Future[None] | None
    """Done when it is published, has failed, or must wait; None if no caller waits for
    it."""


class Presence:
    """The announcements of one node.

    Publishes between `start()` and `aclose()`, if the settings turn presence on.
    """

    def __init__(self, settings: Settings, history: History, broadcaster: Broadcaster) -> None:
        self._settings = settings
        self._history = history
        self._broadcaster = broadcaster
        # The history forgets presence updates early, and many nodes may announce at
        # once.
        self._backpressure = Backpressure(
            broadcaster,
            max_updates=settings.presence_updates // SHARE,
            max_bytes=settings.presence_bytes // SHARE,
        )
        self._queue: asyncio.Queue[_Announcement] = asyncio.Queue()
        """Announcements that are not published yet, oldest first."""
        self._announced: set[str] = set()
        """The ids of this node's subscribers that the history lists as present."""
        self._task: asyncio.Task[None] | None = None
        """The task that publishes the queue; None before the start and after
        the end."""

    def start(self) -> None:
        """Start publishing announcements.  Call it once."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def drained(self) -> None:
        """Wait until every announcement is published or has failed."""
        await self._queue.join()

    async def aclose(self) -> None:
        """Stop publishing.  Announcements that are left fail with Closing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while not self._queue.empty():
            self._settle(self._queue.get_nowait(), Closing())

    async def now(self) -> PresentNow:
        """Return the subscribers of all nodes, and the cursor of the list
        (N135, N137).
        """
        # A subscriber enters the history's list before it is announced, and leaves it
        # before its departure is.  So if the cursor is read first, the list has all
        # changes up to it.
        newest = await self._history.newest()
        repeated = newest is not None and await self._history.find(newest.update.id) != newest.position
        cursor = EARLIEST_ID if newest is None else newest.update.id
        return PresentNow(cursor, repeated, await self._history.present())

    async def arrive(self, subscriber: Subscriber) -> None:
        """Announce a connection, and wait for that, but only for ANNOUNCE_TIMEOUT.

        Raises the error if it is not announced; Closing if this node no longer
        publishes.  If the caller is cancelled, the connection is announced all the
        same.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._announce(subscriber, active=True, done=done)
        if not done.done():
            await asyncio.wait([done], timeout=ANNOUNCE_TIMEOUT)
        if done.done():
            done.result()
        else:
            done.add_done_callback(_log_failure)  # no caller will see the error

    def depart(self, subscriber: Subscriber) -> None:
        """Announce the end of a connection, after all earlier announcements (N120)."""
        self._announce(subscriber, active=False)

    def _announce(self, subscriber: Subscriber, *, active: bool, done: asyncio.Future[None] | None = None) -> None:
        if self._settings.subscriptions and self._task is not None:
            self._queue.put_nowait(_Announcement(subscriber, active, done))
        elif done is not None:
            done.set_exception(Closing()) if self._settings.subscriptions else done.set_result(None)

    async def _run(self) -> None:
        """Publish the queue, and report several times in `node_timeout` that the node
        lives.
        """
        now = asyncio.get_running_loop().time
        every = self._settings.node_timeout / 3
        due = now()
        waiting: list[_Announcement] = []
        try:
            while True:
                if now() >= due:
                    # If many subscribers are gone, only some are announced at a time,
                    # so that a new subscriber does not wait for all of them.
                    due = now() + (0 if await self._beat() else every)
                if self._queue.empty():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(min(due, now() + base.RETRY[1]) if waiting else due):
                            waiting.append(await self._queue.get())
                while len(waiting) < BATCH_CHANGES and not self._queue.empty():
                    waiting.append(self._queue.get_nowait())
                await self._publish_waiting(waiting)
        finally:
            for announcement in waiting:
                self._settle(announcement, Closing())

    async def _publish_waiting(self, waiting: list[_Announcement]) -> None:
        """Publish announcements in order, and remove them; those left must be
        retried.
        """
        while waiting:
            changes = self._together(
                self._change(_present(subscriber), active=active) for subscriber, active, _ in waiting
            )
            batch = waiting[: len(changes)]
            try:
                await self._publish_changes(changes)
            except HistoryUnavailable:  # the connections continue; they are announced later
                for announcement in waiting:
                    if announcement.done is not None:
                        announcement.done.set_result(None)
                waiting[:] = [announcement._replace(done=None) for announcement in waiting]
                return
            except Exception as error:
                for announcement in batch:
                    if announcement.active:
                        self.depart(announcement.subscriber)  # part of it may be published
                    else:
                        # So the next beat finds one subscriber too many in the history.
                        self._announced.discard(announcement.subscriber.id)
                    if announcement.done is None:
                        log.exception("a subscriber could not be announced", id=announcement.subscriber.id)
                    self._settle(announcement, error)
            else:
                for announcement in batch:
                    self._settle(announcement)
            del waiting[: len(batch)]

    def _together(self, changes: Iterable[Change]) -> list[Change]:
        """Return the longest prefix that fits in flight, but always at least one."""
        first: list[Change] = []
        count = size = 0
        for change in islice(changes, BATCH_CHANGES):
            count, size = count + len(change.updates), size + sum(update.size for update in change.updates)
            if first and not self._backpressure.fits(count, size):
                break
            first.append(change)
        return first

    async def _publish_changes(self, changes: Sequence[Change]) -> None:
        """Publish changes together; a single one that is too large follows in parts."""
        rest: list[list[Update]] = []
        if len(changes) == 1:  # alone it may be more than fits in flight
            subscriber, active, updates = changes[0]
            first, *rest = list(self._backpressure.parts(updates)) or [[]]
            changes = [Change(subscriber, active, first)]
        updates = [update for change in changes for update in change.updates]
        entries = await self._backpressure.append(updates, partial(self._history.announce, changes))
        for part in rest if entries else []:
            await self._backpressure.append(part, partial(self._history.append, part, presence=True))
        for subscriber, active, _ in changes:
            if active:
                self._announced.add(subscriber.id)
            else:
                self._announced.discard(subscriber.id)

    def _change(self, subscriber: Present, *, active: bool) -> Change:
        typed_classic = self._settings.typed_classic_events
        subscriptions = subscriber.subscriptions(self._settings.path)
        updates = [one.announcement(active=active, typed_classic=typed_classic) for one in subscriptions]
        return Change(subscriber, active, updates)

    def _settle(self, announcement: _Announcement, error: Exception | None = None) -> None:
        if announcement.done is not None:
            announcement.done.set_result(None) if error is None else announcement.done.set_exception(error)
        self._queue.task_done()

    async def _beat(self) -> bool:
        """Report that this node lives, and repair the list; return if there is more to
        do.

        Subscribers of dead nodes are announced as gone.  If this node was considered
        dead, or the history has lost its list, the node's subscribers are announced
        again.
        """
        try:
            beat = await self._history.beat()
            gone = list(beat.orphans)
            if beat.present != len(self._announced):
                own = await self._history.present(own=True)
                gone += [subscriber for subscriber in own if subscriber.id not in self._announced]
                for id in self._announced - {subscriber.id for subscriber in own}:
                    self._announced.discard(id)
                    if (subscriber := self._broadcaster.subscriber(id)) is not None:
                        self._announce(subscriber, active=True)
            if gone:
                await self._publish_changes(self._together(self._change(one, active=False) for one in gone))
            return bool(gone)
        except HistoryUnavailable as error:
            log.warning("the history does not work", reason=error.reason)
        except Exception:
            log.exception("the check of the other nodes failed")
        return False


def _log_failure(announced: asyncio.Future[None]) -> None:
    if (error := announced.exception()) is not None:
        log.error("a subscriber could not be announced", reason=repr(error))


def _present(subscriber: Subscriber) -> Present:
    payload_for = subscriber.grant.payload_for
    matchers = ((matcher.type, matcher.pattern, payload_for(matcher.pattern)) for matcher in subscriber.subscribed)
    return Present(subscriber.id, tuple(matchers))

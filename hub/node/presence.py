"""Presence: announces the subscribers of all nodes, and lists them (N120–N137).

    connection begins ─┐                     ┌─► update "active": true
    connection ends   ─┴─► queue, in order ──┤
    node died         ───────► beat ─────────┴─► update "active": false

The history keeps the list of present subscribers.  `History.announce` changes the list
and appends the updates about the change in one step.

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

from hub.errors import Closing, HistoryUnavailable
from hub.history import base
from hub.history.base import Change
from hub.node.publish_window import PublishWindow
from hub.protocol.subscriptions import Present
from hub.protocol.topics import may_match_below, subscriptions_path
from hub.protocol.updates import EARLIEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hub.auth.grant import CompiledGrant
    from hub.delivery.audience import Audience
    from hub.delivery.live import Live
    from hub.delivery.subscriber import Subscriber
    from hub.history.base import History
    from hub.node.shares import Held
    from hub.protocol.updates import Update
    from hub.settings import Settings
    from skipfilter import Selector

log = structlog.stdlib.get_logger("hub")

IN_FLIGHT_DIVISOR: Final = 8
"""A node may have in flight 1/8 of the presence updates that the history keeps."""
BATCH_CHANGES: Final = 256
"""The maximum number of announcements that are appended together."""
ANNOUNCE_TIMEOUT: Final = 1.0
"""The maximum seconds that a connection waits for its announcement."""


class Snapshot(NamedTuple):
    """The subscribers of all nodes, and a cursor.

    A client that subscribes with this cursor gets the announcements of all later
    changes (N137).
    """

    cursor: str
    """The id of the newest update, or `earliest`."""
    repeated: bool
    """Whether an older update has the same id, so that the cursor is ambiguous."""
    subscribers: list[Present]


class _Announcement(NamedTuple):
    """An arrival or a departure that is not published yet."""

    subscriber: Subscriber
    active: bool
    """True for an arrival, False for a departure."""
    done: asyncio.Future[None] | None
    """Done when the announcement is published, has failed, or must wait for the
    history; None if no caller waits for it."""


class Presence:
    """The announcements of one node, and the list of the subscribers of all nodes.

    Announcements are published between `start()` and `aclose()`.  If the settings turn
    presence off, no announcement is made.
    """

    def __init__(
        self, settings: Settings, history: History, audience: Audience, live: Live, announcements: Held
    ) -> None:
        self._settings = settings
        self._history = history
        self._audience = audience
        # Presence updates have bounds of their own in the history, smaller than those
        # of published updates.  Many nodes may announce at the same time, so a node
        # takes only a part of them.
        self._window = PublishWindow(
            live,
            max_updates=settings.presence_updates // IN_FLIGHT_DIVISOR,
            max_bytes=settings.presence_bytes // IN_FLIGHT_DIVISOR,
        )
        self._announcements = announcements  # counts the presence updates that are not published yet
        # Announcements that the task has not taken yet, oldest first.
        self._queue: asyncio.Queue[_Announcement] = asyncio.Queue()
        # The ids of this node's subscribers that the history lists as present.
        self._announced: set[str] = set()
        # The task that publishes the queue; None before the start and after the end.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that publishes announcements.  Call it once."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def drained(self) -> None:
        """Wait until every announcement is published or has failed."""
        await self._queue.join()

    async def aclose(self) -> None:
        """Stop publishing; announcements that are left fail with `Closing`.

        A second call does nothing.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while not self._queue.empty():
            self._settle(self._queue.get_nowait(), Closing())

    async def snapshot(self) -> Snapshot:
        """Return the subscribers of all nodes, and the cursor of the list (N135, N137).

        Raises `HistoryUnavailable`.
        """
        # The list never lags behind the announcements.  So if the cursor is read first,
        # the list has all changes up to the cursor, and perhaps later ones.
        newest = await self._history.newest()
        repeated = newest is not None and await self._history.find(newest.update.id) != newest.position
        cursor = EARLIEST_ID if newest is None else newest.update.id
        return Snapshot(cursor, repeated, await self._history.present())

    async def arrive(self, subscriber: Subscriber) -> None:
        """Announce a connection, and wait up to ANNOUNCE_TIMEOUT until it is published.

        If the history is unavailable, or the time is over, the connection is announced
        later.  If the caller is cancelled, the connection is still announced.  Returns
        at once if the settings turn presence off.

        Raises `LimitExceeded` if too many announcements of its client wait, the error
        if the announcement fails, and `Closing` if this node does not publish.
        """
        if not self._settings.subscriptions:
            return
        if subscriber.payer is not None:
            self._announcements.require_more(subscriber.payer, len(subscriber.subscribed))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._announce(subscriber, active=True, done=done)
        if not done.done():
            await asyncio.wait([done], timeout=ANNOUNCE_TIMEOUT)
        if done.done():
            done.result()
        else:
            done.add_done_callback(_log_failure)  # no caller would see the error

    def depart(self, subscriber: Subscriber) -> None:
        """Announce the end of a connection, after all earlier announcements (N120)."""
        if self._settings.subscriptions:
            self._announce(subscriber, active=False)

    def _announce(self, subscriber: Subscriber, *, active: bool, done: asyncio.Future[None] | None = None) -> None:
        """Queue an announcement, unless this node publishes none any more."""
        if self._task is not None:
            if subscriber.payer is not None:
                self._announcements.add(subscriber.payer, len(subscriber.subscribed))
            self._queue.put_nowait(_Announcement(subscriber, active, done))
        elif done is not None:
            done.set_exception(Closing())

    async def _run(self) -> None:
        """Publish the queue, and report three times in `node_timeout` seconds that the
        node is alive.
        """
        now = asyncio.get_running_loop().time
        every = self._settings.node_timeout / 3
        due = now()
        waiting: list[_Announcement] = []  # taken from the queue, and not published yet
        try:
            while True:
                # 1. Report that the node is alive.  If many subscribers are gone, a
                #    beat announces only some of them, and the next beat follows step 3,
                #    so that a new subscriber does not wait for all of them.
                if now() >= due:
                    due = now() + (0 if await self._beat() else every)
                # 2. Wait for an announcement until the next beat or, if announcements
                #    wait for the history, until the next attempt.
                if self._queue.empty():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(min(due, now() + base.RETRY[1]) if waiting else due):
                            waiting.append(await self._queue.get())
                # 3. Publish it, together with others that are already in the queue.
                while len(waiting) < BATCH_CHANGES and not self._queue.empty():
                    waiting.append(self._queue.get_nowait())
                await self._publish_waiting(waiting)
        finally:
            for announcement in waiting:
                self._settle(announcement, Closing())

    async def _publish_waiting(self, waiting: list[_Announcement]) -> None:
        """Publish announcements in order, and remove them from `waiting`.

        If the history is unavailable, the rest stays in the list, and the caller must
        try again.
        """
        while waiting:
            # A batch is the longest beginning of the list that fits in flight.
            changes = self._together(
                self._change(_present(subscriber), active=active) for subscriber, active, _ in waiting
            )
            batch = waiting[: len(changes)]
            try:
                await self._publish_changes(changes)
            except HistoryUnavailable:
                # The connections wait no longer, and are announced when the history is
                # available again.
                for announcement in waiting:
                    if announcement.done is not None:
                        announcement.done.set_result(None)
                waiting[:] = [announcement._replace(done=None) for announcement in waiting]
                return
            except Exception as error:
                # After any other error, parts of the batch may have been published.
                for announcement in batch:
                    if announcement.active:
                        # The arrival may be published: announce its end.
                        self.depart(announcement.subscriber)
                    else:
                        # The history may still list it.  The next beat then finds it in
                        # the list but not here, and announces its end again.
                        self._announced.discard(announcement.subscriber.id)
                    if announcement.done is None:
                        log.exception("a subscriber could not be announced", id=announcement.subscriber.id)
                    self._settle(announcement, error)
            else:
                for announcement in batch:
                    self._settle(announcement)
            del waiting[: len(batch)]

    def _together(self, changes: Iterable[Change]) -> list[Change]:
        """Return the longest prefix of `changes` that fits in flight, but at least one.

        It has up to BATCH_CHANGES changes.  A single change may be too large.
        """
        first: list[Change] = []
        count = size = 0
        for change in islice(changes, BATCH_CHANGES):
            count, size = count + len(change.updates), size + sum(update.size for update in change.updates)
            if first and not self._window.fits(count, size):
                break
            first.append(change)
        return first

    async def _publish_changes(self, changes: Sequence[Change]) -> None:
        """Publish changes together, and note which subscribers the history lists.

        Publishes a single change that is too large in parts, one after the other.
        """
        rest: list[list[Update]] = []
        # Only a single change can be too large.  Its first part also changes the list
        # of present subscribers.
        if len(changes) == 1:
            subscriber, active, updates = changes[0]
            first, *rest = list(self._window.parts(updates)) or [[]]
            changes = [Change(subscriber, active, first)]
        updates = [update for change in changes for update in change.updates]
        entries = await self._window.append(updates, partial(self._history.announce, changes))
        # Without entries, another node announces the departure, with all its updates.
        for part in rest if entries else []:
            await self._window.append(part, partial(self._history.append, part, presence=True))
        for subscriber, active, _ in changes:
            if active:
                self._announced.add(subscriber.id)
            else:
                self._announced.discard(subscriber.id)

    def _change(self, subscriber: Present, *, active: bool) -> Change:
        """Return the arrival or departure of a subscriber, with its updates (N120)."""
        typed_classic = self._settings.typed_classic_events
        subscriptions = subscriber.subscriptions(self._settings.path)
        updates = [one.announcement(active=active, typed_classic=typed_classic) for one in subscriptions]
        return Change(subscriber, active, updates)

    def _settle(self, announcement: _Announcement, error: Exception | None = None) -> None:
        """Mark an announcement as published, or as failed with `error`."""
        if announcement.done is not None:
            announcement.done.set_result(None) if error is None else announcement.done.set_exception(error)
        subscriber = announcement.subscriber
        if subscriber.payer is not None:
            self._announcements.give_back(subscriber.payer, len(subscriber.subscribed))
        self._queue.task_done()

    async def _beat(self) -> bool:
        """Report that this node is alive, and repair the list of present subscribers.

        Returns true if subscribers were announced as gone, because there may be more.
        """
        try:
            # 1. Subscribers of dead nodes are gone.
            beat = await self._history.beat()
            gone = list(beat.orphans)
            # 2. The history lists too many or too few subscribers of this node: the
            #    node was considered dead, the history has lost its list, or an
            #    announcement failed.  Announce those that are too many as gone, and
            #    those that are missing as present again.
            if beat.present != len(self._announced):
                own = await self._history.present(own=True)
                gone += [subscriber for subscriber in own if subscriber.id not in self._announced]
                missing = self._announced - {subscriber.id for subscriber in own}
                self._announced -= missing
                for seat in self._audience if missing else ():
                    if seat.subscriber.id in missing:
                        self._announce(seat.subscriber, active=True)
            # 3. Announce the first of the gone subscribers, up to what fits in flight.
            if gone:
                await self._publish_changes(self._together(self._change(one, active=False) for one in gone))
            return bool(gone)
        except HistoryUnavailable as error:
            log.warning("the history is unavailable; presence waits", reason=error.reason)
        except Exception:
            log.exception("the check of the other nodes failed")
        return False


def may_want_presence(subscribed: Iterable[Selector], grant: CompiledGrant, path: str) -> bool:
    """Return whether a subscriber may receive presence updates.

    `path` is the path of the hub.  Returns True if that is not certain.
    """
    # Presence updates are private: both the subscriptions and the grant must match.
    if not grant.subscribe:
        return False
    below = subscriptions_path(path)
    granted = ((matcher.type, matcher.pattern) for matcher in grant.subscribe)
    return all(any(may_match_below(*selector, below) for selector in selectors) for selectors in (granted, subscribed))


def _log_failure(announced: asyncio.Future[None]) -> None:
    """Log why an announcement failed, if it did."""
    if (error := announced.exception()) is not None:
        log.error("a subscriber could not be announced", reason=repr(error))


def _present(subscriber: Subscriber) -> Present:
    """Return a subscriber of this node as all nodes see it."""
    payload_for = subscriber.grant.payload_for
    matchers = ((matcher.type, matcher.pattern, payload_for(matcher.pattern)) for matcher in subscriber.subscribed)
    return Present(subscriber.id, tuple(matchers))

"""Hub: publish, subscribe, who is there, and the tasks that run it; no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog

from hub.admission import Admission
from hub.auth.authorizer import Authorizer
from hub.backpressure import Backpressure
from hub.broadcaster import LATE, TICK, Broadcaster
from hub.errors import Closing, HistoryUnavailable, InvalidRequest, LimitExceeded, PositionExpired
from hub.event_log.recorder import EventLog
from hub.health import Health
from hub.history.base import EARLIEST, Change, Page
from hub.history.pages import Pages
from hub.protocol import events
from hub.protocol.subscriptions import Present
from hub.protocol.topics import MatcherCompiler
from hub.protocol.updates import check_fields, check_topic
from hub.reading import Reading
from hub.shutdown import Shutdown
from hub.slices import Slices
from hub.subscriber import Subscriber, may_want_presence
from skipfilter import LimitError, PatternError
from skipfilter.errors import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from hub.auth.grant import Grant
    from hub.broadcaster import Receiver
    from hub.history.base import History
    from hub.protocol.topics import TopicMatcher
    from hub.protocol.updates import Update
    from hub.settings import Settings
    from skipfilter import Selector

log = structlog.stdlib.get_logger("hub")

PRESENCE_SHARE: Final = 8
"""The part of the presence updates that the log keeps of which one may wait for dispatch on each node."""
SLICE: Final = 16
"""Streams that are closed between two looks at the other tasks."""
TOPICS_CHECKED: Final = 64
"""Topics of a request that are checked between two looks at the other tasks: each takes up to 40 µs, a long one 200."""
MATCHERS_ASKED: Final = 1_000
"""Matchers of a grant that are asked about topics, likewise: each takes up to 6 µs."""
LAST_WORDS: Final = 2.0
"""Seconds that the announcements of who went may take when the hub has ended."""
ANNOUNCED: Final = 1.0
"""Seconds that a connection waits until its coming is announced."""
TOLD_AT_ONCE: Final = 256
"""Announcements that go into the log together."""
RETRY: Final = 0.2, 1.0
"""Seconds, at random between, after which a log that is unavailable is tried again."""

T = TypeVar("T")


class Presence(NamedTuple):
    cursor: str
    """The id of the newest update, or `earliest`."""
    repeated: bool
    """Whether older updates have that id too, so that it does not tell one moment from another."""
    subscribers: list[Present]


class _Announcement(NamedTuple):
    subscriber: Subscriber
    active: bool
    done: asyncio.Future[None] | None
    """Set when it is published, fails, or has to wait for the log; None if nothing waits for that."""


class Hub:
    """One node of a hub.  Publishing and subscribing work inside `running()`.

    All its mutable state, beside that of its parts: `_announcements`, the subscribers whose coming or going is to be
    published, oldest first; `_told`, the ids of those whom the log knows to be present here; `_left`, the event that
    one has gone; whether it `is_running`; and whether it `_has_place` in the log, which may be away when it starts.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random or Random()  # noqa: S311
        self.history = history
        self.slices = Slices()
        self.admission = Admission(settings, clock=clock, random=self._random)
        self.compiler = MatcherCompiler(
            settings.url,
            max_url_patterns=settings.max_url_patterns,
            reclaim=lambda: self.authorizer.forget(),
            slices=self.slices,
        )
        self.authorizer = Authorizer(settings, self.compiler, clock=wall_clock, monotonic=clock)
        self.broadcaster = Broadcaster(
            heartbeat=settings.heartbeat,
            cached_topics=settings.cached_topics,
            base_url=settings.url,
            clock=clock,
        )
        self.backpressure = Backpressure(
            self.broadcaster,
            max_updates=settings.history_updates // 2,
            max_bytes=settings.history_bytes // 2,
        )
        self.shutdown = Shutdown(self.broadcaster, drain=settings.drain, clock=clock, random=self._random)
        self.health = Health(history, self.shutdown, clock=clock)
        # The log forgets presence updates sooner, and many nodes may announce at once.
        self._presence_backpressure = Backpressure(
            self.broadcaster,
            max_updates=settings.presence_updates // PRESENCE_SHARE,
            max_bytes=settings.presence_bytes // PRESENCE_SHARE,
        )
        self.event_log = (
            EventLog(settings, history, self.broadcaster, self.slices, clock=clock, wall_clock=wall_clock)
            if settings.event_log
            else None
        )
        self._announcements: asyncio.Queue[_Announcement] = asyncio.Queue()
        self._told: set[str] = set()
        self._has_place = False
        self._left = asyncio.Event()
        self.is_running = False

    # -- updates

    async def publish(self, *updates: Update, grant: Grant | None = None) -> None:
        """Append `updates` to the log, for all nodes: all of them, one after the other, or with an error none.

        Without `grant` it is the program itself that publishes, and may do so to every topic.  Raises
        InvalidRequest for an update that nobody may send, InsufficientScope for one that the grant does not
        allow, TooLarge for more than the hub takes at once, and Closing while the hub is shutting down.  Waits
        while dispatch is far behind the log, and never for a subscriber.
        """
        if self.shutdown.is_closing:
            raise Closing
        await self._check_updates(updates)
        if grant is not None:
            await self._require_publish(updates, grant)
        publisher = "" if grant is None else grant.publisher
        await self.backpressure.append(updates, partial(self.history.append, updates, publisher=publisher))
        if log.isEnabledFor(logging.DEBUG):
            for update in updates:
                about = {"topics": update.topics, "type": update.type, "private": update.private}
                log.debug("update published", id=update.id, **about)

    async def _check_updates(self, updates: Sequence[Update]) -> None:
        """Raise InvalidRequest for the first update that nobody may send."""
        left = TOPICS_CHECKED
        for number, update in enumerate(updates, 1):
            try:
                for topic in update.topics:
                    if not left:
                        await asyncio.sleep(0)
                        left = TOPICS_CHECKED
                    left -= 1
                    check_topic(topic, path=self.settings.path)
                check_fields(update)
            except InvalidRequest as error:
                raise InvalidRequest(f"update {number}: {error}" if len(updates) > 1 else str(error)) from None

    async def _require_publish(self, updates: Sequence[Update], grant: Grant) -> None:
        """Raise InsufficientScope unless every topic of `updates` may be published to (N80)."""
        left = MATCHERS_ASKED
        for update in updates:
            for topic in update.topics:
                if left <= 0:
                    await asyncio.sleep(0)
                    left = MATCHERS_ASKED
                left -= len(grant.publish)
                grant.require_publish(topic)

    # -- subscribers

    async def subscribe(
        self,
        selectors: Sequence[Selector],
        grant: Grant,
        last_event_id: str | None = None,
        *,
        address: str = "",
    ) -> tuple[Subscriber, str | None]:
        """Admit a subscriber; return it with its place in the log, and the id of the event before its first one.

        Without `last_event_id` its place is now, and there is no id.  With an empty one the place is now too, and the
        id is `earliest` (N107).  With an id, the place is after the earliest event of that id (N115).  If the log does
        not know the id, or no longer, or has forgotten presence updates since that the subscriber may want, the id is
        `earliest` (N108), and the place is before the earliest event: what the subscriber has missed is among those, if
        it is left; or now, if the settings say so (N109).

        `address` is the client that the connection counts for if the token has no subject (N23).  While the hub is
        shutting down a client may still subscribe, and the stream ends at once: EventSource comes back after an end,
        and stays away for ever after a 503.

        The subscriber counts until its connection is over, or it leaves.  Raises LimitExceeded, Busy,
        InvalidRequest for a pattern that its type refuses, and HistoryUnavailable; then it does not count.
        """
        ticket = self.admission.admit(f"address {address}" if grant.subject is None else f"subject {grant.subject}")
        try:
            matchers = await self._compile(selectors)
            presence = may_want_presence(selectors, grant, self.settings.path)
            position, preceding = await self.place(last_event_id, presence=presence)
        except BaseException:
            ticket.give_back()
            raise
        deadline, lapse = self._deadline(grant)
        subscriber = Subscriber(
            matchers,
            grant,
            position,
            ticket=ticket,
            deadline=deadline,
            lapse=lapse,
            presence_after=position if presence else math.inf,
        )
        return subscriber, preceding

    async def _compile(self, selectors: Sequence[Selector]) -> Iterable[TopicMatcher]:
        """Return the matchers of a request.  Raises InvalidRequest and LimitExceeded."""
        try:
            return (await self.compiler.compile_all(selectors)).values()
        except PatternError as error:
            if error.matcher_type == "urlpattern":  # whose reason is the compiler's own text (N17)
                raise InvalidRequest(f"{shown(error.pattern)} is no URL Pattern that this hub takes") from None
            raise InvalidRequest(str(error)) from None

    async def place(self, last_event_id: str | None, *, presence: bool) -> tuple[int, str | None]:
        """Return where a subscriber with this cursor begins, and the id of the event before its first one.

        `presence` says whether it may want presence updates.
        """
        if not self._has_place:
            raise HistoryUnavailable("it has not been there since this node was started")
        if not last_event_id:
            return await self._end(), None if last_event_id is None else "earliest"
        if last_event_id != "earliest":
            if (found := await self.history.find(last_event_id, presence=presence)) is not None:
                return found, last_event_id
            log.info("cursor not found", last_event_id=f"{last_event_id:.80}")
            if not self.settings.replay_unknown:
                return await self._end(), "earliest"
        # In a log without entries, the place before all of them is its end.  The end is asked for first: there may be
        # an entry by the second question.
        end = await self.history.end()
        return EARLIEST if await self.history.newest() else end, "earliest"

    async def _end(self) -> int:
        """Return the place after every update whose publish was answered, though it may not be dispatched yet."""
        try:
            return await self.history.end()
        except HistoryUnavailable:  # then nothing is answered either
            return self.broadcaster.position

    def _deadline(self, grant: Grant) -> tuple[float, str]:
        """When a connection that begins now ends, by the clock, and why (N82, R33)."""
        now, lifetime = self._clock(), self.settings.max_lifetime
        expires = math.inf if grant.expires is None else now + grant.expires - self._wall_clock()
        # Less a random fifth, lest those that came together come back together, for ever.
        lapses = now + lifetime * self._random.uniform(0.8, 1.0) if lifetime else math.inf
        return (expires, "its token expires") if expires <= lapses else (lapses, "it has lasted as long as it may")

    def retry_hint(self) -> bytes:
        """What tells a client when to come back, at random around the setting (N30); b"" for no hint."""
        seconds = self.settings.retry
        return events.retry(seconds * self._random.uniform(0.5, 1.5)) if seconds else b""

    async def connect(self, receiver: Receiver) -> None:
        """Take a connection in, and then announce its subscriptions (N127): so it may see its own arrival.

        A log that is unavailable or slow keeps no connection waiting: the coming is announced when the log works.
        Raises LimitExceeded for patterns that are too much like others, and the subscriber does not count then.
        """
        self._take_in(receiver)
        if receiver.subscriber.position != EARLIEST:
            self.is_placed(receiver)
        announced = asyncio.get_running_loop().create_future()
        self._announce(receiver.subscriber, active=True, done=announced)
        try:
            # Not cancelled with this task: the subscriber may be listed already, so its coming is announced anyway.
            if not announced.done():
                await asyncio.wait([announced], timeout=ANNOUNCED)
            if announced.done():
                announced.result()
            else:
                announced.add_done_callback(_report)  # nothing else asks for it any more
        except asyncio.CancelledError:
            self.disconnect(receiver)
            raise
        except BaseException:
            self._forget(receiver)
            raise

    @contextlib.contextmanager
    def connected(self, receiver: Receiver) -> Iterator[None]:
        """Take a connection in for as long as this is entered, and announce nothing.  Raises as `connect`."""
        self._take_in(receiver)
        try:
            yield
        finally:
            self._let_go(receiver)

    def _take_in(self, receiver: Receiver) -> None:
        try:
            self.broadcaster.connect(receiver)
        except LimitError as error:
            receiver.subscriber.leave()
            raise LimitExceeded(str(error)) from None
        expires = receiver.subscriber.grant.expires
        if expires is not None and expires - LATE <= self._wall_clock():
            receiver.close("its token expires")  # before the next look at the clock, which may come too late (N82)

    def _let_go(self, receiver: Receiver) -> None:
        self.broadcaster.disconnect(receiver)
        self._left.set()
        receiver.subscriber.leave()

    def is_placed(self, receiver: Receiver) -> None:
        """Take note of where a connection begins, when that is known."""
        if self.event_log is not None:
            self.event_log.came(receiver)

    def disconnect(self, receiver: Receiver) -> None:
        """Forget a connection, and announce that its subscriptions have ended."""
        self._forget(receiver)
        self._announce(receiver.subscriber, active=False)

    def _announce(self, subscriber: Subscriber, *, active: bool, done: asyncio.Future[None] | None = None) -> None:
        """Have its coming or going published, after all that was to be announced before (N120)."""
        if self.settings.subscriptions and self.is_running:
            self._announcements.put_nowait(_Announcement(subscriber, active, done))
        elif done is not None:
            done.set_exception(Closing()) if self.settings.subscriptions else done.set_result(None)

    async def _publish_announcements(self) -> None:
        """Tell the log who comes and who goes, and a few times in `node_timeout` seconds that this node is alive."""
        now = asyncio.get_running_loop().time
        every = self.settings.node_timeout / 3
        due = now()
        waiting: list[_Announcement] = []
        try:
            while True:
                if now() >= due:
                    # Many who are gone are announced some at a time, so that who comes need not wait for all.
                    due = now() + (0 if await self._beat() else every)
                if self._announcements.empty():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(min(due, now() + RETRY[1]) if waiting else due):
                            waiting.append(await self._announcements.get())
                while len(waiting) < TOLD_AT_ONCE and not self._announcements.empty():
                    waiting.append(self._announcements.get_nowait())
                await self._publish_waiting(waiting)
        finally:  # the hub has ended
            for announcement in waiting:
                self._settle(announcement, Closing())

    async def _publish_waiting(self, waiting: list[_Announcement]) -> None:
        """Publish announcements in order, as many at once as there is room for; what is left is to be tried again."""
        while waiting:
            changes = self._together(
                self._change(_present(subscriber), active=active) for subscriber, active, _ in waiting
            )
            batch = waiting[: len(changes)]
            try:
                await self._publish_changes(changes)
            except HistoryUnavailable:  # the connections go on, and are announced when the log works
                for announcement in waiting:
                    if announcement.done is not None:
                        announcement.done.set_result(None)
                waiting[:] = [announcement._replace(done=None) for announcement in waiting]
                return
            except Exception as error:
                for announcement in batch:
                    if announcement.active:
                        self._announce(announcement.subscriber, active=False)  # a part of it may have been told
                    else:
                        self._told.discard(announcement.subscriber.id)  # so the next beat finds one too many
                    if announcement.done is None:
                        log.exception("a subscriber could not be announced", id=announcement.subscriber.id)
                    self._settle(announcement, error)
            else:
                for announcement in batch:
                    self._settle(announcement)
            del waiting[: len(batch)]

    def _together(self, changes: Iterable[Change]) -> list[Change]:
        """The first of them that there is room for at once; one at least, which may be more than that."""
        first: list[Change] = []
        count = size = 0
        for change in islice(changes, TOLD_AT_ONCE):
            count, size = count + len(change.updates), size + sum(update.size for update in change.updates)
            if first and not self._presence_backpressure.fits(count, size):
                break
            first.append(change)
        return first

    async def _publish_changes(self, changes: Sequence[Change]) -> None:
        rest: list[list[Update]] = []
        if len(changes) == 1:  # which may be more than there is room for at once
            subscriber, active, updates = changes[0]
            first, *rest = list(self._presence_backpressure.parts(updates)) or [[]]
            changes = [Change(subscriber, active, first)]
        updates = [update for change in changes for update in change.updates]
        entries = await self._presence_backpressure.append(updates, partial(self.history.announce, changes))
        for part in rest if entries else []:
            await self._presence_backpressure.append(part, partial(self.history.append, part, presence=True))
        for subscriber, active, _ in changes:
            if active:
                self._told.add(subscriber.id)
            else:
                self._told.discard(subscriber.id)

    def _change(self, subscriber: Present, *, active: bool) -> Change:
        typed_classic = self.settings.typed_classic_events
        subscriptions = subscriber.subscriptions(self.settings.path)
        updates = [one.announcement(active=active, typed_classic=typed_classic) for one in subscriptions]
        return Change(subscriber, active, updates)

    def _settle(self, announcement: _Announcement, error: Exception | None = None) -> None:
        if announcement.done is not None:
            announcement.done.set_result(None) if error is None else announcement.done.set_exception(error)
        self._announcements.task_done()

    async def _beat(self) -> bool:
        """Say that this node is alive, and see to what is not as it should be; whether there is more to see to.

        Who was present on a node that is dead is announced as gone.  If it was this one that was taken for dead, or
        the log has lost what it knew, its subscribers are announced again.
        """
        try:
            beat = await self.history.beat()
            gone = list(beat.orphans)
            if beat.present != len(self._told):
                own = await self.history.present(own=True)
                gone += [subscriber for subscriber in own if subscriber.id not in self._told]
                for id in self._told - {subscriber.id for subscriber in own}:
                    self._told.discard(id)
                    if (subscriber := self.broadcaster.subscriber(id)) is not None:
                        self._announce(subscriber, active=True)
            if gone:
                await self._publish_changes(self._together(self._change(one, active=False) for one in gone))
            return bool(gone)
        except HistoryUnavailable as error:
            log.warning("the log does not work", reason=error.reason)
        except Exception:
            log.exception("a look at the other nodes failed")
        return False

    def _forget(self, receiver: Receiver) -> None:
        if self.event_log is not None:
            if receiver.subscriber.position == EARLIEST:  # it has read nothing
                receiver.subscriber.position = self.broadcaster.position
                self.is_placed(receiver)
            self.event_log.went(receiver)
        self._let_go(receiver)

    async def presence(self) -> Presence:
        """Who is connected, on all nodes, and the cursor after which all that changes it is announced (N135, N137)."""
        # Whoever comes is taken in before that is announced, and whoever goes is forgotten before: so what the
        # log says up to the cursor is in the list, if the cursor is taken first.
        newest = await self.history.newest()
        repeated = newest is not None and await self.history.find(newest.update.id) != newest.position
        cursor = "earliest" if newest is None else newest.update.id
        return Presence(cursor, repeated, await self.history.present())

    def reading(self, receiver: Receiver) -> Reading:
        """Return a walk through the log, from the receiver's place to where this node has dispatched."""
        subscriber = receiver.subscriber
        passes = partial(self.broadcaster.passes, receiver)
        return Reading(self._read, passes, subscriber, subscriber.position, self.slices)

    async def _read(self, after: int) -> Page:
        """Return the next page after a position; empty if this node has dispatched no further.

        Waits while the log is unavailable.  Raises PositionExpired if entries of it are gone.
        """
        while after != (dispatched := self.broadcaster.position):
            page = await self._patiently(partial(self._pages.read, after))
            entries = [entry for entry in page if entry.position <= self.broadcaster.position]
            if entries:
                return Page(entries, forgotten=page.forgotten)
            if dispatched == self.broadcaster.position:  # what there is to read was appended and not yet dispatched
                await self.broadcaster.moved()
        return Page()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the log and the clock for as long as it is entered; once only."""
        self._pages = Pages(self.history)
        try:
            await self._find_place()
        except HistoryUnavailable as error:
            log.warning("the log is not there yet; until it is, nobody is served", reason=error.reason)
        tasks = [asyncio.create_task(run()) for run in (self._follow, self._keep_time, self._publish_announcements)]
        try:
            if self.event_log is not None:
                await self.event_log.start()
            self.is_running = True
            yield
        finally:
            self.shutdown.begin(at_once=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._last_words(), LAST_WORDS)
            self.is_running = False
            await self.shutdown.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while not self._announcements.empty():
                self._settle(self._announcements.get_nowait(), Closing())
            await self.authorizer.aclose()
            if self.event_log is not None:
                await self.event_log.aclose()
            await self.history.aclose()

    async def _find_place(self) -> None:
        self.broadcaster.move_to(await self.history.end())
        self._has_place = True

    async def _last_words(self) -> None:
        """Wait until all streams have ended, and that is announced."""
        while self.broadcaster.connected:
            self._left.clear()
            await self._left.wait()
        await self._announcements.join()

    async def _follow(self) -> None:
        while True:
            try:
                if not self._has_place:
                    await self._find_place()
                async for entries in self.history.follow(self.broadcaster.position):
                    try:
                        await self.broadcaster.dispatch(entries)
                    except Exception:
                        if self.broadcaster.position == entries[-1].position:  # halfway: who was not written to is lost
                            await self._close_all("a dispatch failed")
                        raise
                    if self.event_log is not None:
                        self.event_log.dispatched(entries)
            except PositionExpired as error:
                # Entries are gone that nobody was sent: whoever comes back is told so by its cursor (N108).
                log.error("dispatch fell behind the log; all streams are closed", reason=str(error))
                await self._patiently(self._find_place)
                await self._close_all("updates were lost")
            except HistoryUnavailable as error:
                if self._has_place:
                    log.warning("the log cannot be followed", reason=error.reason)
                await asyncio.sleep(self._random.uniform(*RETRY))
            except Exception:
                log.exception("dispatch failed")
                await asyncio.sleep(TICK)

    async def _close_all(self, reason: str) -> None:
        """End all streams: whoever comes back goes on from its cursor."""
        for count, subscriber in enumerate(self.broadcaster.subscribers(), 1):
            self.broadcaster.close(subscriber.id, reason)
            if count % SLICE == 0:
                await asyncio.sleep(0)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask()` returns, as soon as the log is available."""
        while True:
            try:
                return await ask()
            except HistoryUnavailable:
                await asyncio.sleep(self._random.uniform(*RETRY))

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                await self.broadcaster.tick()
            except Exception:
                log.exception("a round of heartbeats failed")


def _report(announced: asyncio.Future[None]) -> None:
    if (error := announced.exception()) is not None:
        log.error("a subscriber could not be announced", reason=repr(error))


def _present(subscriber: Subscriber) -> Present:
    payload_for = subscriber.grant.payload_for
    matchers = ((matcher.type, matcher.pattern, payload_for(matcher.pattern)) for matcher in subscriber.subscribed)
    return Present(subscriber.id, tuple(matchers))

"""Hub: publish and subscribe on one node, without HTTP.

publish    ─► backpressure ─► history.append
subscribe  ─► admission ─► compiler ─► the position in the history where it starts
connect    ─► broadcaster, presence
running    ─► dispatcher: history ─► broadcaster     presence: announcements ─► history
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import structlog

from hub.admission import Admission
from hub.auth.authorizer import Authorizer
from hub.backpressure import Backpressure
from hub.broadcaster import LATE, TICK, Broadcaster
from hub.dispatcher import Dispatcher
from hub.errors import Closing, HistoryUnavailable, InvalidRequest, LimitExceeded
from hub.event_log.recorder import EventLog
from hub.health import Health
from hub.history.base import EARLIEST
from hub.presence import Presence
from hub.protocol.topics import MatcherCompiler
from hub.protocol.updates import EARLIEST_ID, check_fields, check_topic
from hub.reading import Reading
from hub.shutdown import Shutdown
from hub.slices import Slices
from hub.subscriber import Subscriber, may_want_presence
from skipfilter import LimitError, PatternError
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from hub.auth.grant import Grant
    from hub.broadcaster import Receiver
    from hub.history.base import History
    from hub.protocol.topics import TopicMatcher
    from hub.protocol.updates import Update
    from hub.settings import Settings
    from skipfilter import Selector

log = structlog.stdlib.get_logger("hub")

TOPICS_CHECKED: Final = 64
"""Topics of a request that are checked before other tasks may run.

Each takes up to 40 µs, and a long one 200.
"""
MATCHERS_ASKED: Final = 1_000
"""Matchers of a grant that are tried on topics before other tasks may run: 6 µs
each."""
LAST_WORDS: Final = 2.0
"""Seconds that the last announcements of departures may take when the hub ends."""


class Hub:
    """One node of a hub.  Publishing and subscribing work inside of `running()`."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        random = random or Random()  # noqa: S311
        self.settings = settings
        self.history = history
        self.is_running = False
        self.slices = Slices()
        self.compiler = MatcherCompiler(
            settings.url,
            max_url_patterns=settings.max_url_patterns,
            reclaim=lambda: self.authorizer.forget(),
            slices=self.slices,
        )
        self.authorizer = Authorizer(settings, self.compiler, clock=wall_clock, monotonic=clock)
        self.admission = Admission(settings, clock=clock, wall_clock=wall_clock, random=random)
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
        self.event_log = (
            EventLog(settings, history, self.broadcaster, self.slices, clock=clock, wall_clock=wall_clock)
            if settings.event_log
            else None
        )
        self.dispatcher = Dispatcher(history, self.broadcaster, self.event_log, random=random)
        self.shutdown = Shutdown(self.broadcaster, drain=settings.drain, clock=clock, random=random)
        self.health = Health(history, self.shutdown, clock=clock)
        self.presence = Presence(settings, history, self.broadcaster)

    # -- updates

    async def publish(self, *updates: Update, grant: Grant | None = None) -> None:
        """Append `updates` to the history for all nodes: all of them, or with an error
        none.

        Without `grant` the program itself publishes, and may do so to every topic.
        Waits while dispatch is far behind the history, but never for a subscriber.

        Raises InvalidRequest if an update breaks a rule, InsufficientScope if the grant
        does not allow one, TooLarge if they are more than the hub accepts at once,
        Closing if the hub is shutting down, and HistoryUnavailable.
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
        """Raise InvalidRequest for the first update that breaks a rule."""
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
        """Raise InsufficientScope unless every topic of `updates` may be published to
        (N80).
        """
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
        """Admit a subscriber; return it, and the id of the event before its first one.

        Without `last_event_id` it starts at the end of the history, and the id is None.
        With an empty one it starts there too, and the id is `earliest` (N107).  With an
        id that the history has, it starts after the earliest event with that id (N115).
        If the history does not have the id, or has forgotten later presence updates
        that the subscriber may want, the returned id is `earliest` (N108).  The
        subscriber then starts before the earliest event, and so gets all that is left
        of the updates it missed; or at the end, if the settings say so (N109).

        `address` is the client that the connection counts for if the token has no
        subject (N23).  While the hub is shutting down, a client may still subscribe,
        and the stream ends at once: EventSource reconnects after an end, but never
        after a 503.

        The subscriber counts until its connection ends, or `leave` is called.  Raises
        LimitExceeded, Busy, InvalidRequest if a type refuses its pattern, and
        HistoryUnavailable; then it does not count.
        """
        ticket = self.admission.admit(f"address {address}" if grant.subject is None else f"subject {grant.subject}")
        try:
            matchers = await self._compile(selectors)
            presence = may_want_presence(selectors, grant, self.settings.path)
            position, preceding = await self.find_start(last_event_id, presence=presence)
        except BaseException:
            ticket.give_back()
            raise
        deadline, lapse = self.admission.deadline(grant)
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
        """Return the matchers of a request.

        Raises InvalidRequest and LimitExceeded.
        """
        try:
            return (await self.compiler.compile_all(selectors)).values()
        except PatternError as error:
            if error.matcher_type == "urlpattern":  # the reason is the compiler's text (N17)
                raise InvalidRequest(f"{shown(error.pattern)} is not a URL Pattern that this hub accepts") from None
            raise InvalidRequest(str(error)) from None

    async def find_start(self, last_event_id: str | None, *, presence: bool) -> tuple[int, str | None]:
        """Return the position at which a cursor starts, and the id of the event before
        it.

        `presence` is whether the subscriber may want presence updates.
        """
        if not self.dispatcher.is_ready:
            raise HistoryUnavailable("it has not been available since this node started")
        if not last_event_id:
            return await self._end(), None if last_event_id is None else EARLIEST_ID
        if last_event_id != EARLIEST_ID:
            if (found := await self.history.find(last_event_id, presence=presence)) is not None:
                return found, last_event_id
            log.info("cursor not found", last_event_id=f"{last_event_id:.80}")
            if not self.settings.replay_unknown:
                return await self._end(), EARLIEST_ID
        # In an empty history, the position before all entries is its end.  Read the end
        # first: an entry may be added before the second read.
        end = await self.history.end()
        return EARLIEST if await self.history.newest() else end, EARLIEST_ID

    async def _end(self) -> int:
        """Return the position after every update whose publisher has its answer.

        These updates may not be dispatched yet.
        """
        try:
            return await self.history.end()
        except HistoryUnavailable:  # then no publisher gets an answer either
            return self.broadcaster.position

    # -- connections

    async def connect(self, receiver: Receiver) -> None:
        """Add a connection, and then announce its subscriptions (N127).

        So a subscriber may receive its own announcement.  A history that is unavailable
        or slow delays no connection: it is announced when the history works.  Raises
        LimitExceeded if its patterns are too similar to others; the subscriber does not
        count then.
        """
        self._take_in(receiver)
        if receiver.position != EARLIEST:
            self.begins(receiver)
        try:
            await self.presence.arrive(receiver.subscriber)
        except asyncio.CancelledError:
            self.disconnect(receiver)
            raise
        except BaseException:
            self._forget(receiver)
            raise

    @contextlib.contextmanager
    def connected(self, receiver: Receiver) -> Iterator[None]:
        """Add a connection inside of the context, and announce nothing.

        Raises as `connect`.
        """
        self._take_in(receiver)
        try:
            yield
        finally:
            self._let_go(receiver)

    def begins(self, receiver: Receiver) -> None:
        """Record the position where a connection begins, as soon as it is known."""
        if self.event_log is not None:
            self.event_log.connected(receiver, receiver.position)

    def reading(self, receiver: Receiver) -> Reading:
        """Return a walk through the history, from the receiver's position to
        the end.
        """
        passes = partial(self.broadcaster.passes, receiver)
        return Reading(self.dispatcher.read, passes, receiver.subscriber, receiver.position, self.slices)

    def disconnect(self, receiver: Receiver) -> None:
        """Forget a connection, and announce that its subscriptions have ended."""
        self._forget(receiver)
        self.presence.depart(receiver.subscriber)

    def _take_in(self, receiver: Receiver) -> None:
        try:
            self.broadcaster.connect(receiver)
        except LimitError as error:
            receiver.subscriber.leave()
            raise LimitExceeded(str(error)) from None
        if self.admission.expires_within(LATE, receiver.subscriber.grant):
            # Now: the next round of the clock may come too late (N82).
            receiver.close("its token expires")

    def _forget(self, receiver: Receiver) -> None:
        if self.event_log is not None:
            position, more = receiver.delivered()
            if position == EARLIEST:  # it has read nothing
                position = self.broadcaster.position
                self.event_log.connected(receiver, position)
            self.event_log.disconnected(receiver, position, more)
        self._let_go(receiver)

    def _let_go(self, receiver: Receiver) -> None:
        self.broadcaster.disconnect(receiver)
        receiver.subscriber.leave()

    # -- running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the history and the clock inside of the context.

        Enter it once only.
        """
        await self.dispatcher.start()
        tasks = [asyncio.create_task(run()) for run in (self.dispatcher.run, self._keep_time)]
        self.presence.start()
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
            await self.presence.aclose()
            await self.shutdown.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.authorizer.aclose()
            if self.event_log is not None:
                await self.event_log.aclose()
            await self.history.aclose()

    async def _last_words(self) -> None:
        """Wait until all streams have ended, and all departures are announced."""
        await self.broadcaster.emptied()
        await self.presence.drained()

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                await self.broadcaster.tick()
            except Exception:
                log.exception("a round of heartbeats failed")

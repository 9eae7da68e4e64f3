"""Hub: publish and subscribe on one node, without HTTP.

    publish    ─► checks ─► window ─► history.append
    subscribe  ─► admission ─► compiler ─► the start position in the history
    running    ─► delivery: history ─► streams
                  presence: announcements ─► history

The Hub makes its parts, and decides in which order they do their work.  A subscriber
gets its updates from `delivery`, and `http` adds the protocol's HTTP interface.

Belongs here: the order of parts.  Does not belong here: anything that one part can do
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Final

from hub import turns
from hub.auth.authorizer import Authorizer
from hub.auth.grant import ANONYMOUS, CompiledGrant
from hub.clocks import since_boot
from hub.delivery.audience import Audience
from hub.delivery.delivery import Delivery
from hub.delivery.live import Live
from hub.delivery.local_reader import LocalReader
from hub.delivery.log_lines import LogLines
from hub.delivery.observer import Observers
from hub.delivery.subscriber import Payer, Subscriber, payer_for
from hub.errors import Closing, HistoryUnavailable, InvalidRequest, NotRunning
from hub.event_log.recorder import EventLog
from hub.history.cursor import find_start
from hub.node.admission import Admission
from hub.node.health import Health
from hub.node.matchers import MatcherCompiler
from hub.node.presence import Presence, may_want_presence
from hub.node.publish_window import PublishWindow
from hub.node.shares import Shares
from hub.node.shutdown import Shutdown
from hub.protocol.topics import WILDCARD
from hub.protocol.updates import check_fields, check_topic
from hub.turns import FairTurns, TimeSlices
from skipfilter import PatternError
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from hub.delivery.observer import Observer
    from hub.history.base import History
    from hub.history.cursor import Start
    from hub.logs import LogContext
    from hub.node.admission import Ticket
    from hub.protocol.topics import TopicMatcher
    from hub.protocol.updates import Update
    from hub.settings import Settings
    from skipfilter import Selector

LAST_ANNOUNCEMENTS_SECONDS: Final = 2.0
"""Seconds that the end of `running` waits for the last streams and their announcements.

Other nodes announce the departures that are still missing then.
"""


class Hub:
    """One node of a hub.

    Publishing and subscribing work only inside of `running()`, which also closes
    `history` at its end.  `clock` returns monotonic seconds, and `wall_clock` seconds
    since the epoch.  A hub must be used from one event loop.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        *,
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        random = random or Random()  # noqa: S311
        self.settings = settings
        self.history = history
        self.wall_clock = wall_clock
        self._clock = clock
        self._has_begun = False  # whether `running` was ever entered
        self.is_running = False  # whether streams and publishers are served
        self.slices = TimeSlices()
        self.shares = Shares(settings, clock=clock)
        self.compiler = MatcherCompiler(
            settings.url, url_patterns=self.shares.url_patterns, matchers=self.shares.matchers, slices=self.slices
        )
        self.authorizer = Authorizer(settings, self.compiler, clock=wall_clock, monotonic=clock)
        self.compiler.reclaim = self.authorizer.forget  # verified tokens hold matchers
        self.admission = Admission(settings, self.shares, clock=clock, wall_clock=wall_clock, random=random)
        audience = Audience(
            settings.url,
            cached_topics=settings.cached_topics,
            cached_topics_bytes=settings.cached_topics_bytes,
            max_alike=settings.max_alike // 2,  # below that, no share applies
        )
        live = Live(audience, clock=clock)
        # Publishers may be ahead of dispatch by half of what the history keeps, so that
        # the history forgets no update before it is dispatched.
        self.window = PublishWindow(
            live, max_updates=settings.history_updates // 2, max_bytes=settings.history_bytes // 2
        )
        observers: list[Observer] = []
        if settings.event_log:
            observers.append(EventLog(settings, history, live, self.slices, clock=clock, wall_clock=wall_clock))
        self._log_lines = LogLines(audience, publishes=settings.log_publishes, large=settings.large_update, clock=clock)
        self.observer = Observers(*observers, self._log_lines)
        self.publisher_turns = FairTurns(clock)
        self.presence = Presence(settings, history, audience, live, self.shares.announcements)
        self.delivery = Delivery(
            history,
            audience,
            live,
            observer=self.observer,
            announcer=self.presence,
            slices=self.slices,
            turns=FairTurns(clock),
            first_bytes=self.admission.first_bytes,
            heartbeat=settings.heartbeat,
            write_interval=settings.write_interval,
            clock=clock,
            wall_clock=wall_clock,
            random=random,
        )
        self.shutdown = Shutdown(self.delivery, drain=settings.drain, clock=clock, random=random)
        self.health = Health(history, self.shutdown, clock=clock)

    def observe(self, observer: Observer) -> None:
        """Add an observer, before the hub runs."""
        self.observer.all += (observer,)

    # -- updates

    async def publish(self, *updates: Update, grant: CompiledGrant | None = None) -> None:
        """Append `updates` to the history, from which all nodes dispatch them.

        They are appended in order, in one step.  With an idempotency window, updates
        whose id the same publisher has already used are left out.  Without `grant`, the
        program itself publishes, and may publish to every topic.

        Waits while dispatch is far behind the history, but never for a subscriber.

        Raises `InvalidRequest` if an update breaks a rule, `InsufficientScope` if the
        grant does not cover a topic, `TooLarge` if there are more updates than the hub
        accepts at once, `NotRunning` before `running`, and `Closing` if the hub is
        shutting down.  If it raises `HistoryUnavailable` or is cancelled, the updates
        may have been appended.
        """
        await self.check(updates, grant)
        await self.append(updates, grant)

    async def append(self, updates: Sequence[Update], grant: CompiledGrant | None) -> None:
        """Publish updates that are checked; see `publish`."""
        publisher = "" if grant is None else grant.publisher
        began = self._clock()
        self._log_lines.trace(updates)
        stored = await self.window.append(updates, partial(self.history.append, updates, publisher=publisher))
        self.observer.published(updates, len(stored), self._clock() - began)
        if len(updates) != 1 or updates[0].size > self.settings.large_update:
            self._log_lines.warn_of_size(updates, publisher)

    async def check(self, updates: Sequence[Update], grant: CompiledGrant | None) -> None:
        """Raise `InvalidRequest` for the first update that breaks a rule.

        Then raise `InsufficientScope` if the grant does not cover every topic (N80).
        Raises `NotRunning`, `Closing`, and `LimitExceeded` as `publish` does.
        """
        if self.shutdown.is_closing:
            raise Closing
        if not self.is_running:
            raise NotRunning
        if grant is not None:
            self.shares.publishes.take(grant.publisher, len(updates))
        # 1. One update with a topic, as in most requests, takes no time.
        if len(updates) == 1 and len(updates[0].topics) == 1 and (grant is None or len(grant.publish) == 1):
            update = updates[0]
            check_topic(update.topics[0], path=self.settings.path)
            check_fields(update)
            if grant is not None:
                grant.require_publish(update.topics[0])
            return
        # 2. There may be very many.
        topics = turns.Portion(turns.CHECKED_TOPICS)
        for number, update in enumerate(updates, 1):
            try:
                for topic in update.topics:
                    if topics.is_over():
                        await topics.pause()
                    check_topic(topic, path=self.settings.path)
                check_fields(update)
            except InvalidRequest as error:
                raise InvalidRequest(f"update {number}: {error}" if len(updates) > 1 else str(error)) from None
        if grant is not None:
            matchers = turns.Portion(turns.TESTED_MATCHERS)
            for topic in chain.from_iterable(update.topics for update in updates):
                if matchers.is_over(len(grant.publish)):
                    await matchers.pause()
                grant.require_publish(topic)

    # -- the program's own subscriptions

    def read(
        self, selectors: Sequence[Selector], last_event_id: str | None = None, *, waits: bool = True
    ) -> AsyncGenerator[Update, None]:
        """Return an iterator over the updates that match, also private ones.

        It begins after the update with the id `last_event_id`, as a stream does, or,
        without an id, with the first update that is published after this call.  If it
        `waits`, it ends when the hub shuts down, and otherwise when it has read all
        that the history has.  It counts toward no limit and is not announced.

        Raises `InvalidRequest` if a pattern is invalid for its type, `NotRunning`, and
        `HistoryUnavailable`.  The iteration raises that too, and the errors of
        `LocalReader.updates`.
        """
        if not self.is_running:
            raise NotRunning
        self._require_ready()
        try:
            matchers = [self.compiler.compile(*selector) for selector in selectors]
        except PatternError as error:
            raise _invalid(error) from None
        grant = CompiledGrant(subscribe=(self.compiler.compile("exact", WILDCARD),))
        return self._read(selectors, matchers, grant, last_event_id, self.window.newest, waits=waits)

    async def _read(
        self,
        selectors: Sequence[Selector],
        matchers: Sequence[TopicMatcher],
        grant: CompiledGrant,
        last_event_id: str | None,
        newest: int,
        *,
        waits: bool,
    ) -> AsyncGenerator[Update, None]:
        presence = may_want_presence(selectors, grant, self.settings.path)
        start = newest if last_event_id is None else (await self.find_start(last_event_id, presence=presence)).position
        end = None if waits else await self.history.end()
        subscriber = Subscriber(matchers, grant, start, presence_after=start if presence else math.inf)
        async for update in LocalReader(self.delivery, subscriber).updates(end):
            yield update

    # -- subscribers

    async def subscribe(
        self,
        selectors: Sequence[Selector],
        grant: CompiledGrant,
        last_event_id: str | None = None,
        *,
        address: str = "",
        waits: bool = True,
        rated: Payer | None = None,
        log_context: LogContext | None = None,
    ) -> tuple[Subscriber, str | None]:
        """Return a new subscriber, and the id of the event before its first one.

        `hub.history.cursor` says where it starts.  `address` names the client that the
        connection counts for if the token has no subject (N23).  If it `waits` for new
        updates, it is a stream, and otherwise a reader.  `rated` is the client whose
        rate the request has already used.  `log_context` is what log lines say about
        the request.

        The subscriber counts toward the limits until its connection ends, or until
        `Subscriber.leave` is called.  If an error is raised, it does not count.

        While the hub is shutting down, a client may still subscribe, and its stream
        ends at once: EventSource reconnects after the end of a stream, but never after
        a 503.

        Raises `LimitExceeded` or `Busy` if a limit is reached, `InvalidRequest` if a
        pattern is invalid for its type, and `HistoryUnavailable`.
        """
        # Admission comes first, so that a refused client causes no expensive work.
        ticket = self.admission.admit(payer_for(grant.subject, address, grant is ANONYMOUS), rated)
        try:
            if not waits:
                ticket.begin_reading()
            matchers = await self._compile(selectors, ticket)
            presence = may_want_presence(selectors, grant, self.settings.path)
            start = await self.find_start(last_event_id, presence=presence)
        except BaseException:
            ticket.give_back()
            raise
        deadline, expires = self.admission.deadline(grant)
        subscriber = Subscriber(
            matchers,
            grant,
            start.position,
            ticket=ticket,
            deadline=deadline,
            expires=expires,
            presence_after=start.position if presence else math.inf,
            log_context=log_context,
        )
        return subscriber, start.preceding

    async def _compile(self, selectors: Sequence[Selector], ticket: Ticket) -> Iterable[TopicMatcher]:
        """Return the matchers of a request, each once (N19).

        Raises `InvalidRequest` if a pattern is invalid for its type, and
        `LimitExceeded` if there is no room for a new matcher.
        """
        try:
            return (await self.compiler.compile_all(selectors, ticket=ticket)).values()
        except PatternError as error:
            raise _invalid(error) from None

    async def find_start(self, last_event_id: str | None, *, presence: bool) -> Start:
        """Return the start that belongs to a cursor; see `hub.history.cursor`.

        Raises `HistoryUnavailable`.
        """
        self._require_ready()
        return await find_start(
            self.history,
            last_event_id,
            presence=presence,
            replay_unknown=self.settings.replay_unknown,
            live=lambda: self.delivery.position,
        )

    def _require_ready(self) -> None:
        """Raise `HistoryUnavailable` unless the end of the history is known."""
        if not self.delivery.is_ready:
            raise HistoryUnavailable("it has not been available since this node started")

    # -- running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the node inside of the context: dispatch, heartbeats and announcements.

        If the history is unavailable at the start, the node waits for it.  At the end,
        all streams end, their departures are announced, and the history is closed.  A
        hub can run only once: another call raises NotRunning.
        """
        if self._has_begun:
            raise NotRunning("this hub ran already, and a hub runs only once: make another one with create_app()")
        self._has_begun = True
        await self.delivery.start()
        delivering = asyncio.create_task(self.delivery.run())
        self.presence.start()
        try:
            await self.observer.start()
            self.is_running = True
            yield
        finally:
            # The streams end first, while departures can still be announced and
            # recorded.  The history is closed last, because all other parts use it.
            self.shutdown.begin(at_once=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_departed(), LAST_ANNOUNCEMENTS_SECONDS)
            self.is_running = False
            await self.presence.aclose()
            await self.shutdown.aclose()
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            self.window.close()
            await self.authorizer.aclose()
            await self.observer.aclose()
            await self.history.aclose()

    async def _all_departed(self) -> None:
        """Wait until all streams have ended, and all departures are announced."""
        while True:
            await self.delivery.emptied()
            await self.presence.drained()
            if not self.delivery.connection_count:  # no stream has begun meanwhile
                return


def _invalid(error: PatternError) -> InvalidRequest:
    """Return the error for a client whose pattern is invalid for its type."""
    if error.matcher_type == "urlpattern":
        return InvalidRequest(f"{shown(error.pattern)} is not a URL Pattern that this hub accepts: {error.reason}")
    return InvalidRequest(str(error))

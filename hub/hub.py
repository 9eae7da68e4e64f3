"""Hub: one node, without HTTP.

    publishing   grant ─► … ─► history                       one story each
    subscribing  grant ─► … ─► subscriber
    running      delivery: history ─► streams
                 presence: announcements ─► history

The Hub makes its parts and ends them.  A subscriber gets its updates from `delivery`,
and `http` adds the protocol's HTTP interface.

Belongs here: which parts there are, and what each gets.  Does not belong here: anything
that they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from hub.auth.authorizer import Authorizer
from hub.clocks import since_boot
from hub.delivery.audience import Audience
from hub.delivery.delivery import Delivery
from hub.delivery.live import Live
from hub.delivery.log_lines import LogLines
from hub.delivery.observer import Observers
from hub.errors import NotRunning
from hub.event_log.recorder import EventLog
from hub.explaining import Explaining
from hub.node.admission import Admission
from hub.node.connections import Connections
from hub.node.control import Control
from hub.node.fates import Fates
from hub.node.health import Health
from hub.node.intake import Intake
from hub.node.matchers import MatcherCompiler
from hub.node.presence import Presence
from hub.node.publish_window import PublishWindow
from hub.node.remembered import Remembered
from hub.node.shares import Shares
from hub.node.shutdown import Shutdown
from hub.node.watch import Watch
from hub.node.withdrawal import Withdrawal
from hub.publishing import Publishing
from hub.subscribing import Subscribing
from hub.turns import FairTurns, TimeSlices
from skipfilter.errors import not_copied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hub.auth.grant import CompiledGrant
    from hub.delivery.observer import Observer
    from hub.history.base import History
    from hub.protocol.updates import Update
    from hub.settings import Settings

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

    __reduce__ = not_copied

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
        self._has_begun = False  # whether `running` was ever entered
        self.slices = TimeSlices()
        self.shares = Shares(settings, clock=clock)
        self.compiler = MatcherCompiler(
            settings.url, url_patterns=self.shares.url_patterns, matchers=self.shares.matchers, slices=self.slices
        )
        self.authorizer = Authorizer(settings, self.compiler, history.ledger, clock=wall_clock, monotonic=clock)
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
        observers.append(
            LogLines(
                audience, publishes=settings.log_publishes, large=settings.large_update, dev=settings.dev, clock=clock
            )
        )
        self.observer = Observers(*observers)
        self.presence = Presence(settings, history, audience, live, self.shares.announcements)
        connections = Connections(history.node, audience, live, clock=clock, wall_clock=wall_clock)
        remembered = Remembered(settings.remembered_connections, wall_clock)
        if settings.remembered_connections:
            self.observe(remembered)
        self.watch = Watch(self.observer, audience, live, history.node, clock=clock, wall_clock=wall_clock)
        fates = Fates(history, audience, connections, remembered, self.slices, base_url=settings.url)
        self.control = Control(
            settings,
            history,
            audience,
            answers={"list": connections.answer, "explain": fates.answer, "top": self.watch.answer},
            trusts=self.authorizer.trusts,
            wall_clock=wall_clock,
            random=random,
        )
        self.withdrawal = Withdrawal(settings, self.authorizer, audience, clock=clock, random=random)
        self.delivery = Delivery(
            history,
            audience,
            live,
            observer=self.observer,
            announcer=self.presence,
            control=self.control,
            slices=self.slices,
            turns=FairTurns(clock),
            hint=self.admission.hint,
            heartbeat=settings.heartbeat,
            write_interval=settings.write_interval,
            clock=clock,
            wall_clock=wall_clock,
            random=random,
        )
        self.shutdown = Shutdown(self.delivery, drain=settings.drain, clock=clock, random=random)
        self.health = Health(history, self.shutdown, position=lambda: live.position, clock=clock)
        self.publishing = Publishing(
            history,
            audience,
            requests=self.shares.requests,
            intake=Intake(settings, self.shares, self.shutdown),
            control=self.control,
            window=self.window,
            observer=self.observer,
            tells=settings.tell_publishers,
            clock=clock,
        )
        self.subscribing = Subscribing(
            settings,
            history,
            admission=self.admission,
            compiler=self.compiler,
            control=self.control,
            delivery=self.delivery,
            window=self.window,
            shutdown=self.shutdown,
            observer=self.observer,
        )

        self.explaining = Explaining(
            settings,
            history,
            authorizer=self.authorizer,
            subscribing=self.subscribing,
            control=self.control,
            fates=fates,
            slices=self.slices,
        )

    def observe(self, observer: Observer) -> None:
        """Add an observer, before the hub runs."""
        self.observer.add(observer)

    async def publish(self, *updates: Update, grant: CompiledGrant | None = None) -> None:
        """Publish updates; see `Publishing.publish`.  The program needs no grant."""
        await self.publishing.publish(updates, grant)

    @property
    def is_running(self) -> bool:
        """Whether streams and publishers are served."""
        return self.shutdown.is_running

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
        tasks = [asyncio.create_task(self.delivery.run()), asyncio.create_task(self.withdrawal.run())]
        self.presence.start()
        try:
            await self.observer.start()
            self.shutdown.is_running = True
            yield
        finally:
            # The streams end first, while departures can still be announced and
            # recorded.  The history is closed last, because all other parts use it.
            self.shutdown.begin(at_once=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_departed(), LAST_ANNOUNCEMENTS_SECONDS)
            self.shutdown.is_running = False
            await self.presence.aclose()
            await self.shutdown.aclose()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.window.close()
            await self.control.aclose()
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

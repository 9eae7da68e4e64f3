"""Hub: publish, subscribe, and the two tasks that run it; no HTTP."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog

from hub.authorization import Authorizer
from hub.backlog import Backlog
from hub.broadcaster import TICK, Broadcaster
from hub.errors import Closing, OffTheLog, TooSlow
from hub.subscriber import EARLIEST, Subscriber
from hub.updates import check_update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from hub.authorization import Grant
    from hub.settings import Settings
    from hub.topics import TopicMatcher
    from hub.transports.base import Entry, Transport
    from hub.updates import Update

log = structlog.stdlib.get_logger("hub")

BACKLOG: Final = 1_024
"""Updates that may wait for dispatch before publishers do."""


class Hub:
    """One node of a hub.  Publishing and subscribing work inside `running()`."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self.transport = transport
        self.authorizer = Authorizer(settings, clock=wall_clock)
        self.broadcaster = Broadcaster(heartbeat=settings.heartbeat, cached_topics=settings.cached_topics, clock=clock)
        self._backlog = Backlog(
            self.broadcaster,
            max_updates=min(BACKLOG, max(1, settings.history_updates // 2)),
            max_bytes=settings.history_bytes // 2,
        )
        self._timeouts: set[asyncio.Timeout] = set()
        self.closing = False

    async def publish(self, update: Update, grant: Grant) -> str:
        """Append `update` to the log, for all nodes, and return its id.

        Raises InvalidRequest for an update that nobody may send, InsufficientScope for one that this grant
        does not allow, and Closing while the hub is shutting down.  Waits while dispatch is far behind the log,
        and never for a subscriber.
        """
        if self.closing:
            raise Closing
        check_update(update, path=self.settings.path)
        grant.require_publish(update)
        size = update.size
        await self._backlog.take(size)
        try:
            entry = await self.transport.append(update)
        except BaseException:
            self._backlog.give_back(size)
            raise
        self._backlog.appended(entry)
        log.debug("update published", id=update.id, topics=update.topics, type=update.type, private=update.private)
        return update.id

    async def subscribe(
        self, matchers: Iterable[TopicMatcher], grant: Grant, last_event_id: str | None = None
    ) -> tuple[Subscriber, str | None]:
        """A subscriber with its place in the log, and the id of the event before its first one.

        Without `last_event_id` its place is now, and there is no id.  With one, it is after the earliest
        event of that id (N115).  With one that the log does not know, or no longer, it is before the earliest
        event, and the id is `earliest` (N108): what the subscriber has missed is among those, if it is left.

        While the hub is shutting down one may still subscribe, and the stream ends at once: EventSource comes
        back after an end, and stays away for ever after a 503.
        """
        deadline = math.inf if grant.expires is None else self._clock() + grant.expires - self._wall_clock()
        preceding = last_event_id
        if last_event_id is None:
            position = self.broadcaster.position
        elif (found := await self.transport.find(last_event_id)) is not None:
            position = found
        else:
            # In a log that never had an entry, the place before all of them is 0, where the others are.
            position, preceding = EARLIEST if await self.transport.end() else 0, "earliest"
        return Subscriber(matchers, grant, position, deadline=deadline), preceding

    async def read(self, subscriber: Subscriber) -> list[Entry]:
        """The next page of entries from the subscriber's place to where this node has dispatched.

        Raises OffTheLog where some of them are gone.
        """
        page = await self.transport.read(subscriber.position)
        return [entry for entry in page if entry.position <= self.broadcaster.position]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the log and the clock for as long as it is entered."""
        self.broadcaster.move_to(await self.transport.end())
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._keep_time())]
        try:
            yield
        finally:
            self.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.transport.aclose()

    @asynccontextmanager
    async def until_closing(self, seconds: float) -> AsyncIterator[None]:
        """Bound what waits for a client.  Raises TooSlow after `seconds`, and Closing when the hub closes."""
        try:
            async with asyncio.timeout(0 if self.closing else seconds) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            if self.closing:
                raise Closing from None
            raise TooSlow(f"the body did not arrive within {seconds:g} seconds") from None

    def close(self) -> None:
        """Take no more updates, and end all streams, also those to come.  May be called twice."""
        self.closing = True
        for timeout in list(self._timeouts):
            timeout.reschedule(asyncio.get_running_loop().time())
        self.broadcaster.close_all("the hub is shutting down")

    async def _follow(self) -> None:
        while True:
            try:
                async for entries in self.transport.follow(self.broadcaster.position):
                    await self.broadcaster.dispatch(entries)
            except OffTheLog as error:
                # Entries are gone that nobody was sent: whoever comes back is told so by its cursor (N108).
                log.error("dispatch fell behind the log; all streams are closed", reason=str(error))
                self.broadcaster.move_to(await self.transport.end())
                self.broadcaster.close_all("updates were lost")
            except Exception:
                log.exception("dispatch failed")
                await asyncio.sleep(TICK)

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                await self.broadcaster.tick()
            except Exception:
                log.exception("a round of heartbeats failed")

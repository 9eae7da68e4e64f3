"""Shutdown: no more updates are accepted, and the streams end over the drain time.

    open ──begin()──► draining: streams end at random, evenly over `drain` seconds
         ──begin()──► all streams end at once

Streams that begin while the hub is closing are accepted and end at once: EventSource
reconnects after an end, perhaps to another node, but never after a 503.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog

from hub.errors import Closing, TooSlow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from random import Random

    from hub.broadcaster import Broadcaster

log = structlog.stdlib.get_logger("hub")

SHUTTING_DOWN: Final = "the hub is shutting down"
DRAIN_STEP: Final = 0.02
"""Seconds between two checks of how many streams should have ended."""


class Shutdown:
    """Whether one hub is closing, and the end of its streams."""

    def __init__(self, broadcaster: Broadcaster, *, drain: float, clock: Callable[[], float], random: Random) -> None:
        self.is_closing = False
        self._broadcaster = broadcaster
        self._drain_time = drain
        self._clock = clock
        self._random = random
        self._timeouts: set[asyncio.Timeout] = set()
        """The timeouts of requests that wait for their client."""
        self._draining: asyncio.Task[None] | None = None

    def begin(self, *, at_once: bool = False) -> None:
        """Refuse updates, and end all streams, present and future.

        Present streams end at random within the drain time.  A second call ends them at
        once.
        """
        if at_once or self.is_closing or not self._drain_time:
            self._broadcaster.close_all(SHUTTING_DOWN)
        else:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        self.is_closing = True
        for timeout in list(self._timeouts):
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def until_closing(self, seconds: float) -> AsyncIterator[None]:
        """Limit a wait for a client.

        Raises TooSlow after `seconds`, and Closing if the hub closes meanwhile.
        """
        try:
            async with asyncio.timeout(0 if self.is_closing else seconds) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            if self.is_closing:
                raise Closing from None
            raise TooSlow(f"the body did not arrive within {seconds:g} seconds") from None

    async def aclose(self) -> None:
        """Stop draining."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)

    async def _drain(self) -> None:
        """End the present streams one by one, evenly over the drain time."""
        subscribers = self._broadcaster.subscribers()
        self._random.shuffle(subscribers)
        began, closed = self._clock(), 0
        log.info("draining", subscribers=len(subscribers), seconds=self._drain_time)
        while closed < len(subscribers):
            await asyncio.sleep(DRAIN_STEP)
            due = math.ceil(len(subscribers) * (self._clock() - began) / self._drain_time)
            for subscriber in subscribers[closed:due]:
                self._broadcaster.close(subscriber.id, SHUTTING_DOWN)
            closed = due


@contextmanager
def before_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` in this event loop at SIGINT and SIGTERM, before the present
    handlers.

    Does nothing outside of the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    entered = True

    def handle(number: int, frame: Any) -> None:
        if entered:  # a later hub that is left later may still call this handler
            loop.call_soon_threadsafe(callback)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, handle)
    try:
        yield
    finally:
        entered = False
        for number, handler in handlers.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)

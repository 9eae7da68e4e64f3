"""Shutdown: refuses updates, and ends the streams over the drain time.

    open ──begin()──► draining: streams end in random order, evenly over `drain` seconds
         ──begin()──► all streams end at once

Streams that begin while the hub is closing are accepted and end at once: EventSource
reconnects after the end of a stream, perhaps to another node, but never after a 503.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from hub.delivery.seat import Ending
from hub.errors import Closing, TooSlow
from hub.node.draining import drain
from hub.timeouts import expire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from random import Random

    from hub.delivery.delivery import Delivery

log = structlog.stdlib.get_logger("hub")


class Shutdown:
    """The shutdown of one hub.

    `is_running` is whether the hub serves anyone, and `is_closing` whether the shutdown
    has begun.  `drain` is the number of seconds over which the streams end; 0 ends them
    at once.  `clock` returns monotonic seconds.
    """

    def __init__(self, delivery: Delivery, *, drain: float, clock: Callable[[], float], random: Random) -> None:
        self.is_running = False
        self.is_closing = False
        self._delivery = delivery
        self._drain_time = drain
        self._clock = clock
        self._random = random
        self._timeouts: set[asyncio.Timeout] = set()  # of requests that wait for their client
        self._draining: asyncio.Task[None] | None = None  # ends the streams; None before `begin`

    def begin(self, *, at_once: bool = False) -> None:
        """Refuse updates from now on, and end all streams.

        The present streams end in random order, evenly over the drain time.  They end
        at once if `at_once` is true, if there is no drain time, or if this is a second
        call.
        """
        if at_once or self.is_closing or not self._drain_time:
            if count := self._delivery.connection_count:
                log.info("all streams end at once", subscribers=count)
            self._delivery.close_all(Ending.SHUTDOWN)
        else:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        self.is_closing = True
        self._delivery.close_new(Ending.SHUTDOWN)
        # Requests that wait for their client fail now: see `until_closing`.
        for timeout in list(self._timeouts):
            expire(timeout)

    @asynccontextmanager
    async def until_closing(self, seconds: float) -> AsyncIterator[Callable[[float], None]]:
        """Limit how long the code inside of the context may wait for a client.

        Yields a function that sets another number of seconds, from the beginning on.

        Raises `TooSlow` after `seconds`.  Raises `Closing` if the hub is closing when
        the wait begins, or begins to close meanwhile.
        """
        began = asyncio.get_running_loop().time()

        def allow(more: float) -> None:
            """Let the wait last `more` seconds instead, unless it is over."""
            nonlocal seconds
            if not (self.is_closing or timeout.expired()):
                seconds = more
                timeout.reschedule(began + more)

        try:
            async with asyncio.timeout(0 if self.is_closing else seconds) as timeout:
                self._timeouts.add(timeout)
                try:
                    yield allow
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError:
            if self.is_closing:
                raise Closing from None
            raise TooSlow(f"the body did not arrive within {seconds:g} seconds") from None

    async def aclose(self) -> None:
        """Stop draining.  Streams that have not ended go on."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)

    async def _drain(self) -> None:
        """End the present streams in random order, evenly over the drain time."""
        seats = list(self._delivery.audience)
        log.info("draining", subscribers=len(seats), seconds=self._drain_time)
        await drain(seats, Ending.SHUTDOWN, self._drain_time, clock=self._clock, random=self._random)


@contextmanager
def before_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Schedule `callback` in this event loop at each SIGINT and SIGTERM.

    This holds inside of the context.  A signal first schedules `callback`, and then
    calls the handler that was set before.  At the end that handler is restored, unless
    another one was set meanwhile.

    Does nothing outside of the main thread, because only that thread gets signals, and
    nothing for a signal without a Python handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    entered = True

    def handle(number: int, frame: Any) -> None:
        # After the end of the context, a hub that entered later and ends later may
        # still call this handler.
        if entered:
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

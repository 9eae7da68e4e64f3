"""Subscriber: an event stream never ends, so a test waits with a time-out."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from skipfilter.errors import not_copied
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self, Unpack

    from anyio.from_thread import BlockingPortal

    from hub.client import Client, Event
    from hub.protocol.data import Matchers


class Subscriber:
    """A subscriber to a hub, whose subscription has begun when its context is entered.

    It uses `client`, and closes it.  `timeout` is the seconds that `next` waits.
    Entering raises `Refused` if the hub refuses the subscription.
    """

    __reduce__ = not_copied

    def __init__(
        self,
        client: Client,
        *topics: str,
        timeout: float = 5.0,
        last_event_id: str | None = None,
        **matchers: Unpack[Matchers],
    ) -> None:
        self.received: list[Event] = []
        """All events that have come so far."""
        self.gaps: list[str] = []
        """The cursors after which updates may be missing, one for each connection."""
        self._client = client
        self._timeout = timeout
        self._taken = 0  # the number of events that `next` has returned
        self._changed = asyncio.Event()
        self._is_open = False
        self._events = client.subscribe(
            *topics, last_event_id=last_event_id, on_open=self._open, on_gap=self.gaps.append, **matchers
        )
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        try:
            while not self._is_open:
                await self._change(self._timeout, "the hub has not answered")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def next(self, timeout: float | None = None) -> Event:
        """Return the next event.

        Raises AssertionError if none comes within `timeout` seconds.
        """
        seconds = self._timeout if timeout is None else timeout
        while self._taken == len(self.received):
            before = ", ".join(shown(event.data) for event in self.received) or "none"
            await self._change(seconds, f"no update has come; before: {before}")
        self._taken += 1
        return self.received[self._taken - 1]

    async def _end(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._client.aclose()

    def _open(self) -> None:
        self._is_open = True
        self._changed.set()

    async def _read(self) -> None:
        try:
            async for event in self._events:
                self.received.append(event)
                self._changed.set()
        finally:
            self._changed.set()
            await self._events.aclose()

    async def _change(self, timeout: float, failure: str) -> None:
        """Wait for a change; raise AssertionError if there is none."""
        if self._reading.done():
            self._reading.result()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            raise AssertionError(f"{failure} within {timeout:g} s") from None
        self._changed.clear()


class BlockingSubscriber:
    """A `Subscriber` for a test that is not `async`."""

    __reduce__ = not_copied

    def __init__(self, subscriber: Subscriber, portal: BlockingPortal) -> None:
        self._subscriber = subscriber
        self._portal = portal

    @property
    def received(self) -> list[Event]:
        """All events that have come so far."""
        return self._subscriber.received

    @property
    def gaps(self) -> list[str]:
        """The cursors after which updates may be missing; see `Subscriber.gaps`."""
        return self._subscriber.gaps

    def next(self, timeout: float | None = None) -> Event:
        """Return the next event; see `Subscriber.next`."""
        return self._portal.call(self._subscriber.next, timeout)


@contextmanager
def blocking(subscriber: Subscriber, portal: BlockingPortal | None = None) -> Iterator[BlockingSubscriber]:
    """Begin the subscription of `subscriber`, for a test that is not `async`.

    It runs in the event loop of `portal`, as `TestClient.portal` of Starlette is one,
    or in a loop of its own.
    """
    with ExitStack() as stack:
        if portal is None:
            portal = stack.enter_context(start_blocking_portal())
        stack.enter_context(portal.wrap_async_context_manager(subscriber))
        yield BlockingSubscriber(subscriber, portal)

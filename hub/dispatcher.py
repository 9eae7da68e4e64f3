"""Dispatcher: follows the history, has its entries dispatched, and reads it for connections that catch up.

    history ──follow──► broadcaster.dispatch ──► live connections        at `broadcaster.position`
       └──────read, no further than that──────► connections that catch up

The history may be away when the node starts, and later: then nothing is dispatched, and readers wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from hub.errors import HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import Page
from hub.history.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hub.broadcaster import Broadcaster
    from hub.event_log.recorder import EventLog
    from hub.history.base import History

log = structlog.stdlib.get_logger("hub")

CLOSED_AT_ONCE: Final = 16
"""Streams that are closed between two looks at the other tasks."""
PAUSE: Final = 1.0
"""Seconds before another try, if a dispatch has failed."""

T = TypeVar("T")


class Dispatcher:
    """The way from the history of one node to its connections."""

    def __init__(
        self, history: History, broadcaster: Broadcaster, event_log: EventLog | None, *, random: Random
    ) -> None:
        self._history = history
        self._broadcaster = broadcaster
        self._event_log = event_log
        self._random = random
        self._pages = Pages(history)
        self.is_ready = False
        """Whether the end of the history was read since the start, so that a connection can begin somewhere."""

    async def start(self) -> None:
        """Begin at the end of the history.  If it is unavailable, `run` does so later."""
        try:
            await self._find_end()
        except HistoryUnavailable as error:
            log.warning("the history is not there yet; until it is, nobody is served", reason=error.reason)

    async def run(self) -> None:
        """Dispatch new entries, for ever."""
        while True:
            try:
                if not self.is_ready:
                    await self._find_end()
                async for entries in self._history.follow(self._broadcaster.position):
                    try:
                        await self._broadcaster.dispatch(entries)
                    except Exception:
                        if self._broadcaster.position == entries[-1].position:  # halfway: some were not written to
                            await self._close_all("a dispatch failed")
                        raise
                    if self._event_log is not None:
                        self._event_log.dispatched(entries)
            except PositionExpired as error:
                # Entries are gone that were sent to no one.  A client that comes back learns it by its cursor (N108).
                log.error("dispatch fell behind the history; all streams are closed", reason=str(error))
                await self._patiently(self._find_end)
                await self._close_all("updates were lost")
            except HistoryUnavailable as error:
                if self.is_ready:
                    log.warning("the history cannot be followed", reason=error.reason)
                await asyncio.sleep(self._random.uniform(*base.RETRY))
            except Exception:
                log.exception("dispatch failed")
                await asyncio.sleep(PAUSE)

    async def read(self, after: int) -> Page:
        """Return the next page after a position; empty if this node has dispatched no further.

        Waits while the history is unavailable.  Raises PositionExpired if entries of the page are gone.
        """
        broadcaster = self._broadcaster
        while after != (dispatched := broadcaster.position):
            page = await self._patiently(partial(self._pages.read, after))
            entries = [entry for entry in page if entry.position <= broadcaster.position]
            if entries:
                return Page(entries, forgotten=page.forgotten)
            if dispatched == broadcaster.position:  # the rest is appended, but not dispatched yet
                await broadcaster.moved()
        return Page()

    async def _find_end(self) -> None:
        self._broadcaster.move_to(await self._history.end())
        self.is_ready = True

    async def _close_all(self, reason: str) -> None:
        """End all streams: a client that comes back goes on from its cursor."""
        for count, subscriber in enumerate(self._broadcaster.subscribers(), 1):
            self._broadcaster.close(subscriber.id, reason)
            if count % CLOSED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask()` returns, as soon as the history is available."""
        while True:
            try:
                return await ask()
            except HistoryUnavailable:
                await asyncio.sleep(self._random.uniform(*base.RETRY))

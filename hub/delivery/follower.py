"""Dispatcher: passes the entries of the history to the broadcaster, and to readers.

    history ──follow──► broadcaster.dispatch ──► live connections
       └──────read, up to `broadcaster.position`──────► connections that catch up

A reader gets no entry that is not dispatched yet.  So when it has read all, it is at
the position of the live connections and can join them.

If the history is unavailable, at the start or later, nothing is dispatched, and readers
wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from hub import turns
from hub.errors import HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import Page
from hub.history.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hub.delivery.live import Broadcaster
    from hub.delivery.observer import Observer
    from hub.history.base import History

log = structlog.stdlib.get_logger("hub")

RETRY_SECONDS: Final = 1.0
"""Seconds until the next attempt if a dispatch has failed."""

T = TypeVar("T")


class Dispatcher:
    """The connection between the history of one node and its broadcaster."""

    def __init__(self, history: History, broadcaster: Broadcaster, observer: Observer, *, random: Random) -> None:
        self._history = history
        self._broadcaster = broadcaster
        self._observer = observer
        self._random = random
        self._pages = Pages(history)
        self.is_ready = False
        """Whether the end of the history is known, so that connections can start."""

    async def start(self) -> None:
        """Find the end of the history, where dispatch begins.

        If the history is unavailable, `run` finds the end later.
        """
        try:
            await self._find_end()
        except HistoryUnavailable as error:
            log.warning("the history is unavailable; no client is served until it works", reason=error.reason)

    async def run(self) -> None:
        """Dispatch new entries, indefinitely.

        If the history is unavailable or a dispatch fails, it tries again after a while.
        """
        while True:
            try:
                if not self.is_ready:
                    await self._find_end()
                async for entries in self._history.follow(self._broadcaster.position):
                    try:
                        await self._broadcaster.dispatch(entries)
                    except Exception:
                        # The dispatch had begun, so some connections were written to
                        # and others not.  Close all, because none must miss an entry.
                        if self._broadcaster.position == entries[-1].position:
                            await self._close_all("a dispatch failed")
                        raise
                    self._observer.dispatched(entries)
            except PositionExpired as error:
                # Entries were forgotten before they were dispatched, or a new epoch has
                # begun.  Continue at the end.  Clients that reconnect learn of the gap
                # by their cursors (N108).
                log.error("entries were lost before they were dispatched; all streams are closed", reason=str(error))
                await self._retry(self._find_end)
                await self._close_all("updates were lost")
            except HistoryUnavailable as error:
                if self.is_ready:
                    log.warning("the history cannot be followed", reason=error.reason)
                await asyncio.sleep(self._random.uniform(*base.RETRY))
            except Exception:
                log.exception("dispatch failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def read(self, after: int) -> Page:
        """Return the next page of dispatched entries after a position.

        The page is empty if there are no more.  Waits while the history is unavailable.
        Raises `PositionExpired` if the history forgot published updates after the
        position, or if the position is of an earlier epoch.
        """
        broadcaster = self._broadcaster
        while after != (dispatched := broadcaster.position):
            page = await self._retry(partial(self._pages.read, after))
            entries = [entry for entry in page if entry.position <= broadcaster.position]
            if entries:
                return Page(entries, forgotten=page.forgotten)
            # Nothing of the page is dispatched yet: wait for that, unless the position
            # has changed during the read.
            if dispatched == broadcaster.position:
                await broadcaster.moved()
        return Page()

    async def _find_end(self) -> None:
        """Make the end of the history the position of the broadcaster."""
        self._broadcaster.move_to(await self._history.end())
        self.is_ready = True

    async def _close_all(self, reason: str) -> None:
        """End all streams, so that their clients reconnect with their cursors."""
        async for subscribers in turns.in_turns(self._broadcaster.subscribers(), turns.ENDED_STREAMS):
            for subscriber in subscribers:
                self._broadcaster.close(subscriber.id, reason)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask` until it raises no `HistoryUnavailable`, and return its result."""
        while True:
            try:
                return await ask()
            except HistoryUnavailable:
                await asyncio.sleep(self._random.uniform(*base.RETRY))

"""Follower: passes the entries of the history to the live seats, and to readers.

    history ──follow──► live.dispatch ──► live seats
       └──────read, up to `live.position`──────► seats that catch up

With a `write_interval`, updates that come soon after a dispatch are held back:

    an update ─► dispatch │ write_interval: 3 updates come │ dispatch of the 3 │ …

A reader gets no entry that is not dispatched yet.  So when it has read all, it is at
the position of the live seats and can join them.

Belongs here: what happens if the history is unavailable, at the start or later: then
nothing is dispatched, and readers wait.  Does not belong here: what a seat wants.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from hub import turns
from hub.delivery.seat import Ending
from hub.errors import HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import Page
from hub.history.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hub.delivery.audience import Audience
    from hub.delivery.live import Live
    from hub.delivery.observer import Observer
    from hub.history.base import History

log = structlog.stdlib.get_logger("hub")

RETRY_SECONDS: Final = 1.0
"""Seconds until the next attempt if a dispatch has failed."""

T = TypeVar("T")


class Follower:
    """The way from the history of one node to its live seats, and to its readers."""

    def __init__(
        self,
        history: History,
        audience: Audience,
        live: Live,
        observer: Observer,
        *,
        carry_out: Callable[[], Awaitable[None]],
        write_interval: float,
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._history = history
        self._audience = audience
        self._live = live
        self._observer = observer
        self._carry_out = carry_out  # ends the streams that commands have met
        self._write_interval = write_interval  # seconds
        self._hurry = asyncio.Event()  # set if nothing is held back any more
        self._clock = clock
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
        release = 0  # up to this position, nothing is held back
        while True:
            try:
                if not self.is_ready:
                    await self._find_end()
                elif not self._history.ledger.is_current:
                    await self._history.hear()
                await self._carry_out()  # `follow` says only what is new from now on
                async for entries in self._history.follow(self._live.position):
                    if not self._history.ledger.is_settled:  # the commands that came before the entries (R81)
                        await self._carry_out()
                    if not entries:
                        continue
                    try:
                        sent = await self._live.dispatch(entries)
                    except Exception:
                        # The dispatch had begun, so some seats were written to and
                        # others not.  Close all, because none must miss an entry.
                        if self._live.position == entries[-1].position:
                            await self._close_all(Ending.FAILED)
                        raise
                    await self._observer.dispatched(entries, sent)
                    if self._write_interval and entries[-1].position >= release:
                        with suppress(TimeoutError):
                            await asyncio.wait_for(self._hurry.wait(), self._write_interval)
                        release = await self._history.end()
            except PositionExpired as error:
                # Entries were forgotten before they were dispatched, or a new epoch has
                # begun.  Continue at the end.  Clients that reconnect learn of the gap
                # by their cursors (N108).
                log.error("entries were lost before they were dispatched; all streams are closed", reason=str(error))
                await self._retry(self._find_end)
                await self._close_all(Ending.UPDATES_LOST)
            except HistoryUnavailable as error:
                self._history.ledger.lose()
                if self.is_ready:
                    log.warning("the history cannot be followed", reason=error.reason)
                await asyncio.sleep(self._random.uniform(*base.RETRY))
            except Exception:
                log.exception("dispatch failed")
                await asyncio.sleep(RETRY_SECONDS)

    def hurry(self) -> None:
        """From now on, hold nothing back: the hub shuts down."""
        self._hurry.set()

    async def read(self, after: int) -> Page:
        """Return the next page of dispatched entries after a position.

        The page is empty if there are no more.  Waits while the history is unavailable.
        Raises `PositionExpired` if the history forgot published updates after the
        position, or if the position is of an earlier epoch.
        """
        live = self._live
        while after != (position := live.position):
            began = self._clock()
            page = await self._retry(partial(self._pages.read, after, position))
            self._observer.read(self._clock() - began)
            if page and page[-1].position <= live.position:
                return page
            entries = [entry for entry in page if entry.position <= live.position]
            if entries:
                return Page(entries, presence=page.presence, forgotten=page.forgotten)
            # Nothing of the page is dispatched yet: wait for that, unless the position
            # has changed during the read.
            if position == live.position:
                await live.moved()
        return Page()

    async def _find_end(self) -> None:
        """Make the end of the history the position of the live seats."""
        end, id = await base.newest_place(self._history)
        await self._history.hear()  # not before, so that all commands before the end are known
        await self._carry_out()
        self._live.newest = end, id
        self._live.move_to(end)
        self.is_ready = True

    async def _close_all(self, reason: Ending) -> None:
        """End all streams, so that their clients reconnect with their cursors."""
        async for seats in turns.in_turns(self._audience, turns.ENDED_STREAMS):
            for seat in seats:
                seat.close(reason)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask` until it raises no `HistoryUnavailable`, and return its result."""
        while True:
            try:
                return await ask()
            except HistoryUnavailable:
                await asyncio.sleep(self._random.uniform(*base.RETRY))

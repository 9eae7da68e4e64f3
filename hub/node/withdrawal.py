"""Withdrawal: ends the streams whose key is not trusted any more, over the drain time
(R88).

    the keys are read again without a key         ─┐
    two fetches of a key set in a row lack a key  ─┴─► its streams end, evenly

Belongs here: when to look.  Does not belong here: which keys are trusted (`auth`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from hub.delivery.seat import Ending
from hub.node.draining import drain

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hub.auth.authorizer import Authorizer
    from hub.delivery.audience import Audience
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")


class Withdrawal:
    """The streams of withdrawn keys on one node.  `clock` returns monotonic seconds."""

    def __init__(
        self,
        settings: Settings,
        authorizer: Authorizer,
        audience: Audience,
        *,
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._settings = settings
        self._authorizer = authorizer
        self._audience = audience
        self._clock = clock
        self._random = random

    async def run(self) -> None:
        """Look at each change of the keys, and fetch key sets again while there are
        streams, indefinitely.
        """
        withdrawn = self._authorizer.withdrawn
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.jwks_ttl):
                    await withdrawn.wait()
            try:
                if self._audience:
                    await self._authorizer.refresh()
                withdrawn.clear()
                # A stream may have begun meanwhile, so look again when they have ended.
                while await self._end():
                    pass
            except Exception:
                log.exception("the streams of withdrawn keys could not be ended")

    async def _end(self) -> int:
        """End the streams whose key was withdrawn by now, and return how many."""
        trusts = self._authorizer.trusts
        seats = [seat for seat in self._audience if not trusts(seat.subscriber.grant)]
        if not seats:
            return 0
        seconds = self._settings.drain
        log.info("keys were withdrawn, so their streams end", streams=len(seats), seconds=seconds)
        return await drain(seats, Ending.KEY_WITHDRAWN, seconds, clock=self._clock, random=self._random)

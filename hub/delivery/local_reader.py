"""Local reader: the updates that the program around a hub reads, without HTTP.

Belongs here: the end of the walk, and the wait for more.  Does not belong here: the
walk itself (`reading`), and anything of a connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hub.timeouts import expire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hub.delivery.delivery import Delivery
    from hub.delivery.reading import Part, Reading
    from hub.delivery.seat import Ending
    from hub.delivery.subscriber import Subscriber
    from hub.protocol.updates import Update


class LocalReader:
    """The holder of the program's seat, which never becomes live.

    It reads the history page by page, at the pace of the program, and needs no buffer.
    """

    def __init__(self, delivery: Delivery, subscriber: Subscriber) -> None:
        self._delivery = delivery
        self._subscriber = subscriber
        self._is_closed = delivery.closing is not None
        self._waiting: asyncio.Timeout | None = None  # while it waits for a part

    async def updates(self, end: int | None) -> AsyncIterator[Update]:
        """Yield the updates that the subscriber wants, until the hub shuts down.

        With `end`, yields those up to this position, or somewhat further.  Raises
        `PositionExpired` if the history has forgotten some of them, and `LimitExceeded`
        if too many patterns have the same fixed text.
        """
        with self._delivery.reader_seat(self._subscriber, self) as seat:
            position = self._subscriber.start
            reading = self._delivery.reading(seat, position)
            while end is None or position < end:
                part = await self._next(reading)
                if part is None:
                    return
                for entry in part.wanted:
                    yield entry.update
                position = part.end

    async def _next(self, reading: Reading) -> Part | None:
        """Return the next part when there is one; None after `close`.

        Without `close`, it would wait as long as the history is unavailable.
        """
        if self._is_closed:
            return None
        try:
            async with asyncio.timeout(None) as self._waiting:
                while (part := await reading.next()) is None:
                    await self._delivery.moved()
                return part
        except TimeoutError:
            if not self._is_closed:
                raise  # it is not ours
            return None
        finally:
            self._waiting = None

    # -- for delivery

    def is_lost(self) -> bool:
        """Return False: there is no connection."""
        return False

    def close(self, reason: Ending) -> bool:
        """End the iteration, after the page that the program is reading.

        Returns False if it is ending already.
        """
        is_new, self._is_closed = not self._is_closed, True
        expire(self._waiting)
        return is_new

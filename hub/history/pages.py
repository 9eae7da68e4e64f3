"""Pages: what many readers of the log read at once is read once.

A thousand clients that come back after an outage walk the same pages, one behind the other.  Whoever asks for a page
that somebody is reading waits for that one; and pages that are full stay for a while, as they do not change.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from hub.history import base

if TYPE_CHECKING:
    from hub.history.base import History, Page

KEPT: Final = 16 * base.PAGE_BYTES
"""Bytes of pages that are kept, about."""


class Pages:
    """The pages of one log.

    All its mutable state: `_kept`, position -> the page after it; and `_reading`, position -> the page that is being
    read.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._kept: LRUCache[int, Page] = LRUCache(KEPT, getsizeof=lambda page: sum(one.size for one in page))
        self._reading: dict[int, asyncio.Future[Page | None]] = {}

    async def read(self, after: int) -> Page:
        """As the history's.  A page that is kept has all that the log had forgotten since then, and says so."""
        while (page := self._kept.get(after)) is None and after in self._reading:
            if (page := await asyncio.shield(self._reading[after])) is not None:
                break
        if page is not None:
            return page
        reading = self._reading[after] = asyncio.get_running_loop().create_future()
        try:
            page = await self._history.read(after)
        finally:
            del self._reading[after]
            reading.set_result(page)  # None where it failed: then another one asks
        if after >= 0 and page.full:
            with contextlib.suppress(ValueError):  # larger than all that is kept
                self._kept[after] = page
        return page

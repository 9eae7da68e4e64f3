"""Pages: a page that many readers of the history need is read once.

A thousand clients that reconnect after an outage read the same pages, one behind the
other.  A reader that needs a page which is being read waits for that one.  Full pages
stay in a cache for a while, because they never change.
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
"""Approximate bytes of cached pages."""


class Pages:
    """The pages of one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        # By the position before the page.
        self._kept: LRUCache[int, Page] = LRUCache(KEPT, getsizeof=lambda page: sum(one.size for one in page))
        # The pages that are being read; None if that failed.
        self._reading: dict[int, asyncio.Future[Page | None]] = {}

    async def read(self, after: int) -> Page:
        """Return the next page after a position, as `History.read` does.

        A cached page still has the entries that the history has forgotten since, and
        its `forgotten` is that of its time.
        """
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
            reading.set_result(page)  # None if it failed: then another reader tries
        if after >= 0 and page.full:
            with contextlib.suppress(ValueError):  # the page is larger than the cache
                self._kept[after] = page
        return page

"""Pages: if many readers need the same page of the history, it is read only once.

If a thousand clients reconnect after an outage, they read the same pages, one behind
the other.  A reader whose page is being read already waits for that read.  Pages stay
in a cache for a while: a full page never changes, and another one serves readers that
need no later entry.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from hub.history import base

if TYPE_CHECKING:
    from hub.history.base import History, Page

NOTES_BYTES: Final = 2**16
"""About what readers may note of each cached page (`hub.delivery.reading.Notes`)."""
CACHE_BYTES: Final = 16 * (base.PAGE_BYTES + NOTES_BYTES)
"""Approximate bytes of all cached pages, with their notes."""


class Pages:
    """The pages of one history, for all readers of this process."""

    def __init__(self, history: History) -> None:
        self._history = history
        # The cache: the position before a page -> the page.
        self._kept: LRUCache[int, Page] = LRUCache(
            CACHE_BYTES, getsizeof=lambda page: NOTES_BYTES + sum(one.size for one in page)
        )
        # The pages that are being read, by the same key; the result is None if the read
        # fails.
        self._reading: dict[int, asyncio.Future[Page | None]] = {}

    async def read(self, after: int, until: int) -> Page:
        """Return the next page after a position, as `History.read` does.

        Entries after the position `until` may be missing.  A cached page still has
        entries that the history has forgotten since, and `Page.forgotten` as it was
        when the page was read.

        Concurrent calls for the same page share one read.  If that read fails or is
        cancelled, one of the waiting calls reads the page itself.
        """
        # 1. The page is cached, or another call reads it.  If that fails, or ends too
        #    early, check again: one more call may have begun to read it.
        page = self._kept.get(after)
        while not _serves(page, until) and after in self._reading:
            page = await asyncio.shield(self._reading[after])
        if page is not None and _serves(page, until):
            return page
        # 2. Read it for all that wait.
        reading = self._reading[after] = asyncio.get_running_loop().create_future()
        try:
            page = await self._history.read(after)
        finally:
            del self._reading[after]
            reading.set_result(page)  # None if it failed: then another call reads it
        # 3. Keep it.  The first page, after EARLIEST, is not kept: it changes as
        #    entries are forgotten.
        if after >= 0 and page:
            with contextlib.suppress(ValueError):  # the page is larger than the cache
                self._kept[after] = page
        return page


def _serves(page: Page | None, until: int) -> bool:
    """Return whether a page has all that a reader needs up to a position."""
    return page is not None and (page.full or (bool(page) and page[-1].position >= until))

"""Updates: the published updates as lines of the event log, written by the leading
node.

Recently dispatched pages are kept for this; other pages are read from the history
again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import structlog

from hub.errors import PositionExpired
from hub.event_log.segments import own_position
from hub.history import base
from hub.history.base import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hub.delivery.live import Live
    from hub.event_log.marks import Marks
    from hub.event_log.segments import Directory
    from hub.history.base import Entry, History

log = structlog.stdlib.get_logger("hub")

PAGES: Final = 16
"""Pages that are kept."""


class Updates:
    """The updates of all nodes, written if this node leads.

    `in_thread(work, ...)` runs the directory's methods.
    """

    def __init__(
        self,
        directory: Directory,
        marks: Marks,
        history: History,
        live: Live,
        *,
        in_thread: Callable[..., Awaitable[Any]],
        now: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._marks = marks
        self._history = history
        self._live = live
        self._in_thread = in_thread
        self._now = now
        self._oldest: tuple[int, int] | None = None
        """The position before the first update that could be written, and the time of
        that."""
        self._fresh: deque[list[Entry]] = deque(maxlen=PAGES)
        """Recently dispatched pages."""
        self._position: int | None = None
        """Updates are written up to here.

        None if another node writes them, or if this one must look into the directory.
        """
        self._written = 0
        """The time of the last written update."""
        self._marked: int | None = None
        """The position of the last mark."""

    def dispatched(self, entries: list[Entry]) -> None:
        """Keep a dispatched page, if this node writes the updates."""
        if self._directory.leads:
            self._fresh.append(entries)

    def look_again(self) -> None:
        """Look into the directory before the next write: it may have lost the
        updates.
        """
        self._position = None

    def exact(self, position: int) -> int:
        """Return up to where the log is exact, if its node has dispatched up to
        `position`.
        """
        if self._position is None:  # another node writes the updates
            return position
        return max(min(position, self._position), position - own_position(position))

    async def write(self, *, closing: bool) -> bool:
        """Write the next page, if this node leads; return whether there was one.

        If the hub is closing, updates that are not dispatched yet are written too.
        """
        if not self._directory.leads:
            self._position = None
            return False
        if self._position is None:
            self._position, self._written = await self._last_position()
        if self._position >= self._live.position and not closing:
            return False
        page = self._take_fresh(self._position) or await self._read(self._position)
        if page:
            epoch = await self._marks.epoch(page[0].position)
            gaps = await self._gaps_before(page)
            # Each mark once, even if the page is tried again.
            if gaps and self._marked != self._position:
                await self._in_thread(self._directory.mark, gaps)
                self._marked = self._position
            await self._in_thread(self._directory.write_updates, page, epoch)
            self._position, self._written = page[-1].position, page[-1].time
            for gap in gaps:
                log.error(
                    "updates are missing from the event log: they were forgotten before they were written",
                    first=gap["after"] + 1,
                    last=gap["until"],
                )
        return bool(page)

    def _take_fresh(self, after: int) -> list[Entry]:
        """Return the page after a position if it was dispatched recently, else
        nothing.
        """
        while self._fresh and self._fresh[0][0].position <= after:
            self._fresh.popleft()
        return self._fresh.popleft() if self._fresh and self._fresh[0][0].position == after + 1 else []

    async def _read(self, after: int) -> list[Entry]:
        """Return the next page from the history, even if entries before it are
        missing.
        """
        try:
            page = await self._history.read(after)
        except PositionExpired:
            page = await self._history.read(EARLIEST)
            if page and page[0].position // base.EPOCH != after // base.EPOCH:
                # Some updates of the other epoch may have been written already.
                position, _ = await self._last_position()
                return [entry for entry in page if entry.position > position]
        return page

    async def _gaps_before(self, page: Sequence[Entry]) -> list[dict[str, Any]]:
        """Return marks of what is missing in a page, and before it."""
        assert self._position is not None
        position, moment, gaps = self._position, self._written, []
        for entry in page:
            if entry.position != position + 1:
                gap = await self._marks.gap(
                    moment * 1_000, position, "lost updates before they were written", updates=True
                )
                is_of_one_epoch = position >= entry.position - own_position(entry.position)
                gaps.append(gap | {"until": own_position(entry.position) - 1 if is_of_one_epoch else None})
            position, moment = entry.position, entry.time
        return gaps

    async def _last_position(self) -> tuple[int, int]:
        """Return up to where updates of this epoch are written, and the last one's
        time.
        """
        leap, epoch = await base.current_epoch(self._history)
        last = await self._in_thread(self._directory.last_update, epoch)
        if last is not None:
            return leap * base.EPOCH + last[0], last[1]
        oldest, moment = await self.find_oldest()
        return (oldest if oldest // base.EPOCH == leap else leap * base.EPOCH), moment

    async def find_oldest(self) -> tuple[int, int]:
        """Return the position before the first available update, and the time of the
        look.

        The time is in ms since 1970.
        """
        if self._oldest is None:
            moment = self._now() // 1_000
            end = await self._history.end()  # first: an entry may be added before the read
            page = await self._history.read(EARLIEST)
            self._oldest = min([end, *(entry.position - 1 for entry in page[:1])]), moment
        return self._oldest

"""Updates: the published updates as lines of the event log, written by the node that leads.

Pages that were dispatched lately are kept for this; if a page is not among them, it is read from the history again.
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

    from hub.broadcaster import Broadcaster
    from hub.event_log.marks import Marks
    from hub.event_log.segments import Directory
    from hub.history.base import Entry, History

log = structlog.stdlib.get_logger("hub")

PAGES: Final = 16
"""Pages of updates that are kept; older ones are read from the history again."""


class Updates:
    """The updates of all nodes, as far as this one writes them.  `in_thread(work, ...)` runs the directory's work."""

    def __init__(
        self,
        directory: Directory,
        marks: Marks,
        history: History,
        broadcaster: Broadcaster,
        *,
        in_thread: Callable[..., Awaitable[Any]],
        now: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._marks = marks
        self._history = history
        self._broadcaster = broadcaster
        self._in_thread = in_thread
        self._now = now
        self._oldest: tuple[int, int] | None = None
        """The position before the first update that could be written, and when that was so."""
        self._fresh: deque[list[Entry]] = deque(maxlen=PAGES)
        """Pages that were dispatched lately."""
        self._position: int | None = None
        """Up to where the updates are written; None if another node writes them, or this one has to look."""
        self._written = 0
        """The time of the last update that is written."""
        self._marked: int | None = None
        """The position of the last mark of updates."""

    def dispatched(self, entries: list[Entry]) -> None:
        """Keep a page that was dispatched, if this node writes the updates."""
        if self._directory.leads:
            self._fresh.append(entries)

    def look_again(self) -> None:
        """Look at the directory before the next page is written: the updates may not be in it any more."""
        self._position = None

    def exact(self, position: int) -> int:
        """Up to where the log is exact, of a position up to which its node has dispatched."""
        if self._position is None:  # another node writes the updates
            return position
        return max(min(position, self._position), position - own_position(position))

    async def write(self, *, closing: bool) -> bool:
        """Write the next page, if this node leads.  Returns whether there was one.

        While the hub is closing, updates that are not dispatched yet are written, too.
        """
        if not self._directory.leads:
            self._position = None
            return False
        if self._position is None:
            self._position, self._written = await self._last_position()
        if self._position >= self._broadcaster.position and not closing:
            return False
        page = self._take_fresh(self._position) or await self._read(self._position)
        if page:
            epoch = await self._marks.epoch(page[0].position)
            gaps = await self._gaps_before(page)
            if gaps and self._marked != self._position:  # each mark once, also if the page is tried again
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
        """The page after a position, if it was dispatched lately."""
        while self._fresh and self._fresh[0][0].position <= after:
            self._fresh.popleft()
        return self._fresh.popleft() if self._fresh and self._fresh[0][0].position == after + 1 else []

    async def _read(self, after: int) -> list[Entry]:
        """The next page from the log, also where something is missing in between."""
        try:
            page = await self._history.read(after)
        except PositionExpired:
            page = await self._history.read(EARLIEST)
            if page and page[0].position // base.EPOCH != after // base.EPOCH:
                position, _ = await self._last_position()  # of another epoch, of which something may be written already
                return [entry for entry in page if entry.position > position]
        return page

    async def _gaps_before(self, page: Sequence[Entry]) -> list[dict[str, Any]]:
        """Mark what is missing from a page, and from before it."""
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
        """Up to where the updates of this epoch are written, and the time of the last one."""
        leap, epoch = await base.current_epoch(self._history)
        last = await self._in_thread(self._directory.last_update, epoch)
        if last is not None:
            return leap * base.EPOCH + last[0], last[1]
        oldest, moment = await self.find_oldest()
        return (oldest if oldest // base.EPOCH == leap else leap * base.EPOCH), moment

    async def find_oldest(self) -> tuple[int, int]:
        """Return the position before the first update that can be written, and when it was read (ms since 1970)."""
        if self._oldest is None:
            moment = self._now() // 1_000
            end = await self._history.end()  # asked for first: there may be an entry by the second question
            page = await self._history.read(EARLIEST)
            self._oldest = min([end, *(entry.position - 1 for entry in page[:1])]), moment
        return self._oldest

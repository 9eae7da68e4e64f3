"""The plug point of the hub's log: an ordered log of updates that nodes append to and follow.

    position    1      2      3      4      5
    entry       a      b      c      d      e          c is what find(c.id) says: 3
                              ^ a subscriber's place: it reads d and e next

History and bus are one thing: what a node sends to a live subscriber and what a subscriber that comes back
reads are the same entries in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from hub import sse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hub.updates import Update


@dataclass(frozen=True)
class Entry:
    """An update at its place in the log."""

    position: int
    update: Update

    @cached_property
    def frame(self) -> bytes:
        """The update as an event; encoded once, however many read it."""
        return sse.frame(self.update)

    @cached_property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return self.update.size


class Transport(Protocol):
    """An ordered log of updates that every node of a hub appends to and follows.

    Positions are integers from 1 on and grow by 1.  A log may forget its oldest entries, but keeps at
    least the newest one.
    """

    async def append(self, updates: Sequence[Update]) -> list[Entry]:
        """Put `updates` at the end, one after the other, for all nodes: all, or with an error none.

        Durable when it returns.
        """
        ...

    async def find(self, id: str) -> int | None:
        """The position of the earliest entry with this id (N115), or None.  Never by a scan."""
        ...

    async def newest(self) -> Entry | None:
        """The newest entry; None where there was none yet."""
        ...

    async def read(self, after: int) -> list[Entry]:
        """The next page of entries after a position; after EARLIEST, the first that there are.

        Empty at the end.  A page has a bounded size.  Raises OffTheLog where entries in between are gone.
        """
        ...

    def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Pages of entries after a position, waiting for new ones, for ever."""
        ...

    async def aclose(self) -> None: ...

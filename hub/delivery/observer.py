"""Observer: the interface of listeners to seats and dispatches, such as the event log.

Belongs here: the events.  Does not belong here: anything that an observer does with
them.  It must not wait, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hub.delivery.seat import Seat
    from hub.history.base import Entry


class Observer(Protocol):
    """The observer of the deliveries of one node, which starts and ends with it."""

    async def start(self) -> None:
        """Start, before any client is served."""
        ...

    def seated(self, seat: Seat, position: int) -> None:
        """Note that a stream begins, and receives entries after a position."""
        ...

    def left(self, seat: Seat, position: int, more: int) -> None:
        """Note that a stream ends.

        It was sent everything that it wants up to `position`, and `more` updates after
        it.
        """
        ...

    def dispatched(self, entries: list[Entry]) -> None:
        """Note that entries were written to the live streams that want them."""
        ...

    async def aclose(self) -> None:
        """Finish, after the last stream has ended."""
        ...


class NoObserver:
    """The observer of a node without an event log: it does nothing."""

    async def start(self) -> None:
        """Do nothing."""

    def seated(self, seat: Seat, position: int) -> None:
        """Do nothing."""

    def left(self, seat: Seat, position: int, more: int) -> None:
        """Do nothing."""

    def dispatched(self, entries: list[Entry]) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""

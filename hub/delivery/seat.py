"""Seat: the place of one connection among those of a node.

Belongs here: the notes of delivery about a connection.  Does not belong here: anything
that the connection itself knows, such as its position or whether it has room.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hub.delivery.subscriber import Subscriber
    from hub.delivery.timer_wheel import Slot


class Ending(StrEnum):
    """Why a connection ended: a text for the log, and a name for metrics."""

    CLIENT_LEFT = "the client went away"
    CONNECTION_LOST = "its connection is lost"
    SENT_MORE = "the client has sent more data"
    EXPIRED = "its token expires"
    MAX_LIFETIME = "it has reached the maximum lifetime"
    SHUTDOWN = "the hub is shutting down"
    KICKED = "a command has ended it"
    KEY_WITHDRAWN = "the key of its token was withdrawn"
    TOO_FAR_BEHIND = "the history has forgotten updates that it had not received"
    UPDATES_LOST = "the history has lost updates"
    FAILED = "it failed"


class Holder(Protocol):
    """A stream that holds a seat, or a reader that does not wait for updates."""

    def close(self, reason: Ending) -> bool:
        """End the connection soon.  Returns False if it is ending already."""
        ...

    def is_lost(self) -> bool:
        """Return whether the connection is lost, even if no error has reported it."""
        ...


class Outlet(Protocol):
    """The way to the client of a live seat."""

    @property
    def position(self) -> int:
        """The position up to which it was sent all that it wants."""
        ...

    def write(self, body: bytes, position: int) -> None:
        """Write without waiting, and move to `position`, unless that is older.

        If the connection has no room for more, it leaves the live seats.
        """
        ...


class Seat:
    """The place of one connection, which delivery alone changes.

    - `id`: its id in the audience; smaller than the id of any later seat.
    - `subscriber`: what the connection wants and may read.
    - `holder`: the stream or reader that holds it; None once it has left.
    - `outlet`: the same stream while the seat is live; otherwise None.
    - `written`: when it was last written to while it was live or, before that, when it
      came; by the hub's monotonic clock.
    - `beaten`: when it last had a heartbeat as a signal or, before that, when it came.
    - `came`: when it came, by the hub's monotonic clock.
    - `slot`: its slot on the timer wheel; None if nothing is due.
    """

    __slots__ = ("beaten", "came", "holder", "id", "outlet", "slot", "subscriber", "written")

    def __init__(self, subscriber: Subscriber, holder: Holder | None) -> None:
        self.id = -1
        self.subscriber = subscriber
        self.holder = holder
        self.outlet: Outlet | None = None
        self.written = self.beaten = 0.0
        self.came = 0.0
        self.slot: Slot | None = None

    def close(self, reason: Ending) -> bool:
        """End the connection soon.  Returns False if it has ended, or is ending."""
        return self.holder is not None and self.holder.close(reason)

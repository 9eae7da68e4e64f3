"""Observer: the interface of listeners to updates, streams and refusals.

    Observers ─┬► event log    what was published and who was connected
               ├► log lines    one for each connection that has ended
               └► metrics      numbers

Belongs here: the events.  Does not belong here: anything that an observer does with
them.  It changes nothing, and only `start`, `dispatched` and `aclose` may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub.delivery.seat import Ending, Seat
    from hub.history.base import Entry
    from hub.protocol.updates import Update


class Sent(NamedTuple):
    """The result of a dispatch."""

    updates: int
    """The number of updates that were written, once for each live stream."""
    size: int
    """The bytes of all these."""
    seconds: float
    """The time of the dispatch."""


class Observer:
    """An observer of one node, which starts and ends with it.

    Here, each method does nothing: an observer defines those for its own events.
    """

    async def start(self) -> None:
        """Start, before any client is served."""

    def publishing(self, updates: Sequence[Update]) -> None:
        """Note that updates of one request are about to be appended to the history."""

    def published(self, updates: Sequence[Update], stored: int, seconds: float, publisher: str) -> None:
        """Note that updates of a `publisher` are in the history; it took `seconds`.

        `stored` of them are new: the others repeat earlier ones.
        """

    def arrived(self, seat: Seat) -> None:
        """Note that a stream begins."""

    def seated(self, seat: Seat, position: int) -> None:
        """Note that a stream receives entries after a position.

        It has arrived before; if it begins with the earliest entry, its position is
        known later.
        """

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Note that a stream ends.

        It was sent everything that it wants up to `position`, and `more` updates after
        it.
        """

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Note that entries were written to the live streams that want them."""

    def sent(self, updates: int, size: int) -> None:
        """Note that updates from the history were written, with `size` bytes.

        Their stream or reader was not live.
        """

    def fell_behind(self) -> None:
        """Note that the connection of a live stream has no room for more."""

    def caught_up(self, seconds: float) -> None:
        """Note that a stream is live after it has read the history for `seconds`."""

    def read(self, seconds: float) -> None:
        """Note that a page of the history was read."""

    def decided(self, seconds: float) -> None:
        """Note that the function of the application has decided."""

    def refused(self, reason: str) -> None:
        """Note that a request was refused; `reason` is one of a few names."""

    async def aclose(self) -> None:
        """Finish, after the last stream has ended."""


class Observers(Observer):
    """Several observers as one: each event is passed on to all, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self.all = observers

    def add(self, observer: Observer) -> None:
        """Pass events on to one more observer, from now on."""
        self.all += (observer,)

    def remove(self, observer: Observer) -> None:
        """Pass no more events on to an observer."""
        self.all = tuple(one for one in self.all if one is not observer)

    async def start(self) -> None:
        """Start all observers."""
        for observer in self.all:
            await observer.start()

    def publishing(self, updates: Sequence[Update]) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.publishing(updates)

    def published(self, updates: Sequence[Update], stored: int, seconds: float, publisher: str) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.published(updates, stored, seconds, publisher)

    def arrived(self, seat: Seat) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.arrived(seat)

    def seated(self, seat: Seat, position: int) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.seated(seat, position)

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.left(seat, position, more, reason)

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Pass the event on."""
        for observer in self.all:
            await observer.dispatched(entries, sent)

    def sent(self, updates: int, size: int) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.sent(updates, size)

    def fell_behind(self) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.fell_behind()

    def caught_up(self, seconds: float) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.caught_up(seconds)

    def read(self, seconds: float) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.read(seconds)

    def decided(self, seconds: float) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.decided(seconds)

    def refused(self, reason: str) -> None:
        """Pass the event on."""
        for observer in self.all:
            observer.refused(reason)

    async def aclose(self) -> None:
        """Finish all observers."""
        for observer in self.all:
            await observer.aclose()

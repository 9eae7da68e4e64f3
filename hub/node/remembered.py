"""Remembered: connections that have ended, so that an operator may ask about them.

Their patterns are kept as text, because matchers count toward limits as long as they
exist.

Belongs here: what is kept, and for how long.  Does not belong here: what became of an
update at a connection (`fates`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from hub.delivery.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hub.control.commands import Identity
    from hub.delivery.seat import Ending, Seat
    from skipfilter import Selector

AVERAGE: Final = 2_048
"""Bytes of a remembered connection, on average; if they take more, fewer are
remembered."""
BYTES_WITHOUT_PATTERNS: Final = 700
"""About what a connection without patterns takes, ..."""
BYTES_OF_A_PATTERN: Final = 128
"""... and each pattern besides its characters."""


class Departed(NamedTuple):
    """A connection that has ended."""

    id: str
    identity: Identity
    address: str
    matchers: tuple[Selector, ...]
    grants: tuple[Selector, ...]
    start: int
    """The position after which it received entries."""
    until: int
    """It was sent all that it wanted up to here ..."""
    more: int
    """... and so many entries after it."""
    reason: str
    time: float
    """When it ended, in seconds since the epoch."""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        patterns = sum(BYTES_OF_A_PATTERN + len(pattern) for _, pattern in self.matchers + self.grants)
        return BYTES_WITHOUT_PATTERNS + patterns + len(self.identity.subject or "") + len(self.address)


class Remembered(Observer):
    """The last `most` connections that have ended on one node.

    `wall_clock` returns seconds since the epoch.
    """

    def __init__(self, most: int, wall_clock: Callable[[], float]) -> None:
        self._most = most
        self._wall_clock = wall_clock
        self._ended: deque[Departed] = deque()
        self._size = 0  # of all
        self._starts: dict[int, int] = {}  # of the open ones, by the ids of their seats

    def __iter__(self) -> Iterator[Departed]:
        """Iterate over the connections, oldest first."""
        return iter(tuple(self._ended))

    def seated(self, seat: Seat, position: int) -> None:
        """Note where a connection begins, which is known only now if it asked for the
        earliest update.
        """
        self._starts[seat.id] = position

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Remember a connection, and forget the oldest ones if there are too many."""
        subscriber = seat.subscriber
        grant = subscriber.grant
        ended = Departed(
            subscriber.id,
            grant.identity,
            subscriber.address,
            tuple((matcher.type, matcher.pattern) for matcher in subscriber.subscribed),
            tuple((matcher.type, matcher.pattern) for matcher in grant.subscribe),
            self._starts.pop(seat.id),
            position,
            more,
            str(reason),
            self._wall_clock(),
        )
        self._ended.append(ended)
        self._size += ended.size
        while self._ended and (len(self._ended) > self._most or self._size > self._most * AVERAGE):
            self._size -= self._ended.popleft().size

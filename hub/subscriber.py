"""Subscriber: what it wants, what it may read, and its place in the log."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.admission import Ticket
    from hub.authorization import Grant
    from hub.topics import TopicMatcher

EARLIEST: Final = -1
"""The place before all that the log still holds; the positions of a log's entries start at 1."""


class Subscriber:
    """One connection's subscriptions.

    Its mutable state is `position`: it has been sent, or did not want, every entry of the log up to there.
    While it is live, the broadcaster knows its place.  `deadline` is when its connection ends, by the broadcaster's
    clock, which is not that of the wall, and `lapse` says why.  It was admitted with `ticket`.
    """

    __slots__ = ("_ticket", "deadline", "grant", "id", "lapse", "position", "subscribed")

    def __init__(
        self,
        subscribed: Iterable[TopicMatcher],
        grant: Grant,
        position: int,
        *,
        ticket: Ticket | None = None,
        deadline: float = math.inf,
        lapse: str = "",
    ) -> None:
        self.id = uuid.uuid4().urn  # N125: random, and no client chooses it
        self.subscribed = tuple(subscribed)
        self.grant = grant
        self.deadline = deadline
        self.lapse = lapse
        self.position = position
        self._ticket = ticket

    def leave(self) -> None:
        """Stop counting as a connection of its client."""
        if self._ticket is not None:
            self._ticket.give_back()

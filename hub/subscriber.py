"""Subscriber: what it wants, what it may read, and where in the history it starts."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

from hub.protocol.topics import may_match_below, subscriptions_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.admission import Ticket
    from hub.auth.grant import Grant
    from hub.protocol.topics import TopicMatcher
    from skipfilter import Selector


class Subscriber:
    """One connection's subscriptions.

    It wants the entries of the history after `start`.  Its connection ends at `deadline`, by the hub's monotonic clock,
    because of `lapse`.  It may want presence updates after the position `presence_after`; inf if it never does.
    """

    __slots__ = ("_ticket", "deadline", "grant", "id", "lapse", "presence_after", "start", "subscribed")

    def __init__(
        self,
        subscribed: Iterable[TopicMatcher],
        grant: Grant,
        start: int,
        *,
        ticket: Ticket | None = None,
        deadline: float = math.inf,
        lapse: str = "",
        presence_after: float = math.inf,
    ) -> None:
        self.id = uuid.uuid4().urn  # N125: random, and no client chooses it
        self.subscribed = tuple(subscribed)
        self.grant = grant
        self.deadline = deadline
        self.lapse = lapse
        self.start = start
        self.presence_after = presence_after
        self._ticket = ticket

    def leave(self) -> None:
        """Stop counting as a connection of its client."""
        if self._ticket is not None:
            self._ticket.give_back()


def may_want_presence(subscribed: Iterable[Selector], grant: Grant, path: str) -> bool:
    """Whether a subscriber may receive presence updates of the hub at `path`, which are private; True if not clear."""
    if not grant.subscribe:
        return False
    below = subscriptions_path(path)
    granted = ((matcher.type, matcher.pattern) for matcher in grant.subscribe)
    return all(any(may_match_below(*selector, below) for selector in some) for some in (granted, subscribed))

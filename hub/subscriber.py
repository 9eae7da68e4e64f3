"""Subscriber: its subscriptions, its grant, and where in the history it starts."""

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

    It receives the entries of the history after `start`.  Its connection ends at
    `deadline`, by the hub's monotonic clock, for the reason `lapse`.  It may receive
    presence updates after the position `presence_after`, which is inf if it never does.
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
        """Stop counting as a connection of its client.  A second call does nothing."""
        if self._ticket is not None:
            self._ticket.give_back()


def may_want_presence(subscribed: Iterable[Selector], grant: Grant, path: str) -> bool:
    """Return whether a subscriber may receive presence updates, which are private.

    `path` is the path of the hub.  True if that is not certain.
    """
    if not grant.subscribe:
        return False
    below = subscriptions_path(path)
    granted = ((matcher.type, matcher.pattern) for matcher in grant.subscribe)
    return all(any(may_match_below(*selector, below) for selector in some) for some in (granted, subscribed))

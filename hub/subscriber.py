"""Subscriber: what it wants, what it may read, and its place in the log."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

from hub.protocol.topics import may_match_below

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.admission import Ticket
    from hub.auth.grant import Grant
    from hub.protocol.topics import TopicMatcher
    from skipfilter import Selector


class Subscriber:
    """One connection's subscriptions.

    Its mutable state is `position`: it has been sent, or did not want, every entry of the log up to there.
    While it is live, the broadcaster knows its place.  `deadline` is when its connection ends, by the broadcaster's
    clock, which is not that of the wall, and `lapse` says why.  It was admitted with `ticket`.
    `presence_after` is the position after which it may want presence updates; inf if it never does.
    """

    __slots__ = ("_ticket", "deadline", "grant", "id", "lapse", "position", "presence_after", "subscribed")

    def __init__(
        self,
        subscribed: Iterable[TopicMatcher],
        grant: Grant,
        position: int,
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
        self.position = position
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
    below = path + "/subscriptions"
    granted = ((matcher.type, matcher.pattern) for matcher in grant.subscribe)
    return all(any(may_match_below(*selector, below) for selector in some) for some in (granted, subscribed))

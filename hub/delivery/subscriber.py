"""Subscriber: what one connection subscribes to, what it may read, and when it ends."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

from hub.protocol.topics import may_match_below, subscriptions_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.auth.grant import Grant
    from hub.node.admission import Ticket
    from hub.protocol.topics import TopicMatcher
    from skipfilter import Selector


class Subscriber:
    """The subscriptions and the grant of one connection.

    - `subscribed`: the matchers of its request.
    - `grant`: what its token allows.
    - `start`: the position in the history after which it receives entries.
    - `deadline`: when its connection must end, by the hub's monotonic clock; inf if it
      need not end.
    - `lapse`: the reason for this end.
    - `presence_after`: the position after which it may want presence updates; inf if it
      never does.
    - `ticket`: counts the connection toward the limits; None if it does not count.
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
        """Stop counting toward the limits.  A second call does nothing."""
        if self._ticket is not None:
            self._ticket.give_back()


def may_want_presence(subscribed: Iterable[Selector], grant: Grant, path: str) -> bool:
    """Return whether a subscriber may receive presence updates.

    `path` is the path of the hub.  Returns True if that is not certain.
    """
    # Presence updates are private: both the subscriptions and the grant must match.
    if not grant.subscribe:
        return False
    below = subscriptions_path(path)
    granted = ((matcher.type, matcher.pattern) for matcher in grant.subscribe)
    return all(any(may_match_below(*selector, below) for selector in some) for some in (granted, subscribed))

"""Subscriber: what it wants, what it may read, and its place in the log."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.authorization import Grant
    from hub.topics import TopicMatcher
    from hub.updates import Update

EARLIEST: Final = -1
"""The place before all that the log still holds; the positions of a log's entries start at 1."""


class Subscriber:
    """One connection's subscriptions.

    Its mutable state is `position`: it has been sent, or did not want, every entry of the log up to there.
    While it is live, the broadcaster knows its place.  `deadline` is when its connection ends, by the broadcaster's
    clock, which is not that of the wall, and `lapse` says why.  `client` is whose connection it counts as.
    `presence_after` is the position after which it may want presence updates; inf if it never does.
    """

    __slots__ = ("client", "deadline", "grant", "id", "lapse", "position", "presence_after", "subscribed")

    def __init__(
        self,
        subscribed: Iterable[TopicMatcher],
        grant: Grant,
        position: int,
        *,
        deadline: float = math.inf,
        lapse: str = "",
        client: str = "",
        presence_after: float = math.inf,
    ) -> None:
        self.id = uuid.uuid4().urn  # N125: random, and no client chooses it
        self.subscribed = tuple(subscribed)
        self.grant = grant
        self.deadline = deadline
        self.lapse = lapse
        self.client = client
        self.position = position
        self.presence_after = presence_after

    def wants(self, update: Update) -> bool:
        """Whether it is to receive `update`, by asking matcher by matcher (N21, N81)."""
        return _any_match(self.subscribed, update) and (not update.private or _any_match(self.grant.subscribe, update))


def may_want_presence(subscribed: Iterable[TopicMatcher], grant: Grant, path: str) -> bool:
    """Whether a subscriber may receive presence updates of the hub at `path`, which are private; True if not clear."""
    below = path + "/subscriptions"
    return all(any(matcher.may_match_below(below) for matcher in some) for some in (subscribed, grant.subscribe))


def _any_match(matchers: Iterable[TopicMatcher], update: Update) -> bool:
    return any(matcher.match(topic) for matcher in matchers for topic in update.topics)

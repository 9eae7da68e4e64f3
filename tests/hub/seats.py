"""Seats whose holder records what is written to it, without streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.live import Live
from hub.delivery.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.delivery.seat import Ending
    from hub.protocol.topics import TopicMatcher


class Recorder:
    """A holder and outlet that records its writes."""

    position = 0

    def __init__(self) -> None:
        self.writes: list[tuple[bytes, int]] = []
        self.reasons: list[Ending] = []

    def write(self, body: bytes, position: int) -> None:
        self.writes.append((body, position))

    def is_lost(self) -> bool:
        return False

    def close(self, reason: Ending) -> bool:
        self.reasons.append(reason)
        return len(self.reasons) == 1


def subscriber(subscribed: Iterable[TopicMatcher], granted: Iterable[TopicMatcher] = ()) -> Subscriber:
    return Subscriber(subscribed, CompiledGrant(subscribe=tuple(granted)), 0)


def live_at(base_url: str, *subscribers: Subscriber, cached_topics: int = 100) -> tuple[Audience, Live, list[Recorder]]:
    """Return an audience with a live seat for each subscriber, and what records its writes."""
    audience = Audience(base_url, cached_topics=cached_topics, cached_topics_bytes=10**6)
    live = Live(audience, clock=lambda: 0.0)
    recorders = []
    for each in subscribers:
        recorders.append(recorder := Recorder())
        live.join(audience.seat(each, recorder), recorder, live.position)
    return audience, live, recorders

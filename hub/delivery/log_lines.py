"""Log lines about updates and connections: one for each connection that has ended.

A line takes some 60 µs (`bench/results/observers.json`), so by default there is none
for an update.

Belongs here: the lines of an `Observer`.  Does not belong here: lines about requests
that are refused (`http`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog
from cachetools import TTLCache

from hub import turns
from hub.auth.hints import grant_hint
from hub.delivery.observer import Observer
from hub.logs import DEBUGGED, current_request
from hub.protocol import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hub.delivery.audience import Audience
    from hub.delivery.observer import Sent
    from hub.delivery.seat import Ending, Seat
    from hub.history.base import Entry
    from hub.protocol.topics import TopicMatcher
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

SHOWN_MATCHERS: Final = 5
"""Matchers of a connection or a grant that a line shows, and topics of an update."""
MOST_WARNED: Final = 1_000
"""Publishers that are remembered, because they were warned of large updates ..."""
WARNED_SECONDS: Final = 3_600.0
"""... within this time."""
MOST_TRACED: Final = 10_000
"""Updates whose `traceparent` is kept until they are dispatched."""


class LogLines(Observer):
    """The log lines of one node.

    If `publishes` is true, requests to publish are logged at level info, and otherwise
    at debug.  At debug, each update has a line too, when it was dispatched.  Updates of
    more than `large` bytes have a warning; 0 for none.  Hints about tokens are warnings
    if `dev` is true, and otherwise at debug.  `clock` returns monotonic seconds.
    """

    def __init__(
        self, audience: Audience, *, publishes: bool, large: int, dev: bool, clock: Callable[[], float]
    ) -> None:
        self._audience = audience
        self._publish_level = logging.INFO if publishes else logging.DEBUG
        self._hint_level = logging.WARNING if dev else logging.DEBUG
        self._large = large
        self._clock = clock
        # Publishers that were warned of large updates in the last hour.
        self._warned: TTLCache[str, None] = TTLCache(MOST_WARNED, WARNED_SECONDS, timer=clock)
        # The `traceparent` of updates that this node has published, by their ids.
        self._traced: OrderedDict[str, str] = OrderedDict()

    def publishing(self, updates: Sequence[Update]) -> None:
        """Keep the `traceparent` of the present request until its updates are
        dispatched.
        """
        if DEBUGGED.isEnabledFor(logging.DEBUG) and (request := current_request.get()) is not None:
            if traceparent := request.context.traceparent:
                self._traced.update((update.id, traceparent) for update in updates)
            else:  # an earlier request may have had the ids, and have failed
                for update in updates:
                    self._traced.pop(update.id, None)
            while len(self._traced) > MOST_TRACED:
                self._traced.popitem(last=False)

    def _warn_of_size(self, updates: Sequence[Update], publisher: str) -> None:
        """Warn of an update whose event is large, once an hour for each publisher."""
        if not self._large or publisher in self._warned:
            return
        for update in updates:
            # The event has fewer bytes than `size`, which is counted already.
            if update.size > self._large and (size := len(events.frame(update))) > self._large:
                self._warned[publisher] = None
                log.warning(
                    "a large update: some clients do not read it, and ask for it again and again (large_update)",
                    id=update.id,
                    bytes=size,
                    first_topic=f"{update.topics[0]:.200}",
                )
                return

    def published(self, updates: Sequence[Update], stored: int, seconds: float, publisher: str) -> None:
        """Log a request to publish, and warn of a large update."""
        if DEBUGGED.isEnabledFor(self._publish_level):
            first = updates[0]
            log.log(
                self._publish_level,
                "updates published",
                updates=len(updates),
                first_id=first.id,
                first_topic=f"{first.topics[0]:.200}",
                private=first.private,
                ms=round(1_000 * seconds, 3),
                **({} if stored == len(updates) else {"repeated": len(updates) - stored}),
            )
        if len(updates) != 1 or updates[0].size > self._large:
            self._warn_of_size(updates, publisher)

    def arrived(self, seat: Seat) -> None:
        """Log the beginning of a connection, and what its token probably lacks."""
        if DEBUGGED.isEnabledFor(self._hint_level):
            subscriber = seat.subscriber
            hint = grant_hint(subscriber.grant, subscriber.subscribed)
            for text in (*subscriber.grant.hints, *([] if hint is None else [hint])):
                log.log(self._hint_level, f"a token or session is valid, but {text}", id=subscriber.id)
        if DEBUGGED.isEnabledFor(logging.DEBUG):
            log.debug("subscriber connected", **_about(seat))

    def left(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        """Log the end of a connection."""
        if DEBUGGED.isEnabledFor(logging.INFO):
            seconds = round(self._clock() - seat.came, 3)
            log.info("subscriber disconnected", reason=str(reason), seconds=seconds, **_about(seat))

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Log each update, with the number of subscribers who receive it."""
        if not DEBUGGED.isEnabledFor(logging.DEBUG):
            return
        pace = turns.Portion(turns.FOUND_TOPICS)
        for entry in entries:
            update = entry.update
            subscribed, receivers = await self._audience.reach(update, pace)
            fields = {"traceparent": trace} if (trace := self._traced.pop(update.id, None)) else {}
            log.debug(
                "update dispatched" if subscribed else "update dispatched: it has no subscriber",
                id=update.id,
                topics=[f"{topic:.200}" for topic in update.topics[:SHOWN_MATCHERS]],
                type=update.type,
                private=update.private,
                receivers=receivers,
                without_grant=subscribed - receivers,
                **fields,
            )


def shown_matchers(matchers: Sequence[TopicMatcher]) -> list[str]:
    """Return the first matchers of some, as a line shows them."""
    return [f"{matcher.type}:{matcher.pattern:.80}" for matcher in matchers[:SHOWN_MATCHERS]]


def _about(seat: Seat) -> dict[str, object]:
    """Return the fields about a connection, and about the request that began it."""
    subscriber = seat.subscriber
    fields = subscriber.log_context.fields(subscriber.grant.subject) if subscriber.log_context is not None else {}
    return {"id": subscriber.id, "first_matchers": shown_matchers(subscriber.subscribed), **fields}

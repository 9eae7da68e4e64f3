"""Connections: who is connected to one node, page by page.

Belongs here: what an operator sees of a connection.  Does not belong here: how the
pages of all nodes come together (`control`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap64

from hub import turns
from hub.delivery.log_lines import shown_matchers
from hub.delivery.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.control.commands import Target
    from hub.delivery.audience import Audience
    from hub.delivery.live import Live
    from hub.delivery.seat import Seat

PAGE: Final = 100
"""Connections in a page, at most."""


class Connections:
    """The connections of one node, whose name is `node`.

    `clock` returns monotonic seconds, and `wall_clock` seconds since the epoch.
    """

    def __init__(
        self,
        node: str,
        audience: Audience,
        live: Live,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._audience = audience
        self._live = live
        self._clock = clock
        self._wall_clock = wall_clock

    async def answer(self, target: Target | None, after: str) -> list[dict[str, Any]]:
        """Return the first PAGE connections, by the ids of their subscribers, that a
        target names and whose ids come after `after`.

        The ids are random, and stay: so a connection that lasts is in exactly one of
        the pages.
        """
        found: list[tuple[str, int]] = []
        async for seats in turns.in_turns(self._audience, turns.ASKED_STREAMS):
            found += [
                (subscriber.id, seat.id)
                for seat in seats
                if (subscriber := seat.subscriber).id > after
                and subscriber.payer is not None  # the program reads, and is not connected
                and (target is None or target.is_met(subscriber.id, subscriber.grant.identity))
            ]
            found = nsmallest(PAGE, found)
        seats = self._audience.seats(BitMap64(id for _, id in found))
        return [self.row(seat) for seat in sorted(seats, key=lambda seat: seat.subscriber.id)]

    def row(self, seat: Seat) -> dict[str, Any]:
        """Return what an operator sees of a connection."""
        subscriber = seat.subscriber
        identity, grant, holder = subscriber.grant.identity, subscriber.grant, seat.holder
        stream = holder if isinstance(holder, Stream) else None
        return {
            "subscriber": subscriber.id,
            "process": self._node,
            "issuer": identity.issuer,
            "subject": identity.subject,
            "token_id": identity.token_id,
            "key_id": identity.key_id,
            "address": subscriber.address,
            "since": moment(self._wall_clock() - self._clock() + seat.came),
            "expires": None if grant.expires is None else moment(grant.expires),
            "matchers": len(subscriber.subscribed),
            "first_matchers": shown_matchers(subscriber.subscribed),
            "grants": len(grant.subscribe),
            "first_grants": shown_matchers(grant.subscribe),
            "state": "reading" if stream is None else str(stream.state),
            "behind": None if stream is None else self._live.position - max(0, stream.position),
        }


async def open_streams(audience: Audience) -> tuple[list[Seat], BitMap64]:
    """Return the seats of all streams, and their ids, without those of readers.

    Lets other tasks run in between, so a stream may end meanwhile.
    """
    seats: list[Seat] = []
    ids = BitMap64()
    async for some in turns.in_turns(audience, turns.ASKED_STREAMS):
        streams = [seat for seat in some if isinstance(seat.holder, Stream)]
        seats += streams
        ids.update([seat.id for seat in streams])
    return seats, ids


def moment(seconds: float) -> str:
    """Return a time as text, in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a token may expire in a million years
        return f"{seconds:.0f} s after 1970"

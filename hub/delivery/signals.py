"""Signals: events about the stream itself, for a client that asks for them (R91).

    identity    first: whose stream it is
    gap         next, if the client has sent a cursor: what was lost since, if anything
    position    once, when the stream has caught up with the history
    heartbeat   in each interval, instead of the comment
    goodbye     last, before the hub ends the stream, if there is room

EventSource shows a page neither comments nor headers; these are for pages.  The id of
each is a cursor.  No other byte depends on an update that the stream does not receive
(N111), except that the history may have forgotten what comes after a cursor.

Belongs here: the texts of signals, and their cursors.  Does not belong here: when one
is written (`stream`, `heartbeats`, `hub.http.replay`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hub.control.commands import ANONYMOUS
from hub.delivery.seat import Ending
from hub.history.base import EARLIEST
from hub.protocol import events
from hub.protocol.data import to_json
from hub.protocol.topics import FORBIDDEN

if TYPE_CHECKING:
    from hub.auth.grant import CompiledGrant
    from hub.delivery.live import Live
    from hub.history.base import History
    from hub.history.cursor import Start

UNAVAILABLE: Final = "unavailable"
"""The reason of a stream that ends before it begins, because of a fault of the hub."""
_LONGEST_ID: Final = 4_096
"""Characters of a cursor that comes back as the id of a signal, at most."""
_SILENT: Final = frozenset({Ending.CLIENT_LEFT, Ending.CONNECTION_LOST})


class Signals:
    """The signals of the streams of one node.

    `heartbeat` is the interval of heartbeats in seconds; 0 turns them off.
    """

    def __init__(self, history: History, live: Live, *, heartbeat: float) -> None:
        self.interval = heartbeat or math.inf
        """Seconds between two heartbeats; inf if they are turned off."""
        self._history = history
        self._live = live
        self._heartbeat = round(heartbeat * 1_000) or None
        # The heartbeats of this round, by position.  All streams share their bytes, and
        # those of the next round differ, whether the history has moved on or not.
        self._round: dict[int, bytes] = {}

    def first(self, start: Start, grant: CompiledGrant) -> bytes:
        """Return the signals that come before all updates."""
        return self._identity(start, grant) + self._gap(start)

    def _identity(self, start: Start, grant: CompiledGrant) -> bytes:
        """Return whose stream it is: a digest of the issuer, the subject and what the
        client may read, which is the same as long as these are (R99).
        """
        issuer, subject, *_ = grant.identity
        who = ANONYMOUS
        if issuer != ANONYMOUS:
            granted = sorted({(matcher.type, matcher.pattern) for matcher in grant.subscribe})
            who = self._history.digest(to_json([issuer, subject, granted]))
        cursor = as_id(start.cursor) if start.cursor else self._cursor(start.position)
        return events.signal("identity", cursor, identity=who)

    def _gap(self, start: Start) -> bytes:
        """Return what was lost before a stream began; b"" if it has no cursor."""
        if not start.cursor:
            return b""
        return events.signal(
            "gap",
            as_id(start.cursor),
            asked=start.cursor,
            lost=start.lost,
            reason=start.loss,
            last_event_id=start.preceding,
        )

    def position(self, position: int) -> bytes:
        """Return that a stream has caught up with the history, at a position."""
        return events.signal("position", self._cursor(position), heartbeat=self._heartbeat)

    def begin_round(self) -> None:
        """Begin a round of heartbeats."""
        self._round.clear()

    def heartbeat(self, position: int) -> bytes:
        """Return a heartbeat of this round, for a stream at a position."""
        beat = self._round.get(position)
        if beat is None:
            beat = self._round[position] = events.signal("heartbeat", self._cursor(position))
        return beat

    def goodbye(self, start: Start, position: int, reason: Ending, seconds: float | None) -> bytes:
        """Return why the hub ends a stream, and the seconds until the client should
        come back, if there is a hint.  It was sent all up to a position.

        b"" if nobody would read it.
        """
        if reason in _SILENT:
            return b""
        # A stream that has received nothing leaves the cursor as it is, so that a gap
        # is reported again.
        cursor = as_id(start.cursor) if position == EARLIEST else self._cursor(position)
        return goodbye(cursor, reason.name.lower(), seconds)

    def _cursor(self, position: int) -> str:
        """Return a cursor with which a client receives what follows a position."""
        newest, id = self._live.newest
        return self._history.cursor(position, id if newest == position else "")


def goodbye(cursor: str, reason: str, seconds: float | None) -> bytes:
    """Return why the hub ends a stream, and when the client should come back."""
    milliseconds = None if seconds is None else round(seconds * 1_000)
    return events.signal("goodbye", cursor, reason=reason, retry=milliseconds)


def as_id(cursor: str) -> str:
    """Return a client's cursor as the id of an event; "" if it can be none (N29)."""
    return cursor if len(cursor) <= _LONGEST_ID and FORBIDDEN.isdisjoint(cursor) else ""

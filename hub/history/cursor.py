"""Cursor: where in the history a subscriber begins, by its cursor.

    cursor                        start                       event before the first one
    none                          the end of the history      unknown
    empty                         the end of the history      `earliest`            N107
    earliest                      the first event             `earliest`
    an id that the history has    after the first such event  that id               N115
    an opaque cursor              its place                   that cursor           R95
    any other                     the first event             `earliest`            N108
                                  or the end, by a setting    `earliest`            N109

So a client that was away receives the updates that it missed, as far as the history
still has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import structlog

from hub.errors import HistoryUnavailable
from hub.history.base import EARLIEST
from hub.history.opaque import Loss, is_opaque
from hub.protocol.updates import EARLIEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.history.base import History

log = structlog.stdlib.get_logger("hub")


Lost: TypeAlias = Literal["nothing", "some", "all"]


class Start(NamedTuple):
    """Where a subscriber begins."""

    position: int
    """The position after which it receives entries, perhaps EARLIEST."""
    preceding: str | None
    """The id of the event before its first one, as far as that is known."""
    cursor: str = ""
    """The cursor that it has sent."""
    lost: Lost = "nothing"
    """What may be lost of the updates after the cursor (R92).  It depends on what the
    settings say of unknown cursors, and not on what the history has (R97).
    """
    loss: Loss | None = None
    """Why they may be lost; None if none is."""


async def find_start(
    history: History, cursor: str | None, *, presence: bool, replay_unknown: bool, live: Callable[[], int]
) -> Start:
    """Return the start that belongs to a cursor.

    If `presence` is true, the subscriber may want presence updates.  An id then counts
    as unknown if the history has forgotten a later presence update.  With
    `replay_unknown`, a subscriber with an unknown id gets what is left of the updates
    that it missed.

    If the end of the history is the start, and the history is unavailable, the start is
    `live()`, the position of the live streams.  In all other cases, an unavailable
    history raises `HistoryUnavailable`.
    """
    lost: Lost = "nothing"
    loss = None
    if cursor and cursor != EARLIEST_ID:
        found: int | Loss | None
        if is_opaque(cursor):
            found = await history.locate(cursor, presence=presence)
        else:
            found = await history.find(cursor, presence=presence)
        if isinstance(found, int):
            return Start(found, cursor, cursor)
        lost, loss = "some" if replay_unknown else "all", found or Loss.UNKNOWN
        log.info("cursor not found", last_event_id=f"{cursor:.80}", reason=loss.value)
    asked = cursor or ""
    if cursor == EARLIEST_ID or (cursor and replay_unknown):
        # If the history is empty, the subscriber starts at its end.  The end is read
        # first, because an entry may be appended before the second read.
        end = await history.end()
        return Start(EARLIEST if await history.newest() else end, EARLIEST_ID, asked, lost, loss)
    # The end of the history, whether it is dispatched yet or not: so the subscriber
    # gets no update whose publisher already has its answer.
    try:
        end = await history.end()
    except HistoryUnavailable:  # then no publisher gets an answer either
        end = live()
    return Start(end, None if cursor is None else EARLIEST_ID, asked, lost, loss)

"""An update as bytes on the wire: one event of an event stream (N26–N29).

    id: urn:uuid:…            every event has one
    event: price              if the update has a type
    data: first line          one field a line, and one even if there is no data:
    data: second line         an event without it would be dropped by EventSource
    retry: 2000               if the update has one
                              an empty line ends it

Encoded once an update, and shared by all its receivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hub.updates import Update

HEARTBEAT: Final = b":\n"
"""A comment, which readers skip: the first bytes of a stream, and what is sent when idle (R20, N8)."""


def retry(seconds: float) -> bytes:
    """A hint in how long to come back after the connection is lost (N30).

    A block of its own, without data and so no event: some clients would take it for a part of the first event.
    """
    return f"retry: {seconds * 1000:.0f}\n\n".encode()


def frame(update: Update) -> bytes:
    """The event of `update`.  Its id and type are valid, so nothing in them can end a line (N29)."""
    lines = [f"id: {update.id}\n"]
    if update.type is not None:
        lines.append(f"event: {update.type}\n")
    # Not splitlines(), which splits on eight more characters (N28).
    data = update.data.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\ndata: ")
    lines.append(f"data: {data}\n")
    if update.retry is not None:
        lines.append(f"retry: {update.retry}\n")
    lines.append("\n")
    return "".join(lines).encode("utf-8")

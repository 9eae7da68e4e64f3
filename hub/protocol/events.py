"""The event stream's format, written and read: an update is one event (N26–N29).

    id: urn:uuid:…            every event has one
    event: price              if the update has a type
    data: first line          one field a line, and one even if there is no data:
    data: second line         an event without it would be dropped by EventSource
    retry: 2000               if the update has one
                              an empty line ends it

An update is encoded once, and the bytes are shared by all its receivers.  `Blocks` and `parse_block` read the format
as the HTML standard says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hub.protocol.updates import Update

HEARTBEAT: Final = b":\n"
"""A comment, which readers skip: the first bytes of a stream, and what is sent when idle (R20, N8)."""
LOST: Final = b": this subscriber fell behind the history, and updates were lost\n\n"
"""The last block of a stream whose subscriber was too slow for the history."""
ALL: Final = b": all\n\n"
"""The last block of a response that is complete (hub.http.replay)."""


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


class Block(NamedTuple):
    """The fields and comments of one block of an event stream.  A block without data is no event."""

    id: str | None
    type: str
    data: str | None
    retry: str
    comments: list[str]


class Blocks:
    """Cuts an event stream at its blank lines; what none ends is no event.  A line ends with CR, LF or both."""

    def __init__(self) -> None:
        self._rest = b""
        self._began = self._returned = False
        """Whether a block has come; and whether the last byte was a CR, so that an LF belongs to it."""

    def feed(self, data: bytes) -> list[bytes]:
        if self._returned:
            data = data.removeprefix(b"\n")
        if data:
            self._returned = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        if blocks and not self._began:
            blocks[0] = blocks[0].removeprefix(b"\xef\xbb\xbf")
            self._began = True
        return blocks


def parse_block(block: bytes) -> Block:
    """Return what a block says.  Bytes that are not UTF-8 become U+FFFD, and an id with a NUL is ignored."""
    text = block.decode("utf-8", "replace")
    comments: list[str] = []
    while text.startswith(":"):
        comment, _, text = text.partition("\n")
        comments.append(comment[1:].removeprefix(" "))
    # Nearly all events have an id and one line of data, and nothing else.
    id_line, separator, line = text.partition("\ndata: ")
    if separator and id_line.startswith("id: ") and "\n" not in id_line and "\n" not in line and "\0" not in id_line:
        return Block(id_line[4:], "", line, "", comments)
    id: str | None = None
    type = retry = ""
    data: list[str] = []
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "id" and "\0" not in value:
            id = value
        elif name == "event":
            type = value
        elif name == "retry":
            retry = value
        elif not name and line:
            comments.append(value)
    return Block(id, type, "\n".join(data) if data else None, retry, comments)

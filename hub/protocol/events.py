"""The format of event streams, written and read (N26–N29).

An update is one event:

    id: urn:uuid:…            every event has an id
    event: price              if the update has a type
    data: first line          one field for each line of the data; there is always one,
    data: second line         because EventSource ignores an event without data
    retry: 2000               if the update has one
                              an empty line ends the event

Comments and the hint to reconnect are lines that no empty line follows: many readers
take an empty line for the end of an event, even if there was none.

A signal is an event of the hub's own, for clients that ask for signals (R91):

    id: #…                    a cursor
    event: mercure
    data: {"type":"heartbeat"}

An update is encoded once, and all its receivers share the bytes.  `Blocks` and
`parse_block` read the format as the HTML standard says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hub.errors import EventTooLarge
from hub.protocol.data import to_json
from hub.protocol.updates import HUB_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hub.protocol.updates import Update

HEARTBEAT: Final = b":\n"
"""A comment: the first bytes of a stream, and the heartbeat if it is idle (R20, N8)."""
LOST: Final = b": this subscriber fell behind the history, and updates were lost\n"
"""The last line of a stream that lost updates, because it fell behind the history."""
ALL: Final = b": all\n"
"""The last line of a complete response with `Prefer: wait=0` (hub.http.replay)."""
STREAM: Final = (
    (b"Accept", b"text/event-stream"),
    (b"Accept-Encoding", b"identity"),
    (b"Cache-Control", b"no-cache"),
)
"""Header fields of each request for a stream; browsers send the same cache mode."""
SIGNALS: Final = ("identity", "gap", "position", "heartbeat", "goodbye")
"""The types of signals, as their data has them."""
WITH_SIGNALS: Final = ("signals", "1")
"""The parameter of a request for signals."""
MAX_EVENT: Final = 2**26
"""The most bytes of an event that a reader takes, unless it is told otherwise."""

_MARK: Final = b"\xef\xbb\xbf"  # a byte order mark, which a stream may begin with


def retry(seconds: float) -> bytes:
    """Return a hint how long to wait before reconnecting (N30).

    No blank line follows it, because some readers would take a block without data for
    an event.  So the hint and the first event are one block.
    """
    return f"retry: {seconds * 1000:.0f}\n".encode()


def first_bytes(seconds: float | None) -> bytes:
    """Return the first bytes of a stream: a comment, and a hint if there is one."""
    return HEARTBEAT + (b"" if seconds is None else retry(seconds))


def signal(type: str, id: str, *, retry: int | None = None, **members: str | int | None) -> bytes:
    """Return a signal as the bytes of an event, without the members that are None.

    `retry`, in ms, is a member and also the field.  The id must be valid, as that of an
    update; if it is "", the event has none, and clients keep the one that they have.
    """
    given = {"type": type, **members, "retry": retry}
    data = to_json({name: value for name, value in given.items() if value is not None})
    lines = (
        f"id: {id}\n" if id else "",
        f"event: {HUB_TYPE}\ndata: {data}\n",
        f"retry: {retry}\n" if retry else "",
        "\n",
    )
    return "".join(lines).encode("utf-8")


def frame(update: Update) -> bytes:
    """Return `update` as the bytes of an event.

    Its id and type must be valid (`check_fields`), so they have no line ends (N29).
    """
    lines = [f"id: {update.id}\n"]
    if update.type is not None:
        lines.append(f"event: {update.type}\n")
    # splitlines() is not used, because it also splits at eight other characters (N28).
    data = update.data.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\ndata: ")
    lines.append(f"data: {data}\n")
    if update.retry is not None:
        lines.append(f"retry: {update.retry}\n")
    lines.append("\n")
    return "".join(lines).encode("utf-8")


class Block(NamedTuple):
    """The fields and comments of one block of an event stream.

    `data` is None if the block has none, and then it is not an event.  `id` is None if
    the block has no valid id; `type` and `retry` are "" if they are missing.  A `retry`
    with anything but ASCII digits does not count.
    """

    id: str | None
    type: str
    data: str | None
    retry: str
    comments: list[str]


class Blocks:
    """A splitter of an event stream into blocks, at blank lines, in linear time.

    A line ends with CR, LF or CRLF.  If the stream ends within a block, that block is
    never returned, because it is not an event.  A block has at most `most` bytes.
    """

    def __init__(self, most: int = MAX_EVENT) -> None:
        self._most = most
        # The bytes after the last blank line.
        self._rest = bytearray()
        # Whether a block was returned, and whether the last byte was a CR.  An LF after
        # it belongs to the same line end.
        self._has_begun = self._after_cr = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the blocks that end in `data`, without their blank lines.

        Must be iterated to its end before the next call.  Lines in the blocks end with
        LF.  A byte order mark before the first block is removed.  Raises EventTooLarge
        after the blocks before one of more than `most` bytes.
        """
        text = data.removeprefix(b"\n") if self._after_cr else data
        if data:  # the whole of it counts: an LF that was removed has ended the line
            self._after_cr = data.endswith(b"\r")
        if not text:
            return
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # A blank line is in the new part, or begins with the last byte before it.
        pieces = text.split(b"\n\n")
        if text.startswith(b"\n") and self._rest.endswith(b"\n"):
            del self._rest[-1:]
            pieces = [b"", *text[1:].split(b"\n\n")]
        *blocks, text = pieces
        if blocks:
            # The first one alone is copied, and once.
            self._rest += blocks[0]
            blocks[0] = bytes(self._rest)
            self._rest.clear()
            if not self._has_begun:
                blocks[0] = blocks[0].removeprefix(_MARK)
                self._has_begun = True
        self._rest += text
        for block in blocks:
            self._require(len(block))
            yield block
        self._require(len(self._rest) - 1)  # the line end of its last line is no part of a block

    def _require(self, size: int) -> None:
        if size > self._most:
            raise EventTooLarge(f"an event has more than {self._most:,} bytes")

    def ends_with(self, line: bytes) -> bool:
        """Return whether the last of the bytes after the last block are this line."""
        return self._rest.endswith(b"\n" + line) or self._rest in (line, _MARK + line)

    def unfinished(self) -> bytes:
        """Return the complete lines after the last block.

        They are no event.  But a `retry` in them counts already, and a comment is
        complete.
        """
        lines = bytes(self._rest[: self._rest.rfind(b"\n") + 1]).removesuffix(b"\n")
        return lines if self._has_begun else lines.removeprefix(_MARK)


def signal_in(block: Block) -> dict[str, Any] | None:
    """Return the members of a signal; None if a block is none."""
    if block.type != HUB_TYPE or block.data is None:
        return None
    try:
        members = json.loads(block.data)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) and members.get("type") in SIGNALS else None


def parse_block(block: bytes) -> Block:
    """Return the fields and comments of a block.

    Bytes that are not UTF-8 become U+FFFD.  An id with a NUL is ignored.
    """
    text = block.decode("utf-8", "replace")
    # The comments before the first field.
    comments: list[str] = []
    while text.startswith(":"):
        comment, _, text = text.partition("\n")
        comments.append(comment[1:].removeprefix(" "))
    # The fast way: nearly all events have an id and one line of data, and nothing else.
    id_line, separator, line = text.partition("\ndata: ")
    if separator and id_line.startswith("id: ") and "\n" not in id_line and "\n" not in line and "\0" not in id_line:
        return Block(id_line[4:], "", line, "", comments)
    # The general way, line by line.
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
        elif name == "retry" and value.isascii() and value.isdigit():
            retry = value
        elif not name and line:
            comments.append(value)
    return Block(id, type, "\n".join(data) if data else None, retry, comments)

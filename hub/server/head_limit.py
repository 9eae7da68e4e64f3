"""HeadLimit: bounds the heads and the trailers of the requests on one connection.

    what the parser reports     bytes that may follow until it reports more
    nothing yet                 max_head: a head
    a head is complete          any number
    a part of a body            any number
    the size of a chunk         max_head: trailers, unless the body goes on
    a message is complete       max_head: the next head

The parser gets the bytes in parts that are no longer than what is left.  If it reports
nothing for a part, it is in the middle of a head or of trailers, so the part counts.

Belongs here: counting bytes and fields.  Does not belong here: the parser, the socket,
and any timer.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from hub.errors import HeadTooLarge, TargetTooLong

_UNBOUNDED: Final = sys.maxsize
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")


class HeadLimit:
    """What is left of the limits: `max_head` bytes, and `max_fields` header fields."""

    __slots__ = ("_begins", "_has_advanced", "_in_request_line", "_left", "_max_fields", "_max_head", "is_in_head")

    def __init__(self, *, max_head: int, max_fields: int) -> None:
        self._max_head = max_head
        self._max_fields = max_fields
        self._left = max_head
        self.is_in_head = False
        """Whether a request has begun, and its head is incomplete."""
        self._has_advanced = False  # whether the parser has reported anything of the last part
        self._in_request_line: bool | None = None  # whether the parser is in one; None between requests
        self._begins = False  # whether it began in the last part, perhaps after empty lines

    # -- before and after the parser

    def escaped(self, data: bytes) -> bytes:
        """Return `data` with the non-ASCII bytes of a request line as %XX.

        Browsers escape UTF-8 in the same way.  Changes only the first line of `data`.
        """
        if self._in_request_line is False or data.isascii():
            return data
        # Between two requests, skip the empty lines before the request line.
        begin = len(data) - len(data.lstrip(b"\r\n")) if self._in_request_line is None else 0
        end = data.find(b"\n", begin)
        if end < 0:
            end = len(data)
        return _NOT_ASCII.sub(lambda match: b"%%%02X" % match[0][0], data[:end]) + data[end:]

    def part(self, data: bytes) -> bytes:
        """Return the beginning of `data` that the parser may get now."""
        self._has_advanced = False
        return data[: self._left]

    def count(self, part: bytes, *, target: int) -> None:
        """Count a part that the parser got, if a head or trailers are incomplete.

        `target` is the length of the request target, as far as it has arrived.  Raises
        `TargetTooLong` or `HeadTooLarge` if the limit is reached.
        """
        if self._has_advanced:
            return
        self._left -= len(part)
        if self._left <= 0:
            # If the target takes more than half of the limit, it is to blame.
            if target * 2 > self._max_head:
                raise TargetTooLong(f"the request target has {target} bytes; a head may have {self._max_head}")
            raise HeadTooLarge(f"the head of the request, or its trailers, have more than {self._max_head} bytes")
        if self._in_request_line:
            self._in_request_line = b"\n" not in (part.lstrip(b"\r\n") if self._begins else part)
            self._begins = False

    # -- what the parser reports

    def begin_message(self) -> None:
        """Begin a request, perhaps behind another one in the same part."""
        self.is_in_head, self._in_request_line, self._begins = True, not self._has_advanced, True

    def add_field(self, present: int) -> None:
        """Allow one more header field or trailer, if `present` of them came before.

        Raises `HeadTooLarge` if there are too many.
        """
        if present == self._max_fields:
            raise HeadTooLarge(f"the request has more than {self._max_fields} header fields and trailers")

    def end_head(self) -> None:
        """Note that a head is complete."""
        self.is_in_head, self._in_request_line = False, False
        self._left, self._has_advanced = _UNBOUNDED, True

    def begin_chunk(self) -> None:
        """Note the size of a chunk; trailers may follow, unless the body goes on."""
        self._left, self._has_advanced = self._max_head, True

    def add_body(self) -> None:
        """Note a part of a body, whose length is not limited here."""
        self._left, self._has_advanced = _UNBOUNDED, True

    def end_message(self) -> None:
        """Note that a message is complete."""
        self._left, self._has_advanced, self._in_request_line = self._max_head, True, None

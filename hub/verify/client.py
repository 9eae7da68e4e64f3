"""A node of a hub, and one HTTP/1.1 connection to it."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httptools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

ANSWER_TIMEOUT: Final = 10.0
"""Seconds that the hub may take for an answer."""
SLOW_BUFFER: Final = 2**12
"""Bytes that a slow client buffers."""


# -- HTTP
class Node:
    """One of the hub's URLs, with the outcomes of its updates."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a hub")
        self.url = url
        self.address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.authority = parts.netloc.rpartition("@")[2]
        self.path = parts.path or "/"
        self.acknowledged = self.uncertain = 0
        self.refused: Counter[str] = Counter()
        self.without_service = self._served = 0.0

    def count_service(self, now: float, *, begins: bool = False) -> None:
        """Record that it has accepted an update; or, if it `begins`, start the
        clock.
        """
        self.without_service = 0.0 if begins else max(self.without_service, now - self._served)
        self._served = now


class Connection:
    """One HTTP/1.1 connection, for one request at a time.

    Raises OSError if it is interrupted.  It does not use httpx2, which takes several
    times as long for a chunk of a stream as the hub: the hub is measured, not the
    client.
    """

    def __init__(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._node, self._reader, self._writer = node, reader, writer
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self._headed = self._complete = False

    @classmethod
    async def open(cls, node: Node, limit: int = 2**16) -> Self:
        """Connect to a node; `limit` is the number of bytes to buffer."""
        return cls(node, *await asyncio.open_connection(*node.address, ssl=node.tls, limit=limit))

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return self._complete and self._parser.should_keep_alive() and not self._reader.at_eof()

    async def ask(self, method: str, query: str, headers: dict[str, str], body: str = "") -> int:
        """Send a request, and return the status of its response."""
        content = body.encode()
        target = self._node.path + (f"?{query}" if query else "")
        fields = {"Host": self._node.authority, "Content-Length": str(len(content))} | headers
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self._headed = self._complete = False
        self.headers.clear()
        self._writer.write("\r\n".join(lines).encode() + content)
        while not self._headed:
            await self._read()
        return self._parser.get_status_code()

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the response in parts."""
        while self._parts or not self._complete:
            if not self._parts:
                await self._read()
            parts, self._parts = self._parts, []
            yield b"".join(parts)

    async def _read(self) -> None:
        if not (data := await self._reader.read(2**16)):
            raise ConnectionError("the connection was interrupted")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"this is not HTTP: {error}") from None

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    # -- callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Note the end of the header."""
        self._headed = True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        self._complete = True

"""The hub's protocol over a bare socket, so that tests check the bytes and not a
client.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType
    from typing import Self


class Address(Protocol):
    """The address of a hub, and a token that may do everything."""

    port: int
    token: str


@dataclass(frozen=True)
class Event:
    id: str
    type: str
    data: str
    retry: str | None


class Reply:
    """A response: its head, then its body as it arrives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self._come: deque[Event] = deque()
        self._rest = b""
        self.ended = False
        """Whether the response ended the way a response should."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def read_head(self) -> None:
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode("utf-8").split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
        }

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            chunk = await self.reader.readexactly(size + 2)
            if not size:
                self.ended = True
                return
            yield chunk[:-2]

    async def body(self) -> bytes:
        if "content-length" in self.headers:
            return await self.reader.readexactly(int(self.headers["content-length"]))
        return b"".join([chunk async for chunk in self.chunks()])

    async def events(self) -> AsyncIterator[Event]:
        """Yield events until the response ends.

        Raises IncompleteReadError if the connection is cut.  A caller may stop and
        iterate again: bytes after the last event are kept.
        """
        while True:
            while self._come:
                yield self._come.popleft()
            chunk = await anext(self.chunks(), None)
            if chunk is None:
                return
            *events, self._rest = (self._rest + chunk).split(b"\n\n")
            self._come.extend(filter(None, (parse_event(event.decode("utf-8")) for event in events)))

    async def next_event(self) -> Event:
        return await asyncio.wait_for(anext(self.events()), HANG)

    async def ends(self) -> bool:
        """Wait for the end; return whether the response has one, or was cut."""

        async def read() -> None:
            async for _ in self.events():
                pass

        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await asyncio.wait_for(read(), HANG)
        await self.close()
        return self.ended

    async def until(self, data: str) -> list[Event]:
        """The events up to the one with this data, which is left out."""

        async def collect() -> list[Event]:
            events: list[Event] = []
            async for event in self.events():
                if event.data == data:
                    return events
                events.append(event)
            raise AssertionError(f"the stream ended without {data!r}, after {len(events)} events")

        return await asyncio.wait_for(collect(), HANG)


def parse_event(text: str) -> Event | None:
    id, type, retry = "", "message", None
    data = []
    for line in text.split("\n"):
        name, _, value = line.partition(": ")
        match name:
            case "id":
                id = value
            case "event":
                type = value
            case "data" | "data:":
                data.append(value)
            case "retry":
                retry = value
    return Event(id, type, "\n".join(data), retry) if data else None


async def request(
    hub: Address,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    receive_buffer: int | None = None,
) -> Reply:
    """Send a request, and read the head of the response.

    `target` is sent unchanged.
    """
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", hub.port))
    except OSError:
        connection.close()
        raise
    limit = 2**16 if receive_buffer is None else receive_buffer
    reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    lines = [f"{method} {target} HTTP/1.1", f"host: localhost:{hub.port}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    reply = Reply(reader, writer)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("utf-8") + body)
        await writer.drain()
        await asyncio.wait_for(reply.read_head(), HANG)
    except BaseException:
        await reply.close()
        raise
    return reply


PATH = "/.well-known/mercure"
FORM = ("content-type", "application/x-www-form-urlencoded")


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


async def subscribe(
    hub: Address,
    *parameters: tuple[str, str],
    token: str | None = None,
    last_event_id: str | None = None,
    receive_buffer: int | None = None,
) -> Reply:
    """Subscribe, and wait for the first bytes of the stream."""
    headers = [] if token is None else [bearer(token)]
    if last_event_id is not None:
        headers.append(("last-event-id", last_event_id))
    reply = await request(hub, "GET", f"{PATH}?{urlencode(parameters)}", headers, receive_buffer=receive_buffer)
    if reply.status == 200:
        first = await asyncio.wait_for(anext(reply.chunks()), HANG)
        assert first.startswith(b":\n")
    return reply


async def publish(hub: Address, *fields: tuple[str, str], token: str | None = None) -> str:
    """Publish with the development token unless another is given, and return the id."""
    headers = [FORM, bearer(token or hub.token)]
    async with await request(hub, "POST", PATH, headers, urlencode(fields).encode()) as reply:
        body = (await reply.body()).decode("utf-8")
        assert reply.status == 200, body
        return body

"""Publish and subscribe from Python.

async with Client("http://localhost:3000/.well-known/mercure", token=token) as hub:
    await hub.publish("https://example.com/books/1", data="…")
    async for event in hub.subscribe("https://example.com/books/{id}"):
        print(event.id, event.data)
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2

from hub.protocol.data import data_text, to_json
from hub.protocol.events import Blocks, parse_block
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from hub.protocol.data import Data
    from hub.protocol.events import Block

log = logging.getLogger("hub.client")

_SILENCE: Final = 120.0
"""Seconds without a byte before a stream is considered dead.

Some hubs send a heartbeat only every 40 s.
"""
_MAX_RETRY_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    event: str
    """The type, which is "message" if the update has none."""
    data: str
    """The data, with LF as the end of each line."""
    id: str
    """The cursor after this event: its id or, without one, that of the last event."""
    retry: int | None
    """Milliseconds to wait before a reconnection, if the event says so.

    The hint at the start of a stream is on its first event.
    """

    def json(self) -> Any:
        """Return the data as a value.  Raises ValueError if the data is not JSON."""
        return json.loads(self.data)


class Client:
    """A client of a hub.  Without `token` it can only read public updates.

    `retry` is the seconds before a reconnection, unless the hub says otherwise.  Raises
    httpx2.HTTPStatusError if the hub refuses a request; the message includes the hub's
    reason.  Use it as an async context manager, which closes its connections.
    """

    def __init__(self, url: str, *, token: str | None = None, retry: float = 1.0) -> None:
        self._url = url
        self._retry = retry
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(10.0, read=_SILENCE))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def publish(
        self,
        *topics: str,
        data: Data = "",
        private: bool = False,
        id: str | None = None,
        type: str | None = None,
        retry: int | None = None,
    ) -> str:
        """Publish one update, and return its id.

        The first topic is the canonical one; `retry` is in ms.  A dict or list as data
        is sent as compact JSON.  Raises TypeError for data of another type.
        """
        form: dict[str, Any] = {"topic": topics, "data": data_text(data), "id": id, "type": type, "retry": retry}
        if private:
            form["private"] = "on"
        response = await self._http.post(
            self._url, data={name: value for name, value in form.items() if value is not None}
        )
        await _check(response)
        return response.text

    async def publish_all(self, *updates: Mapping[str, Any]) -> list[str]:
        """Publish many updates in one request, all or none, and return their ids.

        Each has a `topic`, which may be a list, and any other argument of `publish`.
        Other hubs do not support this request.
        """
        lines = ({**update, "data": data_text(update.get("data", ""))} for update in updates)
        return await self.publish_lines("".join(to_json(line) + "\n" for line in lines).encode())

    async def publish_lines(self, lines: bytes) -> list[str]:
        """Publish lines of JSON in one request, all or none, and return their ids.

        Each line is an object as in `publish_all`, but its data is a text.
        """
        headers = {"Content-Type": "application/x-ndjson"}
        response = await self._http.post(self._url, content=lines, headers=headers)
        await _check(response)
        return response.text.split("\n")[:-1]

    async def subscribe(
        self, *topics: str, last_event_id: str | None = None, **matchers: str | Sequence[str]
    ) -> AsyncIterator[Event]:
        """Yield the updates that match any of `topics` or `matchers`, without end.

        A topic may be a URI template.  `matchers` are parameters of the current
        dialect, as in match_mqtt="sensors/+/heat".  With `last_event_id`, starts after
        that event, or at the oldest update for "earliest".  Reconnects if the
        connection ends.  Raises if the hub refuses the subscription, or if the first
        connection fails, and httpx2.SSEError if the response is no event stream.
        Follows no redirect, so that the token stays where it is.
        """
        cursor, retry, connected = last_event_id or "", self._retry, False
        while True:
            headers = [(b"Accept", b"text/event-stream")]
            if cursor:
                headers.append((b"Last-Event-ID", cursor.encode("utf-8")))
            blocks = Blocks()
            try:
                async with self._http.stream(
                    "GET", self._url, params={"topic": topics, **matchers}, headers=headers
                ) as response:
                    await _check(response)
                    _require_event_stream(response)
                    connected = True
                    async for part in response.aiter_bytes():
                        for block in map(parse_block, blocks.feed(part)):
                            cursor = cursor if block.id is None else block.id
                            if (milliseconds := _milliseconds(block)) is not None:
                                retry = milliseconds / 1000
                            if block.data is not None:  # otherwise it is no event
                                yield Event(block.type or "message", block.data, cursor, milliseconds)
            except httpx2.HTTPStatusError as error:
                if not (connected and error.response.is_server_error):
                    raise
            # The response is not an event stream, or the cursor cannot be sent.
            except (httpx2.SSEError, httpx2.LocalProtocolError):
                raise
            except httpx2.TransportError:
                if not connected:
                    raise
            # The hint of a stream that has ended before its first event counts too.
            if (milliseconds := _milliseconds(parse_block(blocks.unfinished()))) is not None:
                retry = milliseconds / 1000
            log.info("the connection has ended; the next one begins in %.1f s", retry)
            await asyncio.sleep(retry)


def _milliseconds(block: Block) -> int | None:
    """Return the `retry` of a block; None if there is none, or a very long one."""
    return int(block.retry) if 0 < len(block.retry) <= _MAX_RETRY_DIGITS else None


def _require_event_stream(response: httpx2.Response) -> None:
    """Raise httpx2.SSEError unless the response is an event stream."""
    type = response.headers.get("Content-Type", "")
    if type.partition(";")[0].strip().lower() != "text/event-stream":
        raise httpx2.SSEError(
            f"the response is not an event stream: its type is {shown(type)}", request=response.request
        )


async def _check(response: httpx2.Response) -> None:
    if response.status_code != 200:
        await response.aread()
        raise httpx2.HTTPStatusError(
            f"{response.status_code}: {response.text}", request=response.request, response=response
        )

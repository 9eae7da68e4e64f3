"""The two clients of the project, so that a test can use either in the same way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hub.client import Client, SyncClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from types import TracebackType
    from typing import Self

    from hub.client import Event
    from hub.protocol.updates import Update


class Threaded:
    """A `SyncClient` with the methods of a `Client`: each call runs in a thread."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = SyncClient(url, **options)

    async def __aenter__(self) -> Self:
        self._client.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, traceback)

    async def publish(self, *topics: str, **fields: Any) -> str:
        return await asyncio.to_thread(self._client.publish, *topics, **fields)

    async def publish_many(self, updates: Iterable[Update]) -> list[str]:
        return await asyncio.to_thread(self._client.publish_many, updates)

    async def publish_lines(self, lines: bytes) -> list[str]:
        return await asyncio.to_thread(self._client.publish_lines, lines)

    async def position(self) -> str:
        return await asyncio.to_thread(self._client.position)

    def link(self, position: str, **options: Any) -> str:
        return self._client.link(position, **options)

    async def subscribe(self, *topics: str, **options: Any) -> AsyncGenerator[Event, None]:
        events = self._client.subscribe(*topics, **options)
        try:
            while (event := await asyncio.to_thread(next, events, None)) is not None:
                yield event
        finally:
            events.close()


CLIENTS: list[Callable[..., Any]] = [Client, Threaded]

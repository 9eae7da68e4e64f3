"""A real server for an application, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from hub.development import DEVELOPMENT_TOKEN
from tests.waiting import HANG
from tests.wire import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp


@dataclass
class Served:
    port: int
    token: str = DEVELOPMENT_TOKEN


@contextlib.asynccontextmanager
async def served(app: ASGIApp, **config: Any) -> AsyncIterator[Served]:
    """Serve `app` as `uvicorn module:app` does, but do not configure logging."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=int(HANG), **config))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield Served(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, HANG)


@contextlib.asynccontextmanager
async def sent(server: Served, request: bytes) -> AsyncIterator[Reply]:
    """Send bytes unchanged; yield the response after its head has been read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
    async with Reply(reader, writer) as reply:
        writer.write(request)
        await writer.drain()
        await asyncio.wait_for(reply.read_head(), HANG)
        yield reply

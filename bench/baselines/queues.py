"""The usual fan-out with sse-starlette: one generator and one queue per subscriber.

The queues have no bound.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bench.baselines import announce, channel_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response


def create_app() -> Starlette:
    """Return an application with a route to subscribe and a route to publish."""
    subscribers: defaultdict[str, set[asyncio.Queue[dict[str, str]]]] = defaultdict(set)

    async def subscribe(request: Request) -> Response:
        """Answer with a stream of the updates of a channel."""
        channel = subscribers[channel_of(request.query_params["topic"])]
        queue: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        channel.add(queue)

        async def events() -> AsyncIterator[dict[str, str]]:
            """Iterate over the updates, until the client disconnects."""
            try:
                while True:
                    yield await queue.get()
            finally:
                channel.discard(queue)

        return EventSourceResponse(events())

    async def publish(request: Request) -> Response:
        """Put an update into the queue of each subscriber of its channel."""
        form = parse_qs((await request.body()).decode())
        id = f"urn:uuid:{uuid.uuid4()}"
        for queue in subscribers[channel_of(form["topic"][0])]:
            queue.put_nowait({"id": id, "data": form["data"][0]})
        return PlainTextResponse(id)

    return Starlette(routes=[Route("/", subscribe), Route("/", publish, methods=["POST"])])


if __name__ == "__main__":
    config = uvicorn.Config(create_app(), loop="uvloop", http="httptools", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[announce()])

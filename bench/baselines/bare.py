"""The least that a hub under uvicorn could cost: uvicorn with an application that does
almost nothing.

It reads a POST and answers it, and it answers a GET with the head of a stream that
stays open.  It delivers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from bench.baselines import announce

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ID = b"urn:uuid:00000000-0000-4000-8000-000000000000"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request."""
    if scope["method"] == "GET":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b":\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"%d" % len(ID)), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ID})


if __name__ == "__main__":
    config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[announce()])

"""A hub inside an application, which publishes without HTTP.

    python examples/embedded.py      then open http://localhost:8000

The page shows the number of votes, and updates it live.  With FastAPI it is the same:
`FastAPI(lifespan=lifespan)` and `app.mount(...)`.
"""

from __future__ import annotations

import argparse
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Mount, Route

from hub import Settings, Update, create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

PREFIX = "/live"

PAGE = f"""<!doctype html>
<title>Votes</title>
<button onclick="fetch('/vote', {{method: 'POST'}})">Vote</button> <output id="votes">0</output>
<script>
  new EventSource("{PREFIX}/.well-known/mercure?match=/votes&last_event_id=earliest")
    .onmessage = (event) => document.getElementById("votes").textContent = event.data;
</script>
"""


async def page(request: Request) -> HTMLResponse:  # noqa: ARG001
    """Return the page, which subscribes to /votes with an EventSource."""
    return HTMLResponse(PAGE)


async def vote(request: Request) -> PlainTextResponse:
    """Count a vote, publish the new number to /votes, and return it."""
    votes = request.app.state.votes = request.app.state.votes + 1
    await request.app.state.hub.publish(Update(("/votes",), str(votes)))
    return PlainTextResponse(str(votes))


def create_application() -> Starlette:
    """Return a new application.  A hub runs once, so each test needs one of its own."""
    live = create_app(Settings(path=f"{PREFIX}/.well-known/mercure", anonymous=True))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        """Run the hub while the application runs."""
        app.state.votes, app.state.hub = 0, live.hub
        async with live.running():  # Starlette does not run the lifespan of a mounted application
            yield

    return Starlette(
        routes=[
            Route("/", page),
            Route("/vote", vote, methods=["POST"]),
            Mount(PREFIX, live),
            Mount(f"/.well-known/oauth-protected-resource{PREFIX}", live),  # the hub's metadata, outside its path
        ],
        lifespan=lifespan,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on")
    uvicorn.run(create_application(), port=parser.parse_args().port)

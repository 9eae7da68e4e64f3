"""A run of a language model that survives a reload, and the end of a worker.

uvicorn --factory app:create --workers 2

The run is a process of its own, which publishes each token with an id.  So neither the
page nor a worker is needed for it: a page that reloads, or reconnects to another
worker, gets from the history what it has missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.middleware.sessions import SessionMiddleware

from hub import Grant, Settings, create_app

HUB = "/live/.well-known/mercure"
FOLDER = Path(__file__).parent
PAGE = (FOLDER / "page.html").read_text("utf-8").replace("HUB", HUB)
ORIGIN = os.environ.get("RUN_ORIGIN", "http://127.0.0.1:8000")  # where the producer reaches this application
KEY = os.environ.get("RUN_KEY", "a secret of at least 32 bytes: change it")  # of the producer's tokens
SESSION_KEY = os.environ.get("RUN_SESSION_KEY", "another secret: change it")


async def authorize(request: Request) -> Grant | None:
    """Allow a session to read its own runs; the producer has a token instead."""
    runs = request.session.get("runs")
    return Grant(subscribe=[f"/runs/{run}" for run in runs]) if runs else None


def create() -> FastAPI:
    """Return the application of one worker; all workers share the history."""
    live = create_app(
        Settings(
            path=HUB,
            history_url=os.environ.get("RUN_HISTORY", "sqlite:///runs.db"),
            publisher_key=KEY,
            idempotency_window=3_600,  # a token that is published again is left out
        ),
        authorize=authorize,
    )
    app = FastAPI(lifespan=lambda _: live.running())
    app.add_middleware(SessionMiddleware, secret_key=SESSION_KEY, same_site="strict")

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return PAGE

    @app.post("/runs")
    def start(request: Request) -> str:
        run = str(uuid.uuid4())
        request.session["runs"] = [*request.session.get("runs", []), run][-10:]
        # The first event: from now on, the run is known to all workers.
        live.publish_sync(f"/runs/{run}", data={"n": 0, "text": ""}, type="token", private=True)
        # In your application, this is a job of a queue.
        command = [sys.executable, str(FOLDER / "producer.py"), ORIGIN + HUB, run]
        subprocess.Popen(command, start_new_session=True, env={**os.environ, "RUN_KEY": KEY})
        return run

    app.mount("/live", live)
    return app

"""Who is online: people and not tabs, without a gap, and without flicker at a reload.

uvicorn --factory app:create
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.middleware.sessions import SessionMiddleware

from hub import Grant, Settings, create_app

HUB = "/live/.well-known/mercure"
ROOM = "/rooms/lobby"
PEOPLE = HUB + "/subscriptions/exact/%2Frooms%2Flobby"  # the subscriptions to the room
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8").replace("HUB", HUB)


async def authorize(request: Request) -> Grant | None:
    """Allow a user to read the room and who is in it, and show the others the name."""
    user = request.session.get("user")
    if user is None:
        return None
    return Grant(
        subscribe=[ROOM, PEOPLE, ("uritemplate", PEOPLE + "/{subscriber}")], subject=user, payload={"user": user}
    )


def create() -> FastAPI:
    """Return a new application.  A hub runs once, so each test needs one of its own."""
    live = create_app(Settings(path=HUB, subscriptions=True), authorize=authorize)
    app = FastAPI(lifespan=lambda _: live.running())
    app.add_middleware(SessionMiddleware, secret_key="change this", same_site="strict")

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return PAGE

    @app.post("/login")
    def login(request: Request, user: Annotated[str, Form()]) -> RedirectResponse:
        request.session["user"] = user
        return RedirectResponse("/", 303)

    app.mount("/live", live)
    return app

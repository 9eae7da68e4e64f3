"""A chat with rooms: a page has one connection, whichever rooms its user is in.

uvicorn --factory app:create
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import FastAPI, Form, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.middleware.sessions import SessionMiddleware

from hub import Grant, Settings, create_app

HUB = "/live/.well-known/mercure"
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8").replace("HUB", HUB)
KEPT = 300  # messages, for those who enter a room

Room = Literal["lobby", "kitchen", "garden"]


async def authorize(request: Request) -> Grant | None:
    """Allow a user to read all rooms; None for anybody else."""
    user = request.session.get("user")
    return Grant(subscribe=[("uritemplate", "/rooms/{room}")], subject=user) if user else None


def user_of(request: Request) -> str:
    """Return who has logged in, or refuse the request."""
    user: str | None = request.session.get("user")
    if user is None:
        raise HTTPException(401, "log in first")
    return user


def create() -> FastAPI:
    """Return a new application.  A hub runs once, so each test needs one of its own."""
    live = create_app(Settings(path=HUB), authorize=authorize)
    messages: deque[dict[str, Any]] = deque(maxlen=KEPT)  # in your application, a table of a database

    app = FastAPI(lifespan=lambda _: live.running())
    app.add_middleware(SessionMiddleware, secret_key="change this", same_site="strict")

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return PAGE

    @app.post("/login")
    def login(request: Request, user: Annotated[str, Form(min_length=1, max_length=30)]) -> RedirectResponse:
        request.session["user"] = user
        return RedirectResponse("/", 303)

    @app.get("/messages")
    async def state(request: Request, response: Response, room: Annotated[list[Room], Query()]) -> list[dict[str, Any]]:
        user_of(request)
        position = await live.position()  # before the state is read: so nothing is lost in between
        response.headers["Link"] = live.link(position)
        return [message for message in messages if message["room"] in room]

    @app.post("/rooms/{room}", status_code=204)
    async def say(request: Request, room: Room, text: Annotated[str, Form(min_length=1, max_length=500)]) -> None:
        message = {"id": str(uuid4()), "room": room, "user": user_of(request), "text": text}
        messages.append(message)
        await live.publish(f"/rooms/{room}", data=message, private=True)

    app.mount("/live", live)
    return app

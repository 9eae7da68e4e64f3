"""FastAPI: a hub in the application, which publishes from its views.

uvicorn --factory fastapi_app:create
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.middleware.sessions import SessionMiddleware

from hub import Grant, Settings, create_app

HUB = "/live/.well-known/mercure"
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8").replace("HUB", HUB)


def topic_of(user: str) -> str:
    """Return the topic of a user; quoted, so that a template matches each name."""
    return f"/users/{quote(user, safe='')}"


async def authorize(request: Request) -> Grant | None:
    """Allow a user to read the topic of this user; None for anybody else."""
    user = request.session.get("user")
    return Grant(subscribe=[topic_of(user)], subject=user) if user else None


def create() -> FastAPI:
    """Return a new application.  A hub runs once, so each test needs one of its own."""
    votes = 0
    live = create_app(Settings(path=HUB, anonymous=True), authorize=authorize)

    app = FastAPI(lifespan=lambda _: live.running())
    app.add_middleware(SessionMiddleware, secret_key="change this", same_site="strict")

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return PAGE

    @app.post("/login")
    def login(request: Request, user: Annotated[str, Form()]) -> RedirectResponse:
        request.session["user"] = user
        return RedirectResponse("/", 303)

    @app.post("/logout")
    async def logout(request: Request) -> RedirectResponse:
        if user := request.session.pop("user", None):
            await live.disconnect(subject=user)  # in all tabs; they come back without the session
        return RedirectResponse("/", 303)

    @app.get("/votes")
    async def state(response: Response) -> int:
        position = await live.position()  # before the state is read: so nothing is lost in between
        response.headers["Link"] = live.link(position)
        return votes

    @app.post("/vote")
    async def vote(request: Request) -> int:
        nonlocal votes
        votes += 1
        await live.publish("/votes", data=str(votes))
        if user := request.session.get("user"):
            await live.publish(topic_of(user), data=f"{user}, you were number {votes}", type="note", private=True)
        return votes

    app.mount("/live", live)
    return app

"""Starlette: a hub in the application, which publishes from its views.

uvicorn --factory starlette_app:create
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route

from hub import Grant, Settings, create_app

if TYPE_CHECKING:
    from starlette.requests import Request

HUB = "/live/.well-known/mercure"
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8").replace("HUB", HUB)


def topic_of(user: str) -> str:
    """Return the topic of a user; quoted, so that a template matches each name."""
    return f"/users/{quote(user, safe='')}"


async def authorize(request: Request) -> Grant | None:
    """Allow a user to read the topic of this user; None for anybody else."""
    user = request.session.get("user")
    return Grant(subscribe=[topic_of(user)], subject=user) if user else None


def create() -> Starlette:
    """Return a new application.  A hub runs once, so each test needs one of its own."""
    votes = 0
    live = create_app(Settings(path=HUB, anonymous=True), authorize=authorize)

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse(PAGE)

    async def login(request: Request) -> RedirectResponse:
        request.session["user"] = (await request.form())["user"]
        return RedirectResponse("/", 303)

    async def logout(request: Request) -> RedirectResponse:
        if user := request.session.pop("user", None):
            await live.disconnect(subject=user)  # in all tabs; they come back without the session
        return RedirectResponse("/", 303)

    async def state(_: Request) -> PlainTextResponse:
        position = await live.position()  # before the state is read: so nothing is lost in between
        return PlainTextResponse(str(votes), headers={"Link": live.link(position)})

    async def vote(request: Request) -> PlainTextResponse:
        nonlocal votes
        votes += 1
        await live.publish("/votes", data=str(votes))
        if user := request.session.get("user"):
            await live.publish(topic_of(user), data=f"{user}, you were number {votes}", type="note", private=True)
        return PlainTextResponse(str(votes))

    return Starlette(
        routes=[
            Route("/", page),
            Route("/login", login, methods=["POST"]),
            Route("/logout", logout, methods=["POST"]),
            Route("/votes", state),
            Route("/vote", vote, methods=["POST"]),
            Mount("/live", live),
        ],
        middleware=[Middleware(SessionMiddleware, secret_key="change this", same_site="strict")],
        lifespan=lambda _: live.running(),
    )

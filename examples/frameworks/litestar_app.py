"""Litestar: a hub in the application, which publishes from its handlers.

uvicorn --factory litestar_app:create
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from litestar import Litestar, MediaType, Request, asgi, get, post
from litestar.enums import RequestEncodingType
from litestar.middleware.session.client_side import CookieBackendConfig
from litestar.params import Body
from litestar.response import Redirect, Response

from hub import Grant, Settings, create_app

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send
    from starlette.requests import Request as HubRequest

HUB = "/live/.well-known/mercure"
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8").replace("HUB", HUB)


def topic_of(user: str) -> str:
    """Return the topic of a user; quoted, so that a template matches each name."""
    return f"/users/{quote(user, safe='')}"


async def authorize(request: HubRequest) -> Grant | None:
    """Allow a user to read the topic of this user; None for anybody else."""
    user = request.session.get("user")
    return Grant(subscribe=[topic_of(user)], subject=user) if user else None


def create() -> Litestar:
    """Return a new application.  A hub runs once, so each test needs one of its own."""
    votes = 0
    live = create_app(Settings(path=HUB, anonymous=True), authorize=authorize)

    @asgi(HUB, is_mount=True, copy_scope=True)
    async def hub(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = HUB + scope["path"].rstrip("/")  # Litestar has removed the path of the mount
        await live(scope, receive, send)  # type: ignore[arg-type]  # those of Litestar are narrower

    @get("/", media_type=MediaType.HTML)
    async def page() -> str:
        return PAGE

    @post("/login")
    async def login(
        request: Request[Any, Any, Any],
        data: Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)],
    ) -> Redirect:
        request.session["user"] = data["user"]
        return Redirect("/", status_code=303)

    @post("/logout")
    async def logout(request: Request[Any, Any, Any]) -> Redirect:
        if user := request.session.pop("user", None):
            await live.disconnect(subject=user)  # in all tabs; they come back without the session
        return Redirect("/", status_code=303)

    @get("/votes")
    async def state() -> Response[int]:
        position = await live.position()  # before the state is read: so nothing is lost in between
        return Response(votes, headers={"Link": live.link(position)})

    @post("/vote")
    async def vote(request: Request[Any, Any, Any]) -> int:
        nonlocal votes
        votes += 1
        await live.publish("/votes", data=str(votes))
        if user := request.session.get("user"):
            await live.publish(topic_of(user), data=f"{user}, you were number {votes}", type="note", private=True)
        return votes

    sessions = CookieBackendConfig(secret=sha256(b"change this").digest(), samesite="strict")
    return Litestar(
        [page, login, logout, state, vote, hub], middleware=[sessions.middleware], lifespan=[lambda _: live.running()]
    )

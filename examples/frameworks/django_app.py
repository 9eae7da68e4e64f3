"""Django over ASGI: a hub beside Django in one process, and views that publish.

uvicorn --factory django_app:create
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import django
from django.conf import settings
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.asgi import get_asgi_application
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount

from hub import Grant, Settings, create_app

if TYPE_CHECKING:
    from django.http import HttpRequest
    from starlette.requests import Request

    from hub.http.embedding import HubApplication

HUB = "/live/.well-known/mercure"
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8").replace("HUB", HUB)

live: HubApplication
votes = 0


def page(_: HttpRequest) -> HttpResponse:
    return HttpResponse(PAGE)


def login(request: HttpRequest) -> HttpResponse:
    request.session["user"] = request.POST["user"]
    return HttpResponseRedirect("/")


def logout(request: HttpRequest) -> HttpResponse:
    """End the session, and the streams in all tabs; they come back without it."""
    if user := request.session.pop("user", None):
        live.disconnect_sync(subject=user)
    return HttpResponseRedirect("/")


def state(_: HttpRequest) -> HttpResponse:
    position = live.position_sync()  # before the state is read: so nothing is lost in between
    return HttpResponse(str(votes), headers={"Link": live.link(position)})


def topic_of(user: str) -> str:
    """Return the topic of a user; quoted, so that a template matches each name."""
    return f"/users/{quote(user, safe='')}"


def vote(request: HttpRequest) -> HttpResponse:
    """Count a vote.  Django runs a view that is not `async` in a thread."""
    global votes
    votes += 1
    live.publish_sync("/votes", data=str(votes))
    if user := request.session.get("user"):
        live.publish_sync(topic_of(user), data=f"{user}, you were number {votes}", type="note", private=True)
    return HttpResponse(str(votes))


def authorize(request: Request) -> Grant | None:
    """Allow a user to read the topic of this user; None for anybody else."""
    user = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME)).get("user")
    return Grant(subscribe=[topic_of(user)], subject=user) if user else None


urlpatterns = [
    path("", page),
    path("login", login),
    path("logout", logout),
    path("votes", state),
    path("vote", vote),
]


def create() -> Starlette:
    """Return a new application: the hub below /live, and Django for the rest."""
    global live, votes
    if not settings.configured:  # in a project, this is in its settings.py
        settings.configure(
            SECRET_KEY="change this",
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=__name__,
            SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
            SESSION_COOKIE_SAMESITE="Strict",
            MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
        )
        django.setup()
    live, votes = create_app(Settings(path=HUB, anonymous=True), authorize=authorize), 0

    return Starlette(
        routes=[Mount("/live", live), Mount("/", get_asgi_application())], lifespan=lambda _: live.running()
    )

"""Flask over WSGI: a hub in a process of its own, and a client that publishes to it.

skipfilter serve --dev --cors-origins http://localhost:8000
flask --app flask_app run --host localhost --port 8000
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2
from flask import Flask, Response, redirect, request, session

from hub import SyncClient
from hub.auth.signing import sign_classic_token
from hub.development import DEVELOPMENT_KEY, DEVELOPMENT_TOKEN, DEVELOPMENT_URL

if TYPE_CHECKING:
    from werkzeug.wrappers import Response as Redirect

COOKIE = "mercure_access_token"  # in production: "__Secure-mercure_access_token", with secure=True
PAGE = (Path(__file__).parent / "page.html").read_text("utf-8")


def topic_of(user: str) -> str:
    """Return the topic of a user; quoted, so that a template matches each name."""
    return f"/users/{quote(user, safe='')}"


def create_app() -> Flask:
    """Return a new application, for the hub at the URL in the variable HUB_URL, whose
    socket for commands is in HUB_OPERATOR_SOCKET.
    """
    votes = 0
    url = os.environ.get("HUB_URL", DEVELOPMENT_URL)
    socket = os.environ.get("HUB_OPERATOR_SOCKET", "mercure.sock")
    app = Flask(__name__)
    # All threads share one client.  In production, its token is one that may publish.
    hub = app.extensions["hub"] = SyncClient(url, token=DEVELOPMENT_TOKEN)
    app.config.update(SECRET_KEY="change this", SESSION_COOKIE_SAMESITE="Strict")

    @app.get("/")
    def page() -> str:
        return PAGE.replace("HUB", url)

    @app.post("/login")
    def login() -> Redirect:
        session["user"] = request.form["user"]
        return redirect("/", 303)

    # The hub's own process ends the streams in all tabs.  They come back without the
    # cookie.
    @app.post("/logout")
    def logout() -> Redirect:
        answer = redirect("/", 303)
        if user := session.pop("user", None):
            answer.delete_cookie(COOKIE, path="/.well-known/mercure")
            with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket)) as operator:
                operator.post("http://hub/kick", json={"subject": user}).raise_for_status()
        return answer

    # Flask has no part in the event stream, so a token says what the user may read.
    # Each answer has a new one.  A page that asks for nothing renews it as
    # hub/README.md shows.
    @app.after_request
    def renew(answer: Response) -> Response:
        if user := session.get("user"):
            token = sign_classic_token(DEVELOPMENT_KEY, subscribe=[topic_of(user)], subject=user, seconds=3_600)
            place = "/.well-known/mercure"
            answer.set_cookie(COOKIE, token, max_age=3_540, path=place, httponly=True, samesite="Strict")
        return answer

    @app.get("/votes")
    def state() -> Response:
        position = hub.position()  # before the state is read: so nothing is lost in between
        return Response(str(votes), headers={"Link": hub.link(position)})

    @app.post("/vote")
    def vote() -> str:
        nonlocal votes
        votes += 1
        hub.publish("/votes", data=str(votes))
        if user := session.get("user"):
            hub.publish(topic_of(user), data=f"{user}, you were number {votes}", type="note", private=True)
        return str(votes)

    return app

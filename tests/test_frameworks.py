"""The examples for web frameworks, each on a real port, as a browser uses them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from werkzeug.serving import make_server

from examples.frameworks import django_app, fastapi_app, flask_app, litestar_app, starlette_app
from hub.client import Client
from hub.testing import MemoryHub, Subscriber, blocking, serve
from tests.redis_server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def served_flask(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[str]:
    """Serve the example, and a hub on another port, with its socket in a directory."""
    socket, port = str(directory / "hub.sock"), free_port()
    with MemoryHub(operator_socket=socket, cors_origins=f"http://127.0.0.1:{port}").serving() as url:
        monkeypatch.setenv("HUB_URL", url)
        monkeypatch.setenv("HUB_OPERATOR_SOCKET", socket)
        app = flask_app.create_app()
        server = make_server("127.0.0.1", port, app, threaded=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            app.extensions["hub"].close()


MODULES = {"django": django_app, "fastapi": fastapi_app, "litestar": litestar_app, "starlette": starlette_app}


@pytest.fixture(params=[*MODULES, "flask"])
def origin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    with (
        served_flask(monkeypatch, tmp_path)
        if request.param == "flask"
        else serve(MODULES[request.param].create()) as url
    ):
        yield url


def follow(http: httpx2.Client, last_event_id: str | None = None) -> Any:
    """Subscribe as the page does, with the cookies of a browser."""
    url = re.search(r'new URL\("([^"]+)"', http.get("/").text)
    assert url is not None
    cookies = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
    client = Client(str(http.base_url.join(url[1])), headers={"Cookie": cookies})
    return blocking(Subscriber(client, "/votes", "/users/{name}", last_event_id=last_event_id))


def test_a_page_follows_the_votes_and_what_is_for_its_user_alone(origin: str) -> None:
    with (
        httpx2.Client(base_url=origin) as ann,
        httpx2.Client(base_url=origin) as bob,
        httpx2.Client(base_url=origin) as anyone,
    ):
        for http, user in ((ann, "Ann Lee@é"), (bob, "{name}")):
            assert http.post("/login", data={"user": user}).status_code in (302, 303)
        with follow(ann) as for_ann, follow(bob) as for_bob, follow(anyone) as for_anyone:
            assert ann.post("/vote").text == "1"
            assert anyone.post("/vote").text == "2"
            assert bob.post("/vote").text == "3"
            heard = [
                [subscriber.next().data for _ in range(4 - (subscriber is for_anyone))]
                for subscriber in (for_ann, for_bob, for_anyone)
            ]
        assert heard == [
            ["1", "Ann Lee@é, you were number 1", "2", "3"],
            ["1", "2", "3", "{name}, you were number 3"],
            ["1", "2", "3"],
        ]
        with follow(ann, "earliest") as again:
            assert [again.next().data for _ in range(2)] == ["1", "Ann Lee@é, you were number 1"]


def test_from_the_state_on_no_vote_is_missed(origin: str) -> None:
    with httpx2.Client(base_url=origin) as http:
        http.post("/vote")
        answer = http.get("/votes")
        position = re.fullmatch(
            r'<.*/\.well-known/mercure>; rel="mercure"; last-event-id="(#.*)"', answer.headers["link"]
        )
        assert position is not None
        assert answer.json() == 1
        for number in ("2", "3"):
            assert http.post("/vote").text == number
        with follow(http, position[1]) as stream:
            assert [stream.next().data for _ in range(2)] == ["2", "3"]


def test_a_page_of_another_origin_cannot_publish_with_the_session(origin: str) -> None:
    with httpx2.Client(base_url=origin) as http:
        http.post("/login", data={"user": "ann"})
        for path in ("/live/.well-known/mercure", "/.well-known/mercure"):
            answer = http.post(path, data={"topic": "/votes"}, headers={"Origin": "https://evil.example"})
            assert answer.status_code >= 400

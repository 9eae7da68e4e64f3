"""The kit with which users test their applications."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from hub import Grant, Settings, SyncClient, Update, create_app
from hub.client import Client, Refused
from hub.testing import MemoryHub, StreamingTransport, Subscriber, blocking, client_of, record_updates, serve
from hub.testing.transport import MESSAGES
from skipfilter.text import INSTALL
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hub.http.embedding import HubApplication
    from hub.pytest_plugin import MercureServer

pytestmark = pytest.mark.anyio


def shop(live: HubApplication) -> FastAPI:
    """An application that publishes from a view, and contains a hub."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with live.running():
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/sold/{book}")
    async def sold(book: str) -> str:
        return await live.publish(f"/books/{book}", "/sales", data={"book": book, "left": 1}, type="sold")

    @app.post("/sync/{book}")
    def sold_in_a_thread(book: str) -> str:
        return live.publish_sync(f"/books/{book}", data="sync", private=True)

    app.mount("/", live)
    return app


async def test_an_application_whose_server_has_a_root_path() -> None:
    live = create_app(Settings(path="/api/.well-known/mercure", anonymous=True))
    app = shop(live)
    client = client_of(app, "/api/.well-known/mercure", root_path="/api")
    async with live.running(), Subscriber(client, "/sales") as subscriber:
        sent = httpx2.AsyncClient(transport=StreamingTransport(app, root_path="/api"), base_url="http://testserver")
        async with sent:
            await sent.post("/api/sold/7")
        assert (await subscriber.next(timeout=HANG)).json() == {"book": "7", "left": 1}


# -- what was published


def test_an_endpoint_has_published(mercure_hub: MemoryHub) -> None:
    with TestClient(shop(mercure_hub.app)) as client:
        mercure_hub.assert_nothing_published()
        id = client.post("/sold/7").json()
        client.post("/sync/8")
    found = mercure_hub.assert_published("/books/7", "/sales", data={"left": 1, "book": "7"}, type="sold", count=1)
    assert (found.id, found.topics) == (id, ("/books/7", "/sales"))
    assert mercure_hub.assert_published("/books/8", private=True, data="sync", id=mercure_hub.updates[1].id)
    assert len(mercure_hub.updates) == 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"topics": ["/c"]},
            "no update was published to '/c'; all updates:\n  /a, /b: '1' type='t' private\n  /a: 'x'",
        ),
        ({"topics": ["/a"], "data": "2"}, "no update was published to '/a' data='2'; all updates:"),
        ({"topics": ["/a", "/c"]}, "no update was published to '/a', '/c'; "),
        ({"topics": ["/a"], "data": {"n": 1}}, "no update was published to '/a' data={'n': 1}; "),
        ({"topics": ["/a"], "private": False, "type": "t"}, "to '/a' private=False type='t'; "),
        ({"topics": ["/a"], "count": 1}, "2 updates were published to '/a', instead of 1; "),
        ({"topics": ["/a"], "id": "x"}, "id='x'; "),
    ],
)
async def test_an_assertion_that_fails_shows_what_was_published(asked: dict[str, Any], told: str) -> None:
    hub = MemoryHub()
    async with hub.app.running():
        await hub.app.publish_many([Update(("/a", "/b"), "1", private=True, type="t"), Update(("/a",), "x")])
    with pytest.raises(AssertionError) as caught:
        hub.assert_published(*asked.pop("topics"), **asked)
    assert told in str(caught.value)
    with pytest.raises(AssertionError, match="updates were published; all updates:"):
        hub.assert_nothing_published()
    with pytest.raises(AssertionError, match="nothing was published at all"):
        MemoryHub().assert_published("/a")


async def test_a_record_has_what_any_hub_accepts_over_http_too() -> None:
    app = create_app(Settings(dev=True, idempotency_window=60, subscriptions=True))
    updates = record_updates(app)
    async with app.running():
        transport = StreamingTransport(app)
        async with Client(
            "http://testserver/.well-known/mercure", token=MemoryHub().token, transport=transport
        ) as client:
            async with Subscriber(Client("http://testserver/.well-known/mercure", transport=transport), "/a"):
                await client.publish("/a", id="1")
            await client.publish("/a", id="1")
            with pytest.raises(Refused):
                await client.publish("*")
    assert [update.id for update in updates] == ["1"]


# -- subscribers


async def test_a_subscriber_in_the_same_loop() -> None:
    hub = MemoryHub()
    async with hub.app.running(), hub.subscriber("/a", match_mqtt="b/#") as subscriber:
        await hub.app.publish("/a", data="1", private=True)
        await hub.app.publish("b/c", data="2")
        assert [(await subscriber.next()).data for _ in range(2)] == ["1", "2"]
        assert [event.data for event in subscriber.received] == ["1", "2"]
        with pytest.raises(AssertionError, match=r"^no update has come; before: '1', '2' within 0.01 s$"):
            await subscriber.next(timeout=0.01)
        waiting = asyncio.ensure_future(subscriber.next())
        await hub.app.publish("/a", data="3")
        assert (await waiting).data == "3"
        assert hub.app.hub.delivery.connection_count == 1
    assert hub.app.hub.delivery.connection_count == 0


async def test_a_subscriber_notes_gaps_and_receives_no_signal() -> None:
    hub = MemoryHub(heartbeat=1)
    async with hub.app.running():
        await hub.app.publish("/a", data="1")
        async with hub.subscriber("/a", last_event_id="unknown") as subscriber:
            assert (await subscriber.next()).data == "1"
            hub.clock.advance(10)
            await hub.app.publish("/a", data="2")
            assert (await subscriber.next()).data == "2"
            assert (subscriber.gaps, len(subscriber.received)) == (["unknown"], 2)


async def test_a_subscriber_that_is_refused_or_misses_its_hub() -> None:
    hub = MemoryHub(anonymous=False)
    async with hub.app.running():
        with pytest.raises(Refused, match="401"):
            await hub.subscriber("/a", token=None).__aenter__()
        async with hub.subscriber("/a", last_event_id="earliest") as subscriber:
            assert subscriber.received == []


async def test_a_private_update_reaches_only_the_user_that_the_application_allows() -> None:
    async def authorize(request: Any) -> Grant | None:
        user = request.headers.get("user")
        return Grant(subscribe=[f"/users/{user}"]) if user else None

    hub = MemoryHub(authorize=authorize)
    async with (
        hub.app.running(),
        hub.subscriber(match="*", headers={"user": "1"}, token=None) as one,
        hub.subscriber(match="*", headers={"user": "2"}, token=None) as other,
    ):
        await hub.app.publish("/users/1", data="private", private=True)
        await hub.app.publish("/all", data="public")
        assert [(await one.next()).data for _ in range(2)] == ["private", "public"]
        assert (await other.next()).data == "public"


def test_a_subscriber_in_a_test_without_async(mercure_hub: MemoryHub) -> None:
    with (
        TestClient(shop(mercure_hub.app)) as client,
        blocking(mercure_hub.subscriber("/books/{id}"), client.portal) as subscriber,
    ):
        client.post("/sold/1")
        event = subscriber.next()
        assert (event.type, event.json()["book"], len(subscriber.received)) == ("sold", "1", 1)
        with pytest.raises(AssertionError, match="no update has come"):
            subscriber.next(timeout=0.01)


# -- a real port


def test_a_hub_on_a_real_port(mercure_server: MercureServer) -> None:
    with (
        SyncClient(mercure_server.url, token=mercure_server.token) as client,
        blocking(Subscriber(Client(mercure_server.url), "/a")) as subscriber,
    ):
        id = client.publish("/a", data="1")
        event = subscriber.next()
        assert (event.id, event.data) == (id, "1")
    mercure_server.hub.assert_published("/a", data="1", count=1)


def test_an_open_stream_does_not_delay_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        with MemoryHub().serving() as url:
            stack.enter_context(blocking(Subscriber(Client(url), "/a")))
            [thread] = [thread for thread in threading.enumerate() if "_run" in thread.name]
        assert not thread.is_alive()
    assert "graceful shutdown exceeded" not in caplog.text


def test_any_application_on_a_real_port() -> None:
    hub = MemoryHub()
    with (
        serve(shop(hub.app), before_end=hub.app.hub.shutdown.begin) as url,
        SyncClient(url + hub.path, token=hub.token) as client,
    ):
        client.publish("/a")
    hub.assert_published("/a")


def test_an_application_that_does_not_start_is_an_error() -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        raise LookupError
        yield

    with pytest.raises(RuntimeError, match="the application has not started"), serve(FastAPI(lifespan=lifespan)):
        raise AssertionError


def test_a_subscriber_that_is_refused_closes_its_connection() -> None:
    # Otherwise the socket would be reported as unclosed.
    with (
        MemoryHub(anonymous=False).serving() as url,
        pytest.raises(Refused, match="401"),
        blocking(Subscriber(Client(url), "/a")),
    ):
        raise AssertionError


# -- time


async def test_a_grant_that_ends_is_seen_by_the_subscriber() -> None:
    hub: MemoryHub

    async def authorize(request: Any) -> Grant | None:
        return Grant(expires=until) if hub.clock.time() < until else None

    hub = MemoryHub(authorize=authorize, anonymous=False)
    until = hub.clock.time() + 60
    async with hub.app.running(), hub.subscriber("/a") as subscriber:
        await hub.app.publish("/a", data="1")
        assert (await subscriber.next()).data == "1"
        hub.clock.advance(61)
        with pytest.raises(Refused, match="401"):
            await subscriber.next(timeout=HANG)


async def test_time_passes_at_once() -> None:
    hub = MemoryHub(max_lifetime=600, history_age=3_600, heartbeat=0)
    async with hub.app.running():
        await hub.app.publish("/a")
        async with hub.client() as client:
            opened = []
            events = client.subscribe("/a", on_open=lambda: opened.append(1))
            reading = asyncio.ensure_future(anext(events))
            while not opened:
                await asyncio.sleep(0)
            hub.clock.advance(600)
            while len(opened) < 2:  # the stream has ended, and the client is back
                await asyncio.sleep(0.01)
            hub.clock.advance(3_600)
            await hub.app.publish("/b")
            assert [e async for e in client.subscribe("/a", last_event_id="earliest", wait=False)] == []
            reading.cancel()
    before = time.time()
    assert before + 4_200 <= hub.clock.time() <= time.time() + 4_200


# -- the transport


async def test_an_application_that_fails_raises_its_error_in_the_request() -> None:
    async def fails_early(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("early")

    async def fails_late(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise LookupError("late")

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        pass

    for app, error in ((fails_early, LookupError), (fails_late, LookupError), (silent, AssertionError)):
        async with Client("http://testserver/", transport=StreamingTransport(app)) as client:
            with pytest.raises(error):
                await asyncio.wait_for(client.publish("a"), HANG)


async def test_an_application_that_fails_after_its_answer_raises_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"a"})
        raise LookupError("after")

    async with Client("http://testserver/", transport=StreamingTransport(app)) as client:
        with pytest.raises(LookupError, match="after"):
            await client.publish("a")


async def test_a_client_that_does_not_read_holds_the_application_back_and_can_leave_it() -> None:
    sent = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        while True:  # it does not look whether the client is there
            await send({"type": "http.response.body", "body": b":\n", "more_body": True})
            sent.append(1)

    async with (
        httpx2.AsyncClient(transport=StreamingTransport(app)) as client,
        client.stream("GET", "http://testserver/"),
    ):
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(sent) <= MESSAGES


# -- the plugin


@pytest.mark.processes
def test_the_plugin_loads_nothing_but_pytest_before_it_is_used() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import hub.pytest_plugin; "
        "print(*(set(sys.modules) - before - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"hub", "hub.pytest_plugin"}


@pytest.mark.processes
def test_a_kit_that_is_alone_in_its_process_works(tmp_path: Path) -> None:
    (tmp_path / "test_alone.py").write_text(
        "import asyncio, structlog\n"
        "def test_alone(mercure_hub):\n"
        "    assert structlog.is_configured()\n"
        "    async def main():\n"
        "        async with mercure_hub.app.running():\n"
        "            await mercure_hub.app.publish('/a')\n"
        "    asyncio.run(main())\n"
        "    mercure_hub.assert_published('/a')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_alone.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
def test_a_package_that_is_missing_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(mercure_hub): pass")
    pytester.makeconftest("import sys\n\nsys.modules['hub.testing.memory_hub'] = None")
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    assert f"this fixture needs hub.testing.memory_hub: {INSTALL.format(extra='testing')}" in result.stdout.str()


@pytest.mark.processes
def test_the_fixtures_are_there_in_a_project_of_a_user(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_one(mercure_hub):
            mercure_hub.assert_nothing_published()

        def test_other(mercure_hub, mercure_server):
            assert mercure_server.hub is not mercure_hub
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)

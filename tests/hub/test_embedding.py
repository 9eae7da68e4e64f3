"""A hub at another path, in another application, beside other hubs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import sys
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from hub import Settings, Update, create_app
from hub.errors import Closing, InvalidRequest, NotRunning
from tests.asgi import FORM, NDJSON, PATH, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.serving import Served, served
from tests.test_examples import ROOT
from tests.waiting import HANG
from tests.wire import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hub.http.embedding import HubApplication

pytestmark = pytest.mark.anyio

METADATA = "/.well-known/oauth-protected-resource"
EVERYTHING = classic_token(["*"], ["*"])


def new_hub(path: str, **settings: Any) -> HubApplication:
    return create_app(Settings(**dict[str, Any](dev=True, path=path, retry=0, max_lifetime=0) | settings))


def lifespan_of(*hubs: HubApplication) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for hub in hubs:
                await stack.enter_async_context(hub.running())
            yield

    return lifespan


def in_starlette(*hubs: tuple[str, HubApplication], middleware: Any = ()) -> Starlette:
    mounts = [Mount(where + prefix, hub) for prefix, hub in hubs for where in (METADATA, "")]
    own = Route("/own", lambda _: PlainTextResponse("own"))
    return Starlette(routes=[own, *mounts], lifespan=lifespan_of(*(hub for _, hub in hubs)), middleware=middleware)


def in_fastapi(*hubs: tuple[str, HubApplication], middleware: Any = ()) -> FastAPI:
    async def word() -> str:
        return "own"

    app = FastAPI(lifespan=lifespan_of(*(hub for _, hub in hubs)), middleware=list(middleware))

    @app.get("/own", response_class=PlainTextResponse)
    async def own(said: str = Depends(word)) -> str:
        return said

    for prefix, hub in hubs:
        for where in (METADATA, ""):
            app.mount(where + prefix, hub)
    return app


HOSTS = pytest.mark.parametrize("host", [in_starlette, in_fastapi])


def running(app: Starlette) -> Any:
    return app.router.lifespan_context(app)


async def assert_is_at(app: Any, path: str, **scope: Any) -> None:
    """Assert that each route of the hub is at `path`, below it or derived from it."""
    origin = "https://hub.example"
    token = current_token(["*"], ["*"], resource=origin + path)

    async def get(target: str, *headers: tuple[str, str]) -> Any:
        return await ask(app, "GET", target, headers, **scope)

    metadata = await get(METADATA + path)
    assert (metadata.status, metadata.json()["resource"]) == (200, origin + path)
    challenge = (await ask(app, "POST", path, [FORM], **scope)).headers["www-authenticate"]
    assert challenge == f'Bearer resource_metadata="{origin}{METADATA}{path}"'
    about = f"{path}/subscriptions/exact/a%2Fb/{{subscriber}}"
    asked = urlencode([("match_uritemplate", about), ("match", "a/b")])
    async with follow(app, target=f"{path}?{asked}", headers=[bearer(token)], **scope) as stream:
        arrival = await stream.next_event()
        assert f'"id":"{path}/subscriptions/exact/a%2Fb/' in arrival.data
        assert await publish(app, token, ("topic", "a/b"), ("data", "1"), ("id", "i"), path=path) == "i"
        assert (await stream.next_event()).data == "1"
        who = await get(f"{path}/subscriptions/exact/a%2Fb", bearer(token))
        [subscription] = who.json()["subscriptions"]
        assert subscription["id"] in arrival.data
        assert who.headers["link"].startswith(f"<{path}>; ")
        assert (await get(subscription["id"], bearer(token))).json() == subscription
    for topic in (path, f"{path}/x", f"https://example.com{path}/x"):
        refused = await ask(app, "POST", path, [FORM, bearer(token)], f"topic={topic}".encode(), **scope)
        assert (refused.status, f"resolves to {path}" in refused.detail) == (400, True)
    assert (await ask(app, "QUERY", path, [FORM], b"match=a", **scope)).status == 200
    assert (await ask(app, "HEAD", f"{path}?match=a", **scope)).status == 200
    assert (await get(f"{path}/debug/")).status == 200
    assert (await get(f"{path}/debug/config.json")).json()["hub"] == path
    assert f"the hub is at {path}" in (await get(f"{path}/nothing")).detail


# -- the path


@pytest.mark.parametrize("path", ["/hub", "/a/b/c", "/live/.well-known/mercure", "/x.y~z"])
async def test_n6_n145_n44_n121_n130_all_routes_are_below_the_path(path: str) -> None:
    hub = new_hub(path)
    async with hub.running():
        await assert_is_at(hub, path)
        for elsewhere in (PATH, f"{path}x", f"/x{path}", METADATA + PATH, f"{PATH}/subscriptions", f"{PATH}/debug/"):
            if elsewhere != path:
                assert (await ask(hub, "GET", f"{elsewhere}?match=a")).status == 404
        assert await publish(hub, EVERYTHING, ("topic", f"{PATH}/x"), path=path)  # only reserved at the default path


@HOSTS
async def test_n6_a_mounted_hub_answers_at_its_path(host: Any) -> None:
    path = f"/live{PATH}"
    app = host(("/live", new_hub(path)))
    async with running(app):
        await assert_is_at(app, path)
        assert (await ask(app, "GET", "/own")).text == "own"
        for elsewhere in (PATH, "/live", METADATA + PATH):
            assert (await ask(app, "GET", f"{elsewhere}?match=a")).status in (307, 404)


async def test_n6_mounts_in_mounts() -> None:
    path = f"/a/b{PATH}"
    hub = new_hub(path)
    inner = FastAPI()
    inner.mount("/b", hub)
    app = Starlette(routes=[Mount("/a", inner), Mount(METADATA, hub)], lifespan=lifespan_of(hub))
    async with running(app):
        await assert_is_at(app, path)


@pytest.mark.parametrize("mount", ["", "/live"])
@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_n6_a_server_with_a_root_path(http: str, mount: str) -> None:
    seen = mount + PATH  # behind a proxy that strips /api
    path = f"/api{seen}"
    app: Any = new_hub(path)
    if mount:
        app = in_fastapi((mount, app))
    async with served(app, http=http, root_path="/api") as server:
        async with await request(server, "GET", f"{seen}?match=a") as reply:
            assert reply.status == 200
        async with await request(server, "GET", f"{seen}/subscriptions", [bearer(EVERYTHING)]) as reply:
            assert (reply.status, reply.headers["link"].startswith(f"<{path}>")) == (200, True)
        async with await request(server, "POST", seen, [FORM]) as reply:
            assert f"{METADATA}{path}" in reply.headers["www-authenticate"]


# -- the application around a hub


@HOSTS
async def test_n9_n26_middleware_of_the_application_does_not_delay_a_stream(host: Any) -> None:
    async def pass_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    path = f"/live{PATH}"
    hub = new_hub(path)
    middleware = [Middleware(BaseHTTPMiddleware, dispatch=pass_on), Middleware(GZipMiddleware, minimum_size=1)]
    app = host(("/live", hub), middleware=middleware)
    async with (
        served(app) as server,
        await request(server, "GET", f"{path}?match=a", [("accept-encoding", "gzip")]) as reply,
    ):
        assert (reply.status, "content-encoding" in reply.headers) == (200, False)
        assert reply.headers["x-accel-buffering"] == "no"
        await hub.state.hub.publish(Update(("a",), "1"))
        assert (await reply.next_event()).data == "1"
        async with await request(server, "POST", path, [FORM, bearer(EVERYTHING)], b"topic=a&data=2") as published:
            assert published.status == 200
        assert (await reply.next_event()).data == "2"


@HOSTS
@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_v42_n163_the_access_log_of_the_outer_server_has_no_token(
    host: Any, http: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"/live{PATH}"
    async with (
        served(host(("/live", new_hub(path, anonymous=False))), http=http) as server,
        await request(server, "GET", f"{path}?match=a&authorization={EVERYTHING}&b=c") as reply,
    ):
        assert reply.status == 200
    assert f'"GET {path}?match=a&b=c HTTP/1.1" 200' in caplog.text
    assert not [part for part in EVERYTHING.split(".") if part in caplog.text]


@HOSTS
async def test_a_mounted_hub_that_does_not_run_reports_it(host: Any) -> None:
    app = host(("/live", new_hub(f"/live{PATH}")))
    for target in (f"/live{PATH}?match=a", METADATA + f"/live{PATH}"):
        with pytest.raises(RuntimeError, match=r"the lifespan of the application around it must enter `running\(\)`"):
            await ask(app, "GET", target)
    assert (await ask(app, "GET", "/own")).text == "own"
    async with running(app):
        assert (await ask(app, "GET", f"/live{PATH}?match=a")).status == 200
    with pytest.raises(RuntimeError, match="is not running"):
        await ask(app, "GET", f"/live{PATH}?match=a")


async def test_the_lifespan_of_the_application_runs_the_hub() -> None:
    async with served(new_hub(PATH)) as server, await request(server, "GET", f"{PATH}?match=a") as reply:
        assert reply.status == 200


async def test_r12_n44_the_program_publishes_without_a_token_under_the_same_rules() -> None:
    hub = new_hub(PATH, dev=False, anonymous=True)
    async with hub.running(), follow(hub, ("match", "a")) as stream:
        await hub.state.hub.publish(Update(("a", "b"), "1", id="i"), Update(("a",), "2"))
        assert (await stream.next_event()).id == "i"
        assert (await stream.next_event()).data == "2"
        for update in (
            Update(()),
            Update(("*",)),
            Update((f"{PATH}/x",)),
            Update(("a",), id="#x"),
            Update(("a",), type="mercure"),
        ):
            with pytest.raises(InvalidRequest):
                await hub.state.hub.publish(update)
        assert (await ask(hub, "POST", PATH, [NDJSON, bearer(EVERYTHING)], b'{"topic": "a"}')).status == 405


async def test_publishing_before_the_hub_runs_is_an_error() -> None:
    hub = new_hub(PATH)
    with pytest.raises(NotRunning) as caught:
        await hub.hub.publish(Update(("a",), "1"))
    assert "must enter `running()` of what create_app() returned, or a server must run" in str(caught.value)
    async with hub.running():
        await hub.hub.publish(Update(("a",), "1"))
    with pytest.raises(Closing):
        await hub.hub.publish(Update(("a",), "1"))


async def test_a_hub_that_ran_does_not_run_again() -> None:
    hub = new_hub(PATH)
    async with hub.running():
        with pytest.raises(NotRunning, match="ran already"):
            await hub.running().__aenter__()
        await hub.hub.publish(Update(("a",), "1"))  # the refusal does no harm
    with pytest.raises(NotRunning) as caught:
        await hub.running().__aenter__()
    told = "this hub ran already, and a hub runs only once: make another one with create_app()"
    assert str(caught.value) == told


# -- several hubs


@HOSTS
async def test_n6_several_hubs_in_one_process_share_nothing(host: Any) -> None:
    here, there = f"/here{PATH}", f"/there{PATH}"
    one = new_hub(here, subscriptions=False, cookie="here")
    other = new_hub(there, subscriptions=False, classic=False, max_matchers=2)
    app = host(("/here", one), ("/there", other))
    async with running(app):
        tokens = {path: current_token(["*"], ["*"], resource=f"https://hub.example{path}") for path in (here, there)}
        async with (
            follow(app, target=f"{here}?match=*", headers=[bearer(tokens[here])]) as at_one,
            follow(app, target=f"{there}?match=*", headers=[bearer(tokens[there])]) as at_other,
        ):
            for path, foreign in ((here, there), (there, here)):
                await publish(app, tokens[path], ("topic", "a"), ("data", f"to {path}"), ("private", ""), path=path)
                assert (await ask(app, "POST", path, [FORM, bearer(tokens[foreign])], b"topic=a")).status == 401
                assert (await ask(app, "GET", METADATA + path)).json()["resource"].endswith(path)
            assert (await at_one.next_event()).data == f"to {here}"
            assert (await at_other.next_event()).data == f"to {there}"
        assert (await ask(app, "GET", f"{here}?topic=a&match=b")).status == 200
        assert (await ask(app, "GET", f"{there}?topic=a")).status == 400
        assert (await ask(app, "GET", f"{there}?match=a&match=b&match=c")).status == 400
        assert f"the hub is at {there}" in (await ask(app, "GET", f"{there}/nothing")).detail
        assert (await ask(app, "GET", METADATA + here)).json()["mercure_cookie"] == "here"


async def test_t26_n34_relative_url_patterns_are_relative_to_the_requested_hub() -> None:
    one = new_hub("/one/hub", public_urls="https://one.example")
    other = new_hub("/two/hub", public_urls="https://two.example")
    for hub, path, at, own, foreign in (
        (one, "/one/hub", "one.example", "https://one.example/one/x", "https://two.example/two/x"),
        (other, "/two/hub", "two.example", "https://two.example/two/x", "https://one.example/one/x"),
    ):
        headers = [("host", at)]
        async with hub.running(), follow(hub, target=f"{path}?match_urlpattern=:a", headers=headers) as stream:
            for topic in (foreign, own):
                await hub.state.hub.publish(Update((topic,), topic))
            assert (await stream.next_event()).data == own


# -- signals and threads


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_streams_of_every_hub_and_reaches_the_earlier_handler(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        mine = signal.getsignal(number)
        one, other = new_hub(PATH), new_hub("/other")
        async with (
            one.running(),
            other.running(),
            follow(one, ("match", "a")) as at_one,
            follow(other, target="/other?match=a") as at_other,
        ):
            signal.raise_signal(number)
            await at_one.end()
            await at_other.end()
            assert (await ask(one, "POST", PATH, [FORM, bearer(EVERYTHING)], b"topic=a")).status == 503
        assert heard == [number]
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


def test_a_hub_can_run_in_a_thread_without_signals() -> None:
    async def run() -> None:
        hub = new_hub(PATH)
        async with hub.running(), follow(hub, ("match", "a")) as stream:
            await hub.state.hub.publish(Update(("a",), "1"))
            said.append((await stream.next_event()).data)

    said: list[str] = []
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join(HANG)
    assert said == ["1"]


# -- the example


@pytest.mark.processes
async def test_the_example_runs_and_a_signal_ends_it_with_its_streams() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-m", "uvicorn", "--port", "0"),
        *("--factory", "examples.frameworks.starlette_app:create"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stderr is not None
        log = ""
        while not (at := re.search(r"running on http://127\.0\.0\.1:(\d+)", log)):
            line = await asyncio.wait_for(process.stderr.readline(), HANG)
            assert line, log
            log += line.decode()
        server = Served(int(at[1]))
        async with await request(server, "GET", f"/live{PATH}?match=/votes&last_event_id=earliest") as reply:
            async with await request(server, "POST", "/vote") as vote:
                assert (vote.status, await vote.body()) == (200, b"1")
            assert (await reply.next_event()).data == "1"
            process.send_signal(signal.SIGTERM)
            assert [event async for event in reply.events()] == []
            assert reply.ended
        log += (await asyncio.wait_for(process.communicate(), HANG))[1].decode()
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in log
        assert "Warning" not in log
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()

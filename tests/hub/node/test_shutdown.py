"""The shutdown of a hub: no new streams, an even drain, and no lost updates."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

import pytest

from hub import Settings, create_app
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.node import draining
from hub.server.http1 import HttpProtocol
from tests.asgi import application, ask
from tests.hub.serving import served
from tests.hub.world import plain, world
from tests.waiting import HANG, until
from tests.wire import PATH, bearer, publish, request, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.hub import Hub
    from tests.conftest import HubProcess
    from tests.hub.serving import Served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("streams")]


async def test_r36_t67_streams_end_evenly_over_the_drain_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "DRAIN_STEP", 0)
    async with world(plain(drain=10)) as here:
        connections = [await here.connect("a") for _ in range(100)]
        await here.caught_up()
        here.hub.shutdown.begin()
        await here.settle(2)
        order = []
        for second in range(1, 11):
            here.now += 1
            await here.settle()
            order += [n for n, one in enumerate(connections) if one.ended and n not in order]
            assert len(order) == 10 * second
        assert order != sorted(order)
        assert {one.reason for one in connections} == {"the hub is shutting down"}


async def test_r36_remaining_streams_still_get_updates_and_may_leave() -> None:
    async with world(plain(drain=10, subscriptions=True)) as here:
        staying, going = await here.connect("*"), await here.connect("a")
        await here.caught_up()
        here.hub.shutdown.begin()
        going.go()
        await here.caught_up()
        assert here.announced == [
            (staying.subscriber.id, True),
            (going.subscriber.id, True),
            (going.subscriber.id, False),
        ]
        assert staying.ids == here.expected(staying)
        assert not staying.ended


async def test_a_stream_that_starts_during_the_drain_ends_at_once() -> None:
    async with world(plain(drain=10)) as here:
        before = await here.connect("a")
        await here.caught_up()
        here.hub.shutdown.begin()
        late = await here.connect("a")
        await here.settle()
        assert (before.ended, late.begun, late.ended) == (False, True, True)


async def test_closing_again_ends_all_streams_at_once() -> None:
    async with world(plain(drain=1_000)) as here:
        connections = [await here.connect("a") for _ in range(10)]
        await here.caught_up()
        here.hub.shutdown.begin()
        await here.settle()
        assert not any(one.ended for one in connections)
        here.hub.shutdown.begin()
        await here.settle()
        assert all(one.ended for one in connections)


async def test_a_hub_that_stops_without_a_drain_leaves_no_stream_open() -> None:
    async with world(plain(drain=1_000)) as here:
        connections = [await here.connect("a") for _ in range(10)]
        await here.caught_up()
    assert all(one.ended for one in connections)


async def test_r51_a_hub_that_shuts_down_is_alive_and_not_ready() -> None:
    async with application() as app:
        parents = (f"{PATH}/health", "/mercure/health", "/mercure/health/default")  # ours, the reference's (R1)
        ready, live = ([f"{parent}/{what}" for parent in parents] for what in ("ready", "live"))
        live.append("/healthz")
        for path in [*ready, *live]:
            answer = await ask(app, "GET", path)
            assert (answer.status, answer.json()) == (200, {"status": "ok"}), path
            assert answer.headers["cache-control"] == "no-store"
            assert (await ask(app, "POST", path)).status == 405
        app.state.hub.shutdown.begin()
        for path in ready:
            answer = await ask(app, "GET", path)
            assert (answer.status, answer.json()) == (503, {"status": "error", "error": "the hub is shutting down"})
        assert [(await ask(app, "GET", path)).status for path in live] == [200] * 4
        for unknown in ("/mercure/health", "/mercure/health/other/ready", "/mercure/health/default/dead", "/healthz/"):
            assert (await ask(app, "GET", unknown)).status == 404, unknown


DETACH = pytest.mark.parametrize("detach", ["--detach", "--no-detach"])


@DETACH
async def test_r36_t67_after_a_signal_no_stream_starts_and_streams_end_one_by_one(
    start_hub: Callable[..., HubProcess], detach: str
) -> None:
    # The first streams end a minute before the last one, so that even a slow machine
    # sees the difference.
    hub = start_hub(detach, HUB_DRAIN="60", HUB_SUBSCRIPTIONS="0", HUB_RETRY="0")
    readers = [await subscribe(hub, ("topic", "a")) for _ in range(100)]
    ends: list[int] = []

    async def read(n: int) -> None:
        assert [event async for event in readers[n].events()] == []
        assert readers[n].ended
        ends.append(n)

    probe = await request(hub, "GET", f"{PATH}/health/ready")
    assert (await probe.body(), probe.status) == (b'{"status":"ok"}', 200)
    reading = [asyncio.create_task(read(n)) for n in range(100)]
    hub.process.send_signal(signal.SIGTERM)
    await until(lambda: len(ends) >= 2)
    assert len(ends) < 90
    with contextlib.suppress(ConnectionError):
        while True:  # the server checks ten times a second whether it should end
            async with await subscribe(hub, ("topic", "a")) as late:
                assert [event async for event in late.events()] == []
    assert len(ends) < 90
    assert await asyncio.to_thread(hub.stop) in (0, -signal.SIGTERM)  # a second signal ends the rest
    await asyncio.wait_for(asyncio.gather(*reading), HANG)
    for reader in [*readers, probe]:
        await reader.close()


@DETACH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_hub_now(
    start_hub: Callable[..., HubProcess], detach: str, number: signal.Signals
) -> None:
    """Clients that do not read end too.  The fixture checks the log for tracebacks."""
    hub = start_hub(detach, HUB_DRAIN="1000", HUB_CLIENT_TIMEOUT="1000", HUB_SUBSCRIPTIONS="0")
    for _ in range(10):
        await publish(hub, ("topic", "a"), ("data", "x" * 900_000))
    readers = [await subscribe(hub, ("topic", "a")) for _ in range(20)]
    target = f"{PATH}?topic=a&lastEventID=earliest"
    preferences = [[("prefer", "wait=0")], []]
    readers += [await request(hub, "GET", target, headers, receive_buffer=4096) for headers in preferences]
    hub.process.send_signal(number)
    await until(lambda: "draining" in hub.log())
    assert await asyncio.to_thread(hub.stop, number) in (0, -number)
    for reader in readers:
        await reader.close()


@pytest.mark.parametrize("http", ["httptools", HttpProtocol], ids=["task", "detached"])
async def test_r36_t71_a_rolling_restart_loses_nothing_for_clients_that_come_back(
    http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hubs in turn use one history, as workers or nodes of a hub do."""
    log = MemoryHistory(Retention(max_updates=10_000, max_bytes=2**26))
    monkeypatch.setattr("hub.http.embedding.open_history", lambda url, retention: log)
    settings = Settings(dev=True, retry=0, max_lifetime=0, subscriptions=False, drain=0.3)
    current: list[Served] = []
    hubs: list[Hub] = []
    published: list[str] = []
    done = asyncio.Event()

    async def serve(started: asyncio.Event, stop: asyncio.Event) -> None:
        app = create_app(settings)
        async with served(app, http=http) as server:
            current.append(server)
            hubs.append(app.state.hub)
            started.set()
            await stop.wait()
            app.state.hub.shutdown.begin()  # as the signal does
            await until(lambda: not app.state.hub.delivery.connection_count)

    async def follow() -> list[str]:
        seen: list[str] = []
        last = "earliest"
        while True:
            try:
                reply = await subscribe(current[-1], ("topic", "a"), last_event_id=last)
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.001)
                continue
            async with reply:
                async for event in reply.events():
                    if event.data == "end":
                        return seen
                    seen.append(event.data)
                    last = event.id

    async def publish_all() -> None:
        while not done.is_set():
            data = str(len(published))
            body = f"topic=a&data={data}".encode()
            form = ("content-type", "application/x-www-form-urlencoded")
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the old hub no longer accepts it
                async with await request(current[-1], "POST", PATH, [form, bearer(current[-1].token)], body) as reply:
                    if reply.status == 200:
                        published.append(data)
        await publish(current[-1], ("topic", "a"), ("data", "end"))

    stops = []
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            started, stop = asyncio.Event(), asyncio.Event()
            stops.append(stop)
            group.create_task(serve(started, stop))
            await started.wait()
            if number == 0:
                followers = [group.create_task(follow()) for _ in range(20)]
                publishing = group.create_task(publish_all())
            else:
                stops[number - 1].set()
            before = len(published)
            await until(lambda: hubs[number].delivery.live_count >= 20 and len(published) >= before + 20)  # noqa: B023
        done.set()
        await publishing
        for follower in followers:
            assert await asyncio.wait_for(follower, HANG) == published
        stops[-1].set()

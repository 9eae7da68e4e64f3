"""The process of `skipfilter serve`: open files, shutdown, proxies and garbage collection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from hub import ConfigurationError, Settings, create_app
from hub.process import server
from hub.process.server import (
    CUT_SECONDS,
    GC_THRESHOLDS,
    RESERVED_FILES,
    _Collector,
    _Server,
    fitting,
    raised_file_limit,
    warn_of_files,
)
from hub.server.http1 import AttachedProtocol
from hub.server.plain import HubProtocol
from tests.hub.serving import served
from tests.waiting import HANG, until
from tests.wire import PATH, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.anyio


@pytest.mark.processes
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    program = (
        "import resource; from hub.process.server import raised_file_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300));"
        "print(raised_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "300", "300"]


def test_if_the_limit_cannot_be_raised_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*limit: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raised_file_limit() == 200


def test_the_number_of_subscribers_is_bounded_by_the_number_of_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "raised_file_limit", lambda: 1_000)
    most = 1_000 - RESERVED_FILES
    enough, many = (Settings(dev=True, max_connections=each) for each in (most, most + 1))
    production = Settings(publisher_key="p" * 32, anonymous=True, max_connections=most + 1)
    assert [fitting(each).max_connections for each in (enough, many, production)] == [most] * 3
    with caplog.at_level(logging.WARNING):
        warn_of_files(enough, fitting(enough))
        warn_of_files(many, fitting(many))  # a developer does not need so many
        assert caplog.records == []
        warn_of_files(production, fitting(production))
    assert "max_connections is reduced from 901 to 900, because only 1000 files may be open" in caplog.text


@pytest.mark.parametrize("limit", [0, 64, RESERVED_FILES])
def test_too_few_files_for_one_subscriber_prevent_the_start(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "raised_file_limit", lambda: limit)
    with pytest.raises(
        ConfigurationError, match=f"^only {limit} files may be open, which leaves none for a subscriber"
    ):
        fitting(Settings(dev=True))
    monkeypatch.setattr(server, "raised_file_limit", lambda: RESERVED_FILES + 1)
    assert fitting(Settings(dev=True)).max_connections == 1


@pytest.mark.parametrize(("detach", "protocol"), [(True, HubProtocol), (False, AttachedProtocol)])
def test_the_server_waits_for_streams_as_long_as_they_drain(
    detach: bool, protocol: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[_Server] = []

    def serve(self: _Server, sockets: list[socket.socket]) -> None:
        ran.append(self)
        self.started = True

    monkeypatch.setattr(_Server, "run", serve)
    app = create_app(Settings(dev=True, drain=17.5, client_timeout=12))
    with socket.socket() as listener:
        server.run(app, listener, detach=detach)
        assert app.listener_is_tuned
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 12_000
    config = ran[0].config
    assert config.timeout_graceful_shutdown is not None
    assert config.timeout_graceful_shutdown > 18
    assert config.http is protocol


def test_a_second_signal_stops_the_server_at_once() -> None:
    served = _Server(uvicorn.Config(create_app(Settings(dev=True))))
    told = []
    for _ in range(2):
        served.handle_exit(signal.SIGTERM, None)
        told.append((served.should_exit, served.force_exit))
    assert told == [(True, False), (True, True)]


@contextlib.asynccontextmanager
async def sleeping() -> AsyncIterator[_Server]:
    """A server in its main loop, which must end soon after a signal."""
    config = uvicorn.Config(create_app(Settings(dev=True)), log_config=None)
    config.load()
    loop = asyncio.create_task((asleep := _Server(config)).main_loop())
    await until(lambda: bool(asleep.server_state.default_headers))
    yield asleep
    asleep.handle_exit(signal.SIGTERM, None)
    await asyncio.wait_for(loop, HANG)


async def test_a_signal_wakes_a_server_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 10 * HANG)
    async with sleeping():
        pass


async def test_the_date_of_responses_goes_on_while_a_server_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)
    async with sleeping() as asleep:
        first = asleep.server_state.default_headers
        await until(lambda: asleep.server_state.default_headers != first)


@pytest.mark.parametrize(
    ("trusted", "forwarded", "statuses"),
    [
        (None, ["1.1.1.1", "2.2.2.2"], [200, 200]),  # the proxy passes the header of the client on
        (None, ["1.1.1.1, 3.3.3.3", "2.2.2.2, 3.3.3.3"], [200, 429]),  # the proxy appends the address of its client
        (None, ["3.3.3.3", "3.3.3.3"], [200, 429]),  # the proxy replaces the header
        ("", ["1.1.1.1", "2.2.2.2"], [200, 429]),  # all clients have the address of the proxy
        ("10.0.0.1", ["1.1.1.1", "2.2.2.2"], [200, 429]),
        ("127.0.0.0/8, 10.0.0.1", ["1.1.1.1, 3.3.3.3, 10.0.0.1", "2.2.2.2, 3.3.3.3, 10.0.0.1"], [200, 429]),
        ("*", ["1.1.1.1, 3.3.3.3", "2.2.2.2, 3.3.3.3"], [200, 200]),  # the first address counts, which the client wrote
    ],
)
async def test_only_trusted_proxies_may_set_the_address_of_a_client(
    trusted: str | None, forwarded: list[str], statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if trusted is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    app = create_app(Settings(dev=True, max_connections_per_client=1))
    async with served(app, http=HubProtocol) as hub:
        first, second = [
            await request(hub, "GET", f"{PATH}?match=a", [("X-Forwarded-For", each)]) for each in forwarded
        ]
        assert [first.status, second.status] == statuses
        await first.close()
        await second.close()


@pytest.mark.parametrize("forced", [True, False])
async def test_unfinished_requests_are_cut_off_without_a_traceback(
    forced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        begun.set()
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    begun = asyncio.Event()
    server = _Server(
        uvicorn.Config(
            app,
            http=AttachedProtocol,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1_000 if forced else CUT_SECONDS,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, caplog.at_level(logging.INFO):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(begun.wait(), HANG)
        server.should_exit, server.force_exit = True, forced
        await asyncio.wait_for(serving, HANG)
        assert await reader.read() == b""
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert ("1 connections are cut off" in caplog.text) is not forced


@pytest.fixture
def collector() -> Iterator[None]:
    """Restore the settings of Python's garbage collector after a test."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
async def test_the_garbage_collector_skips_startup_objects_and_rarely_scans_old_ones() -> None:
    collect = _Collector()
    await collect()
    assert gc.get_threshold() == GC_THRESHOLDS
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    garbage: list[object] = []
    garbage.append(garbage)
    marker = id(garbage)
    for _ in range(3):
        gc.collect(1)  # this makes it old
    del garbage
    assert marker in {id(each) for each in gc.get_objects()}
    await collect()
    assert marker not in {id(each) for each in gc.get_objects()}
    assert gc.get_freeze_count() <= frozen

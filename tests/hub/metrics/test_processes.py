"""Metrics through real sockets: one process, several workers, several nodes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
from contextlib import AsyncExitStack, suppress
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import pytest

from hub.metrics import board
from hub.metrics.board import Board
from hub.metrics.catalogue import CELLS, GAUGES, PLACES, PROCESSES, READY
from hub.metrics.server import MOST_REQUESTS, MetricsServer
from tests.conftest import HubProcess, children_of
from tests.hub.commands import process, uvicorn_hub
from tests.hub.metrics.reading import metrics_at, parsed, text_at
from tests.redis_server import RedisServer
from tests.waiting import HANG, until
from tests.wire import publish, subscribe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wire import Reply

pytestmark = pytest.mark.anyio

QUIET: dict[str, Any] = {"HUB_SUBSCRIPTIONS": "0", "HUB_METRICS_PORT": "0"}


async def test_r50_one_process_serves_its_metrics(start_hub: type[HubProcess]) -> None:
    hub = start_hub(**QUIET)
    async with await subscribe(hub, ("topic", "a")) as reader:
        for n in range(3):
            await publish(hub, ("topic", "a"), ("data", str(n)))
            await reader.next_event()
        found = await metrics_at(hub.metrics_url)
    assert found["mercure_subscribers_connected"] == 1
    assert found["mercure_updates_total"] == found["hub_deliveries_total{live}"] == 3
    assert found["hub_processes"] == found["hub_processes_ready"] == 1
    assert found["hub_connections_without_stream"] <= 3  # those of the publishers, if they are still open
    hub.stop()
    with pytest.raises(OSError, match="refused"):
        await metrics_at(hub.metrics_url)


async def test_r50_the_metrics_of_workers_are_added_up_and_those_of_a_killed_one_stay(
    start_hub: type[HubProcess], tmp_path: Path
) -> None:
    hub = start_hub("--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", **QUIET)
    hub.may_fail = True
    async with AsyncExitStack() as stack:
        streams: list[Reply] = [
            await stack.enter_async_context(await subscribe(hub, ("topic", "a"))) for _ in range(20)
        ]
        for n in range(10):
            await publish(hub, ("topic", "a"), ("data", str(n)))
        for stream in streams:
            for _ in range(10):
                await stream.next_event()
        before = await metrics_at(hub.metrics_url)
        assert before["mercure_subscribers_connected"] == before["mercure_subscribers_total"] == 20
        assert before["mercure_updates_total"] == before["hub_history_updates"] == 10
        assert before["hub_deliveries_total{live}"] + before["hub_deliveries_total{history}"] == 200
        assert before["hub_processes"] == 2

        serving, *workers = children_of(hub.process.pid)  # the first one serves the metrics
        os.kill(workers[0], signal.SIGKILL)
        await until(lambda: "a worker died and is restarted" in hub.log())
        dead = await metrics_at(hub.metrics_url)
        lost = 20 - dead["mercure_subscribers_connected"]
        assert dead["hub_streams_closed_total{process_died}"] == lost
        assert dead["hub_process_deaths_total"] == 1
        assert 0 <= lost <= 20
        await until(lambda: len(children_of(hub.process.pid)) == 3)
        while (again := await metrics_at(hub.metrics_url))["hub_processes"] < 2:
            pass

        # The counts of the killed worker stay, and the new one counts on.
        for found in (dead, again):
            assert found["mercure_subscribers_total"] == 20
            assert found["mercure_updates_total"] == 10
            assert found["hub_publish_seconds_count"] == 10
            assert found["hub_publish_seconds_sum"] == before["hub_publish_seconds_sum"]
            assert all(value >= before[name] for name, value in found.items() if "_total" in name)
        assert again["mercure_subscribers_connected"] == 20 - lost
        for _ in range(20):
            await stack.enter_async_context(await subscribe(hub, ("topic", "b")))
        last = await metrics_at(hub.metrics_url)
        assert last["mercure_subscribers_total"] == 40
        assert last["mercure_subscribers_connected"] == 40 - lost

        # The process that serves them is restarted too.
        os.kill(serving, signal.SIGKILL)
        await until(lambda: "the process that serves metrics died and is restarted" in hub.log())
        assert (await metrics_at(hub.metrics_url))["mercure_subscribers_total"] == 40
    assert hub.stop() == 0
    assert hub.log().count("died") == 2


async def test_r50_each_node_on_redis_counts_its_own(start_hub: type[HubProcess]) -> None:
    server = RedisServer()
    try:
        nodes = [start_hub(HUB_HISTORY_URL=server.url, **QUIET) for _ in range(2)]
        async with await subscribe(nodes[0], ("topic", "a")) as one, await subscribe(nodes[1], ("topic", "a")) as two:
            for n in range(4):
                await publish(nodes[n % 4 == 0], ("topic", "a"), ("data", str(n)))
                await one.next_event()
                await two.next_event()
            found = [await metrics_at(node.metrics_url) for node in nodes]
        assert [each["mercure_updates_total"] for each in found] == [3, 1]
        assert [each["mercure_subscribers_connected"] for each in found] == [1, 1]
        assert [each["hub_deliveries_total{live}"] for each in found] == [4, 4]
        assert [each["hub_history_updates"] for each in found] == [4, 4]
        for node in nodes:
            node.stop()
    finally:
        server.close()


@pytest.mark.processes
async def test_a_metrics_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in ((), ("--workers", "2")):
            ended = await asyncio.to_thread(
                partial(
                    process,
                    *("serve", "--dev", "--port", "0", *arguments),
                    HUB_METRICS_PORT=str(port),
                    HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db",
                )
            )
            assert (ended.returncode, ended.stdout) == (2, "")
            assert f"cannot serve metrics on 127.0.0.1 port {port}: Address already in use" in ended.stderr


@pytest.mark.processes
async def test_the_workers_of_uvicorn_have_no_metrics_and_say_so() -> None:
    with uvicorn_hub("--workers", "2", HUB_METRICS_PORT="0") as log:
        await until(lambda: log().count("Application startup complete") == 2)
        assert log().count("`skipfilter serve --workers` can") == 2
        assert "metrics are served" not in log()


# -- the board


def test_a_reader_waits_for_no_worker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "ANSWER_SECONDS", 0.01)
    its = Board(2)
    its.slots[0].cells[PROCESSES] = 1.0
    its.slots[1].cells[0] = 3.0
    assert [slot[0] for slot in its.read()] == [0.0, 3.0]
    its.slots[0].cells[READY] = 1.0
    assert [slot[READY] for slot in its.read()] == [0.0, 0.0]  # a process that hangs is not ready
    assert its.slots[0].asked.recv(4_096) == b"??"
    its.close()


def test_late_answers_are_no_answers_to_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    its = Board()
    [slot] = its.slots
    slot.cells[PROCESSES] = 1.0
    for _ in range(3):
        slot.answer()
    asked: list[float] = []

    def select(waiting: list[socket.socket], *_: object) -> tuple[list[socket.socket], list[object], list[object]]:
        asked.append(len(waiting))
        assert slot.asked.recv(4_096) == b"?"
        slot.cells[0] = 7.0
        slot.answer()
        assert waiting[0].recv(4_096) == b"."
        return waiting, [], []

    monkeypatch.setattr("select.select", select)
    assert its.read()[0][0] == 7.0
    assert asked == [1]
    its.close()


def test_the_gauges_of_a_process_go_with_it_and_its_counts_stay() -> None:
    its = Board(2)
    for cell in range(CELLS):
        its.slots[0].cells[cell] = its.slots[1].cells[cell] = 1.0
    its.note_death(0)
    first, second = (slot.cells.tolist() for slot in its.slots)
    assert second == [1.0] * CELLS
    assert [cell for cell in range(CELLS) if first[cell] == 0.0] == sorted(GAUGES)
    counted = {place for place, cell in PLACES.items() if first[cell] == 2.0}
    assert counted == {("hub_process_deaths_total", ""), ("hub_streams_closed_total", "process_died")}
    its.note_death(0)  # it has not begun again
    assert its.slots[0].cells.tolist() == first
    gauges = {name for (name, _), cell in PLACES.items() if first[cell] == 0.0}
    assert "mercure_subscribers_connected" in gauges
    assert not any(name.endswith(("_total", "_seconds")) for name in gauges)
    its.close()


async def test_what_processes_share_is_not_added_up() -> None:
    its = Board(3)
    for number, slot in enumerate(its.slots):
        slot.cells[PLACES["hub_history_updates", ""]] = 10.0 + number
        slot.cells[PLACES["mercure_subscribers_connected", ""]] = 10.0 + number
    server = MetricsServer(its, "127.0.0.1", 0)
    server.start()
    found = await metrics_at(server.url)
    server.close()
    its.close()
    assert found["hub_history_updates"] == 12
    assert found["mercure_subscribers_connected"] == 33


async def test_few_requests_are_answered_at_a_time() -> None:
    its = Board()
    server = MetricsServer(its, "127.0.0.1", 0)
    server.start()
    port = int(server.url.rpartition(":")[2].split("/")[0])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_REQUESTS + 4)]
    try:
        await until(lambda: len(select.select(silent, [], [], 0)[0]) == 4)
        assert [_end(one) for one in select.select(silent, [], [], 0)[0]] == [b""] * 4
        for one in silent:
            one.close()
        while True:  # the last of them may still be busy
            with suppress(OSError, HTTPException):
                assert (await metrics_at(server.url))["hub_processes"] == 0
                break
    finally:
        server.close()
        its.close()


async def test_a_request_ends_although_its_client_is_silent_or_rude(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hub.metrics.server.TIMEOUT_SECONDS", 0.2)
    its = Board()
    server = MetricsServer(its, "127.0.0.1", 0)
    server.start()
    port = int(server.url.rpartition(":")[2].split("/")[0])
    try:
        with socket.create_connection(("127.0.0.1", port), HANG) as silent:
            silent.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert await asyncio.to_thread(_end, silent) == b""
        with socket.create_connection(("127.0.0.1", port)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
            rude.sendall(b"GET ")
        assert (await metrics_at(server.url))["hub_processes"] == 0
    finally:
        server.close()
        its.close()
    assert "Traceback" not in capfd.readouterr().err


def _end(connection: socket.socket) -> bytes:
    with suppress(ConnectionError):
        return connection.recv(4_096)
    return b""


def test_a_host_that_is_none_is_named() -> None:
    its = Board()
    with pytest.raises(OSError, match=r"cannot serve metrics on a\.\.b port 0: this is not a host name"):
        MetricsServer(its, "a..b", 0)
    its.close()


async def test_metrics_are_served_over_ipv6_and_a_silent_client_blocks_no_other() -> None:
    its = Board()
    server = MetricsServer(its, "::1", 0)
    server.start()
    try:
        port = int(server.url.rpartition(":")[2].split("/")[0])
        with socket.create_connection(("::1", port)) as silent:
            silent.sendall(b"GET ")
            assert parsed(await asyncio.to_thread(text_at, server.url))["hub_processes"] == 0
    finally:
        server.close()
        its.close()

"""The listeners of the workers, which the kernel shares out and the first process keeps."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from hub.process.listeners import hand_over, listen, resolve
from tests.waiting import HANG, until
from tests.wire import PATH, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio


@contextlib.contextmanager
def listening(port: int, workers: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(one) for one in listen(resolve("127.0.0.1", port), workers)]


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_connections_are_shared_out_among_the_workers() -> None:
    with listening(0, 3) as found, contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        assert len({one.fileno() for one in found}) == 3
        assert len(set(map(port_of, found))) == 1
        for _ in range(100):
            stack.enter_context(socket.create_connection(found[0].getsockname()))
        accepted = [0, 0, 0]
        for number, one in enumerate(found):
            one.setblocking(False)
            waiting.register(one, selectors.EVENT_READ, number)
        while sum(accepted) < 100:
            for key, _ in waiting.select(HANG):
                stack.enter_context(found[key.data].accept()[0])
                accepted[key.data] += 1
        assert min(accepted) > 0


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_two_hubs_cannot_listen_at_one_port_by_mistake(others: int, workers: int) -> None:
    with listening(0, others) as found:
        port = port_of(found[0])
        with pytest.raises(OSError, match=f"^cannot listen on 127.0.0.1 port {port}: Address already in use$"):
            listen(resolve("127.0.0.1", port), workers)
    with listening(port, workers):  # once the other hub has ended
        pass


async def test_a_listener_that_is_handed_over_gets_no_connections_until_it_listens_again() -> None:
    with listening(0, 2) as (first, second), contextlib.ExitStack() as stack:
        name = second.getsockname()

        def taken_by_the_second(count: int) -> int:
            """Connect, and return how many of the connections wait at the second listener."""
            for _ in range(count):
                stack.enter_context(socket.create_connection(name))
            found = 0
            while select.select([second], [], [], 0)[0]:
                stack.enter_context(second.accept()[0])
                found += 1
            return found

        assert 0 < taken_by_the_second(50) < 50
        first.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                stack.enter_context(first.accept()[0])
        await hand_over(first)
        assert taken_by_the_second(50) == 50
        first.listen()
        assert 0 < taken_by_the_second(50) < 50
    with socket.create_server(("127.0.0.1", 0)) as alone:
        await hand_over(alone)  # does nothing
        socket.create_connection(alone.getsockname()).close()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_the_host_as_it_was_given(workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port_of(taken)
        address = resolve("127.0.0.1", port)._replace(host="localhost")
        with pytest.raises(OSError, match=f"^cannot listen on localhost port {port}: "):
            listen(address, workers)


def test_elsewhere_than_on_linux_all_workers_accept_from_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.process.listeners.sys.platform", "darwin")
    with listening(0, 3) as found:
        assert len(set(map(id, found))) == 1


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_connections_that_wait_at_a_worker_that_ends_are_served(
    tmp_path: Path, start_hub: Callable[..., HubProcess], number: signal.Signals
) -> None:
    hub = start_hub("--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_DRAIN="0")
    hub.may_fail = True
    await until(lambda: hub.log().count("startup complete") == 2)
    first, second = hub.workers
    with contextlib.ExitStack() as stack:
        # 1. Connections wait at both workers, which do not run.
        for pid in (first, second):
            os.kill(pid, signal.SIGSTOP)
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), HANG)) for _ in range(32)]
        for one in waiting:
            one.sendall(f"GET {PATH}?match=a HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        # 2. One of the workers ends.
        os.kill(first, number)
        os.kill(second, signal.SIGCONT)
        if number is not signal.SIGKILL:  # a killed process may be gone already
            os.kill(first, signal.SIGCONT)
        # 3. All are served, by the other one or by the one that is started instead.
        answers = [one.recv(4_096) for one in waiting]
        assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    await until(lambda: "a worker died" in hub.log())


@pytest.mark.processes
async def test_a_worker_that_drains_leaves_new_connections_to_the_others(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    hub = start_hub("--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_DRAIN="1000")
    hub.may_fail = True
    await until(lambda: hub.log().count("startup complete") == 2)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):  # streams, of which each worker has some
            await stack.enter_async_context(await subscribe(hub, ("match", "a")))
        first = hub.workers[0]
        os.kill(first, signal.SIGTERM)
        await until(lambda: "draining" in hub.log())
        for _ in range(20):
            await stack.enter_async_context(await subscribe(hub, ("match", "a")))
        assert first in hub.workers
        await hub.kill_worker(first)
        for _ in range(20):
            await stack.enter_async_context(await subscribe(hub, ("match", "a")))


@pytest.mark.processes
@pytest.mark.parametrize("metrics", [{}, {"HUB_METRICS_PORT": "0"}], ids=["", "metrics"])
async def test_a_hub_that_shuts_down_refuses_connections_while_its_streams_end(
    tmp_path: Path, start_hub: Callable[..., HubProcess], metrics: dict[str, str]
) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    hub = start_hub("--workers", "2", HUB_HISTORY_URL=log, HUB_DRAIN="1000", **metrics)
    await until(lambda: hub.log().count("startup complete") == 2)

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", hub.port), HANG).close()
        except ConnectionRefusedError:
            return True
        return False

    async with await subscribe(hub, ("match", "a")):
        hub.process.send_signal(signal.SIGTERM)
        await until(is_refused)
        assert hub.process.poll() is None
        assert hub.stop() == 0

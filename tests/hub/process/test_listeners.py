"""The listeners of the workers, which the kernel shares out and the first process keeps."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from hub.cli.serve import _Opened
from hub.process.listeners import listen, resolve
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


def test_elsewhere_than_on_linux_all_workers_accept_from_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.process.listeners.sys.platform", "darwin")
    with listening(0, 3) as found:
        assert len(set(map(id, found))) == 1
        opened = _Opened(cast("Any", None), found, None)
        opened.close_listeners(but=1)
        assert found[1].fileno() >= 0
        opened.close_listeners()
        assert found[1].fileno() == -1


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
        for pid in (first, second):
            os.kill(pid, signal.SIGCONT)
        # 3. All are served, by the other one or by the one that is started instead.
        answers = [one.recv(4_096) for one in waiting]
        assert {answer[:12] for answer in answers} == {b"HTTP/1.1 200"}
    await until(lambda: "a worker died" in hub.log())


@pytest.mark.processes
async def test_a_hub_that_shuts_down_refuses_connections_while_its_streams_end(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    hub = start_hub("--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_DRAIN="1000")
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

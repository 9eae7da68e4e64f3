"""A proxy of Node that compresses what it passes on holds no stream back (N9).

Those of Express, webpack-dev-server and Next.js have npm's `compression`, as has the one
here.  It flushes a response only when it is asked to.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from hub import Settings, create_app
from hub.errors import HistoryUnavailable
from tests.asgi import ask
from tests.hub.commands import environment
from tests.hub.serving import Served
from tests.wire import PATH, publish, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

GZIP: Final = ("accept-encoding", "gzip, br")


@contextlib.contextmanager
def compressing(modules: Path, hub: HubProcess) -> Iterator[Served]:
    """Serve the hub behind the proxy."""
    command = ["node", "compressing_proxy.js", str(hub.port)]
    with subprocess.Popen(command, cwd=modules, env=environment(), stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            yield Served(int(proxy.stdout.readline()))
        finally:
            proxy.kill()


@pytest.mark.processes
@pytest.mark.parametrize("options", [[], ["--no-detach"]], ids=["detached", "task"])
async def test_n9_a_stream_passes_a_proxy_that_compresses(
    options: list[str], modules: Path, start_hub: Callable[..., HubProcess]
) -> None:
    hub = start_hub(*options)
    with compressing(modules, hub) as proxy:
        async with await request(proxy, "GET", f"{PATH}?match=a", [GZIP]) as reply:
            assert (reply.status, "content-encoding" in reply.headers) == (200, False)
            for data in ("1", "2"):
                await publish(proxy, ("topic", "a"), ("data", data))
                assert (await reply.next_event()).data == data
        async with await request(proxy, "GET", f"{PATH}/debug/debugger.js", [GZIP]) as reply:
            assert reply.headers["content-encoding"] in ("gzip", "br")  # it does compress


@pytest.mark.parametrize("target", ["match=a", "topic=a"])
async def test_n9_no_stream_may_be_transformed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings(dev=True))
    async with app.running():

        async def assert_headers(method: str, *headers: tuple[str, str]) -> None:
            answer = await ask(app, method, f"{PATH}?{target}", headers)
            assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
            assert answer.headers["cache-control"] == "no-store, no-transform"

        for method in ("GET", "HEAD"):
            for headers in ([], [("prefer", "wait=0")]):
                await assert_headers(method, *headers)

        async def fail(*_: Any, **__: Any) -> None:
            raise HistoryUnavailable("it is down")

        monkeypatch.setattr(app.hub.subscribing, "admit", fail)
        await assert_headers("GET")  # the stream that ends at once

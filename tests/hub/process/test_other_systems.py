"""A hub without what only Linux has, as on macOS: simulated, because CI is a Linux."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.waiting import HANG, until
from tests.wire import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import HubProcess

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

# Python runs a module of this name before everything else.
MACOS = """
import os, select, socket, sys, sysconfig, types

os.environ["_PYTHON_SYSCONFIGDATA_NAME"] = sysconfig._get_sysconfigdata_name()  # of this Python
sys.platform = "darwin"
proxies = types.ModuleType("_scproxy")  # macOS has it
proxies._get_proxies = proxies._get_proxy_settings = dict
sys.modules["_scproxy"] = proxies
for module, names in (
    (select, ("epoll",)),
    (socket, ("SO_INCOMING_CPU", "SO_REUSEPORT", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT")),
    (os, ("pidfd_open", "sched_getaffinity")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
os.process_cpu_count = os.cpu_count  # Python 3.13 and newer: without sched_getaffinity they are the same

def audit(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/proc/"):
        raise FileNotFoundError(2, "there is no /proc", str(arguments[0]))

sys.addaudithook(audit)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_hub_works_without_what_only_linux_has(
    start_hub: Callable[..., HubProcess], workers: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(MACOS)
    hub = start_hub(
        "--workers", workers, HUB_HISTORY_URL=f"sqlite:///{tmp_path}/mercure.db", HUB_METRICS_PORT="0",
        HUB_EVENT_LOG=str(tmp_path / "log"), PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    )  # fmt: skip
    readers = [await subscribe(hub, ("topic", "a")) for _ in range(8)]
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {hub.token}"}, timeout=HANG) as client:
        assert (await client.post(hub.url, data={"topic": "a", "data": "new"})).status_code == 200
        for reader in readers:
            async for event in reader.events():
                assert event.data == "new"
                break
        metrics = await client.get(hub.metrics_url)
        assert "mercure_subscribers_connected 8.0" in metrics.text
    for reader in readers:
        await reader.close()
    if workers == "2":
        hub.may_fail = True
        await hub.kill_worker(hub.workers[-1])
        await until(lambda: "died and is restarted" in hub.log())
    assert hub.stop() in (0, -signal.SIGTERM)

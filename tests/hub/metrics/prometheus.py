"""A real Prometheus scrapes a hub, and answers each query of `examples/deploy`.

    python -m tests.hub.metrics.prometheus [SECONDS]

It needs `prometheus` and `promtool`, of Debian's package prometheus, so it is no test
of `make test`.  Prints each query with its result, and exits with 1 if one has none.
With `--plot FILE`, it also draws the dashboard.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.conftest import HubProcess
from tests.hub.metrics.queries import ALERTS, DASHBOARD, FOLDER, measured, of_alerts, of_dashboard
from tests.redis_server import free_port
from tests.wire import FORM, PATH, bearer, publish, request, subscribe

INTERVAL: Final = "10s"
STREAMS: Final = 60


async def load(hub: HubProcess, seconds: float) -> None:
    """Publish, read, come and go, fall behind, and be refused, for some time."""
    ends = time.monotonic() + seconds

    async def follow(number: int) -> None:
        while time.monotonic() < ends:
            cursor = {"last_event_id": "earliest"} if number % 5 == 0 else {}
            async with await subscribe(hub, ("match", f"topic/{number % 4}"), **cursor) as stream:  # type: ignore[arg-type]
                until = min(ends, time.monotonic() + 3 + number % 9)
                with contextlib.suppress(TimeoutError, StopAsyncIteration):
                    async with asyncio.timeout(until - time.monotonic()):
                        while True:
                            await stream.next_event()

    async def send(number: int) -> None:
        n = 0
        while time.monotonic() < ends:
            await publish(hub, ("topic", f"topic/{n % 4}"), ("data", "x" * (200 + 40_000 * (n % 50 == 0))))
            n += 1
            await asyncio.sleep(0.005 * number)

    async def err() -> None:
        while time.monotonic() < ends:
            for token in ("nonsense", hub.token):
                async with await request(hub, "POST", PATH, [FORM, bearer(token)], b"topic=*") as reply:
                    assert reply.status in (400, 401)
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(follow(number))
        for number in (1, 2, 4):
            group.create_task(send(number))
        group.create_task(err())


def answer(port: int, kind: str, **parameters: Any) -> list[Any]:
    """Return the result of a query; raises an error if Prometheus refuses it."""
    url = f"http://127.0.0.1:{port}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url) as response:
        found = json.load(response)
    assert found["status"] == "success", found
    result: list[Any] = found["data"]["result"]
    return result


def ask_all(port: int) -> list[str]:
    """Print the results of all queries; return the places of those without one."""
    empty = []
    for query in [*of_dashboard(interval=INTERVAL), *of_alerts(), *map(measured, of_alerts())]:
        found = answer(port, "query", query=query.text)
        print(f"{query.where:28} {query.text}")
        for one in found:
            print(f"    {one['metric']} {one['value'][1]}")
        if not found and query not in of_alerts():  # an alert without a cause has no result
            empty.append(query.where)
    return empty


async def load_and_ask(hub: HubProcess, port: int, seconds: float) -> list[str]:
    """Have Prometheus answer shortly before the load ends."""
    loading = asyncio.create_task(load(hub, seconds))
    await asyncio.sleep(seconds - 5)
    empty = await asyncio.to_thread(ask_all, port)
    await loading
    return empty


def plot(port: int, start: float, file: str) -> None:
    """Draw the panels of the dashboard."""
    import matplotlib.pyplot as plt

    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    rows = -(-len(panels) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(14, 2.4 * rows), layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})", fontsize=9)
        for target in panel["targets"]:
            query = target["expr"].replace("$job", "hub").replace("$__rate_interval", INTERVAL)
            for series in answer(port, "query_range", query=query, start=start, end=time.time(), step=1):
                label = target["legendFormat"]
                for name, value in series["metric"].items():
                    label = label.replace("{{" + name + "}}", value)
                axis.plot(
                    [float(at) - start for at, _ in series["values"]],
                    [float(value) for _, value in series["values"]],
                    label=label,
                )
        axis.set_ylim(bottom=0)
        if axis.lines:
            axis.legend(fontsize=6)
    figure.savefig(file, dpi=80)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=40.0)
    parser.add_argument("--plot", metavar="FILE")
    chosen = parser.parse_args()
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True)
    subprocess.run(["promtool", "check", "config", str(FOLDER / "prometheus.yml")], check=True)
    with tempfile.TemporaryDirectory() as folder:
        history = f"sqlite:///{folder}/log.db"
        hub = HubProcess("--workers", "2", HUB_METRICS_PORT="0", HUB_HISTORY_URL=history, HUB_MAX_LIFETIME="8")
        config, port = Path(folder) / "prometheus.yml", free_port()
        target = hub.metrics_url.removeprefix("http://").removesuffix("/metrics")
        text = (FOLDER / "prometheus.yml").read_text("utf-8")
        config.write_text(text.replace("127.0.0.1:9464", target).replace(": 15s", ": 1s"))
        (Path(folder) / "alerts.yml").write_text(ALERTS.read_text("utf-8"))
        options: dict[str, object] = {"config.file": config, "storage.tsdb.path": f"{folder}/data", "log.level": "warn"}
        options["web.listen-address"] = f"127.0.0.1:{port}"
        prometheus = subprocess.Popen(["prometheus", *(f"--{name}={value}" for name, value in options.items())])
        try:
            start = time.time()
            empty = asyncio.run(load_and_ask(hub, port, chosen.seconds))
            if chosen.plot:
                plot(port, start, chosen.plot)
            print("without a result:", empty)
            return bool(empty)
        finally:
            prometheus.terminate()
            prometheus.wait()
            hub.stop()


if __name__ == "__main__":
    sys.exit(main())

"""What does a hub cost that has little to do?

Compared with an older checkout, if BENCH_BEFORE names one.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench import checkouts
from bench.benchmark import Bars, Case
from bench.clients import Clients
from bench.measure import processor_time
from bench.servers import bare, hub_on, in_turn, installed, log_versions, once
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.servers import Server

QUESTION = "What does a hub cost that has little to do?"
WORKLOAD = (
    "3,000 connected subscribers, each with a URI template of its own, and no heartbeats. Either nothing is published, "
    "or one private update with a new topic, for one of them, 20 times a second; each subscriber then has a token of "
    "its own. Baseline: the hub with its history in memory. `before` is an older version of the hub. Bare uvicorn has "
    "no subscribers, and only reads each request and answers it."
)
PLOT = Bars()
UNIT = "server CPU ms each second"
ROUNDS = 3, 1

SHOWN = ("CPU µs an update", "p50 ms", "p99 ms")
"""The figures in the result, besides the one that is compared."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: idle, and with lone updates."""
    count, seconds = (200, 3.0) if quick else (3_000, 6.0)
    load = Load(connections=count, groups=count, rate=20, seconds=seconds, poisson=False, spin=False)
    yield Case(f"{count:,} idle", partial(measure, load, idle=True))
    load = Load(
        connections=count,
        groups=count,
        rate=20,
        seconds=seconds,
        private=True,
        new_topics=True,
        poisson=False,
        spin=False,
    )
    yield Case("20 lone updates a second", partial(measure, load, idle=False))


def measure(load: Load, rounds: int, *, idle: bool) -> dict[str, Figures]:
    """Measure each history in each checkout, and nchan."""
    servers: dict[str, Server] = {}
    for name, root in reversed(checkouts.roots().items()):
        for history in ("memory", "sqlite"):
            servers[f"{history}, {name}"] = partial(hub_on, history, root=root, HUB_HEARTBEAT="0")
    servers |= {name: server for name, server in installed().items() if name == "nginx with nchan"}
    ask = _idle if idle else _lone
    variants = {name: partial(ask, server, load) for name, server in servers.items()}
    if not idle:
        variants["bare uvicorn"] = partial(_lone, bare, replace(load, connections=0, private=False, unwanted=True))
    return in_turn(variants, rounds=rounds, of="CPU ms each second", shown=SHOWN)


def _idle(server: Server, load: Load) -> Figures:
    """Return the figures of a server whose connections do nothing."""
    with server() as target, closing(Clients(load, target)) as clients:
        clients.connect()
        time.sleep(2)  # the server has done what connections leave behind
        before, began = _taken(target.pids), time.monotonic()
        time.sleep(load.seconds)
        return {"CPU ms each second": (_taken(target.pids) - before) / (time.monotonic() - began) * 1e3}


def _lone(server: Server, load: Load) -> Figures:
    found = once(server, load)
    return found | {"CPU ms each second": found["CPU µs an update"] * load.rate / 1e3}


def _taken(pids: tuple[int, ...]) -> float:
    """Return the seconds of CPU that processes have used."""
    return sum(processor_time(pid)[0] for pid in pids)


def versions() -> dict[str, str]:
    """Return those of the servers, and the commit of the older checkout."""
    return log_versions() | checkouts.versions()

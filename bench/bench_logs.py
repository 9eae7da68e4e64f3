"""What does it cost that an update is in a log which outlives the process?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.servers import hub_on, in_turn, log_versions, once
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.servers import Server

QUESTION = "What does a durable log cost?"
WORKLOAD = (
    "Updates of 192 bytes by HTTP, each received by one subscriber. At 100 updates/s, to one of 5 subscribers: the "
    "median time from when an update was due until it was read. Else as fast as 32 publishers get their answers: the "
    "time divided by the updates, when all are delivered too. Of 2 nodes, one has the publishers and the other the "
    "subscribers; 2 workers have one port, so the kernel says who gets whom. All processes of a server share one "
    "processor, also redis-server, whose CPU is counted; it syncs its append-only file once a second. Baseline: the "
    "log in memory."
)
PLOT = Bars()
UNIT = "ms an update"
ROUNDS = 3, 1
versions = log_versions

SHOWN = ("p50 ms", "p99 ms", "max ms", "updates/s", "CPU µs an update", "server busy %", "load busy %")

ONE_NODE: dict[str, Server] = {
    "memory": partial(hub_on, "memory"),
    "sqlite": partial(hub_on, "sqlite"),
    "sqlite, synchronous=normal": partial(hub_on, "sqlite?synchronous=normal"),
}
# A port of several workers does not let one choose another for the publisher than for the subscriber.
APART: dict[str, Server] = {"sqlite, 2 nodes": partial(hub_on, "sqlite", nodes=2)}
SHARED: dict[str, Server] = {"sqlite, 2 workers": partial(hub_on, "sqlite", workers=2)}
REDIS: dict[str, Server] = {"redis, 2 nodes": partial(hub_on, "redis", nodes=2)}


def cases(quick: bool) -> Iterator[Case]:
    few = Load(connections=5, groups=5, rate=100, poisson=False, seconds=0.5 if quick else 5)
    yield Case("100 updates/s", partial(measure, few, ONE_NODE | APART | REDIS))
    for batch in (1, 100):
        # All publishers may wait for their answers, and the subscriber is not left far behind.
        load = Load(connections=1, rate=0, window=10_000, batch=batch, seconds=0.5 if quick else 4, spin=False)
        yield Case(
            f"32 publishers, {'one' if batch == 1 else batch} a request",
            partial(measure, load, ONE_NODE | SHARED | REDIS),
        )


def measure(load: Load, servers: dict[str, Server], rounds: int) -> dict[str, Figures]:
    ways = {way: partial(_ask, server, load) for way, server in servers.items()}
    return in_turn(ways, rounds=rounds, of=UNIT, shown=SHOWN)


def _ask(server: Server, load: Load) -> Figures:
    found = once(server, load)
    return found | {UNIT: found["p50 ms"] if load.rate else 1_000 / found["updates/s"]}

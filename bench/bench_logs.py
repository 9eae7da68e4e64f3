"""What does a history cost that outlives the process?

It is compared with a history in memory: on one node, on two nodes, and with two
workers.
"""

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

QUESTION = "What does a durable history cost?"
WORKLOAD = (
    "Updates of 192 bytes over HTTP; one subscriber receives each. At 100 updates/s, there are 5 subscribers, and the "
    "time is the median from when an update is due until it is read. Otherwise 32 publishers send as fast as they get "
    "responses, and the time is the whole time divided by the updates, until all are delivered. Of 2 nodes, one has "
    "the publishers and the other the subscribers; 2 workers share a port, and the kernel distributes the clients. All "
    "processes of a server share one processor, including redis-server, whose CPU is counted; it syncs its append-only "
    "file once a second. Baseline: the history in memory."
)
PLOT = Bars()
UNIT = "ms an update"
ROUNDS = 3, 1
versions = log_versions

SHOWN = ("p50 ms", "p99 ms", "max ms", "updates/s", "CPU µs an update", "server busy %", "load busy %")
"""The figures in the result, besides the one that is compared."""

ONE_NODE: dict[str, Server] = {
    "memory": partial(hub_on, "memory"),
    "sqlite": partial(hub_on, "sqlite"),
    "sqlite, synchronous=normal": partial(hub_on, "sqlite?synchronous=normal"),
}
# Two workers share a port, so the publisher and the subscriber cannot choose different
# workers.  So they are compared only if there are many publishers.
APART: dict[str, Server] = {"sqlite, 2 nodes": partial(hub_on, "sqlite", nodes=2)}
SHARED: dict[str, Server] = {"sqlite, 2 workers": partial(hub_on, "sqlite", workers=2)}
REDIS: dict[str, Server] = {"redis, 2 nodes": partial(hub_on, "redis", nodes=2)}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: a fixed rate, and the highest with two request sizes."""
    few = Load(connections=5, groups=5, rate=100, poisson=False, seconds=0.5 if quick else 5)
    yield Case("100 updates/s", partial(measure, few, ONE_NODE | APART | REDIS))
    for batch in (1, 100):
        # The window is so large that all publishers may wait for a response, and so
        # small that the subscriber is never far behind.
        load = Load(connections=1, rate=0, window=10_000, batch=batch, seconds=0.5 if quick else 4, spin=False)
        yield Case(
            f"32 publishers, {'one' if batch == 1 else batch} per request",
            partial(measure, load, ONE_NODE | SHARED | REDIS),
        )


def measure(load: Load, servers: dict[str, Server], rounds: int) -> dict[str, Figures]:
    """Measure `load` on each of `servers`."""
    variants = {variant: partial(_ask, server, load) for variant, server in servers.items()}
    return in_turn(variants, rounds=rounds, of=UNIT, shown=SHOWN)


def _ask(server: Server, load: Load) -> Figures:
    """Return the figures of a server, with the ms that an update takes.

    At a fixed rate, this is the median latency; otherwise the time for each update.
    """
    found = once(server, load)
    return found | {UNIT: found["p50 ms"] if load.rate else 1_000 / found["updates/s"]}

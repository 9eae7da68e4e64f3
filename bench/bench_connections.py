"""What does a new subscriber cost?

The last case is a storm: how much do connected subscribers notice if thousands of
others connect?  Compared with an older checkout too, if BENCH_BEFORE names one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench import checkouts
from bench.benchmark import Bars, Case
from bench.load import connect
from bench.servers import bare, hub, in_turn, installed, once
from bench.servers import versions as of_servers
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.servers import Server

QUESTION = "What does a new subscriber cost?"
WORKLOAD = (
    "Subscribers connect, subscribe to one URI template, and get the head of their stream; each opens a new TCP "
    "connection, 200 at a time. With tokens, each has a token of its own, which is new to the hub; the other servers "
    "ignore tokens. In a storm, 2,000 clients connect each second, whether or not earlier ones are connected, to a "
    "topic without updates, while 1,000 other subscribers receive 20 updates a second. The CPU of a storm is the "
    "difference to the same load without it. Baseline: a bare loop without HTTP. Bare uvicorn answers with the head of "
    "a stream, and does nothing else. `before` is an older version of the hub."
)
PLOT = Bars()
UNIT = "server CPU µs a connection"
ROUNDS = 3, 1

SHOWN = ("connections/s", "KiB a connection")
"""The figures in the result, besides the one that is compared."""
STORM_SHOWN = (
    "came",
    "refused",
    "connect p50 ms",
    "connect p99 ms",
    "p99 ms",
    "p99 ms, no storm",
    "server busy %",
    "load busy %",
)
"""The same, for a storm."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: connections with and without tokens, and the storm."""
    count = 500 if quick else 5_000
    load = Load(connections=count, groups=count, rate=10, seconds=0.1)
    yield Case(f"{count:,} connect", partial(measure, load))
    if not quick:
        yield Case(f"{count:,} connect, with tokens", partial(measure, replace(load, private=True)))
    storm = Load(connections=200, newcomers=500, seconds=1) if quick else Load(newcomers=2_000, seconds=5)
    yield Case(f"{storm.newcomers:,.0f} connect each second", partial(measure_storm, replace(storm, poisson=False)))


def measure(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure the connections of `load` on each server."""
    servers: dict[str, Server] = {}
    for name, server in installed().items():
        if name == "hub":
            servers["bare uvicorn"] = bare
            roots = checkouts.roots()
            servers |= {"hub, before": partial(hub, root=roots["before"])} if "before" in roots else {}
            servers["hub"] = hub
        else:
            servers[name] = server
    variants = {variant: partial(_connected, server, load) for variant, server in servers.items()}
    return in_turn(variants, rounds=rounds, of="CPU µs a connection", shown=SHOWN)


def _connected(server: Server, load: Load) -> Figures:
    with server() as target:
        return connect(load, target)


def measure_storm(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure the newcomers of `load` on each server."""
    variants = {variant: partial(_storm, server, load) for variant, server in installed().items()}
    return in_turn(variants, rounds=rounds, of="CPU µs a newcomer", shown=STORM_SHOWN)


def versions() -> dict[str, str]:
    """Return those of the servers, and the commit of the older checkout."""
    return of_servers() | checkouts.versions()


def _storm(server: Server, load: Load) -> Figures:
    """Return the figures of a storm, with the difference to the load without it."""
    quiet, found = once(server, replace(load, newcomers=0, seconds=2)), once(server, load)
    more = (found["CPU µs an update"] - quiet["CPU µs an update"]) * load.rate * load.seconds
    return found | {"CPU µs a newcomer": more / found["came"], "p99 ms, no storm": quiet["p99 ms"]}

"""What does a new subscriber cost?

In a storm, how much do connected subscribers notice if thousands of others connect?
And after an outage, what does it cost if all clients connect again, and get what they
have missed?  Compared with an older checkout too, if BENCH_BEFORE names one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench import checkouts
from bench.benchmark import Bars, Case
from bench.load import connect, publish_one, replay
from bench.servers import Server, bare, hub, hub_on, in_turn, installed, once
from bench.servers import versions as of_servers
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.measure import Figures

QUESTION = "What does a new subscriber cost?"
WORKLOAD = (
    "Subscribers connect, subscribe to one URI template, and get the head of their stream; each opens a new TCP "
    "connection, 200 at a time. With tokens, each has a token of its own, which is new to the hub; the other servers "
    "ignore tokens. In a storm, 2,000 clients connect each second, whether or not earlier ones are connected, to a "
    "topic without updates, while 1,000 other subscribers receive 20 updates a second. The CPU of a storm is the "
    "difference to the same load without it. The clients that reconnect have a last event id, and have missed 10 "
    "updates of 200 bytes with a topic each, which they get. Baseline: a bare loop without HTTP, and a history in "
    "memory for those that reconnect. Bare uvicorn answers with the head of "
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
RECONNECT_SHOWN = ("seconds", "deliveries/s", "server busy %", "load busy %")
"""The same, for clients that reconnect."""
MISSED = 10
"""The updates that a client that reconnects has missed."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: connections with and without tokens, and the storms."""
    count = 500 if quick else 5_000
    load = Load(connections=count, groups=count, rate=10, seconds=0.1)
    yield Case(f"{count:,} connect", partial(measure, load))
    if not quick:
        yield Case(f"{count:,} connect, with tokens", partial(measure, replace(load, private=True)))
    storm = Load(connections=200, newcomers=500, seconds=1) if quick else Load(newcomers=2_000, seconds=5)
    yield Case(f"{storm.newcomers:,.0f} connect each second", partial(measure_storm, replace(storm, poisson=False)))
    # At this rate, exactly MISSED updates are due before the end of the second.
    missed = Load(
        connections=500 if quick else 10_000, rate=MISSED + 1, poisson=False, seconds=1, payload=200, new_topics=True
    )
    yield Case(f"{missed.connections:,} reconnect", partial(measure_reconnect, missed))


def servers() -> dict[str, Server]:
    """Return the servers that are compared, with the hub of an older checkout."""
    roots, found = checkouts.roots(), dict[str, Server]()
    for name, server in installed().items():
        if name == "hub" and "before" in roots:
            found["hub, before"] = partial(hub, root=roots["before"])
        found[name] = server
    return found


def measure(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure the connections of `load` on each server."""
    compared = servers() | {"bare uvicorn": bare}
    variants = {variant: partial(_connected, server, load) for variant, server in compared.items()}
    return in_turn(variants, rounds=rounds, of="CPU µs a connection", shown=SHOWN)


def _connected(server: Server, load: Load) -> Figures:
    with server() as target:
        return connect(load, target)


def measure_storm(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure the newcomers of `load` on each server."""
    variants = {variant: partial(_storm, server, load) for variant, server in servers().items()}
    return in_turn(variants, rounds=rounds, of="CPU µs a newcomer", shown=STORM_SHOWN)


def measure_reconnect(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure the clients of `load` that reconnect to each kind of history."""
    roots = dict(reversed(checkouts.roots().items()))
    variants = {
        f"{log}, {when}": partial(_reconnect, log, load, root)
        for log in ("memory", "sqlite")
        for when, root in roots.items()
    }
    return in_turn(variants, rounds=rounds, of="CPU µs a connection", shown=RECONNECT_SHOWN)


def _reconnect(log: str, load: Load, root: Path) -> Figures:
    """Return the figures of clients that reconnect; each must get what it missed."""
    with hub_on(log, root=root) as target:
        found = replay(load, target, publish_one(load, target))
    assert (found["updates"], found["deliveries"]) == (MISSED, MISSED * load.connections), found
    assert not any(found[name] for name in ("lost", "doubled", "closed")), found
    return found


def versions() -> dict[str, str]:
    """Return those of the servers, and the commit of the older checkout."""
    return of_servers() | checkouts.versions()


def _storm(server: Server, load: Load) -> Figures:
    """Return the figures of a storm, with the difference to the load without it."""
    quiet, found = once(server, replace(load, newcomers=0, seconds=2)), once(server, load)
    more = (found["CPU µs an update"] - quiet["CPU µs an update"]) * load.rate * load.seconds
    return found | {"CPU µs a newcomer": more / found["came"], "p99 ms, no storm": quiet["p99 ms"]}

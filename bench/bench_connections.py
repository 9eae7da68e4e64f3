"""What does it cost to take a subscriber in, and what do those notice who are there when thousands come?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.servers import in_turn, installed, once
from bench.servers import versions as versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.servers import Server

QUESTION = "What does it cost to take a subscriber in?"
WORKLOAD = (
    "Subscribers connect, ask for one URI template, and have the head of their stream; each opens a new TCP "
    "connection, and 200 at a time do so. With tokens, each has one of its own, which the hub has never seen; the "
    "others look at none. In a storm, 2,000 connect a second, whether or not those before them have come in, for what "
    "nobody publishes; meanwhile 1,000 others receive 20 updates a second. Its CPU is what the server takes more than "
    "without the storm. Baseline: a bare loop without HTTP."
)
PLOT = Bars()
UNIT = "server CPU µs a connection"
ROUNDS = 3, 1

SHOWN = ("connections/s", "KiB a connection", "load busy %")
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


def cases(quick: bool) -> Iterator[Case]:
    count = 500 if quick else 5_000
    load = Load(connections=count, groups=count, rate=10, seconds=0.1)
    yield Case(f"{count:,} connect", partial(measure, load))
    if not quick:
        yield Case(f"{count:,} connect, with tokens", partial(measure, replace(load, private=True)))
    storm = Load(connections=200, newcomers=500, seconds=1) if quick else Load(newcomers=2_000, seconds=5)
    yield Case(f"{storm.newcomers:,.0f} a second connect", partial(measure_storm, replace(storm, poisson=False)))


def measure(load: Load, rounds: int) -> dict[str, Figures]:
    ways = {way: partial(once, server, load) for way, server in installed().items()}
    return in_turn(ways, rounds=rounds, of="CPU µs a connection", shown=SHOWN)


def measure_storm(load: Load, rounds: int) -> dict[str, Figures]:
    ways = {way: partial(_storm, server, load) for way, server in installed().items()}
    return in_turn(ways, rounds=rounds, of="CPU µs a newcomer", shown=STORM_SHOWN)


def _storm(server: Server, load: Load) -> Figures:
    quiet, found = once(server, replace(load, newcomers=0, seconds=2)), once(server, load)
    more = (found["CPU µs an update"] - quiet["CPU µs an update"]) * load.rate * load.seconds
    return found | {"CPU µs a newcomer": more / found["came"], "p99 ms, no storm": quiet["p99 ms"]}

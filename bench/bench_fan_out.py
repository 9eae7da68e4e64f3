"""How much CPU does a delivery cost the hub, and how late is it?

All servers get the same loads.  In the broadcasts, the hub runs a second time with one
task per stream.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.servers import hub, in_turn, installed, once
from bench.servers import versions as versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does a delivery cost, and how late is it?"
WORKLOAD = (
    "Subscribers with one URI template each; they have tokens only if updates are private. Single updates of 192 "
    "bytes, published with a token that the hub has cached, at a rate that all servers can keep up with. The server "
    "and the load generator have a processor each. Latency is the time from when an update is due until a subscriber "
    "has read it. Baseline: one write(2) per socket from a bare loop, without HTTP. The loop, nchan and sse-starlette "
    "match nothing and check no token: their channel is the group of subscribers, even if a topic is new or an update "
    "is private."
)
PLOT = Lines(x="subscribers")
UNIT = "server CPU µs a delivery"
ROUNDS = 3, 1

SHOWN = (
    "user µs",
    "system µs",
    "deliveries/s",
    "p50 ms",
    "p99 ms",
    "max ms",
    "KiB a connection",
    "server busy %",
    "load busy %",
)
"""The figures in the result, besides the one that is compared."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: broadcasts to many subscribers, and other loads."""
    rates = {100: 200, 1_000: 20, 5_000: 4, 10_000: 2, 15_000: 1}
    for count in (100, 1_000) if quick else rates:
        seconds = 1 if quick else 4 if count < 15_000 else 6
        load = Load(connections=count, rate=rates[count], poisson=False, seconds=seconds)
        yield Case(f"broadcast to {count:,}", partial(measure, load, tasks=True), at={"subscribers": count})
    large_frames = Load(connections=495, rate=30, poisson=False, payload=8_128, seconds=4)
    loads = {
        "1,000, one update after the other": Load(rate=0),
        "1,000, 100 updates in flight": Load(rate=0, window=100, batch=50),
        "5 topics of 1,000, 250 updates/s": Load(connections=5_000, groups=5, rate=250, seconds=2),
        "1 % of 10,000": Load(connections=10_000, groups=100, rate=150),
        "10 % of 10,000": Load(connections=10_000, groups=10, rate=15),
        "private, to one of 10,000": Load(connections=10_000, groups=10_000, rate=500, private=True),
        "10 % of 1,000, always a new topic": Load(groups=10, rate=150, new_topics=True),
        "495, frames of 8 KiB": large_frames,
        "495, and 5 that do not read": replace(large_frames, stuck=5),
        "1,000, and 200 that come and go each second": Load(visitors=200),
    }
    if quick:
        loads = {"100, 100 updates in flight": Load(connections=100, rate=0, window=100, batch=50, seconds=0.5)}
    for label, load in loads.items():
        yield Case(label, partial(measure, load))


def measure(load: Load, rounds: int, *, tasks: bool = False) -> dict[str, Figures]:
    """Measure `load` on each server.

    With `tasks`, one more variant is a hub with a task per stream.
    """
    servers = installed()
    if tasks:
        servers["hub, one task per stream"] = partial(hub, "--no-detach")
    variants = {variant: partial(once, server, load) for variant, server in servers.items()}
    return in_turn(variants, rounds=rounds, of="CPU µs a delivery", shown=SHOWN)

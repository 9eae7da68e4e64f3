"""What does it save if updates wait a little, and share writes?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.servers import hub, in_turn, installed, once
from bench.servers import versions as versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.servers import Server

QUESTION = "What does it save if updates wait a little, and share writes?"
WORKLOAD = (
    "1,000 subscribers of one topic get updates of 192 bytes, at random times: 20 or 100 a second. The hub writes each "
    "update at once, which is the default, or has a `write_interval` of 20, 100 or 500 ms. Latency is the time from "
    "when an update is due until a subscriber has read it. Baseline: the hub with its default."
)
PLOT = Bars()
UNIT = "server CPU µs a delivery"
ROUNDS = 3, 1

SHOWN = ("server busy %", "p50 ms", "p99 ms", "load busy %")
"""The figures in the result, besides the one that is compared."""
INTERVALS = (20, 100, 500)
"""The measured values of the setting, in ms."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: few updates a second, and many."""
    for rate in (100,) if quick else (20, 100):
        load = Load(connections=200 if quick else 1_000, rate=rate, seconds=1 if quick else 6)
        yield Case(f"{rate} updates a second", partial(measure, load))


def measure(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure the hub with each value of the setting, and nchan."""
    servers: dict[str, Server] = {"at once": hub}
    servers |= {f"{ms} ms": partial(hub, HUB_WRITE_INTERVAL=f"{ms / 1e3:g}") for ms in INTERVALS}
    servers |= {name: server for name, server in installed().items() if name == "nginx with nchan"}
    variants = {name: partial(once, server, load) for name, server in servers.items()}
    return in_turn(variants, rounds=rounds, of="CPU µs a delivery", shown=SHOWN)

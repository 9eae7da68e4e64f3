"""What does a delivery from the history cost if many clients reconnect at once?

The histories in memory, in SQLite and in Redis are compared.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.load import replay
from bench.servers import hub_on, in_turn, log_versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does a delivery from the history cost?"
WORKLOAD = (
    "The history has 100,000 updates of 250 bytes. Then subscribers connect at once, with `earliest` as their last "
    "event id, and each gets all updates. CPU is that of all processes, including redis-server. Memory is that of the "
    "hub alone, which holds the whole history only if the history is in memory. Baseline: the history in memory. One "
    "subscriber alone shares its pages with no other."
)
PLOT = Bars()
UNIT = "server CPU µs a delivery"
ROUNDS = 1, 1
versions = log_versions

SHOWN = ("seconds", "deliveries/s", "hub MiB before", "hub MiB after", "server busy %", "load busy %")
"""The figures in the result, besides the one that is compared."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: one subscriber alone, and many at once."""
    updates = 2_000 if quick else 100_000
    for count in (1, 10 if quick else 100):
        # At this rate, exactly `updates` updates are due before the end of the second.
        load = Load(connections=count, rate=updates + 1, poisson=False, seconds=1, payload=250, batch=1_000, spin=False)
        yield Case(f"{count} at once" if count > 1 else "one alone", partial(measure, load, updates))


def measure(load: Load, updates: int, rounds: int) -> dict[str, Figures]:
    """Measure the replay of `updates` updates from each kind of history."""
    variants = {log: partial(_ask, log, load, updates) for log in ("memory", "sqlite", "redis")}
    return in_turn(variants, rounds=rounds, of="CPU µs a delivery", shown=SHOWN)


def _ask(log: str, load: Load, updates: int) -> Figures:
    """Return the figures of a replay from a new hub; every subscriber must get all."""
    with hub_on(log, HUB_HISTORY_UPDATES=str(2 * updates), HUB_HISTORY_BYTES=str(2**30)) as target:
        found = replay(load, target)
    assert (found["updates"], found["deliveries"]) == (updates, updates * load.connections), found
    assert not any(found[name] for name in ("lost", "doubled", "closed")), found
    return found

"""Where does a request spend its time?

Compared with an older checkout, if BENCH_BEFORE names one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import BENCH, Bars, Case
from bench.checkouts import in_turn, variants, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

__all__ = ["versions"]

QUESTION = "Where does a request spend its time?"
WORKLOAD = (
    "A single update that is published; a connection with a topic of its own, without and with a token of its own; and "
    "a private update for one of 1,000 subscribers. The requests go through the protocol class and the hub in one "
    "process, and no socket, so this is the Python of a request, without system calls. The history is in memory. A "
    "layer's time is its share in a profile of the CPU time without the profiler. Baseline: the code before."
)
PLOT = Bars()
UNIT = "CPU µs"
ROUNDS = 5, 1

SCRIPT = BENCH / "layers.py"
LABELS = {
    "post": "a POST",
    "connection": "a connection",
    "connection_with_token": "a connection with a token",
    "lone_update": "a lone update",
}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: one for each kind of request."""
    for kind, label in LABELS.items():
        yield Case(label, partial(measure, kind, 200 if quick else 2_000))


def measure(kind: str, count: int, rounds: int) -> dict[str, Figures]:
    """Measure requests of a kind in each checkout."""
    return in_turn(variants(kind, count, SCRIPT), rounds, of="CPU µs")

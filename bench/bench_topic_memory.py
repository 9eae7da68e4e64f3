"""How much memory does a topic take that 100,000 subscribers of a hub receive?

Compared with an older checkout, if BENCH_BEFORE names one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.checkouts import in_turn, variants, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

__all__ = ["versions"]

QUESTION = "How much memory does a topic take that 100,000 subscribers of a hub receive?"
WORKLOAD = (
    "The filter of a hub with 200,000 receivers. A random half of them subscribes to each of 10,000 topics, by one URI "
    "template, or half of that half by another one. Each topic is looked up once, or three times. The bytes are the "
    "growth of the process, divided by the topics. Baseline: the code before."
)
PLOT = Bars()
UNIT = "bytes a topic"
ROUNDS = 3, 1


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases."""
    topics = 1_000 if quick else 10_000
    for lists, subscribed in (1, "one template"), (2, "two templates"):
        for times, asked in (1, "once"), (3, "three times"):
            yield Case(f"{subscribed}, each topic {asked}", partial(measure, topics, times, lists))


def measure(topics: int, times: int, lists: int, rounds: int) -> dict[str, Figures]:
    """Measure the topics in each checkout."""
    return in_turn(variants("memory", (topics, times, lists)), rounds, of="bytes")

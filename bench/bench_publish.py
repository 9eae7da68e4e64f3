"""What does an update cost before any subscriber receives it?

The hub gets updates one per request, and in batches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.servers import SERVERS, in_turn, installed, once
from bench.servers import versions as versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does an update cost that no subscriber receives?"
WORKLOAD = (
    "Updates of 192 bytes, as fast as 8 connections get responses, one per request in a form, or as lines of JSON. The "
    "token is signed with HS256: always the same one, or a new one for each request. There are no subscribers, or "
    "1,000 with templates that do not match. Every topic is new, because a hub caches the receivers of a known one. "
    "Baseline: one update per request. nchan and sse-starlette check no token and match nothing."
)
PLOT = Bars()
UNIT = "server CPU µs an update"
ROUNDS = 3, 1

SHOWN = ("updates/s", "server busy %", "load busy %")
"""The figures in the result, besides the one that is compared."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: no subscribers, and subscribers of other topics."""
    for count in (0,) if quick else (0, 1_000):
        load = Load(
            connections=count,
            rate=0,
            publishers=8,
            seconds=0.5 if quick else 3,
            unwanted=True,
            new_topics=True,
            spin=False,
        )
        label = f"{count:,} subscribers of other topics" if count else "no subscribers"
        yield Case(label, partial(measure, load))


def measure(load: Load, rounds: int) -> dict[str, Figures]:
    """Measure `load` on each server, and on the hub also in batches."""
    hub = SERVERS["hub"]
    variants = {
        "hub, one per request": partial(once, hub, load),
        "hub, one per request, new token": partial(once, hub, replace(load, fresh_tokens=True)),
        "hub, 100 per request": partial(once, hub, replace(load, batch=100, window=100)),
        "hub, 1,000 per request": partial(once, hub, replace(load, batch=1_000, window=1_000)),
    }
    others = {variant: partial(once, server, load) for variant, server in installed().items() if variant != "hub"}
    return in_turn(variants | others, rounds=rounds, of="CPU µs an update", shown=SHOWN)

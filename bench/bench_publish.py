"""What does an update cost before anybody receives it?"""

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

QUESTION = "What does an update cost that nobody receives?"
WORKLOAD = (
    "Updates of 192 bytes, as fast as they are taken on 8 connections, in a form each or as lines of JSON, with a "
    "token signed by HS256: always the same one, or a new one for every request. Nobody wants them: there are no "
    "subscribers, or 1,000 with templates that do not match. Every topic is a new one, as a hub remembers who receives "
    "an old one. Baseline: one update a request. nchan and the queues look at no token, and match nothing."
)
PLOT = Bars()
UNIT = "server CPU µs an update"
ROUNDS = 3, 1

SHOWN = ("updates/s", "server busy %", "load busy %")


def cases(quick: bool) -> Iterator[Case]:
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
        label = f"{count:,} subscribers who want something else" if count else "no subscribers"
        yield Case(label, partial(measure, load))


def measure(load: Load, rounds: int) -> dict[str, Figures]:
    hub = SERVERS["hub"]
    ways = {
        "hub, one a request": partial(once, hub, load),
        "hub, one a request, new token": partial(once, hub, replace(load, fresh_tokens=True)),
        "hub, 100 a request": partial(once, hub, replace(load, batch=100, window=100)),
        "hub, 1,000 a request": partial(once, hub, replace(load, batch=1_000, window=1_000)),
    }
    others = {way: partial(once, server, load) for way, server in installed().items() if way != "hub"}
    return in_turn(ways | others, rounds=rounds, of="CPU µs an update", shown=SHOWN)

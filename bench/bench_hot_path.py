"""What does a request to publish cost, beside the least that uvicorn needs?

Compared with an older checkout, if BENCH_BEFORE names one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench import checkouts
from bench.benchmark import Bars, Case
from bench.servers import bare, hub_on, in_turn, installed, log_versions, once, uvicorn_hub
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.servers import Server

QUESTION = "What does a request to publish cost, beside the least that uvicorn needs?"
WORKLOAD = (
    "Updates of 192 bytes, as fast as 16 connections get responses, one per request in a form, or 100 per request as "
    "lines of JSON, on one connection. The token is always the same, and each topic is new. There are no subscribers. "
    "Baseline: uvicorn with httptools, uvloop and an application that only reads a request and answers it, one per "
    "request. `before` is an older version of the hub. nchan checks no token and matches nothing."
)
PLOT = Bars()
UNIT = "server CPU µs an update"
ROUNDS = 5, 1

SHOWN = ("updates/s", "server busy %", "load busy %")
"""The figures in the result, besides the one that is compared."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: one update per request, and batches."""
    load = Load(
        connections=0,
        rate=0,
        publishers=16,
        window=16,
        seconds=0.5 if quick else 2,
        unwanted=True,
        new_topics=True,
        spin=False,
    )
    yield Case("one update per request", partial(measure, load, None))
    if not quick:
        yield Case("100 per request", partial(measure, load, replace(load, batch=100, window=100)))


def measure(load: Load, batches: Load | None, rounds: int) -> dict[str, Figures]:
    """Measure the load, or the batches beside it, on each server in turn."""
    servers: dict[str, Server] = {}
    for name, variant in checkouts.roots().items():
        servers[f"memory, {name}"] = partial(hub_on, "memory", root=variant)
        servers[f"SQLite, {name}"] = partial(hub_on, "sqlite", root=variant)
        if batches is None:
            servers[f"memory, uvicorn hub:app, {name}"] = partial(uvicorn_hub, root=variant)
    if batches is None:
        servers |= {name: server for name, server in installed().items() if name == "nginx with nchan"}
    variants = {"bare uvicorn": partial(once, bare, load)}
    variants |= {name: partial(once, server, batches or load) for name, server in servers.items()}
    return in_turn(variants, rounds=rounds, of="CPU µs an update", shown=SHOWN)


def versions() -> dict[str, str]:
    """Return those of the servers, and the commit of the older checkout."""
    return log_versions() | checkouts.versions()

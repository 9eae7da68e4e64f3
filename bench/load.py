"""A load for a hub, and what the hub made of it: `python -m bench.load --url URL --token TOKEN`, for any hub by HTTP.

    python -m hub serve --dev                                                      in one terminal
    python -m bench.load --url http://localhost:3000/.well-known/mercure --rate 20       in another

Group g of the subscribers wants https://example.com/g/{item}; an update is about https://example.com/g/0 or, where
every topic is to be a new one, https://example.com/g/n.  What is sent and how it is counted is said in `clients`.

Linux only.  The load takes a processor of its own where there are two; the figure "load busy %" says how much of it.
Where that is near 100, the rate is the load's and not the server's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.clients import Clients
from bench.measure import processor_time, resident
from bench.targets import FromEarliest, Load, Mercure, Target
from hub.settings import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.measure import Figures

_WARM_UP: Final = (5, 100)  # updates before the measurement, at least and at most: one a group
_SPLIT: Final = 20  # ticks of the clock that user and system time are sampled with


def run(load: Load, target: Target, *, watch: Callable[[Clients], None] | None = None, every: float = 10.0) -> Figures:
    """Put `load` on `target`, and say what came of it; `watch` sees the clients before the first update, and all
    `every` seconds of the publishing.

    CPU is that of all of the server's processes, from the first update to the last delivery, for updates, deliveries
    and whoever comes meanwhile.  Memory is what is resident and not shared, after all have connected and before
    anything is published; what the kernel has for a socket is not in it.  Raises RuntimeError where the server
    refuses what it should not.
    """
    with closing(Clients(load, target)) as clients, _own_core(), _no_garbage():
        clients.publish_now([load.groups])  # to nobody: the server has started, and has worked once
        before, began = _taken(target), time.monotonic()
        clients.connect()
        connected = time.monotonic() - began
        between = _taken(target)
        least, most = _WARM_UP
        clients.publish_now([n % load.groups for n in range(max(least, min(most, load.groups)))])
        clients.forget()
        start, began, busy = _taken(target), time.monotonic(), time.process_time()
        clients.publish(watch and (lambda: watch(clients)), every)
        clients.finish()
        seconds = time.monotonic() - began
        busy = time.process_time() - busy - clients.spun / 1e9
        end = _taken(target)
        lost, doubled = clients.differences()
        deliveries = clients.delivered + clients.further

    made: Figures = {
        "updates": clients.updates,
        "updates/s": clients.updates / seconds,
        "deliveries": deliveries,
    }
    if deliveries:
        made["deliveries/s"] = deliveries / seconds
    if target.pids:
        cpu, user, system = (after - then for after, then in zip(end.cpu, start.cpu, strict=True))
        made["CPU µs an update"] = cpu / max(1, clients.updates) * 1e6
        made["server busy %"] = cpu / seconds * 100
        if deliveries:
            made["CPU µs a delivery"] = each = cpu / deliveries * 1e6
            if user + system >= _SPLIT:
                made["user µs"] = each * user / (user + system)
                made["system µs"] = each * system / (user + system)
        if load.connections:
            made["KiB a connection"] = (between.memory - before.memory) / (load.connections + load.stuck) / 1_024
            made["CPU µs a connection"] = (between.cpu[0] - before.cpu[0]) / (load.connections + load.stuck) * 1e6
    if load.connections:
        made["connections/s"] = (load.connections + load.stuck) / connected
    made |= quantiles("", clients.latencies)
    if load.visitors or load.newcomers:
        made |= {"came": len(clients.arrivals), "refused": clients.refused}
        made |= quantiles("connect ", clients.arrivals)
    return made | {"lost": lost, "doubled": doubled, "closed": clients.closed, "load busy %": busy / seconds * 100}


def replay(load: Load, target: Target) -> Figures:
    """Publish what `load` says while nobody is there; then all connect at once, and get it from the log.

    Times and CPU are from the first connection to the last delivery.  Memory is that of the first process, resident and
    not shared, before anybody has connected and when all have all.
    """
    hub = target.pids[0]
    with (
        closing(Clients(load, replace(target, dialect=FromEarliest(target.dialect)))) as clients,
        _own_core(),
        _no_garbage(),
    ):
        clients.publish(None, 0)
        clients.finish()
        clients.expected = clients.updates * load.connections
        memory, start = resident(hub), _taken(target)
        clients.spun, began, busy = 0, time.monotonic(), time.process_time()
        clients.connect()
        clients.finish()
        seconds = time.monotonic() - began
        busy = time.process_time() - busy - clients.spun / 1e9
        end, memory_after = _taken(target), resident(hub)
        lost, doubled = clients.differences()
        deliveries = clients.delivered
    cpu = end.cpu[0] - start.cpu[0]
    return {
        "updates": clients.updates,
        "deliveries": deliveries,
        "seconds": seconds,
        "deliveries/s": deliveries / seconds,
        "CPU µs a delivery": cpu / max(1, deliveries) * 1e6,
        "hub MiB before": memory / 2**20,
        "hub MiB after": memory_after / 2**20,
        "server busy %": cpu / seconds * 100,
        "load busy %": busy / seconds * 100,
        "lost": lost,
        "doubled": doubled,
        "closed": clients.closed,
    }


def quantiles(what: str, taken: Sequence[int]) -> Figures:
    """The median, the 99th percentile and the most of `taken`, ns, in ms; nothing of nothing."""
    if not taken:
        return {}
    ordered = sorted(taken)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": -1}
    return {f"{what}{name} ms": ordered[place] / 1e6 for name, place in places.items()}


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a server has taken: its CPU seconds, and user and system time as they were sampled; bytes of memory."""

    cpu: tuple[float, float, float]
    memory: int


def _taken(target: Target) -> _Taken:
    total, user, system = (sum(its) for its in zip((0.0, 0.0, 0.0), *map(processor_time, target.pids), strict=True))
    return _Taken((total, user, system), sum(map(resident, target.pids)))


@contextmanager
def _own_core() -> Iterator[None]:
    """The last of the processors that there are; servers of `servers` have the first."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Without the collector, which would stop the load now and then."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load", description="Put a load on any Mercure hub that takes classic requests."
    )
    parser.add_argument("--url", required=True, help="of the hub; http only")
    parser.add_argument("--token", default="", help="classic token of the publishers; else one is signed with --key")
    parser.add_argument("--key", default=DEVELOPMENT_KEY, help="HS256 secret of the hub; default: the well-known one")
    parser.add_argument("--pid", type=int, action="append", default=[], help="of the server, for its CPU and memory")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    for option in fields(Load):
        name, help = "--" + option.name.replace("_", "-"), option.metadata["help"] + "; default: %(default)s"
        if isinstance(option.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=option.default, help=help)
        else:
            parser.add_argument(name, type=type(option.default), default=option.default, help=help)
    chosen = parser.parse_args(arguments)
    load = Load(**{option.name: getattr(chosen, option.name) for option in fields(Load)})
    address = urlsplit(chosen.url)
    dialect = Mercure(chosen.url, token=chosen.token, key=chosen.key)
    made = run(
        load, Target(socket.gethostbyname(address.hostname or ""), address.port or 80, dialect, tuple(chosen.pid))
    )
    if chosen.json:
        print(json.dumps(made, indent=1, ensure_ascii=False))
    else:
        for name, value in made.items():
            print(f"{name:22}{value:>14,.3f}")


if __name__ == "__main__":
    main()

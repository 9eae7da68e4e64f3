"""A load generator for any Mercure hub.

    python -m hub serve --dev                              in one terminal
    python -m bench.load --rate 20 \\
        --url http://localhost:3000/.well-known/mercure    in another terminal

The subscribers of group g subscribe to https://example.com/g/{item}.  An update of the
group has the topic https://example.com/g/0 or, if every topic should be new,
https://example.com/g/n with the number n of the update.  `clients` explains the data of
updates and how deliveries are counted.

The load generator uses only the last processor.  If "load busy %" is near 100, the load
generator is the bottleneck and not the server.  Linux only.
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
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.clients import Clients
from bench.measure import processor_time, resident
from bench.targets import Load, Mercure, Since, Target
from hub.development import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.measure import Figures

# The least and the most updates of a warm-up, which has one for each group.
_WARM_UP_UPDATES: Final = (5, 100)
# With fewer ticks, the proportion of user and system time is too inexact.
_MIN_TICKS: Final = 20


def run(load: Load, target: Target, *, watch: Callable[[Clients], None] | None = None, every: float = 10.0) -> Figures:
    """Put `load` on `target`, and return the figures.

    `watch` is called with the clients before the first update, and then every `every`
    seconds.

    CPU is that of all processes of the server, from the first update to the last
    delivery.  It includes connections that are made during that time.  Memory is
    resident and private.  It is measured after all clients have connected and before
    the first update; the kernel's memory for sockets is not included.

    Raises RuntimeError if the server does not accept an update or a lasting subscriber,
    if a delivery is missing before the measurement, or if updates are still not
    published long after they were due.
    """
    with closing(Clients(load, target)) as clients, _own_core(), _no_garbage():
        # 1. The server works: it answers an update before any client is subscribed.
        clients.publish_now([load.groups])
        # 2. All clients connect.
        before, began = _taken(target), time.monotonic()
        clients.connect()
        connected = time.monotonic() - began
        between = _taken(target)
        # 3. A warm-up, which is not counted.
        least, most = _WARM_UP_UPDATES
        clients.publish_now([n % load.groups for n in range(max(least, min(most, load.groups)))])
        clients.forget()
        # 4. The measurement.
        start, began, busy = _taken(target), time.monotonic(), time.process_time()
        clients.publish(watch and (lambda: watch(clients)), every)
        clients.finish()
        seconds = time.monotonic() - began
        busy = time.process_time() - busy - clients.spun / 1e9
        end = _taken(target)
        lost, doubled = clients.differences()
        deliveries = clients.delivered + clients.further

    # The figures.  Some need deliveries, connections, or the processes of the server.
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
            if user + system >= _MIN_TICKS:
                made["user µs"] = each * user / (user + system)
                made["system µs"] = each * system / (user + system)
    if load.connections:
        made |= _connected(load, target, before, between, connected)
    made |= quantiles("", clients.latencies)
    if load.visitors or load.newcomers:
        made |= {"came": len(clients.arrivals), "refused": clients.refused}
        made |= quantiles("connect ", clients.arrivals)
    return made | {"lost": lost, "doubled": doubled, "closed": clients.closed, "load busy %": busy / seconds * 100}


def connect(load: Load, target: Target) -> Figures:
    """Connect all clients of `load` to a server, which may deliver nothing, and return
    the figures about connections that `run` returns too.
    """
    with closing(Clients(load, target)) as clients, _own_core(), _no_garbage():
        before, began = _taken(target), time.monotonic()
        clients.connect()
        seconds = time.monotonic() - began
        return _connected(load, target, before, _taken(target), seconds)


def _connected(load: Load, target: Target, before: _Taken, after: _Taken, seconds: float) -> Figures:
    """Return the figures about the connections that were made between two times."""
    count = load.connections + load.stuck
    made: Figures = {"connections/s": count / seconds}
    if target.pids:
        made["KiB a connection"] = (after.memory - before.memory) / count / 1_024
        made["CPU µs a connection"] = (after.cpu[0] - before.cpu[0]) / count * 1e6
    return made


def replay(load: Load, target: Target, last_event_id: str = "earliest") -> Figures:
    """Publish updates without subscribers, then replay them, and return the figures.

    After all updates of `load` are published, all subscribers connect at once and ask
    for the updates after `last_event_id`, which should be the same ones.  Times and CPU
    are from the first connection to the last delivery.  Memory is that of the first
    process, resident and private, before the first connection and after the last
    delivery.
    """
    hub = target.pids[0]
    with (
        closing(Clients(load, replace(target, dialect=Since(target.dialect, last_event_id)))) as clients,
        _own_core(),
        _no_garbage(),
    ):
        # 1. All updates, without a subscriber.
        clients.publish(None, 0)
        clients.finish()
        # 2. All subscribers, each of which should get all updates.
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
        "CPU µs a connection": cpu / load.connections * 1e6,
        "hub MiB before": memory / 2**20,
        "hub MiB after": memory_after / 2**20,
        "server busy %": cpu / seconds * 100,
        "load busy %": busy / seconds * 100,
        "lost": lost,
        "doubled": doubled,
        "closed": clients.closed,
    }


def publish_one(load: Load, target: Target) -> str:
    """Publish an update that no subscriber of `load` wants, and return its id."""
    request = target.dialect.publish([(load.groups, 0, "")], replace(load, batch=1))
    with socket.create_connection((target.host, target.port)) as connection:
        connection.sendall(request)
        answer = HTTPResponse(connection, method="POST")
        answer.begin()
        assert answer.status == 200, answer.status
        return answer.read().decode()


def quantiles(what: str, taken: Sequence[int]) -> Figures:
    """Return the median, the 99th percentile and the maximum of `taken`, in ms.

    `taken` is in ns; if it is empty, so is the result.  The names of the figures begin
    with `what`.
    """
    if not taken:
        return {}
    ordered = sorted(taken)
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": -1}
    return {f"{what}{name} ms": ordered[place] / 1e6 for name, place in places.items()}


@dataclass(frozen=True, slots=True)
class _Taken:
    """The CPU and the memory that a server has used so far."""

    cpu: tuple[float, float, float]  # CPU seconds, user ticks, system ticks
    memory: int  # bytes, resident and private


def _taken(target: Target) -> _Taken:
    """Return the sums over all processes of `target`; 0 if they are not known."""
    total, user, system = (sum(its) for its in zip((0.0, 0.0, 0.0), *map(processor_time, target.pids), strict=True))
    return _Taken((total, user, system), sum(map(resident, target.pids)))


@contextmanager
def _own_core() -> Iterator[None]:
    """Let this process use only its last processor; the servers use the first."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Turn the garbage collector off, because it would delay the load."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> None:
    """Put the load that the command line describes on a hub, and print the figures.

    Each field of Load is an option.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench.load", description="Put a load on a Mercure hub that accepts classic requests."
    )
    parser.add_argument("--url", required=True, help="the hub's URL; http only")
    parser.add_argument("--token", default="", help="classic token to publish; default: a new one, signed with --key")
    parser.add_argument("--key", default=DEVELOPMENT_KEY, help="HS256 secret of the hub; default: the development key")
    parser.add_argument(
        "--pid", type=int, action="append", default=[], help="process whose CPU and memory are measured"
    )
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

"""What do idle connections cost, with each interval of heartbeats?"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from bench.benchmark import Bars, Case
from bench.clients import raise_file_limit
from bench.measure import processor_time
from bench.servers import hub, in_turn
from bench.servers import versions as versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.targets import Target

QUESTION = "What do idle connections cost, with each interval of heartbeats?"
WORKLOAD = (
    "Subscribers connect to a topic without updates, and then only receive heartbeats. The hub's CPU time is measured "
    "for 120 s, which is eight times the default interval of 15 s, and three times 40 s, the interval of Mercure's own "
    "hub. A client counts the heartbeats. Baseline: every 40 s."
)
PLOT = Bars()
UNIT = "server CPU ms each second"
ROUNDS = 3, 1

SECONDS: Final = 120
_HEARTBEAT: Final = b"\r\n:\n\r\n"


def cases(quick: bool) -> Iterator[Case]:
    """Return the only case; if `quick`, all times are a sixtieth."""
    count, scale = (200, 1 / 60) if quick else (10_000, 1.0)
    yield Case(f"{count:,} connections", partial(measure, count, scale))


def measure(count: int, scale: float, rounds: int) -> dict[str, Figures]:
    """Measure a hub with `count` idle connections, with each interval."""
    variants = {
        f"every {seconds} s" if seconds else "no heartbeats": partial(_once, count, seconds * scale, SECONDS * scale)
        for seconds in (40, 15, 0)
    }
    return in_turn(variants, rounds=rounds, of="CPU ms each second", shown=("heartbeats a connection",))


def _once(count: int, heartbeat: float, seconds: float) -> Figures:
    """Return the figures of one hub.

    An assertion fails if a connection gets fewer heartbeats than the time allows.
    """
    raise_file_limit()
    with hub(HUB_HEARTBEAT=str(heartbeat)) as target, ExitStack() as stack:
        clients = [stack.enter_context(_subscribe(target)) for _ in range(count)]
        [pid] = target.pids
        began, taken = time.monotonic(), processor_time(pid)[0]
        time.sleep(seconds)
        lasted, taken = time.monotonic() - began, processor_time(pid)[0] - taken
        received = [_received(client) for client in clients]
    # The first may come late by the length of the tick, and the last is not due yet.
    assert not heartbeat or min(received) >= int(seconds / (heartbeat + 2)), (min(received), heartbeat)
    assert heartbeat or max(received) == 0, max(received)
    return {"CPU ms each second": taken / lasted * 1e3, "heartbeats a connection": sum(received) / count}


def _subscribe(target: Target) -> socket.socket:
    """Return a connection whose stream has begun."""
    client = socket.create_connection((target.host, target.port))
    client.sendall(b"GET /.well-known/mercure?match=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head or not head.endswith(b"\n\r\n"):
        head += client.recv(4_096)
    assert head.startswith(b"HTTP/1.1 200 "), head
    return client


def _received(client: socket.socket) -> int:
    """Return the number of heartbeats that a client has received."""
    client.setblocking(False)
    received = bytearray()
    while True:
        try:
            part = client.recv(2**16)
        except BlockingIOError:
            return received.count(_HEARTBEAT)
        assert part, "the hub has closed the stream"
        received += part

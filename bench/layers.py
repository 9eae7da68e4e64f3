"""Measures where a request spends its time: another script that `checkouts` runs.

    python bench/layers.py KIND      reads how many requests from stdin, and writes
                                     figures to stdout, both as JSON

The requests go through the protocol class and the whole hub, in this process, and the
responses to a transport that only collects them.  So the figures have no system calls
of sockets and no event loop of a server; they have everything that is Python.

The CPU time is that without a profiler.  A second run with cProfile says how the layers
share it: the time of C functions counts for the layer that calls them.

It imports no other part of `bench`, so that it can measure an older `hub`: that of the
checkout that PYTHONPATH names.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import logging
import pstats
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn
import uvloop
from uvicorn.server import ServerState

from hub import Settings
from hub.auth.signing import sign_classic_token
from hub.development import DEVELOPMENT_KEY
from hub.http.embedding import server_app

try:
    from hub.server.plain import HubProtocol as Protocol
except ImportError:  # an older hub
    from hub.server.http1 import HttpProtocol as Protocol  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS: Final = {
    "HTTP": ("/hub/http/",),
    "token": ("/hub/auth/",),
    "parsing": ("/hub/protocol/",),
    "rules, limits": ("/hub/node/", "/hub/hub.py", "/hub/turns.py", "/hub/server/begun.py", "/hub/errors.py"),
    "history": ("/hub/history/",),
    "delivery": ("/hub/delivery/", "/hub/metrics/", "/hub/event_log/"),
    "matching": ("/skipfilter/",),
    "uvicorn, asyncio": ("/uvicorn/", "/starlette/", "/asyncio/", "~"),
}
"""The layers, and what the paths of their files contain; all else is "other"."""
SUBSCRIBERS: Final = 1_000
"""The subscribers of which a lone update is for one."""
WARM_UP: Final = 100
_DAY: Final = 86_400
_HOST: Final = "127.0.0.1:3000"


class Wire(asyncio.Transport):
    """A transport that collects what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 3000)})
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        """Collect bytes."""
        self.writes.append(data)

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return 0: all was handed over."""
        return 0

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that was set."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol."""
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


class Server:
    """The hub behind its protocol class."""

    def __init__(self) -> None:
        self._app = server_app(
            Settings(
                publisher_key=DEVELOPMENT_KEY,
                subscriber_key=DEVELOPMENT_KEY,
                anonymous=True,
                max_lifetime=0,
                heartbeat=0,
                publish_rate=10**9,
                history_url="memory://",
            )
        )
        self._config = uvicorn.Config(self._app, log_config=None, access_log=False, server_header=False)
        self._config.load()
        self._state = ServerState()
        self._wires: list[Wire] = []  # they must stay open
        self._token = self._signed(publish=["*"])

    async def start(self) -> None:
        """Start the application, as a server does."""
        self._told: asyncio.Queue[Any] = asyncio.Queue()
        said: asyncio.Queue[Any] = asyncio.Queue()
        await self._told.put({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "state": {}, "asgi": {}}
        self._running = asyncio.create_task(self._config.loaded_app(scope, self._told.get, said.put))
        answer = await said.get()
        assert answer["type"] == "lifespan.startup.complete", answer

    async def stop(self) -> None:
        """Stop the application."""
        await self._told.put({"type": "lifespan.shutdown"})
        await self._running

    def connect(self) -> Wire:
        """Return a new connection."""
        protocol: Any = Protocol(config=self._config, server_state=self._state, app_state={})
        wire = Wire()
        wire.set_protocol(protocol)
        protocol.connection_made(wire)
        self._wires.append(wire)
        return wire

    async def ask(self, wire: Wire, request: bytes, answer: Wire, end: bytes) -> None:
        """Send a request on `wire`, and wait until `answer` gets `end`."""
        seen = len(answer.writes)
        protocol: Any = wire.get_protocol()
        protocol.data_received(request)
        while not any(end in write for write in answer.writes[seen:]):  # noqa: ASYNC110 - each turn counts
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # for the follower of the history

    def publication(self, topic: int, id: str, *, private: bool = False) -> bytes:
        """Return a request to publish 192 bytes; the answer is the id."""
        body = f"topic=https%3A%2F%2Fexample.com%2F{topic}&id={id}&data={'x' * 192}{'&private=on' if private else ''}"
        return (
            f"POST /.well-known/mercure HTTP/1.1\r\nHost: {_HOST}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    def subscription(self, topic: int, *, token: bool = False) -> bytes:
        """Return a request for the stream of a topic, perhaps with a token."""
        url = f"https://example.com/{topic}"
        held = f"Authorization: Bearer {self._signed(subscribe=[url])}\r\n" if token else ""
        return f"GET /.well-known/mercure?topic={url} HTTP/1.1\r\nHost: {_HOST}\r\n{held}\r\n".encode()

    def _signed(self, *, publish: list[str] | None = None, subscribe: list[str] | None = None) -> str:
        """Return a new token."""
        return sign_classic_token(
            DEVELOPMENT_KEY,
            "HS256",
            publish=publish or [],
            subscribe=subscribe or [],
            seconds=_DAY,
            now=time.time(),
        )


async def post(server: Server, count: int) -> list[Any]:
    """Return the steps: one request to publish each, on one connection."""
    wire = server.connect()
    return [(wire, server.publication(n, f"urn:{n}:"), wire, f"urn:{n}:".encode()) for n in range(count)]


async def connection(server: Server, count: int) -> list[Any]:
    """Return the steps: a connection with a topic of its own each."""
    wires = [server.connect() for _ in range(count)]
    return [(wire, server.subscription(n), wire, b":\n") for n, wire in enumerate(wires)]


async def connection_with_token(server: Server, count: int) -> list[Any]:
    """Return the steps: a connection with a topic and a token of its own each."""
    wires = [server.connect() for _ in range(count)]
    return [(wire, server.subscription(n, token=True), wire, b":\n") for n, wire in enumerate(wires)]


async def lone_update(server: Server, count: int) -> list[Any]:
    """Return the steps: a private update for one of many subscribers each."""
    readers = [server.connect() for _ in range(SUBSCRIBERS)]
    for n, reader in enumerate(readers):
        await server.ask(reader, server.subscription(n, token=True), reader, b":\n")
    wire = server.connect()
    return [
        (
            wire,
            server.publication(n % SUBSCRIBERS, f"urn:{n}:", private=True),
            readers[n % SUBSCRIBERS],
            f"urn:{n}:".encode(),
        )
        for n in range(count)
    ]


async def measure(steps_of: Callable[[Server, int], Any], count: int) -> dict[str, float]:
    """Return the CPU µs of a step, and of each layer in it."""
    server = Server()
    await server.start()
    steps = await steps_of(server, WARM_UP + 2 * count)

    async def run(some: list[Any]) -> None:
        for step in some:
            await server.ask(*step)

    await run(steps[:WARM_UP])
    gc.collect()
    gc.disable()
    # 1. The time.
    began = time.thread_time()
    await run(steps[WARM_UP : WARM_UP + count])
    each = (time.thread_time() - began) / count * 1e6
    # 2. The layers.
    profile = cProfile.Profile()
    profile.enable()
    await run(steps[WARM_UP + count :])
    profile.disable()
    gc.enable()
    shares = _shares(profile)
    await server.stop()
    return {"CPU µs": each} | {layer: each * share for layer, share in shares.items()}


def _shares(profile: cProfile.Profile) -> dict[str, float]:
    """Return the share of each layer in the time of a profile."""
    times: Counter[str] = Counter()
    stats: Any = pstats.Stats(profile)
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():
        if file == "~":  # a C function: its time counts for its callers
            for (caller, _, _), (_, _, its, _) in callers.items():
                times[_layer(caller)] += its
        else:
            times[_layer(file)] += own
    times.pop("", None)
    total = sum(times.values())
    return {layer: times[layer] / total for layer in (*LAYERS, "other")}


def _layer(file: str) -> str:
    """Return the layer of a file, or "" if it is this one."""
    if file == __file__:
        return ""
    return next((layer for layer, parts in LAYERS.items() if any(part in file for part in parts)), "other")


KINDS: Final[dict[str, Callable[[Server, int], Any]]] = {
    kind.__name__: kind for kind in (post, connection, connection_with_token, lone_update)
}

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    uvloop.install()
    sys.stdout.write(json.dumps(asyncio.run(measure(KINDS[sys.argv[1]], json.loads(sys.stdin.read())))))

"""What do log lines and metrics cost?

A hub in this process has no observer, log lines, or metrics too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.benchmark import Bars, Case
from bench.measure import compare
from hub import Settings, create_app
from hub.auth.grant import CompiledGrant
from hub.auth.signing import sign_classic_token
from hub.delivery.subscriber import Subscriber
from hub.development import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from bench.measure import Figures
    from hub.http.embedding import HubApplication

QUESTION = "What do log lines and metrics cost?"
WORKLOAD = (
    "A hub with a history in memory, called in this process as a server calls it, without sockets. A request publishes "
    "an update of 100 bytes that no subscriber wants. An update goes to 1,000 live streams, which take it without "
    "writing to a socket; the time is that of the whole update. A connection subscribes, gets its first bytes, and "
    "leaves. Log lines have the default level, info, and go to /dev/null: there is one for a connection, and none for "
    "an update or a delivery. Baseline: the same hub without log lines and metrics."
)
PLOT = Bars()
UNIT = "CPU µs"

PATH = "/.well-known/mercure"
STREAMS = 1_000
VARIANTS: dict[str, dict[str, Any]] = {
    "neither": {},
    "log lines": {},
    "log lines and metrics": {"metrics_port": 0},
    "a line for each publish, too": {"metrics_port": 0, "log_publishes": True},
}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: a request, an update to many streams, a connection."""
    calls = 50 if quick else 1_000
    yield Case("a request to publish", partial(measure, publish, calls))
    yield Case(f"an update to {STREAMS:,} streams", partial(measure, deliver, calls // 5))
    yield Case("a connection that comes and goes", partial(measure, connect, calls))


def measure(work: Callable[[HubApplication], Awaitable[None]], calls: int, rounds: int) -> dict[str, Figures]:
    """Measure one piece of work with each kind of observers."""
    loop = asyncio.new_event_loop()
    hub_log = logging.getLogger("hub")
    hub_log.propagate = False

    async def repeated(app: HubApplication, level: int) -> None:
        """Do the work many times: entering the event loop costs too much for once."""
        hub_log.setLevel(level)
        for _ in range(calls):
            await work(app)

    async def run() -> tuple[AsyncExitStack, dict[str, HubApplication]]:
        """Run a hub for each variant, each with its live streams."""
        stack, apps = AsyncExitStack(), {}
        for name, settings in VARIANTS.items():
            app = create_app(Settings(dev=True, subscriptions=False, heartbeat=0, max_lifetime=0, **settings))
            await stack.enter_async_context(app.running())
            if name == "neither":
                app.hub.observer.all = ()
            for _ in range(STREAMS if work is deliver else 0):
                await take_seat(app)
            apps[name] = app
        return stack, apps

    with written_to_null(hub_log):
        stack, apps = loop.run_until_complete(run())
        levels = {name: logging.ERROR if name == "neither" else logging.INFO for name in apps}
        variants = {
            name: partial(lambda app, level: loop.run_until_complete(repeated(app, level)), app, levels[name])
            for name, app in apps.items()
        }
        found = compare(variants, calls=dict.fromkeys(apps, 1), rounds=4 * rounds)
        loop.run_until_complete(stack.aclose())
    loop.close()
    return {
        name: {figure: value if figure == "ratio" else value / calls for figure, value in its.items()}
        for name, its in found.items()
    }


@contextmanager
def written_to_null(log: logging.Logger) -> Iterator[None]:
    """Write the lines of a logger to a file that takes no time."""
    with open(os.devnull, "w") as nowhere:
        handler = logging.StreamHandler(nowhere)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)


async def publish(app: HubApplication) -> None:
    """Publish one update with a request."""
    await request(app, "POST", b"", b"topic=https%3A%2F%2Fexample.com%2Fbooks&data=" + b"x" * 100)


async def connect(app: HubApplication) -> None:
    """Subscribe, and leave after the first bytes."""
    await request(app, "GET", b"match=https%3A%2F%2Fexample.com%2Fbooks", b"")


TOKEN = sign_classic_token(DEVELOPMENT_KEY, "HS256", publish=["*"], subscribe=[], seconds=86_400, now=time.time())
HEADERS = [
    (b"host", b"hub.example"),
    (b"user-agent", b"bench"),
    (b"accept", b"*/*"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-length", b"0"),
]


async def request(app: HubApplication, method: str, query: bytes, body: bytes) -> None:
    """Send a request as a server does."""
    begun = asyncio.Event()
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200
        if message["type"] == "http.response.body":
            begun.set()

    headers = HEADERS if method == "GET" else [*HEADERS, (b"authorization", b"Bearer " + TOKEN.encode())]
    scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": PATH}
    scope |= {"raw_path": PATH.encode(), "query_string": query, "root_path": "", "headers": headers}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {}}
    await app(scope, receive, send)  # type: ignore[arg-type]


class Taker:
    """A holder and outlet that takes everything at once."""

    position = 0

    def write(self, body: bytes, position: int) -> None:
        """Take it."""

    def is_lost(self) -> bool:
        """Return False."""
        return False

    def close(self, reason: object) -> bool:
        """Return True, and do nothing."""
        return True


async def take_seat(app: HubApplication) -> None:
    """Take a live seat for a subscriber of everything."""
    hub = app.hub
    subscriber = Subscriber([hub.compiler.compile("exact", "*")], CompiledGrant(), hub.delivery.position)
    taker = Taker()
    hub.delivery.join(await hub.delivery.take_seat(subscriber, taker), taker, hub.delivery.position)


async def deliver(app: HubApplication) -> None:
    """Publish an update, and wait until it is dispatched."""
    await app.publish("https://example.com/books", data="x" * 100)
    delivery = app.hub.delivery
    while delivery.dispatched < delivery.position or app.hub.window.in_flight:  # noqa: ASYNC110
        await asyncio.sleep(0)

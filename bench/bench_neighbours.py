"""How much does a publisher notice while other clients send expensive requests?

Each of them repeats a request as fast as it gets responses.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote

from bench.benchmark import Bars, Case
from bench.measure import summary
from bench.servers import hub
from bench.servers import versions as versions
from hub.development import DEVELOPMENT_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Figures
    from bench.targets import Target

    Ask: TypeAlias = Callable[[HTTPConnection, int], None]
    """Send a request and read its response; the number makes each request different."""

QUESTION = "How much does a publisher notice while other clients send as many requests as they may?"
WORKLOAD = (
    "One publisher sends an update and waits for the response, again and again, while anonymous clients each repeat "
    "one request. One client reads the whole history through 100 URI templates with `Prefer: wait=0`. Six clients come "
    "with an id that the history does not have, and subscribe to a topic with one update, the last. Four clients "
    "subscribe to 100 new URL Patterns, and are refused because the limit is one connection per client. The history "
    "is in memory, and all its updates have different topics. A sample is the median response time of a run. Baseline: "
    "no other clients."
)
PLOT = Bars()
UNIT = "ms until a publish is answered"

PATH: Final = "/.well-known/mercure"
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_TOKEN: Final = {"Authorization": f"Bearer {DEVELOPMENT_TOKEN}"}
_TEMPLATES: Final = "&".join("match_uritemplate=" + "%7B%2Ba%7D" * 99 + f"q{n}" for n in range(100))


def cases(quick: bool) -> Iterator[Case]:
    """Return the only case."""
    updates, publishes = (1_000, 50) if quick else (10_000, 500)
    yield Case(f"{updates:,} updates in the history", partial(measure, updates, publishes))


def measure(updates: int, publishes: int, rounds: int) -> dict[str, Figures]:
    """Measure the response times of a publisher, with each kind of neighbours.

    The history has `updates` updates.  In each round and for each variant, a new hub
    gets `publishes` updates.
    """
    variants: dict[str, tuple[int, Ask]] = {
        "no other clients": (0, _read_all),
        "100 templates over the history": (1, _read_all),
        "six unknown cursors": (6, _follow_rare),
        "100 URL Patterns, refused": (4, _subscribe_to_patterns),
    }
    taken: dict[str, list[Figures]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, (clients, ask) in variants.items():
            limit = "1" if ask is _subscribe_to_patterns else "0"
            with hub(HUB_MAX_CONNECTIONS_PER_CLIENT=limit) as target, closing(_connection(target)) as publisher:
                _fill(publisher, updates)
                with _subscriber(target), _busy(target, clients, ask) as asked:
                    answers = [_publish(publisher, b"topic=own&data=x") for _ in range(publishes)]
            found = {"ms": median(answers) * 1e3, "longest ms": max(answers) * 1e3, "requests": float(len(asked))}
            taken[variant].append(found)
    return summary(taken, "ms")


def _connection(target: Target) -> HTTPConnection:
    """Return a connection to `target`, which opens with its first request."""
    return HTTPConnection(target.host, target.port)


def _publish(publisher: HTTPConnection, body: bytes, type: str = _FORM["Content-Type"]) -> float:
    """Publish an update, and return the seconds until the response."""
    began = time.perf_counter()
    publisher.request("POST", PATH, body, {"Content-Type": type} | _TOKEN)
    answer = publisher.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    return time.perf_counter() - began


def _fill(publisher: HTTPConnection, updates: int) -> None:
    """Publish `updates` updates with different topics, and one with the topic rare."""
    for start in range(0, updates, 500):
        lines = (json.dumps({"topic": f"https://example.com/{n}"}) for n in range(start, start + 500))
        _publish(publisher, "\n".join(lines).encode(), "application/x-ndjson")
    _publish(publisher, b"topic=rare")


@contextmanager
def _subscriber(target: Target) -> Iterator[None]:
    """Keep one subscriber connected, which uses up a limit of one per client."""
    with closing(_connection(target)) as subscriber:
        subscriber.request("GET", f"{PATH}?match=nothing")
        assert subscriber.getresponse().status == 200
        yield


@contextmanager
def _busy(target: Target, clients: int, ask: Ask) -> Iterator[list[int]]:
    """Repeat a request in `clients` threads, each time on a new connection.

    Yields a list, to which the number of each answered request is appended.
    """
    over = threading.Event()
    numbers = count()
    asked: list[int] = []

    def repeat() -> None:
        """Repeat the request until the block has ended."""
        while not over.is_set():
            with closing(_connection(target)) as client:
                number = next(numbers)
                try:
                    ask(client, number)
                except (OSError, HTTPException):  # only if the hub has stopped
                    assert over.is_set()
                asked.append(number)

    threads = [threading.Thread(target=repeat) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _read_all(client: HTTPConnection, _: int) -> None:
    """Read the whole history through 100 URI templates."""
    client.request("QUERY", f"{PATH}?last_event_id=earliest", _TEMPLATES, _FORM | {"Prefer": "wait=0"})
    assert client.getresponse().read().endswith(b": all\n")


def _follow_rare(client: HTTPConnection, number: int) -> None:
    """Come with an unknown id, and read until the only update of the topic rare."""
    client.request("GET", f"{PATH}?match=rare&last_event_id=unknown-{number}")
    answer = client.getresponse()
    while not answer.readline().startswith(b"id: "):
        pass


def _subscribe_to_patterns(client: HTTPConnection, number: int) -> None:
    """Subscribe to 100 new URL Patterns, which the hub refuses because of the limit."""
    patterns = (rf"https://e.com/{number}x{n}(\w\w.......)" for n in range(100))
    client.request("GET", f"{PATH}?" + "&".join(f"match_urlpattern={quote(pattern)}" for pattern in patterns))
    assert client.getresponse().status == 429

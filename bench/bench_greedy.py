"""Do other clients notice a greedy one?

Each greedy client takes as much as it can get of one thing, with the default settings.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from statistics import median
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, urlencode

from bench.benchmark import Bars, Case
from bench.measure import resident, summary
from bench.servers import hub
from bench.servers import versions as versions
from hub.auth.signing import sign_classic_token
from hub.development import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Figures
    from bench.targets import Target

    Attack: TypeAlias = Callable[[Target, ExitStack], None]
    """Begin an attack, which lasts until the stack is closed."""

QUESTION = "How much does a publisher notice while greedy clients take as much as they can get?"
WORKLOAD = (
    "One publisher publishes an update 50 times a second. The others, with addresses or tokens of their own, take "
    "what they get: ten clients subscribe to 1,000 URL Patterns with groups each; one client to 600 URI templates "
    "with the same fixed text; one client begins 1,000 responses with `Prefer: wait=0` to 99 URL Patterns and 20 "
    "updates of 900 KB, and reads none; another publisher publishes as fast as it can, on 64 connections, or 1,000 "
    "updates a request on 8; their topics are a word, or have an escape, so that a URL parser checks each. Then 20 "
    "more clients subscribe to 100 URL Patterns with groups each, and to a template of the same text, and one reads "
    "with `wait=0`: the column others says how many of these 41 requests are served. A sample is the median response "
    "time of a run. Baseline: no greedy client."
)
PLOT = Bars()
UNIT = "ms until a publish is answered"

PATH: Final = "/.well-known/mercure"
_OWN: Final = "publisher"
_GREEDY: Final = "greedy"


def cases(quick: bool) -> Iterator[Case]:
    """Return the only case."""
    yield Case("default settings", partial(measure, 1.0 if quick else 4.0))


def measure(seconds: float, rounds: int) -> dict[str, Figures]:
    """Measure the response times of a publisher for some seconds, beside each attack.

    The resident memory is the growth from before the attack to the end of the run.  It
    includes the history, which grows by what a greedy publisher publishes.
    """
    attacks: dict[str, Attack] = {
        "no greedy client": _take_nothing,
        "URL Patterns": _take_url_patterns,
        "similar templates": _take_similar_templates,
        "slow readers": _take_readers,
        "64 connections": partial(_publish_much, connections=64, updates=1),
        "batches": partial(_publish_much, connections=8, updates=1_000),
        "escapes": partial(_publish_much, connections=8, updates=1_000, topic="flo%6Fd"),
    }
    taken: dict[str, list[Figures]] = {name: [] for name in attacks}
    for _ in range(rounds):
        for name, attack in attacks.items():
            with hub() as target, ExitStack() as stack:
                [pid] = target.pids
                _publish(target, 20, every=0.0, data="x" * 900_000 if attack is _take_readers else "x")
                _publish(target, 50, every=0.0)
                before = resident(pid)
                attack(target, stack)
                answers = _publish(target, int(seconds * 50), every=0.02)
                grown = (resident(pid) - before) / 2**20
                found = {"ms": median(answers) * 1e3, "longest ms": max(answers) * 1e3, "MiB more": grown}
                taken[name].append(found | {"others": _others(target, stack)})
    return summary(taken, "ms")


def _token(name: str) -> str:
    """Return a token that may publish to any topic, of a publisher of its own."""
    return sign_classic_token(
        DEVELOPMENT_KEY, "HS256", publish=["*", name], subscribe=[], seconds=86_400, now=time.time()
    )


def _publish(target: Target, count: int, *, every: float, data: str = "x") -> list[float]:
    """Publish some updates, and return the seconds until each response."""
    answers = []
    head = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": f"Bearer {_token(_OWN)}"}
    with closing(HTTPConnection(target.host, target.port)) as publisher:
        for _ in range(count):
            began = time.perf_counter()
            publisher.request("POST", PATH, f"topic=big&data={data}", head)
            answer = publisher.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            answers.append(time.perf_counter() - began)
            time.sleep(every)
    return answers


def _open(target: Target, stack: ExitStack, address: str, query: str, header: str = "") -> int:
    """Send a subscribe request from an address, and return the status of the response.

    The connection stays open, and nothing further is read.
    """
    client = stack.enter_context(socket.create_connection((target.host, target.port), source_address=(address, 0)))
    client.sendall(f"GET {PATH}?{query} HTTP/1.1\r\nHost: hub\r\n{header}\r\n".encode())
    return int(client.recv(12).split()[1])


def _url_patterns(name: str, count: int = 100) -> str:
    return "&".join(f"match_urlpattern={quote(f'https://e.com/{name}-{n}/([a-z]+)')}" for n in range(count))


def _take_nothing(target: Target, stack: ExitStack) -> None:
    """Do nothing: the baseline."""


def _take_url_patterns(target: Target, stack: ExitStack) -> None:
    for client in range(10):
        for connection in range(10):
            _open(target, stack, f"127.0.1.{client + 1}", _url_patterns(f"{client}-{connection}"))


def _take_similar_templates(target: Target, stack: ExitStack) -> None:
    for n in range(60):
        templates = ("https://shop.example/{+a}" + "{b}" * (n % 10) + "{+c}" * (m + n // 10 * 10) for m in range(10))
        query = "&".join(f"match_uritemplate={quote(template)}" for template in templates)
        _open(target, stack, "127.0.1.1", query)


def _take_readers(target: Target, stack: ExitStack) -> None:
    for n in range(1_000):
        query = f"last_event_id=earliest&match=big&{_url_patterns(str(n), 99)}"
        _open(target, stack, "127.0.1.1", query, "Prefer: wait=0\r\n")


def _publish_much(target: Target, stack: ExitStack, *, connections: int, updates: int, topic: str = "flood") -> None:
    where = target.host, str(target.port), topic, str(connections), str(updates)
    stack.enter_context(_running([sys.executable, "-m", "bench.bench_greedy", *where]))
    time.sleep(1.0)


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command)
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def _others(target: Target, stack: ExitStack) -> float:
    """Return how many of 41 requests of other clients are served."""
    statuses = [_open(target, stack, "127.0.3.1", "last_event_id=earliest&match=a", "Prefer: wait=0\r\n")]
    for client in range(20):
        address = f"127.0.2.{client + 1}"
        statuses.append(_open(target, stack, address, _url_patterns(f"other-{client}")))
        statuses.append(_open(target, stack, address, "match_uritemplate=" + quote("https://shop.example/{a}{+b}")))
    return float(statuses.count(200))


def flood(host: str, port: int, topic: str, connections: int, updates: int) -> None:
    """Publish on each connection as soon as the last response has come, for ever."""
    body = json.dumps({"topic": topic, "data": "x"}) + "\n"
    content = body * updates if updates > 1 else urlencode({"topic": topic, "data": "x"})
    type = "application/x-ndjson" if updates > 1 else "application/x-www-form-urlencoded"
    request = (
        f"POST {PATH} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {_token(_GREEDY)}\r\nContent-Type: {type}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n{content}"
    ).encode()
    clients = selectors.DefaultSelector()
    for _ in range(connections):
        client = socket.create_connection((host, port))
        client.sendall(request)
        clients.register(client, selectors.EVENT_READ)
    while True:
        for key, _ in clients.select():
            client = key.fileobj  # type: ignore[assignment]
            if client.recv(2**16).startswith(b"HTTP/1.1 200"):
                client.sendall(request)


if __name__ == "__main__":
    _, host, port, topic, *numbers = sys.argv
    flood(host, int(port), topic, *map(int, numbers))

"""The comparison of examples/comparison: both sides do the same, in so many lines."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from examples.comparison import with_redis, with_skipfilter
from hub.client import Client, Refused
from hub.testing import Subscriber, blocking, serve
from tests.redis_server import RedisServer
from tests.test_examples import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = ROOT / "examples" / "comparison"
TASKS = (
    "publish from a view",
    "own session authorization",
    "test that an endpoint published",
    "replay after a reload, with two workers",
)


def lines_of(module: Any) -> list[int]:
    """Count the lines of code of each task in a module."""
    counts = dict.fromkeys(TASKS, 0)
    task = None
    for line in Path(module.__file__).read_text("utf-8").splitlines():
        text = line.strip()
        if found := re.match("# --(.*)", text):
            task = found[1].strip() or None
        elif task is not None and text and not text.startswith("#"):
            counts[task] += 1
    return list(counts.values())


def test_the_numbers_of_the_readme_are_counted() -> None:
    rows = re.findall(r"^\| .+ \| (\d+) \| (\d+) \|$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
    assert [(int(ours), int(theirs)) for ours, theirs in rows] == list(
        zip(lines_of(with_skipfilter), lines_of(with_redis), strict=True)
    )


@pytest.fixture
def redis_url() -> Iterator[str]:
    server = RedisServer()
    yield server.url
    server.close()


@pytest.mark.processes
def test_the_tests_of_both_pass(redis_url: str) -> None:
    with_skipfilter.test_shipping_is_published()
    with_redis.test_shipping_is_published(redis_url)


@pytest.mark.processes
@pytest.mark.parametrize("side", ["skipfilter", "redis"])
def test_both_replay_what_another_worker_has_published(side: str, tmp_path: Path, redis_url: str) -> None:
    has_hub = side == "skipfilter"
    ship, stream = (
        ("/orders/1/ship", "/live/.well-known/mercure") if has_hub else ("/replay/orders/1/ship", "/replay/live/1")
    )
    start, refusal = ("earliest", "401") if has_hub else ("0-0", "403")

    def new() -> Any:
        return with_skipfilter.create(f"sqlite:///{tmp_path}/live.db") if has_hub else with_redis.create(redis_url)

    def follow(http: httpx2.Client, last_event_id: str) -> Any:
        cookies = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
        client = Client(str(http.base_url.join(stream)), headers={"Cookie": cookies})
        return blocking(Subscriber(client, "/orders/1", last_event_id=last_event_id))

    with ExitStack() as stack:
        one, other = (stack.enter_context(httpx2.Client(base_url=stack.enter_context(serve(new())))) for _ in "ab")
        one.post("/orders/1")
        other.cookies = one.cookies
        with follow(one, start) as before:
            other.post(ship)
            first = before.next()
        one.post(ship)
        with follow(other, first.id) as after:
            second = after.next()
            assert (first.data, second.data, second.id != first.id) == ("shipped", "shipped", True)
        other.cookies = httpx2.Cookies()
        with pytest.raises(Refused, match=refusal), follow(other, start):
            raise AssertionError

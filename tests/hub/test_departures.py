"""The dashboard of the examples, in Chromium, beside the data that it sums up."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from examples.flights import departures
from tests.hub.browsing import LocalServer, visitor
from tests.installation import ROOT
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.conftest import HubProcess

pytestmark = pytest.mark.processes


def publish(hub: HubProcess, count: int) -> None:
    command = [sys.executable, "examples/flights.py", "--hub", hub.url, "--speed", "1e6", "--flights", str(count)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=HANG)


@pytest.fixture
def dashboard(hub: HubProcess, tmp_path: Path) -> Iterator[str]:
    """The URL of the dashboard of a hub."""
    text = (ROOT / "examples" / "departures.html").read_text("utf-8")
    assert text.count("http://localhost:3000") == 2
    (tmp_path / "departures.html").write_text(text.replace("http://localhost:3000", hub.origin), "utf-8")
    with closing(LocalServer(partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))) as server:
        yield f"{server.origin}/departures.html"


def rounded(number: float) -> int:
    """Return what `Math.round` returns."""
    return math.floor(number + 0.5)


def test_the_dashboard_sums_up_what_was_and_what_comes(hub: HubProcess, dashboard: str, browser: Browser) -> None:
    first, second = 60, 30
    delays = defaultdict(list)
    for rows in (departures("2013-07-04")[:first], departures("2013-07-04")[:second]):
        for row in rows:
            delays[row["origin"]].append(int(row["dep_delay"]))
    late = {origin: sum(delay > 15 for delay in some) / len(some) for origin, some in delays.items()}
    expected = [
        f"{origin}{len(some)}{rounded(sum(some) / len(some))} min{rounded(100 * late[origin])} %"
        for origin, some in sorted(delays.items())
    ]
    publish(hub, first)
    with visitor(browser) as profile:
        pages = [profile.new_page(), profile.new_page()]
        for page in pages:
            page.goto(dashboard)
            expect(page.locator("#connection")).to_have_text("is live")
        publish(hub, second)
        for page in pages:
            expect(page.locator("#airports tr")).to_have_text(expected)
            expect(page.locator("#latest tr")).to_have_count(10)
            meters = page.locator("#airports meter")
            assert meters.evaluate_all("all => all.map(({ value }) => value)") == [
                late[origin] for origin in sorted(late)
            ]

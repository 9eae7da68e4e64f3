"""hub/browser/client.js in a real Chromium, before real hubs.

Each page has `got`, the data of the updates that it was handed, and `log`, all else.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from playwright.sync_api import Error as PlaywrightError

from tests.conftest import HubProcess
from tests.hub.browsing import Site, freeze, people_browser, visitor
from tests.hub.test_browser import publish
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page

PREPARE = """
window.got = [];
window.log = [];
window.begin = async (url, options = {}, module = url.split("?")[0] + "/client.js") => {
  const { MercureSource } = await import(module);
  window.source = new MercureSource(url, { onGap: ({ lost }) => log.push(`gap ${lost}`), ...options });
  source.onmessage = ({ data }) => got.push(data);
  source.onopen = () => log.push("open");
  source.onerror = ({ message }) => log.push(message);
  source.addEventListener("identitychange", () => log.push("identitychange"));
};
window.isLeading = async () => {
  const name = `page ${Math.random()}`;
  return navigator.locks.request(name, async () => {
    const { held } = await navigator.locks.query();
    const mine = held.find((lock) => lock.name === name).clientId;
    return held.some((lock) => lock.name.startsWith("mercure") && lock.clientId === mine);
  });
};
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    """A site whose pages may read the responses of the hubs."""
    site = Site()
    yield site
    site.close()


@pytest.fixture
def tabs(browser: Browser) -> Iterator[BrowserContext]:
    """The tabs of a profile; all of them are visible."""
    with visitor(browser) as context:
        context.add_init_script(PREPARE)
        yield context


@pytest.fixture
def hidden_tabs(browser: Browser, chromium: str, tmp_path: Path) -> Iterator[BrowserContext]:
    """The tabs of a profile; all but one are hidden, and may freeze."""
    with people_browser(browser, chromium, tmp_path / "chromium") as context:
        context.add_init_script(PREPARE)
        yield context


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Restarting:
    """A hub that can be killed, and comes back with its history."""

    def __init__(self, path: Path, shop: Site, **settings: str) -> None:
        self._port = free_port()
        history = f"sqlite:///{path}/history.db"
        self._settings = {
            "HUB_CORS_ORIGINS": shop.origin,
            "HUB_HISTORY_URL": history,
            "HUB_RETRY": "0.1",
            "HUB_SUBSCRIPTIONS": "0",
            "HUB_METRICS_PORT": "0",
        } | settings
        self.start()

    def start(self) -> None:
        self.process = HubProcess("--port", str(self._port), dev=True, **self._settings)

    def kill(self) -> None:
        self.process.process.kill()
        self.process.close()

    @property
    def url(self) -> str:
        return self.process.url


@pytest.fixture
def hub(tmp_path: Path, shop: Site) -> Iterator[Restarting]:
    hub = Restarting(tmp_path, shop)
    yield hub
    hub.process.close()


def open_tab(context: BrowserContext, shop: Site, url: str, options: dict[str, Any] | None = None) -> Page:
    page = context.new_page()
    shop.visit(page)
    begin(page, url, options)
    return page


def begin(page: Page, url: str, options: dict[str, Any] | None = None) -> None:
    page.evaluate("([url, options]) => begin(url, options)", [url, options or {}])


def wait_for(page: Page, condition: str, argument: Any = None) -> None:
    """Wait until a condition is true in a page, which may be hidden."""
    page.wait_for_function(condition, arg=argument, polling=50)


def is_open(page: Page) -> None:
    wait_for(page, "source.readyState === 1")


def leader_of(pages: list[Page]) -> Page:
    """Return the page that leads; there is one, or will be."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        leading = [page for page in pages if page.evaluate("isLeading()")]
        assert len(leading) <= 1
        if leading:
            return leading[0]
    locks = pages[0].evaluate("navigator.locks.query().then((found) => JSON.stringify(found))")
    raise AssertionError(f"no tab leads: {locks}")


def streams(hub: HubProcess) -> int:
    """Return how many streams the hub has."""
    [line] = [
        line
        for line in httpx2.get(hub.metrics_url).text.splitlines()
        if line.startswith("mercure_subscribers_connected ")
    ]
    return int(float(line.split()[1]))


# -- one connection for all tabs


def test_thirty_tabs_have_one_connection_and_each_event_once(
    hidden_tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    """While leaders are closed, crash and freeze, and the hub is killed."""
    chance = random.Random(1)
    url = f"{hub.url}?topic=a"
    pages: list[Page] = []
    firsts: dict[Page, int] = {}
    frozen: list[tuple[Page, Callable[[], None]]] = []
    crashed: list[Page] = []
    sent = itertools.count()
    last = -1

    def send(count: int = 3) -> None:
        nonlocal last
        for _ in range(count):
            last = next(sent)
            publish(hub.process, "a", str(last))

    def add() -> None:
        page = open_tab(hidden_tabs, shop, url)
        page.on("crash", lambda page: crashed.append(page))
        is_open(page)
        firsts[page] = last + 1
        pages.append(page)

    def all_have(last: int) -> None:
        for page in pages:
            wait_for(page, "(last) => got.at(-1) === last", str(last))

    for _ in range(30):
        add()
        send(1)
    all_have(last)
    assert streams(hub.process) == 1
    for kind in ["close", "crash", "freeze", "restart", "crash", "reload", "freeze", "close", "restart", "hang"]:
        send()
        leader = leader_of(pages)
        send()
        if kind == "restart":
            hub.kill()
            hub.start()
        elif kind == "freeze":
            frozen.append((leader, freeze(leader)))
            pages.remove(leader)
        elif kind == "hang":
            leader.evaluate("() => { setTimeout(() => { const end = Date.now() + 8_000; while (Date.now() < end); }) }")
        else:
            pages.remove(leader)
            if kind == "close":
                leader.close()
            elif kind == "crash":
                with suppress(PlaywrightError):
                    leader.goto("chrome://crash")
                # Chromium may have given several tabs one process.
                pages[:] = [page for page in pages if page not in crashed]
            else:
                leader.reload()
                begin(leader, url)
                is_open(leader)
                firsts[leader] = last + 1
                pages.append(leader)
        send()
        if frozen and chance.random() < 0.5:
            page, thaw = frozen.pop(0)
            thaw()
            pages.append(page)
        add()
        send()
    for page, thaw in frozen:
        thaw()
        pages.append(page)
    send()
    all_have(last)
    for page in pages:
        numbers = [int(data) for data in page.evaluate("got")]
        assert numbers == list(range(numbers[0], last + 1))
        assert numbers[0] <= firsts[page]
        assert not [line for line in page.evaluate("log") if line.startswith(("gap", "identitychange"))]
    assert streams(hub.process) == 1

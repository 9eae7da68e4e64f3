"""Pages with a MercureSource, and hubs that can be killed.

Each page has `got`, the data of the updates that it was handed, and `log`, all else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tests.conftest import HubProcess
from tests.hub.metrics.reading import parsed, text_at
from tests.redis_server import free_port
from tests.waiting import HANG, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page

    from tests.hub.browsing import Site

BOOK = "https://example.com/books/1"

PREPARE = """
window.got = [];
window.log = [];
window.begin = async (url, options = {}) => {
  const { MercureSource } = await import(url.split("?")[0] + "/client.js");
  window.source = new MercureSource(url, { onGap: ({ lost }) => log.push(`gap ${lost}`), ...options });
  source.onmessage = ({ data }) => got.push(data);
  source.onopen = () => log.push("open");
  source.onerror = ({ message }) => log.push(message);
  source.addEventListener("identitychange", () => log.push("identitychange"));
};
// The page takes no more updates, until `goOn()`.
window.holdBack = () => {
  const go = new Promise((resolve) => (window.goOn = resolve));
  source.addEventListener("message", (event) => event.waitUntil(go));
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


class StartHub(Protocol):
    """Starts a hub with its own history."""

    def __call__(self, **settings: str) -> Restarting: ...


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


def open_tab(context: BrowserContext, shop: Site, url: str, options: dict[str, Any] | None = None) -> Page:
    page = context.new_page()
    shop.visit(page)
    begin(page, url, options)
    return page


def begin(page: Page, url: str, options: dict[str, Any] | None = None) -> None:
    page.evaluate("([url, options]) => begin(url, options)", [url, options or {}])


def wait_for(page: Page, condition: str, argument: Any = None) -> None:
    """Wait until a condition is true in a page, which may be hidden."""
    page.wait_for_function(condition, arg=argument, polling=50, timeout=HANG * 1000)


def is_open(page: Page) -> None:
    wait_for(page, "source.readyState === 1")


def leader_of(pages: list[Page]) -> Page:
    """Return the page that leads; there is one, or will be."""

    def leading() -> list[Page]:
        found = [page for page in pages if page.evaluate("isLeading()")]
        assert len(found) <= 1
        return found

    return wait_until(leading)[0]


def streams(hub: HubProcess) -> int:
    """Return how many streams the hub has."""
    return int(parsed(text_at(hub.metrics_url))["mercure_subscribers_connected"])

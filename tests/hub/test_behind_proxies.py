"""A real Chromium and two hubs, with nginx or Caddy between them, as the pages of
examples/deploy configure it: TLS, HTTP/2, and one host for the browser.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import httpx2
import pytest

from hub.auth.signing import sign_classic_token
from tests.asgi import PATH
from tests.conftest import HubProcess
from tests.hub.browsing import Site, ask, follow, got, visitor
from tests.hub.proxies import documented_caddy, documented_nginx, tls
from tests.redis_server import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.processes

PROXIES: Final = {"nginx": documented_nginx, "caddy": documented_caddy}
TABS: Final = 100

# Reads the pieces of a response, as they arrive, until `enough` of them are the pattern.
READ = """
async ([url, enough, pattern]) => {
  const reader = (await fetch(url)).body.getReader();
  const pieces = [];
  while (pieces.filter((piece) => piece === pattern).length < enough) {
    const { value, done } = await reader.read();
    if (done) break;
    pieces.push(new TextDecoder().decode(value));
  }
  await reader.cancel();
  return pieces;
}
"""


@dataclass
class World:
    """Two hubs behind a proxy, and two sites with pages; only the shop may use the hubs."""

    proxy: str
    url: str
    key: str
    nodes: list[HubProcess]
    start: Callable[..., HubProcess]
    shop: Site
    stranger: Site

    def token(self, publish: Sequence[str] = (), subscribe: Sequence[str] = ()) -> str:
        return sign_classic_token(self.key, "HS256", publish=publish, subscribe=subscribe, seconds=86_400)

    def publish(self, data: str, **fields: str) -> str:
        """Publish an update through the proxy, and return its id."""
        headers = {"Authorization": f"Bearer {self.token(publish=['*'])}"}
        form = {"topic": "https://example.com/books/1", "data": data} | fields
        while (answer := httpx2.post(self.url, data=form, headers=headers, verify=False)).status_code in (502, 503):
            # Caddy before 2.11.2 cannot send a body to the second hub if the first is gone,
            # and 2.6 lets no publisher wait while it knows of no hub.
            assert self.proxy == "caddy"
        assert answer.status_code == 200, answer.text
        return answer.text

    def follow(self, page: Page, **options: Any) -> str:
        return follow(page, self.url, urlencode({"topic": "https://example.com/books/{id}"}), **options)


@pytest.fixture(params=["nginx", pytest.param("caddy", marks=pytest.mark.deploy)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        shop, stranger = (Site(tls(tmp_path)) for _ in range(2))
        stack.callback(shop.close)
        stack.callback(stranger.close)
        port, key = free_port(), secrets.token_hex(32)
        settings = {
            "HUB_PUBLIC_URLS": f"https://localhost:{port}",
            "HUB_HISTORY_URL": f"sqlite:///{tmp_path}/mercure.db",
            "HUB_PUBLISHER_KEY": key,
            "HUB_SUBSCRIBER_KEY": key,
            "HUB_ANONYMOUS": "1",
            "HUB_CORS_ORIGINS": shop.origin,
            "HUB_PUBLISH_ORIGINS": shop.origin,
            "HUB_HEARTBEAT": "0.1",
            "HUB_RETRY": "0.05",
            "HUB_DRAIN": "0.5",
        }
        nodes: list[HubProcess] = []

        def start(*arguments: str) -> HubProcess:
            nodes.append(hub := HubProcess(*arguments, dev=False, **settings))
            stack.callback(hub.close)
            return hub

        ports = [start().port for _ in range(2)]
        stack.enter_context(PROXIES[request.param](tmp_path, port, ports))
        yield World(request.param, f"https://localhost:{port}{PATH}", key, nodes, start, shop, stranger)


@pytest.fixture
def profile(browser: Browser) -> Iterator[BrowserContext]:
    with visitor(browser, ignore_https_errors=True) as context:
        yield context


def test_a_hundred_tabs_miss_nothing_while_both_hubs_are_restarted(world: World, profile: BrowserContext) -> None:
    tabs = [profile.new_page() for _ in range(TABS)]
    for tab in tabs:
        world.shop.visit(tab)
        assert world.follow(tab) == "open"  # over HTTP/1.1, the seventh would wait
    ids = [world.publish("before")]
    world.nodes[0].stop()
    ids.append(world.publish("without the first"))
    for tab in tabs:
        assert [id for _, id, _ in got(tab, 2)] == ids
    opened = [tab.evaluate("opened") for tab in tabs]
    assert set(opened) == {1, 2}, "the streams were on both hubs, and those of one have moved"
    # The first hub is back, and at once the second one is stopped.
    world.start("--port", str(world.nodes[0].port))
    world.nodes[1].stop()
    ids.append(world.publish("without the second"))
    for tab in tabs:
        assert [id for _, id, _ in got(tab, 3)] == ids
    page = profile.new_page()
    page.goto(f"{world.url}/health/ready")
    assert page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"


def test_a_page_with_the_cookie_of_a_user_reads_private_updates_and_publishes(
    world: World, profile: BrowserContext
) -> None:
    user, guest, other = (profile.new_page() for _ in range(3))
    token = world.token(subscribe=["*"], publish=["*"])
    world.shop.visit(
        user, cookie=f"__Secure-mercure_access_token={token}; Path={PATH}; Secure; HttpOnly; SameSite=Strict"
    )
    world.shop.visit(guest)
    world.stranger.visit(other)
    assert world.follow(user, withCredentials=True) == "open"
    assert world.follow(guest) == "open"
    assert world.follow(other, withCredentials=True) == "refused"
    world.publish("secret", private="on")
    body = urlencode({"topic": "https://example.com/books/1", "data": "from the page"})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = ask(user, world.url, method="POST", headers=kind, body=body)
    assert answer["status"] == 200
    assert ask(other, world.url, method="POST", headers=kind, body=body) is None
    world.publish("public")
    assert [data for *_, data in got(user, 3)] == ["secret", "from the page", "public"]
    assert [data for *_, data in got(guest, 2)] == ["from the page", "public"]


def test_nothing_holds_back_a_heartbeat(world: World, profile: BrowserContext) -> None:
    page = profile.new_page()
    world.shop.visit(page)
    pieces = page.evaluate(READ, [f"{world.url}?topic=a", 3, ":\n"])
    assert pieces.count(":\n") == 3


def test_a_client_cannot_choose_its_address(world: World) -> None:
    # The proxy sees 127.0.0.2, which is not an address that the hub trusts as a proxy's.
    with httpx2.Client(transport=httpx2.HTTPTransport(verify=False, local_address="127.0.0.2")) as client:
        answer = client.post(world.url, data={"topic": "a"}, headers={"X-Forwarded-For": "192.0.2.1"})
    assert answer.status_code == 401
    log = "".join(node.log() for node in world.nodes)
    assert "127.0.0.2" in log
    assert "192.0.2.1" not in log

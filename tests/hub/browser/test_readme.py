"""The scripts of hub/README.md with MercureSource, as a page has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.hub.browser.pages import BOOK, wait_for
from tests.hub.test_browser import as_the_readme_sets_it, publish, short_lived
from tests.installation import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from tests.hub.browser.pages import Restarting, StartHub
    from tests.hub.browsing import Site

SIMPLE, COOKIE, STATE = [
    script
    for script in re.findall(r"```js\n(.*?)```", (ROOT / "hub" / "README.md").read_text("utf-8"), re.DOTALL)
    if script.startswith("import { MercureSource }")
]


@pytest.fixture
def page(tabs: BrowserContext, shop: Site) -> Page:
    page = tabs.new_page()
    page.add_init_script("window.printed = []; console.log = (...words) => printed.push(words.join(' '));")
    shop.visit(page)
    return page


def run(page: Page, hub: Restarting, script: str) -> None:
    page.add_script_tag(type="module", content=script.replace("http://localhost:3000", hub.process.origin))


def test_the_first_page(page: Page, hub: Restarting) -> None:
    run(page, hub, SIMPLE)
    while not page.evaluate("printed.length"):  # before it is open, a page hears nothing
        publish(hub.process, BOOK, "first")
    publish(hub.process, BOOK, "its text", type="chapter")
    wait_for(page, "printed.at(-1) === 'a chapter: its text'")
    hub.kill()
    wait_for(page, "printed.at(-1).startsWith('waits: ')")
    hub.start()
    publish(hub.process, BOOK, "again")
    wait_for(page, "printed.at(-1) === 'again'")


def test_a_cookie_that_is_renewed_loses_nothing(page: Page, start_restarting: StartHub, shop: Site) -> None:
    hub = start_restarting(HUB_ANONYMOUS="0")
    renewed = []

    def renew() -> str:
        renewed.append(as_the_readme_sets_it(short_lived(hub.process)))
        return renewed[-1]

    shop.renew = renew
    run(page, hub, COOKIE)

    def send(text: str) -> None:
        publish(hub.process, BOOK, text, private="on")

    while not page.evaluate("printed.length"):
        send("first")
    sent = 0
    while len(renewed) < 4:  # so three tokens have expired
        send(str(sent))
        sent += 1
    send("last")
    wait_for(page, "printed.at(-1) === 'last'")
    assert page.evaluate("printed.filter((text) => text !== 'first')") == [*map(str, range(sent)), "last"]


def test_a_page_whose_user_has_logged_out_asks_no_more(page: Page, start_restarting: StartHub) -> None:
    hub = start_restarting(HUB_ANONYMOUS="0")
    page.route("**/token", lambda route: route.fulfill(status=401))
    with page.expect_response("**/token"):
        run(page, hub, COOKIE.replace("const source", "const source = window.source"))
    wait_for(page, "source.readyState === 2")
    assert page.evaluate("printed") == []


def test_the_state_is_loaded_first(page: Page, hub: Restarting) -> None:
    position = publish(hub.process, BOOK, "in the state")
    link = f'</.well-known/mercure>; rel="mercure"; last-event-id="{position}"'
    page.route("**/books", lambda route: route.fulfill(json=["books"], headers={"Link": link}))
    publish(hub.process, BOOK, "not in the state")
    run(page, hub, STATE)
    wait_for(page, "printed.length === 2")
    assert page.evaluate("printed") == ["state books", "not in the state"]

"""MercureSource in the tabs of one profile: they share a connection, unless they have
two users.
"""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from playwright.sync_api import Error as PlaywrightError

from tests.hub.browser.pages import Restarting, begin, is_open, leader_of, open_tab, streams, wait_for
from tests.hub.browsing import Site, freeze
from tests.hub.test_browser import publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext, Page


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

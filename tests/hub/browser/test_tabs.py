"""MercureSource in the tabs of one profile: they share a connection, unless they have
two users.
"""

from __future__ import annotations

import itertools
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx2
import pytest
from playwright.sync_api import Error as PlaywrightError

from tests.hub.browser.pages import BOOK, Restarting, StartHub, begin, is_open, leader_of, open_tab, streams, wait_for
from tests.hub.browser.script import Reply, Script
from tests.hub.browsing import Site, ask, freeze
from tests.hub.test_browser import cookie, current, publish, short_lived
from tests.waiting import HANG, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page, Route


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
    for kind in ["close", "crash", "freeze", "restart", "crash", "reload", "freeze", "close", "restart"]:
        send()
        leader = leader_of(pages)
        send()
        if kind == "restart":
            hub.kill()
            hub.start()
        elif kind == "freeze":
            frozen.append((leader, freeze(leader)))
            pages.remove(leader)
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


# A request that blocks the thread of the page.
HANG_UNTIL_ANSWERED = """(url) => {
  setTimeout(() => {
    const request = new XMLHttpRequest();
    request.open("GET", url, false);
    try {
      request.send();
    } catch {} // its answer is of another origin
  });
}"""


@pytest.mark.parametrize("is_new", [True, False])
def test_a_leader_that_hangs_is_replaced(
    is_new: bool, tabs: BrowserContext, shop: Site, start_restarting: StartHub, script: Script
) -> None:
    """By a new tab soon, by the others when they have heard no heartbeat."""
    hub = start_restarting(HUB_HEARTBEAT="0.5")
    url = f"{hub.url}?topic=a"
    leader, *others = (open_tab(tabs, shop, url) for _ in range(3))
    for page in others:
        is_open(page)
    publish(hub.process, "a", "0")
    wait_for(leader, "got.length === 1")
    assert leader_of([leader, *others]) == leader
    is_released = threading.Event()

    def wait_for_release(_: dict[str, str]) -> Reply:
        is_released.wait(HANG)
        return Reply(204, {})

    leader.evaluate(HANG_UNTIL_ANSWERED, script.add("/hang", wait_for_release))
    try:
        if is_new:
            others.append(open_tab(tabs, shop, url))
            is_open(others[-1])
        leader_of(others)
        publish(hub.process, "a", "1")
        for page in others:
            wait_for(page, "got.at(-1) === '1'")
    finally:
        is_released.set()
    publish(hub.process, "a", "2")
    for page in (leader, *others):
        wait_for(page, "got.at(-1) === '2'")
        assert page.evaluate("got") == ["0", "1", "2"][-page.evaluate("got.length") :]
    assert leader.evaluate("got.length") == 3
    assert streams(hub.process) == 1


def test_seven_tabs_leave_room_for_other_requests(tabs: BrowserContext, shop: Site, hub: Restarting) -> None:
    """Over HTTP/1.1, a browser has six connections to each host."""
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a") for _ in range(7)]
    for page in pages:
        is_open(page)
    assert streams(hub.process) == 1
    assert ask(pages[-1], f"{hub.process.origin}/robots.txt", mode="no-cors", credentials="omit")["status"] == 0
    publish(hub.process, "a", "x")
    for page in pages:
        wait_for(page, "got.length === 1")


REFUSE = "() => Promise.reject(new DOMException('refused', 'SecurityError'))"
WITHOUT = {
    "no locks": "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })",
    "no channel": "Object.defineProperty(window, 'BroadcastChannel', { value: undefined })",
    "locks are refused": f"if (navigator.locks) LockManager.prototype.query = LockManager.prototype.request = {REFUSE}",
}


@pytest.mark.parametrize("why", WITHOUT)
def test_tabs_that_cannot_share_have_a_connection_each(
    why: str, tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    """In old browsers, and in those that store nothing."""
    tabs.add_init_script(WITHOUT[why])
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a") for _ in range(3)]
    for page in pages:
        is_open(page)
    assert streams(hub.process) == 3
    publish(hub.process, "a", "x")
    for page in pages:
        wait_for(page, "got.length === 1")


def test_tabs_with_another_url_key_or_credentials_mode_do_not_share(
    tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    url = f"{hub.url}?topic=a"
    pages = [
        open_tab(tabs, shop, url),
        open_tab(tabs, shop, f"{url}&topic=b"),
        open_tab(tabs, shop, url, {"key": "x"}),
        open_tab(tabs, shop, url, {"withCredentials": True}),
        open_tab(tabs, shop, url, {"key": "x"}),
    ]
    for page in pages:
        is_open(page)
    assert streams(hub.process) == 4


def test_all_tabs_are_told_how_the_stream_is(tabs: BrowserContext, shop: Site, hub: Restarting) -> None:
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a") for _ in range(3)]
    for page in pages:
        is_open(page)
    hub.kill()
    for page in pages:
        wait_for(page, "source.readyState === 0")
        assert len(page.evaluate("log")) >= 2
    hub.start()
    for page in pages:
        wait_for(page, "log.at(-1) === 'open'")
        assert page.evaluate("source.readyState") == 1


def test_a_gap_is_told_to_all_tabs(tabs: BrowserContext, shop: Site, hub: Restarting, tmp_path: Path) -> None:
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a") for _ in range(3)]
    for page in pages:
        is_open(page)
    publish(hub.process, "a", "0")
    for page in pages:
        wait_for(page, "got.length === 1")
    hub.kill()
    for file in tmp_path.glob("history.db*"):
        file.unlink()
    hub.start()
    publish(hub.process, "a", "1")
    for page in pages:
        wait_for(page, "log.some((line) => line.startsWith('gap'))")
    publish(hub.process, "a", "2")
    for page in pages:
        wait_for(page, "got.at(-1) === '2'")
        assert page.evaluate("got.length") in (2, 3)  # "1", if the history still had it for that tab
        assert len([line for line in page.evaluate("log") if line.startswith("gap")]) == 1


def publish_many(hub: Restarting, numbers: range) -> None:
    headers = {"Authorization": f"Bearer {hub.process.token}", "Content-Type": "application/x-ndjson"}
    for start in range(0, len(numbers), 500):
        lines = "".join(f'{{"topic": "a", "data": "{number}"}}\n' for number in numbers[start : start + 500])
        assert httpx2.post(hub.url, content=lines, headers=headers).status_code == 200


@pytest.mark.parametrize("slow_one", ["leader", "follower"])
def test_a_tab_that_falls_far_behind_keeps_no_other_waiting(
    slow_one: str, tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    """And it reads on for itself."""
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a") for _ in range(2)]
    for page in pages:
        is_open(page)
    slow = leader_of(pages)
    [quick] = set(pages) - {slow}
    if slow_one == "follower":
        slow, quick = quick, slow
    requests: list[str] = []
    slow.on("request", lambda request: requests.append(request.url))
    slow.evaluate("holdBack()")
    count = 1_500
    publish_many(hub, range(count))
    wait_for(quick, "(count) => got.length === count", count)
    assert slow.evaluate("got") == ["0"]
    assert leader_of([quick]) == quick
    assert not requests
    slow.evaluate("goOn()")
    publish(hub.process, "a", "last")
    wait_for(slow, "got.at(-1) === 'last'")
    assert slow.evaluate("got") == [*map(str, range(count)), "last"]
    assert requests  # it has not kept all of them in memory


def test_a_tab_that_is_slow_to_catch_up_keeps_no_more_of_what_comes(
    tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    first = publish(hub.process, "a", "first")
    publish_many(hub, range(1_500))
    leader = open_tab(tabs, shop, f"{hub.url}?topic=a")
    is_open(leader)
    slow = tabs.new_page()
    shop.visit(slow)
    slow.evaluate("([url, lastEventId]) => begin(url, { lastEventId }).then(holdBack)", [f"{hub.url}?topic=a", first])
    queued = "navigator.locks.query().then(({ pending }) => pending.length)"
    wait_for(slow, "got.length === 1")
    wait_until(lambda: slow.evaluate(queued) == 1)
    publish_many(hub, range(1_500, 3_000))
    # It has begun again, and waits for the page, so that it no longer hears the leader.
    wait_until(lambda: slow.evaluate(queued) == 0)
    slow.evaluate("goOn()")
    publish(hub.process, "a", "last")
    wait_for(slow, "got.at(-1) === 'last'")
    assert slow.evaluate("got") == [*map(str, range(3_000)), "last"]


@pytest.mark.parametrize("how", ["new Promise(() => {})", "Promise.reject(new Error('no login'))"])
def test_a_leader_that_gets_no_token_leaves_the_lead_to_another_tab(
    how: str, tabs: BrowserContext, shop: Site, start_restarting: StartHub
) -> None:
    hub = start_restarting(HUB_ANONYMOUS="0", HUB_HEARTBEAT="0.5")
    tabs.expose_function("newToken", lambda: short_lived(hub.process))
    pages = [tabs.new_page() for _ in range(3)]
    for page in pages:
        shop.visit(page)
        page.evaluate("() => { window.getToken = () => newToken(); }")
        page.evaluate("(url) => begin(url, { token: () => window.getToken() })", f"{hub.url}?topic={BOOK}")
        is_open(page)
    leader = leader_of(pages)
    leader.evaluate(f"() => {{ window.getToken = () => {how}; }}")
    others = [page for page in pages if page != leader]
    wait_until(lambda: any(page.evaluate("isLeading()") for page in others))
    publish(hub.process, BOOK, "x", private="on")
    for page in pages:
        wait_for(page, "got.length === 1")


def test_without_prefer_a_tab_that_must_catch_up_has_its_own_connection(
    tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    """Some proxies let no header through that they do not know."""

    def strip(route: Route) -> None:
        route.continue_(headers={name: value for name, value in route.request.headers.items() if name != "prefer"})

    tabs.route("**/mercure?*", strip)
    first = publish(hub.process, "a", "0")
    publish(hub.process, "a", "1")
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a", {"lastEventId": first})]
    wait_for(pages[0], "got.length === 1")
    pages.append(open_tab(tabs, shop, f"{hub.url}?topic=a", {"lastEventId": first}))
    publish(hub.process, "a", "2")
    for page in pages:
        wait_for(page, "got.length === 2")
        assert page.evaluate("got") == ["1", "2"]
    assert streams(hub.process) == 2


def test_after_it_has_caught_up_the_cursor_of_a_tab_moves_on(
    tabs: BrowserContext, shop: Site, start_restarting: StartHub
) -> None:
    """Also if no update of its own comes, so that the hub does not forget it."""
    hub = start_restarting(HUB_HEARTBEAT="0.5")
    first = publish(hub.process, "a", "0")
    publish(hub.process, "a", "1")
    leader = open_tab(tabs, shop, f"{hub.url}?topic=a")
    is_open(leader)
    page = open_tab(tabs, shop, f"{hub.url}?topic=a", {"lastEventId": first})
    wait_for(page, "got.length === 1")
    page.evaluate("window.seen = new Set()")
    wait_for(page, "seen.add(source.lastEventId).size > 2")
    assert streams(hub.process) == 1
    assert page.evaluate("got") == ["1"]


# Makes the stream of a page wait between `shut()` and `unshut()`.
GATE = """() => {
  const { fetch } = window;
  let gate = Promise.resolve();
  window.shut = () => { gate = new Promise((resolve) => (window.unshut = resolve)); };
  window.fetch = async (...request) => {
    const { status, headers, body } = await fetch(...request);
    const wait = new TransformStream({ transform: (chunk, out) => gate.then(() => out.enqueue(chunk)) });
    return new Response(body.pipeThrough(wait), { status, headers });
  };
}"""


@pytest.mark.parametrize("is_between", [False, True])
def test_a_tab_that_is_ahead_of_the_leader_gets_nothing_twice(
    is_between: bool, tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    """Such as one that has hung while it led; also if its cursor is that of another topic."""
    url = f"{hub.url}?topic=a"
    leader = tabs.new_page()
    shop.visit(leader)
    leader.evaluate(GATE)
    begin(leader, url)
    is_open(leader)
    publish(hub.process, "a", "0")
    wait_for(leader, "got.length === 1")
    leader.evaluate("shut()")
    last = publish(hub.process, "a", "1")
    if is_between:
        last = publish(hub.process, "b", "")
    ahead = open_tab(tabs, shop, url, {"lastEventId": last})
    is_open(ahead)
    publish(hub.process, "a", "2")
    leader.evaluate("unshut()")
    publish(hub.process, "a", "3")
    for page, first in ((leader, 0), (ahead, 2)):
        wait_for(page, "got.at(-1) === '3'")
        assert page.evaluate("got") == ["0", "1", "2", "3"][first:]
    assert streams(hub.process) == 1


# -- two users


def cookie_of(hub: Restarting, user: str) -> str:
    token = current(hub.process, subject=user, subscribe=[f"https://example.com/users/{user}", "a"])
    return cookie(token, "mercure_access_token")


def log_in(page: Page, shop: Site, hub: Restarting, user: str) -> None:
    shop.visit(page, cookie_of(hub, user))


TOPIC = "https://example.com/users/{id}"


@pytest.mark.parametrize("end", ["the leader is closed", "the hub is restarted", "both"])
def test_a_tab_of_another_user_gets_nothing_of_the_new_one(
    end: str, tabs: BrowserContext, shop: Site, start_restarting: StartHub
) -> None:
    hub = start_restarting()
    query = f"{hub.url}?topic={TOPIC}"
    options = {"withCredentials": True}

    def send(text: str) -> None:
        for user in "AB":
            publish(hub.process, f"https://example.com/users/{user}", f"{text} for {user}", private="on")

    leader, follower, other = (tabs.new_page() for _ in range(3))
    log_in(leader, shop, hub, "A")
    begin(leader, query, options)
    is_open(leader)
    shop.visit(follower)
    begin(follower, query, options)
    is_open(follower)
    send("first")
    for page in (leader, follower):
        wait_for(page, "got.length === 1")
    log_in(other, shop, hub, "B")
    begin(other, query, options)
    is_open(other)
    send("second")
    wait_for(other, "got.length === 1")
    wait_for(follower, "got.length === 2")
    assert streams(hub.process) == 2
    if end != "the hub is restarted":
        leader.close()
    if end != "the leader is closed":
        hub.kill()
        hub.start()
    send("third")
    old = [follower] if leader.is_closed() else [leader, follower]
    for page in old:
        wait_for(page, "source.readyState === 2")
        assert page.evaluate("log").count("identitychange") == 1
        assert page.evaluate("log").index("identitychange") == len(page.evaluate("log")) - 2
    send("fourth")
    wait_for(other, "got.at(-1) === 'fourth for B'")
    assert other.evaluate("got") == ["second for B", "third for B", "fourth for B"]
    for page in old:
        assert page.evaluate("got") == ["first for A", "second for A"]


@pytest.mark.parametrize("user", ["A", "B"])
def test_a_cookie_that_has_gone_is_renewed_before_its_user_counts_as_another(
    user: str, tabs: BrowserContext, shop: Site, start_restarting: StartHub
) -> None:
    hub = start_restarting(HUB_ANONYMOUS="1")
    page = tabs.new_page()
    shop.visit(page)
    users = ["A", user]
    shop.renew = lambda: cookie_of(hub, users.pop(0))
    page.evaluate(
        """(url) => begin(url, {
          withCredentials: true,
          token: async () => { await fetch("/", { method: "POST" }); },
        })""",
        f"{hub.url}?topic={TOPIC}",
    )
    is_open(page)
    tabs.clear_cookies()
    hub.kill()
    hub.start()
    if user == "A":
        wait_for(page, "log.at(-1) === 'open' && log.length > 1")
        publish(hub.process, "https://example.com/users/A", "x", private="on")
        wait_for(page, "got.length === 1")
    else:
        wait_for(page, "source.readyState === 2")
        assert page.evaluate("log").count("identitychange") == 1
    assert users == []

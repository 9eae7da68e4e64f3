"""One MercureSource and a real hub: silence, tokens that expire, gaps, and what a page
can ask for.
"""

from __future__ import annotations

import datetime
import signal
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from tests.hub.browser.pages import BOOK, begin, is_open, open_tab, streams, wait_for
from tests.hub.browsing import freeze
from tests.hub.test_browser import cookie, current, publish, short_lived
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from tests.hub.browser.pages import Restarting, StartHub
    from tests.hub.browsing import Site

SILENT = "the hub has fallen silent"
HEARTBEAT = 120_000  # milliseconds; none comes while the test gets ready


@pytest.fixture
def page(tabs: BrowserContext, shop: Site) -> Page:
    page = tabs.new_page()
    shop.visit(page)
    return page


# -- silence


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("how", ["run", "wake"])
def test_a_hub_that_freezes_is_noticed(
    how: str, is_alone: bool, tabs: BrowserContext, shop: Site, start_restarting: StartHub
) -> None:
    hub = start_restarting(HUB_HEARTBEAT=str(HEARTBEAT // 1_000))
    tabs.clock.install()
    pages = [open_tab(tabs, shop, f"{hub.url}?topic=a")]
    wait_for(pages[0], "source.lastEventId.startsWith('#')")
    if not is_alone:
        pages.append(open_tab(tabs, shop, f"{hub.url}?topic=a"))
        is_open(pages[1])
    # From here on, only `run_for` and `fast_forward` let time pass, in all tabs.
    soon = pages[0].evaluate("Date.now()") / 1_000 + 10
    tabs.clock.pause_at(datetime.datetime.fromtimestamp(soon, datetime.UTC))
    publish(hub.process, "a", "before")
    for page in pages:
        wait_for(page, "got.length === 1")
    hub.process.process.send_signal(signal.SIGSTOP)
    try:
        if how == "run":
            tabs.clock.run_for(2 * HEARTBEAT)
            assert all(SILENT not in page.evaluate("log") for page in pages)
            # The leader looks within a second of 2.25 heartbeats.  Two seconds after
            # them, a follower could take the lead, before the leader has its message.
            tabs.clock.run_for(HEARTBEAT // 4 + 1_000)
        else:
            tabs.clock.fast_forward(HEARTBEAT + 2_000)
            assert all(SILENT not in page.evaluate("log") for page in pages)
            for page in pages:
                page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            tabs.clock.run_for(2_000)
        for page in pages:
            wait_for(page, f"log.includes('{SILENT}')")
    finally:
        hub.process.process.send_signal(signal.SIGCONT)
    tabs.clock.resume()
    for page in pages:
        wait_for(page, "log.at(-1) === 'open'")
    publish(hub.process, "a", "after")
    for page in pages:
        wait_for(page, "got.at(-1) === 'after'")
        assert page.evaluate("got") == ["before", "after"]


def test_a_silent_stream_with_heartbeats_is_not_given_up(page: Page, start_restarting: StartHub) -> None:
    hub = start_restarting(HUB_HEARTBEAT="0.5")
    begin(page, f"{hub.url}?topic=a")
    is_open(page)
    page.evaluate("window.seen = new Set()")
    # Each heartbeat has a cursor.  Five of them take longer than its patience.
    wait_for(page, "seen.add(source.lastEventId).size > 5")
    assert page.evaluate("log") == ["open"]


# -- tokens


def test_a_token_that_expires_three_times_loses_nothing(page: Page, start_restarting: StartHub) -> None:
    hub = start_restarting(HUB_ANONYMOUS="0")
    given = []

    def token() -> str:
        given.append(short_lived(hub.process))
        return given[-1]

    page.expose_function("newToken", token)
    page.evaluate("(url) => begin(url, { token: () => newToken() })", f"{hub.url}?topic={BOOK}")
    is_open(page)
    sent = 0
    while len(given) < 4:
        publish(hub.process, BOOK, str(sent), private="on")
        page.evaluate("0")  # lets the page ask for a token
        sent += 1
    publish(hub.process, BOOK, "last", private="on")
    wait_for(page, "got.at(-1) === 'last'")
    assert page.evaluate("got") == [*map(str, range(sent)), "last"]
    assert page.evaluate("source.readyState") != 2


# -- gaps, and what a page can ask for


def test_a_gap_is_told_before_the_next_update(page: Page, hub: Restarting) -> None:
    publish(hub.process, "a", "before")
    page.evaluate(
        "(url) => begin(url, { lastEventId: 'urn:uuid:forgotten', onGap: (gap) => log.push(gap) })",
        f"{hub.url}?topic=a",
    )
    wait_for(page, "got.length === 1")
    gap = {"asked": "urn:uuid:forgotten", "lost": "some", "reason": "unknown"}
    assert page.evaluate("log") == ["open", gap]


def test_each_tab_is_told_once_that_it_has_all_that_the_hub_has(
    tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    open_it = """async ([url, lastEventId]) => {
      await begin(url, { lastEventId, onLive: () => got.push("live") });
      source.addEventListener("message", ({ waitUntil }) => waitUntil(new Promise((done) => setTimeout(done, 50))));
    }"""
    stored = ["0", "1"]
    for data in stored:
        publish(hub.process, "a", data)
    pages = []
    for begins_at in ["earliest", "earliest", None]:
        page = tabs.new_page()
        shop.visit(page)
        page.evaluate(open_it, [f"{hub.url}?topic=a", begins_at])
        wait_for(page, "got.includes('live')")
        pages.append(page)
    assert streams(hub.process) == 1
    publish(hub.process, "a", "2")
    for page in pages:
        wait_for(page, "got.includes('2')")
    hub.kill()
    hub.start()
    for page in pages:
        wait_for(page, "got.at(-1) === 'live'")
    publish(hub.process, "a", "3")
    for page in pages:
        wait_for(page, "got.includes('3')")
    late = ["live", "2", "live", "3"]
    assert [page.evaluate("got") for page in pages] == [[*stored, *late], [*stored, *late], late]


def test_a_page_gets_presence_although_signals_have_its_type(page: Page, start_restarting: StartHub) -> None:
    hub = start_restarting(HUB_SUBSCRIPTIONS="1")
    people = "/.well-known/mercure/subscriptions/exact/b/{subscriber}"
    begin(page, f"{hub.url}?topic=a&match_uritemplate={people}", {"token": current(hub.process)})
    is_open(page)
    page.evaluate("source.addEventListener('mercure', ({ data }) => got.push(JSON.parse(data).type))")
    publish(hub.process, "a", "x")
    wait_for(page, "got.includes('x')")
    with urlopen(f"{hub.url}?match=b"):
        wait_for(page, "got.includes('subscription')")
    assert set(page.evaluate("got")) == {"x", "subscription"}


def test_follow_loads_the_state_first_and_again_after_a_gap(page: Page, hub: Restarting) -> None:
    old = publish(hub.process, "a", "in the state")
    page.evaluate(
        """([url, old]) => {
          window.loads = 0;
          const answer = (status, position) => {
            const headers = position && { Link: `<x>; rel="mercure"; last-event-id="${position}"` };
            return new Response("", { status, headers });
          };
          return begin(url, {}).then(() => source.follow(async () => {
            loads++;
            if (loads === 1) throw new Error("no network");
            if (loads === 2) return answer(503);
            return loads === 3 ? "forgotten" : answer(200, old);
          }));
        }""",
        [f"{hub.url}?topic=a", old],
    )
    wait_for(page, "loads === 4 && source.readyState === 1")
    publish(hub.process, "a", "followed")
    wait_for(page, "got.length")
    assert page.evaluate("got") == ["followed"]
    log = page.evaluate("log")
    assert log[:2] == ["no network", "503: "]
    assert log.count("gap some") == 1


def test_a_change_of_topics_loses_nothing_and_brings_nothing_twice(page: Page, hub: Restarting) -> None:
    begin(page, f"{hub.url}?topic=a")
    is_open(page)
    sent = 0

    def send() -> None:
        nonlocal sent
        publish(hub.process, ["a", "b"], str(sent))
        sent += 1

    for number in range(5):
        send()
        matchers = {"topic": ["a", "c"]} if number % 2 else [["topic", "b"], ["topic", "d"]]
        page.evaluate("(matchers) => source.change(matchers)", matchers)
        send()
    publish(hub.process, "d", "new")
    wait_for(page, "got.at(-1) === 'new'")
    assert page.evaluate("got") == [*map(str, range(sent)), "new"]
    assert page.evaluate("source.url") == f"{hub.url}?topic=b&topic=d"


def test_the_cursor_outlives_a_reload_but_not_its_user(page: Page, hub: Restarting, shop: Site) -> None:
    open_it = "(url) => begin(url, { storage: sessionStorage, withCredentials: true })"
    url = f"{hub.url}?topic=a"
    page.evaluate(open_it, url)
    is_open(page)
    publish(hub.process, "a", "0")
    wait_for(page, "got.length === 1")
    wait_for(page, "sessionStorage.length === 1")
    page.goto("about:blank")
    publish(hub.process, "a", "1")
    shop.visit(page)
    page.evaluate(open_it, url)
    publish(hub.process, "a", "2")
    wait_for(page, "got.at(-1) === '2'")
    assert page.evaluate("got") == ["1", "2"]
    # It counts on after a change.  What the page has not done with comes again.
    page.evaluate("source.change({ topic: ['a', 'b'] })")
    publish(hub.process, "a", "done with")
    wait_for(page, "got.at(-1) === 'done with'")
    page.evaluate("holdBack()")
    publish(hub.process, "a", "not done with")
    wait_for(page, "got.at(-1) === 'not done with'")
    page.goto("about:blank")
    shop.visit(page)
    page.evaluate(
        "(url) => begin(url, { storage: sessionStorage, withCredentials: true, lastEventId: 'earliest' })", url
    )
    wait_for(page, "got.length")
    assert page.evaluate("got") == ["not done with"]
    page.goto("about:blank")
    third = publish(hub.process, "a", "3")
    shop.visit(page, cookie(current(hub.process), "mercure_access_token"))
    page.evaluate(open_it, url)
    wait_for(page, "source.lastEventId && source.readyState === 1 && log.at(-1) === 'open'")
    publish(hub.process, "a", "4")
    wait_for(page, "got.length")
    assert page.evaluate("got") == ["4"]
    # For another user, it begins where the page says.
    page.context.clear_cookies()
    shop.visit(page)
    page.evaluate(
        "([url, lastEventId]) => begin(url, { storage: sessionStorage, withCredentials: true, lastEventId })",
        [url, third],
    )
    wait_for(page, "got.length")
    assert page.evaluate("got") == ["4"]


def test_a_page_that_does_not_read_slows_down_its_stream(page: Page, hub: Restarting) -> None:
    """Its memory does not grow: the hub waits, or drops it."""
    begin(page, f"{hub.url}?topic=a")
    is_open(page)
    page.evaluate(
        """() => {
          window.taken = 0;
          source.addEventListener("message", () => taken++);
          holdBack();
        }"""
    )
    for number in range(5):
        publish(hub.process, "a", str(number))
    wait_for(page, "taken === 1")
    assert page.evaluate("[taken, got.length, source.lastEventId !== '']") == [1, 1, True]
    page.evaluate("goOn()")
    wait_for(page, "taken === 5")
    assert page.evaluate("got") == ["0", "1", "2", "3", "4"]


COUNT_TIMERS = """
() => {
  window.timers = new Set();
  window.end = new AbortController();
  const { setInterval, clearInterval } = window;
  window.setInterval = (...given) => {
    const timer = setInterval(...given);
    timers.add(timer);
    return timer;
  };
  window.clearInterval = (timer) => {
    timers.delete(timer);
    clearInterval(timer);
  };
}
"""


@pytest.mark.parametrize("how", ["close", "signal", "aborted before"])
def test_a_closed_source_has_no_stream_and_no_timer(how: str, page: Page, hub: Restarting) -> None:
    page.evaluate(COUNT_TIMERS)
    if how == "aborted before":
        page.evaluate("end.abort()")
    page.evaluate("(url) => begin(url, { signal: end.signal })", f"{hub.url}?topic=a")
    if how == "aborted before":
        assert page.evaluate("source.readyState") == 2
    else:
        is_open(page)
        assert streams(hub.process) == 1
        page.evaluate("source.close()" if how == "close" else "end.abort()")
    wait_until(lambda: streams(hub.process) == 0)
    assert page.evaluate("[source.readyState, got, log.length < 2, timers.size]") == [2, [], True, 0]


def test_a_page_that_is_frozen_while_its_hub_is_restarted_loses_nothing(
    hidden_tabs: BrowserContext, shop: Site, hub: Restarting
) -> None:
    page = open_tab(hidden_tabs, shop, f"{hub.url}?topic=a")
    is_open(page)
    publish(hub.process, "a", "before")
    wait_for(page, "got.length === 1")
    thaw = freeze(page)
    wait_until(lambda: streams(hub.process) == 0)
    hub.kill()
    hub.start()
    publish(hub.process, "a", "asleep")
    thaw()
    wait_for(page, "got.at(-1) === 'asleep'")
    assert page.evaluate("got") == ["before", "asleep"]
    assert page.evaluate("log.at(-1)") == "open"

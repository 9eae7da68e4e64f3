"""MercureSource between two attempts: how long it waits, with which token it asks, and
when it stops.
"""

from __future__ import annotations

import datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from tests.hub.browser.pages import begin, wait_for
from tests.hub.browser.script import Reply, Script
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

BEGUN = Reply(body=b"id: 1\ndata: a\n\n", end="silent")
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def logged(page: Page, count: int) -> list[str]:
    """Wait for `count` lines of the log and return all."""
    wait_for(page, "(count) => log.length >= count", count)
    lines: list[str] = page.evaluate("log")
    return lines


def is_asked(script: Script, path: str, times: int) -> None:
    wait_until(lambda: len(script.asked[path]) == times)


def stop_clock(page: Page) -> None:
    page.clock.install(time=NOW)
    page.reload()
    page.clock.pause_at(NOW + datetime.timedelta(seconds=10))


def passes(page: Page, script: Script, path: str, pause: int) -> None:
    """Let a pause pass, and no more, because an answer may come while the clock runs."""
    before = len(script.asked[path])
    page.clock.run_for(pause - 1)
    assert len(script.asked[path]) == before
    page.clock.run_for(1)
    is_asked(script, path, before + 1)


@pytest.mark.parametrize("chance", [0, 0.5])
def test_pauses_grow_to_a_minute_and_are_random(chance: float, page: Page, script: Script) -> None:
    stop_clock(page)
    page.evaluate(f"() => {{ Math.random = () => {chance}; }}")
    path = f"/grow/{chance}"
    begin(page, script.add(path, *[Reply(502, {})] * 9, BEGUN))
    for failures in range(9):
        assert logged(page, failures + 1)[-1].startswith("502")
        passes(page, script, path, int(min(1_000 * 2**failures, 60_000) * (0.5 + chance)))
    wait_for(page, "got.length === 1")


def test_after_a_success_pauses_are_short_again_and_as_the_server_says(page: Page, script: Script) -> None:
    stop_clock(page)
    page.evaluate("() => { Math.random = () => 0; }")
    stream = Reply(body=b"retry: 5000\nid: 1\ndata: a\n\n")
    begin(page, script.add("/short", *[Reply(502, {})] * 3, stream, BEGUN))
    for failures in range(3):
        logged(page, failures + 1)
        passes(page, script, "/short", 500 * 2**failures)
    assert logged(page, 5)[-2:] == ["open", "the stream has ended"]
    passes(page, script, "/short", 2_500)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_obeyed(form: str, page: Page, script: Script) -> None:
    stop_clock(page)
    date = format_datetime(NOW + datetime.timedelta(seconds=10 + 40), usegmt=True)
    reply = Reply(429, {"Retry-After": "40" if form == "seconds" else date})
    path = f"/after/{form}"
    begin(page, script.add(path, reply, BEGUN))
    assert logged(page, 1) == ["429: Too Many Requests"]
    page.clock.run_for(38_000)
    page.evaluate("dispatchEvent(new Event('online'))")  # which shortens only its own pauses
    assert len(script.asked[path]) == 1
    page.clock.run_for(23_000)
    is_asked(script, path, 2)


def test_a_server_that_wants_no_pause_is_asked_after_a_tenth_of_a_second(page: Page, script: Script) -> None:
    stop_clock(page)
    page.evaluate("() => { Math.random = () => 0; }")
    now = Reply(503, {"Retry-After": "0"})
    begin(page, script.add("/at-once", now, now, Reply(body=b"retry: 0\nid: 1\ndata: a\n\n"), Reply(502, {}), BEGUN))
    for failures in range(3):
        logged(page, 1 + failures + (failures > 1))
        passes(page, script, "/at-once", 100)


def test_a_refusal_that_has_no_end_is_given_up(page: Page, script: Script) -> None:
    stop_clock(page)
    begin(page, script.add("/endless", Reply(503, {}, end="silent"), BEGUN))
    is_asked(script, "/endless", 1)
    while page.evaluate("log.length") == 0:  # the head may come while the clock runs
        page.clock.run_for(30_000)
    assert logged(page, 1)[0] == "the hub has fallen silent"
    page.evaluate("dispatchEvent(new Event('online'))")
    wait_for(page, "got.length === 1")


def test_it_does_not_wait_if_the_network_is_back(page: Page, script: Script) -> None:
    stop_clock(page)
    begin(page, script.add("/online", Reply(502, {}), BEGUN))
    logged(page, 1)
    page.evaluate("dispatchEvent(new Event('online'))")
    wait_for(page, "got.length === 1")


def test_it_says_why_it_stops(page: Page, script: Script) -> None:
    problem = {"Content-Type": "application/problem+json"}
    for number, (reply, message) in enumerate(
        [
            (Reply(204, {}), "204: the server wants no reconnection"),
            (Reply(403, problem, b'{"detail": "The token grants nothing."}'), "403: The token grants nothing."),
            (Reply(403, problem, b"null"), "403: Forbidden"),
            (Reply(404, {}), "404: Not Found"),
            (Reply(200, {"Content-Type": "text/html"}), "text/html is no event stream"),
        ]
    ):
        page.reload()
        begin(page, script.add(f"/why/{number}", reply, BEGUN))
        assert logged(page, 1) == [message]
        assert page.evaluate("source.readyState") == 2


# -- tokens

TOKENS = """
(url) => {
  window.asked = 0;
  return begin(url, { token: async () => `token${++asked}` });
}
"""


def bearers(script: Script, path: str) -> list[str]:
    return [headers.get("authorization", "") for headers in script.asked[path]]


def test_a_token_is_sent_and_one_that_is_refused_is_final(page: Page, script: Script) -> None:
    begin(page, script.add("/token", Reply(401, {})), {"token": "abc"})
    assert logged(page, 1) == ["401: Unauthorized"]
    assert page.evaluate("source.readyState") == 2
    assert bearers(script, "/token") == ["Bearer abc"]


def test_a_function_is_asked_for_another_token_after_a_401(page: Page, script: Script) -> None:
    ended = Reply(body=b"retry: 1\nid: 1\ndata: a\n\n")
    path = "/renew"
    refused = Reply(401, {})
    page.evaluate(TOKENS, script.add(path, refused, ended, refused, refused, refused, ended, ended))
    wait_for(page, "source.readyState === 2")
    assert bearers(script, path) == [f"Bearer token{number}" for number in (1, 2, 2, 3, 4, 5, 5, 5)]
    assert page.evaluate("got.length") == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_token_is_renewed_before_it_expires(fails: bool, page: Page, script: Script) -> None:
    stop_clock(page)
    path = f"/early/{fails}"
    page.evaluate(
        """([url, fails]) => {
          window.calls = 0;
          const token = async () => {
            if (++calls === 2 && fails) throw new Error("not now");
            return `x.${btoa(JSON.stringify({ exp: Date.now() / 1_000 + 100 }))}.${calls}`;
          };
          return begin(url, { token });
        }""",
        [script.add(path, BEGUN, BEGUN), fails],
    )
    wait_for(page, "got.length === 1")
    page.clock.run_for(79_000)
    assert page.evaluate("calls") == 1
    page.clock.run_for(2_000)
    if not fails:
        wait_for(page, "got.length === 2")
        assert [token[-1] for token in bearers(script, path)] == ["1", "2"]
        page.clock.run_for(78_000)
    # The stream that there is goes on, and no page is told of it.
    assert page.evaluate("calls") == 2
    assert page.evaluate("log") == ["open"]
    assert len(script.asked[path]) == (1 if fails else 2)


def test_it_stops_if_three_new_tokens_in_a_row_are_refused(page: Page, script: Script) -> None:
    page.evaluate(TOKENS, script.add("/refused", *[Reply(401, {})] * 4))
    wait_for(page, "source.readyState === 2")
    assert bearers(script, "/refused") == ["Bearer token1", "Bearer token2", "Bearer token3"]


def test_a_function_may_fail_and_may_renew_a_cookie_instead(page: Page, script: Script) -> None:
    url = script.add("/cookie", Reply(401, {}), BEGUN)
    page.evaluate(
        """(url) => {
          let calls = 0;
          const token = () => {
            if (++calls === 1) throw new Error("the login is down");
            document.cookie = `session=${calls}; path=/`;
          };
          return begin(url, { token });
        }""",
        url,
    )
    wait_for(page, "got.length === 1")
    assert page.evaluate("log")[0] == "the login is down"
    assert [headers.get("cookie") for headers in script.asked["/cookie"]] == ["session=2", "session=3"]
    assert bearers(script, "/cookie") == ["", ""]


def test_a_token_follows_no_redirect(page: Page, script: Script) -> None:
    script.add("/elsewhere", BEGUN)
    begin(page, script.add("/redirect", Reply(307, {"Location": "/elsewhere"})), {"token": "abc"})
    assert logged(page, 1) == ["a redirect, which the token does not follow"]
    assert script.asked["/elsewhere"] == []


# -- cursors


def test_a_cursor_that_no_header_carries_goes_into_the_query(page: Page, script: Script) -> None:
    ended = Reply(body="retry: 1\nid: é \ndata: a\n\n".encode())
    begin(page, script.add("/cursor", ended, ended), {"lastEventId": "#begin"})
    wait_for(page, "source.readyState === 2")
    assert script.cursors("/cursor") == ["#begin", "", ""]
    assert script.queries["/cursor"] == [
        "signals=1",
        "signals=1&last_event_id=%C3%A9+",
        "signals=1&last_event_id=%C3%A9+",
    ]

"""A real Chromium: its EventSource, and the debugger page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.conftest import HubProcess

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    """An empty page; an error in its scripts fails the test."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        browser.close()
        assert not errors


def test_the_debugger_subscribes_by_template_and_publishes(hub: HubProcess, page: Page) -> None:
    page.goto(hub.origin)
    assert page.url == f"{hub.url}/debug/"
    page.get_by_role("button", name="Subscribe", exact=True).click()
    expect(page.locator("#state")).to_have_text("subscribed")
    page.get_by_label("Data").fill("a <b>new</b>\nchapter")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("urn:uuid:")
    expect(page.locator("#updates li")).to_have_count(1)
    expect(page.locator("#updates pre")).to_have_text("a <b>new</b>\nchapter")
    # The usual type is no other one.
    page.get_by_label("Type").fill("message")
    page.get_by_role("button", name="Publish").click()
    page.get_by_label("Type").fill("price")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#updates b")).to_have_text(["price", "message", "message"])
    page.get_by_label("Type").fill("")
    # A private one too: the token is in the cookie.
    page.get_by_role("checkbox", name="Private").check()
    page.get_by_label("Data").fill("a secret")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#updates pre").first).to_have_text("a secret")
    # And what is refused is told.
    page.get_by_label("Topics, one a line").fill("*")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("'*' is reserved")


def test_the_debugger_says_why_it_was_refused(hub: HubProcess, page: Page) -> None:
    page.goto(hub.origin)
    page.get_by_text("Token", exact=True).click()
    page.locator("#token").fill("nonsense")
    page.get_by_role("button", name="Subscribe", exact=True).click()
    expect(page.locator("#state")).to_contain_text("the token is not valid here")


FOLLOW = """
([url, last]) => {
  const source = new EventSource(url);
  window.got = [];
  source.onopen = () => (window.opened = true);
  source.onmessage = (event) => {
    window.got.push([event.lastEventId, event.data]);
    if (event.data === last) source.close();
  };
}
"""


def test_event_source_of_another_origin_reads_and_comes_back_with_its_cursor(
    start_hub: Callable[..., HubProcess], page: Page
) -> None:
    hub = start_hub()
    publish = f"""
      (data) => fetch("{hub.url}", {{
        method: "POST",
        headers: {{ Authorization: "Bearer {hub.token}" }},
        body: new URLSearchParams({{ topic: "https://example.com/books/1", data, id: "urn:" + data, retry: 50 }}),
      }}).then((response) => response.text())
    """
    page.goto(f"http://127.0.0.1:{hub.port}/elsewhere")  # to a browser, not where localhost is
    page.evaluate(FOLLOW, [f"{hub.url}?topic=https://example.com/books/{{id}}", "3"])
    page.wait_for_function("window.opened")
    assert page.evaluate(publish, "1") == "urn:1"
    page.wait_for_function("window.got.length === 1")
    # The hub goes away and comes back without its history: the browser connects again by itself.
    hub.stop()
    start_hub("--port", str(hub.port))
    for data in "23":
        assert page.evaluate(publish, data) == f"urn:{data}"
    page.wait_for_function("window.got.length === 3")
    assert page.evaluate("window.got") == [["urn:1", "1"], ["urn:2", "2"], ["urn:3", "3"]]

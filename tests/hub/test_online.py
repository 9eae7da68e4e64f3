"""Who is online, in Chromium: the example shows people and not tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from examples.online import app as online
from hub.testing import serve
from tests.hub.browsing import visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.processes


@pytest.fixture
def origin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example, with another grace period; the test sees its `tabs`."""
    old, new = "const GRACE = 10_000;", f"const GRACE = {request.param};"
    assert old in online.PAGE
    monkeypatch.setattr(online, "PAGE", online.PAGE.replace(old, new).replace("const tabs", "const tabs = window.tabs"))
    with serve(online.create()) as url:
        yield url


def enter(page: Page, origin: str, user: str) -> Page:
    page.goto(origin)
    page.fill("input[name=user]", user)
    page.click("button")
    return page


def shows(page: Page, *users: str) -> None:
    expect(page.locator("#people li")).to_have_text(list(users))


@pytest.mark.parametrize("origin", ["600_000"], indirect=True)
def test_people_are_listed_once_and_a_reload_is_not_seen(origin: str, browser: Browser) -> None:
    with visitor(browser) as at_ann, visitor(browser) as at_bob:
        bob = enter(at_bob.new_page(), origin, "bob")
        shows(bob, "bob")
        ann = enter(at_ann.new_page(), origin, "ann")
        shows(ann, "ann", "bob")
        shows(bob, "ann", "bob")
        second = at_ann.new_page()
        second.goto(origin)
        shows(second, "ann", "bob")
        # From now on, every state of the list is noted.
        bob.evaluate("""() => {
            window.states = [];
            const note = () => states.push(document.getElementById("people").innerText);
            new MutationObserver(note).observe(document.getElementById("people"), { childList: true });
        }""")
        # Her tabs share one connection.  If one closes, another has it.
        (first,) = bob.evaluate("[...tabs.get('ann')]")
        ann.close()
        bob.wait_for_function("(first) => tabs.get('ann').size === 1 && !tabs.get('ann').has(first)", arg=first)
        ann = second
        ann.reload()
        shows(ann, "ann", "bob")
        bob.wait_for_function("tabs.get('ann').size === 1 && states.length >= 3")
        assert set(bob.evaluate("states")) == {"ann\nbob"}


@pytest.mark.parametrize("origin", ["100"], indirect=True)
def test_a_user_whose_last_tab_has_gone_is_removed(origin: str, browser: Browser) -> None:
    with visitor(browser) as at_ann, visitor(browser) as at_bob:
        bob = enter(at_bob.new_page(), origin, "bob")
        ann = enter(at_ann.new_page(), origin, "ann")
        shows(bob, "ann", "bob")
        ann.close()
        shows(bob, "bob")


@pytest.mark.parametrize("origin", ["100"], indirect=True)
def test_a_visitor_without_a_name_sees_nobody(origin: str, browser: Browser) -> None:
    with visitor(browser) as at_bob, visitor(browser) as elsewhere:
        shows(enter(at_bob.new_page(), origin, "bob"), "bob")
        stranger = elsewhere.new_page()
        with stranger.expect_response(lambda answer: "subscriptions" in answer.url) as answer:
            stranger.goto(origin)
        assert answer.value.status == 401
        expect(stranger.locator("#state")).to_contain_text("401")
        shows(stranger)

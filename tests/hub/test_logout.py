"""Logging out in the examples for web frameworks, in Chromium: no other tab of the user
receives a private update that is published afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
import pytest
from playwright.sync_api import expect

from tests.hub.browsing import visitor
from tests.test_frameworks import origin

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["origin"]

pytestmark = pytest.mark.processes

LOGIN = "input[name=user]"


def open_tab(page: Page, origin: str) -> Page:
    """Open the example, and wait until its stream is open."""
    page.goto(origin)
    expect(page.locator("#connection")).to_have_text("is live")
    return page


def test_no_tab_receives_a_private_update_after_the_logout(origin: str, browser: Browser) -> None:
    with visitor(browser) as context, visitor(browser) as elsewhere, httpx2.Client(base_url=origin) as phone:
        tab = open_tab(context.new_page(), origin)
        tab.fill(LOGIN, "ann")
        tab.click("text=Log in")
        open_tab(tab, origin)
        other = open_tab(context.new_page(), origin)
        bob = open_tab(elsewhere.new_page(), origin)
        bob.fill(LOGIN, "bob")
        bob.click("text=Log in")
        open_tab(bob, origin)
        phone.post("/login", data={"user": "ann"})
        phone.post("/vote")
        for one in (tab, other):
            expect(one.locator("#note")).to_have_text("ann, you were number 1")

        # One tab logs out.  The other has not been touched: its stream is cut, and it is
        # loaded again without the session.
        tab.click("text=Log out")
        expect(other.locator("#note")).to_have_text("log in, and vote")
        phone.post("/vote")
        expect(other.locator("#connection")).to_have_text("is live")
        phone.post("/vote")
        with httpx2.Client(base_url=origin) as anyone:
            anyone.post("/vote")
        expect(other.locator("#votes")).to_have_text("4")
        assert other.locator("#note").text_content() == "log in, and vote"

        # Another user's stream has gone on.
        bob.click("#vote")
        expect(bob.locator("#note")).to_have_text("bob, you were number 5")
        expect(other.locator("#votes")).to_have_text("5")
        assert other.locator("#note").text_content() == "log in, and vote"

"""The chat of the examples, in Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from examples.chat.app import create
from hub.testing import serve
from tests.hub.browsing import visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.processes


@pytest.fixture
def origin() -> Iterator[str]:
    with serve(create()) as url:
        yield url


def enter(page: Page, origin: str, user: str) -> Page:
    page.goto(origin)
    page.fill("input[name=user]", user)
    page.click("text=Log in")
    expect(page.locator("#state")).to_have_text("connected")
    return page


def say(page: Page, text: str, room: str = "lobby") -> None:
    page.select_option("select", room)
    page.fill("input[name=text]", text)
    page.click("text=Send")
    expect(page.locator("input[name=text]")).to_have_value("")


def shows(page: Page, *messages: str) -> None:
    expect(page.locator("#messages li")).to_have_text(list(messages))


def test_messages_come_to_those_in_the_room_and_each_once(origin: str, browser: Browser) -> None:
    with visitor(browser) as at_ann, visitor(browser) as at_bob:
        ann = enter(at_ann.new_page(), origin, "ann")
        ann.check("text=kitchen")
        say(ann, "tea?", "kitchen")
        say(ann, "hello")
        bob = enter(at_bob.new_page(), origin, "bob")
        shows(bob, "lobby · ann: hello")
        bob.check("text=kitchen")
        shows(bob, "lobby · ann: hello", "kitchen · ann: tea?")
        bob.uncheck("text=kitchen")
        shows(bob, "lobby · ann: hello")
        said = ["kitchen · ann: tea?", "lobby · ann: hello"]
        for number in range(6):  # while bob enters and leaves another room
            bob.set_checked("text=garden", number % 2 == 0)
            say(ann, f"more {number}")
            said.append(f"lobby · ann: more {number}")
        say(ann, "milk?", "kitchen")
        shows(ann, *said, "kitchen · ann: milk?")
        shows(bob, *said[1:])
        second = at_ann.new_page()
        second.goto(origin)
        shows(second, *said[1:])


def test_a_page_loads_itself_again_for_another_user(origin: str, browser: Browser) -> None:
    with visitor(browser) as profile:
        ann = enter(profile.new_page(), origin, "ann")
        ann.fill("input[name=text]", "not yet sent")
        bob = enter(profile.new_page(), origin, "bob")
        ann.evaluate("dispatchEvent(new Event('pagehide')); dispatchEvent(new Event('pageshow'))")
        expect(ann.locator("input[name=text]")).to_have_value("")
        say(bob, "hello")
        shows(ann, "lobby · bob: hello")


def test_a_stranger_reads_nothing(origin: str, browser: Browser) -> None:
    with visitor(browser) as profile:
        page = profile.new_page()
        page.goto(origin)
        expect(page.locator("#state")).to_contain_text("401")
        page.fill("input[name=text]", "hello")
        page.click("text=Send")
        expect(page.locator("#state")).to_have_text("not sent: try again")
        shows(page)

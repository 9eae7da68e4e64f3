"""The chat of the examples, in Chromium."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from examples.chat.app import create
from hub.testing import serve
from tests.hub.browsing import visitor
from tests.hub.commands import environment
from tests.installation import ROOT
from tests.redis_server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.processes


@pytest.fixture
def origin() -> Iterator[str]:
    with serve(create()) as url:
        yield url


@contextmanager
def server(port: int) -> Iterator[str]:
    """The application in a process, which is killed; returns its URL."""
    command = [sys.executable, "-m", "uvicorn", "--factory", "examples.chat.app:create", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            while b"startup complete" not in process.stderr.readline():
                assert process.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


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
        shows(bob, "kitchen · ann: tea?", "lobby · ann: hello")
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


def test_a_chat_that_has_forgotten_all_goes_on(browser: Browser) -> None:
    with visitor(browser) as profile:
        port = free_port()
        with server(port) as origin:
            pages = [enter(profile.new_page(), origin, "ann") for _ in range(2)]
            for number in range(3):
                say(pages[0], f"old {number}")
            shows(pages[1], *(f"lobby · ann: old {number}" for number in range(3)))
        with server(port):
            say(pages[0], "new")
            for page in pages:
                shows(page, "lobby · ann: new")


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

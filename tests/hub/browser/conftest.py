"""A site, and the tabs of a profile of Chromium."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from tests.hub.browser.pages import PREPARE, Restarting, StartHub
from tests.hub.browser.script import Script
from tests.hub.browsing import Site, people_browser, visitor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture
def tabs(browser: Browser) -> Iterator[BrowserContext]:
    """The tabs of a profile; all of them are visible."""
    with visitor(browser) as context:
        context.add_init_script(PREPARE)
        yield context


@pytest.fixture
def hidden_tabs(browser: Browser, chromium: str, tmp_path: Path) -> Iterator[BrowserContext]:
    """The tabs of a profile; all but one are hidden, and may freeze."""
    with people_browser(browser, chromium, tmp_path / "chromium") as context:
        context.add_init_script(PREPARE)
        yield context


@pytest.fixture
def start_restarting(tmp_path: Path, shop: Site) -> Iterator[StartHub]:
    with ExitStack() as hubs:

        def start(**settings: str) -> Restarting:
            hub = Restarting(tmp_path, shop, **settings)
            hubs.callback(lambda: hub.process.close())
            return hub

        yield start


@pytest.fixture
def hub(start_restarting: StartHub) -> Restarting:
    return start_restarting()


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with closing(Script()) as script:
        yield script


@pytest.fixture
def page(tabs: BrowserContext, script: Script) -> Page:
    page = tabs.new_page()
    page.goto(script.origin)
    return page

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

from tests.asgi import application
from tests.hub.browsing import FLAGS, Site, visitor
from tests.hub.server.servers import ServerWire
from tests.hub.world import FakeConnection, World
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from playwright.sync_api import Browser, Page

    from hub.http.embedding import HubApplication
    from tests.hub.world import Wire


def _wire(wire: Callable[[], Wire]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "wire", staticmethod(wire))
        yield


@pytest.fixture(scope="module", params=["task", "detached"])
def streams(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module with each kind of stream: with a task, and without."""
    yield from _wire(partial(FakeConnection, detaches=request.param == "detached"))


@pytest.fixture(scope="module", params=["task", "detached", "asgi", "uvicorn"])
def connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module also with the connections that the hub has."""
    kind = FakeConnection if request.param in ("task", "detached") else ServerWire
    yield from _wire(partial(kind, detaches=request.param in ("detached", "uvicorn")))


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    """A site whose pages may read the responses of the hubs."""
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages of npm, and the scripts that use them."""
    directory = tmp_path_factory.mktemp("npm")
    for file in (Path(__file__).parents[1] / "npm").iterdir():
        if file.is_file():
            shutil.copy(file, directory)
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=directory, check=True)
    return directory


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page with its own profile."""
    with visitor(browser) as context:
        yield context.new_page()


@pytest.fixture(params=[True, False], ids=["both", "current"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[HubApplication]:
    """A hub of both dialects, and one of the current dialect alone."""
    async with application(classic=request.param) as app:
        yield app


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer(appendonly="yes")
    yield server
    server.close()


@pytest.fixture
def url_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    def url(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/log.db?synchronous=normal"
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url

    return url

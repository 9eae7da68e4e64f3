"""What the tests of publishing share: a hub, a reader of its updates, and requests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from hub.protocol.requests import read_updates
from tests.asgi import FORM, NDJSON, PATH, Answer, application, ask, bearer, current_token, follow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hub import Settings
    from hub.http.embedding import HubApplication
    from hub.protocol.updates import Update
    from tests.asgi import Following
    from tests.wire import Event

Fields = list[tuple[str, str]]


def parse_updates(body: bytes, type: str, settings: Settings) -> list[Update]:
    return [update for _, update in read_updates(body, type, settings)]


class Watched:
    """A hub and a reader of all its updates.

    By default, requests carry a token that allows everything; with `token=None`, none.
    """

    def __init__(self, app: HubApplication, reader: Following) -> None:
        self.app = app
        self._reader = reader
        self._everything = current_token(publish=["*"])

    async def post(self, body: bytes, type: tuple[str, str] | None = FORM, token: str | None = "") -> Answer:
        headers = [] if type is None else [type]
        if token is not None:
            headers.append(bearer(token or self._everything))
        return await ask(self.app, "POST", PATH, headers, body)

    async def post_form(self, *fields: tuple[str, str], token: str | None = "") -> Answer:
        return await self.post(urlencode(fields).encode(), FORM, token)

    async def post_lines(self, *lines: str, token: str | None = "") -> Answer:
        return await self.post("".join(f"{line}\n" for line in lines).encode(), NDJSON, token)

    async def arrived(self) -> list[Event]:
        """Return the events that the reader received since the last call."""
        reply = await self.post_form(("topic", "the end"), ("data", "the end"))
        assert reply.status == 200, reply.text
        return await self._reader.until("the end")


@contextlib.asynccontextmanager
async def watched(**settings: Any) -> AsyncIterator[Watched]:
    reader = [bearer(current_token(subscribe=["*"]))]
    async with (
        application(**{"subscriptions": False} | settings) as app,
        follow(app, ("match", "*"), headers=reader) as stream,
    ):
        yield Watched(app, stream)


@pytest.fixture(params=[True, False], ids=["both", "current"])
async def each_hub(request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    """A hub of both dialects, and one of the current dialect alone."""
    async with watched(classic=request.param) as hub:
        yield hub


@pytest.fixture
async def both_dialects() -> AsyncIterator[Watched]:
    async with watched() as hub:
        yield hub

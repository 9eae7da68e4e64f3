"""A request means the same wherever it is cut, with ASGI and without.

The protocols get the bytes from the test, and write to a transport without a socket.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import uvicorn
from uvicorn.server import ServerState

from hub import Settings, Update, create_app
from hub.development import DEVELOPMENT_TOKEN
from hub.server.http1 import HttpProtocol
from hub.server.open_connections import CONNECTIONS, Connections
from hub.server.plain import HubProtocol
from tests.hub.server.transports import Transport
from tests.waiting import until
from tests.wire import PATH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from hub.http.embedding import HubApplication

pytestmark = pytest.mark.anyio

KINDS = pytest.mark.parametrize("http", [HttpProtocol, HubProtocol], ids=["ASGI", "plain"])


class Place:
    """A hub, and a protocol for each connection to it."""

    def __init__(self, app: HubApplication, http: type[HttpProtocol]) -> None:
        self._http = http
        self._config = uvicorn.Config(app, http=http, ws="none", access_log=False, log_config=None)
        self._config.load()
        self._shared = Connections(publisher=app._publisher())

    async def answer(self, *pieces: bytes) -> bytes:
        """Return what the hub writes for pieces of requests, of which the last one ends
        the connection.
        """
        transport = Transport()
        protocol = self._http(self._config, ServerState(), {CONNECTIONS: self._shared})
        transport.protocol = protocol
        protocol.connection_made(transport)
        for piece in pieces:
            if not transport.is_over:
                protocol.data_received(piece)
                await asyncio.sleep(0)
        await until(transport.is_closing, pause=0)
        protocol.connection_lost(None)
        return re.sub(rb"date: [^\r]*|urn:uuid:[-0-9a-f]{36}", b"", transport.written)


@pytest.fixture
async def app() -> AsyncIterator[HubApplication]:
    app = create_app(Settings(dev=True, retry=0, max_lifetime=0, subscriptions=False))
    async with app.running():
        await app.hub.publish(*[Update(("a",), str(n), id=f"é{n}") for n in range(3)])
        yield app


def request(method: str, target: str, *lines: str, body: bytes = b"") -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {DEVELOPMENT_TOKEN}", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + body


FORM = "Content-Type: application/x-www-form-urlencoded"
BODY = "topic=b&id=f\u00fcr&data=für".encode()
REQUESTS = {
    "a cursor": request("GET", f"{PATH}?match=a", "Last-Event-ID: é1", "Prefer: wait=0"),
    "a target": request("GET", f"{PATH}?match=a&last_event_id=é1", "X-Name: Jürgen", "Prefer: wait=0"),
    "a target after empty lines": b"\r\n\r\n"
    + request("GET", f"{PATH}?match=é", "Prefer: wait=0", "Last-Event-ID: é1"),
    "an upgrade": request("GET", f"{PATH}?match=a", "Upgrade: h2c", "Last-Event-ID: é1", "Prefer: wait=0"),
    "a query": request("QUERY", PATH, "Last-Event-ID: é1", "Prefer: wait=0", FORM, body=b"match=a"),
    "an update": request("POST", PATH, "X-Name: Jürgen", FORM, body=BODY),
    "an update for an upgrade": request("POST", PATH, "Upgrade: h2c", FORM, body=BODY).replace(
        b" close", b" close, upgrade"
    ),
    "two requests": request("POST", PATH, "X-Name: Jürgen", FORM, body=BODY).replace(b"Connection: close\r\n", b"")
    + request("GET", f"{PATH}?match=a", "Last-Event-ID: é1", "Prefer: wait=0"),
    "a refusal": request("GET", f"{PATH}/é", "Last-Event-ID: é1"),
}


@KINDS
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_means_the_same_wherever_it_is_cut(
    app: HubApplication, http: type[HttpProtocol], name: str, chance: Random
) -> None:
    place, whole = Place(app, http), REQUESTS[name]
    expected = await place.answer(whole)
    assert expected.startswith(b"HTTP/1.1 404" if name == "a refusal" else b"HTTP/1.1 200")
    if "last-event-id" in expected.decode("utf-8"):
        assert "mercure-last-event-id: é1\r\n".encode() in expected
    if name == "an update":
        assert expected.endswith("\r\n\r\nfür".encode())
    for cut in range(1, len(whole)):
        assert await place.answer(whole[:cut], whole[cut:]) == expected, whole[:cut]
    assert await place.answer(*[whole[n : n + 1] for n in range(len(whole))]) == expected
    assert await place.answer(*re.split(rb"(?<=\r\n)|(?=\r\n)", whole)) == expected
    for _ in range(30):
        cuts = sorted(chance.sample(range(1, len(whole)), 4))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        assert await place.answer(*pieces) == expected, pieces


async def test_the_query_of_a_target_is_escaped_as_browsers_do(app: HubApplication) -> None:
    plain = request("GET", f"{PATH}?match=a&last_event_id={quote('é1')}", "Prefer: wait=0")
    raw = request("GET", f"{PATH}?match=a&last_event_id=é1", "Prefer: wait=0")
    place = Place(app, HttpProtocol)
    assert await place.answer(raw) == await place.answer(plain)

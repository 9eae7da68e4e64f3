"""The fuzzer: random requests in each dialect and over a socket, and past findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.asgi import FORM, PATH, application, ask, bearer, current_token
from tests.hub.fuzz import DIALECTS, Asker, Summary, fuzz, fuzz_socket

if TYPE_CHECKING:
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "dialect", DIALECTS, ids=lambda dialect: "-".join(name for name, on in dialect.items() if on) or "bare"
)
async def test_n94_n95_r23_r24_every_response_is_well_formed_for_its_route(dialect: dict[str, Any]) -> None:
    summary = Summary()
    await fuzz(500, DIALECTS.index(dialect), summary, **dialect)
    assert summary.requests == 500
    assert summary.published > 20


async def test_a_hub_survives_bytes_that_are_not_http(hub: HubProcess) -> None:
    summary = Summary()
    await fuzz_socket(hub.port, 300, 1, summary)
    assert {200, 400, 401} <= {status for _, _, status in summary.answers}
    assert hub.process.poll() is None  # the fixture also checks that the hub logs no error


def test_the_same_seed_makes_the_same_requests() -> None:
    one, another = (Asker(7, classic=True) for _ in range(2))
    assert [one.request().target for _ in range(50)] == [another.request().target for _ in range(50)]


@pytest.mark.parametrize("path", [PATH + "/", PATH + "%0A", PATH + "/debug/debugger.js%0A", "/%0A", PATH + "/?a=%FF"])
async def test_r75_n6_paths_are_exact_and_there_are_no_redirects(path: str) -> None:
    async with application() as app:
        headers = [FORM, bearer(current_token(["*"])), ("host", "evil.example")]
        for method in ("GET", "POST"):
            reply = await ask(app, method, path, headers, b"topic=urn:a")
            assert reply.status == 404 or (method, reply.status) == ("POST", 405)
            assert "location" not in reply.headers


@pytest.mark.parametrize("origin", [b"https://\xff.shop.example", "https://é.shop.example".encode()])
async def test_r5_n97_a_wildcard_only_matches_origins_that_browsers_send(origin: bytes) -> None:
    async with application(cors_origins=["https://*.shop.example"]) as app:
        reply = await ask(app, "HEAD", PATH + "?match=a", [("origin", origin)])
        assert "access-control-allow-origin" not in reply.headers


async def test_a_query_that_is_not_utf_8_is_not_a_server_error() -> None:
    async with application() as app:
        assert (await ask(app, "GET", b"/nowhere/?\xff")).status == 404
        assert (await ask(app, "GET", PATH.encode() + b"/?\xff")).status == 404

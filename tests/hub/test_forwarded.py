"""What uvicorn makes of the header fields of one proxy or two, as hub/README.md says it."""

from __future__ import annotations

import logging
import re
from typing import Any, cast

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tests.asgi import PATH, application, ask

pytestmark = pytest.mark.anyio

NGINX = ("127.0.0.1", 9)
CDN = "198.51.100.9"
CLIENT = "203.0.113.7"


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "address"),
    [
        ("127.0.0.1", NGINX, CLIENT, CLIENT),
        ("127.0.0.1", NGINX, f"{CLIENT}, {CDN}", CDN),
        ("127.0.0.1,198.51.100.0/24", NGINX, f"{CLIENT}, {CDN}", CLIENT),
        ("127.0.0.1,198.51.100.0/24", NGINX, f"192.0.2.1, {CLIENT}, {CDN}", CLIENT),
        ("*", NGINX, f"192.0.2.1, {CLIENT}, {CDN}", "192.0.2.1"),
        ("127.0.0.1", ("10.0.0.1", 9), CLIENT, "10.0.0.1"),
        ("127.0.0.1", None, CLIENT, ""),  # a Unix socket
        ("*", None, CLIENT, CLIENT),
    ],
)
async def test_the_address_of_a_client_behind_proxies(
    trusted: str, peer: Any, forwarded: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with application() as app:
        behind: Any = ProxyHeadersMiddleware(cast("Any", app), trusted_hosts=trusted)
        await ask(behind, "GET", f"{PATH}?Match=a", [("x-forwarded-for", forwarded)], client=peer)
    [line] = [record.getMessage() for record in caplog.records if "request refused" in record.getMessage()]
    found = re.search(r"address\W+([0-9.]+)", line)
    assert (found[1] if found else "") == address


@pytest.mark.parametrize(
    ("trusted", "peer", "proto", "status"),
    [
        ("127.0.0.1", NGINX, "https", 200),
        ("127.0.0.1", NGINX, "https, http", 421),
        ("127.0.0.1", ("10.0.0.1", 9), "https", 421),
        ("127.0.0.1", None, "https", 421),  # a Unix socket
        ("*", None, "https", 200),
    ],
)
async def test_the_scheme_of_a_request_behind_proxies(trusted: str, peer: Any, proto: str, status: int) -> None:
    async with application(public_urls="https://hub.example") as app:
        behind: Any = ProxyHeadersMiddleware(cast("Any", app), trusted_hosts=trusted)
        headers = [("host", "hub.example"), ("x-forwarded-proto", proto)]
        answer = await ask(behind, "GET", f"{PATH}?match=a", headers, client=peer, scheme="http")
    assert answer.status == status
    assert status == 200 or f"does not take X-Forwarded-Proto: '{proto}'" in answer.detail

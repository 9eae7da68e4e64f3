"""The memory of a hub process comes back after clients have gone."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2
import pytest

from skipfilter import UrlPattern
from tests.asgi import PATH
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import HubProcess

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


def patterns_of(client: str, groups: str) -> str:
    return "&".join(f"match_urlpattern={quote(f'https://e.com/{client}/{n}/:x{groups}')}" for n in range(99))


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def connections_to(port: int) -> int:
    """Return the number of connections at a local port that a process still has."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    listens, nobody = "0A", "0"
    return sum(one[1].endswith(f":{port:04X}") and one[3] != listens and one[9] != nobody for one in lines[1:])


@pytest.mark.parametrize("groups", ["", "(\\w\\w.......)", "((?:\\w{1,20}-){20})"], ids=["plain", "groups", "large"])
@pytest.mark.parametrize("preference", ["Prefer: wait=0\r\n", ""], ids=["readers", "streams"])
async def test_n23_the_memory_of_url_patterns_comes_back_when_the_clients_have_gone(
    start_hub: Callable[..., HubProcess], preference: str, groups: str
) -> None:
    # The clients of one round fit, and one more does not: they have one address, which
    # may hold 88 %.  Presence updates would fill the history.
    cost = UrlPattern(f"https://e.com/:x{groups}").cost
    bound = str(1_400 * max(cost, 1))
    hub = start_hub(HUB_MAX_URL_PATTERNS=bound, HUB_CLIENT_SHARE="1", HUB_SUBSCRIPTIONS="0")
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {hub.token}"}) as client:
        for _ in range(100):
            await client.post(hub.url, data={"topic": "big", "data": "x" * 60_000})
    address = ("127.0.0.1", hub.port)

    async def connect(n: str) -> socket.socket:
        """Return a connection that reads only the beginning of its response."""
        while True:
            one = socket.create_connection(address)
            head = f"GET {PATH}?last_event_id=earliest&match=big&{patterns_of(n, groups)} HTTP/1.1"
            one.sendall(f"{head}\r\nHost: x\r\n{preference}\r\n".encode())
            if await asyncio.to_thread(one.recv, 12) == b"HTTP/1.1 200":
                return one
            one.close()  # 429: those before it are still leaving

    await until(lambda: connections_to(hub.port) == 0)
    before = memory_of(hub.process.pid)
    after: list[float] = []
    async with asyncio.timeout(HANG):
        for _ in range(3):
            ones = [await connect(f"{len(after)}-{n}") for n in range(12)]
            for one in ones:
                one.close()
            (await connect("last")).close()  # there is room, so the others have gone
            await until(lambda: connections_to(hub.port) == 0)  # plain patterns have room anyway
            after.append(memory_of(hub.process.pid))
    assert after[0] - before <= 64
    # The automata of two more rounds would take 21 MB, and the large ones more.
    assert after[2] - after[0] <= 16, after

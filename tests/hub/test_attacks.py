"""Greedy clients meet their own limits, and the others meet none.

Each attack uses the default settings, and as many clients as it needs to refuse all
others if there were no shares.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from hub.auth.grant import ANONYMOUS
from hub.errors import LimitExceeded
from hub.protocol.updates import Update
from tests.asgi import PATH, application, ask, bearer, current_token, follow, publish
from tests.waiting import until

if TYPE_CHECKING:
    from hub.delivery.subscriber import Subscriber
    from hub.http.application import HubApplication
    from tests.asgi import Following

pytestmark = pytest.mark.anyio


class Attack:
    """Open streams, by the address of their clients."""

    def __init__(self, app: HubApplication, stack: contextlib.AsyncExitStack) -> None:
        self.app = app
        self.open: dict[str, list[Following]] = {}
        self._stack = stack

    async def subscribe(self, address: str, type: str, *patterns: str, token: str = "") -> Following:
        """Open one stream, or be refused."""
        asked = [("match_" + type, pattern) for pattern in patterns]
        headers = [bearer(token)] if token else []
        stream = await self._stack.enter_async_context(follow(self.app, *asked, headers=headers, client=(address, 1)))
        if stream.status == 200:
            self.open.setdefault(address, []).append(stream)
        else:
            assert stream.status == 429
        return stream


@contextlib.asynccontextmanager
async def attack():  # type: ignore[no-untyped-def]
    async with application(subscriptions=False) as app, contextlib.AsyncExitStack() as stack:
        yield Attack(app, stack)


async def test_n23_ten_greedy_clients_leave_room_for_the_patterns_of_twenty_others() -> None:
    async with attack() as here:
        # 1. Ten clients take whatever they get: all together a little more than half.
        for n in range(10):
            for connection in range(10):
                await here.subscribe(f"192.0.2.{n}", "urlpattern", *(f"/{n}/{connection}/{p}/(a)" for p in range(100)))
        used = here.app.state.hub.shares.url_patterns.used
        assert 5_000 <= used <= 5_000 + 10 * 200
        # 2. Twenty others come, with 2,000 patterns, and all are served.
        for n in range(20):
            for connection in range(5):
                patterns = [f"/of/{n}/{connection}/{p}/(a)" for p in range(20)]
                assert (await here.subscribe(f"198.51.100.{n}", "urlpattern", *patterns)).status == 200
        # 3. The greedy ones keep their streams, and get no more.
        refused = await ask(here.app, "GET", f"{PATH}?match_urlpattern=/more/(a)", client=("192.0.2.0", 1))
        assert (refused.status, refused.headers["retry-after"]) == (429, "10")
        assert refused.detail == (
            "the limit of 200 URL Patterns with groups for one client is reached (client_share); "
            "it applies while more than half of 10,000 are in use (max_url_patterns)"
        )
        await publish(here.app, current_token(["*"]), ("topic", "/0/0/7/a"), ("data", "for the first"))
        assert (await here.open["192.0.2.0"][0].next_event()).data == "for the first"
        # 4. A pattern that is in use already costs nothing, for them neither.
        assert (await here.subscribe("192.0.2.0", "urlpattern", "/of/0/0/0/(a)")).status == 200


async def test_n23_similar_templates_of_one_client_leave_room_for_those_of_another() -> None:
    def alike(n: int) -> str:
        return "https://shop.example/{+a}" + "{b}" * (n % 16) + "{+c}" * (n // 16)

    async with attack() as here:
        statuses = [(await here.subscribe("192.0.2.1", "uritemplate", alike(n))).status for n in range(600)]
        served = statuses.index(429)
        assert served == 512  # half of `max_alike`
        assert set(statuses[served:]) == {429}
        for n in range(1, 21):
            stream = await here.subscribe("192.0.2.2", "uritemplate", "https://shop.example/{page}" + "{+a}" * n)
            assert stream.status == 200
        other = await here.subscribe("192.0.2.2", "uritemplate", "https://shop.example/{page}" + "{+a}" * 21)
        assert other.status == 429  # now it has its share
        # What is in use already costs nothing, and what leaves makes room.
        assert (await here.subscribe("192.0.2.1", "uritemplate", "https://shop.example/{page}{+a}")).status == 200
        count = here.app.state.hub.delivery.connection_count
        here.open["192.0.2.2"][5].go()
        await until(lambda: here.app.state.hub.delivery.connection_count < count)
        last = await here.subscribe("192.0.2.2", "uritemplate", "https://shop.example/{page}" + "{+a}" * 21)
        assert last.status == 200
        await publish(here.app, current_token(["*"]), ("topic", "https://shop.example/shoe"), ("data", "x"))
        assert (await here.open["192.0.2.2"][0].next_event()).data == "x"


async def _readers(app: HubApplication, address: str, count: int) -> list[Subscriber]:
    """Begin up to `count` responses to `Prefer: wait=0`, of which none is complete."""
    readers = []
    with contextlib.suppress(LimitExceeded):
        for _ in range(count):
            reader, _ = await app.state.hub.subscribe(
                [("exact", "a")], ANONYMOUS, "earliest", address=address, waits=False
            )
            readers.append(reader)
    return readers


async def test_n23_a_flood_of_readers_leaves_room_for_other_readers() -> None:
    async with application(subscriptions=False) as app:
        hub = app.state.hub
        await hub.publish(Update(("a",)))
        flood = await _readers(app, "192.0.2.1", 1_000)
        assert len(flood) == 100
        others = [await _readers(app, f"198.51.100.{n}", 9) for n in range(20)]
        assert [len(readers) for readers in others] == [4] * 20
        refused = await ask(app, "GET", f"{PATH}?match=a", [("Prefer", "wait=0")], client=("192.0.2.1", 1))
        assert (refused.status, refused.headers["retry-after"]) == (429, "10")
        assert "readers that do not wait for one client is reached (client_share)" in refused.detail
        # A stream is no reader, so it is served.
        assert (await ask(app, "GET", f"{PATH}?match=a", client=("192.0.2.1", 1))).status == 200
        for reader in flood:
            reader.leave()
        assert len(await _readers(app, "192.0.2.1", 9)) == 9

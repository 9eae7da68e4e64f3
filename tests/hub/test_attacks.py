"""Greedy clients meet their own limits, and the others meet none.

Each attack uses the default settings, and as many clients as it needs to refuse all
others if there were no shares.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from hub.auth.grant import ANONYMOUS, CompiledGrant
from hub.delivery.subscriber import Payer
from hub.errors import LimitExceeded
from hub.http import request as requests
from hub.protocol.updates import Update
from tests.asgi import FORM, PATH, application, ask, bearer, current_token, follow, publish, scope_of
from tests.hub.world import plain, world
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import Message

    from hub.delivery.subscriber import Subscriber
    from hub.history.base import Change, Entry
    from hub.http.embedding import HubApplication
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
async def attack() -> AsyncIterator[Attack]:
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


@pytest.mark.parametrize(
    ("bound", "matcher"),
    [
        ({"max_url_patterns": 100, "client_share": 0.04}, ("match_urlpattern", "/{}/(a)")),
        ({"max_matchers_memory": 2**20}, ("match", "{} " + "x" * 4_000)),
        ({"max_alike": 100, "client_share": 0.04}, ("match_uritemplate", "https://shop.example/{{+a}}{}")),
    ],
    ids=["url patterns", "memory", "alike"],
)
async def test_n23_the_patterns_of_many_networks_of_one_household_leave_room_for_those_of_others(
    bound: dict[str, float], matcher: tuple[str, str]
) -> None:
    async with application(subscriptions=False, **bound) as app, contextlib.AsyncExitStack() as stack:

        async def subscribe(address: str, number: int) -> int:
            asked = (
                matcher[0],
                matcher[1].format("{b}" * (number % 16) + "{+c}" * (number // 16) if "shop" in matcher[1] else number),
            )
            return (await stack.enter_async_context(follow(app, asked, client=(address, 1)))).status

        statuses = [await subscribe(f"2001:db8:0:{number:x}::1", number) for number in range(200)]
        served = statuses.index(429)
        assert set(statuses[served:]) == {429}  # half, and no network gets more: it has more than twice a share
        for number in range(200, 210):
            assert await subscribe(f"192.0.2.{number}", number) == 200


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


async def test_n23_long_patterns_of_one_client_leave_memory_for_those_of_another() -> None:
    def long(client: str, n: int) -> tuple[str, str]:
        return "match", f"{client} {n} " + "x" * 4_000

    async with application(subscriptions=False, max_matchers_memory=2**20) as app, contextlib.AsyncExitStack() as stack:

        async def subscribe(client: str, count: int) -> int:
            asked = [long(client, n) for n in range(count)]
            return (await stack.enter_async_context(follow(app, *asked, client=(client, 1)))).status

        statuses = [await subscribe(f"192.0.2.{n % 3}", n // 3 + 1) for n in range(30)]
        assert 429 in statuses
        assert app.state.hub.shares.matchers.used < 2**19 + 20_000
        for client in ("198.51.100.1", "198.51.100.2"):
            assert await subscribe(client, 1) == 200
        assert await subscribe("192.0.2.1", 15) == 429
        assert await subscribe("192.0.2.1", 1) == 200  # a pattern that is in use already costs nothing


async def test_n23_a_similar_template_counts_for_the_client_that_has_had_it_for_the_longest_time() -> None:
    def alike(n: int) -> str:
        return "https://shop.example/{+a}" + "{b}" * n

    settings = {"subscriptions": False, "max_alike": 16, "client_share": 0.25}
    async with application(**settings) as app, contextlib.AsyncExitStack() as stack:

        async def subscribe(client: str, *numbers: int) -> Following:
            asked = [("match_uritemplate", alike(n)) for n in numbers]
            return await stack.enter_async_context(follow(app, *asked, client=(client, 1)))

        first = await subscribe("192.0.2.1", *range(1, 9))  # half
        assert (await subscribe("192.0.2.2", *range(1, 9))).status == 200  # in use already
        assert (await subscribe("192.0.2.1", 9)).status == 429
        assert (await subscribe("192.0.2.2", 9)).status == 200  # nothing else counts for this one
        first.go()
        await until(lambda: app.state.hub.delivery.connection_count == 2)
        assert (await subscribe("192.0.2.2", 10)).status == 429  # now all nine do
        assert (await subscribe("192.0.2.1", 10)).status == 200


async def _readers(app: HubApplication, address: str, count: int) -> list[Subscriber]:
    """Begin up to `count` responses to `Prefer: wait=0`, of which none is complete."""
    readers = []
    with contextlib.suppress(LimitExceeded):
        for _ in range(count):
            reader, _ = await app.state.hub.subscribing.admit(
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


async def test_n23_clients_without_a_token_leave_the_last_connections_to_those_with_one() -> None:
    async with application(subscriptions=False, max_connections=32) as app, contextlib.AsyncExitStack() as stack:

        async def subscribe(address: str, *headers: tuple[str | bytes, str | bytes]) -> int:
            """Return how many streams there are afterwards."""
            await stack.enter_async_context(follow(app, ("match", "a"), headers=headers, client=(address, 1)))
            return app.hub.delivery.connection_count

        assert [await subscribe(f"192.0.2.{n}") for n in range(32)] == [*range(1, 31), 30, 30]
        token = bearer(current_token(subscribe=["a"]))
        assert [await subscribe(f"198.51.100.{n}", token) for n in range(3)] == [31, 32, 32]


async def test_n23_one_client_with_most_of_the_connections_gets_429_and_another_a_stream() -> None:
    async with application(subscriptions=False, max_connections=100) as app, contextlib.AsyncExitStack() as stack:

        async def subscribe(address: str) -> int:
            return (await stack.enter_async_context(follow(app, ("match", "a"), client=(address, 1)))).status

        statuses = [await subscribe("192.0.2.1") for _ in range(100)]
        served = statuses.index(429)
        assert 50 < served < 94  # it is refused before the hub is full for all without a token
        assert set(statuses[served:]) == {429}
        assert await subscribe("192.0.2.2") == 200
        assert app.hub.delivery.connection_count == served + 1


PATIENT = 3_600.0
"""Seconds that a body may take, so that no test comes near."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_GRACE", PATIENT)


@contextlib.asynccontextmanager
async def _unfinished(app: HubApplication, address: str, count: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Keep up to `count` requests in progress: a QUERY whose body does not end."""
    assert app.hub.settings.body_timeout == requests.BODY_GRACE == PATIENT  # none of them ends by itself
    over = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    answers: list[Message] = []

    async def receive() -> Message:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answers.append(message)

    for _ in range(count):
        scope = scope_of("QUERY", PATH, [FORM], client=(address, 1))
        tasks.append(asyncio.ensure_future(app(scope, receive, send)))
    await asyncio.sleep(0)
    refused = [message["status"] for message in answers if message["type"] == "http.response.start"]
    assert set(refused) <= {429}
    try:
        yield [task for task in tasks if not task.done()]
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def test_n23_requests_that_do_not_end_leave_room_for_those_of_others(patient: None) -> None:
    async with (
        application(subscriptions=True, body_timeout=PATIENT) as app,
        _unfinished(app, "192.0.2.1", 3_000) as flood,
    ):
        assert len(flood) == 2_000
        for path in (PATH, PATH + "/subscriptions"):
            refused = await ask(app, "HEAD", path, client=("192.0.2.1", 1))
            assert (refused.status, refused.headers["retry-after"]) == (429, "10")
        for path in (PATH + "/health/live", "/mercure/health/default/ready", "/healthz"):
            assert (await ask(app, "GET", path, client=("192.0.2.1", 1))).status == 200
        async with _unfinished(app, "192.0.2.2", 100) as others:
            assert len(others) == 80
        assert (await ask(app, "GET", f"{PATH}?match=a", client=("192.0.2.3", 1))).status == 200
        await publish(app, current_token(["*"]), ("topic", "a"))
    assert app.state.hub.shares.requests.clients == {}


async def test_n23_many_networks_of_one_household_keep_no_publisher_out(patient: None) -> None:
    """A home has a /56, so 256 networks of 64 bits; a rented server has a /48."""
    async with application(max_requests=400, body_timeout=PATIENT) as app, contextlib.AsyncExitStack() as stack:
        held = 0
        for network in range(64):
            address = f"2001:db8:0:{network:02x}::1"
            held += len(await stack.enter_async_context(_unfinished(app, address, 8)))
        assert held <= 200 + 16  # half, and twice the share of a client
        for network in range(64):
            address = f"2001:db8:0:{network:02x}00::1"
            held += len(await stack.enter_async_context(_unfinished(app, address, 8)))
        assert held <= 200 + 2 * 16  # four times the share
        assert (await ask(app, "QUERY", PATH, [FORM], b"match=a", client=("192.0.2.1", 1))).status == 200
        await publish(app, current_token(["*"]), ("topic", "a"))
    assert app.state.hub.shares.requests.clients == {}


async def test_n23_clients_without_a_token_keep_no_publisher_out(patient: None) -> None:
    """Fifty addresses fill all that is not kept for clients with a token."""
    async with application(max_requests=400, body_timeout=PATIENT) as app, contextlib.AsyncExitStack() as stack:
        for number in range(60):
            await stack.enter_async_context(_unfinished(app, f"192.0.2.{number}", 8))
        assert (await ask(app, "QUERY", PATH, [FORM], b"match=a", client=("198.51.100.1", 1))).status == 429
        assert app.state.hub.shares.requests.used == 400 - 400 // 16
        for subject in ("ann", None):  # also with a token that the hub has never seen
            await publish(app, current_token(["*"], subject=subject), ("topic", "a"))
            headers = [FORM, bearer(current_token(subscribe=["*"], subject=subject))]
            assert (await ask(app, "QUERY", PATH, headers, b"match=a")).status == 200


async def test_n23_no_body_is_read_for_a_client_without_a_grant() -> None:
    read: list[str] = []

    async def receive() -> Message:
        read.append("read")
        return {"type": "http.request", "body": b"match=a", "more_body": True}

    async with application(anonymous=False) as app:
        for method, headers in (("QUERY", [FORM]), ("POST", [FORM]), ("QUERY", [FORM, bearer("a.b.c")])):
            answers: list[Message] = []

            async def send(message: Message, answers: list[Message] = answers) -> None:
                answers.append(message)

            await app(scope_of(method, PATH, headers), receive, send)
            assert answers[0]["status"] == 401
        assert read == []


async def test_n23_streams_are_no_requests_in_progress() -> None:
    async with application(subscriptions=False, max_requests=1) as app, contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            assert (await stack.enter_async_context(follow(app, ("match", "a")))).status == 200
        assert app.state.hub.shares.requests.used == 0


async def test_n23_h7_presence_updates_of_one_client_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The history is slow, and a client comes and goes."""
    monkeypatch.setattr("hub.node.presence.ANNOUNCE_TIMEOUT", 0)
    async with world(plain(subscriptions=True, max_announcements=200, client_share=0.05)) as here:
        hub, over = here.hub, asyncio.Event()
        announce = hub.history.announce

        async def slowly(changes: Sequence[Change]) -> list[Entry]:
            await over.wait()
            return await announce(changes)

        hub.history.announce = slowly  # type: ignore[method-assign]
        patterns = [f"p{n}" for n in range(10)]
        flood = [await here.connect(*patterns, address="one") for _ in range(12)]
        others = [await here.connect("a", address=f"other {n}") for n in range(20)]
        await here.settle()
        assert hub.shares.announcements.clients == {"address one": 100} | {f"address other {n}": 1 for n in range(20)}
        for refused in flood[10:]:
            error = refused.task.exception()
            assert isinstance(error, LimitExceeded)
            assert "presence updates in the queue" in str(error)
        assert not any(one.task.done() for one in others)
        # Departures always count, and are announced.
        for one in flood[:10]:
            one.go()
        await here.settle()
        assert hub.shares.announcements.held(Payer("address one")) == 200
        over.set()
        await here.caught_up()
        assert hub.shares.announcements.clients == {}
        for one in others:
            one.go()


async def test_n23_if_all_come_from_one_address_one_warning_says_what_the_proxy_must_send(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def subscribe(count: int, address: str, grant: CompiledGrant = ANONYMOUS) -> None:
        for _ in range(count):
            await app.state.hub.subscribing.admit([], grant, address=address)

    def warned() -> list[str]:
        return [record.getMessage() for record in caplog.records if "same address" in record.getMessage()]

    for others in (0, 3):
        caplog.clear()
        async with application(subscriptions=False) as app:
            await subscribe(others, "192.0.2.7")
            await subscribe(99 - others, "10.0.0.1")
            assert warned() == []
            await subscribe(201, "10.0.0.1")
            (warning,) = warned()
            assert "the proxy must send X-Forwarded-For, and FORWARDED_ALLOW_IPS must list its address" in warning
            assert "10.0.0.1" in warning
    caplog.clear()
    async with application(subscriptions=False) as app:
        for n in range(200):
            await subscribe(1, f"10.0.0.{n}")
            await subscribe(1, "10.0.0.1", CompiledGrant(subject=" alice"))
        assert warned() == []

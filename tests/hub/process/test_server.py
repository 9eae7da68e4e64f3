"""A hub in its own process, over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from joserfc import jwk, jwt

from hub.client import NotAHub, Refused, Unreachable
from hub.development import DEVELOPMENT_KEY
from hub.node.matchers import MatcherCompiler
from tests.asgi import application, ask
from tests.conftest import HubProcess
from tests.hub.clients import CLIENTS
from tests.hub.metrics.reading import metrics_at
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, Event, bearer, publish, request, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.wire import Reply

pytestmark = pytest.mark.anyio

END = "https://example.com/end"
QUIET: dict[str, Any] = {"HUB_SUBSCRIPTIONS": "0", "HUB_RETRY": "0"}
"""Only published updates and heartbeats are sent."""
COMPILER = MatcherCompiler("https://hub.example/.well-known/mercure")


def classic_token(**claim: Any) -> str:
    return jwt.encode({"alg": "HS256"}, {"mercure": claim}, jwk.OctKey.import_key(DEVELOPMENT_KEY))


@pytest.fixture(scope="module", params=["--detach", "--no-detach"])
def detach(request: pytest.FixtureRequest) -> str:
    """Run the tests with both kinds of streams."""
    kind: str = request.param
    return kind


@pytest.fixture
def hub(start_hub: Callable[..., HubProcess], detach: str) -> HubProcess:
    return start_hub(detach, **QUIET)


@pytest.fixture(scope="module")
def shared_hub(detach: str) -> Iterator[HubProcess]:
    hub = HubProcess(detach, HUB_METRICS_PORT="0", **QUIET)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def strict_hub(detach: str) -> Iterator[HubProcess]:
    """A hub with short timeouts and a small limit of bodies."""
    hub = HubProcess(detach, **QUIET, HUB_HEARTBEAT="0.1", HUB_BODY_TIMEOUT="0.1", HUB_MAX_BODY="100")
    yield hub
    hub.close()


async def noticed(hub: HubProcess, what: str, count: int) -> None:
    """Wait until the hub has logged `what` at least `count` times."""
    await until(lambda: hub.log().count(what) >= count)


async def test_n26_n28_n9_v6_r20_r21_r73_an_update_arrives_as_these_bytes(shared_hub: HubProcess) -> None:
    async with await subscribe(shared_hub, ("topic", "https://example.com/books/{id}")) as reader:
        assert reader.headers["content-type"].startswith("text/event-stream")
        assert reader.headers["x-accel-buffering"] == "no"
        assert "mercure-last-event-id" not in reader.headers
        fields = [
            ("topic", "https://example.com/books/1"),
            ("data", "one\r\ntwo\rthree"),
            ("id", "urn:x"),
            ("type", "t"),
            ("retry", "5"),
        ]
        assert await publish(shared_hub, *fields) == "urn:x"
        chunk = await asyncio.wait_for(anext(reader.chunks()), HANG)
        assert chunk == b"id: urn:x\nevent: t\ndata: one\ndata: two\ndata: three\nretry: 5\n\n"


async def test_n40_n55_v22_r22_publishing_answers_200_with_the_id_as_text(shared_hub: HubProcess) -> None:
    async with await request(shared_hub, "POST", PATH, [FORM, bearer(shared_hub.token)], b"topic=a&data=b") as reply:
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert (await reply.body()).startswith(b"urn:uuid:")


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"data=x", [FORM], 400, 'missing \\"topic\\"'),
        (b"topic=a&data=%FF", [FORM], 400, "not valid UTF-8"),
        (
            b"topic=a",
            [("content-type", "application/xml")],
            400,
            "application/x-ndjson, not 'application/xml'",
        ),
        (b"topic=a%00b", [FORM], 400, "U+0000"),
        (b"topic=*", [FORM], 400, "'*' is reserved"),
        (b"topic=/.well-known/mercure/x", [FORM], 400, "is reserved"),
        (b"topic=a&retry=%2B5", [FORM], 400, "retry '+5'"),
        (b"topic=a&id=%23x", [FORM], 400, "id '#x' is reserved"),
        (b"topic=a&data=" + b"x" * 2**20, [FORM], 413, "longer than 1048576 bytes"),
        (b"topic=a&" * 1001, [FORM], 413, "1001 topics"),
    ],
)
async def test_n94_n41_n43_n44_n48_n51_n53_n56_t50_the_response_names_the_rule_that_a_publish_request_breaks(
    shared_hub: HubProcess, body: bytes, headers: list[tuple[str, str]], status: int, told: str
) -> None:
    async with await request(shared_hub, "POST", PATH, [*headers, bearer(shared_hub.token)], body) as reply:
        assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
        assert told in (await reply.body()).decode()
    assert await publish(shared_hub, ("topic", "a"))  # the hub goes on


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("", 400, 'missing \\"match\\" or \\"topic\\"'),
        ("x=1", 400, 'missing \\"match\\" or \\"topic\\"'),
        ("match_uritemplate=%7Bid", 400, "never closed"),
        ("match_regexp=a", 400, "'match_regexp' is none of match, match_exact"),
        ("MATCH=a", 400, "'MATCH' is none of"),
        ("topic=%FF", 400, "not valid UTF-8"),
        ("topic=a%E2%80%8Bb", 400, "U+200B"),
        ("match=" + "a" * 4097, 400, "4097 bytes"),
        ("&".join(["match=a"] * 101), 400, "101 matchers"),
        ("&".join(["topic=a"] * 1001), 400, "1001 topics"),
    ],
)
async def test_n94_n16_n17_n18_n20_n3_t60_t39_the_response_names_the_rule_that_a_subscribe_request_breaks(
    shared_hub: HubProcess, query: str, status: int, told: str
) -> None:
    async with await request(shared_hub, "GET", f"{PATH}?{query}") as reply:
        assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
        assert told in (await reply.body()).decode()
    async with await subscribe(shared_hub, ("topic", "a")) as reader:
        assert reader.status == 200


@pytest.mark.parametrize(
    ("method", "headers", "status", "error"),
    [
        ("POST", [], 401, None),
        ("POST", [("authorization", "Bearer nonsense")], 401, "invalid_token"),
        ("GET", [("authorization", "Bearer nonsense")], 401, "invalid_token"),
        ("GET", [("authorization", "Basic abc")], 400, "invalid_request"),
        ("GET", [bearer("a"), bearer("b")], 400, "invalid_request"),
        ("POST", [bearer(classic_token(publish=["b"]))], 403, "insufficient_scope"),
        ("POST", [bearer(classic_token())], 403, "insufficient_scope"),
        (
            "POST",
            [("cookie", f"mercureAuthorization={classic_token(publish=['*'])}")],
            400,
            "invalid_request",
        ),
    ],
)
async def test_n90_n91_n92_n93_n95_n154_n163_an_insufficient_token_gets_the_challenge(
    shared_hub: HubProcess, method: str, headers: list[tuple[str, str]], status: int, error: str | None
) -> None:
    metadata = f'resource_metadata="{shared_hub.origin}/.well-known/oauth-protected-resource{PATH}"'
    challenge = f"Bearer {metadata}" if error is None else f'Bearer error="{error}", {metadata}'
    async with await request(shared_hub, method, f"{PATH}?topic=a", [FORM, *headers], b"topic=a") as reply:
        assert (reply.status, reply.headers["www-authenticate"]) == (status, challenge)
    assert "nonsense" not in shared_hub.log()


async def test_r23_n10_other_methods_are_not_allowed_and_other_paths_not_found(shared_hub: HubProcess) -> None:
    async with await request(shared_hub, "DELETE", PATH) as reply:
        assert reply.status == 405
        assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "POST", "QUERY"}
    async with await request(shared_hub, "GET", "/elsewhere") as reply:
        assert reply.status == 404


async def test_n56_t22_r3_a_body_at_the_limit_is_accepted_and_an_endless_one_is_refused_early(
    strict_hub: HubProcess,
) -> None:
    hub = strict_hub
    body = b"topic=a&data=".ljust(100, b"x")
    async with await request(hub, "POST", PATH, [FORM, bearer(hub.token)], body) as reply:
        assert reply.status == 200
    async with await request(hub, "POST", PATH, [FORM, bearer(hub.token)], body + b"x") as reply:
        assert reply.status == 413
    endless = [FORM, bearer(hub.token), ("content-length", "1000000000")]
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    writer.write(
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\n".encode()
        + b"".join(f"{n}: {v}\r\n".encode() for n, v in endless)
        + b"\r\n"
        + body * 2
    )
    assert (await asyncio.wait_for(reader.readline(), HANG)).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_n96_n48_the_token_is_checked_first(shared_hub: HubProcess) -> None:
    async with await request(shared_hub, "POST", PATH, [], b"nonsense=%FF") as reply:
        assert reply.status == 401
    async with await request(
        shared_hub, "POST", PATH, [FORM, bearer(classic_token(publish=["b"]))], b"topic=*"
    ) as reply:
        assert reply.status == 400  # N48: for every token


async def test_r29_the_page_and_its_token_are_only_served_in_development(shared_hub: HubProcess) -> None:
    async with await request(shared_hub, "GET", f"{PATH}/debug/config.json") as reply:
        assert reply.headers["cache-control"] == "no-store"
        assert json.loads(await reply.body())["token"] == shared_hub.token
        assert "server" not in reply.headers
    keys: dict[str, Any] = {"dev": False, "publisher_key": "p" * 32, "anonymous": True}
    async with application(**keys) as app:
        assert (await ask(app, "GET", f"{PATH}/debug/")).status == 404
    async with application(**keys, debugger=True) as app:
        assert (await ask(app, "GET", f"{PATH}/debug/config.json")).json()["token"] == ""


async def test_head_returns_the_headers_and_ends(shared_hub: HubProcess) -> None:
    hub, before = shared_hub, await metrics_at(shared_hub.metrics_url)
    async with await request(hub, "HEAD", f"{PATH}?topic=a") as reply:
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        reply.writer.write(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"HTTP/1.1" in await asyncio.wait_for(reply.reader.read(), HANG)  # the connection can be reused
    after = await metrics_at(hub.metrics_url)
    assert after["mercure_subscribers_total"] == before["mercure_subscribers_total"]


async def test_n81_n83_n84_v50_t62_a_private_update_only_reaches_subscribers_that_may_read_it(
    shared_hub: HubProcess,
) -> None:
    hub = shared_hub
    before = await publish(hub, ("topic", "before"))
    book, user = (
        "https://example.com/books/1",
        "https://example.com/users/foo/?topic=https%3A%2F%2Fexample.com%2Fbooks%2F1",
    )
    recipe = classic_token(subscribe=["https://example.com/users/foo/{?topic}"])  # V50
    wildcard = ("topic", "https://example.com/books/{id}")
    readers = {
        "anonymous": await subscribe(hub, wildcard),
        "recipe": await subscribe(hub, wildcard, token=recipe),
        "everything": await subscribe(hub, ("match", "*"), token=classic_token(subscribe=["*"])),
        "else": await subscribe(
            hub, wildcard, token=classic_token(subscribe=["https://example.com/users/bar/{?topic}"])
        ),
        "elsewhere": await subscribe(hub, ("topic", "https://example.com/films/{id}"), token=recipe),
        "cookie": await request(hub, "GET", f"{PATH}?match=*", [("cookie", f"mercureAuthorization={recipe}")]),
    }
    await publish(hub, ("topic", book), ("topic", user), ("data", "secret"), ("private", ""))
    await publish(
        hub, ("topic", "https://example.com/books/2"), ("topic", "https://example.com/films/2"), ("data", "end")
    )
    got = {name: [event.data for event in await reader.until("end")] for name, reader in readers.items()}
    assert got == {
        "anonymous": [],
        "recipe": ["secret"],
        "everything": ["secret"],
        "else": [],
        "elsewhere": [],
        "cookie": ["secret"],
    }
    async with await subscribe(hub, wildcard, last_event_id=before) as reader:
        assert await reader.until("end") == []  # not in a replay either
    for reader in readers.values():
        await reader.close()


def random_selectors(random: random.Random) -> list[tuple[str, str]]:
    shelf, number = random.randrange(4), random.randrange(6)
    choices = [
        ("topic", f"https://example.com/{shelf}/{number}"),
        ("topic", f"https://example.com/{shelf}/{{id}}"),
        ("topic", f"https://example.com/{{shelf}}/{number}"),
        ("match", f"https://example.com/{shelf}/{number}"),
        ("match_exact", f"https://example.com/{shelf}/{number}{{"),
        ("match_uritemplate", "https://example.com{/a,b}{?q*}"),
        ("match_uritemplate", f"https://example.com/{shelf}{{/rest*}}"),
        ("match", "*"),
        ("topic", "{broken"),
    ]
    return [("match", END), *random.sample(choices, random.randint(1, 3))]


async def test_n21_n106_t71_two_hundred_subscribers_agree_with_a_naive_filter_in_the_order_of_the_history(
    shared_hub: HubProcess,
) -> None:
    hub = shared_hub
    before = await publish(hub, ("topic", "before"))
    chance = random.Random(42)
    asked = []
    readers: list[Reply] = []
    for _ in range(200):
        selectors = random_selectors(chance)
        granted = chance.choice([None, [], ["*"], [f"https://example.com/{chance.randrange(4)}/{{id}}"]])
        token = None if granted is None else classic_token(subscribe=granted)
        asked.append((selectors, granted or []))
        readers.append(await subscribe(hub, *selectors, token=token))

    published: dict[str, tuple[list[str], bool]] = {}

    async def publish_some(publisher: int) -> None:
        for n in range(40):
            topics = [
                f"https://example.com/{chance.randrange(4)}/{chance.randrange(6)}{chance.choice(['', '', '?q=1&r=2'])}"
                for _ in range(chance.randint(1, 3))
            ]
            private = chance.random() < 0.4
            fields = (
                [("topic", topic) for topic in topics] + [("data", f"{publisher} {n}")] + [("private", "on")] * private
            )
            published[await publish(hub, *fields)] = topics, private

    await asyncio.gather(*(publish_some(publisher) for publisher in range(8)))
    await publish(hub, ("topic", END), ("data", "end"))
    async with await subscribe(hub, ("topic", "*"), token=hub.token, last_event_id=before) as everything:
        order = [event.id for event in await everything.until("end")]
    assert sorted(order) == sorted(published)

    def naive(selectors: list[tuple[str, str]], granted: list[str]) -> list[str]:
        types = {"topic": "topic", "match": "exact", "match_exact": "exact", "match_uritemplate": "uritemplate"}
        wanted = [COMPILER.compile(types[name], pattern).match for name, pattern in selectors]
        allowed = [COMPILER.compile("topic", pattern).match for pattern in granted]
        return [
            id
            for id in order
            for topics, private in [published[id]]
            if any(match(topic) for match in wanted for topic in topics)
            and (not private or any(match(topic) for match in allowed for topic in topics))
        ]

    for reader, (selectors, granted) in zip(readers, asked, strict=True):
        got = [event.id for event in await reader.until("end")]
        assert got == naive(selectors, granted), (selectors, granted)
        await reader.close()


async def test_r30_t70_n106_a_reader_that_never_reads_delays_no_other_and_misses_nothing(
    shared_hub: HubProcess,
) -> None:
    hub = shared_hub
    stuck = await subscribe(hub, ("topic", "big"), receive_buffer=4096)
    healthy = await subscribe(hub, ("topic", "big"))
    expected = [f"{n} " + "x" * 200_000 for n in range(100)]  # 20 MB: more than the kernel buffers for a reader
    for data in [*expected, "end"]:
        await publish(hub, ("topic", "big"), ("data", data))
    assert [event.data for event in await healthy.until("end")] == expected
    # The slow reader loses nothing: the hub keeps its position, not its frames.
    assert [event.data for event in await stuck.until("end")] == expected
    await publish(hub, ("topic", "big"), ("data", "live again"))
    assert (await stuck.next_event()).data == "live again"
    await stuck.close()
    await healthy.close()


async def test_r30_n112_n108_a_reader_whose_position_is_trimmed_is_informed_and_closed(
    start_hub: Callable[..., HubProcess],
) -> None:
    hub = start_hub(**QUIET, HUB_HISTORY_UPDATES="20")
    stuck = await subscribe(hub, ("topic", "big"), receive_buffer=4096)
    for n in range(60):
        await publish(hub, ("topic", "big"), ("data", f"{n} " + "x" * 300_000))
    text = b"".join([chunk async for chunk in stuck.chunks()])
    assert stuck.ended
    assert text.endswith(b"\n\n: this subscriber fell behind the history, and updates were lost\n")
    last = text.rpartition(b"id: ")[2].partition(b"\n")[0].decode()
    async with await subscribe(hub, ("topic", "big"), last_event_id=last) as again:
        assert again.headers["mercure-last-event-id"] == "earliest"
        assert (await again.next_event()).data.startswith("40 ")
    await stuck.close()


async def test_n106_n105_t71_a_client_that_reconnects_again_and_again_misses_nothing(shared_hub: HubProcess) -> None:
    hub, total = shared_hub, 400

    async def read_in_pieces(seed: int) -> list[str]:
        chance = random.Random(seed)
        got: list[Event] = []
        while True:
            cursor = got[-1].id if got else "earliest"
            async with await subscribe(hub, ("topic", "pieces/{n}"), last_event_id=cursor) as reader:
                assert reader.headers["mercure-last-event-id"] == cursor
                for _ in range(chance.randint(1, 30)):
                    event = await reader.next_event()
                    got.append(event)
                    if event.data == str(total - 1):
                        return [event.data for event in got]

    async def publish_all() -> None:
        for n in range(total):
            await publish(hub, ("topic", f"pieces/{n}"), ("data", str(n)))

    *got, _ = await asyncio.gather(*(read_in_pieces(seed) for seed in range(10)), publish_all())
    assert got == [[str(n) for n in range(total)]] * 10


@pytest.mark.parametrize(
    "id", ["é", "\u0639\u0631\u0628\u064a", "日本 \U0001f600", 'a "b\\c"; d=1, e', "%41+&", "x\u00a0\u2028y"]
)
@pytest.mark.parametrize("where", ["header", "last_event_id", "lastEventID", "lastEventId", "Last-Event-ID"])
async def test_r77_n105_n107_v51_v52_v85_a_cursor_of_any_unicode_passes_through_the_server(
    shared_hub: HubProcess, where: str, id: str
) -> None:
    topic = ("topic", f"cursors/{where}/{id}")
    ids = [await publish(shared_hub, topic, ("id", f"{id} {where} {n}{id}")) for n in range(3)]
    given: dict[str, Any] = {"last_event_id": ids[0]} if where == "header" else {}
    parameters = [topic] if where == "header" else [topic, (where, ids[0])]
    async with await subscribe(shared_hub, *parameters, **given) as reader:
        assert reader.headers["mercure-last-event-id"] == reader.headers["last-event-id"] == ids[0]
        assert [(await reader.next_event()).id, (await reader.next_event()).id] == ids[1:]


async def test_n8_t64_an_idle_stream_gets_heartbeats(strict_hub: HubProcess) -> None:
    async with await subscribe(strict_hub, ("topic", "a")) as reader:
        assert await asyncio.wait_for(anext(reader.chunks()), HANG) == b":\n"
        assert await asyncio.wait_for(anext(reader.chunks()), HANG) == b":\n"


async def test_n82_v54_t65_a_stream_ends_before_its_token_does(shared_hub: HubProcess) -> None:
    hub = shared_hub
    soon = time.time() + 4
    token = jwt.encode(
        {"alg": "HS256"}, {"mercure": {"subscribe": ["*"]}, "exp": soon}, jwk.OctKey.import_key(DEVELOPMENT_KEY)
    )
    # test_connections measures how long before, with a clock that the test moves.
    async with (
        await subscribe(hub, ("topic", "a"), token=token) as reader,
        await subscribe(hub, ("topic", "a"), token=classic_token(subscribe=[])) as other,
    ):
        assert [event async for event in reader.events()] == []
        assert reader.ended
        await publish(hub, ("topic", "a"), ("data", "x"))
        assert (await other.next_event()).data == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_r72_a_signal_ends_open_streams_cleanly(hub: HubProcess, number: int) -> None:
    readers = [await subscribe(hub, ("topic", "a")) for _ in range(20)]
    stuck = await subscribe(hub, ("topic", "big"), receive_buffer=4096)
    for _ in range(50):
        await publish(hub, ("topic", "big"), ("data", "x" * 200_000))
    half_sent, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {hub.token}\r\ncontent-length: 100\r\n\r\ntopic="
    writer.write(head.encode())
    await publish(hub, ("topic", "b"))  # by then the hub has read the first half too
    status = await asyncio.to_thread(hub.stop, number)
    assert (await half_sent.readline()).startswith(b"HTTP/1.1 503 ")
    writer.close()
    assert status in ({0, -signal.SIGTERM} if number == signal.SIGTERM else {0})
    for reader in readers:
        assert [event async for event in reader.events()] == []
        assert reader.ended
        await reader.close()
    await stuck.close()


async def test_a_body_that_does_not_arrive_times_out(strict_hub: HubProcess) -> None:
    hub = strict_hub
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {hub.token}\r\ncontent-length: 100\r\n\r\ntopic="
    writer.write(head.encode())
    assert (await asyncio.wait_for(reader.readline(), HANG)).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_second_request_behind_a_stream_does_not_hide_a_disconnect(strict_hub: HubProcess) -> None:
    hub, lost = strict_hub, strict_hub.log().count("subscriber disconnected")
    readers = [await subscribe(hub, ("topic", "a")) for _ in range(5)]
    for reader in readers:
        reader.writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.writer.drain()
    assert await publish(hub, ("topic", "b"))
    for reader in readers:
        reader.writer.transport.abort()
    await noticed(hub, "subscriber disconnected", lost + 5)


async def test_r37_a_disconnect_is_noticed(shared_hub: HubProcess) -> None:
    hub, gone = shared_hub, shared_hub.log().count("the client went away")
    for _ in range(3):
        reader = await subscribe(hub, ("topic", "a"))
        await reader.close()
    async with await subscribe(hub, ("topic", "a")) as reader:
        await publish(hub, ("topic", "a"), ("data", "x"))
        assert (await reader.next_event()).data == "x"
    await noticed(hub, "the client went away", gone + 4)


# -- clients in use


async def test_httpx2_can_read_it(shared_hub: HubProcess) -> None:
    async with (
        httpx2.AsyncClient() as client,
        client.stream("GET", shared_hub.url, params={"topic": "n/{n}"}) as response,
    ):
        events = aiter(httpx2.EventSource(response))
        await publish(shared_hub, ("topic", "n/1"), ("data", "a\nb"), ("type", "t"))
        event = await asyncio.wait_for(anext(events), HANG)
        assert (event.event, event.data) == ("t", "a\nb")
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("new", CLIENTS)
async def test_our_client_publishes_subscribes_and_connects_again(
    start_hub: Callable[..., HubProcess], new: Callable[..., Any]
) -> None:
    hub = start_hub()
    async with new(hub.url, token=hub.token, retry=0.05) as client:
        events = client.subscribe("n/{n}", last_event_id="earliest")
        await client.publish("n/1", data="é", private=True, type="t", id="urn:1")
        event = await asyncio.wait_for(anext(events), HANG)
        assert (event.id, event.type, event.data) == ("urn:1", "t", "é")
        await asyncio.to_thread(hub.stop)
        again = start_hub("--port", str(hub.port))
        await publish(again, ("topic", "n/2"), ("data", "after the restart"))
        assert (await asyncio.wait_for(anext(events), HANG)).data == "after the restart"
        await events.aclose()
        with pytest.raises(Refused, match=r"400.*'\*' is reserved"):
            await client.publish("*")


@pytest.mark.parametrize("new", CLIENTS)
async def test_our_client_reports_a_missing_hub(shared_hub: HubProcess, new: Callable[..., Any]) -> None:
    for url, error in [
        (shared_hub.url + "/debug/", NotAHub),
        (shared_hub.origin + "/", Refused),  # a redirect
        (shared_hub.origin + "/elsewhere", Refused),
        ("http://127.0.0.1:9", Unreachable),
    ]:
        async with new(url) as client:
            with pytest.raises(error):
                await anext(client.subscribe("a"))


async def test_curl_can_read_it(shared_hub: HubProcess) -> None:
    """The test runs the lines that the hub prints."""
    lines = shared_hub.welcome.replace("\\\n", " ").splitlines()
    read, write = (line.strip() for line in lines if line.strip().startswith("curl"))
    reading = subprocess.Popen(["/bin/sh", "-c", f"exec {read} -sS"], stdout=subprocess.PIPE, text=True)
    try:
        assert reading.stdout is not None
        assert await asyncio.to_thread(reading.stdout.readline) == ":\n"
        wrote = await asyncio.to_thread(
            subprocess.run, ["/bin/sh", "-c", f"{write} -sS"], capture_output=True, text=True, check=True
        )
        assert await asyncio.to_thread(reading.stdout.readline) == f"id: {wrote.stdout}\n"
        assert await asyncio.to_thread(reading.stdout.readline) == "data: a new chapter\n"
    finally:
        reading.terminate()
        reading.wait()
        assert reading.stdout is not None
        reading.stdout.close()

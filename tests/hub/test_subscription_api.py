"""The subscription API: documents, paths, and a cursor that misses no change."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub import Settings, create_app
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.http import listing
from hub.protocol.updates import Update
from tests import wire
from tests.asgi import (
    PATH,
    Answer,
    Following,
    application,
    ask,
    bearer,
    classic_token,
    current_token,
    follow,
    publish,
    scope_of,
)
from tests.hub.presence import BELOW, EVERYTHING, TEXTS, document, encoded, subscribers
from tests.waiting import HANG
from tests.wire import Event, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.types import Message

    from hub.history.base import Entry
    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

LINK = '</.well-known/mercure>; rel="mercure"; last-event-id="{}"; type="mercure"; content-type="application/json"'


async def get(app: HubApplication, below: str = "", *headers: tuple[str, str | bytes], method: str = "GET") -> Answer:
    return await ask(app, method, BELOW + below, [bearer(EVERYTHING), *headers])


# -- documents


async def test_n130_n132_n133_n134_the_documents_of_the_three_routes(app: HubApplication) -> None:
    token = current_token(subscribe=["a"], payload={"name": "Zoë"})
    async with (
        follow(app, ("match", "a"), ("match_urlpattern", "/x/:id"), headers=[bearer(token)]),
        follow(app, ("match_exact", "a"), ("match_amqp", "a")),
    ):
        first, second = subscribers(app)
        all_of_them = [
            document("exact", "a", first, payload={"name": "Zoë"}),
            document("urlpattern", "/x/:id", first),
            document("exact", "a", second),
            document("amqp", "a", second),
        ]
        for below, listed in (
            ("", all_of_them),
            ("/exact/a", [all_of_them[0], all_of_them[2]]),
            ("/urlpattern/%2Fx%2F%3Aid", [all_of_them[1]]),
            ("/amqp/a", [all_of_them[3]]),
            ("/mqtt/a", []),
            ("/exact/b", []),
        ):
            answer = await get(app, below)
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == {"id": BELOW + below, "type": "subscriptions", "subscriptions": listed}
        for one in all_of_them:
            answer = await ask(app, "GET", one["id"], [bearer(EVERYTHING)])
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            assert answer.json() == one


async def test_n124_n134_the_exact_documents(app: HubApplication) -> None:
    token = current_token(subscribe=["*"], payload={"é": 1})
    assert (
        await get(app)
    ).body == b'{"id":"/.well-known/mercure/subscriptions","type":"subscriptions","subscriptions":[]}'
    async with follow(app, ("match", "ü"), headers=[bearer(token)]):
        [subscriber] = subscribers(app)
        path = f"{BELOW}/exact/%C3%BC/{encoded(subscriber)}"
        one = (
            f'{{"id":"{path}","type":"subscription","match_type":"exact","match":"ü",'
            f'"subscriber":"{subscriber}","active":true,"payload":{{"é":1}}}}'
        )
        assert (await ask(app, "GET", path, [bearer(EVERYTHING)])).text == one
        assert (await get(app, "/exact/%c3%bc")).text == (
            f'{{"id":"{BELOW}/exact/%c3%bc","type":"subscriptions","subscriptions":[{one}]}}'
        )
        assert (await app.state.hub.history.newest()).update.data == one  # the update has the same document (N133)


async def test_n133_a_missing_subscription_is_404(app: HubApplication) -> None:
    async with follow(app, ("match", "a"), ("match", "b")):
        [subscriber] = subscribers(app)
        one = encoded(subscriber)
        assert (await get(app, f"/exact/a/{one}")).status == 200
        for below in (f"/exact/c/{one}", f"/mqtt/a/{one}", "/exact/a/nobody", "/exact/a/", f"/exact/a/{one}%20"):
            assert "no such subscription" in (await get(app, below)).detail
            assert (await get(app, below)).status == 404
    assert (await get(app, f"/exact/a/{one}")).status == 404
    assert (await get(app, "/exact/a")).json()["subscriptions"] == []


async def test_n134_t76_the_query_is_not_part_of_the_id(app: HubApplication) -> None:
    for query in ("?", "?last_event_id=x", "?a=/b&c=%2F"):
        assert (await get(app, "/exact/a" + query)).json()["id"] == BELOW + "/exact/a"


async def test_n6_n130_n135_the_api_is_below_the_path_of_the_hub() -> None:
    token = current_token(subscribe=["*"], resource="https://hub.example/a/hub")
    async with application(path="/a/hub") as app, follow(app, target="/a/hub?match=x"):
        answer = await ask(app, "GET", "/a/hub/subscriptions", [bearer(token)])
        [one] = answer.json()["subscriptions"]
        assert one["id"] == f"/a/hub/subscriptions/exact/x/{encoded(subscribers(app)[0])}"
        assert answer.headers["link"].startswith('</a/hub>; rel="mercure"; ')
        assert (await ask(app, "GET", one["id"], [bearer(token)])).json() == one
        assert (await ask(app, "GET", BELOW, [bearer(token)])).status == 404


async def test_n130_head_is_get_without_a_body(hub_process: HubProcess, token: str) -> None:
    async with await wire.subscribe(hub_process, ("match", "a")):
        for below in ("", "/exact/a", "/exact/nobody"):
            async with await request(hub_process, token, "GET", BELOW + below) as reply:
                expected = reply.headers
                await reply.body()
            async with await request(hub_process, token, "HEAD", BELOW + below, ("connection", "close")) as reply:
                assert reply.status == 200
                for name in ("content-type", "link", "etag", "cache-control", "vary"):
                    assert reply.headers[name] == expected[name]
                assert await asyncio.wait_for(reply.reader.read(), HANG) == b""
    async with await request(hub_process, token, "HEAD", BELOW + "/exact/a/nobody") as reply:
        assert reply.status == 404


# -- the grants of a reader

OF_A = f"{BELOW}/exact/a"
ONE = f"{BELOW}/exact/a/urn%3Auuid%3A1"


@pytest.mark.parametrize(
    ("granted", "path", "status"),
    [
        (["*"], BELOW, 200),
        ([("urlpattern", "*")], BELOW, 200),
        ([BELOW], BELOW, 200),
        ([BELOW], OF_A, 403),
        ([OF_A], OF_A, 200),
        ([OF_A], BELOW, 403),
        ([OF_A], ONE, 403),
        ([ONE], ONE, 404),
        ([ONE], ONE.replace("%3A", "%3a"), 403),
        ([ONE], ONE.replace("%3A", ":"), 403),
        ([f"{BELOW}/exact/a/urn:uuid:1"], ONE, 403),
        ([f"{BELOW}/exact/a/urn:uuid:1"], f"{BELOW}/exact/a/urn:uuid:1", 404),
        ([f"https://hub.example{BELOW}"], BELOW, 403),
        ([("urlpattern", f"{BELOW}/:type/:match")], OF_A, 200),
        ([("urlpattern", f"{BELOW}/:type/:match")], BELOW, 403),
        ([("urlpattern", f"{BELOW}/:type/:match")], ONE, 403),
        ([("urlpattern", f"{BELOW}/:type/:match")], f"{BELOW}/exact/a%2Fb", 200),
        ([("urlpattern", f"{BELOW}/:type/:match/:subscriber")], ONE, 404),
        ([("urlpattern", f"{BELOW}{{/*}}?")], BELOW, 200),
        ([("urlpattern", f"https://hub.example{BELOW}/*")], OF_A, 200),
        ([("urlpattern", f"https://other.example{BELOW}/*")], OF_A, 403),
        ([("uritemplate", BELOW + "{/type,match}")], OF_A, 200),
        ([("uritemplate", BELOW + "{/type,match}")], ONE, 403),
        (["a"], OF_A, 403),
        ([], BELOW, 403),
    ],
)
@pytest.mark.parametrize("classic", [True, False])
async def test_n131_t75_the_token_must_grant_the_requested_path(
    granted: list[str | tuple[str, str]], path: str, status: int, classic: bool
) -> None:
    async with application(classic=classic, public_urls=("https://hub.example",)) as app:
        for query in ("", "?last_event_id=x&a=%2F"):
            token = current_token(subscribe=granted)
            assert (await ask(app, "GET", path + query, [bearer(token)])).status == status
            both = current_token(publish=["*"], subscribe=granted)
            assert (await ask(app, "HEAD", path + query, [bearer(both)])).status == status


@pytest.mark.parametrize("path", [BELOW, OF_A, ONE, BELOW + "/nothing/a/b/c/d", BELOW + "/exact/%"])
async def test_n131_t75_a_missing_token_is_401_and_a_missing_grant_403_before_any_answer(
    path: str, app: HubApplication
) -> None:
    metadata = 'resource_metadata="https://hub.example/.well-known/oauth-protected-resource/.well-known/mercure"'
    for headers, status, challenge in (
        ([], 401, f"Bearer {metadata}"),
        ([bearer("x.y.z")], 401, f'Bearer error="invalid_token", {metadata}'),
        ([bearer(current_token(publish=["*"]))], 403, f'Bearer error="insufficient_scope", {metadata}'),
        ([bearer(current_token(subscribe=["a"]))], 403, f'Bearer error="insufficient_scope", {metadata}'),
    ):
        answer = await ask(app, "GET", path, headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (status, challenge)
        assert "link" not in answer.headers
        assert "etag" not in answer.headers


async def test_n131_a_cookie_is_accepted(app: HubApplication) -> None:
    assert (await ask(app, "GET", BELOW, [("cookie", f"mercure_access_token={EVERYTHING}")])).status == 200


async def test_t76_a_grant_with_a_query_does_not_grant_the_path(app: HubApplication) -> None:
    token = current_token(subscribe=[f"{BELOW}?last_event_id=x"])
    assert (await ask(app, "GET", f"{BELOW}?last_event_id=x", [bearer(token)])).status == 403


# -- cursors and ETags


async def test_n135_n136_t78_the_exact_link_header(app: HubApplication) -> None:
    async with follow(app, ("match", "a")):
        one = f"/exact/a/{encoded(subscribers(app)[0])}"
        for id in ("urn:example:1", 'a "b" \\ c', "\\", "a,b;c=d", "é \u05d0 😀 \u2028", "<x>; rel=\"next\"", "%22"):  # fmt: skip
            await publish(app, EVERYTHING, ("topic", "x"), ("id", id))
            for below in ("", "/exact/a", "/exact/b", one):
                answer = await get(app, below)
                given = dict(answer.raw_headers)
                assert given[b"link"] == LINK.format(id.replace("\\", "\\\\").replace('"', '\\"')).encode("utf-8")
                assert answer.headers["cache-control"] == "private, must-revalidate"
                assert {"Accept", "Authorization", "Cookie"} <= set(answer.headers["vary"].split(", "))
                assert id not in answer.text


async def test_n135_t78_the_cursor_of_an_empty_history_is_earliest(app: HubApplication) -> None:
    answer = await get(app)
    assert answer.headers["link"] == LINK.format("earliest")
    assert answer.headers["etag"] == '"earliest"'


@pytest.mark.parametrize("code", [*range(0x80), 0xA0, 0xFF, 0x100, 0x05D0, 0x2028, 0xFFFD, 0x1F600])
def test_n136_t77_special_characters_in_an_etag_are_escaped(code: int) -> None:
    escaped = f"%{code:02X}".encode() if code <= 0x20 or chr(code) in '"%\x7f' else chr(code).encode("utf-8")
    assert listing._etag(f"a{chr(code)}b") == b'"a' + escaped + b'b"'


IDS = ["urn:uuid:1", "a b", 'a"b', "a%b", "a%20b", "a,b", ", ,", "a\\b", "*", "é\u05d0😀", "\U0010fffd"]


@pytest.mark.parametrize("id", IDS)
async def test_n136_t77_a_client_with_the_current_cursor_gets_304(id: str, app: HubApplication) -> None:
    await publish(app, EVERYTHING, ("topic", "x"), ("id", id))
    known = dict((await get(app)).raw_headers)
    tag = known[b"etag"]
    assert tag[:1] == tag[-1:] == b'"'
    assert b'"' not in tag[1:-1]
    for tags in (
        [tag],
        [b"W/" + tag],
        [b'"other", ' + tag],
        [tag + b' , "other"'],
        [b'"other",W/' + tag + b',"another"'],
        [b'"other"', tag],
        [tag[1:-1]],
        [b"  " + tag + b" "],
        [b"*"],
    ):
        for below in ("", "/exact/a", "/exact/b"):
            answer = await get(app, below, *(("if-none-match", one) for one in tags))
            assert (answer.status, answer.body) == (304, b"")
            for name in (b"etag", b"link", b"cache-control", b"vary"):
                assert dict(answer.raw_headers)[name] == known[name]


@pytest.mark.parametrize("id", [one for one in IDS if one != "*"])
async def test_n136_t77_a_client_with_another_cursor_gets_the_document(id: str, app: HubApplication) -> None:
    await publish(app, EVERYTHING, ("topic", "x"), ("id", id))
    tag = dict((await get(app)).raw_headers)[b"etag"]
    for value in (
        b"",
        b'""',
        b'"other"',
        b"other",
        b"W/",
        b'"*"',
        tag[:-1],
        tag[1:],
        b'"x' + tag[1:],
        tag[:-1] + b'x"',
        b'"x,' + tag[1:-1] + b',y"',
        b'"x, ' + tag[1:-1] + b' ,y"',
        b'"' + tag + b'"',
    ):
        assert (await get(app, "", ("if-none-match", value))).status == 200, value


async def test_n133_n136_a_missing_subscription_is_404_for_every_etag(app: HubApplication) -> None:
    await publish(app, EVERYTHING, ("topic", "x"), ("id", "1"))
    for known in ("*", '"1"', "1"):
        for below, status in (("/exact/a/nobody", 404), ("/exact/%/nobody", 400), ("", 304)):
            assert (await get(app, below, ("if-none-match", known))).status == status


async def test_n136_the_etag_changes_with_each_subscription(app: HubApplication) -> None:
    tag = (await get(app)).headers["etag"]
    async with follow(app, ("match", "a")):
        come = await get(app, "", ("if-none-match", tag))
        assert come.status == 200
        assert (await get(app, "", ("if-none-match", come.headers["etag"]))).status == 304
    await asyncio.wait_for(app.state.hub.presence._queue.join(), HANG)
    assert (await get(app, "", ("if-none-match", come.headers["etag"]))).json()["subscriptions"] == []


async def test_n136_a_repeated_id_does_not_hide_subscriptions_in_between(app: HubApplication) -> None:
    await publish(app, EVERYTHING, ("topic", "x"), ("id", "1"))
    tag = (await get(app)).headers["etag"]
    async with follow(app, ("match", "a")):
        await publish(app, EVERYTHING, ("topic", "x"), ("id", "1"))
        answer = await get(app, "", ("if-none-match", tag))
        assert [one["match"] for one in answer.json()["subscriptions"]] == ["a"]


# -- paths


@pytest.mark.parametrize(
    ("below", "status"),
    [
        ("/exact/%", 400), ("/exact/%2", 400), ("/exact/%zz", 400), ("/exact/%2g", 400), ("/exact/a%", 400),
        ("/exact/% 1", 400), ("/exact/%+1", 400), ("/exact/%FF", 400), ("/exact/%C3", 400), ("/exact/a/%ED%A0%80", 400),
        ("/%zz/a", 400), ("/exact/a/%2", 400),
        ("/nothing/a/b", 400), ("/topic/a/b", 400), ("/Exact/a/b", 400), ("/match/a/b", 400), ("//a/b", 400),
        ("/exact/a/b/c", 404), ("/exact/a/b/", 404), ("/a/b/c/d/e", 404),
        ("/exact/a%2Fb", 200), ("/exact/a%2Fb%2Fc%2Fd", 200), ("/%65xact/a", 200), ("/exact/", 200), ("/exact/%00", 200),
    ],
)  # fmt: skip
async def test_n139_a_malformed_path_is_400_and_an_unknown_one_404(
    below: str, status: int, app: HubApplication
) -> None:
    answer = await get(app, below)
    assert answer.status == status, answer.text


async def test_n139_an_unknown_type_is_400_if_it_cannot_be_a_classic_topic() -> None:
    async with application(classic=False) as app:
        for below in ("/nothing/a", "/topic/a", "/EXACT/a"):
            assert "none of exact, urlpattern" in (await get(app, below)).detail
            assert (await get(app, below)).status == 400


async def test_n139_segments_are_split_before_they_are_decoded_and_a_plus_is_a_plus(app: HubApplication) -> None:
    async with follow(app, ("match", "a/b"), ("match", "a+b"), ("match", "a b"), ("match", "a%2Fb")):
        for path, patterns in (
            ("/exact/a%2Fb", ["a/b"]),
            ("/exact/a%2fb", ["a/b"]),
            ("/exact/a+b", ["a+b"]),
            ("/exact/a%2Bb", ["a+b"]),
            ("/exact/a%20b", ["a b"]),
            ("/exact/a%252Fb", ["a%2Fb"]),
        ):
            answer = await get(app, path)
            assert [one["match"] for one in answer.json()["subscriptions"]] == patterns


async def test_n139_the_fixed_segments_must_not_be_encoded(app: HubApplication) -> None:
    for path in ("/.well-known/%6Dercure/subscriptions", f"{PATH}%2Fsubscriptions", f"{PATH}/%73ubscriptions/exact/a"):
        assert (await ask(app, "GET", path, [bearer(EVERYTHING)])).status == 404
        narrow = current_token(subscribe=[BELOW, OF_A])
        assert (await ask(app, "GET", path, [bearer(narrow)])).status in (403, 404)


MATCHERS = st.one_of(
    st.tuples(st.just("exact"), TEXTS),
    st.tuples(
        st.sampled_from(["exact", "urlpattern"]),
        st.sampled_from(["*", "/a/:b", "https://example.com/:id?q=:x#*", "/{x/:y}?", "/a%2Fb", "/é"]),
    ),
    st.tuples(st.sampled_from(["exact", "uritemplate"]), st.sampled_from(["*", "/a{?b,c*}", "{+x}/{y:3}", "é{x}"])),
    st.tuples(st.sampled_from(["amqp", "mqtt"]), st.sampled_from(["*", "a b", "é%2F?"])),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(MATCHERS, min_size=1, max_size=4, unique=True))
@example([("exact", text) for text in ("", "+", " ", "%2F", "%", "*", "é", "{}")])
@example([("exact", text) for text in (".", "..", "/", "//", "a/../b", "?", "#", "\\", "\U0010ffff", "a" * 4096)])
def test_n121_n130_t80_a_subscription_is_only_found_at_its_path(matchers: list[tuple[str, str]]) -> None:
    async def play() -> None:
        async with (
            application() as app,
            follow(app, ("match_mqtt", "other")),
            follow(app, *((f"match_{type}", pattern) for type, pattern in matchers)) as stream,
        ):
            assert stream.status == 200
            subscriber = subscribers(app)[1]
            for type, pattern in matchers:
                one = document(type, pattern, subscriber)
                answer = await ask(app, "GET", one["id"], [bearer(EVERYTHING)])
                assert (answer.status, answer.json()) == (200, one)
                collection = one["id"].rpartition("/")[0]
                answer = await ask(app, "GET", collection, [bearer(EVERYTHING)])
                assert answer.json() == {"id": collection, "type": "subscriptions", "subscriptions": [one]}

    asyncio.run(play())


async def test_n140_v63_without_subscriptions_the_api_is_404_and_missing_in_the_metadata() -> None:
    metadata = "/.well-known/oauth-protected-resource" + PATH
    async with application(subscriptions=False) as app, follow(app, ("match", "a")):
        one = encoded(subscribers(app)[0])
        for below in ("", "/exact/a", f"/exact/a/{one}", "/a", "/a/b"):
            assert (await get(app, below)).status == 404
        assert "mercure_subscriptions" not in (await ask(app, "GET", metadata)).json()
    async with application() as app:
        assert (await ask(app, "GET", metadata)).json()["mercure_subscriptions"] is True


# -- a list and its cursor belong together


class UnsteadyLog(MemoryHistory):
    """A history whose operations take some turns of the event loop.

    `newest` takes the most.  The test can hold up the followers.
    """

    def __init__(self, delays: Iterator[int]) -> None:
        super().__init__(Retention(max_updates=10_000, max_bytes=10**8))
        self._delays = delays
        self.flows = asyncio.Event()
        self.flows.set()

    async def _turns(self, times: int = 1) -> None:
        for _ in range(times * next(self._delays)):
            await asyncio.sleep(0)

    async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
        await self._turns()
        entries = await super().append(updates, **options)
        await self._turns()
        return entries

    async def newest(self) -> Entry | None:
        await self._turns(5)
        newest = await super().newest()
        await self._turns(5)
        return newest

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        found = await super().find(id, presence=presence)
        await self._turns(5)
        return found

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        async for page in super().follow(after):
            await self.flows.wait()
            yield page


class Presence:
    """A hub, its subscribers, and readers that list them and follow from the cursor."""

    def __init__(self, app: HubApplication, log: UnsteadyLog) -> None:
        self.app = app
        self.log = log
        self.connections: list[tuple[Following, asyncio.Task[None]]] = []
        self.cancelled: set[asyncio.Task[None]] = set()
        self.followers: list[tuple[Following, asyncio.Task[None]]] = []
        self.published: list[asyncio.Task[None]] = []
        self.readers: list[asyncio.Task[tuple[str, set[str], str, Following]]] = []

    def begin(self, target: str, *headers: tuple[str, str]) -> tuple[Following, asyncio.Task[None]]:
        stream = Following()

        async def receive() -> Message:
            await stream._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await self.log._turns()  # a slow client
            await stream.send(message)

        return stream, asyncio.ensure_future(self.app(scope_of("GET", target, headers), receive, send))

    def come(self, *patterns: str) -> None:
        self.connections.append(self.begin(f"{PATH}?{urlencode([('match', pattern) for pattern in patterns])}"))

    def go(self, number: int) -> None:
        if self.connections:
            self.connections[number % len(self.connections)][0].go()

    def cancel(self, number: int) -> None:
        if self.connections:
            task = self.connections[number % len(self.connections)][1]
            task.cancel()
            self.cancelled.add(task)

    def publish(self, ids: list[str]) -> None:
        updates = [Update(("x",), id=id) for id in ids]
        self.published.append(asyncio.ensure_future(self.app.state.hub.publish(*updates)))

    def ask(self, below: str) -> None:
        self.readers.append(asyncio.ensure_future(self._ask(below)))

    async def _ask(self, below: str) -> tuple[str, set[str], str, Following]:
        answer, task = self.begin(BELOW + below, bearer(EVERYTHING))
        await asyncio.wait_for(task, HANG)
        assert answer.ended
        listed = {one["id"] for one in json.loads(answer.body)["subscriptions"]}
        cursor = answer.headers["link"].partition('last-event-id="')[2].partition('"')[0]
        return below, listed, cursor, self.follow(cursor)

    def follow(self, cursor: str) -> Following:
        """Start a subscriber that stays to the end."""
        follower = self.begin(f"{PATH}?match=*", bearer(EVERYTHING), ("last-event-id", cursor))
        self.followers.append(follower)
        return follower[0]

    def there(self, below: str) -> set[str]:
        """Return the paths of the current subscriptions."""
        return {
            path
            for subscriber in (seat.subscriber for seat in self.app.state.hub.delivery.audience)
            for matcher in subscriber.subscribed
            if (path := document(matcher.type, matcher.pattern, subscriber.id)["id"]).startswith(BELOW + below + "/")
        }

    async def settle(self) -> None:
        self.log.flows.set()
        await asyncio.wait_for(asyncio.gather(*self.published, *self.readers), HANG)
        for stream, task in self.connections + self.followers:
            if stream._gone.is_set() or task in self.cancelled:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.shield(task), HANG)
            else:
                await stream.begun()
        await asyncio.wait_for(self.app.state.hub.presence._queue.join(), HANG)

    async def check(self) -> None:
        """Check that each reader knows the current subscriptions after following."""
        await self.settle()
        await self.app.state.hub.publish(Update(("x",), data="the end"))
        expected = {below: self.there(below) for below in BELOWS}
        for reader in self.readers:
            below, listed, cursor, stream = reader.result()
            assert known(below, listed, await stream.until("the end")) == expected[below]
            later = self.follow(cursor)
            assert known(below, listed, await later.until("the end")) == expected[below]
        announced: dict[str, list[bool]] = {}
        async for entry in self.entries():
            if entry.update.private:
                one = json.loads(entry.update.data)
                announced.setdefault(one["id"], []).append(one["active"])
        there = self.there("")
        for path, said in announced.items():
            assert said == ([True] if path in there else [True, False])

    async def entries(self) -> AsyncIterator[Entry]:
        position = 0
        while page := await self.log.read(position):
            for entry in page:
                yield entry
            position = page[-1].position

    async def leave(self) -> None:
        for stream, task in self.connections + self.followers:
            stream.go()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, HANG)


def known(below: str, listed: set[str], events: list[Event]) -> set[str]:
    """Return the subscriptions that a reader knows after a list and later events."""
    there = set(listed)
    for event in events:
        if event.type == "mercure" and (one := json.loads(event.data))["id"].startswith(BELOW + below + "/"):
            (there.add if one["active"] else there.discard)(one["id"])
    return there


BELOWS = ["", "/exact/a"]
NUMBERS = st.integers(0, 7)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("go"), NUMBERS),
        st.tuples(st.just("cancel"), NUMBERS),
        st.tuples(st.just("publish"), st.lists(st.sampled_from(["1", "2", "3"]), min_size=1, max_size=3)),
        st.tuples(st.just("ask"), st.sampled_from(BELOWS)),
        st.tuples(st.sampled_from(["hold", "flow"]), st.none()),
        st.tuples(st.just("turns"), NUMBERS),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 3), st.booleans())
@example([("come", ["a", "b"]), ("ask", ""), ("go", 0), ("ask", "/exact/a")], [1, 0, 2], 1, False)
@example([("ask", ""), ("turns", 4), ("come", ["a"]), ("turns", 7), ("come", ["b"])], [3, 1], 1, True)
@example([("hold", None), ("come", ["a"]), ("turns", 5), ("ask", ""), ("cancel", 0)], [2], 1, True)
def test_n137_n120_n135_a_list_and_the_updates_after_its_cursor_give_the_current_subscriptions(
    actions: list[Any], delays: list[int], chunk: int, classic: bool
) -> None:
    async def play() -> None:
        log = UnsteadyLog(itertools.cycle(delays))
        app = create_app(Settings(dev=True, retry=0, max_lifetime=0, classic=classic), history=log)
        async with app.running():
            presence = Presence(app, log)
            for action, argument in actions:
                match action:
                    case "come":
                        presence.come(*argument)
                    case "hold":
                        log.flows.clear()
                    case "flow":
                        log.flows.set()
                    case "turns":
                        for _ in range(argument):
                            await asyncio.sleep(0)
                    case _:
                        getattr(presence, action)(argument)
            await presence.check()
            await presence.leave()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hub.turns.LISTED_SUBSCRIPTIONS", chunk)
        asyncio.run(play())


async def whole(app: HubApplication, below: str = "") -> Any:
    """Return a list that may be long, read to its end."""
    async with follow(app, target=BELOW + below, headers=[bearer(EVERYTHING)]) as answer:
        await answer.end()
    return json.loads(answer.body)


async def test_n137_n134_a_long_list_is_a_snapshot_even_if_it_is_read_slowly(app: HubApplication) -> None:
    answer, has_begun, may_go_on = Following(), asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        await answer.send(message)
        if answer.body:
            has_begun.set()
            await may_go_on.wait()

    async with contextlib.AsyncExitStack() as clients:
        for n in range(120):
            await clients.enter_async_context(follow(app, ("match", f"{n}"), ("match", f"{n}'")))
        asking = asyncio.ensure_future(app(scope_of("GET", BELOW, [bearer(EVERYTHING)]), receive, send))
        await asyncio.wait_for(has_begun.wait(), HANG)
    assert len(answer.body) < 100_000
    async with follow(app, ("match", "late")):
        may_go_on.set()
        await asyncio.wait_for(asking, HANG)
    listed = json.loads(answer.body)
    assert [one["match"] for one in listed["subscriptions"]] == [f"{n}{mark}" for n in range(120) for mark in ("", "'")]
    assert all(one["active"] for one in listed["subscriptions"])
    assert (listed["id"], listed["type"]) == (BELOW, "subscriptions")


@pytest.mark.parametrize("count", [99, 100, 101])
async def test_n134_long_lists_are_valid_json(count: int, app: HubApplication) -> None:
    matchers = [("match", str(n)) for n in range(count)]
    async with follow(app, *matchers[:60]), follow(app, *matchers[60:]):
        listed = (await whole(app))["subscriptions"]
    assert [one["match"] for one in listed] == [pattern for _, pattern in matchers]


async def test_n134_a_search_in_many_subscriptions_yields_to_other_tasks(
    app: HubApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.turns.LISTED_SUBSCRIPTIONS", 10)

    async def turns() -> int:
        """Count the turns of other tasks during a search that finds nothing."""
        looking = asyncio.ensure_future(whole(app, "/exact/nobody"))
        for count in itertools.count():
            if looking.done():
                assert looking.result()["subscriptions"] == []
                return count
            await asyncio.sleep(0)
        raise AssertionError

    alone = await turns()
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(4):
            await clients.enter_async_context(follow(app, *(("match", str(n)) for n in range(50))))
        assert await turns() >= alone + 10


# -- through a real server


@pytest.fixture(name="hub_process")
def _hub_process(shared_hub: HubProcess) -> HubProcess:
    return shared_hub


@pytest.fixture
def token(shared_hub: HubProcess) -> str:
    return current_token(publish=["*"], subscribe=["*"], resource=shared_hub.url)


async def request(hub: HubProcess, token: str, method: str, target: str, *headers: tuple[str, str]) -> Reply:
    return await wire.request(hub, method, target, [bearer(token), *headers])


@settings(max_examples=20, deadline=None)
@given(st.lists(MATCHERS, min_size=1, max_size=4, unique=True))
@example([("exact", text) for text in ("", "+", " ", "%2F", "%", "*", "é", "{}", ".", "..", "a/../b", "//", "?", "#")])
@example([("exact", "é" * 2048), ("exact", "\U0010ffff")])
def test_n139_t80_r71_paths_through_a_server(shared_hub: HubProcess, matchers: list[tuple[str, str]]) -> None:
    token = current_token(subscribe=["*"], resource=shared_hub.url)

    async def play() -> None:
        parameters = [(f"match_{type}", pattern) for type, pattern in matchers]
        async with await wire.subscribe(shared_hub, *parameters, token=token) as stream:
            assert stream.status == 200
            async with await request(shared_hub, token, "GET", BELOW) as reply:
                listed = json.loads(await reply.body())["subscriptions"]
            # Subscribers of earlier examples may still be listed.
            subscriber = listed[-1]["subscriber"]
            mine = [one for one in listed if one["subscriber"] == subscriber]
            assert mine == [document(type, pattern, subscriber) for type, pattern in matchers]
            for one in mine:
                async with await request(shared_hub, token, "GET", one["id"]) as reply:
                    assert reply.status == 200
                    assert json.loads(await reply.body()) == one
                async with await request(shared_hub, token, "GET", one["id"].rpartition("/")[0]) as reply:
                    assert one in json.loads(await reply.body())["subscriptions"]

    asyncio.run(play())


async def test_n135_n136_r77_any_id_survives_a_server(hub: HubProcess) -> None:
    token = current_token(publish=["*"], subscribe=["*"], resource=hub.url)
    ids = [*IDS, 'a "b" \\ c', "é \u05d0 \u2028 😀"]
    for id in ids:
        await wire.publish(hub, ("topic", "x"), ("id", id), token=token)
        async with await request(hub, token, "GET", BELOW) as reply:
            assert reply.headers["link"] == LINK.format(id.replace("\\", "\\\\").replace('"', '\\"'))
            tag = reply.headers["etag"]
            assert tag == '"' + id.replace("%", "%25").replace('"', "%22").replace(" ", "%20") + '"'
        async with await request(hub, token, "GET", BELOW, ("if-none-match", tag)) as reply:
            assert (reply.status, reply.headers["etag"]) == (304, tag)
    for number, id in enumerate(ids, 1):
        async with await wire.subscribe(hub, ("match", "x"), last_event_id=id) as stream:
            assert stream.headers["mercure-last-event-id"] == id
            assert [(await stream.next_event()).id for _ in ids[number:]] == ids[number:]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/exact/a%2Fb", 200), ("/exact/a+b", 200), ("/exact/a/%zz", 400), ("/exact/%FF", 400), ("/nothing/a/b", 400),
        ("/exact/a/b/c/d", 404), ("/exact/a//", 404), ("/exact/a?match=%zz", 200), ('/exact/a"b', 200), ("/exact/a|b", 200),
        ("/exact/a/../b", 404),
    ],
)  # fmt: skip
async def test_n139_paths_as_a_server_passes_them(target: str, status: int, shared_hub: HubProcess, token: str) -> None:
    async with await request(shared_hub, token, "GET", BELOW + target) as reply:
        assert reply.status == status


async def test_t90_delivery_the_api_and_presence_together(shared_hub: HubProcess) -> None:
    pattern = BELOW + "/:match_type/:match/:subscriber"
    topic = "https://example.com/books/1"
    granted: list[str | tuple[str, str]] = [("urlpattern", pattern), BELOW, topic]
    token = current_token(publish=[topic], subscribe=granted, resource=shared_hub.url, payload={"name": "Zoë"})
    async with await request(shared_hub, token, "GET", BELOW) as reply:
        link = reply.headers["link"]
        await reply.body()
    cursor = link.partition('last-event-id="')[2].partition('"')[0]
    matcher = ("match_urlpattern", pattern)
    async with await wire.subscribe(shared_hub, matcher, token=token, last_event_id=cursor) as watcher:
        own = json.loads((await watcher.next_event()).data)
        while own["match"] != pattern:  # departures of earlier subscribers
            own = json.loads((await watcher.next_event()).data)
        async with await wire.subscribe(shared_hub, ("match", topic), token=token) as reader:
            event = await watcher.next_event()
            came = json.loads(event.data)
            assert (event.type, came["match"], came["active"]) == ("mercure", topic, True)
            assert own["payload"] == came["payload"] == {"name": "Zoë"}
            async with await request(shared_hub, token, "GET", BELOW) as reply:
                assert came in json.loads(await reply.body())["subscriptions"]
                assert f'last-event-id="{event.id}"' in reply.headers["link"]
            async with await request(shared_hub, token, "GET", came["id"]) as reply:
                assert json.loads(await reply.body()) == came
            id = await wire.publish(shared_hub, ("topic", topic), ("private", "on"), ("data", "hello"), token=token)
            assert await reader.next_event() == Event(id, "message", "hello", None)
        assert json.loads((await watcher.next_event()).data) == came | {"active": False}
        async with await request(shared_hub, token, "GET", came["id"]) as reply:
            assert reply.status == 404


async def test_v82_a_classic_token_grants_the_paths_of_the_current_dialect() -> None:
    token = classic_token(subscribe=[BELOW + "/exact/a{/subscriber}"])
    async with application() as app, follow(app, ("match", "a")):
        one = document("exact", "a", subscribers(app)[0])
        answer = await ask(app, "GET", one["id"], [bearer(token)])
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json() == one
        assert (await ask(app, "GET", BELOW, [bearer(token)])).status == 403

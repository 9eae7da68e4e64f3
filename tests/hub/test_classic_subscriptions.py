"""Subscriptions of the classic dialect: presence updates, and the subscription API."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub.development import DEVELOPMENT_KEY
from hub.protocol.topics import MATCHER_TYPES
from tests import wire
from tests.asgi import Answer, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub import signing
from tests.hub.presence import BELOW, EVERYTHING, TEXTS, document, encoded, subscribers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

CLASSIC = classic_token(publish=["*"], subscribe=["*"])
CONTEXT = {"@context": "https://mercure.rocks/"}
TEMPLATE = "https://example.com/{selector}"


@pytest.fixture
async def app() -> AsyncIterator[HubApplication]:
    async with application(classic=True) as app:
        yield app


async def get(
    app: HubApplication, below: str = "", *headers: tuple[str, str], token: str = CLASSIC, method: str = "GET"
) -> Answer:
    return await ask(app, method, BELOW + below, [bearer(token), *headers])


def classic_document(topic: str, subscriber: str, **more: Any) -> dict[str, Any]:
    """Return a JSON-LD object without its context."""
    return {
        "id": f"{BELOW}/{encoded(topic)}/{encoded(subscriber)}",
        "type": "Subscription",
        "topic": topic,
        "subscriber": subscriber,
        "active": True,
        **more,
    }


def terms(document: Any) -> set[str]:
    """Return the JSON-LD terms of a document: types, and members outside payloads."""
    if isinstance(document, list):
        return set().union(*map(terms, document))
    if not isinstance(document, dict):
        return set()
    members = {name: value for name, value in document.items() if name != "payload"}
    return {*document, document["type"]}.union(*map(terms, members.values()))


# -- presence updates


async def test_v60_v61_the_exact_presence_updates_of_a_subscription(app: HubApplication) -> None:
    token = classic_token(subscribe=["x"], payload={"foo": "bär"})
    async with follow(app, ("match_urlpattern", BELOW + "/*"), headers=[bearer(EVERYTHING)]) as watcher:
        await watcher.next_event()
        before = len(watcher.body)
        async with follow(app, ("topic", TEMPLATE), headers=[bearer(token)]):
            came = await watcher.next_event()
        went = await watcher.next_event()
    subscriber = json.loads(came.data)["subscriber"]
    path = f"/.well-known/mercure/subscriptions/https%3A%2F%2Fexample.com%2F%7Bselector%7D/{encoded(subscriber)}"
    assert watcher.body[before:].decode() == "".join(
        f'id: {id}\ndata: {{"@context":"https://mercure.rocks/","id":"{path}","type":"Subscription",'
        f'"topic":"{TEMPLATE}","subscriber":"{subscriber}","active":{active},"payload":{{"foo":"bär"}}}}\n\n'
        for id, active in ((came.id, "true"), (went.id, "false"))
    )


async def test_v61_presence_updates_need_a_grant(app: HubApplication) -> None:
    template = BELOW + "{/topic}{/subscriber}"
    async with (
        follow(app, ("topic", "*")) as anonymous,
        follow(app, ("topic", "*"), headers=[bearer(classic_token(subscribe=["a", "b"]))]) as other,
        follow(app, ("topic", template), headers=[bearer(classic_token(subscribe=[template]))]) as reader,
    ):
        async with follow(app, ("topic", "a")), follow(app, ("match", "a")):
            pass
        for stream in (anonymous, other):
            await publish(app, CLASSIC, ("topic", "a"), ("data", "the end"))
            assert await stream.until("the end") == []
        events = [json.loads((await reader.next_event()).data) for _ in range(3)]
    assert [(event["topic"], event["active"]) for event in events] == [(template, True), ("a", True), ("a", False)]


async def test_v62_a_subscriber_sees_itself_arrive(app: HubApplication) -> None:
    async with follow(app, ("topic", "*"), headers=[bearer(CLASSIC)]) as stream:
        event = await stream.next_event()
    assert event.type == "message"
    assert json.loads(event.data)["topic"] == "*"


async def test_v84_an_update_is_in_the_dialect_of_the_subscription(app: HubApplication) -> None:
    async with (
        follow(app, ("match", "*"), headers=[bearer(CLASSIC)]) as watcher,
        follow(app, ("topic", "a"), ("match", "a")),
    ):
        _, classic, current = [await watcher.next_event() for _ in range(3)]
        subscriber = subscribers(app)[1]
    assert (classic.type, current.type) == ("message", "mercure")
    assert json.loads(classic.data) == CONTEXT | classic_document("a", subscriber)
    assert json.loads(current.data) == document("exact", "a", subscriber)


async def test_v84_v61_presence_updates_of_classic_subscriptions_may_have_the_current_type() -> None:
    async with (
        application(typed_classic_events=True) as app,
        follow(app, ("topic", "*"), headers=[bearer(CLASSIC)]) as watcher,
    ):
        event = await watcher.next_event()
        assert event.type == "mercure"
        assert json.loads(event.data) == CONTEXT | classic_document("*", subscribers(app)[0])


# -- payloads

ENTRY = {"match": "a", "payload": {"of": "the entry"}}


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"subscribe": [], "payload": {"foo": "bar"}}, {"foo": "bar"}),
        ({"payload": {"foo": "bar"}}, {"foo": "bar"}),
        *(
            ({"subscribe": ["a"], "payload": value}, value)
            for value in ("text", 1.5, 0, "", False, True, [], [1, None])
        ),
        ({"subscribe": ["a"], "payload": None}, None),
        ({"subscribe": ["a"]}, None),
        ({"subscribe": ["b", ENTRY], "payload": 1}, {"of": "the entry"}),
        ({"subscribe": [ENTRY, {"match": "a", "payload": {"of": "another"}}]}, {"of": "the entry"}),
        ({"subscribe": [ENTRY | {"match": "b"}], "payload": 1}, 1),
        ({"subscribe": [ENTRY | {"match": "b"}]}, None),
        ({"subscribe": [{"match": "a"}], "payload": 1}, 1),
        ({"subscribe": [{"match": "https://example.com/*", "match_type": "urlpattern", "payload": 2}]}, None),
    ],
)
@pytest.mark.parametrize("parameter", ["topic", "match"])
async def test_v73_t79_the_payload_comes_from_the_matching_entry_or_from_the_claim(
    claim: dict[str, Any], expected: Any, parameter: str, app: HubApplication
) -> None:
    token = signing.sign({"mercure": claim}, key=DEVELOPMENT_KEY)
    async with (
        follow(app, ("match", "*"), headers=[bearer(EVERYTHING)]) as watcher,
        follow(app, (parameter, "a"), headers=[bearer(token)]) as stream,
    ):
        assert stream.status == 200
        await watcher.next_event()
        document = json.loads((await watcher.next_event()).data)
        one = (await ask(app, "GET", document["id"], [bearer(CLASSIC)])).json()
    for told in (document, one):
        assert told.get("payload") == expected
        assert ("payload" in told) == (expected is not None)
        assert type(told.get("payload")) is type(expected)


async def test_v73_n126_classic_subscriptions_show_the_payload_of_a_current_token(app: HubApplication) -> None:
    token = signing.current(
        signing.detail({"match": "https://example.com/*", "match_type": "urlpattern"}, payload={"of": "url"}),
        signing.detail({"match": TEMPLATE, "match_type": "uritemplate"}, payload={"of": "template"}),
        key=DEVELOPMENT_KEY,
        exp=time.time() + 600,
    )
    async with follow(app, ("topic", TEMPLATE), ("topic", "a"), headers=[bearer(token)]):
        listed = (await get(app)).json()["subscriptions"]
    assert [one.get("payload") for one in listed] == [{"of": "url"}, None]


# -- documents


async def test_v63_v65_v74_t81_the_documents_of_the_three_routes(app: HubApplication) -> None:
    async with (
        follow(app, ("topic", TEMPLATE), ("topic", "a"), ("match", "a"), headers=[bearer(classic_token(payload=[1]))]),
        follow(app, ("topic", TEMPLATE)),
    ):
        first, second = subscribers(app)
        all_of_them = [
            classic_document(TEMPLATE, first, payload=[1]),
            classic_document("a", first, payload=[1]),
            classic_document(TEMPLATE, second),
        ]
        cursor = await publish(app, CLASSIC, ("topic", "x"))
        documents = []
        for below, listed in (
            ("", all_of_them),
            ("/https%3A%2F%2Fexample.com%2F%7Bselector%7D", [all_of_them[0], all_of_them[2]]),
            ("/a", [all_of_them[1]]),
            ("/https%3A%2F%2Fexample.com%2F1", []),
        ):
            answer = await get(app, below)
            assert (answer.status, answer.headers["content-type"]) == (200, "application/ld+json")
            documents.append(answer.json())
            assert documents[-1] == CONTEXT | {
                "id": BELOW + below,
                "type": "Subscriptions",
                "lastEventID": cursor,
                "subscriptions": listed,
            }
        for one in all_of_them:
            answer = await ask(app, "GET", one["id"], [bearer(CLASSIC)])
            assert (answer.status, answer.headers["content-type"]) == (200, "application/ld+json")
            documents.append(answer.json())
            assert documents[-1] == CONTEXT | one | {"lastEventID": cursor}
    assert set().union(*map(terms, documents)) == {
        "@context", "id", "type", "Subscription", "Subscriptions", "subscriptions", "topic", "subscriber", "active",
        "payload", "lastEventID",
    }  # fmt: skip


async def test_v63_the_exact_documents(app: HubApplication) -> None:
    assert (await get(app)).text == (
        '{"@context":"https://mercure.rocks/","id":"/.well-known/mercure/subscriptions","type":"Subscriptions",'
        '"lastEventID":"earliest","subscriptions":[]}'
    )
    async with follow(app, ("topic", "a")):
        [subscriber] = subscribers(app)
        cursor = await publish(app, CLASSIC, ("topic", "x"), ("id", 'an "id" \\ é'))
        one = (
            f'"id":"{BELOW}/a/{encoded(subscriber)}","type":"Subscription","topic":"a","subscriber":"{subscriber}",'
            '"active":true'
        )
        context = '{"@context":"https://mercure.rocks/",'
        assert (await get(app, f"/a/{encoded(subscriber)}")).text == (
            f'{context}{one},"lastEventID":"an \\"id\\" \\\\ é"}}'
        )
        assert (await get(app, "/a")).text == (
            f'{context}"id":"{BELOW}/a","type":"Subscriptions","lastEventID":"an \\"id\\" \\\\ é",'
            f'"subscriptions":[{{{one}}}]}}'
        )
        assert (await get(app, "/a")).json()["lastEventID"] == cursor


@pytest.mark.parametrize("below", ["", "/a"])
async def test_v63_the_id_of_a_list_is_the_requested_uri(below: str, app: HubApplication) -> None:
    for query in ("?last_event_id=x", "?a=%2F+b&c"):
        assert (await get(app, below + query)).json()["id"] == BELOW + below + query


async def test_v42_v63_a_token_in_the_query_is_not_repeated(app: HubApplication) -> None:
    for query, shown in ((f"?authorization={CLASSIC}", ""), (f"?a=1&authorization={CLASSIC}&b=2", "?a=1&b=2")):
        answer = await ask(app, "GET", f"{BELOW}/a{query}")
        assert (answer.status, answer.json()["id"]) == (200, f"{BELOW}/a{shown}")


async def test_v63_t81_a_missing_subscription_is_404(app: HubApplication) -> None:
    async with follow(app, ("topic", "a"), ("match", "b")):
        one = encoded(subscribers(app)[0])
        assert (await get(app, f"/a/{one}")).status == 200
        for below in (f"/b/{one}", f"/c/{one}", "/a/nobody", "/a/", f"/exact/a/{one}"):
            assert "no such subscription" in (await get(app, below)).detail
            assert (await get(app, below)).status == 404
    assert (await get(app, f"/a/{one}")).status == 404


async def test_v60_n139_a_plus_is_only_a_space_in_a_classic_path(app: HubApplication) -> None:
    topics = ["a b", "a+b", "a  b"]
    async with follow(app, *[("topic", topic) for topic in topics], ("match", "a b"), ("match", "a+b")):
        [id] = {encoded(subscriber) for subscriber in subscribers(app)}
        for path, topic in (("a%20b", "a b"), ("a+b", "a b"), ("a%2Bb", "a+b"), ("a+%20b", "a  b"), ("%61+b", "a b")):
            assert [one["topic"] for one in (await get(app, f"/{path}")).json()["subscriptions"]] == [topic]
            assert (await get(app, f"/{path}/{id}")).json()["topic"] == topic
        for path, pattern in (("a%20b", "a b"), ("a+b", "a+b"), ("a%2Bb", "a+b")):
            assert [one["match"] for one in (await get(app, f"/exact/{path}")).json()["subscriptions"]] == [pattern]
            assert (await get(app, f"/exact/{path}/{id}")).json()["match"] == pattern


async def test_v63_v84_the_cursor_is_in_the_document_and_in_the_headers(app: HubApplication) -> None:
    async with follow(app, ("topic", "a")):
        one = f"/a/{encoded(subscribers(app)[0])}"
        for id in ("urn:uuid:1", 'a "b" \\ c', "é 😀"):
            await publish(app, CLASSIC, ("topic", "x"), ("id", id))
            for below in ("", "/a", "/b", one):
                answer = await get(app, below)
                assert answer.json()["lastEventID"] == id
                quoted = id.replace("\\", "\\\\").replace('"', '\\"')
                assert (
                    dict(answer.raw_headers)[b"link"]
                    == (
                        f'</.well-known/mercure>; rel="mercure"; last-event-id="{quoted}"; content-type="application/ld+json"'
                    ).encode()
                )
                assert answer.headers["cache-control"] == "private, must-revalidate"
                tag = dict(answer.raw_headers)[b"etag"]
                for known in (tag, tag[1:-1]):  # as the hub writes it, and as 0.x did
                    again = await ask(app, "GET", BELOW + below, [bearer(CLASSIC), ("if-none-match", known)])
                    assert (again.status, again.body) == (304, b"")
                    assert dict(again.raw_headers)[b"etag"] == tag


async def test_v63_head_has_the_headers_of_get(app: HubApplication) -> None:
    for below in ("", "/a"):
        get_headers, head = (await get(app, below)).headers, await get(app, below, method="HEAD")
        assert (head.status, head.headers) == (200, get_headers)


# -- the choice of the dialect


@pytest.mark.parametrize(
    ("token", "accept", "is_classic"),
    [
        (EVERYTHING, None, False),
        (EVERYTHING, "*/*", False),
        (EVERYTHING, "application/json", False),
        (EVERYTHING, "application/ld+json", True),
        (EVERYTHING, "Application/LD+JSON; q=1", True),
        (EVERYTHING, "text/html, application/ld+json", True),
        (CLASSIC, None, True),
        (CLASSIC, "*/*", True),
        (CLASSIC, "application/ld+json", True),
        (CLASSIC, "application/json", False),
        (CLASSIC, "application/json, application/ld+json", True),
    ],
)
async def test_v84_every_subscription_is_listed_in_its_dialect(
    token: str, accept: str | None, is_classic: bool, app: HubApplication
) -> None:
    headers = [] if accept is None else [("accept", accept)]
    async with follow(app, ("topic", "a"), ("match", "b")):
        [subscriber] = subscribers(app)
        answer = await get(app, "", *headers, token=token)
        # A list of the current dialect has both kinds, each in its own form (V74).
        in_both: dict[str, Any] = {"id": f"{BELOW}/a/{encoded(subscriber)}", "type": "subscription", "topic": "a"}
        in_both |= {"subscriber": subscriber, "active": True}
        listed = {
            True: [classic_document("a", subscriber)],
            False: [in_both, document("exact", "b", subscriber)],
        }
        assert answer.json()["subscriptions"] == listed[is_classic]
        assert answer.json()["type"] == ("Subscriptions" if is_classic else "subscriptions")
        assert ("@context" in answer.json()) == ("lastEventID" in answer.json()) == is_classic
        assert answer.headers["content-type"] == ("application/ld+json" if is_classic else "application/json")
        assert "Accept" in answer.headers["vary"]


@pytest.mark.parametrize("token", [EVERYTHING, CLASSIC])
@pytest.mark.parametrize("accept", ["application/json", "application/ld+json"])
async def test_v84_v74_the_path_selects_the_dialect_of_one_matcher(
    token: str, accept: str, app: HubApplication
) -> None:
    async with follow(app, ("topic", "a"), ("match", "a")):
        one = encoded(subscribers(app)[0])
        for below, type in (
            ("/a", "application/ld+json"),
            (f"/a/{one}", "application/ld+json"),
            ("/exact/a", "application/json"),
            (f"/exact/a/{one}", "application/json"),
        ):
            answer = await get(app, below, ("accept", accept), token=token)
            assert (answer.status, answer.headers["content-type"]) == (200, type)


async def test_v84_v88_a_hub_without_the_classic_dialect_has_no_classic_documents() -> None:
    async with application(classic=False) as app:
        answer = await get(app, "", ("accept", "application/ld+json"), token=EVERYTHING)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {"id": BELOW, "type": "subscriptions", "subscriptions": []}
        assert (await get(app, "/a", token=EVERYTHING)).status == 404
        assert (await get(app, "/", token=EVERYTHING)).status == 404
        assert (await get(app, "/a/nobody", token=EVERYTHING)).status == 400
        assert (await get(app, "", token=CLASSIC)).status == 401


@pytest.mark.parametrize("type", MATCHER_TYPES)
async def test_v87_v74_a_first_segment_may_be_a_matcher_type(type: str, app: HubApplication) -> None:
    matcher = (f"match_{type}", "/a")
    async with follow(app, ("topic", type), matcher):
        [subscriber] = subscribers(app)
        one = encoded(subscriber)
        assert (await get(app, f"/{type}")).json()["subscriptions"] == [classic_document(type, subscriber)]
        for segment in (type, f"%{ord(type[0]):02x}{type[1:]}"):
            assert (await get(app, f"/{segment}/%2Fa")).json()["subscriptions"] == [document(type, "/a", subscriber)]
        ambiguous = await get(app, f"/{type}/{one}")  # the second segment is a pattern, not a subscriber
        assert ambiguous.json() == {"id": f"{BELOW}/{type}/{one}", "type": "subscriptions", "subscriptions": []}
    upper = await get(app, f"/{type.upper()}/a")  # a topic and a subscriber that does not exist
    assert upper.status == 404


async def test_v74_t81_three_segments_belong_to_the_current_dialect(app: HubApplication) -> None:
    async with follow(app, ("topic", "a"), ("topic", "topic")):
        one = encoded(subscribers(app)[0])
        assert (await get(app, f"/topic/a/{one}")).status == 400
        assert (await get(app, f"/x/a/{one}")).status == 400
        assert (await get(app, f"/topic/{one}")).json()["topic"] == "topic"
        assert (await get(app, f"/a/b/c/{one}")).status == 404


# -- paths

TOPICS = TEXTS.filter(lambda text: text not in (*MATCHER_TYPES, "other"))


@settings(max_examples=50, deadline=None)
@given(st.lists(TOPICS, min_size=1, max_size=4, unique=True))
@example(["", "+", " ", "%2F", "%", "*", "é", "{}", TEMPLATE, "{", "{?a,b*}"])
@example([".", "..", "/", "//", "a/../b", "?", "#", "\\", "\U0010ffff", "a" * 4096])
def test_v60_v63_t80_a_subscription_is_only_found_at_its_path(topics: list[str]) -> None:
    async def play() -> None:
        async with (
            application() as app,
            follow(app, ("topic", "other")),
            follow(app, *(("topic", topic) for topic in topics)) as stream,
        ):
            assert stream.status == 200
            subscriber = subscribers(app)[1]
            for topic in topics:
                one = classic_document(topic, subscriber)
                answer = await ask(app, "GET", one["id"], [bearer(CLASSIC)])
                assert answer.status == 200
                assert answer.json() == CONTEXT | one | {"lastEventID": answer.json()["lastEventID"]}
                listed = await ask(app, "GET", one["id"].rpartition("/")[0], [bearer(CLASSIC)])
                assert listed.json()["subscriptions"] == [one]

    asyncio.run(play())


async def test_v60_v63_paths_through_a_server(shared_hub: HubProcess) -> None:
    topics = [
        "",
        "+",
        " ",
        "%2F",
        "%",
        "*",
        "é\u2028",
        "{}",
        TEMPLATE,
        ".",
        "..",
        "a/../b",
        "//",
        "?",
        "#",
        '"',
        "é" * 2048,
    ]
    authorization = [bearer(shared_hub.token)]
    async with await wire.subscribe(shared_hub, *(("topic", topic) for topic in topics)):
        async with await wire.request(shared_hub, "GET", BELOW, authorization) as reply:
            listed = json.loads(await reply.body())["subscriptions"]
        assert listed == [classic_document(topic, listed[0]["subscriber"]) for topic in topics]
        for one in listed:
            async with await wire.request(shared_hub, "GET", one["id"], authorization) as reply:
                document = json.loads(await reply.body())
                assert document == CONTEXT | one | {"lastEventID": document["lastEventID"]}
            async with await wire.request(shared_hub, "GET", one["id"].rpartition("/")[0], authorization) as reply:
                assert json.loads(await reply.body())["subscriptions"] == [one]


# -- the grants of a reader

OF_FOO = BELOW + "/foo"
ONE = OF_FOO + "/urn%3Auuid%3A1"
ALL = BELOW + "{/topic}{/subscriber}"


@pytest.mark.parametrize(
    ("granted", "path", "status"),
    [
        ("*", BELOW, 200),
        ("*", ONE, 404),
        (ALL, BELOW, 200),
        (ALL, OF_FOO, 200),
        (ALL, BELOW + "/https%3A%2F%2Fexample.com%2F%7Bselector%7D", 200),
        (ALL, ONE, 404),
        (ALL, BELOW + "/exact/foo", 200),
        (ALL, BELOW + "/exact/foo/urn%3Auuid%3A1", 403),
        (BELOW + "/foo{/subscriber}", OF_FOO, 200),
        (BELOW + "/foo{/subscriber}", ONE, 404),
        (BELOW + "/foo{/subscriber}", BELOW, 403),
        (BELOW + "/foo{/subscriber}", BELOW + "/bar", 403),
        (BELOW + "/foo{/subscriber}", BELOW + "/fo%6F", 403),
        (BELOW, BELOW, 200),
        (BELOW, OF_FOO, 403),
        (ONE, ONE, 404),
        (ONE, ONE.replace("%3A", ":"), 403),
        (OF_FOO + "?last_event_id=x", OF_FOO, 403),
        ("foo", OF_FOO, 403),
    ],
)
async def test_v64_v82_t75_t76_the_token_grants_the_path_without_the_query(
    granted: str, path: str, status: int, app: HubApplication
) -> None:
    tokens = [classic_token(subscribe=[granted])]
    if "{" in granted:
        tokens.append(current_token(subscribe=[("uritemplate", granted)]))
    elif granted not in ("*", "foo"):
        tokens.append(current_token(subscribe=[granted]))
    for token in tokens:
        for query in ("", "?last_event_id=x"):
            assert (await ask(app, "GET", path + query, [bearer(token)])).status == status


@pytest.mark.parametrize("path", [BELOW, OF_FOO, ONE])
async def test_v64_t75_a_token_is_required_even_if_subscribers_need_none(path: str, app: HubApplication) -> None:
    assert (await ask(app, "GET", path)).status == 401
    assert (await ask(app, "GET", path, [bearer(classic_token(publish=["*"]))])).status == 403


async def test_v82_a_current_token_shows_classic_subscriptions(app: HubApplication) -> None:
    token = current_token(subscribe=[("urlpattern", BELOW + "/:topic/:subscriber")])
    async with (
        follow(app, ("match", "*"), headers=[bearer(token)]) as reader,
        follow(app, ("topic", "a"), ("match", "b")),
    ):
        event = await reader.next_event()
        document = json.loads(event.data)
        assert (event.type, document["topic"]) == ("message", "a")
        assert (await ask(app, "GET", document["id"], [bearer(token)])).json()["topic"] == "a"

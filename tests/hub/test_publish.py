"""POST of a form: accepted fields, and refusals, which reach no subscriber."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack, suppress
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

import pytest

from hub import Settings, create_app
from hub.development import DEVELOPMENT_KEY
from hub.errors import InvalidRequest
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.protocol.updates import Update
from tests.asgi import FORM, NDJSON, PATH, application, ask, bearer, classic_token, current_token, follow, scope_of
from tests.hub.publishing import Watched, both_dialects, each_hub, watched
from tests.hub.signing import sign
from tests.wire import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Message, Receive, Scope, Send

    from hub.history.base import Entry

pytestmark = pytest.mark.anyio

Field = tuple[str, str]
URLENCODED = "application/x-www-form-urlencoded"

hub = each_hub  # the fixtures under the names of this file
classic_hub = both_dialects


# -- accepted forms


async def test_n40_n55_v22_success_is_200_and_the_id_as_plain_text(hub: Watched) -> None:
    reply = await hub.post(b"topic=a&id=urn:%C3%A9")
    assert (reply.status, reply.body) == (200, "urn:é".encode())
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert [event.id for event in await hub.arrived()] == ["urn:é"]


@pytest.mark.parametrize("given", [b"", b"&id="])
async def test_n27_n51_t52_v55_r22_a_generated_id_arrives_at_subscribers(hub: Watched, given: bytes) -> None:
    replies = [await hub.post(b"topic=a" + given) for _ in range(3)]
    ids = [reply.text for reply in replies]
    assert [event.id for event in await hub.arrived()] == ids
    assert len(set(ids)) == 3
    assert all(uuid.UUID(id).urn == id for id in ids)


async def test_n42_n4_r43_topics_keep_their_order_and_make_one_update(hub: Watched) -> None:
    reply = await hub.post_form(("topic", "b"), ("topic", "a"), ("data", "x"), ("topic", "c"), ("topic", "a"))
    entry = await hub.app.state.hub.history.newest()
    assert (entry.position, entry.update.topics) == (1, ("b", "a", "c", "a"))
    assert await hub.arrived() == [Event(reply.text, "message", "x", None)]
    async with follow(hub.app, ("match", "c"), ("match", "a"), ("last_event_id", "earliest")) as reader:
        await hub.post_form(("topic", "a"), ("data", "y"))
        assert [event.data for event in await reader.until("y")] == ["x"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("id", "urn:1"), ("data", "x"), ("type", "t"), ("retry", "5")], Event("urn:1", "t", "x", "5")),
        ([("id", "1"), ("data", ""), ("type", ""), ("retry", "")], Event("1", "message", "", None)),
        ([("id", "1")], Event("1", "message", "", None)),  # T53
        ([("id", "1"), ("data", "a=b&c;d+e%20")], Event("1", "message", "a=b&c;d+e%20", None)),
        ([("id", "1"), ("data", "\0\ufeff\u202e\x7f")], Event("1", "message", "\0\ufeff\u202e\x7f", None)),  # opaque
        ([("id", "1"), ("data", '{"a": 1}')], Event("1", "message", '{"a": 1}', None)),
        (
            [("id", "1"), ("data", "x"), ("data", "y"), ("id", "2")],
            Event("1", "message", "x", None),
        ),  # the first counts
        (
            [("id", "1"), ("Data", "x"), ("datum", "y"), ("", "z"), ("match", "a")],
            Event("1", "message", "", None),
        ),  # N54
        ([("id", "urn:a:b?c=d"), ("type", "message")], Event("urn:a:b?c=d", "message", "", None)),  # T20
        ([("id", "1"), ("retry", "0")], Event("1", "message", "", "0")),
        ([("id", "1"), ("retry", "007")], Event("1", "message", "", "7")),
        ([("id", "1"), ("retry", "9" * 5_000)], Event("1", "message", "", "86400000")),
    ],
)
async def test_n49_n52_n53_n54_t53_t20_v20_the_fields_arrive(
    classic_hub: Watched, fields: list[Field], expected: Event
) -> None:
    reply = await classic_hub.post_form(("topic", "a"), *fields)
    assert (reply.status, reply.text) == (200, expected.id)
    assert await classic_hub.arrived() == [expected]


async def test_n49_n28_line_ends_of_data_become_lf(hub: Watched) -> None:
    await hub.post(b"topic=a&data=a%0Db%0D%0Ac%0A%0D")
    (event,) = await hub.arrived()
    assert event.data == "a\nb\nc\n\n"


@pytest.mark.parametrize("body", [b"%74opic=%61", b"&&topic=a&", b"topic=a&x=%zz&%=%&=", b"topic=a&a;topic=*"])
async def test_n40_n54_a_form_is_parsed_as_the_whatwg_defines(classic_hub: Watched, body: bytes) -> None:
    assert (await classic_hub.post(body)).status == 200
    assert (await classic_hub.app.state.hub.history.newest()).update.topics == ("a",)


@pytest.mark.parametrize(
    "type", [f"{URLENCODED}; charset=utf-8", f"{URLENCODED};charset=UTF-8", URLENCODED.upper(), f" {URLENCODED} ;"]
)
async def test_n40_the_content_type_may_have_parameters_and_any_case(classic_hub: Watched, type: str) -> None:
    assert (await classic_hub.post(b"topic=a", ("content-type", type))).status == 200


@pytest.mark.parametrize(
    ("field", "private"),
    [
        ("private", True),
        ("private=", True),
        ("private=on", True),  # V20
        ("private=0", True),
        ("private=false", True),
        ("private=&private=0", True),
        ("%70rivate=no", True),
        ("Private=on", False),
        ("privat=on", False),
        ("data=private", False),
    ],
)
async def test_n50_v20_private_counts_with_any_value(hub: Watched, field: str, private: bool) -> None:
    async with follow(hub.app, ("match", "a")) as anonymous:
        reply = await hub.post(b"topic=a&" + field.encode())
        assert [event.id for event in await hub.arrived()] == [reply.text]  # a permitted reader gets it
        await hub.post_form(("topic", "a"), ("data", "end"))
        assert [event.id for event in await anonymous.until("end")] == ([] if private else [reply.text])


# -- refusals for every token


REFUSED: list[tuple[str, list[Field], str]] = [
    ("n41", [], 'missing "topic"'),
    ("n41", [("Topic", "a"), ("data", "topic=a")], 'missing "topic"'),
    ("n43", [("topic", "a\0b")], "U+0000"),  # T21
    ("n43", [("topic", "a\u202eb")], "U+202E"),
    ("n43", [("topic", "a"), ("topic", "b\x85")], "U+0085"),
    ("n44", [("topic", "a"), ("topic", f"https://other.example{PATH}/x")], "is reserved"),
    ("n44", [("topic", f"{PATH}/subscriptions/exact/a/b")], "is reserved"),
    ("n48", [("topic", "*")], "topic '*' is reserved"),
    ("n48", [("topic", "a"), ("topic", "*")], "topic '*' is reserved"),
    ("n51", [("topic", "a"), ("id", "#x")], "id '#x' is reserved"),
    ("n51", [("topic", "a"), ("id", "earliest")], "id 'earliest' is reserved"),
    ("n51", [("topic", "a"), ("id", "a\x7f")], "U+007F"),  # T20
    ("n51", [("topic", "a"), ("id", "a\r")], "U+000D"),  # T54
    ("n51", [("topic", "a"), ("id", "a\nb")], "U+000A"),
    ("n51", [("topic", "a"), ("id", "\0")], "U+0000"),
    ("n51", [("topic", "a"), ("id", "a ")], "ends with a space"),
    ("n52", [("topic", "a"), ("type", "mercure")], "type 'mercure' is reserved"),
    ("n52", [("topic", "a"), ("type", "a\x90")], "U+0090"),
    ("n52", [("topic", "a"), ("type", "a\r\nb")], "U+000D"),
    ("n52", [("topic", "a"), ("type", "a\nb")], "U+000A"),
    ("n52", [("topic", "a"), ("type", "a\0")], "U+0000"),
    *[
        ("n53", [("topic", "a"), ("retry", retry)], "retry")
        for retry in ("+5", "-1", " 5", "5 ", "5.0", "5e1", "0x5", "5_0", "٥", "²", "５", "NaN", "1" * 16 + ".")
    ],
]


@pytest.mark.parametrize(
    ("item", "fields", "told"), REFUSED, ids=[f"{item} {fields}"[:60] for item, fields, _ in REFUSED]
)
async def test_n41_n43_n44_n48_n51_n52_n53_n29_n96_t50_t54_t20_t21_v21_invalid_requests_are_400_for_every_token(
    classic_hub: Watched, item: str, fields: list[Field], told: str
) -> None:
    hub = classic_hub
    for token in ("", current_token(), classic_token(publish=["*"]), classic_token()):
        reply = await hub.post_form(*fields, token=token)
        assert (reply.status, reply.headers.get("www-authenticate")) == (400, None)
        assert told in reply.detail
    assert await hub.arrived() == []


@pytest.mark.parametrize(
    "body",
    [
        b"topic=%FF",
        b"topic=a&data=%FF",
        b"topic=a&id=%C3",
        b"topic=a&type=\xff",
        b"topic=a&data=%ED%A0%80",
    ],
)
async def test_n40_n49_t20_bytes_that_are_not_utf_8_are_refused(classic_hub: Watched, body: bytes) -> None:
    reply = await classic_hub.post(body)
    assert reply.status == 400
    assert "is not valid UTF-8" in reply.detail
    assert await classic_hub.arrived() == []


@pytest.mark.parametrize(
    "type", ["application/jsonp", "multipart/form-data; boundary=x", "text/plain", "", None, URLENCODED + "x"]
)
async def test_n41_t50_another_content_type_is_refused_by_name(classic_hub: Watched, type: str | None) -> None:
    reply = await classic_hub.post(b"topic=a", None if type is None else ("content-type", type))
    assert reply.status == 400
    assert f"not {(type or '').partition(';')[0]!r}" in reply.detail
    assert await classic_hub.arrived() == []


RESERVED = [
    "", "#x", "?x", "/.well-known/mercure", "https://example.com/.well-known/mercure",
    "http://other.example/.well-known/mercure/x", "/.well-known/mercure/subscriptions/foo", "mercure/subscriptions/foo",
    "https://example.com/.well-known/%6Dercure/subscriptions/x", "https://example.com/.well-known/%6dercure",
    "/.well-known/me%72cure/x", "/.well-known/mercure/../mercure/x",
    "https://example.com\\.well-known\\mercure\\subscriptions\\x",
    "//x/./.well-known/mercure/", "HTTPS:mercure", "http:mercure/x", " http:mercure", "file:///.well-known/mercure",
]  # fmt: skip
FREE = [
    "https://example.com/.well-known/mercureXXX", "https://example.com/.well-known/mercure-dashboard",
    "https://example.com/foo/.well-known/mercure/bar", "subscriptions/foo", "bar", "../mercure/x", "urn:example:mercure",
    "a topic with spaces",
    "https://[/.well-known/mercure", "**", "/.well-known/Mercure", "/x?/.well-known/mercure", "/.well-known/mercure%2Fx",
]  # fmt: skip


@pytest.mark.parametrize("topic", RESERVED)
async def test_n46_n44_t35_v21_reserved_topics_are_400_in_any_position_and_with_any_token(
    hub: Watched, topic: str
) -> None:
    for topics in ([topic], ["a", topic], [topic, "a"]):
        for token in ("", current_token()):
            reply = await hub.post_form(*(("topic", one) for one in topics), token=token)
            assert reply.status == 400
            assert "reserved" in reply.detail
    assert await hub.arrived() == []


@pytest.mark.parametrize("topic", FREE)
async def test_n46_n45_n48_t35_v21_topics_that_only_look_reserved_are_accepted(
    classic_hub: Watched, topic: str
) -> None:
    reply = await classic_hub.post_form(("topic", topic), ("topic", "a"))
    assert reply.status == 200
    assert [event.id for event in await classic_hub.arrived()] == [reply.text]


@pytest.mark.parametrize(
    "update",
    [
        Update(("a", "*")),
        Update(("a\ud800",)),
        Update(("a",), "\ud800"),
        Update(("a",), id="\ud800"),
        Update(("a",), id="1\ndata: x"),
        Update(("a",), type="\udfff"),
        Update(("a",), type="mercure"),
        Update(("a",), retry=-1),
    ],
)
async def test_n2_n29_n44_n52_the_program_has_the_same_rules_and_streams_continue_after_a_refusal(
    update: Update,
) -> None:
    async with watched() as hub:
        with pytest.raises((InvalidRequest, UnicodeEncodeError)):
            await hub.app.state.hub.publish(Update(("a",)), update)
        await hub.app.state.hub.publish(Update(("a",), "x"), Update(("b",), "y"))
        assert [event.data for event in await hub.arrived()] == ["x", "y"]


# -- limits


@pytest.mark.parametrize("name", ["topic", "id", "type"])
async def test_n56_the_bytes_of_a_field_are_bounded(name: str) -> None:
    async with watched(max_topic=20) as hub:
        for value, status in (("é" * 10, 200), ("x" * 20, 200), ("é" * 10 + "x", 413), ("x" * 21, 413)):
            reply = await hub.post_form(("topic", "a"), (name, value))
            assert reply.status == status
            if status == 413:
                assert f"{name} " in reply.detail
                assert "longer than 20 bytes" in reply.detail
        assert len(await hub.arrived()) == 2


async def test_n56_t50_the_number_of_topics_of_an_update_is_bounded() -> None:
    async with watched(max_topics=3) as hub:
        assert (await hub.post(b"topic=a&topic=b&topic=a")).status == 200
        reply = await hub.post(b"topic=a&topic=a&topic=a&topic=a")
        assert (reply.status, reply.detail) == (413, "there are 4 topics; the limit is 3")
        assert len(await hub.arrived()) == 1


async def test_r14_n56_t22_the_default_limits_are_exact(hub: Watched) -> None:
    longest = 2**20 - len(b"topic=a&data=")
    for body, above in (
        (b"topic=a&data=" + b"x" * longest, b"x"),
        (b"&".join([b"topic=a"] * 1_000), b"&topic=a"),
        (b"topic=" + b"a" * 4_096, b"a"),
        (b"topic=a&type=" + b"a" * 4_096, b"a"),
    ):
        assert (await hub.post(body)).status == 200
        assert (await hub.post(body + above)).status == 413
    assert len(await hub.arrived()) == 4


async def test_n56_t22_a_body_is_counted_while_it_is_read_and_reading_stops_at_the_limit() -> None:
    async with watched(max_body=100) as hub:
        came = 0

        async def receive() -> Message:
            nonlocal came
            came += 1
            return {"type": "http.request", "body": b"topic=a&".ljust(30, b"x"), "more_body": True}

        answers: list[Message] = []

        async def send(message: Message) -> None:
            answers.append(message)

        await hub.app(scope_of("POST", PATH, [FORM, bearer(current_token(publish=["*"]))]), receive, send)
        assert (answers[0]["status"], came) == (413, 4)
        assert await hub.arrived() == []


async def test_t24_0_means_no_limit() -> None:
    async with watched(max_body=0) as hub:
        assert (await hub.post(b"topic=a&id=1&data=" + b"x" * 2**21)).status == 200
        (event,) = await hub.arrived()
        assert len(event.data) == 2**21


# -- grants and the order of checks


async def test_n80_n92_t51_an_alternate_topic_without_a_grant_refuses_the_update(hub: Watched) -> None:
    token = current_token(publish=["a", ("urlpattern", "https://example.com/books/:id")])
    for topics in (["b"], ["a", "b"], ["b", "a"], ["a", "https://example.com/books/1/2"]):
        for private in ([], [("private", "")]):
            reply = await hub.post_form(*(("topic", topic) for topic in topics), *private, token=token)
            assert reply.status == 403
            assert reply.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')
    assert await hub.arrived() == []
    reply = await hub.post_form(("topic", "a"), ("topic", "https://example.com/books/1"), token=token)
    assert [event.id for event in await hub.arrived()] == [reply.text]


@pytest.mark.parametrize(
    ("claims", "allowed", "refused"),
    [
        ({"mercure": {"publish": ["*"]}}, ["a", "https://example.com/1"], []),
        ({"mercure": {"publish": ["a", "https://example.com/{id}"]}}, ["a", "https://example.com/1"], ["b"]),
        ({"mercure": {"publish": ["b", "*"]}}, ["a"], []),
        ({"mercure": {"publish": []}}, [], ["a"]),
        ({"mercure": {"publish": None}}, [], ["a"]),
        ({"mercure": {"subscribe": ["*"]}}, [], ["a"]),
        ({}, [], ["a"]),
    ],
)
async def test_v23_n80_a_classic_token_allows_what_its_selectors_match(
    classic_hub: Watched, claims: dict[str, Any], allowed: Sequence[str], refused: Sequence[str]
) -> None:
    hub, token = classic_hub, sign(claims, key=DEVELOPMENT_KEY)
    for topic in allowed:
        assert (await hub.post_form(("topic", topic), token=token)).status == 200
    for topic in refused:
        for topics in ([topic], [*allowed[:1], topic]):
            reply = await hub.post_form(*(("topic", one) for one in topics), token=token)
            assert reply.status == 403
            assert reply.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')
    assert len(await hub.arrived()) == len(allowed)


async def test_n90_n96_without_a_token_the_body_is_not_even_read(hub: Watched) -> None:
    async def receive() -> Message:
        raise AssertionError("the hub reads the body")

    for headers in ([FORM], [FORM, bearer("a.b.c")]):
        answers: list[Message] = []

        async def send(message: Message, answers: list[Message] = answers) -> None:
            answers.append(message)

        await hub.app(scope_of("POST", PATH, headers), receive, send)
        assert answers[0]["status"] == 401


ORDER = {"token": 401, "body": 413, "field": 400, "reserved": 400, "scope": 403}
"""The faults of a request in the order of their checks, and the status of each."""
FAULTS = [*chain.from_iterable(combinations(ORDER, count) for count in range(len(ORDER) + 1))]


@pytest.mark.parametrize("type", [FORM, NDJSON], ids=["form", "lines"])
@pytest.mark.parametrize(("classic", "classic_tokens"), [(True, True), (True, False), (False, False)])
async def test_n96_n80_errors_are_checked_in_this_order(type: Field, classic: bool, classic_tokens: bool) -> None:
    signed = classic_token if classic_tokens else current_token
    async with watched(classic=classic, max_body=200) as hub:
        for faults in FAULTS:
            token = None if "token" in faults else signed(publish=["a" if "scope" in faults else "*"])
            topics = ["b", *(["*"] if "reserved" in faults else [])]
            retry = "x" if "field" in faults else "1"
            data = "x" * (200 if "body" in faults else 1)
            if type is FORM:
                fields = [("topic", topic) for topic in topics]
                reply = await hub.post_form(*fields, ("retry", retry), ("data", data), token=token)
            else:
                bad = f'{{"topic": {str(topics).replace(chr(39), chr(34))}, "retry": {retry}, "data": "{data}"}}'
                reply = await hub.post_lines('{"topic": "a"}', bad, token=token)
            expected = next((status for fault, status in ORDER.items() if fault in faults), 200)
            assert reply.status == expected, faults
        assert len(await hub.arrived()) == (1 if type is FORM else 2)


@pytest.mark.parametrize("body", [b"topic=b&" * 4, b"topic=b" + b"b" * 20, b"topic=b&id=" + b"b" * 21])
async def test_n96_n56_a_field_above_its_limit_counts_before_the_scope(body: bytes) -> None:
    async with watched(max_topics=3, max_topic=20) as hub:
        assert (await hub.post(body, token=current_token(publish=["a"]))).status == 413
        assert (await hub.post(body, token=None)).status == 401


# -- a history that fails


class Faulty(MemoryHistory):
    """A history whose disk is full until the test frees it."""

    full = True

    async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
        if self.full:
            raise OSError("no space left on device")
        return await super().append(updates, **options)


@pytest.mark.parametrize(("type", "body"), [(FORM, b"topic=a"), (NDJSON, b'{"topic": "a"}\n' * 3)])
async def test_t55_a_failing_history_is_500_each_time_until_it_recovers(type: Field, body: bytes) -> None:
    history = Faulty(Retention(max_updates=8, max_bytes=10**6))
    app = create_app(
        Settings(dev=True, retry=0, max_lifetime=0, subscriptions=False, history_updates=8), history=history
    )

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(OSError):  # a server would log it
            await app(scope, receive, send)

    async with app.running(), follow(app, ("match", "*")) as reader:
        headers = [type, bearer(classic_token(publish=["*"]))]
        for _ in range(10):  # more updates than there is room for at once
            reply = await ask(served, "POST", PATH, headers, body)
            assert reply.status == 500
            assert "space" not in reply.text
        history.full = False
        reply = await ask(served, "POST", PATH, headers, body)
        assert reply.status == 200
        assert (await reader.next_event()).id == reply.text.split("\n")[0]
        assert (await history.read(0))[0].position == 1


# -- what a publisher learns


@pytest.mark.parametrize("chosen", [True, False])
async def test_r90_a_publisher_learns_who_is_reached_only_if_the_setting_says_so(chosen: bool) -> None:
    async with application(tell_publishers=chosen, subscriptions=False) as app, AsyncExitStack() as stack:
        for granted in (["a", "b"], ["a"], []):
            signed = bearer(current_token(subscribe=granted))
            await stack.enter_async_context(follow(app, ("match", "a"), ("match", "b"), headers=[signed]))
        publisher = bearer(classic_token(publish=["*"]))

        async def told(type: Field, body: bytes) -> str | None:
            answer = await ask(app, "POST", PATH, [type, publisher], body)
            assert answer.status == 200
            assert answer.text.startswith("urn:uuid:")  # N55
            return answer.headers.get("hub-process-reach")

        reaches = [
            await told(FORM, b"topic=a"),
            await told(FORM, b"topic=b&private=on"),
            await told(FORM, b"topic=c"),
            await told(NDJSON, b'{"topic": "a", "private": true}\n{"topic": ["c", "b"]}\n'),
        ]
        assert reaches == (
            [f"receivers={count}, without-grant={others}" for count, others in ((3, 0), (1, 2), (0, 0), (5, 1))]
            if chosen
            else [None] * 4
        )

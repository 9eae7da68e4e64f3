"""Subscribe requests over HTTP: parameters, bodies, refusals, and the response head."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

import hub
from hub import Settings, Update, create_app
from hub.http import request as requests
from tests.asgi import (
    FORM,
    PATH,
    application,
    ask,
    bearer,
    classic_token,
    current_token,
    follow,
    publish,
    scope_of,
)
from tests.hub.serving import sent, served
from tests.waiting import HANG
from tests.wire import request

if TYPE_CHECKING:
    from hub.http.embedding import HubApplication
    from tests.asgi import Answer

pytestmark = pytest.mark.anyio

DIALECTS = pytest.mark.parametrize("classic", [True, False], ids=["both", "current"])
HTTP = pytest.mark.parametrize("http", ["httptools", "h11"])


async def get(app: HubApplication, query: str, *headers: tuple[str | bytes, str | bytes], **scope: Any) -> Answer:
    return await ask(app, "GET", f"{PATH}?{query}", headers, **scope)


async def query(app: HubApplication, body: str, *headers: tuple[str, str], target: str = PATH) -> Answer:
    return await ask(app, "QUERY", target, [FORM, *headers], body.encode())


def update(topic: str, data: str, **more: Any) -> Update:
    return Update((topic,), data, **more)


def connected(app: HubApplication) -> list[list[tuple[str, str]]]:
    """Return the types and patterns of each subscriber's matchers."""
    return [
        [(matcher.type, matcher.pattern) for matcher in subscriber.subscribed]
        for subscriber in (seat.subscriber for seat in app.state.hub.delivery.audience)
    ]


# -- parameters in the query and the body


@DIALECTS
@pytest.mark.parametrize(
    ("method", "in_query", "in_body"),
    [
        ("GET", "match=a&match_exact=b&match_urlpattern=/c&match=d", ""),
        ("QUERY", "", "match=a&match_exact=b&match_urlpattern=/c&match=d"),
        ("QUERY", "match=a&match_exact=b", "match_urlpattern=/c&match=d"),
        ("QUERY", "match=a&match_exact=b&match_urlpattern=/c&match=d", ""),
        ("QUERY", "match=a&match=a&x=1", "match_exact=b&match_urlpattern=/c&match=d&match=a"),
    ],
)
async def test_n10_n11_n12_n15_n19_t61_a_query_a_body_or_both(
    classic: bool, method: str, in_query: str, in_body: str
) -> None:
    wanted = [("exact", "a"), ("exact", "b"), ("urlpattern", "/c"), ("exact", "d")]
    async with (
        application(classic=classic) as app,
        follow(app, method=method, target=f"{PATH}?{in_query}", headers=[FORM], body=in_body.encode()) as stream,
    ):
        assert stream.status == 200
        assert connected(app) == [wanted]
        await app.state.hub.publish(*(update("d", "1"), update("e", "2"), update("/c", "3")))
        assert (await stream.next_event()).data == "1"
        assert (await stream.next_event()).data == "3"


async def test_v4_n12_classic_parameters_in_a_body_too() -> None:
    async with (
        application() as app,
        follow(app, method="QUERY", target=f"{PATH}?topic=a", headers=[FORM], body=b"topic=%7Bb%7D&match=a"),
    ):
        assert connected(app) == [[("topic", "a"), ("topic", "{b}"), ("exact", "a")]]


async def test_n10_the_body_of_a_get_is_ignored() -> None:
    async with application() as app, follow(app, ("match", "a"), headers=[FORM], body=b"match=b&Match=c"):
        assert connected(app) == [[("exact", "a")]]


@DIALECTS
@pytest.mark.parametrize(
    "text",
    [
        "match=a;match=b&x=1",
        "match=a+b%2Bc&match=%&match=%zz&match=%4",
        "m%61tch=%C3%A9&match_ex%61ct=é",
        "&&match=a&&match=&=match=b&",
    ],
)
async def test_n14_n11_n5_r70_one_parser_for_query_and_body(classic: bool, text: str) -> None:
    async with application(classic=classic) as app:
        found = []
        for method, target, body in (("GET", f"{PATH}?{text}", ""), ("QUERY", PATH, text)):
            async with follow(app, method=method, target=target, headers=[FORM], body=body.encode()):
                found += connected(app)
        assert found[0] == found[1]
        assert (
            found[0]
            == {
                0: [("exact", "a;match=b")],
                1: [("exact", "a b+c"), ("exact", "%"), ("exact", "%zz"), ("exact", "%4")],
                2: [("exact", "é")],
                3: [("exact", "a"), ("exact", "")],
            }[["match=a;", "match=a+", "m%61tch=", "&&match="].index(text[:8])]
        )


RESERVED = [
    "Match", "MATCH", "match_URLPattern", "matchurlpattern", "match_", "match_regexp", "match_exactly", "matchmaking",
    "MATCH_exact", "mATCH", "match_Exact", "match_topic", "match__deprecated_topic", "match-exact", "match[]", "match ",
    "match_exact ", "match\u00e9", "match_uriTemplate",
]  # fmt: skip


@DIALECTS
@pytest.mark.parametrize("name", RESERVED)
async def test_n16_t37_n37_names_that_begin_with_match_are_reserved_everywhere(classic: bool, name: str) -> None:
    bad = urlencode({name: "a"})
    escaped = "".join(f"%{byte:02X}" for byte in name.encode())
    async with application(classic=classic) as app:
        for method, target, body in (
            ("GET", f"{PATH}?match=a&{bad}", ""),
            ("GET", f"{PATH}?{escaped}=a&match=a", ""),
            ("QUERY", f"{PATH}?match=a&{bad}", ""),
            ("QUERY", PATH, f"{bad}&match=a"),
            ("QUERY", f"{PATH}?match=a", bad),
            ("HEAD", f"{PATH}?match=a&{bad}", ""),
        ):
            answer = await ask(app, method, target, [FORM], body.encode())
            assert answer.status == 400
            assert f"parameter {name!r} is none of match, match_exact, match_urlpattern" in answer.detail


@DIALECTS
@pytest.mark.parametrize(
    "name", ["xmatch", " match", "matc", "mat", "ｍatch", "ｍatch_regexp", "", "\ufeffmatch", "last"]
)
async def test_n20_v3_n16_other_names_are_ignored(classic: bool, name: str) -> None:
    async with (
        application(classic=classic) as app,
        follow(app, target=f"{PATH}?{urlencode([(name, 'b'), ('match', 'a'), ('_', '1')])}") as stream,
    ):
        assert (stream.status, connected(app)) == (200, [[("exact", "a")]])


@DIALECTS
@pytest.mark.parametrize("text", ["", "x=1", "Topic=a", "last_event_id=a", "xmatch=a", "&&"])
async def test_n20_t60_v1_a_request_without_a_matcher_is_refused(classic: bool, text: str) -> None:
    told = 'missing "match" or "topic" parameter' if classic else 'missing "match" parameter'
    async with application(classic=classic) as app:
        for answer in (await get(app, text), await query(app, text), await ask(app, "HEAD", f"{PATH}?{text}")):
            assert (answer.status, "www-authenticate" in answer.headers) == (400, False)
            assert told in answer.detail


async def test_v88_without_the_classic_dialect_topic_and_classic_tokens_are_refused() -> None:
    async with application(classic=False) as app:
        for text in ("topic=a", "topic=a&match=a", "match=a&topic"):
            for answer in (await get(app, text), await query(app, text)):
                assert answer.status == 400
                assert 'does not speak: use "match"' in answer.detail
        assert (await query(app, "topic=a", target=f"{PATH}?match=a")).status == 400
        assert (await get(app, "match=a", bearer(classic_token(["*"], ["*"])))).status == 401
        assert (await get(app, "match=a", bearer(current_token(subscribe=["a"])))).status == 200


@DIALECTS
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("match=a%00", "U+0000"),
        ("match=a%0A", "U+000A"),
        ("match_exact=%7F", "U+007F"),
        ("match_urlpattern=/%C2%85", "U+0085"),
        ("match_uritemplate=%E2%80%8B", "U+200B"),
        ("match=%EF%BB%BFa", "U+FEFF"),
        ("match=%FF", "is not valid UTF-8"),
        ("match=%ED%A0%80", "is not valid UTF-8"),
        ("match_uritemplate=%7B", "never closed"),
        ("match_amqp=a..b", "empty"),
        ("match_mqtt=a%2F%23%2Fb", "#"),
    ],
)
async def test_n17_n2_n3_invalid_text_and_invalid_patterns_are_refused(classic: bool, text: str, told: str) -> None:
    async with application(classic=classic) as app:
        for answer in (
            await get(app, f"match=b&{text}"),
            await query(app, text),
            await query(app, text, target=f"{PATH}?match=b"),
        ):
            assert (answer.status, "www-authenticate" in answer.headers) == (400, False)
            assert told in answer.detail


@pytest.mark.parametrize(
    "pattern", ["/(unclosed", "/:", "/{a", "https://[", "/(?<x)", "/:a/:a", "/(\u00e9++)", "/(a++{b})"]
)
async def test_n17_t25_the_message_of_a_bad_url_pattern_names_no_library(pattern: str) -> None:
    async with application() as app:
        for answer in (
            await get(app, urlencode({"match_urlpattern": pattern})),
            await query(app, urlencode({"match_urlpattern": pattern})),
        ):
            assert answer.status == 400
            assert answer.detail.startswith(f"{pattern!r} is not a URL Pattern that this hub accepts: ")
            assert not re.search("re2|ada|token|regexp", answer.detail, re.IGNORECASE)


# -- bounds


@DIALECTS
async def test_n18_t39_the_limit_of_matchers_is_exact(classic: bool) -> None:
    half = "&".join(f"match={n}" for n in range(50))
    rest = "&".join(f"match_exact=x{n}" for n in range(50))
    async with application(classic=classic) as app:
        assert (await get(app, f"{half}&{rest}")).status == 200
        assert (await query(app, rest, target=f"{PATH}?{half}")).status == 200
        for answer in (
            await get(app, f"{half}&{rest}&match=0"),
            await query(app, f"{rest}&match=0", target=f"{PATH}?{half}"),
        ):
            assert (answer.status, answer.detail) == (400, "the request has 101 matchers; the limit is 100")


@DIALECTS
@pytest.mark.parametrize("name", ["match", "match_urlpattern", "match_uritemplate"])
async def test_n18_t39_the_limit_of_bytes_in_a_pattern_is_exact(classic: bool, name: str) -> None:
    async with application(classic=classic) as app:
        fits = "é" * 2047 + "ab"
        assert (await get(app, urlencode({name: fits}))).status == 200
        for answer in (await get(app, urlencode({name: fits + "a"})), await query(app, urlencode({name: fits + "a"}))):
            assert (answer.status, answer.detail) == (400, "a pattern has 4097 bytes; the limit is 4096")


@DIALECTS
async def test_t23_r3_n18_the_limit_of_a_query_body_is_exact(classic: bool) -> None:
    body = "match=a&x=".ljust(100, "x")
    async with application(classic=classic, max_body=100) as app:
        assert (await query(app, body)).status == 200
        answer = await query(app, body + "x")
        assert (answer.status, answer.detail) == (413, "the body is longer than 100 bytes")
        assert "www-authenticate" not in answer.headers


@DIALECTS
async def test_n18_a_query_body_holds_all_patterns_percent_encoded_and_little_more(classic: bool) -> None:
    width = 312 if classic else 327
    matchers = [("match_uritemplate", f"{n:\u00ff<{width}}") for n in range(100)]
    topics = [("topic", f"{n}") for n in range(1_000)] if classic else []
    cursor = ("last_event_id", "é" * 2_048)
    everything = "&".join(f"{name}=%{value.encode().hex('%')}" for name, value in [*matchers, *topics, cursor])
    assert 0.99 < sum(len(value.encode()) for _, value in [*matchers, *topics]) / 2**16 <= 1
    async with application(classic=classic) as app:
        limit = app.state.hub.settings.max_query
        assert len(everything) < limit < 2**18
        assert (await query(app, everything)).status == 200
        for more in (0, 1):
            answer = await query(app, "match=a&x=".ljust(limit + more, "x"))
            assert answer.status == (413 if more else 200)
        assert answer.detail == f"the body is longer than {limit} bytes"


async def test_t24_r3_n18_a_query_body_has_its_limit_even_if_bodies_have_none() -> None:
    async with application(max_body=0) as app:
        limit = app.state.hub.settings.max_query
        assert (await query(app, "match=a&x=".ljust(limit, "x"))).status == 200
        assert (await query(app, "match=a&x=".ljust(limit + 1, "x"))).status == 413


@pytest.mark.parametrize(
    "type", ["application/json", "text/plain", "", "application/x-www-form-urlencodedx", "application/x-ndjson"]
)
async def test_n11_t61_a_body_of_another_type_gets_the_accepted_type(type: str) -> None:
    async with application() as app:
        answer = await ask(app, "QUERY", f"{PATH}?match=a", [("content-type", type)], b"match=b")
        assert (answer.status, answer.headers["accept-query"]) == (415, "application/x-www-form-urlencoded")
        assert "application/x-www-form-urlencoded" in answer.detail
        assert (await ask(app, "QUERY", f"{PATH}?match=a", [], b"match=b")).status == 415
        assert (
            await ask(app, "QUERY", f"{PATH}?match=a", [("content-type", type)])
        ).status == 200  # there is no body to read


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "zstd", "gzip, identity", "x-none", "gzip\xe9"])
async def test_r78_a_compressed_body_is_refused_before_it_is_parsed(coding: str) -> None:
    form = ("content-type", "application/x-www-form-urlencoded")
    async with application() as app:
        token = bearer(current_token(["*"], ["*"]))
        for method in ("POST", "QUERY"):
            for body in (b"topic=a&match=a", b"\x1f\x8b\xff", b""):
                answer = await ask(app, method, PATH, [token, form, ("content-encoding", coding)], body)
                assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
                assert answer.detail.startswith("the body has the Content-Encoding ")
        for same in ("identity", " Identity ", ""):
            answer = await ask(app, "QUERY", PATH, [token, form, ("content-encoding", same)], b"match=a")
            assert answer.status == 200


@pytest.mark.parametrize(
    "type", ["Application/X-WWW-Form-Urlencoded", "application/x-www-form-urlencoded;charset=UTF-8"]
)
async def test_n11_the_type_of_a_body_may_be_in_any_case_and_have_parameters(type: str) -> None:
    async with application() as app:
        assert (await ask(app, "QUERY", PATH, [("content-type", type)], b"match=a")).status == 200


# -- late and missing bodies


class Slow:
    """A request whose body arrives when the test sends it."""

    def __init__(self, app: HubApplication, method: str, *headers: tuple[str, str]) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.answers: list[Any] = []
        self.waits = asyncio.Event()
        self.task = asyncio.ensure_future(app(scope_of(method, PATH, [FORM, *headers]), self.receive, self.send))

    async def receive(self) -> dict[str, Any]:
        self.waits.set()
        return await self.messages.get()

    async def send(self, message: Any) -> None:
        self.answers.append(message)
        if message["type"] == "http.response.body":  # then the client of a stream leaves
            self.messages.put_nowait({"type": "http.disconnect"})

    def come(self, body: bytes, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def status(self) -> int:
        await asyncio.wait_for(self.task, HANG)
        status: int = self.answers[0]["status"]
        return status


TOKEN = bearer(classic_token(["*"], ["*"]))
WITH_A_BODY = pytest.mark.parametrize("method", ["QUERY", "POST"])


@WITH_A_BODY
async def test_n11_n40_a_body_may_arrive_in_pieces(method: str) -> None:
    async with application() as app:
        slow = Slow(app, method, TOKEN)
        for part in (b"match=", b"a&topic=%", b"", b"C3%A9"):
            slow.come(part, more=True)
        slow.come(b"", more=False)
        assert await slow.status() == 200


@WITH_A_BODY
async def test_a_body_that_never_arrives_times_out(method: str) -> None:
    async with application(body_timeout=0.01) as app:
        slow = Slow(app, method, TOKEN)
        slow.come(b"match=a", more=True)
        assert await slow.status() == 408
        assert b"within 0.01 seconds" in slow.answers[1]["body"]


@WITH_A_BODY
async def test_a_body_that_trickles_has_less_time_than_one_that_arrives(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each keeps its share of the requests for all of `body_timeout`."""
    monkeypatch.setattr(requests, "BODY_GRACE", 0.05)
    async with application(body_timeout=1_000) as app:
        slow = Slow(app, method, TOKEN)
        slow.come(b"match=a", more=True)
        assert await slow.status() == 408
        assert b"within 0.057 seconds" in slow.answers[1]["body"]
        steady = Slow(app, method, TOKEN)
        for part in (b"topic=a&match=a&x=" + b"x" * 100_000, b"x" * 10):
            steady.come(part, more=True)
            await asyncio.sleep(0.1)  # longer than the grace
            assert not steady.task.done()
        steady.come(b"", more=False)
        assert await steady.status() == 200


@WITH_A_BODY
async def test_a_missing_body_does_not_delay_the_shutdown(method: str) -> None:
    async with application() as app:
        slow = Slow(app, method, TOKEN)
        await slow.waits.wait()
        app.state.hub.shutdown.begin()
        if method == "POST":
            assert await slow.status() == 503
            assert (b"retry-after", b"1") in slow.answers[0]["headers"]
        else:  # a stream that ends at once: clients come back after that, and not after a 503
            assert await slow.status() == 200
            assert slow.answers[1]["body"].startswith(b":\nretry: ")


@WITH_A_BODY
async def test_t23_n56_an_endless_body_is_refused_before_it_ends(method: str) -> None:
    async with application(max_body=10) as app:
        slow = Slow(app, method, TOKEN)
        for _ in range(3):
            slow.come(b"1234", more=True)
        assert await slow.status() == 413


@WITH_A_BODY
async def test_r53_a_client_that_disconnects_before_its_body_is_logged(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hub")
    async with application() as app:
        slow = Slow(app, method, TOKEN)
        slow.come(b"match=a", more=True)
        slow.messages.put_nowait({"type": "http.disconnect"})
        await slow.status()
    assert "the client disconnected before the whole body had arrived" in caplog.text
    assert "Traceback" not in caplog.text


async def test_n96_without_a_token_the_hub_does_not_wait_for_the_body_of_a_publish_request() -> None:
    async with application() as app:
        slow = Slow(app, "POST")
        assert await slow.status() == 401
        assert not slow.waits.is_set()


# -- the cursor


@DIALECTS
@pytest.mark.parametrize(
    ("in_query", "in_body", "header", "counts"),
    [
        ("last_event_id=1", "", None, "1"),
        ("", "last_event_id=1", None, "1"),
        ("last_event_id=1", "last_event_id=2", None, "1"),
        ("last_event_id=1", "last_event_id=2", "3", "3"),
        ("", "last_event_id=2", "3", "3"),
        ("lastEventID=1", "", None, "1"),
        ("lastEventID=1", "last_event_id=2", None, "2"),
        ("lastEventID=1&last_event_id=2", "", None, "2"),
        ("last_event_id=", "last_event_id=1", None, "1"),
        ("last_event_id=1", "", "", "1"),
        ("last_event_id=1&last_event_id=2", "", None, "1"),
        ("last_event_id=nothing", "last_event_id=1", None, "earliest"),
        ("", "", None, None),
    ],
)
async def test_n13_n12_n105_n107_v85_t61_the_sources_of_a_cursor_have_an_order(
    classic: bool, in_query: str, in_body: str, header: str | None, counts: str | None
) -> None:
    headers = [FORM] + ([] if header is None else [("last-event-id", header)])
    async with application(classic=classic) as app:
        for id in "123":
            await app.state.hub.publish(update("a", f"data {id}", id=id))
        target, body = f"{PATH}?match=a&{in_query}", in_body.encode()
        async with follow(app, method="QUERY", target=target, headers=headers, body=body) as stream:
            assert stream.headers.get("mercure-last-event-id") == counts
            assert stream.headers.get("last-event-id") == counts
            await app.state.hub.publish(update("a", "end"))
            first = {"1": 1, "2": 2, "3": 3, "earliest": 0, None: 3}[counts]
            assert [event.id for event in await stream.until("end")] == list("123"[first:])
        if not in_body:
            answer = await ask(app, "HEAD", target, headers)
            assert answer.headers.get("mercure-last-event-id") == counts


@pytest.mark.parametrize("name", ["lastEventId", "Last-Event-ID"])
async def test_v85_v51_cursors_of_polyfills_only_count_in_the_classic_dialect(name: str) -> None:
    for classic in (True, False):
        async with application(classic=classic) as app:
            await app.state.hub.publish(update("a", "", id="1"))
            answer = await get(app, f"match=a&{name}=1")
            assert answer.headers.get("mercure-last-event-id") == ("1" if classic else None)


IDS = ["\u0645\u0631\u062d\u0628\u0627", "é", "日本 語", "🦄", '"a",\\b', "a;b=c", "%41"]


@pytest.mark.parametrize("id", IDS)
async def test_r77_n107_ids_of_any_unicode_are_utf_8_in_headers(id: str) -> None:
    async with application() as app:
        await app.state.hub.publish(update("a", "1", id=id), update("a", "2", id="2"))
        for answer in (
            await get(app, "match=a", ("last-event-id", id)),
            await get(app, urlencode({"match": "a", "last_event_id": id})),
        ):
            given = dict(answer.raw_headers)
            assert given[b"mercure-last-event-id"] == given[b"last-event-id"] == id.encode("utf-8")
        async with follow(app, ("match", "a"), headers=[("last-event-id", id)]) as stream:
            assert (await stream.next_event()).id == "2"


# -- the receivers of an update


@DIALECTS
@pytest.mark.parametrize("granted", [None, [], ["a"], ["b"], ["*"]])
@pytest.mark.parametrize("private", [True, False])
async def test_n21_n22_n81_n84_n24_a_matcher_selects_and_a_grant_permits(
    classic: bool, granted: list[str] | None, private: bool
) -> None:
    sign = classic_token if classic else current_token
    headers = [] if granted is None else [bearer(sign(subscribe=granted))]
    async with application(classic=classic, subscriptions=False) as app:
        for asked, topics in (("a", ("a",)), ("a", ("b", "a")), ("*", ("a",)), ("b", ("a", "b")), ("c", ("a",))):
            async with follow(app, ("match", asked), ("match", "end"), headers=headers) as stream:
                await app.state.hub.publish(Update(topics, "x", private=private), update("end", "end"))
                received = [event.data for event in await stream.until("end")] == ["x"]
            hit = asked == "*" or asked in topics
            allowed = not private or bool({"*", *topics}.intersection(granted or []))
            assert received == (hit and allowed)


@DIALECTS
async def test_n24_v5_a_hub_can_require_a_token_of_all_subscribers(classic: bool) -> None:
    token = bearer((classic_token if classic else current_token)(subscribe=["a"]))
    for anonymous in (True, False):
        async with application(classic=classic, anonymous=anonymous) as app:
            for method in ("GET", "QUERY", "HEAD"):
                answer = await ask(app, method, f"{PATH}?match=a")
                assert answer.status == (200 if anonymous else 401)
                assert (await ask(app, method, f"{PATH}?match=a", [token])).status == 200
                assert (await ask(app, method, f"{PATH}?match=a", [bearer("a.b.c")])).status == 401


# -- the limit of connections


async def test_n23_the_number_of_connections_is_bounded() -> None:
    async with application(max_connections=2, anonymous=False) as app:
        token = bearer(classic_token(subscribe=["*"]))
        one, other = (follow(app, ("match", "a"), headers=[token]) for _ in "12")
        async with one:
            async with other as stream:
                assert (await get(app, "match=a", token)).is_ended_stream
                assert (await ask(app, "HEAD", f"{PATH}?match=a", [token])).status == 200
                assert (await get(app, "match=a")).status == 401  # without a token, the limit is not revealed
                await publish(app, classic_token(["*"]), ("topic", "a"), ("data", "1"))
                assert (await stream.next_event()).data == "1"  # the other streams go on
            assert (await get(app, "match=a", token)).status == 200
        assert app.state.hub.delivery.connection_count == 0


CLIENTS = [
    ("192.0.2.1", "192.0.2.1", True),
    ("192.0.2.1", "192.0.2.2", False),
    ("2001:db8::1", "2001:db8::ffff:1", True),
    ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
    ("::ffff:192.0.2.1", "192.0.2.1", True),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ("fe80::1%eth0", "fe80::2%eth0", True),
    ("somebody", "somebody", True),
]


@pytest.mark.parametrize(("one", "other", "same"), CLIENTS)
async def test_n23_anonymous_connections_are_counted_by_address(one: str, other: str, same: bool) -> None:
    async with application(max_connections_per_client=1) as app:
        async with follow(app, ("match", "a"), client=(one, 1)):
            answer = await get(app, "match=a", client=(other, 2))
            assert answer.status == (429 if same else 200)
            if same:
                assert answer.detail == "the limit of 1 subscribers for one client is reached"
        assert (await get(app, "match=a", client=(other, 2))).status == 200


async def test_n23_connections_without_an_address_count_as_one_client() -> None:
    async with application(max_connections_per_client=1) as app, follow(app, ("match", "a"), client=None):
        assert (await get(app, "match=a", client=None)).status == 429


async def test_n23_connections_with_a_subject_count_by_it() -> None:
    async with application(max_connections_per_client=1) as app:
        ann, bob, nobody = (bearer(current_token(subscribe=["a"], subject=subject)) for subject in ("ann", "bob", None))
        async with follow(app, ("match", "a"), headers=[ann], client=("192.0.2.1", 1)):
            assert (await get(app, "match=a", ann, client=("192.0.2.2", 1))).status == 429
            assert (await get(app, "match=a", bob, client=("192.0.2.1", 1))).status == 200
            assert (await get(app, "match=a", nobody, client=("192.0.2.1", 1))).status == 200
            assert (await get(app, "match=a", client=("192.0.2.1", 1))).status == 200


# -- the head of the response


@DIALECTS
async def test_r20_v6_n9_n26_the_headers_of_a_stream_and_its_first_bytes(classic: bool) -> None:
    async with application(classic=classic) as app, follow(app, ("match", "a")) as stream:
        assert stream.body == b":\n"
        headers = stream.headers
        assert headers["content-type"].partition(";")[0] == "text/event-stream"
        assert headers["cache-control"] == "no-store, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert not {"content-length", "content-encoding", "mercure-last-event-id", "last-event-id"} & set(headers)


async def test_r20_a_client_that_has_the_headers_is_subscribed() -> None:
    async with application() as app:

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert connected(app) == [[("exact", "a")]]
                begun.set()

        begun = asyncio.Event()
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(app(scope_of("GET", f"{PATH}?match=a", []), receive, send))
        await asyncio.wait_for(begun.wait(), HANG)
        gone.set()
        await asyncio.wait_for(task, HANG)


async def test_n8_an_idle_stream_gets_comments() -> None:
    async with application(heartbeat=0.1) as app, follow(app, ("match", "a")) as stream:
        await stream.changed()
        assert stream.body == b":\n:\n"


async def test_r27_search_engines_are_asked_to_read_nothing() -> None:
    async with application() as app:
        answer = await ask(app, "GET", "/robots.txt")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert answer.body == b"User-agent: *\nDisallow: /\n"
        assert (await ask(app, "POST", "/robots.txt")).status == 405


async def test_r100_the_hub_serves_the_module_to_all_origins() -> None:
    async with application(cors_origins=["https://desk.example"]) as app:
        answer = await ask(app, "GET", f"{PATH}/client.js", [("Origin", "https://shop.example")])
        assert (answer.status, answer.body) == (
            200,
            Path(hub.__file__).with_name("browser").joinpath("client.js").read_bytes(),
        )
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await ask(app, "GET", f"{PATH}/client.js", [("If-None-Match", answer.headers["etag"])])
        assert again.status == 304


@DIALECTS
async def test_n10_r23_head_returns_the_headers_without_a_subscription(classic: bool) -> None:
    async with application(classic=classic, subscriptions=False) as app:
        async with follow(app, ("match", "a")) as stream:
            head = await ask(app, "HEAD", f"{PATH}?match=a")
            assert (head.status, head.body) == (200, b"")
            assert head.headers == stream.headers
            assert len(connected(app)) == 1
        assert (await ask(app, "HEAD", f"{PATH}?match=a&last_event_id=x")).headers[
            "mercure-last-event-id"
        ] == "earliest"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "Query", "SUBSCRIBE"])
async def test_r23_other_methods_get_the_allowed_ones(method: str) -> None:
    async with application() as app:
        answer = await ask(app, method, f"{PATH}?match=a", [FORM], b"match=a")
        assert answer.status == 405
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "QUERY", "POST"}
        assert answer.detail == f"the methods of this path are {answer.headers['allow']}"
        assert connected(app) == []


async def test_r23_r12_post_is_not_allowed_if_no_token_could_publish() -> None:
    async with application(dev=False, anonymous=True) as app:
        for headers in ([], [FORM, TOKEN]):
            answer = await ask(app, "POST", PATH, headers, b"topic=a")
            assert answer.status == 405
            assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "QUERY"}
        async with follow(app, ("match", "a")) as stream:
            await app.state.hub.publish(update("a", "1"))
            assert (await stream.next_event()).data == "1"


ELSEWHERE = [
    "/", f"{PATH}x", f"{PATH}/x", "/.well-known", f"/x{PATH}", f"/{PATH}", "/.well-known/./mercure", f"{PATH}%00",
    f"{PATH}%0A", f"{PATH}%3Fmatch=a", f"{PATH}/../mercure", f"{PATH}/subscriptions", f"{PATH}/debug/",
]  # fmt: skip


@pytest.mark.parametrize("target", ELSEWHERE)
async def test_r23_other_paths_are_404(target: str) -> None:
    async with application(subscriptions=False, debugger=False) as app:
        answer = await ask(app, "GET", f"{target}?match=a")
        assert (answer.status, answer.detail) == (404, f"there is nothing at this path; the hub is at {PATH}")


# -- through a real server


@HTTP
async def test_r74_n10_r77_query_goes_through_uvicorn_and_so_do_ids(http: str) -> None:
    headers = [FORM, ("last-event-id", IDS[0])]
    async with application() as app, served(app, http=http, lifespan="off") as server:
        await app.state.hub.publish(update("a", "1", id=IDS[0]), update("a", "2", id="2"))
        body = "match=a&x=é".encode()
        async with await request(server, "QUERY", f"{PATH}?match=b", headers, body) as reply:
            assert (reply.status, reply.headers["mercure-last-event-id"]) == (200, IDS[0])
            assert (await reply.next_event()).id == "2"
            assert connected(app) == [[("exact", "b"), ("exact", "a")]]
        head = f"QUERY {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {FORM[1]}\r\ntransfer-encoding: chunked\r\n\r\n"
        async with sent(server, head.encode() + b"7\r\nmatch=c\r\n0\r\n\r\n") as reply:
            assert reply.status == 200


@HTTP
async def test_r74_n18_matchers_too_long_for_a_url_fit_in_a_body(http: str) -> None:
    long, longer = ("&".join(f"match={n:02}" + "%30" * 1_300 for n in range(count)) for count in (15, 25))
    async with application() as app, served(app, http=http, lifespan="off") as server:
        async with await request(server, "GET", f"{PATH}?{long}") as reply:
            assert (reply.status, len(connected(app)[0])) == (200, 15)
        async with await request(server, "GET", f"{PATH}?{longer}") as reply:
            assert reply.status in (200, 400)  # httptools takes 64 KiB; with h11 it depends on the chunks
        async with await request(server, "QUERY", PATH, [FORM], longer.encode()) as reply:
            assert (reply.status, max(map(len, connected(app)))) == (200, 25)


@HTTP
async def test_v42_n60_t42_n163_the_server_s_access_log_has_no_token(
    http: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = classic_token(["*"], ["*"])
    tokens = f"authorization={token}&access_token={token}&%61uthorization={token.replace('.', '%2E')}"
    async with application() as app, served(app, http=http, lifespan="off") as server:
        for method in ("GET", "HEAD", "QUERY", "POST", "DELETE"):
            async with await request(server, method, f"{PATH}?match=a&{tokens}&b=c") as reply:
                assert reply.status == (405 if method == "DELETE" else 400)
            assert f'"{method} {PATH}?match=a&b=c HTTP/1.1"' in caplog.text
    assert not [part for part in token.split(".") if part in caplog.text]


@HTTP
async def test_v42_v86_n60_a_token_of_the_query_counts_and_is_not_logged(
    http: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = classic_token(subscribe=["a"])
    async with application(anonymous=False) as app, served(app, http=http, lifespan="off") as server:
        for parameter, status, error in (
            (f"authorization={token}", 200, False),
            (f"authorization={token[:-2]}", 401, True),
            (f"access_token={token}", 401, False),  # as if there were no token
        ):
            async with await request(server, "GET", f"{PATH}?match=a&{parameter}") as reply:
                assert reply.status == status
                assert ("error=" in reply.headers.get("www-authenticate", "")) == error
    assert not [part for part in token.split(".") if part[:20] in caplog.text]


@HTTP
async def test_v42_a_hub_that_does_not_run_logs_no_token(http: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        served(create_app(Settings(dev=True)), http=http, lifespan="off") as server,
        await request(server, "GET", f"{PATH}?match=a&authorization=s3cret") as reply,
    ):
        assert reply.status == 500
    assert "s3cret" not in caplog.text
    assert "the hub is not running: the lifespan of" in caplog.text


@HTTP
async def test_n96_r74_a_connection_can_be_reused_after_a_refusal(http: str) -> None:
    async with (
        application() as app,
        served(app, http=http, lifespan="off") as server,
        await request(server, "POST", PATH, [FORM], b"x" * 500_000) as reply,
    ):
        assert (reply.status, json.loads(await reply.body())["status"]) == (401, 401)
        reply.writer.write(f"HEAD {PATH}?match=a HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.wait_for(reply.read_head(), HANG)
        assert reply.status == 200


@HTTP
async def test_r53_r74_a_client_that_cuts_its_body_short_leaves_no_traceback(
    http: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    head = f"QUERY {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {FORM[1]}\r\ncontent-length: 50\r\n\r\nmatch=a"
    async with application() as app, served(app, http=http, lifespan="off") as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode())
        writer.close()
        await writer.wait_closed()
        async with await request(server, "GET", f"{PATH}?match=a") as reply:  # the server goes on
            assert reply.status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

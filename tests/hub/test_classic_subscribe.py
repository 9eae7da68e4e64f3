"""Subscribing in the classic dialect: parameter, selectors, and mixed requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.node.matchers import MatcherCompiler
from hub.protocol.topics import CLASSIC, is_reserved
from hub.protocol.updates import Update
from skipfilter import PatternError, UriTemplate
from tests.asgi import FORM, PATH, application, ask, bearer, classic_token, current_token, follow

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager

    from hub.http.embedding import HubApplication

pytestmark = pytest.mark.anyio

COMPILER = MatcherCompiler("https://hub.example" + PATH)


def a_hub(**chosen: Any) -> AbstractAsyncContextManager[HubApplication]:
    """A hub without presence updates, because `*` would match them too."""
    return application(subscriptions=False, **chosen)


async def received(app: HubApplication, topics: Iterable[str], *asked: tuple[str, str], token: str = "") -> list[str]:
    """Return the topics of `topics` whose updates a subscriber receives.

    The updates are private if there is a `token`.
    """
    headers = [bearer(token)] if token else []
    async with follow(app, *asked, ("topic", "the end"), headers=headers) as stream:
        assert stream.status == 200, stream.body
        updates = [Update((topic,), topic, private=bool(token)) for topic in topics]
        await app.state.hub.publish(*updates, Update(("the end",), "the end"))
        return [event.data for event in await stream.until("the end")]


# -- the request


async def test_v1_v3_a_request_without_a_topic_is_refused() -> None:
    async with a_hub() as app:
        for query in ("", "?", "?_=1", "?Topic=a", "?topics=a", "?TOPIC=a&last_event_id=x"):
            answer = await ask(app, "GET", PATH + query)
            assert answer.status == 400
            assert answer.detail == 'missing "match" or "topic" parameter: there is nothing to subscribe to'


async def test_v1_t39_the_number_and_the_length_of_topics_are_bounded() -> None:
    async with a_hub() as app:
        for topics, status in ((1_000, 200), (1_001, 400)):
            query = urlencode([("topic", f"/{n}") for n in range(topics)])
            assert (await ask(app, "GET", f"{PATH}?{query}")).status == status
            assert (await ask(app, "QUERY", PATH, [FORM], query.encode())).status == status
            half = [f"topic={n}" for n in range(topics)]
            target = f"{PATH}?{'&'.join(half[:500])}"
            assert (await ask(app, "QUERY", target, [FORM], "&".join(half[500:]).encode())).status == status
        for length, status in ((2**16, 200), (2**16 + 1, 400)):
            for char in ("a", "{"):
                query = urlencode({"topic": char * length})
                assert (await ask(app, "GET", f"{PATH}?{query}")).status == status


async def test_v1_n18_topics_have_their_own_count_and_share_the_bytes_of_matchers() -> None:
    async with application(max_matchers=2, max_classic_matchers=3, max_matchers_bytes=20) as app:
        for topics, matches, status, told in (
            (["a", "b", "c"], ["d", "e"], 200, ""),
            (["a", "b", "c", "a"], ["d", "e"], 400, "the request has 4 topics; the limit is 3"),
            (["a", "b", "c"], ["d", "e", "d"], 400, "the request has 3 matchers; the limit is 2"),
            (["é" * 5], ["a" * 10], 200, ""),
            (["é" * 5], ["a" * 11], 400, "the patterns have 21 bytes; the limit is 20"),
            (["a" * 10, "a" * 11], [], 400, "the patterns have 21 bytes; the limit is 20"),
        ):
            query = urlencode([("topic", topic) for topic in topics] + [("match", match) for match in matches])
            for answer in (
                await ask(app, "GET", f"{PATH}?{query}"),
                await ask(app, "QUERY", PATH, [FORM], query.encode()),
            ):
                assert answer.status == status
                assert status == 200 or answer.detail == told


async def test_v2_n19_each_different_topic_is_a_subscription() -> None:
    async with application() as app:
        asked = [("topic", topic) for topic in ("a", "/{b}", "a", "{not one")]
        async with follow(app, *asked) as stream:
            answer = await ask(app, "GET", PATH + "/subscriptions", [bearer(classic_token(subscribe=["*"]))])
            subscriptions = answer.json()["subscriptions"]
            assert [one["topic"] for one in subscriptions] == ["a", "/{b}", "{not one"]
            assert len({one["id"] for one in subscriptions}) == 3
            assert len({one["subscriber"] for one in subscriptions}) == 1
            for topic in ("a", "/1", "{not one"):
                await app.state.hub.publish(Update((topic,), topic))
                assert (await stream.next_event()).data == topic


async def test_v3_v80_other_parameters_are_ignored() -> None:
    async with a_hub() as app:
        asked = [
            ("_", "1732"),
            ("topic", "a"),
            ("foo", "b"),
            ("Topic", "c"),
            ("topic[]", "d"),
            ("retry", "x"),
            ("", "e"),
        ]
        assert await received(app, ["a", "b", "c", "d", "e", "1732"], *asked) == ["a"]


async def test_v4_topics_in_the_body_of_a_query() -> None:
    async with a_hub() as app:
        body = urlencode([("topic", "/b/{id}"), ("topic", "c")]).encode()
        async with follow(app, target=PATH + "?topic=a", method="QUERY", headers=[FORM], body=body) as stream:
            topics = ["a", "/b/1", "/b/{id}", "c", "d"]
            await app.state.hub.publish(*(Update((topic,), topic) for topic in topics), Update(("a",), "the end"))
            assert [event.data for event in await stream.until("the end")] == topics[:-1]
        answer = await ask(app, "QUERY", PATH, [FORM], b"_=1")
        assert answer.status == 400


BROKEN_TOKENS = ["x", "a.b.c", classic_token(subscribe=["*"])[:-1], "." * 2, classic_token().replace(".", "", 1)]


@pytest.mark.parametrize("anonymous", [True, False])
async def test_v5_a_token_may_be_missing_if_configured_but_must_be_valid(anonymous: bool) -> None:
    async with a_hub(anonymous=anonymous) as app:
        target = PATH + "?topic=a"
        assert (await ask(app, "GET", target)).status == (200 if anonymous else 401)
        assert (await ask(app, "GET", target, [bearer(classic_token())])).status == 200
        assert (await ask(app, "GET", target, [("cookie", f"mercureAuthorization={classic_token()}")])).status == 200
        for token in BROKEN_TOKENS:
            for carrier in (bearer(token), ("cookie", f"mercureAuthorization={token}")):
                answer = await ask(app, "GET", target, [carrier])
                assert answer.status == 401, token
                assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("name", ["topic", "match"])
async def test_v6_the_headers_of_a_stream_and_its_first_bytes(name: str) -> None:
    async with a_hub(retry=0) as app, follow(app, (name, "a")) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].split(";")[0] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert "content-length" not in stream.headers
        assert "mercure-last-event-id" not in stream.headers
        assert stream.body == b":\n"
    async with a_hub(retry=2) as app, follow(app, (name, "a")) as stream:
        first, second, *rest = stream.body.split(b"\n")
        assert (first, second.split()[0], rest) == (b":", b"retry:", [b""])


# -- selectors

NO_TEMPLATES = [
    "{", "}", "{}", "{a", "a}", "{a b}", "{ a}", "{a }", "{,a}", "{a,}", "{a,,b}", "{=a}", "{!a}", "{@a}", "{|a}", "{+}",
    "{a:}", "{a:0}", "{a:01}", "{a:10000}", "{a:x}", "{a:3*}", "{a*:3}", "{a**}", "{.a.}", "{a..b}", "{a-b}", "{é}", "{%4}",
    "{a}}", "{{a}}", "{a}{", "{a}%", "{a}%4", "{a}%zz", 'x"{a}', "x<{a}", "x>{a}", "x\\{a}", "x^{a}", "x`{a}", "x|{a}",
    "x {a}", "{a}" + "\ufdd0", "{a}\U0001ffff", "{a:٣}",
]  # fmt: skip
TEMPLATES = [
    ("{a}", "1"), ("{a:3}", "abcdef"), ("{a:9999}", "1"), ("{a*}", "k=v"), ("{+a}", "x/y?z"), ("{#a}", "#x"), ("{.a}", ".x"),
    ("{/a}", "/x"), ("{;a}", ";a=x"), ("{?a}", "?x"), ("{&a}", "&x"), ("{a.b}", "1"), ("{a_b}", "1"), ("{%41}", "1"),
    ("{1}", "1"), ("é{a}", "é1"), ("%41{a}", "%411"), ("'{a}'", "'1'"), ("[!#$&()*+,-./:;=?@_~]{a}", "[!#$&()*+,-./:;=?@_~]1"),
    ("\U0001f600{a}", "\U0001f6001"), ("\ue000\U0010fffd{a}", "\ue000\U0010fffd1"), ("{a,b,c}", "1,2,3"),
]  # fmt: skip


@pytest.mark.parametrize("selector", NO_TEMPLATES)
def test_v10_v11_an_invalid_template_matches_itself_and_is_no_error(selector: str) -> None:
    matcher = COMPILER.compile(CLASSIC, selector)
    assert matcher.match(selector)
    for topic in ("", "1", selector.replace("{a}", "1"), selector.replace("{a}", ""), selector + "1", "x1", "*"):
        assert matcher.match(topic) is (topic == selector)
    with pytest.raises(PatternError):
        COMPILER.compile("uritemplate", selector)


@pytest.mark.parametrize(("selector", "topic"), TEMPLATES)
def test_v10_v11_a_template_matches_itself_and_its_expansions(selector: str, topic: str) -> None:
    matcher = COMPILER.compile(CLASSIC, selector)
    assert matcher.match(topic)
    assert matcher.match(selector)
    assert not matcher.match(topic + " ")
    assert COMPILER.compile("uritemplate", selector).match(topic)


@pytest.mark.parametrize(
    ("selector", "topic", "expected"),
    [
        ("*", "anything", True),  # (1)
        ("*", "", True),
        ("a*", "ab", False),
        ("https://e.com/{id}", "https://e.com/{id}", True),  # (2) comes before the template, which does not match
        ("a", "a", True),
        ("a", "A", False),
        ("é", "e\u0301", False),
        ("https://e.com/%7Bid%7D", "https://e.com/{id}", False),
        ("a}", "a", False),  # (3)
        ("/a", "https://hub.example/a", False),
        (":id", "1", False),
        ("{broken", "{broken", True),  # (4)
        ("{broken", "x", False),
        ("a b{c}", "a b{c}", True),
        ("a b{c}", "a b1", False),
        ("https://e.com/{id}", "https://e.com/1", True),  # (5)
        ("https://e.com/{id}", "x https://e.com/1", False),
        ("https://e.com/{id}", "https://e.com/1\n", False),
        ("https://e.com/{id}", "https://E.com/1", False),
        ("https://e.com/%7E{id}", "https://e.com/~1", False),
    ],
)
def test_v10_the_five_steps(selector: str, topic: str, expected: bool) -> None:
    assert COMPILER.compile(CLASSIC, selector).match(topic) is expected


PIECES = st.sampled_from(["a", "{a}", "{/a*}", "{?a,b}", "{", "}", "*", " ", "%41", "/", "é"])
TEXTS = st.lists(PIECES | st.sampled_from(["1", "?", "&", ","]), max_size=4).map("".join)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_v10_there_are_no_further_steps(selector: str, topic: str) -> None:
    expected = selector in ("*", topic)
    if not expected and "{" in selector:
        try:
            expected = UriTemplate(selector).match(topic)
        except PatternError:
            expected = False
    assert COMPILER.compile(CLASSIC, selector).match(topic) is expected


# Consequences of the definition, in the order of the checklist.
CONSEQUENCES = [
    (
        "/b/{id}",
        ["/b/", "/b/1", "/b/a.b", "/b/1,2", "/b/%2F", "/b/-_~"],
        ["/b", "/b//", "/b/1/", "/b/%", "/b/%2", "/b/ "],
    ),
    ("/b{/id}", ["/b", "/b/", "/b/1"], ["/b/1/2", "/b1", "/b//"]),
    ("{id}", ["x", "a,b", "%2F", "a.b"], [*"/:?#[]@!$&'()*+;=", "é", "a/b", "a b", '"']),
    ("{id:3}", ["abcdef", "a"], ["a/b"]),
    ("/{?topic}", ["/?anything=x", "/?", "/", "/?x"], ["/?a&b", "/x"]),
    ("x{?a}", ["x?", "x?x", "x", "x?a=1"], ["x?a&b", "x??"]),
    ("/{a}/{a}", ["/1/1", "/1/2", "//"], ["/1", "/1/2/3"]),
    ("x{?a,b}", ["x?a&b", "x?&", "x?a=1&b=2", "x?a"], ["x?a&b&c", "x?&&"]),
    ("{+path}", ["a/b?c#d", "", "!$&'()*+,;=[]@:", "%2F"], ["é", " ", "%", '"', "{}"]),
    ("x{#a}", ["x#a/b?c", "x#", "x", "x##"], ["xa", "x#é"]),
    ("x{/a*}", ["x/x/y/z", "x", "x/", "x//", "x/k=v"], ["xy", "x/?"]),
    ("{a}", ["1,2,3", ""], ["k=v"]),
    ("{a*}", ["k=v", "k=v,l=w", "1"], ["k;v", "k/v"]),
    ("{a,b*}", ["x,k=v", "x", "x,1,k=v"], ["k=v", "x=1,k=v"]),
    ("x{.a,b}", ["x.1.2", "x.", "x", "x.a.b.c"], ["x1", "x./"]),
    ("x{;a}", ["x;a=1", "x;", "x;a,b"], ["x;a;b", "xa"]),
    ("x{&a,b}", ["x&a=1&b=2", "x&", "x"], ["x&a&b&c", "x?a"]),
]


@pytest.mark.parametrize(("selector", "topics", "others"), CONSEQUENCES)
def test_v12_the_consequences_of_the_definition(selector: str, topics: list[str], others: list[str]) -> None:
    for type in (CLASSIC, "uritemplate"):
        matcher = COMPILER.compile(type, selector)
        assert [topic for topic in topics + others if matcher.match(topic)] == topics


async def test_v10_v12_v83_selectors_route_and_grant() -> None:
    async with a_hub() as app:
        for selector, topics, others in CONSEQUENCES:
            offered = [topic for topic in [*topics, *others, selector] if topic != "*" and not is_reserved(topic, PATH)]
            expected = [topic for topic in [*topics, selector] if topic in offered]
            assert await received(app, offered, ("topic", selector)) == expected
            token = classic_token(subscribe=[selector])
            assert await received(app, offered, ("topic", "*"), token=token) == expected
            assert await received(app, offered, ("match_uritemplate", selector)) == expected[:-1]


# -- together with the current dialect


async def test_v80_v83_both_dialects_in_one_request() -> None:
    topics = ["/a/1", "/a/{b}", "c", "/d/1", "/d/{d}", "e.1"]
    both = [("topic", "/a/{b}"), ("match", "c"), ("match_uritemplate", "/d/{d}"), ("match_amqp", "e.*")]
    async with application() as app:
        token = bearer(classic_token(subscribe=["*"]))
        async with follow(app, *both, headers=[token]) as stream:
            await app.state.hub.publish(*(Update((topic,), topic) for topic in topics), Update(("c",), "the end"))
            events = await stream.until("the end")
            assert [event.data for event in events if event.data in topics] == [t for t in topics if t != "/d/{d}"]
            answer = await ask(app, "GET", PATH + "/subscriptions", [bearer(current_token(subscribe=["*"]))])
            documents = answer.json()["subscriptions"]
            assert [(one.get("topic"), one.get("match_type"), one.get("match")) for one in documents] == [
                ("/a/{b}", None, None),
                (None, "exact", "c"),
                (None, "uritemplate", "/d/{d}"),
                (None, "amqp", "e.*"),
            ]


async def test_v80_the_same_text_is_another_subscription_in_the_other_dialect() -> None:
    async with a_hub() as app:
        topics = ["/{a}", "/1"]
        assert await received(app, topics, ("topic", "/{a}")) == topics
        assert await received(app, topics, ("match", "/{a}")) == ["/{a}"]
        assert await received(app, topics, ("match_uritemplate", "/{a}")) == ["/1"]
        assert (
            await received(app, topics, ("topic", "/{a}"), ("match", "/{a}"), ("match_uritemplate", "/{a}")) == topics
        )


TOPICS = ["a", "/b/1", "$SYS", "http://[", "not a URL", "{", "é", "**"]


@pytest.mark.parametrize("granted", [None, "*", "/b/{id}", "a"])
async def test_v89_n32_the_asterisk_selects_the_same_updates_in_both_dialects(granted: str | None) -> None:
    token = "" if granted is None else classic_token(subscribe=[granted])
    async with a_hub() as app:
        ways = [("topic", "*"), ("match", "*"), ("match_exact", "*"), ("match_uritemplate", "*"), ("match_amqp", "*")]
        expected = {None: TOPICS, "*": TOPICS, "/b/{id}": ["/b/1"], "a": ["a"]}[granted]
        for way in ways:
            assert await received(app, TOPICS, way, token=token) == expected
            assert await received(app, TOPICS, way, ("topic", "*"), ("match", "*"), token=token) == expected

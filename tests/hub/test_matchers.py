"""Matchers of every type: matches, alone and in the hub; refusals; and bounds."""

from __future__ import annotations

import contextlib
import gc
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.delivery.audience import Audience, Role
from hub.history.base import Entry
from hub.node.matchers import MatcherCompiler
from hub.protocol.topics import CLASSIC, MATCHER_TYPES, TopicMatcher, may_match_below
from hub.protocol.updates import Update
from skipfilter import PatternError
from tests.asgi import FORM, PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.seats import live_at, subscriber
from tests.hub.signing import at_once
from tests.hub.world import wants

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager

    from hub.delivery.seat import Seat
    from hub.http.embedding import HubApplication

pytestmark = pytest.mark.anyio
both_dialects = pytest.mark.parametrize("classic", [True, False])

ORIGIN = "https://hub.example"
HUB = ORIGIN + PATH
COMPILER = MatcherCompiler(HUB)
EVERY_TYPE = (*MATCHER_TYPES, CLASSIC)


def a_hub(**chosen: Any) -> AbstractAsyncContextManager[HubApplication]:
    """A hub without presence updates, because `*` would match them too."""
    return application(subscriptions=False, **chosen)


def parameter(type: str) -> str:
    return CLASSIC if type == CLASSIC else f"match_{type}"


def types_of(*, classic: bool) -> tuple[str, ...]:
    return EVERY_TYPE if classic else MATCHER_TYPES


@given(
    st.sampled_from(EVERY_TYPE),
    st.lists(
        st.sampled_from(
            ["/", ".", "*", "#", "+", "{+a}", "{a}", "{/a,b,c}", ":id", "%2F", "%", "a", "é", "exact", "https:", "//",
             "/.well-known/mercure", "subscriptions", f"{PATH}/subscriptions/", f"{PATH}/subscriptions/exact/a/b"]
        ),
        max_size=6,
    ),
)  # fmt: skip
@settings(max_examples=500, deadline=None)
def test_a_matcher_that_may_match_presence_updates_is_recognized(type: str, parts: list[str]) -> None:
    try:
        matcher = COMPILER.compile(type, "".join(parts))
    except (PatternError, ValueError):
        return
    topics = [f"{PATH}/subscriptions/{rest}" for rest in ("exact/a/b", "a/b", "*/%23/urn%3Auuid", "amqp/a.%2A/b")]
    assert may_match_below(type, "".join(parts), f"{PATH}/subscriptions") or not any(map(matcher.match, topics))


def test_a_matcher_of_other_topics_is_not_taken_for_a_presence_matcher() -> None:
    below = f"{PATH}/subscriptions"
    for type, pattern in (
        ("exact", "a"), ("exact", "https://hub.example" + below + "/exact/a/b"), ("uritemplate", "https://a.example/{a}"),
        ("uritemplate", "/.well-known/other/{a}"), ("amqp", "stock.#"), ("mqtt", "sport/#"), (CLASSIC, "/books/{id}"),
    ):  # fmt: skip
        assert not may_match_below(type, pattern, below)
    for type, pattern in (("exact", "*"), ("uritemplate", "{+a}"), ("amqp", "#"), ("mqtt", "+/#"), (CLASSIC, below)):
        assert may_match_below(type, pattern, below)


async def received(app: HubApplication, topics: Iterable[str], *asked: tuple[str, str], token: str = "") -> list[str]:
    """Return the topics of `topics` whose updates a subscriber receives.

    The updates are private if there is a `token`.
    """
    headers = [bearer(token)] if token else []
    async with follow(app, *asked, ("match", "the end"), headers=headers) as stream:
        assert stream.status == 200, stream.body
        updates = [Update((topic,), topic, private=bool(token)) for topic in topics]
        await app.state.hub.publish(*updates, Update(("the end",), "the end"))
        return [event.data for event in await stream.until("the end")]


# -- the wildcard

STRANGE = [
    "a", "a/b", "a.b.c", "$SYS/uptime", "http://[", "not a URL", "https://example.com/{id}", "{", "é", "**", "#hash:",
    "+", "urn:x", "x" * 4_000,
]  # fmt: skip
NOT_QUITE = ["**", "* ", " *", "\uff0a", "*a", "/*", "%2A"]


@pytest.mark.parametrize("type", EVERY_TYPE)
def test_n32_t38_the_asterisk_matches_every_topic_under_every_type(type: str) -> None:
    for topic in (*STRANGE, "", "*", "\ud800", "\0"):
        assert COMPILER.compile(type, "*").match(topic)


@pytest.mark.parametrize("pattern", NOT_QUITE)
def test_n32_nothing_else_is_the_asterisk(pattern: str) -> None:
    for type in ("exact", CLASSIC):
        matcher = COMPILER.compile(type, pattern)
        assert [topic for topic in {*STRANGE, *NOT_QUITE} if matcher.match(topic)] == [pattern]


@both_dialects
async def test_n32_t38_the_asterisk_in_query_body_and_token(classic: bool) -> None:
    topics = [topic for topic in STRANGE if topic != "#hash:"]
    tokens = [current_token(subscribe=[(type, "*")]) for type in MATCHER_TYPES]
    if classic:
        tokens += [classic_token(subscribe=["*"])]
    async with a_hub(classic=classic) as app:
        for type in types_of(classic=classic):
            assert await received(app, topics, (parameter(type), "*")) == topics
            body = urlencode({parameter(type): "*"}).encode()
            async with follow(app, target=PATH, method="QUERY", headers=[FORM], body=body) as stream:
                await app.state.hub.publish(*(Update((topic,), topic) for topic in topics), Update(("x",), "the end"))
                assert [event.data for event in await stream.until("the end")] == topics
        for token in tokens:
            assert await received(app, topics, ("match", "*"), token=token) == topics
        for type in MATCHER_TYPES:
            token = current_token([(type, "*")])
            for topic in topics:
                await publish(app, token, ("topic", topic))


# -- the matches of each type

# Relative to a hub at https://hub.example/.well-known/mercure.
URL_PATTERNS = [
    ("/books/:id", "/books/1", True),
    ("/books/:id", "https://hub.example/books/1", True),
    ("/books/:id", "https://HUB.example:443/x/../books/1", True),
    ("/books/:id", "https://other.example/books/1", False),
    ("/books/:id", "http://hub.example/books/1", False),
    ("/books/:id", "/books/1/2", False),
    ("/books/:id", "books/1", False),
    ("https://hub.example/books/:id", "/books/1", True),
    ("https://hub.example/.well-known/books", "books", True),
    ("books/:id", "books/1", True),
    ("books/:id", "/.well-known/books/1", True),
    ("../books/:id", "/books/1", True),
    ("https://e.com/books/:id", "https://e.com/books/1", True),
    ("https://e.com/books/:id", "/books/1", False),
    ("https://e.com/:kind/:id(\\d+)", "https://e.com/films/12", True),
    ("https://e.com/:kind/:id(\\d+)", "https://e.com/films/x", False),
    ("https://*.e.com/*", "https://a.b.e.com/c/d", True),
    ("https://e.com/a?q=:q", "https://e.com/a?q=1", True),
    ("https://e.com/a?q=:q", "https://e.com/a", False),
    ("https://e.com/é", "https://e.com/%C3%A9", True),
    # Only the host ignores case.
    ("https://E.COM/a", "https://e.com/a", True),
    ("https://e.com/a", "HTTPS://E.COM/a", True),
    ("https://e.com/A", "https://e.com/a", False),
    ("https://e.com/a", "https://e.com/A", False),
    ("https://e.com/a?Q=1", "https://e.com/a?q=1", False),
    # Topics that are not URLs.
    ("/*", "http://[", False),
    ("*://*/*", "https://a b/", False),
    ("*", "http://[", True),
    ("https://e.com/*", "", False),
]


@pytest.mark.parametrize(("pattern", "topic", "expected"), URL_PATTERNS)
def test_n34_n35_t36_url_patterns(pattern: str, topic: str, expected: bool) -> None:
    assert COMPILER.compile("urlpattern", pattern).match(topic) is expected


@both_dialects
async def test_n34_n35_t36_url_patterns_route_and_grant(classic: bool) -> None:
    vectors = [vector for vector in URL_PATTERNS if vector[1]]
    topics = list(dict.fromkeys(topic for _, topic, _ in vectors))
    async with a_hub(classic=classic, public_urls=(ORIGIN,)) as app:
        for pattern in dict.fromkeys(pattern for pattern, _, _ in vectors):
            expected = {topic for one, topic, matches in vectors if one == pattern and matches}
            denied = {topic for one, topic, matches in vectors if one == pattern and not matches}
            routed = set(await received(app, topics, ("match_urlpattern", pattern)))
            token = current_token([("urlpattern", pattern)], [("urlpattern", pattern)])
            granted = set(await received(app, topics, ("match", "*"), token=token))
            assert expected <= routed == granted
            assert denied.isdisjoint(routed)
            for topic in topics:
                answer = await ask(app, "POST", PATH, [FORM, bearer(token)], urlencode({"topic": topic}).encode())
                assert answer.status == (200 if topic in routed else 403)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"public_urls": (ORIGIN, "https://other.example")}, ["/a", "https://hub.example/a"]),
        ({"resource": HUB}, ["/a", "https://hub.example/a"]),
        ({"resource": HUB, "public_urls": ("https://other.example",)}, ["/a", "https://hub.example/a"]),
        ({"resource": "urn:hub", "public_urls": (ORIGIN,)}, ["/a", "https://hub.example/a"]),
        # The URL of the hub is not configured.
        ({}, ["/a"]),
        ({"resource": "urn:hub"}, ["/a"]),
    ],
)
async def test_n34_t36_the_base_is_the_hub_s_url(chosen: dict[str, Any], expected: list[str]) -> None:
    topics = ["/a", "https://hub.example/a", "http://hub.example/a", "https://other.example/a", "a"]
    # The host of a request does not count.
    host = chosen.get("public_urls", ("https://elsewhere.example",))[-1].removeprefix("https://")
    async with (
        a_hub(**chosen) as app,
        follow(app, ("match_urlpattern", "/:a"), headers=[("host", host)]) as stream,
    ):
        await app.state.hub.publish(*(Update((topic,), topic) for topic in topics), Update(("/z",), "the end"))
        assert [event.data for event in await stream.until("the end")] == expected


async def test_n34_n6_the_base_has_the_path_of_the_hub() -> None:
    async with a_hub(path="/chat/hub", public_urls=(ORIGIN,)) as app:
        target = "/chat/hub?" + urlencode({"match_urlpattern": "rooms/:id"})
        async with follow(app, target=target) as stream:
            updates = [
                Update((topic,), topic) for topic in ("/rooms/1", "/.well-known/rooms/1", "/chat/rooms/1", "rooms/2")
            ]
            await app.state.hub.publish(*updates, Update(("rooms/z",), "the end"))
            assert [event.data for event in await stream.until("the end")] == ["/chat/rooms/1", "rooms/2"]


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("/a", "https://hub.example/a"), ("a", "/.well-known/a"), ("https://e.com", "https://e.com/"), ("{id}", "1"),
        (":id", "1"), ("A", "a"), ("a", "a "), ("%41", "A"), ("a.*", "a.b"), ("+", "a"), ("", "*"), ("(a)", "a"),
    ],
)  # fmt: skip
def test_n33_exact_is_equal_and_nothing_is_resolved(pattern: str, topic: str) -> None:
    matcher = COMPILER.compile("exact", pattern)
    assert matcher.match(pattern)
    assert not matcher.match(topic)


WHOLE = [
    ("exact", "a/b", "a/b"),
    ("urlpattern", "/a/:b", "/a/b"),
    ("uritemplate", "a/{b}", "a/b"),
    (CLASSIC, "a/b", "a/b"),
    (CLASSIC, "a/{b}", "a/b"),
    ("amqp", "a.*.c", "a.b.c"),
    ("mqtt", "a/+/c", "a/b/c"),
]


@pytest.mark.parametrize(("type", "pattern", "topic"), WHOLE)
def test_n39_a_matcher_matches_the_whole_topic(type: str, pattern: str, topic: str) -> None:
    matcher = COMPILER.compile(type, pattern)
    assert matcher.match(topic)
    for other in (
        f"x {topic}",
        f"/x{topic}",
        f"{topic} x/y",
        f"{topic}/x",
        topic[:-2],
        f"x{topic}/x.x",
        topic + "\n/",
        "",
    ):
        assert not matcher.match(other), other


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("https://e.com/{id}", "https://e.com/1", True),
        ("https://e.com/{id}", "https://e.com/{id}", False),  # `topic=` would match
        ("https://e.com/{id}", "https://e.com/", True),
        ("https://e.com/{id}", "https://e.com/1/2", False),
        ("https://e.com/a", "https://e.com/a", True),
        ("https://e.com/a", "https://E.com/a", False),
        ("/a{/b}", "/a/b", True),
        ("/a{/b}", "https://hub.example/a/b", False),  # templates are not resolved
    ],
)
def test_v83_templates_without_another_meaning(pattern: str, topic: str, expected: bool) -> None:
    assert COMPILER.compile("uritemplate", pattern).match(topic) is expected


NO_TEMPLATES = ["{", "{a", "a}", "{}", "a b", "{a b}", "{=a}", "{a:0}", "%4", "<", "{a}}"]


@both_dialects
async def test_v83_n17_invalid_templates_are_refused_in_requests_and_tokens(classic: bool) -> None:
    async with a_hub(classic=classic) as app:
        for pattern in NO_TEMPLATES:
            for extra in ([], [("match", "a")]):
                asked = urlencode([("match_uritemplate", pattern), *extra])
                assert (await ask(app, "GET", f"{PATH}?{asked}")).status == 400
            assert await token_is_refused(app, current_token([("uritemplate", pattern), "*"]))
            assert (await ask(app, "GET", f"{PATH}?{urlencode({'match': pattern})}")).status == 200
        assert await received(app, ["/a", "/a/b"], ("match_uritemplate", "/{id}")) == ["/a"]
        token = current_token(subscribe=[("uritemplate", "/{id}")])
        assert await received(app, ["/a", "/a/b"], ("match", "*"), token=token) == ["/a"]


async def token_is_refused(app: HubApplication, token: str) -> bool:
    """Return whether a token may neither publish nor subscribe."""
    answers = [
        await ask(app, "POST", PATH, [FORM, bearer(token)], b"topic=a"),
        await ask(app, "GET", PATH + "?match=a", [bearer(token)]),
    ]
    for answer in answers:
        if answer.status == 401:
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]
            assert answer.detail.startswith("the token is not valid here: ")
    return {answer.status for answer in answers} == {401}


# -- types

NO_TYPES = [
    "regexp", "", "Exact", "EXACT", "URLPattern", "urlPattern", "uri_template", "exactly", "topic", "_deprecated_topic",
    "everything", "prefix", "exact ", " exact", "exact\0", "*", "e",
]  # fmt: skip


@pytest.mark.parametrize("type", [type for type in NO_TYPES if type != CLASSIC])
def test_n37_t37_a_type_that_does_not_exist_is_named(type: str) -> None:
    with pytest.raises(LookupError, match=re.escape(f"{type!r} is none of exact, urlpattern, uritemplate, amqp, mqtt")):
        COMPILER.compile(type, "a")


@both_dialects
@pytest.mark.parametrize("type", NO_TYPES)
async def test_n37_t37_an_unknown_type_is_refused_and_never_skipped(type: str, classic: bool) -> None:
    async with a_hub(classic=classic) as app:
        bad = f"match_{type}"
        for pairs in (
            [(bad, "a")],
            [("match", "a"), (bad, "a")],
            [(bad, "a"), ("match", "a")],
            [("match", "a"), (bad, "")],
        ):
            for answer in (
                await ask(app, "GET", f"{PATH}?{urlencode(pairs)}"),
                await ask(app, "QUERY", PATH, [FORM], urlencode(pairs).encode()),
                await ask(app, "QUERY", f"{PATH}?match=a", [FORM], urlencode(pairs).encode()),
            ):
                assert answer.status == 400
                assert f"{bad!r} is none of match, match_exact, match_urlpattern" in answer.detail
        for token in (
            current_token(["*", (type, "a")], ["*"]),
            current_token(["*"], ["*", (type, "a")]),
            current_token([(type, "a")]),
        ):
            assert await token_is_refused(app, token)


@both_dialects
async def test_n38_n37_v83_the_metadata_lists_all_matcher_types(classic: bool) -> None:
    async with a_hub(classic=classic) as app:
        metadata = await ask(app, "GET", f"/.well-known/oauth-protected-resource{PATH}")
        types = metadata.json()["mercure_matcher_types_supported"]
        assert types == ["exact", "urlpattern", "uritemplate", "amqp", "mqtt"]
        for type in types:
            assert re.fullmatch("[a-z][a-z0-9]*", type)
            assert await received(app, ["/x", "/y"], (f"match_{type}", "/x")) == ["/x"]
            assert await received(app, ["/x", "/y"], ("match", "*"), token=current_token([], [(type, "/x")])) == ["/x"]
        assert (await ask(app, "GET", PATH + "?match_topic=a")).status == 400


@both_dialects
async def test_t25_n17_the_error_of_a_bad_url_pattern_says_why(classic: bool) -> None:
    async with a_hub(classic=classic, public_urls=(ORIGIN,)) as app:
        for pattern, reason in (
            ("/(unclosed", "the ( at 1 is never closed"),
            ("/{a", "pathname '/{a': the end is not expected in braces"),
            ("/:", "protocol '/': '/' cannot stand in a URL there"),
            ("/:a/:a", "pathname '/:a/:a': it has the name 'a' twice"),
            ("/([)", "pathname '/([)': it has a [ that is never closed"),
            ("https://[", "hostname '[': '[' cannot stand in a URL there"),
            ("/(a(?=b))", "pathname '/(a(?=b))': it has look-around, which is not supported"),
            ("/(a{60000})", "pathname '/(a{60000})': its regular expressions are too large"),
        ):
            answer = await ask(app, "GET", f"{PATH}?{urlencode({'match_urlpattern': pattern})}")
            assert answer.status == 400
            assert answer.detail == f"{pattern!r} is not a URL Pattern that this hub accepts: {reason}"


async def test_n37_a_pattern_that_is_left_out_keeps_no_other_in_memory() -> None:
    compiler, refused = MatcherCompiler("https://hub.example/hub"), list[str]()
    gc.disable()
    try:
        matchers = await compiler.compile_all([("urlpattern", "/(a)"), ("urlpattern", "/(")], refused)
        assert [matcher.pattern for matcher in matchers.values()] == ["/(a)"]
        assert refused == ["urlpattern pattern '/(': the ( at 1 is never closed"]
        assert compiler._url_patterns.used == 1
        del matchers
        assert compiler._url_patterns.used == 0
    finally:
        gc.enable()


@both_dialects
async def test_n37_a_bad_url_pattern_in_a_token_grants_nothing_and_the_rest_counts(classic: bool) -> None:
    async with a_hub(classic=classic, public_urls=(ORIGIN,)) as app:
        token = current_token([("urlpattern", "/(a(?=b))"), "b"], [("urlpattern", "/(a(?=b))"), "b"])
        assert await received(app, ["a", "b"], ("match", "*"), token=token) == ["b"]


# -- bounds


@both_dialects
async def test_t39_n18_the_number_and_the_bytes_of_matchers_are_bounded(classic: bool) -> None:
    types = [type for type in types_of(classic=False) if type not in ("urlpattern", "amqp", "mqtt")]
    async with a_hub(classic=classic) as app:
        for name in ("match", *map(parameter, types)):
            for pairs, status in (
                ([(name, "x" * 4_096)], 200),
                ([(name, "x" * 4_097)], 400),
                ([(name, "é" * 2_048)], 200),
                ([(name, "é" * 2_048 + "x")], 400),
                ([(name, f"x{n}") for n in range(100)], 200),
                ([(name, f"x{n}") for n in range(101)], 400),
                ([(name, f"x{n}") for n in range(50)] + [("match_mqtt", f"x{n}") for n in range(50)], 200),
                ([(name, f"x{n}") for n in range(50)] + [("match_mqtt", f"x{n}") for n in range(51)], 400),
                ([(name, "x" * 4_096)] * 16, 200),
                ([(name, "x" * 4_096)] * 16 + [(name, "x")], 400),
                ([(name, "é" * 2_048)] * 15 + [("match_mqtt", "é" * 2_047 + "x"), (name, "x")], 200),
                ([(name, "é" * 2_048)] * 15 + [("match_mqtt", "é" * 2_047 + "x"), (name, "é")], 400),
            ):
                assert (await ask(app, "GET", f"{PATH}?{urlencode(pairs)}")).status == status
                assert (await ask(app, "QUERY", PATH, [FORM], urlencode(pairs).encode())).status == status
                half = len(pairs) // 2
                target = f"{PATH}?{urlencode(pairs[:half])}"
                assert (await ask(app, "QUERY", target, [FORM], urlencode(pairs[half:]).encode())).status == status


@both_dialects
async def test_t39_names_of_parameters_are_taken_literally_and_others_ignored(classic: bool) -> None:
    async with a_hub(classic=classic) as app:
        asked = [("match_exact", "a"), ("match", "b"), ("match_mqtt", "c/+"), ("_", "1"), ("foo", "d"), ("amatch", "e")]
        asked += [("Topic", "f"), ("TOPIC", "f"), ("topics", "f"), ("xmatch_exact", "f"), (" match", "f"), ("mat", "f")]
        assert await received(app, ["a", "b", "c/1", "d", "e", "f", "1", "c"], *asked) == ["a", "b", "c/1"]
        for name in ("Match", "MATCH_exact", "match_Exact", "mATCH", "match ", "match-exact", "matched", "match[]"):
            answer = await ask(app, "GET", f"{PATH}?{urlencode([*asked, (name, 'a')])}")
            assert answer.status == 400, name


DEAR = [
    ("uritemplate", "{a}" * 101),
    ("amqp", ".".join("a" * 101)),
    ("mqtt", "/".join("a" * 101)),
]
DEAR_URL_PATTERNS = [
    "/" + "-".join(f":a{n}" for n in range(101)),
    "/" + "{a}?" * 101,
    "/(a{1001})",
    "/((?:[a-z]{100}){10}" + "[a-z]{1000}" * 2 + ")",
]


@both_dialects
async def test_n38_n36_expensive_patterns_are_refused_in_requests_and_tokens(classic: bool) -> None:
    async with a_hub(classic=classic) as app:
        for type, pattern in DEAR:
            assert (await ask(app, "GET", f"{PATH}?{urlencode({parameter(type): pattern})}")).status == 400
            assert await token_is_refused(app, current_token(["*", (type, pattern)]))
        for pattern in DEAR_URL_PATTERNS:
            assert (await ask(app, "GET", f"{PATH}?{urlencode({'match_urlpattern': pattern})}")).status == 400


@pytest.mark.parametrize(
    ("type", "pattern", "topic"),
    [
        ("urlpattern", "/((?:a+)+)", "/" + "a" * 4_000 + "!"),
        ("urlpattern", "/((?:a*)*)b", "/" + "a" * 4_000),
        ("urlpattern", "/*a*a*a*a*a*a", "/" + "b" * 4_000),
        ("uritemplate", "{a*}", "," * 4_000 + "!"),
        ("uritemplate", "{a}" * 100, "a" * 4_000 + "!"),
        (CLASSIC, "{+a}/" * 50, "/" * 49),
        ("amqp", "#" + ".a.#" * 49, ".".join("a" * 48)),
        ("mqtt", "+/" * 98 + "a/#", "/" * 4_000),
    ],
)
def test_n36_n38_patterns_that_explode_under_backtracking_are_matched_in_bounded_steps(
    type: str, pattern: str, topic: str
) -> None:
    assert not COMPILER.compile(type, pattern).match(topic)


# -- shared matchers


def test_matchers_with_equal_type_and_pattern_are_shared_while_in_use() -> None:
    held = [COMPILER.compile(type, "a") for type in EVERY_TYPE]
    assert [matcher.type for matcher in held] == list(EVERY_TYPE)
    assert all(COMPILER.compile(matcher.type, "a") is matcher for matcher in held)
    assert len(set(held)) == len(held)
    assert len({COMPILER.compile("exact", "a"), COMPILER.compile("exact", "a"), COMPILER.compile("exact", "b")}) == 2


def test_an_unused_matcher_is_released() -> None:
    compiler = MatcherCompiler(HUB)
    held = compiler.compile("exact", "a")
    compiler.compile("exact", "b")
    assert list(compiler._existing) == [(held.type, held.pattern)]


def test_t26_two_hubs_do_not_share_compiled_matchers() -> None:
    here, there = MatcherCompiler(HUB), MatcherCompiler("https://there.example" + PATH)
    assert here.compile("urlpattern", "/a").match("https://hub.example/a")
    assert not there.compile("urlpattern", "/a").match("https://hub.example/a")
    assert there.compile("urlpattern", "/a").match("https://there.example/a")
    audience = Audience(HUB)
    with pytest.raises(ValueError, match="another base URL, than this index has"):
        audience.seat(subscriber([there.compile("urlpattern", "/a")]))
    with pytest.raises(ValueError, match="another base URL, than this index has"):
        audience.seat(subscriber([], [there.compile("urlpattern", "/a")]))
    assert len(audience) == 0


async def test_t26_two_hubs_in_a_process_have_a_base_each() -> None:
    async with (
        a_hub(public_urls=(ORIGIN,)) as here,
        a_hub(public_urls=("https://there.example",)) as there,
        follow(here, ("match_urlpattern", "/:a"), headers=[("host", "hub.example")]) as stream_here,
        follow(there, ("match_urlpattern", "/:a"), headers=[("host", "there.example")]) as stream_there,
    ):
        for app in (here, there):
            updates = [Update((f"https://{host}.example/a",), host) for host in ("hub", "there")]
            await app.state.hub.publish(*updates, Update(("/z",), "the end"))
        assert [event.data for event in await stream_here.until("the end")] == ["hub"]
        assert [event.data for event in await stream_there.until("the end")] == ["there"]


# -- agreement of the hub with the matchers


def joined(parts: st.SearchStrategy[str], size: int) -> st.SearchStrategy[str]:
    return st.lists(parts, max_size=size).map("".join)


PATTERNS = {
    "exact": joined(st.sampled_from(["a", "b", "/", ".", "{a}"]), 3),
    "uritemplate": joined(st.sampled_from(["a", "b", "/", ".", "{a}", "{+b}", "{/a*}", "{?a,b}", "é"]), 4),
    CLASSIC: joined(st.sampled_from(["a", "b", "/", ".", "{a}", "{+b}", "{/a*}", "{", " "]), 4),
    "urlpattern": joined(
        st.sampled_from(
            ["a", "b", "/", ".", ":x", ":y", "*", "{/a}?", "(a|b)", "?a", "https://e.com", "https://*.e.com", "../"]
        ),
        5,
    ),
    "amqp": st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=4).map(".".join),
    "mqtt": st.lists(st.sampled_from(["a", "b", "+", "", "$"]), min_size=1, max_size=4).map("/".join)
    | st.lists(st.sampled_from(["a", "+"]), max_size=2).map(lambda levels: "/".join([*levels, "#"])),
}
TOPICS = joined(
    st.sampled_from(
        ["a", "b", "/", ".", "é", "?a", "{a}", " ", "$", "..", "https://e.com", "https://a.e.com/", "http://["]
    ),
    5,
)


def compiled(some: list[tuple[str, str]]) -> list[TopicMatcher]:
    """Return the matchers of the pairs that are valid."""
    matchers = []
    for type, pattern in some:
        with contextlib.suppress(PatternError):
            matchers.append(COMPILER.compile(type, pattern))
    return matchers


MATCHERS = [st.tuples(st.just(type), st.just("*") | patterns | patterns) for type, patterns in PATTERNS.items()]
WANTED = st.lists(st.one_of(MATCHERS), max_size=3).map(compiled)


@settings(deadline=None)
@given(
    st.lists(st.tuples(WANTED, WANTED, st.booleans()), min_size=1, max_size=5), st.lists(TOPICS, min_size=1, max_size=3)
)
def test_n21_n39_t36_the_index_agrees_with_the_matchers_while_connections_come_and_go(
    wanted: list[tuple[list[TopicMatcher], list[TopicMatcher], bool]], topics: list[str]
) -> None:
    audience = Audience(HUB, cached_topics=1)
    here: list[Seat] = []
    for subscribed, granted, stays in wanted:
        here.append(audience.seat(subscriber(subscribed, granted)))
        for topic in topics:
            assert found(audience, "subscribed", topic) == [
                seat for seat in here if any(matcher.match(topic) for matcher in seat.subscriber.subscribed)
            ]
            assert found(audience, "granted", topic) == [
                seat for seat in here if any(matcher.match(topic) for matcher in seat.subscriber.grant.subscribe)
            ]
        if not stays:
            audience.remove(here.pop(0))
    audience._filter._check()


def found(audience: Audience, role: Role, topic: str) -> list[Seat]:
    return audience.seats(audience._filter.bitmap((role, topic)))


FEW = st.lists(st.sampled_from([("exact", "a"), (CLASSIC, "b"), ("amqp", "b.#"), ("urlpattern", "c")]), max_size=2)


@settings(deadline=None)
@given(
    st.lists(st.tuples(FEW.map(compiled), FEW.map(compiled)), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_n21_n4_a_live_subscriber_gets_the_updates_that_it_matches(
    wanted: list[tuple[list[TopicMatcher], list[TopicMatcher]]],
    published: list[tuple[list[str], bool]],
    at_a_time: bool,
) -> None:
    subscribers = [subscriber(subscribed, granted) for subscribed, granted in wanted]
    _, live, recorders = live_at(HUB, *subscribers, cached_topics=1)
    updates = [Update(tuple(topics), str(n), private) for n, (topics, private) in enumerate(published)]
    entries = [Entry(position, update) for position, update in enumerate(updates, 1)]
    for some in [[entry] for entry in entries] if at_a_time else [entries]:
        at_once(live.dispatch(some))
    for one, recorder in zip(subscribers, recorders, strict=True):
        bodies = b"".join(body for body, _ in recorder.writes)
        assert bodies == b"".join(entry.frame for entry in entries if wants(one, entry.update))


def test_r44_r45_a_cached_result_is_extended_by_newer_subscribers() -> None:
    audience = Audience(HUB, cached_topics=10)
    # Only the matcher itself can decide this pattern, so its calls can be counted.
    pattern = [COMPILER.compile("uritemplate", "{+a}b{+c}d")]
    first = audience.seat(subscriber(pattern))
    for _ in range(4):
        assert found(audience, "subscribed", "abcd") == [first]
    assert asked(audience) == 2  # it is cached when it is looked up again
    second = audience.seat(subscriber(pattern))
    audience.seat(subscriber([COMPILER.compile("exact", "x")], pattern))
    for _ in range(3):
        assert found(audience, "subscribed", "abcd") == [first, second]
    assert asked(audience) == 2
    audience.remove(first)
    assert found(audience, "subscribed", "abcd") == [second]
    assert asked(audience) == 2


def asked(audience: Audience) -> int:
    return audience._index._subscribed.verified


@both_dialects
async def test_r44_a_later_subscriber_gets_later_updates(classic: bool) -> None:
    async with a_hub(classic=classic, cached_topics=1) as app:
        hub = app.state.hub
        async with follow(app, ("match", "a")) as first:
            await hub.publish(Update(("a",), "1"))
            assert (await first.next_event()).data == "1"
            async with follow(app, ("match", "a")) as second:
                await hub.publish(Update(("a",), "2"))
                assert (await first.next_event()).data == (await second.next_event()).data == "2"
            await hub.publish(Update(("a",), "3"))
            assert (await first.next_event()).data == "3"

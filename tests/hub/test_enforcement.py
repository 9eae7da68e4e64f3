"""What a grant allows."""

from __future__ import annotations

import pytest

from hub.auth.grant import ANONYMOUS, CompiledGrant
from hub.errors import InsufficientScope
from hub.node.matchers import MatcherCompiler
from tests.hub.signing import RESOURCE, SUBSCRIBER_KEY, at_once, authorizer, classic, current, detail

COMPILER = MatcherCompiler("https://hub.example/.well-known/mercure")
HUB = authorizer()


def publisher(*matchers: tuple[str, str]) -> CompiledGrant:
    return CompiledGrant(publish=tuple(COMPILER.compile(*matcher) for matcher in matchers))


def reader(*matchers: tuple[str, str]) -> CompiledGrant:
    return CompiledGrant(subscribe=tuple(COMPILER.compile(*matcher) for matcher in matchers))


def test_n80_n79_a_topic_must_be_granted() -> None:
    grant = publisher(("exact", "a"), ("uritemplate", "b/{c}"))
    for topic in ("a", "b/1", "b/2"):
        grant.require_publish(topic)
    for topic in ("c", "b/1/2", ""):
        with pytest.raises(InsufficientScope, match=f"publishing to '{topic}'"):
            grant.require_publish(topic)


def test_n92_a_topic_that_is_not_granted_is_403() -> None:
    with pytest.raises(InsufficientScope) as caught:
        publisher().require_publish("a")
    assert (caught.value.status, caught.value.challenge) == (403, "insufficient_scope")


def test_n79_a_grant_to_publish_is_not_one_to_subscribe() -> None:
    with pytest.raises(InsufficientScope):
        reader(("exact", "*")).require_publish("a")
    with pytest.raises(InsufficientScope):
        publisher(("exact", "*")).require_read("a")


def test_n131_n32_n33_reading_needs_one_matcher_of_the_whole_topic() -> None:
    topic = "/.well-known/mercure/subscriptions/exact/a%2Fb"
    for matcher in (
        ("exact", topic),
        ("exact", "*"),
        ("urlpattern", "/.well-known/mercure/subscriptions/:type/:match"),
        ("topic", "/.well-known/mercure/subscriptions{/type}{/match}"),
    ):
        reader(("exact", "other"), matcher).require_read(topic)
    for matcher in (
        ("exact", topic + "/x"),
        ("exact", topic.replace("%2F", "/")),
        ("urlpattern", "/.well-known/:rest"),
    ):
        with pytest.raises(InsufficientScope, match=r"reading '/.well-known"):
            reader(matcher).require_read(topic)


def test_n84_the_anonymous_grant_allows_nothing() -> None:
    assert CompiledGrant(publish=(), subscribe=(), expires=None, classic=False, subject=None, payloads=()) == ANONYMOUS
    with pytest.raises(InsufficientScope):
        ANONYMOUS.require_publish("a")
    with pytest.raises(InsufficientScope):
        ANONYMOUS.require_read("a")
    assert ANONYMOUS.payload_for("a") is None


def test_v23_n78_an_empty_list_allows_nothing() -> None:
    for token in (classic([]), classic(None), current()):
        grant = at_once(HUB.verify("publish", token, resource=RESOURCE))
        with pytest.raises(InsufficientScope):
            grant.require_publish("a")


def test_v82_tokens_of_either_dialect_grant_in_the_other() -> None:
    token = classic([], ["https://e.example/{id}"], key=SUBSCRIBER_KEY)
    at_once(HUB.verify("subscribe", token, resource=RESOURCE)).require_read("https://e.example/1")
    modern = current(detail({"match": "https://e.example/{id}", "match_type": "uritemplate"}))
    at_once(HUB.verify("publish", modern, resource=RESOURCE)).require_publish("https://e.example/1")


def test_n5_topics_are_compared_as_they_are() -> None:
    with pytest.raises(InsufficientScope):
        publisher(("exact", "https://e.example/é")).require_publish("https://e.example/e\u0301")

"""The `authorization_details` of a current token: what they grant, and which are
invalid.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.auth.grant import DETAIL_TYPE
from hub.errors import InvalidToken
from tests.hub import signing
from tests.hub.signing import ISSUER_KEY, NOW, RESOURCE, at_once, authorizer, current, detail, patterns, sign

HUB = authorizer(max_matchers=5, max_pattern=50)


def verified(*details: Any, **claims: Any) -> Any:
    return signing.verified(current(*details, **claims), HUB)


def refused(*details: Any, **claims: Any) -> str:
    return signing.refused(current(*details, **claims), HUB)


# -- grants


def test_n72_n73_n79_each_detail_grants_its_actions_on_its_topics() -> None:
    grant = verified(
        detail({"match": "a"}, {"match": "b{c}", "match_type": "uritemplate"}, actions=["publish"]),
        detail({"match": "*"}, actions=["subscribe"]),
        detail({"match": "d"}),
    )
    assert patterns(grant.publish) == [("exact", "a"), ("uritemplate", "b{c}"), ("exact", "d")]
    assert patterns(grant.subscribe) == [("exact", "*"), ("exact", "d")]


@pytest.mark.parametrize(
    "foreign",
    [
        {"type": "tenant", "topics": "acme", "actions": {"read": True}},
        {"type": DETAIL_TYPE + "/", "actions": [], "topics": 7},
        {"type": DETAIL_TYPE.upper()},
        {"type": [DETAIL_TYPE]},
        {},
        None,
        7,
        "x",
        [DETAIL_TYPE],
    ],
)
def test_n72_t28_details_of_other_types_do_no_harm(foreign: Any) -> None:
    grant = verified(foreign, detail({"match": "a"}), foreign)
    assert patterns(grant.publish) == [("exact", "a")]


def test_n72_details_of_other_types_are_ignored() -> None:
    assert verified(*[{"type": "tenant"}] * 50, detail({"match": "a"})).publish


@pytest.mark.parametrize("value", [{}, "x", 7, {"0": detail({"match": "a"})}])
def test_n72_details_that_are_not_an_array_are_refused(value: Any) -> None:
    assert refused(authorization_details=value) == "authorization_details is not an array"


def test_n72_null_is_not_an_array() -> None:
    claims = {"iss": "https://issuer.example", "aud": RESOURCE, "exp": NOW + 60, "authorization_details": None}
    with pytest.raises(InvalidToken):
        at_once(HUB.verify("publish", sign(claims, key=ISSUER_KEY, header={"typ": "at+jwt"}), resource=RESOURCE))


def test_n73_unknown_actions_are_ignored() -> None:
    grant = verified(
        detail({"match": "a"}, actions=["fly", "publish"]), detail({"match": "b"}, actions=["Subscribe", ""])
    )
    assert (patterns(grant.publish), grant.subscribe) == ([("exact", "a")], ())


@pytest.mark.parametrize("actions", [[], "publish", None, {}, {"publish": True}, ["publish", 7], [None], [["publish"]]])
def test_n73_actions_that_are_not_strings_are_refused(actions: Any) -> None:
    assert refused(detail({"match": "a"}, actions=actions)).startswith("actions ")


@pytest.mark.parametrize("type", ["exact", "urlpattern", "uritemplate", "amqp", "mqtt"])
def test_n74_n38_v83_the_types_of_matchers(type: str) -> None:
    assert patterns(verified(detail({"match": "https://a", "match_type": type})).publish) == [(type, "https://a")]
    assert verified(detail({"match": "*", "match_type": type})).publish[0].match("anything")  # N32


@pytest.mark.parametrize(
    "topic",
    [
        "a", None, 7, [], ["match"], {}, {"match_type": "exact"}, {"match": None}, {"match": ""}, {"match": 7}, {"match": ["a"]},
        {"match": "a", "match_type": "regexp"}, {"match": "a", "match_type": "Exact"}, {"match": "a", "match_type": ""},
        {"match": "a", "match_type": None}, {"match": "a", "match_type": 7}, {"match": "a", "match_type": []},
        {"match": "a", "match_type": {}}, {"match": "*", "match_type": "regexp"},
        {"match": "{", "match_type": "uritemplate"},
        {"match": "a/#/b", "match_type": "mqtt"}, {"match": "a..b", "match_type": "amqp"},
        {"match": "a\0"}, {"match": "a\u200b"}, {"match": "\x7f"}, {"match": "\ud800"}, {"match": "x" * 51}, {"match": "é" * 26},
    ],
)  # fmt: skip
def test_n74_n37_n2_t29_t30_t43_topics_that_are_refused(topic: Any) -> None:
    assert refused(detail(topic))
    assert refused(detail({"match": "fine"}, topic))


@pytest.mark.parametrize("wrong", ["/(", "/(a(?=b))", "/([a--b])", "/(a{1001})", "/:a/:a", "https://["])
def test_n37_n76_a_url_pattern_that_is_not_accepted_grants_nothing_and_the_rest_of_the_token_counts(
    wrong: str,
) -> None:
    topics = [
        {"match": wrong, "match_type": "urlpattern"},
        {"match": "/:a(\\d+)", "match_type": "urlpattern"},
        {"match": "b"},
    ]
    other = detail({"match": wrong, "match_type": "urlpattern"}, actions=["subscribe"], payload={"a": 1})
    hub, token = authorizer(), current(detail(*topics, actions=["publish"]), other)
    with capture_logs() as lines:
        for _ in range(2):
            grant = signing.verified(token, hub)
            assert patterns(grant.publish) == [("urlpattern", "/:a(\\d+)"), ("exact", "b")]
            assert grant.subscribe == ()
    [line] = lines  # the second time, the grant is cached
    assert line["event"] == "a token has URL Patterns that grant nothing"
    assert line["patterns"] == 2
    assert f"urlpattern pattern {wrong!r}: " in line["first"]


@pytest.mark.parametrize("topics", [[], {}, "a", None, 7, {"match": "a"}])
def test_n74_topics_are_an_array_that_is_not_empty(topics: Any) -> None:
    assert refused({"type": DETAIL_TYPE, "actions": ["publish"], "topics": topics}).startswith("topics ")


def test_n74_a_detail_with_a_missing_member_is_refused() -> None:
    for name in ("actions", "topics"):
        lacking = detail({"match": "a"})
        del lacking[name]
        assert refused(lacking)


@pytest.mark.parametrize("type", ["topic", "_deprecated_topic", "everything"])
def test_v71_the_classic_type_has_no_name(type: str) -> None:
    assert "is none of exact, urlpattern, uritemplate, amqp, mqtt" in refused(
        detail({"match": "a", "match_type": type})
    )


@pytest.mark.parametrize("payload", [[], "x", 7, True, 0, ""])
@pytest.mark.parametrize("actions", [["subscribe"], ["publish"], ["fly"]])
def test_n75_a_payload_is_an_object(payload: Any, actions: list[str]) -> None:
    assert refused(detail({"match": "a"}, actions=actions, payload=payload)) == "a payload is not an object"


def test_n75_n124_a_payload_that_cannot_be_encoded_is_refused() -> None:
    for value in (float("nan"), float("inf"), "\ud800"):
        assert refused(detail({"match": "a"}, payload={"a": [value]}))


def test_n76_one_wrong_detail_makes_the_whole_token_invalid() -> None:
    assert refused(detail({"match": "a"}), detail("b"))
    assert refused(detail("b", actions=["fly"]), detail({"match": "a"}))


def test_n77_values_at_the_limits_are_allowed() -> None:
    assert len(verified(*[detail({"match": "x" * 50})] * 5).publish) == 5
    assert len(verified(detail(*[{"match": "é" * 25}] * 5)).publish) == 5
    assert len(verified(detail({"match": "a"}, {"match": "b"}), detail(*[{"match": "a"}] * 3)).subscribe) == 5


def test_n77_values_above_the_limits_are_refused() -> None:
    assert refused(*[detail({"match": "a"})] * 6) == "the token has 6 details; the limit is 5 (N77)"
    assert refused(detail(*[{"match": "a"}] * 6)) == "the token has 6 topics; the limit is 5 (N77)"
    assert refused(detail(*[{"match": "a"}] * 3), detail(*[{"match": "a"}] * 3)).startswith(
        "the token has 6 topics"
    )  # all details together
    assert refused(detail({"match": "a"}, {"match": "x" * 51})) == "a pattern has 51 bytes; the limit is 50"


def test_n78_a_token_without_details_is_valid_and_grants_nothing() -> None:
    for grant in (verified(), verified(authorization_details=None), verified({"type": "tenant"})):
        assert (grant.publish, grant.subscribe, grant.payloads, grant.classic) == ((), (), (), False)


def test_v81_the_mercure_claim_of_a_current_token_is_ignored() -> None:
    grant = verified(detail({"match": "a"}), mercure={"publish": ["*"], "subscribe": ["*"], "payload": 1})
    assert (patterns(grant.publish), patterns(grant.subscribe)) == ([("exact", "a")], [("exact", "a")])
    assert grant.payload_for("b") is None
    assert verified(mercure="nonsense").publish == ()


# -- payloads


def test_n126_v73_t79_the_payload_comes_from_the_first_matching_detail() -> None:
    grant = verified(
        detail({"match": "a"}, actions=["publish"], payload={"of": "a publisher"}),
        detail({"match": "x"}, {"match": "a"}, actions=["subscribe"], payload={"of": "the second"}),
        detail({"match": "b{c}", "match_type": "uritemplate"}, payload={"of": "the third"}),
        detail({"match": "*"}, payload={"of": "the last"}),
    )
    assert grant.payload_for("a") == {"of": "the second"}
    assert grant.payload_for("x") == {"of": "the second"}
    assert grant.payload_for("b1") == {"of": "the third"}
    assert grant.payload_for("*") == grant.payload_for("anything") == {"of": "the last"}


def test_n126_a_first_detail_without_a_payload_means_none() -> None:
    grant = verified(detail({"match": "a"}), detail({"match": "*"}, payload={"of": "all"}))
    assert grant.payload_for("a") is None
    assert grant.payload_for("b") == {"of": "all"}
    grant = verified(detail({"match": "a"}, payload=None), detail({"match": "*"}, payload={}))
    assert grant.payload_for("a") is None
    assert grant.payload_for("b") == {}


@pytest.mark.parametrize(
    ("type", "pattern"),
    [
        ("urlpattern", "https://example.com/bar/:id"),
        ("urlpattern", "/books/:id(\\d+)"),
        ("uritemplate", "https://example.com/{id}"),
        ("mqtt", "a/+/#"),
        ("amqp", "a.#"),
    ],
)
def test_n126_a_pattern_is_matched_by_itself(type: str, pattern: str) -> None:
    grant = verified(detail({"match": pattern, "match_type": type}, payload={"n": 1}))
    assert grant.payload_for(pattern) == {"n": 1}
    assert grant.payload_for("https://elsewhere.example/{x}") is None


def test_n126_a_pattern_is_matched_like_a_topic() -> None:
    grant = verified(detail({"match": "https://example.com/{+a}", "match_type": "uritemplate"}, payload={"n": 1}))
    assert grant.payload_for("https://example.com/bar/:id") == {"n": 1}
    assert grant.payload_for("https://elsewhere.example/bar") is None


def test_n126_t31_without_a_payload_there_is_none() -> None:
    assert verified(detail({"match": "*"})).payload_for("a") is None
    assert verified().payload_for("a") is None
    assert verified(detail({"match": "*"}, actions=["publish"], payload={"n": 1})).payload_for("a") is None


def test_n163_the_repr_of_a_grant_does_not_show_payloads() -> None:
    assert "confidential" not in repr(verified(detail({"match": "a"}, payload={"text": "confidential"})))

"""Classic tokens: their claim, their keys, and how they differ from current ones."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from joserfc import jwk
from structlog.testing import capture_logs

from hub.auth.grant import DETAIL_TYPE, Action
from hub.development import DEVELOPMENT_TOKEN
from tests.hub.signing import (
    ISSUER_KEY,
    NOW,
    PUBLISHER_KEY,
    SUBSCRIBER_KEY,
    authorizer,
    classic,
    current,
    detail,
    patterns,
    refused,
    sign,
    verified,
)

SHORT = authorizer(max_pattern=50)


# -- the claim


@pytest.mark.parametrize("typ", ["JWT", "", "whatever", "at+jwt+x", None])
@pytest.mark.parametrize("name", ["mercure", "https://mercure.rocks/"])
def test_v30_classic_claims_grant(name: str, typ: str | None) -> None:
    claims = {name: {"publish": ["a{b}"], "subscribe": ["*", "c"]}, "exp": NOW + 0.5, "nbf": NOW - 0.5}
    grant = verified(sign(claims, header=None if typ is None else {"typ": typ}))
    assert patterns(grant.publish) == [("topic", "a{b}")]
    assert patterns(grant.subscribe) == [("topic", "*"), ("topic", "c")]
    assert grant.expires == NOW + 0.5
    assert grant.classic


def test_v30_the_namespaced_claim_replaces_the_other() -> None:
    token = sign({"mercure": {"publish": ["a"], "payload": 1}, "https://mercure.rocks/": {"subscribe": ["b"]}})
    grant = verified(token)
    assert (patterns(grant.publish), patterns(grant.subscribe)) == ([], [("topic", "b")])
    assert grant.payload_for("b") is None
    assert verified(sign({"mercure": {"publish": ["a"]}, "https://mercure.rocks/": None})).publish == ()


@pytest.mark.parametrize(
    "claims", [{}, {"mercure": None}, {"mercure": {}}, {"mercure": {"publish": None, "subscribe": []}}]
)
def test_v30_v81_a_token_without_a_claim_is_valid_and_grants_nothing(claims: dict[str, Any]) -> None:
    grant = verified(sign(claims))
    assert (grant.publish, grant.subscribe, grant.expires, grant.subject) == ((), (), None, None)


def test_v31_other_claims_do_not_matter() -> None:
    values: tuple[Any, ...] = ("elsewhere", ["x"], 7, None, NOW + 999, {}, True)
    for value in values:
        for name in ("aud", "iat", "sub", "iss", "jti", "azp"):
            assert verified(classic(["a"], **{name: value})).publish


@pytest.mark.parametrize("times", [{"exp": NOW + 0.25}, {"exp": NOW + 5, "nbf": NOW}, {"exp": None, "nbf": None}])
def test_v31_dates_are_obeyed_and_may_be_fractions(times: dict[str, Any]) -> None:
    assert verified(classic(["a"], **times)).expires == times["exp"]


@pytest.mark.parametrize(
    "times",
    [
        {"exp": NOW}, {"exp": NOW - 0.25}, {"exp": "soon"}, {"exp": True}, {"nbf": NOW + 10.25}, {"exp": [1]}, {"exp": 10**400},
        {"nbf": -(10**400)}, {"nbf": True}, {"exp": float("inf")}, {"nbf": float("nan")},
    ],
)  # fmt: skip
def test_v31_a_token_outside_its_time_is_refused(times: dict[str, Any]) -> None:
    assert refused(classic(["a"], **times))


def test_v33_entries_may_be_objects() -> None:
    grant = verified(
        classic(["a", {"match": "b/:c", "match_type": "urlpattern"}], [{"match": "d{e}"}, {"match": "*", "payload": 1}])
    )
    assert patterns(grant.publish) == [("topic", "a"), ("urlpattern", "b/:c")]
    assert patterns(grant.subscribe) == [("exact", "d{e}"), ("exact", "*")]


@pytest.mark.parametrize(
    "entry",
    [
        None, 7, [], ["a"], True, {}, {"match": ""}, {"match": None}, {"match_type": "exact"}, {"match": "a", "match_type": "regexp"},
        {"match": "a", "match_type": "topic"}, {"match": "{", "match_type": "uritemplate"}, {"match": "a\0"}, "a\0", "a\u200b",
        "\ud800", {"match": "x" * 51}, {"match": "{" + "x" * 50, "match_type": "uritemplate"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("array", ["publish", "subscribe"])
def test_v33_v71_entries_that_make_a_token_invalid(entry: Any, array: str) -> None:
    assert refused(sign({"mercure": {array: ["fine", entry]}}), SHORT)


def test_v10_a_string_that_is_not_a_template_matches_itself() -> None:
    grant = verified(classic(["{broken", "x" * 50, ""]), SHORT)
    assert [matcher.match(matcher.pattern) for matcher in grant.publish] == [True] * 3


def test_v33_v1_a_string_may_be_as_long_as_the_token() -> None:
    selectors = ["x" * 40_000, "{" + "x" * 4_096, "/{a}/" + "x" * 4_096]
    assert [matcher.pattern for matcher in verified(classic(selectors), SHORT).publish] == selectors


def test_v33_an_array_may_have_1000_entries() -> None:
    assert len(verified(classic(["a"] * 1_000, ["a"] * 1_000)).publish) == 1_000
    for token in (classic(["a"] * 1_001), classic([], ["a"] * 1_001)):
        assert "not an array of at most 1000 entries" in refused(token)
    selectors = [f"https://example.com/users/{n:04}/books/{{id}}" for n in range(1_000)]
    token = classic([], selectors, key=SUBSCRIBER_KEY)
    assert len(token) > 50_000
    assert [matcher.pattern for matcher in verified(token, action="subscribe").subscribe] == selectors


@pytest.mark.parametrize(
    "claim", [[], "a", 7, ["publish"], True, False, 0, {"publish": "a"}, {"subscribe": {}}, {"publish": 0}]
)
def test_v30_v33_a_claim_of_another_shape_is_refused(claim: Any) -> None:
    assert refused(sign({"mercure": claim}))


# -- payloads


@pytest.mark.parametrize("payload", [{"a": 1}, [1], "text", 0, False, ""])
def test_v61_v73_the_payload_of_the_claim_is_any_json(payload: Any) -> None:
    grant = verified(sign({"mercure": {"subscribe": ["a"], "payload": payload}}))
    for pattern in ("a", "something else", "*"):  # V61: the same for every pattern
        assert grant.payload_for(pattern) == payload
        assert type(grant.payload_for(pattern)) is type(payload)


def test_v61_null_means_no_payload() -> None:
    assert verified(sign({"mercure": {"subscribe": ["*"], "payload": None}})).payload_for("a") is None
    assert verified(classic([], ["*"])).payload_for("a") is None


def test_v73_the_payload_of_an_entry_comes_before_that_of_the_claim() -> None:
    entries = [
        "*", {"match": "a"}, {"match": "a", "payload": None}, {"match": "a", "payload": 1}, {"match": "a", "payload": 2},
        {"match": "b/:c", "match_type": "urlpattern", "payload": 3}, {"match": "d", "payload": 0},
    ]  # fmt: skip
    grant = verified(sign({"mercure": {"publish": [{"match": "e", "payload": 4}], "subscribe": entries, "payload": 9}}))
    given = {pattern: grant.payload_for(pattern) for pattern in ("a", "b/:c", "b/7", "d", "e")}
    assert given == {"a": 1, "b/:c": 3, "b/7": 3, "d": 0, "e": 9}
    without = verified(sign({"mercure": {"subscribe": [{"match": "a", "payload": 1}]}}))
    assert (without.payload_for("a"), without.payload_for("b")) == (1, None)


def test_n124_a_payload_that_cannot_be_encoded_is_refused() -> None:
    for value in (float("nan"), [float("-inf")], {"a": "\udfff"}):
        assert refused(sign({"mercure": {"payload": value}}))


def test_n23_a_token_counts_for_its_subject() -> None:
    assert verified(classic(["a"], sub="ann")).subject == " ann"  # no issuer
    for sub in ("", 7, None, ["ann"]):
        assert verified(classic(["a"], sub=sub)).subject is None


# -- keys


def test_v32_publishers_and_subscribers_have_keys_of_their_own() -> None:
    assert patterns(verified(classic([], ["a"], key=SUBSCRIBER_KEY), action="subscribe").subscribe) == [("topic", "a")]
    assert "matches no HS256 key of publisher_key" in refused(classic(["a"], key=SUBSCRIBER_KEY))
    assert "matches no HS256 key of subscriber_key" in refused(classic(["a"]), action="subscribe")


def test_v32_a_role_without_a_key_has_no_classic_tokens() -> None:
    hub = authorizer(subscriber_key=None)
    for key in (PUBLISHER_KEY, SUBSCRIBER_KEY):
        assert "classic tokens cannot subscribe here" in refused(classic(["a"], ["a"], key=key), hub, "subscribe")
    assert verified(classic(["a"]), hub).publish


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", jwk.RSAKey.generate_key(2048)),
        ("RS512", jwk.RSAKey.generate_key(2048)),
        ("PS384", jwk.RSAKey.generate_key(2048)),
        ("ES256", jwk.ECKey.generate_key("P-256")),
        ("ES384", jwk.ECKey.generate_key("P-384")),
        ("ES512", jwk.ECKey.generate_key("P-521")),
        ("EdDSA", jwk.OKPKey.generate_key("Ed25519")),
        ("EdDSA", jwk.OKPKey.generate_key("Ed448")),
    ],
)
def test_v32_public_keys(algorithm: str, key: jwk.RSAKey | jwk.ECKey | jwk.OKPKey) -> None:
    public, private = key.as_pem(private=False).decode(), key.as_pem(private=True).decode()
    hub = authorizer(publisher_key=public, publisher_algorithm=algorithm)
    token = sign({"mercure": {"publish": ["a"]}}, key=private, algorithm=algorithm)
    assert patterns(verified(token, hub=hub).publish) == [("topic", "a")]
    assert "alg 'HS256' is not allowed; publisher_key allows" in refused(classic(["a"]), hub=hub)
    head, body, signature = token.split(".")
    for other in (signature[4:] + "AAAA", signature[:-4], "", "A" * len(signature)):
        refused(f"{head}.{body}.{other}", hub=hub)


@pytest.mark.parametrize("key", ["!ChangeMe!", "!", "!ChangeThisMercureHubJWTSecretKey!", "x" * 1_000, "clé"])
def test_v34_v35_secrets_of_any_length_verify(key: str) -> None:
    with capture_logs():
        hub = authorizer(dev=True, publisher_key=key, subscriber_key=key)
    for action in get_args(Action):
        grant = verified(sign({"mercure": {"publish": ["a"]}}, key=key), hub, action)
        assert patterns(grant.publish) == [("topic", "a")]
        refused(sign({"mercure": {"publish": ["a"]}}, key=key + "x"), hub, action)


def test_v34_a_short_secret_causes_a_warning_at_the_start_and_is_not_shown() -> None:
    with capture_logs() as lines:
        hub = authorizer(dev=True, publisher_key="!ChangeMe!")
        assert [(line["log_level"], line["key"], line["bits"], line["least"]) for line in lines] == [
            ("warning", "publisher_key", 80, 256)
        ]
        assert "ChangeMe" not in repr(lines)
        for _ in range(2):
            verified(sign({"mercure": {"publish": ["a"]}}, key="!ChangeMe!"), hub=hub)
        assert len(lines) == 1


def test_v34_the_key_that_examples_use_is_long_enough() -> None:
    with capture_logs() as lines:
        assert verified(DEVELOPMENT_TOKEN, hub=authorizer(dev=True)).publish[0].match("anything")
    assert lines == []


# -- the dialect


def test_v81_an_at_jwt_is_checked_as_a_current_token() -> None:
    for typ in ("at+jwt", "AT+JWT", "application/at+jwt"):
        token = sign({"mercure": {"publish": ["*"]}}, header={"typ": typ})
        assert refused(token) == "iss null is not trusted"
    assert "signature" in refused(current(detail({"match": "a"}), key=PUBLISHER_KEY, mercure={"publish": ["*"]}))
    # If a hub has only classic keys, it does not accept an at+jwt as a classic token.
    alone = authorizer(issuers=())
    assert "no trusted issuers" in refused(sign({"mercure": {"publish": ["*"]}}, header={"typ": "at+jwt"}), hub=alone)


def test_v81_t43_details_alone_in_a_classic_token_are_refused() -> None:
    for typ in ("JWT", "jwt"):
        token = current(detail({"match": "a"}), key=PUBLISHER_KEY, typ=typ)
        assert "at+jwt (V81)" in refused(token)
    for details in ([{"type": DETAIL_TYPE}], [{"type": "tenant"}, {"type": DETAIL_TYPE}]):
        assert "at+jwt (V81)" in refused(sign({"authorization_details": details}))
        assert "at+jwt (V81)" in refused(sign({"mercure": None, "authorization_details": details}))
    harmless: tuple[Any, ...] = ([], [{"type": "tenant"}], None, {}, "x", [DETAIL_TYPE])
    for foreign in harmless:
        assert verified(sign({"authorization_details": foreign})).publish == ()


@pytest.mark.parametrize("name", ["mercure", "https://mercure.rocks/"])
def test_v81_the_claim_of_a_classic_token_counts_and_its_details_do_not(name: str) -> None:
    details: tuple[Any, ...] = ([detail({"match": "b"})], [{"type": DETAIL_TYPE}], [{"type": "tenant"}], None, {}, "x")
    for given in details:
        for claim in ({"publish": ["a"]}, {}):
            token = sign({name: claim, "authorization_details": given})
            grant = verified(token)
            assert patterns(grant.publish) == [("topic", topic) for topic in claim.get("publish", [])]
            assert (grant.subscribe, grant.classic) == ((), True)
    both = current(detail({"match": "b"}), mercure={"publish": ["a"]})  # in an at+jwt, the details count
    assert patterns(verified(both).publish) == [("exact", "b")]


def test_v88_v81_v76_without_the_classic_dialect_there_are_no_classic_tokens() -> None:
    hub = authorizer(classic=False, publisher_key=None, subscriber_key=None, dev=True)
    for token in (classic(["a"]), DEVELOPMENT_TOKEN, classic(["a"], key=ISSUER_KEY)):
        for action in get_args(Action):
            assert "classic tokens cannot" in refused(token, hub, action)
    grant = verified(current(detail({"match": "a"}), mercure={"publish": ["*"]}), hub=hub)
    assert patterns(grant.publish) == [("exact", "a")]

"""Tokens of both kinds, the ways to present them, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk, jwt
from joserfc.errors import SecurityWarning

from hub import Settings
from hub.authorization import ANONYMOUS, DETAIL_TYPE, Authorizer, find_token, require_same_site
from hub.errors import InsufficientScope, InvalidPresentation, InvalidToken, TokenRequired
from hub.settings import DEVELOPMENT_KEY
from hub.updates import Update

NOW = 1_000_000.0
OWN = "https://hub.example"
RESOURCE = f"{OWN}/.well-known/mercure"
ISSUER_KEY = "the issuer's key, which is another one"
SETTINGS = Settings(
    publisher_key=DEVELOPMENT_KEY,
    subscriber_key="another key of the subscribers",
    issuer="https://issuer.example",
    issuer_key=ISSUER_KEY,
    public_url=OWN,
    max_matchers=5,
    max_pattern=50,
)
AUTHORIZER = Authorizer(SETTINGS, clock=lambda: NOW)


def sign(claims: dict[str, Any], key: str = DEVELOPMENT_KEY, **header: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.encode({"alg": "HS256", **header}, claims, jwk.OctKey.import_key(key))


def detail(*topics: Any, actions: Any = ("publish", "subscribe"), **more: Any) -> dict[str, Any]:
    return {
        "type": DETAIL_TYPE,
        "actions": list(actions) if isinstance(actions, tuple) else actions,
        "topics": list(topics),
        **more,
    }


def current(*details: Any, key: str = ISSUER_KEY, typ: str = "at+jwt", **claims: Any) -> str:
    full = {"iss": SETTINGS.issuer, "aud": RESOURCE, "exp": NOW + 60, "authorization_details": list(details), **claims}
    return sign({name: value for name, value in full.items() if value is not None}, key, typ=typ)


def patterns(matchers: Any) -> list[tuple[str, str]]:
    return [(matcher.type, matcher.pattern) for matcher in matchers]


# -- classic


@pytest.mark.parametrize("typ", [None, "JWT", "whatever"])
@pytest.mark.parametrize("name", ["mercure", "https://mercure.rocks/"])
def test_v30_classic_claims_grant(name: str, typ: str | None) -> None:
    header = {} if typ is None else {"typ": typ}
    token = sign({name: {"publish": ["a{b}"], "subscribe": ["*", "c"]}, "exp": NOW + 0.5, "nbf": NOW - 0.5}, **header)
    grant = AUTHORIZER.verify("publish", token)
    assert patterns(grant.publish) == [("topic", "a{b}")]
    assert patterns(grant.subscribe) == [("topic", "*"), ("topic", "c")]
    assert grant.expires == NOW + 0.5  # V31: a fraction


def test_the_limits_themselves_are_allowed() -> None:
    grant = AUTHORIZER.verify("publish", sign({"nbf": NOW, "exp": NOW + 5, "mercure": {"publish": ["a"] * 1_000}}))
    assert (len(grant.publish), grant.expires) == (1_000, NOW + 5)
    assert AUTHORIZER.verify("publish", sign({"exp": NOW + 5})).expires == NOW + 5
    assert len(AUTHORIZER.verify("publish", current(*[detail(*[{"match": "x" * 50}] * 5)] * 5)).publish) == 25


def test_v30_the_namespaced_claim_replaces_the_other() -> None:
    grant = AUTHORIZER.verify(
        "publish", sign({"mercure": {"publish": ["a"]}, "https://mercure.rocks/": {"subscribe": ["b"]}})
    )
    assert (patterns(grant.publish), patterns(grant.subscribe)) == ([], [("topic", "b")])


def test_v31_other_claims_do_not_matter() -> None:
    AUTHORIZER.verify("publish", sign({"aud": "elsewhere", "iat": NOW + 999, "sub": 7, "iss": "x", "mercure": None}))


def test_v32_publishers_and_subscribers_have_keys_of_their_own() -> None:
    subscriber = sign({"mercure": {"subscribe": ["a"]}}, "another key of the subscribers")
    assert patterns(AUTHORIZER.verify("subscribe", subscriber).subscribe) == [("topic", "a")]
    with pytest.raises(InvalidToken):
        AUTHORIZER.verify("publish", subscriber)


def test_v34_short_secrets_verify() -> None:
    old = Authorizer(Settings(dev=True, publisher_key="!ChangeMe!"), clock=lambda: NOW)
    old.verify("publish", sign({"mercure": {"publish": ["*"]}}, "!ChangeMe!"))


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW}, {"exp": NOW - 1}, {"exp": "soon"}, {"exp": True}, {"nbf": NOW + 1}, {"exp": [1]}, {"exp": 10**400}, {"nbf": -(10**400)},
        {"nbf": True}, {"exp": float("inf")}, {"nbf": float("nan")}, {"pad": "x" * 20_000},
        {"authorization_details": [{"type": "tenant"}, {"type": DETAIL_TYPE}]},
        {"mercure": []}, {"mercure": {"publish": "a"}}, {"mercure": {"publish": [None]}}, {"mercure": {"publish": [7]}},
        {"mercure": {"publish": ["a\0"]}}, {"mercure": {"publish": ["x" * 51]}}, {"mercure": {"publish": ["a"] * 1001}},
        {"authorization_details": [{"type": DETAIL_TYPE}]},
    ],
)  # fmt: skip
def test_v33_classic_tokens_that_are_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        AUTHORIZER.verify("publish", sign(claims))


# -- current


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt"])
def test_n64_n72_current_tokens_grant(typ: str) -> None:
    token = current(
        detail({"match": "a"}, {"match": "b{c}", "match_type": "uritemplate"}, actions=("publish", "fly")),
        detail({"match": "*"}, actions=("subscribe",)),
        {"type": "tenant", "topics": "acme", "actions": {"read": True}},
        typ=typ,
        aud=["elsewhere", RESOURCE],
    )
    for action in ("publish", "subscribe"):
        grant = AUTHORIZER.verify(action, token)
        assert patterns(grant.publish) == [("exact", "a"), ("uritemplate", "b{c}")]
        assert patterns(grant.subscribe) == [("exact", "*")]
        assert grant.expires == NOW + 60


def test_n78_a_token_without_details_is_valid_and_grants_nothing() -> None:
    grant = AUTHORIZER.verify("publish", current(authorization_details=None))
    assert (grant.publish, grant.subscribe) == ((), ())


@pytest.mark.parametrize(
    "token",
    [
        current(key=DEVELOPMENT_KEY), current(iss="https://other.example"), current(iss=None), current(aud=None),
        current(aud="elsewhere"), current(aud=RESOURCE + "/"), current(exp=None), current(exp=NOW), current(nbf=NOW + 1),
        current(authorization_details={}), current(detail()), current(detail("a")), current(detail(None)),
        current(detail({"match_type": "exact"})), current(detail({"match": "a", "match_type": "regexp"})),
        current(detail({"match": "a", "match_type": "topic"})),  # V71: the classic type cannot be named
        current(detail({"match": "a", "match_type": "Exact"})), current(detail({"match": "{", "match_type": "uritemplate"})),
        current(detail({"match": "a\u200b"})), current(detail({"match": 7})), current(detail({"match": "a"}, actions=())),
        current(detail({"match": "a"}, actions="publish")), current(detail({"match": "a"}, actions=("publish", 7))),
        current(detail({"match": "a"}), detail("b")), current(*[detail({"match": "a"})] * 6),
        current(detail(*[{"match": "a"}] * 6)), current(detail({"match": "x" * 51})),
        sign({"mercure": {"publish": ["*"]}}, typ="at+jwt"),  # V81: never relaxed
        current(typ="JWT"),
    ],
)  # fmt: skip
def test_n66_n77_current_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(InvalidToken, match=r"^the token is not valid here; the hub's log says why$"):
        AUTHORIZER.verify("publish", token)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", jwk.RSAKey.generate_key(2048)),
        ("PS256", jwk.RSAKey.generate_key(2048)),
        ("ES256", jwk.ECKey.generate_key("P-256")),
        ("EdDSA", jwk.OKPKey.generate_key("Ed25519")),
    ],
)
def test_v32_public_keys(algorithm: Any, key: Any) -> None:
    public = key.as_pem(private=False).decode()
    authorizer = Authorizer(Settings(dev=True, publisher_key=public, publisher_algorithm=algorithm), clock=lambda: NOW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # EdDSA has a newer name
        token = jwt.encode({"alg": algorithm}, {"mercure": {"publish": ["a"]}}, key, algorithms=[algorithm])
    assert patterns(authorizer.verify("publish", token).publish) == [("topic", "a")]
    with pytest.raises(InvalidToken):  # N65: the algorithm is the key's, not the token's
        authorizer.verify("publish", sign({"mercure": {"publish": ["a"]}}, "x" * 40))
    body = token.split(".")[1]
    with pytest.raises(InvalidToken):
        authorizer.verify("publish", f"eyJhbGciOiJub25lIn0.{body}.")


def test_a_changed_payload_or_signature_is_refused() -> None:
    head, body, signature = sign({"mercure": {"publish": ["a"]}}).split(".")
    other = sign({"mercure": {"publish": ["*"]}}).split(".")[1]
    for token in (f"{head}.{other}.{signature}", f"{head}.{body}.{signature[:-4]}AAAA", f"{head}.{body}."):
        with pytest.raises(InvalidToken):
            AUTHORIZER.verify("publish", token)


@given(st.text() | st.text("eyJ.-_a", max_size=60) | st.just("a" * 20_000) | st.just("eyJ" + "W" * 12_000 + "..x"))
def test_any_text_is_an_invalid_token_and_no_error(text: str) -> None:
    with pytest.raises(InvalidToken):
        AUTHORIZER.verify("subscribe", text)


def test_a_token_that_nests_deeper_than_the_parser_is_invalid() -> None:
    import base64

    key = jwk.OctKey.import_key(DEVELOPMENT_KEY)
    from joserfc import jws

    deep = jws.serialize_compact({"alg": "HS256"}, b'{"a":' + b"[" * 6_000, key)
    assert len(base64.b64encode(b"[" * 6_000)) < 16_384
    with pytest.raises(InvalidToken):
        AUTHORIZER.verify("publish", deep)


# -- presenting


def test_n58_n61_the_header_comes_first() -> None:
    headers = [(b"authorization", b"bEARER  abc "), (b"cookie", b"mercureAuthorization=def")]
    found = find_token(headers, "name")
    assert found is not None
    assert (found.token, found.by_cookie) == ("abc", False)
    assert "abc" not in repr(found)


def test_n59_v86_the_configured_cookie_comes_before_the_classic_one() -> None:
    found = find_token([(b"cookie", b'a=b; mercureAuthorization=old; name="new"')], "name")
    assert found is not None
    assert (found.token, found.by_cookie) == ("new", True)
    found = find_token([(b"cookie", b"mercureAuthorization=old; name=")], "name")
    assert found is not None
    assert found.token == "old"
    found = find_token([(b"cookie", b"name=near; name=far")], "name")
    assert found is not None
    assert found.token == "near"
    assert find_token([(b"cookie", b"other=x")], "name") is None


@pytest.mark.parametrize(
    "given",
    [
        [b"Basic a"],
        [b"Bearer"],
        [b"Bearer "],
        [b""],
        [b"Bearer a b"],
        [b"a.b.c"],
        [b"Bearer a", b"Bearer a"],
        [b"Bearer \xe9"],
    ],
)
def test_n93_presented_in_no_valid_way(given: list[bytes]) -> None:
    with pytest.raises(InvalidPresentation):
        find_token([(b"authorization", value) for value in given], "name")


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        ({}, False),
        ({"origin": OWN}, True),
        ({"origin": "https://friend.example"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example", "referer": OWN + "/x"}, False),  # T45: Origin beats Referer
        ({"referer": OWN + "/page?x"}, True),
        ({"referer": "https://evil.example/" + OWN}, False),
        ({"referer": OWN.replace("https", "http") + "/x"}, False),
        ({"referer": OWN + ".evil.example/"}, False),
        ({"referer": "nonsense"}, False),
        ({"referer": "http://[x"}, False),
    ],
)
def test_n63_who_may_publish_with_a_cookie(headers: dict[str, str], fine: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    if fine:
        require_same_site(raw, {OWN, None, "https://friend.example"})
    else:
        with pytest.raises(InvalidPresentation):
            require_same_site(raw, {OWN, None, "https://friend.example"})


def test_n63_the_public_url_is_the_hub_s_own_whatever_a_proxy_makes_of_the_host() -> None:
    token = sign({"mercure": {"publish": ["*"]}})
    headers = [(b"cookie", f"mercureAuthorization={token}".encode()), (b"origin", OWN.encode())]
    assert AUTHORIZER.authorize("publish", headers, own_origin="http://10.0.0.7:3000").publish
    with pytest.raises(InvalidPresentation):
        AUTHORIZER.authorize(
            "publish", [headers[0], (b"origin", b"http://10.0.0.8")], own_origin="http://10.0.0.7:3000"
        )


def test_n90_v5_who_needs_a_token() -> None:
    open_hub = Authorizer(Settings(dev=True), clock=lambda: NOW)
    assert open_hub.authorize("subscribe", [], own_origin=OWN) == ANONYMOUS
    with pytest.raises(InvalidToken):
        open_hub.authorize("subscribe", [(b"authorization", b"Bearer x")], own_origin=OWN)
    for authorizer, action in ((open_hub, "publish"), (AUTHORIZER, "publish"), (AUTHORIZER, "subscribe")):
        with pytest.raises(TokenRequired):
            authorizer.authorize(action, [], own_origin=OWN)  # type: ignore[arg-type]


def test_n80_every_topic_must_be_granted() -> None:
    grant = AUTHORIZER.verify("publish", sign({"mercure": {"publish": ["a", "b/{c}"]}}))
    grant.require_publish(Update(("a", "b/1")))
    with pytest.raises(InsufficientScope, match="publishing to 'c'"):
        grant.require_publish(Update(("a", "c")))
    with pytest.raises(InsufficientScope):
        ANONYMOUS.require_publish(Update(("a",)))

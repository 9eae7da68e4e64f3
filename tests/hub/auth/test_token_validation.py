"""Current tokens: issuer, audience, times and signature, and attempts to forge one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwk

from hub.auth.authorizer import RECENT_TOKENS
from hub.auth.grant import Action
from hub.errors import InvalidToken
from hub.protocol.data import to_json
from tests.hub.signing import (
    HUB,
    ISSUER,
    ISSUER_KEY,
    NOW,
    ORIGIN,
    PUBLISHER_KEY,
    RESOURCE,
    SUBSCRIBER_KEY,
    Clock,
    at_once,
    authorizer,
    classic,
    current,
    detail,
    patterns,
    refused,
    sign,
    verified,
)

if TYPE_CHECKING:
    from hub.auth.authorizer import Authorizer
    from hub.auth.grant import CompiledGrant

A = detail({"match": "a"})
OTHER_ISSUER = "https://other.example"
OTHER_KEY = "the key of another issuer, to be trusted"


# -- the header


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt", "Application/At+Jwt"])
def test_n64_t43_the_typ_of_a_current_token_is_in_any_case(typ: str) -> None:
    for action in get_args(Action):
        grant = verified(current(A, typ=typ), action=action)
        assert (patterns(grant.publish), patterns(grant.subscribe)) == ([("exact", "a")], [("exact", "a")])
        assert (grant.classic, grant.expires) == (False, NOW + 60)


@pytest.mark.parametrize("typ", ["JWT", "jwt", "", "at+jwt ", "application/application/at+jwt", "application/jwt"])
def test_n64_t43_another_typ_is_not_a_current_token(typ: str) -> None:
    refused(current(A, typ=typ))
    refused(current(A, typ=typ, key=PUBLISHER_KEY))
    without: dict[str, Any] = {"classic": False, "publisher_key": None, "subscriber_key": None}
    assert "is of a classic token" in refused(current(A, typ=typ), authorizer(**without))


@pytest.mark.parametrize("header", [{"typ": 7}, {"typ": None}, {"kid": 7}, {"alg": None}, {"alg": []}, {"jku": 1}])
def test_n64_a_header_of_the_wrong_types_is_refused(header: dict[str, Any]) -> None:
    _, body, signature = current(A).split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", **header}).encode()).decode().rstrip("=")
    refused(f"{head}.{body}.{signature}")


@pytest.mark.parametrize("header", ['["alg"]', '"alg"', "7", "null", "{}", '["alg", "b64"]', '{"alg"', "[" * 8_000])
def test_a_header_that_is_not_an_object_is_refused(header: str) -> None:
    _, body, signature = current(A).split(".")
    head = base64.urlsafe_b64encode(header.encode()).decode().rstrip("=")
    reason = refused(f"{head}.{body}.{signature}")
    assert header not in ('["alg"]', '"alg"') or reason == "its header is not an object"


def test_n65_none_is_not_an_algorithm() -> None:
    for typ in ("at+jwt", "JWT"):
        head = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": typ}).encode()).decode().rstrip("=")
        body = current(A).split(".")[1]
        assert "alg 'none' is not allowed" in refused(f"{head}.{body}.")


def test_n65_t43_the_algorithm_comes_from_the_key_and_not_from_the_token() -> None:
    token = sign({"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60}, key=ISSUER_KEY, algorithm="HS512", header=AT)
    assert "alg 'HS512' is not allowed; issuer 'https://issuer.example' allows HS256" in refused(token)
    hub = authorizer(issuers=[{"id": ISSUER, "keys": {"key": ISSUER_KEY * 2, "algorithm": "HS512"}}])
    assert "alg 'HS256' is not allowed" in refused(current(key=ISSUER_KEY * 2), hub)


AT = {"typ": "at+jwt"}


def test_n65_v35_the_case_of_an_algorithm_matters() -> None:
    head, body, signature = current(A).split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"hs256","typ":"at+jwt"}').decode().rstrip("=")
    assert "'hs256'" in refused(f"{head}.{body}.{signature}")


def test_n65_a_public_key_is_not_used_as_a_secret() -> None:
    private = jwk.ECKey.generate_key("P-256")
    pem = private.as_pem(private=False).decode()
    hub = authorizer(issuers=[{"id": ISSUER, "keys": {"key": pem, "algorithm": "ES256"}}])
    claims = json.dumps({"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60}).encode()
    body = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    forged = signed_by_hand({"alg": "HS256", "typ": "at+jwt"}, body, pem)
    assert "alg 'HS256' is not allowed" in refused(forged, hub)
    good = sign(
        {"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60},
        key=private.as_pem(True).decode(),
        algorithm="ES256",
        header=AT,
    )
    assert verified(good, hub).expires == NOW + 60


def test_n66_keys_inside_a_token_are_ignored() -> None:
    mine = jwk.OctKey.generate_key(256)
    pem = jwk.ECKey.generate_key("P-256").as_pem(private=False).decode()
    brought = {"jwk": mine.as_dict(), "jku": "https://evil.example/keys", "x5u": "https://evil.example/x", "x5c": [pem]}
    for name, value in brought.items():
        assert "signature matches no HS256 key" in refused(current(A, key=mine.raw_value.hex(), header={name: value}))
        assert verified(current(A, header={name: value})).publish  # such a header does no harm


def test_n66_a_kid_does_not_matter_if_there_is_one_key() -> None:
    assert verified(current(A, header={"kid": "whatever"})).publish


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"crit": ["kid"], "kid": "x"}, {"crit": ["b64"], "b64": True}]
)
def test_n64_critical_headers_are_refused(header: dict[str, Any]) -> None:
    body = current(A).split(".")[1]
    assert "crit" in refused(signed_by_hand({"alg": "HS256", "typ": "at+jwt", **header}, body))


@pytest.mark.parametrize("header", [{"b64": False, "crit": ["b64"]}, {"b64": False}, {"b64": None}, {"b64": 0}])
def test_n64_a_payload_that_is_not_encoded_is_refused(header: dict[str, Any]) -> None:
    hub = authorizer(issuers=[{"id": "urn:issuer", "keys": {"key": ISSUER_KEY}}], resource="urn:hub")
    claims = json.dumps({"iss": "urn:issuer", "aud": "urn:hub", "exp": int(NOW) + 60}, separators=(",", ":"))
    token = signed_by_hand({"alg": "HS256", "typ": "at+jwt", **header}, claims)
    assert "crit" in refused(token, hub, resource="urn:hub")


def test_n64_unknown_headers_are_ignored_and_may_be_long() -> None:
    assert verified(current(A, header={"nonce": "x" * 2_000, "x5t": "y"})).publish


def signed_by_hand(header: dict[str, Any], body: str, key: str = ISSUER_KEY) -> str:
    """Sign a header and a body that a library would refuse to sign."""
    head = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    mac = hmac.new(key.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


# -- the issuer


def two_issuers() -> Authorizer:
    return authorizer(
        issuers=[
            {"id": ISSUER, "keys": {"key": ISSUER_KEY}},
            {"id": OTHER_ISSUER, "publisher": {"key": OTHER_KEY}},
        ]
    )


def test_n67_t44_keys_are_bound_to_their_issuer() -> None:
    hub = two_issuers()
    assert verified(current(A), hub).publish
    assert verified(current(A, iss=OTHER_ISSUER, key=OTHER_KEY), hub).publish
    for token in (current(A, key=OTHER_KEY), current(A, iss=OTHER_ISSUER), current(A, key=PUBLISHER_KEY)):
        assert "signature" in refused(token, hub)


def test_n67_t44_a_role_without_keys_is_refused() -> None:
    reason = refused(current(A, iss=OTHER_ISSUER, key=OTHER_KEY), two_issuers(), "subscribe")
    assert reason == "issuer 'https://other.example' has no keys for tokens that subscribe"


def test_n66_the_keys_of_a_role_come_before_the_keys_of_both_roles() -> None:
    keys = {"keys": {"key": ISSUER_KEY}, "subscriber": {"key": OTHER_KEY}}
    hub = authorizer(issuers=[{"id": ISSUER, **keys}])
    assert verified(current(A), hub).publish
    assert verified(current(A, key=OTHER_KEY), hub, "subscribe").subscribe
    for action, key in (("publish", OTHER_KEY), ("subscribe", ISSUER_KEY)):
        refused(current(A, key=key), hub, action)  # type: ignore[arg-type]


@pytest.mark.parametrize("iss", ["https://issuer.example/", "https://ISSUER.example", "", None, 7, [ISSUER], {}])
def test_n67_t43_the_issuer_is_the_same_byte_for_byte(iss: Any) -> None:
    claims = {"iss": iss, "aud": RESOURCE, "exp": NOW + 60, "authorization_details": [A]}
    assert refused(sign(claims, key=ISSUER_KEY, header=AT)) == f"iss {json.dumps(iss)} is not trusted"


# -- the audience


@pytest.mark.parametrize("aud", [RESOURCE, [RESOURCE], ["https://elsewhere.example", RESOURCE, 7, None]])
def test_n69_the_audience_is_the_hub_alone_or_among_others(aud: Any) -> None:
    assert verified(current(A, aud=aud)).publish


@pytest.mark.parametrize(
    "aud", [RESOURCE + "/", RESOURCE.upper(), RESOURCE[:-1], "", [], [[RESOURCE]], {RESOURCE: 1}, 7, ["x"]]
)
def test_n69_t43_another_audience_is_refused(aud: Any) -> None:
    assert refused(current(A, aud=aud)) == f"aud {json.dumps(aud)} lacks {RESOURCE!r}"


def test_n69_t32_a_token_without_an_audience_is_refused() -> None:
    for aud in (None, "", [""], [None]):
        for hub in (HUB, authorizer(dev=True, public_urls=(), issuers=[{"id": ISSUER, "keys": {"key": ISSUER_KEY}}])):
            refused(current(A, aud=aud), hub, resource="http://localhost:3000/.well-known/mercure")


# -- the time


@pytest.mark.parametrize(
    "times", [{"exp": NOW + 0.5}, {"exp": int(NOW) + 1}, {"nbf": NOW}, {"nbf": NOW - 0.5}, {"nbf": NOW + 10}]
)
def test_n68_dates_may_be_fractions(times: dict[str, Any]) -> None:
    assert verified(current(A, **times)).expires == times.get("exp", NOW + 60)


@pytest.mark.parametrize(
    "times",
    [
        {"exp": None}, {"exp": NOW}, {"exp": NOW - 0.5}, {"exp": 0}, {"exp": "soon"}, {"exp": str(NOW + 60)}, {"exp": True},
        {"exp": [NOW + 60]}, {"exp": {}}, {"exp": 10**400}, {"exp": float("inf")}, {"exp": float("nan")}, {"exp": -1},
        {"nbf": NOW + 10.5}, {"nbf": "now"}, {"nbf": False}, {"nbf": -(10**400)}, {"nbf": float("nan")},
        {"nbf": float("-inf")}, {"nbf": []},
    ],
)  # fmt: skip
def test_n68_t43_a_token_outside_its_time_or_without_an_end_is_refused(times: dict[str, Any]) -> None:
    assert refused(current(A, **times))


def test_n91_the_log_says_what_is_wrong_with_a_token() -> None:
    assert refused(current(A, exp=NOW - 90)) == "exp 999910: expired 90 s ago"
    assert refused(current(A, nbf=NOW + 90)) == "nbf 1000090: not valid for another 90 s"
    assert refused(current(A, exp=None)) == "exp is missing"
    assert refused(current(A, exp="soon")) == 'exp "soon" is not a number of seconds'
    assert refused(current(A, aud="x")) == f'aud "x" lacks {RESOURCE!r}'
    assert refused(current(A, key="another key, of the same length or so")) == (
        "the signature matches no HS256 key of issuer 'https://issuer.example'"
    )
    assert len(refused(current(A, aud="x" * 5_000))) < 500


@pytest.mark.parametrize("value", [None, 7, "", "x", [], {}, NOW + 999, -1, True, "\ufeff"])
def test_n70_other_claims_do_not_matter(value: Any) -> None:
    full = {"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60, "authorization_details": [A]}
    for name in ("sub", "client_id", "iat", "jti", "scope", "nonce", "mercure"):
        assert verified(sign(full | {name: value}, key=ISSUER_KEY, header=AT)).publish


def test_n23_a_token_counts_for_its_subject() -> None:
    assert verified(current(A, sub="ann")).subject == f"{ISSUER} ann"
    for sub in (None, "", 7, ["ann"]):
        assert verified(current(A, sub=sub)).subject is None


def test_a_publisher_is_a_subject_or_else_an_issuer_and_its_topics() -> None:
    b = detail({"match": "b"})
    assert verified(current(A, sub="ann")).publisher == verified(current(b, sub="ann")).publisher == f"{ISSUER} ann"
    assert verified(classic(["a"], sub="ann")).publisher == " ann"
    alike = [current(A, b), current(b, A, A, exp=NOW + 9), current(A, b, detail({"match": "c"}, actions=["subscribe"]))]
    assert len({verified(token).publisher for token in alike}) == 1
    others = [current(A), current(b), classic(["a"]), classic(["b"]), classic(["a", "b"])]
    assert len({verified(token).publisher for token in (*alike, *others)}) == 6


# -- arbitrary text


@settings(deadline=None)
@given(
    st.text()
    | st.text("eyJ.-_a", max_size=60)
    | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1"))
    | st.just("a" * 20_000)
    | st.just("eyJ" + "W" * 12_000 + "..x")
    | st.just("\ud800")
)
def test_n91_any_text_is_an_invalid_token_and_not_a_crash(text: str) -> None:
    for action in get_args(Action):
        with pytest.raises(InvalidToken):
            at_once(HUB.verify(action, text, resource=RESOURCE))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a", "exact", "*"]),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["exp", "nbf", "sub", "iat", "jti", "authorization_details", "mercure", "https://mercure.rocks/", "aud", "iss"]
)
DETAILS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just(A["type"])},
        optional={
            "actions": JSON | st.just(["subscribe"]),
            "topics": JSON | st.lists(st.fixed_dictionaries({"match": JSON}, optional={"match_type": JSON})),
            "payload": JSON,
        },
    )
)
CLAIM = st.fixed_dictionaries(
    {}, optional={name: JSON | st.lists(JSON) for name in ("publish", "subscribe", "payload")}
)


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON | DETAILS | CLAIM), st.sampled_from(["at+jwt", "JWT"]))
def test_n91_n76_signed_nonsense_is_an_invalid_token_or_a_grant_that_works(claims: dict[str, Any], typ: str) -> None:
    full = {"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60, **claims} if typ == "at+jwt" else claims
    token = sign(full, key=ISSUER_KEY if typ == "at+jwt" else PUBLISHER_KEY, header={"typ": typ})
    try:
        grant = verified(token)
    except InvalidToken as error:
        error.reason.encode()
        return
    assert grant.expires is None or grant.expires > NOW
    json.dumps(grant.payload_for("a"), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"null", b"[]", b'"x"', b"{", b'{"exp": 1e999}', b'{"exp": NaN}', b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"a":' + b"[" * 6_000, b"\xff", b'{"iss":"\xff"}', b'{"sub": "\\ud800"}',
    ],
)  # fmt: skip
def test_n91_claims_that_are_not_a_json_object_or_cannot_be_encoded_are_refused(text: bytes) -> None:
    if text.startswith(b'{"') and text.endswith(b"}"):
        base = json.dumps({"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60}).encode()
        text = base[:-1] + b"," + text[1:]
    refused(sign(text=text, key=ISSUER_KEY, header=AT))
    refused(sign(text=text, key=PUBLISHER_KEY, header={"typ": "JWT"}))


@pytest.mark.parametrize("depth", [5_000, 20_000])
def test_n91_claims_are_refused_if_this_python_cannot_read_or_write_their_depth(depth: int) -> None:
    # From Python 3.13 on, the first one is read.  An error of the hub would be another one.
    payload = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    token = sign(
        text=b'{"mercure":{"subscribe":["a"],"payload":' + payload + b"}}", key=SUBSCRIBER_KEY, header={"typ": "JWT"}
    )
    try:
        grant = verified(token, action="subscribe")
    except InvalidToken as error:
        assert error.reason
    else:
        assert to_json(grant.payload_for("a")).encode() == payload


def test_n76_a_changed_part_is_refused() -> None:
    head, body, signature = current(A).split(".")
    other = current(detail({"match": "*"})).split(".")[1]
    flipped = ("B" if signature[0] == "A" else "A") + signature[1:]
    for token in (
        f"{head}.{other}.{signature}", f"{head}.{body}.{flipped}", f"{head}.{body}.", f"{head}.{body}", f"{head}..{signature}",
        f"{head}.{body}.{signature}=", f"{head}.{body}.{signature}.", f" {head}.{body}.{signature}",
        f"{head}.{body}.{signature}\n", f"{head}={'' }.{body}.{signature}",
    ):  # fmt: skip
        refused(token)


def test_v35_base64url_has_no_padding_and_no_other_alphabet() -> None:
    head, body, signature = classic(["a"]).split(".")
    assert verified(f"{head}.{body}.{signature}").publish
    refused(f"{head}.{body}.{signature}=")
    with_plus = next(t for i in range(200) if set("-_") & set((t := classic(["a"], n=i)).split(".")[2]))
    assert verified(with_plus).publish
    front, _, back = with_plus.rpartition(".")
    refused(f"{front}.{back.replace('-', '+').replace('_', '/')}")


def test_a_token_has_a_maximum_length() -> None:
    for longest, hub in ((2**16, authorizer()), (1_000, authorizer(max_token=1_000))):
        spare = longest - len(current(A, pad=""))
        fits = next(t for n in range(spare * 3 // 4, 0, -1) if len(t := current(A, pad="x" * n)) <= longest)
        assert len(fits) > longest - 4
        assert verified(fits, hub).publish
        assert f"the limit is {longest}" in refused(fits + "x" * 4, hub)


# -- cached tokens


def authorized(token: str, hub: Authorizer, action: Action = "publish", origin: str = ORIGIN) -> CompiledGrant:
    """The grant of a request with a token in its header."""
    header = (b"authorization", b"Bearer " + token.encode())
    return asyncio.run(hub.authorize(action, [header], origin=origin))


def test_n68_t65_a_token_that_was_just_used_expires() -> None:
    clock = Clock()
    hub = authorizer(clock)
    token = current(A, exp=NOW + 10)
    assert authorized(token, hub) is authorized(token, hub)
    assert hub._recent
    clock.now = NOW + 10
    with pytest.raises(InvalidToken):
        authorized(token, hub)


def test_n69_a_token_that_was_just_used_is_valid_for_one_role_and_one_origin() -> None:
    hub = authorizer()
    token = current(A)
    assert authorized(token, hub).publish
    assert authorized(token, hub) is not authorized(token, hub, "subscribe")
    with pytest.raises(InvalidToken):
        authorized(token, hub, origin="https://other.example")


def test_r9_the_tokens_that_were_just_used_are_few_and_small() -> None:
    hub, tiny = authorizer(), authorizer(cached_tokens=3)
    for number in range(100):
        authorized(classic([f"topic {number}"]), hub)
        authorized(classic([f"topic {number}"]), tiny)
    assert (len(hub._recent), len(tiny._recent)) == (RECENT_TOKENS, 3)
    before = list(hub._recent)
    assert len(authorized(classic([str(number) for number in range(30)]), hub).publish) == 30
    assert list(hub._recent) == before
    authorized(classic(["topic 99"]), hub)  # used again: none has to go
    assert list(hub._recent) == before


def test_a_verified_token_is_cached() -> None:
    hub = authorizer()
    token = current(A)
    assert verified(token, hub) is verified(token, hub)
    assert verified(token, hub) is not verified(token, hub, "subscribe")
    assert verified(classic(["a"]), hub) is verified(classic(["a"]), hub)


def test_n69_a_cached_token_is_valid_for_one_resource_and_one_role() -> None:
    hub = authorizer()
    assert verified(current(A), hub).publish
    refused(current(A), hub, resource="https://other.example/.well-known/mercure")
    assert verified(classic(["a"]), hub).publish
    refused(classic(["a"]), hub, "subscribe")


def test_n68_t65_a_cached_token_expires() -> None:
    clock = Clock()
    hub = authorizer(clock)
    token, endless = current(A, exp=NOW + 10.5), classic(["a"])
    grant, lasting = verified(token, hub), verified(endless, hub)
    clock.now = NOW + 10.4
    assert verified(token, hub) is grant
    clock.now = NOW + 10.5
    assert "expired" in refused(token, hub)
    clock.now = NOW * 10
    assert verified(endless, hub) is lasting


def test_n68_a_refused_token_may_become_valid() -> None:
    clock = Clock()
    hub = authorizer(clock)
    token = current(A, nbf=NOW + 11)
    refused(token, hub)
    clock.now = NOW + 1
    assert verified(token, hub).publish


def test_r9_the_cache_of_tokens_is_bounded() -> None:
    hub = authorizer(cached_tokens=3)
    tokens = [classic([f"topic {number}"]) for number in range(4)]
    grants = [verified(token, hub) for token in tokens]
    assert [verified(token, hub) is grant for token, grant in zip(tokens[1:], grants[1:], strict=True)] == [True] * 3
    assert verified(tokens[0], hub) is not grants[0]


@pytest.mark.parametrize(
    ("token", "cost"),
    [
        (classic(["a"]), 1),
        (classic(["a"] * 500, exp=NOW + 1), 1 + 3),  # one matcher, in a token of 3 KB
        (classic([str(n) for n in range(30)]), 1 + 22),
        (classic([str(n) for n in range(20)], [str(n) for n in range(10, 30)]), 1 + 22),
        (current(detail({"match": "https://e.example/:a", "match_type": "urlpattern"})), 1),
        (current(detail({"match": "https://e.example/(a)", "match_type": "urlpattern"})), 1 + 32),
        (current(*[detail({"match": f"/({n})", "match_type": "urlpattern"}) for n in "abc"]), 1 + 2 + 96),
    ],
)
def test_a_large_grant_takes_more_room_in_the_cache(token: str, cost: int) -> None:
    fits, too_small = authorizer(cached_tokens=cost), authorizer(cached_tokens=max(1, cost - 1))
    assert verified(token, fits) is verified(token, fits)
    if cost > 1:
        assert verified(token, too_small) is not verified(token, too_small)


def test_a_grant_that_does_not_fit_displaces_no_other() -> None:
    hub = authorizer(cached_tokens=20)
    small, large = classic(["a"]), current(detail({"match": "/:a(b)", "match_type": "urlpattern"}))
    grant = verified(small, hub)
    assert verified(large, hub).publish
    assert verified(small, hub) is grant


def test_n163_no_token_is_kept_in_memory() -> None:
    hub, token = authorizer(), classic([], ["a"], key=SUBSCRIBER_KEY)
    assert authorized(token, hub, "subscribe").subscribe
    assert (len(hub._verified), len(hub._recent)) == (1, 1)
    kept = repr([*hub._verified.items(), *hub._recent.items()])
    assert all(part not in kept for part in token.split("."))
    assert SUBSCRIBER_KEY not in kept

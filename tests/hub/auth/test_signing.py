"""A hub verifies the tokens that `skipfilter token` signs."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any, get_args

import pytest
from joserfc import jwk, jws
from structlog.testing import capture_logs

from hub import ConfigurationError, Settings
from hub.auth.authorizer import Authorizer
from hub.auth.grant import Action
from hub.auth.keys import ALGORITHMS, REGISTRY
from hub.auth.signing import development_token, sign_classic_token, sign_token, token_command
from hub.control.commands import Identity
from hub.development import DEVELOPMENT_TOKEN
from hub.errors import InvalidToken
from hub.node.matchers import MatcherCompiler
from tests.hub.commands import invoke
from tests.hub.signing import (
    ISSUER,
    ISSUER_KEY,
    NOW,
    ORIGIN,
    PUBLISHER_KEY,
    RESOURCE,
    at_once,
    authorizer,
    patterns,
)

if TYPE_CHECKING:
    from pathlib import Path


def signed(**values: Any) -> str:
    return sign_token(
        **{
            "key": ISSUER_KEY,
            "algorithm": None,
            "issuer": ISSUER,
            "resource": RESOURCE,
            "publish": [("exact", "a"), ("uritemplate", "b{c}")],
            "subscribe": [("mqtt", "d/#")],
            "seconds": 60,
            "now": NOW,
            **values,
        }
    )


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    extracted = jws.extract_compact(token.encode(), registry=REGISTRY)
    return extracted.headers(), json.loads(extracted.payload)


def test_n64_n79_a_current_token() -> None:
    grant = at_once(authorizer().verify("publish", signed(payload={"n": 1}, subject="ann"), resource=RESOURCE))
    assert patterns(grant.publish) == [("exact", "a"), ("uritemplate", "b{c}")]
    assert patterns(grant.subscribe) == [("mqtt", "d/#")]
    assert (grant.expires, grant.classic, grant.subject) == (NOW + 60, False, f"{ISSUER} ann")
    assert (grant.payload_for("d/e"), grant.payload_for("a")) == ({"n": 1}, None)


def test_n70_a_current_token_has_the_claims_of_rfc_9068() -> None:
    header, claims = parts(signed(subject="ann", client_id="web", kid="k"))
    assert header == {"alg": "HS256", "typ": "at+jwt", "kid": "k"}
    assert (claims["iat"], claims["exp"], claims["sub"], claims["client_id"]) == (NOW, NOW + 60, "ann", "web")
    assert claims["jti"] != parts(signed())[1]["jti"]
    header, claims = parts(signed())
    assert set(claims) == {"iss", "aud", "iat", "exp", "jti", "authorization_details"}
    assert "kid" not in header


def test_n74_empty_claims_are_left_out() -> None:
    claims = parts(signed(publish=[], subscribe=[]))[1]
    assert claims["authorization_details"] == []
    grant = at_once(authorizer().verify("subscribe", signed(publish=[]), resource=RESOURCE))
    assert (grant.publish, patterns(grant.subscribe)) == ((), [("mqtt", "d/#")])


@pytest.mark.parametrize("values", [{"payload": []}, {"payload": "x"}, {"payload": {}, "subscribe": []}])
def test_n75_a_payload_that_a_hub_would_refuse_is_an_error(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="payload"):
        signed(**values)


def test_v30_a_classic_token() -> None:
    token = sign_classic_token(
        PUBLISHER_KEY, "HS256", publish=["a"], subscribe=["b{c}"], payload=[1], seconds=60.9, now=NOW
    )
    grant = at_once(authorizer().verify("publish", token, resource=RESOURCE))
    assert (patterns(grant.publish), patterns(grant.subscribe)) == ([("topic", "a")], [("topic", "b{c}")])
    assert (grant.expires, grant.classic, grant.payload_for("x")) == (NOW + 60, True, [1])
    assert parts(token)[0] == {"alg": "HS256", "typ": "JWT"}


def test_v31_a_classic_token_may_never_expire() -> None:
    token = sign_classic_token(PUBLISHER_KEY, None, publish=["a"], subscribe=(), seconds=None, now=NOW)
    assert parts(token)[1] == {"mercure": {"publish": ["a"], "subscribe": []}, "iat": int(NOW)}
    assert at_once(authorizer().verify("publish", token, resource=RESOURCE)).expires is None


def test_a_classic_token_may_have_a_subject() -> None:
    token = sign_classic_token(PUBLISHER_KEY, None, publish=["a"], subject="alice", seconds=60, now=NOW)
    grant = at_once(authorizer().verify("publish", token, resource=RESOURCE))
    assert grant.subject == " alice"
    assert grant.identity == Identity("classic", "alice", issued=int(NOW))


KEYS: dict[str, jwk.RSAKey | jwk.ECKey | jwk.OKPKey] = {
    "RS": jwk.RSAKey.generate_key(2048),
    "PS": jwk.RSAKey.generate_key(2048),
    "ES256": jwk.ECKey.generate_key("P-256"),
    "ES384": jwk.ECKey.generate_key("P-384"),
    "ES512": jwk.ECKey.generate_key("P-521"),
    "Ed": jwk.OKPKey.generate_key("Ed25519"),
    "Ed448": jwk.OKPKey.generate_key("Ed448"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_v32_any_algorithm_signs_what_it_verifies(algorithm: str) -> None:
    key = KEYS.get(algorithm) or KEYS.get(algorithm[:2])
    private = key.as_pem(private=True).decode() if key else "x" * 64
    public = key.as_pem(private=False).decode() if key else "x" * 64
    hub = authorizer(issuers=[{"id": ISSUER, "keys": {"key": public, "algorithm": algorithm}}])
    assert at_once(hub.verify("publish", signed(key=private, algorithm=algorithm), resource=RESOURCE)).publish


def test_a_key_that_cannot_sign_is_an_error() -> None:
    public = KEYS["ES256"].as_pem(private=False).decode()
    for key, algorithm, told in (
        (public, "ES256", "cannot sign"),
        (public, None, "so set its algorithm"),
        (public, "HS256", "is not a secret"),
        ("secret", "ES256", "not a key for ES256"),
        ("", None, "the key is empty"),
        ("secret", "HS1", "'HS1' is none of HS256"),
        ("secret", "none", "'none' is none of HS256"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            signed(key=key, algorithm=algorithm)


def test_v34_a_short_secret_signs() -> None:
    with capture_logs() as lines:
        token = sign_classic_token("!ChangeMe!", None, publish=["a"], subscribe=(), seconds=60, now=NOW)
        assert lines == []  # only a hub warns about a short secret
        hub = authorizer(dev=True, publisher_key="!ChangeMe!")
    assert at_once(hub.verify("publish", token, resource=RESOURCE)).publish


def test_v34_the_development_token_may_do_everything() -> None:
    assert development_token(Settings(dev=True), ORIGIN) == DEVELOPMENT_TOKEN
    only = Settings(dev=True, classic=False)
    hub = Authorizer(only, MatcherCompiler(only.url), clock=lambda: NOW)
    for origin in ("http://localhost:3000", ORIGIN):
        token = development_token(only, origin, clock=lambda: NOW)
        headers = [(b"authorization", f"Bearer {token}".encode())]
        for action in get_args(Action):
            grant = at_once(hub.authorize(action, headers, origin=origin))
            assert (patterns(grant.publish), patterns(grant.subscribe)) == ([("exact", "*")], [("exact", "*")])
            assert grant.expires == NOW + 86_400


def test_a_hub_with_other_keys_has_no_development_token() -> None:
    for own in ({"publisher_key": "p" * 32}, {"issuers": [{"id": "us", "keys": {"key": "k" * 32}}]}):
        for dev in (True, False):
            settings = Settings(dev=dev, anonymous=True, public_urls=[ORIGIN], **own)
            assert development_token(settings, ORIGIN) == ""


@pytest.mark.parametrize(
    ("own", "options"),
    [
        ({"publisher_key": "p" * 32}, "--classic"),
        ({"publisher_key": "pem", "publisher_algorithm": "ES256"}, "--classic --algorithm ES256"),
        ({"publisher_jwks_url": "https://x/keys", "publisher_algorithm": "ES256"}, "--classic --algorithm ES256"),
        ({"publisher_jwks_url": "https://x/keys"}, "--classic --algorithm ALGORITHM"),
        (
            {"issuers": [{"id": "us & them", "keys": {"key": "k" * 32}}]},
            f"--issuer 'us & them' --audience {ORIGIN}/.well-known/mercure",
        ),
        (
            {"issuers": [{"id": "us", "subscriber": {"key": "k"}}, {"id": "them", "publisher": {"key": "k"}}]},
            f"--issuer them --audience {ORIGIN}/.well-known/mercure",
        ),
    ],
)
def test_the_command_to_sign_names_the_kind_of_token_and_the_algorithm(own: dict[str, Any], options: str) -> None:
    command = token_command(Settings(dev=True, **own), ORIGIN)
    assert command.removesuffix(" --subscribe '*'") == f"skipfilter token --key @FILE {options} --publish '*'"


def test_there_is_no_command_if_no_token_can_publish() -> None:
    assert token_command(Settings(dev=True, subscriber_key="k" * 32), ORIGIN) == ""


OWN = {
    "one secret": {"publisher_key": "p" * 32, "subscriber_key": "p" * 32},
    "two secrets": {"publisher_key": "p" * 32, "subscriber_key": "s" * 32},
    "a publisher": {"publisher_key": "p" * 32},
    "an issuer": {"issuers": [{"id": "us", "keys": {"key": "p" * 32}}]},
    "an issuer for publishers": {"issuers": [{"id": "us", "publisher": {"key": "p" * 32}}]},
    "an issuer with two keys": {
        "issuers": [{"id": "us", "publisher": {"key": "p" * 32}, "subscriber": {"key": "s" * 32}}]
    },
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_the_hub_accepts_the_token_for_what_the_command_names(own: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("p" * 32 + "\n")
    chosen = Settings(dev=True, **own)
    program, *arguments = shlex.split(token_command(chosen, ORIGIN).replace("FILE", f"{tmp_path}/key"))
    signed = invoke(*arguments)
    assert (program, signed.exit_code, signed.stderr) == ("skipfilter", 0, "")
    hub = Authorizer(chosen, MatcherCompiler(chosen.url), clock=time.time)
    headers = [(b"authorization", f"Bearer {signed.stdout.strip()}".encode())]
    assert at_once(hub.authorize("publish", headers, origin=ORIGIN)).publish
    if "--subscribe" in arguments:
        assert at_once(hub.authorize("subscribe", headers, origin=ORIGIN)).subscribe
    else:
        with pytest.raises(InvalidToken):
            at_once(hub.authorize("subscribe", headers, origin=ORIGIN))

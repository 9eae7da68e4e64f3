"""What the tests of tokens share: settings of a hub, valid tokens and invalid ones."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jws
from joserfc.errors import SecurityWarning

from hub import Settings
from hub.auth.authorizer import Authorizer
from hub.auth.grant import DETAIL_TYPE
from hub.auth.keys import REGISTRY, import_key
from hub.development import DEVELOPMENT_KEY
from hub.errors import InvalidToken
from hub.node.matchers import MatcherCompiler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from pathlib import Path

    from hub.auth.grant import Action, CompiledGrant
    from hub.protocol.topics import TopicMatcher

T = TypeVar("T")

NOW: Final = 1_000_000.0
ORIGIN: Final = "https://hub.example"
RESOURCE: Final = f"{ORIGIN}/.well-known/mercure"
ISSUER: Final = "https://issuer.example"
ISSUER_KEY: Final = "the issuer's key, which is another one"
PUBLISHER_KEY: Final = DEVELOPMENT_KEY
SUBSCRIBER_KEY: Final = "the key of the subscribers, another one again"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def settings(**values: Any) -> Settings:
    """Return the settings of a hub that trusts one issuer and classic tokens."""
    return Settings(
        **{
            "publisher_key": PUBLISHER_KEY,
            "subscriber_key": SUBSCRIBER_KEY,
            "issuers": ({"id": ISSUER, "keys": {"key": ISSUER_KEY}},),
            "public_urls": (ORIGIN,),
            **values,
        }
    )


def authorizer(
    clock: Callable[[], float] = lambda: NOW, monotonic: Callable[[], float] = lambda: 0.0, **values: Any
) -> Authorizer:
    chosen = settings(**values)
    return Authorizer(chosen, MatcherCompiler(chosen.url), clock=clock, monotonic=monotonic)


def sign(
    claims: Any = None,
    *,
    key: str = PUBLISHER_KEY,
    algorithm: str = "HS256",
    header: dict[str, Any] | None = None,
    text: bytes | None = None,
) -> str:
    """Return a token with these claims, or with `text` instead of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        signer, _ = import_key("test", key, algorithm)
        payload = json.dumps(claims).encode() if text is None else text
        return jws.serialize_compact({"alg": algorithm, **(header or {})}, payload, signer, registry=REGISTRY)


def classic(publish: Any = (), subscribe: Any = (), *, key: str = PUBLISHER_KEY, **claims: Any) -> str:
    """Return a classic token."""
    return sign({"mercure": {"publish": publish, "subscribe": subscribe}, **claims}, key=key)


def current(
    *details: Any,
    key: str = ISSUER_KEY,
    algorithm: str = "HS256",
    typ: str = "at+jwt",
    header: dict[str, Any] | None = None,
    **claims: Any,
) -> str:
    """Return a current token that is valid for a minute, without claims of None."""
    full = {"iss": ISSUER, "aud": RESOURCE, "exp": NOW + 60, "authorization_details": list(details), **claims}
    given = {name: value for name, value in full.items() if value is not None}
    return sign(given, key=key, algorithm=algorithm, header={"typ": typ, **(header or {})})


def detail(*topics: Any, actions: Any = ("publish", "subscribe"), **more: Any) -> dict[str, Any]:
    return {"type": DETAIL_TYPE, "actions": actions, "topics": topics, **more}


def patterns(matchers: Iterable[TopicMatcher]) -> list[tuple[str, str]]:
    return [(matcher.type, matcher.pattern) for matcher in matchers]


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return or raise what `coroutine` does.

    It may yield to other tasks, but must not wait for anything.
    """
    try:
        while coroutine.send(None) is None:
            pass
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits")


HUB: Final = authorizer()
"""The authorizer of a hub with the settings above; it caches tokens."""


def verified(token: str, hub: Authorizer = HUB, action: Action = "publish", resource: str = RESOURCE) -> CompiledGrant:
    """Return what a valid `token` grants; an explanation finds no fault in it."""
    grant = at_once(hub.verify(action, token, resource=resource))
    assert at_once(hub.explain(token, resource=resource)).faults[action] == []
    return grant


def refused(token: str, hub: Authorizer = HUB, action: Action = "publish", resource: str = RESOURCE) -> str:
    """Return the logged reason why `token` is invalid.

    The response to the client is always the same (N91).
    """
    with pytest.raises(InvalidToken, match=r"^the token is not valid here; the hub's log says why$") as caught:
        verified(token, hub, action, resource)
    assert (caught.value.status, caught.value.challenge) == (401, "invalid_token")
    assert token not in caught.value.reason
    assert faults(token, hub, action, resource)[0] == caught.value.reason
    return caught.value.reason


def faults(token: str, hub: Authorizer = HUB, action: Action = "publish", resource: str = RESOURCE) -> list[str]:
    """Return each reason of an explanation why `token` is invalid."""
    try:
        return at_once(hub.explain(token, resource=resource)).faults[action]
    except InvalidToken as error:  # it cannot be read
        return [error.reason]


def certified(directory: Path) -> tuple[str, str]:
    """Write a self-signed certificate for 127.0.0.1 and its key; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "certificate").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(directory / "certificate"), str(directory / "key")

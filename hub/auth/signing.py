"""Signs tokens of both kinds, for the command line and for development.

A hub itself only verifies tokens, in `authorizer`.  Its operator signs them with a key
that the settings of the hub trust.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from joserfc import jws
from joserfc.errors import JoseError

from hub.auth.grant import DETAIL_TYPE
from hub.auth.keys import REGISTRY, import_key
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY, DEVELOPMENT_TOKEN
from hub.errors import ConfigurationError
from hub.protocol.topics import WILDCARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hub.settings import Settings

_DAY: Final = 86_400.0  # seconds


def sign_token(
    key: str,
    algorithm: str | None,
    *,
    issuer: str,
    resource: str,
    publish: Iterable[tuple[str, str]],
    subscribe: Iterable[tuple[str, str]],
    payload: Mapping[str, Any] | None = None,
    subject: str | None = None,
    client_id: str | None = None,
    seconds: float,
    now: float,
    kid: str | None = None,
) -> str:
    """Return a signed current token that is valid for `seconds` (N64–N79).

    `key` is a secret, or a private key in PEM.  `publish` and `subscribe` are matchers,
    each with a type and a pattern.  `payload` is the payload of the subscriptions that
    match `subscribe` (N126).  `now` is in seconds since the epoch.

    Raises ConfigurationError if the key cannot sign, or if a hub would refuse the
    payload.
    """
    details = [_detail("publish", publish), _detail("subscribe", subscribe, payload)]
    if payload is not None and not (isinstance(payload, dict) and details[1]["topics"]):
        raise ConfigurationError("a payload must be an object, and needs at least one matcher to subscribe to")
    claims = {
        "iss": issuer,
        "aud": resource,
        "iat": int(now),
        "exp": int(now + seconds),
        "jti": str(uuid.uuid4()),
        "sub": subject,
        "client_id": client_id,
        "authorization_details": [detail for detail in details if detail["topics"]],
    }
    return _sign(key, algorithm, {"typ": "at+jwt", "kid": kid}, claims)


def _detail(action: str, matchers: Iterable[tuple[str, str]], payload: Any = None) -> dict[str, Any]:
    topics = [{"match": pattern, "match_type": type} for type, pattern in matchers]
    return {"type": DETAIL_TYPE, "actions": [action], "topics": topics} | _present(payload=payload)


def sign_classic_token(
    key: str,
    algorithm: str | None = None,
    *,
    publish: Iterable[str] = (),
    subscribe: Iterable[str] = (),
    payload: Any = None,
    subject: str | None = None,
    seconds: float | None,
    now: float | None = None,
) -> str:
    """Return a signed classic token that is valid for `seconds` (V30).

    If `seconds` is None, the token never expires.  `publish` and `subscribe` are topic
    selectors.  `subject` names the user, so that the hub can end the user's streams.
    `now` is in seconds since the epoch; without it, it is the present time.

    Raises ConfigurationError if the key cannot sign.
    """
    claim = {"publish": list(publish), "subscribe": list(subscribe)} | _present(payload=payload)
    begins = time.time() if now is None else now
    claims = {
        "mercure": claim,
        "sub": subject,
        "iat": int(begins),
        "exp": None if seconds is None else int(begins + seconds),
    }
    return _sign(key, algorithm, {"typ": "JWT"}, claims)


def development_token(settings: Settings, origin: str, *, clock: Callable[[], float] = time.time) -> str:
    """Return a token that allows everything at a hub with the well-known keys.

    Returns "" for a hub with other keys, because a hub must never sign with the keys of
    its operator.  If the classic dialect is on, it is a classic token that never
    expires.  Otherwise it is a current token for the hub at `origin` that is valid for
    a day.
    """
    if not settings.has_well_known_keys:
        return ""
    if settings.classic:
        return DEVELOPMENT_TOKEN
    everything = [("exact", WILDCARD)]
    return sign_token(
        DEVELOPMENT_KEY,
        None,
        issuer=DEVELOPMENT_ISSUER,
        resource=settings.resource_at(origin),
        publish=everything,
        subscribe=everything,
        seconds=_DAY,
        now=clock(),
    )


def token_command(settings: Settings, origin: str) -> str:
    """Return the command with which the operator of a hub signs a token to publish.

    The token may also subscribe, if the same keys are for both.  FILE in the command
    stands for the file of the secret or private key; the key itself is not in it.
    `origin` is the scheme and authority of the hub.  Returns "" if no token can
    publish.
    """
    if keys := settings.classic_keys("publisher"):
        kind, others = ["--classic"], settings.classic_keys("subscriber")
    elif issuer := next((one for one in settings.issuers if one.publisher or one.keys), None):
        keys, others = issuer.publisher or issuer.keys, issuer.subscriber or issuer.keys
        kind = ["--issuer", issuer.id, "--audience", settings.resource_at(origin)]
    if keys is None:
        return ""
    # A key set may allow several algorithms, and only the operator knows the right one.
    several = "ALGORITHM" if len(keys.algorithms) > 1 else keys.algorithms[0]
    algorithm = several if keys.key is None else keys.algorithm or "HS256"
    chosen = [] if algorithm == "HS256" else ["--algorithm", algorithm]
    both = ["--publish", "*", "--subscribe", "*"] if others == keys else ["--publish", "*"]
    return shlex.join(["skipfilter", "token", "--key", "@FILE", *kind, *chosen, *both])


def _sign(text: str, algorithm: str | None, header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    key, algorithm = import_key("the signing key", text, algorithm)
    payload = json.dumps(_present(**claims), separators=(",", ":"))
    try:
        return jws.serialize_compact(_present(alg=algorithm, **header), payload, key, registry=REGISTRY)
    except JoseError as error:
        raise ConfigurationError(f"the signing key cannot sign: {error}") from None


def _present(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}

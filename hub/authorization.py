"""Token -> Grant; and what a grant allows.

Two kinds of token, told apart by the `typ` in their header (V81):

    at+jwt      current: iss, aud and exp are checked, authorization_details grant    N64–N79
    any other   classic: signed with the publisher's or the subscriber's key,
                the `mercure` claim grants                                            V30–V33

A token's algorithm is never read from the token: each key has one (N65).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from joserfc import jwk, jws, jwt
from joserfc.errors import JoseError, SecurityWarning

from hub.errors import (
    ConfigurationError,
    InsufficientScope,
    InvalidPresentation,
    InvalidRequest,
    InvalidToken,
    TokenRequired,
)
from hub.protocol import check_pattern_length, header_values, parse_cookies
from hub.topics import CLASSIC, MATCHER_TYPES, TopicMatcher, check_text, compile_topic_matcher
from skipfilter.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hub.protocol import Headers
    from hub.settings import Settings
    from hub.updates import Update

Action: TypeAlias = Literal["publish", "subscribe"]

DETAIL_TYPE: Final = "https://mercure.rocks/authorization-detail"
CLASSIC_COOKIE: Final = "mercureAuthorization"
_CLASSIC_CLAIMS: Final = ("https://mercure.rocks/", "mercure")  # the first one present counts (V30)
_CLASSIC_SELECTORS: Final = 1_000  # V33
_LONGEST_TOKEN: Final = 16_384  # bytes; an HTTP server rarely lets more through
_KEY_TYPES: Final[dict[str, type[Any]]] = {
    "HS": jwk.OctKey,
    "RS": jwk.RSAKey,
    "PS": jwk.RSAKey,
    "ES": jwk.ECKey,
    "Ed": jwk.OKPKey,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows: topics to publish to, topics to read private updates of, and until when."""

    publish: tuple[TopicMatcher, ...] = ()
    subscribe: tuple[TopicMatcher, ...] = ()
    expires: float | None = None
    """Seconds since the epoch; None for a token without an end."""

    def require_publish(self, update: Update) -> None:
        """Raise InsufficientScope unless every topic of `update` may be published to (N80)."""
        for topic in update.topics:
            if not any(matcher.match(topic) for matcher in self.publish):
                raise InsufficientScope(f"the token does not allow publishing to {shown(topic)}")


ANONYMOUS: Final = Grant()


# -- how a token is presented


@dataclass(frozen=True, slots=True)
class Presented:
    """A token, and whether a cookie brought it, which a page of another origin could have made a browser send."""

    token: str
    by_cookie: bool

    def __repr__(self) -> str:
        return f"Presented(by_cookie={self.by_cookie})"  # a token is a secret


def find_token(headers: Headers, cookie: str) -> Presented | None:
    """The token in the header, or else in a cookie (N58–N61, V86)."""
    given = header_values(headers, b"authorization")
    if len(given) > 1:
        raise InvalidPresentation(f"{len(given)} Authorization headers; there may be one")
    if given:
        scheme, _, token = given[0].strip().partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token or b" " in token or not token.isascii():
            raise InvalidPresentation('the Authorization header must be "Bearer", a space and a token')
        return Presented(token.decode("ascii"), by_cookie=False)
    cookies = dict(reversed(list(parse_cookies(headers))))  # the first of a name is the one nearest to this path
    for name in (cookie, CLASSIC_COOKIE):
        if value := cookies.get(name):
            return Presented(value, by_cookie=True)
    return None


def require_same_site(headers: Headers, allowed: Collection[str | None]) -> None:
    """Raise InvalidPresentation unless the page that publishes with a cookie is of an allowed origin (N63)."""
    origin = next(iter(header_values(headers, b"origin")), None)
    if origin is None:
        referer = next(iter(header_values(headers, b"referer")), b"").decode("latin-1")
        try:
            parts = urlsplit(referer)
        except ValueError:
            parts = urlsplit("")
        origin = f"{parts.scheme}://{parts.netloc}".encode("latin-1") if parts.netloc else None
    if origin is None:
        raise InvalidPresentation("publishing with a cookie needs an Origin or Referer header")
    text = origin.decode("latin-1")
    if text not in allowed:
        raise InvalidPresentation(f"the origin {shown(text)} may not publish with a cookie")


# -- what a token says


@dataclass(frozen=True, slots=True)
class _Key:
    key: Any
    algorithm: str

    def claims(self, token: str) -> Mapping[str, Any]:
        with warnings.catch_warnings():
            # A short secret was warned of when the hub started (V34).
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.decode(token, self.key, algorithms=[self.algorithm]).claims


def _load(name: str, secret: Any, algorithm: str) -> _Key | None:
    if secret is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            return _Key(_KEY_TYPES[algorithm[:2]].import_key(secret.get_secret_value()), algorithm)
    except (JoseError, ValueError, TypeError) as error:
        # Without the cause's text, which may repeat the key.
        raise ConfigurationError(f"{name} is no key for {algorithm} ({type(error).__name__})") from None


class Authorizer:
    """Tokens -> grants, by the keys of the settings.  Raises ConfigurationError where a key does not fit."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._classic: dict[Action, _Key | None] = {
            "publish": _load("publisher_key", settings.publisher_key, settings.publisher_algorithm),
            "subscribe": _load("subscriber_key", settings.subscriber_key, settings.subscriber_algorithm),
        }
        self._issuer = _load("issuer_key", settings.issuer_key, settings.issuer_algorithm)

    def authorize(self, action: Action, headers: Headers, *, own_origin: str) -> Grant:
        """The grant of a request's token; ANONYMOUS for one that may do without.

        Raises TokenRequired, InvalidPresentation or InvalidToken.  A token that is given and not valid is
        refused where none would have done (V5).
        """
        presented = find_token(headers, self._settings.cookie)
        if presented is None:
            if action == "subscribe" and self._settings.anonymous:
                return ANONYMOUS
            raise TokenRequired(f"a token is needed to {action}: in the Authorization header, or in a cookie")
        if presented.by_cookie and action == "publish":
            settings = self._settings
            require_same_site(headers, {own_origin, settings.public_url, *settings.publish_origins})
        return self.verify(action, presented.token)

    def verify(self, action: Action, token: str) -> Grant:
        """The grant of `token` for a request that would do `action`.  Raises InvalidToken."""
        if len(token) > _LONGEST_TOKEN:
            raise InvalidToken(f"{len(token)} bytes are more than a token's {_LONGEST_TOKEN}")
        try:
            typ = jws.extract_compact(token.encode("ascii")).headers().get("typ")
            if isinstance(typ, str) and typ.lower() in ("at+jwt", "application/at+jwt"):
                return self._current_grant(token)
            return self._classic_grant(action, token)
        except (
            JoseError,
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
            InvalidRequest,
            RecursionError,
        ) as error:
            raise InvalidToken(f"{type(error).__name__}: {error}") from error

    def _current_grant(self, token: str) -> Grant:
        if self._issuer is None:
            raise ValueError("no issuer is trusted")
        claims = self._issuer.claims(token)
        if claims.get("iss") != self._settings.issuer:
            raise ValueError(f"iss {claims.get('iss')!r} is not trusted")
        audience = claims.get("aud")
        if self._settings.resource not in (audience if isinstance(audience, list) else [audience]):
            raise ValueError(f"aud {audience!r} lacks {self._settings.resource!r}")
        expires = self._check_times(claims)
        if expires is None:
            raise ValueError("exp is missing")
        details = claims.get("authorization_details", [])
        if not isinstance(details, list):
            raise ValueError("authorization_details is no array")
        ours = [detail for detail in details if isinstance(detail, dict) and detail.get("type") == DETAIL_TYPE]
        grants = self._bounded([self._parse_detail(detail) for detail in self._bounded(ours)])
        return Grant(
            publish=tuple(m for actions, matchers in grants if "publish" in actions for m in matchers),
            subscribe=tuple(m for actions, matchers in grants if "subscribe" in actions for m in matchers),
            expires=expires,
        )

    def _parse_detail(self, detail: Mapping[str, Any]) -> tuple[list[str], list[TopicMatcher]]:
        """N73–N76: one wrong part makes the whole token invalid."""
        actions, topics = detail.get("actions"), detail.get("topics")
        if not isinstance(actions, list) or not actions or not all(isinstance(action, str) for action in actions):
            raise ValueError(f"actions {actions!r} is no array of strings")
        if not isinstance(topics, list) or not topics:
            raise ValueError(f"topics {topics!r} is no array of objects")
        return actions, [self._parse_detail_topic(topic) for topic in self._bounded(topics)]

    def _parse_detail_topic(self, topic: Any) -> TopicMatcher:
        if not isinstance(topic, dict):
            raise ValueError(f"{topic!r} among the topics is no object")
        type = topic.get("match_type", "exact")
        if type not in MATCHER_TYPES:  # V71: the classic type has no name on the wire
            raise ValueError(f"match_type {type!r} is none of {', '.join(MATCHER_TYPES)}")
        return self._matcher(type, topic.get("match"))

    def _bounded(self, entries: list[Any]) -> list[Any]:
        if len(entries) > self._settings.max_matchers:
            raise ValueError(f"{len(entries)} entries are more than {self._settings.max_matchers} (N77)")
        return entries

    def _classic_grant(self, action: Action, token: str) -> Grant:
        key = self._classic[action]
        if key is None:
            raise ValueError(f"no key for classic tokens that {action}")
        claims = key.claims(token)
        expires = self._check_times(claims)
        details = claims.get("authorization_details")
        if isinstance(details, list) and any(isinstance(d, dict) and d.get("type") == DETAIL_TYPE for d in details):
            raise ValueError("authorization_details go with the typ at+jwt (V81)")
        claim = next((claims[name] for name in _CLASSIC_CLAIMS if name in claims), None)
        if claim is None:
            return Grant(expires=expires)
        if not isinstance(claim, dict):
            raise ValueError("the mercure claim is no object")
        return Grant(
            publish=self._parse_selectors(claim.get("publish")),
            subscribe=self._parse_selectors(claim.get("subscribe")),
            expires=expires,
        )

    def _parse_selectors(self, selectors: Any) -> tuple[TopicMatcher, ...]:
        if selectors is None:
            return ()
        if not isinstance(selectors, list) or len(selectors) > _CLASSIC_SELECTORS:
            raise ValueError(f"the mercure claim has no array of up to {_CLASSIC_SELECTORS} topic selectors")
        return tuple(self._matcher(CLASSIC, selector) for selector in selectors)

    def _matcher(self, type: str, pattern: Any) -> TopicMatcher:
        if not isinstance(pattern, str):
            raise ValueError(f"{pattern!r} is no pattern")
        check_text("pattern", pattern)
        check_pattern_length(pattern, self._settings)
        return compile_topic_matcher(type, pattern)

    def _check_times(self, claims: Mapping[str, Any]) -> float | None:
        """Seconds since the epoch at which the token ends.  Fractions are allowed (V31)."""
        now = self._clock()
        expires, not_before = _numeric_date(claims, "exp"), _numeric_date(claims, "nbf")
        if expires is not None and expires <= now:
            raise ValueError(f"expired {now - expires:.0f} s ago")
        if not_before is not None and not_before > now:
            raise ValueError(f"not valid for another {not_before - now:.0f} s")
        return expires


def _numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} {value!r} is no number of seconds")
    return float(value)

"""Token -> Grant.

    headers, query  ──find_token──▶  token  ──keys, claims──▶  Grant  ──▶  require_publish, require_read, payload_for

There are two kinds of token, told apart by the `typ` in their header (V81):

    at+jwt      current: an issuer that is trusted signed it, for this hub, for a time; its
                authorization_details grant                                                       N64–N79
    any other   classic: signed with the publishers' or the subscribers' key, whichever the
                request is about; its `mercure` claim grants, whatever its details say            V30–V33

A token of one kind is never taken for one of the other, so that no at+jwt is checked less than it must be.  An
algorithm is never read from a token alone: it is one that its key is for (N65).  One error answers for every cause,
and tells the cause to the log only (N91).

A token that was verified is remembered, by a digest of it, until it expires or the keys that verified it change: so a
client that publishes often, or comes back, costs one hash.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from cachetools import LRUCache
from joserfc import jws
from joserfc.errors import JoseError

from hub.auth.grant import ANONYMOUS, DETAIL_TYPE, Grant
from hub.auth.keys import REGISTRY, open_keys
from hub.auth.presented import find_token, require_same_site
from hub.errors import InvalidRequest, InvalidToken, TokenRequired
from hub.protocol.requests import check_pattern_length
from hub.protocol.topics import CLASSIC, MATCHER_TYPES, WILDCARD, TopicMatcher, check_text
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hub.auth.grant import Action
    from hub.auth.keys import KeySource, TrustedKeys
    from hub.issuers import Keys
    from hub.protocol.requests import Headers
    from hub.protocol.topics import MatcherCompiler
    from hub.settings import Settings
    from skipfilter import Selector

_ROLES: Final[dict[Action, Literal["publisher", "subscriber"]]] = {"publish": "publisher", "subscribe": "subscriber"}
_CURRENT_TYPES: Final = ("at+jwt", "application/at+jwt")  # N64
_CLASSIC_CLAIMS: Final = ("https://mercure.rocks/", "mercure")  # the first one present counts (V30)
_CLASSIC_ENTRIES: Final = 1_000  # V33


class _Verified(NamedTuple):
    grant: Grant
    keys: TrustedKeys
    source: KeySource
    cost: int

    def is_good(self, now: float) -> bool:
        return (self.grant.expires is None or now < self.grant.expires) and self.source.is_current(self.keys)


class Authorizer:
    """Tokens -> grants, by the settings.  Raises ConfigurationError where a key does not fit.

    `clock` tells seconds since the epoch, and `monotonic` how old a key set is.  All its mutable state is `_verified`,
    the tokens that need not be verified again: by what the request would do, the resource, and the token's digest; as
    many as cost `cached_tokens`.
    """

    def __init__(
        self,
        settings: Settings,
        compiler: MatcherCompiler,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._compiler = compiler
        self._clock = clock
        self._monotonic = monotonic
        self._classic = self._open_classic()
        self._issuers = self._open_issuers()
        self._verified: LRUCache[tuple[Action, str, bytes], _Verified] = LRUCache(
            settings.cached_tokens, getsizeof=lambda verified: verified.cost
        )

    def _open_classic(self) -> dict[Action, KeySource]:
        opened: dict[Action, KeySource] = {}
        for action, role in _ROLES.items():
            if keys := self._settings.classic_keys(role):
                opened[action] = self._open(f"{role}_jwks_url" if keys.key is None else f"{role}_key", keys)
        return opened

    def _open_issuers(self) -> dict[str, dict[Action, KeySource]]:
        opened: dict[str, dict[Action, KeySource]] = {}
        for issuer in self._settings.issuers:
            name = f"issuer {issuer.id!r}"
            roles = opened[issuer.id] = {}
            if issuer.keys:
                roles["publish"] = roles["subscribe"] = self._open(name, issuer.keys)
            if issuer.publisher:
                roles["publish"] = self._open(f"{name} (publisher)", issuer.publisher)
            if issuer.subscriber:
                roles["subscribe"] = self._open(f"{name} (subscriber)", issuer.subscriber)
        return opened

    def _open(self, name: str, keys: Keys) -> KeySource:
        return open_keys(name, keys, ttl=self._settings.jwks_ttl, clock=self._monotonic, dev=self._settings.dev)

    def forget(self) -> None:
        """Let go of all tokens that were verified, with their matchers: they are verified again when they come."""
        self._verified.clear()

    async def aclose(self) -> None:
        for roles in (self._classic, *self._issuers.values()):
            for source in roles.values():
                await source.aclose()

    async def authorize(
        self,
        action: Action,
        headers: Headers,
        query_tokens: Sequence[str] = (),
        *,
        origin: str,
        required: bool = False,
    ) -> Grant:
        """The grant of a request's token; ANONYMOUS for one that may do without, unless a token is `required`.

        `origin` is the scheme and authority that the request is to.  Raises TokenRequired, InvalidPresentation,
        InvalidToken, or KeysUnavailable.  A token that is given and not valid is refused where none would have
        done (V5).
        """
        settings = self._settings
        presented = find_token(headers, query_tokens, settings)
        if presented is None:
            if action == "subscribe" and settings.anonymous and not required:
                return ANONYMOUS
            raise TokenRequired(f"a token is needed to {action}: in the Authorization header, or in a cookie")
        if presented.by == "cookie" and action == "publish":
            require_same_site(headers, (origin, *settings.public_urls), settings.publish_origins)
        grant = await self.verify(action, presented.token, resource=settings.resource_at(origin))
        if presented.by == "query" and not grant.classic:
            raise InvalidToken("a current token came in the query, where logs and caches see it (N60, V86)")
        return grant

    async def verify(self, action: Action, token: str, *, resource: str) -> Grant:
        """The grant of `token` for a request that would do `action`, to the hub that `resource` identifies.

        Raises InvalidToken, or KeysUnavailable.
        """
        if len(token) > self._settings.max_token:
            raise InvalidToken(f"{len(token)} characters are more than a token's {self._settings.max_token}")
        if not token.isascii():
            raise InvalidToken("it has characters that no token has")
        slot = (action, resource, hashlib.sha256(token.encode("ascii")).digest())
        verified = self._verified.get(slot)
        if verified is None or not verified.is_good(self._clock()):
            try:
                verified = await self._verify(action, token, resource)
            except (JoseError, ValueError, TypeError, ArithmeticError, InvalidRequest, RecursionError) as error:
                raise InvalidToken(str(error) or type(error).__name__) from error
            if verified.cost <= self._verified.maxsize:
                self._verified[slot] = verified
        return verified.grant

    async def _verify(self, action: Action, token: str, resource: str) -> _Verified:
        signed = jws.extract_compact(token.encode("ascii"), registry=REGISTRY)
        header = _checked_header(signed)
        claims = json.loads(signed.payload)
        if not isinstance(claims, dict):
            raise InvalidToken("its claims are no object")
        current = header.get("typ", "").lower() in _CURRENT_TYPES
        source = self._source_for_issuer(action, claims) if current else self._classic.get(action)
        if source is None:
            raise InvalidToken(f"typ {shown(header.get('typ', ''))} is of a classic token, and none may {action} here")
        keys = await source.current(header.get("kid"))
        keys.check(signed)
        # NaN, infinity and half a surrogate pair are no date, and could not be sent on in a payload (N124).
        json.dumps(claims, ensure_ascii=False, allow_nan=False).encode("utf-8")
        grant = await (self._current_grant(claims, resource) if current else self._classic_grant(claims))
        return _Verified(grant, keys, source, _cost(grant, token))

    def _source_for_issuer(self, action: Action, claims: Mapping[str, Any]) -> KeySource:
        """The keys of the issuer that the token names, and of no other (N67)."""
        if not self._issuers:
            raise InvalidToken("typ at+jwt is of a current token, and no issuer is trusted here (V81)")
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise InvalidToken(f"iss {_shown(issuer)} is not trusted")
        source = self._issuers[issuer].get(action)
        if source is None:
            raise InvalidToken(f"issuer {issuer!r} has no keys for tokens that {action}")
        return source

    # current

    async def _current_grant(self, claims: Mapping[str, Any], resource: str) -> Grant:
        audience = claims.get("aud")
        if resource not in (audience if isinstance(audience, list) else [audience]):
            raise InvalidToken(f"aud {_shown(audience)} lacks {resource!r}")
        expires = self._check_times(claims)
        if expires is None:
            raise InvalidToken("exp is missing")
        details = claims.get("authorization_details", [])
        if not isinstance(details, list):
            raise InvalidToken("authorization_details is no array")
        ours = [detail for detail in details if _is_mercure_detail(detail)]
        self._check_count(len(ours), "details")
        parsed = [self._parse_detail(detail) for detail in ours]
        self._check_count(sum(len(detail.selectors) for detail in parsed), "topics")
        compiled = await self._compiler.compile_all([selector for detail in parsed for selector in detail.selectors])
        granted = [(detail, tuple(compiled[selector] for selector in detail.selectors)) for detail in parsed]
        publish = tuple(matcher for detail, its in granted if "publish" in detail.actions for matcher in its)
        subject = f"{claims['iss']} {claims['sub']}" if _has_subject(claims) else None
        return Grant(
            publish=publish,
            subscribe=tuple(matcher for detail, its in granted if "subscribe" in detail.actions for matcher in its),
            expires=expires,
            subject=subject,
            publisher=subject or _digest(claims["iss"], publish),
            payloads=tuple((its, detail.payload) for detail, its in granted if "subscribe" in detail.actions),
        )

    def _parse_detail(self, detail: Mapping[str, Any]) -> _Detail:
        """N73–N76: one wrong part makes the whole token invalid."""
        actions, topics, payload = detail.get("actions"), detail.get("topics"), detail.get("payload")
        if not isinstance(actions, list) or not actions or not all(isinstance(action, str) for action in actions):
            raise InvalidToken(f"actions {_shown(actions)} is no array of strings")
        if not isinstance(topics, list) or not topics:
            raise InvalidToken(f"topics {_shown(topics)} is no array of objects")
        if not isinstance(payload, dict | None):
            raise InvalidToken("a payload is no object")
        return _Detail(actions, tuple(self._parse_match(topic) for topic in topics), payload)

    def _parse_match(self, topic: Any) -> Selector:
        """N74: an object with `match`, and a `match_type` that has a name on the wire (V71)."""
        if not isinstance(topic, dict):
            raise InvalidToken(f"{_shown(topic)} among the topics is no object")
        type, pattern = topic.get("match_type", "exact"), topic.get("match")
        if type not in MATCHER_TYPES:
            raise InvalidToken(f"match_type {_shown(type)} is none of {', '.join(MATCHER_TYPES)}")
        if not pattern:
            raise InvalidToken("match is empty or missing")
        return self._checked(type, pattern)

    def _check_count(self, count: int, what: str) -> None:
        if count > self._settings.max_matchers:
            raise InvalidToken(f"{count} {what} are more than the {self._settings.max_matchers} of a token (N77)")

    # classic

    async def _classic_grant(self, claims: Mapping[str, Any]) -> Grant:
        """The grant of the mercure claim.  Details beside it are for other hubs, and do not count.

        Details without the claim are a mistake in the typ, which the log should tell: such a token grants nothing.
        """
        expires = self._check_times(claims)
        claim = next((claims[name] for name in _CLASSIC_CLAIMS if name in claims), None)
        if not isinstance(claim, dict | None):
            raise InvalidToken(f"the mercure claim {_shown(claim)} is no object")
        if claim is None:
            details = claims.get("authorization_details")
            if isinstance(details, list) and any(map(_is_mercure_detail, details)):
                raise InvalidToken("authorization_details without a mercure claim go with the typ at+jwt (V81)")
            claim = {}
        published, subscribed = self._parse_entries("publish", claim), self._parse_entries("subscribe", claim)
        compiled = await self._compiler.compile_all([selector for selector, _ in published + subscribed])
        payloads = [((compiled[selector],), payload) for selector, payload in subscribed if payload is not None]
        if (payload := claim.get("payload")) is not None:
            payloads.append(((self._compiler.compile("exact", WILDCARD),), payload))
        publish = tuple(compiled[selector] for selector, _ in published)
        subject = f" {claims['sub']}" if _has_subject(claims) else None
        return Grant(
            publish=publish,
            subscribe=tuple(compiled[selector] for selector, _ in subscribed),
            expires=expires,
            classic=True,
            subject=subject,
            publisher=subject or _digest("", publish),
            payloads=tuple(payloads),
        )

    def _parse_entries(self, action: Action, claim: Mapping[str, Any]) -> list[tuple[Selector, Any]]:
        """The selectors of one array, each with a payload of its own, or None."""
        entries = claim.get(action)
        if entries is None:
            return []
        if not isinstance(entries, list) or len(entries) > _CLASSIC_ENTRIES:
            raise InvalidToken(f"mercure.{action} is no array of up to {_CLASSIC_ENTRIES} entries")
        return [
            (self._checked(CLASSIC, entry), None)
            if isinstance(entry, str)
            else (self._parse_match(entry), entry.get("payload"))
            for entry in entries
        ]

    # both

    def _checked(self, type: str, pattern: Any) -> Selector:
        if not isinstance(pattern, str):
            raise InvalidToken(f"{_shown(pattern)} is no pattern")
        check_text("pattern", pattern)
        if type != CLASSIC:
            check_pattern_length(pattern, self._settings)
        return type, pattern

    def _check_times(self, claims: Mapping[str, Any]) -> float | None:
        """Seconds since the epoch at which the token ends.  Fractions are allowed (N68, V31)."""
        now = self._clock()
        expires, not_before = _numeric_date(claims, "exp"), _numeric_date(claims, "nbf")
        if expires is not None and expires <= now:
            raise InvalidToken(f"exp {expires:.0f}: expired {now - expires:.0f} s ago")
        if not_before is not None and not_before > now:
            raise InvalidToken(f"nbf {not_before:.0f}: not valid for another {not_before - now:.0f} s")
        return expires


class _Detail(NamedTuple):
    actions: list[str]
    selectors: tuple[Selector, ...]
    payload: Any


def _checked_header(signed: jws.CompactSignature) -> Mapping[str, Any]:
    header: Any = signed.headers()
    if not isinstance(header, dict):
        raise InvalidToken("its header is no object")
    if "crit" in header:
        # There is no extension that we know; what joserfc does is unencoded payloads (RFC 7797).
        raise InvalidToken(f"crit {_shown(header['crit'])} is not understood")
    REGISTRY.check_header(header)
    return header


def _is_mercure_detail(detail: Any) -> bool:
    return isinstance(detail, dict) and detail.get("type") == DETAIL_TYPE


def _has_subject(claims: Mapping[str, Any]) -> bool:
    return isinstance(claims.get("sub"), str) and bool(claims["sub"])


def _digest(issuer: str, publish: Iterable[TopicMatcher]) -> str:
    """Names a token without a subject by its issuer and its publish grant, in whatever order; no subject is like it."""
    patterns = sorted({(matcher.type, matcher.pattern) for matcher in publish})
    return hashlib.sha256(json.dumps([issuer, patterns]).encode("utf-8")).hexdigest()


def _cost(grant: Grant, token: str) -> int:
    """About a unit for each KB that the grant holds.

    A token's text bounds its payloads; a matcher takes 500 bytes, with a template 800, and a URL Pattern some 100 KB.
    """
    matchers = {*grant.publish, *grant.subscribe}
    url_patterns = sum(matcher.type == "urlpattern" for matcher in matchers)
    return 1 + len(token) // 1_000 + 3 * len(matchers) // 4 + 100 * url_patterns


def _numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"{name} {_shown(value)} is no number of seconds")
    return float(value)


def _shown(value: Any) -> str:
    """`value` as the log shows it, whatever it is."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"

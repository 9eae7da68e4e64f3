"""Verifies tokens, and turns their claims into grants.

    headers, query ─find_token─▶ token ─keys, claims─▶ Grant ─▶ require_publish, …

The `typ` in the header of a token decides its kind (V81):

    at+jwt       current (N64–N79): a trusted issuer signed it for this hub, and it
                 expires; the claim `authorization_details` says what it allows
    any other    classic (V30–V33): signed with the key for publishers or the key for
                 subscribers, as the request needs; the `mercure` claim says what it
                 allows, and any authorization details do not count

A token of one kind is never treated as one of the other kind, so no at+jwt escapes a
check.  The token does not choose its algorithm: the algorithm must be one that is
configured for the key (N65).  A client gets the same error for every cause, and only
the log has the cause (N91).

The hub caches verified tokens by their digest until they expire or the keys change.  So
a client that publishes often, or reconnects, costs one hash.
"""

from __future__ import annotations

import hashlib
import json
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import structlog
from cachetools import LRUCache
from joserfc import jws
from joserfc.errors import JoseError

from hub.auth.grant import ANONYMOUS, DETAIL_TYPE, Grant
from hub.auth.keys import REGISTRY, open_keys
from hub.auth.presented import find_token, require_same_site
from hub.errors import InvalidRequest, InvalidToken, KeysUnavailable, TokenRequired
from hub.protocol.requests import check_pattern_length
from hub.protocol.topics import CLASSIC, MATCHER_TYPES, WILDCARD, TopicMatcher, check_text
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hub.auth.grant import Action
    from hub.auth.keys import KeySource, TrustedKeys
    from hub.protocol.requests import Headers
    from hub.settings import Settings
    from hub.settings.issuers import Keys
    from skipfilter import Selector

log = structlog.stdlib.get_logger("hub")

_ROLES: Final[dict[Action, Literal["publisher", "subscriber"]]] = {"publish": "publisher", "subscribe": "subscriber"}
_CURRENT_TYPES: Final = ("at+jwt", "application/at+jwt")  # N64
_CLASSIC_CLAIMS: Final = ("https://mercure.rocks/", "mercure")  # the first one that is present counts (V30)
_MAX_CLASSIC_ENTRIES: Final = 1_000  # V33


class Compiler(Protocol):
    """The part of the hub that turns patterns into matchers."""

    def compile(self, type: str, pattern: str) -> TopicMatcher:
        """Return the matcher of a pattern."""
        ...

    async def compile_all(self, selectors: Sequence[Selector], refused: list[str]) -> dict[Selector, TopicMatcher]:
        """Return the matchers of patterns, without hogging the event loop.

        The messages of URL Patterns that are refused are added to `refused`.
        """
        ...


class _Verified(NamedTuple):
    """A verified token, as it is cached."""

    grant: Grant
    keys: TrustedKeys
    source: KeySource
    cost: int

    def is_good(self, now: float) -> bool:
        """Whether the token is not expired, and its keys are still current."""
        return (self.grant.expires is None or now < self.grant.expires) and self.source.is_current(self.keys)


class Authorizer:
    """A verifier of tokens, with the keys in the settings, and a cache of results.

    `clock` returns seconds since the epoch, for the times in tokens.  `monotonic`
    measures the age of key sets.

    Raises ConfigurationError if a key in the settings is not usable.
    """

    def __init__(
        self,
        settings: Settings,
        compiler: Compiler,
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
        # The cache, by action, resource and digest of the token.  The sum of the costs
        # is at most `cached_tokens`.
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
        """Empty the cache of verified tokens, which also frees their matchers.

        Each token is verified again when it is next used.
        """
        self._verified.clear()

    async def aclose(self) -> None:
        """Close all sources of keys."""
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
        """Return the grant of the token in a request.

        Returns `ANONYMOUS` if there is no token, the request subscribes, the settings
        allow anonymous subscribers, and a token is not `required`.  A token that is
        present must be valid, even if the request needs none (V5).  `origin` is the
        scheme and authority that the request is to.

        Raises TokenRequired, InvalidPresentation, InvalidToken or KeysUnavailable.
        """
        settings = self._settings
        presented = find_token(headers, query_tokens, settings)
        if presented is None:
            if action == "subscribe" and settings.anonymous and not required:
                return ANONYMOUS
            raise TokenRequired(f"a token is needed to {action}: send it in the Authorization header or in a cookie")
        if presented.by == "cookie" and action == "publish":
            require_same_site(headers, (origin, *settings.public_urls), settings.publish_origins)
        grant = await self.verify(action, presented.token, resource=settings.resource_at(origin))
        if presented.by == "query" and not grant.classic:
            raise InvalidToken("a current token must not be in the query, which logs and caches may keep (N60, V86)")
        return grant

    async def verify(self, action: Action, token: str, *, resource: str) -> Grant:
        """Return the grant of `token` for a request that does `action`.

        `resource` is the resource identifier of the hub, which a current token must
        name.  A token that is in the cache is not verified again.

        Raises InvalidToken if the token is not valid, or KeysUnavailable if its keys
        cannot be fetched.
        """
        self._check_text(token)
        # The same token may be used for both actions and for several resources.
        slot = (action, resource, hashlib.sha256(token.encode("ascii")).digest())
        verified = self._verified.get(slot)
        if verified is None or not verified.is_good(self._clock()):
            try:
                verified = await self._verify(action, token, resource)
            except _MALFORMED as error:
                raise InvalidToken(_reason(error)) from error
            # A larger one does not fit into the cache, and is verified each time.
            if verified.cost <= self._verified.maxsize:
                self._verified[slot] = verified
        return verified.grant

    def _check_text(self, token: str) -> None:
        if len(token) > self._settings.max_token:
            raise InvalidToken(f"the token has {len(token)} characters; the limit is {self._settings.max_token}")
        if not token.isascii():
            raise InvalidToken("the token has characters that are not ASCII")

    async def _verify(self, action: Action, token: str, resource: str) -> _Verified:
        unverified = _read(token)
        source, keys = await self._check_signature(action, unverified)
        claims = unverified.claims
        _check_values(claims)
        grant = await (self._current_grant(claims, resource) if unverified.is_current else self._classic_grant(claims))
        return _Verified(grant, keys, source, _cost(grant, token))

    async def _check_signature(self, action: Action, token: _Unverified) -> tuple[KeySource, TrustedKeys]:
        """Return the keys that signed a token, and their source.

        The issuer in the claims decides which keys to use.  Nothing else in them is
        trusted before the signature is verified.
        """
        source = self._source_for_issuer(action, token.claims) if token.is_current else self._classic.get(action)
        if source is None:
            type = shown(token.header.get("typ", ""))
            raise InvalidToken(f"typ {type} is of a classic token, and classic tokens cannot {action} here")
        keys = await source.current(token.header.get("kid"))
        keys.check(token.signed)
        return source, keys

    async def explain(self, token: str, *, resource: str) -> Explanation:
        """Return what a token says, and each reason for which `verify` would refuse it.

        Nothing in the result is verified, so a hub uses it for nothing: it is for the
        owner of the token.  Raises InvalidToken if the token cannot be read.
        """
        try:
            self._check_text(token)
            unverified = _read(token)
        except _MALFORMED as error:
            raise InvalidToken(_reason(error)) from None
        claims = unverified.claims
        checks: list[Callable[[], object]] = [lambda: _check_values(claims)]
        if unverified.is_current:
            checks += [
                lambda: _check_audience(claims, resource),
                lambda: self._check_expiry(claims),
                lambda: self._parse_details(claims),
            ]
        else:
            checks += [lambda: self._check_times(claims), lambda: self._parse_claim(claims)]
        common = [reason for check in checks if (reason := _failure(check))]
        allowed, ignored = self._allowed(unverified), list[str]()
        try:
            await self._compiler.compile_all(list(chain(*allowed.values())), ignored)
        except _MALFORMED as error:
            common.append(_reason(error))
        faults: dict[Action, list[str]] = {}
        for action in _ROLES:
            faults[action] = common
            try:
                await self._check_signature(action, unverified)
            except (*_MALFORMED, KeysUnavailable) as error:
                faults[action] = [_reason(error), *common]
        return Explanation(unverified.header, claims, unverified.is_current, allowed, ignored, faults)

    def _allowed(self, token: _Unverified) -> dict[Action, list[Selector]]:
        """Return the selectors that a token grants for each action, as far as it has a
        form that can be read.
        """
        try:
            if token.is_current:
                details = self._parse_details(token.claims)
                return {
                    action: [
                        selector for detail in details if action in detail.actions for selector in detail.selectors
                    ]
                    for action in _ROLES
                }
            entries = dict(zip(("publish", "subscribe"), self._parse_claim(token.claims), strict=True))
            return {action: [selector for selector, _ in entries[action]] for action in _ROLES}
        except _MALFORMED:
            return {action: [] for action in _ROLES}

    def _source_for_issuer(self, action: Action, claims: Mapping[str, Any]) -> KeySource:
        """Return the keys of the issuer that the token names, and of no other (N67)."""
        if not self._issuers:
            raise InvalidToken("typ at+jwt is of a current token, and the hub has no trusted issuers (V81)")
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise InvalidToken(f"iss {_shown(issuer)} is not trusted")
        source = self._issuers[issuer].get(action)
        if source is None:
            raise InvalidToken(f"issuer {issuer!r} has no keys for tokens that {action}")
        return source

    # -- current tokens

    async def _current_grant(self, claims: Mapping[str, Any], resource: str) -> Grant:
        # Everything is checked before the patterns are compiled, which is costly.
        _check_audience(claims, resource)
        expires = self._check_expiry(claims)
        parsed = self._parse_details(claims)
        # One grant for all details together.
        compiled = await self._compile([selector for detail in parsed for selector in detail.selectors])
        granted = [(detail, tuple(_among(detail.selectors, compiled))) for detail in parsed]
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

    def _check_expiry(self, claims: Mapping[str, Any]) -> float:
        """Return when a current token expires (N68)."""
        expires = self._check_times(claims)
        if expires is None:
            raise InvalidToken("exp is missing")
        return expires

    def _parse_details(self, claims: Mapping[str, Any]) -> list[_Detail]:
        """Return the Mercure details; details of other types are ignored (N72)."""
        details = claims.get("authorization_details", [])
        if not isinstance(details, list):
            raise InvalidToken("authorization_details is not an array")
        ours = [detail for detail in details if _is_mercure_detail(detail)]
        self._check_count(len(ours), "details")
        parsed = [self._parse_detail(detail) for detail in ours]
        self._check_count(sum(len(detail.selectors) for detail in parsed), "topics")
        return parsed

    def _parse_detail(self, detail: Mapping[str, Any]) -> _Detail:
        """Return the parts of a Mercure detail (N73–N75).

        Raises InvalidToken if a part is wrong, which makes the whole token invalid
        (N76).
        """
        actions, topics, payload = detail.get("actions"), detail.get("topics"), detail.get("payload")
        if not isinstance(actions, list) or not actions or not all(isinstance(action, str) for action in actions):
            raise InvalidToken(f"actions {_shown(actions)} is not an array of one or more strings")
        if not isinstance(topics, list) or not topics:
            raise InvalidToken(f"topics {_shown(topics)} is not an array of one or more objects")
        if not isinstance(payload, dict | None):
            raise InvalidToken("a payload is not an object")
        return _Detail(actions, tuple(self._parse_match(topic) for topic in topics), payload)

    def _parse_match(self, topic: Any) -> Selector:
        """Return the type and pattern of an object with `match` and `match_type` (N74).

        The type of classic selectors has no name there, so it is refused too (V71).
        """
        if not isinstance(topic, dict):
            raise InvalidToken(f"topic {_shown(topic)} is not an object")
        type, pattern = topic.get("match_type", "exact"), topic.get("match")
        if type not in MATCHER_TYPES:
            raise InvalidToken(f"match_type {_shown(type)} is none of {', '.join(MATCHER_TYPES)}")
        if not pattern:
            raise InvalidToken("match is empty or missing")
        return self._checked(type, pattern)

    def _check_count(self, count: int, what: str) -> None:
        if count > self._settings.max_matchers:
            raise InvalidToken(f"the token has {count} {what}; the limit is {self._settings.max_matchers} (N77)")

    # -- classic tokens

    async def _classic_grant(self, claims: Mapping[str, Any]) -> Grant:
        """Return what the `mercure` claim grants."""
        expires = self._check_times(claims)
        claim = _mercure_claim(claims)
        published, subscribed = self._parse_claim(claims)
        compiled = await self._compile([selector for selector, _ in published + subscribed])
        # The payload of an entry comes before the payload of the claim (V73).
        payloads = [
            ((compiled[selector],), payload)
            for selector, payload in subscribed
            if payload is not None and selector in compiled
        ]
        if (payload := claim.get("payload")) is not None:
            payloads.append(((self._compiler.compile("exact", WILDCARD),), payload))
        publish = tuple(_among((selector for selector, _ in published), compiled))
        subject = f" {claims['sub']}" if _has_subject(claims) else None
        return Grant(
            publish=publish,
            subscribe=tuple(_among((selector for selector, _ in subscribed), compiled)),
            expires=expires,
            classic=True,
            subject=subject,
            publisher=subject or _digest("", publish),
            payloads=tuple(payloads),
        )

    def _parse_claim(self, claims: Mapping[str, Any]) -> tuple[list[_Entry], list[_Entry]]:
        """Return the entries of the `mercure` claim: to publish, and to subscribe."""
        claim = _mercure_claim(claims)
        return self._parse_entries("publish", claim), self._parse_entries("subscribe", claim)

    def _parse_entries(self, action: Action, claim: Mapping[str, Any]) -> list[_Entry]:
        """Return the selectors in one array, each with its own payload or None."""
        entries = claim.get(action)
        if entries is None:
            return []
        if not isinstance(entries, list) or len(entries) > _MAX_CLASSIC_ENTRIES:
            raise InvalidToken(f"mercure.{action} is not an array of at most {_MAX_CLASSIC_ENTRIES} entries")
        return [
            (self._checked(CLASSIC, entry), None)
            if isinstance(entry, str)
            else (self._parse_match(entry), entry.get("payload"))
            for entry in entries
        ]

    # -- both kinds

    async def _compile(self, selectors: list[Selector]) -> dict[Selector, TopicMatcher]:
        """Return the matchers of a token's patterns, without the URL Patterns that are
        not accepted.

        Those grant nothing, and the rest of the token counts.  Raises the other errors
        of `MatcherCompiler.compile_all`.
        """
        refused: list[str] = []
        compiled = await self._compiler.compile_all(selectors, refused)
        if refused:
            log.warning("a token has URL Patterns that grant nothing", patterns=len(refused), first=refused[0])
        return compiled

    def _checked(self, type: str, pattern: Any) -> Selector:
        """Return the selector if its pattern is valid text, and not too long."""
        if not isinstance(pattern, str):
            raise InvalidToken(f"pattern {_shown(pattern)} is not a string")
        check_text("pattern", pattern)
        if type != CLASSIC:
            check_pattern_length(pattern, self._settings)
        return type, pattern

    def _check_times(self, claims: Mapping[str, Any]) -> float | None:
        """Return when the token expires, in seconds since the epoch, or None for never.

        Times may have fractions.  Raises InvalidToken if the token is not valid now
        (N68, V31).
        """
        now = self._clock()
        expires, not_before = _numeric_date(claims, "exp"), _numeric_date(claims, "nbf")
        if expires is not None and expires <= now:
            raise InvalidToken(f"exp {expires:.0f}: expired {now - expires:.0f} s ago")
        if not_before is not None and not_before > now:
            raise InvalidToken(f"nbf {not_before:.0f}: not valid for another {not_before - now:.0f} s")
        return expires


class Explanation(NamedTuple):
    """What a token says, and whether a hub would accept it."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    is_current: bool
    """Whether the token is a current one, and not a classic one."""
    allowed: dict[Action, list[Selector]]
    """The selectors that the token grants for each action."""
    ignored: list[str]
    """Why URL Patterns of the token are not accepted; those grant nothing."""
    faults: dict[Action, list[str]]
    """The reasons to refuse the token for each action; the first is the one logged."""


class _Unverified(NamedTuple):
    """The parts of a token whose signature is not verified."""

    signed: jws.CompactSignature
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    is_current: bool


_Entry: TypeAlias = "tuple[Selector, Any]"
"""A selector of a classic token, and its own payload or None."""


class _Detail(NamedTuple):
    """A Mercure detail of a current token."""

    actions: list[str]
    selectors: tuple[Selector, ...]
    payload: Any


_MALFORMED: Final = (
    InvalidToken, JoseError, ValueError, TypeError, ArithmeticError, InvalidRequest, RecursionError
)  # fmt: skip
"""The errors of a token that is not valid: the parsers raise many classes for one that
is malformed.
"""


def _reason(error: Exception) -> str:
    """Return the reason for the log."""
    return (error.reason if isinstance(error, InvalidToken) else str(error)) or type(error).__name__


def _failure(check: Callable[[], object]) -> str:
    """Return the reason why a check fails, or ""."""
    try:
        check()
    except _MALFORMED as error:
        return _reason(error)
    return ""


def _read(token: str) -> _Unverified:
    """Return the parts of a token; raise one of the malformed errors."""
    signed = jws.extract_compact(token.encode("ascii"), registry=REGISTRY)
    header = _checked_header(signed)
    claims = json.loads(signed.payload)
    if not isinstance(claims, dict):
        raise InvalidToken("its claims are not an object")
    return _Unverified(signed, header, claims, header.get("typ", "").lower() in _CURRENT_TYPES)


def _check_values(claims: Mapping[str, Any]) -> None:
    """Refuse NaN, infinity and lone surrogates: none is a date, and a payload with one
    could not be sent to clients (N124).
    """
    json.dumps(claims, ensure_ascii=False, allow_nan=False).encode("utf-8")


def _check_audience(claims: Mapping[str, Any], resource: str) -> None:
    """Raise InvalidToken unless a current token is for `resource` (N69)."""
    audience = claims.get("aud")
    if resource not in (audience if isinstance(audience, list) else [audience]):
        raise InvalidToken(f"aud {_shown(audience)} lacks {resource!r}")


def _mercure_claim(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `mercure` claim of a classic token; without one, it grants nothing.

    If there are authorization details beside the claim, they are for other hubs and do
    not count.  Details without the claim mean that the `typ` is wrong.  Such a token
    would grant nothing, so it is refused, and the log has the reason.
    """
    claim = next((claims[name] for name in _CLASSIC_CLAIMS if name in claims), None)
    if not isinstance(claim, dict | None):
        raise InvalidToken(f"the mercure claim {_shown(claim)} is not an object")
    if claim is None:
        details = claims.get("authorization_details")
        if isinstance(details, list) and any(map(_is_mercure_detail, details)):
            raise InvalidToken("authorization_details without a mercure claim need the typ at+jwt (V81)")
    return claim or {}


def _checked_header(signed: jws.CompactSignature) -> Mapping[str, Any]:
    header: Any = signed.headers()
    if not isinstance(header, dict):
        raise InvalidToken("its header is not an object")
    if "crit" in header:
        # The hub supports no extension.  joserfc supports one: unencoded payloads (RFC
        # 7797).
        raise InvalidToken(f"crit {_shown(header['crit'])} is not understood")
    REGISTRY.check_header(header)
    return header


def _is_mercure_detail(detail: Any) -> bool:
    return isinstance(detail, dict) and detail.get("type") == DETAIL_TYPE


def _has_subject(claims: Mapping[str, Any]) -> bool:
    return isinstance(claims.get("sub"), str) and bool(claims["sub"])


def _digest(issuer: str, publish: Iterable[TopicMatcher]) -> str:
    """Return a name for the publisher of a token without a subject.

    It depends on the issuer and on the publish grant, in any order.  It is never equal
    to a subject, because a subject has a space and a hex digest has none.
    """
    patterns = sorted({(matcher.type, matcher.pattern) for matcher in publish})
    return hashlib.sha256(json.dumps([issuer, patterns]).encode("utf-8")).hexdigest()


def _among(selectors: Iterable[Selector], compiled: Mapping[Selector, TopicMatcher]) -> Iterable[TopicMatcher]:
    """Return the matchers of the selectors that have one."""
    return (compiled[selector] for selector in selectors if selector in compiled)


def _cost(grant: Grant, token: str) -> int:
    """Return about how many KB the grant takes.

    The payloads are not longer than the text of the token.  A matcher takes 500 bytes,
    or 800 with a template.  The automaton of a URL Pattern with groups takes up to 32
    KB.
    """
    matchers = {*grant.publish, *grant.subscribe}
    automata = sum(matcher.cost > 0 for matcher in matchers)
    return 1 + len(token) // 1_000 + 3 * len(matchers) // 4 + 32 * automata


def _numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in the claims, or None if it is missing."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"{name} {_shown(value)} is not a number of seconds")
    return float(value)


def _shown(value: Any) -> str:
    """Return any JSON value as the log shows it: as JSON of at most 80 characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"

"""Verifies tokens, and turns their claims into grants.

    headers, query ─find_token─▶ token ─keys, claims─▶ CompiledGrant

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

import asyncio
import hashlib
import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import structlog
from cachetools import LRUCache

from hub.auth.claims import MALFORMED, ClaimsParser, check_audience, check_values, mercure_claim, read, shown_json
from hub.auth.grant import ANONYMOUS, CompiledGrant
from hub.auth.hints import token_hints
from hub.auth.keys import RemoteKeys, open_keys, read_key, weakness
from hub.auth.presented import find_token, require_same_site
from hub.control.commands import APPLICATION, CLASSIC, Identity
from hub.control.ledger import Ledger
from hub.errors import ConfigurationError, InvalidToken, KeysUnavailable, TokenRequired
from hub.protocol.requests import header_values
from hub.protocol.topics import WILDCARD, TopicMatcher
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hub.auth.claims import Unverified
    from hub.auth.grant import Action, Grant
    from hub.auth.keys import KeySource, TrustedKeys
    from hub.protocol.requests import Headers
    from hub.settings import Settings
    from hub.settings.issuers import Keys
    from skipfilter import Selector

log = structlog.stdlib.get_logger("hub")

RECENT_TOKENS: Final = 64
"""Verified tokens that are found by their header."""
RECENT_COST: Final = 8
"""The greatest cost of such a token: about how many KB its grant takes."""
_ROLES: Final[dict[Action, Literal["publisher", "subscriber"]]] = {"publish": "publisher", "subscribe": "subscriber"}


class Compiler(Protocol):
    """The part of the hub that turns patterns into matchers."""

    def compile(self, type: str, pattern: str) -> TopicMatcher:
        """Return the matcher of a pattern."""
        ...

    async def compile_all(
        self, selectors: Sequence[Selector], refused: list[str] | None = None
    ) -> dict[Selector, TopicMatcher]:
        """Return the matchers of patterns, without hogging the event loop.

        With a list `refused`, the messages of URL Patterns that are refused are added
        to it.
        """
        ...


class _Verified(NamedTuple):
    """A verified token, as it is cached."""

    grant: CompiledGrant
    keys: TrustedKeys
    source: KeySource
    cost: int

    def is_good(self, now: float) -> bool:
        """Whether the token is not expired, and its keys are still current."""
        return (self.grant.expires is None or now < self.grant.expires) and self.source.is_current(self.keys)


class Authorizer:
    """A verifier of tokens, with the keys in the settings, and a cache of results.

    `ledger` has the revocations; without one, there are none.  `clock` returns seconds
    since the epoch, for the times in tokens.  `monotonic` measures the age of key sets.

    Raises ConfigurationError if a key in the settings is not usable.
    """

    def __init__(
        self,
        settings: Settings,
        compiler: Compiler,
        ledger: Ledger | None = None,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._compiler = compiler
        self._ledger = Ledger(is_current=True) if ledger is None else ledger
        self._claims = ClaimsParser(settings, clock)
        self._clock = clock
        self._monotonic = monotonic
        self.withdrawn = asyncio.Event()
        """Set when keys were withdrawn that may have admitted streams."""
        self._fetched: dict[tuple[str, Keys], KeySource] = {}
        self._classic, self._issuers = _opened(settings, self._open)
        self._generation = 0  # of the keys
        # The fingerprints of the keys for streams, by issuer, and those that were
        # withdrawn, with their issuers.
        self._prints = self._present_prints({})
        self._withdrawn: set[tuple[str, str]] = set()
        # The cache, by action, resource and digest of the token.  The sum of the costs
        # is at most `cached_tokens`.
        self.lookups = self.misses = 0  # questions to the cache, and those that it could not answer
        self._verified: LRUCache[tuple[Action, str, bytes], _Verified] = LRUCache(
            settings.cached_tokens, getsizeof=lambda verified: verified.cost
        )
        # A few small tokens of that cache, by action, origin and digest of the header,
        # oldest first: then even the header need not be parsed.
        self._recent: dict[tuple[Action, str, bytes], _Verified] = {}

    def _open(self, name: str, keys: Keys) -> KeySource:
        # A key set that is fetched stays if its settings have not changed.
        if (fetched := self._fetched.get((name, keys))) is not None:
            return fetched
        opened = open_keys(
            name,
            keys,
            ttl=self._settings.jwks_ttl,
            clock=self._monotonic,
            dev=self._settings.dev,
            fetched=self._note_withdrawn,
        )
        if isinstance(opened, RemoteKeys):
            self._fetched[name, keys] = opened
        return opened

    @property
    def cached(self) -> tuple[int, int]:
        """The number of cached tokens, and about how many bytes they take."""
        return len(self._verified), int(1_000 * self._verified.currsize)

    def forget(self) -> None:
        """Empty the cache of verified tokens, which also frees their matchers.

        Each token is verified again when it is next used.
        """
        self._verified.clear()
        self._recent.clear()

    async def take_keys(self, settings: Settings) -> None:
        """Take the issuers and keys of `settings` instead of the present ones.

        Key files are read, and key sets are fetched when they are next needed.  Tokens
        are verified again when they are next used.  Open streams go on; if their key is
        taken away, `trusts` says so.

        Raises ConfigurationError, and changes nothing, if a key is not usable.
        """
        # In a thread, because a file may be on a slow disk.
        classic, issuers = await asyncio.to_thread(_opened, settings, self._open)
        before = self._sources()
        self._classic, self._issuers = classic, issuers
        self._generation += 1
        self.forget()
        after = self._sources()
        self._fetched = {keys: source for keys, source in self._fetched.items() if source in after}
        self._note_withdrawn()
        for source in before:
            if source not in after:
                await source.aclose()

    async def refresh(self) -> None:
        """Fetch the key sets again that are out of date.

        Otherwise, nobody would notice that a key was withdrawn while no token comes.
        """
        for source in self._sources():
            with suppress(KeysUnavailable):
                await source.current(None)

    def trusts(self, grant: CompiledGrant) -> bool:
        """Return whether the key that has signed the token of a stream still counts.

        A key is withdrawn if it is taken out of the settings, or if two fetches of its
        set in a row lack it.
        """
        return not self._withdrawn or (grant.identity.issuer, grant.signed_by) not in self._withdrawn

    def _note_withdrawn(self) -> None:
        """Compare the present keys for streams with those before."""
        before, self._prints = self._prints, self._present_prints(self._prints)
        gone = {
            (issuer, one) for issuer, prints in before.items() for one in prints - self._prints.get(issuer, frozenset())
        }
        back = {(issuer, one) for issuer, prints in self._prints.items() for one in prints}
        self._withdrawn = (self._withdrawn | gone) - back
        if gone:
            self.withdrawn.set()

    def _present_prints(self, before: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """Return the fingerprints of the keys for streams, by issuer.

        Those of a set that is not fetched yet are those `before`.
        """
        found = {}
        for issuer, roles in {CLASSIC: self._classic, **self._issuers}.items():
            if (source := roles.get("subscribe")) is not None:
                prints = source.prints()
                found[issuer] = before.get(issuer, frozenset()) if prints is None else prints
        return found

    def _sources(self) -> list[KeySource]:
        return [source for roles in (self._classic, *self._issuers.values()) for source in roles.values()]

    async def aclose(self) -> None:
        """Close all sources of keys."""
        for source in self._sources():
            await source.aclose()

    async def authorize(
        self,
        action: Action,
        headers: Headers,
        query_tokens: Sequence[str] = (),
        *,
        origin: str,
        required: bool = False,
    ) -> CompiledGrant:
        """Return the grant of the token in a request.

        Returns `ANONYMOUS` if there is no token, the request subscribes, the settings
        allow anonymous subscribers, and a token is not `required`.  A token that is
        present must be valid, even if the request needs none (V5).  `origin` is the
        scheme and authority that the request is to.

        Raises TokenRequired, InvalidPresentation, InvalidToken or KeysUnavailable.
        """
        settings = self._settings
        # 1. A header that was used before.
        if (grant := self.recent(action, headers, origin=origin)) is not None:
            return grant
        # 2. Any other token.
        presented = find_token(headers, query_tokens, settings)
        if presented is None:
            if action == "subscribe" and settings.anonymous and not required:
                return ANONYMOUS
            raise TokenRequired(f"a token is needed to {action}: send it in the Authorization header or in a cookie")
        if presented.by == "cookie" and action == "publish":
            require_same_site(headers, (origin, *settings.public_urls), settings.publish_origins)
        resource = settings.resource_at(origin)
        generation = self._generation
        verified = await self._verified_token(action, presented.token, resource)
        if presented.by == "query" and not verified.grant.classic:
            raise InvalidToken("a current token must not be in the query, which logs and caches may keep (N60, V86)")
        is_small = verified.cost <= RECENT_COST
        if presented.by == "header" and is_small and self._may_cache(verified, generation):
            recent = action, origin, hashlib.blake2b(header_values(headers, b"authorization")[0]).digest()
            self._recent.pop(recent, None)
            if len(self._recent) == min(RECENT_TOKENS, settings.cached_tokens):
                del self._recent[next(iter(self._recent))]
            self._recent[recent] = verified
        return verified.grant

    def recent(self, action: Action, headers: Headers, *, origin: str) -> CompiledGrant | None:
        """Return the grant of a token in a header that was used before, without a task.

        Returns None if `authorize` must decide.  Raises InvalidToken if it is revoked.
        """
        given = header_values(headers, b"authorization")
        if len(given) != 1:
            return None
        verified = self._recent.get((action, origin, hashlib.blake2b(given[0]).digest()))
        if verified is None or not verified.is_good(self._clock()):
            return None
        self.lookups += 1
        self._require_not_revoked(verified.grant)
        return verified.grant

    async def compiled(self, grant: Grant) -> CompiledGrant:
        """Return a grant of the application with its matchers.

        Raises `PatternError` if a pattern is invalid, which is a fault of the
        application, and `TokenRequired` if the grant has expired.
        """
        expires = grant.expires
        assert not isinstance(expires, datetime)  # Grant has made it a number
        if expires is not None and expires <= self._clock():
            raise TokenRequired("the grant of the application has expired")
        published, subscribed = grant.selectors("publish"), grant.selectors("subscribe")
        compiled = await self._compiler.compile_all([*published, *subscribed])
        subject = f"application {grant.subject}" if grant.subject else None
        return CompiledGrant(
            publish=tuple(compiled[selector] for selector in published),
            subscribe=tuple(compiled[selector] for selector in subscribed),
            expires=expires,
            subject=subject,
            publisher=subject or hashlib.sha256(json.dumps(["application", sorted(published)]).encode()).hexdigest(),
            identity=Identity(APPLICATION, grant.subject or None),
            payloads=() if grant.payload is None else (((self._compiler.compile("exact", WILDCARD),), grant.payload),),
        )

    async def verify(self, action: Action, token: str, *, resource: str) -> CompiledGrant:
        """Return the grant of `token` for a request that does `action`.

        `resource` is the resource identifier of the hub, which a current token must
        name.  A token that is in the cache is not verified again.

        Raises InvalidToken if the token is not valid, or KeysUnavailable if its keys
        cannot be fetched.
        """
        return (await self._verified_token(action, token, resource)).grant

    async def _verified_token(self, action: Action, token: str, resource: str) -> _Verified:
        self._claims.check_text(token)
        # The same token may be used for both actions and for several resources.
        slot = (action, resource, hashlib.sha256(token.encode("ascii")).digest())
        verified = self._verified.get(slot)
        self.lookups += 1
        if verified is None or not verified.is_good(self._clock()):
            self.misses += 1
            generation = self._generation
            try:
                verified = await self._verify(action, token, resource)
            except MALFORMED as error:
                raise InvalidToken(_reason(error)) from error
            if self._may_cache(verified, generation):
                self._verified[slot] = verified
        self._require_not_revoked(verified.grant)
        return verified

    def _require_not_revoked(self, grant: CompiledGrant) -> None:
        """Raise InvalidToken if a token is revoked.

        While the list cannot be read, nobody is refused here: the request is, later.
        """
        if self._ledger.revoked and self._ledger.is_current and self._ledger.revoking(grant.identity) is not None:
            raise InvalidToken("it is revoked")

    def _may_cache(self, verified: _Verified, generation: int) -> bool:
        """Return whether a verified token may stay; `generation` is that of its keys.

        A larger one does not fit into the cache, and is verified each time.  One whose
        keys were replaced meanwhile must not stay.
        """
        return verified.cost <= self._verified.maxsize and generation == self._generation

    async def _verify(self, action: Action, token: str, resource: str) -> _Verified:
        unverified = read(token)
        source, keys, signed_by = await self._check_signature(action, unverified)
        claims = unverified.claims
        check_values(claims)
        identity = _identity(unverified)
        if unverified.is_current:
            grant = await self._current_grant(claims, resource, identity, signed_by)
        else:
            grant = await self._classic_grant(claims, identity, signed_by)
        granted = [(matcher.type, matcher.pattern) for matcher in grant.publish + grant.subscribe]
        if hints := token_hints(unverified, granted):
            grant = replace(grant, hints=tuple(hints))
        if self._settings.log_decisions:
            grant = replace(grant, token=_logged(unverified))
        return _Verified(grant, keys, source, _cost(grant, token))

    async def _check_signature(self, action: Action, token: Unverified) -> tuple[KeySource, TrustedKeys, str]:
        """Return the source of the key that signed a token, its keys, and the key's
        fingerprint.

        The issuer in the claims decides which keys to use.  Nothing else in them is
        trusted before the signature is verified.
        """
        source = self._source_for_issuer(action, token.claims) if token.is_current else self._classic.get(action)
        if source is None:
            type = shown(token.header.get("typ", ""))
            raise InvalidToken(f"typ {type} is of a classic token, and classic tokens cannot {action} here")
        keys = await source.current(token.header.get("kid"))
        return source, keys, keys.check(token.signed)

    async def explain(self, token: str, *, resource: str) -> Explanation:
        """Return what a token says, and each reason for which `verify` would refuse it.

        Nothing in the result is verified, so a hub uses it for nothing: it is for the
        owner of the token.  Raises InvalidToken if the token cannot be read.
        """
        try:
            self._claims.check_text(token)
            unverified = read(token)
        except MALFORMED as error:
            raise InvalidToken(_reason(error)) from None
        checks = self._claims.checks(unverified, resource=resource)
        common = [reason for check in checks if (reason := _failure(check))]
        allowed, ignored = self._claims.allowed(unverified), list[str]()
        try:
            await self._compiler.compile_all(list(chain(*allowed.values())), ignored)
        except MALFORMED as error:
            common.append(_reason(error))
        faults: dict[Action, list[str]] = {}
        for action in _ROLES:
            faults[action] = common
            try:
                await self._check_signature(action, unverified)
            except (*MALFORMED, KeysUnavailable) as error:
                faults[action] = [_reason(error), *common]
        hints = token_hints(unverified, chain(*allowed.values()))
        return Explanation(unverified.header, unverified.claims, unverified.is_current, allowed, ignored, hints, faults)

    def _source_for_issuer(self, action: Action, claims: Mapping[str, Any]) -> KeySource:
        """Return the keys of the issuer that the token names, and of no other (N67)."""
        if not self._issuers:
            raise InvalidToken("typ at+jwt is of a current token, and the hub has no trusted issuers (V81)")
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise InvalidToken(f"iss {shown_json(issuer)} is not trusted")
        source = self._issuers[issuer].get(action)
        if source is None:
            raise InvalidToken(f"issuer {issuer!r} has no keys for tokens that {action}")
        return source

    # -- current tokens

    async def _current_grant(
        self, claims: Mapping[str, Any], resource: str, identity: Identity, signed_by: str
    ) -> CompiledGrant:
        # Everything is checked before the patterns are compiled, which is costly.
        check_audience(claims, resource)
        expires = self._claims.check_expiry(claims)
        parsed = self._claims.details(claims)
        # One grant for all details together.
        compiled = await self._compile([selector for detail in parsed for selector in detail.selectors])
        granted = [(detail, tuple(_among(detail.selectors, compiled))) for detail in parsed]
        publish = tuple(matcher for detail, its in granted if "publish" in detail.actions for matcher in its)
        subject = None if identity.subject is None else f"{identity.issuer} {identity.subject}"
        return CompiledGrant(
            publish=publish,
            subscribe=tuple(matcher for detail, its in granted if "subscribe" in detail.actions for matcher in its),
            expires=expires,
            subject=subject,
            publisher=subject or _publisher(claims["iss"], publish),
            identity=identity,
            signed_by=signed_by,
            payloads=tuple((its, detail.payload) for detail, its in granted if "subscribe" in detail.actions),
        )

    # -- classic tokens

    async def _classic_grant(self, claims: Mapping[str, Any], identity: Identity, signed_by: str) -> CompiledGrant:
        """Return what the `mercure` claim grants."""
        expires = self._claims.check_times(claims)
        claim = mercure_claim(claims)
        published, subscribed = self._claims.entries(claims)
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
        subject = None if identity.subject is None else f" {identity.subject}"
        return CompiledGrant(
            publish=publish,
            subscribe=tuple(_among((selector for selector, _ in subscribed), compiled)),
            expires=expires,
            classic=True,
            subject=subject,
            publisher=subject or _publisher("", publish),
            identity=identity,
            signed_by=signed_by,
            payloads=tuple(payloads),
        )

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


_Opened: TypeAlias = "tuple[dict[Action, KeySource], dict[str, dict[Action, KeySource]]]"
"""The keys for classic tokens, and those of each issuer."""


def _opened(settings: Settings, open: Callable[[str, Keys], KeySource]) -> _Opened:
    """Return all keys of the settings, each opened by its name."""
    classic: dict[Action, KeySource] = {}
    for action, role in _ROLES.items():
        if keys := settings.classic_keys(role):
            classic[action] = open(f"{role}_jwks_url" if keys.key is None else f"{role}_key", keys)
    issuers: dict[str, dict[Action, KeySource]] = {}
    for issuer in settings.issuers:
        name = f"issuer {issuer.id!r}"
        roles = issuers[issuer.id] = {}
        if issuer.keys:
            roles["publish"] = roles["subscribe"] = open(name, issuer.keys)
        if issuer.publisher:
            roles["publish"] = open(f"{name} (publisher)", issuer.publisher)
        if issuer.subscriber:
            roles["subscribe"] = open(f"{name} (subscriber)", issuer.subscriber)
    return classic, issuers


def check_keys(settings: Settings) -> None:
    """Raise ConfigurationError if a key in the settings, or in its file, is unusable.

    Fetches nothing.
    """
    _opened(settings, partial(open_keys, ttl=settings.jwks_ttl, clock=time.monotonic, dev=settings.dev))
    operator_key(settings)
    event_log_key(settings)


def event_log_key(settings: Settings) -> bytes:
    """Return the key for names in the event log; empty if no setting gives one.

    Raises ConfigurationError if it is weak.
    """
    if settings.event_log_key is None:
        return b""
    key = read_key("event_log_key", settings.event_log_key)
    if (reason := weakness(key)) and not settings.dev:
        raise ConfigurationError(f"event_log_key: {reason}")
    return key.encode("utf-8", "surrogatepass")


def operator_key(settings: Settings) -> bytes:
    """Return the key of the operator; empty if there is none.

    Raises ConfigurationError if it is weak, or if it is another key of the hub, whose
    owner could then give commands.
    """
    if settings.operator_key is None:
        return b""
    key = read_key("operator_key", settings.operator_key)
    if reason := weakness(key):
        if not settings.dev:
            raise ConfigurationError(f"operator_key: {reason}")
        log.warning(reason, key="operator_key")
    every = [settings.classic_keys(role) for role in _ROLES.values()]
    every += [keys for one in settings.issuers for keys in (one.keys, one.publisher, one.subscriber)]
    for keys in every:
        for value in (keys.key, keys.old_key) if keys is not None else ():
            if value and read_key("a key for tokens", value).strip() == key.strip():
                raise ConfigurationError("operator_key: this is also a key for tokens; it must be a key of its own")
    return key.encode("utf-8", "surrogatepass")


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
    hints: list[str]
    """What is probably wrong with the token, although it may be accepted."""
    faults: dict[Action, list[str]]
    """The reasons to refuse the token for each action; the first is the one logged."""


def _reason(error: Exception) -> str:
    """Return the reason for the log."""
    return (error.reason if isinstance(error, InvalidToken) else str(error)) or type(error).__name__


def _logged(token: Unverified) -> dict[str, str]:
    """Return what the log says of a token; texts are cut off."""
    about = {"issuer": token.claims.get("iss"), "token_id": token.claims.get("jti"), "key": token.header.get("kid")}
    return {name: f"{value:.200}" for name, value in about.items() if isinstance(value, str)}


def _failure(check: Callable[[], object]) -> str:
    """Return the reason why a check fails, or ""."""
    try:
        check()
    except MALFORMED as error:
        return _reason(error)
    return ""


def _identity(token: Unverified) -> Identity:
    """Return whom a token is for; a claim that is malformed counts as missing."""
    claims, issued = token.claims, token.claims.get("iat")
    subject, id, key = (
        value if value and isinstance(value, str) else None
        for value in (claims.get("sub"), claims.get("jti"), token.header.get("kid"))
    )
    is_number = isinstance(issued, int | float) and not isinstance(issued, bool)
    issuer = claims.get("iss") if token.is_current else CLASSIC
    return Identity(str(issuer), subject, id, key, issued if is_number else None)


def _publisher(issuer: str, publish: Sequence[TopicMatcher]) -> str:
    """Return a name for the publisher of a token without a subject.

    It depends on the issuer and on the publish grant, in any order.  It is never equal
    to a subject, because a subject has a space and a hex digest has none.  It is "" if
    the token may not publish.
    """
    if not publish:
        return ""
    patterns = sorted({(matcher.type, matcher.pattern) for matcher in publish})
    return hashlib.sha256(json.dumps([issuer, patterns]).encode("utf-8")).hexdigest()


def _among(selectors: Iterable[Selector], compiled: Mapping[Selector, TopicMatcher]) -> Iterable[TopicMatcher]:
    """Return the matchers of the selectors that have one."""
    return (compiled[selector] for selector in selectors if selector in compiled)


def _cost(grant: CompiledGrant, token: str) -> int:
    """Return about how many KB the grant takes.

    The payloads are not longer than the text of the token.  A matcher takes 500 bytes,
    or 800 with a template.  The automaton of a URL Pattern with groups takes up to 32
    KB.
    """
    matchers = {*grant.publish, *grant.subscribe}
    automata = sum(matcher.cost > 0 for matcher in matchers)
    return 1 + len(token) // 1_000 + 3 * len(matchers) // 4 + 32 * automata

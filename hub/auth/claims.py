"""Claims: what a token says, before its signature is verified.

    token ─read─▶ header, claims ─┬─ check_times ─▶ when it expires
                                  ├─ details      ─▶ selectors of a current token
                                  └─ entries      ─▶ selectors of a classic token

Belongs here: the form of tokens of both kinds, and the rules on their claims.  Does not
belong here: keys, matchers, and what a token grants.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from joserfc import jws
from joserfc.errors import JoseError

from hub.auth.grant import DETAIL_TYPE
from hub.auth.keys import REGISTRY
from hub.errors import InvalidRequest, InvalidToken
from hub.protocol.requests import check_pattern_length
from hub.protocol.topics import CLASSIC, MATCHER_TYPES, check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hub.auth.grant import Action
    from hub.settings import Settings
    from skipfilter import Selector

_CURRENT_TYPES: Final = ("at+jwt", "application/at+jwt")  # N64
CLASSIC_CLAIMS: Final = ("https://mercure.rocks/", "mercure")  # the first one that is present counts (V30)
_MAX_CLASSIC_ENTRIES: Final = 1_000  # V33


class Unverified(NamedTuple):
    """The parts of a token whose signature is not verified."""

    signed: jws.CompactSignature
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    is_current: bool


Entry: TypeAlias = "tuple[Selector, Any]"
"""A selector of a classic token, and its own payload or None."""


class Detail(NamedTuple):
    """A Mercure detail of a current token."""

    actions: list[str]
    selectors: tuple[Selector, ...]
    payload: Any


MALFORMED: Final = (
    InvalidToken, JoseError, ValueError, TypeError, ArithmeticError, InvalidRequest, RecursionError
)  # fmt: skip
"""The errors of a token that is not valid: the parsers raise many classes for one that
is malformed.
"""


class ClaimsParser:
    """A parser of tokens, with the limits of the settings.

    `clock` returns seconds since the epoch.  The methods raise InvalidToken, or another
    error in MALFORMED.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        # With the well-known keys, anyone can sign a token.
        self._longest = 0.0 if settings.has_well_known_keys else settings.max_token_life

    def check_text(self, token: str) -> None:
        """Refuse a text that is too long for a token, or not ASCII."""
        if len(token) > self._settings.max_token:
            raise InvalidToken(f"the token has {len(token)} characters; the limit is {self._settings.max_token}")
        if not token.isascii():
            raise InvalidToken("the token has characters that are not ASCII")

    def check_times(self, claims: Mapping[str, Any]) -> float | None:
        """Return when the token expires, in seconds since the epoch, or None for never.

        Times may have fractions.  `leeway` is for `nbf` alone.  With `max_token_life`,
        it expires so long after `iat` if that is earlier than `exp`.  Raises
        InvalidToken if the token is not valid now (N68, V31).
        """
        now = self._clock()
        expires, not_before = _numeric_date(claims, "exp"), _numeric_date(claims, "nbf")
        if expires is not None and expires <= now:
            raise InvalidToken(f"exp {expires:.0f}: expired {now - expires:.0f} s ago")
        if not_before is not None and not_before > now + self._settings.leeway:
            raise InvalidToken(f"nbf {not_before:.0f}: not valid for another {not_before - now:.0f} s")
        if not (life := self._longest):
            return expires
        issued = _numeric_date(claims, "iat")
        if expires is None or issued is None:
            raise InvalidToken(f"{'iat' if issued is None else 'exp'} is missing, and max_token_life needs it")
        if issued + life <= now:
            raise InvalidToken(f"iat {issued:.0f}: issued {now - issued:.0f} s ago; max_token_life is {life:g} s")
        return min(expires, issued + life)

    def check_expiry(self, claims: Mapping[str, Any]) -> float:
        """Return when a current token expires (N68)."""
        expires = self.check_times(claims)
        if expires is None:
            raise InvalidToken("exp is missing")
        return expires

    def details(self, claims: Mapping[str, Any]) -> list[Detail]:
        """Return the Mercure details; details of other types are ignored (N72)."""
        details = claims.get("authorization_details", [])
        if not isinstance(details, list):
            raise InvalidToken("authorization_details is not an array")
        ours = [detail for detail in details if is_mercure_detail(detail)]
        self._check_count(len(ours), "details")
        parsed = [self._parse_detail(detail) for detail in ours]
        self._check_count(sum(len(detail.selectors) for detail in parsed), "topics")
        return parsed

    def _parse_detail(self, detail: Mapping[str, Any]) -> Detail:
        """Return the parts of a Mercure detail (N73–N75).

        Raises InvalidToken if a part is wrong, which makes the whole token invalid
        (N76).
        """
        actions, topics, payload = detail.get("actions"), detail.get("topics"), detail.get("payload")
        if not isinstance(actions, list) or not actions or not all(isinstance(action, str) for action in actions):
            raise InvalidToken(f"actions {shown_json(actions)} is not an array of one or more strings")
        if not isinstance(topics, list) or not topics:
            raise InvalidToken(f"topics {shown_json(topics)} is not an array of one or more objects")
        if not isinstance(payload, dict | None):
            raise InvalidToken("a payload is not an object")
        return Detail(actions, tuple(self._parse_match(topic) for topic in topics), payload)

    def _parse_match(self, topic: Any) -> Selector:
        """Return the type and pattern of an object with `match` and `match_type` (N74).

        The type of classic selectors has no name there, so it is refused too (V71).
        """
        if not isinstance(topic, dict):
            raise InvalidToken(f"topic {shown_json(topic)} is not an object")
        type, pattern = topic.get("match_type", "exact"), topic.get("match")
        if type not in MATCHER_TYPES:
            raise InvalidToken(f"match_type {shown_json(type)} is none of {', '.join(MATCHER_TYPES)}")
        if not pattern:
            raise InvalidToken("match is empty or missing")
        return self._checked(type, pattern)

    def _check_count(self, count: int, what: str) -> None:
        if count > self._settings.max_matchers:
            raise InvalidToken(f"the token has {count} {what}; the limit is {self._settings.max_matchers} (N77)")

    def entries(self, claims: Mapping[str, Any]) -> tuple[list[Entry], list[Entry]]:
        """Return the entries of the `mercure` claim: to publish, and to subscribe."""
        claim = mercure_claim(claims)
        return self._parse_entries("publish", claim), self._parse_entries("subscribe", claim)

    def _parse_entries(self, action: Action, claim: Mapping[str, Any]) -> list[Entry]:
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

    def checks(self, token: Unverified, *, resource: str) -> list[Callable[[], object]]:
        """Return all rules for the claims of a token, in the order of `verify`."""
        claims = token.claims
        if token.is_current:
            return [
                lambda: check_values(claims),
                lambda: check_audience(claims, resource),
                lambda: self.check_expiry(claims),
                lambda: self.details(claims),
            ]
        return [lambda: check_values(claims), lambda: self.check_times(claims), lambda: self.entries(claims)]

    def allowed(self, token: Unverified) -> dict[Action, list[Selector]]:
        """Return the selectors that a token grants for each action; none if its form is
        wrong.
        """
        granted: dict[Action, list[Selector]] = {"publish": [], "subscribe": []}
        try:
            if token.is_current:
                for detail in self.details(token.claims):
                    for action, selectors in granted.items():
                        selectors += detail.selectors if action in detail.actions else ()
            else:
                published, subscribed = self.entries(token.claims)
                granted["publish"] += [selector for selector, _ in published]
                granted["subscribe"] += [selector for selector, _ in subscribed]
        except MALFORMED:
            pass
        return granted

    def _checked(self, type: str, pattern: Any) -> Selector:
        """Return the selector if its pattern is valid text, and not too long."""
        if not isinstance(pattern, str):
            raise InvalidToken(f"pattern {shown_json(pattern)} is not a string")
        check_text("pattern", pattern)
        if type != CLASSIC:
            check_pattern_length(pattern, self._settings)
        return type, pattern


def read(token: str) -> Unverified:
    """Return the parts of a token; raise one of the malformed errors."""
    signed = jws.extract_compact(token.encode("ascii"), registry=REGISTRY)
    header = _checked_header(signed)
    claims = json.loads(signed.payload)
    if not isinstance(claims, dict):
        raise InvalidToken("its claims are not an object")
    return Unverified(signed, header, claims, header.get("typ", "").lower() in _CURRENT_TYPES)


def check_values(claims: Mapping[str, Any]) -> None:
    """Refuse NaN, infinity and lone surrogates: none is a date, and a payload with one
    could not be sent to clients (N124).
    """
    json.dumps(claims, ensure_ascii=False, allow_nan=False).encode("utf-8")


def check_audience(claims: Mapping[str, Any], resource: str) -> None:
    """Raise InvalidToken unless a current token is for `resource` (N69)."""
    audience = claims.get("aud")
    if resource not in (audience if isinstance(audience, list) else [audience]):
        raise InvalidToken(f"aud {shown_json(audience)} lacks {resource!r}")


def mercure_claim(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `mercure` claim of a classic token; without one, it grants nothing.

    If there are authorization details beside the claim, they are for other hubs and do
    not count.  Details without the claim mean that the `typ` is wrong.  Such a token
    would grant nothing, so it is refused, and the log has the reason.
    """
    claim = next((claims[name] for name in CLASSIC_CLAIMS if name in claims), None)
    if not isinstance(claim, dict | None):
        raise InvalidToken(f"the mercure claim {shown_json(claim)} is not an object")
    if claim is None:
        details = claims.get("authorization_details")
        if isinstance(details, list) and any(map(is_mercure_detail, details)):
            raise InvalidToken("authorization_details without a mercure claim need the typ at+jwt (V81)")
    return claim or {}


def _checked_header(signed: jws.CompactSignature) -> Mapping[str, Any]:
    header: Any = signed.headers()
    if not isinstance(header, dict):
        raise InvalidToken("its header is not an object")
    if "crit" in header:
        # The hub supports no extension.  joserfc supports one: unencoded payloads (RFC
        # 7797).
        raise InvalidToken(f"crit {shown_json(header['crit'])} is not understood")
    REGISTRY.check_header(header)
    return header


def is_mercure_detail(detail: Any) -> bool:
    """Return whether an authorization detail is for a Mercure hub (N72)."""
    return isinstance(detail, dict) and detail.get("type") == DETAIL_TYPE


def _numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in the claims, or None if it is missing."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"{name} {shown_json(value)} is not a number of seconds")
    return float(value)


def shown_json(value: Any) -> str:
    """Return any JSON value as the log shows it: as JSON of at most 80 characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"

"""Grants: what a client is allowed.

Grant           patterns, as an application gives them
CompiledGrant   their matchers; a token's claims become one too
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from hub.control.commands import NOBODY, Identity
from hub.errors import InsufficientScope
from hub.protocol.data import data_text
from hub.protocol.topics import MATCHER_TYPES
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hub.protocol.topics import TopicMatcher
    from skipfilter import Selector

Action: TypeAlias = Literal["publish", "subscribe"]

DETAIL_TYPE: Final = "https://mercure.rocks/authorization-detail"
"""The type of authorization details for a Mercure hub (N72)."""


_LONG_PAST: Final = 1e9
"""A time that no grant ends at; a shorter number is meant as a duration."""

Pattern: TypeAlias = "str | Selector"
"""An exact topic, or a matcher type and a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an application allows a client, as the function `authorize` returns it.

    A pattern is an exact topic, or a matcher type and a pattern, as in ("uritemplate",
    "/users/42/{folder}"); "*" stands for all topics.  Without patterns, the client may
    subscribe to public updates only.  Put no text of a client into the pattern of a
    template or wildcard.

    Raises TypeError or ValueError if a field is malformed.
    """

    publish: Sequence[Pattern] = ()
    """The topics that the client may publish to."""
    subscribe: Sequence[Pattern] = ()
    """The topics whose private updates the client may read."""
    subject: str | None = None
    """A name of the user, for the limits of each client; without it, the address
    counts.
    """
    expires: float | datetime | None = None
    """When the grant ends, and the stream with it: a datetime with a time zone, or
    seconds since the epoch.

    Without it, a stream ends after `max_lifetime`.
    """

    payload: Mapping[str, Any] | None = None
    """What the subscriptions of the client show of it to those who may read them; an
    object of JSON (N126).
    """

    def __post_init__(self) -> None:
        if self.payload is not None:
            if not isinstance(self.payload, dict):
                raise TypeError(f"payload {self.payload!r:.80} is no dict")
            data_text(self.payload)
        for name in ("publish", "subscribe"):
            patterns = getattr(self, name)
            if isinstance(patterns, str):
                raise TypeError(f"{name} {shown(patterns)} is a text: give a list of patterns, as in [{patterns!r}]")
            object.__setattr__(self, name, tuple(patterns))
            for type, _ in map(_selector, getattr(self, name)):
                if type not in MATCHER_TYPES:
                    raise ValueError(f"{name}: matcher type {shown(type)} is none of {', '.join(MATCHER_TYPES)}")
        if not isinstance(self.subject, str | None):
            raise TypeError(f"subject {self.subject!r:.80} is no text")
        if isinstance(self.expires, datetime) and self.expires.tzinfo is not None:
            object.__setattr__(self, "expires", self.expires.timestamp())
        if not isinstance(self.expires, int | float | None):
            raise TypeError(f"expires {self.expires!r} is no datetime with a time zone, or seconds since the epoch")
        if self.expires is not None and not self.expires >= _LONG_PAST:
            raise ValueError(f"expires {self.expires} is long past: it is a time, as time.time() + 3600 is one")

    def selectors(self, action: Action) -> list[Selector]:
        """Return the matcher types and patterns for an action."""
        return [_selector(pattern) for pattern in (self.publish if action == "publish" else self.subscribe)]


def _selector(pattern: Pattern) -> Selector:
    if isinstance(pattern, str):
        return "exact", pattern
    if not (isinstance(pattern, tuple) and len(pattern) == 2 and all(isinstance(part, str) for part in pattern)):
        raise TypeError(f"{pattern!r} is no pattern: give a topic, or a tuple of a matcher type and a pattern")
    return pattern


@dataclass(frozen=True, slots=True)
class CompiledGrant:
    """The topics that a client may publish to and read, and until when."""

    publish: tuple[TopicMatcher, ...] = ()
    """Matchers of the topics that may be published to."""
    subscribe: tuple[TopicMatcher, ...] = ()
    """Matchers of the topics whose private updates may be read."""
    expires: float | None = None
    """When the token expires, in seconds since the epoch; None for never."""
    classic: bool = False
    """Whether the token is a classic one."""
    subject: str | None = None
    """The issuer, a space, and the `sub` of the token; None without a `sub`.

    A classic token has no issuer, so its subject begins with the space.  If the
    application has decided, `application` stands for the issuer.
    """
    publisher: str = ""
    """A name for the publisher, so that each publisher has ids of its own.

    It is the subject or, without a subject, a digest of the issuer and of the matchers
    in `publish`.
    """
    identity: Identity = NOBODY
    """Whom it is for, as far as commands can tell."""
    signed_by: str = field(default="", repr=False)
    """The fingerprint of the key that has signed its token; "" without a token."""
    token: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the log says of the token: `issuer`, `token_id`, `key`, if it has them."""
    hints: tuple[str, ...] = field(default=(), repr=False)
    """What is probably wrong with its token; see `hub.auth.hints`."""
    payloads: tuple[tuple[tuple[TopicMatcher, ...], Any], ...] = field(default=(), repr=False)
    """Matchers, each group with the payload for subscriptions that it matches.

    The first group that matches a subscription counts; its payload may be None.
    """

    def require_publish(self, topic: str) -> None:
        """Raise InsufficientScope unless publishing to `topic` is allowed (N80)."""
        for matcher in self.publish:  # not any(), whose generator costs more than a match
            if matcher.match(topic):
                return
        raise InsufficientScope(f"the token or session does not allow publishing to {shown(topic)}")

    def require_read(self, topic: str) -> None:
        """Raise InsufficientScope unless the grant allows reading `topic` (N131)."""
        if not any(matcher.match(topic) for matcher in self.subscribe):
            raise InsufficientScope(f"the token or session does not allow reading {shown(topic)}")

    def payload_for(self, pattern: str) -> Any | None:
        """Return the payload of a subscription to `pattern`, or None (N126, V73).

        The pattern is matched like a topic.  A matcher with the same pattern matches it
        too, even if it does not match that text as a topic.  The caller must not modify
        the payload.
        """
        for matchers, payload in self.payloads:
            if any(matcher.pattern == pattern or matcher.match(pattern) for matcher in matchers):
                return payload
        return None


ANONYMOUS: Final = CompiledGrant()
"""The grant of a client without a token: it allows nothing beyond public updates."""

"""Grants: what a token allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from hub.errors import InsufficientScope
from skipfilter.text import shown

if TYPE_CHECKING:
    from hub.protocol.topics import TopicMatcher

Action: TypeAlias = Literal["publish", "subscribe"]

DETAIL_TYPE: Final = "https://mercure.rocks/authorization-detail"
"""The type of authorization details for a Mercure hub (N72)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The topics that a token allows to publish to and to read, and until when."""

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

    A classic token has no issuer, so its subject begins with the space.
    """
    publisher: str = ""
    """A name for the publisher, so that each publisher has ids of its own.

    It is the subject or, without a subject, a digest of the issuer and of the matchers
    in `publish`.
    """
    payloads: tuple[tuple[tuple[TopicMatcher, ...], Any], ...] = field(default=(), repr=False)
    """Matchers, each group with the payload for subscriptions that it matches.

    The first group that matches a subscription counts; its payload may be None.
    """

    def require_publish(self, topic: str) -> None:
        """Raise InsufficientScope unless publishing to `topic` is allowed (N80)."""
        if not any(matcher.match(topic) for matcher in self.publish):
            raise InsufficientScope(f"the token does not allow publishing to {shown(topic)}")

    def require_read(self, topic: str) -> None:
        """Raise InsufficientScope unless the grant allows reading `topic` (N131)."""
        if not any(matcher.match(topic) for matcher in self.subscribe):
            raise InsufficientScope(f"the token does not allow reading {shown(topic)}")

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


ANONYMOUS: Final = Grant()
"""The grant of a client without a token: it allows nothing beyond public updates."""

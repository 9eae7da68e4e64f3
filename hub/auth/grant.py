"""Grant: what a token allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from hub.errors import InsufficientScope
from skipfilter.text import shown

if TYPE_CHECKING:
    from hub.protocol.topics import TopicMatcher

Action: TypeAlias = Literal["publish", "subscribe"]

DETAIL_TYPE: Final = "https://mercure.rocks/authorization-detail"
"""The type of the authorization details that are about a hub (N72)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows: topics to publish to, topics to read private updates of, and until when."""

    publish: tuple[TopicMatcher, ...] = ()
    subscribe: tuple[TopicMatcher, ...] = ()
    expires: float | None = None
    """Seconds since the epoch; None for a token without an end."""
    classic: bool = False
    """Whether it is of a classic token."""
    subject: str | None = None
    """Whose token it is: the issuer, which a classic one lacks, a space, and the `sub`; None without a `sub`."""
    publisher: str = ""
    """Who publishes with it, so that ids of different publishers are told apart: the subject or, without one, a digest
    of the issuer and of what may be published to."""
    payloads: tuple[tuple[tuple[TopicMatcher, ...], Any], ...] = field(default=(), repr=False)
    """What to tell of subscriptions that one of the matchers is about, the first that is; None for nothing."""

    def require_publish(self, topic: str) -> None:
        """Raise InsufficientScope unless `topic` may be published to (N80)."""
        if not any(matcher.match(topic) for matcher in self.publish):
            raise InsufficientScope(f"the token does not allow publishing to {shown(topic)}")

    def require_read(self, topic: str) -> None:
        """Raise InsufficientScope unless private updates of `topic` may be read (N131)."""
        if not any(matcher.match(topic) for matcher in self.subscribe):
            raise InsufficientScope(f"the token does not allow reading {shown(topic)}")

    def payload_for(self, pattern: str) -> Any | None:
        """What to tell of a subscription to `pattern` (N126, V73); None for nothing.  Not to be changed.

        A pattern is a topic here; and it is matched by itself, also where as a topic it would not be.
        """
        for matchers, payload in self.payloads:
            if any(matcher.pattern == pattern or matcher.match(pattern) for matcher in matchers):
                return payload
        return None


ANONYMOUS: Final = Grant()

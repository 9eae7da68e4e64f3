"""Subscriptions as JSON documents, in both dialects.

Presence updates contain these documents, and the subscription API serves them.

    current    HUB/subscriptions/{match_type}/{match}/{subscriber}    N121, N124
    classic    HUB/subscriptions/{topic}/{subscriber}                 V60, V61

A document is in the dialect of the subscription that it describes (V84).  Its `id` is
the path of the subscription, which is also the topic of the presence updates.  Each
variable of a path is percent-encoded once; only unreserved characters stay as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from uritemplate import URITemplate

from hub.protocol.data import to_json
from hub.protocol.topics import CLASSIC, subscriptions_path
from hub.protocol.updates import HUB_TYPE, Update

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT: Final = {"@context": "https://mercure.rocks/"}
"""The member that makes a classic document JSON-LD (V65)."""

_PATH: Final = URITemplate("{+collection}{/match_type,match,subscriber}")
_CLASSIC_PATH: Final = URITemplate("{+collection}{/match,subscriber}")


@dataclass(frozen=True, slots=True)
class Present:
    """A subscriber that is present, as all nodes of a hub know it.

    Each matcher has a type, a pattern and a payload.
    """

    id: str
    matchers: tuple[tuple[str, str, Any | None], ...]

    @classmethod
    def from_json(cls, id: str, matchers: str | bytes) -> Present:
        """Return the subscriber with this id and the matchers that `to_json` wrote."""
        return cls(id, tuple((type, pattern, payload) for type, pattern, payload in json.loads(matchers)))

    def to_json(self) -> str:
        """Return the matchers as a JSON array."""
        return to_json(self.matchers)

    def subscriptions(self, hub: str) -> Iterator[Subscription]:
        """Yield a subscription for each matcher (N19).

        `hub` is the path of the hub URL.
        """
        for type, pattern, payload in self.matchers:
            yield Subscription(hub, type, pattern, self.id, payload)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One matcher of one subscriber; `hub` is the path of the hub URL."""

    hub: str
    match_type: str
    match: str
    subscriber: str
    payload: Any | None

    @property
    def is_classic(self) -> bool:
        """Whether the matcher is a topic selector of the classic dialect."""
        return self.match_type == CLASSIC

    @property
    def path(self) -> str:
        """The path of the subscription, percent-encoded (N121, V60)."""
        template = _CLASSIC_PATH if self.is_classic else _PATH
        path: str = template.expand(
            collection=subscriptions_path(self.hub),
            match_type=self.match_type,
            match=self.match,
            subscriber=self.subscriber,
        )
        return path

    def document(self, *, active: bool = True, json_ld: bool = False) -> dict[str, Any]:
        """Return the JSON object that describes the subscription (N124, V61).

        If `json_ld` is true, its type is that of JSON-LD, for classic clients; the
        caller adds the context.
        """
        document: dict[str, Any] = {"id": self.path, "type": "Subscription" if json_ld else "subscription"}
        if self.is_classic:
            document["topic"] = self.match
        else:
            document |= {"match_type": self.match_type, "match": self.match}
        document |= {"subscriber": self.subscriber, "active": active}
        if self.payload is not None:
            document["payload"] = self.payload
        return document

    def announcement(self, *, active: bool, typed_classic: bool) -> Update:
        """Return the presence update for its begin, or its end (N120–N123, V61).

        If `typed_classic` is true, classic updates have the type `mercure` too.
        """
        document = self.document(active=active, json_ld=self.is_classic)
        return Update(
            (document["id"],),
            to_json(CONTEXT | document if self.is_classic else document),
            private=True,
            type=HUB_TYPE if typed_classic or not self.is_classic else None,
        )

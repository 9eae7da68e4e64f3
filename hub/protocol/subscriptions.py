"""Subscriptions as documents, for the updates about them and for the API, in both dialects.

    current    HUB/subscriptions/{match_type}/{match}/{subscriber}    N121, N124
    classic    HUB/subscriptions/{topic}/{subscriber}                 V60, V61

A document is in the dialect of the subscription that it describes (V84); the `id` of one is its path, and the topic
of the updates about it.  Each variable of a path is percent-encoded once, all but the unreserved characters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from uritemplate import URITemplate

from hub.protocol.topics import CLASSIC, subscriptions_path
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT: Final = {"@context": "https://mercure.rocks/"}
"""What makes JSON of the classic dialect JSON-LD (V65)."""

_PATH: Final = URITemplate("{+collection}{/match_type,match,subscriber}")
_CLASSIC_PATH: Final = URITemplate("{+collection}{/match,subscriber}")


@dataclass(frozen=True, slots=True)
class Present:
    """A subscriber as all nodes of a hub know it: its id, and type, pattern and payload of each of its matchers."""

    id: str
    matchers: tuple[tuple[str, str, Any | None], ...]

    @classmethod
    def from_json(cls, id: str, matchers: str | bytes) -> Present:
        return cls(id, tuple((type, pattern, payload) for type, pattern, payload in json.loads(matchers)))

    def to_json(self) -> str:
        """Its matchers."""
        return to_json(self.matchers)

    def subscriptions(self, hub: str) -> Iterator[Subscription]:
        """One for each matcher (N19); `hub` is the path of the hub URL."""
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
        return self.match_type == CLASSIC

    @property
    def path(self) -> str:
        template = _CLASSIC_PATH if self.is_classic else _PATH
        path: str = template.expand(
            collection=subscriptions_path(self.hub),
            match_type=self.match_type,
            match=self.match,
            subscriber=self.subscriber,
        )
        return path

    def document(self, *, active: bool = True, json_ld: bool = False) -> dict[str, Any]:
        """The members of its JSON; `json_ld` is for readers of the classic dialect, and leaves out the context."""
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
        """The update that says that it has begun, or ended (N120–N123, V61)."""
        document = self.document(active=active, json_ld=self.is_classic)
        return Update(
            (document["id"],),
            to_json(CONTEXT | document if self.is_classic else document),
            private=True,
            type="mercure" if typed_classic or not self.is_classic else None,
        )


to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""json.dumps() would make an encoder each time."""

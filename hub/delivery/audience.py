"""Interest: finds the connections that subscribe to a topic, or that may read it.

    ("subscribed", topic)  ─►  index of the matchers in requests  ─►  ids
    ("granted", topic)     ─►  index of the matchers in tokens    ─►  ids

It is the source of the broadcaster's SkipFilter, which caches the ids of each key.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from hub.protocol.topics import subscriptions_path
from skipfilter import SelectorIndex
from skipfilter.sources import union

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyroaring import BitMap64

    from hub.delivery.subscriber import Subscriber
    from hub.protocol.topics import TopicMatcher
    from skipfilter import CompiledSelector, Selector

Key: TypeAlias = tuple[Literal["subscribed", "granted"], str]
"""A role and a topic: which receivers subscribe to the topic, or may read it?"""


class Interested(Protocol):
    """The part of a receiver that the indexes use."""

    @property
    def subscriber(self) -> Subscriber:
        """The subscriber, with its matchers and its grant."""
        ...


class Interest:
    """An index of subscriptions and an index of grants, as one `skipfilter.Index`.

    Relative patterns and topics are resolved against `base_url`, the hub's URL.
    """

    def __init__(self, base_url: str) -> None:
        # The number of matchers was limited when they were parsed, and the number of
        # URL Patterns when they were compiled.  Only similar patterns are limited here.
        index = partial(SelectorIndex, base_url=base_url, max_selectors=sys.maxsize, max_url_patterns=sys.maxsize)
        self._subscribed, self._granted = index(), index()
        # The prefix of the topics of presence updates.
        self._presence_prefix = subscriptions_path(urlsplit(base_url).path) + "/"

    def add(self, id: int, value: Interested, selectors: Iterable[Selector | CompiledSelector] = ()) -> None:
        """Add a receiver to both indexes.

        Its subscriber has the matchers; `selectors` is not used.  Raises `LimitError`
        if its patterns are too similar to those of other receivers.  If an error is
        raised, the receiver is in neither index.
        """
        self._subscribed.add(id, value, _selectors(value.subscriber.subscribed))
        try:
            self._granted.add(id, value, _selectors(value.subscriber.grant.subscribe))
        except BaseException:
            self._subscribed.discard(id, value)
            raise

    def discard(self, id: int, value: Interested) -> None:
        """Remove a receiver from both indexes."""
        self._subscribed.discard(id, value)
        self._granted.discard(id, value)

    def posting_lists(self, key: Key, start: int = 0) -> list[BitMap64]:
        """Return the posting lists of the receivers that subscribe to, or may read, a
        topic, which were made for the id `start` or a later one.
        """
        role, topic = key
        index = self._subscribed if role == "subscribed" else self._granted
        return index.posting_lists(topic, start)

    def announces(self, topic: str) -> bool:
        """Return whether `topic` is the topic of a presence update."""
        return topic.startswith(self._presence_prefix)

    def bitmap(self, *keys: Key) -> BitMap64:
        """Return the ids that match any of `keys`, as `SkipFilter.bitmap` does.

        Caches nothing, so it suits topics that occur only once.
        """
        return union(ids for key in keys for ids in self.posting_lists(key))


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterable[CompiledSelector]:
    return (selector for matcher in matchers for selector in matcher.selectors)

"""Interest: what connections subscribe to, and what they may read, as two indexes."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from pyroaring import BitMap64
from sortedcontainers import SortedDict

from hub.protocol.topics import subscriptions_path
from skipfilter import SelectorIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hub.protocol.topics import TopicMatcher
    from hub.subscriber import Subscriber
    from skipfilter import CompiledSelector, Selector

Key: TypeAlias = tuple[Literal["subscribed", "granted"], str]
"""A role and a topic."""


class Interested(Protocol):
    """Anything with a subscriber."""

    @property
    def subscriber(self) -> Subscriber:
        """The subscriber whose matchers and grant count."""
        ...


class Interest:
    """The source of the broadcaster's filter: an index of subscriptions, and one of
    grants.

    The number and length of a receiver's matchers were limited when they were parsed,
    and the number of URL Patterns when they were compiled.
    """

    def __init__(self, base_url: str) -> None:
        index = partial(SelectorIndex, base_url=base_url, max_selectors=sys.maxsize, max_url_patterns=sys.maxsize)
        self._subscribed, self._granted = index(), index()
        self._announced = subscriptions_path(urlsplit(base_url).path) + "/"
        """The prefix of the topics of presence updates."""

    def add(self, id: int, value: Interested, selectors: Iterable[Selector | CompiledSelector] = ()) -> None:
        """Add a receiver to both indexes, or with an error to none."""
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

    def ids_matching(self, key: Key, values: SortedDict, start: int) -> BitMap64:
        """Return the ids that subscribe to, or may read, the topic of `key`."""
        role, topic = key
        index = self._subscribed if role == "subscribed" else self._granted
        return index.ids_matching(topic, values, start)

    def announces(self, topic: str) -> bool:
        """Return whether `topic` is that of a presence update; each of them is new."""
        return topic.startswith(self._announced)

    def bitmap(self, *keys: Key) -> BitMap64:
        """Return the ids that match any of `keys`, without caching anything."""
        ids, nobody = BitMap64(), SortedDict()  # an index does not look at the values
        for key in keys:
            ids |= self.ids_matching(key, nobody, 0)
        return ids


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterable[CompiledSelector]:
    return (selector for matcher in matchers for selector in matcher.selectors)

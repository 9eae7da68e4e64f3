"""Interest: what the connections of a hub subscribe to, and what they may read, as two indexes of the library."""

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
    """What has a subscriber."""

    @property
    def subscriber(self) -> Subscriber: ...


class Interest:
    """The source of the filter: one index of what the receivers subscribe to, one of what they may read.

    How many matchers a receiver has, and how long they are, was bounded when they were parsed; how many URL Patterns
    there are, when they were compiled.
    """

    def __init__(self, base_url: str) -> None:
        index = partial(SelectorIndex, base_url=base_url, max_selectors=sys.maxsize, max_url_patterns=sys.maxsize)
        self._subscribed, self._granted = index(), index()
        self._announced = subscriptions_path(urlsplit(base_url).path) + "/"
        """What the topics of presence updates begin with."""

    def add(self, id: int, value: Interested, selectors: Iterable[Selector | CompiledSelector] = ()) -> None:
        self._subscribed.add(id, value, _selectors(value.subscriber.subscribed))
        try:
            self._granted.add(id, value, _selectors(value.subscriber.grant.subscribe))
        except BaseException:
            self._subscribed.discard(id, value)
            raise

    def discard(self, id: int, value: Interested) -> None:
        self._subscribed.discard(id, value)
        self._granted.discard(id, value)

    def ids_matching(self, key: Key, values: SortedDict, start: int) -> BitMap64:
        role, topic = key
        index = self._subscribed if role == "subscribed" else self._granted
        return index.ids_matching(topic, values, start)

    def announces(self, topic: str) -> bool:
        """Return whether updates of this topic announce a subscription; every such topic is a new one."""
        return topic.startswith(self._announced)

    def bitmap(self, *keys: Key) -> BitMap64:
        """The ids that pass any of `keys`, and nothing is remembered of that."""
        ids, nobody = BitMap64(), SortedDict()  # an index needs no values: they have declared what they want
        for key in keys:
            ids |= self.ids_matching(key, nobody, 0)
        return ids


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterable[CompiledSelector]:
    return (selector for matcher in matchers for selector in matcher.selectors)

"""Audience: which seats receive an update.

    update (topics T)  ─►  ⋃ subscribed[t]  ∩  ⋃ granted[t] if it is private     t ∈ T
                           a cached bitmap of ids for each topic

A subscription and a grant may match different topics of one update (N21, N81, V50), so
the two unions above are exactly the rule of the protocol.

Belongs here: topics, ids, and this rule, which stands nowhere else; only the pipeline
has it once more, as columns (`skipfilter.bulk.deliveries`).  Does not belong here: any
write to a connection.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pyroaring import BitMap64

from hub.delivery.seat import Seat
from hub.protocol.topics import subscriptions_path
from skipfilter import SelectorIndex, SkipFilter
from skipfilter.posting_list import union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hub.delivery.seat import Holder
    from hub.delivery.subscriber import Subscriber
    from hub.protocol.topics import TopicMatcher
    from hub.protocol.updates import Update
    from hub.turns import Pace
    from skipfilter import CompiledSelector, PostingList, Stats

Role: TypeAlias = Literal["subscribed", "granted"]
Key: TypeAlias = tuple[Role, str]
"""A role and a topic: which seats subscribe to the topic, or may read it?"""

_PUBLIC: Final[tuple[Role, ...]] = ("subscribed",)
_PRIVATE: Final[tuple[Role, ...]] = ("subscribed", "granted")
"""The roles that the receivers of an update must all have."""


class Audience:
    """All seats of one node, with what they want and may read.

    Relative patterns and topics are resolved against `base_url`, the hub's URL.  The
    seats of up to `cached_topics` topics are cached, in up to `cached_topics_bytes`
    bytes.  If `max_alike` patterns have the same fixed text, the subscriber is asked
    whether it may have one more.  Must be used from one event loop.
    """

    def __init__(
        self,
        base_url: str,
        *,
        cached_topics: int = 1_000,
        cached_topics_bytes: int = 2**20,
        max_alike: int = 256,
    ) -> None:
        self._index = SeatIndex(base_url, max_alike, self._require_alike)
        # A topic takes up to two keys: one for subscriptions, and one for grants.
        self._filter: SkipFilter[Seat, Key] = SkipFilter(
            self._index, capacity=2 * cached_topics, max_bytes=cached_topics_bytes, lock=nullcontext()
        )
        self._cached = self._filter.bitmap
        self.lookups = 0
        """The number of questions to the cache."""
        # The prefix of the topics of presence updates.
        self._presence_prefix = subscriptions_path(urlsplit(base_url).path) + "/"

    def seat(self, subscriber: Subscriber, holder: Holder | None = None) -> Seat:
        """Return a new seat.

        Raises the error of `Subscriber.require_alike`, and adds nothing, if its
        patterns are too similar to those of other seats.
        """
        seat = Seat(subscriber, holder)
        self._filter.add(seat)
        seat.id = self._filter.id_of(seat)
        return seat

    def _require_alike(self, seat: Seat, others: Sequence[PostingList]) -> None:
        """Raise an error if a new seat must not have one more pattern beside others.

        `others` have the ids of the seats that have each of the others.  A pattern
        counts for the seat that has had it for the longest time; without ids, for the
        new one.
        """
        oldest = [one.min() if one else None for one in others]
        seats = self._filter.values(BitMap64(id for id in oldest if id is not None))
        owners: dict[int | None, Subscriber] = {one.id: one.subscriber for one in seats}
        seat.subscriber.require_alike([owners.get(id, seat.subscriber) for id in oldest])

    def remove(self, seat: Seat) -> None:
        """Remove a seat, which must be one of the audience."""
        self._filter.discard(seat)

    def __len__(self) -> int:
        return len(self._filter)

    def stats(self) -> Stats:
        """Return how the cache of topics is used."""
        return self._filter.stats()

    def __iter__(self) -> Iterator[Seat]:
        """Iterate over all present seats, oldest first."""
        return iter(self._filter)

    def seats(self, ids: BitMap64) -> list[Seat]:
        """Return the seats with these ids that have not left, oldest first."""
        return self._filter.values(ids)

    async def of(self, topics: Sequence[str], private: bool, among: BitMap64, pace: Pace) -> BitMap64:
        """Return the ids of the seats among `among` that receive an update (N21, N81).

        Lets other tasks run at the `pace`.  They may remove seats whose ids are in the
        result.
        """
        find, lookups = self._find(topics), 0
        # A private update needs a subscription, and of those seats a grant.
        for role in _PRIVATE if private else _PUBLIC:
            found = BitMap64()
            for topic in topics:
                if len(found) == len(among):
                    break
                if pace.is_over():
                    await pace.pause()
                ids = find((role, topic))  # a bitmap of our own
                lookups += 1
                ids &= among
                found = found | ids if found else ids
            among = found
        if find is self._cached:
            self.lookups += lookups
        return among

    async def reach(self, update: Update, pace: Pace) -> tuple[int, int]:
        """Return how many seats subscribe to an update, and how many receive it.

        Lets other tasks run at the `pace`.
        """
        find = self._find(update.topics)
        if find is self._cached:
            self.lookups += len(update.topics) * (2 if update.private else 1)
        subscribed, granted = BitMap64(), BitMap64()
        for topic in update.topics:
            if pace.is_over():
                await pace.pause()
            subscribed |= find(("subscribed", topic))
            if update.private:
                granted |= find(("granted", topic))
        return len(subscribed), len(subscribed & granted if update.private else subscribed)

    async def readable(self, seat: Seat, update: Update, pace: Pace) -> Sequence[str]:
        """Return the topics of an update that a seat may know.

        These are all topics of a public update, because anyone may subscribe to them,
        and those topics of a private update that its grant covers.
        """
        if not update.private:
            return update.topics
        find, topics = self._find(update.topics), []
        if find is self._cached:
            self.lookups += len(update.topics)
        for topic in update.topics:
            if pace.is_over():
                await pace.pause()
            if seat.id in find(("granted", topic)):
                topics.append(topic)
        return topics

    def _find(self, topics: Sequence[str]) -> Callable[[Key], BitMap64]:
        """Return the function that finds the ids of a key, for these topics."""
        # Each presence update has a new topic.  Caching it would only evict topics that
        # are in use.
        return self._index.bitmap if topics[0].startswith(self._presence_prefix) else self._cached


class SeatIndex:
    """An index of subscriptions and an index of grants, as one `skipfilter.Index`."""

    def __init__(
        self,
        base_url: str,
        max_alike: int = 256,
        above_max_alike: Callable[[Any, list[PostingList]], None] | None = None,
    ) -> None:
        # The number of matchers was limited when they were parsed, and the number of
        # URL Patterns when they were compiled.  Only similar patterns are limited here.
        index = partial(
            SelectorIndex,
            base_url=base_url,
            max_selectors=sys.maxsize,
            max_url_patterns=sys.maxsize,
            max_alike=max_alike,
            above_max_alike=above_max_alike,
        )
        self._subscribed, self._granted = index(), index()

    def add(self, id: int, value: Seat, selectors: object = ()) -> None:
        """Add a seat to the index of subscriptions, and of grants if it has any.

        Its subscriber has the matchers; `selectors` is not used.  If an error is
        raised, the seat is in neither index.
        """
        subscriber = value.subscriber
        self._subscribed.add(id, value, _selectors(subscriber.subscribed))
        if subscriber.grant.subscribe:
            try:
                self._granted.add(id, value, _selectors(subscriber.grant.subscribe))
            except BaseException:
                self._subscribed.discard(id, value)
                raise

    def discard(self, id: int, value: Seat) -> None:
        """Remove a seat from the indexes that it is in."""
        self._subscribed.discard(id, value)
        if value.subscriber.grant.subscribe:
            self._granted.discard(id, value)

    def posting_lists(self, key: Key, start: int = 0) -> Sequence[PostingList]:
        """Return the posting lists of the seats that subscribe to, or may read, a
        topic, which were made for the id `start` or a later one.
        """
        role, topic = key
        index = self._subscribed if role == "subscribed" else self._granted
        return index.posting_lists(topic, start)

    def bitmap(self, key: Key) -> BitMap64:
        """Return the ids that match a key, as `SkipFilter.bitmap` does, and cache
        nothing.
        """
        return union([postings.ids for postings in self.posting_lists(key)])


def _selectors(matchers: Iterable[TopicMatcher]) -> Iterable[CompiledSelector]:
    return (selector for matcher in matchers for selector in matcher.selectors)

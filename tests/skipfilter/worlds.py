"""Small worlds of updates and sessions, with their deliveries by brute force and by a
SkipFilter.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from skipfilter import SelectorIndex, SkipFilter, compile_matcher

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from pyspark.sql import DataFrame, SparkSession

    from skipfilter import Selector

T = TypeVar("T")

BASE = "https://example.com/hub"
DAY = datetime(2026, 1, 31, tzinfo=UTC)

TOPICS = ["/a", "/a/1", "/a/2", "/b/1/c", "x", "x.y", "x.y.z", "$x", "https://example.com/a/1", "é", "*"]
SELECTORS: list[Selector] = [
    *(("exact", topic) for topic in TOPICS),
    ("everything", "*"),
    ("uritemplate", "/a/{id}"),
    ("uritemplate", "/a/{other}"),
    ("uritemplate", "{anything}"),
    ("amqp", "x.#"),
    ("amqp", "*"),
    ("mqtt", "/a/+"),
    ("mqtt", "#"),
    ("urlpattern", "/a/:id"),
    ("urlpattern", "https://example.com/*"),
]

_SELECTORS = "array<struct<type:string,pattern:string>>"
UPDATES = "update_id string, topics array<string>, private boolean, ts timestamp, position long"
SESSIONS = (
    f"subscriber_id long, selectors {_SELECTORS}, authorised {_SELECTORS}, "
    "connected_from timestamp, disconnected_at timestamp, after long, until long"
)

_TIME = pa.timestamp("us", "UTC")
_LIST = pa.list_(pa.struct({"type": pa.string(), "pattern": pa.string()}))
ARROW_UPDATES = pa.schema(
    {"update_id": pa.string(), "topics": pa.list_(pa.string()), "private": pa.bool_(), "ts": _TIME}
    | {"position": pa.int64()}
)
ARROW_SESSIONS = pa.schema(
    {"subscriber_id": pa.int64(), "selectors": _LIST, "authorised": _LIST}
    | {"connected_from": _TIME, "disconnected_at": _TIME, "after": pa.int64(), "until": pa.int64()}
)


class Update(NamedTuple):
    update_id: str
    topics: list[str]
    private: bool
    at: int
    """Microseconds of the DAY, and the position in a log."""


class Session(NamedTuple):
    subscriber_id: int
    selectors: list[Selector]
    authorised: list[Selector]
    begins: int
    ends: int | None


class World(NamedTuple):
    updates: list[Update]
    sessions: list[Session]

    def rows(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the rows of UPDATES and of SESSIONS."""
        updates = [(id, topics, private, _time(at), at) for id, topics, private, at in self.updates]
        sessions = [
            (
                *session,
                _time(begins),
                None if ends is None else _time(ends),
                begins - 1,
                None if ends is None else ends - 1,
            )
            for *session, begins, ends in self.sessions
        ]
        return updates, sessions

    def tables(self, spark: SparkSession, partitions: int) -> tuple[DataFrame, DataFrame]:
        updates, sessions = self.rows()
        return (
            spark.createDataFrame(updates, UPDATES).repartition(partitions),
            spark.createDataFrame(sessions, SESSIONS).repartition(partitions),
        )

    def arrow(self, **columns: str) -> tuple[pa.Table, pa.Table]:
        """Return UPDATES and SESSIONS, each with the same value in the further `columns`."""
        tables = []
        for rows, schema in zip(self.rows(), (ARROW_UPDATES, ARROW_SESSIONS), strict=True):
            table = pa.table([list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema], schema)
            for name, value in columns.items():
                table = table.append_column(name, pa.array([value] * len(rows), pa.string()))
            tables.append(table)
        return tables[0], tables[1]


def _time(at: int) -> datetime:
    return DAY + timedelta(microseconds=at)


def random_world(random: Random) -> World:
    """A world whose updates share few moments and topics, so that many are at the ends
    of windows.
    """

    def some(choices: Sequence[T]) -> list[T]:
        return random.choices(choices, k=random.randint(0, 3))

    updates = [
        Update(f"u{number}", some(TOPICS), random.random() < 0.5, random.randint(0, 20))
        for number in range(random.randint(30, 80))
    ]
    sessions = []
    for id in random.sample(range(41), random.randint(0, 25)):
        begins, length = random.randint(0, 20), random.choice([None, *range(11)])
        ends = None if length is None else begins + length
        sessions.append(Session(id, some(SELECTORS), some(SELECTORS), begins, ends))
    return World(updates, sessions)


def by_brute_force(world: World) -> set[tuple[str, int]]:
    """Return (update_id, subscriber_id) of each delivery, by testing every matcher with
    every topic.
    """
    declared = {selector for session in world.sessions for selector in session.selectors + session.authorised}
    matchers = {selector: compile_matcher(*selector, base_url=BASE) for selector in declared}

    def hit(topics: list[str], selectors: list[Selector]) -> bool:
        return any(matchers[selector].match(topic) for selector in selectors for topic in topics)

    return {
        (update.update_id, session.subscriber_id)
        for update in world.updates
        for session in world.sessions
        if session.begins <= update.at and (session.ends is None or update.at < session.ends)
        if hit(update.topics, session.selectors)
        if not update.private or hit(update.topics, session.authorised)
    }


def by_skip_filter(world: World) -> set[tuple[str, int]]:
    """Return the same from a SkipFilter in memory, with sessions that come and go."""
    subscribed: SkipFilter[int, str] = SkipFilter(SelectorIndex(base_url=BASE))
    granted: SkipFilter[int, str] = SkipFilter(SelectorIndex(base_url=BASE))
    deliveries = set()
    for moment in range(40):
        for session in world.sessions:
            if session.ends == moment:
                subscribed.discard(session.subscriber_id)
                granted.discard(session.subscriber_id)
            elif session.begins == moment:
                subscribed.add(session.subscriber_id, session.selectors)
                granted.add(session.subscriber_id, session.authorised)
        for session in world.sessions:
            if session.begins == session.ends == moment:  # a session without length has no deliveries
                subscribed.discard(session.subscriber_id)
                granted.discard(session.subscriber_id)
        for update in world.updates:
            if update.at == moment:
                readers = set(subscribed.match_any(*update.topics))
                if update.private:
                    readers &= set(granted.match_any(*update.topics))
                deliveries |= {(update.update_id, reader) for reader in readers}
    return deliveries

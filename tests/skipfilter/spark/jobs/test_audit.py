"""skipfilter.spark.jobs.audit: the subscribers that could read a topic, and those that did,
agree with brute force.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from skipfilter import compile_matcher
from skipfilter.spark.jobs.audit import audit
from tests.skipfilter.worlds import BASE, DAY, TOPICS, Session, Update, World, by_brute_force, random_world

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random

    from pyspark.sql import DataFrame, SparkSession

    from skipfilter import Selector


def micros(at: int | None) -> datetime | None:
    return None if at is None else DAY + timedelta(microseconds=at)


def tables(spark: SparkSession, world: World) -> tuple[DataFrame, DataFrame]:
    updates, sessions = world.tables(spark, 2)
    return updates, sessions.withColumn("subscriber", F.concat(F.lit("urn:"), "subscriber_id"))


def found(table: DataFrame) -> dict[int, tuple[Any, ...]]:
    """By subscriber: authorised, subscribed, received, received_private, first and
    last, in microseconds of the DAY.
    """
    day = int(DAY.timestamp()) * 1_000_000
    rows = table.withColumns({name: F.unix_micros(name) - day for name in ("first_update", "last_update")}).collect()
    assert len({row.subscriber_id for row in rows}) == len(rows)
    return {
        row.subscriber_id: (
            [tuple(selector) for selector in row.authorised],
            [tuple(selector) for selector in row.subscribed],
            row.received,
            row.received_private,
            row.first_update,
            row.last_update,
        )
        for row in rows
    }


def brute_force(world: World, topic: str, start: int | None, end: int | None, by: str) -> dict[int, tuple[Any, ...]]:
    def granting(selectors: list[Selector]) -> list[Selector]:
        return [selector for selector in selectors if compile_matcher(*selector, base_url=BASE).match(topic)]

    since, until = 0 if start is None else start, 10**6 if end is None else end
    on_topic = {u.update_id: u for u in world.updates if topic in u.topics and since <= u.at < until}
    deliveries = by_brute_force(world)
    expected = {}
    for session in world.sessions:
        got = [
            on_topic[update] for update, reader in deliveries if reader == session.subscriber_id and update in on_topic
        ]
        ends = 10**6 if session.ends is None else session.ends
        there = max(session.begins, since) < min(ends, until)
        authorised, subscribed = granting(session.authorised), granting(session.selectors)
        if (there and (authorised or subscribed)) or got:
            times = [update.at for update in got]
            private = sum(update.private for update in got)
            row = (authorised, subscribed, len(got), private, min(times, default=None), max(times, default=None))
            expected[session.subscriber_id] = row
    return expected


def test_an_audit_agrees_with_brute_force(spark: SparkSession, chance: Random) -> None:
    world, topic = random_world(chance), chance.choice(TOPICS)
    start, end = (chance.choice([None, *range(21)]) for _ in range(2))
    by: Any = chance.choice(["time", "position"])
    table = audit(topic, *tables(spark, world), start=micros(start), end=micros(end), by=by, base_url=BASE)
    assert found(table) == brute_force(world, topic, start, end, by)


@pytest.fixture(scope="module")
def library(spark: SparkSession) -> World:
    exact: Selector = ("exact", "/a/1")
    template: Selector = ("uritemplate", "/a/{id}")
    return World(
        [
            Update("public", ["/a/1"], False, 5),
            Update("private", ["/a/1"], True, 6),
            Update("two", ["x", "/a/1"], True, 7),
            Update("elsewhere", ["/b/1/c"], False, 7),
            Update("late", ["/a/1"], False, 8),
        ],
        [
            Session(0, [exact, template, exact], [("amqp", "#"), template], 0, None),
            Session(1, [exact], [], 0, None),
            Session(2, [], [exact], 0, None),
            Session(
                3, [("exact", "x")], [("exact", "x")], 0, None
            ),  # unrelated to /a/1, except for an update with both topics
            Session(4, [("exact", "x")], [exact], 0, 7),
            Session(5, [("everything", "*")], [("mqtt", "+")], 6, 7),
            Session(6, [exact], [exact], 5, 5),
            Session(7, [("exact", "https://example.com/a/1")], [], 0, None),
        ],
    )


def test_authorised_subscribed_and_received_are_distinct(spark: SparkSession, library: World) -> None:
    exact, template = ("exact", "/a/1"), ("uritemplate", "/a/{id}")
    everything = ("everything", "*")
    updates, sessions = tables(spark, library)
    sessions = sessions.withColumn("complete", F.expr("nullif(subscriber_id, 2) <> 1"))
    table = audit("/a/1", updates, sessions).persist()
    assert found(table) == {
        0: ([("amqp", "#"), template], [exact, template, exact], 4, 2, 5, 8),
        1: ([], [exact], 2, 0, 5, 8),
        2: ([exact], [], 0, 0, None, None),
        3: ([], [], 1, 1, 7, 7),
        4: ([exact], [], 0, 0, None, None),
        5: ([], [everything], 0, 0, None, None),
    }
    columns = ["subscriber_id", "subscriber", "connected_from", "disconnected_at", "complete"]
    told = table.select("topic", *columns).collect()
    kept = {row.subscriber_id: tuple(row) for row in sessions.select(columns).collect()}
    assert all(tuple(row) == ("/a/1", *kept[row.subscriber_id]) for row in told)
    assert {(row.issuer, row.subject) for row in table.collect()} == {(None, None)}


def test_an_audit_names_people_as_the_sessions_do(spark: SparkSession, library: World) -> None:
    updates, sessions = tables(spark, library)
    names = {"issuer": F.lit("us"), "subject": F.expr("nullif(subscriber_id % 2, 0)").cast("string")}
    table = audit("/a/1", updates, sessions.withColumns(names))
    found = {row.subscriber_id: (row.issuer, row.subject) for row in table.collect()}
    assert found == {id: ("us", "1" if id % 2 else None) for id in range(6)}


def test_a_period_keeps_the_sessions_that_overlap_it(spark: SparkSession, library: World) -> None:
    there = found(audit("/a/1", *tables(spark, library), start=micros(7), end=micros(8)))
    assert set(there) == {0, 1, 2, 3}
    assert there[0][2:] == (1, 1, 7, 7)
    assert found(audit("/a/1", *tables(spark, library), start=micros(8), end=micros(7))) == {}


def test_by_position_the_receivers_are_correct_with_any_clocks(spark: SparkSession, library: World) -> None:
    updates, sessions = tables(spark, library)
    late = F.col("connected_from") + F.expr("INTERVAL 1 HOUR")
    skewed = sessions.withColumn("connected_from", late).where("subscriber_id = 0")
    rows = found(audit("/a/1", updates, skewed, end=micros(20), by="position"))
    assert rows[0][2:] == (4, 2, 5, 8)
    assert found(audit("/a/1", updates, skewed, end=micros(20))) == {}

"""skipfilter.spark.jobs.matching agrees with brute force and a SkipFilter, for all
partitions and limits.

tests/skipfilter/bulk tests what the workers do, with many more worlds.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyroaring import BitMap
from pyspark.sql import functions

from skipfilter.spark.errors import BadInput, BroadcastLimit
from skipfilter.spark.jobs.matching import Matching, match
from tests.skipfilter.worlds import BASE, Session, Update, World, by_brute_force, by_skip_filter, random_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FEW: dict[str, Any] = {"hot": 1, "narrow_bytes": 20, "max_broadcast_bytes": 100_000}
"""Limits that cut the crowd: into several ranges of ids, and each key into tasks."""


def check_all_outputs(updates: DataFrame, sessions: DataFrame, world: World, **options: Any) -> set[int]:
    """Check that all outputs agree with brute force; return the shards of the
    receivers.
    """
    with Matching(updates, sessions, base_url=BASE, **options) as matching:
        return check_outputs_of(matching, world)


def check_outputs_of(matching: Matching, world: World) -> set[int]:
    expected = by_brute_force(world)
    rows = matching.output("rows").collect()
    assert sorted((row.update_id, row.subscriber_id) for row in rows) == sorted(expected)
    fanout = {row.update_id: row.fanout for row in matching.output("fanout").collect()}
    assert fanout == dict.fromkeys((update.update_id for update in world.updates), 0) | Counter(
        update for update, _ in expected
    )
    received = {row.subscriber_id: row.received for row in matching.output("received").collect()}
    assert received == Counter(subscriber for _, subscriber in expected)
    assert sum(fanout.values()) == sum(received.values()) == len(rows)
    bitmaps = matching.output("bitmaps").collect()
    assert all(row.recipients for row in bitmaps)
    assert sorted(
        (row.update_id, (row.shard << 23) + id) for row in bitmaps for id in BitMap.deserialize(bytes(row.recipients))
    ) == sorted(expected)
    return {row.shard for row in bitmaps}


@pytest.mark.parametrize(
    "partitions", [pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(7, marks=pytest.mark.soak)]
)
def test_every_output_agrees_with_brute_force_and_a_skip_filter(
    spark: SparkSession, partitions: int, chance: Random
) -> None:
    world, limits, by = random_world(chance), chance.choice([{}, FEW]), chance.choice(["time", "position"])
    assert by_skip_filter(world) == by_brute_force(world)
    check_all_outputs(*world.tables(spark, partitions), world, by=by, **limits)


@pytest.fixture(scope="module")
def crowd() -> World:
    """A world in three shards, in which every limit of FEW cuts something."""
    moments = [(n * 7) % 20 for n in range(60)]
    topics = [["/a"], ["/a/1"], ["x.y", "/a"], ["/a/2", "é"], []]
    updates = [Update(f"u{n}", topics[n % 5], n % 3 == 0, at) for n, at in enumerate(moments)]
    sessions = [
        Session(
            [n * 100, n + (1 << 23), n + (1 << 40)][max(0, n - 84) // 2],
            [("exact", "/a"), *[("exact", f"/a/{n % 3}"), ("uritemplate", "/a/{id}"), ("amqp", "x.#")][n % 4 :]],
            [[("exact", "é")], [("mqtt", "/a/+")], [("everything", "*")], []][n % 4],
            n % 11,
            n % 11 + n % 13 if n % 5 else None,
        )
        for n in range(90)
    ]
    return World(updates, sessions)


def test_limits_change_the_plan_and_not_the_result(
    spark: SparkSession, crowd: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Matching.__module__], "TASK_DELIVERIES", (1, 400))
    assert check_all_outputs(*crowd.tables(spark, 2), crowd, **FEW) == {0, 1, 1 << 17}


@pytest.fixture(scope="module")
def some(crowd: World) -> World:
    """Part of the crowd, in one shard."""
    return World(crowd.updates, crowd.sessions[:20])


def test_without_sessions_nothing_is_received(spark: SparkSession) -> None:
    world = World([Update("u", ["/a"], False, 0)], [])
    check_all_outputs(*world.tables(spark, 1), world)


def test_a_hot_topic_is_divided_by_its_deliveries(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Matching.__module__], "TASK_DELIVERIES", (1_000, 50_000))
    sessions = [Session(id, [("everything", "*")], [], 0, None) for id in range(400)]
    world = World([Update(f"u{n}", ["/a"], False, n % 20) for n in range(300)], sessions)
    rows = match(*world.tables(spark, 2), "rows")
    shares = [row["count"] for row in rows.groupBy(functions.spark_partition_id()).count().collect()]
    assert sum(shares) == 400 * 300
    # Three tasks, as 120,000 deliveries need, with about as many each.
    assert len(shares) == 3
    assert max(shares) < 400 * 300 / 2
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        rows = match(*world.tables(spark, 2), "bitmaps")
        shares = [row["count"] for row in rows.groupBy(functions.spark_partition_id()).count().collect()]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert (len(shares), sum(shares)) == (5, 300)
    assert max(shares) < 300 / 2


def test_keys_with_equal_hashes_are_distinguished(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "xxhash64", lambda *columns: functions.lit("same"))
    world = World(
        [
            Update(f"u{topic}{private}", [topic], private, 0)
            for topic in ["/a", "/a/1", "x"]
            for private in (False, True)
        ],
        [
            Session(0, [("exact", "/a")], [], 0, None),
            Session(1, [("exact", "/a/1"), ("exact", "x")], [("exact", "x")], 0, 1),
        ],
    )
    check_all_outputs(*world.tables(spark, 2), world)


# -- shared results


def persisted(spark: SparkSession) -> int:
    return int(spark._jsc.getPersistentRDDs().size())


def test_the_index_is_used_once_per_topic_for_all_outputs(
    spark: SparkSession, some: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = sys.modules[Matching.__module__]
    asked, ask = str(tmp_path / "asked"), module.find_numbers

    def count(batches: Iterable[pa.RecordBatch], wide: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with open(asked, "a") as file:
                file.writelines(f"{topic}\n" for topic in batch.column(0).to_pylist())
            yield from ask([batch], wide)

    monkeypatch.setattr(module, "find_numbers", count)  # a nested function is sent to the workers by value
    check_all_outputs(*some.tables(spark, 2), some)
    assert sorted(Path(asked).read_text().split()) == sorted(
        {topic for update in some.updates for topic in update.topics}
    )


def test_a_closed_matching_leaves_nothing_persisted_and_its_results_stay_correct(
    spark: SparkSession, some: World
) -> None:
    before = persisted(spark)
    with Matching(*some.tables(spark, 2)) as matching:
        rows = matching.output("rows")
        assert rows.count() == len(by_brute_force(some))
        assert persisted(spark) > before
    assert persisted(spark) == before
    assert rows.count() == len(by_brute_force(some))
    assert match(*some.tables(spark, 2), "rows").count() == len(by_brute_force(some))
    assert persisted(spark) == before


def test_the_error_that_stops_spark_is_not_hidden_by_later_ones(
    spark: SparkSession, some: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(spark.range(1))
    unpersist = kind.unpersist

    def fail(frame: DataFrame) -> None:
        unpersist(frame)
        raise Py4JError("there is no Spark any more")

    monkeypatch.setattr(kind, "unpersist", fail)
    with pytest.raises(KeyError), Matching(*some.tables(spark, 2)):
        raise KeyError


# -- refused tables


def one(spark: SparkSession, *sessions: Session) -> tuple[DataFrame, DataFrame]:
    return World([Update("u", ["/a"], False, 1)], list(sessions)).tables(spark, 1)


def test_an_invalid_selector_is_reported_with_its_subscriber(spark: SparkSession) -> None:
    bad: Any = ("amqp", "a..b")
    before = persisted(spark)
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 7: amqp pattern 'a\.\.b': a word is empty"):
        match(*one(spark, Session(3, [("amqp", "a")], [], 0, None), Session(7, [], [bad], 0, None)))
    assert persisted(spark) == before


def test_a_selector_too_large_for_a_worker_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 3: its [\d,]+ bytes of selectors are more than the 40 "):
        match(*one(spark, Session(3, [("amqp", "a." * 40 + "b")], [], 0, None)), max_broadcast_bytes=40)


@pytest.mark.parametrize("column", ["topics", "private", "ts"])
def test_a_null_is_reported_with_its_column_and_row(spark: SparkSession, column: str) -> None:
    updates, sessions = one(spark, Session(0, [], [], 0, None))
    holed = updates.withColumn(column, functions.lit(None).cast(updates.schema[column].dataType))
    with pytest.raises(Exception, match=f"updates: {column} is null, update_id is u"):
        match(holed, sessions).collect()

"""skipfilter.spark.matching agrees with brute force and a SkipFilter, for all
partitions and limits.
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
from skipfilter.spark.matching import Matching, match
from tests.skipfilter.spark.worlds import BASE, Session, Update, World, by_brute_force, by_skip_filter, random_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LIMITS: list[dict[str, Any]] = [
    {},
    {"narrow_bytes": 0},  # all by reference
    {"narrow_bytes": 1_000_000},  # all exact ones copied
    {"narrow_bytes": 20},  # some of both
    {"max_broadcast_bytes": 1_200},  # several small ranges of ids
    {"hot": 2},  # every other key is spread over several tasks
    {"hot": 1, "narrow_bytes": 20, "max_broadcast_bytes": 1_200},
]


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
    world, limits, by = random_world(chance), chance.choice(LIMITS), chance.choice(["time", "position"])
    assert by_skip_filter(world) == by_brute_force(world)
    check_all_outputs(*world.tables(spark, partitions), world, by=by, **limits)


@pytest.fixture(scope="module")
def crowd() -> World:
    """A world in which every limit of LIMITS cuts something."""
    moments = [(n * 7) % 20 for n in range(60)]
    topics = [["/a"], ["/a/1"], ["x.y", "/a"], ["/a/2", "é"], []]
    updates = [Update(f"u{n}", topics[n % 5], n % 3 == 0, at) for n, at in enumerate(moments)]
    sessions = [
        Session(
            n,
            [("exact", "/a"), *[("exact", f"/a/{n % 3}"), ("uritemplate", "/a/{id}"), ("amqp", "x.#")][n % 4 :]],
            [[("exact", "é")], [("mqtt", "/a/+")], [("everything", "*")], []][n % 4],
            n % 11,
            n % 11 + n % 13 if n % 5 else None,
        )
        for n in range(90)
    ]
    return World(updates, sessions)


@pytest.mark.parametrize(
    "limits",
    [LIMITS[0], *(pytest.param(limits, marks=pytest.mark.soak) for limits in LIMITS[1:-1]), LIMITS[-1]],
    ids=str,
)
def test_limits_change_the_plan_and_not_the_result(spark: SparkSession, crowd: World, limits: dict[str, Any]) -> None:
    check_all_outputs(*crowd.tables(spark, 2), crowd, **limits)


def test_ids_of_many_shards_add_up(spark: SparkSession) -> None:
    ids = [0, 1, (1 << 23) - 1, 1 << 23, (1 << 23) + 7, (1 << 40) + 3]
    sessions = [Session(id, [("exact", "/a"), ("mqtt", "#")], [("exact", "/a/1")], 0, None) for id in ids]
    world = World([Update("u", ["/a"], False, 1), Update("v", ["/a/1"], True, 2)], sessions)
    assert check_all_outputs(*world.tables(spark, 2), world) == {0, 1, 1 << 17}


@pytest.mark.parametrize(
    "world", [World([], []), World([Update("u", ["/a"], False, 0)], [])], ids=["no updates", "no sessions"]
)
def test_without_rows_nothing_is_received(spark: SparkSession, world: World) -> None:
    check_all_outputs(*world.tables(spark, 1), world)


def test_sessions_without_updates_receive_nothing(spark: SparkSession) -> None:
    world = World([], [Session(3, [("everything", "*")], [], 0, None)])
    check_all_outputs(*world.tables(spark, 1), world)


def test_a_microsecond_decides(spark: SparkSession) -> None:
    everything: Any = [("everything", "*")]
    world = World(
        [Update(f"u{at}", ["/a"], False, at) for at in (4, 5, 6, 7, 8)],
        [Session(0, everything, [], 5, 7), Session(1, everything, [], 5, 5), Session(2, everything, [], 7, 8)],
    )
    fanout = match(*world.tables(spark, 1)).orderBy("ts").collect()
    assert [row.fanout for row in fanout] == [0, 1, 1, 1, 0]
    assert [row.ts.microsecond for row in fanout] == [4, 5, 6, 7, 8]


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
    spark: SparkSession, crowd: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = sys.modules[Matching.__module__]
    asked, ask = str(tmp_path / "asked"), module._ask

    def count(batches: Iterable[pa.RecordBatch], wide: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with open(asked, "a") as file:
                file.writelines(f"{topic}\n" for topic in batch.column(0).to_pylist())
            yield from ask([batch], wide)

    monkeypatch.setattr(module, "_ask", count)  # a nested function is sent to the workers by value
    check_all_outputs(*crowd.tables(spark, 2), crowd)
    assert sorted(Path(asked).read_text().split()) == sorted(
        {topic for update in crowd.updates for topic in update.topics}
    )


def test_a_closed_matching_leaves_nothing_persisted_and_its_results_stay_correct(
    spark: SparkSession, crowd: World
) -> None:
    before = persisted(spark)
    with Matching(*crowd.tables(spark, 2)) as matching:
        rows = matching.output("rows")
        assert rows.count() == len(by_brute_force(crowd))
        assert persisted(spark) > before
    assert persisted(spark) == before
    assert rows.count() == len(by_brute_force(crowd))
    assert match(*crowd.tables(spark, 2), "rows").count() == len(by_brute_force(crowd))
    assert persisted(spark) == before


def test_the_error_that_stops_spark_is_not_hidden_by_later_ones(
    spark: SparkSession, crowd: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(spark.range(1))
    unpersist = kind.unpersist

    def fail(frame: DataFrame) -> None:
        unpersist(frame)
        raise Py4JError("there is no Spark any more")

    monkeypatch.setattr(kind, "unpersist", fail)
    with pytest.raises(KeyError), Matching(*crowd.tables(spark, 2)):
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
    unknown: Any = ("jmespath", "a")
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 8388615: matcher type 'jmespath' is none of exact, "):
        match(*one(spark, Session(7 + (1 << 23), [unknown], [], 0, None)))


def test_sessions_that_share_an_id_are_refused(spark: SparkSession) -> None:
    twice = Session(4, [], [], 0, None)
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 4 occurs 2 times"):
        match(*one(spark, twice, Session(5, [], [], 0, None), twice))


def test_a_session_that_ends_before_it_begins_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 4 ends before it begins"):
        match(*one(spark, Session(3, [], [], 5, 5), Session(4, [], [], 5, 4)))


def test_a_negative_id_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id must be at least 0, not -1"):
        match(*one(spark, Session(-1, [], [], 0, None)))


def test_a_selector_too_large_for_a_worker_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 3: its \d+ bytes of selectors are more than the 40 "):
        match(*one(spark, Session(3, [("amqp", "a." * 40 + "b")], [], 0, None)), max_broadcast_bytes=40)


@pytest.mark.parametrize("column", ["topics", "private", "ts"])
def test_a_null_is_reported_with_its_column_and_row(spark: SparkSession, column: str) -> None:
    updates, sessions = one(spark, Session(0, [], [], 0, None))
    holed = updates.withColumn(column, functions.lit(None).cast(updates.schema[column].dataType))
    with pytest.raises(Exception, match=f"updates: {column} is null, update_id is u"):
        match(holed, sessions).collect()

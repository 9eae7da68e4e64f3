"""skipfilter.spark.jobs.generate: the same rows on every machine, in the configured
shape.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions

from skipfilter import MATCHERS, compile_matcher
from skipfilter.spark.jobs.generate import Families, Workload, generate_sessions, generate_updates, zipf
from skipfilter.spark.tables.schemas import SESSIONS, UPDATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SMALL = Workload(subscribers=2_000, updates=3_000)


def checksum(table: DataFrame) -> tuple[int, int]:
    """The same for the same rows, in any order."""
    row = functions.xxhash64(*table.columns).cast("decimal(38)")
    summed = table.agg(functions.sum(row), functions.count("*")).first()
    assert summed is not None
    return int(summed[0] or 0), summed[1]


def in_python(table: DataFrame) -> list[Row]:
    """The rows, with times as microseconds since 1970."""
    times = {name: functions.unix_micros(name) for name, type in table.dtypes if type == "timestamp"}
    return table.withColumns(times).collect()


@pytest.fixture(scope="module")
def updates(spark: SparkSession) -> list[Row]:
    return in_python(generate_updates(spark, SMALL))


@pytest.fixture(scope="module")
def sessions(spark: SparkSession) -> list[Row]:
    return in_python(generate_sessions(spark, SMALL))


def test_the_same_seed_makes_the_same_rows(spark: SparkSession) -> None:
    # The epoch names the workload, so a new option changes it.
    updates, sessions = (
        generate(spark, SMALL).drop("epoch", "presence", "issuer", "subject")
        for generate in (generate_updates, generate_sessions)
    )
    assert checksum(updates) == (162825999633670121402, 3_000)
    assert checksum(sessions) == (86177018303109567404, 2_000)


def test_each_session_is_of_a_person(sessions: list[Row]) -> None:
    assert {row.issuer for row in sessions} == {"https://example.com"}
    assert [f"{row.issuer}/users/{row.subject}" for row in sessions] == [row.subscriber for row in sessions]


def test_the_epoch_is_that_of_the_workload(updates: list[Row], sessions: list[Row], spark: SparkSession) -> None:
    [epoch] = {row.epoch for row in updates + sessions}
    [other] = {row.epoch for row in generate_sessions(spark, Workload(subscribers=1, updates=3_000)).collect()}
    assert epoch.startswith("generated ")
    assert other.startswith("generated ")
    assert epoch != other


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.soak), 7])
def test_partitions_change_no_row(
    spark: SparkSession, partitions: int, updates: list[Row], sessions: list[Row]
) -> None:
    for generate, expected in ((generate_updates, updates), (generate_sessions, sessions)):
        made = generate(spark, SMALL, partitions)
        assert made.select(functions.spark_partition_id()).distinct().count() == partitions
        key = made.columns[0]
        assert in_python(made.repartition(partitions + 1, key).orderBy(key)) == sorted(expected, key=lambda row: row[0])


def test_the_schemas_are_those_of_the_tables(spark: SparkSession) -> None:
    assert generate_updates(spark, SMALL).schema == UPDATES
    assert generate_sessions(spark, SMALL).schema == SESSIONS


def test_another_seed_makes_other_rows(spark: SparkSession, updates: list[Row]) -> None:
    other = generate_updates(spark, Workload(subscribers=2_000, updates=3_000, seed=1)).collect()
    assert not {row.update_id for row in updates} & {row.update_id for row in other}
    assert sum(a.topics == b.topics for a, b in zip(updates, other, strict=True)) < 30


def test_a_longer_workload_begins_like_a_shorter_one(spark: SparkSession, updates: list[Row]) -> None:
    longer = generate_updates(spark, Workload(subscribers=2_000, updates=5_000))
    assert {row.update_id for row in updates} < {row.update_id for row in longer.select("update_id").collect()}


@pytest.mark.parametrize("workload", [Workload(subscribers=0, updates=0), Workload(subscribers=1, updates=2)], ids=str)
def test_the_smallest_workloads_have_all_tables(spark: SparkSession, workload: Workload) -> None:
    assert generate_updates(spark, workload).count() == workload.updates
    assert generate_sessions(spark, workload).count() == workload.subscribers


def test_ids_are_in_the_order_of_connecting(sessions: list[Row]) -> None:
    rows = sorted(sessions, key=lambda row: row.subscriber_id)
    assert [row.subscriber_id for row in rows] == list(range(2_000))
    assert [row.connected_from for row in rows] == sorted(row.connected_from for row in rows)


def test_update_ids_are_different_uuids(updates: list[Row]) -> None:
    ids = {row.update_id for row in updates}
    assert len(ids) == len(updates)
    for id in ids:
        assert id.startswith("urn:uuid:")
        assert [len(part) for part in id.removeprefix("urn:uuid:").split("-")] == [8, 4, 4, 4, 12]


def test_about_an_eighth_is_connected_at_any_time(sessions: list[Row]) -> None:
    steady = Workload(subscribers=2_000)
    start = int(steady.start.timestamp()) * 1_000_000
    ends = [row.disconnected_at or start * 2 for row in sessions]
    for hour in range(24):
        at = start + hour * 3_600_000_000
        there = sum(row.connected_from <= at < end for row, end in zip(sessions, ends, strict=True))
        assert 0.07 < there / 2_000 < 0.22
    after = start + 86_400_000_000
    assert all(row.disconnected_at is None or row.connected_from <= row.disconnected_at < after for row in sessions)
    assert 0.06 < sum(row.disconnected_at is None for row in sessions) / 2_000 < 0.2


def test_times_are_in_the_duration_and_more_at_noon(updates: list[Row]) -> None:
    start = int(SMALL.start.timestamp()) * 1_000_000
    hours = [(row.ts - start) // 3_600_000_000 for row in updates]
    assert set(hours) == set(range(24))
    assert sum(9 <= hour < 15 for hour in hours) > 1.5 * sum(hour < 3 or hour >= 21 for hour in hours)
    assert {row.dt for row in updates} == {datetime(2026, 11, 21, tzinfo=UTC).date()}


def test_shares_are_as_configured(updates: list[Row], sessions: list[Row]) -> None:
    count = len(updates)
    assert 0.27 < sum(row.private for row in updates) / count < 0.33
    assert 0.08 < sum(len(row.topics) == 2 for row in updates) / count < 0.12
    assert all(len(set(row.topics)) == len(row.topics) for row in updates)
    holders = {type: sum(any(s.type == type for s in row.selectors) for row in sessions) for type in MATCHERS}
    assert holders["exact"] == 2_000
    assert 0.46 < holders["uritemplate"] / 2_000 < 0.54
    assert 0.035 < holders["amqp"] / 2_000 < 0.065
    rooms = sum(("uritemplate", "https://example.com/rooms/{id}") in row.authorised for row in sessions)
    assert 0.26 < rooms / 2_000 < 0.34
    assert all(len(set(row.selectors)) == len(row.selectors) for row in sessions)


def test_bytes_are_as_configured(updates: list[Row]) -> None:
    sizes = sorted(row.data_bytes for row in updates)
    assert 250 < sizes[1_500] < 350
    assert sizes[0] >= 1
    assert 2_000 < sizes[2_970] < 20_000


def test_every_type_of_selector_matches_some_topics_and_not_others(updates: list[Row], sessions: list[Row]) -> None:
    topics = {topic for row in updates for topic in row.topics}
    declared = {tuple(selector) for row in sessions for selector in row.selectors}
    for type in MATCHERS.keys() - {"everything"}:
        patterns = [pattern for kind, pattern in declared if kind == type]
        matchers = [compile_matcher(type, pattern) for pattern in patterns[:300]]
        hits = [sum(matcher.match(topic) for topic in topics) for matcher in matchers]
        assert sum(map(bool, hits)) > len(hits) / 10, type
        assert max(hits) < len(topics) / 4, type


def test_each_pattern_of_a_family_matches_a_topic_of_it(spark: SparkSession) -> None:
    each = Families(
        **dict.fromkeys(Families._fields, 0.0) | dict.fromkeys(("feeds", "stocks", "sensors", "shops"), 0.25)
    )
    few: dict[str, Any] = {"feeds": 4, "words": 4, "shops": 4, "everything": 0}
    workload = Workload(subscribers=200, updates=4_000, declared=each, published=each, **few)
    topics = {row[0] for row in generate_updates(spark, workload).select(functions.explode("topics")).collect()}
    declared = generate_sessions(spark, workload).select(functions.explode("selectors").alias("selector"))
    patterns = {tuple(row) for row in declared.select("selector.*").collect()}
    assert len(patterns) == 4 * 4
    for selector in patterns:
        matcher = compile_matcher(*selector)
        assert 0 < sum(map(matcher.match, topics)) <= len(topics) / 4 + 1, selector


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1 + 1e-9, 1.05, 2.5])
@pytest.mark.parametrize("count", [1, 2, 1_000])
def test_zipf_stays_in_its_range_and_prefers_the_first(spark: SparkSession, skew: float, count: int) -> None:
    grid = 10_000
    tiny = functions.when(functions.col("id") == 0, 2.0**-53).when(functions.col("id") == grid, 1 - 2.0**-53)
    u = tiny.otherwise((functions.col("id") + 0.5) / grid)
    rows = spark.range(grid + 1).select(zipf(u, functions.lit(count), skew).alias("n")).groupBy("n").count().collect()
    counts = {row.n: row["count"] for row in rows}
    assert counts.keys() <= set(range(count))
    assert counts[0] >= max(counts.values()) - 1
    # P(0) is the integral of k**-skew over [1, 2), of that over [1, count + 1).
    steps = 20_000
    weight = [
        sum((1 + (end - 1) * (n + 0.5) / steps) ** -skew for n in range(steps)) * (end - 1) for end in (2, count + 1)
    ]
    assert counts[0] / grid == pytest.approx(weight[0] / weight[1], abs=0.002)


@pytest.mark.parametrize(
    "figures",
    [
        {"subscribers": -1},
        {"private": 1.1},
        {"declared": Families(1, 1, 2, 0, 0, 0)},
        {"published": Families(0, 0, 0, 0, 0, 0)},
        {"rooms": 0},
        {"skew": -0.1},
        {"duration": timedelta()},
        {"start": datetime(2026, 1, 1)},  # noqa: DTZ001
    ],
    ids=str,
)
def test_impossible_numbers_are_refused(figures: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        Workload(**figures)

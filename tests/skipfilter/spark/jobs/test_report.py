"""skipfilter.spark.jobs.report: every table agrees with plain Python, and their sums
agree.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as F  # noqa: N812

from skipfilter import compile_matcher
from skipfilter.spark.jobs.report import (
    concurrency,
    hot_topics,
    overview,
    period_of,
    report,
)
from skipfilter.spark.jobs.statistics import fanout_quantiles, with_fanout
from tests.skipfilter.spark.tables.test_files import snapshot
from tests.skipfilter.worlds import BASE, DAY, Session, Update, World, by_brute_force, random_world

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from random import Random

    from pyspark.sql import DataFrame, SparkSession

STEP = timedelta(minutes=7, microseconds=1)
"""The length of a moment of a World, so that the moments span several hours."""
NONE = (0, 0)
"""The updates about presence, and those whose fan-out is unknown: a World has none."""


class Case(NamedTuple):
    """A world, stretched to hours, with its tables."""

    world: World
    updates: DataFrame
    sessions: DataFrame
    fanout: DataFrame
    sent: Counter[str]


def case(spark: SparkSession, world: World) -> Case:
    updates, sessions = world.tables(spark, 2)
    sent = Counter(update for update, _ in by_brute_force(world))
    fanout = [(update.update_id, time(update.at), sent[update.update_id]) for update in world.updates]
    return Case(
        world,
        updates.withColumn("ts", stretched("ts")).withColumn("data_bytes", F.col("position") + 1),
        sessions.withColumns({name: stretched(name) for name in ("connected_from", "disconnected_at")}).withColumns(
            {
                "subscriber": F.concat(F.lit("urn:"), F.col("subscriber_id") % 3),
                "issuer": F.concat(F.lit("of "), F.col("subscriber_id") % 2),
                "subject": F.expr("nullif(subscriber_id % 3, 0)").cast("string"),
            }
        ),
        spark.createDataFrame(fanout, "update_id string, ts timestamp, fanout long"),
        sent,
    )


def stretched(column: str) -> Any:
    day = int(DAY.timestamp()) * 1_000_000
    return F.timestamp_micros((F.unix_micros(column) - day) * (STEP // timedelta(microseconds=1)) + day)


def time(at: int) -> datetime:
    return DAY + at * STEP


def hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def rows(table: DataFrame) -> list[tuple[Any, ...]]:
    """The rows in order, with times in UTC."""
    times = {name: F.unix_micros(name) for name, type in table.dtypes if type == "timestamp"}
    return [
        tuple(
            datetime.fromtimestamp(0, UTC) + timedelta(microseconds=value)
            if name in times and value is not None
            else value
            for name, value in row.asDict().items()
        )
        for row in table.withColumns(times).collect()
    ]


def quantile(values: Iterable[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def described(values: list[int]) -> tuple[Any, ...]:
    mean = pytest.approx(sum(values) / len(values))
    return (mean, *(quantile(values, share) for share in (0.5, 0.9, 0.99, 0.999)), max(values))


def there(sessions: list[Session], at: datetime) -> int:
    return sum(time(s.begins) <= at and (s.ends is None or at < time(s.ends)) for s in sessions)


def hours(start: datetime, end: datetime) -> list[datetime]:
    first = hour(start)
    return [first + timedelta(hours=n) for n in range(100) if first + timedelta(hours=n) < end]


def check(case: Case, made: dict[str, list[tuple[Any, ...]]], start: datetime, end: datetime) -> None:
    """Check that `made` agrees with brute force for the period."""
    updates = [update for update in case.world.updates if start <= time(update.at) < end]
    sent = {update.update_id: case.sent[update.update_id] for update in updates}
    total = sum(sent.values())
    by_hour: defaultdict[datetime, list[Update]] = defaultdict(list)
    for update in updates:
        by_hour[hour(time(update.at))].append(update)
    sessions = case.world.sessions
    present = [
        s for s in sessions
        if time(s.begins) < end and (s.ends is None or (time(s.ends) > start and s.ends > s.begins))
    ]  # fmt: skip

    def size(update: Update) -> int:
        return update.at + 1

    assert made["traffic"] == [
        (
            at,
            len(by_hour[at]),
            sum(update.private for update in by_hour[at]),
            *NONE,
            sum(sent[update.update_id] for update in by_hour[at]),
            sum(map(size, by_hour[at])),
            sum(size(update) * sent[update.update_id] for update in by_hour[at]),
        )
        for at in hours(start, end)
    ]
    assert sum(row[5] for row in made["traffic"]) == total == made["fanout"][0][2]

    edges = [time(at) for s in sessions for at in (s.begins, s.ends) if at is not None]
    hour_long = timedelta(hours=1)
    assert made["concurrency"] == [
        (
            at,
            sum(at <= time(s.begins) < at + hour_long for s in sessions),
            sum(s.ends is not None and at <= time(s.ends) < at + hour_long for s in sessions),
            max(there(sessions, moment) for moment in [at, *(e for e in edges if at <= e < at + hour_long)]),
        )
        for at in hours(start, end)
    ]

    assert made["fanout"] == [(len(updates), 0, total, *described(list(sent.values())))]
    assert made["fanout_hourly"] == [
        (at, len(some), 0, sum(fanouts), *described(fanouts))
        for at, some in sorted(by_hour.items())
        if some
        for fanouts in [[sent[update.update_id] for update in some]]
    ]
    assert made["fanout_distribution"] == [
        (value, count, value * count) for value, count in sorted(Counter(sent.values()).items())
    ]

    on: defaultdict[str, list[Update]] = defaultdict(list)
    for update in updates:
        for topic in set(update.topics):
            on[topic].append(update)
    assert sorted(made["topics"]) == sorted(
        (topic, len(some), sum(u.private for u in some), *NONE, sum(sent[u.update_id] for u in some))
        for topic, some in on.items()
    )
    assert [row[5] for row in made["topics"]] == sorted((row[5] for row in made["topics"]), reverse=True)
    assert sum(row[2] for row in made["topic_hours"]) == sum(row[1] for row in made["topics"])
    assert sum(row[6] for row in made["topic_hours"]) == sum(row[5] for row in made["topics"])

    lengths = [
        (min(end, time(s.ends)) - time(s.begins) if s.ends is not None else end - time(s.begins))
        // timedelta(seconds=1)
        for s in present
    ]
    still = sum(s.ends is None or time(s.ends) > end for s in present)
    if present:
        assert made["session_lengths"] == [(len(present), still, *described(lengths))]

    granted = [compile_matcher(*selector, base_url=BASE) for s in sessions for selector in s.authorised]
    private = [update for update in updates if update.private]
    lost = [u for u in private if not any(matcher.match(topic) for matcher in granted for topic in u.topics)]
    share = pytest.approx(len(private) / len(updates))
    to_nobody = sum(not sent[u.update_id] for u in private)
    assert made["private_updates"] == [(len(updates), len(private), share, 0, to_nobody, len(lost), 0)]
    assert len(lost) <= to_nobody

    uses: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for s in sessions:
        for role, selectors in (("subscribed", s.selectors), ("authorised", s.authorised)):
            for type, pattern in selectors:
                uses[role, type].append((s.subscriber_id, pattern))
    assert sorted(made["selectors"]) == sorted(
        (role, type, len({id for id, _ in some}), len(some), len({pattern for _, pattern in some}))
        for (role, type), some in uses.items()
    )

    capacity = {(row[0], row[1]): row[2:] for row in made["capacity"]}
    inside = [e for e in [start, *edges] if hour(start) <= e < end]
    minute_of_start = start.replace(second=0, microsecond=0)
    most = max(there(sessions, e) for e in [minute_of_start, *(e for e in inside if e >= minute_of_start)])
    assert capacity["connections", "moment"][0] == most
    for per in ("second", "minute"):
        zero: dict[str, Any] = {"microsecond": 0} | ({"second": 0} if per == "minute" else {})
        per_bin: Counter[datetime] = Counter()
        for update in updates:
            per_bin[time(update.at).replace(**zero)] += sent[update.update_id]
        peak, at, planned = capacity["deliveries", per]
        assert peak == max(per_bin.values())
        assert at == min(moment for moment, count in per_bin.items() if count == peak)
        assert planned == 3 * peak
        assert capacity["updates", per][0] == max(Counter(time(u.at).replace(**zero) for u in updates).values())
        assert capacity["updates", per][2] == capacity["updates", per][0]

    (whole,) = made["overview"]
    assert whole == (
        start,
        end,
        len(updates),
        *NONE,
        total,
        sum(map(size, updates)),
        sum(size(u) * sent[u.update_id] for u in updates),
        len(on),
        len(present),
        len({s.subscriber_id % 3 for s in present}),
        len({(s.subscriber_id % 2, s.subscriber_id % 3) for s in present if s.subscriber_id % 3}),
        sum(s.subscriber_id % 3 == 0 for s in present),
    )


def test_every_table_agrees_with_brute_force(spark: SparkSession, chance: Random) -> None:
    world = random_world(chance)
    made = case(spark, world)
    start, end = min(time(u.at) for u in world.updates), max(time(u.at) for u in world.updates)
    # With this limit, each worker has the index of a single selector at a time.
    with report(made.updates, made.sessions, made.fanout, base_url=BASE, growth=3, max_broadcast_bytes=1_000) as tables:
        found = {name: rows(table) for name, table in tables.tables.items()}
    check(made, found, start, end + timedelta(microseconds=1))


def test_a_period_is_selected_from_larger_tables(spark: SparkSession) -> None:
    everything: Any = [("everything", "*")]
    windows = [(0, 5), (0, 10), (3, 3), (4, None), (8, 12), (9, 30), (19, 20), (25, None), (0, 60)]
    world = World(
        [Update(f"u{at}", ["/a", "x"][: 1 + at % 2], at % 3 == 0, at) for at in range(0, 60, 2)],
        [Session(id, everything, everything[: id % 2], begins, ends) for id, (begins, ends) in enumerate(windows)],
    )
    made = case(spark, world)
    start, end = time(10), time(30)  # a session ends where it begins, another begins where it ends
    with report(made.updates, made.sessions, made.fanout, start=start, end=end, base_url=BASE, growth=3) as tables:
        found = {name: rows(table) for name, table in tables.tables.items()}
    check(made, found, start, end)


def test_without_updates_and_sessions_the_tables_are_empty(spark: SparkSession) -> None:
    made = case(spark, World([], []))
    with report(made.updates, made.sessions, made.fanout) as tables:
        found = {name: rows(table) for name, table in tables.tables.items()}
    assert found["overview"] == [(None, None, *11 * (0,))]
    assert found["fanout"] == [(0, 0, 0, None, None, None, None, None, None)]
    assert found["traffic"] == found["concurrency"] == found["topics"] == found["selectors"] == []
    assert all(row[2] == 0 and row[3] is None for row in found["capacity"])


def sweep(
    spark: SparkSession, windows: list[tuple[float, float | None]], start: float, end: float
) -> list[tuple[Any, ...]]:
    """concurrency() by hour of sessions that begin and end at hours of the DAY; the
    last three columns.
    """
    at = [(DAY + timedelta(hours=a), None if b is None else DAY + timedelta(hours=b)) for a, b in windows]
    sessions = spark.createDataFrame(at, "connected_from timestamp, disconnected_at timestamp")
    period = period_of(sessions, DAY + timedelta(hours=start), DAY + timedelta(hours=end))
    return [row[1:] for row in rows(concurrency(sessions, period))]


def test_a_session_that_ends_as_another_begins_does_not_overlap_it(spark: SparkSession) -> None:
    assert sweep(spark, [(1, 1.5), (1.5, 1.75), (1.75, 2)], 1, 3) == [(3, 2, 1), (0, 1, 0)]


def test_hours_without_events_have_the_connected_subscribers(spark: SparkSession) -> None:
    windows: list[tuple[float, float | None]] = [(-5, None), (-3, 2.5), (0.5, 3)]
    assert sweep(spark, windows, 0, 5) == [(1, 0, 3), (0, 0, 3), (0, 1, 3), (0, 1, 1), (0, 0, 1)]


def test_a_session_that_ends_at_the_start_of_an_hour_is_not_in_it(spark: SparkSession) -> None:
    assert sweep(spark, [(0, 1), (0, 1), (1.5, 2)], 1, 2) == [(1, 2, 1)]


def test_a_session_that_begins_after_the_last_hour_is_left_out(spark: SparkSession) -> None:
    assert sweep(spark, [(0, None), (2, None), (7, 9)], 0.25, 1.75) == [(1, 0, 1), (0, 0, 1)]


def test_an_empty_period_has_no_hours(spark: SparkSession) -> None:
    for end in (3, 1):
        assert sweep(spark, [(0, 5)], 3, end) == []


def test_quantiles_are_fanouts_that_occurred(spark: SparkSession) -> None:
    published = spark.range(1, 1_001).select(F.col("id").alias("fanout"), F.col("id").alias("at_least"))
    published = published.withColumn("presence", F.lit(False))
    schema = "fanout long, at_least long, presence boolean"
    assert rows(fanout_quantiles(published)) == [(1_000, 0, 500_500, 500.5, 500, 900, 990, 999, 1_000)]
    # Neither updates about presence nor unknown fan-outs change them.
    others = spark.createDataFrame([(9_999, 9_999, True), (None, 4_000, True), (None, 4_000, False)], schema)
    assert rows(fanout_quantiles(published.unionAll(others))) == [(1_001, 1, 504_500, 500.5, 500, 900, 990, 999, 1_000)]


def test_an_update_has_the_fanout_of_the_matching_by_time_or_by_position(spark: SparkSession) -> None:
    updates = spark.createDataFrame(
        [("u", ["/a", "/a"], False, 5, DAY, 7), ("u", ["/a"], False, 5, DAY, 8), ("v", ["/b"], False, 5, DAY, 9)],
        "update_id string, topics array<string>, private boolean, data_bytes long, ts timestamp, position long",
    )
    found: list[tuple[Any, ...]] = [("u", DAY, 3), ("u", DAY, 3), ("v", DAY, 0)]
    by_time = spark.createDataFrame(found, "update_id string, ts timestamp, fanout long")
    # A fanout by time, read from a file, has null positions; a fanout by position has
    # them for some updates.
    nowhere = by_time.withColumn("position", F.lit(None).cast("long"))
    placed = spark.createDataFrame([("u", DAY, 4, 8), ("u", DAY, 2, 7), ("v", DAY, 0, None)], nowhere.schema)
    for fanout, expected in ((by_time, [3, 3]), (nowhere, [3, 3]), (placed, [2, 4])):
        published = with_fanout(updates, fanout)
        assert sorted((row.topics, row.fanout) for row in published.collect()) == [
            *((["/a"], n) for n in expected),
            (["/b"], 0),
        ]
        assert rows(hot_topics(published, 1)) == [("/a", 2, 0, *NONE, 6)]
    with pytest.raises(Exception, match="fanout: update v is missing: match its day first"):
        with_fanout(updates, by_time.where("update_id = 'u'")).collect()


def test_a_report_is_written_table_by_table_and_can_be_repeated(spark: SparkSession, tmp_path: Path) -> None:
    everything: Any = [("everything", "*")]
    made = case(spark, World([Update("u", ["/a"], False, 1)], [Session(0, everything, [], 0, None)]))
    directory = str(tmp_path / "report")
    with report(made.updates, made.sessions, made.fanout) as tables:
        two = {name: tables.tables[name] for name in ("topics", "overview")}
        replace(tables, tables=two).write(directory)
        replace(tables, tables={"topics": two["topics"]}).write(directory, "csv")
    assert {path.name for path in (tmp_path / "report").iterdir()} == set(two)
    assert spark.read.parquet(f"{directory}/overview").count() == 1
    back = spark.read.option("header", True).csv(f"{directory}/topics").collect()
    assert [row.asDict() for row in back] == [
        {
            "topic": "/a",
            "updates": "1",
            "private_updates": "0",
            "presence_updates": "0",
            "unknown": "0",
            "deliveries": "1",
        }
    ]
    before = snapshot(tmp_path)
    for format in ("csv", "parquet"):
        bad = {"topics": two["topics"].withColumn("updates", F.raise_error(F.lit("bad row")).cast("long"))}
        with pytest.raises(Exception, match="bad row"):
            replace(tables, tables=bad).write(directory, format)
    assert snapshot(tmp_path) == before


def test_totals_do_not_need_the_names_of_subscribers(spark: SparkSession) -> None:
    made = case(spark, World([Update("u", ["/a"], False, 1)], [Session(4, [], [], 0, None)]))
    period = period_of(made.updates)
    found = rows(
        overview(with_fanout(made.updates, made.fanout), made.sessions.drop("subscriber", "issuer", "subject"), period)
    )
    assert found[0][-4:] == (1, 1, 0, 1)

"""Report: connections, updates, and the cost of their delivery, in tables.

    updates ─┬─► published: updates with fan-out ─► traffic, topics, private ┐
    fanout  ─┘                                                               ├► capacity
    sessions ──────────────────────────► concurrency, lengths, selectors ────┘

Plain functions, DataFrame -> DataFrame; `report` puts them together.  Figures are
exact, because at these sizes an estimate takes as long.  Sketches are for tables that
are merged later, days into months: `topic_hourly` and `merge_hourly`.

Everything is within a period, start <= time < end, which is a DataFrame of one row; a
session that is connected at its end counts up to it.  Bins are whole hours in UTC, or
what `per` says, and there is a row for each, also for zeros.

Bytes are those of the updates' data, without frames, headers and TLS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark import files
from skipfilter.spark.fanout import (
    KLL,
    Per,
    bin_of,
    fanout_distribution,
    fanout_quantiles,
    matched,
    quantiles,
    with_fanout,
)
from skipfilter.spark.gaps import of_time
from skipfilter.spark.schemas import GAPS
from skipfilter.spark.session import forget, persisted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Self

    from pyspark.sql import Column, DataFrame

    from skipfilter.spark.matching import By

TOP: Final = 1_000
"""The maximum number of topics in a report; the page shows fewer."""
TOP_BY_HOUR: Final = 20
GROWTH: Final = 2.0


def period_of(updates: DataFrame, start: datetime | None = None, end: datetime | None = None) -> DataFrame:
    """Return start, end as one row.

    Missing bounds default to the first update and one microsecond after the last.
    """
    after_last = F.timestamp_micros(F.unix_micros(F.max("ts")) + 1)
    return updates.agg(
        (F.min("ts") if start is None else F.lit(start)).alias("start"),
        (after_last if end is None else F.lit(end)).alias("end"),
    )


def hot_topics(published: DataFrame, top: int = TOP) -> DataFrame:
    """Return topic, updates, private_updates, deliveries of the `top` by deliveries.

    An update on two topics counts for both, so the sum may exceed the total.
    """
    topics = published.select(F.explode("topics").alias("topic"), "private", "fanout")
    table = topics.groupBy("topic").agg(*_counts())
    return table.orderBy(F.desc("deliveries"), F.desc("updates"), "topic").limit(top)


def topic_hours(published: DataFrame, hot: DataFrame, per: Per = "hour") -> DataFrame:
    """Return topic, time, updates, private_updates, deliveries of hot topics,
    by bin.
    """
    topics = published.select(F.explode("topics").alias("topic"), bin_of("ts", per), "private", "fanout")
    return (
        topics.join(F.broadcast(hot.select("topic")), "topic")
        .groupBy("topic", "time")
        .agg(*_counts())
        .orderBy("topic", "time")
    )


def topic_hourly(published: DataFrame, per: Per = "hour", k: int = KLL) -> DataFrame:
    """Return topic, time, updates, private_updates, deliveries, fanout_kll of every
    topic.

    The last is a KLL sketch of the updates' fan-outs (Karnin, Lang and Liberty, 2016),
    for merging later.
    """
    topics = published.select(F.explode("topics").alias("topic"), bin_of("ts", per), "private", "fanout")
    return topics.groupBy("topic", "time").agg(*_counts(), F.kll_sketch_agg_bigint("fanout", k).alias("fanout_kll"))


def merge_hourly(hourly: DataFrame, per: Per) -> DataFrame:
    """Merge `topic_hourly` into longer bins; several tables can be merged as one."""
    counts = [F.sum(name).alias(name) for name in ("updates", "private_updates", "deliveries")]
    longer = hourly.withColumn("time", F.date_trunc(per, "time"))
    return longer.groupBy("topic", "time").agg(*counts, F.kll_merge_agg_bigint("fanout_kll").alias("fanout_kll"))


def traffic(published: DataFrame, period: DataFrame, per: Per = "hour") -> DataFrame:
    """Return time, updates, private_updates, deliveries and bytes of each bin."""
    sent = published.groupBy(bin_of("ts", per)).agg(*_counts(), *_bytes())
    return _bins(period, per).join(sent, "time", "left").na.fill(0).orderBy("time")


def concurrency(sessions: DataFrame, period: DataFrame, per: Per = "hour") -> DataFrame:
    """Return time, connected, disconnected, peak of each bin; peak is the most at once.

    Exact, by a sweep over all beginnings and ends.  Sessions are half-open, so if one
    ends when another begins, they do not overlap.
    """
    # 1. +1 for a beginning, -1 for an end; a zero at each bin's start, for what is
    # there then.
    bins = _bins(period, per)
    bounds = bins.agg(F.min("time").alias("first"), F.max("time").alias("last"))
    none, one = F.lit(0).cast("long"), F.lit(1).cast("long")
    events = (
        sessions.select(F.col("connected_from").alias("ts"), one.alias("came"), none.alias("went"))
        .unionAll(sessions.select("disconnected_at", none, one).dropna("any", subset=["disconnected_at"]))
        .unionAll(bins.select("time", none, none))
    )
    # 2. The sum of the events in each bin, from its start on; null is before all bins.
    time = F.date_trunc(per, "ts")
    moments = (
        events.crossJoin(F.broadcast(bounds))
        .withColumn("time", F.when(time >= F.col("first"), time))
        .where(F.col("time").isNull() | (F.col("time") <= F.col("last")))
        .groupBy("time", F.when(F.col("time").isNotNull(), F.col("ts")).alias("ts"))
        .agg(F.sum("came").alias("came"), F.sum("went").alias("went"))
    )
    within = Window.partitionBy("time").orderBy("ts")
    swept = moments.withColumn("above", F.sum(F.col("came") - F.col("went")).over(within))
    table = swept.groupBy("time").agg(
        F.sum("came").alias("connected"), F.sum("went").alias("disconnected"), F.max("above").alias("above")
    )
    # 3. Add the number at each bin's start.  All bins are in one partition: they
    #    are few; the constant expression keeps Spark from warning about it.
    earlier = Window.partitionBy(F.col("above") * 0).orderBy("time").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum(F.col("connected") - F.col("disconnected")).over(earlier), F.lit(0))
    table = table.withColumn("peak", before + F.col("above")).where(F.col("time").isNotNull())
    return table.select("time", "connected", "disconnected", "peak").orderBy("time")


def session_lengths(sessions: DataFrame, period: DataFrame) -> DataFrame:
    """Return sessions, still_connected, mean, p50, p90, p99, p999, max, in whole
    seconds.

    Counts the sessions that overlap the period, from their beginnings, also before it,
    to their ends or the period's end.  So if many are still connected, figures are too
    short.
    """
    there = _present(sessions, period)
    left = F.col("disconnected_at") <= F.col("end")
    until = F.when(left, F.col("disconnected_at")).otherwise(F.col("end"))
    micros = F.unix_micros(until) - F.unix_micros("connected_from")
    lengths = there.select(F.floor(micros / 1_000_000).alias("seconds"), F.coalesce(left, F.lit(False)).alias("left"))
    return lengths.agg(
        F.count("*").alias("sessions"),
        F.count_if(~F.col("left")).alias("still_connected"),
        *quantiles("seconds"),
    )


def private_updates(published: DataFrame, sessions: DataFrame, base_url: str | None = None) -> DataFrame:
    """Return one row about private updates:

        updates        of all
        private        the private ones of these
        share          private / updates
        to_nobody      private, and no session received it
        unauthorised   private, and no session in `sessions` is authorised for any topic

    Every `unauthorised` update is `to_nobody`; other such updates had no session that
    was subscribed and connected.  Runs a job before it returns: it fetches the distinct
    granted patterns that are not exact.
    """
    granted = sessions.select(F.explode("authorised").alias("selector")).select("selector.*").distinct()
    private = published.where("private")
    topics = private.select(F.explode("topics").alias("topic")).distinct()
    readable = matched(topics, granted, base_url).select("topic", F.lit(True).alias("readable"))
    keys = private.select("topics").distinct()
    authorised = (
        keys.select("topics", F.explode("topics").alias("topic"))
        .join(readable, "topic")
        .select("topics", F.lit(True).alias("authorised"))
        .distinct()
    )
    table = published.join(authorised, "topics", "left")
    return table.agg(
        F.count("*").alias("updates"),
        F.count_if("private").alias("private"),
        F.avg(F.col("private").cast("int")).alias("share"),
        F.count_if(F.col("private") & (F.col("fanout") == 0)).alias("to_nobody"),
        F.count_if(F.col("private") & F.col("authorised").isNull()).alias("unauthorised"),
    )


def selectors_in_use(sessions: DataFrame) -> DataFrame:
    """Return role, type, sessions, selectors, distinct: the selectors in use, by type.

    The role is "subscribed" for declared selectors, and "authorised" for granted ones.
    """
    roles = [
        sessions.select(F.lit(role).alias("role"), "subscriber_id", F.explode(column).alias("selector"))
        for role, column in (("subscribed", "selectors"), ("authorised", "authorised"))
    ]
    table = roles[0].unionAll(roles[1]).groupBy("role", F.col("selector.type").alias("type"))
    counted = table.agg(
        F.countDistinct("subscriber_id").alias("sessions"),
        F.count("*").alias("selectors"),
        F.countDistinct("selector.pattern").alias("distinct"),
    )
    return counted.orderBy(F.desc("role"), F.desc("selectors"), "type")


def capacity(published: DataFrame, sessions: DataFrame, period: DataFrame, growth: float = GROWTH) -> DataFrame:
    """Return measure, per, peak, at, planned: the peaks of a second and a minute.

    Measures are connections (the most at any moment), connects, updates, deliveries and
    delivered bytes.  `planned` is for `growth` times as many similar subscribers and
    the same updates, so all measures but updates grow in proportion.  It has no
    reserve, and nothing for reconnections: if a hub restarts, all its clients return as
    fast as they can.
    """
    there = concurrency(sessions, period, "minute")
    peaks = _peaks(there, "moment", {"connections": ("peak", growth)})
    came = sessions.crossJoin(F.broadcast(period)).where(_within("connected_from"))
    for per in get_args(Per)[:2]:
        connects = came.groupBy(bin_of("connected_from", per)).agg(F.count("*").alias("connects"))
        sent = published.groupBy(bin_of("ts", per)).agg(*_counts(), *_bytes())
        measures = {
            "updates": ("updates", 1.0),
            "deliveries": ("deliveries", growth),
            "delivered bytes": ("delivered_bytes", growth),
        }
        peaks = peaks.unionAll(_peaks(connects, per, {"connects": ("connects", growth)}))
        peaks = peaks.unionAll(_peaks(sent, per, measures))
    return peaks


def overview(published: DataFrame, sessions: DataFrame, period: DataFrame) -> DataFrame:
    """Return one row: start, end, updates, topics, deliveries, bytes, sessions,
    subscribers.
    """
    there = _present(sessions, period)
    named = F.countDistinct("subscriber") if "subscriber" in sessions.columns else F.count("*")
    topics = published.select(F.explode("topics").alias("topic")).agg(F.countDistinct("topic").alias("topics"))
    deliveries = F.coalesce(F.sum("fanout"), F.lit(0)).alias("deliveries")
    sent = published.agg(F.count("*").alias("updates"), deliveries, *_bytes())
    people = there.agg(F.count("*").alias("sessions"), named.alias("subscribers"))
    return period.crossJoin(sent).crossJoin(topics).crossJoin(people)


# -- the whole


@dataclass(frozen=True, slots=True)
class Report:
    """All tables by name.  Each is computed when it is used.

    `published`, which most of them share, is persisted until the `with` statement ends.
    """

    tables: Mapping[str, DataFrame]
    published: DataFrame
    sessions: DataFrame
    period: DataFrame
    growth: float

    def write(self, directory: str, format: str = "parquet") -> None:
        """Replace each table at `directory`/NAME with one file; `format` is Spark's.

        If a table cannot be written, it stays as it was; the tables before it are new.
        """
        for name, table in self.tables.items():
            files.write(table.coalesce(1), f"{directory}/{name}", format=format, header="true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        forget(self.published)


def report(
    updates: DataFrame,
    sessions: DataFrame,
    fanout: DataFrame,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    base_url: str | None = None,
    growth: float = GROWTH,
    top: int = TOP,
    gaps: DataFrame | None = None,
    by: By = "time",
) -> Report:
    """Return what happened from `start` to `end`; by default during all updates.

    Takes UPDATES, SESSIONS and `match`'s fan-out; `by` is how that was matched.

        overview              one row of totals
        traffic               by hour: updates, deliveries, bytes
        concurrency           by hour: connected, disconnected, peak
        fanout                quantiles
        fanout_hourly         quantiles by hour
        fanout_distribution   how many updates have which fan-out
        topics                the `top` by deliveries
        topic_hours           the first few of these by hour
        session_lengths       quantiles
        private_updates       which reached no session
        selectors             matcher types in use
        capacity              peaks, and a plan for `growth` times the subscribers
        gaps                  what may be missing in these, because a hub was killed

    >>> fanout = match(updates, sessions)  # doctest: +SKIP
    >>> with report(updates, sessions, fanout) as made:  # doctest: +SKIP
    ...     made.write("report")
    """
    period = _known(period_of(updates, start, end))
    within = updates.crossJoin(F.broadcast(period)).where(_within("ts")).select(updates.columns)
    published = persisted(with_fanout(within, fanout))
    topics = hot_topics(published, top)
    tables = {
        "overview": overview(published, sessions, period),
        "traffic": traffic(published, period),
        "concurrency": concurrency(sessions, period),
        "fanout": fanout_quantiles(published),
        "fanout_hourly": fanout_quantiles(published, "hour"),
        "fanout_distribution": fanout_distribution(published),
        "topics": topics,
        "topic_hours": topic_hours(published, topics.limit(TOP_BY_HOUR)),
        "session_lengths": session_lengths(sessions, period),
        "private_updates": private_updates(published, sessions, base_url),
        "selectors": selectors_in_use(sessions),
        "capacity": capacity(published, sessions, period, growth),
        "gaps": of_time(updates.sparkSession.createDataFrame([], GAPS) if gaps is None else gaps, start, end, by=by),
    }
    return Report(tables, published, sessions, period, growth)


# -- internals


def _counts() -> list[Column]:
    """Return updates, private_updates, deliveries."""
    return [
        F.count("*").alias("updates"),
        F.count_if("private").alias("private_updates"),
        F.sum("fanout").alias("deliveries"),
    ]


def _bytes() -> list[Column]:
    """Return published_bytes, delivered_bytes."""
    sums = {"published_bytes": F.sum("data_bytes"), "delivered_bytes": F.sum(F.col("data_bytes") * F.col("fanout"))}
    return [F.coalesce(total, F.lit(0)).alias(name) for name, total in sums.items()]


def _bins(period: DataFrame, per: Per) -> DataFrame:
    """Return time: a row for each bin that overlaps the period."""
    last = F.timestamp_micros(F.unix_micros("end") - 1)
    every = F.sequence(F.date_trunc(per, "start"), F.date_trunc(per, last), F.expr(f"INTERVAL 1 {per.upper()}"))
    return period.where("start < end").select(F.explode(every).alias("time"))


def _known(period: DataFrame) -> DataFrame:
    """Return the period as constants in the plan, so that it is computed once."""
    micros = [F.unix_micros(name).alias(name) for name in period.columns]
    found = period.sparkSession.createDataFrame(period.select(micros).collect(), "start long, end long")
    return found.select(*(F.timestamp_micros(name).alias(name) for name in found.columns))


def _within(column: str) -> Column:
    """Return whether a time is within the period."""
    return (F.col(column) >= F.col("start")) & (F.col(column) < F.col("end"))


def _present(sessions: DataFrame, period: DataFrame) -> DataFrame:
    """Return the sessions that overlap the period, with its start and end."""
    ends = F.col("disconnected_at")
    begun = F.col("connected_from") < F.col("end")
    lasts = ends.isNull() | ((ends > F.col("start")) & (ends > F.col("connected_from")))
    return sessions.crossJoin(F.broadcast(period)).where(begun & lasts)


def _peaks(table: DataFrame, per: str, measures: Mapping[str, tuple[str, float]]) -> DataFrame:
    """Return for each measure its peak, when that was first reached, and the plan."""
    rows = []
    for measure, (column, growth) in measures.items():
        at = F.max_by(F.col("time"), F.struct(F.col(column), -F.unix_micros("time")))
        peak = F.coalesce(F.max(column), F.lit(0))
        values = {"measure": F.lit(measure), "per": F.lit(per), "peak": peak, "at": at, "planned": peak * growth}
        rows.append(F.struct(*(value.alias(name) for name, value in values.items())))
    return table.agg(F.array(*rows).alias("rows")).select(F.inline("rows"))

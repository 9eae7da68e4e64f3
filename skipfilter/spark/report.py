"""What happened, in tables: who was connected, what was published, what it cost to deliver.

    updates ──┬─► published: each update with its fan-out ──► traffic, hot topics, private updates ──┐
    fanout  ──┘                                                                                     ├─► capacity
    sessions ───────────────────────────────────────────────► concurrency, lengths, selectors ──────┘

Plain functions, DataFrame -> DataFrame.  `report` makes of them what a report has; their figures are exact, as at these
sizes that takes as long as an estimate.  Sketches are for what is merged later, days to months: `topic_hourly` and
`merge_hourly`, which are for whoever keeps such tables.

Everything is within a period, start <= time < end, which is a DataFrame of one row; whoever is connected at its end
counts as far as that.  Bins are whole hours, or what `per` says, in UTC, and there is a row for each, of zeros too.

Bytes are those of the updates' data: frames, headers and TLS come on top.
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
"""Topics of a report, at most: the page shows fewer."""
TOP_BY_HOUR: Final = 20
GROWTH: Final = 2.0


def period_of(updates: DataFrame, start: datetime | None = None, end: datetime | None = None) -> DataFrame:
    """start, end: one row.  What is not said is where the updates begin and, by a microsecond, have ended."""
    after_last = F.timestamp_micros(F.unix_micros(F.max("ts")) + 1)
    return updates.agg(
        (F.min("ts") if start is None else F.lit(start)).alias("start"),
        (after_last if end is None else F.lit(end)).alias("end"),
    )


def hot_topics(published: DataFrame, top: int = TOP) -> DataFrame:
    """topic, updates, private_updates, deliveries: the `top` with the most deliveries, in this order.

    An update on two topics counts with both, so their sum may be more than there is.
    """
    topics = published.select(F.explode("topics").alias("topic"), "private", "fanout")
    table = topics.groupBy("topic").agg(*_counts())
    return table.orderBy(F.desc("deliveries"), F.desc("updates"), "topic").limit(top)


def topic_hours(published: DataFrame, hot: DataFrame, per: Per = "hour") -> DataFrame:
    """topic, time, updates, private_updates, deliveries: for the topics of `hot`, where there was anything."""
    topics = published.select(F.explode("topics").alias("topic"), bin_of("ts", per), "private", "fanout")
    return (
        topics.join(F.broadcast(hot.select("topic")), "topic")
        .groupBy("topic", "time")
        .agg(*_counts())
        .orderBy("topic", "time")
    )


def topic_hourly(published: DataFrame, per: Per = "hour", k: int = KLL) -> DataFrame:
    """topic, time, updates, private_updates, deliveries, fanout_kll: for every topic, to be merged later.

    The last is a KLL sketch of the updates' fan-outs (Karnin, Lang and Liberty, 2016).
    """
    topics = published.select(F.explode("topics").alias("topic"), bin_of("ts", per), "private", "fanout")
    return topics.groupBy("topic", "time").agg(*_counts(), F.kll_sketch_agg_bigint("fanout", k).alias("fanout_kll"))


def merge_hourly(hourly: DataFrame, per: Per) -> DataFrame:
    """`topic_hourly` of longer bins, from one of shorter ones, or from several as one table."""
    counts = [F.sum(name).alias(name) for name in ("updates", "private_updates", "deliveries")]
    longer = hourly.withColumn("time", F.date_trunc(per, "time"))
    return longer.groupBy("topic", "time").agg(*counts, F.kll_merge_agg_bigint("fanout_kll").alias("fanout_kll"))


def traffic(published: DataFrame, period: DataFrame, per: Per = "hour") -> DataFrame:
    """time, updates, private_updates, deliveries, published_bytes, delivered_bytes: for each bin."""
    sent = published.groupBy(bin_of("ts", per)).agg(*_counts(), *_bytes())
    return _bins(period, per).join(sent, "time", "left").na.fill(0).orderBy("time")


def concurrency(sessions: DataFrame, period: DataFrame, per: Per = "hour") -> DataFrame:
    """time, connected, disconnected, peak: for each bin, who came, who went, and the most that were there at once.

    Exact, by a sweep over all beginnings and ends.  Sessions are half-open, so one that ends where another begins is
    not there with it.
    """
    bins = _bins(period, per)
    bounds = bins.agg(F.min("time").alias("first"), F.max("time").alias("last"))
    none, one = F.lit(0).cast("long"), F.lit(1).cast("long")
    events = (
        sessions.select(F.col("connected_from").alias("ts"), one.alias("came"), none.alias("went"))
        .unionAll(sessions.select("disconnected_at", none, one).dropna("any", subset=["disconnected_at"]))
        .unionAll(bins.select("time", none, none))  # what was there before is there until the first event
    )
    time = F.date_trunc(per, "ts")
    moments = (
        events.crossJoin(F.broadcast(bounds))
        .withColumn("time", F.when(time >= F.col("first"), time))  # null: before all bins
        .where(F.col("time").isNull() | (F.col("time") <= F.col("last")))
        .groupBy("time", F.when(F.col("time").isNotNull(), F.col("ts")).alias("ts"))
        .agg(F.sum("came").alias("came"), F.sum("went").alias("went"))
    )
    within = Window.partitionBy("time").orderBy("ts")
    swept = moments.withColumn("above", F.sum(F.col("came") - F.col("went")).over(within))
    table = swept.groupBy("time").agg(
        F.sum("came").alias("connected"), F.sum("went").alias("disconnected"), F.max("above").alias("above")
    )
    # One partition for all bins, of which there are few: said so that Spark does not warn of it.
    earlier = Window.partitionBy(F.col("above") * 0).orderBy("time").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum(F.col("connected") - F.col("disconnected")).over(earlier), F.lit(0))
    table = table.withColumn("peak", before + F.col("above")).where(F.col("time").isNotNull())
    return table.select("time", "connected", "disconnected", "peak").orderBy("time")


def session_lengths(sessions: DataFrame, period: DataFrame) -> DataFrame:
    """sessions, still_connected, mean, p50, p90, p99, p999, max: how long sessions last, in whole seconds.

    Those that were there in the period, from where they begin, before it too, to their ends or that of the period; so
    the figures are somewhat too short where many were still connected.
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
    """One row about private updates:

        updates        of all
        private        of those
        share          private / updates
        to_nobody      private, and nobody received it
        unauthorised   private, and nobody in `sessions` is authorised for any of its topics: no one could have

    Every `unauthorised` one is `to_nobody`; the others of that reached no one who had subscribed and was there.
    Works before it returns: fetches the distinct patterns that are granted, other than exact topics.
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
    """role, type, sessions, selectors, distinct: which types of selectors are declared ("subscribed"), and granted."""
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
    """measure, per, peak, at, planned: the most that ever was in one second and in one minute, and what to plan for.

    Measures are connections (at once, in a minute: the most at any moment of it), connects, updates, deliveries and
    delivered bytes.  `planned` is for `growth` times as many subscribers who are like those that there were, and the
    same updates: all but the updates grow with them, in proportion.  It has no reserve, and nothing about reconnecting:
    where a hub starts again, all its connections come back as fast as they may.
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
    """One row: start, end, updates, topics, deliveries, published_bytes, delivered_bytes, sessions, subscribers."""
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
    """All tables, by their names.  Nothing is computed before it is asked for.

    `published` is what most of them are made of: it stays with Spark until the `with` statement ends.
    """

    tables: Mapping[str, DataFrame]
    published: DataFrame
    sessions: DataFrame
    period: DataFrame
    growth: float

    def write(self, directory: str, format: str = "parquet") -> None:
        """Replace each table at `directory`/NAME by one file; `format` is one of Spark's.

        A table that cannot be written stays what it was; those before it are new then.
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
    """What happened from `start` to `end`, all of the updates by default.  UPDATES, SESSIONS, `match`'s fan-out.

    `by` is how the fan-out was matched.

        overview              one row of totals
        traffic               by hour: updates, deliveries, bytes
        concurrency           by hour: connected, disconnected, peak
        fanout                quantiles
        fanout_hourly         by hour
        fanout_distribution   how many updates have which
        topics                the `top` by deliveries
        topic_hours           the first few of them by hour
        session_lengths       quantiles
        private_updates       who could not read them
        selectors             matcher types in use
        capacity              peaks, and what to plan for `growth` times the subscribers
        gaps                  of GAPS: what may be missing in all of that, as a hub was killed

    >>> with report(updates, sessions, match(updates, sessions)) as made:  # doctest: +SKIP
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


# -- underneath


def _counts() -> list[Column]:
    return [
        F.count("*").alias("updates"),
        F.count_if("private").alias("private_updates"),
        F.sum("fanout").alias("deliveries"),
    ]


def _bytes() -> list[Column]:
    sums = {"published_bytes": F.sum("data_bytes"), "delivered_bytes": F.sum(F.col("data_bytes") * F.col("fanout"))}
    return [F.coalesce(total, F.lit(0)).alias(name) for name, total in sums.items()]


def _bins(period: DataFrame, per: Per) -> DataFrame:
    """time: a row for each bin that the period has any of."""
    last = F.timestamp_micros(F.unix_micros("end") - 1)
    every = F.sequence(F.date_trunc(per, "start"), F.date_trunc(per, last), F.expr(f"INTERVAL 1 {per.upper()}"))
    return period.where("start < end").select(F.explode(every).alias("time"))


def _known(period: DataFrame) -> DataFrame:
    """The period as two numbers in the plan, so that it is computed once and needs no executor."""
    micros = [F.unix_micros(name).alias(name) for name in period.columns]
    found = period.sparkSession.createDataFrame(period.select(micros).collect(), "start long, end long")
    return found.select(*(F.timestamp_micros(name).alias(name) for name in found.columns))


def _within(column: str) -> Column:
    return (F.col(column) >= F.col("start")) & (F.col(column) < F.col("end"))


def _present(sessions: DataFrame, period: DataFrame) -> DataFrame:
    """The sessions that have any of the period, with its start and end."""
    ends = F.col("disconnected_at")
    begun = F.col("connected_from") < F.col("end")
    lasts = ends.isNull() | ((ends > F.col("start")) & (ends > F.col("connected_from")))
    return sessions.crossJoin(F.broadcast(period)).where(begun & lasts)


def _peaks(table: DataFrame, per: str, measures: Mapping[str, tuple[str, float]]) -> DataFrame:
    """For each measure the row of `table` that has the most of its column, the first of them, and how it grows."""
    rows = []
    for measure, (column, growth) in measures.items():
        at = F.max_by(F.col("time"), F.struct(F.col(column), -F.unix_micros("time")))
        peak = F.coalesce(F.max(column), F.lit(0))
        values = {"measure": F.lit(measure), "per": F.lit(per), "peak": peak, "at": at, "planned": peak * growth}
        rows.append(F.struct(*(value.alias(name) for name, value in values.items())))
    return table.agg(F.array(*rows).alias("rows")).select(F.inline("rows"))

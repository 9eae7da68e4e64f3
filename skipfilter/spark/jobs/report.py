"""Report: tables of connections, updates, and the cost of their delivery.

    updates ─┬─► published: updates with fan-out ─► traffic, topics, private ┐
    fanout  ─┘                                                               ├► capacity
    sessions ──────────────────────────► concurrency, lengths, selectors ────┘

Each table is made by a plain function of DataFrames, and `report` calls them all.
Figures are exact, because at these sizes an estimate takes as long.

A session that outlasts the period of a report counts up to its end.  Bins are whole
hours in UTC, or as `per` says.  `traffic` and `concurrency` have a row for each bin of
the period, even if nothing happened in it.

Bytes are those of the updates' data, without frames, headers and TLS.

If a hub was killed, some fan-outs are not known (skipfilter.spark.jobs.unknown).
`deliveries` are what is known of them, and each table says of how many updates it does
not know all: `unknown`.  The updates by which a hub tells who is connected (presence)
count in traffic, topics and capacity.  They have a column of their own, and the fan-out
and the private updates are without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.bulk.ranges import BROADCAST_BYTES
from skipfilter.spark.jobs.gaps import of_time
from skipfilter.spark.jobs.generations import MARK, check
from skipfilter.spark.jobs.statistics import (
    Per,
    bin_of,
    fanout_distribution,
    fanout_quantiles,
    matched,
    person,
    quantiles,
    with_fanout,
)
from skipfilter.spark.session import forget, persisted
from skipfilter.spark.tables import files
from skipfilter.spark.tables.schemas import GAPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import date, datetime
    from typing import Self

    from pyspark.sql import Column, DataFrame, SparkSession

    from skipfilter.bulk.matching import By

TOP: Final = 1_000
"""The maximum number of topics in a report.  The page shows fewer."""
TOP_BY_HOUR: Final = 20
"""The maximum number of topics that are also counted by hour."""
GROWTH: Final = 2.0
"""The factor for the number of subscribers, by default, in the plan of capacity."""


class Period(NamedTuple):
    """The time of a report, start <= time < end, as constants.

    They are null if there are no updates.
    """

    start: Column
    end: Column

    def has(self, column: str) -> Column:
        """Return whether a time lies in the period."""
        return (F.col(column) >= self.start) & (F.col(column) < self.end)

    def bins(self, per: Per) -> tuple[Column, Column]:
        """Return the beginnings of the first and the last bin that overlap the period.

        They are null if the period is empty.
        """
        # The end is excluded, so the last bin has the microsecond before it.
        last = F.timestamp_micros(F.unix_micros(self.end) - 1)
        first, last = (F.when(self.start < self.end, F.date_trunc(per, time)) for time in (self.start, last))
        return first, last


def period_of(updates: DataFrame, start: datetime | None = None, end: datetime | None = None) -> Period:
    """Return the period from `start` to before `end`.

    By default, the start is the time of the first update, and the end one microsecond
    after the last.  Runs a job to find them.
    """
    first, after_last = None, None
    if start is None or end is None:
        found = updates.agg(F.unix_micros(F.min("ts")), F.unix_micros(F.max("ts")) + 1).first()
        assert found is not None
        first, after_last = found
    return Period(
        *(
            F.timestamp_micros(F.lit(micros).cast("long")) if time is None else F.lit(time)
            for time, micros in ((start, first), (end, after_last))
        )
    )


def hot_topics(published: DataFrame, top: int = TOP) -> DataFrame:
    """Return topic and the counts of updates of the `top` hottest topics.

    The counts are updates, private_updates, presence_updates, unknown and deliveries.
    The hottest topics have the most deliveries.  An update on two topics counts for
    both, so the sum may exceed the total.
    """
    topics = published.select(F.explode("topics").alias("topic"), *_COUNTED)
    table = topics.groupBy("topic").agg(*_counts())
    return table.orderBy(F.desc("deliveries"), F.desc("updates"), "topic").limit(top)


def topic_hours(published: DataFrame, hot: DataFrame, per: Per = "hour") -> DataFrame:
    """Return topic, time and the counts of hot_topics, by bin.

    Bins without updates on the topic have no row.
    """
    topics = published.select(F.explode("topics").alias("topic"), bin_of("ts", per), *_COUNTED)
    return (
        topics.join(F.broadcast(hot.select("topic")), "topic")
        .groupBy("topic", "time")
        .agg(*_counts())
        .orderBy("topic", "time")
    )


def traffic(published: DataFrame, period: Period, per: Per = "hour") -> DataFrame:
    """Return the updates, deliveries and bytes of each bin of the period, in order.

    The columns are time, the counts of hot_topics, published_bytes and delivered_bytes.
    """
    sent = published.groupBy(bin_of("ts", per)).agg(*_counts(), *_bytes())
    return _bins(published.sparkSession, period, per).join(sent, "time", "left").na.fill(0).orderBy("time")


def concurrency(sessions: DataFrame, period: Period, per: Per = "hour") -> DataFrame:
    """Return time, connected, disconnected, peak of each bin of the period, in order.

    The peak is the largest number of sessions that are connected at the same moment.
    It is exact, by a sweep over all beginnings and ends.  Sessions are half-open, so if
    one ends when another begins, they do not overlap.
    """
    # 1. Events: a beginning, an end, and a zero at the start of each bin, so that a bin
    #    has a row without events, and its peak includes the sessions at its start.
    bins = _bins(sessions.sparkSession, period, per)
    none, one = F.lit(0).cast("long"), F.lit(1).cast("long")
    events = (
        sessions.select(F.col("connected_from").alias("ts"), one.alias("came"), none.alias("went"))
        .unionAll(sessions.select("disconnected_at", none, one).dropna("any", subset=["disconnected_at"]))
        .unionAll(bins.select("time", none, none))
    )
    # 2. In each bin, the running sum of the events from its start on, and its maximum.
    #    All events before the first bin have time null and are one moment.
    first, last = period.bins(per)
    time = F.date_trunc(per, "ts")
    moments = (
        events.withColumn("time", F.when(time >= first, time))
        .where(F.col("time").isNull() | (F.col("time") <= last))
        .groupBy("time", F.when(F.col("time").isNotNull(), F.col("ts")).alias("ts"))
        .agg(F.sum("came").alias("came"), F.sum("went").alias("went"))
    )
    within = Window.partitionBy("time").orderBy("ts")
    swept = moments.withColumn("above", F.sum(F.col("came") - F.col("went")).over(within))
    table = swept.groupBy("time").agg(
        F.sum("came").alias("connected"), F.sum("went").alias("disconnected"), F.max("above").alias("above")
    )
    # 3. Add the number of sessions at the start of each bin.  All bins are in one
    #    partition, because they are few.  The constant expression keeps Spark from
    #    warning about it.
    earlier = Window.partitionBy(F.col("above") * 0).orderBy("time").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum(F.col("connected") - F.col("disconnected")).over(earlier), F.lit(0))
    table = table.withColumn("peak", before + F.col("above")).where(F.col("time").isNotNull())
    return table.select("time", "connected", "disconnected", "peak").orderBy("time")


def session_lengths(sessions: DataFrame, period: Period) -> DataFrame:
    """Return how long the sessions that overlap the period last, in whole seconds.

    The columns are sessions, still_connected, mean, p50, p90, p99, p999 and max.  A
    length counts from the session's beginning, even if that is before the period, to
    its end or the end of the period.  So if many sessions are still connected, the
    figures are too short.
    """
    present = _present(sessions, period)
    left = F.col("disconnected_at") <= period.end
    until = F.when(left, F.col("disconnected_at")).otherwise(period.end)
    micros = F.unix_micros(until) - F.unix_micros("connected_from")
    lengths = present.select(F.floor(micros / 1_000_000).alias("seconds"), F.coalesce(left, F.lit(False)).alias("left"))
    return lengths.agg(
        F.count("*").alias("sessions"),
        F.count_if(~F.col("left")).alias("still_connected"),
        *quantiles("seconds"),
    )


def private_updates(
    published: DataFrame,
    sessions: DataFrame,
    base_url: str | None = None,
    max_broadcast_bytes: int = BROADCAST_BYTES,
) -> DataFrame:
    """Return one row that counts private updates, and those that reached no session.

        updates        all updates, without those about presence
        private        the private updates
        share          private / updates
        unknown        the private updates of which it is not known whether a session
                       received them
        to_nobody      the private updates that no session received
        unauthorised   those of them for which no session in `sessions` is authorised
        presence       the private updates about presence, which no other column counts

    A session is authorised for an update if one of its grants matches one of the
    update's topics.  No unauthorised update reached a session.  If another private
    update reached none, no authorised session was subscribed and connected at its time.

    Runs a job before it returns: it fetches the distinct granted patterns that are not
    exact.  A worker has an index of as many of them as take `max_broadcast_bytes`.
    """
    about_presence = published.where(F.col("presence") & F.col("private"))
    published = published.where(~F.col("presence"))
    # 1. The topics of private updates that a grant matches.
    granted = sessions.select(F.explode("authorised").alias("selector")).select("selector.*").distinct()
    private = published.where("private")
    topics = private.select(F.explode("topics").alias("topic")).distinct()
    readable = matched(topics, granted, base_url, max_broadcast_bytes).select("topic", F.lit(True).alias("readable"))
    # 2. The sets of topics with such a topic.
    keys = private.select("topics").distinct()
    authorised = (
        keys.select("topics", F.explode("topics").alias("topic"))
        .join(readable, "topic")
        .select("topics", F.lit(True).alias("authorised"))
        .distinct()
    )
    # 3. Count the updates.
    table = published.join(authorised, "topics", "left")
    to_nobody = F.col("private") & (F.col("fanout") == 0)
    counts = table.agg(
        F.count("*").alias("updates"),
        F.count_if("private").alias("private"),
        F.avg(F.col("private").cast("int")).alias("share"),
        F.count_if(F.col("private") & F.col("fanout").isNull() & (F.col("at_least") == 0)).alias("unknown"),
        F.count_if(to_nobody).alias("to_nobody"),
        F.count_if(to_nobody & F.col("authorised").isNull()).alias("unauthorised"),
    )
    return counts.crossJoin(about_presence.agg(F.count("*").alias("presence")))


def selectors_in_use(sessions: DataFrame) -> DataFrame:
    """Return role, type, sessions, selectors, distinct: the use of each matcher type.

    These are the number of sessions with such a selector, of all their selectors, and
    of the distinct ones.  The role is "subscribed" for declared selectors, and
    "authorised" for granted ones.
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


def capacity(published: DataFrame, sessions: DataFrame, period: Period, growth: float = GROWTH) -> DataFrame:
    """Return measure, per, peak, at, planned: the peaks of a second and of a minute.

    Measures are connections (at any moment), connects, updates, deliveries and
    delivered bytes.  `at` is the beginning of the first bin with the peak.

    `planned` is the peak for `growth` times as many similar subscribers and the same
    updates, so all measures but updates grow in proportion.  It has no reserve.  It
    does not include reconnections: if a hub restarts, all its clients return as fast as
    they can.
    """
    # 1. The most connections at once.
    minutes = concurrency(sessions, period, "minute")
    peaks = _peaks(minutes, "moment", {"connections": ("peak", growth)})
    # 2. The other measures, in a second and in a minute.
    begun = sessions.where(period.has("connected_from"))
    for per in get_args(Per)[:2]:
        connects = begun.groupBy(bin_of("connected_from", per)).agg(F.count("*").alias("connects"))
        sent = published.groupBy(bin_of("ts", per)).agg(*_counts(), *_bytes())
        measures = {
            "updates": ("updates", 1.0),
            "deliveries": ("deliveries", growth),
            "delivered bytes": ("delivered_bytes", growth),
        }
        peaks = peaks.unionAll(_peaks(connects, per, {"connects": ("connects", growth)}))
        peaks = peaks.unionAll(_peaks(sent, per, measures))
    return peaks


def overview(published: DataFrame, sessions: DataFrame, period: Period) -> DataFrame:
    """Return one row of totals.

    The columns are start, end, updates, presence_updates, unknown, deliveries,
    published_bytes, delivered_bytes, topics, sessions, subscribers, people and unnamed.
    A person may have several sessions, as a client that reconnects does; `unnamed`
    counts the sessions of which it is not known whose they are.  If `sessions` has no
    column `subscriber`, each session counts as a subscriber.
    """
    present = _present(sessions, period)
    named = F.countDistinct("subscriber") if "subscriber" in sessions.columns else F.count("*")
    # An update has a row for each of its topics, and counts in the first.
    values = ["at_least", "data_bytes", "presence", "is_unknown"]
    rows = published.withColumn("is_unknown", F.col("fanout").isNull()).select(
        *values, F.posexplode_outer("topics").alias("place", "topic")
    )
    is_first = F.coalesce("place", F.lit(0)) == 0
    once = rows.select("topic", *(F.when(is_first, F.col(name)).alias(name) for name in values))
    sent = once.agg(
        F.count("at_least").alias("updates"),
        F.count_if("presence").alias("presence_updates"),
        F.count_if("is_unknown").alias("unknown"),
        F.coalesce(F.sum("at_least"), F.lit(0)).alias("deliveries"),
        *_bytes(),
        F.countDistinct("topic").alias("topics"),
    )
    sent = sent.select(period.start.alias("start"), period.end.alias("end"), "*")
    whose = person(sessions)
    connected = present.agg(
        F.count("*").alias("sessions"),
        named.alias("subscribers"),
        F.countDistinct(whose).alias("people"),
        F.count_if(whose.isNull()).alias("unnamed"),
    )
    return sent.crossJoin(connected)


# -- the whole


@dataclass(frozen=True, slots=True)
class Report:
    """The tables of a report, each of which is computed when it is used.

    Use it in a `with` statement: `published`, which most tables share, is persisted
    until the statement ends.
    """

    tables: Mapping[str, DataFrame]
    """The tables by name, as `report` lists them."""
    published: DataFrame
    """The updates of the period, with their fan-out."""
    sessions: DataFrame
    """All SESSIONS, also those outside of the period."""
    period: Period
    growth: float
    """The factor for the number of subscribers in the plan of capacity."""
    unchecked: Sequence[date] = ()
    """The days whose fan-out does not say what it was made from, in order."""

    def write(
        self, directory: str, format: str = "parquet", *, begins: Callable[[str], object] | None = None
    ) -> Report:
        """Write each table to `directory`/NAME, as one file in one of Spark's formats.

        Returns the report with the rows of its tables in memory, so that a page of it
        does not compute them again.

        Replaces tables that exist.  If a table cannot be written, this one and those
        after it stay as they were, and those before it are new.  Calls `begins` with
        the name of each table before it is computed.
        """
        computed = {}
        for name, table in self.tables.items():
            if begins is not None:
                begins(name)
            computed[name] = table.sparkSession.createDataFrame(table.toArrow(), table.schema)
            files.write(computed[name].coalesce(1), f"{directory}/{name}", format=format, header="true")
        return replace(self, tables=computed)

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
    max_broadcast_bytes: int = BROADCAST_BYTES,
) -> Report:
    """Return the report for the time from `start` to before `end`.

    Takes UPDATES, SESSIONS, and the output fanout of `match`.  `by` and
    `max_broadcast_bytes` are those of `match`.
    By default the time begins with the first update and ends with the last.  Runs jobs
    before it returns, to find the time and to fetch granted patterns.

    If `fanout` is FANOUT, which has the generation of each day, raises Outdated if a
    day was not matched, or not from these updates, sessions and gaps.

        overview              one row of totals
        traffic               by hour: updates, deliveries, bytes
        concurrency           by hour: connected, disconnected, peak
        fanout                quantiles
        fanout_hourly         quantiles by hour
        fanout_distribution   how many updates have each fan-out
        topics                the `top` topics by deliveries
        topic_hours           the first TOP_BY_HOUR of these, by hour
        session_lengths       quantiles
        private_updates       how many reached no session
        selectors             matcher types in use
        capacity              peaks, and a plan for `growth` times the subscribers
        gaps                  what may be missing in the other tables

    >>> fanout = match(updates, sessions)  # doctest: +SKIP
    >>> with report(updates, sessions, fanout) as tables:  # doctest: +SKIP
    ...     tables.write("report")
    """
    if gaps is None:
        gaps = updates.sparkSession.createDataFrame([], GAPS)
    unchecked = check(updates, sessions, gaps, fanout, start, end) if MARK in fanout.columns else []
    period = period_of(updates, start, end)
    published = persisted(with_fanout(updates.where(period.has("ts")), fanout))
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
        "private_updates": private_updates(published, sessions, base_url, max_broadcast_bytes),
        "selectors": selectors_in_use(sessions),
        "capacity": capacity(published, sessions, period, growth),
        "gaps": of_time(gaps, start, end, by=by),
    }
    return Report(tables, published, sessions, period, growth, unchecked)


# -- internals

_COUNTED: Final = ("private", "presence", "fanout", "at_least")
"""The columns of an update that `_counts` needs."""


def _counts() -> list[Column]:
    """Return updates, private_updates, presence_updates, unknown, deliveries."""
    return [
        F.count("*").alias("updates"),
        F.count_if("private").alias("private_updates"),
        F.count_if("presence").alias("presence_updates"),
        F.count_if(F.col("fanout").isNull()).alias("unknown"),
        F.sum("at_least").alias("deliveries"),
    ]


def _bytes() -> list[Column]:
    """Return published_bytes, delivered_bytes."""
    sums = {"published_bytes": F.sum("data_bytes"), "delivered_bytes": F.sum(F.col("data_bytes") * F.col("at_least"))}
    return [F.coalesce(total, F.lit(0)).alias(name) for name, total in sums.items()]


def _bins(spark: SparkSession, period: Period, per: Per) -> DataFrame:
    """Return time: the beginning of each bin that overlaps the period.

    There are none if the period is empty.
    """
    every = F.sequence(*period.bins(per), F.expr(f"INTERVAL 1 {per.upper()}"))
    return spark.range(1).select(F.explode(every).alias("time"))


def _present(sessions: DataFrame, period: Period) -> DataFrame:
    """Return the sessions that overlap the period."""
    ends = F.col("disconnected_at")
    begun = F.col("connected_from") < period.end
    lasts = ends.isNull() | ((ends > period.start) & (ends > F.col("connected_from")))
    return sessions.where(begun & lasts)


def _peaks(table: DataFrame, per: str, measures: Mapping[str, tuple[str, float]]) -> DataFrame:
    """Return for each measure its peak, the first time with that peak, and the plan.

    `measures` maps a measure to its column in `table` and its growth.
    """
    rows = []
    for measure, (column, growth) in measures.items():
        at = F.max_by(F.col("time"), F.struct(F.col(column), -F.unix_micros("time")))
        peak = F.coalesce(F.max(column), F.lit(0))
        values = {"measure": F.lit(measure), "per": F.lit(per), "peak": peak, "at": at, "planned": peak * growth}
        rows.append(F.struct(*(value.alias(name) for name, value in values.items())))
    return table.agg(F.array(*rows).alias("rows")).select(F.inline("rows"))

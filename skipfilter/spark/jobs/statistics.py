"""Fan-out: the number of subscribers that an update reached, in quantiles and bins.

`match` counts the fan-out of each update; the functions here summarise it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.bulk.ranges import BROADCAST_BYTES
from skipfilter.bulk.wide_selectors import find_numbers, in_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from skipfilter.bulk.wide_selectors import Wide

Per = Literal["second", "minute", "hour", "day", "month", "year"]
SECONDS: Final[dict[Per, int]] = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "month": 28 * 86_400,
    "year": 365 * 86_400,
}
"""The length of a bin, which for a month and a year is that of the shortest."""

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


# -- the parts


def with_fanout(updates: DataFrame, fanout: DataFrame) -> DataFrame:
    """Return the updates with their fan-out.

    The columns are topics, private, presence, data_bytes, ts, fanout and at_least.
    `presence` is whether the hub published it to tell who is connected.  `fanout` is
    null if deliveries may be missing (skipfilter.spark.jobs.unknown), and `at_least` is
    what is known of it.

    An update is identified by its id and time, and also by its position if `fanout` has
    one.  If an update is not in `fanout`, the job that reads the result fails.
    """
    # A fan-out that was matched by time has no positions, and fits any position.
    place = F.col("position") if "position" in fanout.columns else F.lit(None).cast("long")
    found = fanout.groupBy(F.col("update_id").alias("id"), F.col("ts").alias("time"), place.alias("place"))
    same = (F.col("update_id") == F.col("id")) & (F.col("ts") == F.col("time"))
    if "position" in updates.columns:
        same &= F.col("place").isNull() | (F.col("place") == F.col("position"))
    # Without a mark, as in the output of `match`, nothing is unknown.
    known = F.coalesce("at_least", "fanout") if "at_least" in fanout.columns else F.col("fanout")
    joined = updates.join(found.agg(F.max("fanout").alias("fanout"), F.max(known).alias("known")), same, "left")
    missing = F.raise_error(F.concat(F.lit("fanout: update "), "update_id", F.lit(" is missing: match its day first")))
    presence = F.coalesce("presence", F.lit(False)) if "presence" in updates.columns else F.lit(False)
    return joined.select(
        F.array_distinct("topics").alias("topics"),
        "private",
        presence.alias("presence"),
        "data_bytes",
        "ts",
        "fanout",
        F.coalesce("known", missing.cast("long")).alias("at_least"),
    )


def fanout_quantiles(published: DataFrame, per: Per | None = None) -> DataFrame:
    """Return the fan-out in quantiles.

    The columns are updates, unknown, deliveries, mean, p50, p90, p99, p999 and max.
    One row for all updates or, with `per`, one row for each bin that has updates, with
    the column time.  `unknown` is the number of updates whose fan-out is not known;
    `deliveries` has what is known of them, and the others do not count them.  Updates
    about presence are left out.  The values are exact: p90 is the least fan-out that
    nine in ten updates do not exceed.
    """
    published = published.where(~F.col("presence"))
    if per is None:
        return published.agg(*_fanouts())
    return published.groupBy(bin_of("ts", per)).agg(*_fanouts()).orderBy("time")


def fanout_distribution(published: DataFrame) -> DataFrame:
    """Return fanout, updates, deliveries: how many updates have each fan-out.

    The fan-out is null for those whose fan-out is not known.  Updates about presence
    are left out.  Fan-outs are rounded down to two digits, so 130 stands for 130 to
    139.  So there are at most 90 rows for each power of ten.
    """
    unit = F.pow(F.lit(10.0), F.greatest(F.length(F.col("fanout").cast("string")) - 2, F.lit(0))).cast("long")
    rounded = (F.col("fanout") - F.pmod("fanout", unit)).alias("least")
    table = (
        published.where(~F.col("presence"))
        .groupBy(rounded)
        .agg(F.count("*").alias("updates"), F.sum("at_least").alias("deliveries"))
    )
    return table.withColumnRenamed("least", "fanout").orderBy("fanout")


def _fanouts() -> list[Column]:
    """Return the columns of `fanout_quantiles`, without the time."""
    unknown = F.count_if(F.col("fanout").isNull()).alias("unknown")
    deliveries = F.coalesce(F.sum("at_least"), F.lit(0)).alias("deliveries")
    return [F.count("*").alias("updates"), unknown, deliveries, *quantiles("fanout")]


def quantiles(column: str) -> list[Column]:
    """Return the mean, p50, p90, p99, p999 and max of a column, as aggregates.

    Each quantile is a value of the column, and not interpolated.
    """
    quantiles = [
        F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {column})").cast("long").alias(name)
        for name, share in _QUANTILES.items()
    ]
    return [F.avg(column).alias("mean"), *quantiles, F.max(column).alias("max")]


def person(sessions: DataFrame) -> Column:
    """Return whom a session is of: its issuer and subject, in SESSIONS or an audit.

    Null if the log does not have its subject, or the table has no such column.  A
    subject that is a digest stands for one person, too.
    """
    if "subject" not in sessions.columns:
        return F.lit(None).cast("string")
    return F.when(F.col("subject").isNotNull(), F.struct("issuer", "subject"))


def per_of(length: timedelta, most: int) -> Per:
    """Return the shortest bin of which at most `most` fit into `length`, or "year"."""
    fitting = (per for per in get_args(Per) if length.total_seconds() / SECONDS[per] <= most)
    return next(fitting, "year")


def bin_of(column: str, per: Per) -> Column:
    """Return the column `time`: the beginning of the bin in which a time lies."""
    return F.date_trunc(per, column).alias("time")


def matched(
    topics: DataFrame, selectors: DataFrame, base_url: str | None, max_broadcast_bytes: int = BROADCAST_BYTES
) -> DataFrame:
    """Return the topics that at least one of the selectors (type, pattern) matches.

    Takes distinct topics and distinct selectors.  Runs a job before it returns: it
    fetches the selectors that are not exact.  A worker has an index of some of them at
    a time, which takes up to about `max_broadcast_bytes`.
    """
    exact = F.col("type") == "exact"
    # Exact selectors are joined.  Only the other selectors need an index.
    found = topics.join(selectors.where(exact).select(F.col("pattern").alias("topic")), "topic", "left_semi")
    patterns = [(type, pattern) for type, pattern in selectors.where(~exact).collect()]
    for wide in in_parts(patterns, base_url, max_broadcast_bytes):
        found = found.unionAll(topics.mapInArrow(partial(_passing, wide=wide), "topic string"))
    return found.distinct() if patterns else found


def _passing(batches: Iterator[pa.RecordBatch], wide: Wide) -> Iterator[pa.RecordBatch]:
    """Yield the topics that at least one wide selector matches, batch by batch."""
    for found in find_numbers(batches, wide):
        passing = pc.greater(pc.list_value_length(found.column("wide")), 0)
        yield found.filter(passing).select(["topic"])

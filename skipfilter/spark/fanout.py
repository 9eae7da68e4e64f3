"""Fan-out: the number of subscribers that an update reached, in quantiles and bins.

`match` counts the fan-out of each update; the functions here summarise it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from sortedcontainers import SortedDict

from skipfilter.spark.wide_selectors import unbounded_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame

    from skipfilter.index import SelectorIndex

Per = Literal["second", "minute", "hour", "day", "month", "year"]
KLL: Final = 800
"""The parameter k of a KLL sketch.

Its ranks are off by about a third of a percent, and it takes up to 10 KB.
"""

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


# -- the parts


def with_fanout(updates: DataFrame, fanout: DataFrame) -> DataFrame:
    """Return topics, private, data_bytes, ts, fanout of each update.

    An update is identified by its id and time, and also by its position if `fanout` has
    one.  If an update is not in `fanout`, the job that reads the result fails.
    """
    # A fan-out that was matched by time has no positions, and fits any position.
    place = F.col("position") if "position" in fanout.columns else F.lit(None).cast("long")
    found = fanout.groupBy(F.col("update_id").alias("id"), F.col("ts").alias("time"), place.alias("place"))
    same = (F.col("update_id") == F.col("id")) & (F.col("ts") == F.col("time"))
    if "position" in updates.columns:
        same &= F.col("place").isNull() | (F.col("place") == F.col("position"))
    joined = updates.join(found.agg(F.max("fanout").alias("fanout")), same, "left")
    missing = F.raise_error(F.concat(F.lit("fanout: update "), "update_id", F.lit(" is missing: match its day first")))
    reached = F.coalesce("fanout", missing.cast("long")).alias("fanout")
    return joined.select(F.array_distinct("topics").alias("topics"), "private", "data_bytes", "ts", reached)


def fanout_quantiles(published: DataFrame, per: Per | None = None) -> DataFrame:
    """Return updates, deliveries, mean, p50, p90, p99, p999, max of the fan-out.

    One row for all updates or, with `per`, one row for each bin that has updates, with
    the column time.  The values are exact: p90 is the least fan-out that nine in ten
    updates do not exceed.
    """
    if per is None:
        return published.agg(*_fanouts())
    return published.groupBy(bin_of("ts", per)).agg(*_fanouts()).orderBy("time")


def fanout_distribution(published: DataFrame) -> DataFrame:
    """Return fanout, updates, deliveries: how many updates have each fan-out.

    Fan-outs are rounded down to two digits, so 130 stands for 130 to 139.  So there are
    at most 90 rows for each power of ten.
    """
    unit = F.pow(F.lit(10.0), F.greatest(F.length(F.col("fanout").cast("string")) - 2, F.lit(0))).cast("long")
    rounded = (F.col("fanout") - F.pmod("fanout", unit)).alias("least")
    table = published.groupBy(rounded).agg(F.count("*").alias("updates"), F.sum("fanout").alias("deliveries"))
    return table.withColumnRenamed("least", "fanout").orderBy("fanout")


def _fanouts() -> list[Column]:
    """Return the columns of `fanout_quantiles`, without the time."""
    deliveries = F.coalesce(F.sum("fanout"), F.lit(0)).alias("deliveries")
    return [F.count("*").alias("updates"), deliveries, *quantiles("fanout")]


def quantiles(column: str) -> list[Column]:
    """Return the mean, p50, p90, p99, p999 and max of a column, as aggregates.

    Each quantile is a value of the column, and not interpolated.
    """
    quantiles = [
        F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {column})").cast("long").alias(name)
        for name, share in _QUANTILES.items()
    ]
    return [F.avg(column).alias("mean"), *quantiles, F.max(column).alias("max")]


def bin_of(column: str, per: Per) -> Column:
    """Return the column `time`: the beginning of the bin in which a time lies."""
    return F.date_trunc(per, column).alias("time")


def matched(topics: DataFrame, selectors: DataFrame, base_url: str | None) -> DataFrame:
    """Return the topics that at least one of the selectors (type, pattern) matches.

    Takes distinct topics and distinct selectors.  Runs a job before it returns: it
    fetches the selectors that are not exact.
    """
    exact = F.col("type") == "exact"
    patterns = tuple((type, pattern) for type, pattern in selectors.where(~exact).collect())
    # Exact selectors are joined.  Only the other selectors need an index.
    same = topics.join(selectors.where(exact).select(F.col("pattern").alias("topic")), "topic", "left_semi")
    if not patterns:
        return same
    asked = topics.mapInArrow(lambda batches: _passing(batches, patterns, base_url), "topic string")
    return same.unionAll(asked).distinct()


def _passing(
    batches: Iterator[pa.RecordBatch], patterns: tuple[tuple[str, str], ...], base_url: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the topics that at least one pattern matches, batch by batch."""
    index, no_values = _index(patterns, base_url), SortedDict()
    for batch in batches:
        mask = pa.array(
            [bool(index.ids_matching(topic, no_values, 0)) for topic in batch.column(0).to_pylist()], pa.bool_()
        )
        yield batch.filter(mask)


@lru_cache(maxsize=1)  # because a worker process runs many tasks with the same patterns
def _index(patterns: tuple[tuple[str, str], ...], base_url: str | None) -> SelectorIndex:
    """Return an index with a single value, which declares all the patterns."""
    index = unbounded_index(base_url)
    index.add(0, 0, patterns)
    return index

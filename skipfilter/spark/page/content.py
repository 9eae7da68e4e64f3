"""The rows that the page shows: a few numbers, and bins of time so long that their number is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.fanout import Per
from skipfilter.spark.gaps import sentences
from skipfilter.spark.report import concurrency, topic_hours, traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from skipfilter.spark.report import Report

    Row = dict[str, Any]

TOPICS: Final = 20
"""Topics in the table and in the heat map, at most."""
BARS: Final = 100
"""Bins of a bar plot and of a table, at most."""
MOMENTS: Final = 1_500
"""Bins in which the concurrency is computed for its line, at most."""
POINTS: Final = 400
"""Points of that line, at most."""
CELLS: Final = 50
"""Bins of the heat map, at most."""

SECONDS: Final[dict[Per, int]] = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "month": 28 * 86_400,
    "year": 365 * 86_400,
}


class Content(NamedTuple):
    """What the page shows, in plain rows."""

    overview: Row
    growth: float
    per: Per
    traffic: list[Row]
    churn: list[Row]
    moments: list[Row]
    """Concurrency again, of shorter bins."""
    fanout: Row
    distribution: list[Row]
    topics: list[Row]
    heat_per: Per
    heat: list[Row]
    private: Row
    selectors: list[Row]
    lengths: Row
    capacity: list[Row]
    gaps: list[str]
    """What may be missing, in sentences."""


def collect(report: Report) -> Content:
    """Compute what the page shows, and no more of it."""
    tables = report.tables
    (overview,) = _rows(tables["overview"])
    start, end = overview["start"], overview["end"]
    length = end - start if start is not None and end is not None else timedelta()
    per, fine, heat_per = (bin_of(length, most) for most in (BARS, MOMENTS, CELLS))
    hot = tables["topics"].limit(TOPICS)
    return Content(
        overview=overview,
        growth=report.growth,
        per=per,
        traffic=_rows(traffic(report.published, report.period, per)),
        churn=_rows(concurrency(report.sessions, report.period, per)),
        moments=_highest(_rows(concurrency(report.sessions, report.period, fine))),
        fanout=_rows(tables["fanout"])[0],
        distribution=_rows(tables["fanout_distribution"]),
        topics=_rows(hot),
        heat_per=heat_per,
        heat=_rows(topic_hours(report.published, hot, heat_per)),
        private=_rows(tables["private_updates"])[0],
        selectors=_rows(tables["selectors"]),
        lengths=_rows(tables["session_lengths"])[0],
        capacity=_rows(tables["capacity"]),
        gaps=sentences(tables["gaps"]),
    )


def _rows(table: DataFrame) -> list[Row]:
    """The rows, with times in UTC: those that Spark's `collect` makes are of the machine's zone, and do not say."""
    micros = [F.unix_micros(name).alias(name) if type == "timestamp" else F.col(name) for name, type in table.dtypes]
    times = [name for name, type in table.dtypes if type == "timestamp"]
    rows = [row.asDict() for row in table.select(micros).collect()]
    for row in rows:
        row.update({name: _time(row[name]) for name in times})
    return rows


def _highest(moments: list[Row]) -> list[Row]:
    """At most POINTS of them, each the highest of several neighbours."""
    step = -(-len(moments) // POINTS) or 1
    several = (moments[at : at + step] for at in range(0, len(moments), step))
    return [max(some, key=lambda row: row["peak"]) for some in several]


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def bin_of(length: timedelta, most: int) -> Per:
    """The shortest bins of which `length` has at most so many."""
    fitting = (per for per in get_args(Per) if length.total_seconds() / SECONDS[per] <= most)
    return next(fitting, "year")

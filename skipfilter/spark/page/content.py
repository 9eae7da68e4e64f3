"""Content: the rows that the page shows, fetched from the tables of a report.

The constants below bound every list of topics or bins, except lists of years.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.jobs.gaps import sentences
from skipfilter.spark.jobs.generations import shown
from skipfilter.spark.jobs.report import concurrency, topic_hours, traffic
from skipfilter.spark.jobs.statistics import per_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from skipfilter.spark.jobs.report import Report
    from skipfilter.spark.jobs.statistics import Per

    Row = dict[str, Any]

TOPICS: Final = 20
"""The maximum number of topics in the table and the heat map."""
BARS: Final = 100
"""The maximum number of whole bins of a bar plot and of a table; a part may be
added."""
MOMENTS: Final = 1_500
"""The maximum number of bins of concurrency that are fetched for its line."""
POINTS: Final = 400
"""The maximum number of points that this line has."""
CELLS: Final = 50
"""The maximum number of bins of the heat map."""


class Content(NamedTuple):
    """The content of the page as plain rows, with times in UTC."""

    overview: Row
    growth: float
    per: Per
    """The bins of `traffic` and `churn`."""
    traffic: list[Row]
    churn: list[Row]
    """Concurrency in these bins."""
    moments: list[Row]
    """Concurrency in shorter bins, for the line."""
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
    """A sentence for each gap."""
    unchecked: str
    """The days whose fan-out cannot be checked, as text; empty if there are none."""


def collect(report: Report) -> Content:
    """Fetch the content of the page, and compute no other table of the report."""
    tables = report.tables
    (overview,) = _rows(tables["overview"])
    start, end = overview["start"], overview["end"]
    length = end - start if start is not None and end is not None else timedelta()
    per, fine, heat_per = (per_of(length, most) for most in (BARS, MOMENTS, CELLS))
    hot = tables["topics"].limit(TOPICS)
    return Content(
        overview=overview,
        growth=report.growth,
        per=per,
        traffic=_rows(tables["traffic"] if per == "hour" else traffic(report.published, report.period, per)),
        churn=_rows(tables["concurrency"] if per == "hour" else concurrency(report.sessions, report.period, per)),
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
        unchecked=shown(list(report.unchecked)),
    )


def _rows(table: DataFrame) -> list[Row]:
    """Return the rows, with times in UTC."""
    # Fetch times as numbers, because Spark's `collect` uses the machine's time zone.
    micros = [F.unix_micros(name).alias(name) if type == "timestamp" else F.col(name) for name, type in table.dtypes]
    times = [name for name, type in table.dtypes if type == "timestamp"]
    rows = [row.asDict() for row in table.select(micros).collect()]
    for row in rows:
        row.update({name: _time(row[name]) for name in times})
    return rows


def _highest(moments: list[Row]) -> list[Row]:
    """Return at most POINTS of the moments: the highest of each group of neighbours."""
    step = -(-len(moments) // POINTS) or 1
    several = (moments[at : at + step] for at in range(0, len(moments), step))
    return [max(some, key=lambda row: row["peak"]) for some in several]


def _time(micros: int | None) -> datetime | None:
    """Return the time in UTC that is `micros` µs after 1970 began; None for None."""
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)

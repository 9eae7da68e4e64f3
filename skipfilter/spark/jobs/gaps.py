"""Gaps: marks in a hub's event log that some records may be missing.

If a hub is killed, it does not write its last moments to the log.  The next start marks
this in the log (hub.event_log).  Counts of deliveries are then too low, and besides
`complete` of a session nothing else in the tables shows it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from skipfilter.bulk.matching import By

SHOWN: Final = 20
"""The maximum number of gaps that are printed.  The table has all gaps."""


def of_time(gaps: DataFrame, start: datetime | None = None, end: datetime | None = None, *, by: By) -> DataFrame:
    """Return the GAPS that concern the time from `start` to before `end`.

    None is no bound.  If sessions are matched by position, gaps after `end` count too:
    a missing connection may have read updates of earlier days.
    """
    if start is not None:
        gaps = gaps.where(F.col("found").isNull() | (F.col("found") >= F.lit(start)))
    return gaps if end is None or by == "position" else gaps.where(F.col("ts") < F.lit(end))


def sentences(gaps: DataFrame) -> list[str]:
    """Return a sentence for each of the SHOWN newest GAPS, newest first.

    If there are more, a last sentence has their number.  Runs a job before it returns.
    """
    micros = F.unix_micros("ts").alias("micros")
    rows = gaps.select("*", micros).orderBy(F.desc("micros"), "node", "after").limit(SHOWN + 1).collect()
    lines = [_sentence(**row.asDict()) for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        lines.append(f"and {gaps.count() - SHOWN:,} earlier ones, which are in the table gaps")
    return lines


def _sentence(
    micros: int, epoch: str | None, hub: str | None, node: str, cause: str, after: int, updates: bool, **_: object
) -> str:
    """Return the sentence for a row of GAPS.  `micros` is its `ts` in µs since 1970."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    log = f"epoch {epoch or '(unknown)'} of {hub or '(unknown)'}"
    missing = f"deliveries after position {after}, " + ("updates after it, " if updates else "")
    missing += "and connections since that time"
    return f"{log}: node {node} {cause} at {time:%Y-%m-%d %H:%M:%S} UTC: {missing} may be missing"

"""Gaps: where the event log of a hub says that something may be missing.

If a hub is killed, its last moments are not written, and the log says so after the next
start (hub.event_log).  Counts of deliveries are then too low by what came after the
mark, and nothing else in the tables shows it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from skipfilter.spark.matching import By

SHOWN: Final = 20
"""The maximum number of gaps that are printed; the table has all."""


def of_time(gaps: DataFrame, start: datetime | None = None, end: datetime | None = None, *, by: By) -> DataFrame:
    """Return the GAPS in which something from `start` to before `end` may be missing.

    By default of all times.  By position, also those after `end`: a missing connection
    may have read updates of earlier days.
    """
    if start is not None:
        gaps = gaps.where(F.col("found").isNull() | (F.col("found") >= F.lit(start)))
    return gaps if end is None or by == "position" else gaps.where(F.col("ts") < F.lit(end))


def sentences(gaps: DataFrame) -> list[str]:
    """Return a sentence for each of the GAPS, newest first, and one that counts the
    rest.

    Runs a job before it returns.
    """
    micros = F.unix_micros("ts").alias("micros")
    rows = gaps.select("*", micros).orderBy(F.desc("micros"), "node", "after").limit(SHOWN + 1).collect()
    told = [_sentence(**row.asDict()) for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        told.append(f"and {gaps.count() - SHOWN:,} earlier ones, which are in the table gaps")
    return told


def _sentence(
    micros: int, epoch: str | None, hub: str | None, node: str, cause: str, after: int, updates: bool, **_: object
) -> str:
    """Return the sentence of a gap."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    log = f"epoch {epoch or '(unknown)'} of {hub or '(unknown)'}"
    missing = f"deliveries after position {after}, " + ("updates after it, " if updates else "")
    missing += "and connections since that time"
    return f"{log}: node {node} {cause} at {time:%Y-%m-%d %H:%M:%S} UTC: {missing} may be missing"

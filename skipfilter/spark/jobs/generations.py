"""Generations: whether a result of `match` belongs to the present updates and sessions.

    updates of a day ───────────────────────────┐
    sessions that could have received them ─────┼─► hash ──► generation of the day
    gaps in which they may have been sent ──────┘

`match` stores the generation of its day in each row (`made_from`), and `check` computes
it again.  A session or a gap counts for a day only as far as the day's updates can show
it: if it ends after the last of them, it is like one that has not ended.  So days that
are over keep their generation if later updates and sessions are appended.

A generation is a hash of rows and not of files, so that a table that is written again
with the same rows is the same generation.  It does not depend on the order of the rows.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.errors import BadInput
from skipfilter.spark.jobs.matching import window_of
from skipfilter.spark.tables.schemas import MADE_FROM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import date, datetime

    from pyspark.sql import Column, DataFrame

    from skipfilter.bulk.matching import By

MARK: Final = MADE_FROM.name
"""The column of a result with the generation of its day."""


class Outdated(BadInput):
    """Days of a table were made from other updates or sessions than there are now."""

    def __init__(self, table: str, days: Iterable[date]) -> None:
        self.days = sorted(days)
        """The days, in order."""
        super().__init__(
            f"{table}: it was not made from the present updates and sessions of {shown(self.days)}: "
            "`match` makes it again"
        )


def shown(days: list[date]) -> str:
    """Return a sorted list of days as text, short if there are many."""
    return ", ".join(map(str, days)) if len(days) < 4 else f"{len(days)} days from {days[0]} to {days[-1]}"


def generations(updates: DataFrame, sessions: DataFrame, gaps: DataFrame, by: By) -> dict[date, str]:
    """Return the generation of each day of UPDATES, as `match` compares them with
    SESSIONS and GAPS.

    Runs one job, which reads both tables once and compares each session with each day.
    """
    window = window_of(by)
    # 1. The updates of each day; by position, of each epoch of each day.
    key = {"dt": F.col("dt"), "of": F.col("epoch") if by == "position" else F.lit(None).cast("string")}
    days = (
        updates.select(
            *(column.alias(name) for name, column in key.items()),
            "ts",
            window.at.alias("at"),
            F.xxhash64("update_id", "topics", "private", *window.columns).alias("hash"),
        )
        .groupBy(*key)
        .agg(
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.unix_micros(F.min("ts")).alias("earliest"),
            F.unix_micros(F.max("ts")).alias("latest"),
            _digest(),
        )
    )
    # 2. The sessions that could have received one of them.
    present = sessions.select(
        *([key["of"].alias("epoch")] if by == "position" else []),
        "subscriber_id",
        "selectors",
        "authorised",
        window.begins.alias("begins"),
        window.ends.alias("ends"),
    )
    same = F.col("of").eqNullSafe(F.col("epoch")) if by == "position" else F.lit(True)
    seen = F.when(F.col("ends") <= F.col("last"), F.col("ends"))  # null: not ended by the last update
    could = same & (F.col("begins") <= F.col("last")) & (F.col("ends").isNull() | (F.col("ends") > F.col("first")))
    receivers = (
        present.join(F.broadcast(days.select(*key, "first", "last")), could)
        # With the size, because Spark hashes lists without a boundary between them.
        .withColumn("hash", F.xxhash64("subscriber_id", F.size("selectors"), "selectors", "authorised", "begins", seen))
        .groupBy(*key)
        .agg(_digest())
    )
    # 3. The gaps in which one of the updates may have been sent.
    marks = gaps.select(
        *(["epoch"] if by == "position" else []),
        (F.col("after") + 1 if by == "position" else F.unix_micros("ts")).alias("begins"),
        F.unix_micros("found").alias("found"),
    )
    of_it = F.col("epoch").isNull() | same if by == "position" else same
    overlaps = of_it & (F.col("begins") <= F.col("last"))
    overlaps &= F.col("found").isNull() | (F.col("found") >= F.col("earliest"))
    unsure = (
        marks.join(F.broadcast(days.select(*key, "last", "earliest", "latest")), overlaps)
        .withColumn("hash", F.xxhash64("begins", F.when(F.col("found") < F.col("latest"), F.col("found"))))
        .groupBy(*key)
        .agg(_digest())
    )
    # 4. One text for each day.
    found: dict[date, list[str]] = {}
    for dt, of, digest in days.select(*key, "digest").unionAll(receivers).unionAll(unsure).collect():
        found.setdefault(dt, []).append(repr((of, tuple(digest))))
    return {dt: f"{by} {_hash(sorted(parts))}" for dt, parts in found.items()}


def marked(table: DataFrame, found: Mapping[date, str]) -> DataFrame:
    """Return a table with a column dt, and with the generation of each row's day."""
    marks = table.sparkSession.createDataFrame(list(found.items()), f"dt date, {MARK} string")
    return table.join(F.broadcast(marks), "dt", "left")


def whole(found: Mapping[date, str]) -> Column:
    """Return the generation of all days together, for a table without days."""
    return F.lit(_hash(f"{dt} {mark}" for dt, mark in sorted(found.items()))).alias(MARK)


def check(
    updates: DataFrame,
    sessions: DataFrame,
    gaps: DataFrame,
    fanout: DataFrame,
    start: datetime | None = None,
    end: datetime | None = None,
) -> list[date]:
    """Return the days of FANOUT that cannot be checked, because they have no mark.

    Only days with a moment from `start` to before `end` count; None is no bound.
    Raises Outdated if a day was not matched, or not from these updates, sessions and
    gaps.  Version 0.1.0 wrote no marks.
    """
    # 1. The days of the updates, and the marks of the fan-out.
    if start is not None:
        updates = updates.where(F.col("dt") >= F.to_date(F.lit(start)))
    if end is not None:
        updates = updates.where(F.col("dt") <= F.to_date(F.timestamp_micros(F.unix_micros(F.lit(end)) - 1)))
    days = {dt for [dt] in updates.select("dt").distinct().collect()}
    rows = fanout.groupBy("dt").agg(F.collect_set(MARK), F.count_if(F.col(MARK).isNull()))
    marks = {dt: set(some) | ({None} if without else set()) for dt, some, without in rows.collect() if dt in days}
    # 2. The present generations.  A day's mark says how it was matched.
    by = {some.partition(" ")[0] for several in marks.values() for some in several if some is not None}
    now = [generations(updates, sessions, gaps, each) for each in ("time", "position") if each in by]
    return unmarked(days, marks, now)


def unmarked(days: set[date], marks: Mapping[date, set[str | None]], now: Iterable[Mapping[date, str]]) -> list[date]:
    """Return the days without a mark, in order.

    `marks` has the marks of each day of the fan-out, where None stands for rows without
    one, and `now` the present generations, by time or by position.  Raises Outdated if
    a day has no rows, or any other mark than its generation.
    """
    without = {dt for dt, several in marks.items() if several == {None}}
    fitting = {dt for dt, several in marks.items() if any(several == {each[dt]} for each in now)}
    if outdated := days - without - fitting:
        raise Outdated("fanout", outdated)
    return sorted(without)


def _digest() -> Column:
    """Return a digest of the hashes of a group, in any order."""
    # The sum has other bits than the exclusive or, in which pairs of equal rows vanish.
    # It cannot overflow, because it is of 32 bits of each hash.
    return F.struct(F.count("*"), F.bit_xor("hash"), F.sum(F.shiftright("hash", 32))).alias("digest")


def _hash(parts: Iterable[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:16]

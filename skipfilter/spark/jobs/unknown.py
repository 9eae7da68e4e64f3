"""Unknown: what a hub may have sent, and did not record.

If a hub is killed, its last moments are missing from its event log, and a mark says so
(skipfilter.spark.jobs.gaps).  A count of deliveries in that time is not known, so it is
null, and `at_least` beside it counts those that were recorded:

    an update     after the last moment that the node recorded, and before its end was
                  found: any session may have received it, even one that is in no table
    a session     of such a node: it may have received what matches its selectors after
                  its recorded end, until the end of the node was found
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from skipfilter.bulk.matching import By


def of_epoch(gaps: DataFrame, epoch: str | None) -> DataFrame:
    """Return the GAPS of an epoch, and those of which it is not known."""
    return gaps.where(F.col("epoch").isNull() | F.col("epoch").eqNullSafe(F.lit(epoch)))


def of_updates(fanout: DataFrame, gaps: DataFrame, by: By) -> DataFrame:
    """Return the output fanout of `match` with unknown counts, and with `at_least`.

    By position, takes the GAPS of the epoch.
    """

    def covers(gap: Column) -> Column:
        begun = F.col("position") > gap["begins"] if by == "position" else F.col("ts") >= gap["begins"]
        return begun & (gap["found"].isNull() | (F.col("ts") <= gap["found"]))

    mark = F.struct(F.col("after" if by == "position" else "ts").alias("begins"), "found")
    # One row with all marks, which are few, is sent to every worker.
    marked = fanout.crossJoin(F.broadcast(gaps.agg(F.collect_list(mark).alias("gaps"))))
    known = F.when(~F.exists("gaps", covers), F.col("fanout"))
    return marked.withColumns({"at_least": F.col("fanout"), "fanout": known}).drop("gaps")


def perhaps(updates: DataFrame, sessions: DataFrame, gaps: DataFrame, by: By) -> DataFrame:
    """Return the SESSIONS that are not complete, each from its recorded end on.

    Those of `updates` that match them then are what they may have received besides.
    Sessions that can have received none of them are left out.  By time, runs a job to
    find the first of the updates.
    """
    ends = gaps.groupBy("node").agg(F.when(F.every(F.col("found").isNotNull()), F.max("found")).alias("found"))
    cut = sessions.where(~F.col("complete")).join(F.broadcast(ends), "node", "left")
    unbounded = F.col("found").isNull()
    if by == "time":
        [[first]] = updates.agg(F.unix_micros(F.min("ts"))).collect()
        after_found = F.timestamp_micros(F.unix_micros("found") + 1)
        window = {
            "connected_from": F.col("disconnected_at"),
            "disconnected_at": F.when(~unbounded, F.greatest(after_found, "disconnected_at")),
        }
        lasts = unbounded | (F.unix_micros("found") >= F.lit(first))
    else:
        # The last position before the end of each node was found.
        places = updates.select(F.col("epoch").alias("of"), F.col("ts").alias("at"), "position")
        known = cut.select("node", "epoch", "found").distinct()
        before = F.col("epoch").eqNullSafe(F.col("of")) & (unbounded | (F.col("at") <= F.col("found")))
        last = places.join(F.broadcast(known), before).groupBy("node", "epoch").agg(F.max("position").alias("last"))
        cut = cut.join(F.broadcast(last.withColumnRenamed("epoch", "of")), "node").where("epoch <=> of")
        window = {"after": F.col("until"), "until": F.col("last")}
        lasts = F.col("last") > F.col("until")
    return cut.where(lasts).withColumns(window).select(*sessions.columns)


def of_sessions(received: DataFrame, more: DataFrame) -> DataFrame:
    """Return the output received of `match` with unknown counts, and with `at_least`.

    `more` is the same output for what the sessions may have received besides.  A
    session that is only in it has a row too.
    """
    both = received.join(more.withColumnRenamed("received", "more"), "subscriber_id", "full")
    known = F.coalesce("received", F.lit(0))
    unsure = F.coalesce("more", F.lit(0)) > 0
    return both.select("subscriber_id", F.when(~unsure, known).alias("received"), known.alias("at_least"))

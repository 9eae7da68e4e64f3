"""Who could read a topic, by what, and who did.

    sessions ─┬─► distinct selectors ──► those that match the topic ─┐
              └──────────────────────────────────────────────────────┴─► authorised, subscribed ─┐
    updates ──► those on the topic ──► match, by the true rule ────────► received ───────────────┴─► a row a session

*Authorised*, *subscribed* and *received* differ, and none follows from another:

    authorised    may read private updates on the topic.  A public one needs no authorisation: whoever asks gets it.
    subscribed    asked for the topic: gets its public updates and, if also authorised, its private ones.
    received      got updates that are on the topic.  An update may be on others, too: whoever subscribed to one of its
                  topics and is authorised for another one got it, with a selector for this topic or without.

A selector that grants a topic grants it while the session lasts, whether or not anything was published.

A session that is not there, or received more than the tables have, is not found: of a hub that was killed, `complete`
and the table of gaps say where that may be so (skipfilter.spark.gaps).

What a session is, its table says.  A hub's event log has connections that stay: who reads what there is and goes again
(hub.http.replay) is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType

from skipfilter.matchers import UrlPattern, compile_matcher
from skipfilter.spark.matching import match
from skipfilter.spark.schemas import SELECTOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

    from skipfilter.matchers import Selector
    from skipfilter.spark.matching import By


def audit(
    topic: str,
    updates: DataFrame,
    sessions: DataFrame,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    by: By = "time",
    base_url: str | None = None,
) -> DataFrame:
    """Who could read `topic`, or received it, from `start` to before `end`; of all times by default.

        topic, subscriber_id, subscriber
        connected_from, disconnected_at      of the whole session; null while it lasts
        authorised                           the selectors that grant it the topic, of which private updates need one
        subscribed                           its selectors that match the topic
        received, received_private           how many of the updates on the topic it got, and of those the private ones
        first_received, last_received        their times
        complete                             whether that is all; false if its node was killed and it may have received
                                             more, null while it lasts, or if `sessions` does not say

    A row for each session that was there in the time, unless all of that is empty; in no order.  Lists are in the
    order of the session.  `by` and `base_url` are those of `match`, which works before this returns; it sees
    the updates on the topic alone.
    """
    there = F.col("there")
    sessions = sessions.withColumn("there", _overlap(start, end))
    if by == "time":  # by position, a session of a node whose clock is wrong may have received something all the same
        sessions = sessions.where(there)
    carrying = updates.where(F.array_contains("topics", topic) & _between("ts", start, end))
    told = sessions if "complete" in sessions.columns else sessions.withColumn("complete", F.lit(None).cast("boolean"))
    found = (
        told.drop("selectors", "authorised")
        .join(_matching(topic, sessions, base_url), "subscriber_id", "left")
        .join(_received(carrying, sessions, by, base_url), "subscriber_id", "left")
        .where((there & F.col("authorised").isNotNull()) | F.col("received").isNotNull())
    )
    none = F.array().cast(ArrayType(SELECTOR, containsNull=False))
    return found.select(
        F.lit(topic).alias("topic"),
        "subscriber_id",
        "subscriber",
        "connected_from",
        "disconnected_at",
        *(F.coalesce(column, none).alias(column) for column in ("authorised", "subscribed")),
        *(F.coalesce(column, F.lit(0)).alias(column) for column in ("received", "received_private")),
        "first_received",
        "last_received",
        "complete",
    )


def _between(column: str, start: datetime | None, end: datetime | None) -> Column:
    after = F.lit(True) if start is None else F.col(column) >= F.lit(start)
    return after if end is None else after & (F.col(column) < F.lit(end))


def _overlap(start: datetime | None, end: datetime | None) -> Column:
    """Whether a session was there at any moment of the time: one that ended as it began never was."""
    first, last = (F.lit(time).cast("timestamp") for time in (start, end))
    left = F.least("disconnected_at", last)
    return left.isNull() | (F.greatest("connected_from", first) < left)


def _matching(topic: str, sessions: DataFrame, base_url: str | None) -> DataFrame:
    """subscriber_id, authorised, subscribed: the selectors that match `topic`, of the sessions that have any.

    Exact ones are compared, each other distinct one is asked once.
    """
    columns = {"authorised": "authorised", "subscribed": "selectors"}
    each = [
        sessions.select("subscriber_id", F.lit(role).alias("role"), F.posexplode(column).alias("place", "selector"))
        for role, column in columns.items()
    ]
    held = each[0].unionAll(each[1])
    exact = F.col("selector.type") == "exact"
    others = held.where(~exact).select("selector.*").distinct()
    asked = others.mapInArrow(lambda batches: _asked(batches, topic, base_url), SELECTOR)
    hits = held.where(exact & (F.col("selector.pattern") == topic)).unionAll(
        held.where(~exact)
        .join(asked.select(F.struct("type", "pattern").alias("selector")), "selector")
        .select(held.columns)
    )
    lists = (
        F.array_sort(F.collect_list(F.when(F.col("role") == role, F.struct("place", "selector"))))["selector"].alias(
            role
        )
        for role in columns
    )
    return hits.groupBy("subscriber_id").agg(*lists)


def _asked(batches: Iterator[pa.RecordBatch], topic: str, base_url: str | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        selectors = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield batch.filter(pa.array([_matches(selector, topic, base_url) for selector in selectors], pa.bool_()))


def _matches(selector: Selector, topic: str, base_url: str | None) -> bool:
    type, pattern = selector
    if type == "urlpattern":  # it was let in before: here it is asked one question
        return UrlPattern(pattern, base_url, regexp_groups=True).match(topic)
    return compile_matcher(type, pattern).match(topic)


def _received(carrying: DataFrame, sessions: DataFrame, by: By, base_url: str | None) -> DataFrame:
    """subscriber_id, received, received_private, first_received, last_received: of those who received any."""
    rows = match(carrying, sessions, "rows", by=by, base_url=base_url)
    key = [column for column in rows.columns if column != "subscriber_id"]
    told = rows.join(carrying.select(*key, "private").distinct(), key)
    return told.groupBy("subscriber_id").agg(
        F.count("*").alias("received"),
        F.count_if("private").alias("received_private"),
        F.min("ts").alias("first_received"),
        F.max("ts").alias("last_received"),
    )

"""Audit: who could read a topic, by which selector, and who received it.

    sessions ─┬─► distinct selectors ─► those that match ─┐
              └───────────────────────────────────────────┴─► authorised, subscribed ┐
    updates ──► those on the topic ─► match ─► received ─────────────────────────────┴─►

*Authorised*, *subscribed* and *received* differ, and none implies another:

    authorised    may read private updates on the topic.  A public update needs no
                  authorisation
    subscribed    gets the topic's public updates and, if also authorised, private ones
    received      got updates on the topic.  An update may be on other topics too: a
                  session that subscribed to one of them and is authorised for
                  another got it, with or without a selector for this topic

A selector grants a topic during the whole session, whether or not anything was
published.

Sessions and deliveries that the tables lack are not found.  If a hub was killed,
`complete` and the table of gaps say where they may be missing (skipfilter.spark.gaps).

A session is a row of that table.  A hub's event log has only lasting connections: a
client that reads what there is and leaves (hub.http.replay) is not in it.
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
    """Return who could read `topic`, or received it, from `start` to before `end`.

        topic, subscriber_id, subscriber
        connected_from, disconnected_at      of the whole session; null while it lasts
        authorised                           the selectors that grant it the topic; a
                                             private update needs one
        subscribed                           its selectors that match the topic
        received, received_private           how many updates on the topic it got, and
                                             how many of these were private
        first_received, last_received        their times
        complete                             whether that is all; false if its node was
                                             killed and it may have received more; null
                                             while it lasts, or if `sessions` does not
                                             say

    By default all times count.  There is a row for each session of that time, unless
    all of these are empty, in no certain order.  Lists are in the order of the session.
    `by` and `base_url` are those of `match`, which runs before this returns, on the
    updates of the topic only.
    """
    there = F.col("there")
    sessions = sessions.withColumn("there", _overlap(start, end))
    # By position, a session may count whose node had a wrong clock.
    if by == "time":
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
    """Return whether a time is from `start` to before `end`; None is no bound."""
    after = F.lit(True) if start is None else F.col(column) >= F.lit(start)
    return after if end is None else after & (F.col(column) < F.lit(end))


def _overlap(start: datetime | None, end: datetime | None) -> Column:
    """Return whether a session existed in the time; one that ended as it began never
    did.
    """
    first, last = (F.lit(time).cast("timestamp") for time in (start, end))
    left = F.least("disconnected_at", last)
    return left.isNull() | (F.greatest("connected_from", first) < left)


def _matching(topic: str, sessions: DataFrame, base_url: str | None) -> DataFrame:
    """Return subscriber_id, authorised, subscribed: the selectors that match `topic`.

    Exact selectors are compared; each other distinct selector is matched once.
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
    """Yield the selectors of each batch that match the topic."""
    for batch in batches:
        selectors = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield batch.filter(pa.array([_matches(selector, topic, base_url) for selector in selectors], pa.bool_()))


def _matches(selector: Selector, topic: str, base_url: str | None) -> bool:
    """Return whether a selector matches a topic."""
    type, pattern = selector
    if type == "urlpattern":  # the hub has accepted it; here it is matched only once
        return UrlPattern(pattern, base_url, regexp_groups=True).match(topic)
    return compile_matcher(type, pattern).match(topic)


def _received(carrying: DataFrame, sessions: DataFrame, by: By, base_url: str | None) -> DataFrame:
    """Return subscriber_id, received, received_private, first_received,
    last_received.
    """
    rows = match(carrying, sessions, "rows", by=by, base_url=base_url)
    key = [column for column in rows.columns if column != "subscriber_id"]
    told = rows.join(carrying.select(*key, "private").distinct(), key)
    return told.groupBy("subscriber_id").agg(
        F.count("*").alias("received"),
        F.count_if("private").alias("received_private"),
        F.min("ts").alias("first_received"),
        F.max("ts").alias("last_received"),
    )

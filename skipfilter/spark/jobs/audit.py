"""Audit: who could read a topic, by which selector, and who received it.

    sessions ─┬─► those of its selectors that match ─► authorised, subscribed ┐
              └────────────────────────┐                                      ├─►
    updates ──► those on the topic ────┴─► match ─► received ─────────────────┘

A session can be *authorised*, *subscribed* and *receiving*, and none implies another:

    authorised    It may read private updates on the topic.  Public updates need no
                  authorisation.
    subscribed    It gets the topic's public updates and, if it is also authorised, the
                  private ones.
    received      It got updates on the topic.  If an update has several topics, a
                  selector for one of them and a grant for another are enough, even if
                  none is for this topic.

A selector grants a topic during the whole session, even if nothing was published.

The audit finds only sessions and deliveries that are in the tables.  If a hub was
killed, the column `complete` and the table of gaps show that some may be missing
(skipfilter.spark.jobs.gaps).  A hub's event log has only lasting connections.  It does
not have clients that read the history and leave (hub.http.replay).
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StructField, StructType

from skipfilter.spark.jobs.matching import match
from skipfilter.spark.jobs.unknown import perhaps
from skipfilter.spark.tables.schemas import SELECTOR
from skipfilter.topics.matchers import compile_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import Unpack

    from pyspark.sql import Column, DataFrame

    from skipfilter.spark.jobs.matching import Options


def audit(
    topic: str,
    updates: DataFrame,
    sessions: DataFrame,
    gaps: DataFrame | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    **options: Unpack[Options],
) -> DataFrame:
    """Return the sessions that could read or received `topic` from `start` to `end`.

        topic, subscriber_id, subscriber
        issuer, subject                      whom the session is of, as the log names
                                             them; null if it does not
        connected_from, disconnected_at      of the whole session; null while it lasts
        authorised                           the selectors that grant it the topic; a
                                             private update needs one
        subscribed                           its selectors that match the topic
        received, received_private           how many updates on the topic it got, and
                                             how many of these were private; null if it
                                             may have got more, because its node was
                                             killed
        at_least, private_at_least           how many of each are known
        first_update, last_update            when the first and the last of these were
                                             published; one that is read from the
                                             history was published before the session
        complete                             false if its node was killed; null while it
                                             lasts

    Columns that `sessions` does not have are null.

    `start` is included and `end` is not; None is no bound.  A session has a row if it
    existed in that time and has a matching selector, or if it received an update on the
    topic in that time.  Rows have no order.  The selectors of a list are in the order
    of the session.

    Without GAPS, nothing is taken for unknown.  The options are those of `match`, which
    runs on the updates of the topic before this function returns.
    """
    by, base_url = options.get("by", "time"), options.get("base_url")
    there = F.col("there")
    sessions = sessions.withColumn("there", _overlap(start, end))
    optional = {"issuer": "string", "subject": "string", "complete": "boolean"}
    absent = {name: F.lit(None).cast(type) for name, type in optional.items() if name not in sessions.columns}
    sessions = sessions.withColumns(absent)
    # By position, keep the sessions of other times too: if a node's clock was wrong,
    # such a session may have received an update of this time.
    if by == "time":
        sessions = sessions.where(there | ~F.coalesce("complete", F.lit(True)))
    carrying = updates.where(F.array_contains("topics", topic) & _between("ts", start, end))
    found = (
        _matching(topic, sessions, base_url)
        .join(_received(carrying, sessions, options), "subscriber_id", "left")
        .join(_unknown(carrying, sessions, gaps, options), "subscriber_id", "left")
        .where(
            (there & (F.size("authorised") + F.size("subscribed") > 0))
            | F.col("received").isNotNull()
            | F.col("more").isNotNull()
        )
    )
    # Null for sessions without an update.
    counts = {name: F.coalesce(name, F.lit(0)) for name in ("received", "received_private", "more", "more_private")}
    return found.select(
        F.lit(topic).alias("topic"),
        "subscriber_id",
        "subscriber",
        "issuer",
        "subject",
        "connected_from",
        "disconnected_at",
        "authorised",
        "subscribed",
        F.when(counts["more"] == 0, counts["received"]).alias("received"),
        F.when(counts["more_private"] == 0, counts["received_private"]).alias("received_private"),
        counts["received"].alias("at_least"),
        counts["received_private"].alias("private_at_least"),
        "first_update",
        "last_update",
        "complete",
    )


def _between(column: str, start: datetime | None, end: datetime | None) -> Column:
    """Return whether start <= column < end; None is no bound."""
    after = F.lit(True) if start is None else F.col(column) >= F.lit(start)
    return after if end is None else after & (F.col(column) < F.lit(end))


def _overlap(start: datetime | None, end: datetime | None) -> Column:
    """Return whether a session existed between `start` and `end`.

    A session that ended at the moment it began existed at no time.
    """
    # Spark's least and greatest ignore nulls, which here mean no bound.
    first, last = (F.lit(time).cast("timestamp") for time in (start, end))
    left = F.least("disconnected_at", last)
    return left.isNull() | (F.greatest("connected_from", first) < left)


def _matching(topic: str, sessions: DataFrame, base_url: str | None) -> DataFrame:
    """Return the sessions with the lists authorised and subscribed: their selectors
    that match `topic`.
    """
    lists = {"authorised": "authorised", "selectors": "subscribed"}
    others = [column for column in sessions.columns if column not in lists]
    matching = [StructField(name, ArrayType(SELECTOR, containsNull=False), nullable=False) for name in lists.values()]
    schema = StructType([*(sessions.schema[column] for column in others), *matching])
    renamed = sessions.select(*others, *(F.col(column).alias(name) for column, name in lists.items()))
    return renamed.mapInArrow(lambda batches: _only_matching(batches, topic, base_url), schema)


def _only_matching(batches: Iterator[pa.RecordBatch], topic: str, base_url: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches, with only the selectors that match the topic in the last two
    columns.

    Matches a pattern that many sessions have once, as long as it is in the cache.
    """
    matches = lru_cache(_CACHED)(partial(_matches, topic=topic, base_url=base_url))
    for batch in batches:
        *others, authorised, subscribed = batch.columns
        columns = [*others, _kept(authorised, topic, matches), _kept(subscribed, topic, matches)]
        yield pa.RecordBatch.from_arrays(columns, batch.schema.names)


_CACHED: Final = 10_000
"""The number of patterns of which a worker remembers whether they match."""


def _kept(lists: pa.ListArray, topic: str, matches: Callable[[str, str], bool]) -> pa.ListArray:
    """Return lists of selectors with only those that match.

    Compares exact selectors as text.
    """
    selectors = lists.flatten()
    types, patterns = (pc.struct_field(selectors, name) for name in SELECTOR.names)
    keep = pc.equal(patterns, topic).to_numpy(zero_copy_only=False)
    [others] = np.nonzero(pc.not_equal(types, "exact").to_numpy(zero_copy_only=False))
    if others.size:
        pairs = zip(types.take(others).to_pylist(), patterns.take(others).to_pylist(), strict=True)
        keep[others] = [matches(*pair) for pair in pairs]
    # The number of kept selectors of each list.
    counts = np.bincount(pc.list_parent_indices(lists).to_numpy()[keep], minlength=len(lists))
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, selectors.filter(keep))


def _matches(type: str, pattern: str, topic: str, base_url: str | None) -> bool:
    """Return whether a selector, which the hub has accepted, matches a topic."""
    return compile_matcher(type, pattern, base_url=base_url, regexp_groups=True).match(topic)


def _received(carrying: DataFrame, sessions: DataFrame, options: Options) -> DataFrame:
    """Return how many updates of `carrying` each session received, and when.

    The columns are subscriber_id, received, received_private, first_update and
    last_update.
    """
    rows = match(carrying, sessions, "rows", **options)
    # `match` returns only what identifies an update, so look up whether it is private.
    key = [column for column in rows.columns if column != "subscriber_id"]
    received = rows.join(carrying.select(*key, "private").distinct(), key)
    return received.groupBy("subscriber_id").agg(
        F.count("*").alias("received"),
        F.count_if("private").alias("received_private"),
        F.min("ts").alias("first_update"),
        F.max("ts").alias("last_update"),
    )


def _unknown(carrying: DataFrame, sessions: DataFrame, gaps: DataFrame | None, options: Options) -> DataFrame:
    """Return how many updates of `carrying` each session may have received besides.

    The columns are subscriber_id, more and more_private.
    """
    if gaps is None or gaps.isEmpty():
        return carrying.sparkSession.createDataFrame([], "subscriber_id long, more long, more_private long")
    more = _received(carrying, perhaps(carrying, sessions, gaps, options.get("by", "time")), options)
    return more.select(
        "subscriber_id", F.col("received").alias("more"), F.col("received_private").alias("more_private")
    )

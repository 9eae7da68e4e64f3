"""Matching: from updates × sessions to who received what, without testing all pairs.

    sessions ─► postings ─┬─► narrow: exact and small ──► joined on topic = selector ──┐
                          └─► wide: all others ─► to every worker, in a SelectorIndex ─┤
    updates ─┬─► keys (topic set, private) ─► topics, distinct ─► their bitmaps ◄──────┘
             │                                                          │
             └─► sorted behind their keys ◄─────────────────────────────┘
                 └─► audience of a key, found once ─► its members that were connected:
                                                      two binary searches for each
                                                      update

An update reaches a session if a selector matches one of its topics; if it is private,
an authorised selector also matches one of its topics, maybe another; and if it falls
into the session's window.

Wide selectors are passed by reference, so that a selector which every session declares
is not copied into each key that it matches; nothing else is needed against skew.  Ids
are divided into ranges, which bounds what a worker must hold.  Ranges are disjoint, so
their results add up.

Source: a bitmap for each selector is the inverted bitmap of Svalgaard and Tveden, 1980,
as in SelectorIndex.  Counting deliveries by two searches of sorted windows instead of a
join is this project's own.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from sortedcontainers import SortedDict

from skipfilter.spark.deliveries import OUTPUTS, Sessions
from skipfilter.spark.partition import Part, parts_of
from skipfilter.spark.session import forget, persisted
from skipfilter.spark.wide_selectors import Wide, index_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date
    from typing import Self, Unpack

    from pyspark.sql import Column, DataFrame

    from skipfilter.spark.deliveries import Output


By = Literal["time", "position"]

NARROW_BYTES: Final = 2_048
"""An exact selector is narrow if its bitmaps have at most this number of bytes."""
HOT: Final = 1_000_000
"""Updates of one key that one task handles; a hotter key is spread over several
tasks."""
BROADCAST_BYTES: Final = 2**28
"""Bytes of one range of ids that every worker may hold."""


class _Window(NamedTuple):
    """The columns for time: an update's moment; a session's first, and first excluded,
    one.
    """

    columns: list[str]
    at: Column
    begins: Column
    ends: Column


def _window(by: By) -> _Window:
    """Return the columns for matching by time or by position."""
    if by == "time":
        begins, ends = F.unix_micros("connected_from"), F.unix_micros("disconnected_at")
        return _Window(["ts"], F.unix_micros("ts"), begins, ends)
    return _Window(["ts", "position"], F.col("position"), F.col("after") + 1, F.col("until") + 1)


def match(updates: DataFrame, sessions: DataFrame, output: Output = "fanout", **options: Unpack[Options]) -> DataFrame:
    """Return which sessions received which updates.  UPDATES, SESSIONS ->

        fanout     update_id, ts[, position], fanout             each update, also 0
        bitmaps    update_id, ts[, position], shard, recipients  see below
        rows       update_id, ts[, position], subscriber_id      each delivery
        received   subscriber_id, received                       each that got any

    Bitmaps are 32-bit roaring bitmaps of id - (shard << 23) in the portable format, and
    never empty; an update has one or more rows for each shard.

    By time, a session's window is connected_from <= ts < disconnected_at, to the
    microsecond.  By position in one epoch of a hub's history, it is after < position <=
    until, which is exactly what the hub wrote.

    Costs and raises what Matching does.  Nothing stays persisted: the result is a plan
    over UPDATES and SESSIONS, and each action on it computes the keys and exact
    selectors again.  For several outputs or actions, `with Matching(...) as matching`
    computes them once.
    """
    with Matching(updates, sessions, **options) as matching:
        return matching.output(output)


class Options(TypedDict, total=False):
    """The options of `match`; all have defaults."""

    by: By
    base_url: str | None
    """The URL that relative URL Patterns are resolved against."""
    narrow_bytes: int
    max_broadcast_bytes: int
    hot: int


class Matching:
    """Updates and sessions, prepared for any output of `match`.

    Preparing makes the postings and the keys, and fetches what every worker needs.  An
    output is one shuffle of the updates for each range of ids.  A worker holds 16 bytes
    a session and the wide selectors with their bitmaps, up to `max_broadcast_bytes`; an
    index of them (some 2 KB a selector and 100 KB a URL Pattern); and 2**28 bytes of
    audiences.

    What outputs share is persisted until `close`, or the end of a `with`; a result that
    is used later is correct but costs more.  If an executor is lost, Spark computes its
    share again from the tables, which must not have changed.  If `spark.checkpoint.dir`
    is set, the shared frames are files there instead: nothing is computed again, and
    Spark does not delete the files.

    An update is identified by its id and its moment, or position.

    Raises BadInput if sessions share an id, end before they begin, or have an invalid
    selector, and BroadcastLimit if one session declares too much.  An unexpected null
    fails the job.
    """

    def __init__(
        self,
        updates: DataFrame,
        sessions: DataFrame,
        *,
        by: By = "time",
        base_url: str | None = None,
        narrow_bytes: int = NARROW_BYTES,
        max_broadcast_bytes: int = BROADCAST_BYTES,
        hot: int = HOT,
    ) -> None:
        window = _window(by)
        sessions = sessions.select(
            "subscriber_id", "selectors", "authorised", window.begins.alias("begins"), window.ends.alias("ends")
        )
        updates = updates.select(
            F.struct("update_id", *window.columns).alias("update"),
            F.array_sort(F.array_distinct(_required("topics"))).alias("topics"),
            _required("private").alias("private"),
            _required(window.columns[-1], window.at).alias("at"),
        )
        with ExitStack() as kept:  # if a table is refused, nothing stays persisted
            keep = partial(_keep, kept)
            keys = keep(updates.groupBy("topics", "private").agg(F.count("*").alias("updates")))
            self._events = _events(updates, keys, hot)
            self._parts = [
                (keep(_references(keys, part, hot)), part.sessions)
                for part in parts_of(sessions, narrow_bytes, max_broadcast_bytes, base_url, keep)
            ]
            self._kept = kept.pop_all()

    def close(self) -> None:
        """Release what is persisted.  A second call does nothing."""
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def output(self, name: Output) -> DataFrame:
        """Return `fanout`, `bitmaps`, `rows` or `received`, as `match`
        describes them.
        """
        parts = [_deliveries(self._events, references, shared, name) for references, shared in self._parts]
        result = reduce(lambda one, other: one.unionAll(other), parts)
        if name == "received":
            return result
        if name == "fanout" and len(parts) > 1:
            result = result.groupBy("update").agg(F.sum("fanout").alias("fanout"))
        return result.select("update.*", *result.columns[1:])


def _keep(kept: ExitStack, frame: DataFrame) -> DataFrame:
    """Return the frame, computed once: persisted until `kept` closes, or in checkpoint
    files.
    """
    if frame.sparkSession.conf.get("spark.checkpoint.dir", None):
        return frame.checkpoint()
    kept.callback(forget, persisted(frame))
    return frame


def _required(column: str, value: Column | None = None) -> Column:
    """Return the column, or the given value; reading a null raises."""
    told = F.concat(F.lit(f"updates: {column} is null, update_id is "), F.coalesce("update_id", F.lit("null")))
    return F.coalesce(F.col(column) if value is None else value, F.raise_error(told))


# -- the keys


def _salts(hot: int) -> Column:
    """Return over how many tasks the updates of a key are spread."""
    return F.ceil(F.col("updates") / hot)


def _found_by(topics: DataFrame, part: Part) -> DataFrame:
    """Return topic, subscribed, authorised, wide: bitmaps of narrow, numbers of wide
    selectors.
    """
    wide = part.wide
    matched = topics.mapInArrow(lambda batches: _ask(batches, wide), "topic string, wide array<int>")
    return matched.join(part.narrow, "topic", "left").select("topic", "subscribed", "authorised", "wide")


def _references(keys: DataFrame, part: Part, hot: int) -> DataFrame:
    """Return a row for each key and salt, with the references to the matching
    selectors.
    """
    # Keys with one topic and with several share one branch, so that each topic is
    # matched once whatever Spark plans.
    found = _found_by(keys.select(F.explode("topics").alias("topic")).distinct(), part)
    salt = F.explode(F.sequence(F.lit(0), (_salts(hot) - 1).cast("int"))).alias("salt")
    return (
        keys.withColumn("topic", F.explode_outer("topics"))
        .join(found, "topic", "left")
        .groupBy("topics", "private", "updates")
        .agg(
            F.collect_list("subscribed").alias("subscribed"),
            F.collect_list("authorised").alias("authorised"),
            F.array_sort(F.array_distinct(F.flatten(F.collect_list("wide")))).alias("wide"),
        )
        .select("topics", "private", salt, "subscribed", "authorised", "wide")
    )


def _ask(batches: Iterable[pa.RecordBatch], wide: Wide) -> Iterator[pa.RecordBatch]:
    """Yield the topics of each batch with the numbers of the wide selectors
    that match.
    """
    index, nobody = index_of(wide), SortedDict()
    for batch in batches:
        found = [index.ids_matching(topic, nobody, 0).to_array() for topic in batch.column(0).to_pylist()]
        offsets = np.zeros(len(found) + 1, np.int32)
        np.cumsum([len(numbers) for numbers in found], out=offsets[1:])
        numbers = np.fromiter((number for one in found for number in one), np.int32, offsets[-1])
        yield pa.record_batch([batch.column(0), pa.ListArray.from_arrays(offsets, numbers)], ["topic", "wide"])


# -- the deliveries


def _events(updates: DataFrame, keys: DataFrame, hot: int) -> DataFrame:
    """Return the updates, with a salt if their key is hot."""
    spread = keys.filter(F.col("updates") > hot).select("topics", "private", _salts(hot).alias("salts"))
    if spread.isEmpty():
        return updates.withColumn("salt", F.lit(0))
    salts = F.coalesce("salts", F.lit(1))
    salt = F.pmod(F.xxhash64("update"), salts).cast("int")
    return updates.join(F.broadcast(spread), ["topics", "private"], "left").withColumn("salt", salt).drop("salts")


def _deliveries(events: DataFrame, references: DataFrame, sessions: Sessions, output: Output) -> DataFrame:
    """Return one output for one range of ids."""
    key = ["topics", "private", "salt"]
    rows = references.withColumn("is_key", F.lit(True)).unionByName(
        events.withColumn("is_key", F.lit(False)), allowMissingColumns=True
    )
    # Sort by the hash first, because numbers sort faster than text; then by the text,
    # because hashes collide.
    behind = rows.repartition(*key).sortWithinPartitions(F.xxhash64(*key), *key, F.desc("is_key"), "at")
    columns = ["is_key", "private", "at", "update", "subscribed", "authorised", "wide"]
    deliver, schema = OUTPUTS[output]
    if output != "received":
        schema = f"update {events.schema['update'].dataType.simpleString()}, {schema}"
    found = behind.select(columns).mapInArrow(lambda batches: deliver(batches, sessions), schema)
    if output == "received":
        found = found.groupBy("subscriber_id").agg(F.sum("received").alias("received"))
    return found


def of_days(
    updates: DataFrame, sessions: DataFrame, first: date | None, last: date | None, by: By
) -> tuple[DataFrame, DataFrame]:
    """Return the updates of the days `first` to `last`, and sessions that may have got
    any.

    None is no bound.  Time and memory then depend on these days and not on the tables.
    """
    if first is not None:
        updates = updates.filter(F.col("dt") >= first)
    if last is not None:
        updates = updates.filter(F.col("dt") <= last)
    # By position, a session may have read updates from before its connection.
    if by == "position":
        bounds = updates.agg(F.min("position").alias("first"), F.max("position").alias("last")).first()
        assert bounds is not None
        if bounds["first"] is not None:
            sessions = sessions.filter(
                (F.col("after") < bounds["last"]) & (F.col("until").isNull() | (F.col("until") >= bounds["first"]))
            )
        return updates, sessions
    if first is not None:
        sessions = sessions.filter(F.col("disconnected_at").isNull() | (F.col("disconnected_at") > first))
    if last is not None:
        sessions = sessions.filter(F.col("connected_from") < last + timedelta(days=1))
    return updates, sessions

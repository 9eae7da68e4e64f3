"""Matching: which session received which update, without testing all pairs.

    sessions ─► postings ─┬─► narrow: exact and small ──► joined on topic = selector ──┐
                          └─► wide: all others ─► to every worker, in a SelectorIndex ─┤
    updates ─┬─► keys (topics, private) ─► distinct topics ─► bitmaps, numbers ◄───────┘
             │                                                   │
             └─► rows of a key: the key, then its updates ◄──────┘
                 └─► audience of the key, once ─► count the members that were connected,
                                                  by two binary searches an update

An update reaches a session if

1. a declared selector matches one of its topics,
2. it is public, or a granted selector matches one of its topics, maybe another one, and
3. its moment lies in the session's window.

A key refers to wide selectors by number, so that a selector which every session
declares is not copied into each key that it matches.  Several tasks share a key that
has many updates or, if each delivery is a row, many deliveries.  Nothing else is needed
against skew.  The ids are divided into ranges, so that what a worker holds has a limit.
Ranges are disjoint, so their results add up.

The workers run the functions of skipfilter.bulk, which need no Spark.

Source: a bitmap for each selector is the inverted bitmap of Svalgaard and Tveden, 1980,
as in SelectorIndex.  It is this project's own idea to count deliveries by two searches
in sorted windows instead of a join.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from functools import partial, reduce
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from skipfilter.bulk.deliveries import REFERENCES
from skipfilter.bulk.matching import require_by
from skipfilter.bulk.outputs import Output
from skipfilter.bulk.ranges import BROADCAST_BYTES
from skipfilter.bulk.wide_selectors import NARROW_BYTES, find_numbers
from skipfilter.errors import not_copied
from skipfilter.spark.jobs.partition import IdRange, parts_of
from skipfilter.spark.session import forget, persisted
from skipfilter.spark.tables.schemas import schema

if TYPE_CHECKING:
    from datetime import date
    from typing import Self, Unpack

    from pyspark.sql import Column, DataFrame

    from skipfilter.bulk.deliveries import Sessions
    from skipfilter.bulk.matching import By


HOT: Final = 1_000_000
"""The number of updates of one key above which several tasks share the key."""
TASK_DELIVERIES: Final = 1_000_000, 5_000_000
"""A task finds about the second number of deliveries, if they are rows or bitmaps.

It finds fewer, down to the first number, if Spark's setting for the partitions of a
shuffle allows more tasks.
"""
UPDATE_WORK: Final = 5
"""The number of deliveries that take as long as an update that reaches no session."""
MAX_TASKS: Final = 10_000
"""The maximum number of tasks for a range of ids, however many deliveries it has."""


class ComparedBy(NamedTuple):
    """How moments are compared: an update is in a window if begins <= at < ends."""

    columns: list[str]
    """The columns that, with the id, identify an update; the last is that of `at`."""
    at: Column
    """The moment of an update."""
    begins: Column
    """The first moment of a session."""
    ends: Column
    """The first moment after a session; null if it has not ended."""


def window_of(by: By) -> ComparedBy:
    """Return the columns for matching by time or by position.

    Raises ValueError if `by` is neither.
    """
    require_by(by)
    if by == "time":
        begins, ends = F.unix_micros("connected_from"), F.unix_micros("disconnected_at")
        return ComparedBy(["ts"], F.unix_micros("ts"), begins, ends)
    # after < position <= until, as a half-open range of whole numbers.
    return ComparedBy(["ts", "position"], F.col("position"), F.col("after") + 1, F.col("until") + 1)


def match(
    updates: DataFrame, sessions: DataFrame, output: str = Output.FANOUT, **options: Unpack[Options]
) -> DataFrame:
    """Return which sessions of SESSIONS received which updates of UPDATES.

    `output` is the name of an Output (skipfilter.bulk.outputs), which lists its
    columns.  All but `received` begin with update_id, ts and, with by="position",
    position.  An update has several rows of `bitmaps` for one shard if the shard was
    divided.

    With by="time", a session's window is connected_from <= ts < disconnected_at, to the
    microsecond.  With by="position", for one epoch of a hub's history, it is after <
    position <= until, which is exactly what the hub wrote.  Only then do outputs have
    the column position.

    The cost and the errors are those of Matching.  Nothing stays persisted.  The result
    is a plan over UPDATES and SESSIONS, so each action on it computes the keys and the
    narrow selectors again.  For several outputs or actions, use `with Matching(...) as
    matching`, which computes them once.
    """
    with Matching(updates, sessions, **options) as matching:
        return matching.output(output)


class Options(TypedDict, total=False):
    """The options of `match` and Matching.  All have defaults."""

    by: By
    base_url: str | None
    """The URL against which relative URL Patterns are resolved."""
    narrow_bytes: int
    """See NARROW_BYTES."""
    max_broadcast_bytes: int
    """See BROADCAST_BYTES."""
    hot: int
    """See HOT."""


class Matching:
    """Updates and sessions, prepared for any output of `match`.

    The constructor computes the postings and the keys, and fetches what every worker
    needs.  Each output then shuffles the updates once for each range of ids.

    An update is identified by its id and its time and, if positions are compared, also
    by its position.

    A worker holds 16 bytes for each id of its range, even if no session has the id, the
    wide selectors with their bitmaps, and an index of these selectors (some 1.5 KB
    each, and 10 KB for a URL Pattern with groups): together up to about
    `max_broadcast_bytes`.  It also holds up to 2**28 bytes of audiences and, for rows
    and bitmaps, some 130 bytes for each session of the largest audience.

    Raises BadInput if two sessions share an id, or if a session ends before it begins
    or has an invalid selector.  Raises BroadcastLimit if the selectors of one session
    are larger than `max_broadcast_bytes`.  An unexpected null fails the job.

    What the outputs share is persisted until `close`, or the end of a `with` statement.
    A result that is used later is correct, but costs more.  If an executor is lost,
    Spark computes its share again from the tables, which must not have changed.  If
    `spark.checkpoint.dir` is set, what is shared is stored in files there instead.
    Nothing is then computed again, and Spark does not delete the files.
    """

    __reduce__ = not_copied

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
        window = window_of(by)
        sessions = sessions.select(
            "subscriber_id", "selectors", "authorised", window.begins.alias("begins"), window.ends.alias("ends")
        )
        updates = updates.select(
            F.struct("update_id", *window.columns).alias("update"),
            F.array_sort(F.array_distinct(_required("topics"))).alias("topics"),
            _required("private").alias("private"),
            _required(window.columns[-1], window.at).alias("at"),
        )
        with ExitStack() as kept:  # if a table is invalid, nothing stays persisted
            keep = partial(_keep, kept)
            of_key = F.count("*").alias("updates"), F.min("at").alias("first"), F.max("at").alias("last")
            keys = keep(updates.groupBy("topics", "private").agg(*of_key))
            bounds = keys.agg(F.max("updates"), F.min("first"), F.max("last")).first()
            assert bounds is not None
            most, *self._span = (bound or 0 for bound in bounds)
            # How the fan-out is divided into tasks, which ranges of ids do not change.
            self._by_updates = _Tasks(F.col("updates"), hot, None, most > hot)
            self._updates = updates
            # For each range of ids: the references of every key, and the sessions.
            self._parts = [
                (keep(_references(keys, part)), part.sessions)
                for part in parts_of(sessions, narrow_bytes, max_broadcast_bytes, base_url, keep)
            ]
            # Releases all that is persisted.
            self._kept = kept.pop_all()

    def close(self) -> None:
        """Release all that is persisted.  A second call does nothing.

        Takes a call of Spark for each table that is persisted.
        """
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def output(self, name: str) -> DataFrame:
        """Return the output `name` of `match`, as a plan that has not run.

        When it is used, it takes a shuffle of the updates for each range of ids.

        For rows and bitmaps, jobs run before it returns, to estimate the deliveries.
        Raises ValueError for an unknown name.
        """
        output = Output.of(name)
        parts = []
        for references, sessions in self._parts:
            if output in (Output.ROWS, Output.BITMAPS):
                tasks = _by_deliveries(references, sessions.share_connected(*self._span))
            else:
                tasks = self._by_updates
            parts.append(_deliveries(self._updates, references, sessions, tasks, output))
        # Ranges have different sessions, so most outputs are a union.  Only the fan-out
        # of an update is a sum over the ranges.
        result = reduce(lambda one, other: one.unionAll(other), parts)
        if not output.of_updates:
            return result
        if output is Output.FANOUT and len(parts) > 1:
            result = result.groupBy("update").agg(F.sum("fanout").alias("fanout"))
        return result.select("update.*", *result.columns[1:])


def _keep(kept: ExitStack, frame: DataFrame) -> DataFrame:
    """Return `frame` so that it is computed only once.

    It is persisted until `kept` closes, or stored in checkpoint files.
    """
    if frame.sparkSession.conf.get("spark.checkpoint.dir", None):
        return frame.checkpoint()
    kept.callback(forget, persisted(frame))
    return frame


def _required(column: str, value: Column | None = None) -> Column:
    """Return the column, or `value`.  A null fails the job that reads it."""
    message = F.concat(F.lit(f"updates: {column} is null, update_id is "), F.coalesce("update_id", F.lit("null")))
    return F.coalesce(F.col(column) if value is None else value, F.raise_error(message))


# -- the keys


def _found_by(topics: DataFrame, part: IdRange) -> DataFrame:
    """Return topic, subscribed, authorised, wide, declared of each topic.

    These are the two bitmaps of its narrow selector, or nulls, the numbers of the
    matching wide selectors, and the sum of the ids that declare each of all these.
    """
    wide = part.wide
    matched = topics.mapInArrow(
        lambda batches: find_numbers(batches, wide), "topic string, wide array<int>, declared long"
    )
    declared = F.col("declared") + F.coalesce("n_subscribed", F.lit(0))
    return matched.join(part.narrow, "topic", "left").select(
        "topic", "subscribed", "authorised", "wide", declared.alias("declared")
    )


def _references(keys: DataFrame, part: IdRange) -> DataFrame:
    """Return a row for each key, with references to the matching selectors.

    The columns subscribed and authorised are lists of bitmaps, and wide is a sorted
    list of numbers.  Audience is the maximum number of sessions that an update reaches.
    """
    # Keys with one topic and keys with several take the same branch, so that each topic
    # is matched once whatever Spark plans.
    found = _found_by(keys.select(F.explode("topics").alias("topic")).distinct(), part)
    # From topics back to keys: a key refers to what any of its topics matches.
    return (
        keys.withColumn("topic", F.explode_outer("topics"))
        .join(found, "topic", "left")
        .groupBy("topics", "private", "updates")
        .agg(
            F.collect_list("subscribed").alias("subscribed"),
            F.collect_list("authorised").alias("authorised"),
            F.array_sort(F.array_distinct(F.flatten(F.collect_list("wide")))).alias("wide"),
            F.least(F.coalesce(F.sum("declared"), F.lit(0)), F.lit(len(part.sessions.begins))).alias("audience"),
        )
    )


# -- the deliveries


class _Tasks(NamedTuple):
    """How the work of an output is divided into tasks."""

    work: Column
    """The work of a key."""
    share: float
    """The most work of a key in one task: several tasks share a key with more."""
    number: int | None
    """The number of tasks; None leaves it to Spark."""
    is_shared: bool
    """Whether several tasks share a key."""

    @property
    def salts(self) -> Column:
        """The number of tasks that share a key."""
        return F.greatest(F.ceil(self.work / F.lit(self.share)), F.lit(1)).cast("int")


def _by_deliveries(references: DataFrame, connected: float) -> _Tasks:
    """Return how the deliveries of all keys are divided into tasks, about evenly.

    `connected` is the share of the sessions that are connected at a time.  Runs a job.
    """
    work = F.col("updates") * (F.col("audience") * F.lit(connected) + F.lit(UPDATE_WORK))
    found = references.agg(F.coalesce(F.sum(work), F.lit(0)), F.coalesce(F.max(work), F.lit(0))).first()
    assert found is not None
    total, most = found
    few, many = (ceil(total / deliveries) for deliveries in reversed(TASK_DELIVERIES))
    # Spark itself would coalesce small partitions, and the rows of a hot key are few
    # before they become deliveries.
    partitions = int(references.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    number = max(min(few, MAX_TASKS), min(many, partitions), 1)
    # A task gets several keys, or parts of keys, so that large ones do not meet in it.
    share = max(total / number / 4, 1.0)
    return _Tasks(work, share, number, number > 1 and most > share)


def _deliveries(
    updates: DataFrame, references: DataFrame, sessions: Sessions, tasks: _Tasks, output: Output
) -> DataFrame:
    """Return one output for one range of ids, with the update as one column."""
    key = ["topics", "private"]
    # 1. A salt for each task that shares a key: the key has a row for each salt, and an
    #    update has one of them.
    salted = references.withColumn("salt", F.explode(F.sequence(F.lit(0), tasks.salts - 1)))
    if tasks.is_shared:
        spread = references.select(*key, tasks.salts.alias("salts")).filter("salts > 1")
        salt = F.pmod(F.xxhash64("update"), F.coalesce("salts", F.lit(1))).cast("int")
        events = updates.join(F.broadcast(spread), key, "left").withColumn("salt", salt).drop("salts")
    else:
        events = updates.withColumn("salt", F.lit(0))
    # 2. One table of keys and updates.
    rows = salted.withColumn("is_key", F.lit(True)).unionByName(
        events.withColumn("is_key", F.lit(False)), allowMissingColumns=True
    )
    # 3. All rows of a key and salt in one task.  Successive salts are in different
    #    tasks.
    if tasks.number is None:
        parted = rows.repartition(*key, "salt")
    else:
        task = F.pmod(F.hash(*key).cast("long") + F.col("salt"), F.lit(tasks.number)).cast("int")
        parted = rows.repartitionById(tasks.number, task)
    # 4. The key first, then its updates by moment.  Sort by the hash first, because
    #    numbers sort faster than text; then by the text, because hashes collide.
    ordered = parted.sortWithinPartitions(F.xxhash64(*key, "salt"), *key, "salt", F.desc("is_key"), "at")
    # 5. The workers find the deliveries.
    columns = ["is_key", "at", "update", *REFERENCES]
    deliver = output.deliver
    made = schema(column._replace(nullable=True) for column in output.columns)  # as a sum over ranges is
    if output.of_updates:
        made = StructType([updates.schema["update"], *made])
    found = ordered.select(columns).mapInArrow(lambda batches: deliver(batches, sessions), made)
    # A session received updates of several keys, in several tasks.
    if output is Output.RECEIVED:
        found = found.groupBy("subscriber_id").agg(F.sum("received").alias("received"))
    return found


def updates_of(updates: DataFrame, first: date | None, last: date | None) -> DataFrame:
    """Return the updates of the days `first` to `last`.  None is no bound."""
    if first is not None:
        updates = updates.filter(F.col("dt") >= first)
    return updates if last is None else updates.filter(F.col("dt") <= last)


def as_if_online(sessions: DataFrame) -> DataFrame:
    """Return SESSIONS as if each had been connected all the time.

    With by="time", `match` then returns who would have received an update.  Costs no
    job.
    """
    always = {"connected_from": F.timestamp_micros(F.lit(0)), "disconnected_at": F.lit(None).cast("timestamp")}
    return sessions.withColumns(always)


def of_days(
    updates: DataFrame, sessions: DataFrame, first: date | None, last: date | None, by: By
) -> tuple[DataFrame, DataFrame]:
    """Return the updates of the days `first` to `last`, and sessions that may match.

    Leaves out sessions that cannot have received any of these updates, so that time and
    memory depend on these days and not on the whole tables.  None is no bound.  Runs a
    job before it returns if `by` is "position".
    """
    updates = updates_of(updates, first, last)
    # By position, the times of a session do not count: it may have read updates from
    # before its connection.
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

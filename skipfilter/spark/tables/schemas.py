"""The tables of the pipeline, column by column.

Times are in UTC, with microseconds.  Bitmaps are 32-bit roaring bitmaps in the portable
format, which libraries of many languages read.  Their ids are relative to the first id
of the shard: subscriber_id - (shard << 23).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def _column(name: str, type: object, *, null: bool = False) -> StructField:
    return StructField(name, type, null)  # type: ignore[arg-type]


SELECTOR: Final = StructType([_column("type", StringType()), _column("pattern", StringType())])

# One row for each update.
UPDATES: Final = StructType(
    [
        _column("update_id", StringType()),
        _column("topics", ArrayType(StringType(), containsNull=False)),  # the canonical topic first
        _column("private", BooleanType()),
        _column("type", StringType(), null=True),
        _column("retry", LongType(), null=True),  # milliseconds
        _column("data_bytes", LongType()),
        _column("data", StringType(), null=True),
        _column("ts", TimestampType()),
        _column("position", LongType(), null=True),  # in the history of a hub
        _column("hub", StringType(), null=True),  # the URL of the hub
        # Of the hub's history.  Positions are comparable only within one epoch.
        _column("epoch", StringType(), null=True),
        _column("dt", DateType()),  # of ts; the table is partitioned by it
    ]
)

# One row for each connection of a subscriber.
SESSIONS: Final = StructType(
    [
        _column("subscriber_id", LongType()),  # unique; counted from 0 if possible
        _column("subscriber", StringType()),
        _column("selectors", ArrayType(SELECTOR, containsNull=False)),  # declared by the subscriber
        _column("authorised", ArrayType(SELECTOR, containsNull=False)),  # granted, for private updates
        _column("connected_from", TimestampType()),
        _column("disconnected_at", TimestampType(), null=True),  # null if it is still connected
        # The session received the matching updates with after < position <= until.
        _column("after", LongType(), null=True),
        _column("until", LongType(), null=True),
        _column("hub", StringType(), null=True),
        _column("epoch", StringType(), null=True),
        _column("node", StringType(), null=True),  # the hub's process
        _column("number", LongType(), null=True),  # the node's number of the connection
        # False if the node was killed: the session may have received updates after
        # `until`.  Null while the session is open.
        _column("complete", BooleanType(), null=True),
        _column("dt", DateType()),  # of connected_from
    ]
)

# One row for each mark in a hub's event log that records of a node may be missing.
GAPS: Final = StructType(
    [
        _column("hub", StringType(), null=True),
        _column("epoch", StringType(), null=True),
        _column("node", StringType()),
        _column("ts", TimestampType()),  # connections of the node from this time ...
        _column("found", TimestampType(), null=True),  # ... until this one may be missing; null if it continues
        _column("after", LongType()),  # deliveries of the node after this position may be missing
        _column("updates", BooleanType()),  # whether the updates after it may be missing too
        _column("cause", StringType()),  # what the node did, as in "ended uncleanly"
    ]
)

# One row for each distinct selector of each shard.
POSTINGS: Final = StructType(
    [
        _column("shard", IntegerType()),
        _column("match_type", StringType()),
        _column("selector", StringType()),
        _column("subscribed", BinaryType(), null=True),  # the ids that declare it; null if there are none
        _column("authorised", BinaryType(), null=True),  # the ids that are granted it; null if there are none
        _column("n_subscribed", LongType()),
        _column("n_authorised", LongType()),
    ]
)

# One row for each update.
FANOUT: Final = StructType(
    [
        _column("update_id", StringType()),
        _column("ts", TimestampType()),
        _column("position", LongType(), null=True),
        _column("fanout", LongType()),  # the number of sessions that received the update
        # The generation of the day's updates and sessions that it was made from
        # (skipfilter.spark.jobs.generations); null if an earlier version made it.
        _column("made_from", StringType(), null=True),
        _column("dt", DateType()),  # of ts
    ]
)

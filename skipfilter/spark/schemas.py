"""The tables of the pipeline, column by column.

Times are UTC with microseconds.  Bitmaps are 32-bit roaring bitmaps in the portable
format, which libraries of many languages read; ids are relative to the first of their
shard.
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

UPDATES: Final = StructType(
    [
        _column("update_id", StringType()),
        _column("topics", ArrayType(StringType(), containsNull=False)),  # the canonical one first
        _column("private", BooleanType()),
        _column("type", StringType(), null=True),
        _column("retry", LongType(), null=True),  # ms
        _column("data_bytes", LongType()),
        _column("data", StringType(), null=True),
        _column("ts", TimestampType()),
        _column("position", LongType(), null=True),  # in the history of a hub
        _column("hub", StringType(), null=True),  # its URL
        _column("epoch", StringType(), null=True),  # of its history; positions are comparable in it
        _column("dt", DateType()),  # of ts; the table is partitioned by it
    ]
)

SESSIONS: Final = StructType(
    [
        _column("subscriber_id", LongType()),  # unique; counted from 0 if possible
        _column("subscriber", StringType()),
        _column("selectors", ArrayType(SELECTOR, containsNull=False)),
        _column("authorised", ArrayType(SELECTOR, containsNull=False)),
        _column("connected_from", TimestampType()),
        _column("disconnected_at", TimestampType(), null=True),  # null if it is still connected
        _column("after", LongType(), null=True),  # it got the matching updates with after < position <= until
        _column("until", LongType(), null=True),
        _column("hub", StringType(), null=True),
        _column("epoch", StringType(), null=True),
        _column("node", StringType(), null=True),  # the hub's process; next, its number of the connection
        _column("number", LongType(), null=True),
        # False if its node was killed, and it may have got more than `until` says; null
        # while it is open.
        _column("complete", BooleanType(), null=True),
        _column("dt", DateType()),  # of connected_from
    ]
)

GAPS: Final = StructType(
    [
        _column("hub", StringType(), null=True),
        _column("epoch", StringType(), null=True),
        _column("node", StringType()),
        _column("ts", TimestampType()),  # later connections of the node may be missing, ...
        _column("found", TimestampType(), null=True),  # ... until then; null if it continues
        _column("after", LongType()),  # its deliveries after this position may be missing
        _column("updates", BooleanType()),  # and the updates themselves
        _column("cause", StringType()),  # what the node did, in words
    ]
)

POSTINGS: Final = StructType(
    [
        _column("shard", IntegerType()),
        _column("match_type", StringType()),
        _column("selector", StringType()),
        _column("subscribed", BinaryType(), null=True),  # the ids that declare it; null for none
        _column("authorised", BinaryType(), null=True),  # the ids that are granted it
        _column("n_subscribed", LongType()),
        _column("n_authorised", LongType()),
    ]
)

FANOUT: Final = StructType(
    [
        _column("update_id", StringType()),
        _column("ts", TimestampType()),
        _column("position", LongType(), null=True),
        _column("fanout", LongType()),  # how many sessions received it
        _column("dt", DateType()),  # of ts
    ]
)

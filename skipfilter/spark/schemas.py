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
        _column("position", LongType(), null=True),  # in the log of a hub
        _column("hub", StringType(), null=True),  # its URL
        _column("epoch", StringType(), null=True),  # of its log: positions of one epoch are one order
        _column("dt", DateType()),  # of ts; the table is partitioned by it
    ]
)

SESSIONS: Final = StructType(
    [
        _column("subscriber_id", LongType()),  # one a row, counted from 0 as far as may be
        _column("subscriber", StringType()),
        _column("selectors", ArrayType(SELECTOR, containsNull=False)),
        _column("authorised", ArrayType(SELECTOR, containsNull=False)),
        _column("connected_from", TimestampType()),
        _column("disconnected_at", TimestampType(), null=True),  # null where it is still connected
        _column("after", LongType(), null=True),  # it got what it wanted of after < position <= until
        _column("until", LongType(), null=True),
        _column("hub", StringType(), null=True),
        _column("epoch", StringType(), null=True),
        _column("node", StringType(), null=True),  # the process of the hub, and the id of the connection there
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
        _column("ts", TimestampType()),  # connections of the node that began since may be missing
        _column("found", TimestampType(), null=True),  # and what is missing was there before; null if it goes on
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
        _column("subscribed", BinaryType(), null=True),  # who declares it; null for nobody
        _column("authorised", BinaryType(), null=True),  # who is granted it
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

"""Columns: the tables that matching reads and writes, column by column.

Times are in UTC, with microseconds.  Lists have no nulls in them.  The types are those
of Arrow; `skipfilter.spark.tables.schemas` has the same tables with the types of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: pa.DataType
    meaning: str
    """A clause for people."""
    nullable: bool = False
    """Whether it may be null."""


def types(columns: Iterable[Column]) -> dict[str, pa.DataType]:
    """Return the types of columns by name."""
    return {column.name: column.type for column in columns}


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema of a table that says where nulls may be, at any depth.

    It equals that of Spark, which a source in Python must return.
    """
    return pa.schema([pa.field(column.name, _without_nulls(column.type), column.nullable) for column in columns])


def _without_nulls(type: pa.DataType) -> pa.DataType:
    """Return a type whose lists and structs have no nulls in them."""
    if pa.types.is_list(type):
        return pa.list_(pa.field("element", _without_nulls(type.value_type), nullable=False))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _without_nulls(field.type), nullable=False) for field in type])
    return type


TEXT: Final = pa.string()
NUMBER: Final = pa.int64()
TIME: Final = pa.timestamp("us", "UTC")
SELECTORS: Final = pa.list_(pa.struct({"type": TEXT, "pattern": TEXT}))

UPDATES: Final = (
    Column("update_id", TEXT, "the update's id"),
    Column("topics", pa.list_(TEXT), "its topics, the canonical one first"),
    Column("private", pa.bool_(), "whether it is private"),
    Column("type", TEXT, "the type of its event", nullable=True),
    Column("retry", NUMBER, "milliseconds", nullable=True),
    Column("data_bytes", NUMBER, "the bytes of its data"),
    Column("data", TEXT, "its data", nullable=True),
    Column("ts", TIME, "when the hub accepted it"),
    Column("position", NUMBER, "its position in the history of a hub", nullable=True),
    Column("hub", TEXT, "the URL of the hub", nullable=True),
    Column("epoch", TEXT, "of the hub's history; positions are comparable within one epoch", nullable=True),
    Column("presence", pa.bool_(), "whether the hub published it to tell who is connected", nullable=True),
    Column("dt", pa.date32(), "the day of ts, by which the table is partitioned"),
)
"""One row for each update."""

SESSIONS: Final = (
    Column("subscriber_id", NUMBER, "unique; counted from 0 if possible"),
    Column("subscriber", TEXT, "the subscriber's name"),
    Column("selectors", SELECTORS, "declared by the subscriber"),
    Column("authorised", SELECTORS, "granted, for private updates"),
    Column("connected_from", TIME, "when it connected"),
    Column("disconnected_at", TIME, "null if it is still connected", nullable=True),
    Column("after", NUMBER, "it received matching updates after this position", nullable=True),
    Column("until", NUMBER, "and up to this one; null while it is connected", nullable=True),
    Column("hub", TEXT, "the URL of the hub", nullable=True),
    Column("epoch", TEXT, "of the hub's history", nullable=True),
    Column("node", TEXT, "the hub's process", nullable=True),
    Column("number", NUMBER, "the node's number of the connection", nullable=True),
    Column("issuer", TEXT, "of its token; or classic, application or anonymous", nullable=True),
    Column("subject", TEXT, "who it is: the subject of its token, or a digest of that", nullable=True),
    Column("token_id", TEXT, "the id of its token, or a digest of that", nullable=True),
    Column("address", TEXT, "where it came from", nullable=True),
    Column("ended_because", TEXT, "why it ended", nullable=True),
    Column("complete", pa.bool_(), "false if its node was killed; null while it is open", nullable=True),
    Column("dt", pa.date32(), "the day of connected_from"),
)
"""One row for each connection of a subscriber.

If its node was killed, a session is not complete: it may have received updates after
`until`.  The names are null in logs of earlier versions, and if the hub does not log
them.
"""

POSTINGS: Final = (
    Column("shard", pa.int32(), "subscriber_id >> 23"),
    Column("match_type", TEXT, "the selector's type"),
    Column("selector", TEXT, "its pattern"),
    Column("subscribed", pa.binary(), "the ids that declare it, as a bitmap; null if there are none", nullable=True),
    Column("authorised", pa.binary(), "the ids that are granted it; null if there are none", nullable=True),
    Column("n_subscribed", NUMBER, "the number of these ids"),
    Column("n_authorised", NUMBER, "the number of these ids"),
)
"""One row for each distinct selector of each shard.

Bitmaps are 32-bit roaring bitmaps of subscriber_id - (shard << 23) in the portable
format, which libraries of many languages read.
"""

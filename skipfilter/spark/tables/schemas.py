"""The tables of the pipeline, with the types of Spark.

`skipfilter.bulk.columns` and `skipfilter.bulk.outputs` say what each column is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skipfilter.bulk import columns
from skipfilter.bulk.columns import NUMBER, TEXT, TIME, Column
from skipfilter.bulk.outputs import IDENTITY, Output

if TYPE_CHECKING:
    from collections.abc import Iterable

_TYPES: Final = {
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.date32(): DateType(),
    pa.int32(): IntegerType(),
    NUMBER: LongType(),
    TEXT: StringType(),
    TIME: TimestampType(),
}


def schema(columns: Iterable[Column], *, nulls: bool = False) -> StructType:
    """Return the schema of a table with these columns.

    `nulls` is whether lists and structs may have nulls in them, as in PySpark's own
    function for this.
    """
    return StructType([StructField(column.name, _type(column.type, nulls), column.nullable) for column in columns])


def _type(type: pa.DataType, nulls: bool) -> DataType:
    """Return the type of Spark."""
    if pa.types.is_list(type):
        return ArrayType(_type(type.value_type, nulls), nulls)
    return _struct(type, nulls) if pa.types.is_struct(type) else _TYPES[type]


def _struct(type: pa.StructType, nulls: bool) -> StructType:
    return StructType([StructField(field.name, _type(field.type, nulls), nulls) for field in type])


MADE_FROM: Final = Column("made_from", TEXT, "the generation of the day's updates and sessions", nullable=True)
"""See `skipfilter.spark.jobs.generations`; null if an earlier version wrote the row."""

AT_LEAST: Final = Column("at_least", NUMBER, "the part of the count that was recorded", nullable=True)
"""Of a count that is null if deliveries may be missing (skipfilter.spark.jobs.unknown).

It is null if an earlier version wrote the row.
"""

_DAY: Final = Column("dt", pa.date32(), "the day of ts")

TABLES: Final = {
    "updates": columns.UPDATES,
    "sessions": columns.SESSIONS,
    "fanout": (
        *IDENTITY,
        *(column._replace(nullable=True) for column in Output.FANOUT.columns),
        AT_LEAST,
        MADE_FROM,
        _DAY,
    ),
    "rows": (*IDENTITY, *Output.ROWS.columns, MADE_FROM, _DAY),
    "gaps": (
        Column("hub", TEXT, "the URL of the hub", nullable=True),
        Column("epoch", TEXT, "of the hub's history", nullable=True),
        Column("node", TEXT, "the hub's process"),
        Column("ts", TIME, "connections of the node may be missing from this time on"),
        Column("found", TIME, "until this one; null if the gap continues", nullable=True),
        Column("after", NUMBER, "deliveries of the node after this position may be missing"),
        Column("updates", pa.bool_(), "whether the updates after it may be missing too"),
        Column("cause", TEXT, "what the node did, as in `ended uncleanly`"),
    ),
}
"""The columns of the tables that people ask, as the commands write them.

`gaps` has a row for each mark in a hub's event log that records of a node may be
missing.
"""

UPDATES: Final = schema(TABLES["updates"])
SESSIONS: Final = schema(TABLES["sessions"])
FANOUT: Final = schema(TABLES["fanout"])
GAPS: Final = schema(TABLES["gaps"])
POSTINGS: Final = schema(columns.POSTINGS)
SELECTOR: Final = _struct(columns.SELECTORS.value_type, nulls=False)

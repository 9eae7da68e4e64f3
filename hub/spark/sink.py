"""A hub as where rows go: format("mercure").

    df.write.format("mercure").mode("append")       a row is an update
    df.writeStream.format("mercure")

    column      type                       is
    topics      array<string>              its topics, the canonical one first; or
    topic       string                     its only one
    data        string?                    nothing where it is null or not there: to_json(struct("*")), say
    private     boolean?                   public where there is no such column
    id          string?                    its id; where it is null, empty or not there, one that the row determines
    type        string?
    retry       an integer?                ms; the hub sends a day at most

    option                default  is
    url, tokenEnv, tokenFile, retries      as of the source (hub.spark.source); an executor tries up to half a minute
    maxRowsPerRequest     1000     updates that are published together, all of them or none
    maxBytesPerRequest    524288   bytes of them, unless one is longer

A task is tried again where it fails, and a batch of a stream where the query does; so a row may be published more than
once.  That is why its id depends on nothing but the row.

    exactly once     by this hub with HUB_IDEMPOTENCY_WINDOW set, to more seconds than may lie between the first attempt
                     and the last one, a restart of the query included; and while its history has the update
    at least once    by this hub without it, which is the default, and by other hubs: an update may come twice, with
                     the same id, and for a source that id is not one place any more (hub.spark.source)

An id that is not given is a UUID of version 5 over all that the row says.  So two rows that say the same are one update
with the window on: if they are two, as two equal readings of a sensor are, give each an `id`.  It has to come from the
data; what is made anew each time, as uuid() or monotonically_increasing_id(), is another update each time.

Rows of a partition are published in order, by one connection; partitions at the same time.  What was published before a
task failed is not taken back.  Turn speculation off: it would publish everything twice.

A hub that does not know of lines of JSON, which are this hub's own, is sent a form for each update.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BooleanType, IntegralType, StringType

from hub.spark import connection
from hub.spark.connection import Connection, NotTaken, Publisher
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_NAMESPACE: Final = uuid.UUID("0f6f3b6c-6b0c-5f0e-9d4c-3f1f0b7c2a11")
"""Of the ids that are made of rows; another one would make others of the same rows."""


@dataclass(frozen=True)
class Sink:
    """What the options of a writer say."""

    connection: Connection
    max_rows: int
    max_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Sink:
        """Raises BadInput for options that do not go."""
        connection.require_known(options, "maxRowsPerRequest", "maxBytesPerRequest")
        return cls(
            connection.parse_connection(options),
            connection.whole_number(options, "maxRowsPerRequest", 1_000, least=1),
            connection.whole_number(options, "maxBytesPerRequest", 2**19, least=1),
        )


def check_columns(schema: StructType) -> None:
    """Raise BadInput for columns that make no update, or would be lost."""

    def is_type(type: DataType, *types: type) -> bool:
        return isinstance(type, types)

    wanted = {
        "topics": "array<string>",
        "topic": "string",
        "data": "string",
        "private": "boolean",
        "id": "string",
        "type": "string",
        "retry": "an integer type",
    }
    for field in schema.fields:
        if field.name not in wanted:
            raise BadInput(f"column {field.name!r} would be lost: a row has {', '.join(wanted)}")
        type = field.dataType
        fits = {
            "array<string>": isinstance(type, ArrayType) and isinstance(type.elementType, StringType),
            "string": isinstance(type, StringType),
            "boolean": isinstance(type, BooleanType),
            "an integer type": isinstance(type, IntegralType),
        }
        if not fits[wanted[field.name]]:
            raise BadInput(f"column {field.name!r} is {type.simpleString()}, and is to be {wanted[field.name]}")
    if ("topics" in schema.names) == ("topic" in schema.names):
        raise BadInput("one of the columns 'topics' and 'topic' is to say what an update is about")


# -- rows


def to_update(row: Mapping[str, Any]) -> dict[str, Any]:
    """The update that a row says, with an id.  Raises BadInput, which names the column.

    >>> to_update({"topic": "a", "data": None, "private": True})  # doctest: +ELLIPSIS
    {'topic': ['a'], 'private': True, 'id': 'urn:uuid:...'}
    """
    name = "topics" if "topics" in row else "topic"
    topics = row[name] if name == "topics" else [row[name]]
    if not topics or None in topics:
        raise BadInput(f"column {name!r} is null, or has no topic or a null in it")
    update: dict[str, Any] = {"topic": topics}
    if row.get("data"):
        update["data"] = row["data"]
    if "private" in row:
        if row["private"] is None:  # a reader must not come to see what somebody meant to be private
            raise BadInput("column 'private' is null, which is neither true nor false")
        if row["private"]:
            update["private"] = True
    if row.get("type"):
        update["type"] = row["type"]
    if row.get("retry") is not None:
        update["retry"] = row["retry"]
    update["id"] = row.get("id") or row_id(update)
    return update


def row_id(update: Mapping[str, Any]) -> str:
    """The id of an update that has none: of equal ones the same, and of others another."""
    return uuid.uuid5(_NAMESPACE, json.dumps(update, sort_keys=True)).urn


def requests(batches: Iterator[pa.RecordBatch], *, max_rows: int, max_bytes: int) -> Iterator[list[tuple[int, bytes]]]:
    """What to publish together: lines of JSON with the numbers of their rows, from 0.

    Raises BadInput for a row that is no update; what comes before it has been handed out then.
    """
    lines: list[tuple[int, bytes]] = []
    size = number = 0
    for batch in batches:
        for row in batch.to_pylist():
            try:
                line = json.dumps(to_update(row)).encode("ascii")
            except BadInput as error:
                if lines:
                    yield lines
                raise BadInput(f"row {number}: {error}") from None
            if lines and (len(lines) == max_rows or size + len(line) + 1 > max_bytes):
                yield lines
                lines, size = [], 0
            lines.append((number, line))
            size += len(line) + 1
            number += 1
    if lines:
        yield lines


# -- for Spark


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """What a task has done."""

    rows: int


def publish(sink: Sink, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish the rows of a partition.  Errors name the row, counted from 0 in its partition."""
    context = TaskContext.get()
    where = "" if context is None else f"partition {context.partitionId()}, "
    rows = 0
    publisher = Publisher(sink.connection, most=sink.max_rows)
    try:
        for lines in requests(batches, max_rows=sink.max_rows, max_bytes=sink.max_bytes):
            try:
                publisher.publish([line for _, line in lines])
            except NotTaken as error:
                row = "" if error.index is None else f"row {lines[error.index][0]}: "
                raise NotTaken(error.status, f"{where}{row}{error.said}", error.index) from None
            rows += len(lines)
    except BadInput as error:
        raise BadInput(f"{where}{error}") from None
    finally:
        publisher.close()
    return Published(rows)


class Writer(DataSourceArrowWriter):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish(self._sink, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish(self._sink, iterator)

"""A hub as a destination of rows: format("mercure").

    df.write.format("mercure").mode("append")       each row is an update
    df.writeStream.format("mercure")

    column      type           content
    topics      array<string>  the topics, the canonical one first; or
    topic       string         the only topic
    data        string?        empty if null or absent; often to_json(struct("*"))
    private     boolean        whether a token is needed to read it; never null
    id          string?        its id; if null, empty or absent, one is made of the row
    type        string?
    retry       an integer?    ms; the hub sends at most a day
    ts, position, epoch        ignored: from another hub's history (hub.spark.source)

    option              default  content
    url, tokenEnv, tokenFile, retries
                                 as for the source; executors retry for half a minute
    private                      true or false for all rows, without that column
    maxRowsPerRequest   1000     updates published together, all or none
    maxBytesPerRequest  524288   bytes of these, unless one update is longer

A table without a column `private` needs the option: private rows must not become public
by omission.  The rows of the source can be written unchanged, which makes a mirror.  If
the other hub does not report whether its events are private, the column is null and the
job fails.

Spark repeats a failed task, and a query repeats a failed batch, so a row may be
published more than once.  That is why its id depends only on the row.

    exactly once  by this hub, if HUB_IDEMPOTENCY_WINDOW is longer than the time between
                  the first and the last attempt, including a restart of the query;
                  and while its history has the update
    at least once by this hub without it, which is the default, and by other hubs: an
                  update may come twice with the same id, which is then ambiguous as
                  a cursor (hub.spark.source)

A made id is a UUID of version 5 over the content of the row.  So with the window, two
equal rows are one update.  If they must be two, as two equal readings of a sensor, give
each an `id`.  It must come from the data: uuid() or monotonically_increasing_id() would
make another update at each attempt.

The rows of a partition are published in order, over one connection; partitions in
parallel. Rows that were published before a task failed stay published.  Turn
speculation off: it would publish everything twice.

If a hub does not know JSON lines, which are this hub's own, each update is sent as a
form.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BooleanType, IntegralType, StringType, TimestampType

from hub.spark.errors import NotTaken
from hub.spark.options import SparkOptions, flag, parse_connection, require_known, whole_number
from hub.spark.push import Push
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

_NAMESPACE: Final = uuid.UUID("0f6f3b6c-6b0c-5f0e-9d4c-3f1f0b7c2a11")
"""The namespace of made ids; with another one, equal rows would get other ids."""
_PLACE: Final = ("ts", "position", "epoch")
"""Columns of the source that say where an update was in the history of another hub."""


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of a writer."""

    connection: SparkOptions
    max_rows: int
    max_bytes: int
    private: bool | None = None
    """Whether all updates are private; None if a column says it for each."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse options.  Raises BadInput if one is invalid."""
        require_known(options, "maxRowsPerRequest", "maxBytesPerRequest", "private")
        return cls(
            parse_connection(options),
            whole_number(options, "maxRowsPerRequest", 1_000, least=1),
            whole_number(options, "maxBytesPerRequest", 2**19, least=1),
            flag(options, "private", default=False) if "private" in options else None,
        )


def check_columns(schema: StructType, private: bool | None) -> None:
    """Raise BadInput for columns that are missing, unknown, or of a wrong type.

    `private` is the option of that name.
    """
    wanted = {
        "topics": "array<string>",
        "topic": "string",
        "data": "string",
        "private": "boolean",
        "id": "string",
        "type": "string",
        "retry": "an integer type",
        "ts": "timestamp",
        "position": "an integer type",
        "epoch": "string",
    }
    for field in schema.fields:
        if field.name not in wanted:
            raise BadInput(f"column {field.name!r} would be lost: a row can have {', '.join(wanted)}")
        type = field.dataType
        fits = {
            "array<string>": isinstance(type, ArrayType) and isinstance(type.elementType, StringType),
            "string": isinstance(type, StringType),
            "boolean": isinstance(type, BooleanType),
            "an integer type": isinstance(type, IntegralType),
            "timestamp": isinstance(type, TimestampType),
        }
        if not fits[wanted[field.name]]:
            raise BadInput(f"column {field.name!r} is {type.simpleString()}, but must be {wanted[field.name]}")
    if ("topics" in schema.names) == ("topic" in schema.names):
        raise BadInput("exactly one of the columns 'topics' and 'topic' must be present")
    if "private" not in schema.names and private is None:
        raise BadInput(
            "it is unknown whether the updates are private: add a column 'private' without nulls, or the option "
            "private=true or private=false for all rows"
        )
    if "private" in schema.names and private is not None:
        raise BadInput(
            f"the column 'private' and the option private={str(private).lower()} both say whether an update is "
            "private: use only one of them"
        )


# -- rows


def to_update(row: Mapping[str, Any], *, private: bool | None = None) -> dict[str, Any]:
    """Return the update of a row, with an id; `private` is for rows without that
    column.

    Raises BadInput, which names the column.
    >>> to_update({"topic": "a", "data": None, "private": True})  # doctest: +ELLIPSIS
    {'topic': ['a'], 'private': True, 'id': 'urn:uuid:...'}
    """
    name = "topics" if "topics" in row else "topic"
    topics = row[name] if name == "topics" else [row[name]]
    if not topics or None in topics:
        raise BadInput(f"column {name!r} is null or empty, or contains a null")
    update: dict[str, Any] = {"topic": topics}
    if row.get("data"):
        update["data"] = row["data"]
    private = row.get("private", private)
    if private is None:  # otherwise a private update could become public
        raise BadInput("column 'private' is null, but must be true or false")
    if private:
        update["private"] = True
    if row.get("type"):
        update["type"] = row["type"]
    if row.get("retry") is not None:
        update["retry"] = row["retry"]
    update["id"] = row.get("id") or row_id(update)
    return update


def row_id(update: Mapping[str, Any]) -> str:
    """Return the id of an update without one; equal updates have equal ids."""
    return uuid.uuid5(_NAMESPACE, json.dumps(update, sort_keys=True)).urn


def requests(
    batches: Iterator[pa.RecordBatch], *, max_rows: int, max_bytes: int, private: bool | None
) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the contents of requests: JSON lines with the numbers of their rows, from
    0.

    Raises BadInput if a row is not an update, after yielding the rows before it.
    """
    lines: list[tuple[int, bytes]] = []
    size = number = 0
    for batch in batches:
        for row in batch.select([name for name in batch.schema.names if name not in _PLACE]).to_pylist():
            try:
                line = json.dumps(to_update(row, private=private)).encode("ascii")
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


# -- the interface of Spark


@dataclass(frozen=True)
class PublishedRows(WriterCommitMessage):
    """The result of a task."""

    rows: int


def publish(sink: SinkOptions, batches: Iterator[pa.RecordBatch]) -> PublishedRows:
    """Publish the rows of a partition.

    Errors name the row, from 0 in its partition.
    """
    context = TaskContext.get()
    where = "" if context is None else f"partition {context.partitionId()}, "
    rows = 0
    push = Push(sink.connection, most=sink.max_rows)
    try:
        for lines in requests(batches, max_rows=sink.max_rows, max_bytes=sink.max_bytes, private=sink.private):
            try:
                push.publish([line for _, line in lines])
            except NotTaken as error:
                row = "" if error.index is None else f"row {lines[error.index][0]}: "
                raise NotTaken(error.status, f"{where}{row}{error.said}", error.index) from None
            rows += len(lines)
    except BadInput as error:
        raise BadInput(f"{where}{error}") from None
    finally:
        push.close()
    return PublishedRows(rows)


class Writer(DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, sink: SinkOptions) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        """Publish a partition."""
        return publish(self._sink, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, sink: SinkOptions) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        """Publish a partition of a batch."""
        return publish(self._sink, iterator)

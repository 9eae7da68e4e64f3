"""A hub as where rows go: format("mercure").

    df.write.format("mercure").mode("append")       a row is an update
    df.writeStream.format("mercure")

    column      type                       is
    topics      array<string>              its topics, the canonical one first; or
    topic       string                     its only one
    data        string?                    nothing where it is null or not there: to_json(struct("*")), say
    private     boolean                    whether only those who are permitted to may read it; never null
    id          string?                    its id; where it is null, empty or not there, one that the row determines
    type        string?
    retry       an integer?                ms; the hub sends a day at most
    ts, position, epoch                    ignored: where the update was in the log of another hub (hub.spark.source)

    option                default  is
    url, tokenEnv, tokenFile, retries      as of the source (hub.spark.source); an executor tries up to half a minute
    private                        true or false, for all rows, if there is no column `private`
    maxRowsPerRequest     1000     updates that are published together, all of them or none
    maxBytesPerRequest    524288   bytes of them, unless one is longer

A table without a column `private` needs the option: what is private must not become public by being left out.  The rows
of the source go in as they are, which makes a mirror; from a hub that does not tell whether its events are private the
column is null, and the job fails.

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
from pyspark.sql.types import ArrayType, BooleanType, IntegralType, StringType, TimestampType

from hub.spark.errors import NotTaken
from hub.spark.options import Connection, flag, parse_connection, require_known, whole_number
from hub.spark.publisher import Publisher
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

_NAMESPACE: Final = uuid.UUID("0f6f3b6c-6b0c-5f0e-9d4c-3f1f0b7c2a11")
"""Of the ids that are made of rows; another one would make others of the same rows."""
_PLACE: Final = ("ts", "position", "epoch")
"""Columns of the source: where an update was in the log of another hub."""


@dataclass(frozen=True)
class Sink:
    """What the options of a writer say."""

    connection: Connection
    max_rows: int
    max_bytes: int
    private: bool | None = None
    """Whether all updates are private; None if a column says so of each."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Sink:
        """Raises BadInput for options that do not go."""
        require_known(options, "maxRowsPerRequest", "maxBytesPerRequest", "private")
        return cls(
            parse_connection(options),
            whole_number(options, "maxRowsPerRequest", 1_000, least=1),
            whole_number(options, "maxBytesPerRequest", 2**19, least=1),
            flag(options, "private", default=False) if "private" in options else None,
        )


def check_columns(schema: StructType, private: bool | None) -> None:
    """Raise BadInput for columns that make no update, or would be lost; `private` is the option of that name."""

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
            raise BadInput(f"column {field.name!r} would be lost: a row has {', '.join(wanted)}")
        type = field.dataType
        fits = {
            "array<string>": isinstance(type, ArrayType) and isinstance(type.elementType, StringType),
            "string": isinstance(type, StringType),
            "boolean": isinstance(type, BooleanType),
            "an integer type": isinstance(type, IntegralType),
            "timestamp": isinstance(type, TimestampType),
        }
        if not fits[wanted[field.name]]:
            raise BadInput(f"column {field.name!r} is {type.simpleString()}, and is to be {wanted[field.name]}")
    if ("topics" in schema.names) == ("topic" in schema.names):
        raise BadInput("one of the columns 'topics' and 'topic' is to say what an update is about")
    if "private" not in schema.names and private is None:
        raise BadInput(
            "nothing says whether the updates are private: give a column 'private' without nulls, or the option "
            "private=true or private=false for all rows"
        )
    if "private" in schema.names and private is not None:
        raise BadInput(
            f"the column 'private' and the option private={str(private).lower()} both say whether an update is "
            "private: give one of them"
        )


# -- rows


def to_update(row: Mapping[str, Any], *, private: bool | None = None) -> dict[str, Any]:
    """Return the update that a row says, with an id; `private` is for rows without that column.

    Raises BadInput, which names the column.

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
    private = row.get("private", private)
    if private is None:  # a reader must not come to see what the publisher meant to be private
        raise BadInput("column 'private' is null, which is neither true nor false")
    if private:
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


def requests(
    batches: Iterator[pa.RecordBatch], *, max_rows: int, max_bytes: int, private: bool | None
) -> Iterator[list[tuple[int, bytes]]]:
    """What to publish together: lines of JSON with the numbers of their rows, from 0.

    Raises BadInput for a row that is no update; what comes before it has been handed out then.
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
        for lines in requests(batches, max_rows=sink.max_rows, max_bytes=sink.max_bytes, private=sink.private):
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

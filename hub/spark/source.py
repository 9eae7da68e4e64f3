"""A hub as a table, and as a stream: format("mercure").

    spark.read.format("mercure")         all from startingFrom up to the newest event when the plan is made
    spark.readStream.format("mercure")   from there on, in batches

    option                default      is
    url                                the hub's: https://hub.example/.well-known/mercure
    match, match_…, topic              what to subscribe to, in the hub's own parameters, in either dialect: match,
                                       match_exact, match_urlpattern, match_uritemplate, match_amqp, match_mqtt; topic
                                       is of the classic one.  Several are one a line, or a list in JSON.  * is all.
    tokenEnv, tokenFile                where a token is found: the name of an environment variable, or a file.  Spark
                                       takes neither to the executors; a file on all machines is the way on a cluster.
    startingFrom          earliest     earliest, latest, or the id of the event before the first one
    maxRowsPerBatch                    of a stream; else a batch has all that there is
    failOnDataLoss        true         whether to fail where the hub no longer has what comes next, or to warn and go
                                       on with the earliest that it has
    idleTimeout           30           seconds without an event after which a hub that does not say when it has told
                                       all (see hub.http.replay) is taken to keep back what is to come
    retries               8            attempts in a row, after the first, before the hub counts as unreachable
    metadata              auto         auto: the last five columns are null if the hub does not tell them; required: the
                                       job fails at once then; off: they are null

    column      type              is
    id          string            the event's id
    type        string?           null for "message"
    data        string            its lines end with LF
    retry       bigint?           ms
    topics      array<string>?    the update's topics, the canonical one first; of a private update, those that the
                                  token may read
    private     boolean?          whether it is private
    ts          timestamp?        when the hub took it
    position    bigint?           its place in an epoch of the hub's log; with
    epoch       string?           its name, as in the tables of an event log (hub.spark.tables)

A row is an event.  The last five columns are told by this hub alone (hub.http.replay), for each event all or none.  A
row shows what the token may read: a mirror of a whole hub subscribes to `*`, with a token for `*`.  Then hub.spark.sink
publishes these rows as they are, private ones as private:

    events = spark.readStream.format("mercure").options(url=ONE, tokenFile=READS, match="*", metadata="required").load()
    events.writeStream.format("mercure").options(url=OTHER, tokenFile=PUBLISHES, checkpointLocation=FOLDER).start()

A hub with HUB_SUBSCRIPTIONS announces its subscribers by events of type `mercure`, which no publisher may send: leave
them out with `.where("type IS DISTINCT FROM 'mercure'")`.

An offset is the id of an event.  Ids are opaque, and only the hub knows what comes after one; so the end of a batch is
found by reading up to it, in the driver, before an executor reads the same again:

    log          a  b  -  c  d  -  e  -            - is what this reader does not see
    driver       ──────────────►                   maxRowsPerBatch=4: the end is d, after 4 rows
    executor     a  b     c  d                     4 rows and the last is d, or the task fails

    {"last_event_id": "d", "after": "earliest", "rows": 4, "ends": […]}     all that a batch is: it can be read again

The end is an event that was seen.  So no batch waits for one that this reader may not see, none ends before its end,
and where fewer come than there were, or others, that is told: something was lost, or the executor has another token.
It costs a second reading of what the hub sends, which the driver does not keep.

- Exactly once, as far as the sink is: a batch is read again as it was, also from startingFrom=latest.
- An id that was published twice is for the hub its first occurrence (N115).  A batch never ends with an id that one of
  the hundred before has ended with, so a query comes to an end; but what lies between the two may come again.
- A place in the log is kept as an event that was seen.  Where the hub's history moves past it, as it may where events
  that match are rare, that is a loss of data, whether or not any has matched: keep more history, or read more often.
- One connection reads a batch, for the order of the log is one.  To read on more, use queries with other selectors.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType, TimestampType

from hub.protocol.updates import EARLIEST_ID
from hub.spark import reader
from hub.spark.errors import DataLoss, Silent
from hub.spark.options import (
    AUTO,
    OFF,
    REQUIRED,
    Connection,
    flag,
    parse_connection,
    require_known,
    seconds,
    whole_number,
)
from hub.spark.reader import follow, parse_metadata
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from hub.spark.reader import Event

SCHEMA: Final = StructType(
    [
        StructField("id", StringType(), nullable=False),
        StructField("type", StringType()),
        StructField("data", StringType(), nullable=False),
        StructField("retry", LongType()),
        StructField("topics", ArrayType(StringType(), containsNull=False)),
        StructField("private", BooleanType()),
        StructField("ts", TimestampType()),
        StructField("position", LongType()),
        StructField("epoch", StringType()),
    ]
)
_ARROW: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("type", pa.string()),
        pa.field("data", pa.string(), nullable=False),
        pa.field("retry", pa.int64()),
        pa.field("topics", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("private", pa.bool_()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("position", pa.int64()),
        pa.field("epoch", pa.string()),
    ]
)

LATEST: Final = "latest"
MATCHERS: Final = (
    "match", "match_exact", "match_urlpattern", "match_uritemplate", "match_amqp", "match_mqtt", "topic",
)  # fmt: skip

_PAUSE: Final = 2.0
"""Seconds of silence after which a hub that does not say so is taken to have told all, for now: what it has not is of
the next batch, and nothing is lost by going on."""
_ROWS: Final = 10_000
_CHARACTERS: Final = 2**22
"""At which a batch of Arrow is full."""
_ENDS: Final = 100
"""Ends of batches that are remembered, in the offset."""

Offset: TypeAlias = dict[str, Any]

log = logging.getLogger("hub.spark")


@dataclass(frozen=True)
class Source:
    """What the options of a reader say."""

    connection: Connection
    wanted: tuple[tuple[str, str], ...]
    """Parameters of a subscribe request."""
    starting_from: str
    fail_on_data_loss: bool
    max_rows: int | None
    idle: float
    metadata: str = AUTO

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Source:
        """Raises BadInput for options that do not go."""
        known = ("startingFrom", "failOnDataLoss", "maxRowsPerBatch", "idleTimeout", "metadata")
        require_known(options, *known, *MATCHERS)
        wanted = tuple((name, value) for name in MATCHERS for value in _values(options.get(name, "")))
        if not wanted:
            raise BadInput(
                f"there is nothing to subscribe to: give one of {', '.join(MATCHERS)}; match=* is everything"
            )
        most = whole_number(options, "maxRowsPerBatch", 0, least=0)
        if most == 0 and "maxrowsperbatch" in options:
            raise BadInput("the option maxRowsPerBatch is to be at least 1")
        metadata = options.get("metadata", AUTO).lower()
        if metadata not in (AUTO, REQUIRED, OFF):
            raise BadInput(f"the option metadata is {AUTO}, {REQUIRED} or {OFF}, not {metadata!r}")
        return cls(
            parse_connection(options),
            wanted,
            options.get("startingfrom", EARLIEST_ID),
            flag(options, "failOnDataLoss", default=True),
            most or None,
            seconds(options, "idleTimeout", 30.0),
            metadata,
        )


def _values(text: str) -> list[str]:
    """The patterns of an option: a list in JSON, or one a line; no pattern has a line end in it (N2).

    >>> _values('["a", "b"]'), _values("a\\n\\nb\\n"), _values("[a]")
    (['a', 'b'], ['a', 'b'], ['[a]'])
    """
    if text.startswith("["):
        try:
            values = json.loads(text)
        except ValueError:
            pass
        else:
            if all(isinstance(value, str) for value in values):
                return list(values)
    return [line for line in text.split("\n") if line]


# -- the end of a batch


@dataclass(frozen=True)
class Span:
    """Events in a row: so many `rows` after the event `after`, up to `end`."""

    after: str
    end: str
    rows: int

    @classmethod
    def of(cls, offset: Offset) -> Span:
        return cls(offset["after"], offset["last_event_id"], offset["rows"])

    def offset(self) -> Offset:
        return {"last_event_id": self.end, "after": self.after, "rows": self.rows}


def measure(
    source: Source, after: str, *, most: int | None = None, until: str | None = None, taken: Container[str] = ()
) -> Span | None:
    """What there is now after an event, and where it ends; None where there is nothing.

    It ends after `most` rows, or with the event `until`, if they are there.  It never ends with an id that is `taken`,
    nor with `after`: where such a one would be the last, it is as much longer as it takes, or that much shorter.

    Raises BadInput if metadata is required and the hub tells none.  To count events, no metadata is asked for.
    """
    if source.metadata == REQUIRED:
        reader.require_metadata(source.connection, source.wanted)
    try:
        return _measure(source, after, most, until, taken)
    except DataLoss as error:
        if source.fail_on_data_loss or after == EARLIEST_ID:
            raise
        log.warning("%s; going on with the earliest event", error)
        return _measure(source, EARLIEST_ID, most, until, taken)


def _measure(source: Source, after: str, most: int | None, until: str | None, taken: Container[str]) -> Span | None:
    found: Span | None = None
    rows = 0
    try:
        for events in follow(source.connection, source.wanted, after, idle=_PAUSE):
            for id, *_ in events:
                rows += 1
                if id not in taken and id != after:
                    found = Span(after, id, rows)
                    if id == until or (most is not None and rows >= most):
                        return found
    except Silent:
        pass  # of a hub that does not say that this is all
    return found


# -- rows


def read(source: Source, span: Span) -> Iterator[pa.RecordBatch]:
    """The rows of a span, as batches of Arrow."""
    events: list[Event] = []
    size = 0
    for part in _exactly(source, span) if source.fail_on_data_loss else _what_is_left(source, span):
        events += part
        size += sum(len(data) + len(metadata) for _, _, data, _, metadata in part)
        if len(events) >= _ROWS or size >= _CHARACTERS:
            yield to_arrow(events)
            events, size = [], 0
    if events:
        yield to_arrow(events)


def _exactly(source: Source, span: Span) -> Iterator[list[Event]]:
    """As many events as were measured, or DataLoss."""
    left, last = span.rows, span.after
    try:
        for events in follow(source.connection, source.wanted, span.after, idle=source.idle, metadata=source.metadata):
            part = events[:left]
            left -= len(part)
            last = part[-1][0]
            yield part
            if not left:
                break
    except Silent as error:
        raise Silent(f"{error}, and {left} of {span.rows} rows are to come: {_DIFFERS}") from None
    if left or last != span.end:
        raise DataLoss(
            f"after the event {span.after!r}, {span.rows} events were found up to {span.end!r}; now there are "
            f"{span.rows - left} up to {last!r}: {_DIFFERS}"
        )


_DIFFERS: Final = (
    "the hub has lost some of them since, or the token on this machine permits others than that of the driver"
)


def _what_is_left(source: Source, span: Span) -> Iterator[list[Event]]:
    """Those events of a span that the hub still has, and a warning of others."""

    def is_known(id: str) -> bool:
        return id == EARLIEST_ID or reader.knows(source.connection, source.wanted, id)

    if not is_known(span.end):
        log.warning(
            "the hub no longer has the event %r, nor the %d events of which it is the last", span.end, span.rows
        )
        return
    after = span.after
    if not is_known(after):
        log.warning("the hub no longer has the event %r, nor some of what came after it", after)
        after = EARLIEST_ID
    for events in follow(source.connection, source.wanted, after, idle=source.idle, metadata=source.metadata):
        ids = [id for id, *_ in events]
        if span.end in ids:
            yield events[: ids.index(span.end) + 1]
            return
        yield events
    raise DataLoss(f"the hub had the event {span.end!r} a moment ago, and does not send it: {_DIFFERS}")


def to_arrow(events: Sequence[Event]) -> pa.RecordBatch:
    """Events as rows of SCHEMA."""
    ids, types, data, retries, comments = zip(*events, strict=True)
    topics, private, times, positions, epochs = zip(*map(parse_metadata, comments), strict=True)
    columns = [
        pa.array(ids, pa.string()),
        pa.array([type or None for type in types], pa.string()),
        pa.array(data, pa.string()),
        pa.array([int(retry) if retry else None for retry in retries], pa.int64()),
        pa.array(topics, _ARROW.field("topics").type),
        pa.array(private, pa.bool_()),
        pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array(positions, pa.int64()),
        pa.array(epochs, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


# -- for Spark


class Reader(DataSourceReader):
    """A table: what there is when the plan is made."""

    def __init__(self, source: Source) -> None:
        if source.starting_from == LATEST:
            raise BadInput("after the latest event there is nothing for a table: startingFrom=latest is for streams")
        self._source = source

    def partitions(self) -> list[InputPartition]:
        span = measure(self._source, self._source.starting_from)
        return [InputPartition(span)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(()) if partition.value is None else read(self._source, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, in batches.

    All its mutable state, which is the driver's: whether it is to stop at what is `_available_now`, and `_target`, the
    id of that.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._available_now = False
        self._target: str | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        after = self._source.starting_from
        if after == LATEST:
            newest = measure(self._source, EARLIEST_ID)
            after = EARLIEST_ID if newest is None else newest.end
        return {"last_event_id": after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._source.max_rows is None else ReadMaxRows(self._source.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # What is available is found with the first batch, a moment later: only then it is known from where to look.
        self._available_now = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        after, ends = start["last_event_id"], start.get("ends", [])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        span: Span | None = None
        if self._available_now and self._target is None:
            span = measure(self._source, after, taken=ends)
            self._target = after if span is None else span.end
        if after == self._target:
            return start
        if span is None or (most is not None and span.rows > most):
            span = measure(self._source, after, most=most, until=self._target, taken=ends)
        return start if span is None else span.offset() | {"ends": [*ends, span.end][-_ENDS:]}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        # Of `start` nothing is needed: it is another one where a first batch from `latest` is planned again.  That one
        # may have had nothing, and is then an offset as it was begun with.
        return [InputPartition(Span.of(end))] if end != start and "after" in end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._source, partition.value)

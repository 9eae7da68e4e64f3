"""A hub as a table, and as a stream: format("mercure").

    spark.read.format("mercure")       from startingFrom to the newest event at planning
    spark.readStream.format("mercure") from there on, in batches

    option           default   content
    url                        the hub: https://hub.example/.well-known/mercure
    match, match_…, topic      what to subscribe to, in the hub's parameters: match,
                               match_exact, match_urlpattern, match_uritemplate,
                               match_amqp, match_mqtt; topic is classic.  Several
                               values are one a line, or a JSON list.  * is everything
    tokenEnv, tokenFile        where the token is: the name of an environment variable,
                               or a file.  Spark copies neither to the executors; on a
                               cluster, use a file on all machines
    startingFrom     earliest  earliest, latest, or the id of the event before the first
    maxRowsPerBatch            of a stream; without it, a batch is all there is
    failOnDataLoss   true      whether to fail if the hub no longer has the next event,
                               or to warn and continue with the earliest one it has
    idleTimeout      30        seconds without an event after which a hub that does not
                               say "all" (see hub.http.replay) is considered silent
    retries          8         consecutive attempts after the first one
    maxEventBytes    67108864  an event with more bytes fails the query
    metadata         auto      auto: the last five columns are null if the hub does not
                               report them; required: the job then fails at once; off:
                               they are null

A row is an event, and COLUMNS lists its columns.  Only this hub reports the last five
columns (hub.http.replay), for each event all or none.  A row shows what the token may
read: to mirror a whole hub, subscribe to `*` with a token for `*`.  Then hub.spark.sink
publishes the rows as they are, private ones as private:

    hub = {"url": ONE, "tokenFile": READS, "match": "*", "metadata": "required"}
    events = spark.readStream.format("mercure").options(**hub).load()
    other = {"url": OTHER, "tokenFile": PUBLISHES, "checkpointLocation": FOLDER}
    events.writeStream.format("mercure").options(**other).start()

A hub with HUB_SUBSCRIPTIONS announces its subscribers by events of type `mercure`,
which no publisher may send: filter them out with `.where("type IS DISTINCT FROM
'mercure'")`.

An offset is the id of an event.  Ids are opaque, and only the hub knows what comes
after one. So the driver finds the end of a batch by reading up to it, before an
executor reads the same:

    history      a  b  -  c  d  -  e  -      - is an event that this reader does not see
    driver       ──────────────►             maxRowsPerBatch=4: the end is d, 4 rows
    executor     a  b     c  d               4 rows and the last is d, or the task fails

    {"last_event_id": "d", "after": "earliest", "rows": 4, "ends": […]}   this offset

The end is an event that was seen, so no batch waits for one that this reader may not
see, and none ends early.  If the executor finds fewer or other rows, the task fails:
events were lost, or the executor has another token.  The cost is that the hub sends
everything twice; the driver keeps nothing.

- Rows come exactly once, as far as the sink allows: a batch can be read again
  unchanged, also one from startingFrom=latest.
- If an id was published twice, the hub takes it for its first occurrence (N115).  No
  batch ends with an id with which one of the hundred before has ended, so a query makes
  progress; but events between the two may come again.
- A position is stored as an event.  While a query runs and no event matches, it moves
  on with the hub's history, if the hub is of this kind (R93).  If the history moves
  past the position of a query that does not run, that is a data loss, whether or not
  any event matched: keep more history, or read more often.
- One connection reads a batch, because the history has one order.  To read in parallel,
  use queries with different matchers.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from hub.protocol.updates import EARLIEST_ID
from hub.spark import pull
from hub.spark.errors import DataLoss, Silent
from hub.spark.options import (
    AUTO,
    OFF,
    REQUIRED,
    SparkOptions,
    flag,
    parse_connection,
    require_known,
    seconds,
    whole_number,
)
from hub.spark.pull import follow, parse_metadata
from skipfilter.bulk.columns import NUMBER, TEXT, TIME, Column, arrow_schema
from skipfilter.spark.errors import BadInput
from skipfilter.spark.tables.schemas import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from hub.spark.pull import Event

COLUMNS: Final = (
    Column("id", TEXT, "the event's id"),
    Column("type", TEXT, 'null for "message"', nullable=True),
    Column("data", TEXT, "lines end with LF"),
    Column("retry", NUMBER, "milliseconds", nullable=True),
    Column("topics", pa.list_(TEXT), "those that the token may read, the canonical one first", nullable=True),
    Column("private", pa.bool_(), "whether it is private", nullable=True),
    Column("ts", TIME, "when the hub accepted it", nullable=True),
    Column("position", NUMBER, "its position in an epoch of the hub's history", nullable=True),
    Column("epoch", TEXT, "the epoch's name, as in `hub.spark.tables`", nullable=True),
)
"""The columns of the source: a row for each event."""
SCHEMA: Final = schema(COLUMNS)
_ARROW: Final = arrow_schema(COLUMNS)

LATEST: Final = "latest"
MATCH_OPTIONS: Final = (
    "match", "match_exact", "match_urlpattern", "match_uritemplate", "match_amqp", "match_mqtt", "topic",
)  # fmt: skip

_PAUSE: Final = 2.0
"""Seconds of silence after which a hub that does not say "all" is assumed to have sent
all.

Later events belong to the next batch, so continuing loses nothing.
"""
_ROWS: Final = 10_000
_CHARACTERS: Final = 2**22
"""The numbers of rows and of characters at which a batch of Arrow is full."""
_ENDS: Final = 100
"""Ends of earlier batches that an offset remembers."""

Offset: TypeAlias = dict[str, Any]

log = logging.getLogger("hub.spark")


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of a reader."""

    connection: SparkOptions
    wanted: tuple[tuple[str, str], ...]
    """The parameters of the subscribe request."""
    starting_from: str
    fail_on_data_loss: bool
    max_rows: int | None
    idle: float
    metadata: str = AUTO

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse options.  Raises BadInput if one is invalid."""
        known = ("startingFrom", "failOnDataLoss", "maxRowsPerBatch", "idleTimeout", "metadata")
        require_known(options, *known, *MATCH_OPTIONS)
        wanted = tuple((name, value) for name in MATCH_OPTIONS for value in _values(options.get(name, "")))
        if not wanted:
            raise BadInput(
                f"there is nothing to subscribe to: set one of {', '.join(MATCH_OPTIONS)}; match=* is everything"
            )
        most = whole_number(options, "maxRowsPerBatch", 0, least=0)
        if most == 0 and "maxrowsperbatch" in options:
            raise BadInput("the option maxRowsPerBatch must be at least 1")
        metadata = options.get("metadata", AUTO).lower()
        if metadata not in (AUTO, REQUIRED, OFF):
            raise BadInput(f"the option metadata must be {AUTO}, {REQUIRED} or {OFF}, not {metadata!r}")
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
    """Return the patterns of an option: a JSON list, or one a line (N2: without line
    ends).

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
    """Consecutive events: `rows` events after the event `after`, up to the
    event `end`.
    """

    after: str
    end: str
    rows: int

    @classmethod
    def of(cls, offset: Offset) -> Span:
        """Return the span of an offset."""
        return cls(offset["after"], offset["last_event_id"], offset["rows"])

    def offset(self) -> Offset:
        """Return the offset of the span's end."""
        return {"last_event_id": self.end, "after": self.after, "rows": self.rows}


def measure(
    source: SourceOptions,
    after: str,
    *,
    most: int | None = None,
    until: str | None = None,
    taken: Container[str] = (),
    on_position: Callable[[str], object] | None = None,
) -> Span | None:
    """Return the present events after an event, or None if there are none.

    `on_position` is called with a cursor of the end of the history, if the hub says it
    and there are no more events.  The span ends after `most` rows, or with the event
    `until`, if they are there.  It never ends with an id in `taken`, nor with `after`:
    then it is longer, or shorter if nothing follows.  Counting needs no metadata, so
    none is requested.

    Raises BadInput if metadata is required and the hub has none, and DataLoss if events
    are missing and the options say to fail.
    """
    if source.metadata == REQUIRED:
        pull.require_metadata(source.connection, source.wanted)
    try:
        return _measure(source, after, most, until, taken, on_position)
    except DataLoss as error:
        if source.fail_on_data_loss or after == EARLIEST_ID:
            raise
        log.warning("%s; continuing with the earliest event", error)
        return _measure(source, EARLIEST_ID, most, until, taken)


def _measure(
    source: SourceOptions,
    after: str,
    most: int | None,
    until: str | None,
    taken: Container[str],
    on_position: Callable[[str], object] | None = None,
) -> Span | None:
    found: Span | None = None
    rows = 0
    try:
        for events in follow(source.connection, source.wanted, after, idle=_PAUSE, on_position=on_position):
            for id, *_ in events:
                rows += 1
                if id not in taken and id != after:
                    found = Span(after, id, rows)
                    if id == until or (most is not None and rows >= most):
                        return found
    except Silent:
        pass  # a hub that does not say "all" has sent all
    return found


# -- rows


def read(source: SourceOptions, span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span as batches of Arrow."""
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


def _exactly(source: SourceOptions, span: Span) -> Iterator[list[Event]]:
    """Yield exactly the events of a span.  Raises DataLoss if they differ."""
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
        raise Silent(f"{error}, and {left} of {span.rows} rows are missing: {_DIFFERS}") from None
    if left or last != span.end:
        raise DataLoss(
            f"{span.rows} events were found after the event {span.after!r}, up to {span.end!r}; now there are "
            f"{span.rows - left} up to {last!r}: {_DIFFERS}"
        )


_DIFFERS: Final = (
    "the hub has lost some of them since, or the token on this machine has other permissions than that of the driver"
)


def _what_is_left(source: SourceOptions, span: Span) -> Iterator[list[Event]]:
    """Yield the events of a span that the hub still has, and log the loss of others."""

    def is_known(id: str) -> bool:
        return id == EARLIEST_ID or pull.knows(source.connection, source.wanted, id)

    if not is_known(span.end):
        log.warning("the hub no longer has the event %r, nor the %d events that end with it", span.end, span.rows)
        return
    after = span.after
    if not is_known(after):
        log.warning("the hub no longer has the event %r, nor some that came after it", after)
        after = EARLIEST_ID
    for events in follow(source.connection, source.wanted, after, idle=source.idle, metadata=source.metadata):
        ids = [id for id, *_ in events]
        if span.end in ids:
            yield events[: ids.index(span.end) + 1]
            return
        yield events
    raise DataLoss(f"the hub had the event {span.end!r} a moment ago, but does not send it: {_DIFFERS}")


def to_arrow(events: Sequence[Event]) -> pa.RecordBatch:
    """Return events as rows of SCHEMA."""
    ids, types, data, retries, comments = zip(*events, strict=True)
    topics, private, times, positions, epochs = zip(*map(parse_metadata, comments), strict=True)
    columns = (
        ids,
        [type or None for type in types],
        data,
        [int(retry) if retry else None for retry in retries],
        topics,
        private,
        pa.array(times, pa.timestamp("ms", "UTC")).cast(TIME),
        positions,
        epochs,
    )
    arrays = [pa.array(values, type) for values, type in zip(columns, _ARROW.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


# -- the interface of Spark


class Reader(DataSourceReader):
    """Reads a table: the events that exist when the plan is made."""

    def __init__(self, source: SourceOptions) -> None:
        if source.starting_from == LATEST:
            raise BadInput("startingFrom=latest is for streams: after the latest event there is nothing to read")
        self._source = source

    def partitions(self) -> list[InputPartition]:
        """Return the one partition: the span of all events."""
        span = measure(self._source, self._source.starting_from)
        return [InputPartition(span)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition."""
        return iter(()) if partition.value is None else read(self._source, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, in batches.  Its state is only used in the driver."""

    def __init__(self, source: SourceOptions) -> None:
        self._source = source
        self._available_now = False  # whether to stop at the events that exist now
        self._target: str | None = None  # the last of these
        # The event after which there was none, and a later position of the history.
        self._quiet = "", ""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset before the first batch."""
        after = self._source.starting_from
        if after == LATEST:
            after = self._newest()
        return {"last_event_id": after}

    def _newest(self) -> str:
        """Return a cursor for now."""
        positions: list[str] = []
        source = self._source
        if source.metadata == REQUIRED:
            pull.require_metadata(source.connection, source.wanted)
        with suppress(Silent):
            for _ in follow(source.connection, source.wanted, None, idle=_PAUSE, on_position=positions.append):
                pass
        if positions:
            return positions[-1]
        newest = _measure(source, EARLIEST_ID, None, None, ())  # the hub does not say its position
        return EARLIEST_ID if newest is None else newest.end

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return maxRowsPerBatch as a limit."""
        return ReadAllAvailable() if self._source.max_rows is None else ReadMaxRows(self._source.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop the query at the events that exist now."""
        # They are found with the first batch: only then the start is known.
        self._available_now = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch; `start` if there is nothing new."""
        after, ends = start["last_event_id"], start.get("ends", [])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        span: Span | None = None
        positions: list[str] = []
        place = self._quiet[1] if self._quiet[0] == after else after
        if self._available_now and self._target is None:
            span = measure(self._source, place, taken=ends)
            self._target = after if span is None else span.end
        if after == self._target:
            return start
        if span is None or (most is not None and span.rows > most):
            span = measure(self._source, place, most=most, until=self._target, taken=ends, on_position=positions.append)
        if span is None and positions:
            self._quiet = after, positions[-1]
        return start if span is None else span.offset() | {"ends": [*ends, span.end][-_ENDS:]}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the one partition of a batch: its span, which `end` contains."""
        # `start` is not used: it may differ if a first batch from `latest` is planned
        # again. If that batch was empty, `end` is still an initial offset, without a
        # span.
        return [InputPartition(Span.of(end))] if end != start and "after" in end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition."""
        return read(self._source, partition.value)

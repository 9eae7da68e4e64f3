"""The event log of a hub as tables.

    DIR/updates/*.jsonl   ──► OUT/updates          appended to; a directory for each day
    DIR/sessions/*.jsonl  ──► OUT/session_events   appended to
                               ├─► OUT/session_ids appended to: ids of connections
                               ├─► OUT/sessions    rewritten: a row for each connection
                               └─► OUT/gaps        rewritten: a row for each mark

Spark's file stream reads what is appended.  It stores the names of files that were read
in OUT/_checkpoints, and what is in a table in the table's `_spark_metadata`.  So if a
job is killed at any moment, the next one continues, and each line is there once.  A
segment never changes under its final name, and may be removed after it was read.

If a node was killed, or had no room for connections, another node leaves a mark in the
log (hub.event_log).  A mark is a row of OUT/gaps, and sessions that ended so are not
`complete`. If a hub was killed and not started again, its last segments are not closed:
they are not read, there is no mark, and its sessions stay open.

A line that is not a record ends the job with a BadInput that names its file and column.
Nothing of its batch is then in the table: correct the line, and run the job again.

An update occurs once for each (epoch, position) in the logs of one machine.  Other
sources may contain it twice, as two exports of one history do; then the job ends with a
BadInput.  If a hub runs on several machines, each machine's log has all updates, but
only its own connections: put the updates of one and the sessions of all into one
directory; their names differ.

New rows are read once.  But all tables are read to check that no position occurs twice,
and to make OUT/sessions.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

from skipfilter.bulk import columns
from skipfilter.bulk.columns import NUMBER, SELECTORS, TEXT, TIME, types
from skipfilter.spark.errors import BadInput
from skipfilter.spark.session import forget, persisted
from skipfilter.spark.tables import files
from skipfilter.spark.tables.schemas import GAPS, SESSIONS, UPDATES, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

FILES: Final = 1_000
"""Files that are read in one batch."""

_EVENTS: Final = (
    columns.Column("event", TEXT, "connect, disconnect, end or gap"),
    columns.Column("node", TEXT, "the hub's process"),
    columns.Column("number", NUMBER, "of the connection; null for an end, which ends all of its node", nullable=True),
    columns.Column("ts", TIME, "when it happened"),
    columns.Column("after", NUMBER, "of a connect and a gap", nullable=True),
    columns.Column("until", NUMBER, "of the others", nullable=True),
    columns.Column("hub", TEXT, "the URL of the hub; of a connect and a gap", nullable=True),
    columns.Column("epoch", TEXT, "of the hub's history; of these, too", nullable=True),
    columns.Column("subscriber", TEXT, "its name; this and the next six are of a connect", nullable=True),
    columns.Column("issuer", TEXT, "of its token", nullable=True),
    columns.Column("subject", TEXT, "who it is, or a digest of that", nullable=True),
    columns.Column("token_id", TEXT, "the id of its token, or a digest of that", nullable=True),
    columns.Column("address", TEXT, "where it came from", nullable=True),
    columns.Column("selectors", SELECTORS, "declared by it", nullable=True),
    columns.Column("authorised", SELECTORS, "granted to it", nullable=True),
    columns.Column("reason", TEXT, "why it ended; of a disconnect", nullable=True),
    columns.Column("clean", pa.bool_(), "whether nothing is missing; of a disconnect and an end", nullable=True),
    columns.Column("updates", pa.bool_(), "whether updates may be missing", nullable=True),
    columns.Column("found", TIME, "when it was found", nullable=True),
    columns.Column("cause", TEXT, "what the node did", nullable=True),
)
SESSION_EVENTS: Final = schema(_EVENTS)
SESSION_IDS: Final = schema(
    (
        columns.Column("node", TEXT, "the hub's process"),
        columns.Column("number", NUMBER, "the node's number of the connection"),
        columns.Column("subscriber_id", NUMBER, "its id in the tables"),
    )
)

_BAD: Final = "_bad"
_LONGEST: Final = 2**63 - 1
_LAST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_SHOWN: Final = 200
"""Characters of an invalid line that a message shows."""


def _line(named: dict[str, pa.DataType]) -> StructType:
    """Return the schema of a JSON line, in which anything may be null."""
    return schema([columns.Column(name, type, "", nullable=True) for name, type in named.items()], nulls=True)


# Times are numbers in JSON: milliseconds of an update, and microseconds of an event.
# The retry of an update is a number, too, but may be larger than a long.
_UPDATE: Final = _line(
    {name: type for name, type in types(columns.UPDATES).items() if name not in ("update_id", "ts", "dt")}
    | {"id": TEXT, "time": NUMBER, "retry": TEXT}
)
_EVENT: Final = _line(
    {name: type for name, type in types(_EVENTS).items() if name != "ts"} | {"time": NUMBER, "found": NUMBER}
)


def tables(spark: SparkSession, log: str, out: str) -> None:
    """Append the closed segments of the event log in `log` to the tables in `out`.

    Raises BadInput if a line is not a record, or if an update occurs twice.
    """
    append_updates(spark, f"{log}/updates", out)
    append_session_events(spark, f"{log}/sessions", out)
    write_sessions(spark, out)
    write_gaps(spark, out)


def append_updates(spark: SparkSession, directory: str, out: str, *, per_batch: int = FILES) -> None:
    """Append the updates of new files, `.jsonl` or `.ndjson`, to OUT/updates.

    A batch reads up to `per_batch` files.  They are segments of an event log, or JSON
    lines of `skipfilter history export`.  The latter have no hub and epoch, so all
    files of one table must come from one history, and none of them twice.

    Raises BadInput if OUT/updates was made by anything else, such as `generate`.
    """
    if files.exists(spark, f"{out}/updates") and not files.exists(spark, f"{out}/_checkpoints/updates"):
        raise BadInput(
            f"{out}/updates: it is not of a hub's event log, so it cannot be continued: choose another directory"
        )
    lines = _read_lines(spark, directory, _UPDATE, per_batch)
    _append(lines.select(*_update_columns()), out, "updates", partition="dt")
    check_positions(read_table(spark, f"{out}/updates", UPDATES))


def append_session_events(spark: SparkSession, directory: str, out: str, *, per_batch: int = FILES) -> None:
    """Append the lines about connections of new files to OUT/session_events."""
    lines = _read_lines(spark, directory, _EVENT, per_batch)
    _append(lines.select(*_event_columns()), out, "session_events")


def write_sessions(spark: SparkSession, out: str) -> None:
    """Rewrite OUT/sessions from OUT/session_events, with old and new ids of
    session_ids.
    """
    events = read_table(spark, f"{out}/session_events", SESSION_EVENTS)
    given = read_table(spark, f"{out}/session_ids", SESSION_IDS)
    # Persisted, but correct without: if Spark computes a part again after session_ids
    # have grown, the ids are the same.
    found = persisted(sessions(events, given))
    try:
        new = found.join(given, ["node", "number"], "left_anti").select(SESSION_IDS.names)
        # One file, so that all ids are appended or none.
        new.coalesce(1).write.mode("append").parquet(f"{out}/session_ids")
        files.write(found, f"{out}/sessions")
    finally:
        forget(found)


def write_gaps(spark: SparkSession, out: str) -> None:
    """Rewrite OUT/gaps from OUT/session_events."""
    files.write(gaps(read_table(spark, f"{out}/session_events", SESSION_EVENTS)), f"{out}/gaps")


def gaps(events: DataFrame) -> DataFrame:
    """Return a row of GAPS for each mark of what may be missing.

    An end that is not `clean` is a mark, also one of an earlier version, which never
    says.  If a mark is still open when its node ends, it ends then.
    """
    is_end = F.col("event") == "end"
    ends_badly = is_end & ~F.coalesce("clean", F.lit(False))
    ends = events.where(is_end).groupBy("node").agg(F.max(F.coalesce("found", "ts")).alias("end"))
    marks = events.where((F.col("event") == "gap") | ends_badly).select(
        "hub",
        "epoch",
        "node",
        "ts",
        "found",
        F.coalesce("after", "until").alias("after"),
        F.coalesce("updates", F.lit(True)).alias("updates"),
        F.coalesce("cause", F.lit("ended uncleanly")).alias("cause"),
    )
    names = [name for name in GAPS.names if name != "found"]
    last = F.coalesce(F.max("found"), F.first("end")).alias("found")
    found = F.when(F.col("found").isNotNull(), F.greatest("found", "ts"))
    marks = marks.join(ends, "node", "left").groupBy(names).agg(last)
    return marks.withColumn("found", found).select(GAPS.names)


def sessions(events: DataFrame, given: DataFrame) -> DataFrame:
    """Return a row of SESSIONS for each connection; `given` are the present
    SESSION_IDS.

    A connection that is open when its node ends, ends then, and is complete if that end
    is clean.  New ids follow the present ones, from 0 on, in the order of (dt,
    connected_from, node, number).  A disconnect without a connect, whose segment was
    not kept, is left out.  Counts the rows of each day once, on the driver.
    """
    # 1. The events of each connection, and the end of its node.
    come, gone = F.col("event") == "connect", F.col("event") == "disconnect"
    names = ("issuer", "subject", "token_id", "address")
    whole = F.struct("ts", "after", "hub", "epoch", "subscriber", *names, "selectors", "authorised")
    last = F.struct("ts", "until")
    # An earlier version did not say of a disconnect whether it is clean.
    last_of_one = F.struct("ts", "until", F.coalesce("clean", F.lit(True)).alias("clean"), "reason")
    is_clean = F.bool_and(F.coalesce("clean", F.lit(False)))
    ends = events.where(F.col("event") == "end").groupBy("node").agg(F.min(last).alias("end"), is_clean.alias("clean"))
    found = (
        events.where(come | gone)
        .groupBy("node", "number")
        .agg(
            F.first(F.when(come, whole), ignorenulls=True).alias("come"),
            F.min(F.when(gone, last_of_one)).alias("gone"),
        )
        .where(F.col("come").isNotNull())
        .join(ends, "node", "left")
        .select(
            "come.*",
            "node",
            "number",
            # A connection may have begun after the last known moment of its node.
            _later("come.ts", "ts").alias("disconnected_at"),
            _later("come.after", "until").alias("until"),
            F.col("gone.reason").alias("ended_because"),
            F.when(F.col("gone").isNotNull(), F.col("gone.clean")).otherwise(F.col("clean")).alias("complete"),
            _day(F.unix_micros("come.ts"), 86_400_000_000).alias("dt"),
        )
        .withColumnRenamed("ts", "connected_from")
        .join(given, ["node", "number"], "left")
    )
    # 2. New ids: for each day a start, and then a number within the day.
    is_new = F.col("subscriber_id").isNull()
    [[newest]] = given.agg(F.max("subscriber_id")).collect()
    days = found.where(is_new).groupBy("dt").count().orderBy("dt").collect()
    starts = accumulate((day["count"] for day in days), initial=0 if newest is None else newest + 1)
    pairs = [F.lit(value) for day, start in zip(days, starts, strict=False) for value in (day["dt"], start)]
    start = F.create_map(*pairs)[F.col("dt")] if pairs else F.lit(0)
    number = F.row_number().over(Window.partitionBy("dt", is_new).orderBy("connected_from", "node", "number"))
    id = F.coalesce("subscriber_id", (start + number - 1).cast(LongType()))
    return found.withColumn("subscriber_id", id).select(*SESSIONS.names)


def _later(start: str, name: str) -> Column:
    """Return a time or position of the end, at least that of the start; null if
    open.
    """
    end = F.coalesce(f"gone.{name}", f"end.{name}")
    return F.when(end.isNotNull(), F.greatest(end, F.col(start)))


def check_positions(updates: DataFrame) -> None:
    """Raise BadInput if two updates have one position in a history."""
    placed = updates.where(F.col("position").isNotNull())
    # One position has one time, and so one day.
    twice = placed.groupBy("dt", "hub", "epoch", "position").agg(
        F.count("*").alias("n"), F.min("update_id").alias("id")
    )
    for row in twice.where("n > 1").orderBy("position").limit(1).collect():
        raise BadInput(
            f"updates: {row['n']} have position {row['position']} in epoch {row['epoch']}, one of them {row['id']!r}; "
            "the files contain them twice: start a new table without the duplicates"
        )


def read_table(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    """Return a table; empty if it does not exist."""
    try:
        return spark.read.schema(schema).parquet(path).select(*schema.names)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return spark.createDataFrame([], schema)


# -- lines


def _read_lines(spark: SparkSession, directory: str, schema: StructType, per_batch: int) -> DataFrame:
    """Return a stream of lines: `line`, `file`, and `record` with _BAD if it is
    invalid.
    """
    stream = (
        spark.readStream.format("text")
        .option("lineSep", "\n")
        .option("pathGlobFilter", "*.{jsonl,ndjson}")
        .option("maxFilesPerTrigger", per_batch)
        # Otherwise files that are a week older than the newest one are skipped.
        .option("maxFileAge", "36500d")
    )
    try:
        lines = stream.load(directory)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise BadInput(f"{directory} does not exist") from None
    return _parsed(lines.select("value", F.col("_metadata.file_path").alias("file")), schema)


def _parsed(lines: DataFrame, schema: StructType, *others: str) -> DataFrame:
    """Parse each `value` that is not blank; keep the columns `file` and `others`."""
    with_bad = StructType([*schema, StructField(_BAD, StringType())])
    record = F.from_json("value", with_bad, {"columnNameOfCorruptRecord": _BAD})
    lines = lines.where(F.col("value").rlike(r"\S"))
    return lines.select(F.col("value").alias("line"), record.alias("record"), "file", *others)


def _update_fault() -> Column:
    """Return why a line is not an update, or null."""
    record = F.col("record")
    topics, retry = record["topics"], record["retry"]
    return _fault(
        _UPDATE,
        ("time", "id", "topics", "private"),
        ("topics", (F.size(topics) > 0) & ~F.exists(topics, F.isnull)),
        ("time", record["time"].between(0, _LAST)),
        ("data_bytes", _size(record) >= 0),
        ("retry", retry.isNull() | retry.rlike("^[0-9]+$")),
    )


def _update_columns() -> list[Column]:
    """Return the columns of UPDATES; an invalid line raises."""
    record = F.col("record")
    retry = record["retry"]
    return [
        _unless(_update_fault(), record["id"]).alias("update_id"),
        record["topics"].alias("topics"),
        record["private"].alias("private"),
        record["type"].alias("type"),
        F.when(F.length(retry) > 18, _LONGEST).otherwise(retry.cast(LongType())).alias("retry"),
        _size(record).cast(LongType()).alias("data_bytes"),
        record["data"].alias("data"),
        F.timestamp_millis(record["time"]).alias("ts"),
        record["position"].alias("position"),
        record["hub"].alias("hub"),
        record["epoch"].alias("epoch"),
        record["presence"].alias("presence"),
        _day(record["time"], 86_400_000).alias("dt"),
    ]


def _size(record: Column) -> Column:
    """Return the bytes of an update's data."""
    return F.coalesce(record["data_bytes"], F.octet_length(record["data"]))


def _event_fault() -> Column:
    """Return why a line is not a session event, or null."""
    record = F.col("record")
    comes, goes, is_gap = (record["event"] == event for event in ("connect", "disconnect", "gap"))

    def whole(name: str) -> Column:
        return ~F.exists(record[name], lambda one: one.isNull() | one["type"].isNull() | one["pattern"].isNull())

    return _fault(
        _EVENT,
        ("event", "node", "time"),
        ("event", record["event"].isin("connect", "disconnect", "end", "gap")),
        ("time", record["time"].between(0, _LAST * 1_000)),
        ("number", record["number"].isNotNull() | ~(comes | goes)),
        ("subscriber", record["subscriber"].isNotNull() | ~comes),
        ("after", record["after"].isNotNull() | ~(comes | is_gap)),
        ("selectors", whole("selectors") | ~comes),
        ("authorised", whole("authorised") | ~comes),
        ("until", record["until"].isNotNull() | comes | is_gap),
        ("found", record["found"].isNull() | record["found"].between(0, _LAST * 1_000)),
    )


def _event_columns() -> list[Column]:
    """Return the columns of SESSION_EVENTS; an invalid line raises."""
    record = F.col("record")
    columns = {"event": _unless(_event_fault(), record["event"])}
    columns |= {"ts": F.timestamp_micros(record["time"]), "found": F.timestamp_micros(record["found"])}
    return [columns.get(name, record[name]).alias(name) for name in SESSION_EVENTS.names]


def _fault(schema: StructType, required: Sequence[str], *rules: tuple[str, Column]) -> Column:
    """Return why a line is not a record or breaks a rule (named by its column), or
    null.
    """
    record, line, no = F.col("record"), F.col("line"), F.lit(False)
    is_utf_8 = F.is_valid_utf8(line)
    # As an array, because a lone object would be parsed even if text follows it.
    is_one = F.coalesce(F.size(F.from_json(F.concat(F.lit("["), line, F.lit("]")), "array<string>")) == 1, no)
    kept = [(name, record[name].isNotNull()) for name in required]
    kept += [(name, F.coalesce(rule, no)) for name, rule in rules]
    is_good = is_utf_8 & is_one & record[_BAD].isNull()
    for _, rule in kept:
        is_good &= rule

    def is_something(name: str) -> Column:
        return F.get_json_object(line, f"$.{name}").isNotNull()

    reason = F.coalesce(
        F.when(~is_utf_8, F.lit("it is not UTF-8")),
        F.when(~is_one | F.json_object_keys(line).isNull(), F.lit("it is not a JSON object, or more than one")),
        *(
            F.when(record[name].isNull() & is_something(name), F.lit(f"column {name} is of another type"))
            for name in schema.names
        ),
        *(F.when(~rule, F.lit(f"column {name} is missing or invalid")) for name, rule in kept),
        F.lit("it cannot be read"),
    )
    return F.when(~is_good, reason)


def _unless(fault: Column, value: Column) -> Column:
    """Return `value`, or raise an error with the fault of its line."""
    told = (F.col("file"), F.lit(": a line is not a record: "), fault, F.lit(": "), F.substring("line", 1, _SHOWN))
    return F.when(fault.isNotNull(), F.raise_error(F.concat(*told)).cast(StringType())).otherwise(value)


def _day(time: Column, of_a_day: int) -> Column:
    """Return the date in UTC, whatever the session's time zone is."""
    return F.date_from_unix_date(((time - F.pmod(time, F.lit(of_a_day))) / of_a_day).cast("int"))


# -- streams


def _append(rows: DataFrame, out: str, table: str, *, partition: str | None = None) -> None:
    """Append the new rows of a stream to a table.

    Raises BadInput for an invalid line.
    """
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{out}/_checkpoints/{table}")
    if partition is not None:
        writer = writer.partitionBy(partition)
    query = writer.trigger(availableNow=True).start(f"{out}/{table}")
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        text = str(error).partition("\n=== Streaming Query ===")[0]
        told = re.search(r"\[USER_RAISED_EXCEPTION\] (.*) SQLSTATE: P0001", text, re.DOTALL)
        if told is None:
            raise
        raise BadInput(told[1]) from None

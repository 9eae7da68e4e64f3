"""What the commands do: read tables, start the jobs on them, and write the results.

`skipfilter.spark.cli` declares the commands.  It does not import this module before it
runs one, so that their help needs no package of the extra `spark`.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from datetime import UTC, datetime, time, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import typer
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.bulk.outputs import Output
from skipfilter.spark.console import job, say, step, steps
from skipfilter.spark.errors import BadInput, MissingTable
from skipfilter.spark.jobs.audit import audit as who_could_read
from skipfilter.spark.jobs.gaps import of_time, sentences
from skipfilter.spark.jobs.generate import Workload, generate_sessions, generate_updates
from skipfilter.spark.jobs.generations import Outdated, generations, marked
from skipfilter.spark.jobs.generations import whole as mark_of_all
from skipfilter.spark.jobs.indexing import postings
from skipfilter.spark.jobs.matching import Matching, Options, as_if_online, of_days, updates_of
from skipfilter.spark.jobs.matching import match as what_matches
from skipfilter.spark.jobs.report import report as what_happened
from skipfilter.spark.jobs.statistics import person
from skipfilter.spark.jobs.unknown import of_epoch, of_sessions, of_updates, perhaps
from skipfilter.spark.page import page
from skipfilter.spark.session import forget, persisted
from skipfilter.spark.tables import files
from skipfilter.spark.tables.inputs import Inputs
from skipfilter.spark.tables.local import WRITERS, nothing_about, nothing_of
from skipfilter.spark.tables.schemas import FANOUT, GAPS, SESSIONS, UPDATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from skipfilter.bulk.matching import By
    from skipfilter.spark.tables.local import Days

_SCHEMAS: Final = {"updates": UPDATES, "sessions": SESSIONS, "fanout": FANOUT}
"""The schema of each table that a job needs."""
IF_ONLINE: Final = "as-if-online"
"""The directory of tables with what sessions would have received."""


def generate(tables: str, conf: Sequence[str] | None, subscribers: int, updates: int, seed: int) -> None:
    """Write the updates and sessions of an invented day."""
    with job("generate", conf) as spark:
        # Otherwise, `tables` would continue a table that is no longer there.
        if files.exists(spark, f"{tables}/_checkpoints"):
            raise BadInput(f"{tables}: it has the tables of a hub; choose another directory for invented ones")
        workload = Workload(subscribers=subscribers, updates=updates, seed=seed)
        with step(f"{subscribers:,} sessions"):
            files.write(generate_sessions(spark, workload), f"{tables}/sessions")
        with step(f"{updates:,} updates"):
            files.write(generate_updates(spark, workload), f"{tables}/updates", by_day=True)


def index(tables: str, conf: Sequence[str] | None) -> None:
    """Write the posting lists of the sessions."""
    with job("index", conf) as spark, step(f"{tables}/postings"):
        files.write(postings(_read(spark, tables, "sessions")), f"{tables}/postings")


def match(
    tables: str,
    conf: Sequence[str] | None,
    outputs: Sequence[str],
    by: By | None,
    base_url: str | None,
    days: Days,
    max_broadcast_bytes: int,
    *,
    online: bool,
) -> None:
    """Write outputs of `match`; if `online`, as if all had been connected."""
    with job("match", conf) as spark:
        inputs = _inputs(spark, tables, days)
        by, base_url = by or inputs.by, base_url or inputs.hub()
        gaps = _gaps(spark, tables)
        missing = "some deliveries may be missing, so some counts are null: see `report` or `audit`"
        are_missing = not of_time(gaps, *_moments(days), by=by).isEmpty()
        out = tables
        if online:
            # The sessions of the tables count, so no count is unknown.
            missing = "some sessions may be missing, and what they would have received"
            by, inputs, gaps = "time", inputs._replace(sessions=as_if_online(inputs.sessions)), gaps.where("false")
            out = f"{tables}/{IF_ONLINE}"
        updates, sessions = of_days(inputs.updates, inputs.sessions, *days, by)
        with step("generations of the days"):
            found = generations(updates, sessions, gaps, by)
        with ExitStack() as prepared:
            # The outputs share the postings and keys of each epoch.
            with step(f"postings and keys, by {by}"):
                options: Options = {"by": by, "base_url": base_url, "max_broadcast_bytes": max_broadcast_bytes}
                matchings = [
                    (prepared.enter_context(Matching(log.updates, log.sessions, **options)), log)
                    for log in _logs(updates, sessions, gaps, by)
                ]
            if are_missing:
                say(f"{tables}/gaps: {missing}")
            for output in map(Output.of, outputs):
                with step(f"{out}/{output}"):
                    parts = (_made(output, matching, log, inputs.sessions, options) for matching, log in matchings)
                    made = reduce(lambda one, other: one.unionAll(other), parts)
                    if output.of_updates:
                        dated = marked(made.withColumn("dt", F.to_date("ts")), found)
                        files.write(dated, f"{out}/{output}", by_day=True, days=days)
                    else:
                        files.write(made.select("*", mark_of_all(found)), f"{out}/{output}")


class _Log(NamedTuple):
    """Tables that can be matched with each other."""

    updates: DataFrame
    sessions: DataFrame
    gaps: DataFrame


def _made(output: Output, matching: Matching, log: _Log, sessions: DataFrame, options: Options) -> DataFrame:
    """Return an output; in a count, what is not known is null.

    `sessions` are those of all days.
    """
    found = matching.output(output)
    if output is Output.FANOUT:
        return of_updates(found, log.gaps, options["by"])
    if output is Output.RECEIVED:
        if log.gaps.isEmpty():
            return found.withColumn("at_least", F.col("received"))
        besides = perhaps(log.updates, sessions, log.gaps, options["by"])
        return of_sessions(found, what_matches(log.updates, besides, output, **options))
    return found


def _logs(updates: DataFrame, sessions: DataFrame, gaps: DataFrame, by: By) -> list[_Log]:
    """Return the tables that can be matched with each other.

    By position, these are the rows of each epoch, because positions of different epochs
    are not comparable.
    """
    whole = _Log(updates, sessions, gaps)
    if by == "time":
        return [whole]
    epochs = [epoch for [epoch] in updates.select("epoch").unionAll(sessions.select("epoch")).distinct().collect()]

    def of(table: DataFrame, epoch: str | None) -> DataFrame:
        return table.filter(F.col("epoch").eqNullSafe(F.lit(epoch)))

    return [_Log(of(updates, epoch), of(sessions, epoch), of_epoch(gaps, epoch)) for epoch in epochs] or [whole]


def report(
    tables: str,
    conf: Sequence[str] | None,
    base_url: str | None,
    days: Days,
    max_broadcast_bytes: int,
) -> None:
    """Write the tables and the page of a report."""
    with job("report", conf, has_bar=True) as spark:
        fanout = _read(spark, tables, "fanout")
        start, end = _moments(days)
        with step(f"{tables}/fanout of the present updates and sessions"):
            inputs = _inputs(spark, tables, days)
            try:
                found = what_happened(
                    inputs.updates,
                    inputs.sessions,
                    fanout,
                    start=start,
                    end=end,
                    base_url=base_url or inputs.hub(),
                    gaps=_gaps(spark, tables),
                    by=inputs.by,
                    max_broadcast_bytes=max_broadcast_bytes,
                )
            except Outdated as error:
                command = ["match", tables, "--from", str(error.days[0]), "--to", str(error.days[-1])]
                command += [] if base_url is None else ["--base-url", base_url]
                raise BadInput(f"{tables}/{error}: skipfilter spark {shlex.join(command)}") from None
        with steps(f"{tables}/report", len(found.tables) + 1) as begin:
            found = found.write(f"{tables}/report", begins=begin)
            begin("index.html")
            written = files.write_page(spark, page(found), f"{tables}/report")
    say(f"look at {written}")


def audit(
    tables: str,
    conf: Sequence[str] | None,
    topic: str,
    by: By | None,
    base_url: str | None,
    days: Days,
    max_broadcast_bytes: int,
) -> None:
    """Write who could read a topic, and print the first rows."""
    with job("audit", conf) as spark:
        start, end = _moments(days)
        inputs = _inputs(spark, tables, days)
        by, base_url = by or inputs.by, base_url or inputs.hub()
        gaps = _gaps(spark, tables)
        logs = _logs(inputs.updates, inputs.sessions, gaps, by)
        with step(f"{tables}/audit"):
            options: Options = {"by": by, "base_url": base_url, "max_broadcast_bytes": max_broadcast_bytes}
            parts = [who_could_read(topic, *log, start, end, **options) for log in logs]
            found = persisted(reduce(lambda one, other: one.unionAll(other), parts))
            try:
                if found.isEmpty():
                    raise BadInput(nothing_about(tables, topic))
                files.write(found, f"{tables}/audit")
            finally:
                forget(found)
        written = spark.read.parquet(f"{tables}/audit")
        _shown(written).show(truncate=60)
        typer.echo(_counted(written))
        for sentence in sentences(of_time(gaps, start, end, by=by)):
            typer.echo(sentence)


def _shown(audited: DataFrame) -> DataFrame:
    """Return what a terminal has room for, of those that received most first."""
    times = [F.date_format(name, "yyyy-MM-dd HH:mm:ss").alias(name) for name in ("connected_from", "disconnected_at")]
    who = _printable(F.coalesce("subject", "subscriber")).alias("who")
    selectors = [
        _printable(
            F.array_join(F.transform(name, lambda one: F.concat_ws(" ", one["type"], one["pattern"])), ", ")
        ).alias(name)
        for name in ("authorised", "subscribed")
    ]
    ordered = audited.orderBy(F.desc("at_least"), "subscriber_id")
    return ordered.select("subscriber_id", who, *times, *selectors, "received", "received_private")


def _printable(text: Column) -> Column:
    """Return a text of a client so that it cannot steer the terminal."""
    return F.regexp_replace(text, r"[\p{C}\p{Zl}\p{Zp}]", "\N{REPLACEMENT CHARACTER}")


def _counted(audited: DataFrame) -> str:
    """Return sentences that count sessions and people."""
    whose, may_read = person(audited), F.size("authorised") > 0
    counts = F.count("*"), F.countDistinct(whose), F.count_if(whose.isNull())
    private = F.count_if(may_read), F.countDistinct(F.when(may_read, whose)), F.count_if(may_read & whose.isNull())
    [row] = audited.agg(*counts, *private).collect()
    every, readers = (_whose(*some) for some in (row[:3], row[3:]))
    return f"{every} could read the topic, or received an update on it. {readers} could read private updates on it."


def _whose(sessions: int, people: int, unnamed: int) -> str:
    """Return a number of sessions, with whom they are of if that is known."""
    if not people:
        return f"{sessions:,} sessions"
    unknown = f" and {unnamed:,} without a name" if unnamed else ""
    return f"{sessions:,} sessions ({people:,} people{unknown})"


def _moments(days: Days) -> tuple[datetime | None, datetime | None]:
    """Return the beginning of the first day and the end of the last, in UTC."""
    first, last = (None if day is None else datetime.combine(day, time(), UTC) for day in days)
    return first, None if last is None else last + timedelta(days=1)


def _inputs(spark: SparkSession, tables: str, days: Days) -> Inputs:
    """Return the tables of updates and of sessions.

    Raises BadInput if days are chosen, and no update is of them.
    """
    updates, sessions = _read(spark, tables, "updates"), _read(spark, tables, "sessions")
    if days != (None, None) and updates_of(updates, *days).isEmpty():
        raise BadInput(f"{tables}/updates: {nothing_of(*days)}")
    try:
        return Inputs.of(updates, sessions)
    except BadInput as error:
        raise BadInput(f"{tables}: {error}: run `generate` again") from None


def _gaps(spark: SparkSession, tables: str) -> DataFrame:
    """Return the table of gaps, which is empty if there is none.

    Generated sessions have no such table, nor have tables of earlier versions.
    """
    try:
        return files.read(spark, f"{tables}/gaps", GAPS)
    except MissingTable:
        return spark.createDataFrame([], GAPS)


def _read(spark: SparkSession, tables: str, name: str) -> DataFrame:
    """Return a table that a job needs.

    Raises MissingTable, with the command that writes the table, if there is none.
    """
    try:
        return files.read(spark, f"{tables}/{name}", _SCHEMAS[name])
    except MissingTable as error:
        raise MissingTable(f"{error}: {WRITERS[name]} writes it") from None

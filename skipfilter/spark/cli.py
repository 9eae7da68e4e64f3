"""The jobs on tables: `skipfilter spark JOB TABLES` runs one.

    TABLES/updates sessions                         recorded by a hub, or generated
    TABLES/gaps                                     what the hub may not have recorded
    TABLES/postings fanout bitmaps rows received    the results of the jobs
    TABLES/audit report

TABLES is a directory: any path that Spark can write to.  spark-submit, SPARK_REMOTE,
spark-defaults.conf or --conf set where Spark runs.  Jobs are idempotent: a job writes
all of its result before it replaces the earlier one.  The page is report/index.html, or
over Spark Connect a file in report/page.

The exit status is 0 if the job is done, 1 if it failed, and 2 if an argument is
invalid.  Standard error has the reason.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import typer
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.bulk.outputs import Output
from skipfilter.bulk.ranges import BROADCAST_BYTES
from skipfilter.spark.console import Conf, Tables, job, say, step, steps
from skipfilter.spark.errors import BadInput, MissingTable
from skipfilter.spark.jobs.audit import audit as who_could_read
from skipfilter.spark.jobs.gaps import of_time, sentences
from skipfilter.spark.jobs.generate import Workload, generate_sessions, generate_updates
from skipfilter.spark.jobs.generations import Outdated, generations, marked
from skipfilter.spark.jobs.generations import whole as mark_of_all
from skipfilter.spark.jobs.indexing import postings
from skipfilter.spark.jobs.matching import Matching, Options, of_days
from skipfilter.spark.jobs.matching import match as what_matches
from skipfilter.spark.jobs.report import report as what_happened
from skipfilter.spark.jobs.unknown import of_epoch, of_sessions, of_updates, perhaps
from skipfilter.spark.page import page
from skipfilter.spark.tables import files
from skipfilter.spark.tables.inputs import Inputs
from skipfilter.spark.tables.schemas import FANOUT, GAPS, SESSIONS, UPDATES
from skipfilter.text import example

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skipfilter.bulk.matching import By


def _absolute(url: str | None) -> str | None:
    """Return `url` unchanged.  Raises BadParameter if it is a URL without a scheme."""
    if url is not None and not urlsplit(url).scheme:
        raise typer.BadParameter(f"{url!r} is not an absolute URL")
    return url


Url = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        callback=_absolute,
        help="The URL against which relative URL Patterns are resolved; by default the hub's.",
    ),
]


def _not_before_first(context: typer.Context, last: datetime | None) -> datetime | None:
    """Return `last` unchanged.  Raises BadParameter if the first day comes after it."""
    first = context.params.get("first")
    if first is not None and last is not None and last < first:
        raise typer.BadParameter(f"{last:%Y-%m-%d} is before the first day, {first:%Y-%m-%d}")
    return last


From = Annotated[
    datetime | None, typer.Option("--from", is_eager=True, formats=["%Y-%m-%d"], help="The first day of updates.")
]
To = Annotated[
    datetime | None,
    typer.Option("--to", callback=_not_before_first, formats=["%Y-%m-%d"], help="The last day of updates."),
]
ByOption = Annotated[
    Literal["time", "position"] | None,
    typer.Option(
        help="How a session's connection is compared with updates: by time, or by position in the history, which is "
        "exact; by default by position if all rows have one."
    ),
]
MaxBroadcastBytes = Annotated[
    int, typer.Option(help="The maximum number of bytes of sessions and selectors in a worker.")
]


_ROWS: Final = "; ".join(f"{output}: {output.row}" for output in Output)
Outputs = Annotated[
    list[Output], typer.Option("--output", help=f"The table to write; repeatable. What a row stands for: {_ROWS}.")
]


_NEEDED: Final = {
    "updates": (UPDATES, "`generate`, or `skipfilter spark tables`,"),
    "sessions": (SESSIONS, "`generate`, or `skipfilter spark tables`,"),
    "fanout": (FANOUT, "`match`"),
}
"""The schema of each table that a job needs, and the command that writes it."""


jobs = typer.Typer()
"""The commands, which `hub.cli.spark` adds to its own."""


@jobs.command(epilog=example("skipfilter spark generate day --subscribers 1000"))
def generate(
    tables: Tables,
    subscribers: Annotated[int, typer.Option(help="The number of sessions.", min=0)] = 2_000,
    updates: Annotated[int, typer.Option(help="The number of updates.", min=0)] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = Workload().seed,
    conf: Conf = None,
) -> None:
    """Generate the updates and sessions of an invented day.

    The same options give the same rows.
    """
    with job("generate", conf) as spark:
        # Otherwise, `tables` would continue a table that is no longer there.
        if files.exists(spark, f"{tables}/_checkpoints"):
            raise BadInput(f"{tables}: it has the tables of a hub; choose another directory for invented ones")
        workload = Workload(subscribers=subscribers, updates=updates, seed=seed)
        with step(f"{subscribers:,} sessions"):
            files.write(generate_sessions(spark, workload), f"{tables}/sessions")
        with step(f"{updates:,} updates"):
            files.write(generate_updates(spark, workload), f"{tables}/updates", by_day=True)


@jobs.command(epilog=example("skipfilter spark index day"))
def index(tables: Tables, conf: Conf = None) -> None:
    """Write a posting list for each distinct selector.

    A list has two roaring bitmaps: the sessions that declare the selector, and those
    that are granted it.
    """
    with job("index", conf) as spark, step(f"{tables}/postings"):
        files.write(postings(_read(spark, tables, "sessions")), f"{tables}/postings")


@jobs.command(epilog=example("skipfilter spark match day --output fanout --output rows"))
def match(
    tables: Tables,
    outputs: Outputs = [Output.FANOUT],  # noqa: B006  the list is never modified
    by: ByOption = None,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    max_broadcast_bytes: MaxBroadcastBytes = BROADCAST_BYTES,
    conf: Conf = None,
) -> None:
    """Write which session received which update.

    All but received have a directory for each day; received adds up all the selected
    days.  A count is null if a hub was killed and did not record all of it; at_least
    then has what it recorded.
    """
    with job("match", conf) as spark:
        days = first and first.date(), last and last.date()
        inputs = _inputs(spark, tables)
        by, base_url = by or inputs.by, base_url or inputs.hub()
        gaps = _gaps(spark, tables)
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
            if not of_time(gaps, *_moments(first, last), by=by).isEmpty():
                say(f"{tables}/gaps: some deliveries may be missing, so some counts are null: see `report` or `audit`")
            for output in outputs:
                with step(f"{tables}/{output}"):
                    parts = (_made(output, matching, log, inputs.sessions, options) for matching, log in matchings)
                    made = reduce(lambda one, other: one.unionAll(other), parts)
                    if output.of_updates:
                        dated = marked(made.withColumn("dt", F.to_date("ts")), found)
                        files.write(dated, f"{tables}/{output}", by_day=True, days=days)
                    else:
                        files.write(made.select("*", mark_of_all(found)), f"{tables}/{output}")


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
            return of_sessions(found, found.limit(0))
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


@jobs.command(epilog=example("skipfilter spark report day"))
def report(
    tables: Tables,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    max_broadcast_bytes: MaxBroadcastBytes = BROADCAST_BYTES,
    conf: Conf = None,
) -> None:
    """Write tables and a page that report what happened.

    Run `match` first: this job needs its fan-out.
    """
    with job("report", conf, has_bar=True) as spark:
        fanout = _read(spark, tables, "fanout")
        start, end = _moments(first, last)
        with step(f"{tables}/fanout of the present updates and sessions"):
            inputs = _inputs(spark, tables)
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


@jobs.command(epilog=example("skipfilter spark audit day https://example.com/books/1"))
def audit(
    tables: Tables,
    topic: Annotated[str, typer.Argument(help="The topic; it is compared exactly.")],
    by: ByOption = None,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    max_broadcast_bytes: MaxBroadcastBytes = BROADCAST_BYTES,
    conf: Conf = None,
) -> None:
    """Write who could read a topic, by which selector, and who received it.

    Prints the first rows.
    """
    with job("audit", conf) as spark:
        start, end = _moments(first, last)
        inputs = _inputs(spark, tables)
        by, base_url = by or inputs.by, base_url or inputs.hub()
        gaps = _gaps(spark, tables)
        logs = _logs(inputs.updates, inputs.sessions, gaps, by)
        with step(f"{tables}/audit"):
            options: Options = {"by": by, "base_url": base_url, "max_broadcast_bytes": max_broadcast_bytes}
            parts = [who_could_read(topic, *log, start, end, **options) for log in logs]
            files.write(reduce(lambda one, other: one.unionAll(other), parts), f"{tables}/audit")
        spark.read.parquet(f"{tables}/audit").orderBy(F.desc("at_least"), "subscriber_id").show(truncate=60)
        for sentence in sentences(of_time(gaps, start, end, by=by)):
            typer.echo(sentence)


def _moments(first: datetime | None, last: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Return the beginning of the first day and the end of the last, in UTC."""
    return first and first.replace(tzinfo=UTC), last and last.replace(tzinfo=UTC) + timedelta(days=1)


def _inputs(spark: SparkSession, tables: str) -> Inputs:
    """Return the tables of updates and of sessions."""
    updates, sessions = _read(spark, tables, "updates"), _read(spark, tables, "sessions")
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
    schema, writer = _NEEDED[name]
    try:
        return files.read(spark, f"{tables}/{name}", schema)
    except MissingTable as error:
        raise MissingTable(f"{error}: {writer} writes it") from None

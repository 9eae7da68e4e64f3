"""python -m skipfilter.spark JOB: the pipeline on the command line, for a directory of
tables.

    TABLES/updates sessions                         what happened, or generated
    TABLES/gaps                                     what may be missing there
    TABLES/postings fanout bitmaps rows received    the results of the jobs
    TABLES/audit report

A directory is any path that Spark can write to.  spark-submit (which takes this file),
SPARK_REMOTE, spark-defaults.conf or --conf say where Spark runs.  Jobs are idempotent:
a job replaces its earlier result after all of the new one is written.  Over Spark
Connect, the page is a file in report/page.

Exits with 0 if the job is done, 1 if it failed (standard error says why), and 2 if it
could not start.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import typer
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark import files
from skipfilter.spark.audit import audit as who_could_read
from skipfilter.spark.cli import Conf, Tables, job, say, step
from skipfilter.spark.errors import BadInput, MissingTable
from skipfilter.spark.gaps import of_time, sentences
from skipfilter.spark.generate import Workload, generate_sessions, generate_updates
from skipfilter.spark.matching import BROADCAST_BYTES, Matching, of_days
from skipfilter.spark.page import page
from skipfilter.spark.posting_lists import postings
from skipfilter.spark.report import report as what_happened
from skipfilter.spark.schemas import FANOUT, GAPS, SESSIONS, UPDATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from skipfilter.spark.matching import By


def _absolute(url: str | None) -> str | None:
    """Return the URL.  Raises BadParameter if it is not absolute."""
    if url is not None and not urlsplit(url).scheme:
        raise typer.BadParameter(f"{url!r} is not an absolute URL")
    return url


Url = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        callback=_absolute,
        help="The URL that relative URL Patterns are resolved against; by default the hub's.",
    ),
]
From = Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day of updates.")]
To = Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last day of updates.")]
ByOption = Annotated[
    Literal["time", "position"] | None,
    typer.Option(help="How sessions are placed in time; by default by position, which is exact, if tables have it."),
]


class Name(StrEnum):
    """The outputs of `match`; Typer does not support a list of literals."""

    FANOUT = "fanout"
    BITMAPS = "bitmaps"
    ROWS = "rows"
    RECEIVED = "received"


Outputs = Annotated[list[Name], typer.Option("--output", help="What to write; repeatable.")]


_WRITTEN_BY: Final = {
    "updates": "`generate`, or `python -m hub.spark tables`,",
    "sessions": "`generate`, or `python -m hub.spark tables`,",
    "fanout": "`match`",
}
"""The commands that write the tables that jobs need."""


main = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@main.callback()
def _pipeline() -> None:
    """Match updates with sessions on Spark: who received what, and who would have."""


@main.command()
def generate(
    tables: Tables,
    subscribers: Annotated[int, typer.Option(help="The number of sessions.", min=0)] = 2_000,
    updates: Annotated[int, typer.Option(help="The number of updates.", min=0)] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = Workload().seed,
    conf: Conf = None,
) -> None:
    """Generate updates and sessions of an invented day; the same options give the same
    rows.
    """
    with job("generate", conf) as spark:
        workload = Workload(subscribers=subscribers, updates=updates, seed=seed)
        with step(f"{subscribers:,} sessions"):
            files.write(generate_sessions(spark, workload), f"{tables}/sessions")
        with step(f"{updates:,} updates"):
            files.write(generate_updates(spark, workload), f"{tables}/updates", by_day=True)


@main.command()
def index(tables: Tables, conf: Conf = None) -> None:
    """Write which sessions declare, and are granted, each distinct selector: as roaring
    bitmaps.
    """
    with job("index", conf) as spark, step(f"{tables}/postings"):
        files.write(postings(_sessions(spark, tables)), f"{tables}/postings")


@main.command()
def match(
    tables: Tables,
    outputs: Outputs = [Name.FANOUT],  # noqa: B006  it is never changed
    by: ByOption = None,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    max_broadcast_bytes: Annotated[
        int, typer.Option(help="Bytes of sessions that a worker may hold.")
    ] = BROADCAST_BYTES,
    conf: Conf = None,
) -> None:
    """Write who received which updates.

    fanout, bitmaps and rows have a directory for each day; received covers all the
    days.
    """
    with job("match", conf) as spark:
        days = first and first.date(), last and last.date()
        updates, sessions = _updates(spark, tables), _sessions(spark, tables)
        by, base_url = by or _by(updates, sessions), base_url or _hub(sessions)
        updates, sessions = of_days(updates, sessions, *days, by)
        with ExitStack() as prepared:
            with step(f"postings and keys, by {by}"):
                matchings = [
                    prepared.enter_context(
                        Matching(*log, by=by, base_url=base_url, max_broadcast_bytes=max_broadcast_bytes)
                    )
                    for log in _logs(updates, sessions, by)
                ]
            if not of_time(_gaps(spark, tables), *_moments(first, last), by=by).isEmpty():
                say(f"{tables}/gaps: some deliveries may be missing: see `report` or `audit`")
            for name in outputs:
                with step(f"{tables}/{name}"):
                    made = reduce(
                        lambda one, other: one.unionAll(other), (each.output(name.value) for each in matchings)
                    )
                    if name == Name.RECEIVED:
                        files.write(made, f"{tables}/{name}")
                    else:
                        files.write(made.withColumn("dt", F.to_date("ts")), f"{tables}/{name}", by_day=True, days=days)


def _by(updates: DataFrame, sessions: DataFrame) -> By:
    """Return "position" if there are updates and all rows have positions, else
    "time".
    """
    placed = updates.agg(F.count("*"), F.count("position")).first()
    there = sessions.agg(F.count("*"), F.count("after")).first()
    assert placed is not None
    assert there is not None
    return "position" if 0 < placed[0] == placed[1] and there[0] == there[1] else "time"


def _hub(sessions: DataFrame) -> str | None:
    """Return the hub of the sessions, or None.  Raises BadInput if there are two."""
    hubs = [hub for [hub] in sessions.select("hub").distinct().limit(3).collect() if hub is not None]
    if len(hubs) > 1:
        raise BadInput(f"sessions: they are of {hubs[0]} and {hubs[1]}: choose one with --base-url")
    return hubs[0] if hubs else None


def _logs(updates: DataFrame, sessions: DataFrame, by: By) -> list[tuple[DataFrame, DataFrame]]:
    """Return the updates and sessions of each epoch: positions are comparable within
    one.
    """
    if by == "time":
        return [(updates, sessions)]
    epochs = [epoch for [epoch] in updates.select("epoch").unionAll(sessions.select("epoch")).distinct().collect()]

    def of(table: DataFrame, epoch: str | None) -> DataFrame:
        return table.filter(F.col("epoch").eqNullSafe(F.lit(epoch)))

    return [(of(updates, epoch), of(sessions, epoch)) for epoch in epochs] or [(updates, sessions)]


@main.command()
def report(tables: Tables, base_url: Url = None, first: From = None, last: To = None, conf: Conf = None) -> None:
    """Write tables and a page of what happened, after `match` has written the
    fan-out.
    """
    with job("report", conf) as spark:
        fanout = _read(spark, tables, "fanout", FANOUT)
        start, end = _moments(first, last)
        with step(f"{tables}/report"):
            updates, sessions = _updates(spark, tables), _sessions(spark, tables)
            base_url, gaps = base_url or _hub(sessions), _gaps(spark, tables)
            by = "time" if end is None else _by(updates, sessions)
            found = what_happened(updates, sessions, fanout, start=start, end=end, base_url=base_url, gaps=gaps, by=by)
            found.write(f"{tables}/report")
            written = files.write_page(spark, page(found), f"{tables}/report")
    say(f"look at {written}")


@main.command()
def audit(
    tables: Tables,
    topic: Annotated[str, typer.Argument(help="The topic, compared exactly.")],
    by: ByOption = None,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    conf: Conf = None,
) -> None:
    """Write who could read a topic, by which selector, and who received it; print the
    first rows.
    """
    with job("audit", conf) as spark:
        start, end = _moments(first, last)
        updates, sessions = _updates(spark, tables), _sessions(spark, tables)
        by, base_url = by or _by(updates, sessions), base_url or _hub(sessions)
        logs = _logs(updates, sessions, by)
        with step(f"{tables}/audit"):
            parts = [who_could_read(topic, *each, start, end, by=by, base_url=base_url) for each in logs]
            files.write(reduce(lambda one, other: one.unionAll(other), parts), f"{tables}/audit")
        spark.read.parquet(f"{tables}/audit").orderBy(F.desc("received"), "subscriber_id").show(truncate=60)
        for told in sentences(of_time(_gaps(spark, tables), start, end, by=by)):
            typer.echo(told)


@main.command()
def where() -> None:
    """Print the path of this program, for spark-submit."""
    typer.echo(__file__)


def _moments(first: datetime | None, last: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Return the beginning of the first day, and the end of the last."""
    return first and first.replace(tzinfo=UTC), last and last.replace(tzinfo=UTC) + timedelta(days=1)


def _updates(spark: SparkSession, tables: str) -> DataFrame:
    """Return the table of updates."""
    return _read(spark, tables, "updates", UPDATES)


def _gaps(spark: SparkSession, tables: str) -> DataFrame:
    """Return the table of gaps; empty for generated sessions or those of earlier
    versions.
    """
    try:
        return files.read(spark, f"{tables}/gaps", GAPS)
    except MissingTable:
        return spark.createDataFrame([], GAPS)


def _sessions(spark: SparkSession, tables: str) -> DataFrame:
    """Return the table of sessions."""
    return _read(spark, tables, "sessions", SESSIONS)


def _read(spark: SparkSession, tables: str, name: str, schema: StructType) -> DataFrame:
    """Return a table that a job needs.

    Raises MissingTable, which names the command that writes the table.
    """
    try:
        return files.read(spark, f"{tables}/{name}", schema)
    except MissingTable as error:
        raise MissingTable(f"{error}: {_WRITTEN_BY[name]} writes it") from None


if __name__ == "__main__":
    main()

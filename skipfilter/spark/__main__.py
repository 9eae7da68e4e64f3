"""python -m skipfilter.spark JOB: the pipeline on the command line, over a directory of tables.

    TABLES/updates  sessions                                                what happened; `generate` makes some up
    TABLES/postings  fanout  bitmaps  rows  received  audit  warm_index  report    what the jobs make of it

A directory is anything that Spark can write to.  Where Spark runs is said by spark-submit, which takes this file, by
SPARK_REMOTE, spark-defaults.conf, or --conf.  What is done twice is done once: a job writes over what it wrote.

Exits with 0 if it is done, 1 if it went wrong, which standard error tells, and 2 if it could not begin.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark import files
from skipfilter.spark.audit import audit as who_could_read
from skipfilter.spark.cli import Conf, Tables, job, say, step
from skipfilter.spark.generate import Workload, generate_sessions, generate_updates
from skipfilter.spark.match import Matching
from skipfilter.spark.page import page
from skipfilter.spark.postings import postings
from skipfilter.spark.report import report as what_happened
from skipfilter.spark.schemas import FANOUT, SESSIONS, UPDATES
from skipfilter.spark.warm import TOP, warm_index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skipfilter.spark.match import By

Url = Annotated[str | None, typer.Option("--base-url", help="What relative URL Patterns are resolved against.")]
From = Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day of updates.")]
To = Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last day of updates.")]
ByOption = Annotated[
    Literal["time", "position"], typer.Option(help="When a session was there; position is exact for the log of a hub.")
]


class Name(StrEnum):
    """The outputs of `match`; a list of literals is beyond Typer."""

    FANOUT = "fanout"
    BITMAPS = "bitmaps"
    ROWS = "rows"
    RECEIVED = "received"


Outputs = Annotated[list[Name], typer.Option("--output", help="What to write; repeatable.")]


main = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@main.callback()
def _pipeline() -> None:
    """Who received what, and who would have: bulk matching of updates and sessions on Spark."""


@main.command()
def generate(
    tables: Tables,
    subscribers: Annotated[int, typer.Option(help="How many sessions.", min=0)] = 2_000,
    updates: Annotated[int, typer.Option(help="How many updates.", min=0)] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed makes the same rows.")] = Workload().seed,
    conf: Conf = None,
) -> None:
    """Make up updates and sessions: some hub's day, the same for the same figures."""
    with job("generate", conf) as spark:
        workload = Workload(subscribers=subscribers, updates=updates, seed=seed)
        with step(f"{subscribers:,} sessions"):
            files.write(generate_sessions(spark, workload), f"{tables}/sessions", by_day=False)
        with step(f"{updates:,} updates"):
            files.write(generate_updates(spark, workload), f"{tables}/updates", by_day=True)


@main.command()
def index(tables: Tables, conf: Conf = None) -> None:
    """Write who declares, and who is granted, each distinct selector: as roaring bitmaps."""
    with job("index", conf) as spark, step(f"{tables}/postings"):
        files.write(postings(_sessions(spark, tables)), f"{tables}/postings", by_day=False)


@main.command()
def match(
    tables: Tables,
    outputs: Outputs = [Name.FANOUT],  # noqa: B006  nobody changes it
    by: ByOption = "time",
    base_url: Url = None,
    first: From = None,
    last: To = None,
    conf: Conf = None,
) -> None:
    """Write who received which updates.

    fanout, bitmaps and rows are written by the day; received is of all the days that were asked for.
    """
    with job("match", conf) as spark:
        updates, sessions = files.of_days(
            _updates(spark, tables),
            _sessions(spark, tables),
            first and first.date(),
            last and last.date(),
            by,
        )
        with step("postings and keys"):
            matchings = [Matching(*logs, by=by, base_url=base_url) for logs in _logs(updates, sessions, by)]
        for name in outputs:
            with step(f"{tables}/{name}"):
                made = reduce(lambda one, other: one.unionAll(other), (each.output(name.value) for each in matchings))
                if by_day := name != Name.RECEIVED:
                    made = made.withColumn("dt", F.to_date("ts"))
                files.write(made, f"{tables}/{name}", by_day=by_day)


def _logs(updates: DataFrame, sessions: DataFrame, by: By) -> list[tuple[DataFrame, DataFrame]]:
    """Updates and sessions of each log that there is: positions mean something within one."""
    if by == "time":
        return [(updates, sessions)]
    epochs = [(hub, epoch) for hub, epoch in updates.select("hub", "epoch").distinct().collect()]
    if not epochs:
        return [(updates, sessions)]

    def of(table: DataFrame, hub: str | None, epoch: str | None) -> DataFrame:
        return table.filter(F.col("hub").eqNullSafe(F.lit(hub)) & F.col("epoch").eqNullSafe(F.lit(epoch)))

    return [(of(updates, *epoch), of(sessions, *epoch)) for epoch in epochs]


@main.command()
def report(tables: Tables, base_url: Url = None, first: From = None, last: To = None, conf: Conf = None) -> None:
    """Say what happened, in tables and on a page to look at, after `match` has found the fan-out."""
    with job("report", conf) as spark:
        fanout = files.read(spark, f"{tables}/fanout", FANOUT)
        start, end = _moments(first, last)
        with step(f"{tables}/report"):
            found = what_happened(
                _updates(spark, tables), _sessions(spark, tables), fanout, start=start, end=end, base_url=base_url
            )
            found.write(f"{tables}/report")
            files.write_text(page(found), f"{tables}/report/index.html")
    say(f"look at {tables}/report/index.html")


@main.command()
def audit(
    tables: Tables,
    topic: Annotated[str, typer.Argument(help="Compared as it is.")],
    by: ByOption = "time",
    base_url: Url = None,
    first: From = None,
    last: To = None,
    conf: Conf = None,
) -> None:
    """Say who could read a topic, by which selector, and who received it: in a table, and the first here."""
    with job("audit", conf) as spark:
        start, end = _moments(first, last)
        logs = _logs(_updates(spark, tables), _sessions(spark, tables), by)
        with step(f"{tables}/audit"):
            parts = [who_could_read(topic, *each, start, end, by=by, base_url=base_url) for each in logs]
            files.write(reduce(lambda one, other: one.unionAll(other), parts), f"{tables}/audit", by_day=False)
        spark.read.parquet(f"{tables}/audit").orderBy(F.desc("received"), "subscriber_id").show(truncate=60)


@main.command()
def warm(
    tables: Tables,
    top: Annotated[int, typer.Option(help="How many topics.", min=1)] = TOP,
    epoch: Annotated[str, typer.Option(help="What the ids mean, as SkipFilter.load has it.")] = "",
    base_url: Url = None,
    conf: Conf = None,
) -> None:
    """Write the hottest topics with who passes them, for a hub (HUB_WARM_INDEX) or a SkipFilter that starts."""
    with job("warm", conf) as spark, step(f"{tables}/warm_index"):
        made = warm_index(_updates(spark, tables), _sessions(spark, tables), epoch, top=top, base_url=base_url)
        files.write(made.coalesce(1), f"{tables}/warm_index", by_day=False)


def _moments(first: datetime | None, last: datetime | None) -> tuple[datetime | None, datetime | None]:
    """When the first day begins, and when the last one has ended."""
    return first and first.replace(tzinfo=UTC), last and last.replace(tzinfo=UTC) + timedelta(days=1)


def _updates(spark: SparkSession, tables: str) -> DataFrame:
    return files.read(spark, f"{tables}/updates", UPDATES)


def _sessions(spark: SparkSession, tables: str) -> DataFrame:
    return files.read(spark, f"{tables}/sessions", SESSIONS)


if __name__ == "__main__":
    main()

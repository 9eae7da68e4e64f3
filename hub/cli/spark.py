"""`skipfilter spark`: all jobs on Spark.

The jobs here are for a hub: its event log as tables, and the hub as a source and a
sink.  Those of `skipfilter.spark.cli` continue with the tables, and need no hub.  Each
imports Spark when it runs, so that the help needs no package of the extra `spark`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hub.cli.app import app
from skipfilter.spark.cli import Conf, Tables, are_pairs, jobs, require
from skipfilter.spark.tables import local
from skipfilter.text import example

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", callback=are_pairs, help='An option of format("mercure"); repeatable.'
    ),
]
Url = Annotated[str, typer.Argument(help="The URL of the hub.")]

main = app(
    no_args_is_help=True,
    epilog=example("skipfilter spark tables events/ day", "skipfilter spark match day", "skipfilter spark report day"),
)


@main.callback()
def _spark() -> None:
    """Match updates with subscribers on Spark: who received what, and who would have.

    `tables`, `ingest` and `publish` work with a hub, the others with tables.
    """


@main.command(epilog=example("skipfilter spark tables events/ day"))
def tables(
    log: Annotated[str, typer.Argument(help="The directory in HUB_EVENT_LOG.")],
    tables: Tables,
    exported: Annotated[
        bool,
        typer.Option("--exported", help="Read LOG/*.ndjson of `skipfilter history export`, which has only updates."),
    ] = False,
    conf: Conf = None,
) -> None:
    """Append the new lines of an event log to the tables; each line once, however often
    this runs.
    """
    require(log, conf, lambda place: (local.no_exports if exported else local.not_a_log)(place, log), "LOG")
    from hub.spark.tables import append_updates, read_table
    from hub.spark.tables import tables as bring_up_to_date
    from skipfilter.spark.console import job, step
    from skipfilter.spark.errors import BadInput
    from skipfilter.spark.tables.schemas import UPDATES

    with job("tables", conf) as spark, step(tables):
        if exported:
            append_updates(spark, log, tables)
            if read_table(spark, f"{tables}/updates", UPDATES).isEmpty():
                raise BadInput(f"{log}: no update was found in files named .ndjson or .jsonl")
        else:
            bring_up_to_date(spark, log, tables)


@main.command(epilog=example("skipfilter spark ingest http://localhost:3000/.well-known/mercure updates"))
def ingest(url: Url, table: str, options: Options = None, conf: Conf = None) -> None:
    """Append the updates that a hub has had since the last run to a table in
    Parquet.
    """
    from hub.spark import register
    from skipfilter.spark.console import job, pairs, step

    with job("ingest", conf) as spark, step(table):
        register(spark)
        events = spark.readStream.format("mercure").option("url", url).options(**pairs(options)).load()
        written = events.writeStream.format("parquet").option("checkpointLocation", f"{table}/_checkpoint")
        written.trigger(availableNow=True).start(table).awaitTermination()


@main.command(
    epilog=example("skipfilter spark publish updates http://localhost:3000/.well-known/mercure --option private=false")
)
def publish(table: str, url: Url, options: Options = None, conf: Conf = None) -> None:
    """Publish the rows of a table in Parquet.

    The table needs a column `private`, or --option private=true|false for all rows.
    """
    from hub.spark import register
    from skipfilter.spark.console import job, pairs, step

    with job("publish", conf) as spark, step(url):
        register(spark)
        rows = spark.read.parquet(table)
        rows.write.format("mercure").mode("append").option("url", url).options(**pairs(options)).save()


main.registered_commands += jobs.registered_commands

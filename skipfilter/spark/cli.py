"""The jobs on tables: `skipfilter spark JOB TABLES` runs one.

    TABLES/updates sessions                         recorded by a hub, or generated
    TABLES/gaps                                     what the hub may not have recorded
    TABLES/postings fanout bitmaps rows received    the results of the jobs
    TABLES/audit report
    TABLES/as-if-online/fanout bitmaps rows received    as if all had been connected

TABLES is a directory: any path that Spark can write to.  spark-submit, SPARK_REMOTE,
spark-defaults.conf or --conf set where Spark runs.  Jobs are idempotent: a job writes
all of its result before it replaces the earlier one.  The page is report/index.html, or
over Spark Connect a file in report/page.

The exit status is 0 if the job is done, 1 if it failed, and 2 if an argument is
invalid or names what is not there: that is looked for before Spark starts, if it is on
this machine.  Standard error has the reason.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from skipfilter.spark.tables import local
from skipfilter.text import example

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Tables = Annotated[str, typer.Argument(help="The directory of tables.", show_default=False)]


def are_pairs(texts: list[str] | None) -> list[str] | None:
    """Return `texts` unchanged.  Raises BadParameter if one is not NAME=VALUE."""
    for text in texts or ():
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return texts


Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", callback=are_pairs, help="A Spark setting; repeatable."),
]


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
    int,
    typer.Option(
        help="The maximum number of bytes of sessions and selectors in a worker; by default 268435456 (256 MiB).",
        show_default=False,
    ),
]


class OutputName(StrEnum):
    """The names of `skipfilter.bulk.outputs.Output`, which the help must not import."""

    FANOUT = "fanout"
    BITMAPS = "bitmaps"
    ROWS = "rows"
    RECEIVED = "received"


Outputs = Annotated[
    list[OutputName],
    typer.Option(
        "--output",
        help="The table to write; repeatable. What a row stands for: fanout: each update, also if no session received "
        "it; bitmaps: each update and shard with a session that received it; rows: each delivery; received: each "
        "session that received an update.",
    ),
]


jobs = typer.Typer()
"""The commands, which `hub.cli.spark` adds to its own."""


@jobs.command(epilog=example("skipfilter spark generate day --subscribers 1000"))
def generate(
    tables: Tables,
    subscribers: Annotated[int, typer.Option(help="The number of sessions.", min=0)] = 2_000,
    updates: Annotated[int, typer.Option(help="The number of updates.", min=0)] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 20_261_121,
    conf: Conf = None,
) -> None:
    """Generate the updates and sessions of an invented day.

    The same options give the same rows.
    """
    _commands().generate(tables, conf, subscribers, updates, seed)


@jobs.command(epilog=example("skipfilter spark index day"))
def index(tables: Tables, conf: Conf = None) -> None:
    """Write a posting list for each distinct selector.

    A list has two roaring bitmaps: the sessions that declare the selector, and those
    that are granted it.
    """
    require(tables, conf, lambda place: local.missing_table(place, tables, ["sessions"]))
    _commands().index(tables, conf)


@jobs.command(epilog=example("skipfilter spark match day --output fanout --output rows"))
def match(
    tables: Tables,
    outputs: Outputs = [OutputName.FANOUT],  # noqa: B006  the list is never modified
    by: ByOption = None,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    online: Annotated[
        bool,
        typer.Option(
            "--as-if-online",
            help="Write who would have received an update if all sessions of the tables had been connected all the "
            "time, to TABLES/as-if-online.",
        ),
    ] = False,
    max_broadcast_bytes: MaxBroadcastBytes = 2**28,
    conf: Conf = None,
) -> None:
    """Write which session received which update.

    All but received have a directory for each day; received adds up all the selected
    days.  A count is null if a hub was killed and did not record all of it; at_least
    then has what it recorded.
    """
    if online and by == "position":
        raise typer.BadParameter("--as-if-online compares by time", param_hint="--by")
    days = _required(tables, conf, ["updates", "sessions"], first, last)
    _commands().match(tables, conf, outputs, by, base_url, days, max_broadcast_bytes, online=online)


@jobs.command(epilog=example("skipfilter spark report day"))
def report(
    tables: Tables,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    max_broadcast_bytes: MaxBroadcastBytes = 2**28,
    conf: Conf = None,
) -> None:
    """Write tables and a page that report what happened.

    Run `match` first: this job needs its fan-out.
    """
    days = _required(tables, conf, ["fanout", "updates", "sessions"], first, last)
    _commands().report(tables, conf, base_url, days, max_broadcast_bytes)


@jobs.command(epilog=example("skipfilter spark audit day https://example.com/books/1"))
def audit(
    tables: Tables,
    topic: Annotated[str, typer.Argument(help="The topic; it is compared exactly.")],
    by: ByOption = None,
    base_url: Url = None,
    first: From = None,
    last: To = None,
    max_broadcast_bytes: MaxBroadcastBytes = 2**28,
    conf: Conf = None,
) -> None:
    """Write who could read a topic, by which selector, and who received it.

    Prints the first rows.
    """
    days = _required(tables, conf, ["updates", "sessions"], first, last)
    require(tables, conf, lambda place: local.unknown_topic(place, tables, topic), "TOPIC")
    _commands().audit(tables, conf, topic, by, base_url, days, max_broadcast_bytes)


def _commands() -> Any:
    """Return the module with the work.  Its import takes a second, and needs Spark."""
    return import_module("skipfilter.spark.commands")


def _required(
    tables: str, conf: list[str] | None, names: list[str], first: datetime | None, last: datetime | None
) -> local.Days:
    """Return the days of a period.

    Raises BadParameter if local tables are missing, or have no update of the days.
    """
    days = first and first.date(), last and last.date()
    require(
        tables,
        conf,
        lambda place: local.missing_table(place, tables, names) or local.missing_days(place, tables, *days),
    )
    return days


def require(path: str, conf: list[str] | None, fault: Callable[[Path], str], argument: str = "TABLES") -> None:
    """Raise BadParameter if `path` is on this machine and `fault` finds one there."""
    place = local.local(path, conf)
    if place is not None and (said := fault(place)):
        raise typer.BadParameter(said, param_hint=argument)

"""What the command lines of the pipeline have in common: a session, how far a job is, and errors in a sentence."""

from __future__ import annotations

import re
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pyspark.errors import PySparkException

from skipfilter.spark.errors import PipelineError
from skipfilter.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

Tables = Annotated[str, typer.Argument(help="The directory of tables.", show_default=False)]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable.")]


@contextmanager
def job(name: str, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """A session for one job.  What goes wrong is told in a sentence, and ends the program with 1."""
    settings = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(), "spark.log.level": "ERROR"}
    for setting in conf or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r} is no NAME=VALUE", param_hint="--conf")
        settings[key] = value
    try:
        yield spark_session(f"skipfilter {name}", settings)
    except PipelineError as error:
        say(f"{name}: {error}")
    except PySparkException as error:
        say(f"{name}: {reason(error)}")
    else:
        return
    raise typer.Exit(1)


def reason(error: PySparkException) -> str:
    """What went wrong, in a line: what our own error says, or of another one on a worker the end of its traceback."""
    text = str(error).partition("\n=== Streaming Query ===")[0]
    if (ours := _OURS.search(text)) is not None:
        return ours[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(line.startswith("Traceback ") for line in lines):
        start = next(number for number, line in enumerate(lines) if line.startswith("Traceback "))
        end = next((n for n, line in enumerate(lines) if n > start and line.startswith(("JVM", "at ", "\tat "))), None)
        return lines[:end][-1]
    return lines[0].removeprefix("[USER_RAISED_EXCEPTION] ").partition(" SQLSTATE:")[0]


_OURS: Final = re.compile(r"^(?:skipfilter|hub)\.[\w.]*\b[A-Z]\w*: (.*)$", re.MULTILINE)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say that something begins, and how long it took."""
    began = time.monotonic()
    say(f"{what} ...")
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")


def say(line: str) -> None:
    typer.echo(line, err=True)

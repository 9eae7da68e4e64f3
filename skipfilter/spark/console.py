"""The parts that all commands share: a Spark session, progress, and one-line errors.

Progress and errors go to standard error.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import typer
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from skipfilter.spark.errors import PipelineError
from skipfilter.spark.session import compare_executors, runs_elsewhere, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession


@contextmanager
def job(name: str, conf: Sequence[str] | None, *, has_bar: bool = False) -> Iterator[SparkSession]:
    """Yield a Spark session for the job `name`, with the settings `conf`.

    On a terminal, Spark shows its progress, unless the job has a bar of its own.

    If the job fails, prints the reason in a line and exits with status 1.  Java's own
    messages are shown only if `conf` sets spark.log.level.
    """
    shows_progress = sys.stderr.isatty() and not has_bar
    settings = {"spark.ui.showConsoleProgress": str(shows_progress).lower(), "spark.log.level": "OFF"}
    settings |= pairs(conf)
    try:
        spark = _begin(f"skipfilter {name}", settings)
        # A wrong Python on the executors should be reported now, not as a failed task.
        if runs_elsewhere(spark):
            with step("Python of the executors"):
                difference = compare_executors(spark)
            if difference:
                say(difference)
        yield spark
    except (PipelineError, ImportError) as error:  # or a package of an extra is missing
        say(f"{name}: {error}")
    except BrokenPipeError:  # of standard output, and not of the connection to Java
        raise
    except (Py4JNetworkError, ConnectionError):
        say(f"{name}: the Java process of Spark has ended; perhaps spark.driver.memory is too small")
    except (PySparkException, Py4JError) as error:
        say(f"{name}: {reason(str(error))}")
    else:
        return
    raise typer.Exit(1)


def pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the values of a repeatable option, each NAME=VALUE, as a dict."""
    return {name: value for name, _, value in (text.partition("=") for text in texts or ())}


def _begin(app: str, settings: dict[str, str]) -> SparkSession:
    """Return a Spark session.

    Java's messages during the start are hidden, unless `settings` sets a log level.
    Raises PipelineError, with the reason from these messages, if Java exits.
    """
    if settings["spark.log.level"] != "OFF":
        return spark_session(app, settings)
    held: list[bytes] = []
    started = Event()
    stderr = os.dup(2)
    read_end, write_end = os.pipe()

    # Java inherits the pipe as its standard error, and keeps it after the start.  So
    # the thread runs until Java closes the pipe.
    def relay() -> None:
        while chunk := os.read(read_end, 2**16):
            if started.is_set():
                os.write(stderr, chunk)
            else:
                held.append(chunk)

    thread = Thread(target=relay, daemon=True)
    thread.start()
    os.dup2(write_end, 2)
    os.close(write_end)
    try:
        return spark_session(app, settings)
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        # Without our own copy of the pipe, the thread ends when Java has ended.
        os.dup2(stderr, 2)
        thread.join(10)
        raise PipelineError(reason(b"".join(held).decode(errors="replace"))) from None
    finally:
        os.dup2(stderr, 2)
        started.set()


def reason(text: str) -> str:
    """Return the reason of a failure in one line, from a Python or Java traceback.

    It is an error of this project if the traceback has one, otherwise the innermost
    error that has a text.
    """
    text = text.partition("\n=== Streaming Query ===")[0]
    if (ours := _OURS.search(text)) is not None:
        return ours[1]
    # Each cause follows the error that it caused, so the last match is the innermost.
    innermost = text.strip().partition("\n")[0]
    outer = ""
    for found in _NAMED.finditer(text):
        message = found[1].partition(": ")[2]
        # `Cannot run program "x": error=2` says more than its cause, `error=2`.
        if not outer.endswith(f": {message}") or _NESTED.search(outer):
            innermost = outer = found[1]
    return innermost.removeprefix("[USER_RAISED_EXCEPTION] ").partition(" SQLSTATE:")[0]


_OURS: Final = re.compile(r"^(?:skipfilter|hub)\.[\w.]*\b[A-Z]\w*: (.*)$", re.MULTILINE)
_NAMED: Final = re.compile(
    r'^(?:Caused by: |: |Exception in thread "\w+" )?'
    r"(?:(?:\w+[.$])+(?=[A-Z]\w*:)|(?=\w+(?:Error|Exception):))(\w+: \S.*)",
    re.MULTILINE,
)
"""A line of a traceback with the name of an error and a text."""
_NESTED: Final = re.compile(r": (?:\w+[.$])+[A-Z]\w*:")
"""The name of an error within the text of another error."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print `what` when the step begins, and how long it took when it is done."""
    began = time.monotonic()
    say(f"{what} ...")
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")


@contextmanager
def steps(what: str, count: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that announces each of `count` steps when it begins.

    On a terminal, a bar shows how far the work is.  Elsewhere, each step is a line.
    """
    console = Console(stderr=True)
    began = time.monotonic()
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=count)
        done = iter(range(count))

        def begin(name: str) -> None:
            """Announce the next step, which ends the one before it."""
            if not console.is_terminal:
                say(f"{what}/{name} ...")
            bar.update(task, completed=next(done), description=f"{what}/{name}")

        yield begin
    say(f"{what}: {time.monotonic() - began:.1f} s")


def say(line: str) -> None:
    """Print a line to standard error."""
    typer.echo(line, err=True)

"""The common parts of the command lines: a session, progress, and errors in a
sentence.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Final

import typer
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError

from skipfilter.spark.errors import PipelineError
from skipfilter.spark.session import compare_executors, runs_elsewhere, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

Tables = Annotated[str, typer.Argument(help="The directory of tables.", show_default=False)]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable.")]


@contextmanager
def job(name: str, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """Yield a session for one job.

    An error is printed as a sentence, and ends the program with status 1.  Java's own
    messages are shown if spark.log.level is set.
    """
    settings = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(), "spark.log.level": "OFF"}
    for setting in conf or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--conf")
        settings[key] = value
    try:
        spark = _begin(f"skipfilter {name}", settings)
        if runs_elsewhere(spark):
            with step("Python of the executors"):
                difference = compare_executors(spark)
            if difference:
                say(difference)
        yield spark
    except PipelineError as error:
        say(f"{name}: {error}")
    except BrokenPipeError:  # standard output was closed
        raise
    except (Py4JNetworkError, ConnectionError):
        say(f"{name}: the Java process of Spark has ended; perhaps spark.driver.memory is too small")
    except (PySparkException, Py4JError) as error:
        say(f"{name}: {reason(str(error))}")
    else:
        return
    raise typer.Exit(1)


def _begin(app: str, settings: dict[str, str]) -> SparkSession:
    """Return a session.  Java's messages at its start are only shown if it fails."""
    if settings["spark.log.level"] != "OFF":
        return spark_session(app, settings)
    held: list[bytes] = []
    begun = Event()
    stderr = os.dup(2)
    there, here = os.pipe()

    def relay() -> None:  # until Java closes the pipe
        while chunk := os.read(there, 2**16):
            if begun.is_set():
                os.write(stderr, chunk)
            else:
                held.append(chunk)

    thread = Thread(target=relay, daemon=True)
    thread.start()
    os.dup2(here, 2)
    os.close(here)
    try:
        return spark_session(app, settings)
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        os.dup2(stderr, 2)
        thread.join(10)
        raise PipelineError(reason(b"".join(held).decode(errors="replace"))) from None
    finally:
        os.dup2(stderr, 2)
        begun.set()


def reason(text: str) -> str:
    """Return what went wrong in a line: our own error, or the innermost one with a
    text.
    """
    text = text.partition("\n=== Streaming Query ===")[0]
    if (ours := _OURS.search(text)) is not None:
        return ours[1]
    innermost = text.strip().partition("\n")[0]
    outer = ""
    for found in _NAMED.finditer(text):
        said = found[1].partition(": ")[2]
        # `Cannot run program "x": error=2` says more than its cause, `error=2`.
        if not outer.endswith(f": {said}") or _NESTED.search(outer):
            innermost = outer = found[1]
    return innermost.removeprefix("[USER_RAISED_EXCEPTION] ").partition(" SQLSTATE:")[0]


_OURS: Final = re.compile(r"^(?:skipfilter|hub)\.[\w.]*\b[A-Z]\w*: (.*)$", re.MULTILINE)
_NAMED: Final = re.compile(
    r'^(?:Caused by: |: |Exception in thread "\w+" )?'
    r"(?:(?:\w+[.$])+(?=[A-Z]\w*:)|(?=\w+(?:Error|Exception):))(\w+: \S.*)",
    re.MULTILINE,
)
"""A line of a Python or Java traceback that names an error and has a text."""
_NESTED: Final = re.compile(r": (?:\w+[.$])+[A-Z]\w*:")
"""The name of an error in the text of another one."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print that a step begins, and how long it took."""
    began = time.monotonic()
    say(f"{what} ...")
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")


def say(line: str) -> None:
    """Print a line to standard error."""
    typer.echo(line, err=True)

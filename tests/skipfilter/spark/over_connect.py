"""The jobs over Spark Connect, and failing writes.

A test runs this module in a new process, with SPARK_REMOTE.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.readwriter import DataFrameWriter
from pyspark.sql.types import DateType, IntegerType, StructField, StructType
from typer.testing import CliRunner

from hub.cli.spark import main
from skipfilter.spark import commands, spark_session
from skipfilter.spark.errors import MissingTable, PipelineError
from skipfilter.spark.jobs.report import report
from skipfilter.spark.tables import files
from tests.skipfilter.spark.tables.test_files import RANGE, dated, there

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from skipfilter.spark.jobs.report import Report

CODEC = "spark.sql.parquet.compression.codec"


def run(*arguments: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)


def jobs(day: str, dt: str) -> None:
    """Write like jobs: new days, days again, a table without days again, and a
    report.
    """
    outputs = ("--output", "rows", "--output", "fanout", "--output", "received")
    run("match", day, *outputs, "--from", dt, "--to", dt)

    def overview(*tables: DataFrame, **options: Any) -> Report:
        whole = report(*tables, **options)
        return replace(whole, tables={"overview": whole.tables["overview"]})

    def page(found: Report) -> str:
        return f"<p>{found.growth}\n</p>"

    # One table of the report is enough, and no plots.
    with mock.patch.multiple(commands, what_happened=overview, page=page):
        run("report", day)


def failures(spark: SparkSession, directory: str) -> None:
    """A write that fails in its tasks or in a copy loses no row; if it fails to empty a
    day, the error says so.
    """
    rows = [(1, 1), (2, 2), (3, 3)]
    ways: dict[str, dict[str, Any]] = {"days": {"by_day": True, "days": RANGE}, "whole": {}}
    for name, way in ways.items():
        path = f"{directory}/{name}"
        files.write(dated(spark, *rows), path, by_day="by_day" in way)
        spark.conf.set(CODEC, "lzo")
        with pytest.raises(Exception, match="LzoCodec"):
            files.write(dated(spark, (2, 4)), path, **way)
        spark.conf.unset(CODEC)
        assert there(spark, path) == rows
        files.write(spark.read.parquet(path).where("n = 2"), path, **way)  # made from itself
        assert there(spark, path) == ([(1, 1), (2, 2)] if way else [(2, 2)])
    with pytest.raises(Exception, match="a row is of 2026-01-01, which is not replaced"):
        files.write(dated(spark, (1, 5)), f"{directory}/days", by_day=True, days=RANGE)
    files.write(dated(spark, *rows).where("n > 3"), f"{directory}/empty", by_day=True)
    n = StructType([StructField("dt", DateType()), StructField("n", IntegerType())])
    assert files.read(spark, f"{directory}/empty", n).isEmpty()
    with pytest.raises(MissingTable, match="nowhere: the table does not exist"):
        files.read(spark, f"{directory}/nowhere", n)
    path = f"{directory}/a[b]*{{c}}?"  # a reader would take this path for a pattern
    files.write(dated(spark, *rows), path, by_day=True)
    files.write(dated(spark, (2, 9)), path, by_day=True, days=RANGE)
    escaped = re.sub(r"([\[\]*?{}])", r"\\\1", path)
    assert there(spark, escaped) == [(1, 1), (2, 9)]
    real = DataFrameWriter.save

    def save(writer: DataFrameWriter, path: str | None = None, *arguments: Any, **options: Any) -> None:
        if path in (f"{directory}/whole", f"{directory}/days/dt=2026-01-02"):
            raise ConnectionError
        real(writer, path, *arguments, **options)

    with mock.patch.object(DataFrameWriter, "save", save):
        with pytest.raises(
            PipelineError, match=r"whole: it may be incomplete, but (.*) has all its new rows"
        ) as raised:
            files.write(dated(spark, *rows), f"{directory}/whole")
        assert there(spark, str(raised.value).partition("incomplete, but ")[2].split()[0]) == rows
        with pytest.raises(PipelineError, match="days: days that must be empty still have old rows: dt=2026-01-02"):
            files.write(dated(spark, (3, 6)), f"{directory}/days", by_day=True, days=(date(2026, 1, 1), None))


if __name__ == "__main__":
    session = spark_session("over connect")
    assert not isinstance(session, SparkSession)
    jobs(*sys.argv[1:3])
    failures(session, sys.argv[3])

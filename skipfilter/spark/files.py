"""Tables in files, read as what they must be: an error names file, column and row rather than shows as a null."""

from __future__ import annotations

import os
import re
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector, FileSystem
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from skipfilter.spark.match import By


def read(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    """The table in Parquet at `path`, with the columns of `schema`, of which those that may be null may be missing.

    Raises BadInput where it is not there, or a column is missing or of another type.  A null where none may be fails
    the job that meets it, with the file, the column and the row.
    """
    try:
        table = spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":  # it was written, and had no row
            return spark.createDataFrame([], schema)
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None
    found = {field.name: field.dataType.simpleString() for field in table.schema}
    for field in schema:
        expected = field.dataType.simpleString()
        if field.name not in found and not field.nullable:
            raise BadInput(f"{path}: it has no column {field.name}, which is {expected}")
        if found.get(field.name, expected) != expected:
            raise BadInput(f"{path}: column {field.name} is {found[field.name]} and not {expected}")
    return table.select(*(_checked(field, there=field.name in found) for field in schema))


def _checked(field: StructField, *, there: bool) -> Column:
    if not there:
        return F.lit(None).cast(field.dataType).alias(field.name)
    column = F.col(field.name)
    if field.nullable or field.name == "dt":  # which is in the path; wrapped, whole days could not be left out
        return column
    place = F.concat("_metadata.file_path", F.lit(" row "), "_metadata.row_index")
    return F.coalesce(column, F.raise_error(F.concat(place, F.lit(f": {field.name} is null")))).alias(field.name)


def write(
    table: DataFrame, path: str, *, by_day: bool = False, days: tuple[date | None, date | None] = (None, None)
) -> None:
    """Write a table in Parquet in place of what was there: of all that, or of the days from the first to the last.

    So what is done again for some days leaves the others, and done twice is done once.  None is for no bound.
    """
    writer = table.write.mode("overwrite")
    if by_day:
        writer = writer.partitionBy("dt")
    if days != (None, None):
        first, last = days
        _remove_days(path, first or date.min, last or date.max)  # also those of which nothing is written now
        writer = writer.option("partitionOverwriteMode", "dynamic")
    writer.parquet(path)


def _remove_days(path: str, first: date, last: date) -> None:
    system, place = _system_of(path)
    for found in system.get_file_info(FileSelector(place, allow_not_found=True)):
        if (day := _DAY.fullmatch(found.base_name)) and first <= date.fromisoformat(day[1]) <= last:
            system.delete_dir(found.path)


_DAY: Final = re.compile(r"dt=(\d{4}-\d\d-\d\d)")


def write_text(text: str, path: str) -> None:
    """Write a file in UTF-8."""
    system, place = _system_of(path)
    with system.open_output_stream(place) as file:
        file.write(text.encode("utf-8"))


def _system_of(path: str) -> tuple[FileSystem, str]:
    """Wherever Arrow can: of a path, or a URI as of S3 or HDFS."""
    system, place = FileSystem.from_uri(path if "://" in path else os.path.abspath(path))
    return system, place


def of_days(
    updates: DataFrame, sessions: DataFrame, first: date | None, last: date | None, by: By
) -> tuple[DataFrame, DataFrame]:
    """The updates of the days from `first` to `last`, and the sessions that may have received any of them.

    None is for no bound.  Work and memory then go with these days rather than with the tables.
    """
    if first is not None:
        updates = updates.filter(F.col("dt") >= first)
    if last is not None:
        updates = updates.filter(F.col("dt") <= last)
    if by == "position":  # whoever reads the log from before has received what was there before it came
        bounds = updates.agg(F.min("position").alias("first"), F.max("position").alias("last")).first()
        assert bounds is not None
        if bounds["first"] is not None:
            sessions = sessions.filter(
                (F.col("after") < bounds["last"]) & (F.col("until").isNull() | (F.col("until") >= bounds["first"]))
            )
        return updates, sessions
    if first is not None:
        sessions = sessions.filter(F.col("disconnected_at").isNull() | (F.col("disconnected_at") > first))
    if last is not None:
        sessions = sessions.filter(F.col("connected_from") < last + timedelta(days=1))
    return updates, sessions

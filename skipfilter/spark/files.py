"""Tables in files: checked when they are read, and replaced so that a failed job loses
nothing.

    TABLE         ◄─2─  .TABLE.new-ID  ◄─1─  rows     1 write beside; 2 move out and in;
      └──2─► .TABLE.old-ID  ─3─►                      3 delete

Paths are Spark's: whatever its readers and writers accept, with the same credentials.
An invalid value is an error that names file, column and row, and not a null.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.cli import say
from skipfilter.spark.errors import BadInput, MissingTable, PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame, DataFrameWriter
    from pyspark.sql.types import StructField, StructType

    Days = tuple[date | None, date | None]


def read(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    """Return the Parquet table at `path` with the columns of `schema`.

    Columns that may be null may be missing.  Raises MissingTable if there is no table,
    and BadInput if a column is missing or of another type.  An unexpected null fails
    the job that reads it, with the file, the column and the row.
    """
    try:
        table = spark.read.parquet(path)
        found = {field.name: field.dataType.simpleString() for field in table.schema}  # over Connect, it reads now
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":  # a table without rows
            return spark.createDataFrame([], schema)
        if error.getCondition() == "PATH_NOT_FOUND":
            raise MissingTable(f"{path}: the table does not exist") from None
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None
    for field in schema:
        expected = field.dataType.simpleString()
        if field.name not in found and not field.nullable:
            raise BadInput(f"{path}: it has no column {field.name} of type {expected}")
        if found.get(field.name, expected) != expected:
            raise BadInput(f"{path}: column {field.name} is {found[field.name]}, not {expected}")
    return table.select(*(_checked(field, there=field.name in found) for field in schema))


def _checked(field: StructField, *, there: bool) -> Column:
    """Return a column of the table; reading an unexpected null raises."""
    if not there:
        return F.lit(None).cast(field.dataType).alias(field.name)
    column = F.col(field.name)
    # `dt` is in the path; a wrapped column would keep Spark from skipping whole days.
    if field.nullable or field.name == "dt":
        return column
    place = F.concat("_metadata.file_path", F.lit(" row "), "_metadata.row_index")
    return F.coalesce(column, F.raise_error(F.concat(place, F.lit(f": {field.name} is null")))).alias(field.name)


def write(
    table: DataFrame,
    path: str,
    *,
    by_day: bool = False,
    days: Days = (None, None),
    format: str = "parquet",
    **options: str,
) -> None:
    """Replace the table at `path`, or the days from the first to the last of it.

    None is no bound.  Nothing is deleted before all new rows are written, so if a write
    fails nothing has changed, and a table may be made from itself.  A row of a day
    outside of the range fails the write, and a day of the range without rows becomes
    empty.  The same write again has the same result.  `format` and `options` are those
    of Spark's writer.

    In a classic session, the rows are written to `.NAME.new-ID` beside the table.  Then
    directories are moved: the old rows to `.NAME.old-ID`, the new ones to the table.  A
    failed move is undone; the old rows are deleted last.  If the driver is killed
    between two moves, these three directories have all old and all new rows.  In an
    object store a move is a copy that can stop halfway, which standard error says
    before the first one; then nothing is deleted, and the error names the three
    directories.  Jobs may write different days of a table at once; if they write the
    same days, one of them fails.

    Spark Connect can neither move nor delete: instead of deleting, it writes empty
    tables.  Days are replaced by Spark's dynamic partition overwrite; if its driver is
    killed while it commits, a day may be left without rows.  A table without days is
    written to `.NAME.new-ID` and then over the old one.  If that fails, the error names
    the directory `.NAME.new-ID`, which has all new rows.
    """
    spark = table.sparkSession
    ranged = days != (None, None)
    if ranged:
        table = _within(table, days, path)
    writer = table.write.mode("overwrite").format(format).options(**options)
    if by_day:
        writer = writer.partitionBy("dt")
    if isinstance(spark, SparkSession):
        _replace(_Store(spark, path), path, writer.save, days if ranged else None)
        spark.catalog.refreshByPath(path)  # a cached table would read files that were moved
    elif by_day:
        _overwrite_days(spark, table, path, writer, days)
    else:
        _overwrite(spark, table, path, format, options)


def write_page(spark: SparkSession, html: str, directory: str) -> str:
    """Replace the report's page, and return its path.

    It is `directory`/index.html, or over Spark Connect the one file in
    `directory`/page.
    """
    if not isinstance(spark, SparkSession):
        write(spark.createDataFrame([(html,)], "value string").coalesce(1), f"{directory}/page", format="text")
        return f"{directory}/page"
    path, store = f"{directory}/index.html", _Store(spark, directory)
    _replace(store, path, lambda new: store.create(new, html))
    return path


def _within(table: DataFrame, days: Days, path: str) -> DataFrame:
    """Return the table; reading a row of a day that is not replaced raises."""
    day, (first, last) = F.col("dt"), days
    inside = day.between(*(F.to_date(F.lit(str(bound))) for bound in (first or date.min, last or date.max)))
    found = F.coalesce(day.cast("string"), F.lit("no day"))
    refused = F.raise_error(F.concat(F.lit(f"{path}: a row is of "), found, F.lit(", which is not replaced")))
    return table.withColumn("dt", F.when(inside, day).otherwise(refused.cast("date")))


def _days_within(names: Iterable[str], days: Days) -> set[str]:
    """Return the `names`, such as dt=2026-01-31, of days within `days`."""
    # Compared as text, so that a day which the calendar lacks is no error.
    first, last = (f"dt={day.isoformat()}" for day in (days[0] or date.min, days[1] or date.max))
    return {name for name in names if _DAY.fullmatch(name) and first <= name <= last}


_DAY: Final = re.compile(r"dt=\d{4}-\d\d-\d\d")


def _beside(path: str, suffix: str) -> str:
    """Return a path in the same directory that Spark's readers ignore, because of its
    dot.
    """
    directory, slash, name = path.rstrip("/").rpartition("/")
    return f"{directory}{slash}.{name}.{suffix}"


@cache
def _say_if_moves_are_copies(scheme: str) -> None:
    """Print once that a store is not safe, if it is not."""
    if scheme in _OBJECT_STORES:
        say(
            f"{scheme}: this store cannot replace a table in one step; a job that dies in its last step may leave a "
            "part of it: run it again"
        )


_OBJECT_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "wasb", "wasbs"})


# -- a classic session: new rows are moved in


class _Store:
    """Hadoop's file system of a path, through which Spark reads and writes it.

    Only this class calls Spark's Java, which only a classic session has.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        java: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._path = java.org.apache.hadoop.fs.Path
        self._system = self._path(path).getFileSystem(session.sessionState().newHadoopConf())
        self.scheme: str = self._system.getUri().getScheme()

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return bool(self._system.exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return [found.getPath().getName() for found in self._system.listStatus(self._path(directory))]

    def create(self, path: str, text: str) -> None:
        """Write a new file in UTF-8."""
        file = self._system.create(self._path(path))
        try:
            file.write(bytearray(text, "utf-8"))
        finally:
            file.close()

    def create_directory(self, path: str) -> None:
        """Create a directory, and those above it."""
        self._system.mkdirs(self._path(path))

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory.

        Raises TargetExists if another job has made `target`; then nothing is moved.
        """
        if self.exists(target):
            raise TargetExists(target)
        self._rename(source, target)
        inside = f"{target}/{source.rpartition('/')[2]}"
        if self.exists(inside):  # Hadoop moves into an existing directory
            self._rename(inside, source)
            raise TargetExists(target)

    def _rename(self, source: str, target: str) -> None:
        """Rename a file or directory.  Raises PipelineError if Hadoop does not."""
        if not self._system.rename(self._path(source), self._path(target)):
            raise PipelineError(f"{source}: it cannot be moved to {target}")

    def remove(self, path: str, *, filled: bool = True) -> None:
        """Remove a path if it exists; a directory with content only if `filled` is
        True.
        """
        if not self._system.delete(self._path(path), filled) and self.exists(path):
            raise PipelineError(f"{path}: it cannot be removed")


class TargetExists(PipelineError):
    """The target of a move exists already."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: another job has written it while this one ran")


def _replace(store: _Store, path: str, create: Callable[[str], None], days: Days | None = None) -> None:
    """Replace `path`, or its directories of `days`, with what `create` writes
    elsewhere.
    """
    id = uuid4().hex
    new, old = _beside(path, f"new-{id}"), _beside(path, f"old-{id}")
    is_there = store.exists(path)
    begun: list[tuple[str, str]] = []
    # 1. Write beside, then move.
    try:
        create(new)
        _say_if_moves_are_copies(store.scheme)
        for source, target in _moves(store, path, new, old, days):
            begun.append((source, target))
            store.move(source, target)
    # 2. If anything fails, move back; if that fails too, delete nothing.
    except BaseException as error:
        if isinstance(error, TargetExists):
            begun.pop()
        try:
            _undo(store, begun)
        except Exception:
            raise PipelineError(
                f"{path}: it is incomplete, and nothing was deleted: the old rows are in it and in {old}, the new "
                f"ones in it and in {new}"
            ) from error
        with suppress(Exception):  # the first error is the one that matters
            if not is_there:
                store.remove(path, filled=False)
            store.remove(old, filled=False)
            store.remove(new)
        raise
    # 3. Delete what is left beside.
    for left in (new, old):
        try:
            store.remove(left)
        except Exception as error:
            say(f"{path}: it is written; {left} is left, because it cannot be removed: {error}")


def _moves(store: _Store, path: str, new: str, old: str, days: Days | None) -> list[tuple[str, str]]:
    """Return the moves, (source, target), in their order."""
    if days is None:
        return [(path, old), (new, path)] if store.exists(path) else [(new, path)]
    # A new table gets its days one by one too: other jobs may write other days of it.
    store.create_directory(path)
    store.create_directory(old)
    before, after = (_days_within(store.names(directory), days) for directory in (path, new))
    # Day by day, so that no day is missing for long.
    return [
        move
        for day in sorted(before | after)
        for move, needed in (
            ((f"{path}/{day}", f"{old}/{day}"), day in before),
            ((f"{new}/{day}", f"{path}/{day}"), day in after),
        )
        if needed
    ]


def _undo(store: _Store, begun: list[tuple[str, str]]) -> None:
    """Move everything back.  Raises PipelineError if a move has stopped halfway."""
    for source, target in reversed(begun):
        # A failed move may have happened, so look at what exists.
        if store.exists(target):
            if store.exists(source):
                raise PipelineError(f"{source}: part of it was moved to {target}")
            store.move(target, source)


# -- Spark Connect: only reads and writes


def _overwrite_days(spark: SparkSession, table: DataFrame, path: str, writer: DataFrameWriter, days: Days) -> None:
    """Replace days by a dynamic partition overwrite, and empty days that have no new
    row.
    """
    before = _files_in(spark, path)
    writer.option("partitionOverwriteMode", "dynamic").save(path)
    # All files of a day are replaced together, so a day with an old file has no new
    # row.
    left = _days_within((file.split("/")[-2] for file in before & _files_in(spark, path)), days)
    for day in sorted(left):
        try:
            _empty(table.drop("dt")).write.mode("overwrite").parquet(f"{path}/{day}")
        except Exception as error:
            raise PipelineError(f"{path}: {', '.join(sorted(left))} should have no rows, but have old ones") from error
        left.remove(day)


def _overwrite(spark: SparkSession, table: DataFrame, path: str, format: str, options: dict[str, str]) -> None:
    """Replace a whole table; write its rows beside first, so that a failed write keeps
    them.
    """
    new = _beside(path, f"new-{uuid4().hex}")
    replaces = bool(_files_in(spark, path))
    if replaces:
        table.write.parquet(new)
        table = spark.read.schema(table.schema).parquet(new)
    try:
        table.write.mode("overwrite").format(format).options(**options).save(path)
    except Exception as error:
        if not replaces:
            raise
        raise PipelineError(f"{path}: it may be incomplete; {new} has all its new rows") from error
    if replaces:
        _empty(table).write.mode("overwrite").parquet(new)


def _files_in(spark: SparkSession, path: str) -> set[str]:
    """Return the URIs of the data files below a path.

    Runs no job, except to list many directories.
    """
    literal = re.sub(r"([\\{}\[\]*?])", r"\\\1", path)  # a reader takes a path as a pattern
    try:
        found = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(literal).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return set()
    for scheme in {urlsplit(file).scheme for file in found}:
        _say_if_moves_are_copies(scheme)
    return set(found)


def _empty(table: DataFrame) -> DataFrame:
    """Return an empty table with the same columns."""
    return table.sparkSession.createDataFrame([], table.schema)

"""Tables in files: a read checks them, and a replacement that fails loses nothing.

    1  write the new rows beside the table     rows ──► .TABLE.new-ID
    2  move the old rows out                   TABLE ──► .TABLE.old-ID
       move the new rows in                    .TABLE.new-ID ──► TABLE
    3  delete the old rows                     .TABLE.old-ID

Table formats such as Delta and Iceberg do this too, but each needs a JAR that was made
for the version of Spark.

A path is any path that Spark's readers and writers accept, with the same credentials.
An unexpected null is an error with the file, the column and the row.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from skipfilter.spark.console import say
from skipfilter.spark.errors import BadInput, MissingTable, PipelineError
from skipfilter.spark.session import MICROSECONDS, setting
from skipfilter.spark.tables.leftovers import has_ended, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame, DataFrameWriter
    from pyspark.sql.types import StructField

    from skipfilter.spark.tables.local import Days


def read(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    """Return the Parquet table at `path` with the columns of `schema`.

    A column that is missing in some files, or in all of them, is read as nulls if
    `schema` allows nulls in it: earlier versions did not write it.  A directory
    without data files is an empty table.  Raises MissingTable if there is no table, and
    BadInput if a column is missing or has another type.  An unexpected null fails the
    job that reads it, with the file, the column and the row.
    """
    try:
        table = spark.read.parquet(path)
        # Over Connect, only the use of the schema reads the table and raises.
        found = {field.name: field.dataType.simpleString() for field in table.schema}
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":  # no data files
            return spark.createDataFrame([], schema)
        if error.getCondition() == "PATH_NOT_FOUND":
            raise MissingTable(f"{path}: the table does not exist") from None
        if "(NANOS," in str(error):
            raise BadInput(f"{path}: Spark reads no timestamps in nanoseconds: {_IN_MICROSECONDS}") from None
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None
    for field in schema:
        expected = field.dataType.simpleString()
        if field.name not in found and not field.nullable:
            raise BadInput(f"{path}: it has no column {field.name} of type {expected}")
        if found.get(field.name, expected) != expected:
            remedy = f": {_IN_MICROSECONDS}" if expected == "timestamp" else ""
            raise BadInput(f"{path}: column {field.name} is {found[field.name]}, not {expected}{remedy}")
    # Spark takes the columns from one of the files, and others may have more.
    if missing := [field for field in schema if field.name not in found]:
        table = spark.read.schema(StructType([*table.schema, *missing])).parquet(path)
    return table.select(*map(_checked, schema))


_IN_MICROSECONDS: Final = (
    'write times in microseconds with the time zone UTC, in pyarrow as timestamp("us", "UTC"), and in polars as '
    'Datetime("us", "UTC")'
)
"""What to do about timestamps of another type."""


def _checked(field: StructField) -> Column:
    """Return a column of the table, in which an unexpected null fails the job."""
    column = F.col(field.name)
    # The value of `dt` comes from the path.  If the column were wrapped, Spark could no
    # longer skip the directories of other days.
    if field.nullable or field.name == "dt":
        return column
    place = F.concat("_metadata.file_path", F.lit(" row "), "_metadata.row_index")
    return F.coalesce(column, F.raise_error(F.concat(place, F.lit(f": {field.name} is null")))).alias(field.name)


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether there is a file or directory at `path`; over Spark Connect, one
    with files in it.
    """
    return _Store(spark, path).exists(path) if isinstance(spark, SparkSession) else bool(_files_in(spark, path))


def write(
    table: DataFrame,
    path: str,
    *,
    by_day: bool = False,
    days: Days = (None, None),
    format: str = "parquet",
    **options: str,
) -> None:
    """Replace the table at `path`, or only its days from `days[0]` to `days[1]`.

    None is no bound.  If rows of other days are in `table`, the write fails.  A day in
    the range that has no row becomes empty.  `format` and `options` are those of
    Spark's writer.

    All new rows are written before anything is deleted.  So if the write fails, nothing
    has changed, and a table may be made from itself.  Writing is idempotent.

    In a classic session, the rows are written to `.NAME.new-ID` beside the table.  Then
    the old rows are moved to `.NAME.old-ID` and the new rows to the table.  A failed
    move is undone.  The old rows are deleted last.  If the driver is killed between two
    moves, these three directories together have all old and all new rows.  The next
    write on the same machine removes what a killed one has left, as soon as its rows
    are not needed.

    In an object store, a move is a copy, which can stop halfway.  A line on standard
    error warns of it before the first move.  If a copy stops halfway, nothing is
    deleted, and the error names the three directories.

    Timestamps are written as microseconds in UTC, whatever the session's setting is.

    Several jobs may write different days of one table at the same time.  If they write
    the same day, one of them fails.

    Spark Connect can neither move nor delete, so an empty table replaces what would be
    deleted.  Days are replaced by Spark's dynamic partition overwrite.  If the driver
    is killed while that commits, a day may be left without rows.  A table without days
    is written to `.NAME.new-ID`, and then over the old table.  If the second write
    fails, the error names `.NAME.new-ID`, which has all new rows.
    """
    spark = table.sparkSession
    ranged = days != (None, None)
    if ranged:
        table = _within(table, days, path)
    writer = table.write.mode("overwrite").format(format).options(**options)
    if by_day:
        writer = writer.partitionBy("dt")
    with setting(spark, *MICROSECONDS):
        if isinstance(spark, SparkSession):
            _replace(_Store(spark, path), path, writer.save, days if ranged else None)
            spark.catalog.refreshByPath(path)  # otherwise a cached table would read files that were moved
        elif by_day:
            _overwrite_days(spark, table, path, writer, days)
        else:
            _overwrite(spark, table, path, format, options)


def write_page(spark: SparkSession, html: str, directory: str) -> str:
    """Replace the report's page, and return its path.

    The path is `directory`/index.html.  Over Spark Connect it is `directory`/page, a
    directory with the page as its only file.
    """
    if not isinstance(spark, SparkSession):
        write(spark.createDataFrame([(html,)], "value string").coalesce(1), f"{directory}/page", format="text")
        return f"{directory}/page"
    path, store = f"{directory}/index.html", _Store(spark, directory)
    _replace(store, path, lambda new: store.create(new, html))
    return path


def _within(table: DataFrame, days: Days, path: str) -> DataFrame:
    """Return the table.  A row of a day that is not replaced fails the job."""
    day, (first, last) = F.col("dt"), days
    inside = day.between(*(F.to_date(F.lit(str(bound))) for bound in (first or date.min, last or date.max)))
    found = F.coalesce(day.cast("string"), F.lit("no day"))
    refused = F.raise_error(F.concat(F.lit(f"{path}: a row is of "), found, F.lit(", which is not replaced")))
    return table.withColumn("dt", F.when(inside, day).otherwise(refused.cast("date")))


def _days_within(names: Iterable[str], days: Days) -> set[str]:
    """Return those of `names`, such as dt=2026-01-31, whose day is within `days`."""
    # Compared as text, so that a day that is not in the calendar is no error.
    first, last = (f"dt={day.isoformat()}" for day in (days[0] or date.min, days[1] or date.max))
    return {name for name in names if _DAY.fullmatch(name) and first <= name <= last}


_DAY: Final = re.compile(r"dt=\d{4}-\d\d-\d\d")


def _beside(path: str, suffix: str) -> str:
    """Return a path in the same directory, with a dot, so that Spark's readers skip it.

    For example /a/.TABLE.new-ID for /a/TABLE.
    """
    directory, slash, name = path.rstrip("/").rpartition("/")
    return f"{directory}{slash}.{name}.{suffix}"


@cache
def _say_if_moves_are_copies(scheme: str) -> None:
    """Warn, once for each scheme, if the store copies files instead of moving them."""
    if scheme in _OBJECT_STORES:
        say(
            f"{scheme}: this store cannot replace a table in one step: if a job dies in its last step, it may leave "
            "only part of the table; then run it again"
        )


_OBJECT_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "wasb", "wasbs"})


# -- a classic session, which can move and delete


class _Store:
    """Hadoop's file system for a path, which is the one that Spark uses for it.

    No other class calls Java.  Only a classic session has Java in reach.
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
        """Return the names of the files and directories in a directory."""
        return [found.getPath().getName() for found in self._system.listStatus(self._path(directory))]

    def create(self, path: str, text: str) -> None:
        """Write `text` to a file in UTF-8."""
        file = self._system.create(self._path(path))
        try:
            file.write(bytearray(text, "utf-8"))
        finally:
            file.close()

    def create_directory(self, path: str) -> None:
        """Create a directory and its parents, if they do not exist."""
        self._system.mkdirs(self._path(path))

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory.

        If `target` exists, because another job has made it, raises TargetExists and
        moves nothing.
        """
        if self.exists(target):
            raise TargetExists(target)
        self._rename(source, target)
        # Hadoop moves into an existing directory.  So the source is now inside of
        # `target` if another job made that after the check above.
        inside = f"{target}/{source.rpartition('/')[2]}"
        if self.exists(inside):
            self._rename(inside, source)
            raise TargetExists(target)

    def _rename(self, source: str, target: str) -> None:
        """Rename a file or directory.  Raises PipelineError if Hadoop refuses."""
        if not self._system.rename(self._path(source), self._path(target)):
            raise PipelineError(f"{source}: it cannot be moved to {target}")

    def remove(self, path: str, *, filled: bool = True) -> None:
        """Remove a path if it exists.

        If `filled` is False, a directory with content stays, and Hadoop's error is
        raised.  Raises PipelineError if the path still exists afterwards.
        """
        if not self._system.delete(self._path(path), filled) and self.exists(path):
            raise PipelineError(f"{path}: it cannot be removed")


class TargetExists(PipelineError):
    """The target of a move already exists."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: another job has written it while this job ran")


def _replace(store: _Store, path: str, create: Callable[[str], None], days: Days | None = None) -> None:
    """Replace `path`, or its directories of `days`, with what `create` writes.

    `create` gets another path and writes there.  Raises PipelineError if the moves can
    neither be finished nor undone.
    """
    killed = _killed(store, path)
    _remove_leftovers(store, path, killed, lambda _: False)
    id = new_id()
    new, old = _beside(path, f"new-{id}"), _beside(path, f"old-{id}")
    existed = store.exists(path)
    begun: list[tuple[str, str]] = []
    # 1. Write the new rows beside the old ones, then move.
    try:
        create(new)
        _say_if_moves_are_copies(store.scheme)
        # Recorded before it is made, because a move that fails may have happened.
        for source, target in _moves(store, path, new, old, days):
            begun.append((source, target))
            store.move(source, target)
    # 2. If anything fails, move everything back.  If that fails too, delete nothing.
    except BaseException as error:
        # This move did not happen, and its target belongs to another job.
        if isinstance(error, TargetExists):
            begun.pop()
        try:
            _undo(store, begun)
        except Exception:
            raise PipelineError(
                f"{path}: it is incomplete, and nothing was deleted: the old rows are in it and in {old}, the new "
                f"rows in it and in {new}"
            ) from error
        with suppress(Exception):  # the first error is the one to report
            if not existed:
                store.remove(path, filled=False)
            store.remove(old, filled=False)
            store.remove(new)
        raise
    # 3. The table is complete: delete the old rows, and what is left of `new`.
    for left in (new, old):
        try:
            store.remove(left)
        except Exception as error:
            say(f"{path}: it is written, but {left} could not be removed: {error}")
    _remove_leftovers(store, path, killed, lambda name: days is None or bool(_days_within([name], days)))


def _killed(store: _Store, path: str) -> set[str]:
    """Return the IDs of killed jobs that have left something beside `path`."""
    directory, slash, name = path.rstrip("/").rpartition("/")
    try:
        names = store.names(directory or slash or ".")
    except Exception:  # there is no directory yet
        return set()
    left = (found for found in names if found.startswith((f".{name}.new-", f".{name}.old-")))
    return {id for id in (found[len(f".{name}.new-") :] for found in left) if has_ended(id)}


def _remove_leftovers(store: _Store, path: str, killed: Iterable[str], is_replaced: Callable[[str], bool]) -> None:
    """Remove what killed jobs have left beside `path`, if its rows are not needed.

    Old rows are needed if the job was killed during its moves, unless others have
    replaced them since: then `is_replaced` is true for the names of their directories.
    """
    for id in killed:
        new, old = (_beside(path, f"{kind}-{id}") for kind in ("new", "old"))
        with suppress(Exception):  # another job removes it, too
            if not store.exists(old) or all(map(is_replaced, store.names(old))):
                store.remove(new)
                store.remove(old)


def _moves(store: _Store, path: str, new: str, old: str, days: Days | None) -> list[tuple[str, str]]:
    """Return the moves (source, target) that replace `path`, in order."""
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
    """Move everything back, last move first.

    Raises PipelineError if a move has stopped halfway.
    """
    for source, target in reversed(begun):
        # Only the target shows whether a move that failed has happened.
        if store.exists(target):
            if store.exists(source):
                raise PipelineError(f"{source}: part of it was moved to {target}")
            store.move(target, source)


# -- Spark Connect, which can only read and write


def _overwrite_days(spark: SparkSession, table: DataFrame, path: str, writer: DataFrameWriter, days: Days) -> None:
    """Replace `days`, and empty those of them that have no new row.

    Spark's dynamic partition overwrite replaces only the days that have new rows.
    """
    before = _files_in(spark, path)
    writer.option("partitionOverwriteMode", "dynamic").save(path)
    # It replaces all files of a day together.  So a day that still has an old file has
    # no new row.
    left = _days_within((file.split("/")[-2] for file in before & _files_in(spark, path)), days)
    for day in sorted(left):
        try:
            _empty(table.drop("dt")).write.mode("overwrite").parquet(f"{path}/{day}")
        except Exception as error:
            raise PipelineError(
                f"{path}: days that must be empty still have old rows: {', '.join(sorted(left))}"
            ) from error
        left.remove(day)


def _overwrite(spark: SparkSession, table: DataFrame, path: str, format: str, options: dict[str, str]) -> None:
    """Replace a whole table.

    If there is an old table, the rows are first written beside it.  So they are not
    lost if the write over the old table fails.
    """
    new = _beside(path, f"new-{new_id()}")
    replaces = bool(_files_in(spark, path))
    if replaces:
        # The plan may read the table that is about to be overwritten.
        table.write.parquet(new)
        table = spark.read.schema(table.schema).parquet(new)
    try:
        table.write.mode("overwrite").format(format).options(**options).save(path)
    except Exception as error:
        if not replaces:
            raise
        raise PipelineError(f"{path}: it may be incomplete, but {new} has all its new rows") from error
    if replaces:
        _empty(table).write.mode("overwrite").parquet(new)


def _files_in(spark: SparkSession, path: str) -> set[str]:
    """Return the URIs of the data files below a path; none if it does not exist.

    Runs no job, unless there are many directories to list.
    """
    literal = re.sub(r"([\\{}\[\]*?])", r"\\\1", path)  # a reader takes a path for a glob pattern
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
    """Return a table with the same columns and no rows."""
    return table.sparkSession.createDataFrame([], table.schema)

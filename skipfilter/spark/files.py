"""Tables in files: read as what they must be, and replaced so that a job that fails loses nothing.

    TABLE          ◄─2─  .TABLE.new-ID  ◄─1─  rows        1 write beside; 2 move out, move in; 3 delete
      └──2─► .TABLE.old-ID  ─3─►

Paths are Spark's: whatever its readers and writers take, with the same credentials.  An error names file, column and
row rather than shows as a null.
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
    """The table in Parquet at `path`, with the columns of `schema`, of which those that may be null may be missing.

    Raises MissingTable if there is no table, and BadInput if a column is missing or of another type.  A null where none
    may be fails the job that meets it, with the file, the column and the row.
    """
    try:
        table = spark.read.parquet(path)
        found = {field.name: field.dataType.simpleString() for field in table.schema}  # over Connect, it reads now
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":  # it was written, and had no row
            return spark.createDataFrame([], schema)
        if error.getCondition() == "PATH_NOT_FOUND":
            raise MissingTable(f"{path}: the table does not exist") from None
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None
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
    table: DataFrame,
    path: str,
    *,
    by_day: bool = False,
    days: Days = (None, None),
    format: str = "parquet",
    **options: str,
) -> None:
    """Replace the table at `path`, or of a table by day the days from the first to the last; None is for no bound.

    Nothing is deleted before all new rows are written, so a write that fails changes nothing, and a table may be made
    from itself.  A row of a day outside the range fails the write, and a day of the range without rows becomes empty.
    The same write again has the same result.  `format` and `options` are those of Spark's writer.

    In a classic session the rows are written to `.NAME.new-ID` beside the table.  Then directories are moved: what is
    replaced to `.NAME.old-ID`, the new rows to their place.  A move that fails is undone; the old rows are deleted
    last.  A driver that is killed between two moves leaves all old and all new rows in these three directories.  In an
    object store a move is a copy that can stop halfway, which standard error says before the first one; then nothing
    is deleted, and the error names the three directories.  Jobs may write different days of a table at once.  If they
    write the same days, one of them fails.

    Spark Connect can neither move nor delete: what would be deleted becomes an empty table.  Days are replaced by
    Spark's dynamic partition overwrite, whose driver, if it is killed while it commits, may leave a day without rows.
    Another table is written to `.NAME.new-ID` and then over the old one.  If that fails, the error names the directory
    `.NAME.new-ID`, which has all new rows.
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
        spark.catalog.refreshByPath(path)  # a table that is cached would be read from files that were moved
    elif by_day:
        _overwrite_days(spark, table, path, writer, days)
    else:
        _overwrite(spark, table, path, format, options)


def write_page(spark: SparkSession, html: str, directory: str) -> str:
    """Replace `directory`/index.html, or over Spark Connect the one file in `directory`/page; return its path."""
    if not isinstance(spark, SparkSession):
        write(spark.createDataFrame([(html,)], "value string").coalesce(1), f"{directory}/page", format="text")
        return f"{directory}/page"
    path, store = f"{directory}/index.html", _Store(spark, directory)
    _replace(store, path, lambda new: store.create(new, html))
    return path


def _within(table: DataFrame, days: Days, path: str) -> DataFrame:
    """The table, which fails at a row of a day that is not replaced."""
    day, (first, last) = F.col("dt"), days
    inside = day.between(*(F.to_date(F.lit(str(bound))) for bound in (first or date.min, last or date.max)))
    found = F.coalesce(day.cast("string"), F.lit("no day"))
    refused = F.raise_error(F.concat(F.lit(f"{path}: a row is of "), found, F.lit(", which is not replaced")))
    return table.withColumn("dt", F.when(inside, day).otherwise(refused.cast("date")))


def _days_within(names: Iterable[str], days: Days) -> set[str]:
    """The `names` that are of a day within `days`, as dt=2026-01-31 is."""
    # As text, in which a day that the calendar does not have is no error.
    first, last = (f"dt={day.isoformat()}" for day in (days[0] or date.min, days[1] or date.max))
    return {name for name in names if _DAY.fullmatch(name) and first <= name <= last}


_DAY: Final = re.compile(r"dt=\d{4}-\d\d-\d\d")


def _beside(path: str, suffix: str) -> str:
    """A path in the same directory that readers of Spark pass over, because its name begins with a dot."""
    directory, slash, name = path.rstrip("/").rpartition("/")
    return f"{directory}{slash}.{name}.{suffix}"


@cache
def _say_if_moves_are_copies(scheme: str) -> None:
    """Say once that a store is not safe, if it is not."""
    if scheme in _OBJECT_STORES:
        say(
            f"{scheme}: this store cannot replace a table in one step; a job that dies in its last step may leave a "
            "part of it: run it again"
        )


_OBJECT_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "wasb", "wasbs"})


# -- a classic session: what is new is moved in


class _Store:
    """Hadoop's file system of a path, by which Spark reads and writes it.

    Only here is the Java of Spark called, which only a classic session has.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        java: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._path = java.org.apache.hadoop.fs.Path
        self._system = self._path(path).getFileSystem(session.sessionState().newHadoopConf())
        self.scheme: str = self._system.getUri().getScheme()

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        """The names of what is in a directory."""
        return [found.getPath().getName() for found in self._system.listStatus(self._path(directory))]

    def create(self, path: str, text: str) -> None:
        """Write a new file in UTF-8."""
        file = self._system.create(self._path(path))
        try:
            file.write(bytearray(text, "utf-8"))
        finally:
            file.close()

    def create_directory(self, path: str) -> None:
        self._system.mkdirs(self._path(path))

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory.  Raises TargetExists if another job has made `target`; then nothing is moved."""
        if self.exists(target):
            raise TargetExists(target)
        self._rename(source, target)
        inside = f"{target}/{source.rpartition('/')[2]}"
        if self.exists(inside):  # Hadoop moves into a directory that is there
            self._rename(inside, source)
            raise TargetExists(target)

    def _rename(self, source: str, target: str) -> None:
        if not self._system.rename(self._path(source), self._path(target)):
            raise PipelineError(f"{source}: it could not be moved to {target}")

    def remove(self, path: str, *, filled: bool = True) -> None:
        """Remove what may be there; a directory that is not empty only if it may be `filled`, else it fails."""
        if not self._system.delete(self._path(path), filled) and self.exists(path):
            raise PipelineError(f"{path}: it could not be removed")


class TargetExists(PipelineError):
    """What a job wants to make is there."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: another job has written it while this one ran")


def _replace(store: _Store, path: str, create: Callable[[str], None], days: Days | None = None) -> None:
    """Replace `path`, or its directories of `days`, by what `create` writes to a path that it is given."""
    id = uuid4().hex
    new, old = _beside(path, f"new-{id}"), _beside(path, f"old-{id}")
    is_there = store.exists(path)
    begun: list[tuple[str, str]] = []
    try:
        create(new)
        _say_if_moves_are_copies(store.scheme)
        for source, target in _moves(store, path, new, old, days):
            begun.append((source, target))
            store.move(source, target)
    except BaseException as error:
        if isinstance(error, TargetExists):
            begun.pop()
        try:
            _undo(store, begun)
        except Exception:
            raise PipelineError(
                f"{path}: it is not whole, and nothing is deleted: what was there is in it and in {old}, what is new "
                f"in it and in {new}"
            ) from error
        with suppress(Exception):  # as the error that matters is the one before
            if not is_there:
                store.remove(path, filled=False)
            store.remove(old, filled=False)
            store.remove(new)
        raise
    for left in (new, old):
        try:
            store.remove(left)
        except Exception as error:
            say(f"{path}: it is written; {left} is left, because it could not be removed: {error}")


def _moves(store: _Store, path: str, new: str, old: str, days: Days | None) -> list[tuple[str, str]]:
    """Which path must be moved to which, in this order."""
    if days is None:
        return [(path, old), (new, path)] if store.exists(path) else [(new, path)]
    # Also a table that is not there yet gets its days one by one, because other jobs may write other days of it.
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
    """Move back what was moved.  Raises PipelineError if the last move has stopped halfway, as a copy can."""
    for source, target in reversed(begun):
        # A move may have been made although it failed, so what is there counts.
        if store.exists(target):
            if store.exists(source):
                raise PipelineError(f"{source}: a part of it was moved to {target}")
            store.move(target, source)


# -- Spark Connect: there are only reads and writes


def _overwrite_days(spark: SparkSession, table: DataFrame, path: str, writer: DataFrameWriter, days: Days) -> None:
    """Replace the days by a dynamic partition overwrite, and then empty those that it left because they had no row."""
    before = _files_in(spark, path)
    writer.option("partitionOverwriteMode", "dynamic").save(path)
    # All files of a day are replaced at once, so a day that still has one of them has no new row.
    left = _days_within((file.split("/")[-2] for file in before & _files_in(spark, path)), days)
    for day in sorted(left):
        try:
            _empty(table.drop("dt")).write.mode("overwrite").parquet(f"{path}/{day}")
        except Exception as error:
            raise PipelineError(f"{path}: {', '.join(sorted(left))} should have no rows, and have old ones") from error
        left.remove(day)


def _overwrite(spark: SparkSession, table: DataFrame, path: str, format: str, options: dict[str, str]) -> None:
    """Replace a whole table.  Its rows are written beside it first, so that they outlive a write that fails halfway."""
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
        raise PipelineError(f"{path}: it may be in part only; {new} has all its new rows") from error
    if replaces:
        _empty(table).write.mode("overwrite").parquet(new)


def _files_in(spark: SparkSession, path: str) -> set[str]:
    """The URIs of the data files below a path.  Takes no job, but one to list many directories."""
    literal = re.sub(r"([\\{}\[\]*?])", r"\\\1", path)  # a reader takes a path for a pattern, and a writer does not
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
    return table.sparkSession.createDataFrame([], table.schema)

"""Writing tables: a write that fails loses nothing, and every path goes through
Spark.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType, TimestampType

from skipfilter.spark.errors import BadInput, PipelineError
from skipfilter.spark.session import setting
from skipfilter.spark.tables import files
from skipfilter.spark.tables.leftovers import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from skipfilter.spark.tables.local import Days

RANGE = (date(2026, 1, 2), date(2026, 1, 3))


def dated(spark: SparkSession, *rows: tuple[int, int]) -> DataFrame:
    """dt, n: days of January 2026, in two partitions."""
    table = spark.createDataFrame(rows, "day int, n int").repartition(2)
    return table.select(F.make_date(F.lit(2026), F.lit(1), "day").alias("dt"), "n")


def there(spark: SparkSession, path: str) -> list[tuple[int, int]]:
    return sorted((row.dt.day, row.n) for row in spark.read.schema("dt date, n int").parquet(path).collect())


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory, including hidden ones, and its empty
    directories.
    """
    paths = sorted(directory.rglob("*"))
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.fixture
def no_codec(spark: SparkSession) -> Iterator[None]:
    """Spark knows the name of a codec that it does not have: each task that writes
    Parquet fails.
    """
    spark.conf.set("spark.sql.parquet.compression.codec", "lzo")
    yield
    spark.conf.unset("spark.sql.parquet.compression.codec")


WAYS: dict[str, dict[str, Any]] = {
    "a range of days": {"by_day": True, "days": RANGE},
    "all days": {"by_day": True},
    "a table without days": {},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_write_that_fails_changes_nothing(
    spark: SparkSession, tmp_path: Path, way: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    table = dated(spark, (1, 1), (2, 2), (3, 3))
    files.write(table, f"{tmp_path}/table", by_day=way.get("by_day", False))
    before = snapshot(tmp_path)
    bad = table.where("n > 1").withColumn("n", F.when(F.col("n") < 3, 9).otherwise(F.raise_error(F.lit("bad row"))))
    with pytest.raises(Exception, match="bad row"):
        files.write(bad, f"{tmp_path}/table", **way)
    assert snapshot(tmp_path) == before
    request.getfixturevalue("no_codec")
    with pytest.raises(Exception, match="LzoCodec"):
        files.write(table.where("n > 1"), f"{tmp_path}/table", **way)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_table_can_be_made_from_itself(spark: SparkSession, tmp_path: Path, way: dict[str, Any]) -> None:
    path = f"{tmp_path}/table"
    files.write(dated(spark, (2, 1), (2, 2), (3, 3)), path, by_day=way.get("by_day", False))
    table = spark.read.parquet(path).cache()
    assert table.count() == 3
    files.write(table.where("n = 2"), path, **way)
    assert there(spark, path) == [(2, 2)]
    assert spark.read.parquet(path).count() == 1  # and not the cached rows
    assert [name.name for name in tmp_path.iterdir()] == ["table"]


def test_a_row_of_another_day_than_the_replaced_ones_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = f"{tmp_path}/table"
    files.write(dated(spark, (1, 1), (2, 2), (4, 4)), path, by_day=True)
    before = snapshot(tmp_path)
    for days, bad, named in ((RANGE, (4, 5), "2026-01-04"), ((None, RANGE[1]), (4, 5), "2026-01-04")):
        with pytest.raises(Exception, match=f"{path}: a row is of {named}, which is not replaced"):
            files.write(dated(spark, (2, 3), bad), path, by_day=True, days=days)
    with pytest.raises(Exception, match=f"{path}: a row is of no day, which is not replaced"):
        files.write(dated(spark, (2, 3)).withColumn("dt", F.lit(None).cast("date")), path, by_day=True, days=RANGE)
    assert snapshot(tmp_path) == before


# -- moves


class Fails(Exception):
    """The error of a failing move."""


def failing(number: int, *, after: bool) -> Callable[[files._Store, str, str], None]:
    """A move of which the call with this number fails, before or `after` it has moved,
    and the others do not.
    """
    calls, real = iter(range(100)), files._Store.move

    def move(store: files._Store, source: str, target: str) -> None:
        fails = next(calls) == number
        if after or not fails:
            real(store, source, target)
        if fails:
            raise Fails

    return move


def create(new: str) -> None:
    for day in (1, 2):
        (Path(new) / f"dt=2026-01-0{day}").mkdir(parents=True)
        (Path(new) / f"dt=2026-01-0{day}" / "new").touch()


@pytest.mark.parametrize("after", [False, True], ids=["before it moves", "after it moved"])
@pytest.mark.parametrize("days", [None, RANGE], ids=["a table", "a range of days"])
def test_a_move_that_fails_is_undone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: Days | None, after: bool
) -> None:
    table = tmp_path / "table"
    for day in (1, 2, 3):
        (table / f"dt=2026-01-0{day}").mkdir(parents=True)
        (table / f"dt=2026-01-0{day}" / "old").touch()
    before, store = snapshot(tmp_path), files._Store(spark, str(table))
    moves = 2 if days is None else 3  # day 2 out and in, and day 3 out
    for number in range(moves):
        monkeypatch.setattr(files._Store, "move", failing(number, after=after))
        with pytest.raises(Fails):
            files._replace(store, str(table), create, days)
        assert snapshot(tmp_path) == before
    monkeypatch.setattr(files._Store, "move", failing(moves, after=after))  # which there is not
    files._replace(store, str(table), create, days)
    assert {str(path.relative_to(table)) for path in table.rglob("*/*")} == (
        {"dt=2026-01-01/new", "dt=2026-01-02/new"} if days is None else {"dt=2026-01-01/old", "dt=2026-01-02/new"}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_a_new_table_that_fails_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = files._Store(spark, f"{tmp_path}/table")
    for after in (False, True):
        monkeypatch.setattr(files._Store, "move", failing(0, after=after))
        with pytest.raises(Fails):
            files._replace(store, f"{tmp_path}/table", create, RANGE)
        assert not snapshot(tmp_path)


def test_if_a_move_cannot_be_undone_nothing_is_deleted_and_the_error_names_the_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    table.mkdir()
    (table / "old").touch()
    moves = iter([files._Store.move])

    def move(store: files._Store, source: str, target: str) -> None:
        if (real := next(moves, None)) is None:
            raise Fails
        real(store, source, target)

    monkeypatch.setattr(files._Store, "move", move)
    with pytest.raises(PipelineError, match="it is incomplete") as raised:
        files._replace(files._Store(spark, str(table)), str(table), create)
    new, old = (path for kind in ("new", "old") for path in tmp_path.glob(f".table.{kind}-*"))
    assert {file.name for path in (new, old) for file in path.rglob("*") if file.is_file()} == {"new", "old"}
    assert str(raised.value) == (
        f"{table}: it is incomplete, and nothing was deleted: the old rows are in it and in {old}, the new rows in it "
        f"and in {new}"
    )


@pytest.mark.parametrize("days", [None, RANGE], ids=["a table", "a range of days"])
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "there"])
def test_if_a_move_that_copies_stops_halfway_nothing_is_deleted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: Days | None, is_there: bool
) -> None:
    table = tmp_path / "table"
    if is_there:
        (table / "dt=2026-01-02").mkdir(parents=True)
        (table / "dt=2026-01-02" / "old").touch()
        (table / "dt=2026-01-02" / "old 2").touch()
    store, real = files._Store(spark, str(table)), files._Store.move
    whole = 0

    def move(store: files._Store, source: str, target: str) -> None:
        nonlocal whole
        if whole:
            whole -= 1
            real(store, source, target)
            return
        part = next(path for path in sorted(Path(source).rglob("*")) if path.is_file())
        copy = Path(target) / part.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
        raise Fails

    monkeypatch.setattr(files._Store, "move", move)
    for whole in range(1 + is_there):  # noqa: B007  it counts down in `move`
        with pytest.raises(PipelineError, match="it is incomplete, and nothing was deleted"):
            files._replace(store, str(table), create, days)
        left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        assert left == {"new", "old", "old 2"} if is_there else {"new"}


@pytest.mark.parametrize("days", [None, RANGE], ids=["a table", "a range of days"])
def test_of_two_jobs_that_write_one_table_one_fails_and_the_rows_of_the_other_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: Days | None
) -> None:
    table = tmp_path / "table"
    store, moves = files._Store(spark, str(table)), files._moves
    exists, looks = files._Store.exists, iter(range(100))
    target = str(table if days is None else table / "dt=2026-01-02")

    def other_job() -> None:
        (table / "dt=2026-01-02").mkdir(parents=True)
        (table / "dt=2026-01-02" / "other").touch()

    def meanwhile(*arguments: Any) -> list[tuple[str, str]]:
        found = moves(*arguments)
        other_job()
        return found

    def between(store: files._Store, path: str) -> bool:  # it looks once more, and then the other job is faster
        found = exists(store, path)
        if path == target and next(looks) == (2 if days is None else 0):
            other_job()
        return found

    for name, faster in (("_moves", meanwhile), ("exists", between)):
        with monkeypatch.context() as patched:
            patched.setattr(files if name == "_moves" else files._Store, name, faster)
            with pytest.raises(PipelineError, match="another job has written it"):
                files._replace(store, str(table), create, days)
        assert {path.name for path in table.rglob("*") if path.is_file()} == {"other"}
        assert {path.name for path in table.rglob("dt=*")} == {"dt=2026-01-02"}
        shutil.rmtree(table)
        for left in tmp_path.iterdir():
            shutil.rmtree(left)


def test_two_jobs_may_write_different_days_of_a_new_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, moves = f"{tmp_path}/table", files._moves

    def meanwhile(*arguments: Any) -> list[tuple[str, str]]:
        monkeypatch.setattr(files, "_moves", moves)
        found = moves(*arguments)
        files.write(dated(spark, (1, 1)), path, by_day=True, days=(None, date(2026, 1, 1)))
        return found

    monkeypatch.setattr(files, "_moves", meanwhile)
    files.write(dated(spark, (2, 2)), path, by_day=True, days=RANGE)
    assert there(spark, path) == [(1, 1), (2, 2)]
    assert [name.name for name in tmp_path.iterdir()] == ["table"]


def test_if_java_ends_before_a_move_that_is_the_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(files._Store, "remove", ended)
    with pytest.raises(Fails):
        files._replace(files._Store(spark, f"{tmp_path}/table"), f"{tmp_path}/table", raises)


def raises(_: str) -> None:
    raise Fails


def test_leftovers_that_cannot_be_removed_are_reported_and_the_table_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PipelineError("it is write-protected")

    files.write(dated(spark, (1, 1)), f"{tmp_path}/table")
    monkeypatch.setattr(files._Store, "remove", refuses)
    files.write(dated(spark, (2, 2)), f"{tmp_path}/table")
    assert there(spark, f"{tmp_path}/table") == [(2, 2)]
    [old] = tmp_path.glob(".table.old-*")
    assert f"{tmp_path}/table: it is written, but {old} could not be removed" in capsys.readouterr().err


@pytest.fixture(scope="module")
def killed() -> str:
    """The id of a process that has ended."""
    made = "from skipfilter.spark.tables.leftovers import new_id; print(new_id())"
    return subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True).stdout.strip()


def beside(path: Path) -> set[str]:
    return {found.name for found in path.iterdir() if found.name.startswith(".table")}


def leave(path: Path, kind: str, id: str, *names: str) -> None:
    for name in names or ("part-0",):
        (path / f".table.{kind}-{id}" / name).mkdir(parents=True)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_job_left_that_was_killed_in_its_write_is_removed_by_the_next(
    spark: SparkSession, tmp_path: Path, way: dict[str, Any], killed: str
) -> None:
    running, elsewhere = new_id(), f"00000000-{killed.partition('-')[2]}"
    for id in (killed, running, elsewhere, "6c8ba0cbd5bd4e1c8ba0cbd5bd4e1c11"):
        leave(tmp_path, "new", id)
    (tmp_path / f".table.old-{killed}").mkdir()
    files.write(dated(spark, (2, 2)), f"{tmp_path}/table", **way)
    left = {f".table.new-{id}" for id in (running, elsewhere, "6c8ba0cbd5bd4e1c8ba0cbd5bd4e1c11")}
    assert beside(tmp_path) == left
    assert there(spark, f"{tmp_path}/table") == [(2, 2)]


@pytest.mark.parametrize(
    ("way", "day", "stays"),
    [
        (WAYS["a range of days"], "dt=2026-01-02", False),
        (WAYS["a range of days"], "dt=2026-01-04", True),
        (WAYS["all days"], "dt=2026-01-04", False),
        (WAYS["a table without days"], "part-0", False),
    ],
)
def test_old_rows_of_a_job_that_was_killed_in_its_moves_stay_until_others_replace_them(
    spark: SparkSession, tmp_path: Path, way: dict[str, Any], day: str, stays: bool, killed: str
) -> None:
    leave(tmp_path, "new", killed, day)
    leave(tmp_path, "old", killed, day)
    both = beside(tmp_path)
    # They are needed as long as the next job has not replaced their rows.
    with pytest.raises(Fails):
        files._replace(files._Store(spark, f"{tmp_path}/table"), f"{tmp_path}/table", raises, way.get("days"))
    assert beside(tmp_path) == both
    files.write(dated(spark, (2, 2)), f"{tmp_path}/table", **way)
    assert beside(tmp_path) == (both if stays else set())


@pytest.mark.parametrize("zone", ["TIMESTAMP_MICROS", "INT96"])
def test_timestamps_are_microseconds_in_utc_whatever_the_setting_of_the_session(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    with setting(spark, "spark.sql.parquet.outputTimestampType", zone):
        files.write(spark.sql("SELECT timestamp'2026-01-02 03:04:05.678901+00:00' AS ts"), f"{tmp_path}/table")
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == zone
    [moment] = parquet.read_table(tmp_path / "table").column("ts").combine_chunks()
    assert moment.type == pa.timestamp("us", "UTC")
    assert moment.as_py() == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


@pytest.mark.parametrize(
    ("type", "fault"),
    [
        (pa.timestamp("ns", "UTC"), "Spark reads no timestamps in nanoseconds: write times in microseconds"),
        (pa.timestamp("ns"), "Spark reads no timestamps in nanoseconds: write times in microseconds"),
        (pa.timestamp("us"), "column ts is timestamp_ntz, not timestamp: write times in microseconds with"),
    ],
)
def test_timestamps_that_cannot_be_read_are_refused_with_the_remedy(
    spark: SparkSession, tmp_path: Path, type: pa.DataType, fault: str
) -> None:
    path, schema = tmp_path / "table.parquet", StructType([StructField("ts", TimestampType())])
    times = pa.array([datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)]).cast(pa.timestamp("us"))
    parquet.write_table(pa.table({"ts": times.cast(type)}), path)
    with pytest.raises(BadInput, match=re.escape(f"{path}: {fault}")):
        files.read(spark, str(path), schema)
    # The remedy.
    parquet.write_table(pa.table({"ts": times.cast(type).cast(pa.timestamp("us", "UTC"))}), path)
    assert files.read(spark, str(path), schema).select(F.unix_micros("ts")).collect() == [(1767323045678901,)]


def test_an_impossible_day_is_refused_and_not_dropped(spark: SparkSession, tmp_path: Path) -> None:
    path = f"{tmp_path}/table"
    files.write(dated(spark, (2, 1)), path, by_day=True)
    (tmp_path / "table" / "dt=2026-02-30").mkdir()  # of another program
    late = dated(spark, (2, 2)).withColumn("dt", F.expr("date_add(date'9999-12-31', 1)"))
    with pytest.raises(Exception, match=r"a row is of \S*10000-01-01, which is not replaced"):
        files.write(late, path, by_day=True, days=(RANGE[0], None))
    files.write(dated(spark, (2, 3)), path, by_day=True, days=RANGE)
    assert sorted(name.name for name in (tmp_path / "table").glob("dt=*")) == ["dt=2026-01-02", "dt=2026-02-30"]


def test_a_store_that_copies_causes_one_warning(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "_OBJECT_STORES", {"file"})
    files._say_if_moves_are_copies.cache_clear()
    said = []
    for _ in range(3):
        files.write_page(spark, "page", str(tmp_path))
        said.append(capsys.readouterr().err)
    files._say_if_moves_are_copies.cache_clear()
    assert [text.count("this store cannot replace a table in one step") for text in said] == [1, 0, 0]


# -- paths


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "{}/a path", "viewfs://{}", "the default file system"])
def test_paths_are_resolved_by_spark(
    spark: SparkSession, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def configured(name: str, value: str) -> None:
        spark.conf.set(name, value)
        request.addfinalizer(lambda: spark.conf.unset(name))

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # a path that is not understood would be below it
    target = str(tmp_path / "place")
    if "fs" in form or "file system" in form:  # a scheme that is not local, although its files are
        (tmp_path / "place").mkdir()
        configured(f"fs.viewfs.mounttable.{tmp_path.name}.link./day", f"file://{target}")
        if "default" in form:
            configured("fs.defaultFS", f"viewfs://{tmp_path.name}/")
            path = "/day"
        else:
            path = f"viewfs://{tmp_path.name}/day"
    else:
        path = form.format(target)
        target += "/a path" if "a path" in form else ""
    files.write(dated(spark, (1, 1), (2, 2), (3, 3)), f"{path}/table", by_day=True)
    files.write(dated(spark, (2, 4)), f"{path}/table", by_day=True, days=RANGE)
    assert there(spark, f"{path}/table") == there(spark, f"file:{target}/table") == [(1, 1), (2, 4)]
    for text in ("é", "a page"):
        assert files.write_page(spark, text, f"{path}/report") == f"{path}/report/index.html"
        assert (Path(target) / "report" / "index.html").read_text("utf-8") == text
    found = {path.name for place in (target, f"{target}/report") for path in Path(place).iterdir()}
    assert found == {"table", "report", "index.html", ".index.html.crc"}
    assert not [*Path.cwd().iterdir()]

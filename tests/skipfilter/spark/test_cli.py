"""The command lines of the pipeline: the README's commands, errors in a sentence,
spark-submit, Spark Connect.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyspark
import pytest
import typer
from pyarrow import parquet
from pyroaring import BitMap
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType
from rich.console import Console
from typer.testing import CliRunner

from hub.cli.spark import main
from skipfilter import compile_matcher
from skipfilter.bulk.outputs import IDENTITY, Output
from skipfilter.bulk.ranges import BROADCAST_BYTES
from skipfilter.spark import Workload, commands, console, generate_sessions, generate_updates
from skipfilter.spark.cli import OutputName
from skipfilter.spark.console import reason
from skipfilter.spark.jobs.audit import audit as who_could_read
from skipfilter.spark.jobs.matching import of_days
from skipfilter.spark.page.formats import short
from skipfilter.spark.tables import files, local
from skipfilter.spark.tables.schemas import SESSIONS, UPDATES
from tests.skipfilter.spark.tables.test_files import snapshot
from tests.skipfilter.worlds import Session, Update, World, by_brute_force

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typer.testing import Result

ROOT = Path(__file__).parents[3]
README = (ROOT / "skipfilter" / "spark" / "README.md").read_text("utf-8")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def done(*arguments: str | Path) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


@pytest.fixture(scope="module")
def day(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of 100 sessions and 1,000 updates, and all outputs of `match`."""
    place = tmp_path_factory.mktemp("tables") / "day"
    done("generate", place, "--subscribers", "100", "--updates", "1000")
    done("match", place, *(part for output in Output for part in ("--output", output)))
    return place


def deliveries(spark: SparkSession, day: Path) -> list[tuple[str, int]]:
    return sorted((row.update_id, row.subscriber_id) for row in spark.read.parquet(str(day / "rows")).collect())


def test_all_outputs_agree(spark: SparkSession, day: Path) -> None:
    rows = deliveries(spark, day)
    fanout = {row.update_id: row.fanout for row in spark.read.parquet(str(day / "fanout")).collect()}
    received = {row.subscriber_id: row.received for row in spark.read.parquet(str(day / "received")).collect()}
    bitmaps = [
        (row.update_id, (row.shard << 23) + id)
        for row in spark.read.parquet(str(day / "bitmaps")).collect()
        for id in BitMap.deserialize(bytes(row.recipients))
    ]
    assert len(fanout) == 1000
    assert {update: count for update, count in fanout.items() if count} == Counter(update for update, _ in rows)
    assert received == Counter(subscriber for _, subscriber in rows)
    assert sorted(bitmaps) == rows != []


def test_as_if_online_counts_what_all_sessions_match_at_any_time(spark: SparkSession, day: Path) -> None:
    done("match", day, "--as-if-online", *("--output", "rows", "--output", "fanout", "--output", "received"))
    there = day / "as-if-online"
    updates, sessions = (spark.read.parquet(f"{day}/{name}").collect() for name in ("updates", "sessions"))
    fits = {
        (selector, topic): compile_matcher(*selector).match(topic)
        for selector in {tuple(one) for session in sessions for one in session.selectors + session.authorised}
        for topic in {topic for update in updates for topic in update.topics}
    }

    def wants(selectors: list[Any], topics: list[str]) -> bool:
        return any(fits[tuple(selector), topic] for selector in selectors for topic in topics)

    expected = sorted(
        (update.update_id, session.subscriber_id)
        for update in updates
        for session in sessions
        if wants(session.selectors, update.topics) and (not update.private or wants(session.authorised, update.topics))
    )
    assert deliveries(spark, there) == expected
    assert len(expected) > len(deliveries(spark, day)) > 0
    counts = {row.update_id: row.fanout for row in spark.read.parquet(f"{there}/fanout").collect()}
    assert {id: count for id, count in counts.items() if count} == Counter(id for id, _ in expected)
    received = {row.subscriber_id: row.received for row in spark.read.parquet(f"{there}/received").collect()}
    assert received == Counter(id for _, id in expected)


def test_as_if_online_is_by_time(day: Path) -> None:
    refused = run("match", day, "--as-if-online", "--by", "position")
    assert refused.exit_code == 2
    assert "compares by time" in refused.output


def test_the_commands_of_the_readme_produce_their_tables(spark: SparkSession, day: Path) -> None:
    shown = re.findall(r"^\.venv/bin/skipfilter spark (.*?)(?: +#.*)?$", README, re.MULTILINE)
    generate, match, *others = (shlex.split(line) for line in shown)
    assert (generate[:2], match) == (["generate", "day"], ["match", "day"])  # which `day` was made by
    assert [job for job, *_ in others] == ["report", "audit"]
    for job, tables, *rest in others:
        assert tables == "day"
        printed = done(job, day, *rest).output
        assert "may be missing" not in printed  # there is no mark of a gap
    total = len(deliveries(spark, day))
    assert {path.parent.name for path in (day / "report").glob("*/_SUCCESS")} == {
        "capacity", "concurrency", "fanout", "fanout_distribution", "fanout_hourly", "gaps", "overview", "private_updates",
        "selectors", "session_lengths", "topic_hours", "topics", "traffic",
    }  # fmt: skip
    html = (day / "report" / "index.html").read_text("utf-8")
    assert "<svg" in html
    assert f"<dt>deliveries</dt><dd><strong>{short(total)}</strong>" in html
    overview = spark.read.parquet(str(day / "report" / "overview")).first()
    assert overview is not None
    assert (overview.updates, overview.deliveries) == (1000, total)
    audited = spark.read.parquet(str(day / "audit"))
    people = audited.select("subject").distinct().count()
    assert (
        f"{audited.count()} sessions ({people} people) could read the topic, or received an update on it. " in printed
    )
    readers = audited.where("size(authorised) > 0").count()
    assert f"on it. {readers} sessions ({readers} people) could read private updates on it.\n" in printed
    assert max(map(len, printed.splitlines())) < 220


def test_no_client_can_steer_the_terminal_of_an_audit(spark: SparkSession) -> None:
    evil = "\x1b[2J\x07\u202e\u2028\nend"
    updates, sessions = World([Update("u", [evil], False, 5)], [Session(0, [("exact", evil)], [], 0, None)]).tables(
        spark, 1
    )
    sessions = sessions.withColumns({"subscriber": F.lit("urn:x"), "subject": F.lit(evil)})
    [row] = commands._shown(who_could_read(evil, updates, sessions)).collect()
    shown = "\ufffd[2J" + 4 * "\ufffd" + "end"
    assert (row.who, row.subscribed) == (shown, f"exact {shown}")


def test_the_lines_for_other_readers_find_the_same_deliveries(
    spark: SparkSession, day: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(day.parent)
    section = README.partition("## Other readers\n")[2].partition("\n## ")[0]
    programs = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    [[dt, deliveries]] = spark.read.parquet(f"{day}/fanout").groupBy("dt").agg(F.sum("fanout")).collect()
    for program, name in zip(programs, ("duckdb", "polars", "chdb"), strict=True):
        exec(program, {})
        printed = capfd.readouterr().out
        assert re.search(rf"{dt}\D+{deliveries}\b", printed), (name, printed)
    topics = spark.read.parquet(f"{day}/updates").select(F.col("topics")[0]).distinct().count()
    counted = "SELECT count(DISTINCT topics[1]), any_value(typeof(ts)) FROM read_parquet('day/updates/**/*.parquet')"
    assert duckdb.execute(counted).fetchone() == (topics, "TIMESTAMP WITH TIME ZONE")
    # What the page warns of.
    wrong = spark.read.parquet(f"{day}/bitmaps").agg(F.sum(F.expr("bitmap_count(recipients)"))).collect()
    assert wrong != [(deliveries,)]


def test_repeating_a_day_removes_its_old_rows(spark: SparkSession, tmp_path: Path) -> None:
    dated = spark.createDataFrame([(day, n) for day in (1, 2, 3) for n in (1, 2)], "day int, n int")
    table = dated.select(F.make_date(F.lit(2026), F.lit(1), "day").alias("dt"), "n")
    path = str(tmp_path / "table")

    def there() -> list[tuple[int, int]]:
        rows = files.read(spark, path, StructType([*table.schema])).collect()
        return sorted((row.dt.day, row.n) for row in rows)

    files.write(table, path, by_day=True)
    files.write(table.where("n = 1 and day = 3"), path, by_day=True, days=(date(2026, 1, 2), None))
    assert there() == [(1, 1), (1, 2), (3, 1)]
    files.write(table.where("day = 2"), path, by_day=True)
    assert there() == [(2, 1), (2, 2)]
    files.write(table.where("day = 4"), path, by_day=True)
    assert there() == []


def test_only_relevant_sessions_are_read(spark: SparkSession) -> None:
    world = World(
        [Update("u", ["/a"], False, 5)],
        [Session(0, [], [], 0, 5), Session(1, [], [], 0, 6), Session(2, [], [], 5, None), Session(3, [], [], 6, None)],
    )
    updates, sessions = world.tables(spark, 1)
    _, found = of_days(updates, sessions, None, None, "position")
    assert sorted(row.subscriber_id for row in found.collect()) == [1, 2]
    assert by_brute_force(world) == set()


def test_positions_are_only_compared_within_one_epoch(spark: SparkSession, tmp_path: Path) -> None:
    everything = [("everything", "*")]
    updates, sessions = World(
        [Update("u", ["/a"], False, 5)], [Session(0, everything, [], 0, None), Session(1, everything, [], 6, None)]
    ).tables(spark, 1)
    more = {"type": "string", "retry": "long", "data_bytes": "long", "data": "string"}
    for name, table in (("updates", updates), ("sessions", sessions)):
        both = table.crossJoin(spark.createDataFrame([("one",), ("other",)], "epoch string"))
        whole = both.withColumns({"hub": F.lit("hub"), "dt": F.lit(date(2026, 1, 31))})
        if name == "updates":
            whole = whole.withColumns({key: F.lit(0).cast(type) for key, type in more.items()})
        else:
            id = F.col("subscriber_id") + F.when(F.col("epoch") == "other", 10).otherwise(0)
            whole = whole.withColumns({"subscriber_id": id, "subscriber": F.lit("urn:x")})
        files.write(whole, f"{tmp_path}/{name}", by_day=name == "updates")
    done("match", tmp_path, "--output", "rows")  # by position, as all have theirs
    found = spark.read.parquet(f"{tmp_path}/rows").collect()
    assert sorted((row.update_id, row.subscriber_id) for row in found) == [("u", 0), ("u", 10)]
    # The subscribers that could read are also found if there is no update.
    updates = spark.read.parquet(f"{tmp_path}/updates").where("epoch = 'one'")
    files.write(updates, f"{tmp_path}/updates", by_day=True)
    done("audit", tmp_path, "/a")
    seen = {row.subscriber_id: row.received for row in spark.read.parquet(f"{tmp_path}/audit").collect()}
    assert seen == {0: 1, 1: 0, 10: 0, 11: 0}


# -- errors


def test_a_job_that_fails_loses_nothing(spark: SparkSession, day: Path, tmp_path: Path) -> None:
    there = tmp_path / "day"
    shutil.copytree(day, there)
    for name in ("postings", "audit", "report/overview", "report/index.html"):
        if not (there / name).exists():
            (there / name).mkdir(parents=True)
            (there / name / "part-0.parquet").touch()
    [dt] = {path.name.removeprefix("dt=") for path in (day / "fanout").glob("dt=*")}
    before = snapshot(there)
    codec = "spark.sql.parquet.compression.codec"  # Spark knows the name, but the codec is missing, so tasks fail
    try:
        for job, *rest in (
            ("match", "--from", dt, "--to", dt),
            ("index",),
            ("audit", "https://example.com/rooms/0"),
            ("report",),
        ):
            result = run(job, there, *rest, "--conf", f"{codec}=lzo")
            assert result.exit_code == 1
            assert re.search(rf"^{job}: .*LzoCodec.*\n\Z", result.stderr, re.MULTILINE)
            assert snapshot(there) == before, job
    finally:
        spark.conf.unset(codec)


@pytest.mark.parametrize(
    "job", [["match", "none"], ["report", "none"], ["audit", "none", "topic"]], ids=lambda job: job[0]
)
def test_a_period_that_ends_before_it_begins_is_refused_before_spark_starts(
    job: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "spark_session", None)
    for period in (["--from", "2026-11-28", "--to", "2026-11-20"], ["--to", "2026-11-20", "--from", "2026-11-28"]):
        result = run(*job, *period)
        assert result.exit_code == 2
        assert "'--to': 2026-11-20 is before the first day, 2026-11-28" in result.stderr


def told_at_once(result: Result) -> str:
    """Return the error of a command that has not started Spark."""
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1].removeprefix("Error: Invalid value for ")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says that a path may be on another machine; SPARK_CONF_DIR would."""
    for name in local._ELSEWHERE:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_spark(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "spark_session", None)


MISSING = "the table does not exist: `generate`, or `skipfilter spark tables`, writes it"


def test_a_period_lasts_until_the_end_of_its_last_day() -> None:
    day = date(2026, 1, 31)
    assert commands._moments((day, day)) == (datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))
    assert commands._moments((None, None)) == (None, None)


@pytest.mark.usefixtures("no_spark")
def test_missing_tables_and_days_are_reported_before_spark_starts(tmp_path: Path) -> None:
    where = f"TABLES: {tmp_path}"
    assert told_at_once(run("index", tmp_path)) == f"{where}/sessions: {MISSING}"
    assert told_at_once(run("match", tmp_path)) == f"{where}/updates: {MISSING}"
    assert told_at_once(run("match", tmp_path.as_uri())) == f"TABLES: {tmp_path.as_uri()}/updates: {MISSING}"
    assert told_at_once(run("report", tmp_path)) == f"{where}/fanout: the table does not exist: `match` writes it"
    for name in ("fanout", "updates", "sessions"):
        (tmp_path / name).mkdir()
    assert told_at_once(run("match", tmp_path, "--to=2026-11-28")) == (
        f"{where}/updates: it has no update up to 2026-11-28: it has no day"
    )
    (tmp_path / "updates" / "dt=2026-11-29").mkdir()  # a day that became empty
    for day in ("2026-11-21", "2026-11-23"):
        (tmp_path / "updates" / f"dt={day}").mkdir()
        (tmp_path / "updates" / f"dt={day}" / "part-0.parquet").touch()
    there = "its days are 2026-11-21 to 2026-11-29"
    for job, *chosen, said in (
        ("match", "--from=2026-11-24", f"from 2026-11-24 on: {there}"),
        ("report", "--to=2026-11-20", f"up to 2026-11-20: {there}"),
        ("audit", "a", "--from=2026-11-22", "--to=2026-11-22", f"of 2026-11-22: {there}"),
        ("audit", "a", "--from=2026-11-24", "--to=2026-11-28", f"from 2026-11-24 to 2026-11-28: {there}"),
    ):
        assert told_at_once(run(job, tmp_path, *chosen)) == f"{where}/updates: it has no update {said}"


@pytest.mark.parametrize(
    ("conf", "variable"),
    [(["--conf", "spark.hadoop.fs.defaultFS=hdfs://a"], {}), (["--conf", "spark.remote=sc://a"], {})]
    + [([], {name: "/x"}) for name in local._ELSEWHERE],
)
@pytest.mark.usefixtures("no_spark")
def test_a_path_that_may_be_on_another_machine_is_left_to_spark(
    monkeypatch: pytest.MonkeyPatch, conf: list[str], variable: dict[str, str]
) -> None:
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TypeError):  # the session of the fixture
        main(["match", "no such directory", *conf], standalone_mode=False)
    assert local.local("s3a://bucket/day", None) is None
    assert local.local("file://server/day", None) is None


def test_spark_reports_what_the_look_at_directories_does_not_see(
    spark: SparkSession, tmp_path: Path, day: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "local", lambda *_: None)
        for job, name, said in (
            ("index", "sessions", MISSING),
            ("report", "fanout", "the table does not exist: `match` writes it"),
        ):
            result = run(job, tmp_path)
            assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"{job}: {tmp_path}/{name}: {said}")
        for job, *rest, said in (
            ("match", "--from", "2031-01-01", "from 2031-01-01 on"),
            ("report", "--to", "2021-01-01", "up to 2021-01-01"),
            ("audit", "a", "--from", "2031-01-01", "--to", "2031-01-02", "from 2031-01-01 to 2031-01-02"),
        ):
            result = run(job, day, *rest)
            said = f"{job}: {day}/updates: it has no update {said}"
            assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, said)


@pytest.mark.usefixtures("here")
def test_a_topic_that_nothing_is_about_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    selectors = [[("exact", "a"), ("mqtt", "b/+")], [("uritemplate", "c{x}")]]
    workload = Workload(subscribers=2, updates=5)
    sessions = generate_sessions(spark, workload).toArrow()
    for column in ("selectors", "authorised"):
        of = pa.array([[{"type": type, "pattern": pattern} for type, pattern in some] for some in selectors])
        sessions = sessions.set_column(sessions.column_names.index(column), column, of)
    files.write(spark.createDataFrame(sessions, SESSIONS), f"{tmp_path}/sessions")
    files.write(generate_updates(spark, workload), f"{tmp_path}/updates", by_day=True)
    topic = spark.read.parquet(f"{tmp_path}/updates").select(F.explode("topics")).collect()[0][0]
    said = f"{tmp_path}: no update is on 'd', and no session could read it; a topic is compared exactly"
    assert local.unknown_topic(tmp_path, str(tmp_path), "d") == said
    for known in ("a", "b/1", "cx", topic):
        assert local.unknown_topic(tmp_path, str(tmp_path), known) == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "spark_session", None)
        assert told_at_once(run("audit", tmp_path, "d")) == f"TOPIC: {said}"
        # Larger tables are left to Spark, and so are many patterns.
        for name in ("PATTERNS", "READ_BYTES"):
            with pytest.MonkeyPatch.context() as limit:
                limit.setattr(local, name, 1)
                assert local.unknown_topic(tmp_path, str(tmp_path), "d") == ""
    result = run("audit", tmp_path, "d", "--conf", "spark.hadoop.fs.x=y")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"audit: {said}")
    assert not (tmp_path / "audit").exists()


def test_a_missing_or_wrongly_typed_column_is_reported_with_its_file(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([(1,)], "subscriber_id long").write.parquet(f"{tmp_path}/sessions")
    result = run("index", tmp_path)
    assert f"index: {tmp_path}/sessions: it has no column subscriber of type string\n" in result.stderr
    files.write(
        generate_sessions(spark, Workload(subscribers=1)).withColumn("connected_from", F.lit("yesterday")),
        f"{tmp_path}/sessions",
    )
    result = run("index", tmp_path)
    assert (
        f"{tmp_path}/sessions: column connected_from is string, not timestamp: write times in microseconds"
        in result.stderr
    )


def test_a_null_is_reported_with_file_row_and_column(spark: SparkSession, tmp_path: Path) -> None:
    day = Workload(subscribers=3, updates=3)
    files.write(generate_sessions(spark, day), f"{tmp_path}/sessions")
    updates = generate_updates(spark, day).coalesce(1).orderBy("update_id")
    last = updates.agg(F.max("update_id")).first()
    assert last is not None
    private = F.when(F.col("update_id") != last[0], F.col("private"))
    files.write(updates.withColumn("private", private), f"{tmp_path}/updates", by_day=True)
    result = run("match", tmp_path)
    assert result.exit_code == 1
    assert re.search(rf"match: file:\S*{tmp_path}/updates/dt=\S+\.parquet row 2: private is null\n", result.stderr)


def test_an_invalid_setting_is_refused(tmp_path: Path) -> None:
    result = run("index", tmp_path, "--conf", "spark.master")
    assert result.exit_code == 2
    assert "'spark.master' is not NAME=VALUE" in result.stderr


def test_an_invalid_base_url_is_refused_before_any_job(tmp_path: Path) -> None:
    result = run("match", tmp_path, "--base-url", "no url")
    assert result.exit_code == 2
    assert "'no url' is not an absolute URL" in result.stderr


def test_closing_standard_output_does_not_end_java(spark: SparkSession) -> None:
    with pytest.raises(BrokenPipeError), console.job("audit", None):
        raise BrokenPipeError


def test_a_package_that_is_missing_is_reported_in_a_sentence(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, console.job("match", None):
        raise ImportError("a URL Pattern needs ada-url: pip install it")
    assert (ended.value.exit_code, capsys.readouterr().err) == (
        1,
        "match: a URL Pattern needs ada-url: pip install it\n",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (  # Py4JJavaError, SparkConnectGrpcException
            "An error occurred while calling o143.count.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times\n"
            "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:4568)\n"
            "Caused by: java.io.IOException: No space left on device\n\t... 23 more\n"
            "Caused by: java.io.EOFException\n\t... 24 more\n",
            "IOException: No space left on device",
        ),
        (
            "Job aborted:\n  An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in x\nskipfilter.spark.errors.BadInput: a/b: row 2 is short\n\tat java.Thread.run\n'
            "Caused by: java.io.IOException: closed\n",
            "a/b: row 2 is short",
        ),
        (
            'Traceback (most recent call last):\n  File "x.py", line 1, in x\nKeyError: 1\n\nThe above exception ...\n\n'
            "Traceback (most recent call last):\nhttpx2.ReadTimeout: no answer: 5 s\n",
            "ReadTimeout: no answer: 5 s",
        ),
        (
            "WARNING: Using incubator modules: jdk.incubator.vector\n26/11/22 23:26:03 WARN Utils: Set SPARK_LOCAL_IP\n"
            'Exception in thread "main" org.apache.spark.SparkException: Executor memory must be a positive number\n\tat x',
            "SparkException: Executor memory must be a positive number",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/a. SQLSTATE: 42K03\n== x ==\n",
            "[PATH_NOT_FOUND] Path does not exist: file:/a.",
        ),
        (
            "[USER_RAISED_EXCEPTION] x is null SQLSTATE: P0001\n=== Streaming Query ===\nIdentifier: [id = 1]",
            "x is null",
        ),
        (
            ": org.apache.spark.SparkException: Job aborted: Lost task 0.0 (TID 0): java.io.IOException: Cannot run "
            'program "env/bin/python": error=2, No such file or directory\n\tat x\n'
            'Caused by: java.io.IOException: Cannot run program "env/bin/python": error=2, No such file or directory\n'
            "\tat y\nCaused by: java.io.IOException: error=2, No such file or directory\n",
            'IOException: Cannot run program "env/bin/python": error=2, No such file or directory',
        ),
    ],
    ids=["java", "ours", "python", "start", "plan", "raised", "program"],
)
def test_an_error_is_reported_with_its_innermost_cause(text: str, told: str) -> None:
    assert reason(text) == told


@pytest.mark.parametrize("terminal", [True, False])
def test_each_step_of_a_long_job_is_shown(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "Console", partial(Console, force_terminal=terminal, width=80))
    with console.steps("day/report", 2) as begin:
        begin("traffic")
        begin("index.html")
    shown = capsys.readouterr().err
    assert ("day/report/traffic ..." in shown, "day/report/index.html ..." in shown) == (not terminal, not terminal)
    assert ("1/2" in shown, "day/report/index.html" in shown) == (terminal, True)
    assert re.search(r"day/report: \d+\.\d s\n\Z", shown)


def test_java_stack_traces_are_left_out_of_an_error(spark: SparkSession, tmp_path: Path) -> None:
    result = run("index", tmp_path, "--conf", "spark.sql.shuffle.partitions=none")
    assert result.exit_code == 1
    assert re.search(r"^index: .*'none'.*spark\.sql\.shuffle\.partitions.*$", result.stderr, re.MULTILINE)
    assert "\tat " not in result.stderr


@pytest.mark.processes
def test_a_setting_that_java_refuses_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    job = (sys.executable, "-m", "hub", "spark", "index", tmp_path, "--conf", "spark.executor.memory=zzz")
    ended = subprocess.run(job, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (1, "index: SparkException: Executor memory must be a positive number\n")


# -- elsewhere


def elsewhere(*command: str | Path, **environment: str) -> str:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "SPARK_CONF_DIR" or not name.startswith(("SPARK_", "PYSPARK_"))
    }
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=kept | environment, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_spark_submit_runs_the_same_jobs(spark: SparkSession, day: Path, tmp_path: Path) -> None:
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    conf = ("--master", "local[1]", "--driver-memory", "1g", "--conf", "spark.sql.shuffle.partitions=2")
    checkpoints = tmp_path / "checkpoints"
    [program] = re.findall(r"job\.py has two lines:\n\n```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "job.py").write_text(program)
    shutil.copytree(day, tmp_path / "day", ignore=shutil.ignore_patterns("fanout"))
    job = ("match", tmp_path / "day")
    elsewhere(
        *(submit, *conf, "--conf", f"spark.checkpoint.dir={checkpoints}", tmp_path / "job.py", *job),
        PYSPARK_PYTHON=sys.executable,
    )
    now, before = (spark.read.parquet(str(place / "fanout")) for place in (tmp_path / "day", day))
    assert sorted(now.collect()) == sorted(before.collect()) != []
    assert list(checkpoints.glob("*/*/part-*"))  # tables that several outputs share


def test_spark_connect_runs_the_same_jobs(spark: SparkSession, day: Path, tmp_path: Path) -> None:
    assert spark._jvm is not None
    service = spark._jvm.org.apache.spark.sql.connect.service
    service.SparkConnectService.start(spark._jsc.sc())  # within the Java that is there
    port = getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort()
    there = tmp_path / "a day"
    shutil.copytree(day, there)
    shutil.rmtree(there / "rows")
    [dt] = {path.name.removeprefix("dt=") for path in (day / "fanout").glob("dt=*")}
    script = ("-m", "tests.skipfilter.spark.over_connect", there, dt, tmp_path)
    elsewhere(sys.executable, *script, SPARK_REMOTE=f"sc://127.0.0.1:{port}")
    for name in ("rows", "fanout", "received"):
        now, before = (spark.read.parquet(str(place / name)) for place in (there, day))
        assert sorted(now.collect()) == sorted(before.collect()) != []
    [page] = (there / "report" / "page").glob("part-*")
    assert page.read_text("utf-8") == "<p>2.0\n</p>\n"
    assert spark.read.parquet(str(there / "report" / "overview")).count() == 1


def test_the_help_lists_the_outputs() -> None:
    text = " ".join(done("match", "--help").stdout.split())
    assert f"[{'|'.join(Output)}]" in text
    assert all(f"{output}: {output.row}" in text for output in Output)
    assert [str(name) for name in OutputName] == [str(output) for output in Output]
    assert f"[default: {Workload().seed}]" in " ".join(done("generate", "--help").stdout.split())
    assert f"by default {BROADCAST_BYTES} ({BROADCAST_BYTES >> 20} MiB)" in text


def test_the_written_tables_have_the_documented_schemas(spark: SparkSession, day: Path) -> None:
    update = {column.name for column in IDENTITY} - {"position"}  # matched by time
    tables = {"updates": set(UPDATES.names), "sessions": set(SESSIONS.names)}
    for output in Output:
        tables[output] = {column.name for column in output.columns} | {"made_from"}
        if output in ("fanout", "received"):
            tables[output] |= {"at_least"}
        if output.of_updates:
            tables[output] |= update | {"dt"}
    for name, columns in tables.items():
        assert set(spark.read.parquet(str(day / name)).columns) == columns
    for output in Output:  # in whichever way the rows were added up, a column may be null
        written = parquet.read_schema(next((day / output).rglob("*.parquet")))
        assert [written.field(column.name) for column in output.columns] == [
            pa.field(column.name, column.type) for column in output.columns
        ]

"""`skipfilter spark` with a hub, the README's examples of the format "mercure", and examples/."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hub.cli.spark import main
from skipfilter.spark import console
from tests.hub.spark.hubs import events_in, metadata_in, publish, token_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typer.testing import Result

    from tests.conftest import HubProcess

ROOT = Path(__file__).parents[3]
README = (ROOT / "skipfilter" / "spark" / "README.md").read_text("utf-8")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_events_are_read_once_and_published_again(spark: SparkSession, hub: HubProcess, tmp_path: Path) -> None:
    token = ("--option", f"tokenFile={token_file(hub, tmp_path)}")
    taken, rows = tmp_path / "taken", tmp_path / "rows"
    for data in ("first", "second"):
        publish(hub, {"topic": ["/a"], "data": data, "private": True})
        publish(hub, {"topic": ["/b"], "data": "another"})
        result = run("ingest", hub.url, taken, "--option", "match=/a", *token)
        assert result.exit_code == 0, result.output + repr(result.exception)
    told = spark.read.parquet(str(taken)).collect()
    assert sorted(row.data for row in told) == ["first", "second"]

    spark.createDataFrame([("/c", "third")], "topic string, data string").write.parquet(str(rows))
    result = run("publish", rows, hub.url, *token)
    assert result.exit_code == 1
    assert "or the option private=true or private=false for all rows" in result.stderr
    assert events_in(hub, match="/c") == []
    result = run("publish", rows, hub.url, *token, "--option", "private=true")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert [told["private"] for told in metadata_in(hub) if told["topics"] == ["/c"]] == [True]
    assert [event.data for event in events_in(hub, match="/c")] == ["third"]


def test_an_event_log_of_several_machines_becomes_tables(spark: SparkSession, tmp_path: Path) -> None:
    update = {"hub": "h", "epoch": "e", "position": 1, "time": 0, "id": "u", "topics": ["/a"], "private": False}
    come = {"event": "connect", "hub": "h", "epoch": "e", "number": 0, "selectors": [], "authorised": [], "time": 0}
    log = tmp_path / "log"
    for name in ("updates", "sessions"):
        (log / name).mkdir(parents=True)
    (log / "updates" / "0-one.jsonl").write_text(json.dumps(update | {"data_bytes": 0}) + "\n")
    for machine in ("one", "other"):
        line = json.dumps(come | {"node": machine, "subscriber": f"urn:{machine}", "after": 0})
        (log / "sessions" / f"0-{machine}.jsonl").write_text(line + "\n")
        result = run("tables", log, tmp_path / "day")
        assert result.exit_code == 0, result.output + repr(result.exception)
    assert spark.read.parquet(str(tmp_path / "day" / "updates")).count() == 1
    sessions = spark.read.parquet(str(tmp_path / "day" / "sessions")).collect()
    assert {row.subscriber: row.subscriber_id for row in sessions} == {"urn:one": 0, "urn:other": 1}
    # Invented tables are neither mixed with those of a hub, nor put in their place.
    result = run("generate", tmp_path / "day", "--updates", "1")
    told = f"generate: {tmp_path}/day: it has the tables of a hub; choose another directory for invented ones"
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, told)
    assert spark.read.parquet(str(tmp_path / "day" / "updates")).count() == 1
    update_rows = spark.read.parquet(str(tmp_path / "day" / "updates")).drop("dt")
    update_rows.write.parquet(str(tmp_path / "other" / "updates"))
    result = run("tables", log, tmp_path / "other")
    reason = "it is not of a hub's event log, so it cannot be continued: choose another directory"
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"tables: {tmp_path}/other/updates: {reason}")


def test_errors_are_one_sentence(spark: SparkSession, hub: HubProcess, tmp_path: Path) -> None:
    result = run("ingest", hub.url, tmp_path / "taken", "--option", "match")
    assert result.exit_code == 2
    assert "'match' is not NAME=VALUE" in result.stderr
    result = run("publish", tmp_path / "nowhere", hub.url)
    assert result.exit_code == 1
    assert re.search(rf"^publish: .*{tmp_path}/nowhere", result.stderr, re.MULTILINE)
    result = run("ingest", hub.url, tmp_path / "taken", "--option", "match=*", "--option", "token=secret")
    assert result.exit_code == 1
    assert "ingest: the option token is refused, because options are shown in plans and logs: name an" in result.stderr
    assert "secret" not in result.output
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "log.parquet").write_text("")
    for log, *exported, said in (
        ("exported", "--exported", ": no update was found in files named .ndjson or .jsonl"),
        ("nowhere", "/updates does not exist"),
    ):
        result = run("tables", tmp_path / log, tmp_path / "day", *exported)
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"tables: {tmp_path}/{log}{said}")


def test_a_directory_that_is_no_event_log_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setattr(console, "spark_session", None)
    told = "name the directory in HUB_EVENT_LOG\n"
    result = run("tables", tmp_path, tmp_path / "day")
    assert (result.exit_code, result.stderr.splitlines(keepends=True)[-1]) == (
        2,
        f"Error: Invalid value for LOG: {tmp_path}/updates does not exist: {told}",
    )
    for name in ("updates", "sessions"):  # tables, and not the log that they are of
        (tmp_path / name / "dt=2026-01-01").mkdir(parents=True)
        (tmp_path / name / "part-0.snappy.parquet").touch()
    result = run("tables", tmp_path, tmp_path / "day")
    assert result.stderr.endswith(f"LOG: {tmp_path}: it has no segment of an event log: {told}")
    result = run("tables", tmp_path, tmp_path / "day", "--exported")
    assert result.stderr.endswith(f"LOG: {tmp_path}: no update was found in files named .ndjson or .jsonl\n")
    # A log whose first segment is not closed yet is a log.
    for name in ("lock", "updates/20261103T120000.000000Z-N.jsonl.part"):
        (tmp_path / name).touch()
        with pytest.raises(TypeError):  # the session
            main(["tables", str(tmp_path), str(tmp_path / "day")], standalone_mode=False)
        (tmp_path / name).unlink()


def test_the_python_of_the_readme_reads_and_writes(spark: SparkSession, hub: HubProcess, tmp_path: Path) -> None:
    [script] = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "hub.spark" in block]
    books = [(f"https://example.com/books/{n}", f"chapter {n}") for n in range(3)]
    names: dict[str, Any] = {
        "spark": spark,
        "URL": hub.url,
        "updates": spark.createDataFrame([*books, ("https://example.com/authors/1", "-")], "topic string, data string"),
    }
    exec(script, names)
    query = names["events"].writeStream.format("memory").queryName("readme").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert sorted(row.data for row in spark.table("readme").collect()) == [data for _, data in books]


def example(name: str, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def test_the_example_of_delays_publishes_its_result(
    spark: SparkSession, hub: HubProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    delays = {"One Air": [5, 20, -3], "Other Air": [7]}
    for airline, minutes in delays.items():
        for number, delay in enumerate(minutes):
            topic = f"https://flights.example/JFK/BQN/{airline[:2]}{number}"
            publish(hub, {"topic": [topic], "data": json.dumps({"airline": airline, "delay": delay})})
    example("spark_delays.py", "--hub", hub.url)
    expected = [("One Air", 3, 5), ("Other Air", 1, 7)]
    shown = re.findall(r"^\|(\w+ Air) *\|(\d+) *\|(\d+).0 *\|$", capsys.readouterr().out, re.MULTILINE)
    assert [(airline, int(flights), int(median)) for airline, flights, median in shown] == expected
    told = [json.loads(event.data) for event in events_in(hub, match="https://flights.example/delays")]
    assert [(row["airline"], row["flights"], row["median_delay"]) for row in told] == expected


def test_the_example_of_deliveries_prints_its_result(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    example("spark_who_received.py")
    shown = capsys.readouterr().out
    assert re.search(r"^\| +5000\| +\d+\| +\d+\|$", shown, re.MULTILINE)
    assert shown.count("only showing top 5 rows") == 2

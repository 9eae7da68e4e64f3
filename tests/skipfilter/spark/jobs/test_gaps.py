"""skipfilter.spark.jobs.gaps: the marks within a period, their sentences, and the warnings
of jobs.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from hub.cli.spark import main
from skipfilter.spark import commands
from skipfilter.spark.jobs.gaps import SHOWN, of_time, sentences
from skipfilter.spark.jobs.report import report
from skipfilter.spark.tables import files
from skipfilter.spark.tables.schemas import GAPS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from skipfilter.spark.jobs.report import Report

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def made(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    row = {
        "hub": "https://hub.example", "epoch": "e", "node": "n", "ts": NOON, "found": NOON + timedelta(hours=1), "after": 7,
        "updates": False, "cause": "ended uncleanly",
    }  # fmt: skip
    return spark.createDataFrame([tuple((row | chosen)[name] for name in GAPS.names) for chosen in rows], GAPS)


def test_a_sentence_names_the_place_and_the_gap(spark: SparkSession) -> None:
    gaps = made(spark, {}, {"ts": NOON - timedelta(1), "updates": True, "epoch": None, "hub": None})
    assert sentences(gaps) == [
        "epoch e of https://hub.example: node n ended uncleanly at 2026-01-31 12:00:00 UTC: deliveries after position 7, "
        "and connections since that time may be missing",
        "epoch (unknown) of (unknown): node n ended uncleanly at 2026-01-30 12:00:00 UTC: deliveries after position 7, "
        "updates after it, and connections since that time may be missing",
    ]
    assert sentences(made(spark, *[{"after": n} for n in range(SHOWN + 1_200)]))[SHOWN:] == [
        "and 1,200 earlier ones, which are in the table gaps"
    ]
    assert sentences(made(spark)) == []


def test_a_gap_lasts_from_its_mark_until_it_was_found_or_is_open(spark: SparkSession) -> None:
    gaps, hour = made(spark, {}, {"found": None}), timedelta(hours=1)
    times = [(None, None), (None, NOON), (NOON + hour, None), (NOON + 2 * hour, None), (NOON, NOON + hour)]
    assert [of_time(gaps, *time, by="time").count() for time in times] == [2, 0, 2, 1, 2]
    # A connection that is missing may have read updates of days before.
    assert [of_time(gaps, *time, by="position").count() for time in times] == [2, 2, 2, 1, 2]


def gaps_alone(whole: Report) -> Report:
    return replace(whole, tables={"gaps": whole.tables["gaps"]})


def test_every_job_warns_of_possible_gaps(spark: SparkSession, tmp_path: Path) -> None:
    def run(job: str, *arguments: str) -> Any:
        result = CliRunner().invoke(main, [job, str(day), *arguments])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result

    day = tmp_path / "day"
    run("generate", "--subscribers", "3", "--updates", "5")
    files.write(made(spark, {}), str(day / "gaps"))
    assert f"{day}/gaps: some deliveries may be missing" in run("match").stderr
    with pytest.MonkeyPatch.context() as patch:
        # The other tables and the page would take too long.
        patch.setattr(commands, "what_happened", lambda *tables, **options: gaps_alone(report(*tables, **options)))
        patch.setattr(commands, "page", lambda report: str(report.tables["gaps"].count()))
        run("report")
    assert (day / "report" / "index.html").read_text() == "1"
    told = run("audit", "https://example.com/rooms/0", "--from", "2026-01-31").stdout.splitlines()
    assert told[-1].startswith("epoch e of https://hub.example: node n ended uncleanly at 2026-01-31 12:00:00 UTC")

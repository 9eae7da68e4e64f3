"""Generations: a result of `match` is used only with the rows that it was made from."""

from __future__ import annotations

import shlex
import shutil
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.bulk.outputs import Output
from skipfilter.spark import Workload, generate_sessions, generate_updates
from skipfilter.spark.jobs.generations import MARK, Outdated, check, generations, shown, unmarked
from skipfilter.spark.tables import files
from skipfilter.spark.tables.schemas import FANOUT, GAPS, SESSIONS, UPDATES
from tests.skipfilter.spark.test_cli import done, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from skipfilter.bulk.matching import By

FIRST = datetime(2026, 1, 31, tzinfo=UTC)
"""The first of two days."""
HOUR = timedelta(hours=1)
MQTT = [("mqtt", "#")]
EXACT = [("exact", "a")]


def update(hour: int, **changes: Any) -> dict[str, Any]:
    """Return an update; its position is the hour."""
    ts = FIRST + hour * HOUR
    row = dict.fromkeys(UPDATES.names) | {"update_id": f"u{hour}", "topics": ["a"], "private": False, "data_bytes": 1}
    return row | {"ts": ts, "position": hour, "epoch": "e", "dt": ts.date()} | changes


def session(id: int, begins: int, ends: int | None, **changes: Any) -> dict[str, Any]:
    """Return a session of the hours `begins` to before `ends`, and of their
    positions.
    """
    start, end = FIRST + begins * HOUR, None if ends is None else FIRST + ends * HOUR
    row = dict.fromkeys(SESSIONS.names) | {
        "subscriber_id": id,
        "subscriber": "s",
        "selectors": MQTT,
        "authorised": EXACT,
    }
    row |= {"connected_from": start, "disconnected_at": end, "after": begins - 1, "until": ends and ends - 1}
    return row | {"epoch": "e", "dt": start.date()} | changes


UPDATED = [update(1), update(12), update(25), update(30)]
SEATED = [session(0, 0, 5), session(1, 0, None), session(2, 10, 30), session(3, 26, 28)]
INPUTS = {"updates": UPDATES, "sessions": SESSIONS}
DAYS = [date(2026, 1, 31), date(2026, 2, 1)]


def tables(
    spark: SparkSession, updates: list[dict[str, Any]], sessions: list[dict[str, Any]]
) -> tuple[DataFrame, DataFrame]:
    def table(rows: list[dict[str, Any]], schema: StructType) -> DataFrame:
        return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)

    return table(updates, UPDATES), table(sessions, SESSIONS)


def later(row: dict[str, Any], days: int) -> dict[str, Any]:
    """Return a row some days later, with its positions."""
    shift = timedelta(days=days)
    places = dict.fromkeys(("position", "after", "until"), shift // HOUR)
    moved = dict.fromkeys(("ts", "connected_from", "disconnected_at", "dt"), shift) | places
    return row | {name: row[name] + by for name, by in moved.items() if row.get(name) is not None}


Rows = list[dict[str, Any]]


def none(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], GAPS)


def of(spark: SparkSession, pairs: Iterable[tuple[Rows, Rows]], by: By) -> list[tuple[str, str]]:
    """Return the generations of pairs of days, by one job for all of them.

    Each pair has updates and sessions, and is two days later than the one before it.
    """
    every = [
        ([later(row, 2 * n) for row in updates], [later(row, 2 * n) for row in sessions])
        for n, (updates, sessions) in enumerate(pairs)
    ]
    updates, sessions = ([row for rows in table for row in rows] for table in zip(*every, strict=True))
    found = generations(*tables(spark, updates, sessions), none(spark), by)
    assert sorted(found) == [FIRST.date() + timedelta(days=n) for n in range(2 * len(every))]
    assert all(mark.startswith(f"{by} ") for mark in found.values())
    marks = [found[day] for day in sorted(found)]
    return list(zip(marks[::2], marks[1::2], strict=True))


NOTHING = UPDATED, SEATED
LATER: dict[str, tuple[Rows, Rows]] = {
    "in another order": (UPDATED[::-1], SEATED[::-1]),
    "another update of the second day": ([*UPDATED, update(40)], SEATED),
    "a session after the last update of the first day": (UPDATED, [*SEATED, session(4, 13, 20)]),
    "a session of the second day": (UPDATED, [*SEATED, session(4, 26, 48)]),
    "other columns": (
        [row | {"data": "x", "data_bytes": 7, "type": "t"} for row in UPDATED],
        [row | {"subscriber": "other", "complete": False, "node": "n"} for row in SEATED],
    ),
    "an open session has ended since": (UPDATED, [*SEATED[:1], session(1, 0, 26), *SEATED[2:]]),
}
"""The last one changes all later days."""


@pytest.mark.parametrize("by", ["time", "position"])
def test_a_day_keeps_its_generation_if_later_rows_are_appended(spark: SparkSession, by: By) -> None:
    before, after = of(spark, [NOTHING] * len(LATER), by), of(spark, LATER.values(), by)
    assert len(set(chain(*before))) == 2 * len(LATER)
    for name, one, other in zip(LATER, before, after, strict=True):
        assert one[0] == other[0], name


OTHER: dict[str, tuple[Rows, Rows]] = {
    "another update": ([*UPDATED, update(3)], SEATED),
    "an update less": (UPDATED[1:], SEATED),
    "an update twice more": ([*UPDATED, *[UPDATED[0]] * 2], SEATED),
    "another id": ([update(1, update_id="x"), *UPDATED[1:]], SEATED),
    "other topics": ([update(1, topics=["a", "b"]), *UPDATED[1:]], SEATED),
    "private": ([update(1, private=True), *UPDATED[1:]], SEATED),
    "another session": (UPDATED, [*SEATED, session(4, 2, 3)]),
    "a session less": (UPDATED, SEATED[1:]),
    "another number of the subscriber": (UPDATED, [session(9, 0, 5), *SEATED[1:]]),
    "other selectors": (UPDATED, [session(0, 0, 5, selectors=EXACT), *SEATED[1:]]),
    "other grants": (UPDATED, [session(0, 0, 5, authorised=[]), *SEATED[1:]]),
    "a selector becomes a grant": (UPDATED, [session(0, 0, 5, selectors=[], authorised=MQTT + EXACT), *SEATED[1:]]),
    "an earlier end": (UPDATED, [session(0, 0, 4), *SEATED[1:]]),
    "another beginning": (UPDATED, [session(0, 1, 5), *SEATED[1:]]),
    "nothing": NOTHING,
    "an end before the last update": (UPDATED, [*SEATED[:1], session(1, 0, 12), *SEATED[2:]]),
}
"""The last one changes all later days; the others do not, as the one before it shows."""


@pytest.mark.parametrize("by", ["time", "position"])
def test_a_day_has_another_generation_if_anything_that_counts_has_changed(spark: SparkSession, by: By) -> None:
    before, after = of(spark, [NOTHING] * len(OTHER), by), of(spark, OTHER.values(), by)
    for name, one, other in zip(OTHER, before, after, strict=True):
        assert (one[0] == other[0]) is (name == "nothing"), name


def test_only_the_time_counts_by_time_and_only_the_position_by_position(spark: SparkSession) -> None:
    moved = [session(0, 0, 5, after=2, until=3), *SEATED[1:]]
    delayed = [session(0, 0, 5, disconnected_at=FIRST + 4 * HOUR), *SEATED[1:]]
    other = [session(0, 0, 5, epoch="other"), *SEATED[1:]]
    changed = [(UPDATED, sessions) for sessions in (moved, other, delayed)]
    unchanged: dict[By, list[bool]] = {"time": [True, True, False], "position": [False, False, True]}
    for by, same in unchanged.items():
        before, after = of(spark, [NOTHING] * 3, by), of(spark, changed, by)
        assert [one == other for one, other in zip(before, after, strict=True)] == same


# -- the check


def fanout(spark: SparkSession, rows: list[tuple[int, str | None]]) -> DataFrame:
    """Return a table of `match` with the generation of each of the UPDATED."""
    table = [("u", FIRST + hour * HOUR, hour, 1, 1, mark, (FIRST + hour * HOUR).date()) for hour, mark in rows]
    return spark.createDataFrame(table, FANOUT)


def outdated_of(compare: Callable[[], object]) -> list[date]:
    with pytest.raises(Outdated) as caught:
        compare()
    assert str(caught.value) == (
        f"fanout: it was not made from the present updates and sessions of {shown(caught.value.days)}: "
        "`match` makes it again"
    )
    return caught.value.days


def test_marks_are_compared_day_by_day() -> None:
    """On Spark: test_a_table_of_match_is_compared_with_its_inputs."""
    [one, two], [placed, other] = ["time 1", "time 2"], ["position 1", "position 2"]
    now = [dict(zip(DAYS, marks, strict=True)) for marks in ([one, two], [placed, other])]

    def compared(*marks: set[str | None]) -> list[date]:
        return unmarked(set(DAYS), {day: some for day, some in zip(DAYS, marks, strict=False) if some}, now)

    def outdated(*marks: set[str | None]) -> list[date]:
        return outdated_of(lambda: compared(*marks))

    assert compared({one}, {two}) == []
    assert compared({placed}, {two}) == []  # a day was matched by position
    assert compared({None}, {None}) == DAYS  # version 0.1.0
    assert compared({one}, {None}) == DAYS[1:]
    assert outdated({one}, {one}) == DAYS[1:]
    assert outdated({two}, {two}) == DAYS[:1]
    assert outdated({one}) == DAYS[1:]  # a day was not matched
    assert outdated({None}) == DAYS[1:]
    assert outdated() == DAYS
    assert outdated({one, None}, {two}) == DAYS[:1]  # two writers have mixed their rows
    assert outdated({one, two}, {two}) == DAYS[:1]
    assert outdated({"time x"}, {"neither x"}) == DAYS


def test_a_table_of_match_is_compared_with_its_inputs(spark: SparkSession) -> None:
    inputs = tables(spark, UPDATED, SEATED)
    [(one, two)], [(placed, _)] = (of(spark, [NOTHING], by) for by in ("time", "position"))

    def outdated(*rows: tuple[int, str | None], **bounds: Any) -> list[date]:
        return outdated_of(lambda: check(*inputs, none(spark), fanout(spark, list(rows)), **bounds))

    # A day was matched by position, and there is one without updates.
    assert check(*inputs, none(spark), fanout(spark, [(1, placed), (25, two), (50, "time x")])) == []
    assert outdated((1, one), (12, None), (25, two)) == DAYS[:1]
    # Only days of the time count, and those that have updates.
    middle = FIRST + 24 * HOUR
    assert check(*inputs, none(spark), fanout(spark, [(1, one), (25, "time x")]), end=middle) == []
    assert outdated((1, one), (25, "time x"), end=middle + timedelta(microseconds=1)) == DAYS[1:]
    assert check(*inputs, none(spark), fanout(spark, [(1, "time x"), (25, two)]), start=middle) == []
    assert outdated((1, "time x"), (25, two), start=middle - timedelta(microseconds=1)) == DAYS[:1]


def test_days_are_shown_in_a_few_words() -> None:
    several = [DAYS[0] + timedelta(days=n) for n in range(4)]
    assert shown(several[:3]) == "2026-01-31, 2026-02-01, 2026-02-02"
    assert shown(several) == "4 days from 2026-01-31 to 2026-02-03"


# -- the commands


def refusal(job: str, *arguments: str | Path) -> str:
    result = run(job, *arguments)
    assert result.exit_code == 1
    return result.stderr.splitlines()[-1]


def test_a_report_of_other_inputs_than_were_matched_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "a day"
    done("generate", place, "--subscribers", "100", "--updates", "500")
    done("match", place)
    done("generate", place, "--subscribers", "10", "--updates", "500")
    said, _, command = refusal("report", place).partition(": `match` makes it again: skipfilter spark ")
    [dt] = {path.name.removeprefix("dt=") for path in (place / "fanout").glob("dt=*")}
    assert said == f"report: {place}/fanout: it was not made from the present updates and sessions of {dt}"
    assert not (place / "report").exists()
    assert shlex.split(command) == ["match", str(place), "--from", dt, "--to", dt]
    done(*shlex.split(command))
    updates, sessions = (files.read(spark, f"{place}/{name}", schema) for name, schema in INPUTS.items())
    assert check(updates, sessions, none(spark), files.read(spark, f"{place}/fanout", FANOUT)) == []


def test_days_that_were_matched_one_by_one_belong_to_the_present_tables(spark: SparkSession, tmp_path: Path) -> None:
    two_days = Workload(subscribers=50, updates=400, duration=2 * Workload().duration)
    updates, sessions = generate_updates(spark, two_days), generate_sessions(spark, two_days)
    days = sorted(dt for [dt] in updates.select("dt").distinct().collect())
    # The first day only, as the tables of a hub have it in the night; then both days.
    end = F.lit(str(days[1])).cast("timestamp")
    until = F.when(F.col("disconnected_at") < end, F.col("disconnected_at"))
    tonight = sessions.where(F.col("connected_from") < end).withColumn("disconnected_at", until)
    for name, chosen in (("updates", updates.where(F.col("dt") == days[0])), ("sessions", tonight)):
        files.write(chosen, f"{tmp_path}/{name}", by_day=name == "updates")
    done("match", tmp_path, "--to", days[0])
    for name, whole in (("updates", updates), ("sessions", sessions)):
        files.write(whole, f"{tmp_path}/{name}", by_day=name == "updates")
    with pytest.raises(Outdated) as caught:
        check(updates, sessions, none(spark), files.read(spark, f"{tmp_path}/fanout", FANOUT))
    assert caught.value.days == days[1:]
    done("match", tmp_path, "--from", days[1])
    assert check(updates, sessions, none(spark), files.read(spark, f"{tmp_path}/fanout", FANOUT)) == []
    one_by_one = spark.read.parquet(f"{tmp_path}/fanout").collect()
    # All days at once are the same, also if one is repeated, and the other outputs have
    # the same marks.
    every = [part for output in Output for part in ("--output", output)]
    for options in (every, ["--from", days[0], "--to", days[0]]):
        done("match", tmp_path, *options)
        assert sorted(spark.read.parquet(f"{tmp_path}/fanout").collect()) == sorted(one_by_one)
    now = generations(updates, sessions, none(spark), "time")
    assert {row.dt: row[MARK] for row in one_by_one} == now
    for name in ("rows", "bitmaps"):
        marks = spark.read.parquet(f"{tmp_path}/{name}").select("dt", MARK).distinct().collect()
        assert {row.dt: row[MARK] for row in marks} == now
    assert spark.read.parquet(f"{tmp_path}/received").select(MARK).distinct().count() == 1


def test_days_with_and_without_marks_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    updates, sessions = tables(spark, UPDATED, SEATED)
    for name, table in (("updates", updates), ("sessions", sessions)):
        files.write(table, f"{tmp_path}/{name}", by_day=name == "updates")
    done("match", tmp_path, "--by", "time")
    # The first day as version 0.1.0 wrote it.  Spark takes the columns from one of the
    # files.
    for day in DAYS:
        place = tmp_path / "fanout" / f"dt={day}"
        old = spark.read.parquet(str(place)).drop(MARK).localCheckpoint()
        kept = shutil.copytree(place, tmp_path / "kept")
        shutil.rmtree(place)
        old.write.parquet(str(place))
        assert check(updates, sessions, none(spark), files.read(spark, f"{tmp_path}/fanout", FANOUT)) == [day]
        shutil.rmtree(place)
        kept.rename(place)


def test_tables_of_two_runs_of_generate_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Workload(subscribers=5, updates=5), Workload(subscribers=6, updates=5)
    files.write(generate_updates(spark, one), f"{tmp_path}/updates", by_day=True)
    files.write(generate_sessions(spark, two), f"{tmp_path}/sessions")
    for job, *rest in (("match",), ("audit", "a")):
        told = refusal(job, tmp_path, *rest)
        assert told == (
            f"{job}: {tmp_path}: updates and sessions are not of one run of `generate`, which writes both: "
            "run `generate` again"
        )

"""The tables of an event log: each valid line once, even if jobs and hubs are
killed.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.testing import assertDataFrameEqual

from hub.history import transfer
from hub.history.base import Entry, Page
from hub.protocol.updates import Update
from hub.spark import tables as made
from hub.spark.tables import SESSION_EVENTS, SESSION_IDS, append_updates, read_table, sessions, tables
from skipfilter.spark.errors import BadInput
from skipfilter.spark.tables import files
from skipfilter.spark.tables.schemas import GAPS, SESSIONS, UPDATES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

NOON = 1_700_000_000_000
NODE = "0" * 32


def update(number: int, **chosen: Any) -> dict[str, Any]:
    return {
        "hub": "https://hub.example/.well-known/mercure", "epoch": "e", "position": number, "time": NOON + number,
        "id": f"urn:{number}", "topics": ["a", "ü"], "private": False, "type": None, "retry": None, "data_bytes": 3,
    } | chosen  # fmt: skip


def connect(n: int, **chosen: Any) -> dict[str, Any]:
    return {
        "event": "connect", "hub": "h", "epoch": "e", "node": NODE, "number": n, "subscriber": f"urn:{n}",
        "selectors": [{"type": "exact", "pattern": "a"}], "authorised": [], "time": NOON * 1_000 + n, "after": 0,
    } | chosen  # fmt: skip


def disconnect(n: int, **chosen: Any) -> dict[str, Any]:
    return {"event": "disconnect", "node": NODE, "number": n, "time": NOON * 1_000 + 100, "until": 9} | chosen


def end(**chosen: Any) -> dict[str, Any]:
    return {"event": "end", "node": NODE, "time": NOON * 1_000 + 200, "until": 20, "clean": True} | chosen


def gap(**chosen: Any) -> dict[str, Any]:
    return {
        "event": "gap", "node": NODE, "time": NOON * 1_000, "after": 7, "until": None, "hub": "h", "epoch": "e",
        "updates": True, "found": NOON * 1_000 + 300, "cause": "lost updates",
    } | chosen  # fmt: skip


class Log:
    """An event log and its tables."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path / "log"
        self.out = path / "out"
        for name in ("updates", "sessions"):
            (self.path / name).mkdir(parents=True)

    def add(self, name: str, *records: dict[str, Any] | bytes) -> Path:
        """One more closed segment."""
        folder = self.path / name
        segment = folder / f"{len(list(folder.iterdir())):03}.jsonl"
        lines = [one if isinstance(one, bytes) else json.dumps(one, ensure_ascii=False).encode() for one in records]
        segment.write_bytes(b"".join(line + b"\n" for line in lines))
        return segment

    def run(self) -> None:
        tables(self.spark, str(self.path), str(self.out))

    def table(self, name: str, schema: StructType) -> DataFrame:
        return read_table(self.spark, str(self.out / name), schema)

    @property
    def positions(self) -> list[int]:
        return sorted(row["position"] for row in self.table("updates", UPDATES).collect())


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Log:
    return Log(spark, tmp_path)


def in_utc(row: Row) -> dict[str, Any]:
    """Return the values of a row; Spark returns times in the zone of this machine."""
    values = row.asDict(recursive=True)
    return {name: one.astimezone(UTC) if isinstance(one, datetime) else one for name, one in values.items()}


def types_of(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


# -- rows


def test_a_line_becomes_a_row_of_the_schema(log: Log) -> None:
    late = datetime(2023, 11, 14, 23, 59, 59, 999_000, tzinfo=UTC)
    log.add(
        "updates",
        update(1, data="é\n\u2028x", data_bytes=7, type="t", retry=5, presence=False),
        update(2, time=int(late.timestamp() * 1_000), private=True, retry=10**40),
        update(3, time=int(late.timestamp() * 1_000) + 1),
    )
    log.add("sessions", connect(1, time=1_700_000_000_123_457, authorised=[{"type": "mqtt", "pattern": "b/+"}]))
    log.run()
    rows = sorted(log.spark.read.parquet(str(log.out / "updates")).collect(), key=lambda row: row["position"])
    assert types_of(log.spark.read.parquet(str(log.out / "updates")).schema) == types_of(UPDATES)
    assert in_utc(rows[0]) == {
        "update_id": "urn:1", "topics": ["a", "ü"], "private": False, "type": "t", "retry": 5, "data_bytes": 7,
        "data": "é\n\u2028x", "ts": datetime(2023, 11, 14, 22, 13, 20, 1_000, UTC), "position": 1, "epoch": "e",
        "hub": "https://hub.example/.well-known/mercure", "presence": False, "dt": date(2023, 11, 14),
    }  # fmt: skip
    assert (in_utc(rows[1])["ts"], rows[1]["dt"], rows[1]["private"]) == (late, date(2023, 11, 14), True)
    assert rows[1]["retry"] == 2**63 - 1  # N53: any number of milliseconds
    assert rows[2]["dt"] == date(2023, 11, 15)
    assert sorted(path.name for path in (log.out / "updates").glob("dt=*")) == ["dt=2023-11-14", "dt=2023-11-15"]
    [session] = log.spark.read.parquet(str(log.out / "sessions")).collect()
    assert types_of(log.spark.read.parquet(str(log.out / "sessions")).schema) == types_of(SESSIONS)
    assert in_utc(session) == {
        "subscriber_id": 0, "subscriber": "urn:1", "selectors": [{"type": "exact", "pattern": "a"}],
        "authorised": [{"type": "mqtt", "pattern": "b/+"}], "disconnected_at": None, "after": 0, "until": None,
        "connected_from": datetime(2023, 11, 14, 22, 13, 20, 123_457, UTC), "hub": "h", "epoch": "e", "node": NODE,
        "number": 1, "complete": None, "dt": date(2023, 11, 14), "issuer": None, "subject": None, "token_id": None,
        "address": None, "ended_because": None,
    }  # fmt: skip


def test_days_are_in_utc_for_any_time_zone_of_the_session(log: Log) -> None:
    log.add("updates", update(1, time=1_700_006_399_999), update(2, time=1_700_006_400_000))
    log.spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        log.run()
    finally:
        log.spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = {row["position"]: row["dt"] for row in log.table("updates", UPDATES).collect()}
    assert rows == {1: date(2023, 11, 14), 2: date(2023, 11, 15)}


def test_an_export_can_be_read_as_updates(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "exports", tmp_path / "out"
    folder.mkdir()
    entries = [Entry(n, Update(("a",), "é" * n, id=f"urn:{n}", retry=10**30 if n == 2 else None), NOON) for n in (1, 2)]
    with (folder / "a.ndjson").open("wb") as file, transfer.FORMATS["ndjson"].write(file) as write:
        write(Page(entries, presence=frozenset({2})))
    append_updates(spark, str(folder), str(out))
    rows = sorted(read_table(spark, str(out / "updates"), UPDATES).collect(), key=lambda row: row["position"])
    assert [(row["update_id"], row["data"], row["data_bytes"]) for row in rows] == [
        ("urn:1", "é", 2),
        ("urn:2", "éé", 4),
    ]
    assert all(row["hub"] is None and row["epoch"] is None for row in rows)
    assert [row["presence"] for row in rows] == [False, True]


def test_an_empty_event_log_makes_empty_tables(log: Log) -> None:
    for _ in range(2):
        log.run()
    assert log.table("updates", UPDATES).count() == log.table("sessions", SESSIONS).count() == 0
    assert types_of(log.table("updates", UPDATES).schema) == types_of(UPDATES)


def test_a_missing_event_log_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="none/updates does not exist"):
        tables(spark, str(tmp_path / "none"), str(tmp_path / "out"))


# -- each line once


def test_a_file_is_read_once_and_may_be_removed_then(log: Log) -> None:
    first = log.add("updates", update(1), update(2))
    (log.path / "updates" / "x.jsonl.part").write_text(json.dumps(update(99)) + "\n")
    log.add("sessions", connect(1), connect(2))
    log.run()
    log.run()
    assert log.positions == [1, 2]
    first.unlink()
    log.add("updates", b"", update(3), b"  \r")
    log.add("sessions", disconnect(1))
    log.run()
    assert log.positions == [1, 2, 3]
    open_ones = [row["number"] for row in log.table("sessions", SESSIONS).where("disconnected_at is null").collect()]
    assert open_ones == [2]


def test_old_files_are_read_even_after_a_long_pause(log: Log) -> None:
    for age, position in ((0, 1), (40, 2), (0, 3)):
        segment = log.add("updates", update(position))
        moment = segment.stat().st_mtime - age * 86_400
        os.utime(segment, (moment, moment))
        append_updates(log.spark, str(log.path / "updates"), str(log.out))
    assert log.positions == [1, 2, 3]


@pytest.mark.parametrize("told", [True, False], ids=["its rows are in the table", "its rows are files of nobody"])
def test_a_job_killed_before_its_commit_writes_no_row_twice(log: Log, told: bool) -> None:
    for n in range(1, 3):
        log.add("updates", update(n))
        append_updates(log.spark, str(log.path / "updates"), str(log.out))
    forget_last(log.out / "_checkpoints" / "updates" / "commits")
    if not told:
        forget_last(log.out / "updates" / "_spark_metadata")
        assert log.positions == [1]
    log.add("updates", update(3))
    append_updates(log.spark, str(log.path / "updates"), str(log.out))
    assert log.positions == [1, 2, 3]


def forget_last(folder: Path) -> None:
    """Remove the last file of a log, as if the job had been killed before it
    wrote it.
    """
    last = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (folder / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_job_that_fails_between_batches_continues_there(log: Log) -> None:
    for n in range(1, 6):
        os.utime(
            log.add("updates", update(2 * n - 1), update(2 * n)), (NOON // 1_000 + n,) * 2
        )  # they are read in this order
    bad = log.path / "updates" / "003.jsonl"
    good = bad.read_bytes()
    bad.write_bytes(good + b"{")
    os.utime(bad, (NOON // 1_000 + 4,) * 2)
    updates, out = str(log.path / "updates"), str(log.out)
    for _ in range(2):
        with pytest.raises(BadInput, match=r"003\.jsonl: a line is not a record"):
            append_updates(log.spark, updates, out, per_batch=1)
        assert log.positions == [1, 2, 3, 4, 5, 6]
    bad.write_bytes(good)
    append_updates(log.spark, updates, out, per_batch=1)
    assert log.positions == list(range(1, 11))


# -- no line is lost


BAD_UPDATES: list[tuple[dict[str, Any] | bytes, str]] = [
    (b"nonsense", "it is not a JSON object, or more than one"),
    (b"[]", "it is not a JSON object, or more than one"),
    (b"7", "it is not a JSON object, or more than one"),
    (b"null", "it is not a JSON object, or more than one"),
    (json.dumps(update(1)).encode() + b" trailing", "it is not a JSON object, or more than one"),
    (json.dumps(update(1)).encode() * 2, "it is not a JSON object, or more than one"),
    (
        json.dumps(update(1)).encode() + b"," + json.dumps(update(2)).encode(),
        "it is not a JSON object, or more than one",
    ),
    (json.dumps(update(1)).encode()[:-20], "it is not a JSON object, or more than one"),
    (json.dumps(update(1, id="x")).encode().replace(b"x", b"\xff"), "it is not UTF-8"),
    (b"{}", "column time is missing or invalid"),
    (update(1, id=None), "column id is missing or invalid"),
    (update(1, private=None), "column private is missing or invalid"),
    (update(1, private="true"), "column private is of another type"),
    (update(1, topics=None), "column topics is missing or invalid"),
    (update(1, topics=[]), "column topics is missing or invalid"),
    (update(1, topics=["a", None]), "column topics is missing or invalid"),
    (update(1, topics="a"), "column topics is of another type"),
    (update(1, time=1.5), "column time is of another type"),
    (update(1, time=10**16), "column time is missing or invalid"),
    (update(1, time=-1), "column time is missing or invalid"),
    (update(1, position="1"), "column position is of another type"),
    (update(1, position=2**63), "column position is of another type"),
    (update(1, retry="soon"), "column retry is missing or invalid"),
    (update(1, retry=1.5), "column retry is missing or invalid"),
    (update(1, data_bytes=None), "column data_bytes is missing or invalid"),
]
BAD_EVENTS: list[tuple[dict[str, Any] | bytes, str]] = [
    (b"{", "it is not a JSON object, or more than one"),
    (connect(1, event="arrive"), "column event is missing or invalid"),
    (connect(1, event=None), "column event is missing or invalid"),
    (connect(1, node=None), "column node is missing or invalid"),
    (connect(1, number=None), "column number is missing or invalid"),
    (connect(1, number="1"), "column number is of another type"),
    (connect(1, subscriber=None), "column subscriber is missing or invalid"),
    (connect(1, after=None), "column after is missing or invalid"),
    (connect(1, selectors=None), "column selectors is missing or invalid"),
    (connect(1, selectors=[None]), "column selectors is missing or invalid"),
    (connect(1, selectors=[{"type": "exact"}]), "column selectors is missing or invalid"),
    (connect(1, authorised=[{"pattern": "a"}]), "column authorised is missing or invalid"),
    (connect(1, authorised="a"), "column authorised is of another type"),
    (disconnect(1, number=None), "column number is missing or invalid"),
    (disconnect(1, until=None), "column until is missing or invalid"),
    (disconnect(1, time=None), "column time is missing or invalid"),
    (end(until=None), "column until is missing or invalid"),
    (end(clean="yes"), "column clean is of another type"),
    (gap(after=None), "column after is missing or invalid"),
    (gap(found=-1), "column found is missing or invalid"),
]


def test_an_invalid_line_is_reported_with_its_file_and_column(spark: SparkSession, tmp_path: Path) -> None:
    """All lines are in one job, because the fault of a line is a column before it is an
    error.
    """
    for schema, fault, good, cases in (
        (made._UPDATE, made._update_fault(), update(1), BAD_UPDATES),
        (made._EVENT, made._event_fault(), connect(1), BAD_EVENTS),
    ):
        lines = [
            bad if isinstance(bad, bytes) else json.dumps(bad).encode() for bad in (good, *(bad for bad, _ in cases))
        ]
        rows = [(n, bytearray(line), "f") for n, line in enumerate(lines)]
        read = spark.createDataFrame(rows, "n int, value binary, file string")
        parsed = made._parsed(read.selectExpr("n", "cast(value as string) value", "file"), schema, "n")
        found = [row["fault"] for row in parsed.select("n", fault.alias("fault")).orderBy("n").collect()]
        assert found == [None, *(told for _, told in cases)]


@pytest.mark.parametrize("name", ["updates", "sessions"])
def test_a_batch_with_an_invalid_line_writes_nothing(log: Log, name: str) -> None:
    good = {"updates": update(1), "sessions": connect(1)}[name]
    log.add(name, good)
    log.run()
    log.add(name, good | {"position": 2, "number": 2})
    bad = log.add(name, good | {"position": 3, "number": 3}, good | {"time": "then"})
    with pytest.raises(BadInput) as caught:
        log.run()
    assert str(caught.value).startswith(f"file:{bad}: a line is not a record: column time is of another type: {{")
    assert caught.value.__cause__ is None
    assert log.table("updates", UPDATES).count() + log.table("session_events", SESSION_EVENTS).count() == 1
    bad.write_text(json.dumps(good | {"position": 3, "number": 3}) + "\n")
    log.run()
    assert log.table("updates", UPDATES).count() + log.table("session_events", SESSION_EVENTS).count() == 3


def test_a_repeated_update_is_an_error(log: Log) -> None:
    log.add("updates", update(1), update(2), update(1, epoch="f"))
    log.run()
    log.add("updates", update(2), update(3))
    for _ in range(2):
        with pytest.raises(BadInput, match=r"2 have position 2 in epoch e, one of them 'urn:2'"):
            log.run()


# -- sessions

NODES = st.sampled_from("stuvwxyz")
MOMENTS = st.integers(0, 6).map(lambda n: datetime(2026, 1, 1, 23, 59, 59, 999_998, UTC) + timedelta(microseconds=n))
PLACES = st.integers(0, 9)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), NODES, st.integers(0, 5), MOMENTS, PLACES),
        st.tuples(st.just("disconnect"), NODES, st.integers(0, 5), MOMENTS, PLACES),
        st.tuples(st.just("end"), NODES, st.sampled_from([None, False, True]), MOMENTS, PLACES),
        st.tuples(st.just("gap"), NODES, st.none(), MOMENTS, PLACES),
    ),
    max_size=60,  # of many nodes, because a job takes seconds even for one event
    unique_by=lambda event: event[:3] if "connect" in event[0] else event[:2],
)


@settings(max_examples=4, deadline=None)
@given(events=EVENTS)
def test_sessions_agree_with_the_events(spark: SparkSession, events: list[Any]) -> None:
    rows: list[tuple[Any, ...]] = [
        (event, node, number if "connect" in event else None, ts,
         place if event in ("connect", "gap") else None, place if event in ("disconnect", "end") else None,
         *(("h", "e", f"urn:{node}{number}", *[None] * 4, [("exact", "a")], []) if event == "connect" else (None,) * 9),
         None, number if event == "end" else None, None, None, None)
        for event, node, number, ts, place in events
    ]  # fmt: skip
    found = sessions(spark.createDataFrame(rows, SESSION_EVENTS), spark.createDataFrame([], SESSION_IDS))
    assert types_of(found.schema) == types_of(SESSIONS)
    names = ("subscriber_id", "node", "number", "connected_from", "disconnected_at", "after", "until", "complete", "dt")
    assert sorted(tuple(in_utc(row)[name] for name in names) for row in found.collect()) == naive(events)


def naive(events: Sequence[Any]) -> list[tuple[Any, ...]]:
    gone = {(node, number): (ts, place) for event, node, number, ts, place in events if event == "disconnect"}
    ends = {node: (ts, place, bool(clean)) for event, node, clean, ts, place in events if event == "end"}
    rows: list[tuple[Any, ...]] = []
    for event, node, number, ts, after in events:
        if event == "connect":
            until = gone.get((node, number)) or ends.get(node)
            ended = (None, None) if until is None else (max(ts, until[0]), max(after, until[1]))
            complete = None if until is None else (*until, True)[2]
            rows.append((ts.date(), ts, node, number, ended[0], after, ended[1], complete))
    rows.sort(key=lambda row: row[:4])
    return [(id, node, number, ts, ended, after, until, complete, dt) for id, (dt, ts, node, number, ended, after, until, complete) in enumerate(rows)]  # fmt: skip


def test_ids_are_stable_even_if_sessions_of_earlier_days_are_added(log: Log) -> None:
    day = 86_400 * 10**6
    log.add("sessions", *(connect(n, time=NOON * 1_000 - n) for n in range(5)), connect(5, time=NOON * 1_000 + day))
    log.run()
    before = log.table("sessions", SESSIONS).select("subscriber_id", "number", "dt")
    assert [row["number"] for row in before.orderBy("subscriber_id").collect()] == [4, 3, 2, 1, 0, 5]
    kept = log.spark.createDataFrame(before.collect(), before.schema)
    log.add(
        "sessions",
        *(connect(n, time=NOON * 1_000 + 2 * day + n) for n in range(6, 8)),
        connect(8, time=NOON * 1_000 - 9),  # its segment was closed late
        end(time=NOON * 1_000 + 3 * day),
    )
    log.run()
    after = log.table("sessions", SESSIONS)
    assertDataFrameEqual(after.where("number < 6").select("subscriber_id", "number", "dt"), kept)
    assert {row["number"]: row["subscriber_id"] for row in after.where("number > 5").collect()} == {8: 6, 6: 7, 7: 8}
    assert after.where("disconnected_at is null").count() == 0


def test_possible_gaps_are_a_table_that_outlives_the_sessions(log: Log) -> None:
    killed = {"clean": False, "hub": "h", "epoch": "e", "updates": False, "found": NOON * 1_000 + 900}
    log.add("sessions", connect(1, node="b"), disconnect(1, node="b"), connect(2, node="b"), end(node="b", **killed))
    twice = gap(node="c", found=NOON * 1_000 + 400), gap(node="c", found=NOON * 1_000 - 9)  # the clock was set back
    log.add("sessions", connect(1, node="c"), end(node="c"), gap(node="c"), *twice)
    left_out = {"updates": False, "cause": "had no room", "found": None}
    log.add("sessions", gap(node="e", **left_out), disconnect(1, node="e", clean=False), connect(1, node="e"))
    log.add(
        "sessions",
        gap(node="f", **left_out),
        end(node="f"),
        gap(node="g", **left_out),
        gap(node="g", **left_out, after=8),
    )
    log.add("sessions", gap(node="g", **left_out | {"found": NOON * 1_000 + 7}))
    log.add("sessions", gap(node="h", **left_out | {"found": NOON * 1_000 - 9}))
    old = end(node="d")
    del old["clean"]
    log.add("sessions", old)  # an earlier version did not write `clean`
    log.run()
    complete = {(row.node, row.number): row.complete for row in log.table("sessions", SESSIONS).collect()}
    assert complete == {("b", 1): True, ("b", 2): False, ("c", 1): True, ("e", 1): False}
    rows = [in_utc(row) for row in log.table("gaps", GAPS).orderBy("node", "after").collect()]
    noon = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert rows == [
        {
            "hub": "h", "epoch": "e", "node": "b", "ts": noon + timedelta(microseconds=200), "after": 20,
            "found": noon + timedelta(microseconds=900), "updates": False, "cause": "ended uncleanly",
        },
        {
            "hub": "h", "epoch": "e", "node": "c", "ts": noon, "after": 7,
            "found": noon + timedelta(microseconds=400), "updates": True, "cause": "lost updates",
        },
        {
            "hub": None, "epoch": None, "node": "d", "ts": noon + timedelta(microseconds=200), "after": 20,
            "found": noon + timedelta(microseconds=200), "updates": True, "cause": "ended uncleanly",
        },
        *(
            {
                "hub": "h", "epoch": "e", "node": node, "ts": noon, "after": after,
                "found": None if found is None else noon + timedelta(microseconds=found), "updates": False, "cause": "had no room",
            }
            for node, after, found in (("e", 7, None), ("f", 7, 200), ("g", 7, 7), ("g", 8, None), ("h", 7, 0))
        ),
    ]  # fmt: skip
    assert types_of(log.spark.read.parquet(str(log.out / "gaps")).schema) == types_of(GAPS)


def test_a_write_of_sessions_that_fails_loses_none(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def sessions_there() -> list[tuple[int, int]]:
        rows = log.table("sessions", SESSIONS).orderBy("subscriber_id").collect()
        return [(row.subscriber_id, row.number) for row in rows]

    log.add("sessions", connect(1), connect(2))
    log.run()
    log.add("sessions", connect(0, time=NOON * 1_000 - 86_400_000_000), connect(3))
    write, codec = files.write, "spark.sql.parquet.compression.codec"

    def fails(*arguments: Any) -> None:
        log.spark.conf.set(codec, "lzo")  # not available, so the write fails
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", fails)
        try:
            with pytest.raises(Exception, match=r"(?i)lzo"):
                log.run()
        finally:
            log.spark.conf.unset(codec)
    assert sessions_there() == [(0, 1), (1, 2)]
    log.run()
    assert sessions_there() == [(0, 1), (1, 2), (2, 0), (3, 3)]


def test_a_session_has_the_names_that_its_log_has(log: Log) -> None:
    """A log of an earlier version has none, and its rows have nulls."""
    names = {"issuer": "https://issuer.example", "subject": "blake2b:ab", "token_id": None, "address": "192.0.2.1"}
    log.add("sessions", connect(1, **names), connect(2), disconnect(1, reason="kicked"), disconnect(2))
    log.run()
    found = log.table("sessions", SESSIONS).select("number", *names, "ended_because").orderBy("number").collect()
    assert [row.asDict() for row in found] == [
        {"number": 1, **names, "ended_because": "kicked"},
        {"number": 2, **dict.fromkeys(names), "ended_because": None},
    ]

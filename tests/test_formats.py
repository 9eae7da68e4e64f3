"""Files of earlier versions can be read and continued.

Each directory of `formats` is named by its version.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hub.history import open_history
from hub.history.base import Retention
from hub.protocol.updates import Update
from hub.spark.tables import tables as make_tables
from skipfilter.spark.jobs.matching import match
from tests.formats.write import ARRIVAL, BASE_URL, FANOUT, PLACEHOLDER, SUBSCRIBER, UPDATES, moved
from tests.hub.spark.hubs import updates_and_sessions
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = Path(__file__).parent / "formats"
VERSIONS = sorted(path.name for path in FORMATS.glob("[0-9]*"))
HISTORY = [*UPDATES[:3], ARRIVAL, *UPDATES[3:]]


def test_there_is_at_least_one_version() -> None:
    assert "0.1.0" in VERSIONS


@pytest.fixture(params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files of a version."""
    return Path(shutil.copytree(FORMATS / request.param, tmp_path / "written"))


async def check_history(url: str) -> None:
    """The history has every update with its position and time, finds each by its id,
    and continues in the same epoch.
    """
    history: Any = open_history(url, Retention(max_updates=1_000, max_bytes=2**24, max_age=math.inf))
    try:
        epoch = (await history.stats()).epoch
        entries = await history.read(-1)
        assert [entry.update for entry in entries] == HISTORY
        assert [entry.position for entry in entries] == [1, 2, 3, 4, 5]
        assert [await history.find(update.id) for update in HISTORY] == [1, 2, 3, 4, 5]
        times = [entry.time for entry in entries]
        assert 1_700_000_000_000 < times[0] <= times[-1]
        assert await history.present() == [SUBSCRIBER]
        more = Update(("new",), id="urn:new")
        assert [entry.position for entry in await history.append([more])] == [6]
        assert [entry.update for entry in await history.read(5)] == [more]
        assert (await history.stats()).epoch == epoch
    finally:
        await history.aclose()


@pytest.mark.anyio
async def test_a_history_in_sqlite(written: Path) -> None:
    await check_history(f"sqlite:///{written}/log.db")


@pytest.mark.anyio
@pytest.mark.processes
async def test_a_history_in_redis(written: Path) -> None:
    with RedisServer(dump=written / "dump.rdb") as server:
        await check_history(server.url)


PLACES = {(BASE_URL, 0, len(UPDATES))}
"""The hub of each session, and between which places of its log the session was."""


def check_tables(spark: SparkSession, out: Path) -> None:
    """The rows are the updates, and the pipeline computes their receivers."""
    updates, sessions = updates_and_sessions(spark, out)
    rows = updates.orderBy("position").collect()
    assert [
        Update(tuple(row.topics), row.data, row.private, row.update_id, row.type, row.retry) for row in rows
    ] == UPDATES
    assert [row.data_bytes for row in rows] == [len(update.data.encode()) for update in UPDATES]
    assert {(row.hub, row.after, row.until) for row in sessions.collect()} == PLACES
    found = match(updates, sessions, "fanout", by="position", base_url=BASE_URL).collect()
    assert {row.update_id: row.fanout for row in found} == FANOUT


def test_an_event_log_becomes_tables(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    make_tables(spark, str(written / "events"), str(tmp_path / "out"))
    check_tables(spark, tmp_path / "out")


def test_tables_are_read_and_continued(spark: SparkSession, written: Path) -> None:
    moved(written / "tables", PLACEHOLDER, written.as_uri())
    check_tables(spark, written / "tables")
    fanout = spark.read.parquet(str(written / "tables" / "fanout")).collect()
    assert {row.update_id: row.fanout for row in fanout} == FANOUT
    # Old files are not read again, and new ones are added.
    segment = min((written / "events" / "updates").iterdir())
    record = json.loads(segment.read_text("utf-8").splitlines()[0])
    line = json.dumps(record | {"position": 5, "id": "urn:new"})
    segment.with_name("20990101T000000.000000Z-new.jsonl").write_text(line + "\n")
    make_tables(spark, str(written / "events"), str(written / "tables"))
    updates, sessions = updates_and_sessions(spark, written / "tables")
    ids = [row.update_id for row in updates.collect()]
    assert sorted(ids) == sorted([*(update.id for update in UPDATES), "urn:new"])
    assert {(row.hub, row.after, row.until) for row in sessions.collect()} == PLACES

"""`skipfilter history` exports and imports updates, and never takes an incomplete file for a
complete one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from codecs import BOM_UTF8
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from hub.errors import HistoryUnavailable
from hub.history import open_history, transfer
from hub.history.base import EARLIEST, Entry, Retention
from hub.history.codec import record
from hub.history.memory import MemoryHistory
from hub.history.sqlite.history import SqliteHistory
from hub.protocol.topics import FORBIDDEN
from hub.protocol.updates import Update
from hub.settings import settings_from_environment
from hub.settings.settings import SERVER_DEFAULTS
from skipfilter.text import INSTALL
from tests.hub.commands import environment, invoke
from tests.hub.commands import run as run_command
from tests.redis_server import RedisServer, free_port
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typer.testing import Result

    from hub.history.base import History, Page
    from tests.conftest import HubProcess

NOON = 1_700_000_000_000
FORMATS = tuple(transfer.FORMATS)
SECRET = "s3cret"


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def made(count: int, **chosen: Any) -> list[Entry]:
    """Return entries with times a second apart and one alternate topic."""
    return [
        Entry(
            n, Update((f"https://example.com/{n}", "all"), f"data {n}", **{"id": f"urn:{n}"} | chosen), NOON + n * 1_000
        )
        for n in range(1, count + 1)
    ]


def sqlite(path: Path) -> str:
    return f"sqlite:///{path}?synchronous=normal"


async def fill_log(url: str, entries: Sequence[Entry]) -> None:
    async with aclosing(transfer.open_log(url, create=True)) as log:
        for start in range(0, len(entries) or 1, 5_000):
            await log.load(entries[start : start + 5_000])


def fill(url: str, entries: Sequence[Entry]) -> None:
    asyncio.run(fill_log(url, entries))


def entries_of(url: str) -> list[Entry]:
    async def read() -> list[Entry]:
        entries: list[Entry] = []
        async with aclosing(transfer.open_log(url)) as log:
            while page := await log.read(entries[-1].position if entries else EARLIEST):
                entries += page
        return entries

    return asyncio.run(read())


def run(*arguments: object, **variables: str | None) -> Result:
    """Run `skipfilter history` in this process."""
    return invoke("history", *arguments, **variables)


def told(ended: Result, status: int) -> str:
    """Return the error message; assert that it is the only output."""
    assert (ended.exit_code, ended.stdout) == (status, ""), ended.output
    assert ended.stderr.startswith("skipfilter: ")
    return ended.stderr.removeprefix("skipfilter: ").strip()


def none(_: object) -> None:
    """Ignore the progress."""


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The URL of a history with 300 updates."""
    url = sqlite(tmp_path / "mercure.db")
    fill(url, made(300))
    return url


# -- the choice of the history


def test_a_history_in_memory_is_refused() -> None:
    for command in (["stats"], ["prune", "--keep-updates", "1"], ["export", "x.jsonl"], ["backup", "x"]):
        assert "belongs to one process" in told(run(*command, "--url", "memory://"), 2)
        assert "belongs to one process" in told(run(*command, HUB_HISTORY_URL="memory://"), 2)


def test_a_missing_file_is_refused_and_not_created(tmp_path: Path) -> None:
    path, target = tmp_path / "none.db", tmp_path / "copy.ndjson"
    for command in (["stats"], ["prune", "--keep-updates", "1"], ["export", target], ["backup", target]):
        assert f"there is no history at {path}: name one" in told(run(*command, "--url", f"sqlite:///{path}"), 2)
    assert list(tmp_path.iterdir()) == []


def test_without_a_url_the_default_history_of_a_hub_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(SERVER_DEFAULTS["history_url"], made(3))
    assert "Updates   3\n" in run("stats").stdout
    monkeypatch.delenv("HUB_HISTORY_URL", raising=False)
    hub = settings_from_environment(anonymous=True)
    assert hub.history_url == SERVER_DEFAULTS["history_url"]


def test_a_file_that_is_not_a_history_is_reported(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    assert told(run("stats", "--url", f"sqlite:///{tmp_path}/text"), 2).startswith(
        f"history_url: {tmp_path}/text: this file is not a database"
    )
    assert "begins with 'amqp', which is none of memory, " in told(run("stats", "--url", "amqp://x"), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_an_unavailable_history_is_reported_without_its_password() -> None:
    url = f"redis://me:{SECRET}@127.0.0.1:{free_port()}"
    for command, doing in ((["stats"], "read"), (["prune", "--keep-updates", "1"], "write")):
        message = told(run(*command, HUB_HISTORY_URL=url), 1)
        assert message.startswith(f"cannot {doing} the history: redis://127.0.0.1:")
        assert SECRET not in message


def test_opening_a_history_trims_nothing(monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    opened: list[Retention] = []

    def open_with(url: str, retention: Retention) -> History:
        opened.append(retention)
        return open_history(url, retention)

    monkeypatch.setattr(transfer, "open_history", open_with)
    fill(log, [replace(entry, time=0) for entry in made(10)])
    assert "Updates   310\n" in run("stats", "--url", log).stdout
    assert set(opened) == {Retention(sys.maxsize, sys.maxsize, math.inf, sys.maxsize, sys.maxsize)}


# -- stats


def test_stats_are_for_people_and_for_programs(tmp_path: Path, log: str) -> None:
    shown = run("stats", "--url", log)
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = dict(re.findall(r"^(\w+) +(.*)$", shown.stdout, re.MULTILINE))
    assert list(lines) == ["Updates", "Oldest", "Newest", "Rate", "Bytes", "Presence", "Epoch", "Present"]
    assert lines["Updates"] == "300"
    assert re.fullmatch(r"2023-11-14 22:13:21 UTC, [\d,]+\.\d d ago, urn:1", lines["Oldest"])
    assert lines["Newest"].endswith(", urn:300")
    assert lines["Rate"] == "3,600.0 an hour, 86,400.0 a day"
    assert re.fullmatch(r"\d+\.\d kB, which take \d+\.\d kB", lines["Bytes"])
    assert lines["Presence"] == "0 further updates, of 0 bytes"
    found = json.loads(run("stats", "--url", log, "--json").stdout)
    assert (found["presence_updates"], found["presence_bytes"]) == (0, 0)
    assert found["oldest"] == {"position": 1, "time": NOON + 1_000, "id": "urn:1"}
    assert (found["updates"], found["newest"]["id"], found["present"]) == (300, "urn:300", 0)
    assert found["epoch"] == lines["Epoch"]
    assert found["size"] >= os.path.getsize(tmp_path / "mercure.db")


def test_stats_of_an_empty_log_and_of_a_single_update(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "new.db")
    fill(url, [])
    assert "Updates   0\nBytes     0 bytes, " in run("stats", "--url", url).stdout
    found = json.loads(run("stats", "--url", url, "--json").stdout)
    assert (found["updates"], found["oldest"], found["newest"]) == (0, None, None)
    fill(url, made(1))
    assert "Rate" not in run("stats", "--url", url).stdout


def test_the_history_is_that_of_the_settings(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "other.db")
    fill(url, made(7))
    (tmp_path / "url").write_text(f"{url}\n")
    (tmp_path / "hub.toml").write_text(f'history_url = "{url}"\n')
    (tmp_path / "env").write_text(f"HUB_HISTORY_URL={url}\n")
    for options, variables in (
        ([], {"HUB_HISTORY_URL_FILE": str(tmp_path / "url")}),
        (["--config", tmp_path / "hub.toml"], {}),
        (["--env-file", tmp_path / "env"], {}),
    ):
        assert "Updates   7\n" in run(*options, "stats", **variables).stdout
    assert told(run("stats", HUB_HISTRY_URL="x"), 2) == "HUB_HISTRY_URL is not a setting: did you mean HUB_HISTORY_URL?"


# -- prune


def test_prune_removes_the_oldest_in_portions(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "mercure.db")
    fill(url, made(10_000))
    steps: list[transfer.Step] = []

    async def prune() -> int:
        async with aclosing(transfer.open_log(url)) as log:
            return await transfer.prune(log, max_updates=10, note=steps.append)

    assert asyncio.run(prune()) == 9_990
    assert [step.updates for step in steps] == [4_000, 8_000, 9_990]
    assert [entry.position for entry in entries_of(url)] == list(range(9_991, 10_001))


def test_prune_prints_the_rest(log: str) -> None:
    pruned = run("prune", "--keep-updates", "100", "--url", log)
    assert (pruned.exit_code, pruned.stderr) == (0, "")
    assert pruned.stdout == "forgot 200 updates; 100 are left, from 2023-11-14 22:16:41 UTC on\n"
    size = json.loads(run("stats", "--url", log, "--json").stdout)["bytes"]
    assert run("prune", "--keep-bytes", f"{size // 2}B", "--url", log).stdout.startswith("forgot 50 updates; 50 ")
    assert run("prune", "--keep-age", "1h", "--url", log).stdout.startswith("forgot 49 updates; 1 are left")
    assert [entry.update.id for entry in entries_of(log)] == ["urn:300"]


@pytest.mark.parametrize("time", [253_402_300_799_999, 2**53, 2**63 - 1])
def test_a_history_with_a_time_after_the_year_9999_can_be_looked_at(tmp_path: Path, time: int) -> None:
    """An older version has imported such times."""
    log = sqlite(tmp_path / "log")
    fill(log, [replace(entry, time=time) for entry in made(3)])
    shown = "9999-12-31 23:59:59 UTC" if time < 2**48 else f"{time:,} ms after 1970"
    assert shown in run("stats", "--url", log).stdout
    assert f"2 are left, from {shown} on" in run("prune", "--url", log, "--keep-updates", "2").stdout
    assert [entry.time for entry in entries_of(log)] == [time] * 2


def test_prune_needs_a_valid_bound(log: str) -> None:
    assert "--keep-updates 100000, --keep-bytes 500MB, --keep-age 30d" in told(run("prune", "--url", log), 2)
    assert "--keep-age: '5x' is not a duration, as in" in told(run("prune", "--keep-age", "5x", "--url", log), 2)
    assert "'5x' is not a size, as in" in told(run("prune", "--keep-bytes", "5x", "--url", log), 2)
    assert run("prune", "--keep-updates", "0", "--url", log).exit_code == 2
    assert len(entries_of(log)) == 300


# -- export and import

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=FORBIDDEN), min_size=1, max_size=9)
ENTRIES = st.lists(
    st.builds(
        Entry,
        st.just(0),
        st.builds(
            Update,
            st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
            st.text(max_size=20),
            private=st.booleans(),
            id=TEXTS,
            type=st.none() | TEXTS,
            retry=st.none() | st.integers(0, 2**63 - 1),
        ),
        st.integers(0, 253_402_300_799_999),
    ),
    max_size=9,
)
ODD = '\0\r\n\x85\u2028\ufeff"\\\U0001f600'


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=20)
@given(entries=ENTRIES)
@example(
    entries=[Entry(0, Update(("a",), ODD, id="b", type=None, retry=2**63 - 1), 0), Entry(0, Update(("a", "a"), ""))]
)
def test_export_and_import_keep_every_field(format: str, entries: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        here, there, file = sqlite(Path(directory, "a")), sqlite(Path(directory, "b")), Path(directory, f"x.{format}")
        fill(here, entries)
        assert run("export", file, "--url", here).exit_code == 0
        done = run("import", file, "--url", there)
        assert (done.exit_code, done.stdout) == (0, f"imported {len(entries)} updates\n"), done.output
        assert entries_of(there) == entries_of(here) == [replace(e, position=n) for n, e in enumerate(entries, 1)]


def test_a_byte_order_mark_before_the_first_line_is_left_out(tmp_path: Path) -> None:
    here, there, file = sqlite(tmp_path / "here"), sqlite(tmp_path / "there"), tmp_path / "x.jsonl"
    fill(here, made(2))
    assert run("export", file, "--url", here).exit_code == 0
    file.write_bytes(BOM_UTF8 + file.read_bytes())
    assert run("import", file, "--url", there).output == "imported 2 updates\n"
    assert entries_of(there) == entries_of(here)


def test_a_line_has_the_fields_of_the_record(tmp_path: Path) -> None:
    url, file = sqlite(tmp_path / "log"), tmp_path / "x.jsonl"
    fill(url, [Entry(0, Update(("a", "é"), "\x00\n", private=True, id="b", type="c", retry=7), NOON), *made(1)])
    exported = run("export", file, "--url", url)
    assert (exported.exit_code, exported.stdout, exported.stderr) == (0, "", "exported 2 updates\n")
    assert file.read_bytes().splitlines(keepends=True) == [
        b'{"position":1,"time":1700000000000,"id":"b","topics":["a","\xc3\xa9"],"private":true,"type":"c","retry":7,'
        b'"data":"\\u0000\\n","presence":false}\n',
        b'{"position":2,"time":1700000001000,"id":"urn:1","topics":["https://example.com/1","all"],"private":false,'
        b'"type":null,"retry":null,"data":"data 1","presence":false}\n',
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_presence_updates_stay_presence_updates(tmp_path: Path, format: str) -> None:
    here, there, file = sqlite(tmp_path / "here"), sqlite(tmp_path / "there"), tmp_path / f"x.{format}"
    entries = made(400)
    presence = {entry.position for entry in entries if entry.position % 3 == 0 or 200 <= entry.position < 300}

    async def fill_both_kinds() -> None:
        async with aclosing(transfer.open_log(here, create=True)) as log:
            await log.load(entries, presence)

    asyncio.run(fill_both_kinds())
    assert run("export", file, "--url", here).exit_code == 0
    assert run("import", file, "--url", there).output == "imported 400 updates\n"
    assert entries_of(there) == entries_of(here) == entries
    counts = json.loads(run("stats", "--url", there, "--json").stdout)
    assert (counts["updates"], counts["presence_updates"]) == (400 - len(presence), len(presence))
    # So they do not displace published ones.
    assert run("prune", "--url", there, "--keep-updates", 400 - len(presence)).output.startswith("forgot 0 updates")


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_of_an_earlier_version_has_only_published_updates(tmp_path: Path, format: str) -> None:
    url, file = sqlite(tmp_path / "log"), tmp_path / f"x.{format}"
    if format == "parquet":
        parquet.write_table(columns(), file)
    else:
        file.write_text("".join(json.dumps(LINE | {"position": n}) + "\n" for n in (1, 2)))
    assert run("import", file, "--url", url).output == "imported 2 updates\n"
    assert json.loads(run("stats", "--url", url, "--json").stdout)["presence_updates"] == 0


def test_parquet_has_columns_of_these_types_in_groups_of_rows(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "ROW_GROUP", 110)
    file = tmp_path / "x.parquet"
    assert run("export", file, "--url", log).exit_code == 0
    rows = parquet.ParquetFile(file)
    assert str(rows.schema_arrow) == (
        "position: int64 not null\ntime: timestamp[ms, tz=UTC] not null\nid: string not null\n"
        "topics: list<element: string> not null\n  child 0, element: string\nprivate: bool not null\n"
        "type: string\nretry: int64\ndata: string not null\npresence: bool not null"
    )
    groups = [rows.metadata.row_group(n) for n in range(rows.metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [110, 110, 80]
    assert {group.column(n).compression for group in groups for n in range(9)} == {"ZSTD"}
    assert rows.read().to_pylist() == [
        record(entry) | {"time": datetime.fromtimestamp(entry.time / 1_000, UTC), "presence": False}
        for entry in entries_of(log)
    ]


def test_large_updates_make_small_groups_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, file = sqlite(tmp_path / "log"), tmp_path / "x.parquet"
    large = [replace(entry, update=replace(entry.update, data="x" * 10_000)) for entry in made(30)]
    fill(url, large)
    monkeypatch.setattr(transfer, "ROW_GROUP_BYTES", 150_000)
    monkeypatch.setattr(transfer, "BATCH_BYTES", 150_000)
    assert run("export", file, "--url", url).exit_code == 0
    metadata = parquet.ParquetFile(file).metadata
    assert all(metadata.row_group(n).num_rows < 10 for n in range(metadata.num_row_groups))
    steps: list[transfer.Step] = []

    async def load() -> int:
        entries = (transfer.Read(n / 30, entry, presence=False) for n, entry in enumerate(large, 1))
        async with aclosing(MemoryHistory(Retention(max_updates=100, max_bytes=2**30))) as log:
            return await transfer.load(log, entries, note=steps.append)

    assert asyncio.run(load()) == 30
    assert next(step.updates for step in steps) < 10
    assert steps[-1] == (30, 1.0, 30)


def test_an_export_after_an_id_begins_with_the_next_one(tmp_path: Path, log: str) -> None:
    for id, first in (("urn:130", 131), ("urn:299", 300), ("urn:300", None)):
        file = tmp_path / f"after {id}.ndjson"
        assert run("export", file, "--after", id, "--url", log).exit_code == 0
        positions = [json.loads(line)["position"] for line in file.read_bytes().splitlines()]
        assert positions == ([] if first is None else list(range(first, 301)))
    assert told(run("export", tmp_path / "x.ndjson", "--after", "urn:0", "--url", log), 1) == (
        "id 'urn:0' is not in the history"
    )
    assert not (tmp_path / "x.ndjson").exists()


@pytest.mark.processes
def test_export_and_import_work_through_a_pipe(tmp_path: Path, log: str) -> None:
    exported = subprocess.run(
        [sys.executable, "-m", "hub", "history", "export", "-"],
        env=environment(HUB_HISTORY_URL=log),
        capture_output=True,
        timeout=HANG,
        check=True,
    )
    assert exported.stderr == b"exported 300 updates\n"
    there = sqlite(tmp_path / "there")
    imported = subprocess.run(
        [sys.executable, "-m", "hub", "history", "import", "-", "--url", there],
        env=environment(),
        input=exported.stdout,
        capture_output=True,
        timeout=HANG,
        check=True,
    )
    assert (imported.stdout, imported.stderr) == (b"imported 300 updates\n", b"")
    assert entries_of(there) == entries_of(log)


@pytest.mark.processes
def test_a_reader_of_the_pipe_may_stop_early(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "log")
    fill(url, made(3_000))
    export = subprocess.Popen(
        [sys.executable, "-m", "hub", "history", "export", "-"],
        env=environment(HUB_HISTORY_URL=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert export.stdout is not None
    assert export.stdout.read(10) == b'{"position'
    export.stdout.close()
    assert export.stderr is not None
    assert export.stderr.read() == b"skipfilter: [Errno 32] Broken pipe\n"
    export.stderr.close()
    assert export.wait(HANG) == 1


def test_the_suffix_or_an_option_selects_the_format(tmp_path: Path, log: str) -> None:
    for command in ("export", "import"):
        message = told(run(command, tmp_path / "x.csv", "--url", log), 2)
        assert message == f"{tmp_path}/x.csv does not end in .ndjson, .jsonl or .parquet: name the format with --format"
        assert "Parquet" in told(run(command, "-", "--format", "parquet", "--url", log), 2)
    assert run("export", tmp_path / "x.csv", "--format", "parquet", "--url", log).exit_code == 0
    there = sqlite(tmp_path / "there")
    assert run("import", tmp_path / "x.csv", "--format", "parquet", "--url", there).exit_code == 0
    assert entries_of(there) == entries_of(log)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = told(run("export", tmp_path / "x.parquet", "--url", log), 2)
    assert message == f"Parquet needs pyarrow: {INSTALL.format(extra='parquet')}"
    assert [path.name for path in tmp_path.iterdir()] == ["mercure.db"]


# -- backups in a directory


def test_nightly_backups_are_named_by_the_time_and_old_ones_are_removed(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "history-notes.db").write_text("mine")
    (folder / "other.db").write_text("mine")
    for night in range(1, 6):
        monkeypatch.setattr("time.gmtime", lambda night=night: time.struct_time((2026, 12, night, 3, 15, 0, 0, 0, 0)))
        done = run("backup", folder, "--keep", "3", "--url", log)
        assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [f"removed {folder}/history-2026-12-02T031500Z.db"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"history-2026-12-0{night}T031500Z.db" for night in (3, 4, 5)),
        "history-notes.db",
        "other.db",
    ]
    newest = sqlite(folder / "history-2026-12-05T031500Z.db")
    assert "Updates   300\n" in run("stats", "--url", newest).stdout


def test_a_new_backup_stays_although_others_claim_to_be_newer(tmp_path: Path, log: str) -> None:
    future = tmp_path / "history-2099-01-01T000000Z.db"
    future.write_text("of a time when the clock was wrong")
    done = run("backup", tmp_path, "--keep", "1", "--url", log)
    assert done.stdout.splitlines()[1:] == [f"removed {future}"]
    [copy] = tmp_path.glob("history-*.db")
    assert str(copy) in done.stdout


def test_a_backup_that_fails_removes_nothing(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    monkeypatch.setattr("time.gmtime", lambda: time.struct_time((2026, 12, 1, 3, 15, 0, 0, 0, 0)))
    for status in (0, 2):  # the second one has the same name
        assert run("backup", folder, "--keep", "1", "--url", log).exit_code == status
    assert [path.name for path in folder.iterdir()] == ["history-2026-12-01T031500Z.db"]
    assert told(run("backup", tmp_path / "x.db", "--keep", "1", "--url", log), 2).startswith(
        "--keep is for a directory"
    )


# -- incomplete files


def test_an_existing_file_is_not_overwritten(tmp_path: Path, log: str) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text("mine")
    for command in ("export", "backup"):
        assert told(run(command, file, "--url", log), 2) == f"{file} already exists: name a new file"
    assert file.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mercure.db", "x.ndjson"]


HALFWAY = """
import sys, time
from hub.__main__ import main
from hub.history import transfer

def stop(entry):
    if entry.position == 250:
        print("halfway", flush=True)
        time.sleep(99)
    return record(entry)

record, transfer.codec.record = transfer.codec.record, stop
main(["history", "export", sys.argv[1]])
"""


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.processes
def test_an_export_that_is_killed_leaves_no_file(tmp_path: Path, log: str, format: str) -> None:
    file = tmp_path / f"x.{format}"
    export = subprocess.Popen(
        [sys.executable, "-c", HALFWAY, file], env=environment(HUB_HISTORY_URL=log), stdout=subprocess.PIPE
    )
    assert export.stdout is not None
    assert export.stdout.readline() == b"halfway\n"
    export.kill()
    assert export.wait(HANG) == -signal.SIGKILL
    export.stdout.close()
    assert sorted(path.name for path in tmp_path.iterdir() if "mercure" not in path.name) == [f"{file.name}.part"]
    assert run("export", file, "--url", log).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mercure.db", file.name]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(SqliteHistory):
        async def read(self, after: int) -> Page:
            if after != EARLIEST:
                raise OSError("No space left on device")
            return await super().read(after)

    monkeypatch.setattr(
        transfer, "open_log", lambda url, create=False: Full(tmp_path / "mercure.db", Retention(9**9, 9**9))
    )
    for format in FORMATS:
        assert told(run("export", tmp_path / f"x.{format}", "--url", log), 1) == "No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["mercure.db"]


FULL = """
import resource, signal, sys
from hub.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
main(["history", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", [["export", "x.ndjson"], ["export", "x.parquet"], ["backup", "x.db"]])
@pytest.mark.processes
def test_an_export_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path, log: str, command: list[str]) -> None:
    fill(log, [replace(entry, update=replace(entry.update, data=os.urandom(1_000).hex())) for entry in made(4_000)])
    ended = subprocess.run(
        [sys.executable, "-c", FULL, *command],
        env=environment(HUB_HISTORY_URL=log, PYTHONPATH=str(Path(__file__).parents[3])),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("skipfilter: ")
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"mercure.db"}


def test_only_the_owner_can_read_an_export_or_backup(tmp_path: Path, log: str) -> None:
    for command, name in (("export", "x.ndjson"), ("export", "x.parquet"), ("backup", "x.db")):
        assert run(command, tmp_path / name, "--url", log).exit_code == 0
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


class Forgetful(MemoryHistory):
    """A history that forgets all but 10 updates before its second page is read."""

    async def read(self, after: int) -> Page:
        if after != EARLIEST:
            await self.prune(max_updates=10, max_bytes=2**30, max_age=math.inf)
        return await super().read(after)


def test_entries_that_are_trimmed_during_an_export_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filled(Forgetful):
        async def stats(self) -> Any:
            if not self._entries:
                await self.load(made(300))
            return await super().stats()

    monkeypatch.setattr(transfer, "open_log", lambda url, create=False: Filled(Retention(10_000, 2**30)))
    file = tmp_path / "x.ndjson"
    exported = run("export", file)
    monkeypatch.undo()
    assert (exported.exit_code, exported.stderr) == (
        1,
        "exported 138 updates\nskipfilter: positions 129 to 290 are missing: the history forgot them before they were read\n",
    )
    positions = [json.loads(line)["position"] for line in file.read_bytes().splitlines()]
    assert positions == [*range(1, 129), *range(291, 301)]
    there = sqlite(tmp_path / "there")
    assert run("import", file, "--url", there).exit_code == 0
    assert [entry.update.id for entry in entries_of(there)] == [f"urn:{position}" for position in positions]


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("when", ["before it reads", "when a page is written"])
def test_a_change_of_the_epoch_during_an_export_is_an_error(tmp_path: Path, count: int, when: str) -> None:
    path = tmp_path / "log"
    fill(sqlite(path), made(count))

    def change(_: object = None) -> None:
        path.rename(tmp_path / "old")
        asyncio.run(fill_log(sqlite(path), made(400))) if when == "before it reads" else path.touch()

    class Changing(SqliteHistory):
        async def read(self, after: int) -> Page:
            if when == "before it reads" and after == EARLIEST:
                await asyncio.to_thread(change)
            return await super().read(after)

    async def export() -> None:
        async with aclosing(Changing(path, Retention(max_updates=9**9, max_bytes=9**9))) as log:
            write = none if when == "before it reads" else change
            await transfer.export(log, write, note=none)

    with pytest.raises(HistoryUnavailable) as raised:
        asyncio.run(export())
    assert raised.value.reason == "it is in another epoch since the export began; export again"


# -- lines that cannot be imported

LINE = {
    "position": 2, "time": NOON, "id": "b", "topics": ["a"], "private": False, "type": None, "retry": None, "data": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "the line: Invalid JSON: EOF while parsing"),
        ("[]", "the line: Input should be an object"),
        ({"position": 1}, "position 1 comes after 1"),
        ({"position": 0}, "position 0 comes after 1"),
        ({"position": -1}, "position: Input should be greater than or equal to 0"),
        ({"position": True}, "position: Input should be a valid integer"),
        ({"position": 2**63}, "position: Input should be less than 9223372036854775808"),
        ({"position": "2"}, "position: Input should be a valid integer"),
        ({"time": 1.5}, "time: Input should be a valid integer"),
        ({"time": 253_402_300_800_000}, "time: Input should be less than 253402300800000"),
        ({"id": 7}, "id: Input should be a valid string"),
        ({"id": ""}, "id: String should have at least 1 character"),
        ({"id": "a\nevent: x"}, r"id 'a\nevent: x' contains the control, format or surrogate character U+000A"),
        ({"type": "a\r"}, r"type 'a\r' contains the control"),
        ({"topics": "abc"}, "topics: Input should be a valid array"),
        ({"topics": []}, "topics: List should have at least 1 item"),
        ({"topics": ["a", 1]}, "topics.1: Input should be a valid string"),
        ({"topics": ["a", "\0"]}, r"topic '\x00' contains the control"),
        ({"private": 1}, "private: Input should be a valid boolean"),
        ({"retry": -1}, "retry: Input should be greater than or equal to 0"),
        ({"retry": 2**63}, "retry: Input should be less than"),
        ({"data": None}, "data: Input should be a valid string"),
        ({"data": "\ud800"}, "the line: Invalid JSON: "),
        (json.dumps({name: LINE[name] for name in LINE if name != "data"}), "data: Field required"),
        (b"\xff", "the line: Invalid JSON: "),
    ],
)
def test_an_invalid_line_is_named_and_nothing_is_imported(
    tmp_path: Path, line: bytes | str | dict[str, object], reason: str
) -> None:
    text = json.dumps(LINE | line) if isinstance(line, dict) else line
    good, bad = json.dumps(LINE | {"position": 1}).encode(), text.encode() if isinstance(text, str) else text
    file, there = tmp_path / "updates.ndjson", sqlite(tmp_path / "there")
    file.write_bytes(good + b"\n\n" + bad)
    message = told(run("import", file, "--url", there), 1)
    assert message.startswith(f"{file} line 3: {reason}")
    assert entries_of(there) == []
    file.write_bytes(good + b"\n\n" + json.dumps(LINE).encode())
    assert run("import", file, "--url", there).stdout == "imported 2 updates\n"


@pytest.mark.processes
def test_after_an_error_a_pipe_is_imported_up_to_it_and_a_file_not_at_all(tmp_path: Path) -> None:
    there = sqlite(tmp_path / "there")
    lines = [json.dumps(record(entry)) for entry in made(2_100)]
    ended = subprocess.run(
        [sys.executable, "-m", "hub", "history", "import", "-", "--url", there],
        env=environment(),
        input="\n".join([*lines, "{"]),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("skipfilter: stdin line 2101: the line: Invalid JSON")
    assert ended.stderr.endswith("; 2,000 updates from before it are in the history\n")
    assert len(entries_of(there)) == 2_000
    file, nothing = tmp_path / "x.ndjson", sqlite(tmp_path / "nothing")
    file.write_text("\n".join([*lines, "{"]))
    assert told(run("import", file, "--url", nothing), 1).endswith("line 1 column 1")
    assert entries_of(nothing) == []


def test_import_into_a_history_with_updates_needs_an_option(tmp_path: Path, log: str) -> None:
    file = tmp_path / "x.ndjson"
    run("export", file, "--url", log)
    assert told(run("import", file, "--url", log), 2) == "the history already has updates: use --append to add to them"
    assert len(entries_of(log)) == 300
    assert run("import", file, "--append", "--url", log).stdout == "imported 300 updates\n"
    first, second = entries_of(log)[:300], entries_of(log)[300:]
    assert [replace(entry, position=entry.position + 300) for entry in first] == second


def columns(**changed: Any) -> pyarrow.Table:
    table = pyarrow.Table.from_pylist([LINE | {"position": 1}, LINE])
    for name, column in changed.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (columns().drop_columns(["id", "data"]), ": it has no column id, data"),
        (columns(data=pyarrow.array(["x", None])), " row 2: data: Input should be a valid string"),
        (columns(position=pyarrow.array([2, 2])), " row 2: position 2 comes after 2"),
        (columns(time=pyarrow.array(["x", "y"])), ": Failed to parse string: "),
        (columns(topics=pyarrow.array(["x", "y"])), ": Unsupported cast"),
        (columns(id=pyarrow.array(["x", "\n"])), r" row 2: id '\n' contains the control"),
    ],
)
def test_an_invalid_row_is_named(tmp_path: Path, table: pyarrow.Table, reason: str) -> None:
    file, there = tmp_path / "updates.parquet", sqlite(tmp_path / "there")
    parquet.write_table(table, file)
    assert told(run("import", file, "--url", there), 1).startswith(f"{file}{reason}")
    assert entries_of(there) == []


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, log: str) -> None:
    file, there = tmp_path / "updates.parquet", sqlite(tmp_path / "there")
    file.write_bytes(b"{}" * 100)
    assert told(run("import", file, "--url", there), 1).startswith(f"{file}: Parquet magic bytes not found")
    assert run("export", tmp_path / "x.parquet", "--url", log).exit_code == 0
    content = bytearray((tmp_path / "x.parquet").read_bytes())
    content[100:200] = bytes(100)
    file.write_bytes(content)
    assert told(run("import", file, "--url", there), 1).startswith(f"{file}: ")
    assert told(run("import", tmp_path / "none.parquet", "--url", there), 1).startswith("[Errno 2] No such file")


def test_parquet_may_have_other_time_units(tmp_path: Path) -> None:
    file = tmp_path / "updates.parquet"
    for n, unit in enumerate((pyarrow.timestamp("us"), pyarrow.timestamp("ns", "UTC"), pyarrow.int64())):
        times = pyarrow.array([NOON, NOON + 1]).cast(pyarrow.timestamp("ms", getattr(unit, "tz", None))).cast(unit)
        parquet.write_table(columns(time=times), file)
        there = sqlite(tmp_path / str(n))
        assert run("import", file, "--url", there).stdout == "imported 2 updates\n"
        assert [entry.time for entry in entries_of(there)] == [NOON, NOON + 1]


# -- with a running hub


def test_an_export_while_a_hub_writes_has_no_gap(tmp_path: Path, start_hub: Callable[..., HubProcess]) -> None:
    url = f"sqlite:///{tmp_path}/mercure.db"
    hub = start_hub(HUB_HISTORY_URL=url)
    publisher = (
        "import httpx2, itertools, json\n"
        f"with httpx2.Client(headers={{'Authorization': 'Bearer {hub.token}', 'Content-Type': 'application/x-ndjson'}}) as c:\n"
        "    for n in itertools.count():\n"
        "        lines = [json.dumps({'topic': 'a', 'data': str(n * 100 + i)}) for i in range(100)]\n"
        f"        c.post('{hub.url}', content='\\n'.join(lines)).raise_for_status()\n"
        "        print(n * 100 + 100, flush=True)\n"
    )
    publishing = subprocess.Popen([sys.executable, "-c", publisher], stdout=subprocess.PIPE, text=True)
    assert publishing.stdout is not None
    try:
        for n, suffix in itertools.product(range(3), transfer.FORMATS):
            acknowledged = int(publishing.stdout.readline())
            file = tmp_path / f"{n}.{suffix}"
            exported = run("export", file, "--url", url)
            assert exported.exit_code == 0, exported.output
            with file.open("rb") as source:
                entries = [found.entry for found in transfer.read("x", suffix, source)]
            assert [int(entry.update.data) for entry in entries] == list(range(len(entries)))
            assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))
            assert len(entries) >= acknowledged
        before = len(entries)
        assert publishing.poll() is None
        pruned = run("prune", "--keep-updates", "50", "--url", url)
        assert int(pruned.stdout.split()[1].replace(",", "")) >= before - 50
        assert run("backup", tmp_path / "copy.db", "--url", url).exit_code == 0
        copied = entries_of(f"sqlite:///{tmp_path}/copy.db")
        assert [int(e.update.data) for e in copied] == list(range(copied[0].position - 1, copied[-1].position))
    finally:
        publishing.kill()
        publishing.wait()
        publishing.stdout.close()
    assert httpx2.get(f"{hub.url}/health/ready").status_code == 200


def test_a_backup_is_a_history_in_a_new_epoch(tmp_path: Path, log: str) -> None:
    (tmp_path / "copy.db.part").write_text("of one that was killed")
    done = run("backup", tmp_path / "copy.db", "--url", log)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"copied the history to {tmp_path}/copy.db, ")
    copy = f"sqlite:///{tmp_path}/copy.db"
    assert entries_of(copy) == entries_of(log)
    epochs = {json.loads(run("stats", "--json", "--url", url).stdout)["epoch"] for url in (log, copy)}
    assert len(epochs) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "mercure.db"]


def test_the_path_of_a_backup_is_relative_to_the_working_directory(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("backup", "copy.db", "--url", log).exit_code == 0
    assert entries_of("sqlite:///copy.db") == entries_of(log)


@pytest.mark.processes
def test_from_sqlite_to_redis_and_back(tmp_path: Path, log: str) -> None:
    fill(log, [Entry(0, Update(("a", "b"), ODD, private=True, id="c", type="d", retry=2**53 + 1), 7)])
    with RedisServer() as server:
        out, back = tmp_path / "out.parquet", tmp_path / "back.ndjson"
        assert run("export", out, "--url", log).exit_code == 0
        assert run("import", out, "--url", server.url).stdout == "imported 301 updates\n"
        assert "Updates   301\n" in run("stats", "--url", server.url).stdout
        assert run("export", back, "--after", "urn:200", "--url", server.url).exit_code == 0
        there = sqlite(tmp_path / "there")
        assert run("import", back, "--url", there).stdout == "imported 101 updates\n"
        assert [replace(e, position=e.position + 200) for e in entries_of(there)] == entries_of(log)[200:]
        assert run("prune", "--keep-updates", "1", "--url", server.url).stdout.startswith("forgot 300 updates; 1 ")
        assert "backup is for a history in SQLite" in told(run("backup", tmp_path / "x", "--url", server.url), 2)
    assert not (tmp_path / "x").exists()


# -- on a terminal, and in the README


@pytest.mark.processes
def test_progress_is_shown_on_a_terminal(tmp_path: Path, log: str) -> None:
    ours, theirs = pty.openpty()
    commands = (
        ["export", f"{tmp_path}/x.ndjson"],
        ["import", f"{tmp_path}/x.ndjson", "--append"],
        ["prune", "--keep-updates", "10"],
    )
    for command in commands:
        subprocess.run(
            [sys.executable, "-m", "hub", "history", *command],
            env=environment(HUB_HISTORY_URL=log, TERM="xterm", COLUMNS="120"),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            timeout=HANG,
            check=True,
        )
        screen = os.read(ours, 100_000).decode()
        assert re.search(r"━.* (300|590) updates, [\d,]+ a second", screen), screen
        assert ("position 300" in screen) == (command[0] != "prune")
    os.close(ours)
    os.close(theirs)
    assert (
        run_command("history", "export", f"{tmp_path}/y.ndjson", HUB_HISTORY_URL=log).stderr == "exported 10 updates\n"
    )


@pytest.mark.processes
def test_the_commands_of_the_readme_work(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    blocks = re.findall(r"```sh\n(.*?)```", (root / "hub" / "README.md").read_text("utf-8"), re.DOTALL)
    script = next(block for block in blocks if "skipfilter history" in block)
    fill(f"sqlite:///{tmp_path}/mercure.db", made(300))
    with RedisServer() as server:
        script = script.replace("redis://localhost", server.url).replace(
            ".venv/bin/skipfilter", f"{sys.executable} -m hub"
        )
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", script],
            cwd=tmp_path,
            env=environment(PYTHONPATH=str(root)),
            capture_output=True,
            text=True,
            timeout=HANG,
            check=True,
        )
        assert "imported 300 updates\nforgot 299 updates; 1 are left" in done.stdout
        assert "Updates   300\n" in run("stats", "--url", server.url).stdout
    assert {path.name for path in tmp_path.iterdir()} == {"mercure.db", "copy.db", "updates.parquet"}
    assert len(entries_of(f"sqlite:///{tmp_path}/copy.db")) == 300

"""A hub with a warm index: when the hot topics are asked, and that it starts whatever the file is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from hub import ConfigurationError, Settings, create_app, settings_from_environment
from hub.updates import Update
from hub.warm import ask_ahead, hot_topics
from tests.hub.test_broadcaster import broadcaster, entries, receiver, writes
from tests.warm_index import columns_that_are_wrong, row, table, write

if TYPE_CHECKING:
    from pathlib import Path

    from hub.broadcaster import Broadcaster

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.warm.TICK", 0)  # a turn of the event loop is a second


def asked(hub: Broadcaster) -> list[Any]:
    """What its indexes are asked from now on."""
    keys: list[Any] = []
    passing = hub._interest.passing

    def note(key: Any, *rest: Any) -> Any:
        keys.append(key)
        return passing(key, *rest)

    hub._interest.passing = note  # type: ignore[assignment, method-assign]
    return keys


async def test_hot_topics_are_asked_when_nobody_has_come_for_a_while_and_not_again() -> None:
    hub = broadcaster()
    keys = asked(hub)
    task = asyncio.ensure_future(ask_ahead(hub, ["a", "b"]))
    for _ in range(5):  # nobody is there
        await asyncio.sleep(0)
    for _ in range(5):  # somebody comes all the time
        one = receiver(subscribed=["a"], granted=["b"])
        hub.connect(one)
        hub.join(one)
        await asyncio.sleep(0)
    assert keys == []
    assert not task.done()
    await task
    assert keys == [("subscribed", "a"), ("granted", "a"), ("subscribed", "b"), ("granted", "b")]
    keys.clear()
    await hub.dispatch(entries(Update(("a", "b"), private=True)))
    assert keys == []
    assert all(len(writes(one)) == 1 for one in hub._connected.values())


async def test_who_comes_or_goes_after_it_was_asked_counts() -> None:
    first, second, third = (receiver(subscribed=["a"]) for _ in range(3))
    hub = broadcaster(first, second)
    await ask_ahead(hub, ["a"])
    hub.disconnect(first)
    hub.connect(third)
    hub.join(third)
    await hub.dispatch(entries(Update(("a",))))
    assert [len(writes(one)) for one in (first, second, third)] == [0, 1, 1]


async def test_updates_are_dispatched_while_topics_are_asked() -> None:
    one = receiver(subscribed=["now"])
    hub = broadcaster(one)
    keys = asked(hub)
    task = asyncio.ensure_future(ask_ahead(hub, [f"t/{n}" for n in range(1_000)]))
    while not (keys or task.done()):
        await asyncio.sleep(0)
    await hub.dispatch(entries(Update(("now",))))
    assert len(writes(one)) == 1
    assert len(keys) < 200
    await task
    assert len(keys) == 2_001


# -- from a file


def settings(**values: Any) -> Settings:
    return Settings(dev=True, **values)


async def test_a_hub_asks_what_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "w.parquet", table(row(f"t/{n}", hits=n) for n in range(20)))
    monkeypatch.setenv("HUB_WARM_INDEX", str(file))
    app = create_app(settings_from_environment(dev=True, cached_topics=50, transport_url="memory://"))
    hub = app.state.hub
    keys = asked(hub.broadcaster)
    async with hub.running():
        one = receiver(subscribed=["t/{n}"])
        hub.broadcaster.connect(one)
        for _ in range(50):
            await asyncio.sleep(0)
        hub.broadcaster.disconnect(one)
    assert [topic for role, topic in keys if role == "subscribed"] == [f"t/{n}" for n in range(19, 9, -1)]
    assert hub.broadcaster._filter.bitmap(("subscribed", "t/19")) == hub.broadcaster._filter.bitmap()


async def test_a_hub_that_stops_before_it_was_quiet_asks_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "w.parquet", table([row("a")]))
    hub = create_app(settings(warm_index=str(file))).state.hub
    keys, tasks = asked(hub.broadcaster), asyncio.all_tasks()
    async with hub.running():
        await asyncio.sleep(0)
    assert keys == []
    assert asyncio.all_tasks() == tasks


@pytest.mark.processes
def test_it_is_off_unless_it_is_set() -> None:
    assert hot_topics(settings()) == []
    script = "import sys, hub; hub.create_app(hub.Settings(dev=True)); print('pyarrow' in sys.modules)"
    told = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


GOOD = table([row("/a", 2)])


@pytest.mark.parametrize(("reason", "wrong"), columns_that_are_wrong(GOOD).items())
def test_a_file_with_other_columns_is_warned_of_once_and_the_hub_starts(
    reason: str, wrong: object, tmp_path: Path
) -> None:
    file = write(tmp_path / "w.parquet", wrong)
    with capture_logs() as lines:
        create_app(settings(warm_index=str(file)))
    (line,) = (line for line in lines if "warm index" in line["event"])
    assert (line["log_level"], line["event"]) == ("warning", "the hub starts without its warm index")
    assert line["reason"].startswith(f"{file} cannot be read as a warm index: ")
    assert reason in line["reason"]


def test_a_file_that_is_missing_or_damaged_is_warned_of_and_the_hub_starts(tmp_path: Path) -> None:
    missing, damaged = tmp_path / "none.parquet", write(tmp_path / "w.parquet", GOOD)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    for file in (missing, damaged, tmp_path / "w.parquet" / "x"):
        with capture_logs() as lines:
            create_app(settings(warm_index=str(file)))
        assert [str(file) in line["reason"] for line in lines if "warm index" in line["event"]] == [True]


def test_a_hub_that_cannot_read_parquet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"warm_index needs pyarrow: pip install skipfilter\[parquet\]"):
        create_app(settings(warm_index="w.parquet"))

"""Opaque cursors: valid on all nodes, and alike whatever the history has."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from hub.history import base
from hub.history.base import Retention, newest_place
from hub.history.memory import MemoryHistory, _of_machine
from hub.history.opaque import Loss, Seal, new_key
from hub.history.sqlite import file as sqlite_file
from tests.hub.history.contract import KINDS, SHARED, named, node_of, nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio


def test_a_cursor_shows_neither_its_place_nor_whether_another_is_the_same() -> None:
    seal = Seal(new_key())
    places = [(number, id) for number in (0, 1, 2**40 - 1) for id in ("", "a", "x" * 5_000)] * 2
    made = [seal.cursor("epoch", number, id) for number, id in places]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("#[A-Za-z0-9_-]{70}", cursor) for cursor in made)
    one, other = (seal.place(cursor) for cursor in made[:: len(made) // 2])
    assert one == other
    assert one is not None


@pytest.mark.parametrize("change", [lambda c: c[:-2], lambda c: c + "A", lambda c: "#", lambda c: c[:9] + "é" + c[10:],
    lambda c: c[:30] + ("A" if c[30] != "A" else "B") + c[31:], lambda c: "#" + "A" * 70, lambda c: "#\ud800", lambda c: c + "==", lambda c: c + "==\r\nA: b", lambda c: "#" + c,
    lambda c: c + "\n", lambda c: c + "!" * 10**6])  # fmt: skip
def test_what_no_node_has_made_is_no_cursor(change: Callable[[str], str]) -> None:
    seal = Seal(new_key())
    assert seal.place(change(seal.cursor("epoch", 1))) is None
    assert Seal(new_key()).place(seal.cursor("epoch", 1)) is None, "of another history"


def test_a_digest_of_a_history_in_memory_is_the_same_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the machine is the same."""

    def digest_on(address: int) -> str:
        monkeypatch.setattr("uuid.getnode", lambda: address)
        _of_machine.cache_clear()
        return MemoryHistory(Retention(1, 1)).digest("alice")

    try:
        assert digest_on(1) == digest_on(1) != digest_on(2)
    finally:
        _of_machine.cache_clear()


@pytest.mark.parametrize("kind", SHARED)
async def test_a_cursor_is_valid_on_each_node_and_after_a_restart(kind: str, new_url: Callable[[str], str]) -> None:
    url = new_url(kind)
    async with nodes(url, 2) as (one, other):
        for node in (one, other):
            await node.hear()
        await one.append(named("a", "b"))
        cursor = one.cursor(await one.end(), "b")
        assert await other.locate(cursor) == await other.find("b")
    async with nodes(url) as (later,):
        await later.hear()
        assert await later.locate(cursor) == 2
        assert await later.locate(later.cursor(await later.end())) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_digest_is_the_same_on_each_node_and_after_a_restart(kind: str, new_url: Callable[[str], str]) -> None:
    url, found = new_url(kind), []
    for count in (1, 2):
        async with nodes(url, count) as some:
            for node in some:
                await node.hear()
                found.append([node.digest(text) for text in ("alice", "bob", "\ud800", "")])
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in found[0])
    # Without the key, nobody can compute it.
    assert Seal(new_key()).digest("alice") != Seal(new_key()).digest("alice") not in found[0]
    if kind in SHARED:
        async with nodes(new_url(kind)) as (other,):
            await other.hear()
            assert other.digest("alice") not in found[0]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cursor_of_another_history_is_unknown(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind)) as (one,), nodes(new_url(kind)) as (other,):
        for node in (one, other):
            await node.hear()
            await node.append(named("a"))
        assert await other.locate(one.cursor(1, "a")) is Loss.UNKNOWN


async def test_an_older_copy_of_a_file_does_not_pass_for_the_same(tmp_path: Path) -> None:
    """No process has noticed that the file was exchanged while none ran."""
    path = str(tmp_path / "log.db")
    for size, ids, expected in ((1, ("x", "y"), "regrown"), (1, (), "shorter"), (3, (), "same")):
        for file in sqlite_file.files_of(path):
            (tmp_path / file).unlink(missing_ok=True)
        async with nodes(f"sqlite:///{path}") as (log,):
            await log.append(named("a", "b", "c")[:size])
        shutil.copy(path, path + ".old")
        async with nodes(f"sqlite:///{path}") as (log,):
            await log.append(named("a", "b", "c")[size:])
            cursors = log.cursor(3, "c"), log.cursor(3)
        shutil.copy(path + ".old", path)
        async with nodes(f"sqlite:///{path}") as (log,):
            await log.append(named(*ids))
            found = [await log.locate(cursor) for cursor in cursors]
        # Without the id of the entry, an exchange cannot be noticed once the log has grown again.
        assert (
            found
            == {
                "regrown": [Loss.NEW_EPOCH, 3],
                "shorter": [Loss.NEW_EPOCH, Loss.NEW_EPOCH],
                "same": [3, 3],
            }[expected]
        )


async def test_a_salvaged_file_knows_cursors_of_before(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    async with nodes(f"sqlite:///{path}") as (log,):
        await log.append(named("a", "b"))
        cursor = log.cursor(2, "b")
        await log._database.read(lambda _: log._database.writer.call(_repair(log)))  # type: ignore[attr-defined]
        assert await log.locate(cursor) is Loss.NEW_EPOCH
        position = await log.end()
        assert position // base.EPOCH == 1
        assert await log.locate(log.cursor(position, "b")) == position
        assert await log.locate(log.cursor(2, "b")) is Loss.NEW_EPOCH, "a position of before"


def _repair(log: object) -> Callable[[], None]:
    import sqlite3

    database = log._database  # type: ignore[attr-defined]
    return lambda: database.repair(database.file, sqlite3.DatabaseError("planted"))


async def test_a_server_that_lost_its_newest_entries_while_no_node_ran(
    redis_server: RedisServer, new_url: Callable[[str], str]
) -> None:
    url = new_url("redis")
    name = url.rpartition("=")[2]
    async with nodes(url) as (log,):
        await log.hear()
        await log.append(named("a", "b", "c"))
        cursor, plain = log.cursor(3, "c"), log.cursor(3)
    async with nodes(url) as (log,):
        await log.hear()
        assert await log.locate(cursor) == 3
        await log.aclose()
        # As if the server had returned to the state after "a".
        for n in (3, 2):
            redis_server.ask("ZREMRANGEBYSCORE", f"{{{name}}}:marks", str(n), str(n))
            redis_server.ask("XDEL", f"{{{name}}}:log", f"{n}-0")
        redis_server.ask("ZREMRANGEBYLEX", f"{{{name}}}:ids", "[b", "+")
        redis_server.ask("XSETID", f"{{{name}}}:log", "1-0")
        redis_server.ask("HSET", f"{{{name}}}:meta", "end", "1")
    async with nodes(url) as (log,):
        await log.hear()
        assert await log.end() == 1
        assert await log.locate(cursor) is Loss.NEW_EPOCH
        await log.append(named("x", "y"))
        assert await log.locate(cursor) is Loss.NEW_EPOCH
        assert await log.locate(plain) == 3, "without the id, this cannot be noticed"


async def test_after_a_flush_the_key_stays_and_a_new_epoch_counts(
    redis_server: RedisServer, new_url: Callable[[str], str]
) -> None:
    url = new_url("redis")
    name = url.rpartition("=")[2]
    async with nodes(url) as (first,):
        await first.hear()  # it makes the key
    one = node_of(url)
    try:
        await one.hear()
        await one.append(named("a"))
        cursor = one.cursor(1, "a")
        for key in ("log", "ids", "marks", "meta"):
            redis_server.ask("DEL", f"{{{name}}}:{key}")
        assert await one.locate(cursor) is Loss.NEW_EPOCH
        made = one.cursor(await one.end())
        await one.hear()
        assert await one.locate(made) == await one.end()  # the process that has the key restores it
        await one.append(named("b"))
        assert await one.locate(one.cursor(1)) is Loss.NEW_EPOCH, "a position of before"
        async with nodes(url) as (other,):
            await other.hear()
            assert await other.locate(one.cursor(await one.end())) == await other.end()
    finally:
        await one.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_forgotten_presence_updates_matter_to_those_who_want_them(
    kind: str, new_url: Callable[[str], str]
) -> None:
    async with nodes(new_url(kind), presence_updates=2) as (log,):
        await log.hear()
        await log.append(named("a"))
        cursor = log.cursor(1, "a")
        for n in range(9):
            await log.append(named(f"p{n}"), presence=True)
        assert await log.locate(cursor) == 1
        assert await log.locate(cursor, presence=True) is Loss.TOO_OLD
        end = log.cursor(await log.end())
        assert await log.locate(end, presence=True) == await log.end()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_newest_place_has_the_id_of_its_entry(kind: str, new_url: Callable[[str], str]) -> None:
    async with nodes(new_url(kind)) as (log,):
        assert await newest_place(log) == (await log.end(), "")
        await log.append(named("a", "b"))
        assert await newest_place(log) == (2, "b")
        await log.append(named("p"), presence=True)
        assert await newest_place(log) == (3, "p")


async def test_a_server_whose_memory_is_full_still_gives_its_key(
    redis_server: RedisServer, new_url: Callable[[str], str]
) -> None:
    url = new_url("redis")
    async with nodes(url, 2) as (one, other):
        await one.hear()
        await one.append(named("a"))
        redis_server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            await other.hear()
            assert await other.locate(one.cursor(1, "a")) == 1
        finally:
            redis_server.ask("CONFIG", "SET", "maxmemory", "0")

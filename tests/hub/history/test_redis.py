"""The history in Redis, with servers that are killed, emptied, stopped or replaced.

test_contract.py tests the contract that all histories share.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import random
import re
import sys
import traceback
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hub
from hub.control.commands import Command, Target
from hub.control.ledger import ANSWERS_AGE
from hub.errors import ConfigurationError, HistoryUnavailable, PositionExpired
from hub.history import base, codec
from hub.history import redis as package
from hub.history.base import EARLIEST, Change, Retention
from hub.history.redis import history as module
from hub.history.redis import scripts
from hub.history.redis.history import RedisHistory
from hub.history.redis.server import PERMISSIONS
from hub.protocol.subscriptions import Present
from hub.protocol.updates import Update
from skipfilter.text import INSTALL
from tests.hub.signing import certified
from tests.redis_server import RedisServer, free_port
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import Self

    from hub.history.base import Entry

pytestmark = pytest.mark.anyio

RETENTION = Retention(max_updates=1_000, max_bytes=2**24)


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    started: list[RedisServer] = []

    def start(**options: Any) -> RedisServer:
        started.append(RedisServer(**options))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis()


@pytest.fixture
async def node() -> AsyncIterator[Callable[..., RedisHistory]]:
    """Return a function that opens the history as another node; check and close all
    nodes at the end.
    """
    opened: list[RedisHistory] = []

    def open_node(url: str | RedisServer, *, name: str = "mercure", **chosen: Any) -> RedisHistory:
        url = url if isinstance(url, str) else url.url
        opened.append(RedisHistory(url, replace(RETENTION, **chosen), name=name))
        return opened[-1]

    yield open_node
    for log in opened:
        with suppress(HistoryUnavailable):
            await check_keys(log)
        await log.aclose()


async def check_keys(log: RedisHistory) -> None:
    """Assert all invariants of the keys in the server."""
    _, ids, _, meta, nodes, _, present, *_ = log._keys
    pipeline: Any = log._client.pipeline(transaction=True)
    pipeline.zrange(ids, 0, -1).hgetall(meta).smembers(nodes).keys(f"{present}*")
    streams = (log._keys[0], log._keys[2], ""), (log._keys[8], log._keys[9], "presence_")
    for stream, marks, _ in streams:
        pipeline.xrange(stream).zrange(marks, 0, -1, withscores=True)
    members, about, names, here, *kinds = await reaching(log, pipeline.execute)
    expected = []
    first = 0
    for n, (_, _, prefix) in enumerate(streams):
        entries, marked = kinds[2 * n : 2 * n + 2]
        found = [(int(id.partition(b"-")[0]), int(fields[b"t"]), json.loads(fields[b"u"])) for id, fields in entries]
        assert all(id.endswith(b"-0") for id, _ in entries)
        if not about:
            assert not found
            continue
        update_of = {n: codec.from_record(record).update for n, _, record in found}
        sized = [(n, f"{time} {update_of[n].size} {record['id']}") for n, time, record in found]
        assert marked == [(f"{n} {mark}".encode(), n) for n, mark in sized]
        expected += [f"{record['id']}\0{n:016d}{time}".encode() for n, time, record in found]
        assert int(about[f"{prefix}bytes".encode()]) == sum(update.size for update in update_of.values())
        first = first or int(about[b"forgotten"])
        assert all(max(first, int(about[f"{prefix}forgotten".encode()])) < n <= int(about[b"end"]) for n in update_of)
    assert members == sorted(expected)
    assert not about or int(about[b"since"]) <= int(about[b"end"])
    assert {key.removeprefix(present.encode()) for key in here} <= names


async def reaching(log: RedisHistory, ask: Callable[[], Any]) -> Any:
    async with log._reaching():
        return await ask()


def update(id: str, data: str = "") -> Update:
    return Update(("t",), data, id=id)


def ids(entries: list[Entry]) -> str:
    return " ".join(entry.update.id for entry in entries)


async def append(log: RedisHistory, text: str) -> list[Entry]:
    return await log.append([update(id) for id in text.split()])


async def everything(log: RedisHistory) -> list[Entry]:
    entries: list[Entry] = []
    after = EARLIEST
    while page := await log.read(after):
        entries += page
        after = page[-1].position
    return entries


class Follower:
    """A task that follows a history and keeps the entries."""

    def __init__(self, log: RedisHistory, after: int = 0) -> None:
        self.entries: list[Entry] = []
        self._grown = asyncio.Event()
        self._log, self._after = log, after

    async def _run(self) -> None:
        async for page in self._log.follow(self._after):
            assert page
            self.entries += page
            self._grown.set()

    async def until(self, id: str) -> None:
        """Wait until an entry with the id has arrived."""
        while id not in {entry.update.id for entry in self.entries}:
            self._grown.clear()
            waiting = asyncio.ensure_future(self._grown.wait())
            await asyncio.wait([self._task, waiting], timeout=HANG, return_when="FIRST_COMPLETED")
            waiting.cancel()
            if self._task.done():
                self._task.result()
            assert self._grown.is_set(), f"{id} did not arrive; got {ids(self.entries)}"

    async def ends(self) -> None:
        async with asyncio.timeout(HANG):
            await self._task

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        done, _pending = await asyncio.wait([self._task], timeout=HANG)
        assert done, "the follower ignores that it is cancelled"


def counted(log: RedisHistory, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the calls of a method of the history; return a function that returns their
    number.
    """
    count, method = 0, getattr(log, name)

    async def call(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return await method(*arguments, **options)

    monkeypatch.setattr(log, name, call)
    return lambda: count


async def back(log: RedisHistory) -> None:
    """Wait until the history is available."""
    async with asyncio.timeout(HANG):
        while True:
            with suppress(HistoryUnavailable):
                return await log.check()
            await asyncio.sleep(0.02)


# -- a killed server that keeps its data


async def test_a_killed_server_loses_no_acknowledged_update(
    start_redis: Callable[..., RedisServer], node: Callable[..., RedisHistory]
) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    first, second = node(server, max_updates=100_000), node(server, max_updates=100_000)
    acknowledged: list[str] = []
    published: list[str] = []
    stopping = False

    async def publish(log: RedisHistory, name: str) -> None:
        number = 0
        while not stopping:
            number += 1
            batch = [update(f"{name}-{number}-{part}") for part in range(1 + number % 3)]
            published.extend(one.id for one in batch)
            try:
                acknowledged.extend(entry.update.id for entry in await log.append(batch))
            except HistoryUnavailable:
                await asyncio.sleep(0.01)

    async with Follower(first) as one, Follower(second) as other, asyncio.TaskGroup() as publishers:
        for name in "abcd":
            publishers.create_task(publish(first if name < "c" else second, name))
        for _ in range(3):
            enough = len(acknowledged) + 50
            await until(lambda: len(acknowledged) >= enough)  # noqa: B023
            await asyncio.to_thread(server.restart)
        stopping = True
        await back(first)
        await append(first, "end")
        await one.until("end")
        await other.until("end")

    log = [entry.update.id for entry in await everything(first)]
    assert ids(one.entries) == ids(other.entries) == " ".join(log)
    assert [entry.position for entry in one.entries] == list(range(1, len(log) + 1))
    assert set(acknowledged) <= set(log) <= {*published, "end"}
    assert max(Counter(log).values()) == 1
    assert [await second.find(id) for id in log] == list(range(1, len(log) + 1))


async def test_cut_connections_are_opened_again_and_miss_nothing(
    server: RedisServer, node: Callable[..., RedisHistory], caplog: pytest.LogCaptureFixture
) -> None:
    log = node(server)
    async with Follower(log) as follower:
        for number in range(5):
            await append(log, f"a{number} b{number}")
            await follower.until(f"a{number}")
            caplog.clear()
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            await back(log)
        await append(log, "end")
        await follower.until("end")
    assert ids(follower.entries) == "a0 b0 a1 b1 a2 b2 a3 b3 a4 b4 end"
    assert [entry.position for entry in follower.entries] == list(range(1, 12))


async def test_a_long_outage_is_logged_once(
    server: RedisServer,
    node: Callable[..., RedisHistory],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = node(server)
    caplog.set_level("INFO")
    tries = counted(log, "_page", monkeypatch)
    async with Follower(log) as follower:
        await append(log, "a")
        await follower.until("a")
        server.ask("SAVE")
        server.kill()
        with pytest.raises(HistoryUnavailable) as caught:
            await append(log, "b")
        assert str(server.port) in caught.value.reason
        await until(lambda: "the history is unavailable; following it waits" in caplog.text)
        enough = tries() + 3
        await until(lambda: tries() >= enough)
        server.start()
        await back(log)
        await append(log, "c")
        await follower.until("c")
    assert [record.getMessage().count("the history is unavailable; following") for record in caplog.records].count(
        1
    ) == 1
    assert [record.getMessage().count("the history is available; following") for record in caplog.records].count(1) == 1


# -- a server that lost data


async def lose_a_tail(server: RedisServer, first: RedisHistory, second: RedisHistory) -> tuple[int, int]:
    """Let the server lose c and d, which only `first` knows; return the positions of a
    and d.
    """
    a, _ = await append(first, "a b")
    assert await second.end() == 2
    server.ask("SAVE")
    _, d = await append(first, "c d")
    await asyncio.to_thread(server.restart)
    return a.position, d.position


async def off(log: RedisHistory, position: int) -> None:
    with pytest.raises(PositionExpired, match="of an earlier epoch"):
        await log.read(position)
    with pytest.raises(PositionExpired, match="of an earlier epoch"):
        await anext(log.follow(position))


async def test_a_lost_tail_starts_a_new_epoch(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    first, second = node(server), node(server)
    after_a, after_d = await lose_a_tail(server, first, second)
    assert await first.find("a") is None, "entries after it were lost"
    assert await first.find("d") is None
    for log in first, second:
        for position in 0, after_a, after_d:
            if log is first or position != after_d:
                await off(log, position)
        assert ids(await everything(log)) == "a b", "only a and b are left"
    [e] = await append(second, "e")
    assert ids(await first.read(await first.end() - 1)) == ids([e])
    assert (await first.end()) > base.EPOCH
    assert await second.find("e") == e.position
    assert await first.find("b") is None
    assert await first.find("e") == await first.end()
    newest = await first.newest()
    assert newest is not None
    assert newest.update.id == "e"
    third = node(server)
    assert ids(await everything(third)) == "a b e"
    assert (await third.find("a"), await third.find("e")) == (None, 3)


async def test_a_lost_tail_is_noticed_even_after_as_many_new_appends(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    first, second = node(server), node(server)
    after_a, after_d = await lose_a_tail(server, first, second)
    *_, e = await append(second, "C D E")  # the second node cannot know that anything was lost
    await off(first, after_d)
    await off(first, after_a)
    assert await first.find("C") is None
    await off(second, e.position)
    assert ids(await everything(first)) == ids(await everything(second)) == "a b C D E"


async def test_a_lost_tail_is_noticed_even_if_the_entries_before_it_were_trimmed(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    first, second = node(server), node(server, max_updates=2)
    _, after_d = await lose_a_tail(server, first, second)
    await append(second, "C D E F")
    assert ids(await everything(second)) == "E F", "the oldest entry is right after the position of d"
    await off(first, after_d)


async def test_a_lost_tail_of_either_kind_of_entries_is_noticed(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    """The loss is noticed even if entries of the other kind take the lost positions,
    and more entries follow.
    """
    for number, (lost, instead) in enumerate([(False, True), (True, False), (False, False), (True, True)]):
        first, second = node(server, name=f"{number}"), node(server, name=f"{number}", presence_updates=2)
        await append(first, "a")
        await first.append([update("b")], presence=True)
        await second.end()
        server.ask("SAVE")
        [c] = await first.append([update("c")], presence=lost)
        await asyncio.to_thread(server.restart)
        await second.append([update("C")], presence=instead)
        await second.append([update("D")], presence=not instead)
        await off(first, c.position)
        assert await first.find("a") is None
        assert ids(await everything(first)) == "a b C D"


async def test_a_node_with_trimmed_anchors_recognizes_another_history(
    server: RedisServer, node: Callable[..., RedisHistory], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = node(server), node(server, max_updates=2, presence_updates=2)
    await append(first, "a")
    await second.end()
    server.ask("SAVE")
    await append(first, "b c")
    [known] = await first.append([update("d")], presence=True)
    await asyncio.to_thread(server.restart)
    await append(second, "B C D")  # the second node cannot know that anything was lost
    for text in "E F G":
        await second.append([update(text)], presence=True)
    published, _ = await append(second, "X Y")
    assert published.position > known.position
    await off(first, known.position)
    assert "its positions expire" in caplog.text
    assert await first.end() == base.EPOCH + await second.end()
    assert await first.find("Y") == base.EPOCH + published.position + 1, "the other nodes lost nothing"
    assert ids(await everything(first)) == "X Y"


async def test_presence_entries_of_other_nodes_are_not_a_loss(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    first, second = node(server, presence_updates=2), node(server, presence_updates=2)
    await append(first, "a")
    [b] = await first.append([update("b")], presence=True)
    for text in "cdefg":
        await second.append([update(text)], presence=True)
    assert ids(await first.read(b.position)) == "f g"
    assert await first.find("a") == 1
    assert await first.find("a", presence=True) is None
    assert await first.end() == 7


async def test_a_history_of_0_1_0_is_upgraded_once(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    log, early = node(server), node(server)
    await append(log, "a")
    await early.end()
    await append(log, "b c")
    await log.prune(max_updates=2, max_bytes=2**30, max_age=float("inf"))
    client: Any = log._client
    stream, _, marks, meta, *_ = log._keys
    old = [mark.partition(b" ")[2] for mark in await client.zrange(marks, 0, -1)]
    before = (await client.hget(meta, "before")).partition(b" ")[2]
    await client.delete(marks)
    await client.rpush(marks, *old)
    await client.hset(meta, "before", before)
    about = ("bytes", "before", "forgotten")
    await client.hdel(meta, "forgotten", *(f"presence_{name}" for name in about))
    assert ids(await everything(log)) == "b c", "the anchor of this node holds"
    assert ids(await early.read(1)) == "b c", "an anchor at the last forgotten entry holds, too"
    with pytest.raises(PositionExpired):
        await log.read(0)
    await append(log, "d")
    assert await log.end() == 4
    assert await client.xlen(stream) == 3


async def test_a_follower_is_notified_of_a_lost_tail(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    first, second = node(server), node(server)
    async with Follower(first) as one, Follower(second) as other:
        await append(first, "a")
        server.ask("SAVE")
        await append(first, "b")
        await one.until("b")
        await other.until("b")
        await asyncio.to_thread(server.restart)
        for follower in one, other:
            with pytest.raises(PositionExpired):
                await follower.ends()
    assert await first.end() == await second.end() == base.EPOCH + 1, "one loss, one epoch"


async def test_without_a_loss_the_epoch_stays(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    log = node(server)
    await append(log, "a b c")
    server.ask("SAVE")
    await asyncio.to_thread(server.restart)
    assert await log.find("b") == 2
    assert ids(await log.read(1)) == "b c"


async def test_a_flushed_history_is_noticed_by_its_followers(
    server: RedisServer, node: Callable[..., RedisHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 10 * HANG)  # so the next check notices the loss, not a timeout
    log = node(server)
    async with Follower(log) as follower:
        await append(log, "a b")
        await follower.until("b")
        server.ask("FLUSHALL")
        with pytest.raises(PositionExpired):
            await follower.ends()  # even if nothing is appended
    assert (await log.newest(), await log.read(EARLIEST), await log.end()) == (None, [], base.EPOCH)
    async with Follower(log, await log.end()) as follower:
        [c] = await append(log, "c")
        await follower.until("c")
    assert c.position == base.EPOCH + 1
    assert await log.find("c") == c.position


async def test_a_flushed_history_with_new_entries_is_another_history(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    first, second = node(server), node(server)
    async with Follower(first) as follower:
        await append(first, "a b")
        await follower.until("b")
        server.ask("FLUSHALL")
        await append(second, "A B C")
        with pytest.raises(PositionExpired):
            await follower.ends()
    assert ids(follower.entries) == "a b"
    await off(first, 1)
    assert ids(await everything(first)) == "A B C"


@pytest.mark.parametrize("key", ["log", "ids", "marks", "meta", "presence", "presence-marks"])
async def test_a_history_with_a_missing_key_starts_anew(
    server: RedisServer, node: Callable[..., RedisHistory], key: str
) -> None:
    log = node(server)
    await append(log, "a")
    await log.append([update("b")], presence=True)
    server.ask("DEL", f"{{mercure}}:{key}")
    assert await log.find("a") is None
    [c] = await append(log, "c")
    assert c.position == base.EPOCH + 1
    await off(log, 1)
    assert ids(await everything(log)) == "c"


async def test_the_id_of_a_lost_update_is_not_remembered(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    first, second = node(server, idempotency_window=3_600), node(server, idempotency_window=3_600)
    await lose_a_tail(server, first, second)
    assert ids(await append(first, "a b c d")) == "c d"
    assert await append(second, "a b c d") == []
    for lose in (("FLUSHALL",), ("DEL", "{mercure}:log")):
        server.ask(*lose)
        assert ids(await append(first, "a b c d")) == "a b c d"


async def test_epochs_grow_even_if_the_server_only_knows_earlier_ones(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    first, second = node(server), node(server)
    await append(first, "a")
    server.ask("HINCRBY", "{mercure}:meta", "epoch", str(10**9))  # as if the clock had been days ahead
    assert ids(await everything(second)) == "a"
    assert await first.end() == base.EPOCH + 1
    server.ask("FLUSHALL")
    await append(node(server), "b")  # this node knows nothing of the first history
    for log in first, second:
        assert ids(await everything(log)) == "b"
        await off(log, 1)
    assert int((await first.stats()).epoch) == int((await second.stats()).epoch)
    assert await first.find("b") is None, "the node that appended it did not know the first history"


# -- a server that does not answer or refuses writes


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.3)


@pytest.mark.usefixtures("_quick")
async def test_a_stopped_server_is_unavailable_until_it_continues(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    log = node(server)
    async with Follower(log) as follower:
        await append(log, "a")
        await follower.until("a")
        server.pause()
        results = await asyncio.gather(
            *(append(log, f"b{number}") for number in range(3 * module.CONNECTIONS)),
            log.find("a"),
            log.read(0),
            log.present(),
            log.beat(),
            return_exceptions=True,
        )
        assert {type(result) for result in results} == {HistoryUnavailable}
        server.resume()
        await back(log)
        await append(log, "c")
        await follower.until("c")
    assert ids(follower.entries) == ids(await everything(log))
    assert max(Counter(entry.update.id for entry in follower.entries).values()) == 1


@pytest.mark.usefixtures("_quick")
async def test_the_timeout_includes_the_wait_for_a_turn(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    log = node(server)
    for _ in range(module.CONNECTIONS):
        await log._turns.acquire()
    async with asyncio.timeout(HANG):
        with pytest.raises(HistoryUnavailable):
            await append(log, "a")


class Proxy:
    """A proxy that cuts each connection after a number of bytes to or from the
    server.
    """

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._serving: set[asyncio.Task[None]] = set()
        self.requests = self.answers = sys.maxsize

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self.server.port)
        ways = (reader, down, self.requests), (up, writer, self.answers)
        pumps = [asyncio.create_task(self._pump(*way)) for way in ways]
        self._serving |= {*pumps}
        await asyncio.wait(pumps, return_when="FIRST_COMPLETED")
        down.close()
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, most: int) -> None:
        with suppress(OSError):
            while data := await source.read(2**16):
                target.write(data[:most])
                most -= len(data)
                if most <= 0:
                    break

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as serving:
            yield f"redis://127.0.0.1:{serving.sockets[0].getsockname()[1]}"
        await asyncio.wait(self._serving)


async def test_an_append_whose_connection_is_cut_is_complete_or_absent_and_never_doubled(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    direct, proxy = node(server), Proxy(server)
    await append(direct, "a")  # so that the server knows the script
    batch = [update(f"{number}", "x" * 100) for number in range(50)]
    async with proxy.running() as url:
        for requests, answers, there in (1, 9, False), (2_000, 9, False), (8_000, 9, False), (sys.maxsize, 0, True):
            proxy.requests, proxy.answers = requests, answers
            log = node(url)
            with pytest.raises(HistoryUnavailable):
                await log.append(batch)
            assert [entry.update for entry in await everything(direct)][1:] == batch * there
        proxy.requests = proxy.answers = sys.maxsize
        await append(log, "end")
        await log.aclose()
    assert await direct.find("end") == 52


async def test_a_server_that_refuses_writes_is_unavailable_and_changes_nothing(
    server: RedisServer, start_redis: Callable[..., RedisServer], node: Callable[..., RedisHistory]
) -> None:
    log = node(server)
    await append(log, "a")
    someone = Present("s", ())
    other = start_redis()
    for refuse, accept, reason in (
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "used memory"),
        (("REPLICAOF", "127.0.0.1", str(other.port)), ("REPLICAOF", "NO", "ONE"), "read only"),
        (
            ("CONFIG", "SET", "min-replicas-to-write", "1"),
            ("CONFIG", "SET", "min-replicas-to-write", "0"),
            "NOREPLICAS",
        ),
    ):
        if reason == "read only":
            other.pause()  # otherwise, the server would copy its empty data
        server.ask(*refuse)
        loaded = await log.read(0)
        for write in (
            lambda: append(log, "b c"),
            lambda: log.announce([Change(someone, True, [update("d")])]),
            lambda: log.load(loaded),  # noqa: B023
            lambda: log.check(),
            lambda: log.beat(),
        ):
            with pytest.raises(HistoryUnavailable) as caught:
                await write()
            assert reason in caught.value.reason
        assert ids(await everything(log)) == "a", "reading still works"
        server.ask(*accept)
        await back(log)
        other.resume()
    await append(log, "b")
    assert await log.present() == []
    assert ids(await everything(log)) == "a b"


async def test_a_server_that_became_a_replica_is_left_for_the_server_with_its_name(
    server: RedisServer, start_redis: Callable[..., RedisServer], node: Callable[..., RedisHistory]
) -> None:
    other = start_redis(replicaof=f"127.0.0.1 {server.port}")
    proxy = Proxy(server)
    async with proxy.running() as url:
        log = node(url)
        await append(log, "a")
        await until(lambda: other.ask("XLEN", "{mercure}:log") == ":1")
        other.ask("REPLICAOF", "NO", "ONE")
        server.ask("REPLICAOF", "127.0.0.1", str(other.port))
        proxy.server = other
        with pytest.raises(HistoryUnavailable):
            await append(log, "b")
        [c] = await append(log, "c")
        await log.aclose()
    assert ids(await everything(node(other))) == "a c"
    assert c.position == 2


async def test_many_concurrent_calls_share_few_connections(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    log = node(server)
    await append(log, "a")
    async with Follower(log) as follower:
        await follower.until("a")
        assert await asyncio.gather(*(log.find("a") for _ in range(500))) == [1] * 500
        clients = await reaching(log, log._client.client_list)
    assert len(clients) <= module.CONNECTIONS + 2


async def test_a_waiting_call_can_be_cancelled_at_any_moment(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    log = node(server)
    async with asyncio.timeout(HANG):
        for number in range(100):
            async with Follower(log, await log.end()) as follower:
                await append(log, f"{number}")
                await follower.until(f"{number}")
                appending = asyncio.create_task(append(log, f"again-{number}"))
                for _ in range(number % 20):
                    await asyncio.sleep(0)
                appending.cancel()
            await asyncio.gather(appending, return_exceptions=True)
    assert max(Counter(entry.update.id for entry in await everything(log)).values()) == 1


async def test_a_slow_follower_gets_entries_that_arrived_meanwhile_at_once(
    server: RedisServer, node: Callable[..., RedisHistory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 10 * HANG)
    monkeypatch.setattr(module, "TIMEOUT", 10 * HANG)
    log = node(server)
    await append(log, "a")
    pages = log.follow(0)
    assert ids(await anext(pages)) == "a"
    for presence in (False, True, True, False):  # entries of both kinds
        await log.append([update("b")], presence=presence)
        assert ids(await asyncio.wait_for(anext(pages), HANG)) == "b"
    await pages.aclose()  # type: ignore[attr-defined]


async def test_the_history_works_over_tls(
    start_redis: Callable[..., RedisServer], node: Callable[..., RedisHistory], tmp_path: Path
) -> None:
    certificate, key = certified(tmp_path)
    port = free_port()
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": certificate}
    start_redis(tls_port=str(port), tls_auth_clients="no", **files)
    log = node(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
    await append(log, "a")
    assert ids(await log.read(0)) == "a"
    with pytest.raises(HistoryUnavailable) as caught:
        await node(f"rediss://127.0.0.1:{port}").check()
    assert "certificate" in caught.value.reason.lower()


async def test_a_password_is_never_shown(
    server: RedisServer, node: Callable[..., RedisHistory], caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("CONFIG", "SET", "requirepass", "right/@:word")
    at = f"127.0.0.1:{server.port}"
    log = node(f"redis://:right%2F%40%3Aword@{at}/3")
    await append(log, "a")
    wrong = node(f"redis://joe:hunter2@{at}")
    follower = Follower(wrong)
    async with follower:
        with pytest.raises(HistoryUnavailable) as caught:
            await append(wrong, "b")
        await until(lambda: "the history is unavailable; following it waits" in caplog.text)
    server.kill()
    with pytest.raises(HistoryUnavailable) as gone:
        await append(log, "b")
    told = caught.value.reason + gone.value.reason + caplog.text + repr(log) + repr(vars(log)) + repr(vars(wrong))
    assert "invalid username-password" in told
    assert at in told
    for secret in "hunter2", "right", "joe":
        assert secret not in told


# -- the configuration of the server


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisHistory]:
    """A history whose keys need not be readable at the end."""
    log = RedisHistory(url, RETENTION)
    try:
        yield log
    finally:
        await log.aclose()


def said(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if about in record.getMessage()]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"appendonly": "yes", "maxmemory": "100mb"}, []),
        ({"appendonly": "yes", "maxmemory": "0", "maxmemory_policy": "allkeys-lru"}, []),
        ({"appendonly": "no"}, ["append-only file"]),
        ({"appendonly": "yes", "maxmemory": "100mb", "maxmemory_policy": "volatile-ttl"}, ["policy volatile-ttl"]),
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lfu"}, ["policy allkeys-lfu", "append-only file"]),
    ],
)
async def test_followers_say_once_what_loses_entries(
    options: dict[str, str],
    told: list[str],
    start_redis: Callable[..., RedisServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_redis(**options)
    async with opened(server.url) as log, Follower(log) as one, Follower(log) as other:
        await append(log, "a")
        await one.until("a")
        await other.until("a")
        if options.get("appendonly") == "yes":  # nothing is lost
            await asyncio.to_thread(server.restart)
            await back(log)
            await append(log, "b")
            await one.until("b")
            await other.until("b")
    lines = said(caplog, "the Redis server")
    assert len(lines) == len(told)
    assert all(any(part in line for line in lines) for part in told)


async def test_what_changes_in_the_configuration_is_said_when_the_server_is_back(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis(appendonly="yes")
    async with opened(server.url) as log, Follower(log) as follower:
        await append(log, "a")
        await follower.until("a")
        assert said(caplog, "the Redis server") == []
        server._options |= {"maxmemory": "100mb", "maxmemory_policy": "allkeys-random"}
        await asyncio.to_thread(server.restart)
        await until(lambda: said(caplog, "maxmemory-policy allkeys-random") != [])


async def test_the_line_about_lost_entries_has_clues(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(start_redis(maxmemory="3mb", maxmemory_policy="allkeys-lru").url) as log:
        for number in range(60):
            await log.append([update(f"{number}", "x" * 100_000)])
            if said(caplog, "the history has lost entries"):
                break
    [line] = said(caplog, "the history has lost entries; a new epoch begins")
    for clue in ("allkeys-lru", "evicted_keys", "aof", "master"):
        assert clue in line
    assert not re.search(r"evicted_keys\W+0\b", line)


async def test_a_node_of_a_cluster_that_has_not_the_keys_is_refused(start_redis: Callable[..., RedisServer]) -> None:
    ports = [free_port() for _ in range(2)]
    one, other = (start_redis(cluster_enabled="yes", cluster_port=str(port)) for port in ports)
    other.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    one.ask("CLUSTER", "MEET", "127.0.0.1", str(other.port), str(ports[1]))
    await until(lambda: one._answer("GET", "{mercure}:x").startswith("-MOVED"))
    await until(lambda: other._answer("GET", "{mercure}:x") == "$-1")
    told = rf"is a node of a Redis Cluster, and 127\.0\.0\.1:{other.port} has the keys"
    async with opened(one.url) as log:
        with pytest.raises(ConfigurationError, match=told):
            await log.end()
    async with opened(other.url) as log, Follower(log) as follower:  # the node with the keys works
        assert ids(await append(log, "a")) == "a"
        await follower.until("a")


async def test_the_answers_to_a_command_end_by_themselves(server: RedisServer) -> None:
    async with opened(server.url) as log, opened(server.url) as other:
        taken = await log.command(Command("kick", Target("subject", "alice")))
        for node in (log, other):
            await node.answer(taken.number, "{}")
        seconds = server.ask("TTL", f"{{mercure}}:answers:{taken.number}")
        assert 0 < int(seconds.removeprefix(":")) <= ANSWERS_AGE


async def test_the_permissions_are_all_that_a_history_needs(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert f"`{PERMISSIONS}`" in Path(hub.__file__).with_name("README.md").read_text("utf-8")
    server.ask("ACL", "SETUSER", "hub", "on", ">pw", *PERMISSIONS.split())
    url, someone = f"redis://hub:pw@127.0.0.1:{server.port}", Present("s", ())
    async with opened(url) as log, opened(url) as other:
        async with Follower(log) as follower:
            await append(log, "a b")
            await log.announce([Change(someone, True, [update("c")])])
            await follower.until("c")
        assert await other.find("a") == 1
        assert await other.present() == [someone]
        assert (await other.stats()).updates == 2
        assert await other.newest() is not None
        await log.check()
        await log.beat()
        taken = await log.command(Command("kick", Target("subject", "alice")))
        await other.hear()
        await other.answer(taken.number, "{}")
        assert await log.answers(taken.number) == {other.node: "{}"}
        assert await log.prune(max_updates=1, max_bytes=2**30, max_age=0) == 1
    assert said(caplog, "does not allow INFO") == []
    assert said(caplog, "append-only file") != []


async def test_a_user_without_a_permission_is_refused_with_what_it_needs(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = f"redis://some:hunter2@127.0.0.1:{server.port}"
    for without in ("-evalsha", "resetkeys"):
        server.ask("ACL", "SETUSER", "some", "reset", "on", ">hunter2", *PERMISSIONS.split(), without)
        async with opened(url) as log:
            with pytest.raises(
                ConfigurationError, match=re.escape(f"the ACL of the user needs {PERMISSIONS}")
            ) as caught:
                await log.end()
        assert "hunter2" not in str(caught.value)
    server.ask("ACL", "SETUSER", "some", "reset", "on", ">hunter2", *PERMISSIONS.split(), "-info")
    async with opened(url) as log:
        async with Follower(log) as follower:
            await append(log, "a")
            await follower.until("a")
            await until(lambda: said(caplog, "does not allow INFO") != [])
        server.ask("ACL", "SETUSER", "some", "-evalsha")
        with pytest.raises(HistoryUnavailable) as refused:  # it may be allowed again
            await log.end()
        assert "the ACL of the user needs" in refused.value.reason


# -- trimming


async def test_trimmed_entries_are_removed_from_all_keys(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    chosen = random.Random(1)
    for max_updates, max_bytes in (1, 2**20), (5, 2**20), (100, 2_000), (7, 1_500):
        log = node(server, max_updates=max_updates, max_bytes=max_bytes, name=f"{max_updates} {max_bytes}")
        kept: list[Update] = []
        for _ in range(60):
            batch = [update(chosen.choice("abc"), "x\n" * chosen.randrange(200)) for _ in range(chosen.randrange(8))]
            await log.append(batch)
            kept += batch
            while len(kept) > 1 and (len(kept) > max_updates or sum(one.size for one in kept) > max_bytes * 257 / 256):
                del kept[0]
            found = await everything(log)
            assert len(found) <= len(kept)
            assert [entry.update for entry in found] == kept[len(kept) - len(found) :]
            assert len(found) == len(kept) or sum(one.size for one in kept) > max_bytes
            for id in "abc":
                first = next((entry.position for entry in found if entry.update.id == id), None)
                assert await log.find(id) == first
            await check_keys(log)


async def test_a_large_history_is_trimmed_in_portions(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    log = node(server, max_updates=512)
    await log.append([update("a")] * 511)
    held = []
    for _ in range(5):
        await append(log, "b")
        held.append((await log.stats()).updates)
    assert held == [512, 513, 514, 512, 513], "trims if the excess is more than one part in 256"


async def test_old_entries_are_trimmed_at_the_next_beat(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    log = node(server, max_age=3_600)
    now = (await append(log, "now"))[0].time
    await log.prune(max_updates=1, max_bytes=1, max_age=0)
    await log.load([base.Entry(0, update("old"), now - 3_500_000), base.Entry(0, update("new"), now - 3_000_000)])
    await log.beat()
    assert ids(await everything(log)) == "now old new"
    strict = node(server, max_age=3_200)
    await strict.beat()
    assert ids(await everything(log)) == "now old new", "trimming starts with the first entry, which is young"
    assert await log.prune(max_updates=2, max_bytes=2**30, max_age=3_600) == 1
    await strict.beat()
    assert [(entry.update.id, entry.time) for entry in await everything(log)] == [("new", now - 3_000_000)]


async def test_pruning_yields_between_portions(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    log = node(server, max_updates=10_000)
    for _ in range(5):
        await log.append([update("a") for _ in range(1_000)])
    forgotten = []
    while count := await log.prune(max_updates=1, max_bytes=2**30, max_age=1e9):
        forgotten.append(count)
    assert forgotten == [2_000, 2_000, 999]
    assert await log.find("a") == 5_000
    stats = await log.stats()
    assert (stats.updates, stats.bytes, stats.oldest) == (1, update("a").size, await log.newest())
    assert stats.size > 0


async def test_two_histories_in_one_server_are_independent(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    one, other = node(server), node(server, name="other")
    await append(one, "a")
    await one.announce([Change(Present("s", ()), True, [])])
    await append(other, "b")
    assert ids(await everything(one)) == "a"
    assert (ids(await everything(other)), await other.present(), (await other.beat()).orphans) == ("b", [], [])


# -- presence


async def comes(log: RedisHistory, *names: str) -> None:
    await log.announce([Change(Present(name, ()), True, [update(f"{name} comes")]) for name in names])


async def goes(log: RedisHistory, *names: str) -> list[Entry]:
    return await log.announce([Change(Present(name, ()), False, [update(f"{name} goes")]) for name in names])


def names(subscribers: list[Present]) -> set[str]:
    return {subscriber.id for subscriber in subscribers}


async def test_a_node_that_counted_as_dead_registers_again(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    alive, stuck = node(server), node(server)
    await comes(stuck, "a", "b")
    await comes(alive, "c")
    assert await alive.beat() == (1, [])
    assert names(await alive.present()) == {"a", "b", "c"}
    expire(server, stuck)
    assert names((await alive.beat()).orphans) == {"a", "b"}
    assert ids(await goes(alive, "a", "b")) == "a goes b goes"
    assert await goes(stuck, "a") == [], "the other node announced it already"
    assert await alive.beat() == (1, [])
    assert server.ask("SCARD", "{mercure}:nodes") == ":1", "the dead node is forgotten"
    assert await stuck.beat() == (0, [])
    await comes(stuck, "b")
    assert await alive.beat() == (1, [])
    assert await stuck.beat() == (1, [])
    assert names(await alive.present()) == {"b", "c"}
    assert names(await stuck.present(own=True)) == {"b"}


def expire(server: RedisServer, *nodes: RedisHistory) -> None:
    """Make nodes count as dead, as if `node_timeout` had passed since their
    last beat.
    """
    for each in nodes:
        server.ask("DEL", f"{{mercure}}:alive:{each._node[0]}")


async def test_nodes_do_not_count_as_dead_because_of_an_outage_of_the_server(
    start_redis: Callable[..., RedisServer], node: Callable[..., RedisHistory]
) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")
    first, second = node(server, node_timeout=HANG), node(server, node_timeout=HANG)
    await comes(first, "a")
    await comes(second, "b")
    await first.beat()
    await second.beat()
    server.restart()
    server.ask("HINCRBY", "{mercure}:meta", "heard", f"{-HANG * 1_000:.0f}")  # the server was away for as long
    expire(server, first, second)
    await back(first)
    assert await first.beat() == (1, [])
    assert await first.beat() == (1, [])


async def test_more_orphans_than_fit_in_a_response_are_handed_out_in_turn(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    alive, dead = node(server), node(server)
    many = [f"{number}" for number in range(2_500)]
    await alive.beat()
    await dead.announce([Change(Present(name, (("exact", name, None),)), True, []) for name in many])
    assert names(await alive.present()) == set(many)
    expire(server, dead)
    gone: set[str] = set()
    while orphans := (await alive.beat()).orphans:
        assert len(orphans) <= 2_000
        assert all(orphan.matchers == (("exact", orphan.id, None),) for orphan in orphans)
        gone |= names(orphans)
        await goes(alive, *names(orphans))
    assert gone == set(many)
    assert await alive.present() == []


async def test_a_node_that_leaves_is_forgotten_unless_it_has_subscribers(
    server: RedisServer, node: Callable[..., RedisHistory]
) -> None:
    stays, leaves, crashes = node(server), node(server), node(server)
    await comes(leaves, "a")
    await goes(leaves, "a")
    await comes(crashes, "b")
    await stays.beat()
    await leaves.aclose()
    await crashes.aclose()
    assert server.ask("SCARD", "{mercure}:nodes") == ":2"
    assert names((await stays.beat()).orphans) == {"b"}, "immediately, and not after `node_timeout`"


@pytest.mark.usefixtures("_quick")
async def test_closing_neither_fails_nor_hangs(server: RedisServer, node: Callable[..., RedisHistory]) -> None:
    stopped, killed, never = node(server), node(server), node(server)
    await comes(stopped, "a")
    await comes(killed, "b")
    async with asyncio.timeout(HANG):
        server.pause()
        await stopped.aclose()
        server.kill()
        await killed.aclose()
        await never.aclose()


# -- Sentinel


@pytest.fixture
def replicated(start_redis: Callable[..., RedisServer]) -> tuple[RedisServer, RedisServer, str]:
    """A server, its replica, and the URL of the sentinel that watches them."""
    master = start_redis()
    replica = start_redis(replicaof=f"127.0.0.1 {master.port}")
    sentinel = start_redis(sentinel_of=master)
    return master, replica, f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/mercure"


async def test_sentinel_names_the_new_server_after_a_failover(
    replicated: tuple[RedisServer, RedisServer, str], node: Callable[..., RedisHistory]
) -> None:
    master, replica, url = replicated
    log = node(url)
    async with Follower(log) as follower:
        await append(log, "a b")
        await follower.until("b")
        await ready(log, replica, entries=2)
        master.kill()
        await back(log)
        await append(log, "c")
        await follower.until("c")
        master.start()  # it becomes a replica
        await append(log, "d")
        await follower.until("d")
    assert ids(follower.entries) == "a b c d"
    assert await log.find("a") == 1, "nothing was lost"


async def test_entries_that_a_replica_lacks_after_a_failover_are_noticed_as_lost(
    replicated: tuple[RedisServer, RedisServer, str], node: Callable[..., RedisHistory]
) -> None:
    master, replica, url = replicated
    log = node(url)
    await append(log, "a")
    await ready(log, replica, entries=1)
    replica.pause()
    master.ask("CLIENT", "KILL", "TYPE", "replica")
    await append(log, "b")
    master.kill()
    replica.resume()
    await back(log)
    await off(log, 2)
    assert ids(await everything(log)) == "a"
    assert await log.find("a") is None


async def ready(log: RedisHistory, replica: RedisServer, *, entries: int) -> None:
    """Wait until the replica has that number of entries and the sentinel knows it."""
    assert log._sentinel is not None
    await until(lambda: replica.ask("XLEN", "{mercure}:log") == f":{entries}")
    async with asyncio.timeout(HANG):
        while [port for _, port in await log._sentinel.discover_slaves("mercure")] != [replica.port]:
            await asyncio.sleep(0.05)


async def test_a_service_that_sentinel_does_not_know_is_reported(
    replicated: tuple[RedisServer, RedisServer, str], node: Callable[..., RedisHistory]
) -> None:
    log = node(replicated[2].replace("/mercure", "/nonesuch"))
    with pytest.raises(HistoryUnavailable) as caught:
        await log.check()
    assert "nonesuch" in caught.value.reason


# -- URLs


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://host:port", "a host or port is invalid"),
        ("redis://:hunter2/2@host", "a host or port is invalid"),
        ("redis://joe:1/hunter2@host", "in a password, write / as %2F"),
        ("redis://:1?hunter2@host", "in a password"),
        ("redis://:1#hunter2@host", "in a password"),
        ("redis://[hunter2", "a host or port is invalid"),
        (
            "redis://joe:hunter2@host/zero",
            "redis://host/zero: one host may be followed only by the number of a database",
        ),
        ("redis://joe:hunter2@host/0/0", "redis://host/0/0: one host may"),
        ("redis://joe:hunter2@one,two", "redis://one,two: one host may"),
        ("redis://joe:hunter2@host?colour=red", "redis://host: .*'colour'"),
        ("redis://joe:hunter2@host?socket_timeout=red", "redis://host: Invalid value for 'socket_timeout'"),
        ("redis://host?name=", "name '' must not be empty"),
        ("redis://host?name={a}", "name '{a}' must not be empty or contain braces"),
        ("rediss://joe:hunter2@host?ssl_cert_reqs=red", "rediss://host: .*red"),
        ("redis+sentinel://joe:hunter2@host", "redis\\+sentinel://host: the hosts must be followed by /service"),
        ("redis+sentinel://joe:hunter2@host/", "redis\\+sentinel://host/: the hosts must be followed by /service"),
        (
            "redis+sentinel://joe:hunter2@host/mercure/zero",
            "the hosts must be followed by /service or /service/database",
        ),
        ("redis+sentinel://joe:hunter2@one,two:port/mercure", "a host or port is invalid"),
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        from_url(url)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def from_url(url: str) -> RedisHistory:
    return RedisHistory.from_url(url, Retention(max_updates=10, max_bytes=2**20))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", {"host": "localhost", "port": 6379, "db": 0}),
        ("redis://joe:a%2Fb@[::1]:7/3", {"host": "::1", "port": 7, "db": 3, "username": "joe", "password": "a/b"}),
        ("rediss://host?name=x&ssl_cert_reqs=none", {"host": "host", "cert_reqs": 0}),
        ("redis+sentinel://:b%40c@one,two:5/mercure/4", {"db": 4, "password": "b@c"}),
    ],
)
def test_a_url_has_the_address_and_the_name_of_the_history(url: str, expected: dict[str, object]) -> None:
    log = from_url(url)
    connection: Any = log._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    known = {**vars(connection), **{name: getattr(connection, name, None) for name in expected}}
    if "cert_reqs" in expected:
        known["cert_reqs"] = connection.ssl_context.cert_reqs
    assert {name: known[name] for name in expected} == expected
    assert log._keys[0] == ("{x}:log" if "name=x" in url else "{mercure}:log")
    assert connection.retry.get_retries() == 0, "no command is sent twice"
    if log._sentinel is not None:
        asked = [sentinel.connection_pool.connection_kwargs for sentinel in log._sentinel.sentinels]
        assert [(each["host"], each["port"], each.get("password")) for each in asked] == [
            ("one", 26379, None),
            ("two", 5, None),
        ]


def test_the_scripts_are_in_the_package() -> None:
    """The package has exactly the scripts that scripts.py loads, and no two are
    equal.
    """
    found = {
        path.name.removesuffix(".lua") for path in files("hub.history.redis").iterdir() if path.name.endswith(".lua")
    }
    loaded = {name.lower(): script for name, script in vars(scripts).items() if isinstance(script, scripts.Script)}
    assert found == {"begin", *loaded}
    assert len({script.sha for script in loaded.values()}) == len(loaded) == 14
    for name, script in loaded.items():
        assert "local function reply(" in script.text
        assert script.text.rstrip().splitlines()[-1].startswith("return reply("), name


def test_without_the_redis_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    assert package.__file__ is not None
    spec = importlib.util.spec_from_file_location("without_redis", package.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(
        ConfigurationError,
        match=re.escape(f"a history_url of redis needs its client: {INSTALL.format(extra='redis')}"),
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

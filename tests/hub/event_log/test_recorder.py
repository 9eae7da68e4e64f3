"""The event log agrees with the bytes that were sent, even if a process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hub.auth.grant import CompiledGrant
from hub.auth.signing import sign_classic_token
from hub.delivery.observer import Observers
from hub.delivery.seat import Ending, Seat
from hub.delivery.subscriber import Subscriber
from hub.development import DEVELOPMENT_KEY, DEVELOPMENT_TOKEN
from hub.errors import HistoryUnavailable
from hub.event_log import recorder as event_log
from hub.event_log import segments
from hub.event_log.recorder import EventLog
from hub.event_log.segments import _PART, Directory, LogBeat, _last_line, _salvage, _Segments
from hub.history import base, codec
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.history.sqlite.file import files_of
from hub.protocol.updates import Update
from skipfilter import compile_matcher
from tests.asgi import application as started
from tests.asgi import follow
from tests.asgi import publish as publish_in
from tests.hub.delivery.test_stream import ACTIONS, CONFIGURATIONS, SlowHistory, perform
from tests.hub.presence import EVERYTHING
from tests.hub.server.servers import ServerWire
from tests.hub.world import FakeConnection, World, plain, world
from tests.waiting import HANG, until
from tests.wire import bearer, publish, request, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hub.hub import Hub
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

Record = dict[str, Any]


class Session(NamedTuple):
    """A connection, as its lines in the event log describe it."""

    come: Record
    until: int | None
    """The position at its end, or None if the connection is still open."""

    def received(self, updates: Iterable[Record]) -> list[str]:
        """Return the ids of the updates that the connection received, according to its
        lines.
        """
        assert self.until is not None
        return [
            update["id"]
            for update in updates
            if update["epoch"] == self.come["epoch"]
            and self.come["after"] < update["position"] <= self.until
            and self._some_match("selectors", update)
            and (not update["private"] or self._some_match("authorised", update))
        ]

    def _some_match(self, name: str, update: Record) -> bool:
        base_url = self.come["hub"]
        matchers = [compile_matcher(one["type"], one["pattern"], base_url=base_url) for one in self.come[name]]
        return any(matcher.match(topic) for matcher in matchers for topic in update["topics"])


def log_of(hub: Hub) -> EventLog:
    """Return the event log of a hub."""
    return next(observer for observer in hub.observer.all if isinstance(observer, EventLog))


def lines_of(folder: Path) -> list[Record]:
    """Return the lines of all closed segments, in the order of their names."""
    segments = sorted(folder.glob("*.jsonl"))
    assert all(path.stat().st_size for path in segments)
    return [json.loads(line) for path in segments for line in path.read_text("utf-8").split("\n") if line]


def updates_in(directory: Path) -> list[Record]:
    """Return all updates; assert that each occurs once and none of an epoch is
    missing.
    """
    updates = lines_of(directory / "updates")
    places = [(update["epoch"], update["position"]) for update in updates]
    for epoch in {epoch for epoch, _ in places}:
        positions = [position for other, position in places if other == epoch]
        assert positions == list(range(positions[0], positions[0] + len(positions)))
    return updates


def gaps_in(directory: Path) -> list[Record]:
    """Return the lines that say that something may be missing."""
    lines = lines_of(directory / "sessions")
    return [line for line in lines if line["event"] == "gap" or (line["event"] == "end" and not line["clean"])]


def sessions_in(directory: Path) -> dict[str, Session]:
    """Return the session of each subscriber."""
    come, gone, ends = dict[tuple[str, int], Record](), dict[tuple[str, int], Record](), dict[str, Record]()
    for line in lines_of(directory / "sessions"):
        match line["event"]:
            case "connect":
                assert come.setdefault((line["node"], line["number"]), line) is line
            case "disconnect":
                assert gone.setdefault((line["node"], line["number"]), line) is line
            case "end":
                assert ends.setdefault(line["node"], line) is line
    assert gone.keys() <= come.keys()
    found = {}
    for key, line in come.items():
        end = gone.get(key) or ends.get(key[0])
        until = None if end is None else max(end["until"], line["after"])
        found[line["subscriber"]] = Session(line, until)
    return found


# -- deliveries


@pytest.mark.usefixtures("connections")
@examples(max_examples=150)
@given(actions=ACTIONS, chosen=CONFIGURATIONS)
def test_the_lines_of_a_connection_agree_with_the_written_bytes(actions: list[Any], chosen: dict[str, Any]) -> None:
    async def play(directory: str) -> World:
        settings = plain(heartbeat=10, event_log=directory, **chosen)
        async with world(settings, SlowHistory(Retention(max_updates=10_000, max_bytes=2**26))) as here:
            for what, *arguments in actions:
                await perform(here, what, *arguments)
        return here

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hub.turns.WRITES", 1)
        patch.setattr(base, "PAGE_ENTRIES", 3)
        patch.setattr("hub.delivery.stream.CHUNK_BYTES", 20)
        patch.setattr("hub.hub.LAST_ANNOUNCEMENTS_SECONDS", 10.0)
        here = asyncio.run(play(directory))
        check(here, Path(directory))


def check(here: World, directory: Path) -> None:
    """Assert that each connection of a finished world received what the event
    log says.
    """
    updates, sessions = updates_in(directory), sessions_in(directory)
    assert [update["id"] for update in updates] == [entry.update.id for entry in here.entries]
    assert gaps_in(directory) == []
    for connection in here.connections:
        session = sessions.pop(connection.subscriber.id, None)
        assert connection.ids == ([] if session is None else session.received(updates))
    assert not sessions


@pytest.mark.usefixtures("connections")
async def test_the_lines_of_a_connection_that_leaves_during_a_dispatch_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 1)
    async with world(plain(event_log=str(tmp_path))) as here:
        connections = [await here.connect("a") for _ in range(4)]
        await here.settle()
        await here.publish("a")
        await here.caught_up()
        await here.publish("a")
        while len(connections[1].ids) < 2:
            await asyncio.sleep(0)
        connections[1].go()
        connections[3].go()
        await here.settle()
    check(here, tmp_path)
    sessions = sessions_in(tmp_path)
    untils = [sessions[connection.subscriber.id].until for connection in connections]
    assert untils == [2, 2, 2, 1]


@pytest.mark.usefixtures("connections")
async def test_updates_without_room_count_as_written_only_if_room_comes(tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path))) as here:
        lost, kept = await here.connect("a"), await here.connect("a")
        await here.settle()
        await here.publish("a")
        await here.caught_up()
        for connection in (lost, kept):
            connection.block()
        for _ in range(3):
            await here.publish("a")
            await here.settle()
        kept.unblock()
        await here.settle()
        lost.go()
        await here.settle()
    check(here, tmp_path)
    sessions = sessions_in(tmp_path)
    assert [sessions[one.subscriber.id].until for one in (lost, kept)] == [1, 4]


@pytest.mark.parametrize("end", ["close", "go", "abort"])
async def test_an_update_that_was_sent_just_before_the_end_counts(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "wire", staticmethod(partial(ServerWire, detaches=True)))
    async with world(plain(event_log=str(tmp_path))) as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        await here.publish("a")
        await here.settle()
        # The stream has no time to notice the room before it ends.
        connection.unblock()
        {
            "close": lambda: connection.stream.close(Ending.SHUTDOWN),
            "go": connection.go,
            "abort": connection.wire.abort,
        }[end]()
    check(here, tmp_path)
    assert connection.ids == ["1"]


@pytest.mark.usefixtures("connections")
async def test_of_a_page_that_is_cut_off_the_sent_part_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.delivery.stream.CHUNK_BYTES", 1)
    async with world(plain(event_log=str(tmp_path))) as here:
        for _ in range(6):
            await here.publish("a")
        await here.caught_up()
        connection = await here.connect("a", after="earliest")
        connection.wire.full_after = b"id: 3\n"
        await here.settle()
        connection.go()
        await here.settle()
    check(here, tmp_path)
    assert connection.ids == ["1", "2", "3"]


@pytest.mark.usefixtures("connections")
async def test_updates_after_an_unnoticed_disconnect_do_not_count(tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path))) as here:
        connection = await here.connect("a")
        await here.settle()
        await here.publish("a")
        await here.caught_up()
        connection.go()
        connection.stream.write(b"id: 2\ndata: \n\n", 2)
        assert connection.stream._delivered() == (1, 0)
    assert connection.ids == ["1"]


@pytest.mark.usefixtures("connections")
async def test_a_connection_without_matches_is_recorded_too(tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path))) as here:
        connection = await here.connect("b")
        await here.settle()
        for _ in range(3):
            await here.publish("a")
        await here.caught_up()
    [session] = sessions_in(tmp_path).values()
    assert (session.come["after"], session.until, connection.ids) == (0, 3, [])


@pytest.mark.usefixtures("connections")
async def test_a_connection_from_earliest_begins_at_the_start_of_the_history(tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path), history_updates=8)) as here:
        for _ in range(20):
            await here.publish("a")
        await here.caught_up()
        first = await here.connect("a", after="earliest")
        await here.settle()
        unread = await here.connect("a", after="earliest")
        unread.block()
        await here.settle()
        unread.go()
        await here.settle()
    sessions = sessions_in(tmp_path)
    assert sessions[first.subscriber.id].come["after"] == 12
    assert sessions[first.subscriber.id].received(updates_in(tmp_path)) == first.ids == [str(n) for n in range(13, 21)]
    begin, until = sessions[unread.subscriber.id].come["after"], sessions[unread.subscriber.id].until
    assert begin == until


async def test_an_incomplete_write_counts_up_to_its_last_complete_event(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    """After the end of the hub, a client still receives what its socket had
    accepted.
    """
    hub = start_hub(HUB_EVENT_LOG=str(tmp_path), HUB_SUBSCRIPTIONS="0", HUB_SEND_BUFFER="4096", HUB_DRAIN="0")
    streams = [await subscribe(hub, ("topic", "a"), receive_buffer=4096) for _ in range(4)]
    # Only the kernel's buffers take what they do not read.
    connections = [stream.writer.transport for stream in streams]
    for connection in connections:
        connection.pause_reading()  # type: ignore[attr-defined]
    half = await subscribe(hub, ("topic", "a"), receive_buffer=4096)
    assert half.writer.can_write_eof()
    for n in range(60):
        updates = [("a", False), ("a", True), ("b", False), ("a", False)]  # two of them match, and are not private
        lines = [{"topic": [topic], "data": "x" * 1_000, "private": private} for topic, private in updates]
        body = "\n".join(map(json.dumps, lines))
        async with await request(
            hub,
            "POST",
            "/.well-known/mercure",
            [("content-type", "application/x-ndjson"), bearer(hub.token)],
            body.encode(),
        ) as reply:
            await reply.body()
            assert reply.status == 200
        if n == 30:
            half.writer.write_eof()  # it receives the waiting write, and no other
    halves = events(await asyncio.wait_for(half.reader.read(), HANG))
    # Two of the clients read a part of the waiting write.
    parts = [b"", b""]
    for stream, connection, size in zip(streams[2:], connections[2:], (9_000, 14_000), strict=True):
        connection.resume_reading()  # type: ignore[attr-defined]
        parts.append(await asyncio.wait_for(stream.reader.readexactly(size), HANG))
        connection.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(0.1)  # the hub hands more to the sockets
    hub.stop()
    for connection in connections:
        connection.resume_reading()  # type: ignore[attr-defined]
    rests = [await asyncio.wait_for(stream.reader.read(), HANG) for stream in streams]
    received = [events(part + rest) for part, rest in zip(parts, rests, strict=True)]
    for stream in (*streams, half):
        await stream.close()
    published, sessions = updates_in(tmp_path), list(sessions_in(tmp_path).values())
    assert len(published) == 240
    assert sorted([*received, halves]) == sorted(one.received(published) for one in sessions)
    assert 0 < min(map(len, received)) <= max(map(len, received)) < 120


def events(stream: bytes) -> list[str]:
    """Return the ids of the complete events in the rest of a chunked response.

    The response may be cut off anywhere.
    """
    body, rest = b"", stream
    while b"\r\n" in rest:
        size, rest = rest.split(b"\r\n", 1)
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    *whole, _ = body.split(b"\n\n")
    return [
        line.removeprefix("id: ") for event in whole for line in event.decode().split("\n") if line.startswith("id: ")
    ]


# -- the files of a killed node


@pytest.mark.usefixtures("connections")
@examples(max_examples=100)
@given(actions=ACTIONS, chosen=CONFIGURATIONS, survives=st.booleans())
def test_missing_lines_of_a_killed_node_are_after_its_mark(
    actions: list[Any], chosen: dict[str, Any], survives: bool
) -> None:
    """The node is killed at any moment, and its event log is behind.

    It gets time to write only after every second action.
    """

    async def play(directory: str) -> None:
        # According to the clock of the next node, all segments are too old to be kept.
        settings = plain(heartbeat=10, event_log=directory, event_log_keep=0, **chosen)
        async with world(settings, SlowHistory(Retention(max_updates=10_000, max_bytes=2**26))) as here:
            node, log = log_of(here.hub), here.log
            assert node is not None
            for number, (what, *arguments) in enumerate(actions):
                await perform(here, what, *arguments)
                if number % 2:
                    await asyncio.sleep(0.001)
            kill(here)
            received = {connection.subscriber.id: connection.ids for connection in here.connections}
            epoch = (await log.stats()).epoch
        next_one = Directory(settings, time.monotonic, time.time)
        step(next_one, epoch=epoch if survives else "another")
        [gap] = gaps_in(Path(directory))
        written = updates_in(Path(directory))
        may_lack_updates = not survives or not written  # the history may have forgotten the first ones
        assert (gap["updates"], gap["epoch"], gap["hub"]) == (may_lack_updates, epoch, settings.url)
        assert len(written) >= gap["until"]
        entries = [codec.record(entry) | {"epoch": epoch} for entry in here.entries]
        if survives:  # the next node records the rest
            written = entries
        place = {entry["id"]: entry["position"] for entry in entries}
        sessions = sessions_in(Path(directory))
        for connection in here.connections:
            session = sessions.get(connection.subscriber.id)
            if session is None:
                # It connected after the mark, or it asked for the whole history: then its
                # line comes when its position is known, or it had no room for the first
                # entry.
                had_begun = connection.stream is not None and connection.stream.position != base.EARLIEST
                from_earliest = connection.subscriber.start == base.EARLIEST
                assert not had_begun or from_earliest or (connection.connected + 1e9) * 1e6 >= gap["time"]
                assert had_begun or not received[connection.subscriber.id]
                continue
            missing = [id for id in received[connection.subscriber.id] if id not in set(session.received(written))]
            assert all(place[id] > gap["until"] for id in missing)
        next_one.close(said(next_one), True)

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hub.turns.WRITES", 1)
        patch.setattr(base, "PAGE_ENTRIES", 3)
        patch.setattr("hub.delivery.stream.CHUNK_BYTES", 20)
        patch.setattr("hub.hub.LAST_ANNOUNCEMENTS_SECONDS", 10.0)
        patch.setattr(event_log, "GATHER", 0.0)
        patch.setattr("hub.event_log.sessions.BATCH_RECORDS", 2)
        asyncio.run(play(directory))


def kill(here: World) -> None:
    """Stop the event log of a world without a last write, as kill -9 does."""
    node = log_of(here.hub)
    assert node is not None
    assert node._task is not None
    here.hub.observer = Observers()
    node._task.cancel()
    node._thread.shutdown()
    node._directory.let_go()


async def test_a_mark_is_not_ahead_of_waiting_or_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.event_log.sessions.BATCH_RECORDS", 1)
    async with world(plain(event_log=str(tmp_path))) as here:
        node = log_of(here.hub)
        assert node is not None
        assert node._task is not None
        node._task.cancel()  # the test runs the rounds itself
        node._task = None
        write_updates = node._updates.write

        async def come() -> None:
            here.now += 1
            await here.connect("a")
            await here.settle()
            await here.publish("a")
            await here.caught_up()

        async def slowly(*, closing: bool) -> bool:
            more = await write_updates(closing=closing)
            await come()
            return more

        def mark() -> LogBeat:
            [file] = (tmp_path / "nodes").glob("[!.]*")
            return LogBeat(**json.loads(file.read_bytes()))

        began = mark()
        await come()
        await come()
        assert await node._try_round() is not None
        assert mark() == began  # one of the two connections is not written yet
        assert await node._try_round() is not None
        assert mark()[2:] == (2, began.time + 2 * 10**6)
        monkeypatch.setattr(node._updates, "write", slowly)
        assert await node._try_round() is not None
        assert mark()[2:] == (2, began.time + 2 * 10**6)
    node._directory.let_go()


async def test_a_node_that_could_not_write_everything_ends_like_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(plain(event_log=str(tmp_path))) as here:
        node = log_of(here.hub)
        assert node is not None

        async def fails(*, closing: bool) -> bool:
            raise HistoryUnavailable("it is away")

        await here.connect("a")
        await here.settle()
        await here.publish("a")
        monkeypatch.setattr(node._updates, "write", fails)
    next_one = directory_of(tmp_path, Clock())
    step(next_one)
    [gap] = gaps_in(tmp_path)
    assert (gap["node"], gap["until"], gap["updates"]) == (node._directory.node, 0, True)
    next_one.close(said(next_one), True)


@pytest.mark.parametrize("survives", [False, True], ids=["memory", "sqlite"])
async def test_missing_lines_of_a_killed_hub_are_after_its_mark(
    tmp_path: Path, start_hub: Callable[..., HubProcess], survives: bool
) -> None:
    directory = tmp_path / "events"
    environment = {"HUB_EVENT_LOG": str(directory), "HUB_SUBSCRIPTIONS": "0"}
    if survives:
        environment["HUB_HISTORY_URL"] = f"sqlite:///{tmp_path}/log.db?synchronous=normal"
    place: dict[str, int] = {}
    got: list[list[str]] = []
    for turn in range(2):
        hub = start_hub(**environment)
        streams = [await subscribe(hub, ("match", "a")) for _ in range(5)]
        for n in range(40):
            late = [await subscribe(hub, ("match", "a"))] if n == 35 else []
            streams += late
            id = await publish(hub, ("topic", "a"), ("data", "end" if n == 39 else "more"))
            place[id] = turn * 40 * survives + n + 1
        got += [[*(event.id for event in await stream.until("end")), id] for stream in streams]
        if turn == 0:
            hub.stop(signal.SIGKILL)
        for stream in streams:
            await stream.close()
    hub.stop()
    updates, gaps, sessions = updates_in(directory), gaps_in(directory), sessions_in(directory)
    assert [gap["updates"] for gap in gaps] == [not survives]
    marks = {gap["node"]: gap["until"] for gap in gaps}
    told = [session.received(updates) for session in sessions.values()]
    nodes = [session.come["node"] for session in sessions.values()]
    # It is unknown which socket belongs to which session.  Each socket received all
    # updates, or all since it connected.
    for ids, node in zip(told, nodes, strict=True):
        [whole] = {tuple(one) for one in got if ids and one[0] == ids[0]} or {()}
        assert ids == list(whole[: len(ids)])
        assert all(place[id] > marks[node] for id in whole[len(ids) :])
    assert nodes.count(max(nodes, key=lambda node: node not in marks)) == 6
    missing = place.keys() - {update["id"] for update in updates}
    assert not (missing and survives)
    assert all(place[id] > min(marks.values()) for id in missing)


# -- lines


async def test_selectors_have_the_types_of_the_library_in_both_dialects(tmp_path: Path) -> None:
    secret = "told to nobody"
    token = sign_classic_token(
        DEVELOPMENT_KEY, "HS256", publish=["*"], subscribe=["https://x.example/{id}", "b"], payload={"who": secret},
        seconds=60, now=time.time(),
    )  # fmt: skip
    cases: list[tuple[list[tuple[str, str]], list[tuple[str, str]]]] = [
        ([("topic", "a")], [("exact", "a")]),
        ([("topic", "a/{b}")], [("exact", "a/{b}"), ("uritemplate", "a/{b}")]),
        ([("topic", "a/{")], [("exact", "a/{")]),
        ([("topic", "*")], [("everything", "*")]),
        ([("match", "a"), ("match", "a")], [("exact", "a")]),
        ([("match_uritemplate", "a/{b}")], [("uritemplate", "a/{b}")]),
        ([("match_urlpattern", "/a/:b"), ("match_amqp", "a.#")], [("urlpattern", "/a/:b"), ("amqp", "a.#")]),
        ([("match_mqtt", "a/+"), ("match_mqtt", "*")], [("mqtt", "a/+"), ("everything", "*")]),
    ]
    async with started(event_log=str(tmp_path), event_log_data=True, subscriptions=True) as app:
        for parameters, _ in cases:
            async with follow(app, *parameters, headers=[bearer(token)]):
                pass
        id = await publish_in(
            app, token, ("topic", "a"), ("topic", "é"), ("data", "ü\nb"), ("type", "t"), ("retry", "7")
        )
    sessions = [session.come for session in sessions_in(tmp_path).values()]
    for come, (_, selectors) in zip(sessions, cases, strict=True):
        assert sorted((one["type"], one["pattern"]) for one in come["selectors"]) == sorted(selectors)
        granted = [(one["type"], one["pattern"]) for one in come["authorised"]]
        assert granted == [
            ("exact", "https://x.example/{id}"),
            ("uritemplate", "https://x.example/{id}"),
            ("exact", "b"),
        ]
        assert come["hub"] == app.state.hub.settings.url
    *about, update = updates_in(tmp_path)
    assert all(
        "data" not in one and one["data_bytes"] > len(secret) and one["presence"] for one in about
    )  # the updates about subscriptions
    assert len(about) >= 2 * len(cases)
    epoch = sessions[0]["epoch"]
    assert update | {"time": 0} == {
        "hub": app.state.hub.settings.url, "epoch": epoch, "position": len(about) + 1, "time": 0, "id": id,
        "topics": ["a", "é"], "private": False, "type": "t", "retry": 7, "data_bytes": 4, "data": "ü\nb",
        "presence": False,
    }  # fmt: skip
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in written
    assert token.encode() not in written
    assert DEVELOPMENT_TOKEN.encode() not in written


async def test_data_is_only_written_if_configured(tmp_path: Path) -> None:
    async with started(event_log=str(tmp_path), subscriptions=False) as app:
        await publish_in(app, EVERYTHING, ("topic", "a"), ("data", "é" * 10))
    [update] = updates_in(tmp_path)
    assert update["data_bytes"] == 20
    assert "data" not in update


async def test_without_the_setting_there_is_no_event_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with started() as app, follow(app, ("match", "a")):
        await publish_in(app, EVERYTHING, ("topic", "a"))
        assert not any(isinstance(observer, EventLog) for observer in app.state.hub.observer.all)
    assert list(tmp_path.iterdir()) == []


async def test_connections_end_in_the_event_log_when_the_hub_stops(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    hub = start_hub(HUB_EVENT_LOG=str(tmp_path), HUB_SUBSCRIPTIONS="0", HUB_DRAIN="0")
    assert f"Events    in {tmp_path}\n" in hub.welcome
    async with await subscribe(hub, ("match", "a")) as stream:
        await publish(hub, ("topic", "a"), ("data", "1"))
        await stream.next_event()
        hub.stop()
    [session] = sessions_in(tmp_path).values()
    assert (session.come["after"], session.until) == (0, 1)
    assert gaps_in(tmp_path) == []
    assert list((tmp_path / "nodes").iterdir()) == []
    assert list(tmp_path.rglob("*.part")) == []


# -- processes


async def test_a_hub_that_is_killed_repeatedly_writes_every_update_once(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    directory = tmp_path / "events"
    environment = {
        "HUB_EVENT_LOG": str(directory), "HUB_EVENT_LOG_SEGMENT_SECONDS": "0.05", "HUB_SUBSCRIPTIONS": "0",
        "HUB_HISTORY_URL": f"sqlite:///{tmp_path}/log.db?synchronous=normal",
    }  # fmt: skip
    ids, received = [], []
    for turn in range(4):
        hub = start_hub(**environment)
        async with await subscribe(hub, ("match", "a")) as stream:
            for data in ["more"] * (9 + turn) + ["end"]:
                ids.append(await publish(hub, ("topic", "a"), ("data", data)))  # noqa: PERF401
            received.append([event.id for event in await stream.until("end")])
            if turn < 3:
                if turn != 1:
                    await seen(directory, ids[-2])  # in turn 1, the kill comes before the write
                hub.stop(signal.SIGKILL)
    hub.stop()
    assert [update["id"] for update in updates_in(directory)] == ids
    assert [(gap["clean"], gap["updates"]) for gap in gaps_in(directory)] == [(False, False)] * 3
    nodes = {line["node"] for line in lines_of(directory / "sessions") if line["event"] == "end"}
    for session in sessions_in(directory).values():  # some are missing if their node was killed at once
        assert session.come["node"] in nodes
        assert session.until is not None
    assert len(nodes) == 4
    assert list(directory.rglob("*.part")) == []
    assert list((directory / "nodes").iterdir()) == []


async def seen(directory: Path, id: str) -> None:
    """Wait until an update and all earlier ones are in a segment, closed or not."""
    await until(lambda: any(id.encode() in text for text in contents(directory / "updates")))


def contents(folder: Path) -> Iterator[bytes]:
    """Yield what is in the segments, without those that the recorder is renaming."""
    for path in sorted(folder.glob("*.jsonl*")):
        with contextlib.suppress(FileNotFoundError):
            yield path.read_bytes()


async def test_workers_share_a_directory_and_replace_a_dead_writer(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    directory = tmp_path / "events"
    hub = start_hub(
        "--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_SUBSCRIPTIONS="0",
        HUB_EVENT_LOG=str(directory), HUB_EVENT_LOG_SEGMENT_SECONDS="0.2",
    )  # fmt: skip
    hub.may_fail = True
    ids: list[str] = []
    await until(lambda: len(list((directory / "nodes").glob("*"))) >= 2)
    streams = [await subscribe(hub, ("match", "a")) for _ in range(8)]
    for turn in range(3):
        for _ in range(20):
            try:
                ids.append(await publish(hub, ("topic", "a"), ("data", "1")))
            except (OSError, EOFError):  # the node is being killed
                continue
        await seen(directory, ids[-1])
        if turn < 2:
            await hub.kill_worker(hub.workers[turn % 2])
    hub.stop()
    for stream in streams:
        await stream.close()
    updates, sessions = updates_in(directory), sessions_in(directory)
    assert Counter(ids) <= Counter(update["id"] for update in updates)
    assert len(sessions) == 8
    assert all(session.until is not None for session in sessions.values())
    assert len({session.come["node"] for session in sessions.values()}) <= 4


# -- files


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def directory_of(path: Path, clock: Clock, **chosen: Any) -> Directory:
    return Directory(plain(event_log=str(path), **chosen), clock, clock)


def said(directory: Directory, until: int = 0, epoch: str | None = "e") -> LogBeat:
    return LogBeat("h", epoch, until, int(directory._wall_clock() * 1_000_000))


def step(directory: Directory, until: int = 0, *records: Record, epoch: str | None = "e") -> None:
    """Run one round of a recorder."""
    beat = said(directory, until, epoch)
    directory.step(records, beat)
    directory.beat(beat)


def made(first: int, last: int) -> list[base.Entry]:
    return [base.Entry(n, Update(("a",), "x" * 100, id=f"urn:{n}"), n) for n in range(first, last + 1)]


def test_a_segment_is_closed_if_it_is_old_or_large_and_never_if_it_is_empty(tmp_path: Path) -> None:
    clock = Clock()
    directory = directory_of(tmp_path, clock, event_log_segment_seconds=60, event_log_segment_bytes=2_000)
    updates = tmp_path / "updates"
    step(directory)
    clock.now += 1_000
    step(directory)
    assert [path.name for path in tmp_path.rglob("*jsonl*")] == []
    directory.write_updates(made(1, 2), "e")
    clock.now += 59
    step(directory)
    assert len(list(updates.glob(f"*{_PART}"))) == 1
    clock.now += 1
    step(directory)
    assert len(list(updates.glob("*.jsonl"))) == 1
    directory.write_updates(made(3, 30), "e")
    directory.write_updates(made(31, 31), "e")
    assert [len(path.read_bytes().splitlines()) for path in sorted(updates.glob("*.jsonl*"))] == [2, 28, 1]
    directory.close(said(directory), True)
    assert [one["position"] for one in updates_in(tmp_path)] == list(range(1, 32))


def test_segment_names_are_in_order_even_if_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = Clock()
    directory = directory_of(tmp_path, clock, event_log_segment_bytes=1)
    step(directory)
    for n in range(1, 6):
        directory.write_updates(made(n, n), "e")
        clock.now -= 3_600
    directory.close(said(directory), True)
    assert [one["position"] for one in updates_in(tmp_path)] == [1, 2, 3, 4, 5]
    assert directory_of(tmp_path, clock).last_update("e") == (5, 5)


def test_old_segments_are_removed_but_not_the_newest(tmp_path: Path) -> None:
    clock = Clock()
    directory = directory_of(tmp_path, clock, event_log_segment_bytes=1, event_log_keep=2)
    step(directory)
    for n in range(1, 6):
        directory.write_updates(made(n, n), "e")
        clock.now += 86_400
    step(directory)
    assert [one["position"] for one in lines_of(tmp_path / "updates")] == [4, 5]
    clock.now += 100 * 86_400
    for _ in range(2):
        step(directory)
        clock.now += 3_600
    directory.close(said(directory), True)
    assert [one["position"] for one in lines_of(tmp_path / "updates")] == [5]


def test_one_process_writes_the_updates_and_another_replaces_it(tmp_path: Path) -> None:
    clock = Clock()
    one, other = directory_of(tmp_path, clock), directory_of(tmp_path, clock)
    step(one)
    step(other)
    assert (one.leads, other.leads) == (True, False)
    one.write_updates(made(1, 3), "e")
    step(one, 3, {"event": "connect", "number": 1})
    one.let_go()  # as if its process were killed
    clock.now += 1
    step(other, 3)
    assert other.leads
    assert other.last_update("e") == (3, 3)
    assert other.last_update("f") is None
    [_, end] = lines_of(tmp_path / "sessions")
    assert end == {
        "event": "end", "node": one.node, "time": 1_800_000_000 * 10**6, "until": 3, "clean": False,
        "hub": "h", "epoch": "e", "updates": False, "found": 1_800_000_001 * 10**6,
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "nodes").iterdir()] == [other.node]
    other.close(said(other, 3), True)


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (b"", None),
        (b'{"a":', None),
        (b"{}\n", b"{}\n"),
        (b'{}\n{"a"', b"{}\n"),
        (b'{}\n{"a":\0\0\0\0\n\0', b"{}\n"),
        (b"\0" * 5_000, None),
        (b"{}\n" * 5_000 + b"{", b"{}\n" * 5_000),
    ],
    ids=range(7),
)
def test_complete_lines_of_a_dead_process_are_kept(tmp_path: Path, left: bytes, kept: bytes | None) -> None:
    for end in (b"", b'{"event":"end"}\n'):
        part = tmp_path / f"a{_PART}"
        part.write_bytes(left)
        _salvage(part, end)
        closed = tmp_path / "a.jsonl"
        assert not part.exists()
        if kept is None and not end:
            assert not closed.exists()
        else:
            assert closed.read_bytes() == (kept or b"") + end
            assert _last_line(closed) == (end or b"{}\n").rstrip()


def test_a_dead_node_without_a_segment_gets_an_end_line(tmp_path: Path) -> None:
    clock = Clock()
    dead, other = directory_of(tmp_path, clock, event_log_segment_bytes=1), directory_of(tmp_path, clock)
    step(dead, 7, {"event": "connect"})
    clock.now += 5
    step(dead, 8)
    dead.let_go()
    step(other, 0)
    [_, end] = lines_of(tmp_path / "sessions")
    assert (end["event"], end["time"], end["until"]) == ("end", 1_800_000_005 * 10**6, 8)
    other.close(said(other), True)


@pytest.mark.parametrize(
    ("left", "until", "moment", "updates"),
    [
        (b'{"hub":"h","epoch":"e","until":7,"time":1800000000000000}\n,"time":1}\n', 7, 1_800_000_000_000_000, False),
        (b'{"hub":"h","epoch":"f","until":7,"time":1800000000000000}\n', 7, 1_800_000_000_000_000, True),
        (b"00000000000000000007 00001800000000000000\n", 7, 1_800_000_000_000_000, True),  # as 0.1.0 wrote it
        (b"", 0, None, True),  # a power cut may leave these
        (b"\0" * 42, 0, None, True),
        (b'{"hub":"h","epoch":"e","until":null,"time":1}\n', 0, None, True),
        (b'{"hub":"h","epoch":"e","until":7,"time":4000000000000000}\n', 7, 4_000_000_000_000_000, False),
    ],
    ids=range(7),
)
def test_the_file_of_a_dead_node_shows_possible_gaps(
    tmp_path: Path, left: bytes, until: int, moment: int | None, updates: bool
) -> None:
    node = directory_of(tmp_path, Clock())
    step(node, epoch=None)
    dead = tmp_path / "nodes" / ("d" * 32)
    dead.write_bytes(left)
    step(node, epoch=None)
    assert dead.exists()  # it is not known yet whether the history is still the same one
    node._looked -= 1
    step(node)
    assert not dead.exists()
    [end] = lines_of(tmp_path / "sessions")
    assert end["found"] >= end["time"]  # even if the clock was wrong
    assert (end["until"], end["updates"], end["clean"]) == (until, updates, False)
    assert end["time"] == moment or moment is None
    node.close(said(node), True)
    assert len(lines_of(tmp_path / "sessions")) == 1  # no line if a node ends normally and had no connection


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = _Segments(tmp_path, "node", plain(), Clock(), Clock())
    segments.write([{"n": 1}])
    write = os.write

    def full(descriptor: int, data: Any) -> int:
        if len(data) <= 8:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:8])

    monkeypatch.setattr(os, "write", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            segments.write([{"n": 2}, {"n": 3}])
    monkeypatch.undo()
    segments.write([{"n": 4}])
    segments.close()
    assert lines_of(tmp_path) == [{"n": 1}, {"n": 4}]


@pytest.mark.parametrize("failing", ["open", "fsync"])
def test_a_segment_that_cannot_be_closed_is_closed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    segments = _Segments(tmp_path, "node", plain(), Clock(), Clock())
    segments.write([{"n": 1}])
    works = getattr(os, failing)

    def fails(file: Any, *arguments: Any) -> Any:
        if failing == "fsync" or file == tmp_path:
            raise OSError(24, "Too many open files")
        return works(file, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fails)
        with pytest.raises(OSError, match="Too many"):
            segments.close()
    segments.write([{"n": 2}])
    segments.close()
    segments.write([{"n": 3}])
    segments.close()
    assert lines_of(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_segment_is_renamed_even_if_the_directory_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, flushed = os.fsync, []

    def fails(descriptor: int) -> None:
        flushed.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if flushed[-1]:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    segments = _Segments(tmp_path, "node", plain(), Clock(), Clock())
    for n in (1, 2):
        segments.write([{"n": n}])
        segments.close()
    assert flushed == [False, True, False, True]
    assert lines_of(tmp_path) == [{"n": 1}, {"n": 2}]


# -- failures


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(segments, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(event_log, "GATHER", 0.0)


async def test_the_hub_runs_while_the_directory_is_not_writable_and_misses_nothing(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events"
    path.write_text("no directory")
    async with started(event_log=str(path), subscriptions=False) as app:
        ids = []
        async with follow(app, ("match", "a")) as stream:
            ids += [await publish_in(app, EVERYTHING, ("topic", "a"), ("data", "1")) for _ in range(5)]
            assert [(await stream.next_event()).id for _ in range(5)] == ids
        await until(lambda: "cannot be written" in caplog.text)
        path.unlink()
        await until(lambda: log_of(app.state.hub)._updates._position == 5)
    assert [update["id"] for update in updates_in(path)] == ids
    [session] = sessions_in(path).values()
    assert session.received(updates_in(path)) == ids
    assert caplog.text.count("the event log cannot be written") == 1
    assert caplog.text.count("the event log can be written again") == 1


async def test_a_removed_directory_is_created_again(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events"
    async with started(event_log=str(path), subscriptions=False) as app:
        await publish_in(app, EVERYTHING, ("topic", "a"))
        await until(lambda: log_of(app.state.hub)._updates._position == 1)
        path.rename(tmp_path / "away")
        await until(lambda: "was removed" in caplog.text and "written again" in caplog.text)
        await publish_in(app, EVERYTHING, ("topic", "a"))
    assert [update["position"] for update in updates_in(path)] == [1, 2]


async def test_connections_without_room_are_left_out_with_both_their_ends(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hub.event_log.sessions.RECORDS", 3)
    path = tmp_path / "events"
    path.write_text("no directory")
    async with started(event_log=str(path), subscriptions=False) as app:
        log: EventLog = log_of(app.state.hub)
        await until(lambda: "cannot be written" in caplog.text)
        async with follow(app, ("match", "1")), follow(app, ("match", "2")), follow(app, ("match", "3")):
            async with follow(app, ("match", "4")):
                assert len(log._sessions._records) == 3
            assert len(log._sessions._records) == 3
            async with follow(app, ("match", "5")):
                path.unlink()
                await until(lambda: not log._sessions._records)
                async with follow(app, ("match", "6")):
                    pass
        assert not log._sessions._left_out
        await until(lambda: not log._sessions._open)
    sessions = sessions_in(path).values()
    assert [one.come["selectors"][0]["pattern"] for one in sessions] == ["1", "2", "3", "6"]
    assert "connections_missing=2" in caplog.text
    assert {(gap["after"], gap["updates"]) for gap in gaps_in(path)} == {(0, False)}


async def test_a_mark_of_connections_without_room_is_open_until_the_last_has_left(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.event_log.sessions.RECORDS", 1)
    path = tmp_path / "events"
    path.write_text("no directory")
    async with started(event_log=str(path), event_log_subject="none", subscriptions=False) as app:
        log: EventLog = log_of(app.state.hub)
        async with follow(app, ("match", "1")), follow(app, ("match", "2")):
            async with follow(app, ("match", "3")):
                step, tries = Directory.step, []

                def counted(directory: Directory, *arguments: Any) -> None:
                    tries.append(arguments)
                    step(directory, *arguments)

                with monkeypatch.context() as patch:
                    patch.setattr(Directory, "step", counted)
                    await until(lambda: len(tries) > 1)
                path.unlink()
                await until(lambda: log._sessions._open)
                [part] = (path / "sessions").iterdir()
                [line] = [line for line in map(json.loads, part.read_text().splitlines()) if line["event"] == "gap"]
                assert line["found"] is None
            await asyncio.sleep(0)
            assert log._sessions._open  # the second connection is still open
        await until(lambda: not log._sessions._open)
        before = time.time()
    [opened, closed] = gaps_in(path)
    assert closed == opened | {"found": closed["found"]}
    assert opened["time"] < closed["found"] <= before * 1e6


async def test_a_connection_without_room_during_the_closing_of_a_mark_gets_its_own_mark(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, late = Directory.step, SimpleNamespace(subscriber=SimpleNamespace(), id=99)
    came: list[object] = []

    def meanwhile(directory: Directory, records: list[Record], beat: LogBeat) -> None:
        if not came and any(line["event"] == "gap" for line in records):
            log.seated(cast("Any", late), 0)
            came.append(late)
        step(directory, records, beat)

    async with world(plain(event_log=str(tmp_path))) as here:
        log = log_of(here.hub)
        monkeypatch.setattr("hub.event_log.sessions.RECORDS", 0)
        connection = await here.connect("a")
        await until(lambda: log._sessions._open)
        monkeypatch.setattr(Directory, "step", meanwhile)
        connection.go()
        await until(lambda: 99 in log._sessions._left_out and log._sessions._open)
        log.left(cast("Any", late), 0, 0, Ending.CLIENT_LEFT)
    founds = [gap["found"] is None for gap in gaps_in(tmp_path)]
    assert sorted(founds) == [False, False, True, True]


async def test_a_node_that_ends_before_a_connection_does_not_end_clean(tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path))) as here:
        seat = Seat(Subscriber((), CompiledGrant(), 0), None)
        log_of(here.hub).seated(seat, 0)
        await until(lambda: not log_of(here.hub)._sessions.waiting)
    [end] = [line for line in lines_of(tmp_path / "sessions") if line["event"] == "end"]
    assert not end["clean"]


async def test_a_connection_whose_end_is_unknown_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "wire", staticmethod(partial(FakeConnection, detaches=True)))
    monkeypatch.setattr(FakeConnection, "unsent", lambda self: 1)
    async with world(plain(event_log=str(tmp_path), history_updates=10)) as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        await here.hub.publish(*(Update(("a",), id=str(n)) for n in range(5)))
        await here.settle()
        for _ in range(60):
            await here.publish("b")
            await here.settle()
        assert connection.stream._delivered() == (0, 4)
        connection.go()
        await here.settle()
    [gone] = [line for line in lines_of(tmp_path / "sessions") if line["event"] == "disconnect"]
    assert (gone["clean"], gone["until"]) == (False, 0)
    [gap] = [gap for gap in gaps_in(tmp_path) if not gap["updates"]]
    assert (gap["after"], gap["cause"]) == (0, "no longer knew where a connection ended")
    assert gap["time"] <= gone["time"] <= gap["found"]


async def test_an_unresponsive_directory_does_not_prevent_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    look = Directory._look

    def slow(directory: Directory, epoch: str | None) -> None:
        answers.wait()
        look(directory, epoch)

    monkeypatch.setattr(Directory, "_look", slow)
    monkeypatch.setattr(event_log, "LAST_LINES", 0.01)
    async with started(event_log=str(tmp_path), subscriptions=False) as app:
        assert "the event log has not started" in caplog.text
        async with follow(app, ("match", "a")) as stream:
            id = await publish_in(app, EVERYTHING, ("topic", "a"))
            assert (await stream.next_event()).id == id
        answers.set()
        await until(lambda: log_of(app.state.hub)._updates._position == 1)
        monkeypatch.setattr(event_log, "LAST_LINES", 5.0)
    assert [update["id"] for update in updates_in(tmp_path)] == [id]


async def test_updates_older_than_the_event_log_are_recorded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db?synchronous=normal"
    async with started(history_url=url, subscriptions=False) as app:
        ids = [await publish_in(app, EVERYTHING, ("topic", "a")) for _ in range(300)]
    for _ in range(2):
        async with started(history_url=url, subscriptions=False, event_log=str(tmp_path / "events")) as app:
            ids.append(await publish_in(app, EVERYTHING, ("topic", "a")))
    assert [update["id"] for update in updates_in(tmp_path / "events")] == ids


async def test_a_replaced_history_is_recorded_from_its_start_as_a_new_epoch(tmp_path: Path, quick: None) -> None:
    url = f"sqlite:///{tmp_path}/log.db?synchronous=normal"
    directory = tmp_path / "events"
    async with started(history_url=url, subscriptions=False, event_log=str(directory)) as app:
        async with follow(app, ("match", "a")) as stream:
            old = [await publish_in(app, EVERYTHING, ("topic", "a"), ("data", "1")) for _ in range(3)]
            assert [(await stream.next_event()).id for _ in old] == old
            await until(lambda: log_of(app.state.hub)._updates._position == 3)
            for file in reversed(files_of(str(tmp_path / "log.db"))):  # the file itself last, as its loss is noticed
                os.rename(file, file + ".gone")
            await stream.end()
        new = [await publish_in(app, EVERYTHING, ("topic", "a"), ("data", "1"))]
        await until(lambda: log_of(app.state.hub)._updates._position == base.EPOCH + 1)
        log_of(app.state.hub)._updates._position = None  # as after a failure: it looks up its position again
        new.append(await publish_in(app, EVERYTHING, ("topic", "a"), ("data", "1")))
        async with follow(app, ("match", "a"), ("last_event_id", "earliest")) as stream:
            assert [(await stream.next_event()).id for _ in new] == new
    updates = updates_in(directory)
    assert [(update["id"], update["position"]) for update in updates] == list(
        zip([*old, *new], (1, 2, 3, 1, 2), strict=True)
    )
    first, second = sessions_in(directory).values()
    assert first.come["epoch"] != second.come["epoch"]
    assert (first.received(updates), second.received(updates)) == (old, new)
    # Updates of the old history after the last one recorded, if there were any, are
    # unknown.
    [gap] = gaps_in(directory)
    assert (gap["epoch"], gap["after"], gap["until"], gap["updates"]) == (first.come["epoch"], 3, None, True)


async def test_updates_trimmed_before_they_were_recorded_are_marked(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.event_log.updates.PAGES", 1)
    path = tmp_path / "events"
    path.write_text("no directory")
    async with world(plain(event_log=str(path), history_updates=10)) as here:
        for _ in range(25):
            await here.publish("a")
        await here.caught_up()
        write, tries = Directory.write_updates, []

        def fails(directory: Directory, *page: Any) -> None:
            tries.append(page)
            if len(tries) < 4:
                raise OSError(28, "No space left on device")
            write(directory, *page)

        monkeypatch.setattr(Directory, "write_updates", fails)
        path.unlink()
        await until(lambda: log_of(here.hub)._updates._position == 25)
        await here.publish("a")
        await here.caught_up()
    assert [update["position"] for update in updates_in(path)] == [*range(16, 27)]
    [gap] = gaps_in(path)
    assert (gap["after"], gap["until"], gap["updates"]) == (0, 15, True)
    assert 0 < gap["time"] <= gap["found"]  # the time when the gap began, and not 1970


async def test_updates_trimmed_before_the_event_log_began_are_not_missing(tmp_path: Path, quick: None) -> None:
    log = MemoryHistory(Retention(max_updates=10, max_bytes=2**20))
    await log.append([Update(("a",), id=str(n)) for n in range(25)])
    async with world(plain(event_log=str(tmp_path), history_updates=10), log) as here:
        await here.publish("a")
        await here.caught_up()
    assert [update["position"] for update in updates_in(tmp_path)] == [*range(16, 27)]
    assert gaps_in(tmp_path) == []


async def test_no_update_of_a_burst_is_missing_even_if_the_history_trims_some(tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path), history_updates=10)) as here:
        await here.hub.publish(*(Update(("a",), id=str(n)) for n in range(5)))
        for n in range(5, 50):
            await here.hub.publish(Update(("a",), id=str(n)))
        await here.caught_up()
    written = [update["position"] for update in updates_in(tmp_path)]
    gaps = [position for gap in gaps_in(tmp_path) for position in range(gap["after"] + 1, gap["until"] + 1)]
    assert sorted(written + gaps) == [*range(1, 51)]


async def test_presence_updates_trimmed_before_they_were_recorded_are_marked(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.event_log.updates.PAGES", 1)
    history = MemoryHistory(Retention(max_updates=100, max_bytes=2**20, presence_updates=2))
    async with world(plain(event_log=str(tmp_path)), history) as here:
        await here.publish("a")
        await until(lambda: log_of(here.hub)._updates._position == 1)

        tries = []

        def full(descriptor: int, data: Any) -> int:
            tries.append(descriptor)
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for n in range(10):
                await history.append([Update(("p",), id=f"p{n}")], presence=True)
                await here.caught_up()
            await here.publish("a")
            await here.caught_up()
            count = len(tries)
            await until(lambda: len(tries) > count + 1)  # a whole round has passed
        await until(lambda: log_of(here.hub)._updates._position == 12)
    assert [update["position"] for update in lines_of(tmp_path / "updates")] == [1, 10, 11, 12]
    [told] = [record.getMessage() for record in caplog.records if "are missing from" in record.getMessage()]
    assert "first=2 last=9" in told or "'first': 2, 'last': 9" in told
    [gap, *again] = gaps_in(tmp_path)
    assert (gap["after"], gap["until"], gap["updates"]) == (1, 9, True)
    assert gap["time"] == here.entries[0].time * 1_000
    assert not again  # even though the page was tried twice


async def test_a_failing_disk_delays_updates_and_loses_none(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hub.event_log.updates.PAGES", 2)
    async with world(plain(event_log=str(tmp_path))) as here:
        log = log_of(here.hub)
        assert log is not None
        await here.publish("a")
        await until(lambda: log._updates._position == 1)
        write = os.write

        def full(descriptor: int, data: Any) -> int:
            write(descriptor, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            stream = await here.connect("a")
            for _ in range(200):
                await here.publish("a")
                await here.settle(3)
            await until(lambda: "No space" in caplog.text)
        await until(lambda: log._updates._position == 201)
        stream.go()
        await here.settle()
    check(here, tmp_path)

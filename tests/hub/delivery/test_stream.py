"""Streams and dispatches together, on connections that the test blocks and closes.

In every run, each subscriber must receive the updates that a naive filter selects after
its position, once each and in the order of the history.  Slow sockets, heartbeats and
other subscribers must not change that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub.auth.grant import CompiledGrant
from hub.delivery.heartbeats import LATE_SECONDS
from hub.delivery.seat import Ending
from hub.delivery.stream import Stream
from hub.errors import Busy, Closing, InsufficientScope, InvalidRequest, LimitExceeded
from hub.history import base
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.protocol.updates import Update
from hub.server.asgi import AsgiConnection
from tests.hub.world import EVERYTHING, SETTINGS, Client, World, check, plain, world
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Message

    from hub import Settings
    from hub.history.base import Entry, Page

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("connections")]

LIFETIME = 20


class SlowHistory(MemoryHistory):
    """A history that yields to other tasks in each operation, as a remote one does."""

    async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
        await asyncio.sleep(0)
        entries = await super().append(updates, **options)
        await asyncio.sleep(0)
        return entries

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        found = await super().find(id, presence=presence)
        await asyncio.sleep(0)
        return found

    async def newest(self) -> Entry | None:
        found = await super().newest()
        await asyncio.sleep(0)
        return found

    async def read(self, after: int) -> Page:
        page = await super().read(after)
        await asyncio.sleep(0)
        return page


class Naive:
    """A naive model of limits and announcements, fed by the notes of the world."""

    def __init__(self, chosen: Settings) -> None:
        self.settings = chosen
        self.open: list[Client] = []
        self.refused: list[Client] = []
        self.changes: list[tuple[Client, bool]] = []

    def note(self, what: str, connection: Client) -> None:
        if what == "begins":
            self.changes.append((connection, True))
            return
        if what == "over":
            if connection in self.open:
                self.open.remove(connection)
                self.changes.append((connection, False))
            return
        alike = [one for one in self.open if one.name == connection.name]
        if len(self.open) >= self.settings.max_connections or 0 < self.settings.max_connections_per_client <= len(
            alike
        ):
            self.refused.append(connection)
        else:
            self.open.append(connection)

    def check(self, here: World) -> None:
        """Compare the model with the world at the end of a run."""
        for connection in here.connections:
            # A task that was cancelled before it ran could not raise its refusal.
            error = connection.refusal if connection.task.cancelled() else connection.task.exception()
            assert isinstance(error, LimitExceeded | Busy) is (connection in self.refused)
        if not self.settings.subscriptions:
            assert here.announced == []
            return
        cut_short = [one for one in here.connections if one.task.cancelled() or one.task.exception() is not None]
        steady = [(one, active) for one, active in self.changes if one not in cut_short]
        expected = [(one.subscriber.id, active) for one, active in steady for _ in one.subscriber.subscribed]
        ids = {id for id, _ in expected}
        assert [change for change in here.announced if change[0] in ids] == expected
        for one in cut_short:  # announced, or gone before that
            count = len(one.subscriber.subscribed)
            mine = [active for id, active in here.announced if id == one.subscriber.id]
            assert mine == [] or (mine == [True] * count + [False] * count and one not in self.refused)


TOPICS = st.sampled_from(["a/1", "a/2", "b"])
PATTERNS = st.sampled_from([
    "a/{n}", "a/1", "b", "*", "c", "/.well-known/mercure/subscriptions{/rest*}", ("exact", "a/1"), ("exact", "*"),
    ("uritemplate", "a/{n}"), ("urlpattern", "/.well-known/a/:n"), ("mqtt", "a/+"), ("amqp", "#"),
])  # fmt: skip
CONFIGURATIONS = st.fixed_dictionaries(
    {
        "subscriptions": st.booleans(),
        "max_lifetime": st.sampled_from([0, LIFETIME]),
        "max_connections": st.sampled_from([2, 100]),
        "max_connections_per_client": st.sampled_from([0, 0, 2]),
    }
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(TOPICS, min_size=1, max_size=2, unique=True), st.booleans()),
        st.tuples(st.just("publish many"), st.integers(2, 12), st.booleans()),
        st.tuples(st.just("publish a batch"), st.integers(2, 6), st.booleans()),
        st.tuples(
            st.just("connect"),
            st.lists(PATTERNS, min_size=1, max_size=2, unique=True),
            st.lists(PATTERNS, max_size=1),
            st.sampled_from([None, None, "newest", "", "earliest", "batch 1", "0", *map(str, range(1, 20))]),
            st.sampled_from(["one", "other"]),
        ),
        st.tuples(st.sampled_from(["block", "block", "unblock", "go", "cancel"]), st.integers(0, 5)),
        st.tuples(st.just("beat"), st.integers(1, 12)),
        st.tuples(st.just("settle"), st.integers(1, 12)),
    ),
    max_size=40,
)


CONNECT: tuple[Any, ...] = "connect", ["a/{n}"], [], None, "one"


@example(
    [CONNECT, CONNECT, CONNECT, ("cancel", 2)],  # the third is refused, and cancelled before it runs
    {"subscriptions": False, "max_lifetime": 0, "max_connections": 2, "max_connections_per_client": 0},
    *(1, 1, False, False),
)
@example(  # the last stream takes its seat while the end of the only other one is announced
    [CONNECT, ("go", 0), ("settle", 7), ("connect", ["b"], [], None, "other")],
    {"subscriptions": True, "max_lifetime": 0, "max_connections": 100, "max_connections_per_client": 0},
    *(1, 1, True, True),
)
@settings(max_examples=300, deadline=None)
@given(ACTIONS, CONFIGURATIONS, st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
def test_n21_n81_n106_n120_n127_t71_all_subscribers_agree_with_a_naive_filter(
    actions: list[Any], chosen: dict[str, Any], slice: int, page: int, slow: bool, at_once: bool
) -> None:
    configuration = plain(heartbeat=10, **chosen)
    naive = Naive(configuration)

    async def play() -> None:
        log = (SlowHistory if slow else MemoryHistory)(Retention(max_updates=10_000, max_bytes=2**26))
        async with world(configuration, log) as here:
            here.note = naive.note
            for what, *arguments in actions:
                await perform(here, what, *arguments)
                check(here.hub)
            if not at_once:
                for connection in here.connections:
                    connection.unblock()
                await here.caught_up()
                for connection in here.connections:
                    assert connection.task.done() or connection.ids == here.expected(connection)
        naive.check(here)
        for connection in here.connections:
            assert connection.ids == here.expected(connection)[: len(connection.ids)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hub.turns.WRITES", slice)
        patch.setattr(base, "PAGE_ENTRIES", page)
        patch.setattr("hub.delivery.stream.CHUNK_BYTES", 20 * page)  # one small frame, or a few
        patch.setattr("hub.hub.LAST_ANNOUNCEMENTS_SECONDS", 10.0)
        asyncio.run(play())


async def perform(here: World, what: str, *arguments: Any) -> None:
    match what, *arguments:
        case "publish", topics, private:
            await here.publish(*topics, private=private)
        case "publish many", count, private:
            topics = ["b" if n % 2 else "a/1" for n in range(count)]
            await asyncio.gather(*(here.publish(topic, private=private) for topic in topics))
        case "publish a batch", count, private:
            updates = [Update(("b" if n % 2 else "a/1",), private=private, id=f"batch {n}") for n in range(count)]
            await here.hub.publish(*updates, grant=EVERYTHING)
        case "connect", patterns, granted, after, address:
            ids = [entry.update.id for entry in here.entries]
            if after == "newest" and ids:
                after = ids[-1]
            place = len(ids) if not after else ids.index(after) + 1 if after in ids else 0
            connection = await here.connect(*patterns, granted=granted, after=after, address=address)
            if not after:  # new presence updates may precede it too
                assert place <= connection.start <= here.log._end or connection.refusal is not None
            else:
                assert connection.start == place or connection.refusal is not None
        case "beat", seconds:
            await here.tick(seconds)
            check_lifetimes(here)
        case "settle", rounds:
            await here.settle(rounds)
        case _, index if here.connections:
            connection = here.connections[index % len(here.connections)]
            if what == "cancel":
                connection.task.cancel()
            else:
                {"block": connection.block, "unblock": connection.unblock, "go": connection.go}[what]()


def check_lifetimes(here: World) -> None:
    """Assert that no connection outlives its lifetime, and none is closed too early."""
    for connection in here.connections:
        subscriber, reason = connection.subscriber, connection.reason
        if here.hub.settings.max_lifetime and here.has(subscriber):
            age = here.now - connection.since
            assert reason is not None or age < LIFETIME or connection.connected >= here.ticked
            assert reason not in (Ending.EXPIRED, Ending.MAX_LIFETIME) or age >= 0.8 * LIFETIME - LATE_SECONDS


async def test_r20_the_first_bytes_are_a_comment_and_the_position_is_fixed_before_them() -> None:
    async with world() as here:
        connection = await here.connect("a")
        await here.publish("a")  # the response has not begun
        assert connection.writes == []
        await here.caught_up()
        await here.settle()
        assert connection.writes == [b":\n", b"id: 1\ndata: \n\n"]


async def test_updates_that_come_together_are_written_once() -> None:
    async with world() as here:
        connection = await here.connect("a")
        other = await here.connect("b")
        await here.settle()
        await asyncio.gather(*(here.publish(topic) for topic in ("a", "b", "a", "b", "b")))
        await here.caught_up()
        assert connection.writes[1:] == [b"id: 1\ndata: \n\nid: 3\ndata: \n\n"]
        assert other.writes[1:] == [b"id: 2\ndata: \n\nid: 4\ndata: \n\nid: 5\ndata: \n\n"]


async def test_a_frame_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hub.protocol import events

    encoded = []
    frame = events.frame

    def counted(update: Update) -> bytes:
        encoded.append(update.id)
        return frame(update)

    monkeypatch.setattr(events, "frame", counted)
    async with world() as here:
        for _ in range(20):
            await here.connect("a")
        await here.settle()
        await here.publish("a")
        await here.caught_up()
        await here.connect("a", after="earliest")
        await here.caught_up()
        assert [connection.ids for connection in here.connections] == [["1"]] * 21
    assert encoded == ["1"]


async def test_n83_a_replay_leaves_out_private_updates_among_public_ones_of_the_same_topic() -> None:
    async with world() as here:
        for private in (False, True, False):
            await here.publish("a", private=private)
        connection = await here.connect("a", after="earliest")
        await here.caught_up()
        assert connection.ids == ["1", "3"]


async def test_r30_t70_a_reader_without_room_leaves_and_holds_one_write() -> None:
    async with world() as here:
        stuck, healthy = await here.connect("a"), await here.connect("a")
        await here.settle()
        stuck.block()
        for n in range(1, 51):
            await here.publish("a")
            await here.settle(10)
            assert healthy.ids[-1] == str(n)
        assert (here.hub.delivery.live_count, here.hub.delivery.connection_count) == (1, 2)
        assert stuck.ids == []
        stuck.unblock()
        await here.caught_up()
        assert stuck.ids == healthy.ids == [str(n) for n in range(1, 51)]
        assert here.hub.delivery.live_count == 2


async def test_dispatch_yields_to_other_tasks_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 5)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(20)]
        await here.settle()
        await here.publish("a")
        seen = set()
        while (count := sum(bool(connection.ids) for connection in connections)) < 20:
            seen.add(count)
            await asyncio.sleep(0)
        assert {5, 10, 15} <= seen


async def test_a_stream_that_leaves_during_a_dispatch_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 1)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(4)]
        await here.settle()
        await here.publish_and_see(connections[0])
        connections[3].stream.close(Ending.SHUTDOWN)
        await here.settle()
        assert [connection.ids for connection in connections] == [["1"], ["1"], ["1"], []]
        assert connections[3].ended


@pytest.mark.parametrize("updates", [1, 3])
async def test_t71_a_stream_that_joins_during_a_dispatch_is_skipped(
    updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has already read what the dispatch still writes to the streams after it."""
    monkeypatch.setattr("hub.turns.WRITES", 1)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(40)]
        first, *_, last = connections
        await here.settle()
        last.block()
        await here.publish("a")
        while here.hub.delivery.live_count == 40:
            await asyncio.sleep(0)
        await here.hub.publish(*(Update(("a",), id=f"more {n}") for n in range(updates)), grant=EVERYTHING)
        while len(first.ids) == 1:
            await asyncio.sleep(0)
        last.unblock()
        while here.hub.delivery.live_count < 40:
            await asyncio.sleep(0)
        assert len(first.ids) == len(last.ids) == 1 + updates
        assert len(connections[-2].ids) == 1  # the dispatch has not reached it yet
        await here.caught_up()
        assert [connection.ids for connection in connections] == [here.expected(first)] * 40


async def test_r32_a_write_that_fails_ends_that_stream_alone() -> None:
    async with world() as here:
        broken, healthy = await here.connect("a"), await here.connect("a")
        await here.settle()

        broken.wire.fails = RuntimeError("broken")
        await here.publish("a")
        while not healthy.ids:
            await asyncio.sleep(0)
        await here.settle()
        assert (broken.task.done(), healthy.ids, here.hub.delivery.connection_count) == (True, ["1"], 1)
        broken.go()


async def test_n8_r34_t64_heartbeats_come_after_silence_only() -> None:
    async with world() as here:
        connection = await here.connect("a")
        await here.settle()
        for _ in range(9):
            here.now += 1
            await here.hub.delivery._heartbeats.tick()
        await here.publish("a")
        await here.caught_up()
        for _ in range(9):
            here.now += 1
            await here.hub.delivery._heartbeats.tick()
        assert connection.writes == [b":\n", b"id: 1\ndata: \n\n"]
        for _ in range(2):
            here.now += 1
            await here.hub.delivery._heartbeats.tick()
        assert connection.writes == [b":\n", b"id: 1\ndata: \n\n", b":\n"]


async def test_n106_a_heartbeat_that_finds_no_room_loses_nothing() -> None:
    async with world() as here:
        connection = await here.connect("a")
        await here.settle()
        await here.publish("a")
        await here.settle()
        connection.block()
        here.now += 20
        await here.hub.delivery._heartbeats.tick()
        assert here.hub.delivery.live_count == 0
        await here.publish("a")
        connection.unblock()
        await here.caught_up()
        assert connection.ids == ["1", "2"]


async def test_n82_a_stream_ends_before_its_token() -> None:
    async with world() as here:
        connection = await here.connect("a", seconds=30)
        await here.settle()
        for _ in range(27):
            here.now += 1
            await here.hub.delivery._heartbeats.tick()
            await here.settle(5)
        assert not connection.ended
        here.now += 2
        await here.hub.delivery._heartbeats.tick()
        await here.settle()
        assert connection.ended
        await connection.task


@pytest.mark.parametrize("blocked", [False, True])
async def test_closing_ends_a_stream_in_any_state(blocked: bool) -> None:
    async with world() as here:
        connection = await here.connect("a")
        await here.settle()
        if blocked:
            connection.block()
            await here.publish("a")
            await here.settle()
        connection.stream.close(Ending.SHUTDOWN)
        connection.stream.close(Ending.SENT_MORE)
        if blocked:
            await here.settle()
            assert connection.task.done()  # there was no room for an end, and it did not wait
            connection.go()
        await asyncio.wait_for(connection.task, 10)
        assert connection.ended is not blocked


async def test_a_stream_that_begins_while_the_hub_closes_ends_at_once() -> None:
    async with world() as here:
        here.hub.shutdown.begin()
        connection = await here.connect("a")
        await asyncio.wait_for(connection.task, 10)
        [first] = connection.writes
        assert first.startswith(b":\nretry: ")  # it ends, so there is a hint whatever `retry` says
        assert connection.ended


async def test_a_stream_that_ends_with_its_token_is_no_fault_of_the_hub() -> None:
    async with world(plain(retry=0)) as here:
        expired = await here.connect("a", seconds=0.5)
        await here.settle()
        assert (expired.writes, expired.ended) == ([b":\n"], True)
        other = await here.connect("a")
        await here.settle()
        assert other.writes == [b":\n"]  # there is no outage, and so no hint


async def test_cancelling_its_task_from_outside_is_not_taken_for_a_wake_up() -> None:
    async with world() as here:
        connection = await here.connect("a")
        await here.settle()
        connection.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connection.task
        assert here.hub.delivery.connection_count == 0
        both = await here.connect("a")
        await here.settle()
        both.stream.close(Ending.SHUTDOWN)
        both.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both.task
        here.connections.clear()


async def test_a_dispatch_that_fails_halfway_ends_all_streams_and_reconnecting_clients_miss_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as here:
        first, other = await here.connect("a"), await here.connect("a")
        await here.publish("a")
        await here.caught_up()
        assert first.ids == other.ids == ["1"]
        with monkeypatch.context() as patch:

            async def choices(entries: list[Entry], live: Any) -> Any:
                only = live.copy()
                only.discard(other.stream.seat.id)

                def halfway() -> Any:
                    yield only, 1, entries[0].frame
                    raise RuntimeError("out of order")

                return halfway()

            patch.setattr(here.hub.delivery._live, "_choices", choices)
            await here.publish("a")
            for connection in (first, other):
                await asyncio.wait_for(connection.task, 10)
        assert (first.ids, other.ids) == (["1", "2"], ["1"])
        again = await here.connect("a", after=other.ids[-1])
        await here.caught_up()
        assert again.ids == ["2"]


async def test_r30_n112_a_stream_whose_position_is_trimmed_is_informed_and_closed() -> None:
    async with world(plain(history_updates=4)) as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        for _ in range(10):
            await here.publish("a")
        connection.unblock()
        await asyncio.wait_for(connection.task, 10)
        assert connection.ids == ["1", "2", "3", "4"][: len(connection.ids)]
        assert connection.writes[-1] == b": this subscriber fell behind the history, and updates were lost\n"
        assert connection.ended
        again = await here.connect("a", after="1")
        await here.caught_up()
        assert again.ids == ["7", "8", "9", "10"]


async def test_r30_t70_publishers_wait_for_dispatch_and_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(plain(history_updates=8)) as here:
        stuck = await here.connect("a")
        await here.settle()
        stuck.block()
        most = 0

        async def publish() -> None:
            nonlocal most
            for _ in range(20):
                await here.publish("a")
                most = max(most, here.count - here.hub.delivery.position)

        await asyncio.wait_for(asyncio.gather(publish(), publish()), 10)
        assert most <= 8 // 2 + 2  # the backlog, and one for each publisher
        stuck.go()


async def test_if_the_position_of_dispatch_is_trimmed_all_streams_are_closed() -> None:
    async with world(plain(history_updates=2)) as here:
        connection = await here.connect("a")
        await here.settle()
        for n in range(5):  # not through the hub, which would wait
            await here.hub.history.append([Update(("a",), id=f"x{n}")])
        await asyncio.wait_for(connection.task, 10)
        assert connection.ended
        assert here.hub.delivery.position == 5
        again = await here.connect("a", after="earliest")
        await here.settle()
        assert again.ids == ["x3", "x4"]


async def test_publishers_that_overtake_dispatch_do_not_wait_forever() -> None:
    async with world(plain(history_updates=2)) as here:
        await asyncio.wait_for(asyncio.gather(*(here.publish("a") for _ in range(10))), 10)


async def test_publishers_get_room_even_if_dispatch_precedes_the_response_of_the_history() -> None:
    class Late(MemoryHistory):
        async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
            entries = await super().append(updates, **options)
            while here.hub.delivery.position < entries[-1].position:
                await asyncio.sleep(0)
            await here.settle(5)  # lets tasks that wait for the position run
            return entries

    async with world(plain(history_updates=4), Late(Retention(max_updates=4, max_bytes=2**20))) as here:
        await asyncio.wait_for(asyncio.gather(*(here.publish("a") for _ in range(9))), 10)


async def test_n106_t71_many_concurrent_publishers_do_not_trim_undelivered_updates() -> None:
    small = plain(history_bytes=40 * Update(("a",), "x" * 100).size)
    async with world(small) as here:
        connection = await here.connect("a")
        await here.settle()
        updates = [Update(("a",), "x" * 1_000, id=f"x{n}") for n in range(100)]
        await asyncio.wait_for(asyncio.gather(*(here.hub.publish(update, grant=EVERYTHING) for update in updates)), 10)
        await here.settle()
        assert connection.ids == [f"x{n}" for n in range(100)]
        larger = Update(("a",), "x" * 10_000, id="larger than half the history")
        await asyncio.wait_for(here.hub.publish(larger, grant=EVERYTHING), 10)
        await here.settle()
        assert connection.ids[-1] == "larger than half the history"


async def test_an_append_that_fails_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(plain(history_updates=4)) as here:
        for _ in range(5):
            with pytest.raises(UnicodeEncodeError):
                await asyncio.wait_for(here.hub.publish(Update(("a",), "\ud800"), grant=EVERYTHING), 10)

        async def fail(updates: Sequence[Update], **options: Any) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(here.hub.history, "append", fail)
            for _ in range(5):
                with pytest.raises(OSError, match="full"):
                    await asyncio.wait_for(here.hub.publish(Update(("a",)), grant=EVERYTHING), 10)
        await asyncio.wait_for(here.publish("a"), 10)


async def test_a_lost_connection_that_the_server_does_not_report_is_found() -> None:
    for each in (SETTINGS, plain(heartbeat=0)):
        async with world(each) as here:
            connection = await here.connect("a")
            await here.settle()
            connection.wire.cut = True
            for _ in range(50):
                here.now += 1
                await here.hub.delivery._heartbeats.tick()
            await here.settle()
            assert connection.task.done()
            connection.go()


async def test_a_response_that_cannot_even_begin_is_closed_with_the_hub() -> None:
    """For example, a client pipelines two requests and reads no response."""
    async with world() as here:
        connection = await here.connect("a")
        connection.block()
        await here.settle()
        here.hub.shutdown.begin()
        await asyncio.wait_for(connection.task, 10)
        assert connection.writes == []
        assert not connection.ended


async def test_a_response_that_cannot_begin_is_cut_at_once_if_the_hub_is_closing() -> None:
    async with world() as here:
        connection = await here.connect("a")
        connection.block()
        here.hub.shutdown.begin()
        await here.settle()
        assert connection.task.done()
        assert not connection.begun


async def test_a_stream_without_room_for_its_first_bytes_is_not_live() -> None:
    async with world() as here:
        connection = await here.connect("a")

        async def block() -> None:
            connection.block()

        connection.wire.before_head = block
        await here.settle()
        assert (connection.begun, connection.writes, here.hub.delivery.live_count) == (True, [], 0)
        connection.unblock()
        await here.caught_up()
        assert here.hub.delivery.live_count == 1


async def test_an_oserror_from_send_means_that_the_client_went_away() -> None:
    async with world() as here:
        subscriber, _ = await here.hub.subscribing.admit([("topic", "a")], CompiledGrant())

        async def fail(message: Message) -> None:
            raise OSError("gone")

        async def receive() -> Message:
            raise AssertionError

        stream = Stream(here.hub.delivery, AsgiConnection(fail, receive))
        await stream.open(subscriber)
        await stream.run(lambda: fail({}))
        assert here.hub.delivery.connection_count == 0


async def test_a_heartbeat_before_the_first_dispatch_repeats_no_older_update() -> None:
    log = MemoryHistory(Retention(100, 10**6))
    await log.append([Update(("a",), id=f"old {n}") for n in range(3)])
    async with world(SETTINGS, log) as here:
        connection = await here.connect("a")
        await here.caught_up()
        await here.pass_by(10)
        assert connection.writes == [b":\n", b":\n"]
        connection.block()
        await here.publish("a")
        await here.settle()
        connection.unblock()
        await here.caught_up()
        assert connection.ids == ["1"]


async def test_heartbeats_wait_for_the_end_of_a_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a heartbeat without room would note a position ahead of the writes."""
    monkeypatch.setattr("hub.turns.WRITES", 1)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(20)]
        await here.settle()
        here.now += 20
        for connection in connections[1:]:
            connection.block()
        await here.publish_and_see(connections[0])
        await here.hub.delivery._heartbeats.tick()
        for connection in connections:
            connection.unblock()
        await here.caught_up()
        assert [connection.ids for connection in connections] == [["1"]] * 20


async def test_a_closed_stream_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 1)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(4)]
        await here.settle()
        await here.publish_and_see(connections[0])
        last = connections[3].stream
        last.close(Ending.SHUTDOWN)
        last.close(Ending.SENT_MORE)
        written = []
        monkeypatch.setattr(Stream, "write", lambda self, body, position: written.append(self))
        assert here.hub.delivery.live_count == 3
        await here.settle()
        assert last not in written
        assert last.reason is Ending.SHUTDOWN


async def test_a_stream_that_leaves_during_a_round_of_heartbeats_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 1)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(6)]
        await here.settle()
        here.now += 20
        round = asyncio.ensure_future(here.hub.delivery._heartbeats.tick())
        await asyncio.sleep(0)
        for connection in connections:
            connection.go()
        await round
        await here.settle()
        assert len(here.hub.delivery._heartbeats._wheel) == 0


async def test_a_round_of_heartbeats_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.WRITES", 5)
    async with world() as here:
        connections = [await here.connect("a") for _ in range(20)]
        await here.settle()
        here.now += 20
        round = asyncio.ensure_future(here.hub.delivery._heartbeats.tick())
        seen = set()
        while not round.done():
            seen.add(sum(len(connection.writes) - 1 for connection in connections))
            await asyncio.sleep(0)
        assert {5, 10, 15} <= seen


async def test_waking_twice_cancels_once() -> None:
    async with world() as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        connection.stream.write(b":\n", here.hub.delivery.position)
        connection.stream.close(Ending.SHUTDOWN)
        await here.settle()
        assert connection.task.done()
        assert not connection.task.cancelled()
        connection.go()


async def test_n106_a_cursor_ahead_of_dispatch_waits_for_it() -> None:
    async with world() as here:
        async with here.hub.delivery._live.turn:  # as if a long dispatch were running
            await here.publish("a")
            ahead = await here.connect("a", after="1")
            await here.settle()
            assert here.hub.delivery.live_count == 0
        await here.publish("a")
        await here.caught_up()
        assert ahead.ids == ["2"]


@pytest.mark.parametrize("rounds", range(5))
async def test_n106_a_cursor_ahead_of_dispatch_is_kept_while_the_history_is_read(rounds: int) -> None:
    async with world(SETTINGS, SlowHistory(Retention(max_updates=100, max_bytes=2**20))) as here:
        async with here.hub.delivery._live.turn:
            ahead = await here.connect("a", after=await here.publish("a"))
            await here.settle(rounds)
        await here.caught_up()
        await here.publish("a")
        await here.caught_up()
        assert ahead.ids == ["2"]


async def test_a_replay_does_not_overtake_dispatch() -> None:
    async with world() as here:
        async with here.hub.delivery._live.turn:
            await here.publish("a")
            connection = await here.connect("a", after="earliest")
            await here.settle()
            assert (connection.writes, connection.ids) == ([b":\n"], [])
        await here.caught_up()
        assert connection.ids == ["1"]


async def test_n106_an_update_before_the_cursor_is_not_sent_even_if_its_dispatch_comes_later() -> None:
    async with world() as here:
        for _ in range(300):  # like a batch, of which a part is dispatched
            await here.publish("a")
        assert here.hub.delivery.position < 300
        connection = await here.connect("a")
        assert connection.subscriber.start == 300
        await here.publish("a")
        await here.caught_up()
        assert connection.ids == ["301"]


async def test_informing_a_stream_whose_position_is_trimmed_does_not_block() -> None:
    async with world(plain(history_updates=2)) as here:
        connection = await here.connect("a")
        await here.settle()
        connection.block()
        for _ in range(9):
            await here.publish("a")
        connection.wire.full_after = b"fell behind"
        connection.unblock()
        await asyncio.wait_for(connection.task, 10)
        connection.go()


async def test_a_replay_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.turns.SLICE_SECONDS", 0)
    async with world() as here:
        for n in range(100):
            await here.publish(f"b{n}")
        await here.caught_up()
        steps = 0
        connection = await here.connect("a", after="earliest")
        while here.hub.delivery.live_count == 0:
            steps += 1
            await asyncio.sleep(0)
        assert steps >= 100
        assert connection.ids == []


async def test_n80_a_refused_update_is_not_appended() -> None:
    async with world() as here:
        with pytest.raises(InsufficientScope):
            await here.hub.publish(Update(("a",)), grant=CompiledGrant())
        with pytest.raises(InvalidRequest):
            await here.hub.publish(Update(("*",)), grant=EVERYTHING)
        here.hub.shutdown.begin()
        with pytest.raises(Closing):
            await here.hub.publish(Update(("a",)), grant=EVERYTHING)
        assert await here.hub.history.newest() is None


async def test_a_hub_starts_at_the_end_of_its_history() -> None:
    here = World()
    await here.hub.history.append([Update(("a",), id="before")])
    async with here.hub.running():
        assert here.hub.delivery.position == 1
        connection = await here.connect("a")
        await here.settle()
        assert connection.ids == []
    await connection.task


async def test_the_tasks_that_run_a_hub_survive_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.delivery.heartbeats.TICK_SECONDS", 0.01)
    monkeypatch.setattr("hub.delivery.follower.RETRY_SECONDS", 0.01)
    async with world() as here:
        parts: dict[str, Any] = {"tick": here.hub.delivery._heartbeats, "dispatch": here.hub.delivery._live}
        calls = dict.fromkeys(parts, 0)

        def failing_once(name: str) -> Callable[..., Awaitable[None]]:
            works = getattr(parts[name], name)

            async def call(*arguments: Any) -> None:
                calls[name] += 1
                if calls[name] == 1:
                    raise RuntimeError("once")
                await works(*arguments)

            return call

        for name in calls:
            monkeypatch.setattr(parts[name], name, failing_once(name))
        connection = await here.connect("a")
        await here.publish("a")
        await until(lambda: connection.ids == ["1"] and calls["tick"] >= 3)

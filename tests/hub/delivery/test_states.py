"""The states of a stream: each event in each state, on a fake connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from hub.auth.grant import CompiledGrant
from hub.delivery.observer import Observer
from hub.delivery.reading import Part
from hub.delivery.seat import Ending, Seat
from hub.delivery.stream import TRANSITIONS, State, Stream
from hub.delivery.subscriber import Subscriber
from hub.errors import PositionExpired
from hub.history.base import Entry
from hub.protocol import events
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hub.delivery.stream import Work

pytestmark = pytest.mark.anyio

END = 3
"""The position of the live streams."""


class Connection:
    """A fake connection that records its calls."""

    def __init__(self) -> None:
        self.begins: bool | Exception | asyncio.Future[bool] = True
        self.room = True
        self.raises: Exception | None = None
        self.drains: asyncio.Future[bool] | None = None
        self.closing = False
        self.left = 0
        """The number of buffered bytes."""
        self.finishes = True
        self.writes: list[bytes] = []
        self.calls: list[str] = []
        self.task: asyncio.Task[None] | None = None

    async def begin(self, head: object, stream: object, *, wait: bool) -> bool:
        self.calls.append(f"begin {wait}")
        if isinstance(self.begins, Exception):
            raise self.begins
        return self.begins if isinstance(self.begins, bool) else await self.begins

    def write_first(self, body: bytes) -> bool:
        return self.write(body)

    def write(self, body: bytes, shared: bool = True) -> bool:
        if self.raises is not None:
            raise self.raises
        self.writes.append(body)
        return self.room

    async def drain(self) -> bool:
        if self.drains is None:
            self.drains = asyncio.get_running_loop().create_future()
        drained, self.drains = await self.drains, None
        return drained

    def unsent(self) -> int:
        return self.left

    def buffered(self) -> int:
        return self.left

    def is_flushed(self) -> bool:
        return not self.left

    def is_closing(self) -> bool:
        return self.closing

    def start(self, work: Work) -> None:
        self.calls.append("start")
        self.task = asyncio.ensure_future(work())

    def finish(self) -> bool:
        self.calls.append("finish")
        return self.finishes

    def abort(self, *, reset: bool = False) -> None:
        self.calls.append("abort")
        if isinstance(self.begins, asyncio.Future) and "begin True" in self.calls:
            self.begins.set_result(False)

    def stop(self) -> None:
        self.calls.append("stop")
        if self.task is not None:
            self.task.cancel()

    async def serve(self) -> bool:
        return False


class Case:
    """A stream, and a fake delivery with this one connection."""

    def __init__(self, *, position: int = END, closing: bool = False) -> None:
        self.connection = Connection()
        self.pages: list[Any] = []
        """The results of the reads: parts, exceptions or futures; then the end."""
        self.vacated: list[tuple[int, int]] = []
        """Up to where the stream was sent everything, and how many entries after it."""
        self.closing = Ending.SHUTDOWN if closing else None
        self.observer = Observer()
        self.clock = lambda: 0.0
        self.position = self.dispatched = END
        self.subscriber = Subscriber((), CompiledGrant(), position)
        self.stream = Stream(cast("Any", self), self.connection)

    # -- what a stream needs of `Delivery`

    async def take_seat(self, subscriber: Subscriber, holder: Stream) -> Seat:
        return Seat(subscriber, holder)

    def hint(self, *, ends: bool = False) -> float | None:
        return None

    def begin(self, seat: Seat, position: int) -> None:
        raise AssertionError

    def reading(self, seat: Seat, after: int) -> Case:
        return self

    def join(self, seat: Seat, outlet: Stream, position: int) -> None:
        assert position == self.position
        seat.outlet = outlet

    def leave(self, seat: Seat) -> None:
        seat.outlet = None

    def vacate(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        assert self.stream.state is State.CLOSED
        seat.outlet = None
        self.vacated.append((position, more))

    async def next(self) -> Part | None:
        if not self.pages:
            return None
        page = self.pages.pop(0)
        if isinstance(page, asyncio.Future):
            page = await page
        if isinstance(page, Exception):
            raise page
        return cast("Part", page)

    async def run(self) -> None:
        await self.open()
        await self.stream.run(cast("Any", None))

    async def open(self) -> None:
        if not hasattr(self.stream, "seat"):
            await self.stream.open(self.subscriber)

    @property
    def state(self) -> State:
        return self.stream.state

    @property
    def is_live(self) -> bool:
        return self.stream.seat.outlet is self.stream

    @property
    def disconnected(self) -> int:
        return len(self.vacated)


def part(start: int, end: int) -> Part:
    wanted = [Entry(position, Update(("a",), id=str(position))) for position in range(start + 1, end + 1)]
    return Part(start, wanted, sum(len(entry.frame) for entry in wanted), end)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def opening() -> Case:
    case = Case()
    await case.open()
    return case


async def catching_up() -> Case:
    case = Case(position=0)
    case.pages = [part(0, 1), asyncio.get_running_loop().create_future()]
    await case.run()
    await turns()
    return case


async def live() -> Case:
    case = Case()
    await case.run()
    return case


async def behind() -> Case:
    case = await live()
    case.connection.room = False
    case.stream.write(b"x\n\n", END + 1)
    await turns()
    return case


async def closing() -> Case:
    case = await live()
    case.stream.close(Ending.SHUTDOWN)
    return case


async def closed() -> Case:
    case = await live()
    case.stream.lost(None)
    return case


IN: dict[State, Callable[[], Awaitable[Case]]] = {
    State.OPENING: opening,
    State.CATCHING_UP: catching_up,
    State.LIVE: live,
    State.BEHIND: behind,
    State.CLOSING: closing,
    State.CLOSED: closed,
}


@pytest.mark.parametrize("state", State)
async def test_each_state_can_be_reached(state: State) -> None:
    case = await IN[state]()
    assert (case.state, case.is_live) == (state, state is State.LIVE)


@pytest.mark.parametrize("state", State)
async def test_a_lost_connection_closes_a_stream_at_once_and_once(state: State) -> None:
    case = await IN[state]()
    for _ in range(2):
        case.stream.lost(None)
        assert (case.state, case.disconnected, case.is_live) == (State.CLOSED, 1, False)
    await turns()
    assert case.connection.calls.count("stop") == 1
    assert case.connection.task is None or case.connection.task.done()


@pytest.mark.parametrize("state", State)
async def test_closing_ends_a_response_within_a_turn_and_the_first_reason_counts(state: State) -> None:
    case = await IN[state]()
    before = case.stream.reason
    case.stream.close(Ending.SHUTDOWN)
    case.stream.close(Ending.SENT_MORE)
    assert case.stream.reason == (before if state in (State.CLOSING, State.CLOSED) else Ending.SHUTDOWN)
    assert case.state is (State.CLOSED if state is State.CLOSED else State.CLOSING)
    assert not case.is_live
    await turns(2)
    if state is State.OPENING:  # the head is not sent yet
        assert (case.state, case.connection.calls) == (State.CLOSING, ["abort"])
        await case.run()
        assert case.connection.calls[1] == "begin False"
        await turns(2)
    assert (case.state, case.disconnected) == (State.CLOSED, 1)
    assert ("finish" in case.connection.calls) == (state is not State.CLOSED)


async def test_a_stream_that_has_nothing_to_read_is_live_without_a_task() -> None:
    case = await live()
    assert case.connection.calls == ["begin True"]
    assert case.connection.writes == [events.HEARTBEAT]


async def test_a_stream_without_room_for_its_first_bytes_is_behind_until_there_is_room() -> None:
    case = Case()
    case.connection.room = False
    await case.run()
    assert (case.state, case.connection.calls) == (State.BEHIND, ["begin True", "start"])
    await turns()
    assert case.connection.drains is not None
    case.connection.drains.set_result(True)
    await turns()
    assert case.state is State.LIVE


@pytest.mark.parametrize("begins", [False, RuntimeError("planted"), OSError("gone")])
async def test_a_response_that_does_not_begin_is_closed_and_the_error_is_raised(begins: Any) -> None:
    case = Case()
    case.connection.begins = begins
    if isinstance(begins, Exception):
        with pytest.raises(type(begins)):
            await case.run()
    else:
        await case.run()
    assert (case.state, case.disconnected, case.connection.writes) == (State.CLOSED, 1, [])


async def test_a_stream_that_is_closed_while_its_head_is_sent_is_cut() -> None:
    case = Case()
    case.connection.begins = asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(case.run())
    await turns()
    case.stream.close(Ending.SHUTDOWN)
    await running
    assert (case.state, case.connection.calls) == (State.CLOSED, ["begin True", "abort", "stop"])


async def test_first_bytes_that_fail_cut_the_connection() -> None:
    case = Case()
    case.connection.raises = RuntimeError("planted")
    await case.run()
    await turns(2)
    assert (case.state, case.connection.calls[-2:]) == (State.CLOSED, ["abort", "stop"])


async def test_a_hub_that_is_closing_does_not_wait_for_a_head() -> None:
    case = Case(closing=True)
    await case.run()
    assert case.connection.calls == ["abort", "begin False"]  # before it begins, `abort` does nothing
    await turns(2)
    assert (case.state, case.connection.calls[2:]) == (State.CLOSED, ["finish", "stop"])


async def test_a_stream_reads_up_to_the_live_streams_and_joins() -> None:
    case = Case(position=0)
    case.pages = [part(0, 1), part(1, END)]
    await case.run()
    assert case.state is State.CATCHING_UP
    await turns()
    assert (case.state, case.stream.position) == (State.LIVE, END)
    assert b"".join(case.connection.writes).count(b"id: ") == END


async def test_a_write_without_room_while_catching_up_waits_for_room() -> None:
    case = Case(position=0)
    case.pages = [part(0, 2), part(2, END)]
    await case.run()
    case.connection.room = False
    await turns()
    assert (case.state, case.stream.position) == (State.BEHIND, 2)
    case.connection.left = len(case.connection.writes[-1]) - 1
    assert case.stream._delivered() == (0, 0)
    case.connection.left = 1
    assert case.stream._delivered() == (0, 1)
    case.connection.left = 0
    assert case.stream._delivered() == (2, 0)
    case.connection.room = True
    assert case.connection.drains is not None
    case.connection.drains.set_result(True)
    await turns()
    assert (case.state, case.stream.position, case.stream._delivered()) == (State.LIVE, END, (END, 0))


async def test_an_expired_position_is_announced_and_the_stream_ends() -> None:
    case = Case(position=0)
    case.pages = [PositionExpired()]
    await case.run()
    await turns()
    assert (case.state, case.connection.writes[-1]) == (State.CLOSED, events.LOST)
    assert case.connection.calls[-2:] == ["finish", "stop"]


async def test_an_error_while_catching_up_ends_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(position=0)
    case.pages = [RuntimeError("planted")]
    await case.run()
    await turns()
    assert (case.state, case.stream.reason) == (State.CLOSED, Ending.FAILED)
    assert "a stream failed" in caplog.text


async def test_a_silently_closed_connection_is_noticed_between_pages() -> None:
    case = Case(position=0)
    case.pages = [part(0, 1)]
    await case.run()
    case.connection.closing = True
    await turns()
    assert (case.state, case.stream.reason, case.stream.position) == (State.CLOSED, "its connection is lost", 0)


async def test_a_write_to_a_live_stream_advances_it_or_leaves_it_behind_or_closes_it() -> None:
    case = await live()
    case.stream.write(b"x\n\n", END + 1)
    assert (case.state, case.stream.position) == (State.LIVE, END + 1)
    case.connection.room, case.connection.left = False, 2
    case.stream.write(b"y\n\nz\n\n", END + 2)
    assert (case.state, case.stream.position, case.is_live) == (State.BEHIND, END + 2, False)
    assert case.stream._delivered() == (END + 1, 1)
    case = await live()
    case.connection.raises = RuntimeError("planted")
    case.stream.write(b"x\n\n", END + 1)
    assert (case.state, case.stream.position) == (State.CLOSING, END)
    await turns(2)
    assert case.connection.calls[-2:] == ["abort", "stop"]


@pytest.mark.parametrize("ends", ["lost", "close", "no room"])
async def test_a_live_stream_was_sent_all_that_it_wants_up_to_the_last_dispatch(ends: str) -> None:
    case = await live()
    case.dispatched = END + 5  # which had nothing for this stream
    assert case.stream.position == END + 5
    match ends:
        case "lost":
            case.stream.lost(None)
            assert case.vacated == [(END + 5, 0)]
        case "close":
            case.stream.close(Ending.SHUTDOWN)
            await turns(2)
            assert case.vacated == [(END + 5, 0)]
        case _:
            case.connection.room, case.connection.left = False, 10
            case.stream.write(b"x\n\n", END + 6)
            assert case.stream._delivered() == (END + 5, 0)


async def test_a_write_without_news_moves_no_stream_back() -> None:
    case = await live()
    case.dispatched = 0  # nothing was dispatched since the node started
    case.stream.write(events.HEARTBEAT, 0)
    assert case.stream.position == END


@pytest.mark.parametrize(("left", "state"), [(0, State.CLOSED), (5, State.BEHIND)])
async def test_a_full_connection_that_closes_is_lost_unless_its_rest_can_be_sent(left: int, state: State) -> None:
    case = await behind()
    case.connection.left = left
    assert case.connection.drains is not None
    case.connection.drains.set_result(False)
    await turns()
    assert case.state is state


@pytest.mark.parametrize("left", [0, 5])
async def test_an_end_without_room_is_cut_and_a_lost_connection_gets_a_turn_to_be_noticed(left: int) -> None:
    case = await live()
    case.connection.closing, case.connection.left, case.connection.finishes = True, left, False
    case.stream.close(Ending.SHUTDOWN)
    await turns(1)
    assert case.state is (State.CLOSED if left else State.CLOSING)
    await turns(1)
    assert case.state is State.CLOSED
    assert case.connection.calls[-2:] == ["abort", "stop"]


async def test_a_stream_that_is_closed_while_it_reads_does_not_join() -> None:
    case = Case(position=0)
    page = asyncio.get_running_loop().create_future()
    case.pages = [page]
    await case.run()
    await turns()
    page.set_result(part(0, END))
    case.stream.close(Ending.SHUTDOWN)
    assert case.state is State.CLOSING
    await turns()
    assert (case.state, case.is_live, case.connection.writes) == (State.CLOSED, False, [events.HEARTBEAT])


async def test_the_table_has_exactly_the_transitions_that_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[State, State]] = set()
    to = Stream._to

    def noted(stream: Stream, state: State) -> None:
        seen.add((stream.state, state))
        to(stream, state)

    monkeypatch.setattr(Stream, "_to", noted)
    for state in State:
        await test_a_lost_connection_closes_a_stream_at_once_and_once(state)
        await test_closing_ends_a_response_within_a_turn_and_the_first_reason_counts(state)
    await test_a_stream_without_room_for_its_first_bytes_is_behind_until_there_is_room()
    await test_a_stream_reads_up_to_the_live_streams_and_joins()
    await test_a_write_without_room_while_catching_up_waits_for_room()
    await test_a_write_to_a_live_stream_advances_it_or_leaves_it_behind_or_closes_it()
    assert seen == {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    with pytest.raises(AssertionError, match="closed -> live"):
        (await closed()).stream._to(State.LIVE)

"""The time slice that readers share, with a clock that only their work moves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from pyroaring import BitMap64

from hub import Settings, turns
from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.reading import Reading
from hub.delivery.seat import Ending
from hub.delivery.subscriber import Payer, Subscriber
from hub.event_log.recorder import EventLog
from hub.event_log.sessions import _Gone
from hub.history.base import Entry, Page
from hub.node.admission import Ticket
from hub.node.matchers import MatcherCompiler
from hub.node.shares import Shares
from hub.protocol import topics
from hub.protocol.updates import Update
from hub.turns import SLICE_SECONDS, FairTurns, TimeSlices
from skipfilter import SelectorIndex
from tests.asgi import PATH, application, ask, bearer, current_token
from tests.hub.world import plain, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hub.delivery.audience import Key

pytestmark = pytest.mark.anyio

WORK = SLICE_SECONDS / 5
"""The seconds that a question to an index, or a pattern, takes."""


class Clock:
    """A clock that counts seconds of work."""

    def __init__(self) -> None:
        self.now = 0.0
        self.longest = 0.0
        """The most work between two turns of another task."""

    def __call__(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += WORK

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Measure `longest` with another task that is always ready to run."""
        watcher = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            watcher.cancel()

    async def _watch(self) -> None:
        while True:
            before = self.now
            await asyncio.sleep(0)
            self.longest = max(self.longest, self.now - before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that each question to an index moves."""
    clock = Clock()
    ask = SelectorIndex.posting_lists

    def posting_lists(index: SelectorIndex, *arguments: object) -> list[Any]:
        clock.work()
        return ask(index, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SelectorIndex, "posting_lists", posting_lists)
    return clock


def history(count: int, *, topics: int = 1) -> list[Entry]:
    return [
        Entry(n + 1, Update(tuple(f"{n} {topic}" for topic in range(topics)), private=n % 2 == 0)) for n in range(count)
    ]


async def walk(
    clock: Clock,
    shared: TimeSlices,
    log: list[Entry],
    progress: list[int],
    *,
    fair: FairTurns | None = None,
    client: str = "",
) -> None:
    async def read(after: int) -> Page:
        return Page(log[after : after + 7])

    audience = Audience("https://hub.example/")

    def bitmap(key: Key) -> BitMap64:
        clock.work()
        return BitMap64()

    audience._cached = bitmap  # type: ignore[assignment]
    ticket = Ticket(Shares(Settings(dev=True), clock=clock), Payer(client))
    reading = Reading(read, audience, audience.seat(Subscriber((), CompiledGrant(), 0, ticket=ticket)), 0, shared, fair)
    while (part := await reading.next()) is not None:
        progress[0] = part.end


@pytest.mark.parametrize("readers", [1, 2, 7])
@pytest.mark.parametrize("topics", [1, 30])
async def test_other_tasks_wait_for_one_slice_regardless_of_the_number_of_readers(readers: int, topics: int) -> None:
    clock = Clock()
    shared, log = TimeSlices(clock), history(60 // topics + 20, topics=topics)
    async with clock.watched():
        await asyncio.gather(*(walk(clock, shared, log, [0]) for _ in range(readers)))
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK


async def test_a_task_that_needs_a_few_turns_waits_for_one_slice() -> None:
    clock, waited = Clock(), []
    shared, log = TimeSlices(clock), history(300)

    async def publish() -> None:
        while True:
            before = clock.now
            for _ in range(turns.TURNS):
                await asyncio.sleep(0)
            waited.append(clock.now - before)

    publisher = asyncio.ensure_future(publish())
    await asyncio.gather(*(walk(clock, shared, log, [0]) for _ in range(5)))
    publisher.cancel()
    assert len(waited) > 100
    assert max(waited) <= SLICE_SECONDS + WORK


async def test_encoding_counts_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def frame(update: Update) -> bytes:
        clock.work()
        return b"x"

    monkeypatch.setattr("hub.protocol.events.frame", frame)
    log = [Entry(n + 1, Update(("a",))) for n in range(100)]

    async def read(after: int) -> Page:
        return Page(log[after : after + 50])

    audience = Audience("https://hub.example/")
    matchers = [MatcherCompiler("https://hub.example/").compile("exact", "*")]
    reading = Reading(read, audience, audience.seat(Subscriber(matchers, CompiledGrant(), 0)), 0, TimeSlices(clock))
    async with clock.watched():
        parts = [await reading.next() for _ in range(3)]
    assert [part and (len(part.wanted), part.size) for part in parts] == [(50, 50), (50, 50), None]
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK


async def test_readers_take_turns() -> None:
    clock = Clock()
    shared, log = TimeSlices(clock), history(300)
    progress = [[0] for _ in range(5)]
    readers = [asyncio.ensure_future(walk(clock, shared, log, one)) for one in progress]
    while not any(reader.done() for reader in readers):
        await asyncio.sleep(0)
        least, most = min(progress)[0], max(progress)[0]
        assert most - least <= 2 * 7, progress
    await asyncio.gather(*readers)


async def test_many_readers_of_one_client_read_no_more_than_a_single_reader_of_another() -> None:
    clock, fair = Clock(), FairTurns(lambda: 0.0)
    shared, log = TimeSlices(clock), history(300)
    many, single = [[0] for _ in range(50)], [0]
    walks = [asyncio.ensure_future(walk(clock, shared, log, one, fair=fair, client="many")) for one in many]
    walks.append(asyncio.ensure_future(walk(clock, shared, log, single, fair=fair, client="single")))
    while not walks[-1].done():
        await asyncio.sleep(0)
        read = sum(one[0] for one in many)
        assert read <= single[0] + 60 * 7, (read, single)  # each read a page before the other came
    assert max(many)[0] - min(many)[0] <= 7  # and they share alike
    await asyncio.gather(*walks)


async def test_a_reader_that_leaves_in_a_pause_delays_no_other_reader() -> None:
    clock = Clock()
    shared, log = TimeSlices(clock), history(300)
    first = asyncio.ensure_future(walk(clock, shared, log, [0]))
    while shared._paused is None:
        await asyncio.sleep(0)
    second = asyncio.ensure_future(walk(clock, shared, log, progress := [0]))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert progress == [300]


# -- all tasks that read or compile share the slice


async def test_a_stream_that_catches_up_yields(clock: Clock) -> None:
    async with world() as here:
        here.hub.slices._clock = clock
        for n in range(200):
            await here.publish(f"topic {n}")
        await here.publish("a")
        while here.hub.delivery.dispatched < 201:
            await asyncio.sleep(0)
        clock.longest = 0.0
        async with clock.watched():
            connection = await here.connect(*(f"{{+x}}{n}" for n in range(100)), "a", after="earliest")
            await here.caught_up()
        assert connection.ids == ["201"]
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK


async def test_a_reader_that_does_not_wait_yields(clock: Clock) -> None:
    async with application(subscriptions=False) as app:
        hub = app.state.hub
        hub.slices._clock = clock
        await hub.publish(*(Update((f"topic {n}", f"other {n}"), id=str(n)) for n in range(200)))
        while hub.delivery.dispatched < 200:
            await asyncio.sleep(0)
        async with clock.watched():
            query = "&".join(f"match_uritemplate=%7B%2Bx%7Dq{n}" for n in range(99)) + "&match=topic%20199"
            answer = await ask(app, "GET", f"{PATH}?{query}&last_event_id=earliest", [("Prefer", "wait=0")])
        assert answer.text == "id: 199\ndata: \n\n: all\n"
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK


async def test_a_reader_with_metadata_of_many_topics_yields(clock: Clock) -> None:
    async with application(subscriptions=False) as app:
        hub = app.state.hub
        hub.slices._clock = clock
        updates = [Update(("a", *(f"{n} {topic}" for topic in range(40))), private=True, id=str(n)) for n in range(5)]
        await hub.publish(*updates)
        while hub.delivery.dispatched < 5:
            await asyncio.sleep(0)
        headers = [("Prefer", "wait=0, metadata"), bearer(current_token(subscribe=["a"]))]
        clock.longest = 0.0
        async with clock.watched():
            answer = await ask(app, "GET", f"{PATH}?match=a&last_event_id=earliest", headers)
        assert answer.text.count('{"topics":["a"],') == 5
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK


async def test_the_event_log_yields_while_it_searches_the_end_of_a_connection(clock: Clock, tmp_path: Path) -> None:
    async with world(plain(event_log=str(tmp_path))) as here:
        here.hub.slices._clock = clock
        for n in range(200):
            await here.publish(f"topic {n}")
        matcher = MatcherCompiler(here.hub.settings.url).compile("exact", "topic 150")
        gone = _Gone(Subscriber([matcher], CompiledGrant(), 0), 0, 0, 1, 0, 0, Ending.CLIENT_LEFT)
        log = next(observer for observer in here.hub.observer.all if isinstance(observer, EventLog))
        await here.caught_up()
        clock.longest = 0.0
        async with clock.watched():
            assert await log._sessions._last_of(gone) == 151
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK


async def test_compiling_patterns_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    compile = topics.topic_matcher

    def counted(*arguments: str, **base_url: str) -> object:
        clock.work()
        return compile(*arguments, **base_url)

    monkeypatch.setattr("hub.node.matchers.topic_matcher", counted)
    async with world() as here:
        here.hub.slices._clock = clock
        async with clock.watched():
            wanted = [[("urlpattern", f"https://e.com/{one}/{n}/:x") for n in range(50)] for one in range(3)]
            await asyncio.gather(*(here.connect(*patterns) for patterns in wanted))
            await here.settle()
        assert clock.now == pytest.approx(150 * WORK)
        for connection in here.connections:
            connection.go()
    assert SLICE_SECONDS <= clock.longest <= SLICE_SECONDS + WORK

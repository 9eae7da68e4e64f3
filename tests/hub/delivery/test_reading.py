"""Readings: what one seat wants of the history, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import ref

import pytest

from hub.auth.grant import CompiledGrant
from hub.delivery import reading
from hub.delivery.audience import Audience
from hub.delivery.reading import Notes, Reading
from hub.delivery.subscriber import Subscriber
from hub.history.base import Entry, Page
from hub.node.matchers import MatcherCompiler
from hub.protocol.updates import Update
from hub.turns import SLICE_SECONDS, TimeSlices

if TYPE_CHECKING:
    from hub.delivery.seat import Seat

pytestmark = pytest.mark.anyio

URL = "https://hub.example/"


class World:
    """A page with a public and a private update of each of the topics a and b."""

    def __init__(self) -> None:
        self.audience = Audience(URL)
        self.compiler = MatcherCompiler(URL)
        self.notes = Notes()
        self.page = Page(
            Entry(n, Update((topic,), private=private, id=f"{topic} {'private' if private else 'public'}"))
            for n, (topic, private) in enumerate([("a", False), ("a", True), ("b", False), ("b", True)], start=1)
        )

    def seat(self, *topics: str, granted: tuple[str, ...] = ()) -> Seat:
        subscribed, granting = (
            tuple(self.compiler.compile("exact", topic) for topic in some) for some in (topics, granted)
        )
        return self.audience.seat(Subscriber(subscribed, CompiledGrant(subscribe=granting), 0))

    async def read(self, after: int) -> Page:
        return self.page

    async def wanted(self, seat: Seat) -> list[str]:
        part = await Reading(self.read, self.audience, seat, 0, TimeSlices(), notes=self.notes).next()
        assert part is not None
        assert (part.start, part.end) == (0, 4)
        assert part.size == sum(len(entry.frame) for entry in part.wanted)
        return [entry.update.id for entry in part.wanted]


async def test_seats_with_the_same_subscriptions_and_grant_share_the_answer() -> None:
    world = World()
    first, second = (world.seat("a", granted=("a",)) for _ in range(2))
    found = await world.wanted(first)
    asked = world.audience.lookups
    assert await world.wanted(second) == found == ["a public", "a private"]
    assert world.audience.lookups == asked > 0


async def test_seats_with_different_subscriptions_or_grants_do_not() -> None:
    world = World()
    for topics, granted, wanted in [
        (("a",), ("a",), ["a public", "a private"]),
        (("a",), (), ["a public"]),
        (("a",), ("b",), ["a public"]),
        (("b",), ("a",), ["b public"]),
        (("a", "b"), ("b",), ["a public", "b public", "b private"]),
        ((), ("a", "b"), []),
    ]:
        for _ in range(2):
            assert await world.wanted(world.seat(*topics, granted=granted)) == wanted


async def test_a_page_keeps_no_matcher_of_a_seat_that_has_left() -> None:
    world = World()
    seat = world.seat("a", granted=("b",))
    await world.wanted(seat)
    matchers = [ref(matcher) for matcher in (*seat.subscriber.subscribed, *seat.subscriber.grant.subscribe)]
    world.audience.remove(seat)
    del seat
    assert [matcher() for matcher in matchers] == [None, None]
    (key,) = world.notes.of(world.page)
    assert key == tuple((one,) for one in matchers)  # weak references, and no ids, which others may get
    # Another matcher with the same text is not the one that has left.
    assert await world.wanted(world.seat("a", granted=("b",))) == ["a public"]


async def test_a_page_notes_the_answers_of_a_bounded_number_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_NOTES", 2)
    monkeypatch.setattr(reading, "MAX_NOTED_MATCHERS", 3)
    world = World()
    seats = [world.seat(topic) for topic in "abc"]
    for seat, notes in zip(seats, (1, 2, 1), strict=True):  # the third one takes the place of the others
        await world.wanted(seat)
        assert len(world.notes.of(world.page)) == notes
    # One with many matchers has no note.
    many = [world.seat("a", "b", "c", granted=("a",)), world.seat("a", granted=("a", "b", "c"))]
    assert await world.wanted(many[0]) == ["a public", "a private", "b public"]
    assert await world.wanted(many[1]) == ["a public", "a private"]
    assert len(world.notes.of(world.page)) == 1


async def test_the_notes_of_a_page_are_kept_as_long_as_the_page() -> None:
    world = World()
    await world.wanted(world.seat("a"))
    assert len(world.notes) == 1
    world.page = Page(world.page)  # the first one is gone
    assert len(world.notes) == 0
    await world.wanted(world.seat("a"))
    assert len(world.notes) == 1


async def test_readers_that_share_answers_still_take_turns() -> None:
    world, now, turns = World(), 0.0, 0

    def clock() -> float:
        nonlocal now
        now += 1e-5  # each look at the clock stands for work
        return now

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seat, slices = world.seat("a"), TimeSlices(clock)
    walk = Reading(world.read, world.audience, seat, 0, slices, notes=world.notes)
    other = asyncio.ensure_future(count())
    for _ in range(1_000):
        await walk.next()
    other.cancel()
    assert turns >= now / SLICE_SECONDS / 2


async def test_a_reading_that_fails_reads_the_page_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    walk = Reading(world.read, world.audience, world.seat("a"), 0, TimeSlices())

    async def fails(*_: object) -> None:
        raise LookupError

    with monkeypatch.context() as failing:
        failing.setattr(world.audience, "of", fails)
        with pytest.raises(LookupError):
            await walk.next()
    part = await walk.next()
    assert part is not None
    assert (part.start, [entry.update.id for entry in part.wanted]) == (0, ["a public"])

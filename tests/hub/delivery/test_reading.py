"""Readings: what one seat wants of the history, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

import pytest

from hub.auth.grant import CompiledGrant
from hub.delivery import reading
from hub.delivery.audience import Audience
from hub.delivery.reading import Reading
from hub.delivery.subscriber import Subscriber
from hub.history.base import Entry, Page
from hub.node.matchers import MatcherCompiler
from hub.protocol.updates import Update
from hub.turns import TimeSlices

if TYPE_CHECKING:
    from hub.delivery.seat import Seat

pytestmark = pytest.mark.anyio

URL = "https://hub.example/"


class World:
    """A page with a public and a private update of each of the topics a and b."""

    def __init__(self) -> None:
        self.audience = Audience(URL)
        self.compiler = MatcherCompiler(URL)
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
        part = await Reading(self.read, self.audience, seat, 0, TimeSlices()).next()
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
    # Another matcher with the same text is not the one that has left.
    assert await world.wanted(world.seat("a", granted=("b",))) == ["a public"]


async def test_a_page_notes_the_answers_of_a_bounded_number_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_CHOICES", 2)
    world = World()
    for topic in "abc":
        await world.wanted(world.seat(topic))
    assert len(world.page.wanted) == 2
    assert await world.wanted(world.seat("c")) == []

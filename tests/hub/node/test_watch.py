"""hub.node.watch and hub.node.top: what an operator sees of a busy hub agrees with a naive count, nothing is
counted while nobody looks, and all is bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from hub.delivery.observer import Sent
from hub.history.base import Entry
from hub.node import top as all_processes
from hub.node import watch
from hub.node.top import Top, merge
from hub.protocol.updates import Update
from tests.asgi import application, bearer, follow
from tests.hub.control.test_kick import token
from tests.hub.control.test_nodes import KINDS, nodes
from tests.hub.world import plain, wants, world
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.hub import Hub
    from tests.hub.world import World

pytestmark = pytest.mark.anyio

TOPICS = ["a", "a/1", "/users/1", "/users/2"]
PATTERNS = ["*", "a", "/users/{id}", "{+all}", "nothing"]


async def top(hub: Hub) -> Top:
    """Return what one process answers, as an operator sees it."""
    return merge([await hub.watch.answer(None, "")], [])


async def publish_at_random(here: World, source: Random) -> dict[tuple[int, str, bool], int]:
    """Publish over some seconds; return how often each topic came in each second."""
    count: Counter[tuple[int, str, bool]] = Counter()
    for _ in range(source.randrange(5, 60)):
        here.now += source.choice([0.0, 0.1, 0.7, 2.0])
        topic, private = source.choice(TOPICS), source.random() < 0.4
        await here.publish(topic, private=private)
        await here.caught_up()
        count[int(here.now), topic, private] += 1
    return count


@pytest.mark.parametrize("seed", range(12))
async def test_the_numbers_agree_with_a_naive_count(seed: int) -> None:
    source = Random(seed)
    async with world(plain()) as here:
        here.now += source.random()
        for _ in range(source.randrange(8)):
            granted = source.sample(PATTERNS, source.randrange(3))
            patterns = source.sample(PATTERNS, source.randint(1, 2))
            await here.connect(*patterns, granted=granted, address=source.choice(["192.0.2.1", "192.0.2.2"]))
        await here.caught_up()
        assert (await top(here.hub)).seconds == 0
        first = int(here.now) + 1
        count = await publish_at_random(here, source)
        last = int(here.now)  # this second is not over
        begin = max(first, last - watch.SECONDS)
        found = await top(here.hub)
        assert found.seconds == max(0, last - begin)
        over = {(topic, private): 0 for _, topic, private in count}
        for (second, topic, private), times in count.items():
            if begin <= second < last:
                over[topic, private] += times
        receivers = {
            kind: [
                client for client in here.connections if wants(client.subscriber, Update((kind[0],), private=kind[1]))
            ]
            for kind in over
        }
        frames = {(entry.update.topics[0], entry.update.private): len(entry.frame) for entry in here.entries}
        seconds = found.seconds or 1
        assert found.updates == round(sum(over.values()) / seconds, 3)
        assert found.deliveries == round(sum(len(receivers[kind]) * times for kind, times in over.items()) / seconds, 3)
        assert (found.streams, found.live) == (len(here.connections),) * 2
        # By topic.
        for row in found.topics:
            kinds = [(row["topic"], private) for private in (False, True) if over.get((row["topic"], private))]
            assert row["updates"] == round(sum(over[kind] for kind in kinds) / seconds, 3)
            assert row["streams"] == max(len(receivers[kind]) for kind in kinds)
            assert row["deliveries"] == round(sum(over[kind] * len(receivers[kind]) for kind in kinds) / seconds, 3)
        assert {row["topic"] for row in found.topics} == {topic for (topic, _), times in over.items() if times}
        assert [row["deliveries"] for row in found.topics] == sorted(
            (row["deliveries"] for row in found.topics), reverse=True
        )
        # By client.
        streams: Counter[str] = Counter()
        for client in here.connections:
            streams[client.subscriber.address] += 1
        assert {row["address"]: row["streams"] for row in found.clients} == streams
        # All ids have two digits at most, so frames differ by a byte.
        for row in found.clients:
            sent = sum(
                over[kind] * frames[kind]
                for kind, some in receivers.items()
                for client in some
                if client.subscriber.address == row["address"]
            )
            assert row["bytes"] == pytest.approx(sent / seconds, rel=0.05, abs=1)


async def test_nothing_is_counted_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KEPT_SECONDS", 600.0)
    async with world(plain()) as here:
        observers = here.hub.observer
        before = observers.all
        assert here.hub.watch not in before
        await top(here.hub)
        await top(here.hub)
        assert observers.all == (*before, here.hub.watch)  # once
        await here.publish("a")
        await here.caught_up()
        assert here.hub.watch._seconds
        monkeypatch.setattr(watch, "KEPT_SECONDS", 0.0)  # after the next question
        await top(here.hub)
        await until(lambda: observers.all == before)
        assert not here.hub.watch._seconds
        await here.publish("a")
        await here.caught_up()
        assert not here.hub.watch._seconds
        # Who looks again gets nothing of before.
        here.now += 5
        assert (await top(here.hub)).seconds == 0


async def test_who_keeps_looking_keeps_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(plain()) as here:
        await top(here.hub)
        first = here.hub.watch._end
        await top(here.hub)
        assert first is not None
        assert first.cancelled()
        here.now += 2
        await here.publish("a")
        await here.caught_up()
        here.now += 1
        found = await top(here.hub)
        assert (found.seconds, found.updates) == (2, 0.5)


async def test_refusals_and_delays_are_counted() -> None:
    async with world(plain()) as here:
        await top(here.hub)
        here.now += 1
        here.hub.observer.refused("too_many")
        here.hub.observer.refused("too_many")
        here.hub.observer.refused("cors")
        for delays in ([300, 200], [100]):
            now = int((here.now + 1e9) * 1_000)
            page = [Entry(1, Update(("a",), "x"), now - milliseconds) for milliseconds in delays]
            await here.hub.observer.dispatched(page, Sent(3, 50, 0.0))
        here.hub.observer.sent(4, 70)
        here.now += 2
        found = await top(here.hub)
        assert found.seconds == 2
        assert found.refusals == {"too_many": 1.0, "cors": 0.5}
        assert list(found.refusals) == ["too_many", "cors"]
        assert (found.delay, found.worst_delay) == (0.2, 0.3)
        assert (found.deliveries, found.bytes) == (5.0, 85.0)


async def test_the_slowest_streams_are_those_furthest_behind() -> None:
    async with world(plain()) as here:
        slow, quick = await here.connect("a", address="192.0.2.1"), await here.connect("a", address="192.0.2.2")
        await here.caught_up()
        slow.block()
        for _ in range(5):
            await here.publish("a")
            await here.settle()
        found = await top(here.hub)
        assert (found.streams, found.live) == (2, 1)
        assert list(found.slowest) == [
            {
                "subscriber": slow.subscriber.id, "process": here.hub.history.node, "issuer": "anonymous",
                "subject": None, "address": "192.0.2.1", "state": "behind", "behind": 4,
            }
        ]  # fmt: skip
        assert {row["address"]: row["behind"] for row in found.clients} == {"192.0.2.1": 4, "192.0.2.2": 0}
        slow.unblock()
        await here.caught_up()
        here.now += 1
        assert (await top(here.hub)).slowest == []
        assert quick.ids == slow.ids


async def test_topics_and_receivers_of_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_KINDS", 3)
    monkeypatch.setattr(watch, "MAX_VISITS", 4)
    monkeypatch.setattr(all_processes, "ROWS", 2)
    monkeypatch.setattr(watch, "ROWS", 1)
    async with world(plain()) as here:
        for number, pattern in enumerate(["long-1", "long-1", "long-1", "b", "b"]):
            await here.connect(pattern, address=f"192.0.2.{number}")
        await here.caught_up()
        await top(here.hub)
        here.now += 1
        for topic in ("long-1", "long-1", "long-1", "b", "b", "c", "d"):
            await here.publish(topic)
            await here.caught_up()
        # The fourth kind has taken one update from each of the others.
        assert [(*topics, count) for (topics, _), (count, _) in here.hub.watch._seconds[-1].kinds.items()] == [
            ("long-1", 2),
            ("b", 1),
        ]
        here.now += 1
        found = await top(here.hub)
        assert (found.seconds, found.updates) == (1, 7.0)
        assert [(row["topic"], row["deliveries"]) for row in found.topics] == [("long-1", 6.0)]
        assert len(found.clients) == 1
        # The three receivers of the first topic are walked, and two more would be too many.
        monkeypatch.setattr(all_processes, "ROWS", 5)
        monkeypatch.setattr(watch, "ROWS", 5)
        here.now += 1
        found = await top(here.hub)
        assert {row["address"][-1]: row["bytes"] > 0 for row in found.clients} == {
            **dict.fromkeys("012", True),
            **dict.fromkeys("34", False),
        }


async def test_a_topic_for_more_receivers_than_are_walked_counts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_VISITS", 1)
    async with world(plain()) as here:
        await here.connect("*", address="192.0.2.1")
        await here.connect("*", address="192.0.2.2")
        await here.caught_up()
        await top(here.hub)
        here.now += 1
        for topic in ("a", "b"):  # the same receivers: they are walked once, for both
            await here.publish(topic)
            await here.caught_up()
        here.now += 1
        found = await top(here.hub)
        assert found.bytes == sum(row["bytes"] for row in found.clients) > 0


async def test_frequent_topics_are_found_among_many_others() -> None:
    source = Random(1)
    second = watch._Second(0)
    topics = [*["hot"] * 500, *["warm"] * 100, *(f"cold {n}" for n in range(20_000))]
    source.shuffle(topics)
    for topic in topics:
        second.note(((topic,), False), 10)
        assert len(second.kinds) <= watch.MAX_KINDS
    lost = len(topics) / watch.MAX_KINDS
    for topic, times in (("hot", 500), ("warm", 100)):
        count, size = second.kinds[(topic,), False]
        assert times - lost <= count <= times
        assert size == 10 * count


async def test_those_who_ask_in_one_second_get_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(plain()) as here:
        walks = 0
        original = here.hub.watch._found

        async def found(now: int) -> dict[str, Any]:
            nonlocal walks
            walks += 1
            return await original(now)

        monkeypatch.setattr(here.hub.watch, "_found", found)
        answers = await asyncio.gather(*(here.hub.watch.answer(None, "") for _ in range(5)))
        assert walks == 1
        assert all(one is answers[0] for one in answers)
        here.now += 1
        await top(here.hub)
        assert walks == 2


async def test_nothing_is_counted_after_the_end() -> None:
    async with world(plain()) as here:
        await top(here.hub)
    assert here.hub.watch not in here.hub.observer.all
    await top(here.hub)
    assert here.hub.watch not in here.hub.observer.all
    assert here.hub.watch._end is None


def test_a_long_text_is_cut_and_stays_different() -> None:
    one, other = "x" * 200 + "1", "x" * 200 + "2"
    assert watch._cut("x" * 200) == "x" * 200
    assert watch._cut(one) != watch._cut(other)
    assert len(watch._cut(one * 1_000)) < 220
    assert watch._cut("\ud800" * 300)


def answer(**chosen: Any) -> dict[str, Any]:
    empty = {
        "seconds": 10, "streams": 0, "live": 0, "updates": 0.0, "deliveries": 0.0, "bytes": 0.0, "delay": 0.0,
        "worst_delay": 0.0, "refusals": {}, "topics": [], "clients": [], "slowest": [],
    }  # fmt: skip
    return empty | chosen


def client(subject: str | None, streams: int, size: float, behind: int, address: str = "") -> dict[str, Any]:
    return {
        "issuer": "i", "subject": subject, "address": address, "streams": streams, "bytes": size, "behind": behind,
    }  # fmt: skip


async def test_the_answers_of_all_processes_become_one() -> None:
    def topic(updates: float, streams: int) -> dict[str, Any]:
        return {
            "topic": "a", "updates": updates, "streams": streams, "deliveries": updates * streams, "bytes": 1.0,
        }  # fmt: skip

    one = answer(
        streams=3, live=2, updates=4.0, deliveries=5.0, delay=0.5, worst_delay=0.9, refusals={"cors": 1.0},
        topics=[topic(4.0, 1)], clients=[client("42", 1, 2.0, 7), client(None, 1, 1.0, 0, "192.0.2.1")],
        slowest=[{"subscriber": "x", "behind": 7}],
    )  # fmt: skip
    other = answer(
        seconds=3, streams=2, live=2, updates=4.2, deliveries=6.0, delay=0.1, worst_delay=1.0,
        refusals={"cors": 1.0, "too_many": 3.0},
        topics=[topic(4.2, 3)], clients=[client("42", 2, 3.0, 1), client(None, 9, 0.0, 0, "192.0.2.2")],
        slowest=[{"subscriber": "y", "behind": 9}],
    )  # fmt: skip
    found = merge([one, other], ["third"])
    assert found[:9] == (10, 2, 5, 4, 4.2, 11.0, 0.0, 0.5, 1.0)
    assert found.refusals == {"too_many": 3.0, "cors": 2.0}
    assert list(found.topics) == [topic(4.2, 4) | {"deliveries": 16.6, "bytes": 2.0}]
    assert list(found.clients) == [
        client(None, 9, 0.0, 0, "192.0.2.2"), client("42", 3, 5.0, 7), client(None, 1, 1.0, 0, "192.0.2.1"),
    ]  # fmt: skip
    assert [row["subscriber"] for row in found.slowest] == ["y", "x"]
    assert found.silent == ["third"]
    assert merge([], [])[:4] == (0, 0, 0, 0)


NAMES: list[list[str | None]] = [["alice", "alice", "bob"], ["alice", None]]
"""Whom the streams of each process are of."""


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_all_processes_answer(kind: str, url_of: Callable[[str], str]) -> None:
    async with nodes(url_of(kind), 2) as made, AsyncExitStack() as stack:
        for app, names in zip(made, NAMES, strict=True):
            for number, name in enumerate(names):
                address = f"192.0.2.{number}"
                headers = [] if name is None else [bearer(token(name))]
                await stack.enter_async_context(follow(app, ("topic", "a"), headers=headers, client=(address, 1)))
        await until(lambda: [app.hub.delivery.live_count for app in made] == [3, 2])
        silent = ["not asked yet"]
        async with asyncio.timeout(HANG):
            while silent:  # each has two seconds to answer
                answers, silent = await made[0].hub.control.ask("top", "")
        found = merge(answers, silent)
        assert (found.processes, found.streams, found.live, found.silent) == (2, 5, 5, [])
        clients = [(row["subject"], row["address"], row["streams"]) for row in found.clients]
        assert clients == [("alice", "", 3), ("bob", "", 1), (None, "192.0.2.1", 1)]


async def test_the_program_s_own_reader_is_no_stream() -> None:
    async with application() as app, aclosing(app.subscribe("a")) as updates:
        reading = asyncio.ensure_future(anext(updates))
        await until(lambda: app.hub.delivery.connection_count == 1)
        found = await top(app.hub)
        assert (found.streams, found.clients, found.slowest) == (0, [], [])
        await app.publish("a")
        await reading

"""An explanation says of each connection and each update what was delivered.

The big run: python -m tests.hub.explaining.test_agreement ROUNDS
"""

from __future__ import annotations

import asyncio
import sys
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from hub.auth.grant import CompiledGrant
from hub.node.fates import Fate
from tests.hub.world import FakeConnection, World, compiled, plain, selectors, wants, world

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.hub.world import Client, Pattern

TOPICS = ["a", "a/1", "/users/1", "/users/2", "users.1", "https://e.com/users/1", "https://e.com/books/1?x=2"]
PATTERNS: list[Pattern] = [
    *["a", "/users/{id}", "*", "{+all}", "/users/{"],  # classic
    *[("exact", topic) for topic in TOPICS],
    *[("exact", "/users/{id}"), ("exact", "*")],
    *[("uritemplate", "/users/{id}"), ("uritemplate", "https://e.com/{kind}/{id}{?x}"), ("uritemplate", "{a}")],
    *[("mqtt", "a/#"), ("mqtt", "/users/+"), ("amqp", "users.*"), ("amqp", "#")],
    *[("urlpattern", "https://e.com/users/:id"), ("urlpattern", "https://e.com/books/*"), ("urlpattern", "/users/:id")],
]


def received(client: Client) -> set[str]:
    """The ids of the updates that the hub has handed to a client's socket."""
    wire = client.wire
    buffered = wire._buffer if isinstance(wire, FakeConnection) and not wire.is_closing() else []
    lines = b"".join([*wire.writes, *buffered]).decode().split("\n")
    return {line.removeprefix("id: ") for line in lines if line.startswith("id: ")}


async def connect(here: World, source: Random, ids: Sequence[str]) -> None:
    cursor = source.choice([None, None, "", "earliest", "unknown", *(source.sample(ids, 1) if ids else [])])
    granted = source.sample(PATTERNS, source.choice([0, 0, 1, 3]))
    client = await here.connect(*source.sample(PATTERNS, source.randint(1, 3)), granted=granted, after=cursor)
    if source.random() < 0.3:
        await here.settle(source.randrange(8))
        client.block()


def change(client: Client, how: str) -> None:
    if not client.wire.is_closing():
        getattr(client, how)()


async def one_round(seed: int) -> int:
    """Check all connections with all updates of a random hub; return how many."""
    source = Random(seed)
    settings = plain(
        remembered_connections=1_000,
        subscriptions=source.random() < 0.3,
        history_updates=source.choice([20, 1_000]),
        replay_unknown=source.random() < 0.5,
        classic=True,
    )
    count = 0
    async with world(settings) as here:
        ids: list[str] = []
        for _ in range(80):
            doing = source.random()
            if doing < 0.3:
                await connect(here, source, ids)
            elif doing < 0.8:
                topics = source.sample(TOPICS, source.choice([1, 1, 2]))
                ids.append(await here.publish(*topics, private=source.random() < 0.5))
            elif here.connections:
                change(source.choice(here.connections), source.choice(["block", "unblock", "go"]))
            await here.settle(source.randrange(6))
        for client in here.connections:
            if source.random() < 0.7:
                change(client, "unblock")
        await here.settle(400)
        for entry in here.entries:
            counts = (await here.hub.explaining.explain(update=entry.update.id)).fates
            got = [client for client in here.connections if entry.update.id in received(client)]
            assert counts.get(Fate.RECEIVED, 0) == len(got)
            for client in here.connections:
                count += 1
                await agree(here, client, entry)
                await agree_for_a_stream_that_begins_now(here, source, entry)
    return count


async def agree(here: World, client: Client, entry: Any) -> None:
    """Check what became of one update at one connection."""
    id, update = entry.update.id, entry.update
    found = await here.hub.explaining.explain(update=id, subscriber=client.subscriber.id)
    assert sum(found.fates.values()) == 1, (found, client.reason)
    (fate,) = found.fates
    about = found.sentence, client.subscriber.subscribed, client.subscriber.grant.subscribe, update, client.stream
    assert (fate == Fate.RECEIVED) == (id in received(client)), about
    (row,) = found.subscribers
    may_read = not update.private or any(one["reason"] is None for one in row["may_read"])
    is_wanted = any(one["reason"] is None for one in row["wants"])
    assert (fate == Fate.UNWANTED) == (not is_wanted), about
    assert (fate == Fate.DENIED) == (is_wanted and not may_read), about
    assert wants(client.subscriber, update) == (is_wanted and may_read)
    if fate == Fate.LATE and client.subscriber.start >= 0:  # else its start is known later
        assert entry.position <= client.subscriber.start
    elif fate == Fate.WAITING:
        assert client.stream.state != "closed"
        assert client.stream.state != "live"
    elif fate == Fate.LEFT:
        assert client.stream.state == "closed"


async def agree_for_a_stream_that_begins_now(here: World, source: Random, entry: Any) -> None:
    """Check the answer for a stream that would begin with a cursor, against a naive
    filter.
    """
    patterns, granted = source.sample(PATTERNS, 2), source.sample(PATTERNS, source.choice([0, 1, 3]))
    cursor = source.choice([None, "", "earliest", "unknown", source.choice(here.entries).update.id])
    pairs = [("topic" if type == "topic" else f"match_{type}", pattern) for type, pattern in selectors(patterns)]
    query = urlencode([*pairs, *([] if cursor is None else [("last_event_id", cursor)])])
    grant = CompiledGrant(subscribe=tuple(compiled(granted)))
    found = await here.hub.explaining.explain(update=entry.update.id, stream=f"?{query}", grant=grant)
    imagined = await here.hub.subscribing.admit(selectors(patterns), grant, cursor)
    subscriber = imagined.subscriber
    expected = wants(subscriber, entry.update) and entry.position > subscriber.start
    subscriber.leave()
    assert list(found.fates) == [Fate.RECEIVED] if expected else Fate.RECEIVED not in found.fates, (found, query)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(8))
async def test_an_explanation_is_what_was_delivered(seed: int) -> None:
    assert await one_round(seed) > 50


if __name__ == "__main__":
    total = 0
    for seed in range(int(sys.argv[1])):
        total += asyncio.run(one_round(seed))
        if seed % 20 == 0:
            print(f"{seed + 1} rounds, {total} cases", flush=True)
    print(f"{total} cases agree")

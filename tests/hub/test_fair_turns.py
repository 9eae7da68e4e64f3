"""Clients take turns while several of them are active."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from hub.turns import FairTurns
from tests.asgi import FORM, PATH, application, ask, bearer, current_token

if TYPE_CHECKING:
    from hub.http.embedding import HubApplication
    from tests.asgi import Answer

pytestmark = pytest.mark.anyio


async def take_one(turns: FairTurns, name: str, order: list[str]) -> None:
    turn = turns.of(name)
    assert turn is not None
    await turn.acquire()
    order.append(name)
    turns.end(turn)


async def test_a_client_that_is_alone_does_not_wait() -> None:
    now = 0.0
    turns = FairTurns(lambda: now)
    assert turns.of("bob") is None
    assert turns.of("alice") is not None
    now = 1.0
    assert [turns.of("alice") for _ in range(3)] == [None] * 3
    now = 5.0
    assert turns.of("bob") is not None
    now = 6.0
    assert turns.of("bob") is None


async def test_a_client_waits_for_its_own_requests_and_not_for_those_of_others() -> None:
    order: list[str] = []
    turns = FairTurns(lambda: 0.0)
    turns.of("dave")
    names = ["alice"] * 64 + ["bob"] * 3 + ["carol"]
    await asyncio.gather(*(take_one(turns, name, order) for name in names))
    assert sorted(order) == sorted(names)
    assert order[:3] == ["alice", "bob", "carol"]
    assert order[3:7] == ["alice", "bob", "alice", "bob"]
    assert not turns._turns  # nothing is kept of them


async def test_a_request_that_is_cancelled_while_it_waits_passes_its_turn_on() -> None:
    order: list[str] = []
    turns = FairTurns(lambda: 0.0)
    turns.of("dave")
    tasks = [asyncio.ensure_future(take_one(turns, "alice", order)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert order == ["alice", "alice"]


async def test_a_request_that_is_refused_passes_its_turn_on() -> None:
    one, other = (current_token(["a"], subject=name) for name in ("one", "other"))
    async with application(subscriptions=False) as app:
        for token in (one, other):
            assert (await publish(app, token, "before")).status == 200
        for _ in range(2):
            assert (await publish(app, one, "x", topic="not granted")).status == 403
            assert (await publish(app, one, "#")).status == 400
        assert (await publish(app, one, "x")).status == 200


async def publish(app: HubApplication, token: str, id: str, topic: str = "a") -> Answer:
    fields = {"topic": topic, "id": id}
    return await ask(app, "POST", PATH, [FORM, bearer(token)], urlencode(fields).encode())


async def test_n23_a_publisher_with_many_connections_does_not_keep_another_waiting() -> None:
    greedy, modest = (current_token(["*"], subject=name) for name in ("greedy", "modest"))
    async with application(subscriptions=False) as app:
        for token in (greedy, modest):
            assert (await publish(app, token, "before")).status == 200
        # The modest one comes last, and its update is one of the first.
        tasks = [asyncio.ensure_future(publish(app, greedy, str(n))) for n in range(64)]
        tasks.append(asyncio.ensure_future(publish(app, modest, "mine")))
        assert [(await task).status for task in tasks] == [200] * 65
        position = await app.state.hub.history.find("mine")
        assert 3 <= position <= 5


async def test_n23_a_publisher_above_the_rate_gets_429_and_the_others_do_not() -> None:
    greedy, modest = (current_token(["*"], subject=name) for name in ("greedy", "modest"))
    async with application(subscriptions=False, publish_rate=20, client_share=0.1) as app:
        app.state.hub.shares.publishes._clock = lambda: 0.0  # one second, however long it takes
        statuses = [(await publish(app, greedy, str(n))).status for n in range(12)]
        assert statuses == [200] * 10 + [429] * 2
        refused = await publish(app, greedy, "more")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.detail == (
            "the limit of 2 updates a second for one client is reached (client_share); "
            "it applies while more than half of 20 are in use (publish_rate)"
        )
        assert [(await publish(app, modest, f"modest {n}")).status for n in range(3)] == [200, 200, 429]
        assert await app.state.hub.history.end() == 12  # what was refused is not in the history
        app.state.hub.shares.publishes._clock = lambda: 1.0
        assert (await publish(app, greedy, "later")).status == 200

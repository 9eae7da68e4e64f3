"""The steps of a publish and of a subscribe: what is counted, refused and given back."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from hub import Settings, create_app, turns
from hub.auth.grant import CompiledGrant
from hub.delivery.observer import Observer
from hub.delivery.subscriber import payer_at
from hub.errors import Closing, HistoryUnavailable
from hub.history.memory import MemoryHistory
from hub.protocol.requests import NDJSON
from tests.asgi import FORM, PATH, application, ask, bearer, classic_token, current_token

pytestmark = pytest.mark.anyio


async def post(app: Any, token: str) -> int:
    """Publish an update, and return the status."""
    return (await ask(app, "POST", PATH, [FORM, bearer(token)], b"topic=a")).status


async def test_n23_a_request_that_is_refused_gives_nothing_back() -> None:
    async with application(max_requests=4) as app:
        requests, payer = app.hub.shares.requests, payer_at("192.0.2.9")
        for _ in range(4):
            requests.add(payer, 1)
        assert await post(app, current_token(["a"])) == 429
        assert requests.used == 4


async def test_a_hub_that_shuts_down_takes_no_update() -> None:
    async with application(drain=60) as app:
        app.hub.shutdown.begin()
        assert await post(app, current_token(["a"])) == 503
        with pytest.raises(Closing):
            await app.publish("a")
        assert await app.hub.history.newest() is None


async def test_a_batch_is_parsed_in_small_portions_if_its_publisher_is_not_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, alone_or_not = 0, []

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    monkeypatch.setattr(turns, "PARSED_IN_TURN", 1)
    monkeypatch.setattr(turns, "PARSED_BYTES", 10**9)
    monkeypatch.setattr(turns, "other_tasks", pause)
    async with application(subscriptions=False) as app:
        intake: Any = app.hub.publishing._intake
        grant = CompiledGrant(publish=(app.hub.compiler.compile("exact", "*"),))
        for alone, expected in ((True, 0), (False, 2)):
            pauses = 0
            await intake.take(b'{"topic":"a"}\n' * 3, NDJSON, grant, alone=alone)
            assert pauses == expected

        take = intake.take

        async def noted(*arguments: Any, alone: bool) -> Any:
            alone_or_not.append(alone)
            return await take(*arguments, alone=alone)

        monkeypatch.setattr(intake, "take", noted)
        for topics in (["a"], ["a", "b"]):  # two publishers within a second
            assert await post(app, classic_token(topics)) == 200
    assert alone_or_not == [True, False]


async def test_a_stream_that_ends_at_once_is_counted_as_refused() -> None:
    class Refusals(Observer):
        def __init__(self) -> None:
            self.reasons: list[str] = []

        def refused(self, reason: str) -> None:
            self.reasons.append(reason)

    async with application(connection_rate=0.001) as app:
        app.hub.observe(refusals := Refusals())
        for _ in range(2):
            await ask(app, "GET", f"{PATH}?match=a", [("prefer", "wait=0")])
        assert refusals.reasons == ["busy"]
        assert (await ask(app, "GET", f"{PATH}?match=a")).is_ended_stream
    assert refusals.reasons == ["busy"] * 2


async def test_a_decision_is_logged_each_time_also_for_a_token_that_was_used_before() -> None:
    async with application(log_decisions=True, subscriptions=False) as app:
        with capture_logs() as lines:
            for _ in range(2):
                assert await post(app, classic_token(["a"])) == 200
    assert [line["event"] for line in lines].count("client authorized") == 2


async def test_before_the_end_of_the_history_is_known_a_stream_ends_at_once() -> None:
    class Down(MemoryHistory):
        async def end(self) -> int:
            raise HistoryUnavailable("it is down")

    settings = Settings(dev=True, retry=0, subscriptions=False)  # so only a stream that ends has a hint
    app = create_app(settings, history=Down(settings.retention))
    async with app.running():
        assert (await ask(app, "GET", f"{PATH}?match=a")).is_ended_stream
        with pytest.raises(HistoryUnavailable):
            app.subscribe("a")


async def test_readers_with_the_same_subscriptions_share_what_they_want_of_a_page() -> None:
    async with application(subscriptions=False) as app:
        first, _ = await app.publish("a"), await app.publish("a")
        hub, asked = app.hub, []
        for _ in range(2):
            subscriber, _ = await hub.subscribing.admit([("exact", "a")], CompiledGrant(), first)
            with hub.delivery.reader_seat(subscriber, Holder()) as seat:
                before = hub.delivery.audience.lookups
                part = await hub.delivery.reading(seat, subscriber.start).next()
                asked.append(hub.delivery.audience.lookups - before)
                assert part is not None
                assert len(part.wanted) == 1
    assert asked == [1, 0]


class Holder:
    """The holder of a seat, which does nothing."""

    def close(self, reason: object) -> bool:
        return True

    def is_lost(self) -> bool:
        return False

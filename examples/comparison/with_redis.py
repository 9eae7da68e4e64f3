"""Four tasks with FastAPI and Redis alone; `with_skipfilter.py` has the same ones."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from starlette.middleware.sessions import SessionMiddleware
from starlette.testclient import TestClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# -- own session authorization
def allowed(order: str, request: Request) -> None:
    if order not in request.session.get("orders", []):
        raise HTTPException(403)


# -- replay after a reload, with two workers
def cursor(last_event_id: Annotated[str | None, Header()] = None, since: str | None = None) -> str | None:
    last = last_event_id or since
    if last is not None and not re.fullmatch(r"\d{1,15}-\d{1,15}", last):
        raise HTTPException(400, "this is not an id of this stream")
    return last


def number(id: str) -> tuple[int, ...]:
    return tuple(map(int, id.split("-")))


# --
def create(url: str) -> FastAPI:
    """Return an application that tells a customer when an order is shipped."""

    # -- publish from a view
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with redis:
            yield

    redis: Any = Redis.from_url(url, decode_responses=True)
    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{order}/ship")
    async def ship(order: str) -> None:
        await redis.publish(f"/orders/{order}", "shipped")

    @app.get("/live/{order}", response_class=EventSourceResponse, dependencies=[Depends(allowed)])
    async def live(order: str) -> AsyncIterator[ServerSentEvent]:
        async with redis.pubsub() as pubsub:
            await pubsub.subscribe(f"/orders/{order}")
            async for message in pubsub.listen():
                if message["type"] == "message":
                    yield ServerSentEvent(raw_data=message["data"])

    # -- replay after a reload, with two workers
    # These two take the place of the two above, because PUBLISH has no replay.
    @app.post("/replay/orders/{order}/ship")
    async def ship_with_replay(order: str) -> None:
        await redis.xadd(f"/orders/{order}", {"data": "shipped"}, maxlen=1_000)
        await redis.expire(f"/orders/{order}", 86_400)

    @app.get("/replay/live/{order}", response_class=EventSourceResponse, dependencies=[Depends(allowed)])
    async def live_with_replay(
        order: str, last: Annotated[str | None, Depends(cursor)]
    ) -> AsyncIterator[ServerSentEvent]:
        key = f"/orders/{order}"
        if last is None:
            newest = await redis.xrevrange(key, count=1)
            last = newest[0][0] if newest else "0-0"
        oldest = await redis.xrange(key, count=1)
        if oldest and number(last) < number(oldest[0][0]) and last != "0-0":
            yield ServerSentEvent(event="gap", raw_data="updates may be missing")
        while True:
            for _, entries in await redis.xread({key: last}, count=100, block=15_000):
                for last, fields in entries:
                    yield ServerSentEvent(raw_data=fields["data"], id=last)

    # --
    app.add_middleware(SessionMiddleware, secret_key="change this")

    @app.post("/orders/{order}")
    async def buy(order: str, request: Request) -> None:
        request.session["orders"] = [*request.session.get("orders", []), order]

    return app


# -- test that an endpoint published
def test_shipping_is_published(redis_url: str) -> None:  # it needs a Redis that runs
    with (
        SyncRedis.from_url(redis_url, decode_responses=True) as redis,
        redis.pubsub() as pubsub,
        TestClient(create(redis_url)) as client,
    ):
        pubsub.subscribe("/orders/1")
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        client.post("/orders/1/ship")
        message = pubsub.get_message(timeout=5)
        assert message["data"] == "shipped"

"""Four tasks with skipfilter; `with_redis.py` has the same ones without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.middleware.sessions import SessionMiddleware
from starlette.testclient import TestClient

from hub import Grant, Settings, create_app
from hub.testing import record_updates

if TYPE_CHECKING:
    from hub.http.embedding import HubApplication


# -- own session authorization
async def authorize(request: Request) -> Grant | None:
    orders = request.session.get("orders")
    return Grant(subscribe=[f"/orders/{order}" for order in orders]) if orders else None


# --
def new_hub(history: str) -> HubApplication:
    return create_app(
        Settings(
            path="/live/.well-known/mercure",
            # -- replay after a reload, with two workers
            history_url=history,
            # --
        ),
        authorize=authorize,
    )


def create(history: str = "memory://") -> FastAPI:
    """Return an application that tells a customer when an order is shipped."""
    # -- publish from a view
    live = new_hub(history)
    app = FastAPI(lifespan=lambda _: live.running())
    app.mount("/live", live)

    @app.post("/orders/{order}/ship")
    async def ship(order: str) -> None:
        await live.publish(f"/orders/{order}", data="shipped", private=True)

    # --
    app.state.live = live
    app.add_middleware(SessionMiddleware, secret_key="change this")

    @app.post("/orders/{order}")
    async def buy(order: str, request: Request) -> None:
        request.session["orders"] = [*request.session.get("orders", []), order]

    return app


# -- test that an endpoint published
def test_shipping_is_published() -> None:
    app = create()
    updates = record_updates(app.state.live)
    with TestClient(app) as client:
        client.post("/orders/1/ship")
    updates.assert_published("/orders/1", data="shipped")

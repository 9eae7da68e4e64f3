"""Who is connected: to all processes, page by page."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hub import Grant, Settings, create_app
from hub.development import DEVELOPMENT_ISSUER
from hub.errors import InvalidRequest
from hub.node import connections, control
from tests.asgi import application, bearer, current_token, follow
from tests.conftest import suspend
from tests.hub.commands import run
from tests.hub.control.test_kick import serving, token
from tests.hub.control.test_nodes import KINDS, nodes
from tests.waiting import until
from tests.wire import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request

    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio


async def all_of(app: HubApplication, **named: str) -> list[dict[str, Any]]:
    """Return the rows of all pages, which must be in order."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = await app.connections(after=after, **named)
        assert page.silent == []
        found += [dict(row) for row in page.connections]
        after = page.next
    assert [row["subscriber"] for row in found] == sorted({row["subscriber"] for row in found})
    return found


async def test_a_row_says_all_about_a_connection() -> None:
    public = "https://hub.example"
    async with application(public_urls=public) as app:
        signed = current_token(subscribe=["a", ("urlpattern", "/b/:c")], subject="alice", kid="k1")
        before = datetime.now(UTC).replace(microsecond=0)
        async with follow(
            app,
            ("match", "a"),
            *[("match", str(n)) for n in range(9)],
            headers=[bearer(signed)],
            client=("192.0.2.7", 1),
        ):
            await until(lambda: app.hub.delivery.live_count == 1)
            (row,) = await all_of(app)
            since, expires = datetime.fromisoformat(row.pop("since")), datetime.fromisoformat(row.pop("expires"))
            assert before <= since <= datetime.now(UTC)
            assert timedelta(hours=23) < expires - before < timedelta(hours=25)
            (seat,) = app.hub.delivery.audience
            assert row.pop("token_id") == seat.subscriber.grant.identity.token_id is not None
            assert row == {
                "subscriber": seat.subscriber.id,
                "process": app.hub.history.node,
                "issuer": DEVELOPMENT_ISSUER,
                "subject": "alice",
                "key_id": "k1",
                "address": "192.0.2.7",
                "matchers": 10,
                "first_matchers": ["exact:a", "exact:0", "exact:1", "exact:2", "exact:3"],
                "grants": 2,
                "first_grants": ["exact:a", "urlpattern:/b/:c"],
                "state": "live",
                "behind": 0,
            }


async def test_a_slow_stream_is_behind() -> None:
    async with serving(send_buffer=2**16) as (app, server):
        slow = await subscribe(server, ("topic", "a"), receive_buffer=2**12)
        await until(lambda: app.hub.delivery.live_count == 1)
        for _ in range(40):
            await app.publish("a", data="x" * 50_000)
        await until(lambda: app.hub.delivery.live_count == 0)
        await until(lambda: app.hub.delivery.dispatched >= 40)
        (row,) = await all_of(app)
        assert row["state"] == "behind"
        assert row["behind"] > 0
        await slow.close()


async def test_each_connection_is_in_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PAGE", 3)
    monkeypatch.setattr(control, "PAGE", 3)
    async with application() as app, AsyncExitStack() as stack:
        for count in (0, 1, 3, 7):
            while app.hub.delivery.connection_count < count:
                await stack.enter_async_context(follow(app, ("topic", "a"), headers=[bearer(token("alice"))]))
            assert len(await all_of(app)) == count
        await stack.enter_async_context(follow(app, ("topic", "a")))
        assert len(await all_of(app, subject="alice")) == 7
        assert len(await all_of(app, subject="alice", issuer="classic")) == 7
        assert await all_of(app, subject="alice", issuer="https://other") == []
        with pytest.raises(InvalidRequest, match="give exactly one of"):
            await app.connections(issuer="classic")


async def test_the_readers_of_the_program_are_not_listed() -> None:
    async with application() as app:
        reading = asyncio.ensure_future(anext(app.subscribe("a")))
        await until(lambda: app.hub.delivery.connection_count == 1)
        assert await all_of(app) == []
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_sessions_of_the_application_are_listed_by_their_subjects() -> None:
    async def authorize(request: Request) -> Grant:
        return Grant(subscribe=["a"], subject="42")

    app = create_app(Settings(), authorize=authorize)
    async with app.running(), follow(app, ("match", "a")):
        (row,) = await all_of(app)
        assert (row["issuer"], row["subject"], row["token_id"], row["expires"]) == ("application", "42", None, None)


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_the_connections_of_all_nodes_are_listed(
    kind: str, url_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PAGE", 4)
    monkeypatch.setattr(control, "PAGE", 4)
    async with nodes(url_of(kind), 3) as made, AsyncExitStack() as stack:
        for number in range(10):
            app = made[number % 3]
            await stack.enter_async_context(follow(app, ("topic", "a"), headers=[bearer(token(f"user {number}"))]))
        rows = await all_of(made[0])
        assert sorted(row["subject"] for row in rows) == sorted(f"user {number}" for number in range(10))
        assert {row["process"] for row in rows} == {app.hub.history.node for app in made}
        (one,) = await all_of(made[1], subject="user 5")
        assert one["process"] == made[2].hub.history.node
        # A list ends no stream, and counts for nothing that is on its way.
        assert sum(app.hub.delivery.connection_count for app in made) == 10


@pytest.mark.processes
async def test_the_command_prints_who_is_connected(start_hub: type[HubProcess], tmp_path: Path) -> None:
    place = tmp_path / "hub.sock"
    hub = start_hub("--workers", "2", HUB_OPERATOR_SOCKET=str(place), HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db")
    hub.may_fail = True
    async with AsyncExitStack() as stack:
        for number in range(130):
            name = "alice" if number % 2 else None
            await stack.enter_async_context(await subscribe(hub, ("topic", "a"), token=token(name)))
        told = await asyncio.to_thread(run, "connections", "--json", "--socket", str(place))
        rows = [json.loads(line) for line in told.stdout.splitlines()]
        assert told.returncode == 0
        assert len({row["subscriber"] for row in rows}) == len(rows) == 130
        assert len({row["process"] for row in rows}) == 2
        told = await asyncio.to_thread(run, "connections", "--subject", "alice", "--socket", str(place))
        lines = told.stdout.splitlines()
        assert len(lines) == 65
        assert all("  alice (classic)  127.0.0.1  live  topic:a  urn:uuid:" in line for line in lines)
        # One process does not answer.
        suspend(hub.workers[0], tmp_path / "log.db")
        try:
            for _ in range(6):
                told = await asyncio.to_thread(run, "connections", "--subject", "alice", "--socket", str(place))
                if told.returncode:
                    break
            assert told.returncode == 1
            assert "has not answered, so its connections are missing" in told.stderr
            assert 0 < len(told.stdout.splitlines()) < 65
        finally:
            os.kill(hub.workers[0], signal.SIGCONT)

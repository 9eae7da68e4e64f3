"""A hub on the servers that people have, on its own and in an application."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import children_of
from tests.hub.commands import environment
from tests.hub.serving import Served
from tests.redis_server import free_port
from tests.test_examples import ROOT
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, Reply, bearer, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

APPLICATION: Final = """
import time
from fastapi import FastAPI
from hub import Grant, create_app, settings_from_environment
from hub.delivery.seat import Ending

def authorize(request):
    if "x-expires" in request.headers:
        return Grant(subscribe=["*"], expires=time.time() + float(request.headers["x-expires"]))

live = create_app(settings_from_environment(), authorize=authorize)
app = FastAPI(lifespan=lambda _: live.running())

@app.middleware("http")
async def stamp(request, call_next):
    return await call_next(request)

class Failing:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def failing(message):
            if b"data: fail" in message.get("body", b""):
                raise RuntimeError("the middleware has failed")
            await send(message)
        await self.app(scope, receive, failing)

app.add_middleware(Failing)

@app.post("/lose")
async def lose():
    live.hub.delivery.close_all(Ending.UPDATES_LOST)

app.mount("/", live)
"""

SERVERS: Final = {
    "uvicorn": ["uvicorn", "--port", "{port}"],
    "uvicorn with h11": ["uvicorn", "--port", "{port}", "--http", "h11"],
    "granian": ["granian", "--interface", "asgi", "--port", "{port}"],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:{port}"],
    "gunicorn": ["gunicorn", "--worker-class", "asgi", "--bind", "127.0.0.1:{port}"],
}
CUTTING: Final = {"hypercorn"}
"""Servers that do not let the hub see a signal.  They cut the open streams."""


@asynccontextmanager
async def serving(server: str, name: str, directory: Path) -> AsyncIterator[tuple[Served, subprocess.Popen[bytes]]]:
    """Serve `name` of a module; the server must end by itself after SIGTERM."""
    (directory / "application.py").write_text(APPLICATION)
    port = free_port()
    command = [word.format(port=port) for word in SERVERS[server]]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [Path(sys.executable).with_name(command[0]), *command[1:], name],
            cwd=directory,
            env=environment(
                HUB_DEV="1",
                HUB_DRAIN="0",
                HUB_HISTORY_URL="memory://",
                HUB_MAX_LIFETIME="3",
                PYTHONPATH=str(ROOT),
            ),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        served = Served(port)
        try:
            await until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None
            yield served, process
        except BaseException:
            out.seek(0)
            print(out.read())
            raise
        finally:
            for pid in children_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def follow(server: Served, topic: str, *headers: tuple[str, str]) -> Reply:
    """Follow a topic, and return the stream when it has the topic's update."""
    reply = await request(server, "GET", f"{PATH}?topic={topic}&last_event_id=earliest", headers)
    assert reply.status == 200
    await reply.until(topic)
    return reply


async def publish(server: Served, topic: str, data: str) -> None:
    content = f"topic={topic}&data={data}".encode()
    async with await request(server, "POST", PATH, [FORM, bearer(server.token)], content) as reply:
        assert reply.status == 200


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", ["hub:app", "application:app"], ids=["top", "mounted"])
async def test_a_server_delivers_and_every_stream_ends(server: str, name: str, tmp_path: Path) -> None:
    async with serving(server, name, tmp_path) as (served, process):
        await publish(served, "a", "a")
        await publish(served, "b", "b")
        # 1. By its lifetime, and by its grant.
        streams = [await follow(served, "a")]
        if name == "application:app":
            streams.append(await follow(served, "a", ("x-expires", "4")))
        assert [await stream.ends() for stream in streams] == [True] * len(streams)
        if name == "application:app":
            # 2. By the loss of the history.
            stream = await follow(served, "a")
            async with await request(served, "POST", "/lose") as reply:
                assert reply.status == 200
            assert await stream.ends()
            # 3. By a write that fails.
            stream = await follow(served, "a")
            await publish(served, "a", "fail")
            await stream.ends()
        # 4. By a client that leaves, and by the end of the server.
        leaving = await follow(served, "b")
        await leaving.close()
        stream = await follow(served, "b")
        process.terminate()
        assert await stream.ends() or server in CUTTING
        assert await asyncio.to_thread(process.wait, HANG) in (0, -signal.SIGTERM)

"""The listeners for the operator: a Unix socket, and HTTP with a key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import structlog.testing

from hub import ConfigurationError, Settings, create_app
from hub.development import DEVELOPMENT_KEY
from hub.http import operator
from hub.http.operator import OperatorListeners
from hub.node.top import Top
from hub.server import http1
from hub.server.private_socket import InUse, listen_privately
from hub.settings.sources import Sources
from tests.asgi import PATH, ask, follow
from tests.conftest import suspend
from tests.hub.commands import run
from tests.hub.control.test_kick import token
from tests.waiting import HANG, until
from tests.wire import bearer, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

KEY = "an operator's key that nobody else has"


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[HubApplication]:
    app = create_app(Settings(**{"dev": True, "max_lifetime": 0, "retry": 0} | settings))
    async with app.running():
        yield app


def over(path: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://hub")


@asynccontextmanager
async def keyed() -> AsyncIterator[tuple[HubApplication, httpx2.AsyncClient]]:
    """Run a hub with a listener over TCP, and yield a client without a key."""
    chosen = Settings(dev=True, operator_key=KEY, operator_port=0)
    app = create_app(chosen)
    listeners = OperatorListeners.open(chosen)
    app.listeners = listeners
    async with app.running(), httpx2.AsyncClient(base_url=listeners.url) as client:
        yield app, client


# -- the socket


def test_r89_a_private_socket_has_its_mode_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    original = os.rename

    def rename(source: str, target: str) -> None:
        assert not os.path.lexists(target)
        seen.append((os.stat(source).st_mode, os.stat(os.path.dirname(source)).st_mode))
        original(source, target)

    monkeypatch.setattr(os, "rename", rename)
    before = os.umask(0)
    try:
        listener, remove = listen_privately(str(tmp_path / "hub.sock"))
    finally:
        os.umask(before)
    ((mode, directory),) = seen
    assert (stat.S_IMODE(mode), stat.S_IMODE(directory)) == (0o600, 0o700)
    assert stat.S_IMODE((tmp_path / "hub.sock").stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "hub.sock"))
    remove()
    listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "hub.sock")
    first, remove_first = listen_privately(path)
    with pytest.raises(InUse):
        listen_privately(path)
    first.close()  # as after kill -9
    second, remove_second = listen_privately(path)
    remove_first()  # it is not its own any more
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    remove_second()
    second.close()
    assert not os.path.exists(path)
    (tmp_path / "hub.sock").write_text("a file")
    with pytest.raises(FileExistsError, match="is not a socket"):
        listen_privately(path)
    assert (tmp_path / "hub.sock").read_text() == "a file"


def test_a_socket_that_is_set_must_be_made_and_the_default_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"nowhere/hub\.sock: No such file or directory"):
        OperatorListeners.open(Settings(dev=True, operator_socket="nowhere/hub.sock"))
    with pytest.raises(ConfigurationError, match="x: the path of a socket has at most 100 bytes"):
        OperatorListeners.open(Settings(dev=True, operator_socket="x" * 200))
    other, remove = listen_privately("mercure.sock")
    with pytest.raises(ConfigurationError, match=r"^operator_socket: \./mercure.sock: another process listens"):
        OperatorListeners.open(Settings(dev=True, operator_socket="./mercure.sock"))
    with structlog.testing.capture_logs() as lines:
        listeners = OperatorListeners.open(Settings(dev=True, operator_socket="mercure.sock"))
    assert listeners.sockets == ()
    assert [line["event"] for line in lines] == ["no socket for commands"]
    remove()
    other.close()


async def test_commands_over_the_socket_need_no_key(tmp_path: Path) -> None:
    path = tmp_path / "hub.sock"
    async with running(operator_socket=str(path)) as app, over(path) as client:
        async with follow(app, ("topic", "a"), headers=[bearer(token("alice"))]):
            reply = await client.post("/kick", json={"subject": "alice"})
            assert reply.status_code == 200
            assert reply.json() == {"ended": {"classic": 1}, "silent": [], "stored": True, "not_revoked": 0}
            await until(lambda: app.hub.delivery.connection_count == 0)
        assert (await client.post("/revoke", json={"subject": "alice"})).status_code == 200
        assert len(app.hub.history.ledger.revoked) == 1
        (one,) = (await client.post("/revocations", json={})).json()["revocations"]
        assert (one["subject"], one["issuer"], one["until"]) == ("alice", None, None)
        assert (await client.post("/revocations", json={"subject": "alice"})).status_code == 400
        assert (await client.post("/lift", json={"subject": "alice"})).status_code == 200
        assert not app.hub.history.ledger.revoked
    assert not path.exists()


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "detail"),
    [
        ("GET", "/kick", {}, b"", 405, "the method of each path is POST"),
        ("OPTIONS", "/kick", {"origin": "https://evil.example"}, b"", 405, "the method of each path is POST"),
        ("POST", "/", {}, b"{}", 404, "the paths are /kick, /revoke, /lift, /revocations, /connections"),
        ("POST", "/kick", {"content-type": "text/plain"}, b"{}", 415, "the body must be application/json"),
        ("POST", "/kick", {}, b"[]", 400, "the body must be an object of JSON"),
        ("POST", "/kick", {}, b"{", 400, "the body must be an object of JSON"),
        ("POST", "/kick", {}, b"[" * 10_000, 400, "the body must be an object of JSON"),
        ("POST", "/kick", {}, b"{}", 400, "give exactly one of subject, subscriber, token_id, key_id"),
        ("POST", "/kick", {}, b'{"user": "a"}', 400, "'user' is none of issuer, key_id, subject, subscriber, token_id"),
        ("POST", "/kick", {}, b'{"subject": 42}', 400, "subject must be a string"),
        ("POST", "/kick", {}, b'{"subject": ""}', 400, "subject '' has 0 characters"),
        ("POST", "/revoke", {}, b'{"key_id": "a"}', 400, "a key_id cannot be revoked"),
        ("POST", "/kick", {}, b'{"subject": "' + b"x" * 70_000 + b'"}', 413, "longer than 65536 bytes"),
    ],
)
async def test_other_requests_are_refused(
    method: str, path: str, headers: dict[str, str], body: bytes, status: int, detail: str, tmp_path: Path
) -> None:
    place = tmp_path / "hub.sock"
    async with running(operator_socket=str(place)), over(place) as client:
        reply = await client.request(method, path, headers={"content-type": "application/json"} | headers, content=body)
    assert reply.status_code == status
    assert detail in reply.json()["detail"]
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_r89_the_public_listener_takes_no_commands(tmp_path: Path) -> None:
    async with running(operator_socket=str(tmp_path / "hub.sock")) as app:
        for path in ("/kick", "/revoke", f"{PATH}/kick", "/connections", "/top"):
            assert (await ask(app, "POST", path, [("content-type", "application/json")], b"{}")).status == 404


@pytest.mark.parametrize(("seconds", "count"), [(60.0, 1), (0.0, 5)])
async def test_all_who_look_how_busy_the_hub_is_in_one_second_ask_the_processes_once(
    seconds: float, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "TOP_SECONDS", seconds)
    place = tmp_path / "hub.sock"
    async with running(operator_socket=str(place)) as app, over(place) as client:
        asked: list[str] = []
        ask_all = app.hub.control.ask

        async def asks(action: Any, question: str, **named: Any) -> Any:
            asked.append(action)
            return await ask_all(action, question, **named)

        monkeypatch.setattr(app.hub.control, "ask", asks)
        replies = await asyncio.gather(*(client.post("/top", json={}) for _ in range(5)))
        assert asked == ["top"] * count
        assert {reply.status_code for reply in replies} == {200}
        assert count > 1 or len({reply.text for reply in replies}) == 1
        for found in (reply.json() for reply in replies):
            assert list(found) == list(Top._fields)
            assert (found["processes"], found["streams"], found["silent"]) == (1, 0, [])
        refused = await client.post("/top", json={"subject": "42"})
        assert (refused.status_code, refused.json()["detail"]) == (400, "'subject' is none of ")


# -- HTTP with a key


async def test_r89_commands_over_http_need_the_key() -> None:
    async with keyed() as (_, client):
        for given in ({}, {"authorization": f"Basic {KEY}"}, {"authorization": f"Bearer {KEY[:-1]}"}):
            reply = await client.post("/kick", json={"subject": "alice"}, headers=given)
            assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        reply = await client.post(
            "/kick", json={"subject": "alice"}, headers={"authorization": f"Bearer {DEVELOPMENT_KEY}"}
        )
        assert reply.status_code == 401
        reply = await client.post("/kick", json={"subject": "alice"}, headers={"authorization": f"Bearer {KEY}"})
        assert reply.status_code == 200


async def test_a_head_without_end_is_refused_and_too_many_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with keyed() as (app, client):
        port = client.base_url.port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            writer.write(b"POST /kick HTTP/1.1\r\n" + b"x: y\r\n" * operator.MAX_HEAD)
            await writer.drain()
            assert b" 431 " in (await asyncio.wait_for(reader.read(), HANG)).partition(b"\r\n")[0]
        writer.close()
        # A connection that sends no request ends.
        monkeypatch.setattr(http1, "HEAD_TIMEOUT", 0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), HANG) == b""
        writer.close()
        assert app.hub.is_running
    monkeypatch.setattr(operator, "MOST_CONNECTIONS", 0)
    async with keyed() as (app, client):
        with pytest.raises(httpx2.TransportError):
            await client.post("/kick", json={"subject": "a"}, headers={"connection": "close"})
        assert app.hub.is_running


async def test_attempts_with_wrong_keys_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "MOST_FAILURES", 3)
    right = {"authorization": f"Bearer {KEY}"}
    async with keyed() as (_, client):
        for _ in range(5):  # right keys are not counted
            assert (await client.post("/kick", json={"subject": "a"}, headers=right)).status_code == 200
        with structlog.testing.capture_logs() as lines:
            statuses = [
                (await client.post("/kick", headers={"authorization": "Bearer x"})).status_code for _ in range(5)
            ]
        assert statuses == [401, 401, 401, 429, 429]
        assert (await client.post("/kick", json={"subject": "a"}, headers=right)).status_code == 429
        assert [line["event"] for line in lines].count("a command with a wrong key") == 3
        assert KEY not in str(lines)


async def test_the_key_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DEV", "1")
    new = KEY[::-1]
    async with keyed() as (app, client):

        async def status(key: str) -> int:
            reply = await client.post("/kick", json={"subject": "a"}, headers={"authorization": f"Bearer {key}"})
            return reply.status_code

        assert (await status(KEY), await status(new)) == (200, 401)
        app.read_keys_soon(lambda: Sources({"operator_key": new, "operator_port": 0}))
        await until(lambda: app._operator.key == new.encode())
        assert (await status(KEY), await status(new)) == (401, 200)
        # One that is also a key for tokens is refused, and so is none.
        for wrong in ({"operator_key": DEVELOPMENT_KEY, "operator_port": 0}, {}):
            with structlog.testing.capture_logs() as lines:
                app.read_keys_soon(lambda wrong=wrong: Sources(wrong))  # type: ignore[misc]
                await until(lambda lines=lines: lines)  # type: ignore[misc]
            assert lines[0]["log_level"] == "error"
            assert (await status(KEY), await status(new)) == (401, 200)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"operator_key": KEY}, "`operator_key` and `operator_port` belong together: set both, or neither"),
        ({"operator_port": 0}, "`operator_key` and `operator_port` belong together: set both, or neither"),
    ],
)
def test_a_key_without_a_port_and_a_port_without_a_key_are_refused(values: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(dev=True, **values)
    assert wrong in str(refused.value)


@pytest.mark.parametrize("role", ["publisher_key", "subscriber_key", "publisher_key_old", "issuer", "issuer_old"])
def test_the_key_of_the_operator_is_no_other_key(role: str, tmp_path: Path) -> None:
    other = "another key, which is long enough, too"
    (tmp_path / "key").write_text(KEY + "\n")
    for given in (KEY, f"@{tmp_path}/key"):
        chosen: dict[str, Any] = {"publisher_key": other, "subscriber_key": other, "public_urls": "https://hub.example"}
        if role.startswith("issuer"):
            keys = {"key": KEY} if role == "issuer" else {"key": other, "old_key": KEY}
            chosen["issuers"] = [{"id": "https://a", "subscriber": keys}]
        else:
            chosen[role] = KEY
        with pytest.raises(ConfigurationError, match=r"^operator_key: this is also a key for tokens"):
            create_app(Settings(operator_key=given, operator_port=0, **chosen))


def test_a_weak_key_is_refused_or_in_development_warned_of() -> None:
    with pytest.raises(ConfigurationError, match=r"^operator_key: this secret is shorter than 32 bytes"):
        create_app(Settings(publisher_key=KEY, subscriber_key=KEY, operator_key="short", operator_port=0))
    with structlog.testing.capture_logs() as lines:
        create_app(Settings(dev=True, operator_key="short", operator_port=0))
    (line,) = [line for line in lines if line.get("key") == "operator_key"]
    assert line["event"].startswith("this secret is shorter than 32 bytes")


def test_a_port_that_cannot_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=f"^operator_port: cannot listen on 127.0.0.1 port {port}: Address"
        ):
            OperatorListeners.open(Settings(dev=True, operator_key=KEY, operator_port=port))


# -- the command


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
async def test_an_operator_ends_the_streams_of_a_user(
    workers: int, start_hub: type[HubProcess], tmp_path: Path
) -> None:
    place = tmp_path / "hub.sock"
    hub = start_hub(
        *("--workers", str(workers)),
        HUB_OPERATOR_SOCKET=str(place),
        HUB_OPERATOR_KEY=KEY,
        HUB_OPERATOR_PORT="0",
        HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db",
    )
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    streams = [await subscribe(hub, ("topic", "a"), token=token(name)) for name in ["alice"] * 6 + ["bob"]]
    ended = await asyncio.to_thread(run, "kick", "--subject", "alice", "--socket", str(place))
    assert (ended.returncode, ended.stdout) == (0, "6 streams ended: 6 of classic\n")
    for stream in streams[:6]:
        assert not await stream.ends()
    refused = await asyncio.to_thread(run, "kick", "--socket", str(place))
    assert (refused.returncode, refused.stderr) == (
        2, "skipfilter: give one of --subject, --subscriber, --token-id and --key-id\n",
    )  # fmt: skip
    refused = await asyncio.to_thread(run, "kick", "--subject", "", "--socket", str(place))
    assert (refused.returncode, refused.stderr) == (
        2, "skipfilter: subject '' has 0 characters; it must have 1 to 1024\n",
    )  # fmt: skip
    revoked = await asyncio.to_thread(run, "revoke", "--subject", "bob", "--json", HUB_OPERATOR_SOCKET=str(place))
    assert json.loads(revoked.stdout) == {"ended": {"classic": 1}, "silent": [], "stored": True, "not_revoked": 0}
    assert not await streams[6].ends()
    told = await asyncio.to_thread(run, "revoke", "--token-id", "t1", HUB_OPERATOR_SOCKET=str(place))
    assert (told.returncode, told.stdout) == (0, "0 streams ended\nthe token is refused\n")
    listed = await asyncio.to_thread(run, "revoke", "--list", HUB_OPERATOR_SOCKET=str(place))
    assert re.fullmatch(
        r"subject bob, issued until [\d-]+T[\d:+]+: stays until --lift\ntoken t1: stays until --lift\n", listed.stdout
    )
    refused = await asyncio.to_thread(run, "revoke", "--list", "--subject", "bob", HUB_OPERATOR_SOCKET=str(place))
    assert refused.returncode == 2
    lifted = await asyncio.to_thread(run, "revoke", "--subject", "bob", "--lift", HUB_OPERATOR_SOCKET=str(place))
    assert (lifted.returncode, lifted.stdout) == (0, "the tokens are accepted again\n")
    url = next(line.split()[1] for line in hub.welcome.splitlines() if line.startswith("Commands"))
    async with httpx2.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as client:
        assert (await client.post("/kick", json={"subject": "alice"})).json()["ended"] == {}
    assert hub.stop() in (0, -signal.SIGTERM)
    assert not place.exists()
    # In a process of its own, because httpcore leaves a socket open that cannot connect.
    words = [sys.executable, "-m", "hub", "kick", "--subject", "alice", "--socket", str(place)]
    gone = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
    assert gone.returncode == 1
    assert gone.stderr == f"skipfilter: {place}: no hub takes commands there; --socket names another place\n"


@pytest.mark.processes
async def test_the_command_says_who_has_not_answered(start_hub: type[HubProcess], tmp_path: Path) -> None:
    place = tmp_path / "hub.sock"
    hub = start_hub("--workers", "2", HUB_OPERATOR_SOCKET=str(place), HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db")
    hub.may_fail = True
    await until(lambda: hub.log().count("startup complete") == 2)
    stopped = hub.workers[0]
    suspend(stopped, tmp_path / "log.db")
    try:
        for _ in range(4):  # the kernel may give the stopped one the first connections
            told = await asyncio.to_thread(run, "kick", "--subject", "a", "--socket", str(place))
            if "has not answered" in told.stderr:
                break
        assert told.returncode == 1
        assert "has not answered; it does it before it sends anything that is published later" in told.stderr
    finally:
        os.kill(stopped, signal.SIGCONT)

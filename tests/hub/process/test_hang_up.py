"""SIGHUP: a hub reads its keys again or, if a terminal has sent it, drains."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hub.auth.signing import sign_classic_token
from hub.errors import ConfigurationError, InvalidToken
from tests.hub.commands import environment
from tests.hub.signing import ORIGIN, PUBLISHER_KEY, RESOURCE, authorizer, settings, sign
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, bearer, request, subscribe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

KEYS = [letter * 32 for letter in "abc"]
WORKERS = pytest.mark.parametrize("workers", [1, 2])


def token(key: str) -> str:
    return sign_classic_token(key, "HS256", publish=["*"], subscribe=["*"], seconds=3_600, now=time.time())


async def status(hub: HubProcess, key: str) -> int:
    """Return the status of a publish with a token of a key."""
    async with await request(hub, "POST", PATH, [FORM, bearer(token(key))], b"topic=a&data=x") as reply:
        return reply.status


async def statuses(hub: HubProcess) -> set[tuple[int, ...]]:
    """Return the statuses for all keys, by any of the workers."""
    return {tuple([await status(hub, key) for key in KEYS]) for _ in range(8)}


@WORKERS
async def test_a_hub_reads_its_keys_again(workers: int, start_hub: type[HubProcess], tmp_path: Path) -> None:
    key, config = tmp_path / "key", tmp_path / "hub.toml"
    key.write_text(KEYS[0] + "\n")
    config.write_text("heartbeat = 10\n")
    hub = start_hub(
        *("--workers", str(workers), "--config", str(config)),
        dev=False,
        HUB_PUBLISHER_KEY_FILE=str(key),
        HUB_ANONYMOUS="1",
        HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db",
    )
    hub.may_fail = True
    async with await subscribe(hub, ("topic", "a")) as stream:
        assert await statuses(hub) == {(200, 401, 401)}

        # 1. Another key.
        key.write_text(KEYS[1])
        hub.process.send_signal(signal.SIGHUP)
        await until(lambda: hub.log().count("the keys were read again") == workers)
        assert "other settings have changed" not in hub.log()
        assert await statuses(hub) == {(401, 200, 401)}

        # 2. A key that cannot be used: the one before counts.
        key.write_text("short")
        hub.process.send_signal(signal.SIGHUP)
        await until(lambda: hub.log().count("the keys cannot be read again") == workers)
        assert "HUB_PUBLISHER_KEY_FILE" in hub.log()
        assert "short\n" not in hub.log()
        assert await statuses(hub) == {(401, 200, 401)}

        # 3. Another setting, which counts after a restart.
        key.write_text(KEYS[2])
        config.write_text("heartbeat = 20\nmax_body = 1000\n")
        hub.process.send_signal(signal.SIGHUP)
        await until(lambda: hub.log().count("the keys were read again") == 2 * workers)
        await until(lambda: hub.log().count('settings="heartbeat, max_body"') == workers)
        assert await statuses(hub) == {(401, 401, 200)}

        # 4. The stream has gone on all the time.
        found = [(await stream.next_event()).data for _ in range(24)]
        assert found == ["x"] * 24

    # 5. A new worker has the new keys.
    if workers == 2:
        await hub.kill_worker(hub.workers[0])
        assert await statuses(hub) == {(401, 401, 200)}
    assert hub.stop() in (0, -signal.SIGTERM)


@pytest.mark.processes
@WORKERS
async def test_a_terminal_that_closes_drains_the_hub(workers: int, tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    log = tmp_path / "log"
    with log.open("w") as out:
        hub = subprocess.Popen(
            [sys.executable, "-m", "hub", "serve", "--dev", "--port", "0", "--workers", str(workers)],
            env=environment(HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_DRAIN="1", HUB_SUBSCRIPTIONS="0"),
            stdin=its_end,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
        )
    os.close(its_end)
    try:
        assert hub.stdout is not None
        port = 0
        for line in iter(hub.stdout.readline, ""):
            if line.startswith("Hub "):
                port = int(line.rpartition("localhost:")[2].partition("/")[0])
            if "Ctrl-C" in line:
                break
        await until(lambda: log.read_text().count("startup complete") == workers)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {PATH}?match=a HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG)
        hub.send_signal(signal.SIGHUP)
        rest = await asyncio.wait_for(reader.read(), HANG)
        assert rest.endswith(b"0\r\n\r\n")  # the stream has ended cleanly
        writer.close()
        assert await asyncio.to_thread(hub.wait, HANG) in (0, -signal.SIGTERM)
    finally:
        hub.kill()
        hub.wait()
        os.close(terminal)
        if hub.stdout is not None:
            hub.stdout.close()
    assert log.read_text().count("the terminal was closed, so the hub shuts down") == 1
    assert 'reason="the hub is shutting down"' in log.read_text()
    assert "draining" in log.read_text()


@pytest.mark.processes
@WORKERS
async def test_a_hub_that_nohup_has_started_ignores_it(workers: int, start_hub: Any, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hub = start_hub("--workers", str(workers), HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db")
    finally:
        signal.signal(signal.SIGHUP, before)
    hub.process.send_signal(signal.SIGHUP)
    async with await subscribe(hub, ("topic", "a")) as stream:
        assert stream.status == 200
    hub.stop()
    assert "read again" not in hub.log()


# -- the keys


async def test_a_token_of_an_earlier_key_is_refused_although_it_was_cached() -> None:
    verifier = authorizer()
    claims = {"mercure": {"publish": ["*"]}}
    old = sign(claims)
    assert await verifier.verify("publish", old, resource=RESOURCE)
    await verifier.take_keys(settings(publisher_key="another key of 32 bytes or more.."))
    with pytest.raises(InvalidToken):
        await verifier.verify("publish", old, resource=RESOURCE)
    new = sign(claims, key="another key of 32 bytes or more..")
    assert await verifier.verify("publish", new, resource=RESOURCE)
    with pytest.raises(ConfigurationError):
        await verifier.take_keys(settings(publisher_key="short"))
    assert await verifier.verify("publish", new, resource=RESOURCE)
    await verifier.take_keys(settings(publisher_key=PUBLISHER_KEY))
    assert await verifier.verify("publish", old, resource=RESOURCE)


async def test_a_token_that_is_verified_while_the_keys_change_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = authorizer()
    old = sign({"mercure": {"publish": ["*"]}})
    verify = verifier._verify

    async def slowly(*arguments: Any) -> Any:
        found = await verify(*arguments)
        await verifier.take_keys(settings(publisher_key="another key of 32 bytes or more.."))
        return found

    monkeypatch.setattr(verifier, "_verify", slowly)
    assert await verifier.verify("publish", old, resource=RESOURCE)  # the request began before
    monkeypatch.undo()
    with pytest.raises(InvalidToken):
        await verifier.verify("publish", old, resource=RESOURCE)


def test_the_settings_that_are_read_again_are_keys_and_issuers() -> None:
    first, second = (
        settings(),
        settings(publisher_key="k" * 32, heartbeat=1.0, public_urls=(ORIGIN, "https://b.example")),
    )
    assert first.with_keys_of(second) == first.model_copy(update={"publisher_key": "k" * 32})
    assert first.other_changes(second) == ["public_urls", "heartbeat"]
    assert first.other_changes(first.with_keys_of(second)) == []

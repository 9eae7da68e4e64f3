"""SIGHUP: a hub reads its keys again or, if a terminal has sent it, drains."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from hub import Settings, create_app
from hub.auth.signing import sign_classic_token
from hub.errors import ConfigurationError, InvalidToken
from hub.process.hang_up import HangUp
from tests.asgi import ask
from tests.conftest import children_of
from tests.hub.commands import environment
from tests.hub.signing import ORIGIN, PUBLISHER_KEY, RESOURCE, authorizer, settings, sign
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, bearer, request, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

KEYS = [letter * 32 for letter in "abc"]


@pytest.fixture(autouse=True)
def signal_is_not_ignored() -> Iterator[None]:
    """With `nohup`, the tests and the hubs that they start would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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
        await until(lambda: "the keys cannot be read again" in hub.log())
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

    # 5. New workers have the new keys, also if their file is away.
    if workers == 2:
        key.unlink()
        for number, worker in enumerate(hub.workers, workers + 1):
            await hub.kill_worker(worker)
            await until(lambda count=number: hub.log().count("startup complete") == count)  # type: ignore[misc]
        assert await statuses(hub) == {(401, 401, 200)}
    assert hub.stop() in (0, -signal.SIGTERM)


@pytest.mark.processes
@WORKERS
async def test_a_terminal_that_closes_drains_the_hub(workers: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    variables = environment(HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_DRAIN="1", HUB_SUBSCRIPTIONS="0")
    command = f"exec {sys.executable} -m hub serve --dev --port 0 --workers {workers} 2> {log}"
    end, terminal = pty.openpty()
    hub = subprocess.Popen(
        ["sh", "-c", command],
        env=variables,
        stdin=terminal,
        stdout=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    try:
        welcome = ""
        while "Ctrl-C" not in welcome:
            welcome += (await asyncio.to_thread(os.read, end, 4_096)).decode()
        port = int(welcome.partition("localhost:")[2].partition("/")[0])
        await until(lambda: log.read_text().count("startup complete") == workers)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {PATH}?match=a HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG)
        os.close(end)  # the kernel sends SIGHUP
        rest = await asyncio.wait_for(reader.read(), HANG)
        assert rest.endswith(b"0\r\n\r\n")  # the stream has ended cleanly
        writer.close()
        assert await asyncio.to_thread(hub.wait, HANG) in (0, -signal.SIGTERM)
    finally:
        hub.kill()
        hub.wait()
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


def test_a_signal_before_the_server_is_there_is_kept_for_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    calls: list[str] = []
    try:
        hang_up = HangUp()
        hang_up._has_terminal = False  # whatever the tests run in
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        hang_up.then(lambda: calls.append("first"))
        assert calls == ["first"]
        signal.raise_signal(signal.SIGHUP)
        assert calls == ["first"] * 2
        hang_up.forget()  # as in a new process
        hang_up.then(lambda: calls.append("second"))
        assert calls == ["first"] * 2
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        HangUp()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def hub_with(key: str, **more: Any) -> HubApplication:
    return create_app(Settings(publisher_key=key, anonymous=True, **more))


class Given:
    """Sources of settings that a test chooses."""

    def __init__(self, **values: Any) -> None:
        self._values = {"anonymous": True} | values

    def settings(self) -> Settings:
        return Settings(**self._values)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        yield


async def allowed(app: HubApplication) -> list[int]:
    """Return the statuses of publishing with each key."""
    return [(await ask(app, "POST", PATH, [FORM, bearer(token(key))], b"topic=a")).status for key in KEYS]


async def test_a_signal_before_the_hub_runs_is_heeded_when_it_runs() -> None:
    app = hub_with(KEYS[0])
    app.read_keys_soon(lambda: cast("Any", Given(publisher_key=KEYS[1])))
    async with app.running():
        await done_reading(app)
        assert await allowed(app) == [401, 200, 401]


async def done_reading(app: HubApplication) -> None:
    await asyncio.sleep(0)
    assert app._reading is not None
    await app._reading


async def test_the_keys_of_the_last_signal_count(caplog: pytest.LogCaptureFixture) -> None:
    slow = threading.Event()
    answers = iter([KEYS[1], KEYS[2]])
    calls: list[str] = []

    def read() -> Any:
        calls.append(key := next(answers))
        if key == KEYS[1]:
            assert slow.wait(HANG)
        return Given(publisher_key=key)

    async with running(hub_with(KEYS[0])) as app:
        app.read_keys_soon(read)
        await until(lambda: calls)
        for _ in range(5):
            app.read_keys_soon(read)
        slow.set()
        await done_reading(app)
        assert calls == [KEYS[1], KEYS[2]]  # the others were one more
        assert await allowed(app) == [401, 401, 200]


@contextlib.asynccontextmanager
async def running(app: HubApplication) -> AsyncIterator[HubApplication]:
    async with app.running():
        yield app


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"publisher_key": None}, "there are keys for other purposes than before: restart the hub"),
        ({"publisher_key": KEYS[1], "subscriber_key": KEYS[1]}, "there are keys for other purposes than before"),
        ({"publisher_key": "short"}, "publisher_key: this secret is shorter than 32 bytes"),
        ({"publisher_key": KEYS[1], "heartbeat": -1}, "heartbeat"),
    ],
)
async def test_keys_that_cannot_be_taken_leave_those_before(
    values: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(hub_with(KEYS[0])) as app:
        app.read_keys_soon(lambda: cast("Any", Given(**values)))
        await done_reading(app)
        assert await allowed(app) == [200, 401, 401]
    assert "the keys cannot be read again, so those before count" in caplog.text
    assert told in caplog.text


async def test_another_error_is_logged_and_leaves_the_keys(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise PermissionError("planted")

    async with running(hub_with(KEYS[0])) as app:
        app.read_keys_soon(fail)
        await done_reading(app)
        assert await allowed(app) == [200, 401, 401]
    assert "PermissionError: planted" in caplog.text


@pytest.mark.processes
def test_a_process_that_the_supervisor_has_inherited_may_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = f"sleep 0.3 & exec {sys.executable} -m hub serve --dev --port 0 --workers 2 2> {log}"
    hub = subprocess.Popen(
        ["sh", "-c", command], env=environment(HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db"), stdout=subprocess.PIPE
    )
    try:
        # The sleep is the first child, so it has ended when it is no longer there.
        while len(children_of(hub.pid)) != 2 or log.read_text().count("startup complete") != 2:
            assert hub.poll() is None
        time.sleep(0.2)
        assert hub.poll() is None
        hub.terminate()
        assert hub.wait(HANG) == 0
    finally:
        hub.kill()
        hub.communicate()
    assert "Traceback" not in log.read_text()


# -- the keys


async def test_a_token_of_an_earlier_key_is_refused_although_it_was_cached() -> None:
    verifier = authorizer()
    claims = {"mercure": {"publish": ["*"]}}
    old = sign(claims)
    headers = [(b"authorization", b"Bearer " + old.encode())]
    for _ in range(2):
        assert await verifier.authorize("publish", headers, origin=ORIGIN)
    await verifier.take_keys(settings(publisher_key="another key of 32 bytes or more.."))
    with pytest.raises(InvalidToken):
        await verifier.verify("publish", old, resource=RESOURCE)
    with pytest.raises(InvalidToken):
        await verifier.authorize("publish", headers, origin=ORIGIN)
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
    headers = [(b"authorization", b"Bearer " + old.encode())]
    assert await verifier.authorize("publish", headers, origin=ORIGIN)  # the request began before
    assert not verifier._recent
    monkeypatch.undo()
    with pytest.raises(InvalidToken):
        await verifier.verify("publish", old, resource=RESOURCE)


async def test_a_key_set_that_is_fetched_stays_if_its_settings_do() -> None:
    url = {"jwks_url": "https://keys.example/set"}
    issuers: dict[str, Any] = {
        "issuers": ({"id": "https://a.example", "keys": url}, {"id": "https://b.example", "keys": url})
    }
    verifier = authorizer(**issuers)
    first = dict(verifier._issuers)
    await verifier.take_keys(settings(publisher_key="k" * 32, **issuers))
    assert verifier._issuers == first
    await verifier.take_keys(settings(issuers=issuers["issuers"][:1]))
    assert verifier._issuers == {"https://a.example": first["https://a.example"]}
    assert len(verifier._fetched) == 1
    await verifier.aclose()


def test_the_settings_that_are_read_again_are_keys_and_issuers() -> None:
    first, second = (
        settings(),
        settings(publisher_key="k" * 32, heartbeat=1.0, public_urls=(ORIGIN, "https://b.example")),
    )
    assert first.with_keys_of(second) == first.model_copy(update={"publisher_key": "k" * 32})
    assert first.other_changes(second) == ["public_urls", "heartbeat"]
    assert first.other_changes(first.with_keys_of(second)) == []

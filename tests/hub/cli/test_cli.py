"""The commands `skipfilter serve` and `skipfilter token`, and `uvicorn hub:app` with both HTTP
parsers and event loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import hub
from hub import Settings
from hub.auth.signing import sign_classic_token, sign_token, token_command
from hub.cli import serve as cli
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY, DEVELOPMENT_TOKEN
from hub.history.sqlite import database
from tests.hub.commands import environment, process, run
from tests.waiting import HANG
from tests.wire import FORM, PATH, bearer, publish, request, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.types import Message

    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess


@pytest.mark.processes
def test_without_keys_the_error_says_what_to_set() -> None:
    ended = process("serve", "--port", "0")
    assert ended.returncode == 2
    assert "no publisher is allowed: set HUB_PUBLISHER_KEY or HUB_ISSUERS, or HUB_DEV to try the hub" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.processes
def test_a_key_that_does_not_fit_is_named_and_not_shown() -> None:
    ended = process("serve", "--port", "0", "--dev", HUB_PUBLISHER_KEY="my secret", HUB_PUBLISHER_ALGORITHM="RS256")
    assert (ended.returncode, "HUB_PUBLISHER_KEY: not a key for RS256" in ended.stderr) == (2, True)
    assert "my secret" not in ended.stdout + ended.stderr


@pytest.mark.processes
def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = process("serve", "--dev", "--port", port)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1 port {port}: " in ended.stderr


# -- errors at the start


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of the hubs that would run if `run` were not replaced."""
    started: list[Settings] = []

    def serve(app: HubApplication, listener: socket.socket, *, detach: bool, **_: object) -> None:
        assert detach
        listener.close()
        started.append(app.state.hub.settings)

    monkeypatch.setattr(cli, "run", serve)
    return started


def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start a hub in this process, in development mode."""
    return run("serve", "--port", "0", *arguments, **{"HUB_DEV": "1", "HUB_HISTORY_URL": "memory://"} | variables)


def refused(*arguments: str, **variables: str) -> str:
    """Return the error of a start that fails; assert that it is the only output."""
    ended = start(*arguments, **variables)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("skipfilter: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr.removeprefix("skipfilter: ").rstrip()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_history_that_cannot_be_opened_prevents_the_start(workers: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    (tmp_path / "directory").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE a (b)")
    for name, reason in (
        ("none/log.db", ": there is no such directory"),
        ("text/log.db", ": there is no such directory"),
        ("text", ": this file is not a database"),
        ("directory", ": this is a directory"),
        ("other.db", " is a database, but not the history of a hub"),
    ):
        told = refused("--workers", workers, HUB_HISTORY_URL=f"sqlite:///{tmp_path}/{name}")
        assert told == f"HUB_HISTORY_URL: {tmp_path}/{name}{reason}"
    told = refused("--workers", workers, HUB_HISTORY_URL="sqlite:////proc/log.db")
    assert told == "HUB_HISTORY_URL: /proc/log.db: no file can be created there"


@pytest.mark.usefixtures("served")
def test_a_file_without_permission_prevents_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(database, "alone", refuse)  # because root has every permission
    url = f"sqlite:///{tmp_path}/log.db"
    told = refused(HUB_HISTORY_URL=url)
    assert told == f"HUB_HISTORY_URL: {tmp_path}/log.db: there is no permission to read and write it"
    monkeypatch.setattr(os, "access", lambda *_: False)
    told = refused(HUB_EVENT_LOG=str(tmp_path / "events"))
    assert told == f"HUB_EVENT_LOG: {tmp_path}/events: no permission to write there"


@pytest.mark.usefixtures("served")
def test_an_event_log_that_is_not_a_directory_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = refused(HUB_EVENT_LOG=str(tmp_path / "file"))
    assert told == f"HUB_EVENT_LOG: {tmp_path}/file: this is not a directory"
    assert refused(HUB_EVENT_LOG=str(tmp_path / "file" / "events")).endswith("/file/events: Not a directory")


@pytest.mark.usefixtures("served")
def test_an_address_that_cannot_be_used_prevents_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("--host", "a..b") == "cannot listen on a..b port 0: this is not a host name"
    told = refused("--host", "192.0.2.1", "--dev-anywhere")  # no machine has this address (RFC 5737)
    assert told == "cannot listen on 192.0.2.1 port 0: Cannot assign requested address"

    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert refused("--host", "none.example") == "cannot listen on none.example port 0: Name or service not known"


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"HUB_ANONYMOS": "1"}, "HUB_ANONYMOS is not a setting: did you mean HUB_ANONYMOUS?"),
        ({"HUB_DEV": "0", "HUB_PUBLISHER_KEY": "x", "HUB_ANONYMOUS": "1"}, "HUB_PUBLISHER_KEY: this secret is shorter than 32"),
        ({"HUB_DEV": "0", "HUB_PUBLISHER_KEY": " " * 40, "HUB_ANONYMOUS": "1"}, "HUB_PUBLISHER_KEY: this secret is blank"),
        ({"HUB_HEARTBEAT": "often"}, "HUB_HEARTBEAT: 'often' should be a number of seconds, as in 15, 40s or 10m, from 0s to 1d"),
        ({"HUB_DEV": "perhaps"}, "HUB_DEV: 'perhaps' should be true or false"),
        ({"HUB_DEV": "0"}, "no publisher is allowed: set HUB_PUBLISHER_KEY or HUB_ISSUERS, or HUB_DEV to try the hub"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_are_not_enough_prevent_the_start(variables: dict[str, str], told: str) -> None:
    assert refused(**variables).startswith(told)


def test_the_hub_waits_for_an_unavailable_history(served: list[Settings]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = start(HUB_HISTORY_URL=f"redis://127.0.0.1:{port}")
    assert (ended.returncode, ended.stderr, len(served)) == (0, "", 1)
    assert f"in redis at 127.0.0.1:{port}" in ended.stdout


# -- development mode


@pytest.mark.parametrize("chosen", ["flag", "environment"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_development_mode_on_a_public_address_is_refused_unless_it_is_forced(
    host: str, chosen: str, served: list[Settings]
) -> None:
    arguments = ["--host", host, *(["--dev"] if chosen == "flag" else [])]
    dev = str(int(chosen == "environment"))
    told = refused(*arguments, HUB_DEV=dev)
    assert told.startswith(f"development mode is for this machine only, and others could reach {host}: ")
    assert told.endswith("listen on 127.0.0.1, or allow it with --dev-anywhere")
    assert served == []
    start(*arguments, "--dev-anywhere", HUB_DEV=dev)
    production = start("--host", host, HUB_DEV="0", HUB_PUBLISHER_KEY="p" * 32, HUB_ANONYMOUS="1")
    assert "development mode" not in production.stderr
    if socket.has_ipv6 or host == "0.0.0.0":
        assert [settings.dev for settings in served] == [True, False]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost"])
def test_development_mode_on_a_loopback_address_is_allowed(host: str, served: list[Settings]) -> None:
    ended = start("--host", host, "--dev", HUB_DEV="0")
    assert (ended.returncode, ended.stderr, len(served)) == (0, "", 1)
    assert "DEVELOPMENT MODE" in ended.stdout


@pytest.mark.anyio
async def test_uvicorn_gets_one_sentence_if_the_hub_cannot_start(tmp_path: Path) -> None:
    app = hub.create_app(Settings(dev=True, history_url=f"sqlite:///{tmp_path}/none/log.db"))
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(hub.ConfigurationError):
        await app({"type": "lifespan", "state": {}}, receive, send)
    told = f"hub: history_url: {tmp_path}/none/log.db: there is no such directory"
    assert sent == [{"type": "lifespan.startup.failed", "message": told}]


# -- a running hub


def test_the_welcome_shows_the_next_steps(hub: HubProcess) -> None:
    assert hub.url.endswith("/.well-known/mercure")
    assert f"{hub.url}/debug/" in hub.welcome
    assert DEVELOPMENT_TOKEN in hub.welcome
    assert "in this process's memory, and lost when it ends: the last 100,000 updates, of 64 MiB at most" in hub.welcome
    assert "DEVELOPMENT MODE" in hub.welcome


def test_the_environment_can_select_development_mode_and_nothing_else_changes(start_hub: type[HubProcess]) -> None:
    hub = start_hub(dev=False, HUB_DEV="1", HUB_PATH="/chat/hub", HUB_HISTORY_UPDATES="7")
    assert "DEVELOPMENT MODE" in hub.welcome
    assert hub.url.endswith("/chat/hub")
    assert "the last 7 updates" in hub.welcome


@pytest.mark.anyio
async def test_the_log_level_can_be_set(start_hub: type[HubProcess]) -> None:
    quiet, loud = start_hub("--log-level", "warning"), start_hub("--log-level", "debug")
    for each in (quiet, loud):
        await publish(each, ("topic", "a"), ("data", "a secret"))
    assert "updates published" not in quiet.log()
    assert "updates published" in loud.log()
    assert "a secret" not in loud.log()


@pytest.mark.anyio
async def test_a_production_hub_shows_no_token_and_no_page(start_hub: type[HubProcess]) -> None:
    hub = start_hub(dev=False, HUB_PUBLISHER_KEY="p" * 32, HUB_SUBSCRIBER_KEY="s" * 32)
    assert "Token" not in hub.welcome
    assert "Page" not in hub.welcome
    async with await subscribe(hub, ("topic", "a")) as reply:
        assert reply.status == 401
    async with await subscribe(hub, ("topic", "a"), token=DEVELOPMENT_TOKEN) as reply:
        assert reply.status == 401


@pytest.mark.anyio
async def test_a_development_hub_without_the_classic_dialect_prints_a_token_that_works(
    start_hub: type[HubProcess],
) -> None:
    hub = start_hub(HUB_CLASSIC="0")
    token = hub.welcome.partition("development key:\n")[2].split()[0]
    assert token != DEVELOPMENT_TOKEN
    async with await subscribe(hub, ("match", "a"), token=token) as reader:
        await publish(hub, ("topic", "a"), ("data", "a secret"), ("private", ""), token=token)
        assert (await reader.next_event()).data == "a secret"
    async with await subscribe(hub, ("match", "a"), token=DEVELOPMENT_TOKEN) as reply:
        assert reply.status == 401


OWN_KEY = "a key of the operator, which is long enough"
OWN = {
    "publisher_key": {"HUB_PUBLISHER_KEY": OWN_KEY},
    "both keys": {"HUB_PUBLISHER_KEY": OWN_KEY, "HUB_SUBSCRIBER_KEY": OWN_KEY},
    "issuers": {"HUB_ISSUERS": json.dumps([{"id": "https://own.example", "keys": {"key": OWN_KEY}}])},
}


@pytest.mark.anyio
@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
async def test_a_development_hub_with_keys_of_its_own_refuses_the_well_known_key(
    own: dict[str, Any], start_hub: type[HubProcess], tmp_path: Path
) -> None:
    hub = start_hub(**own)
    common: dict[str, Any] = {"publish": ["*"], "subscribe": ["*"], "seconds": 60, "now": time.time()}
    current = common | {"publish": [("exact", "*")], "subscribe": [("exact", "*")]}
    public = [
        DEVELOPMENT_TOKEN,
        sign_classic_token(DEVELOPMENT_KEY, "HS256", **common),
        sign_token(DEVELOPMENT_KEY, "HS256", issuer=DEVELOPMENT_ISSUER, resource=hub.url, **current),
        sign_token(DEVELOPMENT_KEY, "HS256", issuer="https://own.example", resource=hub.url, **current),
    ]
    for token in public:
        assert token not in hub.welcome
        async with await request(hub, "POST", PATH, [FORM, bearer(token)], b"topic=a") as answer:
            assert answer.status == 401
        async with await subscribe(hub, ("topic", "a"), token=token) as answer:
            assert answer.status == 401
    # The welcome and the page say how to sign a token, and the hub signs none.
    (tmp_path / "key").write_text(OWN_KEY + "\n")
    command = hub.welcome.partition("TOKEN=$(skipfilter ")[2].partition(")\n")[0]
    signed = run(*shlex.split(command.replace("FILE", f"{tmp_path}/key")))
    assert (signed.returncode, signed.stderr) == (0, "")
    assert await publish(hub, ("topic", "a"), token=signed.stdout.strip())
    assert '"Authorization: Bearer $TOKEN"' in hub.welcome
    assert "anyone" not in hub.welcome + hub.log()
    assert "DEVELOPMENT MODE" not in hub.log()  # the welcome says it
    async with await request(hub, "GET", f"{PATH}/debug/config.json") as answer:
        config = json.loads(await answer.body())
    assert (config["token"], config["token_command"]) == ("", f"skipfilter {command}")


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_the_log_of_another_server_says_how_to_sign_a_token(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    settings = hub.settings_from_environment(dev=True, history_url="memory://")
    hub.create_app(settings)
    [record] = caplog.records
    told = token_command(settings, "http://localhost:3000")
    assert record.getMessage() == f'event="DEVELOPMENT MODE, with the keys that were set" to_sign_a_token="{told}"'


# -- skipfilter token


@pytest.mark.anyio
async def test_r13_a_development_token_is_valid_at_the_default_address(start_hub: type[HubProcess]) -> None:
    hub = start_hub()
    arguments = ["--subscribe", "uritemplate=https://example.com/{id}?q=1", "--publish", "https://example.com/1?q=1"]
    for audience in ([], ["--audience", hub.url]):
        signed = run("token", "--dev", *arguments, *audience)
        assert (signed.returncode, signed.stderr) == (0, "")
        async with await subscribe(hub, ("match", "*"), token=signed.stdout.strip()) as reader:
            if not audience:  # the default address has another port
                assert reader.status == 401
                continue
            topic, private = ("topic", "https://example.com/1?q=1"), ("private", "")
            await publish(hub, topic, private, ("data", "x"), token=signed.stdout.strip())
            assert (await reader.next_event()).data == "x"


@pytest.mark.anyio
async def test_r13_a_classic_token_and_a_key_from_a_file_or_the_environment(
    start_hub: type[HubProcess], tmp_path: Path
) -> None:
    hub = start_hub(dev=False, HUB_PUBLISHER_KEY="p" * 32, HUB_SUBSCRIBER_KEY="s" * 32)
    (tmp_path / "key").write_text("p" * 32 + "\n")
    for given, variables in (
        (["--key", f"@{tmp_path}/key"], {}),
        (["--key", "p" * 32], {}),
        ([], {"HUB_TOKEN_KEY": "p" * 32}),
    ):
        signed = run("token", "--classic", "--publish", "a=b", "--publish", "{id}", *given, **variables)
        assert (signed.returncode, signed.stderr) == (0, "")
        assert await publish(hub, ("topic", "a=b"), ("topic", "c"), token=signed.stdout.strip())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a key is needed"),
        (["--key", "secret-text"], "needs --issuer and --audience"),
        (["--dev", "--payload", "{"], "--payload '{' is not JSON"),
        (["--dev", "--ttl", "inf"], "'inf' is not a duration, as in 90s, 15m, 12h or 30d"),
        (["--dev", "--ttl", "0"], "--ttl '0' is not from 1s to 36600d"),
        (["--dev", "--classic", "--publish", "mqtt=a"], "a classic pattern has no type: 'mqtt=a'"),
        (["--dev", "--key", "@/secret-text"], "the signing key: the file after the @ cannot be read: No such file"),
        (["--dev", "--key", "/etc/secret-text.pem"], "the signing key: this is the path of a file, not a key"),
        (["--dev", "--key", "secret-text", "--algorithm", "RS256"], "RS256"),
    ],
)
def test_r13_options_that_make_no_token_are_named(arguments: list[str], told: str) -> None:
    ended = run("token", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert "secret-text" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_r13_a_key_that_no_hub_accepts_causes_a_warning() -> None:
    arguments = ("token", "--issuer", "a", "--audience", "b", "--publish", "*")
    for short in ("secret-text", " " * 40, "s" * 31):
        ended = run(*arguments, "--key", short)
        assert (ended.returncode, ended.stdout.count(".")) == (0, 2)
        assert ended.stderr.startswith(
            "skipfilter: warning: a hub accepts this token in development mode only: this secret is "
        )
        assert short not in ended.stderr
    for accepted in (("--key", "s" * 32), ("--dev", "--key", "short")):
        ended = run(*arguments, *accepted)
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.usefixtures("served")
def test_the_path_of_a_key_is_refused_everywhere_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a secret").write_text("s" * 32)
    for path in (f"{tmp_path}/a secret", "/etc/a secret.pem", "@/etc/a secret"):
        keys = {"HUB_PUBLISHER_KEY": "s" * 32, "HUB_SUBSCRIBER_KEY": "s" * 32}
        told = [refused(**keys | {name: path}) for name in keys]
        told.append(refused(HUB_ISSUERS=json.dumps([{"id": "us", "keys": {"key": path}}])))
        told.append(refused(HUB_ISSUERS=json.dumps([{"id": "us", "publisher": {"key": path}}])))
        reason = "the file after the @ cannot be read" if path.startswith("@") else "this is the path of a file"
        names = ("HUB_PUBLISHER_KEY", "HUB_SUBSCRIBER_KEY", "issuer 'us'", "issuer 'us' (publisher)")
        assert [sentence.startswith(f"{name}: {reason}") for sentence, name in zip(told, names, strict=True)] == [
            True
        ] * 4
        assert "a secret" not in "".join(told)


def test_the_application_is_created_from_the_environment_at_its_first_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vars(hub).pop("app", None)
    with pytest.raises(SystemExit) as ended:
        _ = hub.app
    assert (ended.value.code, ended.value.__suppress_context__) == (2, True)
    assert capsys.readouterr().err.startswith("hub: no publisher is allowed: set HUB_PUBLISHER_KEY or ")
    monkeypatch.setenv("HUB_PUBLISHER_KEY", "short")
    monkeypatch.setenv("HUB_ANONYMOUS", "1")
    with pytest.raises(SystemExit):
        _ = hub.app
    assert capsys.readouterr().err.startswith("hub: HUB_PUBLISHER_KEY: this secret is shorter than 32 bytes")
    monkeypatch.delenv("HUB_PUBLISHER_KEY")
    monkeypatch.setenv("HUB_DEV", "1")
    monkeypatch.setenv("HUB_PATH", "/chat")
    assert hub.app.state.hub.settings.path == "/chat"
    assert hub.app is hub.app
    del hub.app
    with pytest.raises(AttributeError, match="'hub' has no attribute 'nothing'"):
        _ = hub.nothing


@dataclass
class UvicornProcess:
    process: asyncio.subprocess.Process
    log: asyncio.StreamReader
    port: int = 0
    token: str = DEVELOPMENT_TOKEN

    async def log_until(self, text: str) -> str:
        """Return the lines of the log up to the first one with `text`."""
        lines = ""
        while text not in lines:
            line = await asyncio.wait_for(self.log.readline(), HANG)
            assert line, lines
            lines += line.decode()
        return lines


@contextlib.asynccontextmanager
async def uvicorn(*arguments: str) -> AsyncIterator[UvicornProcess]:
    """`uvicorn hub:app` on a free port, in development mode, with its history in
    memory.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-m", "uvicorn", "hub:app", "--port", "0", *arguments),
        env=environment(HUB_DEV="1", HUB_HISTORY_URL="memory://"),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        yield UvicornProcess(process, process.stderr)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.processes
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_uvicorn_ends_with_one_sentence_if_a_setting_is_misspelt(loop: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "uvicorn", "hub:app", "--port", "0", "--loop", loop],
        env=environment(HUB_DEV="1", HUB_HISTORY_URL="memory://", HUB_NAME="x", HUB_MAX_CONNECTIONS_PER_CLIENTS="5"),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    sentence = "HUB_MAX_CONNECTIONS_PER_CLIENTS is not a setting: did you mean HUB_MAX_CONNECTIONS_PER_CLIENT?"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"hub: {sentence}\n")


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize(("loop", "http"), [("asyncio", "h11"), ("asyncio", "httptools"), ("uvloop", "h11")])
async def test_uvicorn_serves_the_application_and_stops_in_time(loop: str, http: str) -> None:
    async with uvicorn("--loop", loop, "--http", http) as server:
        log = await server.log_until("running on http://127.0.0.1:")
        assert "DEVELOPMENT MODE" in log
        server.port = int(log.rpartition("running on http://127.0.0.1:")[2].split()[0])
        async with await subscribe(server, ("topic", "a"), token="nonsense") as refused:
            assert refused.status == 401
        assert "nonsense" not in await server.log_until("request refused")  # even if logging is not configured
        stuck = await subscribe(server, ("topic", "big"), receive_buffer=4096)
        healthy = await subscribe(server, ("topic", "big"))
        expected = [f"{n} " + "x" * 200_000 for n in range(60)]
        for data in [*expected, "end"]:
            await publish(server, ("topic", "big"), ("data", data))
        assert [event.data for event in await healthy.until("end")] == expected
        assert [event.data for event in await stuck.until("end")] == expected
        for data in [*expected, "end"]:  # one client gets stuck again
            await publish(server, ("topic", "big"), ("data", data))
        assert [event.data for event in await healthy.until("end")] == expected
        server.process.send_signal(signal.SIGTERM)
        rest = (await asyncio.wait_for(server.process.communicate(), HANG))[1].decode()
        assert server.process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in rest
        assert "ERROR" not in rest
        assert [event.data async for event in healthy.events()] == []
        assert healthy.ended
        await healthy.close()
        await stuck.close()

"""The commands: `python -m hub serve`, and `uvicorn hub:app` with either of its HTTP parsers and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import hub
from hub.cli import main
from hub.settings import DEVELOPMENT_TOKEN
from tests.waiting import HANG
from tests.wire import publish, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conftest import HubProcess


def environment(**variables: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("HUB_")} | variables


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    unset: dict[str, str | None] = {key: None for key in os.environ if key.startswith("HUB_")}
    ended = CliRunner().invoke(main, arguments, env=unset | variables, catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, ended.exit_code, ended.stdout, ended.stderr)


def serve(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hub", "serve", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


@pytest.mark.processes
def test_without_keys_it_says_what_to_set_and_does_not_start() -> None:
    ended = serve("--port", "0")
    assert ended.returncode == 2
    assert "nobody could publish: set publisher_key or issuers, or dev to try the hub" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.processes
def test_a_key_that_does_not_fit_is_named_and_not_shown() -> None:
    ended = serve("--port", "0", "--dev", HUB_PUBLISHER_KEY="my secret", HUB_PUBLISHER_ALGORITHM="RS256")
    assert (ended.returncode, "publisher_key: no key for RS256" in ended.stderr) == (2, True)
    assert "my secret" not in ended.stdout + ended.stderr


@pytest.mark.processes
def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = serve("--dev", "--port", port)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1 port {port}: " in ended.stderr


def test_the_welcome_tells_what_to_do_next(hub: HubProcess) -> None:
    assert hub.url.endswith("/.well-known/mercure")
    assert f"{hub.url}/debug/" in hub.welcome
    assert DEVELOPMENT_TOKEN in hub.welcome
    assert "in this process's memory, and gone when it ends: the last 100,000 updates, of 64 MiB at most" in hub.welcome
    assert "DEVELOPMENT MODE" in hub.welcome


def test_development_may_be_chosen_by_the_environment_and_nothing_else_is_changed(start_hub: type[HubProcess]) -> None:
    hub = start_hub(dev=False, HUB_DEV="1", HUB_PATH="/chat/hub", HUB_HISTORY_UPDATES="7")
    assert "DEVELOPMENT MODE" in hub.welcome
    assert hub.url.endswith("/chat/hub")
    assert "the last 7 updates" in hub.welcome


@pytest.mark.anyio
async def test_the_log_level_is_what_was_asked_for(start_hub: type[HubProcess]) -> None:
    quiet, loud = start_hub("--log-level", "warning"), start_hub("--log-level", "debug")
    for each in (quiet, loud):
        await publish(each, ("topic", "a"), ("data", "a secret"))
    assert "update published" not in quiet.log()
    assert "update published" in loud.log()
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
async def test_a_development_hub_of_the_current_dialect_alone_prints_a_token_that_works(
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


# -- hub token


@pytest.mark.anyio
async def test_r13_a_token_for_development_is_good_at_the_usual_address(start_hub: type[HubProcess]) -> None:
    hub = start_hub()
    arguments = ["--subscribe", "uritemplate=https://example.com/{id}?q=1", "--publish", "https://example.com/1?q=1"]
    for audience in ([], ["--audience", hub.url]):
        signed = run("token", "--dev", *arguments, *audience)
        assert (signed.returncode, signed.stderr) == (0, "")
        async with await subscribe(hub, ("match", "*"), token=signed.stdout.strip()) as reader:
            if not audience:  # the usual address has another port
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
    (tmp_path / "key").write_text("p" * 32)
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
        (["--key", "secret-text"], "names its --issuer and its --audience"),
        (["--dev", "--payload", "{"], "Expecting property name"),
        (["--dev", "--key", "@/nowhere"], "No such file"),
        (["--dev", "--key", "secret-text", "--algorithm", "RS256"], "RS256"),
    ],
)
def test_r13_what_makes_no_token_is_named(arguments: list[str], told: str) -> None:
    ended = run("token", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert "secret-text" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_application_is_made_of_the_environment_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vars(hub).pop("app", None)
    with pytest.raises(SystemExit) as ended:
        _ = hub.app
    assert (ended.value.code, ended.value.__suppress_context__) == (2, True)
    assert capsys.readouterr().err.startswith("hub: nobody could publish: ")
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
        """The lines of its log up to the one with this text."""
        lines = ""
        while text not in lines:
            line = await asyncio.wait_for(self.log.readline(), HANG)
            assert line, lines
            lines += line.decode()
        return lines


@contextlib.asynccontextmanager
async def uvicorn(*arguments: str) -> AsyncIterator[UvicornProcess]:
    """`uvicorn hub:app` on a free port, in development mode, with its log in memory."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-m", "uvicorn", "hub:app", "--port", "0", *arguments),
        env=environment(HUB_DEV="1", HUB_TRANSPORT_URL="memory://"),
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
        env=environment(HUB_DEV="1", HUB_TRANSPORT_URL="memory://", HUB_NAME="x", HUB_MAX_CONNECTIONS_PER_CLIENTS="5"),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    sentence = "HUB_MAX_CONNECTIONS_PER_CLIENTS is no setting: did you mean HUB_MAX_CONNECTIONS_PER_CLIENT?"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"hub: {sentence}\n")


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize(("loop", "http"), [("asyncio", "h11"), ("asyncio", "httptools"), ("uvloop", "h11")])
async def test_uvicorn_serves_it_and_ends_in_time(loop: str, http: str) -> None:
    async with uvicorn("--loop", loop, "--http", http) as server:
        log = await server.log_until("running on http://127.0.0.1:")
        assert "DEVELOPMENT MODE" in log
        server.port = int(log.rpartition("running on http://127.0.0.1:")[2].split()[0])
        async with await subscribe(server, ("topic", "a"), token="nonsense") as refused:
            assert refused.status == 401
        assert "nonsense" not in await server.log_until("request refused")  # logged where nothing was configured, too
        stuck = await subscribe(server, ("topic", "big"), receive_buffer=4096)
        healthy = await subscribe(server, ("topic", "big"))
        expected = [f"{n} " + "x" * 200_000 for n in range(60)]
        for data in [*expected, "end"]:
            await publish(server, ("topic", "big"), ("data", data))
        assert [event.data for event in await healthy.until("end")] == expected
        assert [event.data for event in await stuck.until("end")] == expected
        for data in [*expected, "end"]:  # and it gets stuck once more
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

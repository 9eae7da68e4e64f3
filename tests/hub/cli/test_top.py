"""`skipfilter top`: the screen at each size, and what a real hub answers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from hub.cli import operator_options, top
from tests.conftest import suspend
from tests.hub.commands import environment, process, run
from tests.hub.control.test_kick import token
from tests.waiting import HANG
from tests.wire import subscribe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import HubProcess


def answer(topics: int = 0, clients: int = 0, slowest: int = 0, **chosen: Any) -> dict[str, Any]:
    """An answer with so many rows."""
    return {
        "seconds": 10, "processes": 4, "streams": 12_345, "live": 12_300, "updates": 1_234.5, "deliveries": 99.94,
        "bytes": 1.5e9, "delay": 0.0031, "worst_delay": 1.25, "refusals": {}, "silent": [],
        "topics": [
            {"topic": f"https://example.com/{'long/' * 30}{n}", "updates": 1.0, "streams": n, "deliveries": 10.0, "bytes": 1.0}
            for n in range(topics)
        ],
        "clients": [
            {"issuer": "classic", "subject": f"user {n}", "address": "", "streams": clients - n, "bytes": n * 1e6, "behind": n}
            for n in range(clients)
        ],
        "slowest": [
            {"subscriber": f"urn:uuid:{n}", "issuer": "anonymous", "subject": None, "address": "192.0.2.1",
             "state": "behind", "behind": 5_000 - n}
            for n in range(slowest)
        ],
    } | chosen  # fmt: skip


def shown(given: dict[str, Any], width: int = 80, height: int | None = 24, trouble: str = "") -> list[str]:
    """The lines of the screen."""
    console = Console(width=width, height=height, file=io.StringIO(), highlight=False)
    console.print(top.screen(given, width, height, trouble))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.replace("\n", "").isprintable()
    return [line.rstrip() for line in text.splitlines()]


def test_a_screen_says_how_busy_the_hub_is() -> None:
    lines = shown(answer(2, 2, 1, refusals={"invalid_token": 8.0, "cors": 0.1}), 100)
    assert lines[:4] == [
        "12,345 streams, 12,300 of them live   4 processes   mean of 10 s",
        "1,234 updates/s   99.9 deliveries/s   1.5 GB/s   delay 3.1 ms, at most 1.2 s",
        "refused/s: invalid_token 8.0   cors 0.1",
        "",
    ]
    assert lines[4].split() == ["topic", "updates/s", "streams", "deliveries/s"]
    assert lines[5].split()[1:] == ["1.0", "0", "10.0"]
    assert lines[8].split() == ["client", "streams", "bytes/s", "behind"]
    assert lines[9].split() == ["user", "0", "(classic)", "2", "0", "bytes", "0"]
    assert lines[12].split() == ["slowest", "stream", "client", "state", "behind"]
    assert lines[13].split() == ["urn:uuid:0", "192.0.2.1", "behind", "5,000"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 9), (200, 60), (80, 3)])
def test_a_screen_fits_each_terminal(width: int, height: int) -> None:
    source = random.Random(width)
    for _ in range(20):
        sizes = [source.choice([0, 1, 3, 50]) for _ in range(3)]
        lines = shown(answer(*sizes, refusals={f"reason_{n}": 1.0 for n in range(9)}), width, height)
        assert max(map(len, lines)) <= width
        heads = top.HEAD + 2 * sum(map(bool, sizes))
        assert len(lines) <= max(height, heads)
        assert len(lines) - heads == min(sum(sizes), max(0, height - heads))  # no line is wasted


def test_a_short_screen_shows_clients_with_most_streams_and_with_most_bytes() -> None:
    lines = shown(answer(50, 50, 50), 80, top.HEAD + 6 + 12)
    users = [line.split()[1] for line in lines if line.startswith("user ")]
    assert users == ["0", "1", "48", "49"]


def test_a_screen_says_what_is_not_known() -> None:
    assert shown(answer(seconds=0))[1] == "counting begins"
    assert ", 1 does not answer" in shown(answer(silent=["x"]))[0]
    assert ", 2 do not answer" in shown(answer(silent=["x", "y"]))[0]
    assert shown(answer(), trouble="mercure.sock: no hub")[2] == "mercure.sock: no hub"
    assert shown(answer())[2:] == ["nothing refused"]
    assert shown(answer(streams=1, live=1))[0].startswith("1 stream, 1 of them live   ")
    assert shown(answer(updates=0.0))[1] == "0.0 updates/s   99.9 deliveries/s   1.5 GB/s"
    assert shown(answer(refusals={f"r{n}": 1.0 for n in range(6)}))[2].endswith("r3 1.0   2 other reasons")


def test_no_client_can_steer_the_terminal() -> None:
    evil = "\x1b[2J\n[bold]x[/bold]\u202e"
    given = answer(1, 1, 1)
    given["topics"][0]["topic"] = given["clients"][0]["subject"] = given["slowest"][0]["address"] = evil
    lines = shown(given)
    assert sum(r"\x1b[2J\n[bold]x[/bold]\u202e" in line for line in lines) == 3


async def looks(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, "top", *options, "--socket", str(place))


async def looked(place: Path, *options: str) -> str:
    """Return what the command prints, as soon as all processes have answered in time."""
    async with asyncio.timeout(HANG):
        while (told := await looks(place, *options)).returncode:
            assert "no answer" in told.stderr
    return told.stdout


@pytest.mark.anyio
@pytest.mark.processes
async def test_the_command_shows_a_real_hub(start_hub: type[HubProcess], tmp_path: Path) -> None:
    place = tmp_path / "hub.sock"
    hub = start_hub("--workers", "2", HUB_OPERATOR_SOCKET=str(place), HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db")
    hub.may_fail = True
    async with AsyncExitStack() as stack:
        for number in range(20):
            name = "alice" if number % 2 else None
            await stack.enter_async_context(await subscribe(hub, ("topic", "a"), token=token(name)))
        found = json.loads(await looked(place, "--once", "--json"))
        assert found["seconds"] >= top.ENOUGH
        assert (found["processes"], found["streams"], found["silent"]) == (2, 20, [])
        assert sorted((row["subject"], row["streams"]) for row in found["clients"] if row["subject"]) == [("alice", 10)]
        text = await looked(place)  # not on a terminal: once
        assert text.startswith("20 streams, 20 of them live   2 processes   mean of ")
        # On a terminal, until Ctrl-C.
        await asyncio.to_thread(watch_and_stop, place)
        # One process does not answer.
        suspend(hub.workers[0], tmp_path / "log.db")
        try:
            async with asyncio.timeout(HANG):
                while not (told := await looks(place, "--once")).returncode:
                    pass  # for a second, all who look get the last answer
            assert told.returncode == 1
            assert "no answer, so their numbers are missing" in told.stderr
        finally:
            os.kill(hub.workers[0], signal.SIGCONT)


# Ctrl-C has its usual effect, even if whoever runs the tests ignores it.
ON_A_TERMINAL = (
    "import signal, sys; from hub.__main__ import main; "
    "signal.signal(signal.SIGINT, signal.default_int_handler); main(sys.argv[1:])"
)


def watch_and_stop(place: Path) -> None:
    """Run the command on a terminal until it shows the streams, and press Ctrl-C."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", ON_A_TERMINAL, "top", "--interval", "1", "--socket", str(place)]
    variables = environment(TERM="xterm", COLUMNS="80", LINES="24")
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    too_long = threading.Timer(HANG, running.kill)
    too_long.start()
    seen, is_asked = b"", False
    try:
        while True:
            seen += os.read(ours, 65_536)
            if not is_asked and b"20 streams" in seen and b"updates/s   " in seen:
                is_asked = True
                running.send_signal(signal.SIGINT)
    except OSError:  # the terminal is closed
        pass
    finally:
        code = running.wait()
        too_long.cancel()
        os.close(ours)
    assert (code, is_asked) == (0, True), seen
    assert b"\x1b[?1049h" in seen  # a screen of its own, ...
    assert b"\x1b[?1049l" in seen  # ... which it leaves


def test_a_hub_that_does_not_answer_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def asks(path: str, given: dict[str, Any], socket: str) -> dict[str, Any]:
        asked.append(path)
        return answer(seconds=0, processes=processes, silent=["x"])

    monkeypatch.setattr(operator_options, "answer_of", asks)
    monkeypatch.setattr("time.sleep", lambda _: None)
    for processes, times in ((0, 1), (1, top.ATTEMPTS)):  # noqa: B007
        asked.clear()
        for options in ([], ["--json"]):
            told = run("top", "--once", *options, "--socket", "none")
            assert told.returncode == 1
            assert told.stderr == "skipfilter: x: no answer, so their numbers are missing\n"
        assert len(asked) == 2 * times


@pytest.mark.processes
def test_without_a_hub_the_command_says_so(tmp_path: Path) -> None:
    # In a process of its own, because httpcore leaves a socket open that cannot connect.
    told = process("top", "--once", "--socket", f"{tmp_path}/none.sock")
    assert told.returncode == 1
    assert (
        told.stderr == f"skipfilter: {tmp_path}/none.sock: no hub takes commands there; --socket names another place\n"
    )
    told = run("top", "--once", HUB_OPERATOR_SOCKET="")
    assert told.returncode == 2
    assert "operator_socket is empty" in told.stderr

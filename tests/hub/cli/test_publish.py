"""`skipfilter publish`, against real hubs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hub.cli import publish as command
from hub.client import Client, SyncClient
from hub.development import DEVELOPMENT_TOKEN
from tests.hub.commands import environment, process, run
from tests.waiting import HANG

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import HubProcess


def publish(hub: HubProcess, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run("publish", "--url", hub.url, *arguments, **options)


def published(hub: HubProcess, *arguments: object, **options: Any) -> list[str]:
    """Return what the command prints; assert that it succeeds."""
    ended = publish(hub, *arguments, **options)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def arrived(hub: HubProcess, count: int) -> list[dict[str, Any]]:
    """Return the first updates in the history."""
    ended = run("subscribe", "--url", hub.url, "--dev", "--json", "--since", "earliest", "--count", count)
    assert (ended.returncode, ended.stderr) == (0, "")
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.fixture
def hub(start_hub: type[HubProcess]) -> HubProcess:
    return start_hub(HUB_SUBSCRIPTIONS="0")


# -- one update


def test_the_data_is_an_argument_a_file_or_stdin(hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("three\nlines é\n", "utf-8")
    ids = [
        *published(hub, "--dev", "a", "one"),
        *published(hub, "--dev", "a", "--file", tmp_path / "data"),
        *published(hub, "--dev", "a", stdin="from stdin"),
        *published(hub, "--dev", "a", ""),
    ]
    assert [(each["id"], each["data"]) for each in arrived(hub, 4)] == list(
        zip(ids, ["one", "three\nlines é\n", "from stdin", ""], strict=True)
    )


def test_an_update_has_what_the_options_say(hub: HubProcess) -> None:
    options = [
        "--alternate",
        "b",
        "--alternate",
        "c",
        "--private",
        "--id",
        "urn:x",
        "--type",
        "chapter",
        "--retry",
        "7",
    ]
    assert published(hub, "--dev", "a", "x", *options) == ["urn:x"]
    assert json.loads(published(hub, "--dev", "--json", "a", "y")[0])["id"].startswith("urn:uuid:")
    ended = run("subscribe", "--url", hub.url, "--dev", "--json", "--since", "earliest", "--count", 1, "c")
    assert json.loads(ended.stdout) == {"id": "urn:x", "type": "chapter", "data": "x"}
    # It is private: a subscriber without a token begins with the second one.
    ended = run("subscribe", "--url", hub.url, "--json", "--since", "earliest", "--count", 1)
    assert json.loads(ended.stdout)["data"] == "y"


def test_the_token_comes_from_an_option_a_file_or_the_environment(hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{DEVELOPMENT_TOKEN}\n")
    (tmp_path / "wrong").write_text("wrong")
    wrong = {"HUB_TOKEN": "wrong"}
    assert published(hub, "a", "x", "--token", DEVELOPMENT_TOKEN, **wrong)
    assert published(hub, "a", "x", "--token-file", tmp_path / "token")
    (tmp_path / "marked").write_text(f"\ufeff{DEVELOPMENT_TOKEN}\r\n")
    assert published(hub, "a", "x", "--token-file", tmp_path / "marked")
    assert published(hub, "a", "x", HUB_TOKEN=DEVELOPMENT_TOKEN, HUB_TOKEN_FILE=str(tmp_path / "wrong"))
    assert published(hub, "a", "x", HUB_TOKEN_FILE=str(tmp_path / "token"))
    assert published(hub, "a", "x", "--dev")
    assert run("publish", "a", "x", "--dev", HUB_URL=hub.url).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["a", "x"], 1, "URL: 401: a token is needed to publish: send it in the Authorization header or in a cookie"),
        (["a", "x", "--token", "x"], 1, "URL: 401: the token is not valid here"),
        (["*", "x", "--dev"], 1, "URL: 400: topic '*' is reserved: it is the pattern that matches every topic"),
        ([], 2, "a topic is needed, as in: skipfilter publish --dev https://example.com/books/1 'a new chapter'"),
        (["a", "x", "--file", "/dev/null"], 2, "give the data either as an argument or with --file"),
        (["a", "--lines", "/dev/null"], 2, "with --lines, each line has the topic, the data and all else"),
        (["--private", "--lines", "/dev/null"], 2, "with --lines, each line has the topic"),
        (["--retry", "0", "--lines", "/dev/null"], 2, "with --lines, each line has the topic"),
        (["a", "x", "--token", "é"], 2, "the token has a character that no token has"),
        (["a", "x", "--token-file", "/dev/null"], 2, "/dev/null: the file is empty, so there is no token in it"),
        (["a", "x", "--token-file", "/none"], 2, "/none: No such file or directory"),
    ],
)
def test_a_refusal_and_a_mistake_are_one_sentence(
    arguments: list[str], status: int, told: str, shared_hub: HubProcess
) -> None:
    ended = publish(shared_hub, *arguments)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith(f"skipfilter: {told.replace('URL', shared_hub.url)}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "status", "told"),
    [
        ("http://127.0.0.1:9/", 1, "there is no connection to a hub; "),
        ("http://localhost:99999/", 2, "'http://localhost:99999/' is not the URL of a hub"),
        ("http://[", 2, "'http://[' is not the URL of a hub"),
        ("http://local host/", 2, "is not the URL of a hub"),
        ("hub", 2, "'hub' is not the URL of a hub, as in http://localhost:3000/.well-known/mercure"),
        ("ftp://h/", 2, "'ftp://h/' is not the URL of a hub"),
    ],
)
def test_a_hub_that_is_not_there_is_named(url: str, status: int, told: str) -> None:
    ended = run("publish", "--dev", "--url", url, "a", "x")
    assert (ended.returncode, ended.stdout, told in ended.stderr) == (status, "", True)


def test_data_that_is_not_utf_8_is_refused(shared_hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\xff")
    ended = publish(shared_hub, "--dev", "a", "--file", tmp_path / "data")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"skipfilter: {tmp_path}/data: this is not UTF-8, so it cannot be the data of an update\n"


# -- lines


def lines(*values: object) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def test_lines_are_published_in_order_in_requests_that_the_hub_accepts(
    start_hub: type[HubProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub(HUB_SUBSCRIPTIONS="0", HUB_MAX_BATCH="7")
    monkeypatch.setattr(command, "MAX_LINES", 40)
    (tmp_path / "updates.ndjson").write_text(
        "\n" + lines(*({"topic": "a", "data": str(n)} for n in range(100))) + "\n\n"
    )
    ended = publish(hub, "--dev", "--lines", tmp_path / "updates.ndjson")
    assert (ended.returncode, ended.stderr) == (0, "skipfilter: 100 updates are published\n")
    found = arrived(hub, 100)
    assert [each["data"] for each in found] == [str(n) for n in range(100)]
    assert [each["id"] for each in found] == ended.stdout.splitlines()


def test_lines_may_come_from_stdin_and_be_long(hub: HubProcess) -> None:
    big = {"topic": "a", "data": "x" * 300_000}
    ended = publish(hub, "--dev", "--json", "--lines", "-", stdin=lines(big, big, {"topic": "a", "id": "urn:end"}))
    assert (ended.returncode, ended.stderr) == (0, "skipfilter: 3 updates are published\n")
    assert json.loads(ended.stdout.splitlines()[2]) == {"id": "urn:end"}
    assert [len(each["data"]) for each in arrived(hub, 3)] == [300_000, 300_000, 0]


def test_a_refused_line_is_named_with_what_is_published(
    hub: HubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MAX_LINES", 4)
    file = tmp_path / "updates.ndjson"
    good = {"topic": "a"}
    file.write_text(lines(good, good, good, good) + "\n" + lines(good) + "nonsense\n" + lines(good))
    ended = publish(hub, "--dev", "--lines", file)
    assert (ended.returncode, len(ended.stdout.splitlines())) == (1, 4)
    assert ended.stderr.startswith(f"skipfilter: {file}: line 7: 400: it is not JSON: ")
    assert ended.stderr.endswith("; lines 1 to 4 are published\n")
    ended = publish(hub, "--lines", file)
    assert ended.stderr.startswith(f"skipfilter: {file}: lines 1 to 4: 401: a token is needed to publish")
    assert ended.stderr.endswith("; no line is published\n")
    assert len(arrived(hub, 4)) == 4


@pytest.mark.processes
def test_a_file_of_lines_that_does_not_exist_is_named() -> None:
    ended = process("publish", "--dev", "--lines", "/none")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Invalid value for '--lines': '/none': No such file or directory" in ended.stderr


@pytest.mark.processes
def test_a_line_of_a_pipe_is_published_at_once_and_ctrl_c_says_what_is_published(hub: HubProcess) -> None:
    words = [sys.executable, "-m", "hub", "publish", "--dev", "--url", hub.url, "--lines", "-"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env=environment(PYTHONUNBUFFERED="1"), text=True, **pipes) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        assert publisher.stderr is not None
        for n in range(3):
            publisher.stdin.write(lines({"topic": "a", "id": f"urn:{n}"}))
            publisher.stdin.flush()
            assert publisher.stdout.readline() == f"urn:{n}\n"
        publisher.send_signal(signal.SIGINT)  # it reads from a pipe that stays open
        assert publisher.wait(HANG) == 130
        # Its id is printed before the last line counts as published.
        told = "skipfilter: <stdin>: lines 1 to {} are published; the lines after them may be published too\n"
        assert publisher.stderr.read() in (told.format(2), told.format(3))


def test_a_hub_that_goes_away_does_not_hide_what_is_published(hub: HubProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_lines = Client.publish_lines

    async def once(client: Client, text: bytes) -> list[str]:
        ids = await publish_lines(client, text)
        hub.process.kill()
        hub.process.wait()
        return ids

    monkeypatch.setattr(Client, "publish_lines", once)
    monkeypatch.setattr(command, "MAX_LINES", 2)
    ended = publish(hub, "--dev", "--lines", "-", stdin=lines(*[{"topic": "a"}] * 5))
    assert (ended.returncode, len(ended.stdout.splitlines())) == (1, 2)
    first, second = ended.stderr.splitlines()
    assert first == "skipfilter: <stdin>: lines 1 to 2 are published; the lines after them may be published too"
    assert second.startswith(f"skipfilter: {hub.url}: there is no connection to a hub; ")


def test_an_option_comes_before_a_variable(hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(DEVELOPMENT_TOKEN)
    assert published(hub, "a", "x", "--dev", HUB_TOKEN="wrong", HUB_TOKEN_FILE="/none")
    assert published(hub, "a", "x", "--token-file", tmp_path / "token", HUB_TOKEN="wrong")
    assert published(hub, "a", "x", "--token", DEVELOPMENT_TOKEN, HUB_TOKEN="wrong")


@pytest.mark.parametrize(
    ("name", "value", "status", "told"),
    [
        ("HTTP_PROXY", "http://127.0.0.1:9", 1, "there is no connection to a hub; the environment names a proxy for this URL: "
         "see HTTP_PROXY and NO_PROXY"),
        ("ALL_PROXY", "127.0.0.1:9", 1, "there is no connection to a hub; the environment names a proxy for this URL: "
         "see ALL_PROXY and NO_PROXY"),
        ("ALL_PROXY", "socks5://127.0.0.1:9", 2, "the proxy in ALL_PROXY cannot be used: Using SOCKS proxy, but the 'socksio' "
         "package is not installed"),
        ("http_proxy", "ftp://127.0.0.1:9", 2, "the proxy in HTTP_PROXY cannot be used: Unknown scheme for proxy URL"),
    ],
)  # fmt: skip
def test_a_proxy_of_the_environment_is_named(
    name: str, value: str, status: int, told: str, shared_hub: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    ended = run("publish", "--dev", "--url", shared_hub.url, "a", "x")
    assert ended.returncode == status
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    if status == 1:
        assert run("publish", "--dev", "--url", shared_hub.url, "a", "x").returncode == 0


def test_another_url_of_the_hub_is_explained(shared_hub: HubProcess) -> None:
    ended = run("publish", "--dev", "--url", f"{shared_hub.origin}/", "a", "x")
    assert ended.returncode == 1
    assert "this is not the URL of a hub, which usually ends in /.well-known/mercure" in ended.stderr


def test_a_line_that_is_too_long_is_named(hub: HubProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_LINE", 100)
    ended = publish(hub, "--dev", "--lines", "-", stdin=lines({"topic": "a"}) + "x" * 200)
    assert (ended.returncode, ended.stderr) == (1, "skipfilter: <stdin>: line 2 has more than 100 bytes\n")


def test_the_command_says_who_is_reached_if_the_hub_does(start_hub: type[HubProcess]) -> None:
    hub = start_hub(HUB_TELL_PUBLISHERS="1")
    ended = publish(hub, "--dev", "a", "b")
    assert ended.stdout.startswith("urn:uuid:")
    assert ended.stderr == "skipfilter: on the process that took it: receivers=0, without-grant=0\n"
    told: list[str] = []
    with SyncClient(hub.url, token=DEVELOPMENT_TOKEN, on_reach=told.append) as client:
        client.publish_lines(b'{"topic": "a"}')
    assert told == ["receivers=0, without-grant=0"]

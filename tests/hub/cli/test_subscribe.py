"""`skipfilter subscribe`, against real hubs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub.commands import environment, run
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import HubProcess


def subscribe(hub: HubProcess, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return run("subscribe", "--url", hub.url, "--since", "earliest", *arguments, **options)


@pytest.fixture
def hub(start_hub: type[HubProcess]) -> HubProcess:
    hub = start_hub(HUB_SUBSCRIPTIONS="0")
    for topic, data, options in (
        ("https://e.com/books/1", '{"title": "é"}', ["--id", "urn:1"]),
        ("sensors/attic/heat", "30\n31", ["--type", "heat", "--id", "urn:2"]),
        ("https://e.com/books/2", "private", ["--private", "--id", "urn:3"]),
        ("the end", "the end", ["--id", "urn:4"]),
    ):
        assert run("publish", "--dev", "--url", hub.url, topic, data, *options).returncode == 0
    return hub


@pytest.mark.parametrize(
    ("patterns", "ids"),
    [
        ([], ["urn:1", "urn:2", "urn:3", "urn:4"]),
        (["*"], ["urn:1", "urn:2", "urn:3", "urn:4"]),
        (["https://e.com/books/{id}", "the end"], ["urn:1", "urn:3", "urn:4"]),
        (["mqtt=sensors/+/heat", "exact=the end"], ["urn:2", "urn:4"]),
        (["urlpattern=https://e.com/books/:id", "the end"], ["urn:1", "urn:3", "urn:4"]),
        (["--classic", "https://e.com/books/{id}", "the end"], ["urn:1", "urn:3", "urn:4"]),
    ],
    ids=str,
)
def test_patterns_have_a_type_or_are_topics_and_templates(patterns: list[str], ids: list[str], hub: HubProcess) -> None:
    ended = subscribe(hub, "--dev", "--json", "--count", len(ids), *patterns)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == ids


def test_an_update_is_printed_pretty_raw_or_as_json(hub: HubProcess) -> None:
    pretty = subscribe(hub, "--count", 2).stdout
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d  urn:1\n\{\n  "title": "é"\n\}\n\n\d\d:\d\d:\d\d  heat  urn:2\n30\n31\n\n', pretty
    )
    assert subscribe(hub, "--count", 2, "--format", "raw").stdout == '{"title": "é"}\n30\n31\n'
    expected = [
        {"id": "urn:1", "type": "message", "data": '{"title": "é"}'},
        {"id": "urn:2", "type": "heat", "data": "30\n31"},
    ]
    for option in (["--json"], ["--format", "json"]):
        printed = subscribe(hub, "--count", 2, *option).stdout
        assert [json.loads(line) for line in printed.splitlines()] == expected


def test_it_begins_after_an_id_and_reads_private_updates_with_a_token(hub: HubProcess) -> None:
    assert subscribe(hub, "--since", "urn:2", "--count", 1, "--format", "raw").stdout == "the end\n"
    assert subscribe(hub, "--since", "urn:2", "--count", 1, "--format", "raw", "--dev").stdout == "private\n"


def test_a_refusal_is_one_sentence(shared_hub: HubProcess) -> None:
    ended = subscribe(shared_hub, "mqtt=a#")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"skipfilter: {shared_hub.url}: 400: ")
    assert ended.stderr.count("\n") == 1
    ended = run("subscribe", "--url", f"{shared_hub.url}/debug/")
    assert ended.stderr.startswith(f"skipfilter: {shared_hub.url}/debug/: the response is not an event stream")
    assert subscribe(shared_hub, "--token", "x").stderr.startswith(f"skipfilter: {shared_hub.url}: 401: the token is")


def test_raw_data_is_not_changed_and_other_formats_cannot_steer_a_terminal(start_hub: type[HubProcess]) -> None:
    hub = start_hub(HUB_SUBSCRIPTIONS="0")
    data = "\x1b[31mred\x9b\u202e\ttab"
    assert run("publish", "--dev", "--url", hub.url, "a", data).returncode == 0
    assert subscribe(hub, "--count", 1, "--format", "raw").stdout == data + "\n"
    for format in ("pretty", "json"):
        printed = subscribe(hub, "--count", 1, "--format", format).stdout
        assert printed.replace("\t", "").replace("\n", "").isprintable()
    assert json.loads(subscribe(hub, "--count", 1, "--json").stdout)["data"] == data


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp437"])
def test_every_update_is_printed_on_a_console_of_any_encoding(encoding: str, hub: HubProcess) -> None:
    data = "a → ☕"
    assert run("publish", "--dev", "--url", hub.url, "console", data).returncode == 0
    for format, printed in (("raw", data.encode()), ("pretty", rb"a \u2192 \u2615"), ("json", rb"a \u2192 \u2615")):
        ended = subprocess.run(
            [sys.executable, "-m", "hub", "subscribe", "--url", hub.url, "--dev", "--since", "earliest", "--count", "1",
             "--format", format, "console"],
            env=environment(PYTHONIOENCODING=encoding), capture_output=True, timeout=HANG,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert printed in ended.stdout


def test_a_cursor_and_a_pattern_that_cannot_be_sent_are_named(shared_hub: HubProcess) -> None:
    ended = subscribe(shared_hub, "--since", "a\nb")
    assert (ended.returncode, "a text has a character that cannot be sent" in ended.stderr) == (2, True)
    ended = subscribe(shared_hub, "")
    assert (ended.returncode, ended.stderr) == (2, "skipfilter: a pattern is empty; `*` is every topic\n")


@pytest.mark.processes
def test_it_reconnects_and_ctrl_c_ends_it(start_hub: Callable[..., HubProcess]) -> None:
    hub = start_hub(HUB_SUBSCRIPTIONS="0", HUB_MAX_LIFETIME="0.2", HUB_RETRY="0.01")
    follower = subprocess.Popen(
        [sys.executable, "-m", "hub", "subscribe", "--url", hub.url, "--format", "raw", "--since", "earliest"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        for n in range(5):
            assert run("publish", "--dev", "--url", hub.url, "a", str(n)).returncode == 0
            assert follower.stdout.readline() == f"{n}\n"
            told = follower.stderr.readline()  # its connection has ended at least once more
            assert told.startswith("skipfilter: the connection has ended; the next one begins in ")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(HANG) == 130
        assert "Traceback" not in follower.stderr.read()

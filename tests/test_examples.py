"""The examples, and the commands that the pages show, against a real hub."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hub.commands import environment, process
from tests.waiting import HANG

if TYPE_CHECKING:
    from tests.conftest import HubProcess

ROOT = Path(__file__).parents[1]
README, HUB_PAGE, EXAMPLES = ((ROOT / folder / "README.md").read_text("utf-8") for folder in (".", "hub", "examples"))


def run(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, timeout=HANG, cwd=ROOT
    ).stdout


def test_the_flights_of_the_examples_arrive(hub: HubProcess) -> None:
    out = run("examples/flights.py", "--hub", hub.url, "--speed", "1e6", "--flights", "60")
    assert "60/60" in out
    shown = re.search(r"^Departures that match .*?(?=^```)", EXAMPLES, re.MULTILINE | re.DOTALL)
    assert shown is not None
    lines = shown[0].strip().splitlines()
    board = run("examples/departures.py", "--hub", hub.url, "--since", "earliest", "--count", str(len(lines) - 1))
    assert board.splitlines() == lines


def test_flights_published_after_the_subscription_arrive_live(start_hub: type[HubProcess]) -> None:
    hub = start_hub("--log-level", "debug")
    board = subprocess.Popen(
        [sys.executable, "examples/departures.py", "--hub", hub.url, "--airport", "LGA", "--count", "3"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert board.stdout is not None
    assert board.stdout.readline() == "Departures that match https://flights.example/LGA/{to}/{flight}\n"
    while "subscriber connected" not in hub.log():
        assert board.poll() is None
    run("examples/flights.py", "--hub", hub.url, "--speed", "1e6", "--flights", "40")
    lines = board.communicate(timeout=HANG)[0].splitlines()
    assert len(lines) == 3
    assert all(re.fullmatch(r"\d\d:\d\d  \w+ +.+ (on time|\d+ min (late|early))", line) for line in lines)


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(
        re.findall(
            r"\bmake ([a-z-]+)\b",
            "\n".join(
                command
                for page in (README, HUB_PAGE, EXAMPLES)
                for command in re.findall(r"`[^`]+`|```.*?```", page, re.DOTALL)
            ),
        )
    )
    assert {"run", "test"} <= named <= targets


def test_the_python_of_the_readme_prints_its_output(hub: HubProcess) -> None:
    script = next(block for block in re.findall(r"```python\n(.*?)```", HUB_PAGE, re.DOTALL) if "Client(" in block)
    assert run("-c", script.replace("http://localhost:3000/.well-known/mercure", hub.url)) == "a new chapter\n"


def test_the_synchronous_client_of_the_readme_prints_its_output(hub: HubProcess) -> None:
    [script] = re.findall(r"```python\n([^`]*with SyncClient\(\"http[^`]*)```", HUB_PAGE)
    told = "400 topic '*' is reserved: it is the pattern that matches every topic\n"
    assert run("-c", script.replace("http://localhost:3000/.well-known/mercure", hub.url)) == "1\n" + told


@pytest.mark.processes  # within this process, modules that it imports first would be imported twice
def test_the_application_of_the_readme_passes_its_tests(pytester: pytest.Pytester) -> None:
    section = HUB_PAGE.partition("\n## In your application")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    [shop] = [block for block in blocks if "def create" in block]
    [authorize] = [block for block in blocks if "def authorize" in block]
    [tests] = [block for block in blocks if "def test_" in block]
    pytester.makepyfile(shop=shop, test_shop=tests, authorize=authorize)
    pytester.makeconftest("import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'")
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "anyio")
    result.assert_outcomes(passed=4)
    exec(authorize, {})


def test_the_requests_of_the_readme_work(start_hub: type[HubProcess]) -> None:
    key = "the operator's key, which is long enough"
    hub = start_hub(HUB_OPERATOR_KEY=key, HUB_OPERATOR_PORT="0")
    commands = re.search(r"^Commands +(\S+)$", hub.welcome, re.MULTILINE)
    assert commands is not None
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", README + HUB_PAGE, re.DOTALL) if "curl" in block]
    script = (
        "\n".join(blocks).replace("http://localhost:3000", hub.origin).replace("http://127.0.0.1:3001", commands[1])
    )
    assert script.count(hub.url) == 5
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", script.replace("curl -N", "curl --head")],  # a stream has no end
        env={"TOKEN": hub.token, "HUB_OPERATOR_KEY": key, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    assert "200 OK" in done.stdout
    events = re.findall(r"^id: urn:uuid:\S+\ndata: (.*)$", done.stdout, re.MULTILINE)  # of `Prefer: wait=0`
    assert events == ["a new chapter", "a new chapter"], done.stdout
    assert done.stdout.count("urn:uuid:") == 3 + len(events)
    assert done.stdout.endswith('{"ended":{},"silent":[],"stored":true,"not_revoked":0}')


@pytest.mark.processes
@pytest.mark.parametrize("page", [README, HUB_PAGE], ids=["README.md", "hub/README.md"])
def test_the_commands_of_the_readme_publish_and_subscribe(page: str, hub: HubProcess) -> None:
    lines = re.findall(r"^\.venv/bin/skipfilter ((publish|subscribe) .*)$", page, re.MULTILINE)
    found = {name: shlex.split(line) for line, name in lines}
    assert found.keys() == {"publish", "subscribe"}
    published = process(*found["publish"], HUB_URL=hub.url)
    assert (published.returncode, published.stderr) == (0, "")
    # A private update needs a token, which the page's subscriber does not have.
    dev = ["--dev"] if "--private" in found["publish"] else []
    read = process(*found["subscribe"], *dev, "--since", "earliest", "--count", "1", HUB_URL=hub.url)
    assert read.stdout.endswith(f"  {published.stdout}a new chapter\n\n")


@pytest.mark.processes
def test_the_settings_of_the_readme_are_printed(tmp_path: Path) -> None:
    [block] = [block for block in re.findall(r"```sh\n(.*?)```", HUB_PAGE, re.DOTALL) if "settings example" in block]
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", block.replace(".venv/bin/skipfilter", f"{sys.executable} -m hub")],
        env=environment(PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    assert done.stderr == ""
    assert "HUB_DEV=true    # --dev" in done.stdout
    assert (tmp_path / "hub.toml").read_text().startswith("# The settings of a hub")

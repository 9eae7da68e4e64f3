"""The unit of systemd, in a bare Debian that systemd has booted."""

from __future__ import annotations

import os
import re
import resource
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
import pytest

from hub.auth.signing import sign_classic_token
from tests.asgi import PATH
from tests.conftest import children_of
from tests.hub.proxies import DEPLOY
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.deploy.dockerfile import Image
    from tests.deploy.trees import Tree

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

FIRST, SECOND = (f"http://127.0.0.1:{port}{PATH}" for port in (3000, 3001))


@dataclass
class Machine:
    """A system that has booted, on the network of this machine."""

    first: int
    """The process of its systemd, as this machine numbers it."""

    def run(self, *words: str) -> str:
        """Run a command there, and return what it has printed."""
        command = ["nsenter", f"--target={self.first}", "--all", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG).stdout

    def log(self) -> str:
        return self.run("journalctl", "--unit=hub@*", "--output=cat")


@pytest.fixture
def key() -> str:
    return secrets.token_hex(32)


@pytest.fixture
def machine(bare: Tree, image: Image, key: str, tmp_path: Path) -> Iterator[Machine]:
    tree = bare.copy(tmp_path / "machine")
    packages = "systemd dbus python3 ca-certificates"
    tree.run("sh", "-c", f"apt-get update && apt-get install -y --no-install-recommends {packages}")
    shutil.copytree(image.tree.path("/opt/hub"), tree.path("/opt/hub"), symlinks=True)
    shutil.copy(DEPLOY / "hub@.service", tree.path("/etc/systemd/system"))
    tree.path("/etc/hub").mkdir(mode=0o700)
    for role in ("publisher", "subscriber"):
        tree.path(f"/etc/hub/{role}.key").write_text(f"{key}\n")
    tree.path("/etc/hub/hub.env").write_text("HUB_ANONYMOUS=1\n")
    tree.run("systemctl", "enable", "hub@3000", "hub@3001")
    words = ["systemd-nspawn", f"--directory={tree.root}", "--register=no", "--keep-unit", "--boot"]
    with (tmp_path / "console").open("w") as console, subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
        env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
    ) as process:  # fmt: skip
        try:
            wait_for_the_hubs()
            [first] = children_of(process.pid)
            yield Machine(first)
        finally:
            process.terminate()  # its systemd then powers off


def wait_for_the_hubs() -> None:
    deadline = time.monotonic() + HANG
    for url in (FIRST, SECOND):
        while True:
            try:
                assert httpx2.get(f"{url}/health/ready").status_code == 200
            except httpx2.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                break


def test_the_services_have_few_rights_and_many_files_and_one_history(machine: Machine, key: str) -> None:
    token = sign_classic_token(key, "HS256", publish=["*"], subscribe=[], seconds=600, now=time.time())
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx2.post(FIRST, data={"topic": "a", "data": "kept"}, headers=headers).status_code == 200
    # 1. Its rights, which it has under the system-call filter of the unit.
    pid = machine.run("systemctl", "show", "--property=MainPID", "--value", "hub@3000").strip()
    status = dict(re.findall(r"^(\w+):\s*(\S+)", machine.run("cat", f"/proc/{pid}/status"), re.MULTILINE))
    assert status["Uid"] != "0"
    assert (int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
    [files] = re.findall(r"^Max open files +(\d+) +(\d+)", machine.run("cat", f"/proc/{pid}/limits"), re.MULTILINE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a container cannot have more than its machine
    assert files == (str(min(most, 2**20)),) * 2
    # 2. A new key counts after a restart, which keeps the history.
    machine.run("sh", "-c", f"echo {key[::-1]} > /etc/hub/publisher.key")
    machine.run("systemctl", "restart", "hub@3000")
    wait_for_the_hubs()
    assert httpx2.post(FIRST, data={"topic": "a"}, headers=headers).status_code == 401
    query = {"topic": "a", "last_event_id": "earliest"}
    for url in (FIRST, SECOND):
        assert "data: kept\n" in httpx2.get(url, params=query, headers={"Prefer": "wait=0"}).text
    log = machine.log()
    assert not re.search("ERROR|Traceback|denied|not permitted", log), log
    machine.run("systemctl", "stop", "hub@3000", "hub@3001")
    results = machine.run("systemctl", "show", "--property=Result", "--value", "hub@3000", "hub@3001")
    assert results.split() == ["success", "success"]

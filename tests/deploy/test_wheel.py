"""The wheel, installed alone in a new environment of bare Debian systems, whose Pythons
are different.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import httpx2
import pytest

from hub.development import DEVELOPMENT_TOKEN
from tests.asgi import PATH
from tests.deploy.trees import Tree, stop
from tests.installation import ROOT, VERSION
from tests.redis_server import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.deploy, pytest.mark.processes]

LIBRARY: Final = """
from skipfilter import SelectorIndex, SkipFilter
readers = SkipFilter(SelectorIndex())
readers.add("alice", [("uritemplate", "https://example.com/books/{id}")])
print(readers.match_any("https://example.com/books/1"))
"""


@pytest.mark.parametrize(("release", "python"), [("bookworm", "3.11"), ("trixie", "3.13"), ("sid", "3")])
def test_the_wheel_is_all_that_a_user_needs(release: str, python: str, tmp_path: Path) -> None:
    [wheel] = (ROOT / "dist").glob("*.whl")  # which `make deploy-check` has built
    tree = Tree.bare(tmp_path / release, release)
    tree.run("sh", "-c", "apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-venv")
    assert tree.run("python3", "--version").startswith(f"Python {python}.")
    shutil.copy(wheel, tree.path("/root"))
    tree.run("python3", "-m", "venv", "/root/library")
    tree.run("/root/library/bin/pip", "install", f"/root/{wheel.name}")
    assert tree.run("/root/library/bin/python", "-c", LIBRARY) == "['alice']\n"
    tree.run("python3", "-m", "venv", "/root/hub")
    tree.run("/root/hub/bin/pip", "install", f"/root/{wheel.name}[hub]")
    assert tree.run("/root/hub/bin/skipfilter", "--version") == f"skipfilter {VERSION}\n"
    port = free_port()
    command = "/root/hub/bin/skipfilter", "serve", "--dev", "--port", str(port)
    with tree.serving(*command, directory="/root") as process:
        url = f"http://127.0.0.1:{port}{PATH}"
        headers = {"Authorization": f"Bearer {DEVELOPMENT_TOKEN}"}
        assert httpx2.post(url, data={"topic": "a", "data": "new"}, headers=headers).status_code == 200
        query = {"match": "a", "last_event_id": "earliest"}
        assert "data: new\n" in httpx2.get(url, params=query, headers={"Prefer": "wait=0"}).text
        assert stop(process) == 0

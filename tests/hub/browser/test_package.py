"""The module as a package of npm: its size, its types, and what pages are told of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub.browser.script import MODULE
from tests.installation import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.processes

PACKAGE = MODULE.parent
LARGEST = 6_000  # bytes, minified and compressed

USER = """
import { MercureSource, type Gap } from "mercure-source";

const source = new MercureSource(new URL("https://hub.example/?topic=a"), {
  token: async () => "abc",
  storage: sessionStorage,
  onGap: ({ lost }: Gap) => console.log(lost),
  onLive: () => console.log("live"),
});
source.onmessage = (event) => event.waitUntil(Promise.resolve(event.data.length));
const hear = ({ data }: MessageEvent<string>) => console.log(data);
source.addEventListener("message", hear);
source.removeEventListener("message", hear);
source.addEventListener("message", { handleEvent: (event: Event) => console.log(event.type) });
source.addEventListener("chapter", ({ data, lastEventId }: MessageEvent<string>) => console.log(data, lastEventId));
source.onerror = ({ message, status }) => console.log(message, status?.toFixed(), source.readyState === source.CLOSED);
source.follow(() => fetch("/books"));
source.change({ topic: ["a", "b"], match: "c" });
source.change([["topic", "a"]]);
source.change(new URLSearchParams("topic=a"));
// @ts-expect-error - there is no such option
new MercureSource("/", { lastEventID: "1" });
"""


def run(modules: Path, tool: str, arguments: Sequence[str | Path], directory: Path) -> str:
    """Return what a tool of npm prints."""
    command = [modules / "node_modules" / ".bin" / tool, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_small(modules: Path, tmp_path: Path) -> None:
    minified = run(modules, "esbuild", ["--minify", "--format=esm", "--target=es2022", MODULE], tmp_path)
    assert len(gzip.compress(minified.encode(), 9)) <= LARGEST


def test_its_types_are_those_of_its_comments(modules: Path, tmp_path: Path) -> None:
    """If this fails, copy the file that it has made to hub/browser."""
    shutil.copy(MODULE, tmp_path)
    options = ["--allowJs", "--strict", "--target", "es2024", "--lib", "es2024,dom,dom.iterable"]
    run(modules, "tsc", [*options, "--declaration", "--emitDeclarationOnly", "client.js"], tmp_path)
    assert (PACKAGE / "client.d.ts").read_text("utf-8") == (tmp_path / "client.d.ts").read_text("utf-8")


def test_a_typescript_page_can_use_the_package(modules: Path, tmp_path: Path) -> None:
    packed: Any = json.loads(
        subprocess.run(
            ["npm", "pack", PACKAGE, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
    )
    [package] = packed
    names = {file["path"] for file in package["files"]}
    assert names == {"LICENSE", "README.md", "client.d.ts", "client.js", "package.json"}
    home = tmp_path / "node_modules" / "mercure-source"
    home.mkdir(parents=True)
    shutil.unpack_archive(tmp_path / package["filename"], tmp_path)
    (tmp_path / "package").rename(home)
    (tmp_path / "user.ts").write_text(USER)
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    run(modules, "tsc", [*options, "user.ts"], tmp_path)


def test_its_version_stands_once_for_people_and_once_for_npm() -> None:
    package = json.loads((PACKAGE / "package.json").read_text("utf-8"))
    [version] = re.findall(r"MercureSource (\S+),", MODULE.read_text("utf-8"))
    assert version == package["version"]
    assert (PACKAGE / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")


def test_the_page_has_the_hash_of_the_module() -> None:
    digest = base64.b64encode(hashlib.sha384(MODULE.read_bytes()).digest()).decode()
    page = (ROOT / "hub" / "README.md").read_text("utf-8")
    assert set(re.findall(r"sha384-([\w+/=]+)", page)) == {digest}

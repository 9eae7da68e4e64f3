"""What a release consists of: its version, links, pinned dependencies, and installation."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import pytest

from skipfilter.text import PUBLISHED
from tests.installation import ROOT, VERSION, pages, with_installation

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINNED = (ROOT / ".constraints.txt").read_text("utf-8")
HASHED = (ROOT / "examples" / "deploy" / "requirements.txt").read_text("utf-8")


def test_the_pages_say_how_the_project_is_installed() -> None:
    for page in pages():
        text = page.read_text("utf-8")
        assert with_installation(text) == text, f"{page}: run python -m tests.installation"


def test_one_switch_turns_the_pages_from_a_clone_to_the_package_and_back() -> None:
    texts = [page.read_text("utf-8") for page in pages()]
    clones, packages = ([with_installation(text, published=switch) for text in texts] for switch in (False, True))
    assert [with_installation(text, published=False) for text in packages] == clones
    assert sum(before != after for before, after in zip(clones, packages, strict=True)) >= 4
    assert not any("pip install '.[" in text or "pip install .`" in text for text in packages)
    [readme] = [text for text in packages if "<!-- installation -->" in text]
    assert re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)[0].startswith(
        "pip install 'skipfilter[hub]'\nskipfilter serve --dev "
    )


def test_the_version_has_one_source() -> None:
    assert version("skipfilter") == VERSION
    newest = re.search(r"^## (\S+), (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION
    assert re.fullmatch(r"not released yet|\d{4}-\d\d-\d\d", newest[2])


def test_a_published_package_has_a_repository() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    address = PROJECT["urls"]["Repository"]
    assert all(url.startswith(address) for url in PROJECT["urls"].values())
    assert text.count(address) == len(re.findall(r"https://", text)) == 6
    if PUBLISHED:
        assert ".invalid" not in address


def pins(text: str) -> set[str]:
    """Return the requirements of a file, without markers and hashes."""
    return {re.split(" [;\\\\]", line)[0] for line in text.splitlines() if re.match(r"\w", line)}


def test_the_image_has_the_versions_that_the_tests_have() -> None:
    assert pins(HASHED) <= pins(PINNED)
    extras = PROJECT["optional-dependencies"]
    wanted = {re.split(r"[\[>;]", line)[0] for line in [*PROJECT["dependencies"], *extras["hub"], *extras["redis"]]}
    assert wanted - {"skipfilter"} <= {pin.partition("==")[0] for pin in pins(HASHED)}


@pytest.mark.parametrize("requirement", re.split(r"\n(?=\w)", HASHED.strip()), ids=lambda text: text.partition("==")[0])
def test_each_requirement_of_the_image_has_hashes(requirement: str) -> None:
    assert re.fullmatch(r"[\w.-]+==\S+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", requirement)

"""The pages of the site, without the site: `make docs` builds it."""

from __future__ import annotations

import os
import re
from doctest import DocTestParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from mypy.api import run as mypy

from tests.docs import API, CONFIGURATION, PAGES, Site, anchor, sections

MADE = Site().pages()
ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)\s:]+)\)")


def in_navigation(part: Any) -> list[str]:
    """Return the pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part) for page in in_navigation(each)]


def test_each_page_is_in_the_navigation_once() -> None:
    text = re.sub(r"!!python/object/apply:\S+", "", CONFIGURATION.read_text("utf-8"))
    assert sorted(in_navigation(yaml.safe_load(text)["nav"])) == sorted(PAGES | API)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_to_pages(page: str) -> None:
    text = re.sub(r"```.*?```", "", MADE[page], flags=re.DOTALL)
    assert text.startswith("# ")
    for target in LINK.findall(text):
        path = os.path.normpath(Path(page).parent / target.partition("#")[0]) if not target.startswith("#") else page
        assert path in MADE or path.startswith("images/"), target
    # What a page had of other files leads to the repository.
    assert not re.search(r"\]\((?!https?:)[^)]*\.(py|json|toml|yaml)\)", text)


def test_the_pages_of_docstrings_name_objects() -> None:
    for _, names in API.values():
        for name in names:
            module, _, last = name.rpartition(".")
            assert hasattr(import_module(module), last) or import_module(name), name


def test_headings_have_the_anchors_that_links_use() -> None:
    assert anchor("`SkipFilter`: a set, and its [keys](x.md)") == "skipfilter-a-set-and-its-keys"
    text = "# a\n\n## One\n\n```sh\n## no heading\n```\n\n### Two\n\n## Three\n"
    assert {name: len(part.splitlines()) for name, part in sections(text).items()} == {"": 2, "One": 8, "Three": 1}
    assert "".join(sections(text).values()) == text


@pytest.mark.parametrize("page", ["README.md", "skipfilter/README.md"])
def test_the_lines_of_the_library_pass_strict_type_checks(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    examples = [example for block in blocks for example in DocTestParser().get_examples(block)]
    assert examples
    (tmp_path / "lines.py").write_text("".join(example.source for example in examples))
    output, errors, status = mypy([str(tmp_path / "lines.py"), "--strict", "--config-file=", f"--cache-dir={tmp_path}"])
    assert (status, errors) == (0, ""), output

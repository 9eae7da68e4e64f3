"""The lines of the READMEs pass a strict type check, as a user's own code would."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "skipfilter/README.md"])
def test_the_lines_of_a_readme_pass_mypy_strict(tmp_path: Path, page: str) -> None:
    examples = doctest.DocTestParser().get_examples((ROOT / page).read_text("utf-8"))
    assert examples
    lines = tmp_path / "lines.py"
    lines.write_text("".join(example.source for example in examples), "utf-8")
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", str(lines)]
    out, errors, status = api.run(options)
    assert (out, errors, status) == ("Success: no issues found in 1 source file\n", "", 0)

"""The benchmarks run, and the pages agree with the result files."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from bench.benchmark import BENCH, load
from bench.figures import fill
from bench.measure import figures
from bench.report import PAGES, draw, report

if TYPE_CHECKING:
    from pathlib import Path

    from bench.benchmark import Document

NAMES = sorted(path.stem.removeprefix("bench_") for path in BENCH.glob("bench_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_cases_and_a_result(name: str) -> None:
    for quick in (True, False):
        labels = [case.label for case in load(name).cases(quick)]
        assert labels
        assert len(set(labels)) == len(labels)
    assert (BENCH / "results" / f"{name}.json").exists()


@pytest.mark.processes
def test_a_measurement_runs_and_its_variants_agree() -> None:
    made = next(iter(load("container").cases(True))).measure(1)
    assert list(made)[:3] == ["test every subscriber", "1 match", "100 matches"]
    assert all(row["min"] == row["median"] == row["max"] > 0 for row in made.values())


def test_a_ratio_is_to_the_first_variant_in_the_same_round() -> None:
    slow, fast = [90.0, 91.0, 180.0, 92.0, 90.0], [9.0, 9.0, 19.0, 9.0, 9.0]
    assert figures(slow, slow) == {"min": 90, "median": 91, "max": 180, "ratio": 1}
    assert figures(fast, slow) == {"min": 9, "median": 9, "max": 19, "ratio": pytest.approx(0.1)}


def test_the_tables_agree_with_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_one(document: Document, path: Path) -> None:
        if path.stem == "container":
            draw(document, path)
        else:
            path.touch()  # each takes a second to draw

    monkeypatch.setattr("bench.report.draw", draw_one)
    for path in (BENCH / "results").glob("*.[jm]*"):
        shutil.copy(path, tmp_path)
    report(tmp_path)
    for name in [*NAMES, "hold"]:
        page = (tmp_path / name).with_suffix(".md")
        assert page.read_text("utf-8") == (BENCH / "results" / page.name).read_text("utf-8")
        assert page.with_suffix(".svg").exists()


def test_a_result_without_a_page_gets_one(tmp_path: Path) -> None:
    shutil.copy(BENCH / "results" / "publish.json", tmp_path)
    report(tmp_path)
    page = (tmp_path / "publish.md").read_text("utf-8")
    assert page.startswith("# publish: What does an update cost")
    assert "![What does an update cost" in page
    assert "| no subscribers | hub, one per request |" in page


@pytest.mark.parametrize("page", PAGES, ids=["bench", "project", "library"])
def test_the_figures_of_a_page_agree_with_the_results(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = re.sub(r"[^\s|(]*(<!-- \w+: )", r"0\1", text)
    assert wrong != text
    assert fill(wrong, BENCH / "results") == text


def test_a_figure_without_a_result_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        fill("1<!-- publish: no subscribers / nothing -->", BENCH / "results")
    with pytest.raises(FileNotFoundError):
        fill("1<!-- nothing: no subscribers / hub -->", BENCH / "results")


def test_each_result_has_a_verdict() -> None:
    readme = (BENCH / "README.md").read_text("utf-8")
    assert set(re.findall(r"\(results/(\w+)\.md\)", readme)) >= {*NAMES, "hold"}

"""Measure a few ways of doing one thing, in turn, and keep the result with what it was measured on.

Each round runs every way once, so that a machine that slows down slows all of them; what is reported is the
median over the rounds of a way's time divided by the baseline's time in the same round.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


def compare(ways: Mapping[str, Callable[[], object]], *, calls: Mapping[str, int]) -> dict[str, Any]:
    """CPU microseconds a call of each way: min, median and max over ROUNDS rounds, and the ratio to the first.

    `calls` is how often a way is called in a round.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.process_time()
            for _ in range(calls[name]):
                way()
            taken[name].append((time.process_time() - began) / calls[name] * 1e6)
    baseline = next(iter(ways))
    return {
        name: {
            "min": round(min(times), 3),
            "median": round(statistics.median(times), 3),
            "max": round(max(times), 3),
            f"times {baseline}": float(
                f"{statistics.median(t / b for t, b in zip(times, taken[baseline], strict=True)):.3g}"
            ),
        }
        for name, times in taken.items()
    }


def machine() -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    packages = {name: version(name) for name in ("cachetools", "pyroaring", "sortedcontainers")}
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "packages": packages}


def save(name: str, question: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write results/NAME.json, and print it as a table.  Unit: CPU microseconds a call."""
    document = {
        "question": question,
        "unit": "CPU microseconds a call",
        "rounds": ROUNDS,
        "machine": machine(),
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{question}\n")
    for case, ways in results.items():
        print(f"  {case}")
        for way, figures in ways.items():
            *spread, ratio = figures.values()
            print(f"    {way:24} {spread[1]:12,.2f}   ({spread[0]:,.2f} to {spread[2]:,.2f})   x {ratio:g}")

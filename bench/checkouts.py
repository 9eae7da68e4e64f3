"""Compare this checkout of the project with an older one, in the same run.

    in_turn ─┬─► worker.py, PYTHONPATH = $BENCH_BEFORE     before
             └─► worker.py, PYTHONPATH = this checkout     now

Each round measures each variant in a new process.  If the environment variable
BENCH_BEFORE does not name an older checkout, it is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.benchmark import BENCH
from bench.measure import summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.measure import Figures

WORKER: Final = BENCH / "worker.py"


class Variant(NamedTuple):
    """A workload of a script, its argument, and the checkout that it measures."""

    workload: str
    argument: object
    checkout: Path = BENCH.parent
    script: Path = WORKER


def variants(workload: str, argument: object, script: Path = WORKER) -> dict[str, Variant]:
    """Return a workload in each checkout, the older one first."""
    return {name: Variant(workload, argument, root, script) for name, root in roots().items()}


def roots() -> dict[str, Path]:
    """Return the directories of the checkouts, the older one first."""
    older = _older()
    return ({"before": older} if older else {}) | {"now": BENCH.parent}


def in_turn(variants: Mapping[str, Variant], rounds: int, of: str) -> dict[str, Figures]:
    """Return the figures of each variant after some rounds, with the ratio for the
    figure `of`.
    """
    taken: dict[str, list[Figures]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            taken[name].append(_measured(variant))
    return summary(taken, of)


def versions() -> dict[str, str]:
    """Return the commit of the older checkout, if there is one."""
    command = ["git", "-C", str(older := _older()), "rev-parse", "--short", "HEAD"]
    return {"before": subprocess.check_output(command, text=True).strip()} if older else {}


def _older() -> Path | None:
    named = os.environ.get("BENCH_BEFORE")
    return Path(named).resolve(strict=True) if named else None


def _measured(variant: Variant) -> Figures:
    worker = subprocess.run(
        [sys.executable, variant.script, variant.workload],
        input=json.dumps(variant.argument),
        env=os.environ | {"PYTHONPATH": str(variant.checkout)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: Figures = json.loads(worker.stdout)
    return found

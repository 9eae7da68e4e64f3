"""The command `python -m bench`, which runs benchmarks and saves their results.

    python -m bench                  all benchmarks, for more than an hour
    python -m bench NAME ...         some of them
    python -m bench --quick          small sizes, into a temporary directory

It prints the table of each benchmark, and writes bench/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from bench.benchmark import BENCH, Document, document, load, names, run, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Figures

RESULTS = BENCH / "results"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line names, or all if it names none."""
    known = names()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks; write bench/results.")
    parser.add_argument("name", nargs="*", help=f"one of: {', '.join(known)}; all of them by default")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds; write to a temporary directory"
    )
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.name if name not in known]:
        parser.error(f"there is no benchmark {unknown[0]!r}; the benchmarks are {', '.join(known)}")
    results = Path(tempfile.mkdtemp(prefix="bench-")) if chosen.quick else RESULTS
    results.mkdir(exist_ok=True)
    measure(chosen.name or known, quick=chosen.quick, results=results)


def measure(chosen: Sequence[str], *, quick: bool, results: Path) -> None:
    """Run the benchmarks `chosen`, one case at a time.

    Prints the table of each benchmark and writes it to `results`/NAME.json as soon as
    the benchmark is done.
    """
    cases = {name: list(load(name).cases(quick)) for name in chosen}
    columns = (
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    # A case may take minutes, so the speed is averaged over an hour.  The bar is drawn
    # by this process; the cases run in other processes.
    bar = Progress(*columns, console=console, speed_estimate_period=3_600, expand=True)
    with bar as progress, _processes(chosen) as processes:
        task = progress.add_task("", total=sum(map(len, cases.values())))
        # One benchmark after the other; each is saved before the next one starts.
        for name, its in cases.items():
            figures: dict[str, dict[str, Figures]] = {}
            for index, case in enumerate(its):
                progress.update(task, description=escape(f"{name}: {case.label}"))
                figures[case.label] = processes.submit(run, name, index, quick).result()
                progress.advance(task)
            made = document(name, figures, quick=quick)
            path = results / f"{name}.json"
            path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
            show(console, made, path)
        progress.update(task, description="done")


def _processes(chosen: Sequence[str]) -> ProcessPoolExecutor:
    """Return an executor that runs each case in a new process, one at a time.

    The processes are forked from one that has imported the benchmarks `chosen`, but has
    not built any data.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"bench.bench_{name}" for name in chosen])
    return ProcessPoolExecutor(max_workers=1, mp_context=context, max_tasks_per_child=1)


def show(console: Console, made: Document, path: Path) -> None:
    """Print the table of a result document, and the path of its file."""
    heading, *rows = table(made)
    shown = Table(title=escape(made["question"]), caption=escape(str(path)), box=box.SIMPLE, title_justify="left")
    for number, name in enumerate(heading):
        shown.add_column(escape(name), justify="left" if number < 2 else "right")
    for row in rows:
        shown.add_row(*map(escape, row))
    console.print(shown)


if __name__ == "__main__":
    main()

"""Do the memory and the latency of a hub stay constant?

`python -m bench.hold` puts a load on a hub for ten minutes, and takes a sample every
ten seconds.  results/hold.json compares no variants, so it has other members than those
that `benchmark` describes:

    question, workload, seed
    machine    cpu, cores, python, packages
    plot       {"kind": "series", "x": "minutes"}
    series     {"minutes": [...], "resident MiB": [...], ...}     one value per sample
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.benchmark import BENCH, Document, significant
from bench.load import quantiles, run
from bench.measure import machine, processor_time, resident
from bench.servers import hub, versions
from bench.targets import Load
from bench.workloads import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.clients import Clients
    from bench.measure import Figures

QUESTION = "Do memory and latency stay constant?"


def hold(load: Load, every: float, seen: Callable[[Figures], None]) -> Document:
    """Put `load` on a hub, take a sample every `every` seconds, and return the result.

    `seen` is called with each sample.  An assertion fails if a delivery is lost or
    comes twice, or if the hub closes a stream or refuses a subscriber.
    """
    samples: list[Figures] = []
    with hub() as target:
        [pid] = target.pids
        then = cpu = 0.0  # the time and the hub's CPU seconds at the last sample
        known = looks = 0  # the latencies before the last sample, and the calls of `watch`

        def watch(clients: Clients) -> None:
            """Take a sample of the time since the last one."""
            nonlocal then, cpu, known, looks
            looks += 1
            if then and len(clients.latencies) == known:
                return  # nothing was delivered: the next sample includes this time
            before, taken_before = then, cpu
            then, cpu = time.monotonic(), processor_time(pid)[0]
            if not before:
                return  # the first call only starts the first sample
            sample = {
                "minutes": (looks - 1) * every / 60,
                "connections": clients.connected,
                "resident MiB": resident(pid) / 2**20,
                "server busy %": (cpu - taken_before) / (then - before) * 100,
                **quantiles("", clients.latencies[known:]),
            }
            known = len(clients.latencies)
            samples.append(sample)
            seen(sample)

        found = run(load, target, watch=watch, every=every)
    assert not any(found[name] for name in ("lost", "doubled", "closed", "refused")), found
    return {
        "question": QUESTION,
        "workload": (
            f"{load.connections:,} subscribers for {load.seconds / 60:.3g} minutes, in {load.groups} groups; "
            f"{load.rate:g} updates/s, each to one group; {load.visitors:,.0f} other clients come and go each second. "
            f"A sample every {every:g} s."
        ),
        "seed": SEED,
        "machine": machine(**versions()),
        "plot": {"kind": "series", "x": "minutes"},
        "series": {name: [significant(sample[name]) for sample in samples] for name in samples[0]},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Watch a hub as the command line says, and write the result.

    A progress bar shows each sample.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.hold", description="Watch a hub with many connections.")
    parser.add_argument("--minutes", type=float, default=10, help="how long the load lasts")
    parser.add_argument("--connections", type=int, default=15_000, help="the number of subscribers that stay")
    parser.add_argument("--every", type=float, default=10, help="seconds between two samples")
    parser.add_argument("--result", type=Path, default=BENCH / "results" / "hold.json", help="the file to write")
    chosen = parser.parse_args(arguments)
    load = Load(
        connections=chosen.connections,
        groups=10,
        rate=2,
        poisson=False,  # so that every sample has an update
        visitors=200,
        seconds=chosen.minutes * 60,
        spin=False,
    )
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("connecting", total=int(load.seconds / chosen.every - 1e-6))

        def show(sample: Figures) -> None:
            """Show a sample beside the progress bar."""
            summary = (
                f"{sample['connections']:,} connected, {sample['resident MiB']:.0f} MiB, p99 {sample['p99 ms']:.1f} ms"
            )
            progress.update(task, description=summary, advance=1)

        made = hold(load, chosen.every, show)
    chosen.result.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(chosen.result)


if __name__ == "__main__":
    main()

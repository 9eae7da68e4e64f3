"""How long does Python's garbage collector hold a hub up that takes thousands of connections in?"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.load import run
from bench.servers import HANG, hub, in_turn
from bench.servers import versions as versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "How long does the garbage collector hold a hub up?"
WORKLOAD = (
    "Subscribers connect, with a task each or parked; then 200 others come and go a second for five seconds, in which "
    "two or ten updates a second go to all. Baseline: the collector as Python has it."
)
PLOT = Lines(x="subscribers", panel="streams")
UNIT = "ms, the longest pause"
ROUNDS = 3, 1


def cases(quick: bool) -> Iterator[Case]:
    for streams, flag in (("parked", "--park"), ("a task each", "--no-park")):
        for count in (1_000,) if quick else (1_000, 4_000, 12_000):
            yield Case(
                f"{count:,} subscribers, {streams}",
                partial(measure, count, flag, quick=quick),
                at={"subscribers": count, "streams": streams},
            )


def measure(count: int, flag: str, rounds: int, *, quick: bool) -> dict[str, Figures]:
    load = Load(connections=count, rate=10 if count < 4_000 else 2, visitors=200, seconds=1 if quick else 5)
    ways = {"as Python has it": "python", "as the hub has it": "ours"}
    return in_turn(
        {way: partial(_pauses, whose, flag, load) for way, whose in ways.items()},
        rounds=rounds,
        of="longest, ms",
        shown=("ms in all", "full collections"),
    )


def _pauses(whose: str, flag: str, load: Load) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "pauses")
        with hub(flag, module=("bench.baselines.garbage", str(path), whose)) as target:
            run(load, target)
            [pid] = target.pids
            os.kill(pid, signal.SIGUSR1)
            end = time.monotonic() + HANG
            while not path.exists():
                if time.monotonic() > end:
                    raise RuntimeError("the hub does not tell of its garbage")
                time.sleep(0.01)
        pauses: Figures = json.loads(path.read_text())
    return pauses

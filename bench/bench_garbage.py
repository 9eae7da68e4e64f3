"""How long are the pauses of the garbage collector in a hub?

The hub's own settings and Python's defaults are compared, with thousands of
connections.
"""

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
from bench.servers import HANG_SECONDS, hub, in_turn
from bench.servers import versions as versions
from bench.targets import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "How long are the pauses of the garbage collector?"
WORKLOAD = (
    "Subscribers connect, with a task each or detached. Then 200 other clients a second come and go for five seconds, "
    "while two or ten updates a second go to all. Baseline: Python's defaults."
)
PLOT = Lines(x="subscribers", panel="streams")
UNIT = "ms, the longest pause"
ROUNDS = 3, 1


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: detached streams or tasks, and numbers of subscribers."""
    for streams, flag in (("detached", "--detach"), ("one task each", "--no-detach")):
        for count in (1_000,) if quick else (1_000, 4_000, 12_000):
            yield Case(
                f"{count:,} subscribers, {streams}",
                partial(measure, count, flag, quick=quick),
                at={"subscribers": count, "streams": streams},
            )


def measure(count: int, flag: str, rounds: int, *, quick: bool) -> dict[str, Figures]:
    """Measure the pauses with `count` subscribers.

    `flag` is --detach or --no-detach of `skipfilter serve`.
    """
    load = Load(connections=count, rate=10 if count < 4_000 else 2, visitors=200, seconds=1 if quick else 5)
    variants = {"Python's defaults": "python", "the hub's settings": "ours"}
    return in_turn(
        {variant: partial(_pauses, whose, flag, load) for variant, whose in variants.items()},
        rounds=rounds,
        of="longest, ms",
        shown=("ms in all", "full collections"),
    )


def _pauses(whose: str, flag: str, load: Load) -> Figures:
    """Put `load` on a hub, and return the pauses that it has recorded.

    `whose` is as in `bench.baselines.garbage`: ours or python.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "pauses")
        with hub(flag, module=("bench.baselines.garbage", str(path), whose)) as target:
            run(load, target)
            [pid] = target.pids
            os.kill(pid, signal.SIGUSR1)
            end = time.monotonic() + HANG_SECONDS
            while not path.exists():
                if time.monotonic() > end:
                    raise RuntimeError("the hub did not write the pauses of its garbage collector")
                time.sleep(0.01)
        pauses: Figures = json.loads(path.read_text())
    return pauses

"""Measure a few ways of doing one thing, in turn; and the memory that building something takes.

Each round runs every way once, so that a machine that slows down slows all of them.  The ratio of a way is the
median, over the rounds, of its time divided by the first way's time in the same round:

    round    1    2    3    4    5        figures
    slow    90   91  180   92   90        median 91   min 90   max 180   ratio 1
    fast     9    9   19    9    9        median  9   min  9   max  19   ratio 0.1
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import statistics
import sys
import time
import traceback
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Figures: TypeAlias = dict[str, float]
"""What is known of one way: min, median, max and ratio, and any others, such as "bytes a subscriber"."""

GROWTH = 8 << 20
"""Bytes by which a process grows before `memory` believes what it sees."""
MOST = 1 << 14
"""Times that `memory` builds what takes next to nothing."""

_SCHEDULER = 2  # CPUCLOCK_SCHED, as clock_getcpuclockid() puts it into the clock of another process


def compare(ways: Mapping[str, Callable[[], object]], *, calls: Mapping[str, int], rounds: int) -> dict[str, Figures]:
    """CPU microseconds a call of each way, over `rounds` rounds; the ratios are to the first way.

    A way is called `calls[name]` times in a round, and once before the first round, untimed; so one call a round
    is enough where it takes a millisecond.  The clock moves in steps of about a microsecond, and calling a way takes
    some 0.05 of one: where a call is short, let a round have a millisecond or more of them.  Garbage is collected
    between the turns, not in them.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    gc.collect()
    gc.freeze()  # what was built so far is not looked through again at every turn
    gc.disable()
    try:
        for _ in range(rounds):
            for name, way in ways.items():
                taken[name].append(_turn(way, calls[name]))
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    baseline = taken[next(iter(ways))]
    return {name: figures(times, baseline) for name, times in taken.items()}


def _turn(way: Callable[[], object], calls: int) -> float:
    began = time.process_time()
    for _ in repeat(None, calls):
        way()
    return (time.process_time() - began) / calls * 1e6


def figures(taken: Sequence[float], baseline: Sequence[float]) -> Figures:
    """What a way took in each round, beside what the first way took in the same rounds."""
    return {
        "min": min(taken),
        "median": statistics.median(taken),
        "max": max(taken),
        "ratio": statistics.median(mine / its for mine, its in zip(taken, baseline, strict=True)),
    }


def summary(taken: Mapping[str, Sequence[Figures]], of: str) -> dict[str, Figures]:
    """The figures of ways that were measured in rounds of another kind, from what each round has found.

    `of` names what is compared; of all else that was found there is the median.
    """
    baseline = [found[of] for found in taken[next(iter(taken))]]
    return {
        way: figures([found[of] for found in its], baseline)
        | {
            name: statistics.median(found[name] for found in its if name in found)
            for name in dict.fromkeys(name for found in its for name in found if name != of)
        }
        for way, its in taken.items()
    }


def memory(build: Callable[[], object]) -> int:
    """Bytes of resident memory that what `build` returns takes.  `build` makes a new one at every call.

    From the kernel's count of pages, for pyroaring allocates where tracemalloc does not look; so what is small is
    built many times.  In a forked child.  Linux only.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            filling = _grown(build)  # fills what was free in the heap, so that the next ones have to grow it
            taken, made = _grown(build)
            os.write(sender, str(taken // len(made)).encode())
            del filling
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(sender)
    with os.fdopen(receiver) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("what was to be measured could not be built; the child has said why")
    return int(text)


def _grown(build: Callable[[], object]) -> tuple[int, list[object]]:
    """How far the process grew by building, until that is GROWTH or it was done MOST times; and what was built."""
    before, grown, made = _resident(), 0, list[object]()
    while grown < GROWTH and len(made) < MOST:
        made += [build() for _ in range(max(1, len(made)))]
        grown = _resident() - before
    return grown, made


def _resident() -> int:
    """Bytes of this process that are in memory and its own, with all garbage given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
    if trim is not None:
        trim(0)
    return resident(os.getpid())


def resident(pid: int) -> int:
    """Bytes of a process that are in memory and its own.  Linux only."""
    _, pages, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


def processor_time(pid: int) -> tuple[float, float, float]:
    """CPU seconds of a process, with all its threads; and its user and its system time, in ticks.

    The first is what the scheduler has counted.  The others are sampled, so only their proportion is of use, and
    only where there are many.  Linux only.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(~pid << 3 | _SCHEDULER), float(fields[11]), float(fields[12])


def machine(**versions: str) -> dict[str, Any]:
    """What a result depends on besides the code: the processor, Python, the packages that are imported, `versions`."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    used = [name for name in ("cachetools", "pyroaring", "sortedcontainers") if name in sys.modules]
    packages = {name: version(name) for name in used} | versions
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "packages": packages}

"""CPU time of several variants of one operation, and the memory of a data structure.

Each round runs every variant once, so if the machine slows down, it slows down all of
them.  The ratio of a variant is the median, over the rounds, of its time divided by the
time of the first variant in the same round:

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
"""The figures of one variant: min, median, max and ratio, and others such as "bytes a
subscriber"."""

GROWTH = 8 << 20
"""Bytes by which a process must grow before `memory` trusts the difference."""
MOST = 1 << 14
"""The maximum number of copies that `memory` builds of a small structure."""

_SCHEDULER = 2  # CPUCLOCK_SCHED, as clock_getcpuclockid() puts it into the clock of another process


def compare(
    variants: Mapping[str, Callable[[], object]], *, calls: Mapping[str, int], rounds: int
) -> dict[str, Figures]:
    """Return the CPU microseconds per call of each variant; the ratios are to the first
    variant.

    A variant is called `calls[name]` times in each round, and once before the first
    round, which is not timed.

    The clock has steps of about a microsecond, and the loop costs about 0.05 µs per
    call.  So if a call is short, let the calls of a round take a millisecond or more;
    if it takes a millisecond, one call is enough.  Garbage is collected between the
    measurements, not during them.
    """
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant()
    gc.collect()
    gc.freeze()  # the collections between measurements skip the objects that exist now
    gc.disable()
    try:
        for _ in range(rounds):
            for name, variant in variants.items():
                taken[name].append(_turn(variant, calls[name]))
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    baseline = taken[next(iter(variants))]
    return {name: figures(times, baseline) for name, times in taken.items()}


def _turn(variant: Callable[[], object], calls: int) -> float:
    began = time.process_time()
    for _ in repeat(None, calls):
        variant()
    return (time.process_time() - began) / calls * 1e6


def figures(taken: Sequence[float], baseline: Sequence[float]) -> Figures:
    """Return the figures of a variant, from its times and those of the baseline in the
    same rounds.
    """
    return {
        "min": min(taken),
        "median": statistics.median(taken),
        "max": max(taken),
        "ratio": statistics.median(mine / its for mine, its in zip(taken, baseline, strict=True)),
    }


def summary(taken: Mapping[str, Sequence[Figures]], of: str) -> dict[str, Figures]:
    """Return the figures of variants from all that was found in each round.

    `of` names the figure that is compared.  All other figures are medians of the rounds
    that have them.
    """
    baseline = [found[of] for found in taken[next(iter(taken))]]
    return {
        variant: figures([found[of] for found in its], baseline)
        | {
            name: statistics.median(found[name] for found in its if name in found)
            for name in dict.fromkeys(name for found in its for name in found if name != of)
        }
        for variant, its in taken.items()
    }


def memory(build: Callable[[], object]) -> int:
    """Return how many bytes of resident memory one result of `build` takes.

    `build` must return a new object at each call.  The memory is measured in pages of
    the kernel, because tracemalloc does not see the allocations of pyroaring; a small
    object is therefore built many times.  It is built in a forked child.  Raises
    RuntimeError if `build` fails.  Linux only.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            filling = _grown(build)  # uses up the free space of the heap, so that the next objects grow it
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
        raise RuntimeError("the objects to measure could not be built; the child process printed the error")
    return int(text)


def _grown(build: Callable[[], object]) -> tuple[int, list[object]]:
    """Return the bytes by which the process grew, and the objects that were built.

    Building stops after GROWTH bytes or MOST objects.
    """
    before, grown, made = _resident(), 0, list[object]()
    while grown < GROWTH and len(made) < MOST:
        made += [build() for _ in range(max(1, len(made)))]
        grown = _resident() - before
    return grown, made


def _resident() -> int:
    """Return the private resident bytes of this process after all free memory was
    returned to the kernel.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
    if trim is not None:
        trim(0)
    return resident(os.getpid())


def resident(pid: int) -> int:
    """Return the private resident bytes of a process.  Linux only."""
    _, pages, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


def processor_time(pid: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a process and all its threads, and its user and system
    time in ticks.

    The CPU seconds are counted by the scheduler.  User and system time are sampled, so
    only their proportion is useful, and only if there are many ticks.  Linux only.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(~pid << 3 | _SCHEDULER), float(fields[11]), float(fields[12])


def machine(**versions: str) -> dict[str, Any]:
    """Return what a result depends on besides the code.

    These are the processor, the version of Python, the versions of the imported
    packages, and `versions`.
    """
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

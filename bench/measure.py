"""Measure the CPU time of several variants of one operation, and the memory of objects.

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
"""The figures of one variant: min, median, max and ratio, and other figures such as
"bytes a subscriber"."""

MIN_GROWTH_BYTES = 8 << 20
"""How many bytes a process must grow before `memory` trusts the difference."""
MAX_COPIES = 1 << 14
"""The maximum number of copies that `memory` builds of a small object."""

# CPUCLOCK_SCHED of Linux: the lowest bits of the clock id that clock_getcpuclockid()
# returns for a process.
_SCHEDULER = 2


def compare(
    variants: Mapping[str, Callable[[], object]], *, calls: Mapping[str, int], rounds: int
) -> dict[str, Figures]:
    """Return the CPU microseconds per call of each variant.

    The ratios are to the first variant.  Each round calls a variant `calls[name]`
    times.  Before the first round, each variant is called once without being timed.

    The clock has steps of about a microsecond, and the loop costs about 0.05 µs per
    call.  So the calls of a round should take a millisecond or more together; if one
    call takes that long, one is enough.  Garbage is collected between the measurements,
    not during them.
    """
    taken: dict[str, list[float]] = {name: [] for name in variants}
    # A warm-up, which is not timed.
    for variant in variants.values():
        variant()
    gc.collect()
    gc.freeze()  # so that the collections between measurements skip the objects that exist now
    gc.disable()
    try:
        for _ in range(rounds):
            for name, variant in variants.items():
                taken[name].append(_microseconds_per_call(variant, calls[name]))
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    baseline = taken[next(iter(variants))]
    return {name: figures(times, baseline) for name, times in taken.items()}


def _microseconds_per_call(variant: Callable[[], object], calls: int) -> float:
    """Call `variant` `calls` times, and return the CPU microseconds per call."""
    began = time.process_time()
    for _ in repeat(None, calls):
        variant()
    return (time.process_time() - began) / calls * 1e6


def figures(taken: Sequence[float], baseline: Sequence[float]) -> Figures:
    """Return the figures of a variant.

    `taken` has its times, and `baseline` those of the baseline in the same rounds.
    """
    return {
        "min": min(taken),
        "median": statistics.median(taken),
        "max": max(taken),
        "ratio": statistics.median(mine / its for mine, its in zip(taken, baseline, strict=True)),
    }


def summary(taken: Mapping[str, Sequence[Figures]], of: str) -> dict[str, Figures]:
    """Return the figures of each variant from what was measured in each round.

    `of` names the figure that is compared; the first variant is the baseline.  Each
    other figure becomes the median of the rounds that have it.
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

    `build` must return a new object at each call.  The kernel's count of pages is used,
    because tracemalloc does not see the allocations of pyroaring.  A page is large, so
    a small object is built many times.  All is done in a forked child.  Raises
    RuntimeError if `build` fails.  Linux only.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        # 1. The child builds the objects, and writes the result into the pipe.
        status = 1
        try:
            # The first objects use up the free space of the heap, so that the next ones
            # must make it grow.
            filling = _grown(build)
            taken, made = _grown(build)
            os.write(sender, str(taken // len(made)).encode())
            del filling
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    # 2. This process reads the result; if the child failed, there is none.
    os.close(sender)
    with os.fdopen(receiver) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("the objects to measure could not be built; the child process printed the error")
    return int(text)


def _grown(build: Callable[[], object]) -> tuple[int, list[object]]:
    """Build objects until the process has grown enough.

    Returns the bytes by which it grew, and the objects.  Stops after MIN_GROWTH_BYTES
    bytes, or if there are MAX_COPIES objects or more.
    """
    before, grown, made = _resident(), 0, list[object]()
    # Each step doubles the number of objects, so the memory is looked at rarely.
    while grown < MIN_GROWTH_BYTES and len(made) < MAX_COPIES:
        made += [build() for _ in range(max(1, len(made)))]
        grown = _resident() - before
    return grown, made


def _resident() -> int:
    """Return the private resident bytes of this process.

    Garbage is collected first, and free memory returned to the kernel if the C library
    can do that.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
    if trim is not None:
        trim(0)
    return resident(os.getpid())


def resident(pid: int) -> int:
    """Return the private resident bytes of a process.

    Linux only.
    """
    _, pages, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


def processor_time(pid: int) -> tuple[float, float, float]:
    """Return (CPU seconds, user ticks, system ticks) of a process and its threads.

    The scheduler counts the CPU seconds.  User and system time are sampled, so only
    their proportion is useful, and only if there are many ticks.  Linux only.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(~pid << 3 | _SCHEDULER), float(fields[11]), float(fields[12])


def machine(**versions: str) -> dict[str, Any]:
    """Return the facts that a result depends on besides the code.

    These are the processor, the number of cores, the version of Python, `versions`, and
    the versions of cachetools, pyroaring and sortedcontainers if they are imported.
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

"""What do threads gain from an engine whose lookups take no lock?

T. Treat, Fast Topic Matching, 2016, asks this for Go, whose threads run in parallel.
Under CPython's global lock, only one thread runs at a time, whether or not the engine
has a lock.  So at best the time is proportional to the work.

The CPU time is that of the process.  If it is below the wall time, threads waited for
each other or for other processes of the machine.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from bench.benchmark import Case, Lines
from bench.measure import figures
from bench.workloads import SEED, word_patterns, word_topics
from skipfilter.engines import OptimizedInvertedBitmap, SkipFilterEngine, SnapshotTrie, TrieEngine
from skipfilter.topics import AMQP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Figures
    from skipfilter.engines import Engine

QUESTION = "What do threads gain from an engine whose lookups take no lock?"
WORKLOAD = (
    "1,000 patterns of 3 words out of 10. Each thread does 1,000 operations, so twice as many threads do twice the "
    "work: they subscribe to one of these patterns or look up a topic, in the given mix. `+ lock`: one lock around "
    "each operation. Wall time from the start of the first thread to the end of the last, and CPU time beside it. "
    "Baseline: trie + lock."
)
UNIT = "wall ms for all threads"
PLOT = Lines(x="threads", panel="mix")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

OPERATIONS = 1_000
"""The number of operations of each thread."""
MAKES: dict[str, Callable[[], Engine[int]]] = {
    "trie + lock": partial(TrieEngine, AMQP),
    "snapshot_trie": partial(SnapshotTrie, AMQP),
    "optimized_inverted_bitmap + lock": partial(OptimizedInvertedBitmap, AMQP),
    "skip_filter": partial(SkipFilterEngine, AMQP),
}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: two mixes of operations, and some numbers of threads."""
    for reads in (50, 90):
        for threads in (1, 4) if quick else (1, 2, 4, 8):
            mix = f"{100 - reads} % subscribe, {reads} % lookup"
            yield Case(f"{threads} threads, {mix}", partial(measure, threads, reads), {"threads": threads, "mix": mix})


def measure(threads: int, reads: int, rounds: int) -> dict[str, Figures]:
    """Measure `threads` threads; `reads` percent of their operations are lookups."""
    patterns = word_patterns(1_000, words=3, vocabulary=10, one=0.1)
    topics = word_topics(patterns, 1_000, 10)
    wall: dict[str, list[float]] = {name: [] for name in MAKES}
    cpu: dict[str, list[float]] = {name: [] for name in MAKES}
    for _ in range(rounds):
        for name, make in MAKES.items():
            # 1. A new engine with all patterns, with a lock around it if it needs one.
            engine = make()
            for number, pattern in enumerate(patterns):
                engine.subscribe(pattern, number)
            subscribe, lookup = engine.subscribe, engine.lookup
            if name.endswith("+ lock"):
                lock = threading.Lock()
                subscribe, lookup = locked(lock, subscribe), locked(lock, lookup)
            works = [operations(patterns, topics, reads, subscribe, lookup, number) for number in range(threads)]
            # 2. Only the operations are timed.
            gc.collect()
            cpu_began, began = time.process_time(), time.perf_counter()
            run(works)
            wall[name].append((time.perf_counter() - began) * 1e3)
            cpu[name].append((time.process_time() - cpu_began) * 1e3)
    made = {name: figures(times, wall["trie + lock"]) for name, times in wall.items()}
    for name, row in made.items():
        row["CPU ms"] = figures(cpu[name], cpu["trie + lock"])["median"]
    return made


def locked(lock: threading.Lock, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function that calls `function` while it holds `lock`."""

    def call(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        """Call the function with the lock held."""
        with lock:
            return function(*arguments, **keywords)

    return call


def operations(
    patterns: list[str],
    topics: list[str],
    reads: int,
    subscribe: Callable[[str, int], int],
    lookup: Callable[[str], set[int]],
    number: int,
) -> list[Callable[[], object]]:
    """Return the operations of thread number `number`, which is also their seed."""
    chance = random.Random(SEED + number)
    return [
        partial(lookup, chance.choice(topics))
        if chance.randrange(100) < reads
        else partial(subscribe, chance.choice(patterns), -number)
        for _ in range(OPERATIONS)
    ]


def run(works: list[list[Callable[[], object]]]) -> None:
    """Run each list of operations in a thread of its own, and wait for all threads."""

    def do(work: list[Callable[[], object]]) -> None:
        """Run the operations one after the other."""
        for operation in work:
            operation()

    running = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()

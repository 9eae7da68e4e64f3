"""What does it save to load what was known of the topics, and to ask a hub's hot topics ahead?"""

from __future__ import annotations

import gc
import tempfile
import time
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow
from pyarrow import parquet

from bench.benchmark import Case, Lines
from bench.measure import figures
from bench.workloads import Watcher, watched, watchers
from skipfilter import SelectorIndex, SkipFilter, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.measure import Figures
    from skipfilter.container import WarmEntry

    Run: TypeAlias = tuple[Callable[[], object], int]
    """What is measured, and for how many topics it is."""

QUESTION = "What does it save to load what was known of the topics, rather than to ask again?"
WORKLOAD = (
    "Subscribers with three URI templates each, three in 5,000 of whom match a topic (one at least), and 100,000 "
    "topics. A predicate asks a subscriber's templates; to a SelectorIndex they are declared. Every filter has all "
    "subscribers before it is measured, and a cache with room for all topics. From Parquet is with reading the file. "
    "Baseline: the first question about a topic, of each subscriber by the predicate, for a few of the topics. "
    "For a hub: 10,000 topics, the first question of a SelectorIndex as the baseline."
)
PLOT = Lines(x="subscribers")
UNIT = "CPU µs a topic"

SHELVES = 5_000
EPOCH = "bench"


def versions() -> dict[str, str]:
    return {"pyarrow": version("pyarrow")}


def cases(quick: bool) -> Iterator[Case]:
    topics = 1_000 if quick else 100_000
    for count in (1_000,) if quick else (1_000, 10_000, 100_000):
        yield Case(f"{count:,} subscribers", partial(loaded, count, topics), at={"subscribers": count})
    for count in (1_000,) if quick else (10_000, 100_000):
        yield Case(f"a hub of {count:,}", partial(asked_ahead, count, topics // 10))


def loaded(count: int, topics: int, rounds: int) -> dict[str, Figures]:
    everybody = watchers(count, SHELVES)
    index = by_index(everybody, topics)
    # Each round's first questions are about topics of its own.
    asked = watched(everybody, topics)
    fresh = iter(watched(everybody, topics + topics // 10 * (rounds + 1))[topics:])
    for topic in asked:
        index.bitmap(topic)
    entries = list(index.dump(EPOCH))
    assert len(entries) == topics
    few = asked[: max(3, 100_000 // count)]
    before = by_predicate(everybody, topics)
    before.load(entries, EPOCH)

    def load(read: Callable[[], Iterator[WarmEntry[str]]]) -> Run:
        after = by_predicate(everybody, topics)
        return lambda: after.load(read(), EPOCH), topics

    def first_by_predicate() -> Run:
        cold = by_predicate(everybody, topics)
        return lambda: [cold.bitmap(topic) for topic in few], len(few)

    def first_by_index() -> Run:
        new = list(islice(fresh, topics // 10))
        return lambda: [index.bitmap(topic) for topic in new], len(new)

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "warm.parquet")
        write(file, entries)
        after, cold = by_predicate(everybody, topics), by_predicate(everybody, topics)
        assert after.load(warm.entries(file, "subscribed"), EPOCH) == (topics, 0, 0)
        assert all(after.bitmap(t) == index.bitmap(t) for t in asked)
        assert all(after.bitmap(t) == cold.bitmap(t) for t in few)
        made = compare(
            {
                "first question, predicate": first_by_predicate,
                "first question, SelectorIndex": first_by_index,
                "load": lambda: load(lambda: iter(entries)),
                "load from Parquet": lambda: load(lambda: warm.entries(file, "subscribed")),
                "load, another epoch": lambda: load(lambda: (entry._replace(epoch="") for entry in entries)),
                "dump": lambda: (lambda: list(before.dump(EPOCH)), topics),
            },
            rounds,
        )
        made["load from Parquet"]["bytes a topic"] = file.stat().st_size / topics
    return made


def asked_ahead(count: int, topics: int, rounds: int) -> dict[str, Figures]:
    everybody = watchers(count + rounds + 1, SHELVES)
    coming = iter(everybody[count:])
    index = by_index(everybody[:count], topics)
    every = watched(everybody, topics * (rounds + 2))
    hot, fresh = every[:topics], iter(every[topics:])

    def ask(topics: list[str]) -> Run:
        return lambda: [index.bitmap(topic) for topic in topics], len(topics)

    def ahead(arrivals: int) -> Run:
        for topic in hot:
            index.bitmap(topic)
        for reader in islice(coming, arrivals):
            index.add(reader, [("uritemplate", text) for text in reader.selectors])
        return ask(hot)

    ways = {
        "first question": lambda: ask(list(islice(fresh, topics))),
        "asked ahead": lambda: ahead(0),
        "asked ahead, and then one came": lambda: ahead(1),
    }
    return compare(ways, rounds)


def compare(ways: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, Figures]:
    """As `measure.compare`, of ways that need something new each time: a way prepares it, and returns what to time."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number in range(rounds + 1):
            for name, way in ways.items():
                run, topics = way()
                began = time.process_time()
                run()
                used = time.process_time() - began
                del run
                gc.collect()
                if number:  # the first is for warming up
                    taken[name].append(used / topics * 1e6)
    finally:
        gc.enable()
        gc.unfreeze()
    baseline = taken[next(iter(ways))]
    return {name: figures(its, baseline) for name, its in taken.items()}


def by_predicate(everybody: list[Watcher], topics: int) -> SkipFilter[Watcher, str]:
    readers: SkipFilter[Watcher, str] = SkipFilter(
        lambda reader, topic: any(template.match(topic) for template in reader.templates), capacity=2 * topics
    )
    for reader in everybody:
        readers.add(reader)
    return readers


def by_index(everybody: list[Watcher], topics: int) -> SkipFilter[Watcher, str]:
    readers: SkipFilter[Watcher, str] = SkipFilter(
        SelectorIndex(), capacity=10 * topics
    )  # what is asked once has a fifth
    for reader in everybody:
        readers.add(reader, [("uritemplate", text) for text in reader.selectors])
    return readers


def write(file: Path, entries: list[WarmEntry[str]]) -> None:
    """A warm index of one role; ids are below 2**32, so what follows the head is the bitmap of 32 bits."""
    bits = [entry.passed[len(warm._ONE_GROUP) :] for entry in entries]
    count = len(entries)
    table = pyarrow.table(
        {
            "epoch": [EPOCH] * count,
            "topic": [entry.key for entry in entries],
            "cursor": [entry.cursor for entry in entries],
            "subscribed": bits,
            "authorised": bits,
            "hits": range(count, 0, -1),
            "format_version": pyarrow.array([warm.FORMAT_VERSION] * count, pyarrow.int32()),
        }
    )
    parquet.write_table(table, file, compression="zstd", write_page_checksum=True)

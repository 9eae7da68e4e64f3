"""Is a SkipFilter faster than a hub's earlier cache of verdicts?

K. Burns, Skipfilter, 2022, reports "a 20,000x improvement in throughput for certain
highly concurrent and highly selective workloads".  The comparison is with a Mercure hub
that looked up (selector, topic) in a cache for each selector of each subscriber.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from bench.benchmark import Case, Grid
from bench.measure import compare
from bench.workloads import Watcher, watched, watchers
from skipfilter import SkipFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.measure import Figures

QUESTION = "How many times faster is a SkipFilter than a cached verdict for each selector and topic?"
WORKLOAD = (
    "Subscribers with 3 URI templates each; the given share of them matches a topic. All topics are cached, and asked "
    "in turn. Baseline: for each subscriber, for each of its selectors until one matches, the verdict from a dict by "
    "(selector, topic), which has no bound."
)
PLOT = Grid(x="topics cached", y="subscribers", panel="match %", variant="SkipFilter")


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: shares of matching subscribers, subscribers, topics."""
    for percent in (0.01, 1, 50):
        for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
            for topics in (1, 10) if quick else (1, 10, 100):
                yield Case(
                    f"{percent:g} % of {count:,} subscribers match, {topics:,} topics",
                    partial(measure, percent, count, topics),
                    at={"topics cached": topics, "subscribers": count, "match %": percent},
                )


def measure(percent: float, count: int, topics: int, rounds: int) -> dict[str, Figures]:
    """Measure lookups of cached topics that `percent` of the subscribers match."""
    subscribers = watchers(count, shelves=round(300 / percent))
    known = watched(subscribers, topics)
    verdicts: dict[tuple[str, str], bool] = {}
    scan = scanner(subscribers, verdicts)
    readers: SkipFilter[Watcher, str] = SkipFilter(
        lambda reader, topic: any(template.match(topic) for template in reader.templates),
        group=lambda reader: reader.selectors,
    )
    for reader in subscribers:
        readers.add(reader)
    assert all(scan(topic) == readers.match_any(topic) for topic in known)  # this also fills both caches
    scanned, matched = cycle(known), cycle(known)
    made = compare(
        {"cached verdicts": lambda: scan(next(scanned)), "SkipFilter": lambda: readers.match_any(next(matched))},
        calls={
            "cached verdicts": max(1, 20_000 // count),
            "SkipFilter": max(10, round(200_000 / (100 + count * percent / 100))),
        },
        rounds=rounds,
    )
    made["cached verdicts"]["entries cached"] = len(verdicts)
    made["SkipFilter"]["entries cached"] = topics
    return made


def scanner(subscribers: Sequence[Watcher], verdicts: dict[tuple[str, str], bool]) -> Callable[[str], list[Watcher]]:
    """Return a function that finds the subscribers of a topic: the baseline.

    It looks up each verdict in `verdicts`, and adds the verdict if it is missing.
    """

    def scan(topic: str) -> list[Watcher]:
        """Return the subscribers that match `topic`."""
        matched = []
        for reader in subscribers:
            for position, selector in enumerate(reader.selectors):
                verdict = verdicts.get((selector, topic))
                if verdict is None:
                    verdict = verdicts[selector, topic] = reader.templates[position].match(topic)
                if verdict:
                    matched.append(reader)
                    break
        return matched

    return scan

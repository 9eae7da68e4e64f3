"""What does the first lookup of a topic cost?

It must test every value, and store the result.  `matches` may stop earlier.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.measure import compare
from bench.workloads import templates, topics
from skipfilter import SkipFilter, UriTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does the first lookup of a topic cost?"
WORKLOAD = (
    "Different URI templates; one in a hundred matches a topic. "
    "Baseline: the list comprehension that tests every template."
)
PLOT = Lines(x="templates")


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: some numbers of templates."""
    for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
        yield Case(f"{count:,} templates", partial(measure, count), at={"templates": count})


def measure(count: int, rounds: int) -> dict[str, Figures]:
    """Measure lookups of new and of known topics among `count` templates."""
    everything = templates(count)
    readers: SkipFilter[UriTemplate, str] = SkipFilter(UriTemplate.match)
    for reader in everything:
        readers.add(reader)
    known, *others = topics(20_000)
    fresh = iter(others)

    def ask() -> list[UriTemplate]:
        """Test every template: the baseline."""
        return [reader for reader in everything if reader.match(known)]

    assert readers.match_any(known) == ask()
    slow = max(1, 20_000 // count)
    return compare(
        {
            "test every template": ask,
            "match_any, first": lambda: readers.match_any(next(fresh)),
            "match_any, again": lambda: readers.match_any(known),
            "matches, first": lambda: readers.matches(next(fresh)),
        },
        calls={
            "test every template": slow,
            "match_any, first": slow,
            "match_any, again": 2_000,
            "matches, first": 10 * slow,
        },
        rounds=rounds,
    )

"""Does a SkipFilter answer without asking everybody, and what does the first question to a key cost?

Baseline: the list comprehension that asks every value.  One value in a hundred matches.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

from bench.measure import compare, save
from bench.workloads import templates, topics
from skipfilter import SkipFilter, UriTemplate


def measure(count: int) -> dict[str, Any]:
    values = templates(count)
    readers = SkipFilter(UriTemplate.match)
    for value in values:
        readers.add(value)
    warm, *others = topics(20_000)
    fresh = iter(others)
    leaving = cycle(values)

    def churn() -> None:
        value = next(leaving)
        readers.remove(value)
        readers.add(value)
        readers.match_any(warm)

    assert readers.match_any(warm) == [value for value in values if value.match(warm)]
    slow, fast = max(1, 20_000 // count), 2_000
    return compare(
        {
            "ask everybody": lambda: [value for value in values if value.match(warm)],
            "first question": lambda: readers.match_any(next(fresh)),
            "asked before": lambda: readers.match_any(warm),
            "matches, first question": lambda: readers.matches(next(fresh)),
            "one leaves, one joins": churn,
        },
        calls={
            "ask everybody": slow,
            "first question": slow,
            "asked before": fast,
            "matches, first question": fast // 10,
            "one leaves, one joins": fast,
        },
    )


if __name__ == "__main__":
    cases = {f"{count:,} templates": measure(count) for count in (1_000, 10_000, 100_000)}
    save("container", "A SkipFilter of URI templates against asking every template", cases)

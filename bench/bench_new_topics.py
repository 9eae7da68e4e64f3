"""What does a new topic cost, and a new selector, among up to 100,000 selectors?

Two families of URI templates are usual ones.  The others are meant to be slow.
"""

from __future__ import annotations

from functools import partial
from itertools import count as numbers
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.measure import compare, memory
from bench.workloads import SELECTORS, new_topics
from skipfilter import SelectorIndex, SkipFilter, UriTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures
    from bench.workloads import Selectors

QUESTION = "What does a new topic cost, and a new selector?"
WORKLOAD = (
    "One URI template per subscriber, all different. Every lookup has a new topic, which one of the templates matches. "
    "The first two families are usual templates, the others are meant to be slow. Baseline: the list comprehension "
    "that tests every compiled template. The bytes are those of the filter with its index, including the text of the "
    "templates."
)
PLOT = Lines(x="selectors", panel="family")


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: each family with some numbers of selectors."""
    for name in SELECTORS:
        for count in (10, 1_000) if quick else (10, 1_000, 10_000, 100_000):
            yield Case(f"{name}, {count:,}", partial(measure, name, count), at={"selectors": count, "family": name})


def measure(name: str, count: int, rounds: int) -> dict[str, Figures]:
    """Measure lookups and additions with `count` selectors of the family `name`."""
    family = SELECTORS[name]
    taken = memory(lambda: filled(family, count))
    readers = filled(family, count)
    templates = [UriTemplate(family.template(n)) for n in range(count)]
    calls = 4_000
    topics = new_topics(family, count, calls * (rounds + 1) + 100)
    # The filter and the baseline must agree.
    for topic in topics[-100 if count < 100_000 else -3 :]:
        assert readers.match_any(topic) == [n for n, template in enumerate(templates) if template.match(topic)]
    fresh, asked = iter(topics), iter(topics)
    more = numbers(count)
    growing = filled(family, count)

    def declare() -> None:
        """Add a subscriber with a new selector."""
        n = next(more)
        growing.add(n, [("uritemplate", family.template(n))])

    def ask() -> list[UriTemplate]:
        """Test every template: the baseline."""
        topic = next(asked)
        return [template for template in templates if template.match(topic)]

    made = compare(
        {"test every template": ask, "new topic": lambda: readers.match_any(next(fresh)), "new selector": declare},
        calls={"test every template": max(1, 10_000 // count), "new topic": calls, "new selector": 1_000},
        rounds=rounds,
    )
    made["new topic"]["bytes a selector"] = taken / count
    return made


def filled(family: Selectors, count: int) -> SkipFilter[int, str]:
    """Return a filter with `count` subscribers, each with a template of its own."""
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex())
    for n in range(count):
        readers.add(n, [("uritemplate", family.template(n))])
    return readers

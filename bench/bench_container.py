"""How long does a lookup in a SkipFilter take?

The table also says how much memory a subscriber needs.
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.measure import compare, memory
from bench.workloads import Listener, audience, listeners, sentences
from skipfilter import SkipFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bench.measure import Figures

QUESTION = "What does a lookup of a cached topic cost?"
WORKLOAD = (
    "Each subscriber has a tuple of topics; the predicate is `topic in subscriber.topics`. For new topics, the values "
    "are strings and the predicate is `==`. Baseline: the list comprehension that tests every subscriber. "
    "The bytes are those of the filter or the list, without the subscribers themselves."
)
PLOT = Lines(x="subscribers")

SMALL = (1, 100, 125, 200)
"""Numbers of subscribers that match a topic."""
LARGE = 10_000
"""Another such number, if there are enough subscribers."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: for each number of subscribers, known and new topics."""
    for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
        yield Case(f"{count:,} subscribers", partial(known, count), at={"subscribers": count})
        yield Case(f"{count:,} subscribers, new topics", partial(new, count), at={"subscribers": count})


def known(count: int, rounds: int) -> dict[str, Figures]:
    """Measure lookups of topics that are cached."""
    sizes = (*SMALL, LARGE) if count >= LARGE else SMALL
    subscribers = listeners(count, *sizes)
    taken = {"filter": memory(lambda: filled(subscribers)), "list": memory(subscribers.copy)}
    readers, changing = filled(subscribers), filled(subscribers)
    leaving = cycle(subscribers)
    one, hundred, *_ = map(audience, SMALL)
    three = [audience(size) for size in SMALL[1:]]

    def ask() -> list[Listener]:
        """Test every subscriber: the baseline."""
        return [reader for reader in subscribers if hundred in reader.topics]

    def churn() -> None:
        """Remove a subscriber, add it again, and look up a topic."""
        reader = next(leaving)
        changing.remove(reader)
        changing.add(reader)
        changing.match_any(hundred)

    assert readers.match_any(hundred) == ask()
    assert all(len(readers.match_any(audience(size))) == size for size in sizes)
    variants: dict[str, Callable[[], object]] = {
        "test every subscriber": ask,
        "1 match": lambda: readers.match_any(one),
        "100 matches": lambda: readers.match_any(hundred),
        "10,000 matches": lambda: readers.match_any(audience(LARGE)),
        "3 topics, 100 + 125 + 200 matches": lambda: readers.match_any(*three),
        "1 leaves, 1 joins, 100 matches": churn,
    }
    if LARGE not in sizes:
        del variants["10,000 matches"]
    calls = dict.fromkeys(variants, 2_000) | {"test every subscriber": max(1, 100_000 // count), "10,000 matches": 50}
    made = compare(variants, calls=calls, rounds=rounds)
    for name, figures in made.items():
        figures["bytes a subscriber"] = taken["list" if name == "test every subscriber" else "filter"] / count
    if LARGE in sizes:
        further = made["10,000 matches"]["median"] - made["1 match"]["median"]
        made["10,000 matches"]["ns a further match"] = further / (LARGE - 1) * 1_000
    return made


def new(count: int, rounds: int) -> dict[str, Figures]:
    """Measure lookups of topics that are new, with the predicate `==`."""
    subscribers = sentences(count)
    readers: SkipFilter[str, str] = SkipFilter(operator.eq)
    for reader in subscribers:
        readers.add(reader)
    asked = subscribers[-1]
    calls = max(1, 100_000 // count)
    fresh = iter(subscribers[:-1])  # each topic is asked once
    assert readers.match_any(asked) == [asked]
    return compare(
        {
            "test every subscriber, ==": lambda: [reader for reader in subscribers if reader == asked],
            "new topic, ==": lambda: readers.match_any(next(fresh)),
        },
        calls={"test every subscriber, ==": calls, "new topic, ==": calls},
        rounds=rounds,
    )


def filled(subscribers: Iterable[Listener]) -> SkipFilter[Listener, str]:
    """Return a filter with all `subscribers`."""
    readers: SkipFilter[Listener, str] = SkipFilter(lambda reader, topic: topic in reader.topics)
    for reader in subscribers:
        readers.add(reader)
    return readers

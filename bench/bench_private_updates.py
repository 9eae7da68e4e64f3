"""What does a private update cost if its topics are always new?

The CPU load of a Mercure hub led to the first skipfilter.  This is the workload of that
hub: thousands of subscribers with a few selectors each, and updates about resources
that were just created.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.measure import compare, memory
from bench.workloads import members, private_updates
from skipfilter import SelectorIndex, SkipFilter, compile_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Figures
    from skipfilter import Matcher, Selector

QUESTION = "What does a private update cost if all its topics are new?"
WORKLOAD = (
    "Subscribers with 3 selectors each: an exact topic and a template of their own, and one of 50 shared templates; "
    "they may read what they subscribe to. An update has 2 new topics; one update in ten has a third, which one "
    "subscriber in 50 subscribes to. The receivers are the subscribers that subscribe to one of its topics and may "
    "read one. Baseline: test the compiled selectors of every subscriber until one matches, first for the "
    "subscription, then for the grant. The bytes are those of both filters with their indexes."
)
PLOT = Lines(x="subscribers")


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: some numbers of subscribers."""
    for count in (1_000, 5_000) if quick else (1_000, 5_000, 20_000, 100_000):
        yield Case(f"{count:,} subscribers", partial(measure, count), at={"subscribers": count})


def measure(count: int, rounds: int) -> dict[str, Figures]:
    """Measure finding the receivers of an update among `count` subscribers."""
    declared = members(count)
    taken = memory(lambda: indexed(declared))
    by_index = indexed(declared)
    matchers = [tuple(compile_matcher(*selector) for selector in selectors) for selectors in declared]
    by_predicate = predicates(matchers)
    updates = private_updates(count, 2_000 * (rounds + 1) + 100)

    def ask(topics: tuple[str, ...]) -> list[int]:
        """Test every selector, for the subscription and for the grant: the baseline."""
        wanting = [n for n in range(count) if wants(matchers[n], topics)]
        return [n for n in wanting if wants(matchers[n], topics)]

    # All variants must agree.
    for topics in updates[-100 if count < 20_000 else -3 :]:
        assert ask(topics) == by_index(topics) == by_predicate(topics)
    asked, indexes, predicated = iter(updates), iter(updates), iter(updates)
    slow = max(1, 5_000 // count)
    made = compare(
        {
            "test every selector": lambda: ask(next(asked)),
            "SkipFilter, predicate": lambda: by_predicate(next(predicated)),
            "SkipFilter, SelectorIndex": lambda: by_index(next(indexes)),
        },
        calls={"test every selector": slow, "SkipFilter, predicate": slow, "SkipFilter, SelectorIndex": 2_000},
        rounds=rounds,
    )
    made["SkipFilter, SelectorIndex"]["bytes a subscriber"] = taken / count
    return made


def wants(matchers: tuple[Matcher, ...], topics: tuple[str, ...]) -> bool:
    """Return whether any of `matchers` matches any of `topics`."""
    return any(matcher.match(topic) for matcher in matchers for topic in topics)


def indexed(declared: list[tuple[Selector, ...]]) -> Callable[[tuple[str, ...]], list[int]]:
    """Return a function that finds the receivers with two filters over indexes."""
    return receivers(
        SkipFilter(SelectorIndex()),
        SkipFilter(SelectorIndex()),
        lambda readers: readers.add_many(enumerate(declared)),
    )


def predicates(matchers: list[tuple[Matcher, ...]]) -> Callable[[tuple[str, ...]], list[int]]:
    """Return a function that finds the receivers with two filters over predicates."""

    def passes(n: int, topic: str) -> bool:
        """Return whether subscriber number `n` has a selector that matches `topic`."""
        return wants(matchers[n], (topic,))

    return receivers(SkipFilter(passes), SkipFilter(passes), lambda readers: readers.add_many(range(len(matchers))))


def receivers(
    subscribed: SkipFilter[int, str], granted: SkipFilter[int, str], fill: Callable[[SkipFilter[int, str]], object]
) -> Callable[[tuple[str, ...]], list[int]]:
    """Return a function that finds the receivers of a private update.

    They subscribe to one of its topics, and may read one: two ORs of bitmaps, and one
    AND.  `fill` adds the subscribers to a filter.
    """
    fill(subscribed)
    fill(granted)

    def receive(topics: tuple[str, ...]) -> list[int]:
        """Return the receivers of an update with `topics`."""
        ids = subscribed.bitmap(*topics)
        ids &= granted.bitmap(*topics)
        return subscribed.values(ids)

    return receive

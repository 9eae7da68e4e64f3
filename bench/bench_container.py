"""Does a SkipFilter answer a topic that it knows without asking everybody, and what does it cost to be in one?"""

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

QUESTION = "Does a SkipFilter answer a topic that it knows without asking everybody?"
WORKLOAD = (
    "Subscribers with a tuple of topics each, predicate `topic in subscriber.topics`; for a new topic texts, "
    "predicate `==`. Baseline: the list comprehension that asks every subscriber. "
    "Bytes are those of the filter or the list, without the subscribers themselves."
)
PLOT = Lines(x="subscribers")

SMALL = (1, 100, 125, 200)
LARGE = 10_000


def cases(quick: bool) -> Iterator[Case]:
    for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
        yield Case(f"{count:,} subscribers", partial(known, count), at={"subscribers": count})
        yield Case(f"{count:,} subscribers, new topics", partial(new, count), at={"subscribers": count})


def known(count: int, rounds: int) -> dict[str, Figures]:
    sizes = (*SMALL, LARGE) if count >= LARGE else SMALL
    everybody = listeners(count, *sizes)
    taken = {"filter": memory(lambda: filled(everybody)), "list": memory(everybody.copy)}
    readers, changing = filled(everybody), filled(everybody)
    leaving = cycle(everybody)
    one, hundred, *_ = map(audience, SMALL)
    three = [audience(size) for size in SMALL[1:]]

    def ask() -> list[Listener]:
        return [reader for reader in everybody if hundred in reader.topics]

    def churn() -> None:
        reader = next(leaving)
        changing.remove(reader)
        changing.add(reader)
        changing.match_any(hundred)

    assert readers.match_any(hundred) == ask()
    assert all(len(readers.match_any(audience(size))) == size for size in sizes)
    ways: dict[str, Callable[[], object]] = {
        "ask everybody": ask,
        "1 match": lambda: readers.match_any(one),
        "100 matches": lambda: readers.match_any(hundred),
        "10,000 matches": lambda: readers.match_any(audience(LARGE)),
        "3 topics, 100 + 125 + 200 matches": lambda: readers.match_any(*three),
        "1 leaves, 1 joins, 100 matches": churn,
    }
    if LARGE not in sizes:
        del ways["10,000 matches"]
    calls = dict.fromkeys(ways, 2_000) | {"ask everybody": max(1, 100_000 // count), "10,000 matches": 50}
    made = compare(ways, calls=calls, rounds=rounds)
    for name, figures in made.items():
        figures["bytes a subscriber"] = taken["list" if name == "ask everybody" else "filter"] / count
    if LARGE in sizes:
        further = made["10,000 matches"]["median"] - made["1 match"]["median"]
        made["10,000 matches"]["ns a further match"] = further / (LARGE - 1) * 1_000
    return made


def new(count: int, rounds: int) -> dict[str, Figures]:
    everybody = sentences(count)
    readers: SkipFilter[str, str] = SkipFilter(operator.eq)
    for reader in everybody:
        readers.add(reader)
    asked = everybody[-1]
    calls = max(1, 100_000 // count)
    fresh = iter(everybody[:-1])  # each is asked about once
    assert readers.match_any(asked) == [asked]
    return compare(
        {
            "ask everybody, ==": lambda: [reader for reader in everybody if reader == asked],
            "new topic, ==": lambda: readers.match_any(next(fresh)),
        },
        calls={"ask everybody, ==": calls, "new topic, ==": calls},
        rounds=rounds,
    )


def filled(everybody: Iterable[Listener]) -> SkipFilter[Listener, str]:
    readers: SkipFilter[Listener, str] = SkipFilter(lambda reader, topic: topic in reader.topics)
    for reader in everybody:
        readers.add(reader)
    return readers

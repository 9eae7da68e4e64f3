"""What do the three tricks of filtering bring, alone and together?

The tricks are those of P. Hintjens, High-speed message matching: portions, likely
patterns first, and subsumption.
"""

from __future__ import annotations

import random
import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from unittest.mock import patch

from bench.benchmark import Case, Lines
from bench.measure import compare
from bench.workloads import SEED
from skipfilter.engines import Filter, OptimizedInvertedBitmap, TrieEngine, optimized_inverted_bitmap
from skipfilter.topics import AMQP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.measure import Figures

Filled = TypeVar("Filled", OptimizedInvertedBitmap[int], TrieEngine[int])

QUESTION = "What do the three tricks of filtering bring to the question whether any pattern matches?"
WORKLOAD = (
    "AMQP patterns of a tenant and four words out of 20; a word is * with a probability of 10 % (few *) or 40 % (many "
    "*). A tenant has 20 patterns. 1,000 random topics of the same tenants and words that any pattern matches "
    "(wanted), or none (unwanted), in turn. Baseline: the optimized inverted bitmap without the tricks; its last AND "
    "stops at the first column. Portions are forced, even if the columns are few. A Filter is `trie, subsumption`."
)
UNIT = "CPU µs a question"
PLOT = Lines(x="patterns", panel="topics")

TOPICS = 1_000
"""The number of topics that are asked about in turn."""
TENANT = 20
"""The number of patterns of a tenant."""
WORDS = [f"w{n}" for n in range(20)]
"""The words of patterns and topics."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: few or many wildcards, topics that match or do not."""
    for spread, one in (("few *", 0.1), ("many *", 0.4)):
        for count in (100, 10_000) if quick else (100, 10_000, 1_000_000):
            for wanted in (True, False):
                panel = f"{spread}, {'wanted' if wanted else 'unwanted'}"
                at: dict[str, float | str] = {"patterns": count, "topics": panel}
                yield Case(f"{panel}, {count:,} patterns", partial(measure, count, one, wanted), at)


def measure(count: int, one: float, wanted: bool, rounds: int) -> dict[str, Figures]:
    """Measure all tricks with `count` patterns, of which a word is `*` with probability
    `one`.
    """
    patterns = subscribed(count, one)
    # 1. The engines: each pattern in the order of arrival, ordered, and without those
    # that another covers.
    plain = filled(OptimizedInvertedBitmap(AMQP), patterns)
    ordered = filled(OptimizedInvertedBitmap(AMQP), patterns)
    ordered._order()
    trie = filled(TrieEngine(AMQP), patterns)
    few, _ = reduced(patterns, OptimizedInvertedBitmap)
    few_ordered, _ = reduced(patterns, OptimizedInvertedBitmap)
    few_trie, seconds = reduced(patterns, TrieEngine)
    few_ordered._engine._order()  # type: ignore[attr-defined]
    # 2. The variants.  No engine orders itself: that is done here.
    for engine in (plain, few._engine):
        engine._unordered = 0  # type: ignore[union-attr]
    topics = asked(count, wanted, trie)
    never, always = len(patterns), 0
    variants = {
        "none": asking(plain.matches, topics, never),
        "portions": asking(plain.matches, topics, always),
        "likely first": asking(ordered.matches, topics, never),
        "portions, likely first": asking(ordered.matches, topics, always),
        "subsumption": asking(few.matches, topics, never),
        "all three": asking(few_ordered.matches, topics, always),
        "trie": asking(trie.matches, topics, None),
        "trie, subsumption": asking(few_trie.matches, topics, None),
    }
    for variant in variants.values():
        assert variant() == len(topics) * wanted
    made = compare(variants, calls=dict.fromkeys(variants, 1), rounds=rounds)
    # 3. The figures of one question; what a subscription costs in a Filter.
    for row in made.values():
        row |= {"min": row["min"] / TOPICS, "median": row["median"] / TOPICS, "max": row["max"] / TOPICS}
    made["trie, subsumption"]["µs a subscription"] = seconds / count * 1e6
    made["trie, subsumption"]["% covered"] = 100 * few_trie.covered / len(few_trie._patterns)
    return made


def asking(matches: Callable[[str], bool], topics: Sequence[str], portioned: int | None) -> Callable[[], int]:
    """Return a function that asks about all topics, and returns how many match.

    Portions are used above `portioned` columns; None leaves that as it is.
    """

    def variant() -> int:
        with ExitStack() as stack:
            if portioned is not None:
                stack.enter_context(patch.object(optimized_inverted_bitmap, "PORTIONED", portioned))
            return sum(map(matches, topics))

    return variant


def subscribed(count: int, one: float) -> list[str]:
    """Return `count` patterns of TENANT tenants."""
    chance = random.Random(SEED + 30)

    def word() -> str:
        return "*" if chance.random() < one else chance.choice(WORDS)

    made = [f"t{n // TENANT}.{word()}.{word()}.{word()}.{word()}" for n in range(count)]
    chance.shuffle(made)
    return made


def asked(count: int, wanted: bool, engine: TrieEngine[int]) -> list[str]:
    """Return TOPICS random topics that match a pattern of `engine`, or that do not."""
    chance = random.Random(SEED + 31)
    made: list[str] = []
    while len(made) < TOPICS:
        topic = ".".join([f"t{chance.randrange(max(count // TENANT, 1))}", *chance.choices(WORDS, k=4)])
        if engine.matches(topic) is wanted:
            made.append(topic)
    return made


def filled(engine: Filled, patterns: Sequence[str]) -> Filled:
    """Subscribe to each of `patterns`, and return the engine."""
    for number, pattern in enumerate(patterns):
        engine.subscribe(pattern, number)
    return engine


def reduced(patterns: Sequence[str], make: Callable[..., object]) -> tuple[Filter, float]:
    """Return a Filter of `patterns`, and the CPU seconds for all subscriptions."""
    some = Filter(AMQP, make)  # type: ignore[arg-type]
    began = time.process_time()
    deque(map(some.subscribe, patterns), maxlen=0)
    return some, time.process_time() - began

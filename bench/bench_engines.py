"""Which engine matches topics fastest, and what do its changes and its memory cost?

The operations and the first two workloads are those of T. Treat, Fast Topic Matching,
2016.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.benchmark import Case, Lines
from bench.measure import compare, figures, memory
from bench.workloads import word_patterns, word_topics
from skipfilter.engines import ENGINES, InvertedBitmap, SkipFilterEngine
from skipfilter.topics import AMQP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.measure import Figures
    from skipfilter.engines import Engine

QUESTION = "Which engine matches topics fastest, and what do its changes and its memory cost?"
WORKLOAD = (
    "AMQP patterns of random words; each subscription has its own value. 1,000 topics in turn; each matches at least "
    "one pattern, and skip_filter and lazy_dfa have cached all of them; `new topics`: the cache is too small for them. "
    "Baseline: test each pattern (naive), for fewer topics if it is slow. inverted_bitmap gets the topics in advance, "
    "and is left out above 1,000 patterns, because indexing takes minutes. `empty` uses 1,000 empty engines, one for "
    "each operation."
)
UNIT = "CPU µs an operation"
PLOT = Lines(x="patterns", panel="lookup")

TOPICS = 1_000
"""The number of topics that are looked up in turn."""
VOCABULARY = 1_000
"""The number of different words in patterns and topics."""
HOT = {"words": 5, "vocabulary": VOCABULARY}
"""The arguments of `word_patterns` for most cases."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: changes, lookups, and a mix of both."""
    for what in ("subscribe", "unsubscribe"):
        yield Case(f"{what}, empty", partial(change_empty, what))
        yield Case(f"{what}, 1,000 patterns of 5 words", partial(change, what))
    yield Case("lookup, empty", partial(lookup, [], word_topics(word_patterns(1_000, **HOT), TOPICS, VOCABULARY)))
    yield Case("lookup, 1,000 patterns of 5 words", partial(lookup_of, 1_000, HOT))
    yield Case("lookup, 1,000 patterns of 3 words of 10", partial(lookup_of, 1_000, {"words": 3, "vocabulary": 10}))
    for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
        stars = {**HOT, "one": 0.15}
        for mix, shape in (("15 % *", stars), ("15 % *, # in 10 %", {**stars, "many": 0.1})):
            at: dict[str, float | str] = {"patterns": count, "lookup": mix}
            yield Case(f"lookup, {count:,} patterns, {mix}", partial(lookup_of, count, shape), at)
    yield Case("10 lookups, 1 new pattern, 10,000 patterns, 15 % *", partial(churn, 10_000))
    yield Case("inverted_bitmap, a topic comes and goes, 1,000 patterns, 100 topics", partial(new_topic, 1_000, 100))


# -- lookups


def lookup_of(count: int, shape: dict[str, Any], rounds: int) -> dict[str, Figures]:
    """Measure lookups among `count` patterns; `shape` is for `word_patterns`."""
    patterns = word_patterns(count, **shape)
    return lookup(patterns, word_topics(patterns, TOPICS, shape["vocabulary"]), rounds)


def lookup(patterns: list[str], topics: list[str], rounds: int) -> dict[str, Figures]:
    """Measure a lookup of each of `topics` among `patterns`, in every engine."""
    # 1. The engines, which must agree.
    makes = factories(topics if len(patterns) <= 1_000 else None)
    engines = {name: filled(make, patterns) for name, make in makes.items()}
    engines["skip_filter, new topics"] = filled(partial(SkipFilterEngine, AMQP, capacity=2), patterns)
    for topic in topics[:20]:
        answer, *others = (engine.lookup(topic) for engine in engines.values())
        assert all(other == answer for other in others)
    # 2. One call looks up all topics, or only a few in the naive engine.
    few = topics[: max(1, 100_000 // max(len(patterns), 100))]
    variants = {name: partial(ask, engine, few if name == "naive" else topics) for name, engine in engines.items()}
    made = compare(variants, calls=dict.fromkeys(variants, 1), rounds=rounds)
    # 3. The figures of one lookup, and the memory.
    for name, row in made.items():
        asked = len(few) if name == "naive" else len(topics)
        row |= {"min": row["min"] / asked, "median": row["median"] / asked, "max": row["max"] / asked}
        row["ratio"] *= len(few) / asked
        if patterns and name in makes:
            row["bytes a subscription"] = memory(partial(filled, makes[name], patterns)) / len(patterns)
    return made


def ask(engine: Engine[int], topics: Sequence[str]) -> None:
    """Look up each of `topics` in `engine`, and drop the results."""
    deque(map(engine.lookup, topics), maxlen=0)


# -- changes


def change_empty(what: str, rounds: int) -> dict[str, Figures]:
    """Measure the only subscription of an engine; `what` is as in `timed`."""
    pattern = word_patterns(1, **HOT)[0]

    def made(make: Callable[[], Engine[int]]) -> list[tuple[Engine[int], str]]:
        """Return 1,000 empty engines, each with the pattern to subscribe to."""
        return [(make(), pattern) for _ in range(1_000)]

    return timed(what, made, rounds)


def change(what: str, rounds: int) -> dict[str, Figures]:
    """Measure 200 subscriptions beside 1,000 others; `what` is as in `timed`."""
    there, coming = (patterns := word_patterns(1_200, **HOT))[:1_000], patterns[1_000:]

    def made(make: Callable[[], Engine[int]]) -> list[tuple[Engine[int], str]]:
        """Return one engine with 1,000 patterns, 200 times, each with a new pattern."""
        engine = filled(make, there)
        return [(engine, pattern) for pattern in coming]

    return timed(what, made, rounds)


def timed(
    what: str, made: Callable[[Callable[[], Engine[int]]], list[tuple[Engine[int], str]]], rounds: int
) -> dict[str, Figures]:
    """Measure subscribing to patterns, or unsubscribing from them, in every engine.

    `made` returns the engines and the patterns, and is called in each round.  `what` is
    subscribe or unsubscribe.
    """
    makes = factories(word_topics(word_patterns(1_000, **HOT), 100, VOCABULARY))
    taken: dict[str, list[float]] = {name: [] for name in makes}
    for _ in range(rounds):
        for name, make in makes.items():
            # Each round does both operations; `what` chooses the one that counts.
            pairs = made(make)
            gc.collect()
            began = time.process_time()
            handles = [engine.subscribe(pattern, number) for number, (engine, pattern) in enumerate(pairs)]
            between = time.process_time()
            for (engine, _), handle in zip(pairs, handles, strict=True):
                engine.unsubscribe(handle)
            ended = time.process_time()
            seconds = between - began if what == "subscribe" else ended - between
            taken[name].append(seconds / len(pairs) * 1e6)
    return {name: figures(times, taken["naive"]) for name, times in taken.items()}


def churn(count: int, rounds: int) -> dict[str, Figures]:
    """Measure a mix of changes and lookups.

    One operation is a subscription to a new pattern, ten lookups, and the end of the
    subscription.
    """
    patterns = word_patterns(count + 1, **HOT, one=0.15)
    coming, there = patterns[0], patterns[1:]
    topics = word_topics(there, 10, VOCABULARY)
    engines = {name: filled(make, there) for name, make in factories(None).items()}

    def variant(engine: Engine[int]) -> None:
        """Do one operation."""
        handle = engine.subscribe(coming, -1)
        ask(engine, topics)
        engine.unsubscribe(handle)

    variants = {name: partial(variant, engine) for name, engine in engines.items()}
    return compare(variants, calls={name: 1 if name == "naive" else 50 for name in variants}, rounds=rounds)


def new_topic(count: int, topics: int, rounds: int) -> dict[str, Figures]:
    """Measure a new topic of an inverted bitmap, beside making the engine again."""
    patterns = word_patterns(count, **HOT)
    there = word_topics(patterns, topics, VOCABULARY)
    engine: InvertedBitmap[int] = InvertedBitmap(AMQP, there)
    for number, pattern in enumerate(patterns):
        engine.subscribe(pattern, number)

    def come_and_go() -> None:
        """Add a topic, and remove it."""
        engine.add_topic("a.new.topic.of.five")
        engine.remove_topic("a.new.topic.of.five")

    variants: dict[str, Callable[[], object]] = {
        "make the engine again": partial(filled, partial(InvertedBitmap, AMQP, there), patterns),
        "add_topic, remove_topic": come_and_go,
    }
    return compare(variants, calls={"make the engine again": 1, "add_topic, remove_topic": 20}, rounds=rounds)


# -- engines


def factories(topics: list[str] | None) -> dict[str, Callable[[], Engine[int]]]:
    """Return, for each engine, a function that makes it.

    The first one is naive, the baseline.  If `topics` is None, inverted_bitmap, which
    needs them, is left out.
    """
    made: dict[str, Callable[[], Engine[int]]] = {name: partial(make, AMQP) for name, make in ENGINES.items()}
    return made if topics is None else made | {"inverted_bitmap": partial(InvertedBitmap, AMQP, topics)}


def filled(make: Callable[[], Engine[int]], patterns: Sequence[str]) -> Engine[int]:
    """Return a new engine with a subscription to each of `patterns`."""
    engine = make()
    for number, pattern in enumerate(patterns):
        engine.subscribe(pattern, number)
    return engine

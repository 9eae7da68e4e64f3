"""Measures a checkout of the project: the script that `checkouts` runs.

    python bench/worker.py WORKLOAD      reads an argument from stdin, and writes
                                         figures to stdout, both as JSON

It imports no other part of `bench`, so that it can measure an older `skipfilter` and
`hub`: those of the checkout that PYTHONPATH names.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count as numbers
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Figures
    from skipfilter import SkipFilter

SITE: Final = "https://example.com"
CALLS: Final = 4_000
"""How many calls are timed, each alone."""
PASSES: Final = 5
"""How often all topics are looked up."""
SUBSCRIBERS: Final = 100_000
FILLING_BYTES: Final = 8 << 20
"""How much a process must grow before its memory is measured."""


def topic(operation: str) -> Figures:
    """Measure an operation among 100,000 templates, one of which matches a topic."""
    readers, others = filled(SUBSCRIBERS), filled(1_000)
    fresh = numbers(10**6)
    known = f"{SITE}/books/77/1"
    new = ""

    def arrive(at: SkipFilter[int, str], path: str = "/books/5/{id}") -> None:
        n = next(fresh)
        at.add(n, [("uritemplate", SITE + path.replace("*", str(n)))])

    def name() -> None:
        nonlocal new
        n = next(fresh)
        new = f"{SITE}/books/{n % SUBSCRIBERS}/{n}"

    def ask_known() -> object:
        return readers.match_any(known)

    def ask_new() -> object:
        return readers.match_any(new)

    # Between two lookups of a known topic, another filter takes in a value: then the
    # caches of the processor are in the same state as after an arrival.
    operations: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "known": (ask_known, lambda: arrive(others)),
        "arrival": (ask_known, lambda: arrive(readers)),
        "own template": (ask_known, lambda: arrive(readers, "/books/*/{id}")),
        "new topic": (ask_new, name),
        "declare": (lambda: arrive(readers, "/users/*/{id}"), int),
    }
    for _ in range(3):
        assert ask_known() == [77]
    # By turns, because the machine may become slower or faster.
    turns = [
        (microseconds(*operations["known"], CALLS // 8), microseconds(*operations[operation], CALLS // 8))
        for _ in range(8)
    ]
    known_takes, takes = map(statistics.median, zip(*turns, strict=True))
    return {"µs": takes, "times a known topic": takes / known_takes}


def predicate(count: int) -> Figures:
    """Measure the first question about a key, among `count` values."""
    from skipfilter import SkipFilter

    multiples: SkipFilter[int, int] = SkipFilter(lambda value, key: value % key == 0)
    for number in range(count):
        multiples.add(number)
    keys = numbers(1_000)
    return {"µs": microseconds(lambda: multiples.match_any(next(keys)), int, max(5, 400_000 // count))}


def mqtt(patterns_and_topics: tuple[list[str], list[str]]) -> Figures:
    """Measure the lookup of new topics among MQTT patterns."""
    from skipfilter import SelectorIndex, SkipFilter

    patterns, topics = patterns_and_topics
    # Less capacity than topics, so that no topic is in the cache when it comes again.
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex(), capacity=len(topics) // 4)
    for n, pattern in enumerate(patterns):
        readers.add(n, [("mqtt", pattern)])
    return _each(readers.match_any, topics)


def paho(patterns_and_topics: tuple[list[str], list[str]]) -> Figures:
    """Measure the same with the matcher of paho-mqtt."""
    from paho.mqtt.matcher import MQTTMatcher

    patterns, topics = patterns_and_topics
    matcher: Any = MQTTMatcher()  # type: ignore[no-untyped-call]
    for n, pattern in enumerate(patterns):
        matcher[pattern] = n
    return _each(lambda topic: list(matcher.iter_match(topic)), topics)


@dataclass(frozen=True, slots=True, eq=False)
class Receiver:
    subscriber: Any


def memory(topics_times_lists: tuple[int, int, int]) -> Figures:
    """Measure the memory of topics in the filter of a hub.

    Of 200,000 receivers, 100,000 subscribe to each topic, by one or by two templates.
    Each topic is looked up some times.
    """
    from hub.delivery.audience import Key, SeatIndex
    from skipfilter import SkipFilter

    topics, times, lists = topics_times_lists
    # As the hub makes it.
    readers: SkipFilter[Any, Key] = SkipFilter(SeatIndex(SITE), capacity=200_000, lock=nullcontext())
    subscribed = [True, False] * SUBSCRIBERS
    random.Random(1).shuffle(subscribed)
    for n, is_one in enumerate(subscribed):
        template = "/films/{id}" if not is_one else "/books/{id}" if n % lists == 0 else "/{kind}/1{id}"
        matcher = SimpleNamespace(selectors=[("uritemplate", SITE + template)])
        readers.add(Receiver(SimpleNamespace(subscribed=[matcher], grant=SimpleNamespace(subscribe=[]))))
    keys: list[Key] = [("subscribed", f"{SITE}/books/1{n}") for n in range(topics)]
    for key in keys[:10]:
        assert len(readers.bitmap(key)) == SUBSCRIBERS
    # Small objects use up the free space of the heap, so that topics must make it grow.
    start, filling = _resident(), list[list[bytes]]()
    while _resident() < start + FILLING_BYTES:
        filling.append([bytes(100) for _ in range(10_000)])
    before = _resident()
    for _ in range(times):
        for key in keys:
            readers.bitmap(key)
    return {"bytes": max(1.0, (_resident() - before) / topics)}  # never 0, because of the ratio


def subscriptions(kind_count_way: tuple[str, int, str]) -> Figures:
    """Measure the memory and the time of subscriptions with a pattern of their own.

    The way is `add`, `add_many`, or `paho`, with the matcher of paho-mqtt.
    """
    kind, count, way = kind_count_way
    ask: Callable[[str], list[Any]]
    if way == "paho":
        from paho.mqtt.matcher import MQTTMatcher

        readers: Any = MQTTMatcher()  # type: ignore[no-untyped-call]

        def ask(topic: str) -> list[Any]:
            return list(readers.iter_match(topic))
    else:
        from skipfilter import SelectorIndex, SkipFilter

        readers = SkipFilter(SelectorIndex())
        ask = readers.match_any
    matcher_type, pattern, topic = SUBSCRIPTIONS[kind]
    before, began = _resident(), time.process_time()
    if way == "paho":
        for n in range(count):
            readers[pattern(n)] = n
    elif way == "add_many":
        readers.add_many((n, [(matcher_type, pattern(n))]) for n in range(count))
    else:
        for n in range(count):
            readers.add(n, [(matcher_type, pattern(n))])
    taken = time.process_time() - began
    took = (_resident() - before) / count
    chance, new = random.Random(2), ""
    for n in [chance.randrange(count) for _ in range(CALLS)]:
        assert n in ask(topic(n, 10**6))

    def name() -> None:
        nonlocal new
        new = topic(chance.randrange(count), chance.randrange(10**9))

    known = topic(count // 2, 7)
    for _ in range(3):
        ask(known)
    return {
        "bytes": took,
        "µs to add": taken / count * 1e6,
        "µs a new topic": microseconds(lambda: ask(new), name, CALLS),
        "µs a known topic": microseconds(lambda: ask(known), int, CALLS),
    }


def _random_words(n: int, x: int | None = None) -> str:
    """Return an MQTT filter of five random words out of 1,000, one of which is a +; or
    a topic that it matches, with the word x.
    """
    chance = random.Random(n)
    words = [f"w{chance.randrange(1_000)}" for _ in range(5)]
    words[chance.randrange(5)] = "+" if x is None else f"x{x}"
    return "/".join(words)


SUBSCRIPTIONS: Final[dict[str, tuple[str, Callable[[int], str], Callable[[int, int], str]]]] = {
    "machines": (
        "mqtt",
        lambda n: f"plant{n % 20}/line{n // 20 % 50}/machine{n // 1_000}/+/metric{n % 7}",
        lambda n, x: f"plant{n % 20}/line{n // 20 % 50}/machine{n // 1_000}/{x}/metric{n % 7}",
    ),
    "random words": ("mqtt", _random_words, _random_words),
    "exact": ("exact", lambda n: f"{SITE}/users/{n}/orders", lambda n, _: f"{SITE}/users/{n}/orders"),
    "template": ("uritemplate", lambda n: f"{SITE}/users/{n}/{{kind}}/{{id}}", lambda n, x: f"{SITE}/users/{n}/o/{x}"),
    "template with a query": (
        "uritemplate",
        lambda n: f"{SITE}/users/{n}{{?page}}",
        lambda n, x: f"{SITE}/users/{n}?page={x}",
    ),
    "url pattern": ("urlpattern", lambda n: f"{SITE}/users/{n}/:id", lambda n, x: f"{SITE}/users/{n}/{x}"),
}
"""Kinds of patterns: the matcher type, pattern number n, and a topic that it matches.
"""


def filled(count: int) -> SkipFilter[int, str]:
    """Return a filter of `count` subscribers, each with a template of its own."""
    from skipfilter import SelectorIndex, SkipFilter

    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex())
    for n in range(count):
        readers.add(n, [("uritemplate", f"{SITE}/books/{n}/{{id}}")])
    return readers


def microseconds(call: Callable[[], object], between: Callable[[], object], calls: int) -> float:
    """Return the median time of a call.

    Each is timed alone, and `between` runs before it, untimed.
    """
    clock = time.perf_counter_ns
    taken = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(calls):
            between()
            start = clock()
            call()
            end = clock()
            taken.append(end - start - (clock() - end))  # without the time of the clock
    finally:
        gc.enable()
    return statistics.median(taken) / 1_000


def _each(ask: Callable[[str], object], topics: list[str]) -> Figures:
    """Return the mean CPU time of a lookup: the median of some passes over all
    topics.
    """
    taken = []
    for _ in range(PASSES):
        gc.collect()
        gc.disable()
        began = time.process_time()
        for topic in topics:
            ask(topic)
        taken.append(time.process_time() - began)
        gc.enable()
    return {"µs": statistics.median(taken) / len(topics) * 1e6}


def _resident() -> int:
    """Return the private resident bytes of this process, without garbage and free
    memory.  Linux only.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _, pages, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


WORKLOADS: Final[dict[str, Callable[..., Figures]]] = {
    workload.__name__: workload for workload in (topic, predicate, mqtt, paho, memory, subscriptions)
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(WORKLOADS[sys.argv[1]](json.loads(sys.stdin.read()))))

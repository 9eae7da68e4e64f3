"""What does a topic cost: known, after an arrival, and new?

Compared with an older checkout, if BENCH_BEFORE names one, and with the matcher of
paho-mqtt, a trie of dictionaries in Python.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from bench import checkouts
from bench.benchmark import Bars, Case
from bench.checkouts import Variant, in_turn, variants
from bench.workloads import word_patterns, word_topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does a topic cost that is known, known but for an arrival, or new?"
WORKLOAD = (
    "Each of 100,000 subscribers has a URI template of its own under the same host, and one matches the topic. Before "
    "each lookup, a subscriber arrives: in another filter (a known topic), with a template that is in use, or with one "
    "of its own. A predicate is `value % key == 0`. Of the MQTT patterns, 15 % of the words are a `+`; the short ones "
    "have 3 words out of 10, without wildcards. Baseline: the code before, or paho-mqtt."
)
PLOT = Bars()
UNIT = "µs a call"

OPERATIONS: Final = {
    "a known topic": ("topic", "known"),
    "a known topic, after an arrival": ("topic", "arrival"),
    "a known topic, after an arrival with its own template": ("topic", "own template"),
    "a new topic": ("topic", "new topic"),
    "a declaration": ("topic", "declare"),
    "a predicate's first question, 10,000 values": ("predicate", 10_000),
    "a predicate's first question, 100,000 values": ("predicate", 100_000),
}
LONG: Final = {"words": 5, "vocabulary": 1_000, "one": 0.15}
SHORT: Final = {"words": 3, "vocabulary": 10}


def versions() -> dict[str, str]:
    """Return the version of paho-mqtt, and the commit of the older checkout."""
    return {"paho-mqtt": version("paho-mqtt")} | checkouts.versions()


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: the operations, then topics among MQTT patterns."""
    for label, (workload, argument) in OPERATIONS.items():
        yield Case(label, partial(compare, workload, argument))
    for count in (1_000,) if quick else (1_000, 10_000, 100_000):
        yield Case(f"a new topic, {count:,} MQTT patterns", partial(beside_paho, count, LONG))
    yield Case("a new topic, 1,000 short MQTT patterns", partial(beside_paho, 1_000, SHORT))
    yield Case("a new topic, 10,000 MQTT patterns that end in #", partial(beside_paho, 10_000, LONG, end="#"))


def compare(workload: str, argument: object, rounds: int) -> dict[str, Figures]:
    """Measure a workload in each checkout."""
    return in_turn(variants(workload, argument), rounds, of="µs")


def beside_paho(count: int, shape: dict[str, Any], rounds: int, end: str = "") -> dict[str, Figures]:
    """Measure new topics among MQTT patterns, in paho-mqtt and in each checkout."""
    patterns = word_patterns(count, **shape)
    topics = list(dict.fromkeys(word_topics(patterns, 4_000, shape["vocabulary"])))
    written = [pattern.replace(".", "/").replace("*", "+") for pattern in patterns]
    if end:
        written = [f"{pattern.rpartition('/')[0]}/{end}" for pattern in written]
    argument = written, [topic.replace(".", "/") for topic in topics]
    return in_turn({"paho-mqtt": Variant("paho", argument)} | variants("mqtt", argument), rounds, of="µs")

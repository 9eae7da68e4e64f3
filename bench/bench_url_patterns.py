"""What does a URL Pattern cost, in time and in memory?

It is compared with a URI template of the same shape, and with an object of the package
`urlpattern`, which the library used before.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from itertools import count as numbers
from typing import TYPE_CHECKING, Final, NamedTuple

from urlpattern import URLPattern

from bench.benchmark import Case, Lines
from bench.measure import compare, memory
from bench.workloads import Selectors, new_topics
from skipfilter import SelectorIndex, SkipFilter, UrlPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bench.measure import Figures
    from skipfilter import Selector

QUESTION = "What does a URL Pattern cost, in time and in memory?"
WORKLOAD = (
    "One pattern for each subscriber, all different: a number and then a name, which has a group or not. Every lookup "
    "has a new topic, which one of the patterns matches. Baseline: URI templates of the same shape. The objects of the "
    "package urlpattern are tested one by one, so there are 1,000 of them at most. The bytes are those of the filter "
    "with its index, or of a list of the objects, after a lookup of each pattern, but of 10,000 at most; the filter "
    "caches these topics. Two more cases: a match of one pattern, and its compilation; there, the baseline is the "
    "package."
)
PLOT = Lines(x="patterns", panel="family")

USERS: Final = "https://example.com/users"
MAX_OBJECTS: Final = 1_000
"""The maximum number of objects of the package; each takes up to 2 MB."""
LOOKUPS: Final = 10_000
"""The maximum number of patterns that are looked up before the memory is measured."""


class Family(NamedTuple):
    """Patterns, from a number and the text after it, and topics that match."""

    end: str
    topic_end: str
    most: int


FAMILIES: Final = {
    "plain": Family("/:x", "", 1_000_000),
    "a number": Family(r"/:x(\d+)", "", 10_000),
    "a UUID": Family(
        "/:x([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", "-7c3d-7e4f-8a9b-0123456789ab", 10_000
    ),
}


def versions() -> dict[str, str]:
    """Return the versions of the packages that match."""
    return {name: version(name) for name in ("ada-url", "google-re2", "urlpattern")}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: one pattern, then each family with some numbers."""
    for name, family in FAMILIES.items():
        yield Case(f"a match, {name}", partial(one_match, family))
        yield Case(f"a compilation, {name}", partial(one_compilation, family))
    for name, family in FAMILIES.items():
        for count in (10, 1_000) if quick else (10, 1_000, 10_000, 100_000, 1_000_000):
            if count <= family.most:
                yield Case(
                    f"{name}, {count:,}", partial(measure, family, count), at={"patterns": count, "family": name}
                )


def one_match(family: Family, rounds: int) -> dict[str, Figures]:
    """Measure a match of one pattern: a new topic, and one that is asked again."""
    pattern = f"{USERS}/42{family.end}"
    ours, theirs = UrlPattern(pattern), URLPattern(pattern)
    topic = f"{USERS}/42/12345678{family.topic_end}"
    assert ours.match(topic)
    assert theirs.test(topic)
    fresh = (f"{USERS}/42/{n}{family.topic_end}" for n in numbers(10**7))
    return compare(
        {
            "package urlpattern": partial(theirs.test, topic),
            "a topic asked again": partial(ours.match, topic),
            "a new topic": lambda: ours.match(next(fresh)),
        },
        calls={"package urlpattern": 5_000, "a topic asked again": 5_000, "a new topic": 5_000},
        rounds=rounds,
    )


def one_compilation(family: Family, rounds: int) -> dict[str, Figures]:
    """Measure how long it takes to compile a new pattern."""
    fresh, others = (f"{USERS}/{n}{family.end}" for n in numbers()), (f"{USERS}/{n}{family.end}" for n in numbers())
    return compare(
        {"package urlpattern": lambda: URLPattern(next(others)), "UrlPattern": lambda: UrlPattern(next(fresh))},
        calls={"package urlpattern": 100, "UrlPattern": 1_000},
        rounds=rounds,
    )


def measure(family: Family, count: int, rounds: int) -> dict[str, Figures]:
    """Measure lookups among `count` patterns of a family, and their memory."""
    calls = 4_000
    # Equal automata share their memory, so each build has paths of its own.
    builds = (f"{USERS}{n}" for n in numbers())
    taken = {
        "URI templates": memory(lambda: templates(next(builds), family, count)),
        "URL Patterns": memory(lambda: patterns(next(builds), family, count)),
    }
    site = next(builds)
    shape = Selectors(partial(_pattern, site, family), partial(_topic, site, family))
    topics = new_topics(shape, count, calls * (rounds + 1))
    usual, ours = templates(site, family, count), patterns(site, family, count)
    assert all(usual.match_any(topic) == ours.match_any(topic) != [] for topic in topics[-100:])
    fresh, others = iter(topics), iter(topics)
    variants: dict[str, Callable[[], object]] = {
        "URI templates": lambda: usual.match_any(next(fresh)),
        "URL Patterns": lambda: ours.match_any(next(others)),
    }
    if count <= MAX_OBJECTS:
        taken["package urlpattern"] = memory(lambda: objects(next(builds), family, count))
        tested, more = objects(site, family, count), iter(topics)
        variants["package urlpattern"] = lambda: test_all(tested, next(more))
    made = compare(
        variants,
        calls={"URI templates": calls, "URL Patterns": calls, "package urlpattern": max(4, 10_000 // count)},
        rounds=rounds,
    )
    for name, its in made.items():
        its["bytes a pattern"] = taken[name] / count
    return made


def _pattern(site: str, family: Family, n: int) -> str:
    return f"{site}/{n}{family.end}"


def _topic(site: str, family: Family, n: int, x: int) -> str:
    return f"{site}/{n}/{x % 10**8:08}{family.topic_end}"


def templates(site: str, family: Family, count: int) -> SkipFilter[int, str]:
    """Return a filter with a URI template for each subscriber, after lookups."""
    return filled(site, family, (("uritemplate", f"{site}/{n}/{{x}}") for n in range(count)))


def patterns(site: str, family: Family, count: int) -> SkipFilter[int, str]:
    """Return a filter with a URL Pattern for each subscriber, after lookups."""
    return filled(site, family, (("urlpattern", _pattern(site, family, n)) for n in range(count)))


def filled(site: str, family: Family, selectors: Iterable[Selector]) -> SkipFilter[int, str]:
    """Return a filter with a subscriber for each selector, after lookups."""
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex(max_url_patterns=sys.maxsize))
    for n, selector in enumerate(selectors):
        readers.add(n, [selector])
    for n in range(min(len(readers), LOOKUPS)):
        assert readers.match_any(_topic(site, family, n, n)) == [n]
    return readers


def objects(site: str, family: Family, count: int) -> list[URLPattern]:
    """Return objects of the package, after lookups."""
    made = [URLPattern(_pattern(site, family, n)) for n in range(count)]
    for n in range(count):
        assert test_all(made, _topic(site, family, n, n)) == [n]
    return made


def test_all(patterns: list[URLPattern], topic: str) -> list[int]:
    """Return the numbers of the patterns that match."""
    return [n for n, pattern in enumerate(patterns) if pattern.test(topic)]

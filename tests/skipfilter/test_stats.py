"""The bytes that a filter tells are those that Python allocates, give or take a fifth."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from skipfilter import FieldFilter, SelectorIndex, SkipFilter
from skipfilter.fields import any_of, at_least, not_, one_of, prefix, present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 4_000


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """Return how many bytes Python has allocated since the test began."""
    gc.collect()
    tracemalloc.start(1)

    def now() -> int:
        gc.collect()
        return sum(trace.size for trace in tracemalloc.take_snapshot().traces)

    yield now
    tracemalloc.stop()


def told(readers: Any) -> int:
    stats = readers.stats()
    total: int = stats.value_bytes + stats.pattern_bytes + stats.index_bytes
    return total


@pytest.mark.parametrize(
    ("matcher_type", "pattern"),
    [
        ("exact", "https://example.com/users/{}"),
        ("mqtt", "plant/line/machine{}/+/metric"),
        ("amqp", "a{}.b.*.#"),
        ("uritemplate", "https://example.com/users/{}/{{resource}}/{{id}}"),
        ("uritemplate", "https://example.com/users/{}/books/{{id}}"),
        ("uritemplate", "https://example.com/users/{}{{?page}}"),
        ("urlpattern", "https://example.com/users/{}/:id"),
    ],
)
def test_the_bytes_of_selectors(traced: Callable[[], int], matcher_type: str, pattern: str) -> None:
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex())
    # What all filters of the process share: modules that are imported late, and parsed patterns.
    others: SkipFilter[int, str] = SkipFilter(SelectorIndex())
    for number in range(COUNT):
        others.add(number, [(matcher_type, pattern.format(COUNT + number))])
    before = traced()
    for number in range(COUNT):
        readers.add(number, [(matcher_type, pattern.format(number))])
    allocated = traced() - before
    assert 0.8 <= told(readers) / allocated <= 1.25
    assert readers.stats()[:4] == (COUNT, COUNT, 0, 0)
    for number in range(COUNT):
        readers.remove(number)
    stats = readers.stats()
    assert (stats.values, stats.patterns, stats.pattern_bytes) == (0, 0, 0)


def test_the_bytes_of_rules(traced: Callable[[], int]) -> None:
    rules: FieldFilter[int] = FieldFilter()
    before = traced()
    for number in range(COUNT):
        rules.add(
            number,
            one_of("customer", f"c{number}", f"d{number}")
            & any_of(at_least("total", number), prefix("path", f"/{number}"))
            & not_(present("test")),
        )
    # Bitmaps are not allocated by Python: 2 KB of them for each rule here.
    assert 0.9 <= told(rules) / (traced() - before) <= 2
    assert rules.stats()[:4] == (COUNT, 2 * COUNT, 0, 0)
    rules.clear()
    assert told(rules) < 10_000


def test_a_shared_selector_costs_an_id() -> None:
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex())
    readers.add_many((number, [("mqtt", "a/+")]) for number in range(1_000))
    stats = readers.stats()
    assert (stats.values, stats.patterns) == (1_000, 1)
    assert stats.index_bytes < 60_000
    assert told(readers) < 260_000  # as the README says


def test_the_cache_is_told() -> None:
    readers: SkipFilter[int, str] = SkipFilter(lambda value, key: len(key) > value)
    readers.add_many(range(10))
    assert readers.match_any("x" * 1_000) == list(range(10))
    stats = readers.stats()
    assert (stats.keys, stats.misses, stats.patterns) == (1, 1, 0)
    assert stats.cache_bytes > 1_000


@pytest.mark.parametrize("names", [1, 50])
def test_the_bytes_of_selectors_that_values_share(traced: Callable[[], int], names: int) -> None:
    """Many selectors of a value, or other names of variables, are kept for each value."""
    readers: SkipFilter[int, str] = SkipFilter(SelectorIndex())

    def selectors(variable: str) -> list[tuple[str, str]]:
        return [("uritemplate", f"https://example.com/{n}/{{{variable}}}") for n in range(names)]

    readers.add(-1, selectors("id"))
    before = told(readers), traced()
    for number in range(COUNT):
        readers.add(number, selectors(f"id{number}" if number % 2 else "id"))
    allocated = traced() - before[1]
    assert 0.7 <= (told(readers) - before[0]) / allocated <= 1.4
    readers._check()


def test_the_bytes_of_criteria_that_values_share(traced: Callable[[], int]) -> None:
    rules: FieldFilter[int] = FieldFilter()
    criteria = [("customer", f"c{n}") for n in range(90)]
    before = traced()
    for number in range(COUNT):
        rules.add(number, criteria)
    assert 0.5 <= told(rules) / (traced() - before) <= 2

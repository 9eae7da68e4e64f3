"""skipfilter.bulk.wide_selectors: the numbers of matching selectors, also in parts."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipfilter import Selector, compile_matcher
from skipfilter.bulk.wide_selectors import Wide, find_numbers, in_parts, index_bytes, index_of
from tests.skipfilter.worlds import BASE, SELECTORS, TOPICS


def found(topics: list[str], wide: Wide) -> list[tuple[list[int], int]]:
    batches = [pa.record_batch([pa.array(some, pa.string())], ["topic"]) for some in (topics[:3], topics[3:])]
    rows = [row for batch in find_numbers(batches, wide) for row in batch.to_pylist()]
    assert [row["topic"] for row in rows] == topics
    return [(row["wide"], row["declared"]) for row in rows]


@given(
    st.lists(st.sampled_from(TOPICS), max_size=8),
    st.lists(st.sampled_from(SELECTORS), unique=True),
    st.integers(0, 8_000),
)
def test_the_numbers_agree_with_each_matcher_also_in_parts(
    topics: list[str], selectors: list[Selector], most: int
) -> None:
    expected = [
        [n for n, selector in enumerate(selectors) if compile_matcher(*selector, base_url=BASE).match(topic)]
        for topic in topics
    ]
    wide = Wide(list(selectors), BASE, np.arange(len(selectors)) * 10)
    assert found(topics, wide) == [(numbers, 10 * sum(numbers)) for numbers in expected]
    # In parts, each with the numbers from 0 on.
    parts = list(in_parts(list(selectors), BASE, most))
    assert [selector for part in parts for selector in part.selectors] == selectors
    assert all(len(part.selectors) == 1 or size(part) <= most for part in parts)
    passing = [[bool(numbers) for numbers, _ in found(topics, part)] for part in parts]
    assert [any(some) for some in zip(*passing, strict=True)] == [bool(numbers) for numbers in expected if parts]


def size(part: Wide) -> int:
    return sum(index_bytes(*selector) for selector in part.selectors)


def test_parts_are_as_large_as_they_may_be() -> None:
    selectors = [("amqp", f"a.{n}") for n in range(100, 200)]
    sizes = [len(part.selectors) for part in in_parts(selectors, None, 10 * index_bytes("amqp", "a.100"))]
    assert sizes == [10] * 10


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (("exact", "/a"), ("uritemplate", "/{a}")),
        (("uritemplate", "/{a}"), ("uritemplate", "/{a}/{b}/{c}")),
        (("urlpattern", "/a/:n"), ("urlpattern", "/a/(b)")),
    ],
)
def test_a_selector_with_more_nodes_or_an_automaton_takes_more(less: Selector, more: Selector) -> None:
    assert index_bytes(*less) < index_bytes(*more)


def test_a_pickled_copy_finds_the_index_that_was_built() -> None:
    wide = Wide([("mqtt", "#")], None, np.ones(1, np.int64))
    assert index_of(pickle.loads(pickle.dumps(wide))) is index_of(wide)
    assert index_of(Wide([("mqtt", "#")], None, np.ones(1, np.int64))) is not index_of(wide)

"""The segmented cache: agreement with two lists, and keys that are seen once."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skipfilter.cache import SegmentedCache


class Naive:
    """`new` and `kept` are lists, oldest and least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.most_new = max(1, capacity // 5)
        self.most_kept = capacity - self.most_new
        self.new: list[tuple[int, object]] = []
        self.kept: list[tuple[int, object]] = []

    def get(self, key: int) -> object | None:
        for segment in (self.new, self.kept):
            for pair in segment:
                if pair[0] == key:
                    segment.remove(pair)
                    self.kept = [*self.kept, pair][-self.most_kept :]
                    return pair[1]
        return None

    def add(self, key: int, entry: object) -> None:
        self.new = [*self.new, (key, entry)][-self.most_new :]


@settings(deadline=None)
@given(
    st.sampled_from([2, 3, 4, 5, 8, 9, 10, 11]),
    st.lists(st.integers(0, 12), max_size=80),
)
@example(4, [4, 4, 3, 3, 1, 1, 0, 4, 0])  # iterating over the entries does not count as use
def test_the_cache_agrees_with_a_model_of_two_lists(capacity: int, keys: list[int]) -> None:
    cache: SegmentedCache[int, object] = SegmentedCache(capacity)
    naive = Naive(capacity)
    for key in keys:
        entry = cache.get(key)
        assert entry is naive.get(key)
        if entry is None:
            entry = object()
            cache.add(key, entry)
            naive.add(key, entry)
        cache._check()
        assert len(cache) == len(naive.new) + len(naive.kept) <= capacity
        assert set(cache.entries()) == {entry for _, entry in naive.new + naive.kept}


@pytest.mark.parametrize("capacity", [1, 0, -1])
def test_a_capacity_below_two_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity must be at least 2, not {capacity}"):
        SegmentedCache(capacity)


def test_keys_seen_once_do_not_displace_keys_seen_twice() -> None:
    cache: SegmentedCache[object, str] = SegmentedCache(10)
    for key in "abcdefgh":
        cache.add(key, key)
        assert cache.get(key) == key
    for number in range(1000):
        assert cache.get(number) is None
        cache.add(number, "once")
        assert len(cache) <= 10
    assert [cache.get(key) for key in "abcdefgh"] == list("abcdefgh")


def test_a_key_seen_twice_displaces_the_least_recently_used_one() -> None:
    cache: SegmentedCache[str, str] = SegmentedCache(10)
    for key in "abcdefgh":
        cache.add(key, key)
        cache.get(key)
    cache.get("a")
    cache.add("i", "i")
    cache.get("i")
    assert [key for key in "abcdefghi" if cache.get(key) is None] == ["b"]

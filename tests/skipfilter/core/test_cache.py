"""The segmented cache: agreement with two lists, and keys that are seen once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skipfilter.core.cache import SegmentedCache


@dataclass(eq=False)
class Item:
    """An entry of some size."""

    size: int = 0


class Naive:
    """`new` and `kept` are lists, oldest and least recently used first."""

    def __init__(self, capacity: int, max_bytes: int) -> None:
        self.most_new, self.most_new_bytes = max(1, capacity // 5), max_bytes // 5
        self.most_kept, self.most_kept_bytes = capacity - self.most_new, max_bytes - self.most_new_bytes
        self.new: list[tuple[int, Item]] = []
        self.kept: list[tuple[int, Item]] = []

    def get(self, key: int) -> Item | None:
        pair = self.removed(key)
        if pair is None:
            return None
        self.kept = cut(self.kept, pair, self.most_kept, self.most_kept_bytes)
        return pair[1]

    def add(self, key: int, entry: Item) -> None:
        self.removed(key)
        self.new = cut(self.new, (key, entry), self.most_new, self.most_new_bytes)

    def resize(self, key: int, entry: Item) -> None:
        """Take in the new size of an entry."""
        if (key, entry) in self.kept:
            self.get(key)
        elif (key, entry) in self.new:
            self.add(key, entry)

    def removed(self, key: int) -> tuple[int, Item] | None:
        pair = next((pair for pair in self.new + self.kept if pair[0] == key), None)
        self.new = [one for one in self.new if one != pair]
        self.kept = [one for one in self.kept if one != pair]
        return pair


def cut(segment: list[tuple[int, Item]], pair: tuple[int, Item], most: int, most_bytes: int) -> list[tuple[int, Item]]:
    """Add a pair, unless it is too large by itself, and drop the oldest ones."""
    if pair[1].size > most_bytes:
        return segment
    segment = [*segment, pair][-most:]
    while sum(entry.size for _, entry in segment) > most_bytes:
        segment = segment[1:]
    return segment


steps = st.tuples(st.sampled_from(["use", "use", "use", "add", "resize", "pop"]), st.integers(0, 12), st.integers(0, 9))


@settings(deadline=None)
@given(
    st.sampled_from([2, 3, 4, 5, 8, 9, 10, 11]), st.sampled_from([0, 5, 20, 45, 10**6]), st.lists(steps, max_size=80)
)
@example(4, 10**6, [("use", key, 0) for key in (4, 4, 3, 3, 1, 1, 0, 4, 0)])  # iterating does not count as use
def test_the_cache_agrees_with_a_model_of_two_lists(
    capacity: int, max_bytes: int, steps: list[tuple[str, int, int]]
) -> None:
    cache: SegmentedCache[int, Item] = SegmentedCache(capacity, max_bytes)
    naive = Naive(capacity, max_bytes)
    items: dict[int, Item] = {}  # the newest item of each key, cached or not
    for what, key, size in steps:
        if what == "use":
            entry = cache.get(key)
            assert entry is naive.get(key)
        elif what == "resize":
            cache.resize(key, items.setdefault(key, Item()), size)
            assert items[key].size == size
            naive.resize(key, items[key])
        elif what == "pop":
            pair = naive.removed(key)
            assert cache.pop(key) is (pair and pair[1])
        if what == "add" or (what == "use" and entry is None):
            items[key] = Item(size)
            cache.add(key, items[key])
            naive.add(key, items[key])
        cache._check()
        assert [*cache._new.items()] == naive.new
        assert [*cache._kept.items()] == naive.kept
        assert len(cache) == len(naive.new) + len(naive.kept) <= capacity
        assert list(cache.entries()) == [entry for _, entry in naive.kept + naive.new]
    cache.clear()
    cache._check()
    assert len(cache) == 0


@pytest.mark.parametrize("capacity", [1, 0, -1])
def test_a_capacity_below_two_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity must be at least 2, not {capacity}"):
        SegmentedCache(capacity)


def test_a_negative_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes must be at least 0, not -1"):
        SegmentedCache(2, -1)


def test_keys_seen_once_do_not_displace_keys_seen_twice() -> None:
    cache: SegmentedCache[object, Item] = SegmentedCache(10)
    kept = {key: Item() for key in "abcdefgh"}
    for key, item in kept.items():
        cache.add(key, item)
        assert cache.get(key) is item
    for number in range(1000):
        assert cache.get(number) is None
        cache.add(number, Item())
        assert len(cache) <= 10
    assert {key: cache.get(key) for key in kept} == kept


def test_a_key_seen_twice_displaces_the_least_recently_used_one() -> None:
    cache: SegmentedCache[str, Item] = SegmentedCache(10)
    for key in "abcdefgh":
        cache.add(key, Item())
        cache.get(key)
    cache.get("a")
    cache.add("i", Item())
    cache.get("i")
    assert [key for key in "abcdefghi" if cache.get(key) is None] == ["b"]


@pytest.mark.parametrize("capacity", [2, 50, 100_000, 10**12])
def test_a_key_is_seen_when_it_comes_again(capacity: int) -> None:
    cache: SegmentedCache[int, Item] = SegmentedCache(capacity)
    assert not cache.seen(1)
    assert cache.seen(1)
    assert len(cache) == 0
    assert len(cache._seen) <= 2**20


@pytest.mark.parametrize("capacity", [2, 10, 100, 1_000])
def test_keys_that_come_in_turn_are_all_seen_soon(capacity: int) -> None:
    cache: SegmentedCache[str, Item] = SegmentedCache(capacity)
    waiting = [f"{number}" for number in range(capacity)]
    for _ in range(10_000):
        waiting = [key for key in waiting if not cache.seen(key)]
    assert waiting == []


def test_a_new_key_hardly_ever_counts_as_seen() -> None:
    cache: SegmentedCache[int, Item] = SegmentedCache(1_000)
    assert sum(map(cache.seen, range(100_000))) <= 100_000 / 50


def test_entries_that_are_only_kept_use_the_whole_cache() -> None:
    cache: SegmentedCache[int, Item] = SegmentedCache(10, 100, kept_only=True)
    for key in range(20):
        cache.keep(key, Item(10))
        cache._check()
    assert [key for key in range(20) if cache.get(key)] == list(range(10, 20))

"""SkipFilter: examples, a stateful comparison with a naive model, predicates that
interfere, threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap64

from skipfilter import FieldFilter, PostingList, SelectorIndex, SkipFilter
from skipfilter.core.container import PORTION
from skipfilter.core.entries import _Entry, _size
from skipfilter.posting_list import as_bitmap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from skipfilter import Selector


def divides(value: int, key: int) -> bool:
    return value % key == 0


def filled(numbers: Iterable[int], **options: Any) -> SkipFilter[int, int]:
    numbers_that = SkipFilter(divides, **options)
    for number in numbers:
        numbers_that.add(number)
    return numbers_that


def test_multiples_of_two_and_of_three() -> None:
    numbers = filled(range(10))
    assert numbers.match_any(2) == [0, 2, 4, 6, 8]
    assert numbers.match_any(2, 3) == [0, 2, 3, 4, 6, 8, 9]
    assert numbers.match_all(2, 3) == [0, 6]
    assert numbers.match_any() == []
    assert numbers.match_all() == list(range(10))


def test_a_value_is_tested_once_for_each_key() -> None:
    asked: Counter[tuple[int, int]] = Counter()

    def test(value: int, key: int) -> bool:
        asked[value, key] += 1
        return value % key == 0

    numbers = SkipFilter(test)
    for number in range(6):
        numbers.add(number)
        numbers.match_any(2)
        numbers.match_any(2, 3)
    assert set(asked.values()) == {1}


def test_values_of_one_group_share_a_test() -> None:
    asked: list[int] = []

    def test(value: tuple[str, int], key: int) -> bool:
        asked.append(value[1])
        return value[1] % key == 0

    readers = SkipFilter(test, group=lambda value: value[1])
    for name in "abcd":
        for number in (1, 2):
            readers.add((name, number))
    assert readers.match_any(2) == [("a", 2), ("b", 2), ("c", 2), ("d", 2)]
    assert sorted(asked) == [1, 2]
    readers.remove(("a", 2))
    readers.add(("e", 2))
    readers.add(("f", 2))
    assert readers.match_any(2) == [("b", 2), ("c", 2), ("d", 2), ("e", 2), ("f", 2)]
    assert sorted(asked) == [1, 2, 2]


def test_an_equal_value_of_another_group_changes_nothing() -> None:
    class Value:
        def __init__(self, name: str, group: int) -> None:
            self.name, self.group = name, group

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Value) and self.name == other.name

        def __hash__(self) -> int:
            return hash(self.name)

    readers: SkipFilter[Value, int] = SkipFilter(lambda value, key: value.group == key, group=lambda value: value.group)
    first = Value("a", 1)
    readers.add(first)
    readers.add(Value("a", 2))
    assert len(readers) == 1
    assert readers.match_any(1) == [first]
    assert readers.match_any(2) == []
    assert readers.discard(Value("a", 2))
    assert readers.match_any(1, 2, 3) == []
    readers._check()


@pytest.mark.parametrize("size", [1, 10])
def test_a_value_added_while_a_group_is_computed_gets_its_own_id(size: int) -> None:
    def group(value: int) -> int:
        if value == 1:
            readers.add(2)
        return value // size

    readers: SkipFilter[int, int] = SkipFilter(divides, group=group)
    with pytest.raises(RuntimeError, match="another value was added while the group of this one was computed"):
        readers.add(1)
    readers._check()
    assert readers.match_any(1) == [2]
    readers.remove(2)
    assert readers.match_any(7) == []


def test_a_value_added_while_the_source_takes_in_another_gets_its_own_id() -> None:
    class Meddler(SelectorIndex):
        def add(self, id: int, value: object, selectors: Any = ()) -> None:
            if value == 1:
                readers.add(2, [("exact", "a")])
            else:
                super().add(id, value, selectors)

        def discard(self, id: int, value: object) -> None:
            if value != 1:
                super().discard(id, value)

    readers: SkipFilter[int, str] = SkipFilter(Meddler())
    with pytest.raises(RuntimeError, match="another value was added while the source took this one in"):
        readers.add(1, [])
    readers._check()
    assert readers.match_any("a") == [2]
    readers.remove(2)
    assert readers.match_any("a") == []


def test_selectors_that_add_their_own_value_add_it_once() -> None:
    def selectors() -> Iterator[Selector]:
        readers.add("alice", [("exact", "a")])
        yield "exact", "a"

    index = SelectorIndex()
    readers: SkipFilter[str, str] = SkipFilter(index)
    readers.add("alice", selectors())
    assert readers.id_of("alice") == 0
    assert readers.match_any("a") == ["alice"]
    readers.remove("alice")
    readers._check()
    index._check()
    assert index.distinct == len(readers) == 0


def test_adding_a_value_twice_keeps_it_once() -> None:
    numbers = filled([])
    for _ in range(2):
        numbers.add(4)
        assert numbers.id_of(4) == 0
    assert len(numbers) == 1
    numbers.remove(4)
    assert len(numbers) == 0
    assert numbers.match_any(2) == []


def test_ids_are_never_reused() -> None:
    numbers = filled([1, 2, 3])
    numbers.remove(3)
    numbers.add(3)
    assert numbers.id_of(3) == 3


def test_a_value_added_again_is_tested_again_and_is_the_newest() -> None:
    numbers = filled([2, 4])
    numbers.match_any(2)
    numbers.remove(2)
    numbers.add(2)
    assert numbers.match_any(2) == [4, 2]


def test_removing_a_missing_value_is_an_error() -> None:
    numbers = filled([1])
    with pytest.raises(KeyError, match="7"):
        numbers.remove(7)
    assert numbers.discard(7) is False
    assert numbers.discard(1) is True
    assert 1 not in numbers


def test_removal_touches_no_cached_bitmap() -> None:
    numbers = filled(range(10))
    numbers.match_any(2)
    (entry,) = numbers._entries._cache.entries()
    before = entry.matched.copy()
    numbers.remove(4)
    assert entry.matched.ids == before
    assert numbers.match_any(2) == [0, 2, 6, 8]
    assert 4 not in entry.matched


def test_r9_the_cache_holds_no_more_keys_than_its_capacity() -> None:
    numbers = filled(range(100), capacity=3)
    for key in range(1, 50):
        numbers.match_any(key)
        assert len(numbers._entries) <= 3
    assert numbers.match_any(7) == list(range(0, 100, 7))
    with pytest.raises(ValueError, match="capacity must be at least 2, not 1"):
        SkipFilter(divides, capacity=1)


def test_matches_stops_at_the_first_hit_and_keeps_its_cursor() -> None:
    asked: list[int] = []

    def test(value: int, key: int) -> bool:
        asked.append(value)
        return value % key == 0

    numbers = SkipFilter(test)
    for number in range(1, 10):
        numbers.add(number)
    assert numbers.matches(3)
    assert asked == [1, 2, 3]
    assert numbers.matches(3)
    assert asked == [1, 2, 3]
    assert numbers.match_any(3) == [3, 6, 9]
    assert asked == list(range(1, 10))
    assert not numbers.matches(11)
    assert not numbers.matches()


def test_a_returned_bitmap_belongs_to_the_caller() -> None:
    numbers = filled(range(6))
    bitmap = numbers.bitmap(2)
    assert bitmap == BitMap64([0, 2, 4])
    bitmap.clear()
    assert numbers.match_any(2) == [0, 2, 4]


def test_values_leaves_out_removed_ids() -> None:
    numbers = filled(range(6))
    ids = numbers.bitmap(2)
    numbers.remove(2)
    assert numbers.values(ids) == [0, 4]
    assert numbers.values(BitMap64([99])) == []
    assert numbers.values(BitMap64()) == []


def test_walk_continues_from_an_id_and_survives_changes() -> None:
    numbers = filled([10, 11, 12, 13, 14])
    seen = []
    for id, value in numbers.walk(1):
        seen.append((id, value))
        if value == 12:
            numbers.remove(13)
            numbers.add(15)
    assert seen == [(1, 11), (2, 12), (4, 14), (5, 15)]


def test_iteration_is_a_snapshot() -> None:
    numbers = filled([3, 1, 2])
    iterator = iter(numbers)
    numbers.remove(1)
    assert list(iterator) == [3, 1, 2]
    assert list(numbers) == [3, 2]


def test_an_error_of_the_predicate_reaches_the_caller_and_leaves_the_filter_consistent() -> None:
    broken = True

    def test(value: int, key: int) -> bool:
        if broken and value == 2:
            raise RuntimeError("broken")
        return True

    numbers = SkipFilter(test)
    for number in range(4):
        numbers.add(number)
    with pytest.raises(RuntimeError, match="broken"):
        numbers.match_any(1)
    numbers._check()
    broken = False
    assert numbers.match_any(1) == [0, 1, 2, 3]


def test_a_key_whose_predicate_raised_is_not_cached_and_displaces_no_other() -> None:
    meddling = Meddling([1], capacity=2)
    meddling.filter.match_any(1)
    for ask in (
        meddling.filter.match_any,
        meddling.filter.match_all,
        meddling.filter.matches,
        meddling.filter.bitmap,
    ):
        with pytest.raises(ZeroDivisionError):
            ask(0)
    assert len(meddling.filter._entries) == 1
    meddling.asked.clear()
    meddling.filter.match_any(1)
    assert meddling.asked == []


def test_matches_caches_nothing_of_a_failed_lookup() -> None:
    meddling = Meddling([1, 2, 3])
    meddling.at[2, 2] = lambda: meddling.filter.remove(2)
    meddling.at[3, 2] = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        meddling.filter.matches(2)
    meddling.asked.clear()
    assert not meddling.filter.matches(2)
    assert meddling.asked == [(1, 2), (3, 2)]


@pytest.mark.parametrize("ask", ["match_any", "matches"])
def test_a_nested_lookup_of_the_same_key_is_cached_if_only_it_succeeds(ask: str) -> None:
    meddling = Meddling([1, 3])

    def meddle() -> None:
        meddling.filter.match_any(2)
        raise ZeroDivisionError

    meddling.at[3, 2] = meddle
    with pytest.raises(ZeroDivisionError):
        getattr(meddling.filter, ask)(2)
    meddling.asked.clear()
    assert meddling.filter.match_any(2) == []
    assert meddling.asked == []


def test_a_nested_lookup_of_the_same_key_is_not_cached_if_only_it_fails() -> None:
    meddling = Meddling([1, 2, 3])

    def meddle() -> None:
        meddling.at[3, 2] = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            meddling.filter.match_any(2)
        assert len(meddling.filter._entries) == 0

    meddling.at[2, 2] = meddle
    assert meddling.filter.match_any(2) == [2]
    assert len(meddling.filter._entries) == 1
    meddling.filter._check()


@pytest.mark.parametrize("source", [SelectorIndex(), divides])
def test_a_key_that_cannot_be_hashed_is_named(source: Any) -> None:
    values: SkipFilter[Any, Any] = SkipFilter(source)
    for ask in (values.match_any, values.match_all, values.matches, values.bitmap):
        with pytest.raises(TypeError, match=r"^key \['a'\]: .*unhashable type: 'list'"):
            ask(["a"])


def test_an_unhashable_value_changes_nothing() -> None:
    values: SkipFilter[Any, Any] = SkipFilter(lambda value, key: True)
    with pytest.raises(TypeError):
        values.add([])
    values._check()
    assert len(values) == 0


@pytest.mark.parametrize("group", [None, lambda value: value])
@pytest.mark.parametrize("ask", ["match_any", "match_all", "matches", "bitmap"])
def test_an_error_of_the_predicate_names_the_value_and_the_key(ask: str, group: Callable[[int], int] | None) -> None:
    numbers: SkipFilter[int, int] = SkipFilter(lambda value, key: key % value == 1, group=group)
    for number in (5, 7, 0, 9):
        numbers.add(number)
    with pytest.raises(ZeroDivisionError) as caught:
        getattr(numbers, ask)(140)
    assert caught.value.__notes__ == ["the predicate was called with value 0 and key 140"]
    numbers.remove(0)
    assert numbers.match_any(141) == [5, 7]
    numbers.add(0)
    with pytest.raises(ZeroDivisionError) as caught:
        getattr(numbers, "match_all" if ask == "matches" else ask)(141)
    assert caught.value.__notes__ == ["the predicate was called with value 0 and key 141"]


def test_a_value_whose_repr_raises_hides_no_error() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    values: SkipFilter[Silent, int] = SkipFilter(lambda value, key: 1 / key)
    values.add(Silent())
    with pytest.raises(ZeroDivisionError) as caught:
        values.match_any(0)
    assert caught.value.__notes__[0].startswith("the predicate was called with value <Silent instance at ")


def test_a_forgotten_key_is_tested_again() -> None:
    wanted = {1}
    numbers: SkipFilter[int, str] = SkipFilter(lambda value, key: value in wanted)
    for number in range(3):
        numbers.add(number)
    assert numbers.match_any("wanted") == [1]
    wanted.add(2)
    assert numbers.match_any("wanted") == [1]
    assert numbers.forget("wanted") is True
    assert numbers.match_any("wanted") == [1, 2]
    assert numbers.forget("another") is False


def test_a_cleared_filter_is_empty_and_gives_new_ids() -> None:
    numbers = filled(range(10))
    numbers.match_any(2)
    assert repr(numbers) == "<SkipFilter: 10 values, 1 cached keys>"
    numbers.clear()
    assert repr(numbers) == "<SkipFilter: 0 values, 0 cached keys>"
    assert numbers.match_any(2) == []
    numbers.add(4)
    assert numbers.id_of(4) == 10
    assert numbers.match_any(2) == [4]


def test_group_needs_a_predicate() -> None:
    class Everybody:
        def add(self, id: int, value: int, selectors: Any) -> None: ...
        def discard(self, id: int, value: int) -> None: ...
        def matching(self, key: str, start: int) -> Iterable[int]:
            return range(start, 1)

    everybody: SkipFilter[int, str] = SkipFilter(Everybody())
    everybody.add(7)
    assert everybody.match_any("x") == [7]
    for ask in (everybody.__getitem__, lambda value: everybody.explain("x", value)):
        with pytest.raises(TypeError, match="the values of this filter declare nothing"):
            ask(7)
    with pytest.raises(ValueError, match="group= is for a predicate"):
        SkipFilter(Everybody(), group=id)


def test_the_bitmap_of_a_source_is_not_changed() -> None:
    class Even:
        def __init__(self) -> None:
            self.ids = BitMap64()

        def add(self, id: int, value: int, selectors: Any) -> None:
            self.ids.add(id)

        def discard(self, id: int, value: int) -> None: ...
        def matching(self, key: str, start: int) -> BitMap64:
            return self.ids

    source = Even()
    numbers: SkipFilter[int, str] = SkipFilter(source)
    for number in range(3):
        numbers.add(number)
    numbers.match_any("a")
    numbers.remove(1)
    assert numbers.match_any("a") == [0, 2]
    assert source.ids == BitMap64([0, 1, 2])


def test_as_many_keys_of_an_index_are_cached_as_the_capacity_says() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex(), capacity=10)
    readers.add("alice", [("everything", "*")])
    for _ in range(1_000):  # how often depends on the hashes of the keys
        for number in range(10):
            assert readers.match_any(f"{number}") == ["alice"]
    assert len(readers._entries) == 10


def test_an_index_may_fill_a_posting_list_again() -> None:
    class Prefixes:
        """An index that drops no posting list."""

        def __init__(self) -> None:
            self.lists: dict[str, PostingList] = {}

        def add(self, id: int, value: str, selectors: Any) -> None:
            self.lists.setdefault(value[0], PostingList()).add(id)

        def discard(self, id: int, value: str) -> None:
            self.lists[value[0]].discard(id)

        def posting_lists(self, key: str, start: int) -> list[PostingList]:
            return [its for first, its in self.lists.items() if first in key and its and its.min() >= start]

    readers: SkipFilter[str, str] = SkipFilter(Prefixes())
    readers.add("a1")
    for _ in range(3):
        assert readers.match_any("ab") == ["a1"]
    readers.remove("a1")
    readers.add("b2")
    assert readers.match_any("ab") == ["b2"]
    readers.add("a3")
    assert readers.match_any("ab") == ["b2", "a3"]
    assert len(readers._entries) == 1


@pytest.mark.parametrize(("step", "low", "high"), [(1, 500, 700), (1 << 16, 10_000, 20_000)])
def test_the_size_of_an_entry_counts_the_containers_of_its_bitmap(step: int, low: int, high: int) -> None:
    entry = _Entry("", PostingList(BitMap64(range(0, 100 * step, step))), 100 * step, 0)
    empty = _Entry("", PostingList(), 100 * step, 0)
    assert low <= entry.size - empty.size <= high


def test_the_size_of_an_entry_grows_with_its_bitmap() -> None:
    numbers = filled([0])
    for number in range(1, 1_000):
        numbers.match_any(1)
        numbers.add(number)
    numbers.match_any(1)
    (entry,) = numbers._entries._cache.entries()
    assert entry.size == _size(entry, 1_000) >= 2_000


class Document:
    def __init__(self, text: str) -> None:
        self.text = text

    def __sizeof__(self) -> int:
        return super().__sizeof__() + len(self.text)


TEXT = "x" * 20_000


@pytest.mark.parametrize(
    "key", [TEXT, TEXT.encode(), ("topic", TEXT), ("a", ("b", frozenset({TEXT}))), Document(TEXT)], ids=type
)
def test_a_cached_key_counts_with_what_it_holds(key: object) -> None:
    """Also if nothing matches it."""
    readers: SkipFilter[int, Any] = SkipFilter(lambda value, key: False)
    readers.match_any(key)
    assert 20_000 <= readers.stats().cache_bytes <= 22_000


def test_the_keys_of_an_index_count_with_what_they_hold() -> None:
    for pattern, matched in (("other", []), (TEXT, [1])):  # the second entry needs no bitmap
        readers: SkipFilter[int, str] = SkipFilter(SelectorIndex(max_length=len(TEXT)))
        readers.add(1, [("exact", pattern)])
        for _ in range(3):
            assert readers.match_any(TEXT) == matched
        assert 20_000 <= readers.stats().cache_bytes <= 22_000


def test_large_keys_leave_before_the_bytes_are_used_up() -> None:
    readers: SkipFilter[int, tuple[int, str]] = SkipFilter(lambda value, key: False, max_bytes=10 * len(TEXT))
    for number in range(100):
        readers.match_any((number, f"{number}{TEXT}"))
        assert readers.stats().cache_bytes <= 10 * len(TEXT)
    assert 1 <= readers.stats().keys < 10


# -- predicates that interfere, one by one


class Meddling:
    """A SkipFilter whose predicate acts at one test, and which counts the tests."""

    def __init__(self, values: Iterable[int], **options: Any) -> None:
        self.asked: list[tuple[int, int]] = []
        self.at: dict[tuple[int, int], Callable[[], object]] = {}
        self.filter: SkipFilter[int, int] = SkipFilter(self.test, **options)
        for value in values:
            self.filter.add(value)

    def test(self, value: int, key: int) -> bool:
        self.asked.append((value, key))
        if what := self.at.pop((value, key), None):
            what()
        return value % key == 0


def test_a_removal_and_a_nested_lookup_of_the_same_key_during_a_lookup() -> None:
    meddling = Meddling([2, 4, 6])

    def meddle() -> None:
        meddling.filter.remove(2)
        assert meddling.filter.match_any(2) == [4, 6]

    meddling.at[6, 2] = meddle
    assert meddling.filter.match_any(2) == [4, 6]
    meddling.filter._check()


def test_a_removal_while_a_later_key_is_tested() -> None:
    for ask in (lambda f: f.match_any(2, 3), lambda f: f.match_all(2, 3)):
        meddling = Meddling([2, 4, 6, 12])
        meddling.at[12, 3] = lambda m=meddling: m.filter.remove(6)  # type: ignore[misc]
        assert 6 not in ask(meddling.filter)  # type: ignore[no-untyped-call]


def test_each_key_is_tested_once_per_call_even_if_the_cache_holds_fewer() -> None:
    meddling = Meddling([1], capacity=2)
    meddling.filter.match_any(2, 3, 4)
    assert meddling.asked == [(1, 2), (1, 3), (1, 4)]


def test_matches_ignores_a_value_that_its_own_test_removes() -> None:
    meddling = Meddling([2])
    meddling.at[2, 2] = lambda: meddling.filter.remove(2)
    assert meddling.filter.matches(2) is False


def test_matches_tests_no_value_twice_and_misses_no_value_added_meanwhile() -> None:
    meddling = Meddling([1, 3])
    meddling.at[3, 2] = lambda: meddling.filter.add(4)
    assert meddling.filter.matches(2) is False
    assert meddling.filter.matches(2) is True
    assert meddling.asked == [(1, 2), (3, 2), (4, 2)]
    nested = Meddling([1, 2, 4])
    nested.at[2, 2] = lambda: nested.filter.match_any(2)
    assert nested.filter.matches(2) is True
    asked = len(nested.asked)
    assert nested.filter.match_any(2) == [2, 4]
    assert len(nested.asked) == asked


def test_match_all_stops_if_no_value_is_left() -> None:
    meddling = Meddling([1, 2, 3])
    assert meddling.filter.match_all(5, 2) == []
    assert {key for _, key in meddling.asked} == {5}


def test_a_source_that_refuses_changes_nothing() -> None:
    class Refusing:
        refuses = False

        def add(self, id: int, value: int, selectors: Any = ()) -> None:
            if self.refuses:
                raise ValueError("no")

        discard = add

        def matching(self, key: int, start: int) -> Iterable[int]:
            return range(start, 1)

    source = Refusing()
    numbers: SkipFilter[int, int] = SkipFilter(source)
    numbers.add(1)
    source.refuses = True
    with pytest.raises(ValueError, match="no"):
        numbers.add(2)
    with pytest.raises(ValueError, match="no"):
        numbers.remove(1)
    numbers._check()
    assert numbers.match_any(0) == [1]


def test_keys_seen_once_do_not_displace_one_seen_again() -> None:
    meddling = Meddling([1], capacity=2)
    for key in (1, 1, 2, 3, 4, 5):
        meddling.filter.match_any(key)
    meddling.asked.clear()
    meddling.filter.match_any(1)
    assert meddling.asked == []
    meddling.filter.match_any(2)
    assert meddling.asked == [(1, 2)]


# -- the model

KEYS = [1, 2, 3, 4]
GROUPS = 12  # the least common multiple: equal modulo 12 means equal for every key
values = st.integers(0, 23)
keys = st.sampled_from(KEYS)


class Declared:
    """A SelectorIndex to which a number declares the keys that divide it."""

    def __init__(self) -> None:
        self.index = SelectorIndex()

    def add(self, id: int, value: int, selectors: object) -> None:
        self.index.add(id, value, [("exact", str(key)) for key in KEYS if value % key == 0])

    def discard(self, id: int, value: int) -> None:
        self.index.discard(id, value)

    def posting_lists(self, key: int, start: int) -> Sequence[PostingList]:
        return self.index.posting_lists(str(key), start)


class Broken(Exception):
    """The error of the machine's predicate."""


class AgainstNaive(RuleBasedStateMachine):
    """Every question against a list, with a cache of two to four keys and predicates
    that interfere.
    """

    @initialize(capacity=st.integers(2, 4), source=st.sampled_from(["predicate", "groups", "index"]))
    def begin(self, capacity: int, source: str) -> None:
        self.interference: list[tuple[str, int]] = []
        self.fuse = -1  # the number of tests before the predicate raises; never if it is negative
        self.filter: SkipFilter[int, int]
        self.is_index = source == "index"
        if self.is_index:
            self.filter = SkipFilter(Declared(), capacity=capacity)
        else:
            group: Callable[[int], int] | None = (lambda value: value % GROUPS) if source == "groups" else None
            self.filter = SkipFilter(self.test, group=group, capacity=capacity)
        self.model: list[tuple[int, int]] = []  # (id, value), oldest first
        self.ids = 0

    def test(self, value: int, key: int) -> bool:
        if self.fuse == 0:
            raise Broken
        self.fuse -= 1
        if self.interference:
            what, operand = self.interference.pop()
            if what == "add":
                self.add(operand)
            elif what == "remove":
                self.discard(operand)
            elif what == "match":
                self.filter.match_any(operand % len(KEYS) + 1)
            else:
                self.filter.matches(key)
        return value % key == 0

    @rule(value=values)
    def add(self, value: int) -> None:
        self.filter.add(value)
        id = self.filter.id_of(value)
        known = [i for i, v in self.model if v == value]
        if known:
            assert id == known[0]
        else:
            assert id >= self.ids
            self.ids = id + 1
            self.model.append((id, value))

    @rule(some=st.lists(values, max_size=4))
    def add_many(self, some: list[int]) -> None:
        self.filter.add_many([(value, ()) for value in some] if self.is_index else some)
        for value in dict.fromkeys(some):
            if all(value != known for _, known in self.model):
                self.model.append((self.filter.id_of(value), value))
                assert self.model[-1][0] >= self.ids
                self.ids = self.model[-1][0] + 1

    @rule()
    def clear(self) -> None:
        self.filter.clear()
        self.model = []

    @rule(value=values)
    def discard(self, value: int) -> None:
        there = any(v == value for _, v in self.model)
        assert self.filter.discard(value) is there
        self.model = [(i, v) for i, v in self.model if v != value]

    def known(self) -> dict[int, tuple[BitMap64, int]]:
        """Return the bitmap and the cursor of each cached key."""
        entries = self.filter._entries
        cached = {**entries._cache._new, **entries._cache._kept}
        return {key: (as_bitmap(entries._evict(entry)), entry.cursor) for key, entry in cached.items()}

    @rule(key=keys, values=st.integers(0, 3), ask=st.sampled_from(["match_any", "match_all", "matches", "bitmap"]))
    def fail(self, key: int, values: int, ask: str) -> None:
        self.interference = []
        before = self.known()
        self.fuse = values
        try:
            getattr(self.filter, ask)(key)
        except Broken:
            after = self.known()
            if key in before:  # it counts as used, which may evict another key
                before = {cached: before[cached] for cached in after}
            assert after == before
        finally:
            self.fuse = -1

    @rule(what=st.lists(st.tuples(st.sampled_from(["add", "remove", "match", "matches"]), values)))
    def interfere(self, what: list[tuple[str, int]]) -> None:
        self.interference = what

    def between(self, got: list[int], before: list[tuple[int, int]], passes: Callable[[int], bool]) -> None:
        """Values present all the time are found, removed ones are not, in the order of
        their ids.
        """
        now = [(i, v) for i, v in self.model if passes(v)]
        assert [(i, v) for i, v in now if v in got] == [pair for pair in now if pair[1] in got]
        assert got == [v for _, v in now if v in got]
        assert len(set(got)) == len(got)
        assert {v for i, v in before if (i, v) in now} <= set(got)

    @rule(wanted=st.lists(keys, max_size=3))
    def match_any(self, wanted: list[int]) -> None:
        before = list(self.model)
        self.between(self.filter.match_any(*wanted), before, lambda v: any(v % key == 0 for key in wanted))

    @rule(wanted=st.lists(keys, max_size=3))
    def match_all(self, wanted: list[int]) -> None:
        before = list(self.model)
        got = self.filter.match_all(*wanted)
        self.between(got, before, lambda v: all(v % key == 0 for key in wanted))

    @rule(wanted=st.lists(keys, max_size=3))
    def bitmap(self, wanted: list[int]) -> None:
        before = list(self.model)
        ids = self.filter.bitmap(*wanted)
        assert len(ids) == len(self.filter.values(ids))
        self.between(self.filter.values(ids), before, lambda v: any(v % key == 0 for key in wanted))

    @rule(wanted=st.lists(keys, max_size=3))
    def matches(self, wanted: list[int]) -> None:
        self.interference = []
        assert self.filter.matches(*wanted) == any(v % key == 0 for _, v in self.model for key in wanted)

    @rule(start=st.integers(0, 30))
    def walk(self, start: int) -> None:
        assert list(self.filter.walk(start)) == [(i, v) for i, v in self.model if i >= start]

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "filter"):
            self.filter._check()
            assert list(self.filter) == [v for _, v in self.model]
            assert len(self.filter) == len(self.model)
            assert all((v in self.filter) == (v in list(self.filter)) for v in range(24))


TestAgainstNaive = AgainstNaive.TestCase
TestAgainstNaive.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_many_threads_at_once() -> None:
    numbers = filled(range(50), capacity=2)
    errors: list[BaseException] = []
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        try:
            start.wait()
            for step in range(400):
                number = 100 * seed + step % 10
                if step % 20 < 10:
                    numbers.add(number)
                else:
                    numbers.remove(number)
                key = 1 + step % 4
                found = numbers.match_any(key)
                assert set(range(0, 50, key)) <= set(found)
                assert found[: len(range(0, 50, key))] == list(range(0, 50, key))
                numbers.matches(key)
                assert sum(1 for _ in numbers.walk(40)) >= 10
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    numbers._check()
    assert list(numbers) == list(range(50))


def test_the_lock_can_be_disabled() -> None:
    assert filled(range(5), lock=nullcontext()).match_any(2) == [0, 2, 4]


class Watched:
    """A lock that knows whether it is held."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self._lock.release()


class Noted:
    """A value, or a key, that notes whether a lock is held when it is freed."""

    def __init__(self, lock: Watched, freed: list[bool], name: str) -> None:
        self.lock, self.freed, self.name = lock, freed, name

    def __del__(self) -> None:
        self.freed.append(bool(self.lock.depth))


@pytest.mark.parametrize("kind", ["predicate", "groups", "index", "fields"])
def test_clear_frees_values_and_keys_without_the_lock(kind: str) -> None:
    lock, freed = Watched(), list[bool]()
    made = partial(Noted, lock, freed)
    if kind == "fields":
        rules: FieldFilter[Noted] = FieldFilter(lock=lock)
        rules.add_many((made("v"), ["urgent"]) for _ in range(5))
        rules.clear()
        assert (len(rules), freed) == (0, [False] * 5)
        return
    numbers: SkipFilter[Noted, Any]
    if kind == "index":
        numbers = SkipFilter(SelectorIndex(), lock=lock)
        numbers.add_many((made("v"), [("exact", "a")]) for _ in range(5))
    else:
        group: Any = (lambda value: value.name) if kind == "groups" else None
        numbers = SkipFilter(lambda value, key: True, group=group, lock=lock)
        numbers.add_many(made("v") for _ in range(5))
        numbers.match_any(made("k"))
    numbers.clear()
    assert (len(numbers), freed) == (0, [False] * (5 if kind == "index" else 6))


def test_a_source_without_clear_gives_up_the_lock_in_between() -> None:
    class Everybody:
        def __init__(self) -> None:
            self.left: list[int] = []

        def add(self, id: int, value: int, selectors: Any) -> None: ...
        def discard(self, id: int, value: int) -> None:
            self.left.append(lock.depth)

        def matching(self, key: str, start: int) -> Iterable[int]:
            return range(start, numbers._values.next_id) if numbers else ()

    entered: list[int] = []

    class Counted(Watched):
        def __enter__(self) -> None:
            super().__enter__()
            entered.append(len(everybody.left))

    lock, everybody = Counted(), Everybody()
    numbers: SkipFilter[int, str] = SkipFilter(everybody, lock=lock)
    numbers.add_many((number, ()) for number in range(1_000))
    assert len(numbers.match_any("a")) == 1_000
    entered.clear()
    numbers.clear()
    assert len(everybody.left) == 1_000
    assert all(after - before <= PORTION for before, after in pairwise([*entered, 1_000]))
    assert numbers.match_any("a") == []
    numbers._check()

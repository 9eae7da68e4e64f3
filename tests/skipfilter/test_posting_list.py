"""PostingList: the same ids as a set, whatever it holds them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from skipfilter import PostingList
from skipfilter.posting_list import NONE, as_bitmap, compact, union

if TYPE_CHECKING:
    from collections.abc import Callable

ids = st.integers(0, 4) | st.integers(0, 2**40)
sets = st.sets(ids, max_size=4)
changes = st.one_of(
    st.tuples(st.sampled_from(["add", "discard"]), ids), st.tuples(st.sampled_from(["update", "keep"]), sets)
)

DO: dict[str, tuple[Callable[[PostingList, set[int]], None], Callable[[set[int], set[int]], set[int]]]] = {
    "add": (lambda its, some: its.add(*some), lambda its, some: its | some),
    "discard": (lambda its, some: its.discard(*some), lambda its, some: its - some),
    "update": (lambda its, some: its.update(compact(BitMap64(some))), lambda its, some: its | some),
    "keep": (lambda its, some: its.keep(BitMap64(some)), lambda its, some: its & some),
}


@given(st.lists(changes, max_size=20))
def test_a_posting_list_is_a_set_of_ids(changes: list[tuple[str, int | set[int]]]) -> None:
    its, model = PostingList(), set[int]()
    for name, operand in changes:
        some = operand if isinstance(operand, set) else {operand}
        before = its.copy()
        done, naive = DO[name]
        expected = set(before if isinstance(before, BitMap64) else [before])
        assert expected == model
        done(its, some)
        # A copy does not change with the list.
        assert set(before if isinstance(before, BitMap64) else [before]) == expected
        model = naive(model, some)
        assert list(its) == sorted(model)
        assert (len(its), bool(its)) == (len(model), bool(model))
        if model:
            assert (its.min(), its.max()) == (min(model), max(model))
        # One id needs no bitmap, and no ids the shared one, which never changes.
        assert isinstance(its.ids, int) is (len(model) == 1)
        assert not NONE
        assert as_bitmap(its.ids) == BitMap64(model)


def test_an_empty_list_has_no_least_id() -> None:
    for ask in (PostingList().min, PostingList().max):
        with pytest.raises(ValueError, match="Empty roaring bitmap"):
            ask()


def test_a_union_is_a_bitmap_of_its_own() -> None:
    one, several = PostingList(7), PostingList(BitMap64([1, 2]))
    found = union([one.ids, several.ids, NONE])
    assert found == BitMap64([1, 2, 7])
    found.add(9)
    assert (one.ids, several.ids) == (7, BitMap64([1, 2]))
    assert union([]) == BitMap64()

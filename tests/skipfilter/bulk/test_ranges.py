"""skipfilter.bulk.ranges: parts of ids that fit, and no id lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipfilter.bulk import BadInput, BroadcastLimit
from skipfilter.bulk.ranges import divided, shards


@given(st.integers(0, 100), st.integers(0, 60), st.integers(1, 60))
def test_a_range_is_halved_until_its_parts_fit(first: int, length: int, most: int) -> None:
    ids = range(first, first + length)

    def part(ids: range) -> tuple[range] | int:
        return (ids,) if len(ids) <= most else 16 * len(ids)

    parts = [ids for (ids,) in divided(ids, part, 16 * 10)]
    assert [id for part in parts for id in part] == list(ids)
    assert all(len(part) <= min(most, 10) for part in parts)
    assert len(parts) == 1 or min(map(len, parts)) * 2 >= min(most, 10) // 2


def test_an_id_that_does_not_fit_is_reported() -> None:
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 5: its 99 bytes of selectors are more than the 98 "):
        list(divided(range(5, 9), lambda ids: 99, 98))


def test_each_shard_is_a_range_in_order() -> None:
    assert shards([(1 << 23, (1 << 23) + 4), (3, 9)]) == [range(3, 10), range(1 << 23, (1 << 23) + 5)]
    assert shards([]) == [range(0)]
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id must be at least 0, not None"):
        shards([(3, 9), (None, None)])

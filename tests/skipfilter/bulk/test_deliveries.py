"""skipfilter.bulk.deliveries, bitmaps and postings on Arrow batches: without Spark, so
many cases.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from skipfilter.bulk import deliveries
from skipfilter.bulk.bitmaps import bitmap, ids_of, serialized, union
from skipfilter.bulk.deliveries import NEVER, Sessions
from skipfilter.bulk.outputs import Output
from skipfilter.bulk.posting_lists import SHARD_BITS, combine, merge

Key = tuple[bool, list[set[int]], list[set[int]], list[int], list[int]]
"""private, the ids of its narrow selectors, those of its grants, its wide selectors,
and the times of its updates."""

members = st.sets(st.integers(0, 5))
keys = st.tuples(
    st.booleans(),
    st.lists(members, max_size=2),
    st.lists(members, max_size=2),
    st.lists(st.integers(0, 2), unique=True, max_size=3).map(sorted),
    st.lists(st.integers(0, 6), max_size=5).map(sorted),
)
windows = st.tuples(st.integers(0, 6), st.integers(0, 6) | st.just(NEVER)).map(lambda w: (w[0], max(w)))
wide_sets = st.tuples(*[st.none() | members] * 3)


def bits(ids: set[int], offset: int) -> bytes:
    written: bytes = BitMap(id + offset for id in ids).serialize()
    return written


def rows_of(keys: list[Key], offset: int) -> pa.Table:
    """Return the rows of a worker: each key, followed by its updates."""
    rows: list[dict[str, Any]] = []
    for number, (private, subscribed, authorised, wide, moments) in enumerate(keys):
        reference = {
            "subscribed": [bits(ids, offset) for ids in subscribed],
            "authorised": [bits(ids, offset) for ids in authorised],
            "wide": wide,
        }
        rows.append({"is_key": True, "private": private, "at": None, "update": None} | reference)
        rows += [
            {"is_key": False, "private": private, "at": at, "update": {"id": f"{number}.{n}"}}
            | dict.fromkeys(reference)
            for n, at in enumerate(moments)
        ]
    lists = pa.list_(pa.binary())
    types = {
        "is_key": pa.bool_(),
        "private": pa.bool_(),
        "at": pa.int64(),
        "update": pa.struct({"id": pa.string()}),
        "subscribed": lists,
        "authorised": lists,
        "wide": pa.list_(pa.int32()),
    }
    return pa.Table.from_pylist(rows, pa.schema(types))


@given(
    st.lists(keys, max_size=6),
    st.lists(windows, min_size=6, max_size=6),
    wide_sets,
    wide_sets,
    st.integers(1, 4) | st.just(100),  # rows of a batch
    st.sampled_from([0, 3, 70_000]),
    st.sampled_from([0, 1, 2**22]),
    st.sampled_from([0, 2]),
)
def test_deliveries_agree_with_sets(
    keys: list[Key],
    windows: list[tuple[int, int]],
    subscribed: tuple[set[int] | None, ...],
    authorised: tuple[set[int] | None, ...],
    batch: int,
    offset: int,
    limit: int,
    few: int,
) -> None:
    first = (2 << SHARD_BITS) + offset
    expected = set()
    for number, (private, declared, granted, wide, moments) in enumerate(keys):
        audience = set().union(*declared, *(subscribed[n] or set() for n in wide))
        if private:
            audience &= set().union(*granted, *(authorised[n] or set() for n in wide))
        expected |= {
            (f"{number}.{n}", first + id)
            for n, at in enumerate(moments)
            for id in audience
            if windows[id][0] <= at < windows[id][1]
        }
    begins, ends = (np.array(column, np.int64) for column in zip(*windows, strict=True))
    sessions = Sessions(
        first, begins, ends,
        *([None if ids is None else bits(ids, offset) for ids in role] for role in (subscribed, authorised)),
    )  # fmt: skip

    def output(name: str) -> list[dict[str, Any]]:
        batches = rows_of(keys, offset).to_batches(max_chunksize=batch)
        return [row for batch in Output.of(name).deliver(iter(batches), sessions) for row in batch.to_pylist()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "DELIVERIES_AT_ONCE", max(1, limit))
        patch.setattr(deliveries, "UPDATES_AT_ONCE", max(1, limit))
        patch.setattr(deliveries, "FEW_PAIRS", limit)
        patch.setattr(deliveries, "FEW_UPDATES", few)
        patch.setattr(deliveries, "AUDIENCE_BYTES", limit)
        rows = output("rows")
        assert sorted((row["update"]["id"], row["subscriber_id"]) for row in rows) == sorted(expected)
        fanout = {row["update"]["id"]: row["fanout"] for row in output("fanout")}
        updates = {f"{number}.{n}": 0 for number, key in enumerate(keys) for n in range(len(key[-1]))}
        assert fanout == updates | Counter(update for update, _ in expected)
        received = {row["subscriber_id"]: row["received"] for row in output("received")}
        assert received == Counter(id for _, id in expected)
        recipients = [
            (row["update"]["id"], (row["shard"] << SHARD_BITS) + id)
            for row in output("bitmaps")
            for id in BitMap.deserialize(row["recipients"])
        ]
        assert sorted(recipients) == sorted(expected)
        assert max(Counter(row["update"]["id"] for row in output("bitmaps")).values(), default=1) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)), st.integers(1, 20))
def test_a_run_is_cut_into_pieces_of_few_deliveries(ranges: list[list[int]], limit: int) -> None:
    first, last = (np.array([one[edge] for one in ranges], np.int64) for edge in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "DELIVERIES_AT_ONCE", limit)
        edges = deliveries._edges(first, last, 9)
    assert edges == sorted(set(edges))
    assert (edges[0], edges[-1]) == (0, 9)
    for begin, end in pairwise(edges):
        count = int((last.clip(begin, end) - first.clip(begin, end)).sum())
        assert count <= limit or end == begin + 1


def test_the_cache_is_bounded_and_always_has_the_newest_entry() -> None:
    memory = deliveries._Memory[int, int](100)
    for n in range(1_000):
        size = 1_000 if n == 500 else n % 40
        memory.remember(n, size, size)
        assert memory.found[n] == size
        assert sum(memory.found.values()) <= max(100, size)
    assert len(memory.found) > 1


# -- bitmaps


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3)))
def test_a_column_of_bitmaps_agrees_with_single_bitmaps(sets: list[list[int]]) -> None:
    ids = np.array([id for one in sets for id in one], np.uint32)
    offsets = np.cumsum([0, *map(len, sets)])
    written, counts = serialized(ids, offsets)
    assert [set(BitMap.deserialize(one)) for one in written.to_pylist()] == [set(one) for one in sets]
    assert counts.to_pylist() == [len(set(one)) for one in sets]
    for one, bytes_ in zip(sets, written.to_pylist(), strict=True):
        same = BitMap(one)
        same.run_optimize()
        assert bytes_ == same.serialize()


@given(st.sets(st.integers(0, 2**32 - 1)))
def test_a_bitmap_returns_its_ids(ids: set[int]) -> None:
    assert ids_of(bitmap(np.array(list(ids), np.uint32))).tolist() == sorted(ids)


def test_the_union_of_nothing_is_empty() -> None:
    assert union([]) == BitMap()


# -- postings

declared = st.lists(st.tuples(st.sampled_from(["exact", "mqtt"]), st.sampled_from("abc")), max_size=4)


@given(
    st.dictionaries(st.integers(0, 3) | st.integers(2**23 - 1, 2**23 + 1), st.tuples(declared, declared), max_size=8),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_postings_have_the_subscribers_and_grants_of_each_selector(
    sessions: dict[int, tuple[list[tuple[str, str]], list[tuple[str, str]]]], batch: int, partitions: int
) -> None:
    selectors = pa.list_(pa.struct({"type": pa.string(), "pattern": pa.string()}))
    schema = pa.schema({"subscriber_id": pa.int64(), "selectors": selectors, "authorised": selectors})
    as_rows = [
        {"subscriber_id": id}
        | {
            role: [{"type": type, "pattern": pattern} for type, pattern in one]
            for role, one in zip(("selectors", "authorised"), roles, strict=True)
        }
        for id, roles in sessions.items()
    ]
    parts = [
        part
        for n in range(partitions)
        for part in combine(iter(pa.Table.from_pylist(as_rows[n::partitions], schema).to_batches(batch)))
    ]
    expected: dict[Any, tuple[set[int], set[int]]] = {}
    for id, roles in sessions.items():
        for role, one in enumerate(roles):
            for type, pattern in one:
                key = id >> SHARD_BITS, type, pattern
                expected.setdefault(key, (set(), set()))[role].add(id & (1 << SHARD_BITS) - 1)
    found = {}
    for merged in merge(iter(parts)):
        for shard, type, pattern, subscribed, authorised, *counts in zip(*merged.to_pydict().values(), strict=True):
            sets = tuple(set() if b is None else set(BitMap.deserialize(b)) for b in (subscribed, authorised))
            assert [len(ids) for ids in sets] == counts
            found[shard, type, pattern] = sets
    assert found == expected

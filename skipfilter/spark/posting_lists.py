"""Posting lists: from sessions to the ids that declare, and are granted, each selector.

    id  selectors           authorised       type   selector  subscribed  authorised
    0   exact /a, mqtt b/+  exact /a   ──►   exact  /a        {0, 1}      {0}
    1   exact /a                             mqtt   b/+       {0}         null

Ids are combined into bitmaps where the sessions are read.  So a selector that every
session declares crosses the shuffle as one bitmap for each partition.  Ids of 64 bits
are divided into shards of 2**23, and counted from the first id of their shard.

Source: inverted bitmaps are Svalgaard's and Tveden's, 1980.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skipfilter.spark.bitmaps import serialize, serialized, union
from skipfilter.spark.schemas import POSTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

SHARD_BITS: Final = 23
DECLARED: Final = 1_000_000
"""Selectors that are combined at once, in some 100 MB."""

_KEY: Final = ["shard", "match_type", "selector"]


def postings(sessions: DataFrame) -> DataFrame:
    """Return POSTINGS of SESSIONS: a row for each shard and distinct selector in use.

    Needs one shuffle, of the postings only.
    """
    declared = sessions.select("subscriber_id", "selectors", "authorised")
    combined = declared.mapInArrow(_combine, POSTINGS)
    return combined.repartition(*_KEY).mapInArrow(_merge, POSTINGS)


def _combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the postings of the sessions in `batches`."""
    waiting: dict[str, list[pa.Table]] = {"selectors": [], "authorised": []}
    count = 0
    for batch in batches:
        for role, tables in waiting.items():
            declared = _declared(batch.column("subscriber_id"), batch.column(role))
            tables.append(declared)
            count += len(declared)
        if count >= DECLARED:
            yield from _combined(waiting["selectors"], waiting["authorised"])
            waiting, count = {"selectors": [], "authorised": []}, 0
    if count:
        yield from _combined(waiting["selectors"], waiting["authorised"])


def _declared(subscribers: pa.Array, selectors: pa.Array) -> pa.Table:
    """Return a row for each selector of each subscriber."""
    type, pattern = (pc.struct_field(selectors.flatten(), name) for name in ("type", "pattern"))
    ids = subscribers.take(pc.list_parent_indices(selectors)).to_numpy(zero_copy_only=False)
    low = (ids & (1 << SHARD_BITS) - 1).astype(np.uint32)
    shard = (ids >> SHARD_BITS).astype(np.int32)
    return pa.table({"shard": shard, "match_type": type, "selector": pattern, "id": low})


def _combined(selectors: list[pa.Table], authorised: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the postings of declared and granted selectors, joined."""
    subscribed, granted = (_grouped(pa.concat_tables(tables)) for tables in (selectors, authorised))
    both = subscribed.join(granted, _KEY, join_type="full outer", right_suffix="_granted", use_threads=False)
    yield from _rows(
        [both[name] for name in _KEY],
        [both["ids"], both["ids_granted"]],
        [pc.fill_null(both[name], 0) for name in ("n", "n_granted")],
    )


def _grouped(declared: pa.Table) -> pa.Table:
    """Return the distinct selectors, each with the bitmap of its ids and their
    number.
    """
    groups = declared.group_by(_KEY, use_threads=False).aggregate([("id", "list")])
    lists = groups["id_list"].combine_chunks()
    ids, counts = serialized(lists.values.to_numpy(), lists.offsets.to_numpy())
    return pa.table({name: groups[name] for name in _KEY} | {"ids": ids, "n": counts})


def _merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row for each selector, from those of the partitions."""
    parts = list(batches)
    if not parts:
        return
    groups = pa.Table.from_batches(parts).group_by(_KEY, use_threads=False)
    merged = groups.aggregate(
        [(name, "list") for name in ("subscribed", "authorised")] + [("n_subscribed", "sum"), ("n_authorised", "sum")]
    )
    bitmaps, counts = [], []
    for role in ("subscribed", "authorised"):
        several = merged[f"{role}_list"].combine_chunks()
        column, count = _united(several, merged[f"n_{role}_sum"].combine_chunks())
        bitmaps.append(column)
        counts.append(count)
    yield from _rows([merged[name] for name in _KEY], bitmaps, counts)


def _united(several: pa.ListArray, counts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the union of each list of bitmaps, and its number of ids.

    Most lists have one bitmap, which is returned unchanged.
    """
    united: list[bytes | None] = []
    numbers = counts.to_pylist()
    for at, parts in enumerate(several.to_pylist()):
        there = [part for part in parts if part is not None]
        if len(there) > 1:
            bits = union(there)
            numbers[at] = len(bits)
            united.append(serialize(bits))
        else:
            united.append(there[0] if there else None)
    return pa.array(united, pa.binary()), pa.array(numbers, pa.int64())


def _rows(key: list[pa.Array], bitmaps: list[pa.Array], counts: list[pa.Array]) -> Iterator[pa.RecordBatch]:
    """Yield the columns of POSTINGS in batches."""
    table = pa.Table.from_arrays([*key, *bitmaps, *counts], POSTINGS.names)
    yield from table.to_batches(max_chunksize=100_000)

"""Posting lists: the ids that declare each selector, and the ids that are granted it.

    id  selectors           authorised       type   selector  subscribed  authorised
    0   exact /a, mqtt b/+  exact /a   ──►   exact  /a        {0, 1}      {0}
    1   exact /a                             mqtt   b/+       {0}         null

The task that reads sessions already combines their ids into bitmaps.  So a selector
that every session declares leaves the task as one bitmap, and the bitmaps of all tasks
are merged.  Ids have 64 bits, but those in a bitmap have 32.  So ids are divided into
shards of 2**23, and a bitmap counts from the first id of its shard.

Source: inverted bitmaps are Svalgaard's and Tveden's, 1980.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skipfilter.bulk.bitmaps import serialize, serialized, union
from skipfilter.bulk.columns import POSTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHARD_BITS: Final = 23
"""The shard of an id is id >> SHARD_BITS."""
SELECTORS_AT_ONCE: Final = 1_000_000
"""The number of selectors that a task combines at once.  They take some 100 MB."""

KEY: Final = ["shard", "match_type", "selector"]
"""The columns that identify a posting list."""


def combine(sessions: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the postings of the sessions: subscriber_id, selectors, authorised.

    A selector may have several rows, which `merge` unites.  Selectors that no session
    declares or is granted have no row.
    """
    waiting: dict[str, list[pa.Table]] = {"selectors": [], "authorised": []}
    count = 0
    for batch in sessions:
        for role, tables in waiting.items():
            declared = _declared(batch.column("subscriber_id"), batch.column(role))
            tables.append(declared)
            count += len(declared)
        if count >= SELECTORS_AT_ONCE:
            yield from _combined(waiting["selectors"], waiting["authorised"])
            waiting, count = {"selectors": [], "authorised": []}, 0
    if count:
        yield from _combined(waiting["selectors"], waiting["authorised"])


def _declared(subscribers: pa.Array, selectors: pa.Array) -> pa.Table:
    """Return shard, match_type, selector, id of each selector of each session."""
    type, pattern = (pc.struct_field(selectors.flatten(), name) for name in ("type", "pattern"))
    ids = subscribers.take(pc.list_parent_indices(selectors)).to_numpy(zero_copy_only=False)
    # The id within its shard, and the shard.
    low = (ids & (1 << SHARD_BITS) - 1).astype(np.uint32)
    shard = (ids >> SHARD_BITS).astype(np.int32)
    return pa.table({"shard": shard, "match_type": type, "selector": pattern, "id": low})


def _combined(selectors: list[pa.Table], authorised: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the postings of declared and granted selectors, joined by selector."""
    subscribed, granted = (_grouped(pa.concat_tables(tables)) for tables in (selectors, authorised))
    # Some selectors are only declared, and some only granted.
    both = subscribed.join(granted, KEY, join_type="full outer", right_suffix="_granted", use_threads=False)
    yield from _rows(
        [both[name] for name in KEY],
        [both["ids"], both["ids_granted"]],
        [pc.fill_null(both[name], 0) for name in ("n", "n_granted")],
    )


def _grouped(declared: pa.Table) -> pa.Table:
    """Return each distinct selector, with its ids as a bitmap and their number."""
    groups = declared.group_by(KEY, use_threads=False).aggregate([("id", "list")])
    lists = groups["id_list"].combine_chunks()
    ids, counts = serialized(lists.values.to_numpy(), lists.offsets.to_numpy())
    return pa.table({name: groups[name] for name in KEY} | {"ids": ids, "n": counts})


def merge(postings: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row for each selector, merged from all its rows."""
    parts = list(postings)
    if not parts:
        return
    # 1. One row for each selector, with the lists of its bitmaps.
    groups = pa.Table.from_batches(parts).group_by(KEY, use_threads=False)
    merged = groups.aggregate(
        [(name, "list") for name in ("subscribed", "authorised")] + [("n_subscribed", "sum"), ("n_authorised", "sum")]
    )
    # 2. The union of each list.
    bitmaps, counts = [], []
    for role in ("subscribed", "authorised"):
        several = merged[f"{role}_list"].combine_chunks()
        column, count = _united(several, merged[f"n_{role}_sum"].combine_chunks())
        bitmaps.append(column)
        counts.append(count)
    yield from _rows([merged[name] for name in KEY], bitmaps, counts)


def _united(several: pa.ListArray, counts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the union of each list of bitmaps, or null if it has none, and its size.

    `counts` are the sums of the sizes.  Most lists have one bitmap, which is returned
    unchanged, with its count.
    """
    united: list[bytes | None] = []
    numbers = counts.to_pylist()
    for at, parts in enumerate(several.to_pylist()):
        present = [part for part in parts if part is not None]
        if len(present) > 1:
            bits = union(present)
            numbers[at] = len(bits)  # an id may be in several of them
            united.append(serialize(bits))
        else:
            united.append(present[0] if present else None)
    return pa.array(united, pa.binary()), pa.array(numbers, pa.int64())


def _rows(key: list[pa.Array], bitmaps: list[pa.Array], counts: list[pa.Array]) -> Iterator[pa.RecordBatch]:
    """Yield the columns of postings, in batches."""
    table = pa.Table.from_arrays([*key, *bitmaps, *counts], [column.name for column in POSTINGS])
    yield from table.to_batches(max_chunksize=100_000)

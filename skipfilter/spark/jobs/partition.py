"""Partition: the sessions, in ranges of ids that are small enough for a worker.

skipfilter.bulk.ranges says when a range fits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.bulk.posting_lists import SHARD_BITS
from skipfilter.bulk.ranges import divided, shards, shared, sizes
from skipfilter.spark.jobs.indexing import postings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    from skipfilter.bulk.deliveries import Sessions
    from skipfilter.bulk.wide_selectors import Wide

    Keep: TypeAlias = Callable[[DataFrame], DataFrame]


class IdRange(NamedTuple):
    """The sessions of one range of ids."""

    narrow: DataFrame
    """topic, subscribed, authorised, n_subscribed: the narrow selectors, all exact."""
    wide: Wide
    """The wide selectors; their bitmaps are in `sessions`, in the same order."""
    sessions: Sessions


def parts_of(
    sessions: DataFrame, narrow_bytes: int, max_broadcast_bytes: int, base_url: str | None, keep: Keep
) -> Iterator[IdRange]:
    """Yield the sessions in parts, at least one.

    No part has ids of two shards.  `keep` persists a table that a part uses repeatedly.
    Runs jobs before each part.  Raises BadInput and BroadcastLimit as Matching says.
    """
    shard = F.shiftright("subscriber_id", SHARD_BITS)
    # A null id makes a shard of its own.
    bounds = sessions.groupBy(shard).agg(F.min("subscriber_id"), F.max("subscriber_id")).collect()
    part = partial(_part, sessions, narrow_bytes, max_broadcast_bytes, base_url, keep)
    for ids in shards((first, last) for _, first, last in bounds):
        yield from divided(ids, part, max_broadcast_bytes)


def _part(
    sessions: DataFrame, narrow_bytes: int, max_broadcast_bytes: int, base_url: str | None, keep: Keep, ids: range
) -> IdRange | int:
    """Return the part of the sessions of `ids`, or its size if that is too large."""
    mine = sessions.filter(F.col("subscriber_id").between(ids.start, ids.stop - 1))
    posted = keep(postings(mine))
    # 1. Divide the selectors into narrow and wide ones.  Every worker gets the wide
    #    ones, so they must fit.
    bytes_of = [F.coalesce(F.length(column), F.lit(0)) for column in ("subscribed", "authorised")]
    narrow = (F.col("match_type") == "exact") & (bytes_of[0] + bytes_of[1] <= narrow_bytes)
    wide = posted.filter(~F.coalesce(narrow, F.lit(False)))  # also those with a null
    total = wide.mapInArrow(sizes, "bytes long").agg(F.sum("bytes")).first()
    assert total is not None
    size = 16 * len(ids) + (total[0] or 0)
    if size > max_broadcast_bytes:
        return int(size)
    # 2. They fit: fetch them with their bitmaps, and the times.
    times = mine.select("subscriber_id", "begins", "ends").toArrow()
    selectors, held = shared(ids, wide.toArrow(), times, base_url)
    exact = posted.filter(narrow).select(F.col("selector").alias("topic"), "subscribed", "authorised", "n_subscribed")
    return IdRange(exact, selectors, held)

"""Partition: divide the sessions into ranges of ids that are small enough for a worker.

    shard 0  0 ── 8,388,607   does not fit ──►  0 ── 4,194,303   fits: a part
                                                4,194,304 ── 8,388,607   fits: a part
    shard 1  8,388,608 ── 9,000,000   fits: a part

A range fits if the times of its sessions and its wide selectors, with their bitmaps,
take at most `max_broadcast_bytes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.deliveries import Sessions
from skipfilter.spark.errors import BadInput, BroadcastLimit
from skipfilter.spark.posting_lists import SHARD_BITS, postings
from skipfilter.spark.wide_selectors import Wide, require_selectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    from skipfilter.spark.deliveries import Moments

    Keep: TypeAlias = Callable[[DataFrame], DataFrame]

NEVER: Final = int(np.iinfo(np.int64).max)
"""The end of a session that has not ended; both times of an id without a session."""


# -- the sessions, a range of ids at a time


class Part(NamedTuple):
    """The sessions of one range of ids."""

    narrow: DataFrame
    """topic, subscribed, authorised: the narrow selectors, which are all exact."""
    wide: Wide
    """The wide selectors; their bitmaps are in `sessions`, in the same order."""
    sessions: Sessions


def parts_of(
    sessions: DataFrame, narrow_bytes: int, max_broadcast_bytes: int, base_url: str | None, keep: Keep
) -> Iterator[Part]:
    """Yield the sessions in parts, at least one.

    No part has ids of two shards.  `keep` persists a table that a part uses repeatedly.
    Runs jobs before each part.  Raises BadInput and BroadcastLimit as Matching says.
    """
    for ids in _shards(sessions):
        yield from _parts(sessions, ids, narrow_bytes, max_broadcast_bytes, base_url, keep)


def _shards(sessions: DataFrame) -> list[range]:
    """Return the range of ids of each shard, in order.

    It is a single empty range if there are no sessions.
    """
    shard = F.shiftright("subscriber_id", SHARD_BITS).alias("shard")
    rows = sessions.groupBy(shard).agg(F.min("subscriber_id"), F.max("subscriber_id")).collect()
    # A null id makes a shard of its own.
    for _, first, _ in rows:
        if first is None or first < 0:
            raise BadInput(f"sessions: subscriber_id must be at least 0, not {first}")
    return [range(first, last + 1) for _, first, last in sorted(rows)] or [range(0)]


def _parts(
    sessions: DataFrame, ids: range, narrow_bytes: int, max_broadcast_bytes: int, base_url: str | None, keep: Keep
) -> Iterator[Part]:
    """Yield the sessions of `ids`, halved until each part fits into a worker."""
    # 1. Even without selectors, each id takes 8 bytes for its beginning and 8 for its
    #    end.
    size = 16 * len(ids)
    if size <= max_broadcast_bytes:
        mine = sessions.filter(F.col("subscriber_id").between(ids.start, ids.stop - 1))
        posted = keep(postings(mine))
        # 2. Divide the selectors into narrow and wide ones.  Every worker gets the wide
        #    ones, so they must fit.
        bytes_of = [F.coalesce(F.length(column), F.lit(0)) for column in ("subscribed", "authorised")]
        narrow = (F.col("match_type") == "exact") & (bytes_of[0] + bytes_of[1] <= narrow_bytes)
        wide = posted.filter(~narrow)
        total = wide.agg(F.sum(bytes_of[0] + bytes_of[1] + F.octet_length("selector"))).first()
        assert total is not None
        size += total[0] or 0
        # 3. They fit: fetch the times, and the wide selectors with their bitmaps.
        if size <= max_broadcast_bytes:
            begins, ends = _windows(mine, ids)
            fetched = wide.select("match_type", "selector", "subscribed", "authorised").toArrow()
            types, patterns, subscribed, authorised = (column.to_pylist() for column in fetched.columns)
            selectors = Wide(list(zip(types, patterns, strict=True)), base_url)
            shared = Sessions(ids.start, begins, ends, subscribed, authorised)
            require_selectors(selectors, shared)
            yield Part(
                posted.filter(narrow).select(F.col("selector").alias("topic"), "subscribed", "authorised"),
                selectors,
                shared,
            )
            return
    # 4. They do not fit: halve the range.  A single id cannot be halved.
    if len(ids) == 1:
        raise BroadcastLimit(
            f"subscriber_id {ids.start}: its {size:,} bytes of selectors are more than the "
            f"{max_broadcast_bytes:,} that a worker may hold (max_broadcast_bytes)"
        )
    middle = ids.start + len(ids) // 2
    for half in (range(ids.start, middle), range(middle, ids.stop)):
        yield from _parts(sessions, half, narrow_bytes, max_broadcast_bytes, base_url, keep)


def _windows(sessions: DataFrame, ids: range) -> tuple[Moments, Moments]:
    """Return when the session of each id begins, and when it ends, as two arrays.

    Both are in the order of the ids, and ends are exclusive.  Both times are NEVER for
    an id without a session.  Raises BadInput if a beginning is null, if a session ends
    before it begins, or if an id occurs twice.
    """
    fetched = sessions.select("subscriber_id", "begins", "ends").toArrow()
    if fetched["begins"].null_count:
        raise BadInput("sessions: a session has no beginning: connected_from (by position: after) is null")
    subscribers, opened, closed = (
        pc.fill_null(fetched[name], NEVER).to_numpy() for name in ("subscriber_id", "begins", "ends")
    )
    if (wrong := np.flatnonzero(closed < opened)).size:
        raise BadInput(f"sessions: subscriber_id {subscribers[wrong[0]]} ends before it begins")
    # An id without a session keeps NEVER, so it is connected at no moment.
    begins = np.full(len(ids), NEVER)
    ends = np.full(len(ids), NEVER)
    begins[subscribers - ids.start] = opened
    ends[subscribers - ids.start] = closed
    distinct, counts = np.unique(subscribers, return_counts=True)
    if (wrong := np.flatnonzero(counts > 1)).size:
        raise BadInput(f"sessions: subscriber_id {distinct[wrong[0]]} occurs {counts[wrong[0]]} times")
    return begins, ends

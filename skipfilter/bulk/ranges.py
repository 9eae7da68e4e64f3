"""Ranges: divide the sessions into ranges of ids that are small enough for a worker.

    shard 0  0 ── 8,388,607   does not fit ──►  0 ── 4,194,303   fits: a part
                                                4,194,304 ── 8,388,607   fits: a part
    shard 1  8,388,608 ── 9,000,000   fits: a part

A range fits if the times of its sessions, its wide selectors with their bitmaps, and
the index that a worker builds of them, take at most a given number of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skipfilter.bulk.deliveries import NEVER, Sessions
from skipfilter.bulk.errors import BadInput, BroadcastLimit
from skipfilter.bulk.posting_lists import SHARD_BITS
from skipfilter.bulk.wide_selectors import Wide, index_bytes, require_selectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from skipfilter.bulk.deliveries import Moments

P = TypeVar("P")

BROADCAST_BYTES: Final = 2**28
"""The maximum number of bytes of one range of ids, which every worker holds."""
MAX_ID: Final = 2 ** (SHARD_BITS + 31)
"""The number of ids: a shard has 32 bits."""


def shards(bounds: Iterable[tuple[int | None, int | None]]) -> list[range]:
    """Return the range of ids of each shard, in order.

    `bounds` has the first and the last id of each shard.  The result is a single empty
    range if there are none.  Raises BadInput if an id is null or out of bounds.
    """
    found = []
    for first, last in bounds:
        if first is None or last is None or first < 0:
            raise BadInput(f"sessions: subscriber_id must be at least 0, not {first}")
        if last >= MAX_ID:
            raise BadInput(f"sessions: subscriber_id must be less than 2**54, not {last}")
        found.append(range(first, last + 1))
    return sorted(found, key=lambda ids: ids.start) or [range(0)]


def divided(ids: range, part: Callable[[range], P | int], max_bytes: int) -> Iterator[P]:
    """Yield the parts of the range `ids`, halved until each part fits.

    `part` returns the part of a range, or its size in bytes if that is more than
    `max_bytes`.  Raises BroadcastLimit if a single id does not fit.
    """
    # Even without selectors, each id takes 8 bytes for its beginning and 8 for its end.
    least = 16 * len(ids)
    found = part(ids) if least <= max_bytes else least
    if not isinstance(found, int):
        yield found
    elif len(ids) == 1:
        raise BroadcastLimit(
            f"subscriber_id {ids.start}: its {found:,} bytes of selectors are more than the "
            f"{max_bytes:,} that a worker may hold (max_broadcast_bytes)"
        )
    else:
        middle = ids.start + len(ids) // 2
        for half in (range(ids.start, middle), range(middle, ids.stop)):
            yield from divided(half, part, max_bytes)


def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the bytes that the wide selectors in some postings take in a worker.

    A batch has one row and the column `bytes`: of the selectors and their bitmaps, and
    of the index.  Raises BadInput if a selector has a null.
    """
    for batch in batches:
        types, patterns = (batch.column(name).to_pylist() for name in ("match_type", "selector"))
        if None in types or None in patterns:
            raise BadInput("sessions: a selector has no type, or no pattern")
        total = sum(map(index_bytes, types, patterns))
        for name in ("selector", "subscribed", "authorised"):
            total += pc.sum(pc.binary_length(batch.column(name))).as_py() or 0
        yield pa.record_batch([pa.array([total])], ["bytes"])


def shared(ids: range, wide: pa.Table, sessions: pa.Table, base_url: str | None) -> tuple[Wide, Sessions]:
    """Return what every worker holds of a range of ids.

    `wide` has the postings of its wide selectors, and `sessions` the columns
    subscriber_id, begins and ends.  Raises BadInput if a selector or a session is
    invalid.
    """
    begins, ends = _windows(sessions, ids)
    types, patterns, subscribed, authorised = (
        wide[name].to_pylist() for name in ("match_type", "selector", "subscribed", "authorised")
    )
    selectors = Wide(list(zip(types, patterns, strict=True)), base_url, wide["n_subscribed"].to_numpy())
    held = Sessions(ids.start, begins, ends, subscribed, authorised)
    require_selectors(selectors, held)
    return selectors, held


def _windows(sessions: pa.Table, ids: range) -> tuple[Moments, Moments]:
    """Return when the session of each id begins, and when it ends, as two arrays.

    The arrays are in the order of the ids, and ends are exclusive.  Both times are
    NEVER for an id without a session.  Raises BadInput if a beginning is null, if a
    session ends before it begins, or if an id occurs twice.
    """
    if sessions["begins"].null_count:
        raise BadInput("sessions: a session has no beginning: connected_from (by position: after) is null")
    subscribers = sessions["subscriber_id"].to_numpy()
    opened, closed = (pc.fill_null(sessions[name], NEVER).to_numpy() for name in ("begins", "ends"))
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

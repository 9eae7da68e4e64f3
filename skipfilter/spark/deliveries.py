"""Deliveries: a worker finds the audience of each key, and its members that were
connected.

    is_key  at   update     references                    members  begins  ends
    true         -          {0, 7}, wide 3      ──►       0        10      25
    false   12   "a"                                      7        15      never
    false   20   "b"                  fan-out of "b" = begun by 20 - ended by 20 = 2 - 0

A key (topics, private) comes first, then its updates.  Arrow batches in, Arrow batches
out; this module does not need Spark.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skipfilter.spark.bitmaps import ids_of, serialized, union
from skipfilter.spark.posting_lists import SHARD_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from pyroaring import BitMap

    from skipfilter.spark.bitmaps import Ids

    Moments = NDArray[np.int64]

K = TypeVar("K")
V = TypeVar("V")

Output = Literal["fanout", "bitmaps", "rows", "received"]

AUDIENCE_BYTES: Final = 2**28
"""Bytes of audiences that a task caches."""
CELLS: Final = 2**22
"""Pairs of an update and an audience member that are compared at once."""
FEW: Final = 64
"""Up to this number of pairs, a key is counted together with other small keys."""
WAITING: Final = 1_000_000
"""Updates that are collected before they are counted together."""


class Sessions(NamedTuple):
    """The sessions of a range of ids, and the bitmaps of wide selectors, as workers
    have them.
    """

    first: int
    """The first id of the range."""
    begins: Moments
    ends: Moments
    subscribed: list[bytes | None]
    authorised: list[bytes | None]

    @property
    def shard(self) -> int:
        """The shard of the range."""
        return self.first >> SHARD_BITS

    @property
    def offset(self) -> np.uint32:
        """The first id, as its bitmaps count ids."""
        return np.uint32(self.first & (1 << SHARD_BITS) - 1)


class _Members:
    """Part of an audience: ids, ascending, and their connection times.

    36 bytes an id.
    """

    def __init__(self, bits: BitMap, sessions: Sessions) -> None:
        self.ids: Ids = ids_of(bits)
        self._sessions = sessions

    @cached_property
    def places(self) -> Ids:
        """The ids as indexes into the arrays of the sessions."""
        return self.ids - self._sessions.offset

    @cached_property
    def begins(self) -> Moments:
        """When each member connects."""
        return self._sessions.begins[self.places]

    @cached_property
    def ends(self) -> Moments:
        """When each member disconnects."""
        return self._sessions.ends[self.places]

    @cached_property
    def _sorted(self) -> tuple[Moments, Moments]:
        begins, ends = self.begins.copy(), self.ends.copy()
        begins.sort()
        ends.sort()
        return begins, ends

    def count(self, at: Moments) -> NDArray[np.int64]:
        """Return how many members are connected at each moment."""
        begins, ends = self._sorted
        count: NDArray[np.int64] = begins.searchsorted(at, "right") - ends.searchsorted(at, "right")
        return count

    def received(self, at: Moments) -> NDArray[np.int64]:
        """Return at how many of these moments, which are sorted, each member is
        connected.
        """
        received: NDArray[np.int64] = at.searchsorted(self.ends, "left") - at.searchsorted(self.begins, "left")
        return received

    def pairs(self, at: Moments) -> tuple[NDArray[np.intp], Ids]:
        """Return (index of a moment, id of a member that is connected then), in
        order.
        """
        moments = at[:, np.newaxis]
        places, members = np.nonzero((self.begins <= moments) & (moments < self.ends))
        return places, self.ids[members]


class _Audience(NamedTuple):
    """The sessions that receive the updates of a key: by wide selectors alone, and
    others.
    """

    large: _Members | None
    rest: _Members | None

    def there(self) -> list[_Members]:
        """Return the parts that are not empty."""
        return [members for members in self if members is not None]


class _Audiences:
    """Turns references into audiences, with caches."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        # Unions of the bitmaps of wide selectors, by role and numbers.
        self._unions: _Memory[tuple[str, tuple[int, ...]], BitMap] = _Memory(AUDIENCE_BYTES // 4)
        # Audiences by wide selectors alone, by numbers and whether the update is
        # private.
        self._large: _Memory[tuple[tuple[int, ...], bool], tuple[BitMap, _Members]] = _Memory(AUDIENCE_BYTES * 3 // 4)

    def of(self, private: bool, subscribed: list[bytes], authorised: list[bytes], wide: list[int] | None) -> _Audience:
        """Return the audience of a key; the bitmaps are those of its narrow
        selectors.
        """
        if not wide:
            bits = union(subscribed) & union(authorised) if private else union(subscribed)
            return _Audience(None, _Members(bits, self._sessions) if bits else None)
        numbers = tuple(wide)
        alone, large = self._by_wide(numbers, private)
        bits = union(subscribed)
        if private:
            # At least one of the two selectors is narrow; if both are wide, it is in
            # `alone`.
            granted = union(authorised)
            narrow = (bits & granted) | (bits & self._union("authorised", numbers))
            bits = narrow | (self._union("subscribed", numbers) & granted)
        rest = bits - alone
        return _Audience(large if alone else None, _Members(rest, self._sessions) if rest else None)

    def _by_wide(self, numbers: tuple[int, ...], private: bool) -> tuple[BitMap, _Members]:
        """Return the audience by wide selectors alone, from the cache if it is
        there.
        """
        found = self._large.found.get((numbers, private))
        if found is None:
            bits = self._union("subscribed", numbers)
            if private:
                bits = bits & self._union("authorised", numbers)
            found = bits, _Members(bits, self._sessions)
            self._large.remember((numbers, private), found, 400 + 38 * len(bits))
        return found

    def _union(self, role: Literal["subscribed", "authorised"], numbers: tuple[int, ...]) -> BitMap:
        """Return the ids of any of the wide selectors, from the cache if they are
        there.
        """
        bits = self._unions.found.get((role, numbers))
        if bits is None:
            held = self._sessions.subscribed if role == "subscribed" else self._sessions.authorised
            bits = union(found for number in numbers if (found := held[number]) is not None)
            self._unions.remember((role, numbers), bits, 200 + 2 * len(bits))
        return bits


class _Memory(Generic[K, V]):
    """A cache of `most` bytes, which is emptied before it exceeds them.

    Tracking use would cost more than finding an entry again now and then.
    """

    def __init__(self, most: int) -> None:
        self.found: dict[K, V] = {}
        self._most = most
        self._held = 0

    def remember(self, key: K, value: V, size: int) -> None:
        """Add an entry of `size` bytes."""
        if self._held + size > self._most:
            self.found.clear()
            self._held = 0
        self.found[key] = value
        self._held += size


class _Run(NamedTuple):
    """Consecutive updates of one key in a batch, with their audience."""

    start: int
    stop: int
    audience: _Audience


def _runs(
    batches: Iterable[pa.RecordBatch], sessions: Sessions
) -> Iterator[tuple[pa.RecordBatch, Moments, list[_Run]]]:
    """Yield each batch, the moments of its rows, and the runs that have an audience.

    A key comes before its updates, which may continue in later batches.
    """
    audiences = _Audiences(sessions)
    audience = _Audience(None, None)
    for batch in batches:
        # The rows that are keys, with their references.
        keys = np.flatnonzero(batch.column("is_key").to_numpy(zero_copy_only=False))
        at = pc.fill_null(batch.column("at"), 0).to_numpy()
        references = [batch.column(name).take(pa.array(keys)).to_pylist() for name in _REFERENCES]
        # The updates before the first key belong to the last key of the batch before.
        edges = [*keys.tolist(), len(batch)]
        runs = [_Run(0, edges[0], audience)]
        for start, stop, *reference in zip(edges, edges[1:], *references, strict=False):
            audience = audiences.of(*reference)
            runs.append(_Run(start + 1, stop, audience))
        yield batch, at, [run for run in runs if run.start < run.stop and run.audience.there()]


_REFERENCES: Final = ["private", "subscribed", "authorised", "wide"]


def _fanout(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (update, fanout) of each update."""
    for batch, at, runs in _runs(batches, sessions):
        fanout = np.zeros(len(batch), np.int64)
        # Most keys have few updates, and few members outside of an audience that many
        # keys share.  So a shared audience is counted once for a batch, and the few
        # members of all keys together.
        shared: dict[_Members, list[tuple[int, int]]] = {}
        few: list[tuple[int, int, Ids]] = []
        # 1. Sort the runs by how they are counted.
        for start, stop, (large, rest) in runs:
            if large is not None:
                shared.setdefault(large, []).append((start, stop))
            if rest is None:
                continue
            if len(rest.ids) * (stop - start) <= FEW:
                few.append((start, stop, rest.ids))
            else:
                fanout[start:stop] = rest.count(at[start:stop])
        # 2. Shared audiences, each for all its runs.
        for large, ranges in shared.items():
            starts, stops = np.array(ranges).T
            rows = _rows_from(starts, stops - starts) if len(ranges) > 1 else slice(*ranges[0])
            fanout[rows] += large.count(at[rows])
        # 3. The few others.
        if few:
            fanout += _count_few(few, at, sessions)
        # 4. The rows of the updates, without those of keys.
        is_update = pc.invert(batch.column("is_key"))
        update, fanned = batch.column("update").filter(is_update), pa.array(fanout).filter(is_update)
        yield pa.record_batch([update, fanned], ["update", "fanout"])


def _rows_from(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return `counts[i]` consecutive rows from each of `starts[i]` on."""
    before = np.cumsum(counts) - counts
    rows: NDArray[np.intp] = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return rows


def _count_few(few: list[tuple[int, int, Ids]], at: Moments, sessions: Sessions) -> NDArray[np.intp]:
    """Return how many ids of its run are connected at each row, by testing each
    pair.
    """
    first, last, ids = zip(*few, strict=True)
    run = np.repeat(np.arange(len(few)), [len(some) for some in ids])  # of each id
    starts, stops = np.array(first)[run], np.array(last)[run]
    rows = _rows_from(starts, stops - starts)
    places = np.repeat(np.concatenate(ids) - sessions.offset, stops - starts)
    there = (sessions.begins[places] <= at[rows]) & (at[rows] < sessions.ends[places])
    count: NDArray[np.intp] = np.bincount(rows[there], minlength=len(at))
    return count


def _reached(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[tuple[pa.RecordBatch, pa.Array, Ids]]:
    """Yield deliveries: the batch, rows in no certain order, and an id for each row."""
    for batch, at, runs in _runs(batches, sessions):
        for run in runs:
            there = run.audience.there()
            step = max(1, CELLS // sum(len(members.ids) for members in there))
            for start in range(run.start, run.stop, step):
                found = [members.pairs(at[start : min(start + step, run.stop)]) for members in there]
                rows, ids = (np.concatenate(columns) for columns in zip(*found, strict=True))
                if len(ids):
                    yield batch, rows + start, ids


def _rows(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (update, subscriber_id) of each delivery."""
    for batch, rows, ids in _reached(batches, sessions):
        subscribers = ids.astype(np.int64) + (sessions.shard << SHARD_BITS)
        update = batch.column("update").take(pa.array(rows))
        yield pa.record_batch([update, pa.array(subscribers)], ["update", "subscriber_id"])


def _bitmaps(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (update, shard, recipients) with the recipients of each update as a
    bitmap.
    """
    for batch, rows, ids in _reached(batches, sessions):
        order = np.argsort(rows, kind="stable")
        rows, ids = rows[order], ids[order]
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        recipients, _ = serialized(ids, np.append(firsts, len(ids)))
        update = batch.column("update").take(pa.array(rows[firsts]))
        shard = pa.array(np.full(len(firsts), sessions.shard, np.int32))
        yield pa.record_batch([update, shard, recipients], ["update", "shard", "recipients"])


def _received(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (subscriber_id, received) of each session that received any update."""
    received = np.zeros(len(sessions.begins), np.int64)
    # A shared audience is counted for many updates at once.
    waiting: dict[_Members, list[Moments]] = {}
    count = held = 0

    def flush() -> None:
        for members, moments in waiting.items():
            received[members.places] += members.received(np.sort(np.concatenate(moments)))
        waiting.clear()

    for _, at, runs in _runs(batches, sessions):
        for start, stop, (large, rest) in runs:
            if rest is not None:
                received[rest.places] += rest.received(at[start:stop])
            if large is not None:
                if large not in waiting:
                    waiting[large] = []
                    held += 36 * len(large.ids)
                waiting[large].append(at[start:stop])
                count += stop - start
        if count >= WAITING or held >= AUDIENCE_BYTES:
            flush()
            count = held = 0
    flush()
    places = np.flatnonzero(received)
    yield pa.record_batch(
        [pa.array(places + sessions.first), pa.array(received[places])], ["subscriber_id", "received"]
    )


# Each output's function, and its columns; all but `received` also return the update
# unchanged.
OUTPUTS: Final[dict[Output, tuple[Callable[..., Iterator[pa.RecordBatch]], str]]] = {
    "fanout": (_fanout, "fanout long"),
    "bitmaps": (_bitmaps, "shard int, recipients binary"),
    "rows": (_rows, "subscriber_id long"),
    "received": (_received, "subscriber_id long, received long"),
}

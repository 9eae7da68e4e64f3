"""Deliveries: the part of matching that a worker does, on Arrow batches.

A worker finds the audience of each key (topics, private) once.  For each update of the
key it then finds the members of the audience that were connected.

    rows: is_key  at   update  references             audience: id  begins  ends
          true    -    -       {0, 7}, wide 3   ──►             0   10      25
          false   12   "a"     -                                7   15      never
          false   20   "b"     -
    fan-out of "b": 2 have begun by 20, and 0 of them have ended by 20, so 2 - 0 = 2

References are bitmaps of narrow selectors and numbers of wide ones.  The row of a key
comes before the rows of its updates, which are in the order of `at`: µs since 1970, or
positions.  So each member of the audience received a range of them, which two binary
searches find:

    id 0   connected from 10 to 25   received the updates at 12 and 20
    id 7   connected from 15 on      received the update at 20
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skipfilter.bulk.bitmaps import ids_of, serialized, union
from skipfilter.bulk.posting_lists import SHARD_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from pyroaring import BitMap

    from skipfilter.bulk.bitmaps import Ids

    Moments = NDArray[np.int64]
    Rows = NDArray[np.integer[Any]]

K = TypeVar("K")
V = TypeVar("V")

NEVER: Final = int(np.iinfo(np.int64).max)
"""The end of a session that has not ended; both times of an id without a session."""
AUDIENCE_BYTES: Final = 2**28
"""The maximum size of a task's caches of audiences."""
DELIVERIES_AT_ONCE: Final = 2**18
"""The number of deliveries, of whole updates, that are yielded at once."""
FEW_PAIRS: Final = 64
"""A key with at most this number of pairs of an update and an audience member is tested
together with other such keys, pair by pair."""
FEW_UPDATES: Final = 8
"""A key with at most this number of updates tests each member, which is faster then."""
UPDATES_AT_ONCE: Final = 1_000_000
"""The number of updates that are collected before they are counted together."""
_MEMBER_BYTES: Final = 40
"""Bytes of a member of an audience: 4 for the id, 4 for its place, 32 for times."""


class Sessions(NamedTuple):
    """The sessions of a range of ids and the bitmaps of the wide selectors.

    Every worker has a copy.
    """

    first: int
    """The first id of the range."""
    begins: Moments
    """The first moment of each session, by id - first; NEVER if there is none."""
    ends: Moments
    """The first moment after each session, likewise."""
    subscribed: list[bytes | None]
    """The ids that declare each wide selector, by its number; None for no ids."""
    authorised: list[bytes | None]
    """The ids that are granted each wide selector, likewise."""

    @property
    def shard(self) -> int:
        """The shard in which the whole range lies."""
        return self.first >> SHARD_BITS

    def share_connected(self, first: int, last: int) -> float:
        """Return the share of the sessions that are connected at a time.

        It is the mean from `first` to `last`, and 0 if there are no sessions.
        """
        count = np.count_nonzero(self.begins < NEVER)
        begins, ends = (edge.clip(first, last + 1).astype(float) for edge in (self.begins, self.ends))
        return float((ends - begins).sum() / (last + 1 - first) / max(count, 1))

    @property
    def offset(self) -> np.uint32:
        """The first id of the range, counted from the first id of its shard."""
        return np.uint32(self.first & (1 << SHARD_BITS) - 1)


class _Members:
    """Part of an audience: ids in ascending order, and when each is connected.

    Times are looked up when they are first needed.  An id then takes up to
    _MEMBER_BYTES.
    """

    def __init__(self, bits: BitMap, sessions: Sessions) -> None:
        self.ids: Ids = ids_of(bits)  # counted from the first id of the shard
        self._sessions = sessions

    @cached_property
    def places(self) -> Ids:
        """The index of each id in the arrays of the sessions."""
        return self.ids - self._sessions.offset

    @cached_property
    def begins(self) -> Moments:
        """The first moment at which each member is connected."""
        return self._sessions.begins[self.places]

    @cached_property
    def ends(self) -> Moments:
        """The first moment at which each member is no longer connected."""
        return self._sessions.ends[self.places]

    @cached_property
    def _sorted(self) -> tuple[Moments, Moments]:
        """All beginnings and all ends, each sorted on its own."""
        begins, ends = self.begins.copy(), self.ends.copy()
        begins.sort()
        ends.sort()
        return begins, ends

    def count(self, at: Moments) -> NDArray[np.int64]:
        """Return how many members are connected at each moment.

        Two binary searches a moment: those that have begun, minus those that have
        ended.
        """
        begins, ends = self._sorted
        count: NDArray[np.int64] = begins.searchsorted(at, "right") - ends.searchsorted(at, "right")
        return count

    def connected(self, at: np.int64) -> Ids:
        """Return the ids that are connected at a moment, by testing each."""
        return self.ids[(self.begins <= at) & (at < self.ends)]

    def ranges(self, at: Moments) -> tuple[Rows, Rows]:
        """Return (first, last): member i is connected at the moments first[i]:last[i].

        The moments must be sorted.  A range may be empty.  Takes two binary searches a
        member.
        """
        return at.searchsorted(self.begins), at.searchsorted(self.ends)


class _Audience(NamedTuple):
    """The sessions that may receive the updates of a key, in two disjoint parts.

    `large` are the sessions that wide selectors alone admit.  Public keys that match
    the same wide selectors share it, and so do private keys.  `rest` are all others.
    """

    large: _Members | None
    rest: _Members | None

    def parts(self) -> list[_Members]:
        """Return the parts that are not empty."""
        return [members for members in self if members is not None]


class _Audiences:
    """Turns the references of keys into audiences, and caches what keys share."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        # The union of the bitmaps of wide selectors, by role and numbers.
        self._unions: _Memory[tuple[str, tuple[int, ...]], BitMap] = _Memory(AUDIENCE_BYTES // 4)
        # The audience that wide selectors alone admit, by their numbers and whether the
        # key is private.
        self._large: _Memory[tuple[tuple[int, ...], bool], tuple[BitMap, _Members]] = _Memory(AUDIENCE_BYTES * 3 // 4)

    def of(self, private: bool, subscribed: list[bytes], authorised: list[bytes], wide: list[int] | None) -> _Audience:
        """Return the audience of a key.

        `subscribed` and `authorised` are the bitmaps of its narrow selectors, and
        `wide` the numbers of its wide selectors.
        """
        # 1. Narrow selectors only: there is nothing to share.
        if not wide:
            bits = union(subscribed) & union(authorised) if private else union(subscribed)
            return _Audience(None, _Members(bits, self._sessions) if bits else None)
        # 2. The sessions that wide selectors admit, which other keys share.
        numbers = tuple(wide)
        alone, large = self._by_wide(numbers, private)
        # 3. The sessions that a narrow selector admits.  A private update needs both a
        #    declared and a granted selector.  At least one of them is narrow here: if
        #    both are wide, the session is in `alone`.
        bits = union(subscribed)
        if private:
            granted = union(authorised)
            narrow = (bits & granted) | (bits & self._union("authorised", numbers))
            bits = narrow | (self._union("subscribed", numbers) & granted)
        # 4. The parts must be disjoint, because their counts are added.
        rest = bits - alone
        return _Audience(large if alone else None, _Members(rest, self._sessions) if rest else None)

    def _by_wide(self, numbers: tuple[int, ...], private: bool) -> tuple[BitMap, _Members]:
        """Return the sessions that wide selectors alone admit, cached."""
        found = self._large.found.get((numbers, private))
        if found is None:
            bits = self._union("subscribed", numbers)
            if private:
                bits = bits & self._union("authorised", numbers)
            found = bits, _Members(bits, self._sessions)
            # A member also takes about 2 bytes in the bitmap.
            self._large.remember((numbers, private), found, 400 + (_MEMBER_BYTES + 2) * len(bits))
        return found

    def _union(self, role: Literal["subscribed", "authorised"], numbers: tuple[int, ...]) -> BitMap:
        """Return the ids in the bitmaps of any of the wide selectors, cached."""
        bits = self._unions.found.get((role, numbers))
        if bits is None:
            held = self._sessions.subscribed if role == "subscribed" else self._sessions.authorised
            bits = union(found for number in numbers if (found := held[number]) is not None)
            self._unions.remember((role, numbers), bits, 200 + 2 * len(bits))
        return bits


class _Memory(Generic[K, V]):
    """A cache of up to `most` bytes.  It is emptied before an entry would exceed them.

    cachetools would track which entries are used, which costs more than to compute some
    again.
    """

    def __init__(self, most: int) -> None:
        self.found: dict[K, V] = {}
        self._most = most  # bytes
        self._held = 0  # bytes, as counted by the callers of `remember`

    def remember(self, key: K, value: V, size: int) -> None:
        """Add an entry of `size` bytes, even if it alone is more than `most`."""
        if self._held + size > self._most:
            self.found.clear()
            self._held = 0
        self.found[key] = value
        self._held += size


class _Run(NamedTuple):
    """Consecutive rows of a batch, all updates of one key, with their audience."""

    start: int
    stop: int
    audience: _Audience


def _runs(
    batches: Iterable[pa.RecordBatch], sessions: Sessions
) -> Iterator[tuple[pa.RecordBatch, Moments, list[_Run]]]:
    """Yield each batch, the moments of its rows, and its runs.

    Leaves out runs that have no audience.  The updates of a key may continue in later
    batches.
    """
    audiences = _Audiences(sessions)
    audience = _Audience(None, None)
    for batch in batches:
        # 1. The rows that are keys, and their references.  A key has no moment.
        keys = np.flatnonzero(batch.column("is_key").to_numpy(zero_copy_only=False))
        at = pc.fill_null(batch.column("at"), 0).to_numpy()
        references = [batch.column(name).take(pa.array(keys)).to_pylist() for name in REFERENCES]
        # 2. The updates before the first key continue the last key of the batch before.
        edges = [*keys.tolist(), len(batch)]
        runs = [_Run(0, edges[0], audience)]
        # 3. All other updates belong to the key before them.
        for start, stop, *reference in zip(edges, edges[1:], *references, strict=False):
            audience = audiences.of(*reference)
            runs.append(_Run(start + 1, stop, audience))
        yield batch, at, [run for run in runs if run.start < run.stop and run.audience.parts()]


REFERENCES: Final = {
    "private": pa.bool_(),
    "subscribed": pa.list_(pa.binary()),
    "authorised": pa.list_(pa.binary()),
    "wide": pa.list_(pa.int32()),
}
"""The columns of a key, by name: what `_Audiences.of` takes."""


def count_fanout(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (update, fanout) of each update, also if it is 0."""
    for batch, at, runs in _runs(batches, sessions):
        fanout = np.zeros(len(batch), np.int64)
        # Most keys have few updates, and few members outside of the large part, which
        # many keys share.  So each large part is counted once for the whole batch, and
        # all small rests are counted together.
        shared: dict[_Members, list[tuple[int, int]]] = {}
        few: list[tuple[int, int, Ids]] = []
        # 1. Collect large parts and small rests to count them below.  Count the other
        #    rests now.
        for start, stop, (large, rest) in runs:
            if large is not None:
                shared.setdefault(large, []).append((start, stop))
            if rest is None:
                continue
            if len(rest.ids) * (stop - start) <= FEW_PAIRS:
                few.append((start, stop, rest.ids))
            else:
                fanout[start:stop] = rest.count(at[start:stop])
        # 2. Count each large part for all runs that have it.
        for large, ranges in shared.items():
            starts, stops = np.array(ranges).T
            rows = _rows_from(starts, stops - starts) if len(ranges) > 1 else slice(*ranges[0])
            fanout[rows] += large.count(at[rows])
        # 3. Count all small rests.
        if few:
            rows, _ = _test_few(few, at, sessions)
            fanout += np.bincount(rows, minlength=len(at))
        # 4. Keep the rows of updates, without those of keys.
        is_update = pc.invert(batch.column("is_key"))
        update, fanned = batch.column("update").filter(is_update), pa.array(fanout).filter(is_update)
        yield pa.record_batch([update, fanned], ["update", "fanout"])


def _rows_from(starts: Rows, counts: Rows) -> Rows:
    """Return the rows of all ranges from `starts[i]` to `starts[i] + counts[i]`."""
    # Count on over all ranges, and shift each range to its start.
    before = np.cumsum(counts) - counts
    rows: Rows = np.repeat((starts - before).astype(np.int32), counts)
    rows += np.arange(len(rows), dtype=np.int32)
    return rows


def _test_few(few: list[tuple[int, int, Ids]], at: Moments, sessions: Sessions) -> tuple[Rows, Ids]:
    """Return (row, id) of each id that is connected at a row of its run.

    A run is (start, stop, ids).  Tests each pair.
    """
    # 1. The run of each id, and the rows of that run.
    first, last, ids = zip(*few, strict=True)
    run = np.repeat(np.arange(len(few)), [len(some) for some in ids])
    starts, stops = np.array(first)[run], np.array(last)[run]
    rows = _rows_from(starts, stops - starts)
    # 2. A pair of each id and each row of its run: those in which the id is connected.
    each = np.repeat(np.concatenate(ids), stops - starts)
    places = each - sessions.offset
    connected = (sessions.begins[places] <= at[rows]) & (at[rows] < sessions.ends[places])
    return rows[connected], each[connected]


def _reached(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[tuple[pa.RecordBatch, pa.Array, Ids]]:
    """Yield deliveries as (batch, rows, ids): the update in rows[i] reached ids[i].

    In the order of the rows.  All deliveries of an update are in one item.
    """
    for batch, at, runs in _runs(batches, sessions):
        waiting: list[tuple[Rows, Ids]] = []
        count = 0
        for rows, ids in _pieces(at, runs, sessions):
            waiting.append((rows, ids))
            count += len(rows)
            if count >= DELIVERIES_AT_ONCE:
                yield batch, *_in_order(waiting)
                waiting, count = [], 0
        if count:
            yield batch, *_in_order(waiting)


def _in_order(found: list[tuple[Rows, Ids]]) -> tuple[Rows, Ids]:
    """Return (rows, ids) of all deliveries, in the order of the rows."""
    rows, ids = (np.concatenate(columns) for columns in zip(*found, strict=True))
    # numpy sorts numbers of 16 bits in linear time, and most batches have few rows.
    least = rows.min()
    order = np.argsort((rows - least).astype(np.min_scalar_type(rows.max() - least)), kind="stable")
    return rows[order], ids[order]


def _pieces(at: Moments, runs: list[_Run], sessions: Sessions) -> Iterator[tuple[Rows, Ids]]:
    """Yield the deliveries of the runs as (rows, ids), in pieces of whole updates.

    A piece has up to DELIVERIES_AT_ONCE deliveries, or those of a single update, or of
    runs with up to FEW_PAIRS.  Takes time for each delivery, and for each member of a
    run's audience.
    """
    few: list[tuple[int, int, Ids]] = []
    for start, stop, audience in runs:
        parts = audience.parts()
        # 1. Most keys have few updates and few members: test them together below.
        if sum(len(members.ids) for members in parts) * (stop - start) <= FEW_PAIRS:
            few += [(start, stop, members.ids) for members in parts]
            continue
        # 2. Few updates, and many members, which other keys may share.
        if stop - start <= FEW_UPDATES:
            for row in range(start, stop):
                ids = np.concatenate([members.connected(at[row]) for members in parts])
                yield np.full(len(ids), row, np.int32), ids
            continue
        # 3. The range of updates that each member received, without those that received
        #    none.
        ranges = [members.ranges(at[start:stop]) for members in parts]
        first, last = (np.concatenate(edges) for edges in zip(*ranges, strict=True))
        some = np.flatnonzero(first < last)
        first, last, ids = first[some], last[some], np.concatenate([members.ids for members in parts])[some]
        # 4. Cut a run with many deliveries before some updates.
        edges = _edges(first, last, stop - start)
        for begin, end in pairwise(edges):
            if len(edges) > 2:
                firsts, lasts = first.clip(begin, end), last.clip(begin, end)
            else:
                firsts, lasts = first, last
            yield start + _rows_from(firsts, lasts - firsts), np.repeat(ids, lasts - firsts)
    if few:
        yield _test_few(few, at, sessions)


def _edges(first: Rows, last: Rows, count: int) -> list[int]:
    """Return where to cut `count` updates into pieces of up to DELIVERIES_AT_ONCE.

    first[i]:last[i] are the updates that a member received.  A piece has at least one
    update.
    """
    if int((last - first).sum()) <= DELIVERIES_AT_ONCE:
        return [0, count]
    # The receivers of each update, and the deliveries up to it.
    came, left = (np.bincount(edge, minlength=count + 1) for edge in (first, last))
    total = np.cumsum(np.cumsum(came - left)[:-1])
    edges = [0]
    while edges[-1] < count:
        before = total[edges[-1] - 1] if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(total.searchsorted(before + DELIVERIES_AT_ONCE, "right"))))
    return edges


def list_rows(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (update, subscriber_id) of each delivery."""
    for batch, rows, ids in _reached(batches, sessions):
        # A single update may have millions of deliveries, each with a copy of its id.
        for start in range(0, len(rows), DELIVERIES_AT_ONCE):
            some = slice(start, start + DELIVERIES_AT_ONCE)
            subscribers = ids[some].astype(np.int64) + (sessions.shard << SHARD_BITS)
            update = batch.column("update").take(pa.array(rows[some]))
            yield pa.record_batch([update, pa.array(subscribers)], ["update", "subscriber_id"])


def make_bitmaps(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (update, shard, recipients), with the ids that received it as a bitmap.

    An update that reached no session has no row.
    """
    for batch, rows, ids in _reached(batches, sessions):
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        recipients, _ = serialized(ids, np.append(firsts, len(ids)))
        update = batch.column("update").take(pa.array(rows[firsts]))
        shard = pa.array(np.full(len(firsts), sessions.shard, np.int32))
        yield pa.record_batch([update, shard, recipients], ["update", "shard", "recipients"])


def count_received(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """Yield (subscriber_id, received) of each session that received an update."""
    received = np.zeros(len(sessions.begins), np.int64)
    # A large part takes two searches a member, whatever the number of updates.  So its
    # updates are collected over many keys, and counted together.
    waiting: dict[_Members, list[Moments]] = {}
    count = held = 0

    def flush() -> None:
        """Count the updates that were collected."""
        for members, moments in waiting.items():
            first, last = members.ranges(np.sort(np.concatenate(moments)))
            received[members.places] += last - first
        waiting.clear()

    for _, at, runs in _runs(batches, sessions):
        few: list[tuple[int, int, Ids]] = []
        for start, stop, (large, rest) in runs:
            if rest is None:
                pass
            elif len(rest.ids) * (stop - start) <= FEW_PAIRS:
                few.append((start, stop, rest.ids))
            else:
                first, last = rest.ranges(at[start:stop])
                received[rest.places] += last - first
            if large is not None:
                if large not in waiting:
                    waiting[large] = []
                    held += _MEMBER_BYTES * len(large.ids)
                waiting[large].append(at[start:stop])
                count += stop - start
        if few:
            _, ids = _test_few(few, at, sessions)
            np.add.at(received, ids - sessions.offset, 1)
        # Waiting audiences stay in memory, even if the cache has dropped them.
        if count >= UPDATES_AT_ONCE or held >= AUDIENCE_BYTES:
            flush()
            count = held = 0
    flush()
    places = np.flatnonzero(received)
    yield pa.record_batch(
        [pa.array(places + sessions.first), pa.array(received[places])], ["subscriber_id", "received"]
    )

"""What a worker does with the updates that are sorted behind their keys: finds audiences, and who of them is connected.

    is_key  at   update     references                    members  begins  ends
    true         -          {0, 7}, wide 3      ──►       0        10      25
    false   12   "a"                                      7        15      never
    false   20   "b"                            fan-out of "b" = begun by 20 - ended by 20 = 2 - 0

Arrow batches in, Arrow batches out; Spark is not needed for it.
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
"""Bytes of audiences that a task remembers."""
CELLS: Final = 2**22
"""Pairs of an update and a member of its audience that are looked at together."""
FEW: Final = 64
"""Pairs of an update and one who is to receive it that are not worth an array of their own."""
WAITING: Final = 1_000_000
"""Updates that wait to be counted together."""


class Sessions(NamedTuple):
    """What workers hold of the sessions of a range of ids, and of what each wide selector finds there."""

    first: int
    begins: Moments
    ends: Moments
    subscribed: list[bytes | None]
    authorised: list[bytes | None]

    @property
    def shard(self) -> int:
        return self.first >> SHARD_BITS

    @property
    def offset(self) -> np.uint32:
        """The first id, as ids are counted in its bitmaps."""
        return np.uint32(self.first & (1 << SHARD_BITS) - 1)


class _Members:
    """Some of an audience: ids, ascending, and when each is connected.  36 bytes an id."""

    def __init__(self, bits: BitMap, sessions: Sessions) -> None:
        self.ids: Ids = ids_of(bits)
        self._sessions = sessions

    @cached_property
    def places(self) -> Ids:
        return self.ids - self._sessions.offset

    @cached_property
    def begins(self) -> Moments:
        return self._sessions.begins[self.places]

    @cached_property
    def ends(self) -> Moments:
        return self._sessions.ends[self.places]

    @cached_property
    def _sorted(self) -> tuple[Moments, Moments]:
        begins, ends = self.begins.copy(), self.ends.copy()
        begins.sort()
        ends.sort()
        return begins, ends

    def count(self, at: Moments) -> NDArray[np.int64]:
        """How many of them are connected at each moment."""
        begins, ends = self._sorted
        count: NDArray[np.int64] = begins.searchsorted(at, "right") - ends.searchsorted(at, "right")
        return count

    def received(self, at: Moments) -> NDArray[np.int64]:
        """At how many of these moments, which are sorted, each of them is connected."""
        received: NDArray[np.int64] = at.searchsorted(self.ends, "left") - at.searchsorted(self.begins, "left")
        return received

    def pairs(self, at: Moments) -> tuple[NDArray[np.intp], Ids]:
        """Places of moments, in order, each with the id of one who is connected then."""
        moments = at[:, np.newaxis]
        places, members = np.nonzero((self.begins <= moments) & (moments < self.ends))
        return places, self.ids[members]


class _Audience(NamedTuple):
    """Who is to receive the updates of a key: from wide selectors alone, and the rest of them; None for nobody."""

    large: _Members | None
    rest: _Members | None

    def there(self) -> list[_Members]:
        return [members for members in self if members is not None]


class _Audiences:
    """References -> audiences.

    Its mutable state is what it remembers: unions of the bitmaps of wide selectors, and who receives by those alone.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._unions: _Memory[tuple[str, tuple[int, ...]], BitMap] = _Memory(AUDIENCE_BYTES // 4)
        self._large: _Memory[tuple[tuple[int, ...], bool], tuple[BitMap, _Members]] = _Memory(AUDIENCE_BYTES * 3 // 4)

    def of(self, private: bool, subscribed: list[bytes], authorised: list[bytes], wide: list[int] | None) -> _Audience:
        """The audience of a key; `subscribed` and `authorised` are of its narrow selectors."""
        if not wide:
            bits = union(subscribed) & union(authorised) if private else union(subscribed)
            return _Audience(None, _Members(bits, self._sessions) if bits else None)
        numbers = tuple(wide)
        alone, large = self._by_wide(numbers, private)
        bits = union(subscribed)
        if private:
            # One of the two selectors is narrow, or both; where both are wide, it is in `alone`.
            granted = union(authorised)
            narrow = (bits & granted) | (bits & self._union("authorised", numbers))
            bits = narrow | (self._union("subscribed", numbers) & granted)
        rest = bits - alone
        return _Audience(large if alone else None, _Members(rest, self._sessions) if rest else None)

    def _by_wide(self, numbers: tuple[int, ...], private: bool) -> tuple[BitMap, _Members]:
        found = self._large.found.get((numbers, private))
        if found is None:
            bits = self._union("subscribed", numbers)
            if private:
                bits = bits & self._union("authorised", numbers)
            found = bits, _Members(bits, self._sessions)
            self._large.remember((numbers, private), found, 400 + 38 * len(bits))
        return found

    def _union(self, role: Literal["subscribed", "authorised"], numbers: tuple[int, ...]) -> BitMap:
        bits = self._unions.found.get((role, numbers))
        if bits is None:
            held = self._sessions.subscribed if role == "subscribed" else self._sessions.authorised
            bits = union(found for number in numbers if (found := held[number]) is not None)
            self._unions.remember((role, numbers), bits, 200 + 2 * len(bits))
        return bits


class _Memory(Generic[K, V]):
    """What was found last: when it would be more than so many bytes, all is forgotten but the newest.

    To know what was used least would cost more than to find it again now and then.
    """

    def __init__(self, most: int) -> None:
        self.found: dict[K, V] = {}
        self._most = most
        self._held = 0

    def remember(self, key: K, value: V, size: int) -> None:
        if self._held + size > self._most:
            self.found.clear()
            self._held = 0
        self.found[key] = value
        self._held += size


class _Run(NamedTuple):
    """Updates of one key that are next to each other, in a batch, with their audience."""

    start: int
    stop: int
    audience: _Audience


def _runs(
    batches: Iterable[pa.RecordBatch], sessions: Sessions
) -> Iterator[tuple[pa.RecordBatch, Moments, list[_Run]]]:
    """Each batch, the moments of its rows, and what is in it of each key whose updates have an audience.

    A key comes before its updates, which may go on in the batches after.
    """
    audiences = _Audiences(sessions)
    audience = _Audience(None, None)
    for batch in batches:
        keys = np.flatnonzero(batch.column("is_key").to_numpy(zero_copy_only=False))
        at = pc.fill_null(batch.column("at"), 0).to_numpy()
        references = [batch.column(name).take(pa.array(keys)).to_pylist() for name in _REFERENCES]
        edges = [*keys.tolist(), len(batch)]
        runs = [_Run(0, edges[0], audience)]
        for start, stop, *reference in zip(edges, edges[1:], *references, strict=False):
            audience = audiences.of(*reference)
            runs.append(_Run(start + 1, stop, audience))
        yield batch, at, [run for run in runs if run.start < run.stop and run.audience.there()]


_REFERENCES: Final = ["private", "subscribed", "authorised", "wide"]


def _fanout(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    for batch, at, runs in _runs(batches, sessions):
        fanout = np.zeros(len(batch), np.int64)
        # Most keys have few updates, and few who are not in an audience that many keys share.  So what is shared is
        # counted once a batch, and the few of all keys together.
        shared: dict[_Members, list[tuple[int, int]]] = {}
        few: list[tuple[int, int, Ids]] = []
        for start, stop, (large, rest) in runs:
            if large is not None:
                shared.setdefault(large, []).append((start, stop))
            if rest is None:
                continue
            if len(rest.ids) * (stop - start) <= FEW:
                few.append((start, stop, rest.ids))
            else:
                fanout[start:stop] = rest.count(at[start:stop])
        for large, ranges in shared.items():
            starts, stops = np.array(ranges).T
            rows = _rows_from(starts, stops - starts) if len(ranges) > 1 else slice(*ranges[0])
            fanout[rows] += large.count(at[rows])
        if few:
            fanout += _count_few(few, at, sessions)
        is_update = pc.invert(batch.column("is_key"))
        update, fanned = batch.column("update").filter(is_update), pa.array(fanout).filter(is_update)
        yield pa.record_batch([update, fanned], ["update", "fanout"])


def _rows_from(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """So many rows from each start on."""
    before = np.cumsum(counts) - counts
    rows: NDArray[np.intp] = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return rows


def _count_few(few: list[tuple[int, int, Ids]], at: Moments, sessions: Sessions) -> NDArray[np.intp]:
    """How many of the ids that go with its run are connected at each row, by looking at each pair."""
    first, last, ids = zip(*few, strict=True)
    run = np.repeat(np.arange(len(few)), [len(some) for some in ids])  # of each id
    starts, stops = np.array(first)[run], np.array(last)[run]
    rows = _rows_from(starts, stops - starts)
    places = np.repeat(np.concatenate(ids) - sessions.offset, stops - starts)
    there = (sessions.begins[places] <= at[rows]) & (at[rows] < sessions.ends[places])
    count: NDArray[np.intp] = np.bincount(rows[there], minlength=len(at))
    return count


def _reached(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[tuple[pa.RecordBatch, pa.Array, Ids]]:
    """Deliveries: the batch, rows of it in no order, and for each row an id that it reaches."""
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
    for batch, rows, ids in _reached(batches, sessions):
        subscribers = ids.astype(np.int64) + (sessions.shard << SHARD_BITS)
        update = batch.column("update").take(pa.array(rows))
        yield pa.record_batch([update, pa.array(subscribers)], ["update", "subscriber_id"])


def _bitmaps(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    for batch, rows, ids in _reached(batches, sessions):
        order = np.argsort(rows, kind="stable")
        rows, ids = rows[order], ids[order]
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        recipients, _ = serialized(ids, np.append(firsts, len(ids)))
        update = batch.column("update").take(pa.array(rows[firsts]))
        shard = pa.array(np.full(len(firsts), sessions.shard, np.int32))
        yield pa.record_batch([update, shard, recipients], ["update", "shard", "recipients"])


def _received(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    received = np.zeros(len(sessions.begins), np.int64)
    waiting: dict[_Members, list[Moments]] = {}  # who is in many audiences is counted for many updates at once
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


# What each makes, and its columns; all but `received` have the update before them, as it came.
OUTPUTS: Final[dict[Output, tuple[Callable[..., Iterator[pa.RecordBatch]], str]]] = {
    "fanout": (_fanout, "fanout long"),
    "bitmaps": (_bitmaps, "shard int, recipients binary"),
    "rows": (_rows, "subscriber_id long"),
    "received": (_received, "subscriber_id long, received long"),
}

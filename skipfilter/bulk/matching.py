"""Matching: the steps of the pipeline in one process, for tables that fit in memory.

skipfilter.spark.jobs.matching takes the same steps on Spark, for tables of any size,
and explains them.  Here they are on Arrow tables:

    sessions ─► postings ─┬─► narrow: exact and small ──► looked up ───────────────────┐
                          └─► wide: all others ─► a SelectorIndex ─────────────────────┤
    updates ─┬─► keys (topics, private) ─► distinct topics ─► bitmaps, numbers ◄───────┘
             └─► rows of a key: the key, then its updates ─► deliveries
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from skipfilter.bulk.columns import POSTINGS, SESSIONS, UPDATES, types
from skipfilter.bulk.deliveries import REFERENCES
from skipfilter.bulk.errors import BadInput
from skipfilter.bulk.outputs import IDENTITY, Output
from skipfilter.bulk.posting_lists import SHARD_BITS, combine, merge
from skipfilter.bulk.ranges import BROADCAST_BYTES, divided, shards, shared, sizes
from skipfilter.bulk.wide_selectors import NARROW_BYTES, find_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.bulk.columns import Column
    from skipfilter.bulk.deliveries import Sessions
    from skipfilter.bulk.wide_selectors import Wide

By = Literal["time", "position"]

Key = tuple[tuple[str, ...], bool]
"""The sorted topics of an update, and whether it is private."""

# The columns that are needed of each table, and those of moments.
_UPDATE: Final = ("update_id", "topics", "private", "ts")
_SESSION: Final = ("subscriber_id", "selectors", "authorised")
_MOMENTS: Final[dict[By, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "time": ((), ("connected_from", "disconnected_at")),
    "position": (("position",), ("after", "until")),
}
# The columns of the rows of a worker, without the update.
_KEYS: Final = pa.schema({"is_key": pa.bool_()} | REFERENCES)


def match(
    updates: pa.Table,
    sessions: pa.Table,
    output: str = Output.FANOUT,
    *,
    by: By = "time",
    base_url: str | None = None,
    narrow_bytes: int = NARROW_BYTES,
    max_broadcast_bytes: int = BROADCAST_BYTES,
) -> pa.Table:
    """Return which sessions received which updates.

    Takes the columns of UPDATES and SESSIONS (skipfilter.bulk.columns) that `by` needs,
    and returns those of the Output (skipfilter.bulk.outputs), in any order of rows.
    With by="position", and if both tables have the column epoch, positions are
    only compared within one epoch.  The options are those of `skipfilter.spark.match`.

    Takes some 30 µs for each update and each range of ids, and the memory of all tables
    and deliveries.  Times are floored to microseconds, and without a zone they are in
    UTC.  Raises BadInput if a column is missing or of another type, if an update has a
    null, or if a session or one of its selectors is invalid.  Raises BroadcastLimit if
    the selectors of one session are larger than `max_broadcast_bytes`, and ValueError
    for an unknown `output` or `by`.
    """
    require_by(by)
    asked = Output.of(output)
    position, edges = _MOMENTS[by]
    updates = _typed(updates, "updates", UPDATES, (*_UPDATE, *position))
    sessions = _typed(sessions, "sessions", SESSIONS, (*_SESSION, *edges))
    _require_values(updates, by)
    results = []
    for log in _logs(updates, sessions, by):
        parts = list(_match(*log, asked, by, base_url, narrow_bytes, max_broadcast_bytes))
        result = pa.concat_tables(parts).flatten()
        result = result.rename_columns([name.removeprefix("update.") for name in result.column_names])
        # Ranges of ids have different sessions, so only the fan-out of an update is a
        # sum.
        if asked is Output.FANOUT and len(parts) > 1:
            update = result.column_names[:-1]
            result = result.group_by(update).aggregate([("fanout", "sum")]).rename_columns([*update, "fanout"])
        results.append(result)
    return pa.concat_tables(results)


def require_by(by: str) -> None:
    """Raise ValueError if `by` is neither "time" nor "position"."""
    if by not in get_args(By):
        raise ValueError(f'by must be "time" or "position", not {by!r}')


def _typed(table: pa.Table, name: str, columns: tuple[Column, ...], needed: tuple[str, ...]) -> pa.Table:
    """Return the columns that are needed of a table, with the types of `columns`.

    Also returns the column epoch, if the table has one.  Raises BadInput if a column is
    missing, or cannot be cast.
    """
    typed = {}
    type_of = types(columns)
    optional = ("epoch",) if "epoch" in table.column_names else ()
    for column in (*needed, *optional):
        type = type_of[column]
        if column not in table.column_names:
            raise BadInput(f"{name}: it has no column {column}")
        values = pa.chunked_array(table.column(column))
        if pa.types.is_timestamp(values.type):
            values = pc.floor_temporal(values, unit="microsecond")
        try:
            typed[column] = values.cast(type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise BadInput(f"{name}: column {column} is {values.type}, not {type}") from None
    return pa.table(typed)


def _require_values(updates: pa.Table, by: By) -> None:
    """Raise BadInput if what is matched of an update is null."""
    for column in ("topics", "private", "ts" if by == "time" else "position"):
        if updates[column].null_count:
            row = pc.index(updates[column].is_null(), True).as_py()
            raise BadInput(f"updates: {column} is null, update_id is {updates['update_id'][row]}")
    if pc.list_flatten(updates["topics"]).null_count:
        raise BadInput("updates: a topic is null")


def _logs(updates: pa.Table, sessions: pa.Table, by: By) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the (updates, sessions) that can be matched with each other."""
    if by == "time" or "epoch" not in updates.column_names or "epoch" not in sessions.column_names:
        yield updates, sessions
        return
    for epoch in set(updates["epoch"].to_pylist()) | set(sessions["epoch"].to_pylist()) or {None}:
        same = pc.is_null(pc.field("epoch")) if epoch is None else pc.field("epoch") == epoch
        yield updates.filter(same), sessions.filter(same)


def _match(
    updates: pa.Table,
    sessions: pa.Table,
    output: Output,
    by: By,
    base_url: str | None,
    narrow_bytes: int,
    max_broadcast_bytes: int,
) -> Iterator[pa.Table]:
    """Yield the output for each range of ids, with the update as one column."""
    at, begins, ends = _moments(updates, sessions, by)
    identity = [column.name for column in IDENTITY if column.name in updates.column_names]
    update = pa.StructArray.from_arrays([updates[name].combine_chunks() for name in identity], identity)
    keys = _keys(updates, at)
    seated = sessions.select(_SESSION)
    seated = seated.append_column("begins", begins).append_column("ends", ends)
    shard = pc.shift_right(seated["subscriber_id"], SHARD_BITS)
    bounds = (
        seated.append_column("shard", shard)
        .group_by("shard")
        .aggregate([("subscriber_id", "min"), ("subscriber_id", "max")])
    )
    part = partial(_part, seated, narrow_bytes, max_broadcast_bytes, base_url)
    schema = pa.schema(({"update": update.type} if output.of_updates else {}) | types(output.columns))
    for ids in shards(zip(*bounds.select([1, 2]).to_pydict().values(), strict=True)):
        for found in divided(ids, part, max_broadcast_bytes):
            rows = _rows(keys, at, update, found)
            yield pa.Table.from_batches(output.deliver(rows.to_batches(max_chunksize=10_000), found.sessions), schema)


def _moments(updates: pa.Table, sessions: pa.Table, by: By) -> tuple[pa.Array, pa.ChunkedArray, pa.ChunkedArray]:
    """Return the moments of updates, and the beginnings and ends of sessions."""
    if by == "time":
        columns = updates["ts"], sessions["connected_from"], sessions["disconnected_at"]
        at, begins, ends = (column.cast(pa.int64()) for column in columns)
    else:  # after < position <= until, as a half-open range of whole numbers
        at, begins, ends = updates["position"], pc.add(sessions["after"], 1), pc.add(sessions["until"], 1)
    return at.combine_chunks(), begins, ends


def _keys(updates: pa.Table, at: pa.Array) -> dict[Key, list[int]]:
    """Return the rows of the updates of each key, in the order of their moments."""
    keys: dict[Key, list[int]] = {}
    topics, private = (updates[name].to_pylist() for name in ("topics", "private"))
    for row in pc.sort_indices(at).to_pylist():
        keys.setdefault((tuple(sorted(set(topics[row]))), private[row]), []).append(row)
    return keys


class _Part(NamedTuple):
    """The sessions of one range of ids."""

    narrow: dict[str, tuple[bytes | None, bytes | None]]
    """The bitmaps of each narrow selector: the ids that declare it, and its grants."""
    wide: Wide
    sessions: Sessions


def _part(
    sessions: pa.Table, narrow_bytes: int, max_broadcast_bytes: int, base_url: str | None, ids: range
) -> _Part | int:
    """Return the part of the sessions of `ids`, or its size if that is too large."""
    id = pc.field("subscriber_id")
    mine = sessions.filter((id >= ids.start) & (id < ids.stop))
    posted = pa.Table.from_batches(merge(combine(mine.to_batches())), pa.schema(types(POSTINGS)))
    lengths = [pc.fill_null(pc.binary_length(posted[name]), 0) for name in ("subscribed", "authorised")]
    is_narrow = pc.and_(pc.equal(posted["match_type"], "exact"), pc.less_equal(pc.add(*lengths), narrow_bytes))
    is_narrow = pc.fill_null(is_narrow, False)  # a selector with a null is refused below
    wide = posted.filter(pc.invert(is_narrow))
    size = 16 * len(ids) + sum(batch["bytes"][0].as_py() for batch in sizes(wide.to_batches()))
    if size > max_broadcast_bytes:
        return int(size)
    exact = posted.filter(is_narrow).select(["selector", "subscribed", "authorised"]).to_pylist()
    narrow = {row["selector"]: (row["subscribed"], row["authorised"]) for row in exact}
    return _Part(narrow, *shared(ids, wide, mine, base_url))


def _rows(keys: dict[Key, list[int]], at: pa.Array, update: pa.StructArray, part: _Part) -> pa.Table:
    """Return the rows for a worker: each key with its references, then its updates."""
    # 1. The numbers of the wide selectors that match each distinct topic.
    topics = pa.array(sorted({topic for topics, _ in keys for topic in topics}), pa.string())
    [found] = find_numbers([pa.record_batch([topics], ["topic"])], part.wide)
    numbers = dict(zip(*found.select(["topic", "wide"]).to_pydict().values(), strict=True))
    # 2. The rows: a key has references, and an update has a place in the table.
    references: list[dict[str, Any]] = []
    places: list[int | None] = []
    for (topics, private), rows in keys.items():
        bitmaps = [part.narrow.get(topic, (None, None)) for topic in topics]
        references.append(
            {
                "is_key": True,
                "private": private,
                "subscribed": [declared for declared, _ in bitmaps if declared is not None],
                "authorised": [granted for _, granted in bitmaps if granted is not None],
                "wide": sorted({number for topic in topics for number in numbers[topic]}),
            }
        )
        references += [{"is_key": False}] * len(rows)
        places += [None, *rows]
    table = pa.Table.from_pylist(references, _KEYS)
    there = pa.array(places, pa.int64())
    return table.append_column("at", at.take(there)).append_column("update", update.take(there))

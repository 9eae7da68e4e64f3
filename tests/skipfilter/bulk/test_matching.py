"""skipfilter.bulk.match agrees with brute force: the whole pipeline without Spark.

In tests/skipfilter/spark/jobs/test_matching.py, these tests have the same steps on Spark:
test_limits_change_the_plan_and_not_the_result for all outputs, ranges of ids, shards and
microseconds, test_every_output_agrees_with_brute_force_and_a_skip_filter also by
position, and test_without_sessions_nothing_is_received for empty tables.  Epochs are
in test_cli.py: test_positions_are_only_compared_within_one_epoch.  Tables are refused by
the same functions; test_an_invalid_selector_is_reported_with_its_subscriber and
test_a_selector_too_large_for_a_worker_is_refused have an example of each.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from skipfilter.bulk import BadInput, BroadcastLimit, deliveries, match
from skipfilter.bulk.outputs import Output
from tests.skipfilter.worlds import BASE, SELECTORS, TOPICS, Session, Update, World, by_brute_force

if TYPE_CHECKING:
    from skipfilter import Selector

lists = st.lists(st.sampled_from(SELECTORS), max_size=3)
updates = st.lists(
    st.tuples(st.lists(st.sampled_from(TOPICS), max_size=3), st.booleans(), st.integers(0, 9)), max_size=8
)
ids = st.integers(0, 5) | st.just(40) | st.integers(1 << 23, (1 << 23) + 5) | st.just((1 << 40) + 3)
sessions = st.dictionaries(ids, st.tuples(lists, lists, st.integers(0, 9), st.none() | st.integers(0, 5)), max_size=8)
options = st.fixed_dictionaries({
    "narrow_bytes": st.sampled_from([0, 20, 2_048]),  # all wide, some of both, all exact ones narrow
    "max_broadcast_bytes": st.sampled_from([15_000, 2**28]),  # several ranges of ids; one for each shard
})  # fmt: skip


def world_of(epoch: int, updates: list[Any], sessions: dict[int, Any]) -> World:
    """Return a world whose ids are in no other epoch."""
    return World(
        [Update(f"{epoch}.{number}", *update) for number, update in enumerate(updates)],
        [
            Session(id + 50 * epoch, declared, granted, begins, None if length is None else begins + length)
            for id, (declared, granted, begins, length) in sessions.items()
        ],
    )


@given(
    st.lists(st.tuples(updates, sessions), min_size=1, max_size=3),
    st.booleans(),
    options,
    st.sampled_from([1, 3, 2**18]),
)
@settings(max_examples=150)
def test_every_output_agrees_with_brute_force_by_time_and_by_position(
    several: list[tuple[Any, Any]], by_time: bool, options: dict[str, Any], limit: int
) -> None:
    worlds = [world_of(epoch, *one) for epoch, one in enumerate(several)]
    if by_time:  # all updates and sessions are of one time
        worlds = [World([u for w in worlds for u in w.updates], [s for w in worlds for s in w.sessions])]
    expected = {delivery for world in worlds for delivery in by_brute_force(world)}
    tables = [world.arrow(epoch=str(epoch)) for epoch, world in enumerate(worlds)]
    updates, sessions = (pa.concat_tables(parts) for parts in zip(*tables, strict=True))
    options = {"by": "time" if by_time else "position", "base_url": BASE} | options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "DELIVERIES_AT_ONCE", limit)
        patch.setattr(deliveries, "FEW_PAIRS", 64 if limit > 1 else 0)
        patch.setattr(deliveries, "FEW_UPDATES", limit // 2)
        outputs: dict[str, pa.Table] = {name: match(updates, sessions, name, **options) for name in Output}
    rows = outputs["rows"].select(["update_id", "subscriber_id"]).to_pydict().values()
    assert sorted(zip(*rows, strict=True)) == sorted(expected)
    fanout = dict(zip(*outputs["fanout"].select(["update_id", "fanout"]).to_pydict().values(), strict=True))
    none = dict.fromkeys((update.update_id for world in worlds for update in world.updates), 0)
    assert fanout == none | Counter(update for update, _ in expected)
    received = dict(zip(*outputs["received"].to_pydict().values(), strict=True))
    assert received == Counter(subscriber for _, subscriber in expected)
    recipients = [
        (row["update_id"], (row["shard"] << 23) + id)
        for row in outputs["bitmaps"].to_pylist()
        for id in BitMap.deserialize(row["recipients"])
    ]
    assert sorted(recipients) == sorted(expected)
    # What identifies an update is in every output, unchanged.
    identity = ["update_id", "ts"] + ([] if by_time else ["position"])
    known = {tuple(row.values()) for row in updates.select(identity).to_pylist()}
    for name in ("fanout", "rows", "bitmaps"):
        assert {tuple(row.values()) for row in outputs[name].select(identity).to_pylist()} <= known


def test_a_microsecond_decides() -> None:
    everything: list[Selector] = [("everything", "*")]
    updates, sessions = World(
        [Update(f"u{at}", ["/a"], False, at) for at in (4, 5, 6, 7, 8)],
        [Session(0, everything, [], 5, 7), Session(1, everything, [], 5, 5), Session(2, everything, [], 7, 8)],
    ).arrow()
    fanout = match(updates, sessions).sort_by("ts").to_pylist()
    assert [(row["ts"].microsecond, row["fanout"]) for row in fanout] == [(4, 0), (5, 1), (6, 1), (7, 1), (8, 0)]


def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def rows_of(updates: pa.Table, sessions: pa.Table) -> list[tuple[str, int]]:
    rows = match(updates, sessions, "rows").select(["update_id", "subscriber_id"]).to_pydict().values()
    return sorted(zip(*rows, strict=True))


def test_common_types_of_arrow_are_accepted() -> None:
    world = World(
        [Update("u", ["/a", "x"], False, 5), Update("v", ["/a"], True, 5)],
        [Session(0, [("exact", "/a")], [("mqtt", "#")], 5, 6), Session(1, [("exact", "x")], [], 0, None)],
    )
    updates, sessions = world.arrow()
    expected = sorted(by_brute_force(world))
    assert rows_of(updates, sessions) == expected
    columns: dict[str, pa.DataType] = {"ts": pa.timestamp("ns"), "connected_from": pa.timestamp("ns", "UTC")}
    columns |= {"update_id": pa.large_string(), "topics": pa.large_list(pa.large_string()), "subscriber_id": pa.int32()}
    for name, type in columns.items():
        if name in updates.column_names:
            updates = replaced(updates, name, updates[name].cast(type))
        else:
            sessions = replaced(sessions, name, sessions[name].cast(type))
    selectors = pa.large_list(pa.struct({"type": pa.large_string(), "pattern": pa.large_string()}))
    sessions = replaced(sessions, "selectors", sessions["selectors"].cast(selectors))
    assert rows_of(updates, sessions) == expected
    [batch] = updates.combine_chunks().to_batches()
    assert rows_of(batch, sessions) == expected


def test_times_are_floored_to_microseconds() -> None:
    updates, sessions = World([Update("u", ["/a"], False, 5)], [Session(0, [("mqtt", "#")], [], 5, 6)]).arrow()
    later = pc.add(updates["ts"].cast(pa.timestamp("ns", "UTC")), pa.scalar(999, pa.duration("ns")))
    assert rows_of(replaced(updates, "ts", later), sessions) == [("u", 0)]


@pytest.mark.parametrize(("first", "last"), [(0, 9), (0, 4), (5, 5), (100, 199), (7, 8), (2, 3)])
def test_the_share_of_the_connected_sessions_is_a_mean(first: int, last: int) -> None:
    never = 2**63 - 1
    windows = [(0, 3), (never, never), (4, never)]  # the second id has no session
    begins, ends = (np.array(edge, np.int64) for edge in zip(*windows, strict=True))
    connected = sum(begin <= at < end for at in range(first, last + 1) for begin, end in windows)
    share = deliveries.Sessions(0, begins, ends, [], []).share_connected(first, last)
    assert share == pytest.approx(connected / (last + 1 - first) / 2)


# -- refused tables


@pytest.mark.parametrize("column", ["topics", "private", "ts", "position"])
def test_a_null_is_reported_with_its_column_and_row(column: str) -> None:
    """On Spark, a test of the same name."""
    updates, sessions = World(
        [Update("u", ["/a"], False, 1), Update("v", ["/a"], True, 1)], [Session(0, [("mqtt", "#")], [], 0, None)]
    ).arrow()
    first, _ = updates[column].to_pylist()
    holed = replaced(updates, column, pa.array([first, None], updates.schema.field(column).type))
    with pytest.raises(BadInput, match=f"^updates: {column} is null, update_id is v$"):
        match(holed, sessions, by="position" if column == "position" else "time")


def test_a_missing_or_wrongly_typed_column_is_refused() -> None:
    updates, sessions = World([Update("u", ["/a"], False, 1)], []).arrow()
    with pytest.raises(BadInput, match=r"^updates: it has no column private$"):
        match(updates.drop_columns("private"), sessions)
    with pytest.raises(BadInput, match=r"^updates: column private is string, not bool$"):
        match(replaced(updates, "private", pa.array(["maybe"])), sessions)
    with pytest.raises(BadInput, match=r"^updates: a topic is null$"):
        match(replaced(updates, "topics", pa.array([["/a", None]])), sessions)


def test_an_unknown_output_or_order_is_refused() -> None:
    tables, name, by = World([], []).arrow(), "row", "times"
    with pytest.raises(ValueError, match=r"^output must be one of fanout, bitmaps, rows, received, not 'row'$"):
        match(*tables, name)
    with pytest.raises(ValueError, match=r"""^by must be "time" or "position", not 'times'$"""):
        match(*tables, by=by)  # type: ignore[arg-type]


@pytest.mark.parametrize("selector", [("mqtt", None), (None, "a")])
def test_a_selector_with_a_null_is_refused(selector: Any) -> None:
    with pytest.raises(BadInput, match=r"^sessions: a selector has no type, or no pattern$"):
        matched(Session(3, [selector], [], 0, None))


def matched(*sessions: Session, **options: Any) -> pa.Table:
    return match(*World([Update("u", ["/a"], False, 1)], list(sessions)).arrow(), **options)


def test_an_invalid_selector_is_reported_with_its_subscriber() -> None:
    bad: Any = ("amqp", "a..b")
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 7: amqp pattern 'a\.\.b': a word is empty"):
        matched(Session(3, [("amqp", "a")], [], 0, None), Session(7, [], [bad], 0, None))
    unknown: Any = ("jmespath", "a")
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 8388615: matcher type 'jmespath' is none of exact, "):
        matched(Session(7 + (1 << 23), [unknown], [], 0, None))


def test_sessions_that_share_an_id_are_refused() -> None:
    twice = Session(4, [], [], 0, None)
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 4 occurs 2 times"):
        matched(twice, Session(5, [], [], 0, None), twice)


def test_a_session_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 4 ends before it begins"):
        matched(Session(3, [], [], 5, 5), Session(4, [], [], 5, 4))


def test_a_session_without_a_beginning_is_refused() -> None:
    updates, sessions = World([], [Session(0, [], [], 0, None)]).arrow()
    nothing = pa.array([None], pa.int64())
    sessions = sessions.set_column(sessions.schema.get_field_index("after"), "after", nothing)
    with pytest.raises(BadInput, match=r"^sessions: a session has no beginning: .*\(by position: after\) is null"):
        match(updates, sessions, by="position")


def test_an_id_out_of_bounds_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id must be at least 0, not -1"):
        matched(Session(-1, [], [], 0, None))
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id must be less than 2\*\*54, not 18014398509481984$"):
        matched(Session(1 << 54, [], [], 0, None))
    last = matched(Session((1 << 54) - 1, [("exact", "/a")], [], 0, None), output="bitmaps").to_pylist()
    assert [row["shard"] for row in last] == [2**31 - 1]


def test_selectors_that_are_too_large_for_a_worker_are_refused() -> None:
    long: Selector = ("amqp", "a." * 40 + "b")
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 3: its [\d,]+ bytes of selectors are more than the 40 "):
        matched(Session(3, [long], [], 0, None), max_broadcast_bytes=40)
    # The index of a short selector takes more than its text.
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 3: its [\d,]+ bytes .* \(max_broadcast_bytes\)$"):
        matched(Session(3, [("amqp", "#")], [], 0, None), max_broadcast_bytes=600)
    assert len(matched(Session(3, [("exact", "/a")], [], 0, None), max_broadcast_bytes=600)) == 1

"""skipfilter.bulk.match agrees with brute force: the whole pipeline without Spark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from skipfilter.bulk import BadInput, BroadcastLimit, deliveries, match
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
        outputs = {name: match(updates, sessions, name, **options) for name in deliveries.OUTPUTS}
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


# -- refused tables


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


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id must be at least 0, not -1"):
        matched(Session(-1, [], [], 0, None))


def test_selectors_that_are_too_large_for_a_worker_are_refused() -> None:
    long: Selector = ("amqp", "a." * 40 + "b")
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 3: its [\d,]+ bytes of selectors are more than the 40 "):
        matched(Session(3, [long], [], 0, None), max_broadcast_bytes=40)
    # The index of a short selector takes more than its text.
    with pytest.raises(BroadcastLimit, match=r"^subscriber_id 3: its [\d,]+ bytes .* \(max_broadcast_bytes\)$"):
        matched(Session(3, [("amqp", "#")], [], 0, None), max_broadcast_bytes=600)
    assert len(matched(Session(3, [("exact", "/a")], [], 0, None), max_broadcast_bytes=600)) == 1

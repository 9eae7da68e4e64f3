"""skipfilter.spark.warm: what it writes, a SkipFilter takes, and then answers as one that has asked everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyroaring import BitMap64

from skipfilter import SelectorIndex, SkipFilter, warm
from skipfilter.spark.errors import BadInput
from skipfilter.spark.schemas import WARM_INDEX
from skipfilter.spark.warm import warm_index
from tests.skipfilter.spark.worlds import BASE, TOPICS, Session, Update, World

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SELECTORS: list[list[Any]] = [
    [("exact", "/a")],
    [("uritemplate", "/a/{id}"), ("exact", "x")],
    [("everything", "*")],
    [("mqtt", "/a/+")],
    [("urlpattern", "/a/:id")],
    [],
]


def test_a_filter_answers_from_it_without_asking_anybody(spark: SparkSession, tmp_path: Path) -> None:
    updates = [Update(f"{topic} {n}", [topic, topic], False, 0) for at, topic in enumerate(TOPICS) for n in range(at)]
    world = World(updates, [Session(n, SELECTORS[n % 6], SELECTORS[-n % 6], 0, None) for n in range(30)])
    made = warm_index(*world.tables(spark, 2), "today", top=len(TOPICS) - 2, base_url=BASE)
    assert made.columns == WARM_INDEX.names
    made.write.parquet(str(tmp_path / "warm"))

    hottest = TOPICS[:1:-1]
    assert warm.hot_topics(tmp_path / "warm") == hottest
    for role, of in (("subscribed", SELECTORS), ("authorised", SELECTORS[:1] + SELECTORS[:0:-1])):
        asked: SkipFilter[int, str] = SkipFilter(SelectorIndex(base_url=BASE))
        for n in range(30):
            asked.add(n, of[n % 6])
        loaded: SkipFilter[int, str] = SkipFilter(lambda value, key: pytest.fail(f"{value} was asked about {key}"))
        for n in range(30):
            loaded.add(n)
        assert loaded.load(warm.entries(tmp_path / "warm", role), "today").warm == len(hottest)  # type: ignore[arg-type]
        assert {topic: loaded.match_any(topic) for topic in hottest} == {
            topic: asked.match_any(topic) for topic in hottest
        }


def test_ids_of_several_shards_come_together(spark: SparkSession, tmp_path: Path) -> None:
    ids = [0, 5, (1 << 23) + 1, (3 << 23) + 2]
    world = World([Update("u", ["/a"], False, 0)], [Session(id, SELECTORS[id % 3], [], 0, None) for id in ids])
    warm_index(*world.tables(spark, 1), "today").write.parquet(str(tmp_path / "warm"))
    (entry,) = warm.entries(tmp_path / "warm", "subscribed")
    matching = [id for id in ids if id % 3 != 1]
    assert list(BitMap64.deserialize(entry.passed)) == matching
    assert entry.cursor == ids[-1] + 1


def test_ids_that_are_too_large_are_refused(spark: SparkSession) -> None:
    world = World([Update("u", ["/a"], False, 0)], [Session(2**32, [], [], 0, None)])
    with pytest.raises(BadInput, match=r"^sessions: subscriber_id 4294967296 has more than 32 bits"):
        warm_index(*world.tables(spark, 1), "today")

"""skipfilter.spark.tables.inputs: how tables can be matched, and tables that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skipfilter.spark import BadInput, Workload, generate_sessions, generate_updates
from skipfilter.spark.tables.inputs import Inputs
from tests.skipfilter.spark.jobs.test_generations import SEATED, UPDATED, session, tables, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HUBS = ["https://a.example/hub", "https://b.example/hub"]


@pytest.mark.parametrize(
    ("updates", "sessions", "by"),
    [
        (UPDATED, SEATED, "position"),
        (UPDATED, [], "position"),
        ([], SEATED, "time"),
        ([*UPDATED, update(2, position=None)], SEATED, "time"),
        (UPDATED, [*SEATED, session(4, 2, 3, after=None)], "time"),
    ],
)
def test_inputs_are_matched_by_position_if_every_row_has_one(
    spark: SparkSession, updates: list[dict[str, Any]], sessions: list[dict[str, Any]], by: str
) -> None:
    inputs = Inputs.of(*tables(spark, updates, sessions))
    assert inputs.by == by
    assert inputs.hub() is None


def test_the_hub_of_the_sessions_is_known_unless_there_are_several(spark: SparkSession) -> None:
    one, other = (session(id, 0, 5, hub=hub) for id, hub in enumerate(HUBS))
    assert Inputs.of(*tables(spark, UPDATED, [one, session(2, 0, 5)])).hub() == HUBS[0]
    several = Inputs.of(*tables(spark, UPDATED, [other, one]))
    told = f"sessions: they belong to several hubs, {HUBS[0]} and {HUBS[1]}: choose one with --base-url"
    with pytest.raises(BadInput) as caught:
        several.hub()
    assert str(caught.value) == told


def test_tables_of_two_runs_of_generate_do_not_fit(spark: SparkSession) -> None:
    one, two = Workload(subscribers=5, updates=5), Workload(subscribers=6, updates=5)
    Inputs.of(generate_updates(spark, two), generate_sessions(spark, two))
    Inputs.of(generate_updates(spark, Workload(subscribers=9, updates=0)), generate_sessions(spark, two))
    recorded, _ = tables(spark, UPDATED, SEATED)
    for updates in (generate_updates(spark, one), recorded):
        with pytest.raises(BadInput, match="not of one run"):
            Inputs.of(updates, generate_sessions(spark, two))

"""Unknown: after a kill, no table and no page says as a fact what is not known.

hour, position   1    2    3    4    5    6    7
update           a    a    a*   c*   a    b    presence*     * is private
node n           recorded  │ killed  found
                                ▲ what it sent here is unknown
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.jobs.audit import audit
from skipfilter.spark.jobs.generations import generations
from skipfilter.spark.jobs.report import report
from skipfilter.spark.page import page
from skipfilter.spark.tables import files
from skipfilter.spark.tables.schemas import FANOUT, GAPS, SESSIONS, UPDATES
from tests.skipfilter.spark.jobs.test_generations import FIRST, HOUR, session, update
from tests.skipfilter.spark.test_cli import done

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from skipfilter.bulk.matching import By

BOTH: tuple[By, By] = ("time", "position")
HALF = timedelta(minutes=30)
PRESENCE = {"topics": ["/.well-known/mercure/subscriptions/x"], "private": True, "presence": True}


def killed(id: int, ends: int, **changes: Any) -> dict[str, Any]:
    return session(id, 0, ends, node="n", complete=False) | changes


def gap(begins: int, found: int | None, **changes: Any) -> dict[str, Any]:
    """Return the mark of node n, which recorded what came before the hour `begins`."""
    row = {"epoch": "e", "node": "n", "ts": FIRST + begins * HOUR, "after": begins - 1, "updates": False, "cause": "x"}
    return row | {"hub": None, "found": None if found is None else FIRST + found * HOUR + HALF} | changes


UPDATED = [
    update(1), update(2), update(3, private=True), update(4, topics=["c"], private=True), update(5),
    update(6, topics=["b"]), update(7, **PRESENCE),
]  # fmt: skip
SEATED = [
    killed(0, 3),
    session(1, 0, None, node="m"),
    killed(2, 3, selectors=[("exact", "b")]),
    killed(3, 3, selectors=[("exact", "c")]),
]
GAP = gap(3, 4)
NONE = (0, 0, 0, 0)


def tables(spark: SparkSession, **rows: list[dict[str, Any]]) -> Any:
    schemas: dict[str, StructType] = {"updates": UPDATES, "sessions": SESSIONS, "gaps": GAPS}
    return {
        name: spark.createDataFrame([tuple(row[column] for column in schema.names) for row in rows[name]], schema)
        for name, schema in schemas.items()
    }


def written(spark: SparkSession, path: Path, updated: Any = UPDATED, seated: Any = SEATED, gaps: Any = (GAP,)) -> Any:
    found = tables(spark, updates=updated, sessions=seated, gaps=list(gaps))
    for name, table in found.items():
        files.write(table, f"{path}/{name}", by_day=name == "updates")
    return found


def counts(spark: SparkSession, path: Path, name: str, key: str) -> dict[Any, tuple[int | None, int]]:
    """Return the count of each row of an output of `match`, and the part that is known."""
    rows = spark.read.parquet(f"{path}/{name}").collect()
    found = {row[key]: (row[name], row["at_least"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("by", BOTH)
def test_counts_of_a_match_are_null_where_deliveries_may_be_missing(
    spark: SparkSession, tmp_path: Path, by: By
) -> None:
    written(spark, tmp_path)
    done("match", tmp_path, "--by", by, "--output", "fanout", "--output", "received")
    assert counts(spark, tmp_path, "fanout", "update_id") == {
        "u1": (2, 2), "u2": (2, 2), "u3": (None, 1), "u4": (None, 0), "u5": (1, 1), "u6": (1, 1), "u7": (0, 0),
    }  # fmt: skip
    # Neither session 2 nor 3 can have received anything then: no update was on b, and
    # the one on c is private.
    assert counts(spark, tmp_path, "received", "subscriber_id") == {0: (None, 2), 1: (5, 5)}


@pytest.mark.parametrize("by", BOTH)
def test_a_session_that_is_only_perhaps_a_receiver_has_a_row(spark: SparkSession, tmp_path: Path, by: By) -> None:
    # Killed before midnight, and found after it: the second day has no session of it.
    updated = [update(12), update(25), update(30)]
    written(
        spark,
        tmp_path,
        updated,
        [killed(0, 20), killed(1, 3, node="long ago")],
        [gap(20, 26), gap(3, 4, node="long ago")],
    )
    done("match", tmp_path, "--by", by, "--from", "2026-02-01", "--output", "fanout", "--output", "received")
    assert counts(spark, tmp_path, "received", "subscriber_id") == {0: (None, 0)}
    assert counts(spark, tmp_path, "fanout", "update_id") == {"u25": (None, 0), "u30": (0, 0)}


@pytest.mark.parametrize("by", BOTH)
def test_an_end_that_is_not_found_yet_leaves_all_later_counts_unknown(
    spark: SparkSession, tmp_path: Path, by: By
) -> None:
    written(spark, tmp_path, gaps=[gap(3, None), gap(3, 4)])
    done("match", tmp_path, "--by", by, "--output", "fanout", "--output", "received")
    assert [id for id, count in counts(spark, tmp_path, "fanout", "update_id").items() if count[0] is not None] == [
        "u1", "u2",
    ]  # fmt: skip
    assert counts(spark, tmp_path, "received", "subscriber_id") == {0: (None, 2), 1: (5, 5), 2: (None, 0)}


def test_by_position_a_gap_counts_in_its_own_epoch(spark: SparkSession, tmp_path: Path) -> None:
    others = [row | {"epoch": "f", "update_id": f"f{row['update_id']}"} for row in UPDATED[:4]]
    seated = [*SEATED, *(row | {"epoch": "f", "subscriber_id": 10 + row["subscriber_id"]} for row in SEATED[1:2])]
    written(spark, tmp_path, UPDATED + others, seated, [GAP, gap(2, 2, epoch="f", node="other")])
    done("match", tmp_path, "--output", "fanout", "--output", "received")
    unknown = {id for id, count in counts(spark, tmp_path, "fanout", "update_id").items() if count[0] is None}
    assert unknown == {"u3", "u4", "fu2"}
    assert counts(spark, tmp_path, "received", "subscriber_id") == {0: (None, 2), 1: (5, 5), 11: (3, 3)}


@pytest.mark.parametrize("by", BOTH)
def test_an_audit_does_not_count_what_is_unknown(spark: SparkSession, by: By) -> None:
    made = tables(spark, updates=UPDATED, sessions=SEATED, gaps=[GAP])

    def audited(topic: str, **options: Any) -> dict[int, tuple[Any, ...]]:
        columns = "received", "received_private", "at_least", "private_at_least"
        rows = audit(topic, **made, by=by, **options).collect()
        return {row.subscriber_id: tuple(row[column] for column in columns) for row in rows}

    assert audited("a") == {0: (None, None, 2, 0), 1: (4, 1, 4, 1), 2: NONE, 3: NONE}
    assert audited("b") == {0: NONE, 1: (1, 0, 1, 0), 2: NONE}
    # The session had ended when this time began, and may have received u3 nevertheless.
    assert audited("a", start=FIRST + 3 * HOUR, end=FIRST + 4 * HOUR) == {0: (None, None, 0, 0), 1: (1, 1, 1, 1)}
    made["gaps"] = made["gaps"].limit(0)
    assert audited("a")[0] == (2, 0, 2, 0)


def test_a_report_and_its_page_count_what_is_unknown_and_presence_apart(spark: SparkSession, tmp_path: Path) -> None:
    made = written(spark, tmp_path)
    done("match", tmp_path)
    fanout = files.read(spark, f"{tmp_path}/fanout", FANOUT)
    with report(**made, fanout=fanout, by="position") as found:
        private = found.tables["private_updates"].collect()
        assert [row.asDict() for row in private] == [
            {
                "updates": 6, "private": 2, "share": pytest.approx(1 / 3), "unknown": 1, "to_nobody": 0,
                "unauthorised": 0, "presence": 1,
            }
        ]  # fmt: skip
        [total] = found.tables["overview"].collect()
        assert (total.updates, total.presence_updates, total.unknown, total.deliveries) == (7, 1, 2, 7)
        hourly = found.tables["traffic"].select("updates", "presence_updates", "unknown", "deliveries").collect()
        assert hourly == [
            (1, 0, 0, 2),
            (1, 0, 0, 2),
            (1, 0, 1, 1),
            (1, 0, 1, 0),
            (1, 0, 0, 1),
            (1, 0, 0, 1),
            (1, 1, 0, 0),
        ]
        assert found.tables["fanout"].select("updates", "unknown", "deliveries", "mean", "max").collect() == [
            (6, 2, 7, 1.5, 2)
        ]
        distribution = found.tables["fanout_distribution"].collect()
        assert sorted(distribution, key=lambda row: row.fanout or 0) == [(None, 2, 1), (1, 2, 2), (2, 2, 4)]
        html = page(found)
    assert "<b>1</b> (50.0%) reached a subscriber</li>" in html
    assert "<b>1</b> (50.0%) may have reached a subscriber: a hub was killed before it recorded that</li>" in html
    assert "<b>0</b> (0.0%) reached no subscriber" in html
    assert "Of 2 updates it is not known how many subscribers they reached" in html
    assert "<strong>≥ 7</strong>" in html
    assert "1 about presence" in html


def test_without_gaps_everything_is_known(spark: SparkSession, tmp_path: Path) -> None:
    written(spark, tmp_path, gaps=[])
    done("match", tmp_path, "--output", "fanout", "--output", "received")
    for name, key in (("fanout", "update_id"), ("received", "subscriber_id")):
        found = counts(spark, tmp_path, name, key).values()
        assert found
        assert all(count == known for count, known in found)


def test_a_gap_makes_the_results_of_its_days_outdated(spark: SparkSession) -> None:
    updated, seated = [update(1), update(12), update(25), update(30)], [session(0, 0, None)]

    def marks(*gaps: dict[str, Any], by: By = "position") -> list[str]:
        found = generations(**tables(spark, updates=updated, sessions=seated, gaps=list(gaps)), by=by)
        return [found[day] for day in sorted(found)]

    for by in BOTH:
        before = marks(by=by)
        one, other = marks(gap(26, 28), by=by)
        assert one == before[0]
        assert other != before[1]
        # Its end changes nothing if it is after the last update of a day.
        assert marks(gap(26, 31), by=by) == marks(gap(26, None), by=by) == marks(gap(26, 99), by=by) != [one, other]
        assert marks(gap(31, 40), gap(13, 24), by=by) == before
        assert marks(gap(2, 26), by=by)[0] != before[0]
        assert marks(gap(26, 28), gap(26, 28), by=by) != [one, other]
    assert marks(gap(2, None, epoch="f")) == marks()
    assert marks(gap(2, None, epoch=None)) == marks(gap(2, None))


def test_a_report_of_an_earlier_version_knows_everything(spark: SparkSession) -> None:
    made = tables(spark, updates=UPDATED, sessions=SEATED, gaps=[])
    made["updates"] = made["updates"].drop("presence")
    rows = [(row["update_id"], row["ts"], 1) for row in UPDATED]
    fanout = spark.createDataFrame(rows, "update_id string, ts timestamp, fanout long")
    earlier = fanout.withColumn("at_least", F.lit(None).cast("long"))
    for each in (fanout, earlier):
        with report(**made, fanout=each) as found:
            [total] = found.tables["overview"].collect()
        assert (total.updates, total.presence_updates, total.unknown, total.deliveries) == (7, 0, 0, 7)

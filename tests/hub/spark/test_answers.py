"""`skipfilter log` and the pipeline give the same answers from the same log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hub.event_log.answers import of_subject, unread, who
from hub.spark.tables import read_table, tables
from skipfilter.spark.jobs.matching import match
from skipfilter.spark.tables.schemas import SESSIONS, UPDATES
from tests.hub.event_log.test_answers import HUB, KEY, closed, quiet, random_log, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession


def test_the_answers_are_those_of_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    source = random.Random(75)
    sessions, updates = random_log(source)
    write(tmp_path / "log", sessions, updates, source)
    closed(tmp_path / "log")
    tables(spark, str(tmp_path / "log"), str(tmp_path / "out"))
    published, connected = (
        read_table(spark, f"{tmp_path}/out/{name}", schema)
        for name, schema in (("updates", UPDATES), ("sessions", SESSIONS))
    )
    names = {row.subscriber_id: row.subscriber for row in connected.select("subscriber_id", "subscriber").collect()}

    def matched(output: str) -> list[Row]:
        """Return the rows of an output; positions are those of one epoch."""
        found: list[Row] = []
        for epoch in ("e1", "e2"):
            some, others = (table.where(f"epoch = '{epoch}'") for table in (published, connected))
            found += match(some, others, output, by="position", base_url=HUB).collect()
        return found

    rows = matched("rows")
    received = {(row.update_id, row.position, names[row.subscriber_id]) for row in rows}
    log = str(tmp_path / "log")
    # Who received each update.
    ids = {update["id"] for update in updates}
    found = {
        (id, one.update.position, c.subscriber)
        for id in ids
        for one in who(log, id, quiet)
        for c in one.received + one.open + one.perhaps
    }
    assert found == received
    # What a user received.
    for subject in ("42", "43"):
        day = of_subject(log, subject, quiet, key=KEY)
        theirs = {session.connection.subscriber for session in day.sessions}
        assert theirs
        assert {(one.update.id, one.update.position, one.subscriber) for one in day.received} == {
            one for one in received if one[2] in theirs
        }
    # What no one received.
    fanout = [row for row in matched("fanout") if not row.fanout]
    private = {(one["id"], one["position"]) for one in updates if one["private"] and not one["presence"]}
    answer = unread(log, quiet)
    lost = private & {(row.update_id, row.position) for row in fanout}
    assert lost <= {(update.id, update.position) for update, *_ in answer.updates}
    assert {(update.id, update.position) for update, _, is_unsure in answer.updates if not is_unsure} <= lost
    assert received
    assert private

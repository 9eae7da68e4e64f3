"""The SQL of skipfilter/spark/QUESTIONS.md, run by DuckDB and by Spark on the tables of a
random log, has the answers of a naive reading of the log.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pytest
from typer.testing import CliRunner

from hub.cli.spark import main
from tests.hub.event_log.test_answers import Record, closed, matches, naive, random_log, write
from tests.skipfilter.spark.columns_page import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]

PAGE: Final = QUESTIONS.read_text("utf-8")
COMMANDS: Final = re.findall(r"^skipfilter spark (.*)$", PAGE, re.MULTILINE)
IN_DUCKDB, IN_SPARK, *ASKED = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
WHO, WOULD, REACH, UNREAD, LATE, DAYS, ONE_USER = ASKED
HOUR: Final = timedelta(hours=1)


class Log(NamedTuple):
    """The lines of a log, and a connection to each reader of its tables."""

    updates: list[Record]
    connects: list[Record]
    received: list[tuple[Record, Record]]
    """Each delivery: the update, and the line of the connection."""
    ends: dict[str, Record]
    """The line that ends a connection, by its subscriber."""
    in_duckdb: duckdb.DuckDBPyConnection
    in_spark: SparkSession

    def ask(self, sql: str, *, is_ordered: bool = True) -> Rows:
        """Return the answer, which is the same in both."""
        rows = self.in_duckdb.execute(sql).fetchall()
        table = self.in_spark.sql(sql).toArrow()
        others = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        assert others == rows if is_ordered else Counter(others) == Counter(rows)
        return rows


@pytest.fixture(scope="module")
def log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    place = tmp_path_factory.mktemp("questions")
    source = random.Random(21)
    sessions, updates = random_log(source, step=3_600_000)
    write(place / "log", sessions, updates, source)
    closed(place / "log")
    for command in COMMANDS:
        words = [str(place / word) if word in ("log", "day") else word for word in command.split()]
        if "--as-if-online" in words:  # its counts, too
            words += ["--output", "fanout"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output + repr(result.exception)
    by_subscriber = {line["subscriber"]: line for line in sessions if line["event"] == "connect"}
    fates = naive(sessions, updates)
    received = [
        (update, by_subscriber[subscriber])
        for update in updates
        for subscriber in sorted(fates[update["epoch"], update["position"]]["received"])
    ]
    own = {(line["node"], line["number"]): line for line in sessions if line["event"] == "disconnect"}
    of_node = {line["node"]: line for line in sessions if line["event"] == "end"}
    ends = {
        subscriber: end
        for subscriber, line in by_subscriber.items()
        if (end := own.get((line["node"], line["number"]), of_node.get(line["node"]))) is not None
    }
    in_duckdb = duckdb.connect()
    in_spark = spark.newSession()
    for setup, run in ((IN_DUCKDB, in_duckdb.execute), (IN_SPARK, in_spark.sql)):
        for statement in setup.replace("day/", f"{place}/day/").split(";\n"):
            if statement.strip():
                run(statement)
    in_duckdb.execute(
        f"CREATE VIEW fanout_if_online AS FROM read_parquet('{place}/day/as-if-online/fanout/**/*.parquet')"
    )
    yield Log(updates, list(by_subscriber.values()), received, ends, in_duckdb, in_spark)
    in_duckdb.close()


def time_of(update: Record) -> datetime:
    return datetime.fromtimestamp(update["time"] / 1_000, UTC)


def began(connect: Record) -> datetime:
    return datetime.fromtimestamp(connect["time"] / 1_000_000, UTC)


def person(connect: Record) -> str | None:
    return None if connect["subject"] is None else f"{connect['issuer']} {connect['subject']}"


def who(connect: Record) -> str:
    return person(connect) or str(connect["subscriber"])


def test_who_received_an_update(log: Log) -> None:
    most_read = max(log.updates, key=lambda update: sum(update is one for one, _ in log.received))
    rows = log.ask(WHO.replace("urn:uuid:…", most_read["id"]))
    assert sorted(row[3] for row in rows) == sorted(
        connect["subscriber"] for update, connect in log.received if update["id"] == most_read["id"]
    )
    assert len(rows) > 1
    connects = {connect["subscriber"]: connect for connect in log.connects}
    for issuer, subject, address, subscriber, connected_from, disconnected_at, because in rows:
        connect, end = connects[subscriber], log.ends.get(subscriber)
        assert (issuer, subject, address) == ("i", connect["subject"], None)
        assert connected_from == began(connect)
        assert (disconnected_at is None) == (end is None)
        assert because == (end or {}).get("reason")


def test_who_would_have_received_it(log: Log) -> None:
    found = 0
    ids = Counter(update["id"] for update in log.updates)
    for id, _ in ids.most_common(3):  # some of the ids are those of several updates
        some = [update for update in log.updates if update["id"] == id]
        would = {
            who(connect)
            for update in some
            for connect in log.connects
            if wants(connect["selectors"], update) and (not update["private"] or wants(connect["authorised"], update))
        }
        did = {who(connect) for update, connect in log.received if update["id"] == id}
        rows = log.ask(WOULD.replace("urn:uuid:…", id), is_ordered=False)
        assert {one for [one] in rows} == would - did
        assert len(rows) == len(would - did)
        found += len(rows)
    assert found


def test_as_if_online_each_count_is_known_although_a_hub_was_killed(log: Log) -> None:
    counts = log.in_duckdb.execute("SELECT update_id, ts, fanout, at_least FROM fanout_if_online").fetchall()
    every = log.in_duckdb.execute("SELECT update_id, ts, count(*) FROM rows_if_online GROUP BY ALL").fetchall()
    assert sorted((id, ts, count) for id, ts, count, _ in counts if count) == sorted(every)
    assert all(count == known for _, _, count, known in counts)
    assert len(counts) == len(log.updates)


def wants(selectors: list[dict[str, str]], update: Record) -> bool:
    return any(matches(selector, topic) for selector in selectors for topic in update["topics"])


def test_how_many_people_each_topic_reached_hour_by_hour(log: Log) -> None:
    groups: dict[tuple[datetime, str], list[str | None]] = {}
    for update, connect in log.received:
        hour = time_of(update).replace(minute=0, second=0, microsecond=0)
        for topic in update["topics"]:
            groups.setdefault((hour, topic), []).append(person(connect))
    expected = [(*key, len({*some} - {None}), len(some)) for key, some in sorted(groups.items())]
    assert log.ask(REACH) == expected
    assert any(people < deliveries for _, _, people, deliveries in expected)


def test_which_private_updates_no_one_received(log: Log) -> None:
    reached = {id(update) for update, _ in log.received}
    lost = {
        (time_of(update), update["id"])
        for update in log.updates
        if update["private"] and not update["presence"] and id(update) not in reached
    }
    rows = log.ask(UNREAD)
    unknown = log.in_duckdb.execute("SELECT ts, update_id FROM fanout WHERE fanout IS NULL").fetchall()
    assert {row[:2] for row in rows} == lost - set(unknown)
    assert rows == sorted(rows)
    assert len(rows) == len({row[:2] for row in rows}) > 0
    assert unknown


def test_who_received_updates_late(log: Log) -> None:
    groups: dict[str, list[timedelta]] = {}
    for update, connect in log.received:
        if (late := began(connect) - time_of(update)) > timedelta():
            groups.setdefault(who(connect), []).append(late)
    assert set(log.ask(LATE, is_ordered=False)) == {(one, len(some), max(some)) for one, some in groups.items()}
    assert len(groups) > 2


def test_what_has_changed_from_one_day_to_the_next(log: Log) -> None:
    days = sorted({time_of(update).date() for update, _ in log.received})
    before, after = days[:2]
    rows = log.ask(DAYS.replace("2026-11-27", str(before)).replace("2026-11-28", str(after)))
    expected = {}
    for topic in {topic for update in log.updates for topic in update["topics"]}:
        of_day = [
            [
                person(connect)
                for update, connect in log.received
                if topic in update["topics"] and time_of(update).date() == day
            ]
            for day in (before, after)
        ]
        if any(of_day):
            expected[topic] = (*(len({*some} - {None}) for some in of_day), *map(len, of_day))
    assert {row[0]: row[1:] for row in rows} == expected
    assert [row[4] for row in rows] == sorted((row[4] for row in rows), reverse=True)
    assert all(any(row[at] for row in rows) for at in (1, 2))


def test_what_one_user_did_and_received(log: Log) -> None:
    rows = log.ask(ONE_USER)
    expected = [
        (began(connect), time_of(update), update["id"], topic)
        for update, connect in log.received
        if connect["subject"] == "42"
        for topic in update["topics"]
    ]
    received = [row for row in rows if row[3] is not None]
    assert sorted((row[0], *row[3:6]) for row in received) == sorted(expected)
    assert expected
    assert all(late == (connected_from > ts) for connected_from, _, _, ts, _, _, late in received)
    theirs = [connect for connect in log.connects if connect["subject"] == "42"]
    assert {row[0] for row in rows} == {began(connect) for connect in theirs}

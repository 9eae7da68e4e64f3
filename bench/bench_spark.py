"""How fast does Spark find all receivers of a day's updates?

`skipfilter.spark` is compared with plain SQL, and with a cross join.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.benchmark import Case, Lines
from bench.servers import in_turn
from bench.workloads import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

    from bench.measure import Figures

QUESTION = "What does an update of a day cost, to find all its receivers?"
WORKLOAD = (
    "A day of `skipfilter.spark.jobs.generate`: two rooms by Zipf and an own topic for each subscriber, URI templates, "
    "AMQP, MQTT and URL Patterns for some; three updates in ten are private, one in ten has two topics, and one "
    "subscriber in eight is connected at a time; in Parquet. Each variant writes, or counts, the fan-out of the "
    "updates, in one process with one Spark on two cores. The baselines get a sample of the updates, drawn by a hash, "
    "and must find the same number of deliveries for it. Plain SQL is the best that was found: exact selectors by an "
    "equi-join, the others by `rlike` of distinct topics and distinct patterns, then joins and a distinct. The cross "
    "join evaluates one `rlike`, of all selectors of a subscriber, for each pair of an update and a connected "
    "subscriber. Memory is the largest resident size of Spark's Java, and of all Python workers together, in the "
    "largest of the rounds. From 100,000 subscribers on, there are two rounds."
)
PLOT = Lines(x="subscribers")
UNIT = "µs an update"
ROUNDS = 3, 1
SHOWN = ("updates", "deliveries", "s", "Java MB", "workers MB")
"""The figures in the result, besides the one that is compared."""

SIZES: Final = {
    # The number of subscribers: the number of updates, and the sizes of the samples for
    # plain SQL and for the cross join.  0 leaves the cross join out.
    100: (1_000, 1_000, 1_000),
    1_000: (10_000, 10_000, 10_000),
    10_000: (100_000, 100_000, 5_000),
    100_000: (1_000_000, 10_000, 1_000),
    1_000_000: (2_000_000, 2_000, 0),
}


def versions() -> dict[str, str]:
    """Return the versions of Spark and of the packages that the matching uses."""
    return {name: version(name) for name in ("numpy", "pyarrow", "pyroaring", "pyspark")}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: the numbers of subscribers in SIZES."""
    for subscribers, (updates, *sampled) in SIZES.items():
        if not quick or subscribers <= 1_000:
            label = f"{subscribers:,} subscribers, {updates:,} updates"
            yield Case(label, partial(measure, subscribers, updates, *sampled), at={"subscribers": subscribers})


def measure(subscribers: int, updates: int, by_sql: int, by_cross_join: int, rounds: int) -> dict[str, Figures]:
    """Measure a day; `by_sql` and `by_cross_join` are the sizes of the samples."""
    from skipfilter.spark import Workload, generate_sessions, generate_updates, spark_session

    with tempfile.TemporaryDirectory() as place:
        conf = {
            "spark.master": "local[2]",
            "spark.driver.memory": "6g",
            "spark.local.dir": place,
            "spark.sql.shuffle.partitions": "32",
            "spark.log.level": "ERROR",
            "spark.ui.showConsoleProgress": "false",
        }
        # 1. The tables of the day.
        spark = spark_session("bench", conf)
        workload = Workload(subscribers=subscribers, updates=updates, seed=SEED)
        generate_updates(spark, workload).write.parquet(f"{place}/updates")
        generate_sessions(spark, workload).write.parquet(f"{place}/sessions")
        day = Day(spark, place)
        # 2. The variants.
        variants: dict[str, Callable[[], Figures]] = {"plain SQL": partial(day.ask, plain_sql, by_sql)}
        if by_cross_join:
            variants["cross join, rlike"] = partial(day.ask, cross_join, by_cross_join)
        variants["skipfilter.spark"] = day.match
        day.match()  # a warm-up of Java and Python
        found = in_turn(variants, rounds=rounds if subscribers < 100_000 else min(rounds, 2), of=UNIT, shown=SHOWN)
        spark.stop()
        return found


class Day:
    """The tables of a day, which are in the directory `place`.

    All tables that the baselines prepare beforehand are cached, so that their time does
    not count.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._spark = spark
        self._place = place
        self.updates, self.sessions = (spark.read.parquet(f"{place}/{name}") for name in ("updates", "sessions"))
        self._count = self.updates.count()
        # For plain SQL: the distinct patterns, and the selectors of each role.
        self._patterns = regular_expressions(self.sessions).cache()
        self._declared = {role: declared(self.sessions, self._patterns, role).cache() for role in ROLES}
        # For the cross join: one regular expression per subscriber and role.
        self._by_subscriber = by_subscriber(self.sessions, self._declared).cache()
        # A count fills the cache of a table.
        for table in (self._patterns, *self._declared.values(), self._by_subscriber):
            table.count()

    def match(self) -> Figures:
        """Write the fan-out of all updates, and return the figures."""
        from pyspark.sql import functions as F  # noqa: N812

        from skipfilter.spark import match

        with peak() as memory:
            began = time.perf_counter()
            match(self.updates, self.sessions, base_url=None).write.mode("overwrite").parquet(f"{self._place}/fanout")
            taken = time.perf_counter() - began
        total = self._spark.read.parquet(f"{self._place}/fanout").agg(F.sum("fanout"), F.count("*")).first()
        assert total is not None
        assert total[1] == self._count
        return figures(taken, self._count, total[0]) | memory

    def ask(self, variant: Callable[..., DataFrame], wanted: int) -> Figures:
        """Count the deliveries of about `wanted` updates, and return the figures.

        `variant` finds them.  An assertion fails if their number is not that of the
        last `match`.
        """
        from pyspark.sql import functions as F  # noqa: N812

        # 1. A sample of the updates, drawn by a hash.
        sample = F.pmod(F.xxhash64("update_id"), F.lit(max(1, round(self._count / wanted)))) == 0
        updates = self.updates.filter(sample).cache()
        count = updates.count()
        # 2. Only the variant is timed.
        began = time.perf_counter()
        deliveries = variant(updates, self._patterns, self._declared, self._by_subscriber).count()
        taken = time.perf_counter() - began
        updates.unpersist()
        # 3. The same sample of the fan-out.
        expected = self._spark.read.parquet(f"{self._place}/fanout").filter(sample).agg(F.sum("fanout")).first()
        assert expected is not None
        assert deliveries == (expected[0] or 0), (variant, deliveries, expected[0])
        return figures(taken, count, deliveries)


def figures(taken: float, updates: int, deliveries: int) -> Figures:
    """Return the figures of one run, which has taken `taken` seconds."""
    return {UNIT: taken / updates * 1e6, "updates": updates, "deliveries": deliveries, "s": taken}


# -- the baselines

ROLES: Final = ("selectors", "authorised")
"""The columns of a session with its subscriptions, and with its grants."""


def plain_sql(updates: DataFrame, patterns: DataFrame, declared: dict[str, DataFrame], _: DataFrame) -> DataFrame:
    """Return (update_id, subscriber_id) of each delivery: the first baseline."""
    from pyspark.sql import functions as F  # noqa: N812

    # 1. The selectors that match each distinct topic: the equal ones, and the others by
    # `rlike`.
    of_topics = updates.select("update_id", "private", "ts", F.explode("topics").alias("topic"))
    topics = of_topics.select("topic").distinct()
    others = topics.join(F.broadcast(patterns), F.expr("rlike(topic, regex)")).select("topic", "type", "pattern")
    exact = topics.select("topic", F.lit("exact").alias("type"), F.col("topic").alias("pattern"))
    matched = of_topics.join(exact.unionAll(others), "topic")

    def reached(role: str) -> DataFrame:
        """Return the connected subscribers with a matching selector, by update."""
        there = (F.col("connected_from") <= F.col("ts")) & (
            F.col("disconnected_at").isNull() | (F.col("ts") < F.col("disconnected_at"))
        )
        asked = matched if role == "selectors" else matched.filter("private")
        found = asked.join(declared[role], ["type", "pattern"]).filter(there)
        return found.select("update_id", "subscriber_id", "private").distinct()

    # 2. A private update needs a matching grant, too.
    subscribed = reached("selectors")
    private = subscribed.filter("private").join(reached("authorised"), ["update_id", "subscriber_id"], "left_semi")
    return subscribed.filter("not private").unionAll(private)


def cross_join(updates: DataFrame, _: DataFrame, __: dict[str, DataFrame], by_subscriber: DataFrame) -> DataFrame:
    """Return a row for each delivery: the second baseline.

    It tests each pair of an update and a subscriber.
    """
    return updates.crossJoin(by_subscriber).filter(
        "connected_from <= ts and (disconnected_at is null or ts < disconnected_at)"
        " and exists(topics, topic -> rlike(topic, of_selectors))"
        " and (not private or exists(topics, topic -> rlike(topic, of_authorised)))"
    )


def regular_expressions(sessions: DataFrame) -> DataFrame:
    """Return (type, pattern, regex) of each distinct selector that is not exact."""
    from pyspark.sql import functions as F  # noqa: N812

    every = F.explode(F.concat(*ROLES)).alias("selector")
    patterns = sessions.select(every).select("selector.*").filter("type != 'exact'").distinct().collect()
    rows = [(type, pattern, regular_expression(type, pattern)) for type, pattern in patterns]
    return sessions.sparkSession.createDataFrame(rows, "type string, pattern string, regex string")


def declared(sessions: DataFrame, patterns: DataFrame, role: str) -> DataFrame:
    """Return a row for each selector that each subscriber has in the column `role`.

    It has the regular expression of the selector, or null if the selector is exact.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = sessions.select("subscriber_id", "connected_from", "disconnected_at", F.explode(role).alias("selector"))
    return rows.select("*", "selector.*").drop("selector").join(F.broadcast(patterns), ["type", "pattern"], "left")


def by_subscriber(sessions: DataFrame, declared: dict[str, DataFrame]) -> DataFrame:
    """Return a row for each subscriber, with one regular expression for each role.

    It matches if one of the subscriber's selectors does.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def whole(role: str) -> DataFrame:
        """Return one regular expression for each subscriber that has selectors."""
        quoted: Column = F.concat(F.lit(r"^\Q"), "pattern", F.lit(r"\E$"))
        regexes = F.concat_ws("|", F.collect_list(F.coalesce("regex", quoted)))
        return declared[role].groupBy("subscriber_id").agg(regexes.alias(f"of_{role}"))

    windows = sessions.select("subscriber_id", "connected_from", "disconnected_at")
    # Without a selector, "^$" matches no topic.
    for role in ROLES:
        windows = windows.join(whole(role), "subscriber_id", "left").fillna("^$", [f"of_{role}"])
    return windows


# Regular expressions for the variable parts of the patterns of each type.
_WORD: Final = "(?:[A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})*"
_TOKENS: Final = {
    "uritemplate": {
        r"\{[a-z]+\}": _WORD,
        r"\{/[a-z]+\*\}": f"(?:/{_WORD})*",
        r"\{\?[a-z,]+\}": r"(?:\?[^#]*)?",
        r"\{\+[a-z]+\}": "[^ ]*",
    },
    "amqp": {r"^#\.": r"(?:[^.]+\.)*", r"\.#$": r"(?:\.[^.]+)*", r"\*": "[^.]+"},
    "mqtt": {r"/#$": "(?:/.*)?", r"\+": "[^/]*"},
    "urlpattern": {r"\{s\}\?": "s?", r":[a-z]+\(\\d\+\)": r"\d+", r":(?=[a-z])[a-z]+": "[^/.]+", r"\*": ".*"},
    "everything": {r"\*": ".*"},
}


def regular_expression(type: str, pattern: str) -> str:
    """Return a regular expression of Java that matches as `pattern` does.

    Only the shapes of patterns that the workload has are supported.
    """
    tokens = _TOKENS[type]
    parts = re.split(f"({'|'.join(tokens)})", pattern)
    made = [
        next((regex for token, regex in tokens.items() if re.fullmatch(token.strip("^$"), part)), rf"\Q{part}\E")
        for part in parts
        if part
    ]
    end = r"(?:[?#].*)?" if type == "urlpattern" else ""
    return "^" + "".join(made) + end + "$"


# -- memory


@contextmanager
def peak() -> Iterator[dict[str, Any]]:
    """Watch the memory of Java and its Python workers, five times a second.

    Yields a dict of the largest values so far, in MB.  Linux only.
    """
    most: dict[str, Any] = {"Java MB": 0.0, "workers MB": 0.0}
    done = threading.Event()

    def look() -> None:
        """Update the largest values until the block has ended."""
        while not done.wait(0.2):
            java, *workers = _sizes() or [0.0]
            most["Java MB"] = max(most["Java MB"], java)
            most["workers MB"] = max(most["workers MB"], sum(workers))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def _sizes() -> list[float]:
    """Return the resident MB of Java, then those of each process below it.

    Java is a child of this process.  The list is empty if it does not run.
    """
    # 1. The parent and the size of each process.
    parents, sizes, java = {}, {}, 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:  # the process has ended
            continue
        pid = int(fields["Pid"])
        parents[pid] = int(fields["PPid"])
        sizes[pid] = int(fields.get("VmRSS", "0 kB").split()[0]) / 1_000
        if fields["Name"] == "java" and parents[pid] == os.getpid():
            java = pid

    # 2. The processes below Java.
    def is_below(pid: int) -> bool:
        """Return whether a process is Java or descends from it."""
        while pid in parents and pid != java:
            pid = parents[pid]
        return pid == java

    return [sizes[java], *(sizes[pid] for pid in parents if pid != java and is_below(pid))] if java else []

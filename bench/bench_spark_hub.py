"""How fast is a hub as a source and a sink of Spark?

It is compared with plain clients of the same hub.
"""

from __future__ import annotations

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, concat, lit, pmod

from bench.benchmark import Bars, Case
from bench.measure import processor_time, summary
from bench.servers import hub
from bench.servers import versions as _versions
from hub.development import DEVELOPMENT_TOKEN
from hub.spark import register
from skipfilter.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from bench.measure import Figures
    from bench.targets import Target

QUESTION = "How fast is a hub as a source and a sink of Spark?"
WORKLOAD = (
    "Updates of 192 bytes and 100 topics, in a hub with its history in memory. Spark is one JVM with two tasks, "
    "warmed up. Reading: all updates of the hub, over one connection, into nothing. The baseline counts blank lines "
    "in the received bytes, which shows the speed of the hub and the loopback; httpx2.EventSource is a plain client. "
    "Spark reads all updates twice: in the driver, to find the end of a batch, and in an executor. Publishing: 1,000 "
    "lines of JSON per request, on two connections; the hub remembers ids (idempotency_window). The baseline sends "
    "prepared lines."
)
PLOT = Bars()
UNIT = "µs a row"
ROUNDS = 3, 1

_TASKS = 2  # of Spark, and threads of the plain publisher
_LINES_PER_REQUEST = 1_000
_DATA = "x" * 192


def versions() -> dict[str, str]:
    """Return the versions of the hub's parts, and those of Spark and httpx2."""
    return _versions() | {name: version(name) for name in ("httpx2", "pyarrow", "pyspark")}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: reading and publishing."""
    read, written = (5_000, 5_000) if quick else (300_000, 100_000)
    yield Case(f"read {read:,} updates", partial(_measure_source, read))
    yield Case(f"publish {written:,} updates", partial(_measure_sink, written))


def _measure_source(count: int, rounds: int) -> dict[str, Figures]:
    """Measure reading `count` updates from one hub."""
    with _spark() as spark, _hub(count) as target, tempfile.TemporaryDirectory() as folder:
        _post(target, _bodies(count))
        variants = {
            "count blank lines": partial(_count_blank_lines, target),
            "httpx2.EventSource": partial(_count_events, target),
            "spark.read": partial(_read_table, spark, target),
            "spark.readStream, one batch": partial(_read_stream, spark, target, Path(folder), 0),
            "spark.readStream, 50,000 a batch": partial(_read_stream, spark, target, Path(folder), 50_000),
        }
        for ask in variants.values():  # a warm-up: the hub encodes its updates, and the JVM compiles
            _timed(ask, count, target)
        return _in_turn({variant: (ask, target) for variant, ask in variants.items()}, count, rounds)


def _measure_sink(count: int, rounds: int) -> dict[str, Figures]:
    """Measure publishing `count` updates.

    Each variant gets a new hub in each round, because a hub does not publish an id
    twice.
    """
    taken: dict[str, list[Figures]] = {"prepared lines": [], "df.write": []}
    with _spark() as spark:
        with _hub(count) as target:  # a warm-up
            _write(spark, target, count)
        for _ in range(rounds):
            with _hub(count) as target:
                bodies = _bodies(count)
                taken["prepared lines"].append(_timed(partial(_post, target, bodies), count, target))
            with _hub(count) as target:
                taken["df.write"].append(_timed(partial(_write, spark, target, count), count, target))
    return summary(taken, "µs a row")


def _in_turn(variants: dict[str, tuple[Callable[[], int], Target]], count: int, rounds: int) -> dict[str, Figures]:
    """Run each variant once per round, and return its figures."""
    taken: dict[str, list[Figures]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, (ask, target) in variants.items():
            taken[variant].append(_timed(ask, count, target))
    return summary(taken, "µs a row")


def _timed(ask: Callable[[], int], count: int, target: Target) -> Figures:
    """Return the figures of `ask`, which is repeated if Python starts too slowly."""
    while True:
        try:
            return _once(ask, count, target)
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
            # On a busy machine, Python took longer to start than the ten seconds that
            # Spark allows.


def _once(ask: Callable[[], int], count: int, target: Target) -> Figures:
    """Return the time and the hub's CPU of `ask`, which must handle `count` rows."""
    before = sum(processor_time(pid)[0] for pid in target.pids)
    began = time.perf_counter()
    assert ask() == count
    seconds = time.perf_counter() - began
    spent = sum(processor_time(pid)[0] for pid in target.pids) - before
    return {"µs a row": seconds / count * 1e6, "rows/s": count / seconds, "hub CPU µs a row": spent / count * 1e6}


# -- clients


@contextmanager
def _hub(count: int) -> Iterator[Target]:
    """Run a hub whose history has room for `count` updates and more."""
    updates, size = str(2 * count), str(2**31)
    with hub(HUB_HISTORY_UPDATES=updates, HUB_HISTORY_BYTES=size, HUB_IDEMPOTENCY_WINDOW="3600") as target:
        yield target


def _url(target: Target) -> str:
    return f"http://{target.host}:{target.port}/.well-known/mercure"


def _bodies(count: int) -> list[bytes]:
    """Return the bodies of requests that publish `count` updates."""
    lines = [
        json.dumps({"topic": [f"https://example.com/{n % 100}"], "data": _DATA, "id": f"urn:n:{n}"})
        for n in range(count)
    ]
    return ["\n".join(lines[n : n + _LINES_PER_REQUEST]).encode() for n in range(0, count, _LINES_PER_REQUEST)]


def _post(target: Target, bodies: list[bytes]) -> int:
    """Publish `bodies` on two connections, and return the number of updates."""
    headers = {"Content-Type": "application/x-ndjson", "Authorization": f"Bearer {DEVELOPMENT_TOKEN}"}

    def post(its: list[bytes]) -> int:
        """Publish bodies on one connection."""
        with httpx2.Client(headers=headers, timeout=60) as client:
            return sum(client.post(_url(target), content=body).raise_for_status().text.count("\n") for body in its)

    with ThreadPoolExecutor(_TASKS) as threads:
        return sum(threads.map(post, [bodies[n::_TASKS] for n in range(_TASKS)]))


@contextmanager
def _replay(target: Target) -> Iterator[httpx2.Response]:
    """Yield a response with the whole history, which then ends."""
    headers = {"Last-Event-ID": "earliest", "Prefer": "wait=0"}
    with (
        httpx2.Client(timeout=60) as client,
        client.stream("GET", _url(target), params={"match": "*"}, headers=headers) as response,
    ):
        yield response


def _count_blank_lines(target: Target) -> int:
    """Count the events in the bytes of the history: each ends with a blank line."""
    found, last = -1, b""  # the last blank line follows a comment, not an event
    with _replay(target) as response:
        for chunk in response.iter_raw():
            found += (last + chunk).count(b"\n\n")
            last = chunk[-1:] if not chunk.endswith(b"\n\n") else b""
    return found


def _count_events(target: Target) -> int:
    """Count the events that a plain client parses."""
    with _replay(target) as response:
        return sum(1 for _ in httpx2.EventSource(response))


# -- Spark


@contextmanager
def _spark() -> Iterator[SparkSession]:
    """Run a local Spark that knows the source and the sink."""
    conf = {
        "spark.master": f"local[{_TASKS}]",
        "spark.sql.shuffle.partitions": str(_TASKS),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
    }
    spark = spark_session("bench", conf)
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def _read_table(spark: SparkSession, target: Target) -> int:
    """Read all updates as a table, and count their ids."""
    frame = spark.read.format("mercure").options(url=_url(target), match="*").load()
    return frame.agg({"id": "count"}).collect()[0][0]  # type: ignore[no-any-return]


def _read_stream(spark: SparkSession, target: Target, folder: Path, most: int) -> int:
    """Read all updates as a stream, in batches of up to `most`; 0 for one batch.

    Returns the number of rows.  The checkpoint is in `folder`.
    """
    options = {"url": _url(target), "match": "*"} | ({"maxRowsPerBatch": str(most)} if most else {})
    writer = spark.readStream.format("mercure").options(**options).load().writeStream.format("noop")
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)


def _write(spark: SparkSession, target: Target, count: int) -> int:
    """Publish `count` rows of Spark, and return their number."""
    rows = spark.range(0, count, numPartitions=_TASKS).select(
        concat(lit("https://example.com/"), pmod(col("id"), lit(100)).cast("string")).alias("topic"),
        lit(_DATA).alias("data"),
        concat(lit("urn:n:"), col("id").cast("string")).alias("id"),
    )
    with tempfile.NamedTemporaryFile("w") as token:
        token.write(DEVELOPMENT_TOKEN)
        token.flush()
        sink = rows.write.format("mercure").mode("append").option("private", "false")
        sink.options(url=_url(target), tokenFile=token.name).save()
    return count

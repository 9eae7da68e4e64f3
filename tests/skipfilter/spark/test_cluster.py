"""A standalone cluster of two workers: the same answers as in one process, also if an
executor is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import venv
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812

from tests.conftest import children_of
from tests.skipfilter.worlds import BASE, Session, World, by_brute_force, random_world
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from pyspark.sql import SparkSession

    from tests.skipfilter.worlds import Update

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OUTPUTS = ("fanout", "rows", "received")


class Cluster:
    """A master and two workers with one core each."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._started: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> None:
        self._start("master", "Master")
        self.url = self._wait_for("master", r"spark://127\.0\.0\.1:\d+")
        for name in ("one", "other"):
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._place / name))
            self._start(name, "Worker", *limits, self.url)
        for name in ("one", "other"):
            self._wait_for(name, "Successfully registered with master")

    def _start(self, name: str, role: str, *arguments: str) -> None:
        command = Path(pyspark.__file__).parent / "bin" / "spark-class"
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        # Without this, executors would have the PYTHONPATH of the tests, and not that
        # of their application.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (self._place / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [command, f"org.apache.spark.deploy.{role.lower()}.{role}", *place, *arguments],
                stdout=log,
                stderr=log,
                env=kept | {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": JAVA},
            )
        self._started.append(started)

    def _wait_for(self, name: str, pattern: str) -> str:
        log = self._place / f"{name}.log"
        asyncio.run(until(lambda: re.search(pattern, log.read_text())))
        found = re.search(pattern, log.read_text())
        assert found is not None
        return found[0]

    def executors(self) -> list[int]:
        """The processes of executors, one of each worker that has one."""
        return [pid for worker in self._started[1:] for pid in children_of(worker.pid)]

    def stop(self) -> None:
        executors = self.executors()
        for process in reversed(self._started):
            process.kill()
            process.wait(HANG)
        for pid in executors:
            with contextlib.suppress(ProcessLookupError):  # it ends by itself once its application has ended
                os.kill(pid, signal.SIGKILL)

    def job(self, *command: str | Path, **conf: str) -> subprocess.Popen[str]:
        """A job of the pipeline on this cluster.

        In the names of settings, _ is for a dot.
        """
        settings = {
            "spark.master": self.url,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.extraJavaOptions": JAVA,
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}",
            "spark.pyspark.python": sys.executable,
            "spark.sql.adaptive.coalescePartitions.enabled": "false",  # each executor has some of everything
        } | {name.replace("_", "."): value for name, value in conf.items()}
        said = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == "SPARK_CONF_DIR" or not name.startswith(("SPARK_", "PYSPARK_"))
        }
        return subprocess.Popen(
            [sys.executable, "-m", "hub", "spark", *command, *said],
            stderr=subprocess.PIPE,
            text=True,
            env=kept,
            cwd=ROOT,
        )


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def some_world(chance: Random) -> World:
    """Several random worlds in one, with at least one delivery, in two ranges of ids."""
    updates: list[Update] = []
    # The ids up to this one take 128,000 bytes, and all selectors up to 25,000.
    sessions = [Session(8_000, [("everything", "*")], [("mqtt", "#")], 0, None)]
    while not by_brute_force(world := World(updates, sessions)) or len(updates) < 100:
        more, place = random_world(chance), 2 * len(updates)  # there are more updates than ids in any
        updates += [update._replace(update_id=f"{place} {update.update_id}") for update in more.updates]
        sessions += [session._replace(subscriber_id=place + session.subscriber_id) for session in more.sessions]
    return world


def write_tables(spark: SparkSession, place: Path, world: World) -> None:
    updates, sessions = (table.withColumn("dt", F.lit(date(2026, 1, 31))) for table in world.tables(spark, 3))
    updates.withColumn("data_bytes", F.lit(0).cast("long")).write.parquet(f"{place}/updates")
    sessions.withColumn("subscriber", F.lit("urn:x")).write.parquet(f"{place}/sessions")


def check_outputs(spark: SparkSession, place: Path, world: World) -> None:
    """Have all tables agree with brute force."""
    expected = sorted(by_brute_force(world))
    fanout, rows, received = (spark.read.parquet(f"{place}/{name}").collect() for name in OUTPUTS)
    assert sorted((row.update_id, row.subscriber_id) for row in rows) == expected
    counts = dict.fromkeys((update.update_id for update in world.updates), 0) | Counter(id for id, _ in expected)
    assert {row.update_id: row.fanout for row in fanout} == counts
    assert {row.subscriber_id: row.received for row in received} == Counter(id for _, id in expected)


MATCH = (
    *(part for name in OUTPUTS for part in ("--output", name)),
    *("--base-url", BASE, "--max-broadcast-bytes", "100000"),
)


def test_all_outputs_agree_with_brute_force_even_if_an_executor_is_lost(
    spark: SparkSession, cluster: Cluster, chance: Random, tmp_path: Path
) -> None:
    world = some_world(chance)
    write_tables(spark, tmp_path, world)
    told = ""
    with cluster.job("match", tmp_path, *MATCH) as job:
        assert job.stderr is not None
        for line in job.stderr:
            told += line
            if line.startswith(f"{tmp_path}/fanout: "):  # it is written, and the other outputs are not
                os.kill(cluster.executors()[0], signal.SIGKILL)
    assert job.returncode == 0, told
    check_outputs(spark, tmp_path, world)


def test_packages_that_executors_lack_are_reported_before_any_work(cluster: Cluster, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    with cluster.job("index", tmp_path, spark_pyspark_python=python, spark_executorEnv_PYTHONPATH="") as job:
        _, told = job.communicate()
    assert job.returncode == 1
    lacking = "cachetools, numpy, pandas, pyarrow, pyroaring, skipfilter, sortedcontainers, typer"
    [line] = [line for line in told.splitlines() if line.startswith("index: ")]
    assert re.fullmatch(rf"index: the executors run {python} \(3\.\d+\.\d+\) and have no {lacking}: set .*", line)
    assert "\tat " not in told

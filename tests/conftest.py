"""Fixtures: a real hub in its own process, and a real Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from random import Random, random
from typing import IO, TYPE_CHECKING, Any

import httpx2
import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

from hub.development import DEVELOPMENT_TOKEN
from hub.logs import log_to_stdlib
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

_STARTERS = {"chromium", "redis_server", "shared_hub", "spark", "start_hub", "start_redis", "strict_hub"}
"""Fixtures that start a process."""

_TOGETHER = (
    tuple(
        f"tests/skipfilter/spark/{name}.py"
        for name in (
            "test_cli",
            "test_cluster",
            "jobs/test_gaps",
            "jobs/test_generations",
            "jobs/test_report",
            "page/test_page",
        )
    ),
    ("tests/hub/spark/", "tests/skipfilter/spark/", "tests/test_formats.py"),
    (
        "tests/hub/test_browser.py",
        "tests/hub/browser/",
        "tests/hub/test_behind_proxies.py",
        "tests/hub/test_logout.py",
    ),
    ("tests/hub/process/test_server.py",),
)
"""Paths of tests that share a Spark session, a browser or hubs; the longest part first.

The first that fits counts.
"""


def _part(nodeid: str) -> int:
    """Return the index of the part that a test belongs to, or a number above all parts
    if it has none.
    """
    fits = (number for number, paths in enumerate(_TOGETHER) if nodeid.startswith(paths))
    return next(fits, len(_TOGETHER))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose fixtures start processes, and put tests that share a process
    first.
    """
    items.sort(key=lambda item: _part(item.nodeid))
    for item in items:
        if _STARTERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("processes")


class _Schedule(LoadScopeScheduling):  # type: ignore[misc]
    """Give each test to the next free worker, but keep tests that share a process on
    one worker.
    """

    def _split_scope(self, nodeid: str) -> str:
        part = _part(nodeid)
        return str(part) if part < len(_TOGETHER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Schedule:
    config.option.loadscopereorder = False  # they begin in the order above
    return _Schedule(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name the tests that failed in the last line, as CI may show only that."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (failed := reporter.stats.get("failed", []) + reporter.stats.get("error", [])):
        print("failed:", *(report.nodeid for report in failed))


_running: pytest.Item | None = None


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn") and _running is not None:
        raise RuntimeError(f"{_running.nodeid} starts a process: mark it with pytest.mark.processes")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Refuse processes to a test without the mark, so that `make test-fast`
    stays fast.
    """
    global _running
    _running = None if item.get_closest_marker("processes") else item
    try:
        return (yield)
    finally:
        _running = None


@pytest.fixture(scope="session", autouse=True)
def _no_files() -> Iterator[None]:
    """Keep the histories of hubs out of the working directory, because tests would
    share them.
    """
    before = set(Path().glob("*.db*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUB_HISTORY_URL", "memory://")
        patch.setenv("HUB_OPERATOR_SOCKET", "")
        yield
    assert set(Path().glob("*.db*")) <= before


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    if not structlog.is_configured():  # a second time, loggers that were used would not know of it
        log_to_stdlib()


@pytest.fixture
def chance() -> Random:
    """Random numbers from the seed of this run, which the first lines of its output
    name.
    """
    return Random(random())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def children_of(pid: int) -> list[int]:
    """The processes that a process has forked and that are still there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


def suspend(pid: int, history: Path) -> None:
    """Stop a process by SIGSTOP, but not while it writes to a history in SQLite: it would
    keep the lock, and block all others.
    """
    with contextlib.closing(sqlite3.connect(history, timeout=HANG, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        connection.execute("ROLLBACK")


class HubProcess:
    """`python -m hub serve` on a free port: by default in development mode, with its
    history in memory.
    """

    def __init__(self, *arguments: str, dev: bool = True, **environment: str) -> None:
        self._stderr: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-X", "dev", "-m", "hub", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command + (["--dev"] if dev else []),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={key: value for key, value in os.environ.items() if not key.startswith("HUB_")}
            | {"HUB_HISTORY_URL": "memory://", "HUB_OPERATOR_SOCKET": ""}
            | environment,
        )
        self.welcome = self._read_welcome()
        self.url = self._word_after("Hub")
        self.origin = str(httpx2.URL(self.url).copy_with(path="")).rstrip("/")
        self.port = httpx2.URL(self.url).port or 0
        self.token = DEVELOPMENT_TOKEN
        self.may_fail = False
        """Whether its log may have errors, because the test causes some."""

    def _read_welcome(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                return "".join(lines)
        raise AssertionError(f"the hub ended: {''.join(lines)}{self.log()}")

    def _word_after(self, name: str) -> str:
        return next(line.split()[1] for line in self.welcome.splitlines() if line.startswith(name))

    @property
    def metrics_url(self) -> str:
        """Where its metrics are, if HUB_METRICS_PORT is set."""
        return self._word_after("Metrics")

    def log(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers."""
        return children_of(self.process.pid)

    async def kill_worker(self, pid: int) -> None:
        """Kill one of its workers, and wait until another worker replaces it."""
        count = len(self.workers)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pid not in self.workers and len(self.workers) == count)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(HANG)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def close(self) -> None:
        self.stop()
        log = self.log()
        self._stderr.close()
        assert "Traceback" not in log, log
        assert "Warning" not in log, log
        assert self.may_fail or "ERROR" not in log, log


@pytest.fixture
def start_hub() -> Iterator[Callable[..., HubProcess]]:
    """Start hubs; each ends with the test, and must have had no error."""
    started: list[HubProcess] = []

    def start(*arguments: str, **options: Any) -> HubProcess:
        hub = HubProcess(*arguments, **options)
        started.append(hub)
        return hub

    yield start
    for hub in started:
        hub.close()


@pytest.fixture
def hub(start_hub: Callable[..., HubProcess]) -> HubProcess:
    return start_hub()


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[HubProcess]:
    """A hub for tests that are independent of updates of other tests."""
    hub = HubProcess()
    yield hub
    hub.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium.  There must be one: `make test` installs it."""
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    path = next((path for name in names if name and (path := shutil.which(name))), None)
    assert path is not None, "no Chromium: install Debian's package chromium, or set CHROMIUM to a path"
    return path


_SPARK_DEFAULTS = """
spark.driver.extraJavaOptions  -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:MetaspaceSize=512m -Xmn512m
spark.connect.grpc.binding.address  127.0.0.1
spark.connect.grpc.binding.port  0
spark.driver.memory            2g
spark.python.sql.dataFrameDebugging.enabled  false
spark.sql.codegen.factoryMode  NO_CODEGEN
spark.sql.codegen.wholeStage   false
spark.sql.shuffle.partitions   2
spark.ui.enabled               false
spark.ui.showConsoleProgress   false
"""
"""For many small queries: code that runs a few times is not worth compiling, by Spark
or by Java's second compiler.

Java's memory has room for the classes and plans of all queries from the start.
"""
_WORKER_START = """
import sys
sys.path[:] = [path for path in sys.path if "/python/lib/py" not in path]
"""
"""The first module that each Python process of Spark runs.

It removes Spark's zip files from the path.  The process then imports the same pyspark
and py4j from site-packages, where they are compiled, and starts in a third of the time.
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process, on two processors; a task that fails is tried three times.
    There must be a Java.

    The processes that a test starts get the same settings, from the files that the
    environment names.
    """
    from py4j.java_gateway import JavaPackage, JVMView

    from skipfilter.spark.session import spark_session

    place = tmp_path_factory.mktemp("spark")
    (place / "spark-defaults.conf").write_text(_SPARK_DEFAULTS)
    (place / "sitecustomize.py").write_text(_WORKER_START)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (JVMView, JavaPackage):  # otherwise Java searches all of Spark's jars at each use of a name
            patch.setattr(kind, "__getattr__", cache(kind.__getattr__))
        patch.setenv("SPARK_CONF_DIR", str(place))
        patch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
        patch.setenv("TOKEN", DEVELOPMENT_TOKEN)  # its workers have the environment that Java begins with
        session = spark_session(
            "tests",
            {
                "spark.master": "local[2,3]",
                "spark.local.dir": str(place / "local"),
                "spark.sql.warehouse.dir": str(place / "warehouse"),
            },
        )
        yield session
        session.stop()
